"""Bounds as proofs: the figures of an independent linear program, and errors that an enclosure certifies."""

from fractions import Fraction

import numpy as np
import pytest

from search.prove.bounds import certify_input, prove_bound
from search.sides import load_side
from specs.errors import InputError

CONTEXT = {"kv_len": 27525, "q_heads": 24, "kv_heads": 4, "head_dim": 256}
FA2 = "walkthrough.flash_attention_2"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (f"{FA2}@h200", f"{FA2}@b200", (1.985, 3.955, 19.18)),
        ("walkthrough.xqa@h200", "walkthrough.triton@h200", (3.94, 6.84, 28.6)),
    ],
)
def test_at_20_roundings_as_solved_before(a, b, expected):
    """To first order with the first side above: the figures were found with another program."""
    for c, value in zip((1, Fraction(1, 2), Fraction(1, 10)), expected, strict=True):
        found = prove_bound(load_side(a), load_side(b), CONTEXT, Fraction(c), roundings=20)
        assert found.details["a_above"] == pytest.approx(value, rel=0.003)
        assert found.status == "proved"
        assert "with 20 f32 roundings" in found.claim


def test_its_own_count_is_larger_and_an_exact_answer_is_nearer():
    sides = load_side(f"{FA2}@h200"), load_side(f"{FA2}@b200")
    shape = {**CONTEXT, "kv_len": 4300}
    pair = prove_bound(*sides, shape, Fraction(1))
    assert 1.985 < pair.details["real_ulp"] < 2.1
    assert pair.status == "proved"
    assert pair.details["n"][0] > 200
    alone = prove_bound(sides[0], None, shape, Fraction(1))
    # One rounding to bf16 of weights is half of two.
    assert 0.98 < alone.details["real_ulp"] < 1.05
    assert "as stored" in alone.claim


def test_an_fp8_weight_that_is_lost_has_no_bound_and_the_line_is_named():
    found = prove_bound(load_side("xqa.decode_fp8_sm90@h200"), None, {**CONTEXT, "kv_len": 128}, Fraction(1))
    assert found.status == "not decided"
    assert "line 'x': a rounding to e4m3fn.sat" in found.reason
    with pytest.raises(InputError, match="score-box"):
        prove_bound(load_side(f"{FA2}@h200"), None, CONTEXT, Fraction(1), score_box=30.0)


def test_random_inputs_stay_below_the_bound():
    found = prove_bound(load_side("walkthrough.triton@h200"), None, {**CONTEXT, "kv_len": 64}, Fraction(1))
    assert found.rechecked.startswith("12 random inputs by the scalar oracle")


def test_one_input_is_certified(tmp_path):
    """Weights 1/4 and 3/4 of values 1 and 2: 7/4, which bf16 holds; and a column that it does not."""
    scores = np.array([0.0, np.log(3.0)], np.float32)
    np.savez(tmp_path / "in.npz", scores=scores, values=np.array([[1.0, 1.0], [2.0, 1.0078125]], np.float32))
    (found,) = certify_input([load_side("walkthrough.dense@h200")], tmp_path / "in.npz", {})
    assert found.status == "proved"
    assert found.details["errors"][0] < 1e6
    (narrow,) = certify_input([load_side("walkthrough.triton@h200")], tmp_path / "in.npz", {})
    assert 0.2 < narrow.details["errors"][1] < 0.3  # 1 + 3/4 * 2^-7 is rounded up by a quarter of 2^-7
    assert narrow.details["radius"] < 1e-15
