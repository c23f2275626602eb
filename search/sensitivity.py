"""How much each rounding of a spec moves its output, to first order.

A small instance of the program (two pieces of the outermost level, two tokens in the innermost) is walked once over
a tape (`search.tape`) of sample points, and differentiated backwards. The effect of every rounding on the output is
then a combination of ``p_t v_t`` (softmax weight times value of token t) and of the output itself, with small
integers as coefficients::

    d out / d delta = sum_t direct_t * p_t * v_t  +  out * sum_t through_t * p_t

They are read off the samples, and `Sensitivities.proved` says whether exact rational functions (SymPy) confirm them.
Larger instances tell how the number of roundings that a token passes grows with each axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.sides import Side, before_rounding
from search.tape import Event, Node, TapeArithmetic, TapeWalker
from specs.errors import InputError, SpecError, UnsupportedError
from specs.formats import Format
from specs.names import HEAD_SCALARS, SCALARS
from specs.program import TOKEN, Program
from verify.definition.arithmetic import COMPARISONS
from verify.definition.inputs import RowInputs
from verify.partition import Plan

Floats = NDArray[np.float64]
#: Sample points beyond the number of tokens: what the fit is checked on.
SPARE = 3
TOLERANCE = 1e-7
MAX_NODES_TOKENS = 48


@dataclass(frozen=True)
class Effect:
    """The effect of one rounding on the output.

    Attributes:
        event: the rounding.
        direct: coefficient of ``p_t v_t`` for each token of the instance.
        through: coefficient of ``p_t out`` for each token.
    """

    event: Event
    direct: tuple[int, ...]
    through: tuple[int, ...]


@dataclass(frozen=True)
class SiteSensitivity:
    """All roundings of one operation of one line to one format.

    Attributes:
        site: the line.
        operation: see `Event`.
        format: where it rounds to.
        logit: whether a logit is rounded: then coefficients count per unit of its size.
        ulps: half-units of the last place that one of them may be off.
        effects: one for each element of the instance, in the order of evaluation.
    """

    site: str
    operation: str
    format: Format
    logit: bool
    ulps: int
    effects: tuple[Effect, ...]

    @property
    def elements(self) -> int:
        """Roundings of the instance."""
        return len(self.effects)

    @property
    def kappa_direct(self) -> int:
        """The largest sum over elements of ``|direct_t|`` for one token."""
        return _most([e.direct for e in self.effects])

    @property
    def kappa_out(self) -> int:
        """The largest sum over elements of ``|through_t|`` for one token."""
        return _most([e.through for e in self.effects])

    @property
    def unit_roundoff(self) -> Fraction:
        """u of the format: half the distance of 1 to the next number; the whole of it where it rounds toward zero."""
        return unit_roundoff(self.format) * self.ulps


@dataclass(frozen=True)
class Sensitivities:
    """First-order sensitivities of one side.

    Attributes:
        label: of the side.
        output: the site that was differentiated: what the last rounding takes in.
        format: the format of the output.
        axes: the axes of the partition, outermost first, the tokens last.
        sizes: sizes of the instance along them.
        sites: by line, operation and format, in the order of evaluation.
        proved: whether exact rational functions confirm every coefficient; None: the spec uses functions that are
            no rational functions of exponentials.
    """

    label: str
    output: str
    format: Format
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    sites: tuple[SiteSensitivity, ...]
    proved: bool | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the instance."""
        return int(np.prod(self.sizes))

    def narrow(self, wide: int = 24) -> tuple[SiteSensitivity, ...]:
        """Roundings to fewer than ``wide`` bits."""
        return tuple(s for s in self.sites if s.format.p < wide)

    def expression(self, effect: Effect) -> Any:
        """The effect as a SymPy expression of ``p_t``, ``v_t`` and ``out``; of a logit, per unit of its size."""
        import sympy

        p, v = (sympy.symbols(f"{name}0:{self.tokens}", real=True) for name in "pv")
        direct = sum((d * a * b for d, a, b in zip(effect.direct, p, v, strict=True)), sympy.Integer(0))
        through = sum((d * a for d, a in zip(effect.through, p, strict=True)), sympy.Integer(0))
        return direct + sympy.Symbol("out", real=True) * through


def unit_roundoff(fmt: Format) -> Fraction:
    """The largest relative error of one rounding to ``fmt``, relative to the larger of the two numbers."""
    return Fraction(1, 1 << (fmt.p - (1 if fmt.rz else 0)))


