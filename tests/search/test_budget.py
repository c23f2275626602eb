"""Budgets: never exceeded, reported exactly, and the same result whatever ran before in the process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import z3

from search.baselines import METHODS
from search.bitprecise import find
from search.meter import Meter, OverBudgetError
from search.objective import Objective
from search.resources import Resources
from search.run import Budget, search, search_by
from search.shrink import shrink
from search.sides import load_side
from search.space import Inputs, Space
from search.target import Target

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
SPACE = Space(kv_len=64, context=SHAPE, cancellation=0.5)
#: Two scores, one of them just above a midpoint below the other's weight.
PAIR = (-0.6890044293167606, 0.0)


def sides(a: int = 20, b: int = 12):
    return [
        load_side("walkthrough.flash_attention_2@h200", {"split": f"tiles({n})", "block": "tiles(64)"})
        for n in (a, b)
    ]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Candidates that the evaluator of the first side was really given, batch by batch."""
    from search.evaluate import Evaluator

    seen: list[int] = []
    run = Evaluator.run

    def counting(self: Evaluator, inputs: Inputs):
        if self.side.changed.get("split") == "tiles(20)":
            seen.append(inputs.count)
        return run(self, inputs)

    monkeypatch.setattr(Evaluator, "run", counting)
    return seen


@pytest.mark.parametrize("evaluations", [1, 2, 3, 31, 33, 200])
def test_the_search_keeps_to_its_evaluations(counted: list[int], evaluations: int) -> None:
    outcome = search(sides(), SPACE, budget=Budget(evaluations=evaluations))
    assert sum(counted) == outcome.evaluations <= evaluations
    assert sum(s.evaluations for s in outcome.steps) == outcome.evaluations
    # From two on there is one to look with, and one to evaluate what was found whole.
    assert outcome.status == "found" or evaluations < 3


@pytest.mark.parametrize("method", [m for m in METHODS if m != "smt"])
def test_baselines_keep_to_their_evaluations(counted: list[int], method: str) -> None:
    for evaluations in (1, 130):
        counted.clear()
        outcome = search_by(method, sides(), SPACE, budget=Budget(evaluations=evaluations))
        assert sum(counted) == outcome.evaluations == evaluations


def test_shrinking_keeps_to_its_evaluations(counted: list[int]) -> None:
    outcome = search(sides(), SPACE, budget=Budget(evaluations=300))
    assert outcome.best is not None
    for evaluations in (1, 5, 77):
        counted.clear()
        target = Target(sides(), SPACE)
        small = shrink(target, outcome.best.inputs, evaluations=evaluations)
        assert sum(counted) == small.evaluations <= evaluations
        assert small.exhausted
        again = Target(sides(), small.target.space).measure(small.inputs)
        assert small.goal.met(again)[0]
        assert again.score[0] == small.measured.score[0]


def test_a_meter_grants_what_is_left_and_keeps_the_best() -> None:
    target = Target(sides(), SPACE)
    rng = np.random.default_rng(0)
    values = (rng.integers(128, 256, (5, 64, 1)) / 128).astype(np.float32)
    batch = Inputs(rng.normal(size=(5, 64)).astype(np.float32), values)
    alone = target.measure(batch)
    with target.meter.within(target.meter.spent + 3, None):
        assert target.measure(batch).inputs.count == 3
        with pytest.raises(OverBudgetError) as raised:
            target.measure(batch)
        assert not raised.value.time
    assert target.evaluations == 8
    best = target.meter.best
    assert best is not None
    assert best[1].score[0] == alone.score.max()
    late = Meter(deadline=time.monotonic() - 1)
    with pytest.raises(OverBudgetError) as raised:
        late.granted(1)
    assert raised.value.time


def hard(cubes: int = 33_333_331) -> z3.Solver:
    """Three cubes: what Z3 does not answer in a second."""
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    terms: list[Any] = [z3.Int(f"x{i}", context) for i in range(4)]
    solver.add(z3.Sum([t * t * t for t in terms]) == cubes, *(t > 0 for t in terms))
    return solver


def test_queries_share_their_resources() -> None:
    together = Resources(300_000)
    assert [together.check(hard(), 200_000) for _ in range(2)] == ["unknown"] * 2
    # Z3 looks at its count now and then only.
    assert -30_000 < together.left <= 0
    assert not together.cut
    begin = time.monotonic()
    assert together.check(hard(), 10**9) == "unknown"
    assert time.monotonic() - begin < 0.5


def test_wall_time_ends_a_query_and_is_said() -> None:
    begin = time.monotonic()
    limited = Resources(10**12, deadline=begin + 0.3)
    assert limited.check(hard(), 10**9) == "unknown"
    assert limited.cut
    assert time.monotonic() - begin < 10


def test_bit_precise_queries_know_wall_time_and_nothing_of_each_other() -> None:
    a, b = (load_side("walkthrough.triton@h200", {"segment": f"tiles({n})"}) for n in (2, 1))
    first = find(a, b, 1, tokens=2, scores=PAIR, rlimit=300_000)
    find(b, a, 1, tokens=2, scores=PAIR, rlimit=1000)
    again = find(a, b, 1, tokens=2, scores=PAIR, rlimit=300_000)
    assert first.status == again.status
    assert first.units == again.units > 0
    for one, two in ((first.scores, again.scores), (first.values, again.values)):
        assert (one is None) == (two is None)
        assert one is None or two is None or one.tobytes() == two.tobytes()
    late = find(a, b, 100, tokens=2, scores=PAIR, seconds=0.02)
    assert (late.status, late.cut) == ("unknown", True)
    assert not find(a, b, 1, tokens=2, scores=PAIR, rlimit=1000).cut


def test_other_searches_before_change_nothing() -> None:
    """The same seed, in a fresh state and after other searches in one process."""

    def once():
        found = search(sides(), SPACE, seed=5, budget=Budget(evaluations=700))
        assert found.best is not None
        steps = [(s.method, s.score, s.evaluations) for s in found.steps]
        return found.best.inputs.scores.tobytes(), found.best.inputs.values.tobytes(), steps

    first = once()
    search(sides(16, 12), SPACE, seed=1, budget=Budget(evaluations=300))
    search(sides(), SPACE, Objective("f32"), seed=2, budget=Budget(evaluations=300))
    z3.main_ctx()
    solver = z3.Solver()
    solver.add(z3.Int("x") > 3)
    solver.check()
    assert once() == first
