"""Exact answers: by hand, against balls of the whole sum, and where the constraint is met with equality."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact.dyadic import INF, NAN, NEG_INF, NEG_ZERO, ZERO, Number, from_float
from search.exact.enclosure import Answer, Attention
from search.exact.text import outward
from specs.errors import InputError
from verify.exact import exact_attention


def numbers(xs: list[float]) -> list[Number]:
    return [from_float(x) for x in xs]


def solve(scores: list[float], values: list[float], c: Fraction = Fraction(1, 2)) -> Answer:
    return Attention(numbers(scores)).column(numbers(values), c)


score = st.one_of(st.floats(-20, 20, width=32), st.just(-math.inf), st.sampled_from([0.0, -0.0, 1.0, 2.0]))
value = st.one_of(st.floats(-8, 8, width=16), st.sampled_from([0.0, -0.0, 1.0, -1.0]))


@given(st.lists(st.tuples(score, value), min_size=1, max_size=12))
def test_the_answer_is_that_of_the_whole_sum(tokens: list[tuple[float, float]]) -> None:
    s, v = np.array([t[0] for t in tokens]), np.array([t[1] for t in tokens])
    want = exact_attention(s, np.stack([v, np.abs(v)], axis=1))
    got = solve(s.tolist(), v.tolist())
    for found, ball in zip((got.exact, got.magnitude), want.balls, strict=True):
        low, high = (float(x) for x in found.bounds)
        assert low <= high
        assert float(ball.mid()) == pytest.approx((low + high) / 2, rel=1e-15, abs=1e-25)
    seen = [abs(x) for x, a in zip(v.tolist(), s.tolist(), strict=True) if a > -math.inf]
    if any(seen):
        assert got.over_magnitude is not None
        assert got.over_largest is not None
        assert float(got.over_largest) == pytest.approx(
            abs(float(got.exact)) / max(seen), rel=1e-12, abs=1e-25
        )
        assert float(got.over_magnitude) == pytest.approx(
            abs(float(got.exact)) / float(got.magnitude), rel=1e-12, abs=1e-25
        )
    else:
        assert got.over_magnitude is got.over_largest is None


def test_by_hand() -> None:
    got = solve([0.0, 0.0], [3.0, -1.0])
    assert got.exact.bounds == (1, 1)
    assert got.magnitude.bounds == (2, 2)
    got = solve([0.0, 1.0, -math.inf], [1.0, 0.0, 5.0])
    assert abs(float(got.exact) - 1 / (1 + math.e)) < 1e-16
    assert got.over_magnitude is not None
    assert got.over_magnitude.bounds == (1, 1)
    low, high = got.exact.bounds
    assert 0 < high - low < Fraction(1, 10**24)


@pytest.mark.parametrize(
    ("scores", "values", "c", "status"),
    [
        ([0.0, 0.0], [3.0, -1.0], Fraction(1, 2), "holds"),  # exactly one half
        ([0.0, 0.0], [3.0, -1.0], Fraction(1, 2) + Fraction(1, 10**30), "violated"),
        ([0.0, -0.0], [3.0, -1.0], Fraction(1, 2), "holds"),
        ([2.0, 2.0, -5.0, -5.0], [-3.0, 1.0, -6.0, 2.0], Fraction(1, 2), "holds"),  # in each class of scores
        ([1.5, -7.25, 0.125], [1.0, 2.0, 0.0], Fraction(1), "holds"),  # nothing cancels
        ([1.5, -18.0], [1.0, -(2.0**-100)], Fraction(1), "violated"),  # nothing to speak of
        ([1.5, 0.0], [1.0, -1.0], Fraction(1, 2), "holds"),  # tanh(0.75) = 0.635
        ([1.0, 0.0], [-1.0, 1.0], Fraction(1, 2), "violated"),  # tanh(0.5) = 0.462
        ([1.0, 1.0], [1.0, -1.0], Fraction(1, 10), "violated"),
        ([1.0, 1.0], [1.0, -1.0], Fraction(0), "holds"),
        ([1.0, 1.0], [0.0, 0.0], Fraction(1, 2), "holds"),
        ([-math.inf, -math.inf], [1.0, -1.0], Fraction(1, 2), "holds"),
    ],
)
def test_the_constraint(scores: list[float], values: list[float], c: Fraction, status: str) -> None:
    assert solve(scores, values, c).status == status


def test_a_constraint_that_is_met_by_a_hair_is_decided() -> None:
    # The ratio of w - 1 and w + 1 with w = e is tanh(1/2). A c that agrees with it in 50 digits needs more bits.
    digits = "0.46211715726000975850231848364367254873028928033011"
    low, high = Fraction(digits), Fraction(digits) + Fraction(1, 10**50)
    assert solve([1.0, 0.0], [1.0, -1.0], low).status == "holds"
    assert solve([1.0, 0.0], [1.0, -1.0], high).status == "violated"


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_has_no_answer_is_refused(bad: Number) -> None:
    with pytest.raises(InputError, match="NaN or"):
        Attention([ZERO, bad])
    with pytest.raises(InputError, match="not finite"):
        Attention([ZERO, NEG_INF]).column([bad, NEG_ZERO], Fraction(1))


@given(st.fractions(), st.fractions(0, 1))
def test_intervals_are_rounded_outward(x: Fraction, width: Fraction) -> None:
    low, high = outward(x, x + width).bounds
    assert low <= x <= x + width <= high
    if x:
        assert abs(x - low) <= abs(x) / 10**23
