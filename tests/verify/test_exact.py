"""Exact answers against closed forms, high-precision decimals and Fractions."""

from __future__ import annotations

import math
import time
from decimal import Decimal, localcontext
from fractions import Fraction

import flint
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specs.errors import InputError
from specs.formats import BASES, Format
from verify.exact import Enclosure, error_in_ulps, exact_attention, exact_lse
from verify.numerics.rounding import round_fraction

BF16, F32, F64 = BASES["bf16"], BASES["f32"], BASES["f64"]


def point(x: Fraction | float) -> Enclosure:
    with flint.ctx.workprec(256):
        x = Fraction(x)
        return Enclosure(np.array(flint.arb(flint.fmpq(x.numerator, x.denominator)), dtype=object))


def test_a_mean_by_hand() -> None:
    # exp(0) : exp(-inf) : exp(0) over 1, 100, 4
    got = exact_attention([[0.0, -np.inf, 0.0]], [[1.0, 2.0], [100.0, 3.0], [4.0, -2.0]])
    assert got.shape == (1, 2)
    assert got.midpoint.tolist() == [[2.5, 0.0]]
    assert (got.radius < 1e-36).all()
    assert exact_lse([[0.0, -np.inf, 0.0]]).midpoint.tolist() == [math.log(2.0)]


@given(
    st.lists(st.tuples(st.floats(-700, 700), st.floats(-100, 100)), min_size=1, max_size=6),
)
def test_against_decimals_of_sixty_digits(pairs: list[tuple[float, float]]) -> None:
    with localcontext() as context:
        context.prec = 60
        top = max(Decimal(s) for s, _ in pairs)
        weights = [(Decimal(s) - top).exp() for s, _ in pairs]
        total = sum(weights)
        mean = sum(w * Decimal(v) for w, (_, v) in zip(weights, pairs, strict=True)) / total
        lse = top + total.ln()
        scores, values = np.array([s for s, _ in pairs]), np.array([[v] for _, v in pairs])
        for got, want in ((exact_attention(scores, values), mean), (exact_lse(scores), lse)):
            distance = abs(Decimal(got.midpoint.item()) - want)
            assert distance <= Decimal(got.radius.item()) + Decimal("1e-40") * (1 + abs(want))
            assert got.radius.item() <= 1e-30 + 2.0**-52 * abs(got.midpoint.item())


def test_scores_are_subtracted_exactly() -> None:
    # In float64 1e17 + 1 - 1 is 1e17: the exact difference of the two scores is 16.
    got = exact_lse([1e17, 1e17 + 16.0])
    ball = got.balls.item()
    with flint.ctx.workprec(256):
        assert (
            abs(
                float((ball - flint.arb(1e17) - flint.arb(16) - flint.arb(math.log1p(math.exp(-16.0)))).mid())
            )
            < 1e-15
        )


def test_a_row_that_sees_nothing_is_zero() -> None:
    got = exact_attention([[-np.inf, -np.inf], [0.0, -np.inf]], np.ones((2, 3)))
    assert got.midpoint.tolist() == [[0.0] * 3, [1.0] * 3]
    assert (got.radius < 1e-30).all()
    assert got.radius[0].tolist() == [0.0] * 3
    assert exact_attention(np.zeros((2, 0)), np.zeros((0, 2))).midpoint.tolist() == [[0.0, 0.0]] * 2
    assert exact_lse(np.zeros((2, 0))).midpoint.tolist() == [-math.inf] * 2
    assert exact_attention(np.zeros((2, 3)), np.zeros((3, 0))).shape == (2, 0)


def test_the_teaching_input_is_quick() -> None:
    t = np.arange(27_525)
    s = [0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5]
    v = [1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5]
    scores, values = np.array(s)[t % 12] + ((t // 64) % 9) / 8, np.array(v)[t % 12]
    began = time.process_time()
    got = exact_attention(scores, np.stack([values, -values, values * 2, values * 0], axis=1))
    assert time.process_time() - began < 2.0
    assert np.abs(got.midpoint - np.array([1, -1, 2, 0]) * 1.325056137248).max() < 2e-12
    # The published answer in bf16 is 1.3203125 or 1.328125: the exact one lies 0.607 and 0.393 steps away.
    steps = error_in_ulps(np.array([1.3203125, -1.328125], dtype=ml_dtypes.bfloat16), got[:2], BF16)
    assert steps.round(3).tolist() == [0.607, 0.393]


@pytest.mark.parametrize(
    ("value", "exact", "fmt", "want"),
    [
        (1.0, Fraction(1), F32, 0.0),
        (1.0 + 2.0**-23, Fraction(1), F32, 1.0),
        (1.0 - 2.0**-24, Fraction(1), F32, 0.5),
        (1.0, Fraction(1) + Fraction(1, 2**8), BF16, 0.5),
        (2.0, Fraction(2) - Fraction(1, 2**30), BF16, 2.0**-23),
        (0.0, Fraction(1, 2**150), F32, 0.5),
        (2.0**-149, Fraction(0), F32, 1.0),
        (-1.0, Fraction(1), F64, 2.0**53),
        (math.inf, Fraction(1), F32, math.inf),
    ],
)
def test_errors_in_ulps(value: float, exact: Fraction, fmt: Format, want: float) -> None:
    got = error_in_ulps(value, point(exact), fmt).item()
    assert got == want or want < got <= want * (1 + 1e-12)


def test_errors_of_what_is_no_number() -> None:
    assert np.isnan(error_in_ulps(np.nan, point(1.0), F32))
    infinite = exact_lse(np.zeros((1, 0)))
    assert error_in_ulps([-np.inf], infinite, F32).tolist() == [0.0]
    assert np.isnan(error_in_ulps([1.0], infinite, F32)).all()


@given(st.fractions(-(2**40), 2**40), st.sampled_from([BF16, F32, F64, BASES["f16"], BASES["e5m2"]]))
@example(Fraction(1, 3), F64)
def test_a_rounded_value_is_at_most_half_an_ulp_away(x: Fraction, fmt: Format) -> None:
    value = round_fraction(x, fmt)
    if math.isfinite(value):
        assert error_in_ulps(value, point(x), fmt).item() <= 0.5 * (1 + 1e-15)


def test_mistakes() -> None:
    for scores, values, message in (
        ([0.0, 1.0], [[1.0]], "values of shape"),
        ([0.0, np.nan], [[1.0], [1.0]], r"NaN or \+inf"),
        ([0.0, np.inf], [[1.0], [1.0]], r"NaN or \+inf"),
        ([0.0], [[np.inf]], "not finite"),
        (0.0, [[1.0]], "no token axis"),
    ):
        with pytest.raises(InputError, match=message):
            exact_attention(scores, values)
    with pytest.raises(InputError, match="shape"):
        error_in_ulps([1.0, 2.0], point(1.0), F32)
    with pytest.raises(InputError, match="real"):
        error_in_ulps(1.0, point(1.0), BASES["real"])
