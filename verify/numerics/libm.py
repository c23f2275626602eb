"""Functions of CPU libraries, scalar: glibc's expf and logf, and PyTorch's fexp_u20.

glibc 2.28 to 2.40 evaluates both in doubles with small tables; on x86-64 with FMA it runs the variants compiled with
contraction, and the fused operations here are those of the code of glibc 2.36 (Debian 12). PyTorch's ``fexp_u20`` is
the AVX-512 form of PyTorch 2.13.0. The CPU keeps subnormal numbers.
"""

from __future__ import annotations

import math
import struct

from specs.formats import BASES, Format
from verify.numerics import libm_tables as tables
from verify.numerics.mufu import from_word, to_word
from verify.numerics.operations import add, fma, mul, sub
from verify.numerics.rounding import round_float

F32, F64 = BASES["f32"], BASES["f64"]


def expf(x: float, fmt: Format) -> float:
    """The ``expf`` of glibc: 2**(n/32) from a table, times a cubic in doubles, rounded once to f32.

    The results of e**x between 2**-150 and 2**-149 are all the smallest subnormal number.
    """
    if x != x or x > tables.EXP_OVERFLOW:
        return x + math.inf
    if x < tables.EXP_SMALLEST:
        return 0.0 if x < tables.EXP_UNDERFLOW else 2.0**-149
    shifted = fma(x, tables.EXP_STEPS, tables.EXP_SHIFT, F64)
    (word,) = struct.unpack("<Q", struct.pack("<d", shifted))
    r = fma(x, tables.EXP_STEPS, -(shifted - tables.EXP_SHIFT), F64)
    scale = (tables.EXP_TABLE[word % 32] + (word << 47)) % 2**64
    (power,) = struct.unpack("<d", struct.pack("<Q", scale))
    c0, c1, c2 = tables.EXP_POLYNOMIAL
    total = fma(fma(r, c0, c1, F64), r * r, fma(r, c2, 1.0, F64), F64)
    return round_float(total * power, F32)


def logf(x: float, fmt: Format) -> float:
    """The ``logf`` of glibc: the logarithm of a sixteenth of a binade from a table, and a quartic in doubles."""
    if x != x or x < 0.0:
        return math.nan
    if x == 0.0:
        return -math.inf
    if x in (1.0, math.inf):
        return 0.0 if x == 1.0 else x
    word = to_word(x)
    if word < 0x00800000:
        word = to_word(x * 2.0**23) - (23 << 23)
    offset = word - tables.LOG_OFFSET
    row = offset >> 19 & 15
    significand = from_word(word - (offset & ~0x7FFFFF))
    r = fma(significand, tables.LOG_INVERSES[row], -1.0, F64)
    base = fma(float(offset >> 23), tables.LOG_LN2, tables.LOG_VALUES[row], F64)
    a0, a1, a2 = tables.LOG_POLYNOMIAL
    square = r * r
    inner = fma(square, a0, fma(a1, r, a2, F64), F64)
    return round_float(fma(square, inner, r + base, F64), F32)


def fexp_u20(x: float, fmt: Format) -> float:
    """PyTorch's ``fexp_u20``: the argument less a cubic, scaled so that its integer is the word of the result.

    Below log(2**-126) the result is 0, NaN gives -0, and some results just above are subnormal.
    """
    if x < from_word(tables.U20_LOWEST):
        return 0.0
    if x > from_word(tables.U20_HIGHEST):
        return math.inf
    if x != x:
        return -0.0
    scaled = mul(x, from_word(0x3FB8AA3B), F32)
    fraction = sub(scaled, float(math.floor(scaled)), F32)
    c3, c2, c1, c0 = map(from_word, tables.U20_POLYNOMIAL)
    poly = fma(fraction, fma(fraction, fma(fraction, c3, c2, F32), c1, F32), c0, F32)
    place = fma(2.0**23, add(scaled, -poly, F32), 127.0 * 2.0**23, F32)
    return from_word(math.trunc(place))
