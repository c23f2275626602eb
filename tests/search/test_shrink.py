"""Shrinking: what is kept, checked by certificates; and simpler numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.minimise import minimise
from search.replay import replay
from search.shrink import Goal, shrink
from search.simplify import bits, cost, simpler, simplified, total
from search.space import Inputs, Space
from search.target import Target
from search.witness import certificate_of, from_bytes, make, to_bytes
from specs.errors import InputError
from tests.search.witnesses import BY_HAND, member, two

TOKENS = 16


def space(**fields: Any) -> Space:
    return Space(kv_len=TOKENS, context={"head_dim": 16}, **fields)


@cache
def one_apart(masks: bool = False) -> tuple[Target, Inputs]:
    """Random numbers on which the two sides are one apart."""
    target = Target(two(), space(masks=masks))
    rng = np.random.default_rng(11)
    batch = Inputs(
        rng.normal(size=(128, TOKENS)).astype(np.float32),
        (rng.integers(64, 256, (128, TOKENS, 1)) / 128).astype(np.float32),
    )
    met = Goal(integer=1).met(target.measure(batch))
    assert met.any()
    return target, batch.pick([int(np.flatnonzero(met)[0])])


def exact_distance(target: Target, inputs: Inputs) -> int:
    """The distance that exact arithmetic finds; the input must keep every constraint."""
    certificate = certificate_of(target.sides, target.space, inputs)
    assert certificate.holds
    return certificate.distances[0].integer


@cache
def shrunk() -> Any:
    return shrink(*one_apart())


def test_few_tokens_are_left_and_the_goal_is_kept():
    found = shrunk()
    given, weights, tokens, values = found.stages
    assert found.goal == Goal(integer=1)
    assert (given.support, given.tokens) == (TOKENS, TOKENS)
    assert len(found.support) <= 3
    assert weights.tokens == TOKENS
    assert tokens.tokens == values.tokens == found.inputs.kv_len < TOKENS
    assert exact_distance(found.target, found.inputs) >= 1
    others = np.setdiff1d(np.arange(found.inputs.kv_len), found.support)
    assert (found.inputs.scores[0, others] == -20).all()
    assert (found.inputs.values[0, others] == 0).all()


def test_no_token_of_weight_can_be_left_out_as_it_is():
    found = shrunk()
    for token in found.support:
        scores, values = found.inputs.scores.copy(), found.inputs.values.copy()
        scores[0, token], values[0, token] = -20, 0
        measured = found.target.measure(Inputs(scores, values))
        assert not found.goal.met(measured)[0]


def test_numbers_are_simpler_than_they_were():
    found = shrunk()
    _, before = one_apart()
    assert total(found.inputs.scores, found.inputs.values) < total(before.scores, before.values) / 5


def test_the_same_seed_gives_the_same_input():
    target, inputs = one_apart()
    again = shrink(target, inputs)
    assert (again.inputs.scores == shrunk().inputs.scores).all()
    assert (again.inputs.values == shrunk().inputs.values).all()
    assert again.stages == shrunk().stages


def test_a_budget_ends_it_with_what_it_has():
    target, inputs = one_apart()
    found = shrink(target, inputs, evaluations=40)
    assert found.exhausted
    assert found.evaluations < 40 + 2 * 128
    assert exact_distance(found.target, found.inputs) >= 1


def test_masked_tokens_weigh_nothing_at_all(monkeypatch):
    monkeypatch.setattr("search.shrink.FEW", 0)  # so that no token is deleted
    target, inputs = one_apart(True)
    found = shrink(target, inputs, evaluations=2000)
    others = np.setdiff1d(np.arange(found.inputs.kv_len), found.support)
    assert found.inputs.kv_len == TOKENS
    assert len(others) >= TOKENS - 3
    assert np.isneginf(found.inputs.scores[0, others]).all()
    assert exact_distance(found.target, found.inputs) >= 1


def test_edits_of_a_captured_input_are_taken_back():
    target, inputs = one_apart()
    base = Inputs(inputs.scores.copy(), inputs.values.copy())
    base.scores[0, [2, 5, 9]] += np.float32(0.5)
    around = Target(target.sides, space(base=base, edits=3))
    measured = around.measure(base)
    start = Goal(real=float(around.measure(inputs).score[0]) * 0.5)
    found = shrink(around, inputs, keep=start, evaluations=500)
    edited = np.flatnonzero(found.inputs.scores[0] != base.scores[0])
    assert set(edited) <= {2, 5, 9}
    assert (found.inputs.values == base.values).all() or found.stages[-1].support <= 3
    assert found.inputs.kv_len == TOKENS
    assert len(found.support) == (0 if start.met(measured)[0] else len(edited))


@pytest.mark.parametrize("goal", [Goal(integer=300), Goal(real=1e6)])
def test_what_is_not_there_cannot_be_kept(goal):
    target, inputs = one_apart()
    with pytest.raises(InputError, match="does not reach"):
        shrink(target, inputs, keep=goal)


def test_an_input_that_violates_its_constraint_is_refused():
    target, inputs = one_apart()
    outside = Inputs(inputs.scores, inputs.values * 64)
    with pytest.raises(InputError, match="violates"):
        shrink(target, outside)
    with pytest.raises(InputError, match="nothing to keep"):
        Goal()


def test_a_smaller_witness_is_certified_and_says_where_it_came_from():
    target, inputs = one_apart()
    outputs = target.measure(inputs).outputs
    large = make(
        target.sides,
        target.space,
        target.objective,
        inputs,
        outputs,
        certificate=None,
        search=BY_HAND,
        note="kept",
    )
    small, found = minimise(large, seed=3, command=["ulpscope", "search"])
    assert small.record.space.kv_len == found.inputs.kv_len < TOKENS
    assert small.record.certificate is not None
    assert small.record.certificate.holds
    assert small.record.search.method == "shrink of by hand"
    assert (small.record.search.seed, small.record.search.command) == (3, ("ulpscope", "search"))
    assert small.record.note == "kept"
    assert replay(from_bytes(to_bytes(small, "w"), "w")).replays


@pytest.mark.slow
def test_flash_attention_needs_three_tokens_of_weight_and_one_more_than_a_group():
    """Two pilots and a mass token; 13 tokens are the fewest that both partitions cut differently."""
    witness, found = minimise(member())
    assert [(s.support, s.tokens) for s in found.stages] == [(4, 64), (3, 64), (3, 13), (3, 13)]
    assert witness.record.space.kv_len == 13
    assert witness.record.least_integer == 2
    assert witness.record.certificate is not None
    assert witness.record.certificate.holds
    assert witness.record.bound is None
    assert "another partition" in witness.record.no_bound


@pytest.mark.slow
def test_hundreds_of_tokens_of_a_long_sequence_become_five():
    large = member("fa2_h200_b200")
    target = Target(large.sides, large.space)
    found = shrink(target, large.inputs)
    assert found.stages[0].support > 500
    assert found.stages[0].tokens == 27_525
    assert len(found.support) <= 5
    assert exact_distance(found.target, found.inputs) >= 4


# -- simpler numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "expected"), [(0.0, 0), (1.0, 1), (-8.0, 1), (1.5, 2), (1.0078125, 8), (0.1, 52), (-np.inf, 0)]
)
def test_bits_of_the_significand(x, expected):
    assert bits(x) == expected


@given(st.floats(-20, 20, width=32))
def test_simpler_numbers_cost_less_and_are_near(x):
    found = simpler(x)
    assert all(cost(y) < cost(x) for y in found)
    assert all(abs(y - x) <= max(abs(x), 1.0) for y in found)
    assert len(set(found)) == len(found)
    assert (not found) == (x == 0)


def test_candidates_change_only_what_they_may():
    inputs = Inputs.one([1.25, -20, 0.3], [1.5, 0, 1.03125])
    found, gains = simplified(inputs, np.array([0, 2]), lambda v: v.astype(np.float32))
    assert found.count == len(gains) > 0
    assert (gains > 0).all()
    assert (np.diff(gains) <= 0).all()
    assert (found.scores[:, 1] == -20).all()
    assert (found.values[:, 1] == 0).all()
    nothing, _ = simplified(Inputs.one([0.0], [0.0]), np.array([0]), lambda v: v)
    assert nothing.count == 0


def test_goals_look_at_every_pair_of_sides():
    target, inputs = one_apart()
    three = Target([*target.sides, target.sides[0]], replace(target.space))
    measured = three.measure(inputs)
    assert not Goal(integer=1).met(measured)[0]  # the first and the third are the same
    assert Goal(integer=0).met(measured)[0]
