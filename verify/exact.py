"""Rigorous exact answers: softmax attention in real arithmetic, enclosed in python-flint balls.

This is the mathematics itself, with no spec in it: what a backend's output is an approximation of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import flint
import numpy as np
from numpy.typing import ArrayLike, NDArray

from specs.errors import InputError
from specs.formats import Format
from verify.numerics.rounding import require_storable

Floats = NDArray[np.float64]
BITS = 128


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Real numbers, each known to lie in a ball.

    Attributes:
        balls: object array of `flint.arb`.
    """

    balls: NDArray[np.object_]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.balls.shape

    @cached_property
    def midpoint(self) -> Floats:
        """float64: the middle of each ball, rounded."""
        return self._each(lambda ball: float(ball.mid()))

    @cached_property
    def radius(self) -> Floats:
        """float64: no exact value is farther than this from `midpoint`."""
        return self._each(
            lambda ball: _up((ball - float(ball.mid())).abs_upper()) if ball.is_finite() else math.inf
        )

    def __getitem__(self, where: Any) -> Enclosure:
        """The enclosure of some of the numbers."""
        part: NDArray[np.object_] = np.empty(
            np.empty(self.shape, dtype=np.bool_)[where].shape, dtype=np.object_
        )
        part[...] = self.balls[where]
        return Enclosure(part)

    def _each(self, function: Any) -> Floats:
        flat = [function(ball) for ball in self.balls.ravel()]
        return np.array(flat, dtype=np.float64).reshape(self.shape)


def exact_attention(
    scores: ArrayLike, values: ArrayLike, bits: int = BITS, sinks: ArrayLike = -math.inf
) -> Enclosure:
    """The weighted mean of ``values`` with weights exp(score), of real numbers.

    Args:
        scores: ``[*rows, tokens]``, scaled; float64 or narrower, taken exactly. -inf masks a token.
        values: ``[tokens, dims]``, taken exactly.
        bits: working precision. The balls have about this many significant bits less what cancels.
        sinks: ``[*rows]``, or one for all: exp(sink) joins the sum of the weights, with the value 0; -inf: none.

    Returns:
        an enclosure of ``[*rows, dims]``; exactly 0 in rows that see no token.

    Raises:
        InputError: shapes do not fit, a score or sink is NaN or +inf, or a value is not finite.
    """
    s, v = _scores(scores), np.asarray(values, dtype=np.float64)
    extra = _sinks(sinks, s)
    if v.ndim != 2 or v.shape[0] != s.shape[-1]:
        raise InputError(
            f"values of shape {v.shape} for scores of shape {s.shape}",
            place="values",
            remedy="give values [tokens, dims] for scores [*rows, tokens]",
        )
    if not np.isfinite(v).all():
        raise InputError(
            "a value is not finite", place="values", remedy="exact answers are for finite values"
        )
    out: NDArray[np.object_] = np.empty((*s.shape[:-1], v.shape[1]), dtype=np.object_)
    with flint.ctx.workprec(bits):
        for row in np.ndindex(s.shape[:-1]):
            live = np.flatnonzero(s[row] > -math.inf)
            if live.size == 0 or v.shape[1] == 0:
                out[row] = flint.arb(0)
                continue
            sink = float(extra[row])
            top = max(sink, float(s[row].max()))
            weights = _weights(s[row][live], top)
            columns = flint.arb_mat(live.size, v.shape[1], v[live].ravel().tolist())
            sums = (flint.arb_mat(1, live.size, weights) * columns).entries()
            total = sum(weights, (flint.arb(sink) - top).exp() if sink > -math.inf else flint.arb(0))
            out[row] = [x / total for x in sums]
    return Enclosure(out)


