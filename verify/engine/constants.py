"""Fixed-point constants of `fixedpoint`, computed with Python integers; ``scale`` bits after the point."""

from __future__ import annotations

import functools
import math

GUARD = 32
"""Extra bits carried while a constant is computed."""


def atanh_fixed(numerator: int, denominator: int, scale: int) -> int:
    """atanh(numerator / denominator) * 2**scale for a ratio of at most 1/3, at most 1 too low."""
    bits = scale + GUARD
    power = (numerator << bits) // denominator
    total, k = 0, 1
    while power:
        total += power // k
        power = power * numerator * numerator // (denominator * denominator)
        k += 2
    return total >> GUARD


def log_fixed(numerator: int, denominator: int, scale: int) -> int:
    """log(numerator / denominator) * 2**scale for a ratio in [1, 2]: log r = 2 atanh((r - 1) / (r + 1))."""
    return 2 * atanh_fixed(numerator - denominator, numerator + denominator, scale + 2) >> 2


@functools.cache
def root_powers(count: int, scale: int) -> tuple[int, ...]:
    """2**(j / count) * 2**scale for j below ``count``, a power of two: repeated integer square roots of 2."""
    bits = scale + GUARD
    root = 2 << bits
    for _ in range(count.bit_length() - 1):
        root = math.isqrt(root << bits)
    powers = [1 << bits]
    for _ in range(count - 1):
        powers.append(powers[-1] * root >> bits)
    return tuple(p >> GUARD for p in powers)


def limbs(value: int, count: int) -> list[int]:
    """The ``count`` low 32-bit limbs of a non-negative integer, least significant first."""
    return [(value >> (32 * i)) & 0xFFFFFFFF for i in range(count)]
