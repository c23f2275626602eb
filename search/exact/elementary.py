"""``exp exp2 log log2``, correctly rounded: a ball that holds the value, made smaller until both of its ends round alike.

At a dyadic argument these functions are irrational but for the cases that stand here one by one, so the loop ends
(Ziv's strategy; A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last bit", 1991).
The balls are python-flint's `arb`: it encloses the true value whatever the precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flint

from search.exact.dyadic import (
    NAN,
    NEG_INF,
    ONE,
    ZERO,
    Number,
    Unary,
    exponent,
    is_zero,
    order,
    rounder,
)
from search.exact.operations import flusher
from specs.formats import Format

Ball = Any
FIRST_BITS = 64
#: 2**12 is past every exponent of every format, for exp as for exp2.
_FAR = 12


def ends(enclosure: Ball) -> tuple[Number, Number]:
    """The two ends of a ball, rounded outward to the working precision."""
    return _end(enclosure.lower()), _end(enclosure.upper())


def _end(x: Ball) -> Number:
    m, e = x.man_exp()
    return int(m), int(e) if m else 0


def _exp2_ball(x: Ball) -> Ball:
    return flint.arb(2) ** x


def _log2_ball(x: Ball) -> Ball:
    return x.log() / flint.arb.const_log2()


BALLS: dict[str, Callable[[Ball], Ball]] = {
    "exp": lambda x: x.exp(),
    "exp2": _exp2_ball,
    "log": lambda x: x.log(),
    "log2": _log2_ball,
}


def special(name: str, x: Number) -> Number | None:
    """The value where it is no irrational number, before rounding; None elsewhere."""
    if name in ("exp", "exp2"):
        if not x[0]:
            return ONE if is_zero(x) else ZERO if x == NEG_INF else x
        if exponent(x) >= _FAR:
            return (1, (1 << _FAR) if x[0] > 0 else -(1 << _FAR))
        if name == "exp2" and order(x, whole := _floor(x)) == 0:
            return 1, whole[0]
        return None
    if x[0] < 0 or x == NEG_INF:
        return NAN
    if not x[0]:
        return NEG_INF if is_zero(x) else x
    if name == "log":
        return ZERO if order(x, ONE) == 0 else None
    power = exponent(x)
    return (ZERO if not power else (power, 0)) if order(x, (1, power)) == 0 else None


def _floor(x: Number) -> Number:
    m, e = x
    return (m << e if e >= 0 else m >> -e), 0


def wide(name: str, x: Number, bits: int) -> Number:
    """A number within a relative 2**(3 - bits) or so of the value: for distances, never for rounding."""
    found = special(name, x)
    if found is not None:
        return found
    return _at(name, x, bits)[0]


def rounded(name: str, fmt: Format) -> Unary:
    """The function, rounded once to ``fmt``. Results are kept: identical tokens cost one evaluation."""
    last = rounder(fmt)
    flushed = flusher(fmt) if fmt.ftz else None
    known: dict[Number, Number] = {}

    def apply(x: Number) -> Number:
        if x in known:
            return known[x]
        y = x if flushed is None else flushed(x)
        found = special(name, y)
        known[x] = value = _ziv(name, y, last) if found is None else last(found)
        return value

    return apply


def _ziv(name: str, x: Number, last: Unary) -> Number:
    bits = FIRST_BITS
    while True:
        low, high = map(last, _at(name, x, bits))
        if low == high:
            return low
        bits *= 2


def _at(name: str, x: Number, bits: int) -> tuple[Number, Number]:
    """Two numbers between which the value lies, at ``bits`` bits."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        return ends(BALLS[name](flint.arb(x)))
    finally:
        flint.ctx.prec = before
