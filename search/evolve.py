"""Numeric search: a population of inputs, changed at random, of which the best survive.

The changes are those that move roundings: nudges by single places, shifts of runs of tokens, copies, zeros, and
crossing two parents at a token. What is infeasible is ranked below what is feasible, by how far it is off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.meter import OverBudgetError
from search.space import Inputs, Space
from search.target import Measured, Target

Progress = Callable[[int, float], None]
"""Called with evaluations so far and the best objective so far."""
#: Gain that counts against `evolve`'s patience, relative.
GAIN = 1e-3


@dataclass(frozen=True, eq=False)
class Found:
    """The best input of a method.

    Attributes:
        inputs: one candidate, of the target that was searched.
        score: its objective; -inf where nothing feasible was found.
        evaluations: candidates evaluated.
        cut: whether wall time ended the search before its budget.
        measured: the evaluation of ``inputs``, where it is at hand.
    """

    inputs: Inputs
    score: float
    evaluations: int
    cut: bool = False
    measured: Measured | None = None


def evolve(
    target: Target,
    start: Inputs | None,
    *,
    seed: int,
    evaluations: int,
    wall: float = math.inf,
    until: float = math.inf,
    patience: float = math.inf,
    parents: int = 32,
    children: int = 128,
    progress: Progress | None = None,
) -> Found:
    """Search from ``start``, or from scratch.

    Args:
        target: what is searched for.
        start: candidates to begin with; None: random ones.
        seed: seed of every random choice.
        evaluations: budget, at least 1.
        wall: seconds after which it stops, whatever the budget.
        until: objective at which it stops.
        patience: evaluations that have to gain `GAIN` of the objective, or it stops.
        parents: size of the population.
        children: candidates of one generation.
        progress: called after each generation.

    Returns:
        the best candidate.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    begin = time.monotonic()
    first = target.evaluations
    inputs = random_inputs(target, rng, parents) if start is None else _filled(start, target, rng, parents)
    population = _best(target.measure(inputs.pick(slice(0, evaluations))), parents)
    cut = False
    since, known = target.evaluations, float(population.key.max())
    while target.evaluations - first < evaluations and population.key.max() < until:
        if time.monotonic() - begin > wall:
            cut = True
            break
        count = min(children, evaluations - (target.evaluations - first))
        child = mutate(population.inputs, target, rng, count)
        try:
            measured = target.measure(child)
        except OverBudgetError as error:
            cut = error.time
            break
        population = _best(_joined(population, measured), parents)
        if progress is not None:
            progress(target.evaluations - first, float(population.key.max()))
        if population.key.max() > known + GAIN * abs(known):
            since, known = target.evaluations, float(population.key.max())
        elif target.evaluations - since >= patience:
            break
    best = population.best
    score = float(population.score[best]) if population.violation[best] <= 0 else -math.inf
    return Found(
        population.inputs.pick([best]), score, target.evaluations - first, cut, population.pick(best)
    )


def random_inputs(target: Target, rng: np.random.Generator, count: int) -> Inputs:
    """Candidates to begin with: scores of several spreads, values of one sign or both, all within the box."""
    space = target.space
    tokens = space.kv_len if target.support is None else len(target.support)
    if space.base is not None:
        return space.base.pick(np.zeros(count, dtype=np.int64))
    spread = rng.choice([0.5, 1.0, 2.0, 4.0], size=(count, 1))
    scores = np.clip(rng.normal(size=(count, tokens)) * spread, -space.score_box, space.score_box)
    values = rng.uniform(0.25, 1.0, size=(count, tokens, space.dims))
    sign = np.where(
        rng.random((count, tokens, space.dims)) < rng.choice([0, 0, 0.25, 0.5], (count, 1, 1)), -1, 1
    )
    values = np.minimum(values * sign, space.value_box)
    return Inputs(scores.astype(np.float32), target.stored(values))


def _filled(start: Inputs, target: Target, rng: np.random.Generator, parents: int) -> Inputs:
    """The start, with changed copies of it up to the size of the population."""
    if start.count >= parents:
        return start
    return Inputs.join([start, mutate(start, target, rng, parents - start.count)])


def mutate(parents: Inputs, target: Target, rng: np.random.Generator, count: int) -> Inputs:
    """``count`` changed copies of random parents, each by one to three changes, within the boxes of the space."""
    space = target.space
    pick = rng.integers(parents.count, size=count)
    scores, values = parents.scores[pick].copy(), parents.values[pick].copy()
    for child in range(count):
        for _ in range(1 + int(rng.integers(3))):
            change = _CHANGES[int(rng.integers(len(_CHANGES)))]
            change(scores[child], values[child], parents, rng)
    box = np.float32(space.score_box)
    masked = np.isneginf(scores)
    scores = np.where(masked, scores, np.clip(scores, -box, box))
    values = np.clip(target.stored(values), -space.value_box, space.value_box)
    made = Inputs(scores, values)
    return made if space.base is None else _kept(made, space, rng)


def _kept(inputs: Inputs, space: Space, rng: np.random.Generator) -> Inputs:
    """Fixed tokens put back, and no more edits than allowed: surplus ones are undone, at random."""
    base = space.base
    assert base is not None
    scores, values = inputs.scores.copy(), inputs.values.copy()
    fixed = sorted(space.fixed)
    scores[:, fixed], values[:, fixed] = base.scores[0, fixed], base.values[0, fixed]
    if space.edits is not None:
        for child in range(inputs.count):
            s = np.flatnonzero(scores[child] != base.scores[0])
            v = np.flatnonzero((values[child] != base.values[0]).reshape(-1))
            surplus = len(s) + len(v) - space.edits
            if surplus > 0:
                undo = rng.permutation(len(s) + len(v))[:surplus]
                back_s, back_v = s[undo[undo < len(s)]], v[undo[undo >= len(s)] - len(s)]
                scores[child, back_s] = base.scores[0, back_s]
                values[child].reshape(-1)[back_v] = base.values[0].reshape(-1)[back_v]
    return Inputs(scores, values)