def sensitivities(
    side: Side,
    context: Mapping[str, Any],
    *,
    sizes: Mapping[str, int] | None = None,
    order: Sequence[int] | None = None,
    prove: bool = False,
) -> Sensitivities:
    """First-order sensitivities of ``side``.

    Args:
        side: spec and platform.
        context: as for `Side.program`; at least ``kv_len``.
        sizes: sizes of the instance by axis; 2 on the outermost level and on ``token``, 1 on the others if not given.
        order: token numbers by falling score; None: the last token first, so that every piece has a new maximum.
        prove: also confirm the coefficients by exact rational functions (SymPy; slower).

    Raises:
        UnsupportedError: a construct has no derivative, or the small instance cannot be built.
        SpecError, InputError: the spec fails for this context.
    """
    program, output, fmt = before_rounding(side.program(context))
    return program_sensitivities(program, output, fmt, side.label, sizes=sizes, order=order, prove=prove)


def program_sensitivities(
    program: Program,
    output: str,
    fmt: Format,
    label: str = "",
    *,
    sizes: Mapping[str, int] | None = None,
    order: Sequence[int] | None = None,
    prove: bool = False,
) -> Sensitivities:
    """As `sensitivities`, for a bound program and one of its sites."""
    axes = (*program.level_names, TOKEN)
    shape = _shape(program, sizes or {})
    n = int(np.prod(shape))
    if n > MAX_NODES_TOKENS:
        raise UnsupportedError(
            f"an instance of {n} tokens",
            place=label,
            remedy=f"at most {MAX_NODES_TOKENS}: give smaller sizes",
        )
    ranks = list(range(n - 1, -1, -1)) if order is None else list(order)
    samples = _Samples(ranks)
    effects = samples.effects(program, instance(program, shape), output)
    sites: dict[tuple[str, str, Format, bool, int], list[Effect]] = {}
    for e in effects:
        key = (e.event.site, e.event.operation, e.event.format, e.event.logit, e.event.ulps)
        sites.setdefault(key, []).append(e)
    found = tuple(SiteSensitivity(*key, tuple(items)) for key, items in sites.items())
    result = Sensitivities(label, output, fmt, axes, shape, found)
    if prove:
        from search.symbolic import confirm

        result = replace(result, proved=confirm(program, instance(program, shape), output, effects, ranks))
    return result


def instance(program: Program, shape: Sequence[int]) -> Plan:
    """A plan of this shape in which every piece has as many tokens; the program keeps its own context."""
    n = int(np.prod(shape))
    tokens = np.arange(n, dtype=np.int32).reshape(tuple(shape))
    exists = {
        name: np.ones(tuple(shape[: i + 1]), dtype=np.bool_) for i, name in enumerate(program.level_names)
    }
    return Plan(program, {"kv_len": n}, program.level_names, tokens, exists)


