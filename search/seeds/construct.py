"""Candidates from templates: shares that keep the constraint, a scale that ends a binade, values that round well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from search.compact import Geometry
from search.seeds.pilots import (
    CENTRE,
    GRID,
    MINUS,
    PLUS,
    Cell,
    Role,
    Template,
    assemble,
    ballast_token,
    cells,
    directions,
    roles,
    with_zeros,
)
from search.space import Inputs
from search.target import Measured, Target
from specs.nodes import Cast
from specs.program import ROW, Program

#: Significands of values that are tried, as multiples of 1/128.
SIGNIFICANDS = np.arange(128, 256) / 128.0
#: By how many binades more the mass of a light template lies below its pilots.
LIGHT = 3
#: The scalar definition is asked about at most so many tokens.
FEW = 128


@dataclass(frozen=True, eq=False)
class Seed:
    """A constructed candidate.

    Attributes:
        target: the target cut to its tokens.
        inputs: one candidate of that target.
        score: its objective there.
        template: what it was made from.
    """

    target: Target
    inputs: Inputs
    score: float
    template: Template


def unit_of(program: Program) -> float:
    """The unit roundoff of the narrowest format that a line before the merge rounds to; of bf16 where none does."""
    narrow = [
        node.format.p
        for site in program.sites.values()
        if site.section != ROW
        for node in site.expr.walk()
        if isinstance(node, Cast) and node.format.p < program.compute.p
    ]
    return 2.0 ** -min(narrow, default=8)


def templates(
    target: Target, rng: np.random.Generator, eps: float, tries: int = 12
) -> Iterator[tuple[Template, Template | None]]:
    """Templates for a target: directions x cells x exponents, each with a twin whose mass has little weight.

    The twin leaves room for tokens of value 0 (`with_zeros`).

    Args:
        target: the whole target.
        rng: picks cells where there are many.
        eps: how far weights stay from midpoints, relative.
        tries: combinations of cells for each direction.
    """
    geometry = target.geometry
    units = [unit_of(e.program) for e in target.evaluators]
    sides = len(target.sides)
    found = cells(geometry, rng, 64)
    levels = sorted(product((1, 2, 3)[: min(3, sides)], repeat=sides), key=sum)
    low = [tuple(n + LIGHT for n in exponents) for exponents in levels]
    for phases in directions(sides, target.objective.single):
        what = roles(phases, target.space.cancellation)
        made = 0
        for chosen in _combinations(found, len(what), rng):
            template = _placed(target, geometry, what, chosen, units, eps, levels, 1)
            if template is None:
                continue
            light = _placed(target, geometry, what, chosen, units, eps, low, 1)
            yield template, light
            crowd = _placed(target, geometry, what, chosen, units, eps, levels, 1024)
            if crowd is not None and not (target.scalar and len(crowd.tokens) > FEW):
                yield crowd, None
            made += 1
            if made == tries:
                break


def _combinations(found: Sequence[Cell], count: int, rng: np.random.Generator) -> Iterator[tuple[Cell, ...]]:
    if count == 1:
        yield from ((cell,) for cell in found)
        return
    pairs = [(i, j) for i in range(len(found)) for j in range(len(found)) if i != j]
    # The largest cells first, then at random.
    pairs.sort(key=lambda p: max(p))
    head, tail = pairs[:32], pairs[32:]
    for i, j in [*head, *(tail[k] for k in rng.permutation(len(tail))[:512])]:
        a, b = found[i], found[j]
        if all(p != q for p, q in zip(a.pieces, b.pieces, strict=True)):
            yield (a, b)


def _placed(
    target: Target,
    geometry: Geometry,
    what: Sequence[Role],
    chosen: Sequence[Cell],
    units: Sequence[float],
    eps: float,
    levels: Sequence[tuple[int, ...]],
    count: int,
) -> Template | None:
    """The first legal placement with ``count`` tokens of mass in each cell, or all of them."""
    counts = [min(count, len(c.tokens)) for c in chosen]
    counted = [(r, c, n) for r, c, n in zip(what, chosen, counts, strict=True)]
    shifts = _shifts(what, counts, target.space.cancellation)
    ballast = ballast_token(geometry, counted)
    for exponents in product(levels, repeat=len(what)):
        template = assemble(geometry, counted, units, eps, shifts, exponents, ballast)
        if template is not None:
            return template
    return None


def _shifts(what: Sequence[Role], counts: Sequence[int], c: float) -> list[float]:
    """Moves of the scores by which positive and negative mass stand in the ratio that c allows, just on the safe side."""
    if len(what) == 1:
        return [0.0]
    exact = math.log((1 - c) / (1 + c) * counts[0] / counts[1])
    return [0.0, (math.ceil(exact / GRID) - 2) * GRID]


def candidates(template: Template, target: Target, significands: NDArray[np.float64]) -> Inputs:
    """One candidate for each significand: all values of one magnitude, signs by role."""
    sign = np.zeros(len(template.tokens))
    for number, role in enumerate(template.roles):
        sign[template.role == number] = {PLUS: 1.0, MINUS: -1.0}[role.sign]
    scores = np.repeat(template.scores[None].astype(np.float32), len(significands), axis=0)
    values = sign[None, :, None] * significands[:, None, None]
    return Inputs(scores, target.stored(np.repeat(values, target.space.dims, axis=2)))


def scaled(measured: Measured, template: Template) -> Inputs:
    """The candidates with the ballast moved so that the larger output ends a binade."""
    moving = template.ballast
    if not moving.any():
        return measured.inputs
    high = np.max([np.abs(o.before).max(axis=1) for o in measured.outputs], axis=0)
    scores = measured.inputs.scores.astype(np.float64)
    weights = np.exp(scores - CENTRE)
    total = weights.sum(axis=1)
    own = weights[:, moving].sum(axis=1)
    rest = total - own
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(high * total / rest) - 1e-9)
        by = np.log((high * total / np.exp2(exponent) - rest) / own)
    # Tokens of the ballast that lie under its pilot must keep their distance exactly.
    step = GRID if moving.sum() > 1 else 2.0**-24
    by = np.where(np.isfinite(by), np.round(by / step) * step, 0.0)
    scores[:, moving] += by[:, None]
    return replace(measured.inputs, scores=scores.astype(np.float32))


def construct(
    target: Target,
    seed: int,
    *,
    eps: float = 2.0**-18,
    keep: int = 8,
    most: int = 24,
    until: float = math.inf,
    evaluations: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Seed]:
    """The best constructed candidates, best first.

    Args:
        target: the whole target.
        seed: picks cells where there are many.
        eps: how far weights stay from the midpoints of the narrow format, relative.
        keep: how many come back.
        most: templates that are evaluated, those with tokens of value 0 not counted.
        until: objective at which it stops.
        evaluations: how many candidates it may evaluate; None: any number.
        stop: asked between templates.
    """
    first = target.evaluations
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    geometry = target.geometry
    units = [unit_of(e.program) for e in target.evaluators]
    found: list[Seed] = []
    lights: list[tuple[float, Template, int]] = []
    #: By side, what tokens of value 0 gained of late.
    gains = dict.fromkeys(range(len(target.sides)), 1.0)

    def enough() -> bool:
        spent = evaluations is not None and target.evaluations - first >= evaluations
        return spent or stop() or (bool(found) and max(s.score for s in found) >= until)

    for number, (template, light) in enumerate(templates(target, rng, eps)):
        if number == most or enough():
            break
        plain = _tried(template, target)
        found += plain
        for side in gains if light is not None and plain else ():
            assert light is not None
            if gains[side] < 0.2:
                continue
            more = with_zeros(light, geometry, side, units[side], eps, 1024)
            tried = [] if more is None else _tried(more, target)
            better = bool(tried) and tried[0].score > plain[0].score + 0.05
            gains[side] = 1.0 if better else gains[side] / 2
            if better:
                found += tried
                lights.append((tried[0].score, light, side))
    # How many tokens of value 0 there are moves the quotients that are rounded next.
    for _, light, side in sorted(lights, key=lambda x: -x[0])[: 0 if target.scalar else 3]:
        for count in range(24, 8, -1):
            if enough():
                break
            more = with_zeros(light, geometry, side, units[side], eps, count)
            found += [] if more is None else _tried(more, target)
    found.sort(key=lambda s: -s.score)
    return found[:keep]


def crowds(target: Target, seed: int, *, eps: float, most: int = 32) -> list[Seed]:
    """Templates in which all tokens of the largest cells have mass, at several depths below their pilots, best first.

    The float32 roundings of sums of many equal terms all go one way, which depends on the depth.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    geometry = target.geometry
    units = [unit_of(e.program) for e in target.evaluators]
    found: list[Seed] = []
    levels = sorted(product((1, 2, 3, 4), repeat=len(units)), key=sum)
    largest = cells(geometry, rng, 8)
    for phases in directions(len(units), target.objective.single):
        what = roles(phases, target.space.cancellation)
        chosen = next(_combinations(largest, len(what), rng), None)
        for depths in levels if chosen is not None else ():
            assert chosen is not None
            template = _placed(target, geometry, what, chosen, units, eps, [depths], 1024)
            if template is not None and len(template.tokens) <= 1024:
                found += _tried(template, target)
                most -= 1
            if most == 0:
                break
    return sorted(found, key=lambda s: -s.score)


def _tried(template: Template, target: Target) -> list[Seed]:
    """The best candidate of a template, where it is feasible."""
    cut = target.on(template.tokens)
    few = SIGNIFICANDS if target.compactable else SIGNIFICANDS[::16]
    few = few[:1] if target.scalar else few
    measured = cut.measure(candidates(template, cut, few))
    for _ in range(2):
        measured = cut.measure(scaled(measured, template))
    best = measured.best
    if measured.violation[best] > 0:
        return []
    return [Seed(cut, measured.inputs.pick([best]), float(measured.score[best]), template)]
