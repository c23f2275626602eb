"""How much each rounding of a spec moves its output, to first order.

A small instance of the program (two pieces of the outermost level, two tokens in the innermost) is walked once over
a tape (`search.tape`) and differentiated backwards. For every rounding, ``x`` becoming ``x * (1 + delta)``, the effect
on the output is a combination of ``p_t v_t`` (softmax weight times value of token t) and of the output itself, with
small integers as coefficients::

    d out / d delta = sum_t direct_t * p_t * v_t  +  out * sum_t through_t * p_t

They are read off sample points (`search.samples`), and exact rational functions (SymPy, `search.symbolic`) confirm
them where the spec has such. Larger instances tell how many roundings a token passes at the sizes of a real plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np

from search.samples import Effect, Samples, colours, instance, slots
from search.sides import Side, before_rounding
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.program import TOKEN, Program

#: The largest instance that is sampled.
MAX_TOKENS = 128
#: Levels of at most so many pieces are taken whole where smaller ones cannot be walked.
SMALL_LEVELS = (4, 16)
#: Of views of at most so many colours each is taken into the smallest instance.
MAX_COLOURS = 8

Key = tuple[str, int, str, Format, bool, int]


@dataclass(frozen=True)
class SiteSensitivity:
    """All roundings of one operation of one line to one format.

    Attributes:
        site: the line.
        part: which operation of the line, by number.
        operation: see `Event`.
        format: where it rounds to.
        logit: whether a logit is rounded: then coefficients count per unit of its size.
        ulps: half-units of the last place that one of them may be off.
        effects: one for each element of the instance, in the order of evaluation.
    """

    site: str
    part: int
    operation: str
    format: Format
    logit: bool
    ulps: int
    effects: tuple[Effect, ...]

    @property
    def key(self) -> Key:
        """What identifies the rounding in instances of all sizes."""
        return self.site, self.part, self.operation, self.format, self.logit, self.ulps

    @property
    def elements(self) -> int:
        """Roundings of the instance."""
        return len(self.effects)

    @property
    def falling(self) -> bool:
        """Whether logits of at most 0 are rounded: see `Effect`."""
        return all(e.falling for e in self.effects)

    @property
    def kappa_direct(self) -> int:
        """The largest sum over elements of ``|direct_t|`` for one token."""
        return _most([[abs(d) for d in e.direct] for e in self.effects])

    @property
    def kappa_out(self) -> int:
        """The largest sum over elements of ``|through_t|`` for one token."""
        return _most([[abs(a) for a in e.through] for e in self.effects])

    @property
    def counts(self) -> Counts:
        """The roundings that one token passes, by kind."""
        return Counts(
            *(
                _most([[max(0, sign * x) for x in getattr(e, name)] for e in self.effects])
                for name in ("direct", "through")
                for sign in (1, -1)
            )
        )


@dataclass(frozen=True)
class Counts:
    """How many roundings of one kind a token passes, at most.

    Attributes:
        raised, lowered: those that multiply, or divide, its ``p v`` in the numerator.
        divided, normal: those that divide, or multiply, its share of the normaliser.
    """

    raised: int
    lowered: int
    divided: int
    normal: int

    @property
    def all(self) -> tuple[int, int, int, int]:
        """The four numbers."""
        return self.raised, self.lowered, self.divided, self.normal

    def most(self, other: Counts) -> Counts:
        """The larger of each."""
        return Counts(*(max(x, y) for x, y in zip(self.all, other.all, strict=True)))

    def less(self, other: Counts) -> Counts:
        """How many more there are than in ``other``, at least 0."""
        return Counts(*(max(0, x - y) for x, y in zip(self.all, other.all, strict=True)))

    @property
    def direct(self) -> int:
        """On the numerator."""
        return max(self.raised, self.lowered)

    @property
    def through(self) -> int:
        """On the normaliser."""
        return max(self.divided, self.normal)


_NONE = Counts(0, 0, 0, 0)


@dataclass(frozen=True)
class Grown:
    """The roundings of one operation at the sizes of a real plan.

    Attributes:
        site, operation, format, logit, ulps, falling: as in `SiteSensitivity`.
        counts: at most so many for one token; where some multiply and some divide, all stand for both.
        growth: by axis, how much more each kind counts with one piece, or token, more in the small instance.
    """

    site: str
    operation: str
    format: Format
    logit: bool
    ulps: int
    falling: bool
    counts: Counts
    growth: Mapping[str, Counts]

    @property
    def unit_roundoff(self) -> Fraction:
        """The largest relative error of one of them, relative to the larger of the two numbers."""
        return Fraction(self.ulps, 1 << (self.format.p - (1 if self.format.rz else 0)))


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
        factors: whether every rounding is a factor of terms of numerator and normaliser, so that their product is
            the exact dependence and not only the first order.
        proved: whether exact rational functions confirm every coefficient; None: the spec uses functions that are
            no rational functions of exponentials, or nobody asked.
    """

    label: str
    output: str
    format: Format
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    sites: tuple[SiteSensitivity, ...]
    factors: bool
    proved: bool | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the instance."""
        return prod(self.sizes)

    def of(self, site: str, fmt: str | None = None) -> SiteSensitivity:
        """The last operation of a line, of one format if given.

        Raises:
            InputError: there is none.
        """
        found = [s for s in self.sites if s.site == site and fmt in (None, str(s.format))]
        if not found:
            known = ", ".join(dict.fromkeys(s.site for s in self.sites))
            raise InputError(f"nothing is rounded at '{site}'", place=self.label, remedy=f"rounded: {known}")
        return max(found, key=lambda s: s.part)

    def narrow(self) -> tuple[SiteSensitivity, ...]:
        """Roundings to fewer bits than f32 has."""
        return tuple(s for s in self.sites if s.format.p < 24)

    def expression(self, effect: Effect) -> Any:
        """The effect as a SymPy expression of ``p_t``, ``v_t`` and ``out``; of a logit, per unit of its size."""
        import sympy

        p, v = (sympy.symbols(f"{name}0:{self.tokens}", real=True) for name in "pv")
        direct = sum((d * a * b for d, a, b in zip(effect.direct, p, v, strict=True)), sympy.Integer(0))
        through = sum((d * a for d, a in zip(effect.through, p, strict=True)), sympy.Integer(0))
        return direct + sympy.Symbol("out", real=True) * through


def sensitivities(
    side: Side,
    context: Mapping[str, Any],
    *,
    sizes: Mapping[str, int] | None = None,
    order: Sequence[int] | None = None,
    prove: bool = True,
) -> Sensitivities:
    """First-order sensitivities of ``side``.

    Args:
        side: spec and platform.
        context: as for `Side.program`; at least ``kv_len``.
        sizes: sizes of the instance by axis; 2 on the outermost level and on ``token``, 1 on the others if not given.
        order: token numbers by falling score; None: the last token first, so that every piece has a new maximum.
        prove: also confirm the coefficients by exact rational functions.

    Raises:
        UnsupportedError: a construct has no derivative, or the small instance cannot be built.
        SpecError, InputError: the spec fails for this context.
    """
    program, output, fmt = before_rounding(side.program(context))
    axes = (*program.level_names, TOKEN)
    unknown = [a for a in sizes or {} if a not in axes]
    if unknown:
        raise InputError(f"no axis '{unknown[0]}'", place="sizes", remedy=f"axes: {', '.join(axes)}")
    given = dict.fromkeys(axes, 1) | {axes[0]: 2, TOKEN: 2} | dict(sizes or {})
    shape = tuple(int(given[a]) for a in axes)
    ranks = list(range(prod(shape) - 1, -1, -1)) if order is None else list(order)
    result = _measured(program, output, fmt, side.label, shape, ranks)
    if prove:
        from search.symbolic import confirm

        effects = [e for s in result.sites for e in s.effects]
        proved = confirm(program, instance(program, shape), output, effects, ranks)
        result = replace(result, proved=proved)
    return result


def grown(side: Side, context: Mapping[str, Any]) -> tuple[tuple[Grown, ...], bool]:
    """The roundings of ``side`` at the sizes of its plan in ``context``.

    The counts of small instances, two sizes of each axis, are continued linearly in every axis: exact where sums
    are sequential, too many where a tree is flatter. The smallest instance has a piece, or a token, of every colour of
    a view; and all pieces of a level where lines read pieces by number.

    Returns:
        the roundings, and whether each of them is a factor (see `Sensitivities.factors`) in the largest instance.

    Raises:
        as `sensitivities`.
    """
    program, output, fmt = before_rounding(side.program(context))
    plan = side.plan(context)
    axes, actual = (*program.level_names, TOKEN), tuple(int(n) for n in plan.tokens.shape)
    lows = [min(n, 2 if i in (0, len(axes) - 1) else 1) for i, n in enumerate(actual)]
    places = slots(program, actual[-1])
    for i, (axis, n) in enumerate(zip(axes[:-1], actual, strict=False)):
        of_axis = [v.size for v in program.views.values() if v.axis == axis]
        lows[i] = max([lows[i], *(min(n, k) for k in of_axis if k <= MAX_COLOURS)])
    kinds = len(set(colours(program, actual[-1])))
    lows[-1] = max(lows[-1], kinds if kinds <= MAX_COLOURS else 1)
    refused: UnsupportedError | None = None
    for whole in _wholes(actual):  # pieces that read each other need all of a level
        taken = [n if i in whole else low for i, (n, low) in enumerate(zip(actual, lows, strict=True))]
        if prod(taken) > MAX_TOKENS // 2:
            taken[-1] = min(taken[-1], max(1, kinds))
        if prod(taken) > MAX_TOKENS:
            continue
        try:
            return _continued(program, output, fmt, side.label, axes, actual, taken, whole, places)
        except UnsupportedError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _wholes(actual: tuple[int, ...]) -> list[frozenset[int]]:
    """Which levels to take whole, in the order of trial: none, all small ones, one alone."""
    out = [frozenset[int]()]
    for most in SMALL_LEVELS:
        small = [i for i, n in enumerate(actual[:-1]) if 1 < n <= most]
        out += [frozenset(small), *(frozenset([i]) for i in small)]
    return list(dict.fromkeys(out))


def _continued(
    program: Program,
    output: str,
    fmt: Format,
    label: str,
    axes: tuple[str, ...],
    actual: tuple[int, ...],
    lows: Sequence[int],
    whole: frozenset[int],
    places: Sequence[int],
) -> tuple[tuple[Grown, ...], bool]:
    free = [i for i, n in enumerate(actual) if n > lows[i] and i not in whole]
    corners: dict[tuple[int, ...], dict[Key, Counts]] = {}
    rising: set[Key] = set()
    exact = True
    for steps in product((0, 1), repeat=len(free)):
        shape = list(lows)
        for i, step in zip(free, steps, strict=True):
            shape[i] += step
        corner = corners[steps] = {}
        for order in _orders(shape):
            found = _measured(
                program, output, fmt, label, tuple(shape), order, all(steps), sorted(places[: shape[-1]])
            )
            for s in found.sites:
                corner[s.key] = s.counts.most(corner.get(s.key, _NONE))
            rising |= {s.key for s in found.sites if not s.falling}
            exact &= found.factors or not all(steps)
    base = (0,) * len(free)
    units = {axes[i]: tuple(int(i == j) for j in free) for i in free}
    away = [actual[i] - lows[i] for i in free]
    result: list[Grown] = []
    for key in dict.fromkeys(key for corner in corners.values() for key in corner):
        site, _, operation, target, logit, ulps = key
        table = {at: corner.get(key, _NONE) for at, corner in corners.items()}
        growth = {axis: table[unit].less(table[base]) for axis, unit in units.items()}
        counts = _grown(
            list(table.values()), _continue(table, "direct", away), _continue(table, "through", away)
        )
        result.append(Grown(site, operation, target, logit, ulps, key not in rising, counts, growth))
    return tuple(result), exact


def _orders(shape: Sequence[int]) -> list[list[int]]:
    """Orders of scores that take different branches: rising, falling, and pieces up and down with rising tokens."""
    n, outer = prod(shape), shape[0]
    pieces = [i ^ 1 if i ^ 1 < outer else i for i in range(outer)]
    mixed = [piece * (n // outer) + t for piece in pieces for t in range(n // outer - 1, -1, -1)]
    orders = [list(range(n - 1, -1, -1)), list(range(n)), mixed]
    return [order for i, order in enumerate(orders) if order not in orders[:i]]


def _continue(table: Mapping[tuple[int, ...], Counts], name: str, away: Sequence[int]) -> int:
    return max(0, _multilinear({at: getattr(counts, name) for at, counts in table.items()}, away))


def _grown(seen: Sequence[Counts], direct: int, through: int) -> Counts:
    """The numbers, as kinds: of both where both were seen."""
    raised, lowered = any(c.raised for c in seen), any(c.lowered for c in seen)
    divided, normal = any(c.divided for c in seen), any(c.normal for c in seen)
    return Counts(
        direct if raised or not lowered else 0,
        direct if lowered else 0,
        through if divided or not normal else 0,
        through if normal else 0,
    )


def _multilinear(corners: Mapping[tuple[int, ...], int], x: Sequence[int]) -> int:
    """The multilinear function with these values on {0, 1}^n, at ``x``."""
    total = 0
    for at, value in corners.items():
        total += value * prod(xi if bit else 1 - xi for bit, xi in zip(at, x, strict=True))
    return total


def _measured(
    program: Program,
    output: str,
    fmt: Format,
    label: str,
    shape: tuple[int, ...],
    order: Sequence[int],
    check: bool = True,
    places: Sequence[int] | None = None,
) -> Sensitivities:
    n = prod(shape)
    if n > MAX_TOKENS:
        raise UnsupportedError(
            f"an instance of {n} tokens", place=label, remedy=f"at most {MAX_TOKENS}: give smaller sizes"
        )
    samples, plan = Samples(order), instance(program, shape, places)
    effects = samples.effects(program, plan, output)
    sites: dict[Key, list[Effect]] = {}
    for e in effects:
        key = (e.event.site, e.event.part, e.event.operation, e.event.format, e.event.logit, e.event.ulps)
        sites.setdefault(key, []).append(e)
    found = tuple(SiteSensitivity(*key, tuple(items)) for key, items in sites.items())
    factors = check and samples.factors(program, plan, output, effects)
    return Sensitivities(label, output, fmt, (*program.level_names, TOKEN), shape, found, factors)


def _most(rows: Sequence[Sequence[int]]) -> int:
    return int(np.array(rows).sum(axis=0).max(initial=0)) if rows else 0
