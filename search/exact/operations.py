"""``+ - * / fma sqrt`` and what never rounds, on dyadic numbers: exact first, then one rounding.

Signs of zero, infinities and NaN follow IEEE 754-2019 sections 6 and 7. With ``.ftz`` subnormal operands count as
zeros of their sign, as do subnormal results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from search.exact.dyadic import (
    INF,
    NAN,
    NEG_INF,
    NEG_ZERO,
    ONE,
    ZERO,
    Number,
    Unary,
    exponent,
    is_finite,
    is_negative,
    is_zero,
    negated,
    order,
    quotient,
    rounder,
)
from specs.formats import Format

Operation = Callable[..., Number]
#: Exact where the result is dyadic, else with a sticky last bit below the given number of bits.
Wide = Callable[..., Number]


def add(x: Number, y: Number) -> Number:
    """``x + y``, exactly. A sum that is exactly zero is -0 only where both parts are -0."""
    m, e = x
    n, f = y
    if m and n:
        if e > f:
            m <<= e - f
            e = f
        elif f > e:
            n <<= f - e
        m += n
        return (m, e) if m else ZERO
    if is_finite(x) and is_finite(y):
        if m or n:
            return x if m else y
        return NEG_ZERO if x == y == NEG_ZERO else ZERO
    if x == NAN or y == NAN or (not is_finite(x) and not is_finite(y) and x != y):
        return NAN
    return y if is_finite(x) else x


def subtract(x: Number, y: Number) -> Number:
    """``x - y``, exactly."""
    return add(x, (-y[0], y[1]) if y[0] else negated(y))


def multiply(x: Number, y: Number) -> Number:
    """``x * y``, exactly."""
    if x[0] and y[0]:
        return x[0] * y[0], x[1] + y[1]
    if x == NAN or y == NAN:
        return NAN
    found = ZERO
    if not is_finite(x) or not is_finite(y):
        found = NAN if is_zero(x) or is_zero(y) else INF
    return negated(found) if is_negative(x) != is_negative(y) else found


def divide(x: Number, y: Number, bits: int) -> Number:
    """``x / y``, with a sticky bit below ``bits`` bits."""
    if x[0] and y[0]:
        return quotient(x, y, bits)
    if x == NAN or y == NAN or (is_zero(x) and is_zero(y)) or not (is_finite(x) or is_finite(y)):
        return NAN
    found = INF if not is_finite(x) or is_zero(y) else ZERO
    return negated(found) if is_negative(x) != is_negative(y) else found


def fused(x: Number, y: Number, z: Number) -> Number:
    """``x * y + z``, exactly."""
    return add(multiply(x, y), z)


def root(x: Number, bits: int) -> Number:
    """The square root of ``x``, with a sticky bit below ``bits`` bits; -0 of -0, NaN of a negative number."""
    if not x[0]:
        return NAN if x == NEG_INF else x
    if x[0] < 0:
        return NAN
    m, e = x
    shift = max(0, 2 * bits + 6 - m.bit_length())
    shift += (e - shift) & 1
    m, e = m << shift, (e - shift) // 2
    whole = math.isqrt(m)
    return 2 * whole + (whole * whole != m), e - 1


def larger(x: Number, y: Number) -> Number:
    """The larger; NaN where one is NaN; +0 above -0."""
    which = order(x, y)
    if which is None:
        return NAN
    if which == 0 and not x[0] and x == NEG_ZERO:
        return y
    return y if which < 0 else x


def maximum(*xs: Number) -> Number:
    """The largest, as `larger`."""
    best = xs[0]
    for x in xs[1:]:
        best = larger(best, x)
    return best


def minimum(*xs: Number) -> Number:
    """The smallest; NaN where one is NaN; -0 below +0."""
    return negated(maximum(*(negated(x) for x in xs)))


def absolute(x: Number) -> Number:
    """``|x|``."""
    return negated(x) if is_negative(x) else x


#: What never rounds.
PLAIN: dict[str, Operation] = {"neg": negated, "abs": absolute, "max": maximum, "min": minimum}

#: What rounds: a function of the operands and of the bits that matter.
WIDE: dict[str, Callable[[int], Wide]] = {
    "+": lambda bits: add,
    "add": lambda bits: add,
    "-": lambda bits: subtract,
    "sub": lambda bits: subtract,
    "*": lambda bits: multiply,
    "mul": lambda bits: multiply,
    "/": lambda bits: lambda x, y: divide(x, y, bits),
    "div": lambda bits: lambda x, y: divide(x, y, bits),
    "rcp": lambda bits: lambda x: divide(ONE, x, bits),
    "fma": lambda bits: fused,
    "sqrt": lambda bits: lambda x: root(x, bits),
}


def flusher(fmt: Format) -> Unary:
    """What ``.ftz`` does to an operand: a number below the normal ones becomes a zero of its sign."""
    emin = fmt.emin

    def flushed(x: Number) -> Number:
        if x[0] and exponent(x) < emin:
            return NEG_ZERO if x[0] < 0 else ZERO
        return x

    return flushed


def rounded(wide: Wide, fmt: Format) -> Operation:
    """``wide``, then one rounding to ``fmt``; operands are flushed where the format says so."""
    last = rounder(fmt)
    if fmt.ftz:
        flushed = flusher(fmt)
        return lambda *xs: last(wide(*map(flushed, xs)))
    if wide is multiply:
        return lambda x, y: last((x[0] * y[0], x[1] + y[1]) if x[0] and y[0] else multiply(x, y))
    if wide is add or wide is subtract:
        return lambda x, y: last(wide(x, y))
    return lambda *xs: last(wide(*xs))
