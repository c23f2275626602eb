"""Scalar operations that round once to any format.

Operands and results are Python floats that hold values of a format. The exact result of an operation is a
rational (for ``sqrt`` an integer square root with a sticky bit), rounded once by `round_fraction`. Where the
format is plain f32 or f64 (``.ftz`` or not) and both operands are values of it, the machine's own operation
is used instead: it is IEEE 754, subnormals included, and the tests hold the two routes equal.

An operand that is no value of the format is taken as it is, so ``add(x, y, BF16)`` of two f32 values is their
exact sum rounded once to bf16. With ``.ftz`` subnormal operands count as zeros of the same sign, as do
subnormal results. Signs of zero, NaN and infinities follow IEEE 754-2019 sections 6 and 7; an infinite result
is then rounded as `round_float` rounds infinity, so a format without infinities gives NaN.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

from specs.formats import Format
from verify.numerics.rounding import round_float, round_fraction

_FINE = 64
"""Quotient bits of `_sqrt_exact`: more than the 55 that decide a rounding to f64."""


def flush(x: float, fmt: Format) -> float:
    """``x``, or a zero of its sign where ``fmt`` is ``.ftz`` and ``x`` is subnormal in it."""
    if fmt.ftz and abs(x) < math.ldexp(1.0, fmt.emin):
        return math.copysign(0.0, x)
    return x


def add(a: float, b: float, fmt: Format) -> float:
    """``a + b`` rounded once to ``fmt``."""
    a, b = flush(a, fmt), flush(b, fmt)
    if _native(fmt, a, b):
        return flush(a + b if fmt.base == "f64" else _single(a + b), fmt)
    return _add_exact(a, b, fmt)


def sub(a: float, b: float, fmt: Format) -> float:
    """``a - b`` rounded once to ``fmt``."""
    return add(a, -b, fmt)


def mul(a: float, b: float, fmt: Format) -> float:
    """``a * b`` rounded once to ``fmt``."""
    a, b = flush(a, fmt), flush(b, fmt)
    if _native(fmt, a, b):
        return flush(a * b if fmt.base == "f64" else _single(a * b), fmt)
    return _mul_exact(a, b, fmt)


def div(a: float, b: float, fmt: Format) -> float:
    """``a / b`` rounded once to ``fmt``; a finite number over zero is a signed infinity, 0/0 is NaN."""
    a, b = flush(a, fmt), flush(b, fmt)
    if b != 0.0 and _native(fmt, a, b):
        return flush(a / b if fmt.base == "f64" else _single(a / b), fmt)
    return _div_exact(a, b, fmt)


def fma(a: float, b: float, c: float, fmt: Format) -> float:
    """``a * b + c`` rounded once to ``fmt``: the product is exact."""
    a, b, c = flush(a, fmt), flush(b, fmt), flush(c, fmt)
    if fmt.base == "f32" and _native(fmt, a, b, c):
        return flush(_single(_sum_to_odd(a * b, c)), fmt)
    return _fma_exact(a, b, c, fmt)


def sqrt(x: float, fmt: Format) -> float:
    """The square root of ``x`` rounded once to ``fmt``; -0 gives -0, a negative number NaN."""
    x = flush(x, fmt)
    if x >= 0.0 and _native(fmt, x):
        return flush(math.sqrt(x) if fmt.base == "f64" else _single(math.sqrt(x)), fmt)
    return _sqrt_exact(x, fmt)


# -- the machine's own operations -------------------------------------------------------------------------


def _native(fmt: Format, *operands: float) -> bool:
    """Whether the machine rounds as ``fmt`` does and every operand is one of its values."""
    if fmt.rz or fmt.sat:
        return False
    return fmt.base == "f64" or (fmt.base == "f32" and all(_single(x) == x for x in operands))


_SINGLE = struct.Struct("<f")


def _single(x: float) -> float:
    """``x`` rounded to f32 by the machine's cast.

    After a single f64 add, multiply, divide or square root of f32 operands this second rounding never differs
    from one rounding, since 53 >= 2 * 24 + 2; in the subnormal range the exact result is either a double or
    too far from a midpoint (Figueroa, "When is double rounding innocuous?", 1995).
    """
    try:
        return _SINGLE.unpack(_SINGLE.pack(x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def _sum_to_odd(a: float, b: float) -> float:
    """``a + b`` rounded to odd: the last bit is set where the sum is inexact, so that f32 rounds it right.

    Needs no overflow and no f64 subnormals, which sums of products of f32 values never meet.
    """
    total = a + b
    if not math.isfinite(total):
        return total
    part = total - a
    error = (a - (total - part)) + (b - part)
    if error == 0.0 or int(math.ldexp(math.frexp(total)[0], 53)) & 1:
        return total
    return math.nextafter(total, math.inf if error > 0 else -math.inf)


# -- the exact route --------------------------------------------------------------------------------------


def _finite(*operands: float) -> bool:
    return all(math.isfinite(x) for x in operands)


def _negative(x: float) -> bool:
    return math.copysign(1.0, x) < 0


def _add_exact(a: float, b: float, fmt: Format) -> float:
    if not _finite(a, b):
        return round_float(a + b, fmt)
    return round_fraction(Fraction(a) + Fraction(b), fmt, _zero_sum_sign(_negative(a), _negative(b)))


def _zero_sum_sign(a_negative: bool, b_negative: bool) -> bool:
    """A sum that is exactly zero is -0 only where both parts are negative, thus both -0."""
    return a_negative and b_negative


def _mul_exact(a: float, b: float, fmt: Format) -> float:
    if not _finite(a, b):
        return round_float(a * b, fmt)
    return round_fraction(Fraction(a) * Fraction(b), fmt, _negative(a) != _negative(b))


def _div_exact(a: float, b: float, fmt: Format) -> float:
    negative = _negative(a) != _negative(b)
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or a == b == 0.0:
        return round_float(math.nan, fmt)
    if math.isinf(a) or b == 0.0:
        return round_float(-math.inf if negative else math.inf, fmt)
    if math.isinf(b):
        return round_fraction(Fraction(0), fmt, negative)
    return round_fraction(Fraction(a) / Fraction(b), fmt, negative)


def _fma_exact(a: float, b: float, c: float, fmt: Format) -> float:
    if not _finite(a, b):
        return round_float(a * b + c, fmt)
    if not math.isfinite(c):
        return round_float(c, fmt)
    negative = _zero_sum_sign(_negative(a) != _negative(b), _negative(c))
    return round_fraction(Fraction(a) * Fraction(b) + Fraction(c), fmt, negative)


def _sqrt_exact(x: float, fmt: Format) -> float:
    if math.isnan(x) or x < 0.0:
        return round_float(math.nan, fmt)
    if math.isinf(x) or x == 0.0:
        return round_float(x, fmt)
    numerator, denominator = x.as_integer_ratio()
    # Scale by an even power of two to an integer of at least 2 * _FINE bits, then take its root.
    shift = max(2 * _FINE - numerator.bit_length() + denominator.bit_length(), 0)
    shift += (shift + denominator.bit_length() - 1) % 2
    half = (shift + denominator.bit_length() - 1) // 2
    scaled = numerator << shift
    root = math.isqrt(scaled)
    sticky = int(root * root != scaled)
    return round_fraction(Fraction(2 * root + sticky, 2 << half), fmt)
