"""Upper bounds against measured anchors, and against distances that were found."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from search.bound import bound_of, same_logits, terms_of, upper_bound
from search.evaluate import Evaluator
from search.sides import Side, load_side
from search.space import Inputs, Space
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES

CONTEXT = {"kv_len": 27525, "head_dim": 128, "q_heads": 32, "kv_heads": 4}
LIMITS = (Fraction(1), Fraction(1, 2), Fraction(1, 10))
CELLS = {
    "fa2": "walkthrough.flash_attention_2@h200",
    "triton": "walkthrough.triton@h200",
    "xqa": "walkthrough.xqa@h200",
    "trt": "walkthrough.trtllm_gen@b200",
}


@pytest.mark.parametrize(
    ("a", "b", "n", "expected"),
    [
        ("fa2", "triton", 20, (1.985, 3.955, 19.18)),
        ("fa2", "triton", 600, (2.003, 3.990, 19.35)),
        ("xqa", "fa2", 20, (3.94, 6.84, 28.6)),
        ("xqa", "triton", 20, (3.94, 6.84, 28.6)),
    ],
)
def test_anchors_with_the_first_side_above(a: str, b: str, n: int, expected: tuple[float, ...]) -> None:
    """Solved before with another program, to first order, with the output of the first side the larger one."""
    terms = [terms_of(load_side(CELLS[name]), CONTEXT, roundings=n) for name in (a, b)]
    for c, value in zip(LIMITS, expected, strict=True):
        found = bound_of(terms[0], terms[1], cancellation=c, fmt=BASES["bf16"])
        assert found.a_above == pytest.approx(value, rel=0.003)
        assert found.first_order == max(found.a_above, found.b_above)
        assert found.rigor == "rigorous"
        assert found.real == pytest.approx(found.first_order, rel=0.005)
        assert found.integer == math.floor(found.real) + 1


def test_xqa_against_itself_on_another_gpu() -> None:
    sides = load_side(CELLS["xqa"]), load_side("walkthrough.xqa@b200")
    for c, value in zip(LIMITS, (5.91, 9.77, 38.7), strict=True):
        found = upper_bound(*sides, context=CONTEXT, cancellation=c, roundings=20)
        assert found.first_order == pytest.approx(value, rel=0.002)


def test_one_rounding_each_by_hand() -> None:
    """c = 1: factors 1 + r and 1 - r on one mass; the higher output ends just below 2, where places are densest."""
    r = Fraction(1, 257)
    terms = [terms_of(load_side(CELLS[name]), CONTEXT, roundings=0) for name in ("fa2", "triton")]
    found = bound_of(terms[0], terms[1], cancellation=Fraction(1), fmt=BASES["bf16"])
    assert found.real == pytest.approx(float(128 * 2 * 2 * r / (1 + r)), rel=1e-12)


def test_the_same_program_on_the_same_partition_is_0() -> None:
    side = load_side(CELLS["fa2"])
    found = upper_bound(side, side, context=CONTEXT, cancellation=Fraction(1, 2))
    assert (found.real, found.integer, found.rigor) == (0.0, 0, "rigorous")
    other = load_side("walkthrough.flash_attention_2@b200")
    assert upper_bound(side, other, context=CONTEXT, cancellation=Fraction(1, 2)).real > 3.9
    # With one KV head both GPUs make the same splits, and nothing else that the lines ask of a GPU differs.
    single = {"kv_len": 27525, "head_dim": 128}
    assert upper_bound(side, other, context=single, cancellation=Fraction(1, 2)).real == 0.0
    real = [load_side(f"flash_attn2.prefill@{gpu}") for gpu in ("a100", "h200")]
    short = {"kv_len": 64, "head_dim": 128}
    assert real[0].plan(short).tokens.shape == real[1].plan(short).tokens.shape
    assert upper_bound(*real, context=short, cancellation=Fraction(1, 2)).real > 3.9  # another tensor core


def test_a_running_numerator_in_bf16_is_what_reaches_116() -> None:
    """At 27,525 tokens, c = 1: 115.8 is out of reach for the spec of the library, not for one that rounds each step."""
    other = load_side(CELLS["fa2"])
    library = upper_bound(load_side(CELLS["trt"]), other, context=CONTEXT, cancellation=Fraction(1))
    assert 2.97 < library.real < 3.05
    assert library.integer == 4
    changed = load_side(CELLS["trt"], {"num": "bf16(prev(num) * a + partial * b)"})
    user = upper_bound(changed, other, context=CONTEXT, cancellation=Fraction(1))
    assert user.rigor == "rigorous"
    assert 116 < user.real < 170


def test_roundings_are_counted_from_the_plan() -> None:
    """512 tokens and 54 splits, twice each, and logits of up to 51 in all and 31 each."""
    terms = terms_of(load_side(CELLS["fa2"]), CONTEXT)
    assert 2 * (512 + 54) - 4 <= terms.roundings <= 2 * (512 + 54) + 6 * 51
    few = terms_of(load_side(CELLS["fa2"], {"split": "tiles(20)", "block": "tiles(64)"}), {"kv_len": 64})
    assert few.roundings < terms.roundings - 500


def test_bounds_hold_for_what_evaluation_finds() -> None:
    cells = [
        load_side(CELLS["xqa"], {"group": "tiles(20)"}),
        load_side(CELLS["triton"], {"segment": "tiles(12)"}),
    ]
    space = Space(kv_len=64)
    rng = np.random.default_rng(3)
    inputs = Inputs(
        rng.uniform(-4, 4, (256, 64)).astype(np.float32),
        (rng.integers(128, 256, (256, 64, 1)) / 128).astype(np.float32),
    )
    a, b = (Evaluator(side, space).run(inputs).index for side in cells)
    reached = float(np.abs(a - b).max())
    bound = upper_bound(*cells, context={"kv_len": 64}, cancellation=Fraction(1))
    assert 0.2 < reached <= bound.real


def test_cancellation_that_leaves_the_sign_open_has_no_bound() -> None:
    sides = [load_side(CELLS["xqa"]), load_side("walkthrough.xqa@b200")]
    found = upper_bound(*sides, context=CONTEXT, cancellation=Fraction(1, 1000))
    assert found.real == math.inf
    assert found.integer is None


def test_what_cannot_be_bounded_is_refused() -> None:
    fa2 = load_side(CELLS["fa2"])
    with pytest.raises(InputError, match="stores f64"):
        upper_bound(fa2, load_side("walkthrough.dense@h200"), context=CONTEXT, cancellation=Fraction(1))
    with pytest.raises(InputError, match="without it there is no bound"):
        upper_bound(fa2, load_side(CELLS["xqa"]), context=CONTEXT, cancellation=Fraction(0))
    odd = load_side(CELLS["triton"], {"w": "sqrt(exp(top - most_safe))"})
    with pytest.raises(UnsupportedError, match="derivative of sqrt"):
        upper_bound(fa2, odd, context=CONTEXT, cancellation=Fraction(1))


@pytest.mark.parametrize("fmt", ["f16", "e4m3fn"])
def test_formats_that_lose_small_weights_have_no_bound(fmt: str) -> None:
    """Thousands of tokens whose weight f16 rounds to 0 are 14,238 ULP together."""
    side = load_side(CELLS["triton"], {"value": f"sum({fmt}(weight) * v, seq())"})
    found = upper_bound(side, load_side(CELLS["fa2"]), context=CONTEXT, cancellation=Fraction(1))
    assert found.rigor == "first order"
    assert fmt in found.reason
    assert found.real == math.inf
    assert found.integer is None


CHOICES = ("pos(token) >= 8", "key_index >= 64", "score < 5", "score - top < -4")


@pytest.mark.parametrize("condition", CHOICES)
def test_a_rounding_that_depends_on_position_or_data_leaves_an_estimate(condition: str) -> None:
    """Hand-made inputs are 0.65 to 0.97 ULP apart where the small instance saw no narrow rounding at all."""
    line = {"value": f"sum(select({condition}, bf16(weight), weight) * v, seq())"}
    plain = {"value": "sum(weight * v, seq())"}
    sides = [load_side(CELLS["triton"], line), load_side(CELLS["triton"], plain)]
    found = upper_bound(*sides, context=CONTEXT, cancellation=Fraction(1))
    assert found.rigor == "first order"
    assert "chooses by position or by data" in found.reason
    assert found.integer is None


LANES = """
schema = 1
name = "mine.lanes"
status = "walkthrough"
summary = "four lanes, each with a narrow sum of its own"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
tile = "tiles(64)"
lane = "view(4, (pos(token) // 2) % 4)"
[state.row]
m = "-inf"
den = "0"
num = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
top = "max(score)"
m = "max(prev(m), top)"
weight = "exp(score - m)"
a = "exp(prev(m) - m)"
den = "prev(den) * a + sum(weight, seq())"
part = "NARROW"
num = "prev(num) * a + sum(part, seq(), over=lane)"
[row]
output = "bf16(last(num) / last(den))"
"""


def test_sums_by_view_count_every_addition(tmp_path) -> None:
    """The narrow sum of a lane of 16 tokens: 3.5 ULP were made by hand where two tokens showed one rounding."""
    sides: list[Side] = []
    for name, text in (("narrow", "bf16.sum"), ("wide", "sum")):
        file = tmp_path / f"{name}.toml"
        file.write_text(LANES.replace("NARROW", f"{text}(weight * v, seq(), by=lane)"))
        sides.append(load_side(f"{file}@h200"))
    context = {"kv_len": 128, "q_heads": 1, "kv_heads": 1, "head_dim": 16}
    found = upper_bound(*sides, context=context, cancellation=Fraction(1))
    assert found.real > 15.0  # 15 additions of a tile in each lane, and one more tile


def test_logits_of_other_dot_products_have_no_bound() -> None:
    """q and k whose products cancel: 44 ULP were made by hand on A100 and H200, 21 with smaller numbers."""
    context = {"kv_len": 4096, "q_heads": 24, "kv_heads": 4, "head_dim": 64}
    a, h, other = (load_side(f"flash_attn2.splitkv_decode@{p}") for p in ("a100", "h200", "h100"))
    assert not same_logits(a, h, context)
    assert same_logits(h, other, context)


@pytest.mark.parametrize(
    ("a", "b", "real"),
    [
        ("flash_attention_2", "triton", 0.0),
        ("flash_attention_2", "xqa", 0.9961),
        ("xqa", "trtllm_gen", 1.9845),
    ],
)
def test_one_token(a: str, b: str, real: float) -> None:
    """Its weight is 1 and nothing is rounded but a narrow partial result: at most one place for each side that has one."""
    sides = [load_side(f"walkthrough.{name}@h200") for name in (a, b)]
    found = upper_bound(*sides, context={"kv_len": 1}, cancellation=Fraction(1, 2))
    assert found.real == pytest.approx(real, rel=1e-4)
    assert found.rigor == "rigorous"


def test_a_carried_sum_by_lane_counts_every_later_tile() -> None:
    """32 tiles of 128 tokens in 4 lanes: a token of the first tile passes 31 additions there and in each later tile."""
    side = load_side("flash_attn2.splitkv_decode@h200")
    context = {"kv_len": 4096, "q_heads": 24, "kv_heads": 4, "head_dim": 64, "num_splits": 1}
    terms = terms_of(side, context)
    assert terms.roundings >= 32 * 31
