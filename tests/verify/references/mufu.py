"""MUFU.EX2, RCP and LG2 by their interpolation tables, in integers; and the functions compilers build from them.

The datapath: envytools `nvhw/sfu.c` (f102b823); Oberman & Siu, ARITH-17 (2005). The figures of the tables are the
hardware's (`tests/data/mufu_coefficients.csv`). All are the `.ftz` forms; `exp_triton` and `div_full` are built on them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from .floats import F32, GPU, IEEE, Array, flush

_CSV = Path(__file__).parents[2] / "data" / "mufu_coefficients.csv"
LOG2E = np.array(0x3FB8AA3B, np.uint32).view(F32)[()]
LN2 = F32(0.69314718246459960938)


def _tables() -> dict[str, Array]:
    rows: dict[str, list[list[int]]] = {}
    with _CSV.open() as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["function"], []).append([int(row["c0"]), int(row["c1"]), int(row["c2"])])
    return {name: np.array(values, np.int64) for name, values in rows.items()}


_TABLES = _tables()


def _square(r: Array) -> Array:
    """The truncated squarer: for each set bit i of r (17 bits) r >> (18-i) is added, then halved."""
    total = np.zeros_like(r)
    for i in range(17):
        total += np.where((r >> i) & 1, r >> (18 - i), 0)
    return total >> 1


def _parts(x: Any) -> tuple[Array, Array, Array, Array]:
    """Flushed values, sign (0 or 1), biased exponent, fraction."""
    x = flush(np.asarray(x, F32))
    bits = x.view(np.uint32).astype(np.int64)
    return x, bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF


def _from_bits(bits: Array) -> Array:
    return np.asarray(bits).astype(np.uint32).view(F32)


def ex2(x: Any) -> Array:
    """2^x; below 2^-126 zero."""
    x, sign, biased, fraction = _parts(x)
    # |x| in units of 2^-23, bits below dropped
    significand = np.where(biased > 0, fraction | (1 << 23), 0)
    shift = biased - 127
    size = np.where(shift >= 0, significand << np.clip(shift, 0, 8), significand >> np.clip(-shift, 0, 40))
    size = np.where(biased >= 127 + 7, 1 << 30, size)
    whole, part = size >> 23, size & 0x7FFFFF
    negative = sign == 1
    inverted = negative & (part != 0)
    n = np.where(negative, -whole, whole) - inverted
    f = np.where(inverted, part ^ 0x7FFFFF, part)
    c = _TABLES["ex2"][f >> 17]
    r = f & 0x1FFFF
    m = ((c[..., 0] << 13) + c[..., 1] * r + c[..., 2] * _square(r) + 0x77E2) >> 15
    bits = ((n + 126) << 23) + m  # m has 24 bits; its leading one adds 1 to the exponent, a carry one more
    bits = np.where(bits < (1 << 23), 0, bits)
    bits = np.where((bits >= (255 << 23)) | (size >= (128 << 23)), np.where(negative, 0, 255 << 23), bits)
    bits = np.where(np.isnan(x), 0x7FFFFFFF, bits)
    return _from_bits(bits)


def rcp(x: Any) -> Array:
    """1/x; results below 2^-126 are zeros."""
    x, sign, biased, fraction = _parts(x)
    r = fraction & 0xFFFF
    c = _TABLES["rcp"][fraction >> 16]
    m = ((c[..., 0] << 13) + c[..., 1] * r + c[..., 2] * _square(r << 1) + 0x47E7) >> 15
    bits = ((252 - biased) << 23) + m
    bits = np.where(bits < (1 << 23), 0, bits)
    bits = np.where(biased == 0, 255 << 23, bits)
    bits = np.where(np.isinf(x), 0, bits) | (sign << 31)
    return _from_bits(np.where(np.isnan(x), 0x7FFFFFFF, bits))


def lg2(x: Any) -> Array:
    """log2(x); lg2(+-0) = -inf, of a negative number NaN."""
    x, sign, biased, fraction = _parts(x)
    r = fraction & 0x1FFFF
    c = _TABLES["lg2"][fraction >> 17]
    value = ((c[..., 0] << 12) + c[..., 1] * r + ((c[..., 2] * _square(r)) << 1) + 0x3345) >> 2
    value = value + ((biased - 127) << 36)
    negative = value < 0
    size = np.where(negative, ~value, value)
    top = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    # binary64 may round 43 bits up to the next power of two only if it had more than 53: it does not
    mantissa = np.where(top >= 23, size >> np.clip(top - 23, 0, 63), size << np.clip(23 - top, 0, 63))
    bits = ((top - 36 + 126) << 23) + mantissa
    bits = np.where(negative, bits | (1 << 31), bits)
    bits = np.where((biased == 127) & (fraction == 0), 0, bits)
    bits = np.where(biased == 0, 0xFF800000, bits)
    bits = np.where(np.isinf(x), 0x7F800000, bits)
    bits = np.where((sign == 1) & (biased != 0), 0x7FFFFFFF, bits)
    return _from_bits(np.where(np.isnan(x), 0x7FFFFFFF, bits))


def expf_fast(x: Any) -> Array:
    """`expf` under -use_fast_math: ex2 of the rounded product with log2(e)."""
    return ex2(GPU.mul(x, LOG2E))


def rcp_rn(x: Any) -> Array:
    """`__frcp_rn` under -ftz=true: the correctly rounded reciprocal of the flushed argument, flushed."""
    x = flush(np.asarray(x, F32)).astype(np.float64)
    with np.errstate(all="ignore"):
        quotient = 1.0 / x  # 53 >= 2*24+2 bits: rounding twice does no harm
        return flush(quotient.astype(F32))


def exp_triton(x: Any) -> Array:
    """`tl.exp`: the product with log2(e) (no flush); below -126 halved, ex2, squared."""
    t = IEEE.mul(x, LOG2E)
    low = t < F32(-126)
    r = ex2(np.where(low, IEEE.mul(t, F32(0.5)), t))
    return np.where(low, IEEE.mul(r, r), r).astype(F32)


def div_full(a: Any, b: Any) -> Array:
    """`div.full.f32`: both scaled by 1/4 (|b| > 2^126) or 2^24 (|b| < 2^-126), then a times MUFU.RCP(b)."""
    a, b = np.broadcast_arrays(np.asarray(a, F32), np.asarray(b, F32))
    size = np.abs(b)
    scale = np.where(size > F32(2.0**126), F32(0.25), np.where(size < F32(2.0**-126), F32(2.0**24), F32(1)))
    return IEEE.mul(IEEE.mul(a, scale), rcp(IEEE.mul(b, scale)))
