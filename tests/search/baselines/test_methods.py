"""Baselines: each keeps its budget, the boxes and the constraint, repeats, and improves on its first batch."""

import math
import time
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from search.baselines import METHODS
from search.run import Budget, search_by
from search.sides import load_side
from search.space import Inputs, Space
from search.target import Target
from specs.errors import UnsupportedError

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
NUMERIC = ("random", "bgrt", "cma", "condition", "evolution")


def sides(a: int, b: int):
    return [
        load_side("walkthrough.flash_attention_2@h200", {"split": f"tiles({n})", "block": "tiles(64)"})
        for n in (a, b)
    ]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(sides(20, 12), Space(kv_len=64, context=SHAPE, cancellation=0.5))


def share(inputs: Inputs) -> Fraction:
    """|sum w v| / sum w |v|, by decimals of 60 digits."""
    with localcontext(prec=60):
        weights = [Fraction(Decimal(float(s)).exp()) for s in inputs.scores[0]]
    values = [Fraction(float(v)) for v in inputs.values[0, :, 0]]
    out = sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0))
    return abs(out) / sum((w * abs(v) for w, v in zip(weights, values, strict=True)), Fraction(0))


@pytest.mark.parametrize("name", NUMERIC)
def test_limits_are_kept(target: Target, name: str) -> None:
    before = target.evaluations
    first, found = (METHODS[name](target, seed=7, evaluations=n) for n in (128, 1000))
    assert target.evaluations - before == first.evaluations + found.evaluations
    assert found.evaluations <= 1000
    assert not found.cut
    assert math.isfinite(found.score)
    assert found.score >= first.score
    assert np.abs(found.inputs.scores).max() <= 20
    assert np.abs(found.inputs.values).max() <= 8
    assert share(found.inputs) >= Fraction(1, 2)
    assert target.measure(found.inputs).score[0] == found.score
    again = METHODS[name](target, seed=7, evaluations=1000)
    assert again.inputs.scores.tobytes() == found.inputs.scores.tobytes()
    assert again.inputs.values.tobytes() == found.inputs.values.tobytes()


@pytest.mark.parametrize("name", NUMERIC)
def test_wall_time_cuts(target: Target, name: str) -> None:
    found = METHODS[name](target, seed=0, evaluations=10**9, wall=0.05)
    assert found.cut


@pytest.mark.parametrize("name", ["bgrt", "cma"])
def test_without_cancellation_values_have_one_sign(name: str) -> None:
    """Every candidate is feasible then: none of the budget is lost."""
    target = Target(sides(20, 12), Space(64, context=SHAPE, cancellation=1.0))
    found = METHODS[name](target, seed=7, evaluations=1)
    assert found.score >= 0
    assert share(found.inputs) == 1


def edited() -> Target:
    """A space of at most three edits of one input, ten tokens of which are fixed."""
    rng = np.random.default_rng(0)
    values = rng.integers(128, 256, 64) / 256  # bf16 numbers
    base = Inputs.one(rng.normal(size=64), values)
    return Target(
        sides(20, 12),
        Space(64, context=SHAPE, cancellation=0.5, base=base, edits=3, fixed=frozenset(range(10))),
    )


@pytest.mark.parametrize("name", ["random", "condition"])
def test_edits_are_kept(name: str) -> None:
    target = edited()
    base = target.space.base
    assert base is not None
    found = METHODS[name](target, seed=1, evaluations=400)
    s, v = found.inputs.scores != base.scores, found.inputs.values != base.values
    assert 1 <= s.sum() + v.sum() <= 3
    assert not s[:, :10].any()
    assert not v[:, :10].any()
    # The base itself is worth less: they did change it for the better.
    assert found.score > target.measure(base).score[0]


@pytest.mark.parametrize("name", ["bgrt", "cma", "smt"])
def test_methods_without_a_base_refuse_one(name: str) -> None:
    space = Space(3, context=SHAPE, base=Inputs.one([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]), edits=1)
    with pytest.raises(UnsupportedError, match="cannot keep to an input"):
        METHODS[name](Target(sides(3, 2), space), seed=0, evaluations=10)


def test_the_search_beats_random_inputs() -> None:
    space = Space(kv_len=64, context=SHAPE, cancellation=1.0)
    scores = {}
    for method in ("random", "search"):
        best = search_by(method, sides(20, 12), space, budget=Budget(evaluations=2000)).best
        assert best is not None
        scores[method] = best.score
    # Known: random search gives about 0.6 on this pair, 1.985 is the most that there is at 20 roundings.
    assert scores["random"] < 1.5 < 1.98 < scores["search"]


@pytest.mark.slow
def test_bit_precise_on_three_tokens() -> None:
    """Two places on three tokens are known to be possible for these groups.

    On demand: by default `test_bitprecise` solves such instances, and the other methods test what they share.
    """
    triton = [load_side("walkthrough.triton@h200", {"segment": f"tiles({n})"}) for n in (3, 2)]
    target = Target(triton, Space(kv_len=3, context=SHAPE, cancellation=1.0))
    found = METHODS["smt"](target, seed=0, evaluations=1)
    assert found.evaluations == 1
    assert found.score > 0
    with pytest.raises(UnsupportedError, match="bit-precise SMT on 64 tokens"):
        METHODS["smt"](Target(triton, Space(kv_len=64, context=SHAPE)), seed=0, evaluations=1)


def test_wall_time_ends_a_query() -> None:
    """The proof that two places are out of reach takes minutes: it must not outlive the limit."""
    triton = [load_side("walkthrough.triton@h200", {"segment": f"tiles({n})"}) for n in (3, 2)]
    target = Target(triton, Space(kv_len=3, context=SHAPE, cancellation=1.0))
    begin = time.monotonic()
    found = METHODS["smt"](target, seed=0, evaluations=10, wall=0.5)
    assert found.cut
    assert time.monotonic() - begin < 10