# -- changes: of one child in place ---------------------------------------------------------------------------

Row = NDArray[np.float32]
Change = Callable[[Row, Row, Inputs, np.random.Generator], None]


def _some(tokens: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One token, a few, or a run of them."""
    kind = rng.integers(3)
    if kind == 0:
        return rng.integers(tokens, size=1)
    if kind == 1:
        return rng.integers(tokens, size=1 + int(rng.integers(min(8, tokens))))
    start = int(rng.integers(tokens))
    return np.arange(start, min(tokens, start + 1 + int(rng.geometric(4 / max(4, tokens)))))


def _alike(s: Row, rng: np.random.Generator) -> NDArray[np.int64]:
    """The tokens whose score is that of a random token."""
    return np.flatnonzero(s == s[int(rng.integers(len(s)))])


def _nudge_alike(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _alike(s, rng)
    if np.isfinite(s[where[0]]):
        steps = int(rng.integers(1, 33)) * int(rng.choice([-1, 1]))
        s[where] += np.float32(steps) * np.spacing(np.abs(s[where[0]]))


def _move_alike(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    s[_alike(s, rng)] += np.float32(rng.normal() * 10.0 ** rng.uniform(-5, 0.5))


def _scale_alike(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _alike(s, rng)
    steps = float(rng.integers(1, 17)) * float(rng.choice([-1, 1]))
    v[where] += np.float32(steps) * np.exp2(np.frexp(v[where])[1] - 8).astype(np.float32)


def _sink(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _some(len(s), rng) if rng.random() < 0.5 else _alike(s, rng)[: 1 + int(rng.integers(4))]
    s[where] = np.float32(-1e3)  # clipped to the lowest score


def _nudge_scores(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _some(len(s), rng)
    steps = int(rng.integers(1, 65)) * int(rng.choice([-1, 1]))
    finite = where[np.isfinite(s[where])]
    s[finite] += np.float32(steps) * np.spacing(np.abs(s[finite]))


def _move_scores(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _some(len(s), rng)
    s[where] += np.float32(rng.normal() * 10.0 ** rng.uniform(-4, 0.5))


def _halve(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    s[_some(len(s), rng)] += np.float32(rng.choice([-1, 1]) * math.log(2.0))


def _shift_all(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    s += np.float32(rng.normal() * 10.0 ** rng.uniform(-5, 0))


def _nudge_values(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    where = _some(len(s), rng)
    column = int(rng.integers(v.shape[1]))
    old = v[where, column]
    steps = float(rng.integers(1, 9)) * float(rng.choice([-1, 1]))
    v[where, column] = old + np.float32(steps) * np.exp2(np.frexp(old)[1] - 8).astype(np.float32)


def _scale_values(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    v[_some(len(s), rng)] *= np.float32(2.0 ** rng.normal())


def _scale_all(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    v *= np.float32(2.0 ** (rng.normal() * 0.1))


def _zero(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    v[_some(len(s), rng)] = 0.0


def _negate(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    v[_some(len(s), rng)] *= np.float32(-1)


def _copy(s: Row, v: Row, _: Inputs, rng: np.random.Generator) -> None:
    source = int(rng.integers(len(s)))
    where = _some(len(s), rng)
    s[where] = s[source]
    if rng.random() < 0.5:
        v[where] = v[source]


def _cross(s: Row, v: Row, parents: Inputs, rng: np.random.Generator) -> None:
    other = int(rng.integers(parents.count))
    edge = np.sort(rng.integers(len(s) + 1, size=2))
    part = slice(int(edge[0]), int(edge[1]))
    s[part], v[part] = parents.scores[other][part], parents.values[other][part]


_CHANGES: tuple[Change, ...] = (
    _nudge_alike,
    _nudge_alike,
    _move_alike,
    _scale_alike,
    _sink,
    _nudge_scores,
    _nudge_scores,
    _move_scores,
    _halve,
    _shift_all,
    _nudge_values,
    _nudge_values,
    _scale_values,
    _scale_all,
    _zero,
    _negate,
    _copy,
    _cross,
)


def _joined(a: Measured, b: Measured) -> Measured:
    from search.evaluate import Outputs

    outputs = tuple(
        Outputs(np.concatenate([x.before, y.before]), np.concatenate([x.stored, y.stored]), x.format)
        for x, y in zip(a.outputs, b.outputs, strict=True)
    )
    return Measured(
        Inputs.join([a.inputs, b.inputs]),
        np.concatenate([a.score, b.score]),
        np.concatenate([a.violation, b.violation]),
        outputs,
    )


def _best(measured: Measured, count: int) -> Measured:
    """The best candidates, best first, no two of them with one objective; others fill up."""
    from search.evaluate import Outputs

    order = np.argsort(-measured.key, kind="stable")
    _, first = np.unique(measured.key[order], return_index=True)
    distinct = order[np.sort(first)][:count]
    rest = order[~np.isin(order, distinct)][: count - len(distinct)]
    which = np.concatenate([distinct, rest])
    outputs = tuple(Outputs(o.before[which], o.stored[which], o.format) for o in measured.outputs)
    return Measured(measured.inputs.pick(which), measured.score[which], measured.violation[which], outputs)


__all__ = ["Found", "evolve", "mutate", "random_inputs"]
