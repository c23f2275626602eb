"""Products that cancel: for sides that group their tokens alike and multiply q and K on other tensor cores.

Every row of K holds a large number and its negative (`search.space.Space.carry`). While a tensor core carries the one
it has fewer bits for the score, how many fewer depends on the architecture, and so the same exact score comes out a
little different on each side. A token whose weight lies between two narrow numbers, with the midpoint between the
scores of the sides, then rounds up on one side and down on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search.seeds.construct import Seed, unit_of
from search.seeds.pilots import BALLAST, MINUS, PILOT, PLUS, Role, Template
from search.seeds.places import joint_cells
from search.seeds.sparse import Sparse
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import SpecError, UnsupportedError

#: Sizes of the numbers that cancel, as powers of two.
CARRIES = (10, 12)
#: Scores that are tried about a midpoint.
TRIED = 128
#: Mass lies this far from a score of 0, a factor of two in weight apart: positive mass above, negative mass below, since
#: bits are cut towards 0.
AWAY = math.log(2) / 2


def products(target: Target) -> list[Seed]:
    """Candidates, best first; none where ready scores are searched."""
    if target.space.kind != "qkv" or target.space.carry is not None:
        return []
    cell = _cell(target)
    if len(cell) < (3 if target.space.cancellation < 1 else 2):
        return []
    found: list[Seed] = []
    for carry in CARRIES:
        space = replace(target.space, carry=carry)
        for start in (0, 1):
            made = _seed(target.of(space), cell, carry, start)
            found += [] if made is None else [made]
    return sorted(found, key=lambda s: -s.score)


def _seed(target: Target, cell: Sequence[int], carry: int, start: int) -> Seed | None:
    c = target.space.cancellation
    depth = int(target.space.context.get("head_dim", 1))
    step = 2.0 ** (carry - 25) * float(depth) ** -0.5
    # One pilot; positive mass half as heavy, negative mass a quarter, both on midpoints.
    above = math.log(2) - math.log1p(unit_of(target.evaluators[0].program))
    minus, part = _negative(c)
    kinds = [PILOT, 0, *[1] * min(minus, len(cell) - 2), BALLAST][: len(cell)]
    order = np.argsort(cell[: len(kinds)])
    where, kind = np.array(cell)[order], np.array(kinds)[order]
    # Pilots on a coarse grid lose no bits on any side.
    coarse = 2.0 ** (carry - 20) * float(depth) ** -0.5
    top = round((AWAY + above) / coarse) * coarse
    middles = [top - above, top - above - 2 * AWAY]
    scores = np.zeros(len(where))
    scores[kind == PILOT] = top
    for r, middle in enumerate(middles):
        scores[kind == r] = middle
    roles = tuple(Role(sign, ()) for sign in ((PLUS, MINUS) if minus else (PLUS,)))
    template = Template(where, scores, kind, roles)
    cut = _cut(target, where)
    best: Measured | None = None
    for r in range(len(roles)):  # one sign after the other
        rows = np.repeat(scores[None], TRIED, axis=0)
        middle = round(middles[r] / step) * step
        rows[:, kind == r] = (middle + (np.arange(TRIED) - TRIED // 2) * step)[:, None]
        best = cut.measure(_candidates(rows, template, cut, 1.0 + start / 2, part))
        scores = best.inputs.scores[best.best].astype(np.float64)
    for _ in range(2 if (kind == BALLAST).any() else 0):
        assert best is not None
        best = cut.measure(_scaled(best.inputs.pick([best.best]), best, kind == BALLAST))
    assert best is not None
    i = best.best
    if best.violation[i] > 0:
        return None
    return Seed(cut, best.inputs.pick([i]), float(best.score[i]), template)


def _cut(target: Target, tokens: NDArray[np.int64]) -> Target:
    """The tokens alone: without compiling anything, where the sides allow it."""
    try:
        cut = Sparse(target, tokens)
        cut.measure(
            Inputs(
                np.zeros((1, len(tokens)), np.float32),
                np.zeros((1, len(tokens), target.space.dims), np.float32),
            )
        )
    except (UnsupportedError, SpecError):
        return target.on(tokens)
    return cut


def _cell(target: Target) -> list[int]:
    """The largest set of tokens that lie in one piece of every level on every side, in the order of visits."""
    cell, _ = joint_cells(target, views=False)
    seen = cell[target.space.first :]
    tokens = target.space.first + np.flatnonzero(seen == np.bincount(seen).argmax())
    visits = target.geometry.rank[:, tokens].max(axis=0)
    return tokens[np.argsort(visits, kind="stable")].tolist()


def _negative(c: float) -> tuple[int, float]:
    """How many tokens of negative mass, and of which part of the other value, c allows beside one of positive mass.

    Just on the safe side, since scores are tried that move the masses a little.
    """
    if c >= 1:
        return 0, 0.0
    # A token of negative mass is half as heavy.
    ratio = (1 - c) / (1 + c) * math.exp(2 * AWAY) * (1 - 1e-3)
    return math.ceil(ratio), ratio / math.ceil(ratio)


def _candidates(
    scores: NDArray[np.float64], template: Template, target: Target, value: float, part: float
) -> Inputs:
    values = np.zeros(len(template.tokens))
    values[template.role == 0] = value
    values[template.role == 1] = -_cut_short(value * part)
    every = np.repeat(values[None, :, None], len(scores), axis=0)
    return Inputs(scores.astype(np.float32), target.stored(np.repeat(every, target.space.dims, axis=2)))


def _cut_short(x: float) -> float:
    """``x`` with 8 significant bits, or a little less: every narrow format of values has them."""
    significand, exponent = math.frexp(x)
    return math.ldexp(math.floor(significand * 256) / 256, exponent)


def _scaled(one: Inputs, measured: Measured, ballast: NDArray[np.bool_]) -> Inputs:
    """The ballast at scores about the one at which the larger output ends a binade."""
    i = measured.best
    high = max(float(np.abs(o.before[i]).max()) for o in measured.outputs)
    scores = one.scores[0].astype(np.float64)
    weights = np.exp(scores)
    own = float(weights[ballast].sum())
    total = float(weights.sum())
    exponent = math.floor(math.log2(high * total / (total - own)) - 1e-9)
    wanted = high * total / 2.0**exponent - (total - own)
    centre = math.log(wanted / own) if wanted > 0 else 0.0
    rows = np.repeat(one.scores, 16, axis=0)
    rows[:, ballast] = (scores[ballast] + centre + np.linspace(-2e-4, 2e-4, 16)[:, None]).astype(np.float32)
    rows[0] = one.scores[0]
    return Inputs(rows, np.repeat(one.values, 16, axis=0))
