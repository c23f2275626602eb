"""Margins: distances by hand, and which roundings an exponential can move."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.exact.arithmetic import ExactArithmetic
from search.exact.dyadic import Number, exponent, rounder, to_bits
from search.exact.inputs import row_of
from search.exact.margins import Margins, margins
from search.exact.operations import add
from search.exact.replay import replay
from search.sides import Side, load_side
from specs import load_platform, parse_spec
from specs.formats import BASES, Format
from tests.verify.small import HEADER

TOKENS = """
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[row]
"""


def measured(side: Side, scores: list[float], values: list[float], **context: Any) -> Margins:
    row = row_of(context, scores=scores, values=values)
    return margins(replay(side, {**context, "kv_len": len(scores)}, row, ExactArithmetic()), row)


def own(rows: str) -> Side:
    return Side(parse_spec(HEADER + TOKENS + rows), load_platform("h200"))


def test_the_distance_of_one_weight_by_hand() -> None:
    # exp(-1) = 0.36787944... in f32 is 12344114 * 2**-25; bf16 has 8 of these 24 bits: 48219 * 256 + 50.
    m = int(float(np.float32(np.exp(-1.0))) * 2**25)
    rest = m % 2**16
    got = measured(load_side("walkthrough.triton@h200"), [0.0, -1.0], [0.0, 1.0])
    (place,) = got.places
    assert (place.site, place.format, place.of_exp, place.count) == ("value", "bf16", True, 1)
    assert place.distance is not None
    assert Fraction(place.distance) == abs(rest - 2**15)
    assert place.token == 1
    assert place.value is not None
    assert Fraction(place.value) == Fraction(m, 2**25)
    assert got.survives == abs(rest - 2**15) - 1


def test_one_has_a_nearer_midpoint_below() -> None:
    # 1 - 2**-9 rounds either way: a quarter of the step of [1, 2), which is 2**16 ulps of f32.
    got = measured(load_side("walkthrough.triton@h200"), [0.5], [1.0])
    assert got.places[0].distance == f"{2**14}/1"
    assert got.survives == 2**14 - 1


@pytest.mark.parametrize("power", [-30, -8, -1, 0, 1, 8, 30])
def test_a_value_on_a_midpoint_is_no_distance_away_whatever_its_size(power: int) -> None:
    # 129.5 lies between 129 and 130, neighbours of bf16; a narrow running sum meets such ties all the time.
    side = own('num = "bf16(sum(exp(score) * v, seq()))"\noutput = "bf16(num / 2)"\n')
    got = measured(side, [0.0, 0.0], [128.0 * 2.0**power, 1.5 * 2.0**power])
    assert [(m.site, m.distance, m.at_risk) for m in got.places] == [("num", "0/1", 1)]


def test_a_tie_survives_nothing() -> None:
    # The f32 score of which exp is nearest to the midpoint 129.5 / 256: found by stepping through f32.
    target = 129.5 / 256
    s = np.float32(np.log(target))
    near = [np.nextafter(s, np.float32(k), dtype=np.float32) for k in (-1, 0)] + [s]
    scores = [0.0] + [float(x) for x in near]
    got = measured(load_side("walkthrough.triton@h200"), scores, [0.0, 1.0, 1.0, 1.0])
    want = min(abs(int(float(np.float32(np.exp(np.float64(x)))) * 2**25) - int(target * 2**25)) for x in near)
    assert Fraction(got.places[0].distance or "-1") == Fraction(want, 2)
    assert got.places[0].at_risk >= 1
    assert isinstance(got.survives, int)
    assert got.survives <= 2


def test_weights_that_meet_nothing_do_not_count_unless_the_normaliser_takes_them() -> None:
    scores, values = [0.0, -1.0, -2.0], [1.0, 0.0, 0.0]
    triton = measured(load_side("walkthrough.triton@h200"), scores, values)
    assert [p.count for p in triton.places] == [1]
    xqa = measured(load_side("walkthrough.xqa@h200"), scores, values)
    assert [(p.site, p.of_exp, p.shielded, p.count) for p in xqa.places] == [
        ("weight", True, False, 3),
        ("partial", False, True, 1),
    ]
    assert isinstance(xqa.survives, int)


def test_masked_tokens_have_no_weight_to_round() -> None:
    got = measured(load_side("walkthrough.xqa@h200"), [0.0, -np.inf, -1.0], [1.0, 1.0, 1.0])
    assert got.places[0].count == 2


def test_a_spec_without_narrow_roundings_survives_any_exponential() -> None:
    assert measured(load_side("walkthrough.dense@h200"), [0.0, 1.0], [1.0, 2.0]).survives == "any"


@pytest.mark.parametrize(
    ("rows", "survives"),
    [
        # A sum of unrounded exponentials is rounded: nothing follows from the distance of one of them.
        ('a = "exp(score)"\nn = "bf16(sum(a, seq()))"\noutput = "sum(a * v, seq()) / n"', "unknown"),
        # The argument of the second exponential moves with the first.
        ('a = "exp(score)"\nb = "bf16(exp(a))"\noutput = "sum(b * v, seq())"', "unknown"),
        # Each addition rounds to bf16, inside the sum.
        ('a = "exp(score)"\noutput = "f32(bf16.sum(a * v, seq()))"', "unknown"),
        ('a = "bf16.exp(score)"\noutput = "sum(a * v, seq())"', None),
        ('a = "bf16.mul(bf16(exp(score)), 0.75)"\noutput = "sum(a * v, seq())"', None),
    ],
)
def test_what_an_exponential_moves(rows: str, survives: str | None) -> None:
    got = measured(own(rows), [0.25, -1.0], [1.0, 2.0])
    if survives is None:
        assert isinstance(got.survives, int)
        assert got.places
    else:
        assert got.survives == survives


def test_margins_of_an_operation_that_names_its_format() -> None:
    # 1.0078125 * 1.0078125 = 1 + 2 * 2**-7 + 2**-14, exactly; bf16 keeps 2**-7, so the midpoint is 2**-8 - 2**-14 away.
    side = own('a = "bf16.mul(v, v)"\nw = "bf16(exp(score))"\noutput = "sum(w * a, seq())"')
    got = measured(side, [0.0], [1.0078125])
    (place,) = [p for p in got.places if p.site == "a"]
    assert place.shielded
    assert Fraction(place.distance or "0") == (Fraction(1, 2**8) - Fraction(1, 2**14)) * 2**23


class OtherExp(ExactArithmetic):
    """An exponential that is off by up to ``ulps`` units of f32, more for some arguments than for others."""

    def __init__(self, ulps: int, seed: int | None) -> None:
        super().__init__()
        self.ulps, self.seed = ulps, seed

    def operation(self, op: str, operands: Any, fmt: Format) -> Any:
        """As of the base class, but for exp."""
        right = super().operation(op, operands, fmt)
        if op != "exp":
            return right

        def off(x: Number) -> Number:
            y = right(x)
            if not y[0]:
                return y
            draw = (
                self.ulps
                if self.seed is None
                else random.Random(f"{self.seed} {x}").randint(-self.ulps, self.ulps)
            )
            return rounder(fmt)(add(y, (draw, exponent(y) - 23)))

        return off


XQA = load_side("walkthrough.xqa@h200")


def weights(scores: list[float], arithmetic: ExactArithmetic) -> list[int]:
    row = row_of({}, scores=scores, values=[1.0] * len(scores))
    found = replay(XQA, {"kv_len": len(scores)}, row, arithmetic)
    read = found.walker.value
    return [to_bits(read("weight", {"group": 0, "token": t}), BASES["bf16"]) for t in range(len(scores))]


@settings(max_examples=20)
@given(st.lists(st.floats(-16, 0, width=32), min_size=1, max_size=12), st.integers(0, 9))
def test_another_exponential_within_the_margin_changes_no_weight(scores: list[float], seed: int) -> None:
    got = measured(XQA, scores, [1.0] * len(scores))
    n = got.survives
    assert isinstance(n, int)
    right = weights(scores, ExactArithmetic())
    assert weights(scores, OtherExp(n, seed)) == right
    assert weights(scores, OtherExp(-n, None)) == right
    # Two units more go past the midpoint, on one of its sides.
    assert any(weights(scores, OtherExp(sign * (n + 2), None)) != right for sign in (1, -1))