def exact_lse(scores: ArrayLike, bits: int = BITS, sinks: ArrayLike = -math.inf) -> Enclosure:
    """The logarithm of the sum of exp(score), of real numbers: ``[*rows]``, -inf in rows that see no token.

    Args:
        scores, bits: as `exact_attention`.
        sinks: ``[*rows]``, or one for all: one more score; -inf: none.

    Raises:
        InputError: a score or sink is NaN or +inf.
    """
    s = _scores(scores)
    s = np.concatenate([s, _sinks(sinks, s)[..., None]], axis=-1)
    out: NDArray[np.object_] = np.empty(s.shape[:-1], dtype=np.object_)
    with flint.ctx.workprec(bits):
        for row in np.ndindex(s.shape[:-1]):
            live, top = s[row][s[row] > -math.inf], float(s[row].max(initial=-math.inf))
            out[row] = flint.arb(top)
            if live.size:
                out[row] += sum(_weights(live, top), flint.arb(0)).log()
    return Enclosure(out)


def error_in_ulps(values: ArrayLike, exact: Enclosure, fmt: Format) -> Floats:
    """How far each value is from the exact number, in units in the last place of ``fmt`` at the exact number.

    Args:
        values: ``[*shape]`` numbers of any dtype, taken exactly.
        exact: enclosures of ``[*shape]``.
        fmt: the format whose spacing is the unit: ``2**(e - p + 1)`` for an exact number in
            ``[2**e, 2**(e+1))``, and the smallest subnormal below ``2**emin``.

    Returns:
        float64 ``[*shape]``, at least 0; infinity or NaN where the value is. A correctly rounded value is at
        most 0.5 away. The radius of the ball is added, so the error is never understated.

    Raises:
        InputError: the shapes differ, or ``fmt`` is ``real``.
    """
    require_storable(fmt)
    given = np.asarray(values, dtype=np.float64)
    if given.shape != exact.shape:
        raise InputError(
            f"values of shape {given.shape} against exact numbers of shape {exact.shape}",
            place="values",
            remedy="compare arrays of the same shape",
        )
    flat = [_error(x, ball, fmt) for x, ball in zip(given.ravel().tolist(), exact.balls.ravel(), strict=True)]
    return np.array(flat, dtype=np.float64).reshape(given.shape)


def _error(x: float, ball: flint.arb, fmt: Format) -> float:
    if math.isnan(x) or not ball.is_finite():
        same = math.isinf(x) and ball == x
        return 0.0 if same else math.nan
    if math.isinf(x):
        return math.inf
    magnitude = abs(float(ball.mid()))
    exponent = math.frexp(magnitude)[1] - 1 if magnitude else fmt.emin
    step = max(exponent, fmt.emin) - fmt.p + 1
    return _up((ball - x).abs_upper() * flint.arb(2) ** -step)


def _up(x: flint.arb) -> float:
    """A double that is at least ``x``: exactly 0 where ``x`` is."""
    return 0.0 if x == 0 else math.nextafter(float(x.upper()), math.inf)


def _weights(live: Floats, top: float) -> list[flint.arb]:
    """exp(score - top) of each score. The difference is taken in balls, not in float64."""
    peak = flint.arb(top)
    return [(flint.arb(x) - peak).exp() for x in live.tolist()]


def _sinks(sinks: ArrayLike, scores: Floats) -> Floats:
    """``[*rows]``."""
    try:
        found = np.broadcast_to(np.asarray(sinks, dtype=np.float64), scores.shape[:-1])
    except ValueError:
        raise InputError(
            f"sinks of shape {np.shape(sinks)} for scores of shape {scores.shape}",
            place="sinks",
            remedy="give one sink for each row",
        ) from None
    if np.isnan(found).any() or np.isposinf(found).any():
        raise InputError(
            "a sink is NaN or +inf", place="sinks", remedy="exact answers are for sinks below infinity"
        )
    return found


def _scores(scores: ArrayLike) -> Floats:
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim == 0:
        raise InputError("scores have no token axis", place="scores", remedy="give scores [*rows, tokens]")
    if np.isnan(s).any() or np.isposinf(s).any():
        raise InputError(
            "a score is NaN or +inf", place="scores", remedy="exact answers are for scores below infinity"
        )
    return s
