"""Drops that are lost: for a running sum that is rounded to a narrow format at every step.

The first group brings the sum to a number of the narrow format; every later group adds a little less than half a
place of it. A side that rounds the running sum loses each of them, a side that adds first keeps them all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search.compact import Geometry
from search.seeds.construct import Seed, unit_of
from search.seeds.pilots import CENTRE, FILLER, MINUS, PLUS, Role, Template
from search.space import Inputs
from search.target import Target
from specs.nodes import Cast, Name, Node, Prev
from specs.program import Program


def narrow_states(program: Program) -> list[str]:
    """The carried values that are rounded to a format narrower than the compute format at every step."""

    def carries(node: Node, depth: int) -> bool:
        if isinstance(node, Prev):
            return True
        if isinstance(node, Name) and depth and node.id in program.sites and node.id not in program.states:
            return carries(program.sites[node.id].expr, depth - 1)
        return any(carries(child, depth) for child in node.children())

    return [
        name
        for name in program.states
        if any(
            isinstance(node, Cast) and node.format.p < program.compute.p and carries(node.arg, 3)
            for node in program.sites[name].expr.walk()
        )
    ]


def drips(target: Target) -> list[Seed]:
    """Candidates for every side that carries a narrow sum, best first; none where no side does."""
    found: list[Seed] = []
    for side, evaluator in enumerate(target.evaluators):
        if narrow_states(evaluator.program):
            for sign in (1, -1) if target.space.cancellation < 1 else (1,):
                found += _drip(target, target.geometry, side, sign, unit_of(evaluator.program))
    return sorted(found, key=lambda s: -s.score)


def _drip(target: Target, geometry: Geometry, side: int, sign: int, unit: float) -> list[Seed]:
    pieces = np.unique(geometry.piece[side])
    pieces = pieces[pieces != Geometry.UNSEEN]
    heads = np.array([_first(geometry, side, int(p)) for p in pieces])
    drop = unit * (1 - unit)
    count = len(pieces) - 1
    if sign < 0:  # (1 - n drop) / (1 + n drop) >= c
        c = target.space.cancellation
        count = min(count, math.floor((1 - c) / (1 + c) / drop))
    if count < 1:
        return []
    heads = heads[: count + 1]
    free = np.ones(target.space.kv_len, np.bool_)
    free[heads] = False
    used = np.isin(geometry.piece[side], pieces[: count + 1])
    spare = np.flatnonzero(free & used)
    # The larger output is (1 + n drop) / D; D, a count of tokens, is to end a binade.
    high = 1 + count * drop if sign > 0 else 1.0
    whole = high * 2.0 ** math.ceil(math.log2((count + 1) / high))
    extra = spare[: max(0, math.floor(whole) - (count + 1))]
    tokens = np.sort(np.concatenate([heads, extra]))
    role = np.full(len(tokens), FILLER)
    role[np.searchsorted(tokens, heads[0])] = 0
    role[np.searchsorted(tokens, heads[1:])] = 1
    magnitude = np.where(role == 0, 1.0, np.where(role == 1, sign * drop, 0.0))
    roles = (Role(PLUS, ()), Role(PLUS if sign > 0 else MINUS, ()))
    template = Template(tokens, np.full(len(tokens), CENTRE), role, roles)
    cut = target.on(tokens)
    measured = cut.measure(_candidates(template, magnitude, cut))
    best = measured.best
    if measured.violation[best] > 0:
        return []
    return [Seed(cut, measured.inputs.pick([best]), float(measured.score[best]), template)]


def _first(geometry: Geometry, side: int, piece: int) -> int:
    own = np.flatnonzero(geometry.piece[side] == piece)
    return int(own[geometry.rank[side, own].argmin()])


def _candidates(template: Template, magnitude: NDArray[np.float64], target: Target) -> Inputs:
    """Drops of a few sizes just below half a place, at a few scales."""
    sizes = 1 - np.array([0, 1, 2, 4]) / 128
    scales = np.exp2([0.0, -1.0])
    rows = [np.where(np.abs(magnitude) < 0.5, magnitude * f, magnitude) * s for f in sizes for s in scales]
    values = target.stored(np.repeat(np.stack(rows)[:, :, None], target.space.dims, axis=2))
    scores = np.repeat(template.scores[None].astype(np.float32), len(rows), axis=0)
    return Inputs(scores, values)
