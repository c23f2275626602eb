"""Numbers as exact dyadic rationals in Python integers, and their rounding to a format.

A number is a pair: ``(m, e)`` with an integer m other than 0 is the rational ``m * 2**e``. With ``m == 0`` the
second integer names one of the five numbers that such a product cannot be: `ZERO`, `NEG_ZERO`, `INF`, `NEG_INF`,
`NAN`. A pair need not be in lowest terms, so equality is `order`, not ``==``.

The rules of rounding are those of `specs.formats.Format` (IEEE 754-2019 sections 4.3 and 7.4; OCP 8-bit floating
point 1.0 section 5.2): nearest, ties to even, or toward zero with ``.rz``; subnormals; a finite number past the
largest gives infinity, or NaN where the format has none, with ``.sat`` or ``.rz`` the largest; ``.ftz`` turns a
subnormal result into a zero of its sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from specs.errors import InputError
from specs.formats import Format

Number = tuple[int, int]
Unary = Callable[[Number], Number]

ZERO: Number = (0, 0)
NEG_ZERO: Number = (0, 1)
INF: Number = (0, 2)
NEG_INF: Number = (0, 3)
NAN: Number = (0, 4)
ONE: Number = (1, 0)

_NEGATED: dict[Number, Number] = {ZERO: NEG_ZERO, NEG_ZERO: ZERO, INF: NEG_INF, NEG_INF: INF, NAN: NAN}
_RANK: dict[Number, int] = {ZERO: 0, NEG_ZERO: 0, INF: 2, NEG_INF: -2}


def is_zero(x: Number) -> bool:
    """Whether ``x`` is a zero of either sign."""
    return not x[0] and x[1] < 2


def is_finite(x: Number) -> bool:
    """Whether ``x`` is neither an infinity nor NaN."""
    return bool(x[0]) or x[1] < 2


def is_negative(x: Number) -> bool:
    """Whether the sign of ``x`` is minus; NaN has none."""
    return x[0] < 0 if x[0] else x[1] in (1, 3)


def negated(x: Number) -> Number:
    """``-x``."""
    return (-x[0], x[1]) if x[0] else _NEGATED[x]


def order(x: Number, y: Number) -> int | None:
    """-1, 0 or 1 as ``x`` is below, equal to or above ``y``; None where one is NaN. Zeros are equal."""
    m, e = x
    n, f = y
    if m and n:
        if (m < 0) != (n < 0):
            return -1 if m < 0 else 1
        if e > f:
            m <<= e - f
        elif f > e:
            n <<= f - e
        return (m > n) - (m < n)
    if x == NAN or y == NAN:
        return None
    a = (1 if m > 0 else -1) if m else _RANK[x]
    b = (1 if n > 0 else -1) if n else _RANK[y]
    return (a > b) - (a < b)


def exponent(x: Number) -> int:
    """The integer k with ``2**k <= |x| < 2**(k + 1)``, for a finite number other than zero."""
    return abs(x[0]).bit_length() + x[1] - 1


def reduced(x: Number) -> Number:
    """``x`` in lowest terms: equal numbers, but for the sign of zero, become equal pairs."""
    m, e = x
    if m & 1 or not m:
        return x
    zeros = (m & -m).bit_length() - 1
    return m >> zeros, e + zeros


# -- conversions ------------------------------------------------------------------------------------------


def from_float(x: float) -> Number:
    """The double ``x``, exactly."""
    if x != x:
        return NAN
    if x in (math.inf, -math.inf):
        return INF if x > 0 else NEG_INF
    if x == 0.0:
        return NEG_ZERO if math.copysign(1.0, x) < 0 else ZERO
    m, d = x.as_integer_ratio()
    return m, 1 - d.bit_length()


def to_float(x: Number) -> float:
    """The double that equals ``x``.

    Raises:
        InputError: no double does.
    """
    m, e = x
    if not m:
        return (0.0, -0.0, math.inf, -math.inf, math.nan)[e]
    m, e = reduced(x)
    size = m.bit_length()
    if size > 53 or size + e > 1024 or e < -1074:
        raise InputError(f"{m} * 2**{e} is no double", remedy="round it to a format first")
    return math.ldexp(m, e)


def to_fraction(x: Number) -> Fraction:
    """The rational ``x``; zeros are 0.

    Raises:
        InputError: ``x`` is an infinity or NaN.
    """
    m, e = x
    if not m and e > 1:
        raise InputError("an infinity or NaN is no rational", remedy="treat it apart")
    return Fraction(m << e) if m and e >= 0 else Fraction(m, 1 << -e if m else 1)


def ratio(x: Fraction, bits: int) -> Number:
    """``x``, exactly where it is dyadic and short; else cut to more than ``bits`` bits, the last of them sticky.

    A sticky bit is 1 where anything was cut off: rounding to at most ``bits`` bits gives what ``x`` itself gives.
    """
    return quotient((x.numerator, 0), (x.denominator, 0), bits) if x else ZERO


def quotient(x: Number, y: Number, bits: int) -> Number:
    """``x / y`` of finite numbers other than zero, as `ratio`."""
    m, n = abs(x[0]), abs(y[0])
    shift = max(0, bits + 3 - m.bit_length() + n.bit_length())
    whole, rest = divmod(m << shift, n)
    whole = 2 * whole + (rest > 0)
    return (-whole if (x[0] < 0) != (y[0] < 0) else whole), x[1] - y[1] - shift - 1


# -- bits -------------------------------------------------------------------------------------------------


def to_bits(x: Number, fmt: Format) -> int:
    """The bit pattern of ``x``; NaN is the positive quiet one. tf32 sits in the high bits of its word.

    Raises:
        InputError: ``x`` is no value of ``fmt``.
    """
    m, e = x
    spare = 13 if fmt.base == "tf32" else 0
    sign = 1 << (fmt.bits - 1)
    top = _magnitude(from_float(fmt.largest), fmt) + 1
    if not m:
        if x == NAN:
            code = top + (1 << (fmt.p - 2)) if fmt.inf else top
        elif e > 1 and not fmt.inf:
            raise InputError(f"{fmt.base} has no infinity", remedy="round to the format first")
        else:
            code = top if e > 1 else 0
        return code << spare | (sign if is_negative(x) else 0)
    code = _magnitude(x, fmt)
    if code >= top:
        raise InputError(f"{m} * 2**{e} is beyond {fmt.base}", remedy="round to the format first")
    return code << spare | (sign if m < 0 else 0)


def _magnitude(x: Number, fmt: Format) -> int:
    """The pattern of ``|x|``: exponent field and fraction."""
    m, e = abs(x[0]), x[1]
    binade = max(m.bit_length() + e - 1, fmt.emin)
    shift = e - (binade - fmt.p + 1)
    if shift < 0 and m & ((1 << -shift) - 1):
        raise InputError(f"{m} * 2**{e} is no value of {fmt.base}", remedy="round to the format first")
    significand = m << shift if shift >= 0 else m >> -shift
    # The hidden bit adds one to the exponent field, which is 0 for subnormals.
    return ((binade - fmt.emin) << (fmt.p - 1)) + significand


def from_bits(bits: int, fmt: Format) -> Number:
    """The number of a bit pattern; every NaN becomes `NAN`.

    Raises:
        InputError: the pattern is wider than the format, or sets bits that a tf32 word does not have.
    """
    spare = 13 if fmt.base == "tf32" else 0
    if bits < 0 or bits >> fmt.bits or bits & ((1 << spare) - 1):
        raise InputError(f"0x{bits:X} is no pattern of {fmt.base}", remedy=f"give {fmt.bits} bits")
    negative = bool(bits >> (fmt.bits - 1))
    code = (bits & ((1 << (fmt.bits - 1)) - 1)) >> spare
    top = _magnitude(from_float(fmt.largest), fmt) + 1
    if code > top or (code == top and not fmt.inf):
        return NAN
    if code == top or not code:
        return ((NEG_ZERO, NEG_INF) if negative else (ZERO, INF))[code > 0]
    field, fraction = code >> (fmt.p - 1), code & ((1 << (fmt.p - 1)) - 1)
    m = fraction + ((field > 0) << (fmt.p - 1))
    return (-m if negative else m), max(field, 1) - 1 + fmt.quantum


def place(bits: int, fmt: Format) -> int | None:
    """Where the value of a pattern stands among the values of its format: 0 for zeros; None for NaN.

    An infinity stands one past the largest finite value.
    """
    x = from_bits(bits, fmt)
    if x == NAN:
        return None
    code = (bits & ((1 << (fmt.bits - 1)) - 1)) >> (13 if fmt.base == "tf32" else 0)
    return -code if is_negative(x) else code


def index(x: Fraction, fmt: Format) -> Fraction:
    """Where ``x`` lies on the line of `place` before rounding, exactly.

    In the binade of ``2**k`` values are ``2**(k - p + 1)`` apart, and the binades below hold ``2**(p - 1)`` places
    each; beyond the largest value the line goes on as if exponents had no bound.
    """
    if not x:
        return x
    size = abs(x)
    binade = size.numerator.bit_length() - size.denominator.bit_length()
    binade = max(binade - (size < power(binade)), fmt.emin)
    at = size / power(binade - fmt.p + 1) + ((binade - fmt.emin) << (fmt.p - 1))
    return -at if x < 0 else at


def power(k: int) -> Fraction:
    """Two to the power k."""
    return Fraction(1 << k) if k >= 0 else Fraction(1, 1 << -k)


# -- rounding ---------------------------------------------------------------------------------------------


@cache
def rounder(fmt: Format) -> Unary:
    """The function that rounds a number once to ``fmt``.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    if fmt.is_real:
        raise InputError("'real' has no bits to round to", remedy="round to a stored format")
    p, quantum, emin, emax, ftz, rz = fmt.p, fmt.quantum, fmt.emin, fmt.emax, fmt.ftz, fmt.rz
    carry = 1 << p
    largest = from_float(fmt.largest)
    beyond = INF if fmt.inf else NAN
    past = largest if fmt.sat or fmt.rz else beyond
    infinite = largest if fmt.sat else beyond

    def rounded(x: Number) -> Number:
        m, e = x
        if not m:
            if e == 2:
                return infinite
            return negated(infinite) if e == 3 else x
        n = -m if m < 0 else m
        size = n.bit_length()
        cut = size - p
        if quantum - e > cut:
            cut = quantum - e
        if cut > 0:
            if rz or cut > size + 1:
                n >>= cut
            else:
                n = (n + (1 << (cut - 1)) - 1 + ((n >> cut) & 1)) >> cut
            if n == carry:
                n >>= 1
                e += 1
            e += cut
            size = n.bit_length()
        # `size + e - 1` is the exponent of the result.
        if size + e > emax and order((n, e), largest) == 1:
            return negated(past) if m < 0 else past
        if not n or (ftz and size + e <= emin):
            return NEG_ZERO if m < 0 else ZERO
        return (-n if m < 0 else n), e

    return rounded
