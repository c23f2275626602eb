"""The exact answer of softmax attention, enclosed, and whether it cancels more than it may.

Tokens of equal score are merged, so that a witness of few distinct scores costs few exponentials. Whether a sum of
``coefficient * exp(score)`` is zero is decided without balls: for distinct rational scores it is zero only where every
coefficient is (Lindemann and Weierstrass). So a comparison is open only where the precision ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import flint
from pydantic import ConfigDict

from search.exact.dyadic import NEG_INF, ZERO, Number, is_finite, reduced, to_fraction
from search.exact.elementary import ends
from search.exact.text import CLOSED, Interval, outward
from specs.errors import InputError

Status = Literal["holds", "violated", "undecided"]
BITS = 128
MOST_BITS = 4096


@dataclass(frozen=True)
class Answer:
    """The exact answer of one column.

    Attributes:
        exact: sum w v / sum w.
        magnitude: sum w abs(v) / sum w.
        over_magnitude: abs(exact) / magnitude; None where the magnitude is 0.
        over_largest: abs(exact) / the largest abs(v) among the tokens that are seen; None where that is 0.
        status: whether abs(exact) is at least c times the magnitude.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    exact: Interval
    magnitude: Interval
    over_magnitude: Interval | None
    over_largest: Interval | None
    status: Status


class Attention:
    """Softmax attention of one row, exactly.

    Args:
        scores: one for each token; -inf masks it.
        bits: precision to start from. It doubles, up to `MOST_BITS`, while a comparison is open.

    Raises:
        InputError: a score is NaN or +inf.
    """

    def __init__(self, scores: Sequence[Number], bits: int = BITS) -> None:
        classes: dict[Number, int] = {}
        self._class: list[int] = []
        for score in scores:
            if score == NEG_INF:
                self._class.append(-1)
                continue
            if not is_finite(score):
                raise InputError(
                    "a score is NaN or +inf",
                    place="scores",
                    remedy="exact answers are for scores below infinity",
                )
            score = reduced(score) if score[0] else ZERO
            self._class.append(classes.setdefault(score, len(classes)))
        self._scores = list(classes)
        self._count = [0] * len(classes)
        for i in self._class:
            if i >= 0:
                self._count[i] += 1
        self._bits = bits
        self._weights: dict[int, list[Any]] = {}

    def column(self, values: Sequence[Number], cancellation: Fraction) -> Answer:
        """The exact answer of one column of values, one for each token.

        Raises:
            InputError: a value is an infinity or NaN.
        """
        plus, minus, largest = self._sums(values)
        net = [p - n for p, n in zip(plus, minus, strict=True)]
        size = [p + n for p, n in zip(plus, minus, strict=True)]
        unit = flint.arb((1, _unit(values)))
        with flint.ctx.workprec(self._bits):
            total, out, both = (self._sum(c, self._bits) for c in (self._count, net, size))
            relative = share = None
            exact = magnitude = Interval("0", "0")
            if self._scores:
                exact, magnitude = interval(out * unit / total), interval(both * unit / total)
            if any(size):
                one_signed = not any(plus) or not any(minus)
                relative = Interval("1", "1") if one_signed else interval(abs(out) / both)
                share = interval(abs(out) / (total * largest))
        return Answer(exact, magnitude, relative, share, self._status(net, size, cancellation))

    def _sums(self, values: Sequence[Number]) -> tuple[list[int], list[int], int]:
        """By class: the sums of positive and of negative values; and the largest magnitude. In units of `_unit`."""
        least = _unit(values)
        plus, minus, largest = [0] * len(self._scores), [0] * len(self._scores), 0
        for i, (m, e) in zip(self._class, values, strict=True):
            if not m:
                if e > 1:
                    raise InputError(
                        "a value is not finite", place="values", remedy="exact answers are for finite values"
                    )
                continue
            if i < 0:
                continue
            m <<= e - least
            if m > 0:
                plus[i] += m
            else:
                m = -m
                minus[i] += m
            if m > largest:
                largest = m
        return plus, minus, largest

    def _weight(self, bits: int) -> list[Any]:
        """exp(score - top), one ball for each class."""
        if bits not in self._weights:
            top = max((to_fraction(s) for s in self._scores), default=Fraction(0))
            with flint.ctx.workprec(bits):
                peak = flint.arb(flint.fmpq(top.numerator, top.denominator))
                self._weights[bits] = [(flint.arb(s) - peak).exp() for s in self._scores]
        return self._weights[bits]

    def _sum(self, coefficients: Sequence[int], bits: int) -> Any:
        total = flint.arb(0)
        with flint.ctx.workprec(bits):
            for w, c in zip(self._weight(bits), coefficients, strict=True):
                if c:
                    total += w * c
        return total

    def _sign(self, coefficients: Sequence[int]) -> int | None:
        """The sign of the sum of coefficient times weight; None where `MOST_BITS` do not decide it."""
        low, high = min(coefficients, default=0), max(coefficients, default=0)
        if low >= 0 or high <= 0:
            return (high > 0) - (low < 0)
        bits = self._bits
        while bits <= MOST_BITS:
            total = self._sum(coefficients, bits)
            if total != 0:
                return 1 if total > 0 else -1
            bits *= 2
        return None

    def _status(self, net: Sequence[int], size: Sequence[int], c: Fraction) -> Status:
        """Whether abs(sum w v) is at least c times sum w abs(v)."""
        sign = self._sign(net)
        if sign is None:
            return "undecided"
        a, b = sign * c.denominator, c.numerator
        rest = self._sign([a * x - b * y for x, y in zip(net, size, strict=True)])
        return "undecided" if rest is None else "holds" if rest >= 0 else "violated"


def _unit(values: Sequence[Number]) -> int:
    """The exponent of which all values are whole multiples."""
    return min((e for m, e in values if m), default=0)


def interval(ball: Any) -> Interval:
    """A ball as an interval of decimals."""
    low, high = ends(ball)
    return outward(to_fraction(low), to_fraction(high))
