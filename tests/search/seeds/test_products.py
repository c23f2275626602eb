"""q and K that hold a score, and numbers in them that cancel: exact in rationals, different on tensor cores."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.evaluate import realised
from search.run import Budget, search
from search.seeds.products import _negative, products
from search.sides import load_side
from search.space import Space
from search.target import Target
from specs import load_platform
from specs.dot_products import find
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES
from verify.numerics.tensor_core import chained

BF16 = {"q": BASES["bf16"], "k": BASES["bf16"]}
SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 64}
FA2 = "flash_attn2.splitkv_decode"


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8),
    st.sampled_from([64, 256]),
    st.sampled_from([None, 3, 12]),
)
def test_a_score_is_held_exactly(scores: list[float], depth: int, carry: int | None) -> None:
    """Where ``depth ** -0.5`` is a power of two, in exact rationals; smaller numbers than bf16 has are none of scores."""
    wanted = [s if abs(s) > 2.0**-80 else 0.0 for s in scores]
    q, k = realised(np.array([wanted], dtype=np.float32), depth, BF16, carry)
    assert q.shape == (depth,)
    assert k.shape == (1, len(wanted), depth)
    for row, score in zip(k[0], wanted, strict=True):
        dot = sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(q, row, strict=True)), Fraction(0))
        assert dot * Fraction(float(depth) ** -0.5) == Fraction(score)


def test_a_head_must_have_room() -> None:
    with pytest.raises(UnsupportedError, match="takes 4 numbers of bf16, a head has 2"):
        realised(np.zeros((1, 1), np.float32), 2, BF16)
    with pytest.raises(InputError, match="carry = 5 in a space of scores"):
        Space(kv_len=4, carry=5)


def test_tensor_cores_lose_different_bits() -> None:
    """The model of each architecture, in integers: the same exact score, two results."""
    a100, h200 = (
        find(load_platform(p).dot_products, "mma", BASES["bf16"], BASES["bf16"], BASES["f32"], 16)
        for p in ("a100", "h200")
    )
    score = np.float32(
        2.5 + 2.0**-15
    )  # 8 times this has a bit of 2**-12, which 2**12 leaves no room for on A100

    def dot(of: object, carry: int | None) -> float:
        q, k = realised(np.array([[score]]), 64, BF16, carry)
        rows = [x.astype(np.float64).tolist() for x in (q, k[0, 0])]
        acc = 0.0
        for i in range(0, 64, 16):
            acc = chained(of, 16, rows[0][i : i + 16], rows[1][i : i + 16], acc, BASES["bf16"], BASES["bf16"])
        return acc

    assert dot(a100, None) == dot(h200, None) == float(score) * 8
    assert dot(a100, 12) != dot(h200, 12)


@pytest.mark.parametrize("c", [0.999, 0.9, 0.5, 0.1, 0.01])
def test_masses_stand_in_the_ratio_that_c_allows(c: float) -> None:
    """A token of positive mass, and tokens of negative mass that are half as heavy."""
    count, part = _negative(c)
    minus = count * part / 2
    assert c <= (1 - minus) / (1 + minus) < c + 1e-3
    assert _negative(1.0)[0] == 0


def test_ready_scores_have_no_products() -> None:
    sides = [load_side("walkthrough.triton@h200"), load_side("walkthrough.xqa@h200")]
    assert products(Target(sides, Space(kv_len=8, context=SHAPE))) == []


@pytest.mark.parametrize(("tokens", "c", "least"), [(2, 1.0, 1.9), (3, 1.0, 1.98), (4, 0.5, 3.6)])
def test_two_gpus_that_differ_in_tensor_cores_alone(tokens: int, c: float, least: float) -> None:
    """FlashAttention-2 groups a few tokens alike on both; what is left is how they multiply."""
    sides = [load_side(f"{FA2}@a100"), load_side(f"{FA2}@h200")]
    plans = [s.plan({"kv_len": tokens, **SHAPE}) for s in sides]
    assert np.array_equal(plans[0].tokens, plans[1].tokens)
    space = Space(kv_len=tokens, kind="qkv", context=SHAPE, cancellation=c)
    outcome = search(sides, space, budget=Budget(evaluations=1500))
    best = outcome.best
    assert best is not None
    assert outcome.bound is None
    assert "cancel move a score" in outcome.no_bound
    assert best.score > least
    assert best.least_integer == round(2 / c)
