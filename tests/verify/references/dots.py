"""The truncated fused dot product of NVIDIA's tensor cores, by integers.

Source of the arithmetic: arXiv:2511.10909v2 (MMA-Sim), algorithm 7 and tables 3 to 5; arXiv:2512.07004v2, table II.
One block of L products and the accumulator c is aligned to the largest exponent, every term is truncated toward zero
to F fraction bits, the sum is exact, and the result is truncated to `kept` significand bits. Products are not
normalised, subnormals keep the smallest exponent, zeros do not take part in the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PRECISION = {"bf16": 8, "f16": 11, "tf32": 11, "e4m3": 4, "e5m2": 3, "f32": 24}
LEAST_EXPONENT = {"bf16": -126, "f16": -14, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
NAN = np.array(0x7FFFFFFF, np.uint32).view(np.float32)[()]


@dataclass(frozen=True)
class Core:
    """Length of a block, fraction bits, floor of the exponent, significand bits that are kept."""

    length: int
    fraction: int
    floor: int
    kept: int = 24


AMPERE = Core(8, 24, -132)
HOPPER = Core(16, 25, -133)  # also B200 and SM120, mma.sync and wgmma, for bf16 and f16
HOPPER_FP8 = Core(32, 13, -133, kept=14)  # wgmma on e4m3/e5m2
SM120_FP8 = Core(32, 25, -133)


def _split(x: Array, fmt: str) -> tuple[Array, Array]:
    """Integers m, e with x = m * 2^(e - (p-1)); finite x only (others give garbage that the caller replaces)."""
    p = PRECISION[fmt]
    finite = np.where(np.isfinite(x), x, 0.0).astype(np.float64)
    exponent = np.maximum(np.frexp(finite)[1].astype(np.int64) - 1, LEAST_EXPONENT[fmt])
    exponent = np.where(finite == 0, LEAST_EXPONENT[fmt], exponent)
    significand = np.ldexp(finite, (p - 1 - exponent).astype(np.int32))
    return significand.astype(np.int64), exponent


def _truncated(m: Array, shift: Array) -> Array:
    """sign(m) * floor(|m| * 2^shift)."""
    size = np.abs(m)
    left = size << np.clip(shift, 0, 40)
    right = size >> np.clip(-shift, 0, 63)
    return np.sign(m) * np.where(shift >= 0, left, right)


def fused(core: Core, fmt: str, a: Array, b: Array, c: Array) -> Array:
    """One block: a, b [..., length] (shorter: as if padded with zeros), c [...]; f32 result."""
    ma, ea = _split(a, fmt)
    mb, eb = _split(b, fmt)
    mc, ec = _split(c, "f32")
    m, e = ma * mb, ea + eb
    nowhere = np.int64(-(10**6))
    top = np.maximum(np.where(m != 0, e, nowhere).max(axis=-1), np.where(mc != 0, ec, nowhere))
    top = np.maximum(top, core.floor)
    p = PRECISION[fmt]
    total = _truncated(m, core.fraction - 2 * (p - 1) + e - top[..., None]).sum(axis=-1)
    total = total + _truncated(mc, core.fraction - 23 + ec - top)
    # |total| < 2^40, so binary64 holds it and everything cut from it
    weight = top - core.fraction  # of the unit of `total`
    highest = np.frexp(total.astype(np.float64))[1].astype(np.int64) - 1  # of |total|; garbage for 0
    drop = np.maximum(highest - (core.kept - 1), -149 - weight)  # units below the last kept bit
    drop = np.clip(drop, 0, 62)
    cut = np.sign(total) * ((np.abs(total) >> drop) << drop)
    value = np.ldexp(cut.astype(np.float64), np.clip(weight, -400, 400).astype(np.int32))
    value = np.where(np.abs(value) >= 2.0**128, np.copysign(np.inf, value), value) + 0.0
    with np.errstate(all="ignore"):
        products = a.astype(np.float64) * b.astype(np.float64)
        special = ~np.isfinite(products).all(axis=-1) | ~np.isfinite(c)
        sums = np.where(special, products.sum(axis=-1) + c.astype(np.float64), 0.0)
    value = np.where(special, sums, value)
    return np.where(np.isnan(value), NAN, value).astype(np.float32)


def chain(core: Core, fmt: str, k: int, a: Array, b: Array, c: Any = 0.0) -> Array:
    """Instructions of depth k in ascending order, each in ascending blocks of min(k, length) terms; a, b [..., K]."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float32), np.asarray(b, np.float32))
    c = np.broadcast_to(np.asarray(c, np.float32), a.shape[:-1])
    step = min(k, core.length)
    for start in range(0, a.shape[-1], step):
        c = fused(core, fmt, a[..., start : start + step], b[..., start : start + step], c)
    return c


def _integer(x: float, fmt: str) -> tuple[int, int]:
    """x = m * 2^(e - (p-1)) for one number."""
    p, least = PRECISION[fmt], LEAST_EXPONENT[fmt]
    if x == 0:
        return 0, least
    value = Fraction(x)
    e = least
    while abs(value) >= Fraction(2) ** (e + 1):
        e += 1
    m = value * Fraction(2) ** (p - 1 - e)
    if m.denominator != 1:
        raise ValueError(f"{x!r} is not a {fmt} number")
    return int(m), e


def fused_by_integers(core: Core, fmt: str, a: list[float], b: list[float], c: float) -> float:
    """`fused` for one output and finite operands, in Python integers and fractions alone (judges `fused`)."""
    p = PRECISION[fmt]
    terms: list[tuple[int, int, int]] = []  # significand, its fraction bits, exponent
    for x, y in zip(a, b, strict=True):
        (mx, ex), (my, ey) = _integer(x, fmt), _integer(y, fmt)
        if mx * my:
            terms.append((mx * my, 2 * (p - 1), ex + ey))
    mc, ec = _integer(c, "f32")
    if mc:
        terms.append((mc, 23, ec))
    top = max([core.floor, *(e for _, _, e in terms)])
    total = 0
    for m, bits, e in terms:
        exact = Fraction(abs(m)) * Fraction(2) ** (core.fraction - bits + e - top)
        total += (1 if m > 0 else -1) * (exact.numerator // exact.denominator)
    if total == 0:
        return 0.0
    exact = Fraction(abs(total)) * Fraction(2) ** (top - core.fraction)
    unit = Fraction(2) ** -149
    while exact / unit >= 2**core.kept:
        unit *= 2
    cut = (exact // unit) * unit
    if cut >= Fraction(2) ** 128:
        return float("inf") if total > 0 else float("-inf")
    return float(cut) if total > 0 else -float(cut)
