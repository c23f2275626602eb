"""Objectives and constraints, against exact rationals and hand-made logits."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.evaluate import Outputs, continuous_index
from search.objective import Objective, cancellation, integer_distances, violation
from search.space import Inputs, Space
from specs.errors import InputError
from specs.formats import parse_format
from verify.numerics.ulp import continuous_index as scalar_index

BF16 = parse_format("bf16")


def side(*values: float) -> Outputs:
    """One candidate with a column for each value."""
    before = np.array([values], dtype=np.float64)
    return Outputs(before, before.astype(np.float32).astype(ml_dtypes.bfloat16), BF16)


@given(
    st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=20),
    st.sampled_from(["bf16", "f16", "f32"]),
)
def test_the_index_of_an_array_is_that_of_each_element(values: list[float], fmt: str) -> None:
    found = continuous_index(np.array(values), parse_format(fmt))
    assert found.tolist() == [scalar_index(x, parse_format(fmt)) for x in values]


def test_places_by_hand() -> None:
    # 2 and the number half a place below it; one place below 2 is 2 - 2**-7.
    assert Objective().score([side(2.0), side(2.0 - 2.0**-8)])[0] == 0.5
    assert Objective().score([side(1.0, 2.0), side(1.0, 2.0 + 2.0**-6)])[0] == 1.0  # the best column
    assert Objective("f32").score([side(1.0), side(1.0 + 2.0**-20)])[0] == 8.0
    assert integer_distances([side(2.0), side(2.0 - 2.0**-6)])[0, 1].tolist() == [2]
    assert Objective().score([side(math.inf), side(1.0)])[0] == -math.inf


def test_three_sides() -> None:
    sides = [side(1.0), side(1.0 + 2.0**-7), side(1.0 + 5 * 2.0**-7)]
    assert Objective().gaps(sides)[:, 0].tolist() == [1.0, 5.0, 4.0]
    assert Objective().score(sides)[0] == 1.0  # the two nearest
    assert (
        Objective(single=2).score(sides)[0] == 4.0 - 1.0
    )  # the nearest other, less how far the others are apart


def test_tokens_flip() -> None:
    w = np.array([[1.0, 0.0], [0.0, 1.0]])
    first, second = side(1.0, 0.5), side(0.75, 1.0)
    # Token 0 is first on one side; on the other, token 1 is ahead of it by 0.25.
    assert Objective("flips", w).score([first, second])[0] == 0.25
    assert Objective("flips", w).score([first, first])[0] == -0.5
    p = np.exp([1.0, 0.5]) / np.exp([1.0, 0.5]).sum()
    q = np.exp([0.75, 1.0]) / np.exp([0.75, 1.0]).sum()
    assert Objective("kl", w).score([first, second])[0] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-12)
    with pytest.raises(InputError, match="needs a projection"):
        Objective("flips")
    with pytest.raises(InputError, match="has no use for a projection"):
        Objective("ulp", w)


values = st.integers(-255, 255).map(lambda n: n / 32)


@given(
    st.lists(st.tuples(st.integers(-8, 8), values), min_size=1, max_size=8), st.sampled_from([0.1, 0.5, 1.0])
)
def test_the_constraint_against_rationals(tokens: list[tuple[int, float]], c: float) -> None:
    """Scores are multiples of log 2, so that weights are powers of two and the answer is rational."""
    scores = [n * math.log(2) for n, _ in tokens]
    weights = [Fraction(2) ** n for n, _ in tokens]
    exact = abs(sum((w * Fraction(v) for w, (_, v) in zip(weights, tokens, strict=True)), Fraction(0)))
    mass = sum((w * abs(Fraction(v)) for w, (_, v) in zip(weights, tokens, strict=True)), Fraction(0))
    inputs = Inputs.one(scores, [v for _, v in tokens])
    found = violation(inputs, Space(kv_len=len(tokens), cancellation=c))[0]
    if mass == 0 or exact < Fraction(repr(c)) * mass * Fraction(999999, 1000000):
        assert found > 0
    elif exact > Fraction(repr(c)) * mass * Fraction(1000001, 1000000) or c == 1.0:
        assert found == 0
    out, magnitude = cancellation(inputs)
    total = sum(weights, Fraction(0))
    assert out[0, 0] == pytest.approx(float(exact / total), rel=1e-5, abs=1e-6)
    assert magnitude[0, 0] == pytest.approx(float(mass / total), rel=1e-5)


def test_boxes_and_masks() -> None:
    space = Space(kv_len=2)
    assert violation(Inputs.one([21.0, 0.0], [1.0, 1.0]), space)[0] == 1.0
    assert violation(Inputs.one([0.0, 0.0], [1.0, 9.0]), space)[0] == 1.0
    assert violation(Inputs.one([0.0, -np.inf], [1.0, 1.0]), space)[0] > 0
    assert violation(Inputs.one([0.0, -np.inf], [1.0, 1.0]), Space(kv_len=2, masks=True))[0] == 0


def test_fixed_tokens_and_edits_are_limits_too() -> None:
    base = Inputs.one([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    space = Space(kv_len=3, base=base, edits=1, fixed=frozenset({0}))
    assert violation(base, space)[0] == 0
    assert violation(Inputs.one([0.0, 1.5, 2.0], [1.0, 1.0, 1.0]), space)[0] == 0
    assert violation(Inputs.one([0.0, 1.5, 2.0], [1.0, 1.0, 2.0]), space)[0] == 1
    assert violation(Inputs.one([0.5, 1.0, 2.0], [1.0, 1.0, 1.0]), space)[0] > 0
