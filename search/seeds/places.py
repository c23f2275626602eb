"""A few tokens in places that differ on the sides, and evolution over their scores and values.

Where two sides group tokens alike at the outermost level, what they do inside it still differs: other inner pieces,
other partial sums, other merges. So a few tokens are taken from each *cell* (tokens that lie in one piece of every
level, and have one colour of every view, on all sides), and evolved on `search.seeds.sparse.Sparse`, where thousands of
candidates cost seconds and nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from search.evolve import evolve
from search.objective import integer_distances
from search.samples import colours
from search.seeds.construct import Seed
from search.seeds.pilots import Template
from search.seeds.sparse import Sparse
from search.space import Inputs
from search.target import Target
from specs.errors import SpecError, UnsupportedError

#: Layouts: of so many outermost pieces, so many cells each, so many tokens of each cell.
LAYOUTS = ((4, 8, 1), (16, 1, 1), (8, 8, 1), (1, 8, 2), (2, 16, 2))
#: The most tokens that are evolved.
MOST = 64
#: Evaluations in which evolution has to gain something.
PATIENCE = 2560
#: Scores lie about this part of the box, far above the lowest one, at which all other tokens stand.
HIGH = 0.8
POPULATION, PARENTS = 128, 64
#: Scores of the token that moves the outputs to a rounding boundary, how often they are tried ever more closely, and at
#: how many boundaries.
MOVES, ROUNDS, STEPS = 128, 3, 4


def places(
    target: Target,
    seed: int,
    *,
    evaluations: int,
    wall: Callable[[], float] = lambda: math.inf,
    until: float = math.inf,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Seed]:
    """Candidates of a few tokens, which must be evaluated whole before they count.

    Args:
        target: the whole target.
        seed: seed of every random choice.
        evaluations: how many candidates may be evaluated.
        wall: seconds that are left.
        until: objective at which it stops.
        progress: called with the best objective so far.

    Returns:
        the best, then one whose stored outputs lie further apart, if there is one, then the others; none where a side
        cannot be evaluated in this way, or nothing parts the sides.
    """
    if target.space.base is not None:
        return []
    first, found = target.evaluations, list[Seed]()
    try:
        chosen = layouts(target, LAYOUTS)
        for number, tokens in enumerate(chosen):
            left = evaluations - (target.evaluations - first)
            if left <= 0 or wall() <= 0 or (found and max(s.score for s in found) >= until):
                break
            cut = Sparse(target, tokens)
            rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
            best = max((s.score for s in found), default=-math.inf)
            made = evolve(
                cut,
                beginning(cut, rng, POPULATION),
                seed=seed,
                evaluations=max(1, (left - min(left // 4, ROUNDS * STEPS * MOVES)) // (len(chosen) - number)),
                wall=wall(),
                until=until,
                patience=PATIENCE,
                parents=PARENTS,
                progress=lambda _, now, best=best: progress(max(best, now)),
            )
            if made.score > 0:
                found.append(_seed(cut, made.inputs, made.score))
        found.sort(key=lambda s: -s.score)
        for start in found[:1]:
            found[1:1] = straddling(target, start, evaluations - (target.evaluations - first))
    except (UnsupportedError, SpecError):
        return []
    return found


def _seed(target: Target, inputs: Inputs, score: float) -> Seed:
    assert target.support is not None
    n = len(target.support)
    return Seed(
        target,
        inputs,
        score,
        Template(target.support, inputs.scores[0].astype(np.float64), np.zeros(n, np.int64), ()),
    )


def beginning(target: Target, rng: np.random.Generator, count: int) -> Inputs:
    """Candidates to begin with: scores of several spreads high in the box, some tokens of value 0."""
    space, n = target.space, 0 if target.support is None else len(target.support)
    spread = rng.choice([0.3, 1.0, 2.0, 3.0], size=(count, 1))
    scores = HIGH * space.score_box + rng.normal(size=(count, n)) * spread
    values = rng.uniform(1.0, 2.0, size=(count, n, space.dims))
    if space.cancellation < 1:
        values *= np.where(rng.random(values.shape) < 0.15, -1.0, 1.0)
    values[rng.random((count, n)) < 0.2] = 0.0
    values = np.clip(values, -space.value_box, space.value_box)
    scores = np.clip(scores, -space.score_box, space.score_box)
    return Inputs(scores.astype(np.float32), target.stored(values))


def straddling(target: Target, seed: Seed, evaluations: int) -> list[Seed]:
    """The candidate with a token of value 0 more, whose weight moves a rounding boundary between the outputs.

    Args:
        target: the whole target.
        seed: a candidate of a few of its tokens.
        evaluations: how many candidates may be evaluated.

    Returns:
        one whose stored outputs lie further apart than its own, if there is one.

    Raises:
        UnsupportedError: as `Sparse`.
    """
    taken = seed.template.tokens
    cell, _ = joint_cells(target)
    spare = np.setdiff1d(np.flatnonzero(np.isin(cell, cell[taken])), taken)
    if not len(spare):
        return []
    tokens = np.union1d(taken, spare[:1])
    cut, at = Sparse(target, tokens), int(np.searchsorted(tokens, spare[0]))
    rng = np.random.default_rng(np.random.SeedSequence(len(tokens)))
    scores = np.insert(seed.inputs.scores[0].astype(np.float64), at, -target.space.score_box)
    values = np.insert(seed.inputs.values[0], at, 0.0, axis=0)
    rest = float(np.log(np.exp(np.delete(scores, at)).sum()))
    low, high = rest - 16.0, rest - 4.0  # up to four places of bf16 less
    alone = cut.measure(_moved(scores, values, at, np.array([low])))
    known = int(min(d[0] for d in integer_distances(alone.outputs).values()))
    left = (evaluations - 1) // MOVES
    ranges = [(low, high, 0)]
    while ranges and left:
        left -= 1
        low, high, depth = ranges.pop()
        moves = np.log(np.linspace(math.exp(low), math.exp(high), MOVES))
        rows = _moved(scores, values, at, moves)
        measured = cut.measure(rows if depth < ROUNDS - 1 else _nudged(rows, at, rng))
        if measured.inputs.count < MOVES:
            break
        integer = np.min(list(integer_distances(measured.outputs).values()), axis=0)
        integer = np.where(measured.violation <= 0, integer, -1)
        best = int(np.lexsort((measured.score, integer))[-1])
        if integer[best] > known:
            return [_seed(cut, measured.inputs.pick([best]), float(measured.score[best]))]
        # Where the outputs pass from one stored number to the next: there, more closely.
        stored = measured.outputs[0].stored[:, 0]
        steps = np.flatnonzero(stored[1:] != stored[:-1])[:STEPS] if depth < ROUNDS - 1 else ()
        ranges += [(float(moves[i]), float(moves[i + 1]), depth + 1) for i in steps]
    return []


def _nudged(inputs: Inputs, at: int, rng: np.random.Generator) -> Inputs:
    """The candidates with the score of another token changed by a few single places."""
    scores = inputs.scores.copy()
    others = np.delete(np.arange(scores.shape[1]), at)
    rows, columns = np.arange(len(scores)), others[rng.integers(len(others), size=len(scores))]
    places = rng.integers(-8, 9, size=len(scores)).astype(np.float32)
    scores[rows, columns] += places * np.spacing(np.abs(scores[rows, columns]))
    return Inputs(scores, inputs.values)


def _moved(
    scores: NDArray[np.float64], values: NDArray[np.float32], at: int, to: NDArray[np.float64]
) -> Inputs:
    rows = np.repeat(scores[None], len(to), axis=0)
    rows[:, at] = to
    return Inputs(rows.astype(np.float32), np.repeat(values[None], len(to), axis=0))


def joint_cells(target: Target, *, views: bool = True) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which tokens lie in one piece of every level, and have one colour of every view, on all sides.

    Args:
        target: the whole target.
        views: whether tokens of other colours lie in other cells.

    Returns:
        for each token the number of its cell, cells numbered by their first token; and the piece of the outermost
        level of the first side.
    """
    rows: list[NDArray[np.int64]] = []
    for e in target.evaluators:
        plan = e.plan
        where = np.nonzero(plan.tokens >= 0)
        token = plan.tokens[where]
        for axis in range(plan.tokens.ndim - 1):
            row = np.zeros(plan.kv_len, np.int64)
            row[token] = where[axis]
            rows.append(row)
        for of_view in np.array(colours(e.program, plan.tokens.shape[-1])).T if views else ():
            row = np.zeros(plan.kv_len, np.int64)
            row[token] = of_view[where[-1]]
            rows.append(row)
    rows.append((np.arange(target.space.kv_len) < target.space.first).astype(np.int64))
    _, first, number = np.unique(np.stack(rows), axis=1, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first, kind="stable")] = np.arange(len(first))
    return order[number.reshape(-1)], rows[0]


def layouts(target: Target, sizes: Sequence[tuple[int, int, int]]) -> list[NDArray[np.int64]]:
    """Sets of tokens: for each (pieces, cells, tokens) the first so many tokens of the first so many cells of pieces."""
    cell, piece = joint_cells(target)
    seen = np.arange(len(piece)) >= target.space.first
    fewest = len(np.unique(piece[seen]))
    out: list[NDArray[np.int64]] = []
    for pieces, cells, each in sizes:
        chosen: list[int] = []
        for p in list(dict.fromkeys(piece[seen].tolist()))[:pieces]:
            inside = np.flatnonzero((piece == p) & seen)
            for c in list(dict.fromkeys(cell[inside].tolist()))[:cells]:
                chosen += np.flatnonzero(cell == c)[:each].tolist()
        tokens = np.array(sorted(chosen), dtype=np.int64)[:MOST]
        if (pieces > 1 and fewest == 1) or len(tokens) < 2:
            continue
        if not any(np.array_equal(tokens, o) for o in out):
            out.append(tokens)
    return out
