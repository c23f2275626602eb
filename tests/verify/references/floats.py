"""Binary32 as a GPU does it, by NumPy arrays, with every rounding written out.

`Unit(ftz=True)` is what nvcc makes under `-use_fast_math` (`.ftz` on every operation): subnormal operands and results
become zeros of their sign. `Unit(ftz=False)` is IEEE 754, as Triton compiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

F32 = np.float32
Array = np.ndarray[Any, Any]
SMALLEST_NORMAL = F32(2.0**-126)


def f32(x: Any) -> Array:
    """`x` rounded once to binary32 (nearest even)."""
    with np.errstate(all="ignore"):
        return np.asarray(x, dtype=np.float64).astype(F32)


def flush(x: Array) -> Array:
    """Subnormal numbers become zeros of their sign."""
    x = np.asarray(x, F32)
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(F32(0), x), x).astype(F32)


def _rounded_to_odd(big: Array, error: Array) -> Array:
    """The exact sum `big + error` rounded to odd in 53 bits: rounding it again to 24 bits or fewer is one rounding."""
    even = (np.asarray(big, np.float64).view(np.int64) & 1) == 0
    step = np.isfinite(big) & (error != 0) & even
    away = np.where(error > 0, np.inf, -np.inf)
    return np.where(step, np.nextafter(big, away), big)


class Unit:
    """Adders and multipliers of one kind; arrays broadcast. Everything is rounded to nearest, ties to even."""

    def __init__(self, ftz: bool) -> None:
        self.ftz = ftz

    def _in(self, x: Any) -> Array:
        x = np.asarray(x, F32)
        return flush(x) if self.ftz else x

    def _out(self, x: Array) -> Array:
        return flush(x) if self.ftz else np.asarray(x, F32)

    def mul(self, a: Any, b: Any) -> Array:
        """a*b: exact in 53 bits, then one rounding."""
        with np.errstate(all="ignore"):
            return self._out((self._in(a).astype(np.float64) * self._in(b).astype(np.float64)).astype(F32))

    def add(self, a: Any, b: Any) -> Array:
        """a+b; binary64 in between has 53 >= 2*24 + 2 bits, so its rounding does no harm."""
        with np.errstate(all="ignore"):
            return self._out((self._in(a).astype(np.float64) + self._in(b).astype(np.float64)).astype(F32))

    def sub(self, a: Any, b: Any) -> Array:
        """a-b."""
        return self.add(a, -np.asarray(b, F32))

    def fma(self, a: Any, b: Any, c: Any) -> Array:
        """a*b+c with one rounding."""
        with np.errstate(all="ignore"):
            product = self._in(a).astype(np.float64) * self._in(b).astype(np.float64)
            c = self._in(c).astype(np.float64)
            product, c = np.broadcast_arrays(product, c)
            total = product + c
            part = total - product  # the error of a sum of two (Knuth)
            error = (product - (total - part)) + (c - part)
            return self._out(_rounded_to_odd(total, error).astype(F32))

    def sum_in_order(self, terms: Array, start: Any) -> Array:
        """((start + t0) + t1) + ... along the last axis."""
        total = np.asarray(start, F32)
        for i in range(terms.shape[-1]):
            total = self.add(total, terms[..., i])
        return total


def larger(a: Any, b: Any) -> Array:
    """FMNMX: a NaN is passed over, +0 is larger than -0."""
    a, b = np.broadcast_arrays(np.asarray(a, F32), np.asarray(b, F32))
    best = np.fmax(a, b)
    minus = (a == 0) & (b == 0) & np.signbit(a) & np.signbit(b)
    return np.where((a == 0) & (b == 0), np.where(minus, F32(-0.0), F32(0)), best).astype(F32)


def largest(x: Array, axis: int) -> Array:
    """`larger` of all along an axis; the order does not matter."""
    best = np.fmax.reduce(x, axis=axis)
    plus = ((x == 0) & ~np.signbit(x)).any(axis=axis)
    return np.where((best == 0) & plus, F32(0), best).astype(F32)


GPU = Unit(ftz=True)
IEEE = Unit(ftz=False)


def to_bf16(x: Any) -> Array:
    """cvt.rn.bf16: nearest even on the upper 16 bits; NaN becomes 0x7FFF."""
    bits = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), np.uint64(0x7FFF0000), rounded).astype(np.uint32).view(F32)


def to_f16(x: Any) -> Array:
    """cvt.rn.f16: nearest even, subnormals kept, too large becomes infinity."""
    with np.errstate(all="ignore"):
        return np.asarray(x, F32).astype(np.float16).astype(F32)


def _e4m3_values() -> Array:
    values: list[float] = []
    for code in range(127):  # 127 is NaN
        exponent, fraction = code >> 3, code & 7
        values.append(fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10))
    return np.array(values)


E4M3 = _e4m3_values()


def to_e4m3(x: Any) -> Array:
    """cvt.rn.satfinite.e4m3: nearest even code, at most 448 in magnitude; NaN stays NaN."""
    x = np.asarray(x, np.float64)
    size = np.minimum(np.abs(x), 448.0)
    above = np.clip(np.searchsorted(E4M3, size), 1, len(E4M3) - 1)
    low, high = E4M3[above - 1], E4M3[above]
    up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
    value = np.copysign(np.where(up, high, low), x)
    return np.where(np.isnan(x), np.nan, value).astype(F32)


def round_to(fmt: str, x: Any) -> Array:
    """`x` in the 16-bit format or in e4m3 (saturating)."""
    return {"bf16": to_bf16, "f16": to_f16, "e4m3": to_e4m3}[fmt](x)


def bits16(fmt: str, x: Any) -> Array:
    """Stored words of values of a 16-bit format."""
    if fmt == "bf16":
        return (np.asarray(x, F32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(x, F32).astype(np.float16).view(np.uint16)
