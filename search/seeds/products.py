"""Products that cancel: for sides that group their tokens alike and multiply q and K on other tensor cores.

Every row of K holds a large number and its negative (`search.space.Space.carry`). While a tensor core carries the one
it has fewer bits for the score, how many fewer depends on the architecture, and so the same exact score comes out a
little different on each side. A token whose weight lies between two narrow numbers, with the midpoint between the
scores of the sides, then rounds up on one side and down on the other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from search.seeds.construct import Seed, unit_of
from search.seeds.pilots import BALLAST, MINUS, PILOT, PLUS, Role, Template
from search.seeds.sparse import Sparse
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import SpecError, UnsupportedError

#: Sizes of the numbers that cancel, as powers of two.
CARRIES = (10, 12)
#: Scores that are tried about a midpoint.
TRIED = 128
#: The most tokens of mass of one sign.
MOST = 24
#: Mass lies this far from a score of 0: positive mass above, negative mass below, since bits are cut towards 0.
AWAY = 0.3125


def products(target: Target) -> list[Seed]:
    """Candidates, best first; none where ready scores are searched."""
    if target.space.kind != "qkv" or target.space.carry is not None:
        return []
    found: list[Seed] = []
    for carry in CARRIES:
        space = replace(target.space, carry=carry)
        for start in (0, 1):
            made = _seed(target.of(space), carry, start)
            found += [] if made is None else [made]
    return sorted(found, key=lambda s: -s.score)


def _seed(target: Target, carry: int, start: int) -> Seed | None:
    c = target.space.cancellation
    cells = _cells(target, 3 if c < 1 else 2)
    if len(cells) < (3 if c < 1 else 2):
        return None
    depth = int(target.space.context.get("head_dim", 1))
    step = 2.0 ** (carry - 25) * float(depth) ** -0.5
    distance = math.log(2) - math.log1p(unit_of(target.evaluators[0].program))
    plus, minus = _counts(c)
    tokens: list[int] = [cells[0][0], *cells[0][1 : 1 + plus]]
    role: list[int] = [PILOT, *[0] * len(tokens[1:])]
    if c < 1:
        negative = cells[1][: 1 + minus]
        tokens += negative
        role += [PILOT, *[1] * (len(negative) - 1)]
    tokens.append(cells[-1][0])
    role.append(BALLAST)
    order = np.argsort(tokens)
    where, kind = np.array(tokens)[order], np.array(role)[order]
    # Pilots on a coarse grid lose no bits on any side.
    coarse = 2.0 ** (carry - 20) * float(depth) ** -0.5
    tops = [round((AWAY + distance) / coarse) * coarse, round((distance - AWAY) / coarse) * coarse]
    scores = np.zeros(len(where))
    first = list(np.searchsorted(where, [cells[0][0], *([cells[1][0]] if c < 1 else [])]))
    for r, pilot in enumerate(first):
        scores[pilot] = tops[r]
        scores[kind == r] = tops[r] - distance
    roles = tuple(Role(sign, ()) for sign in ((PLUS, MINUS) if c < 1 else (PLUS,)))
    template = Template(where, scores, kind, roles)
    cut = _cut(target, where)
    best: Measured | None = None
    for r in range(len(first)):  # one sign after the other
        rows = np.repeat(scores[None], TRIED, axis=0)
        middle = round((tops[r] - distance) / step) * step
        rows[:, kind == r] = (middle + (np.arange(TRIED) - TRIED // 2) * step)[:, None]
        measured = cut.measure(_candidates(rows, template, cut, start))
        best = measured
        scores = measured.inputs.scores[measured.best].astype(np.float64)
    for _ in range(2):
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


def _cells(target: Target, count: int) -> list[list[int]]:
    """The largest sets of tokens that lie in one piece on every side, each in the order of visits."""
    geometry = target.geometry
    _, number, size = np.unique(geometry.piece, axis=1, return_inverse=True, return_counts=True)
    out: list[list[int]] = []
    for cell in np.argsort(-size, kind="stable")[:count]:
        tokens = np.flatnonzero(number == cell)
        visits = geometry.rank[:, tokens].max(axis=0)
        out.append(tokens[np.argsort(visits, kind="stable")].tolist())
    return [cell for cell in out if len(cell) > 1]


def _counts(c: float) -> tuple[int, int]:
    """How many tokens of positive and of negative mass stand in the ratio that c allows, just on the safe side."""
    if c >= 1:
        return 8, 0
    # Negative mass lies 2 AWAY below positive mass.
    ratio = Fraction((1 - c) / (1 + c) * math.exp(2 * AWAY) * (1 - 1e-3))
    best = max(
        (Fraction(m, p) for p in range(1, MOST + 1) for m in range(1, MOST + 1) if Fraction(m, p) <= ratio),
        default=Fraction(1, MOST),
    )
    return best.denominator, best.numerator


def _candidates(scores: NDArray[np.float64], template: Template, target: Target, start: int) -> Inputs:
    values = np.zeros(len(template.tokens))
    values[template.role == 0] = 1.0 + start / 2
    values[template.role == 1] = -1.0 - start / 2
    every = np.repeat(values[None, :, None], len(scores), axis=0)
    return Inputs(scores.astype(np.float32), target.stored(np.repeat(every, target.space.dims, axis=2)))


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
