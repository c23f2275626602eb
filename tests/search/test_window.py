"""Sliding windows: tokens before them are in the input, and nothing depends on them."""

from __future__ import annotations

import numpy as np
import pytest

from search.objective import violation
from search.replay import replay
from search.run import Budget, search
from search.seeds.pilots import cells
from search.seeds.places import joint_cells, layouts
from search.sides import load_side
from search.space import Inputs, Space
from search.target import Target
from search.witness import certificate_of, certified, from_bytes, to_bytes, witness_of
from specs.errors import InputError, UnsupportedError
from tests.search.witnesses import two

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 64}
FA2 = [f"flash_attn2.splitkv_decode@{p}" for p in ("a100", "h200")]


def triton(tiles: int):
    return load_side("walkthrough.triton@h200", {"segment": f"tiles({tiles})"})


def test_a_window_shows_the_last_tokens() -> None:
    assert [Space(kv_len=64, context={"window": w}).first for w in (0, 1, 40, 64, 65)] == [0, 63, 24, 0, 0]
    with pytest.raises(InputError, match="window = -1"):
        Space(kv_len=64, context={"window": -1})


@pytest.mark.parametrize("engine", [False, True])
def test_nothing_depends_on_what_no_side_sees(engine: bool) -> None:
    """And what is seen gives what the exact arithmetic makes of it, with a window of its own."""
    sides = two()
    space = Space(kv_len=16, context={"window": 10}, cancellation=0.1)
    target = Target(sides, space) if engine else Target(sides, space).by_definition()
    rng = np.random.default_rng(3)
    scores = np.repeat(rng.normal(size=(1, 16)).astype(np.float32), 2, axis=0)
    values = target.stored(np.repeat(rng.uniform(0.5, 1.5, (1, 16, 1)), 2, axis=0))
    scores[1, :6], values[1, :6] = 19.0, -8.0
    inputs = Inputs(scores, values)
    measured = target.measure(inputs)
    assert measured.violation.tolist() == [0.0, 0.0]
    for side in measured.outputs:
        assert side.before[0] == side.before[1]
    certificate = certificate_of(
        sides,
        space,
        inputs.pick([1]),
        [o.__class__(o.before[1:], o.stored[1:], o.format) for o in measured.outputs],
    )
    assert certificate.holds, certificate.errors
    weights = np.exp(scores[0, 6:].astype(np.float64))
    exact = float(weights @ values[0, 6:, 0] / weights.sum())
    assert abs(float(measured.outputs[0].before[0, 0]) - exact) < 0.01


def test_limits_hold_for_what_is_seen() -> None:
    space = Space(kv_len=4, context={"window": 2}, cancellation=1.0, score_box=1.0)
    good = Inputs.one([9.0, -np.inf, 0.5, 0.0], [-1.0, -1.0, 1.0, 1.0])
    bad = Inputs.one([0.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, -1.0])
    assert violation(good, space)[0] == 0
    assert violation(bad, space)[0] > 0


def test_constructed_inputs_use_what_is_seen() -> None:
    target = Target([triton(8), triton(12)], Space(kv_len=64, context={"window": 40}))
    for cell in cells(target.geometry, np.random.default_rng(0), 64):
        assert min([*cell.tokens.tolist(), *cell.pilots]) >= 24
    number, _ = joint_cells(target)
    assert not set(number[:24]) & set(number[24:])
    assert all(tokens.min() >= 24 for tokens in layouts(target, [(4, 8, 1), (16, 1, 1)]))


@pytest.mark.slow
def test_a_real_kernel_with_a_window() -> None:
    sides = [load_side(cell) for cell in FA2]
    space = Space(kv_len=9, kind="qkv", context={**SHAPE, "window": 4}, cancellation=0.5)
    outcome = search(sides, space, budget=Budget(evaluations=1500))
    best = outcome.best
    assert best is not None
    assert best.score > 3.6
    certificate, why = certified(sides, best.space, best.inputs, best.outputs)
    assert certificate is not None, why
    witness = from_bytes(to_bytes(witness_of(outcome, best, certificate), "w"), "w")
    result = replay(witness, engine=False)
    assert (result.verdict, result.constraint, result.integer) == ("replays", "holds", 4)


def test_what_takes_no_window_says_so() -> None:
    from search.baselines import METHODS

    sides = [triton(2), triton(3)]
    target = Target(sides, Space(kv_len=4, context={"window": 3}))
    with pytest.raises(UnsupportedError, match="with a window"):
        METHODS["smt"](target, seed=0, evaluations=5)
