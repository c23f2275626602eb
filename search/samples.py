"""Effects of roundings on the output, read off a tape over sample points.

At each sample point the tape gives the effect of every rounding as a number; that they are combinations of
``p_t v_t`` and ``p_t out`` with small integers is fitted on as many points as there are tokens and checked on more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.tape import Event, Node, TapeArithmetic, TapeWalker
from specs.errors import InputError, SpecError, UlpscopeError, UnsupportedError
from specs.names import HEAD_SCALARS, SCALARS
from specs.program import TOKEN, Program
from verify.definition import ScalarArithmetic, Walker
from verify.definition.arithmetic import COMPARISONS
from verify.definition.expressions import Line
from verify.definition.inputs import RowInputs
from verify.partition import Plan

Floats = NDArray[np.float64]
#: Sample points beyond the number of tokens: what the fit is checked on.
SPARE = 3
TOLERANCE = 1e-7
#: Roundings to at least so many bits may be estimated.
WIDE = 24
#: Scores are above 0, so that only differences of them are at most 0 at every point.
OFFSET = 8.0
#: How far roundings are moved to see whether each of them is a factor.
SHIFT = 1e-3


@dataclass(frozen=True)
class Effect:
    """The effect of one rounding on the output.

    Attributes:
        event: the rounding.
        direct: coefficient of ``p_t v_t`` for each token of the instance.
        through: coefficient of ``p_t out`` for each token.
        falling: whether a logit of at most 0 is rounded. The falling logits of a token add up to the logarithm of its
            weight, so their roundings count with its size, however many there are.
        fits: whether the coefficients hold everywhere. Otherwise ``direct`` is an estimate from the samples, such as of
            a share within one piece, which is no combination of ``p_t``.
    """

    event: Event
    direct: tuple[int, ...]
    through: tuple[int, ...]
    falling: bool = False
    fits: bool = True


def colours(program: Program, size: int) -> list[tuple[int, ...]]:
    """For each place in a piece of ``size`` tokens its colour in each view of tokens; no colours where a view sees more."""
    levels = len(program.level_names)
    tokens = np.arange(size, dtype=np.int32).reshape(*[1] * levels, size)
    exists = {name: np.ones([1] * (i + 1), np.bool_) for i, name in enumerate(program.level_names)}
    plan = Plan(program, {"kv_len": size}, program.level_names, tokens, exists)
    walker = Walker(program, plan, RowInputs(), ScalarArithmetic())
    site, first = next(iter(program.sites.values())), dict.fromkeys(program.level_names, 0)
    views = [v for v in program.views.values() if v.axis == TOKEN]
    try:
        reads = [Line(walker, site.section, site.place).integer(v.index) for v in views]
        return [tuple(int(read(walker.index({**first, TOKEN: p}))) for read in reads) for p in range(size)]
    except UlpscopeError:
        return [()] * size


def slots(program: Program, size: int) -> list[int]:
    """The places of a piece in the order in which a small instance fills them: first one of each colour."""
    seen: dict[tuple[int, ...], int] = {}
    ranked: list[tuple[int, int]] = []
    for place, colour in enumerate(colours(program, size)):
        seen[colour] = seen.get(colour, -1) + 1
        ranked.append((seen[colour], place))
    return [place for _, place in sorted(ranked)]


def instance(program: Program, shape: Sequence[int], places: Sequence[int] | None = None) -> Plan:
    """A plan of this shape in which every piece has as many tokens; the program keeps its own context.

    Args:
        program: says what levels there are.
        shape: pieces of each level, and tokens of each innermost piece.
        places: where in the innermost piece its tokens stand; None: the first ones.
    """
    n = int(np.prod(shape))
    tokens = np.arange(n, dtype=np.int32).reshape(tuple(shape))
    if places is not None:
        apart = np.full((*shape[:-1], max(places) + 1), -1, dtype=np.int32)
        apart[..., list(places)] = tokens
        tokens = apart
    exists = {
        name: np.ones(tuple(shape[: i + 1]), dtype=np.bool_) for i, name in enumerate(program.level_names)
    }
    return Plan(program, {"kv_len": n}, program.level_names, tokens, exists)


def row_inputs(
    program: Program, scores: Sequence[Any], count: int | None = None
) -> tuple[RowInputs, list[float]]:
    """A row of ready scores, and the values of v: distinct numbers, which stand for inputs.

    Args:
        program: says what is fed.
        scores: of each token, whatever the arithmetic takes.
        count: how many names are wanted; None: one for each token.

    Raises:
        UnsupportedError: the program has no score to feed.
    """
    site, n = program.score_site(), len(scores)
    if not site:
        raise UnsupportedError(
            f"{program.spec} has no site called score",
            place="sensitivity",
            remedy="name the scaled and masked score of a token 'score'",
        )
    feed = np.empty(n, dtype=object)
    feed[:] = list(scores)
    scalars = dict.fromkeys(SCALARS, 1.0) | {"softcap": 0.0}
    scalars |= {name: float("-inf") if name == "sink" else 0.0 for name in HEAD_SCALARS}
    half = 1 << max(0, program.inputs["v"].p - 1)
    names = [float((half + i % half) << (i // half)) / half for i in range(count or n)]
    return RowInputs(v=np.array(names[:n])[:, None], scalars=scalars, feed={site: feed}), names


def walk(
    program: Program,
    plan: Plan,
    output: str,
    values: Any,
    scores: Sequence[Node],
    inputs: Sequence[Node],
    shifts: Sequence[float] | None = None,
) -> tuple[TapeArithmetic, Node]:
    """The tape of ``output`` in one row, and its node; ``shifts``: see `TapeArithmetic`.

    Raises:
        UnsupportedError: the small instance cannot be built, or a construct has no derivative.
    """
    row, names = row_inputs(program, scores)
    tape = TapeArithmetic(values, dict(zip(names, inputs, strict=True)), shifts)
    walker = TapeWalker(program, plan, row, tape)
    axes = program.sites[output].type.axes
    try:
        return tape, walker.value(output, dict.fromkeys(axes, 0))
    except (SpecError, InputError) as error:
        raise UnsupportedError(
            f"{program.spec} cannot be walked on {plan.tokens.shape} tokens: {error.cause}",
            place=str(error.place or "sensitivity"),
            remedy="the spec reads pieces that a small instance has not: search it without a bound",
        ) from None


class Samples:
    """Scores and values at sample points: arrays ``[value, point]``; v is a unit vector for each token, and a mix."""

    def __init__(self, order: Sequence[int]) -> None:
        n = len(order)
        if sorted(order) != list(range(n)):
            raise InputError(
                f"{list(order)} orders no {n} tokens", place="order", remedy="give each token once"
            )
        rng = np.random.default_rng(20240607)
        self.n = n
        self.points = n + SPARE
        self.scores = np.empty((n, self.points))
        gap = min(0.1, 4.0 / n)
        noise = rng.uniform(-0.45 * gap, 0.45 * gap, (n, self.points))
        self.scores[np.array(order)] = OFFSET + noise - gap * np.arange(n)[:, None]
        self.mix = rng.uniform(0.5, 1.5, n) * rng.choice([-1.0, 1.0], n)

    def effects(self, program: Program, plan: Plan, output: str) -> list[Effect]:
        """The effect of every rounding on ``output``."""
        with np.errstate(all="ignore"):
            tape, out = walk(program, plan, output, Arrays(), *self._leaves())
            shape = (self.n + 1, self.points)
            shares = np.broadcast_to(out.value, shape)
            found = [(event, np.broadcast_to(x, shape)) for event, x in tape.backward(out)]
        falling = [e.scale is not None and bool(np.all(e.value / float(e.scale) <= 0)) for e in tape.events]
        if not _linear(shares, self.mix) or not np.allclose(shares[:-1].sum(axis=0), 1.0, atol=1e-5):
            raise UnsupportedError(
                f"the output of {program.spec} is no weighted mean of its values",
                place=f"site '{output}'",
                remedy="search it without a bound",
            )
        weights = np.exp(self.scores - self.scores.max(axis=0))
        if not np.allclose(shares[:-1], weights / weights.sum(axis=0), rtol=1e-4):
            raise UnsupportedError(
                f"without roundings {program.spec} weighs tokens otherwise than softmax attention does",
                place=f"site '{output}'",
                remedy="`ulpscope prove algebra` names the line; search it without a bound",
            )
        solve = np.linalg.pinv(shares[:-1].T)
        return [
            replace(self._effect(event, x, shares[:-1], solve, falls, program.spec), falling=falls)
            for (event, x), falls in zip(found, falling, strict=True)
        ]

    def factors(self, program: Program, plan: Plan, output: str, effects: Sequence[Effect]) -> bool:
        """Whether each rounding multiplies terms of numerator and normaliser, so that their product is exact::

            out = sum_t p_t v_t prod_i (1 + delta_i) ** direct_t / sum_t p_t prod_i (1 + delta_i) ** -through_t

        Checked at the sample points, with every rounding moved by up to `SHIFT`.
        """
        shifts = np.random.default_rng(20240608).uniform(-SHIFT, SHIFT, len(effects))
        with np.errstate(all="ignore"):
            tape, out = walk(program, plan, output, Arrays(), *self._leaves(), shifts.tolist())
            _, exact = walk(program, plan, output, Arrays(), *self._leaves())
        if [n.event for n in tape.events] != [e.event for e in effects] or not all(e.fits for e in effects):
            return False
        shares = np.broadcast_to(exact.value, (self.n + 1, self.points))[:-1]
        size = (len(effects), self.n)  # said, since there may be no effects
        grown = np.log1p(shifts) @ np.array([e.direct for e in effects], dtype=np.float64).reshape(size)
        normal = np.log1p(shifts) @ np.array([e.through for e in effects], dtype=np.float64).reshape(size)
        expected = shares * np.exp(grown)[:, None] / (np.exp(-normal) @ shares)
        found = np.broadcast_to(out.value, (self.n + 1, self.points))[:-1]
        return bool(np.allclose(found, expected, rtol=1e-7, atol=0))

    def _leaves(self) -> tuple[list[Node], list[Node]]:
        columns = np.concatenate([np.eye(self.n), self.mix[None]])
        scores = [Node(s[None], scale=Fraction(1)) for s in self.scores]
        return scores, [Node(columns[:, t][:, None]) for t in range(self.n)]

    def _effect(
        self, event: Event, x: Floats, shares: Floats, solve: Floats, falls: bool, spec: str
    ) -> Effect:
        """Integers d and a with ``x_t = p_t (d_t + sum_j a_j p_j)``, checked on spare points."""
        ratio = x[:-1] / shares
        gaps = ratio - ratio[0]
        direct = np.rint(gaps.mean(axis=1))
        through = np.rint(solve @ ratio[0])
        error = np.abs(ratio - direct[:, None] - (through @ shares)[None]).max()
        fits = error < TOLERANCE * (1 + np.abs(ratio).max())
        if not _linear(x, self.mix) or (not fits and event.format.p < WIDE):
            raise UnsupportedError(
                f"the effect of rounding '{event.site}' ({event.operation}) is no combination of p v and p out",
                place=spec,
                remedy="search it without a bound",
            )
        if not fits:
            most = np.ceil(np.abs(ratio).max(axis=1) - TOLERANCE)
            return Effect(event, tuple(map(int, most)), (0,) * self.n, fits=False)
        # A constant can move between the two sums, as the weights add up to 1. A change of weights alone is counted on
        # the tokens whose weights grow (which a logit of unknown sign does not tell); otherwise take the smaller numbers.
        shifts = {0, *through.tolist(), *(-direct).tolist()}
        alone = [s for s in shifts if np.array_equal(direct + s, s - through) and (direct + s >= 0).all()]
        alone = alone if falls or not event.logit else []
        shift = min(alone or shifts, key=lambda s: _size(direct + s, through - s))
        return Effect(event, tuple(map(int, direct + shift)), tuple(map(int, through - shift)))


def _size(direct: Floats, through: Floats) -> tuple[float, float, int]:
    """How large a pair of coefficients is: the output is smaller than the sum of ``p |v|``, so it counts less."""
    d, a = np.abs(direct).sum(), np.abs(through).sum()
    return float(d + a), float(d), int((direct < 0).sum())


def _linear(x: Floats, mix: Floats) -> bool:
    """Whether the mixed column is the mix of the unit columns."""
    return bool(np.isfinite(x).all()) and bool(
        np.allclose(x[-1], mix @ x[:-1], rtol=1e-6, atol=1e-9 * (1 + np.abs(x).max()))
    )


class Arrays:
    """Values at many points at once: see `search.tape.Field`."""

    def constant(self, x: Fraction) -> Floats:
        """A rational, the same at all points."""
        return np.array([[float(x)]])

    def infinity(self, sign: int) -> Floats:
        """An infinity."""
        return np.array([[sign * np.inf]])

    def function(self, name: str, x: Floats) -> tuple[Floats, Floats]:
        """See `search.tape.Field`."""
        log2 = float(np.log(2.0))
        match name:
            case "exp":
                return np.exp(x), np.exp(x)
            case "exp2":
                return np.exp2(x), np.exp2(x) * log2
            case "log":
                return np.log(x), 1 / x
            case "log2":
                return np.log2(x), 1 / (x * log2)
            case "rcp":
                return 1 / x, -1 / (x * x)
            case _:
                raise UnsupportedError(f"{name}() has no derivative here", remedy="search without a bound")

    def is_value(self, x: Floats, constant: int) -> bool:
        """Whether all points have this value."""
        return bool(np.all(x == constant))

    def finite(self, x: Floats) -> bool:
        """Whether all points have a finite value."""
        return bool(np.all(np.isfinite(x)))

    def decide(self, op: str, a: Floats, b: Floats) -> bool:
        """The comparison, which must come out alike at all points."""
        answers = np.asarray(COMPARISONS[op](a, b))
        if answers.all() or not answers.any():
            return bool(answers.all())
        raise UnsupportedError(
            "a comparison depends on the values", remedy="search without a bound: its branches differ"
        )