def row_inputs(program: Program, scores: Sequence[Any]) -> tuple[RowInputs, list[float]]:
    """A row of ready scores, and the values of v: distinct numbers, which the tape takes for names.

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
    names = [float((half + i % half) << (i // half)) / half for i in range(n)]
    return RowInputs(v=np.array(names)[:, None], scalars=scalars, feed={site: feed}), names


def walk(
    program: Program, plan: Plan, output: str, values: Any, scores: Sequence[Node], inputs: Sequence[Node]
) -> tuple[TapeArithmetic, Node]:
    """The tape of ``output`` in one row, and its node.

    Raises:
        UnsupportedError: the small instance cannot be built, or a construct has no derivative.
    """
    row, names = row_inputs(program, scores)
    tape = TapeArithmetic(values, dict(zip(names, inputs, strict=True)))
    walker = TapeWalker(program, plan, row, tape)
    axes = program.sites[output].type.axes
    try:
        return tape, walker.value(output, {axis: 0 for axis in axes})
    except (SpecError, InputError) as error:
        raise UnsupportedError(
            f"{program.spec} cannot be walked on {plan.tokens.shape} tokens: {error.cause}",
            place=str(error.place or "sensitivity"),
            remedy="the spec reads pieces that a small instance has not: search it without a bound",
        ) from None


class _Samples:
    """Scores and values at sample points: arrays ``[value, point]``; v is a unit vector for each token, and a mix."""

    def __init__(self, order: Sequence[int]) -> None:
        n = len(order)
        if sorted(order) != list(range(n)):
            raise InputError(f"{list(order)} orders no {n} tokens", place="order", remedy="give each token once")
        rng = np.random.default_rng(20240607)
        self.n = n
        self.points = n + SPARE
        self.scores = np.empty((n, self.points))
        self.scores[np.array(order)] = -0.1 * np.arange(n)[:, None] + rng.uniform(-0.045, 0.045, (n, self.points))
        self.mix = rng.uniform(0.5, 1.5, n) * rng.choice([-1.0, 1.0], n)

    def effects(self, program: Program, plan: Plan, output: str) -> list[Effect]:
        """The effect of every rounding on ``output``."""
        columns = np.concatenate([np.eye(self.n), self.mix[None]])
        with np.errstate(all="ignore"):
            tape, out = walk(
                program,
                plan,
                output,
                _Arrays(),
                [Node(s[None], scale=Fraction(1)) for s in self.scores],
                [Node(columns[:, t][:, None]) for t in range(self.n)],
            )
            shape = (self.n + 1, self.points)
            shares = np.broadcast_to(out.value, shape)
            found = [(event, np.broadcast_to(x, shape)) for event, x in tape.backward(out)]
        if not _linear(shares, self.mix) or not np.allclose(shares[:-1].sum(axis=0), 1.0, atol=1e-5):
            raise UnsupportedError(
                f"the output of {program.spec} is no weighted mean of its values",
                place=f"site '{output}'",
                remedy="search it without a bound",
            )
        return [self._effect(event, x, shares[:-1], program.spec) for event, x in found]

    def _effect(self, event: Event, x: Floats, shares: Floats, spec: str) -> Effect:
        """Integers d and a with ``x_t = p_t (d_t + sum_j a_j p_j)``, checked on spare points."""
        ratio = x[:-1] / shares
        gaps = ratio - ratio[0]
        direct = np.rint(gaps.mean(axis=1))
        through = np.rint(np.linalg.lstsq(shares.T, ratio[0], rcond=None)[0])
        error = np.abs(ratio - direct[:, None] - (through @ shares)[None]).max()
        if not (_linear(x, self.mix) and error < TOLERANCE * (1 + np.abs(ratio).max())):
            raise UnsupportedError(
                f"the effect of rounding '{event.site}' ({event.operation}) is no combination of p v and p out",
                place=spec,
                remedy="search it without a bound",
            )
        # A constant can move between the two sums, as the weights add up to 1: take the smaller numbers.
        shifts = {0, *through.tolist(), *(-direct).tolist()}
        shift = min(shifts, key=lambda s: (np.abs(direct + s).sum() + np.abs(through - s).sum(), s))
        return Effect(event, tuple(map(int, direct + shift)), tuple(map(int, through - shift)))


def _linear(x: Floats, mix: Floats) -> bool:
    """Whether the mixed column is the mix of the unit columns."""
    return bool(np.allclose(x[-1], mix @ x[:-1], rtol=1e-6, atol=1e-9 * (1 + np.abs(x).max())))


class _Arrays:
    """Values at many points at once: see `search.tape.Field`."""

    def constant(self, x: Fraction) -> Floats:
        return np.array([[float(x)]])

    def infinity(self, sign: int) -> Floats:
        return np.array([[sign * np.inf]])

    def function(self, name: str, x: Floats) -> tuple[Floats, Floats]:
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
        return bool(np.all(x == constant))

    def finite(self, x: Floats) -> bool:
        return bool(np.all(np.isfinite(x)))

    def decide(self, op: str, a: Floats, b: Floats) -> bool:
        answers = np.asarray(COMPARISONS[op](a, b))
        if answers.all() or not answers.any():
            return bool(answers.all())
        raise UnsupportedError(
            "a comparison depends on the values", remedy="search without a bound: its branches differ"
        )


def _most(rows: Sequence[Sequence[int]]) -> int:
    return int(np.abs(np.array(rows)).sum(axis=0).max(initial=0)) if rows else 0


def _shape(program: Program, sizes: Mapping[str, int]) -> tuple[int, ...]:
    axes = (*program.level_names, TOKEN)
    unknown = [a for a in sizes if a not in axes]
    if unknown:
        raise InputError(f"no axis '{unknown[0]}'", place="sizes", remedy=f"axes: {', '.join(axes)}")
    default = {axis: 1 for axis in axes} | {axes[0]: 2, TOKEN: 2}
    return tuple(int({**default, **sizes}[a]) for a in axes)
