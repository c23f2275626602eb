"""Forward errors from walks of whole plans: by hand, against exact answers, and what no bound is known of."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from search.prove.forward import forward, of_program
from search.samples import row_inputs
from search.sides import Side, before_rounding, load_side
from specs import load_platform, parse_spec
from specs.errors import UnsupportedError
from verify.definition.scalar import ScalarArithmetic
from verify.definition.walker import evaluate
from verify.numerics.rounding import round_array

LIBRARY = Path(__file__).parents[3] / "specs" / "library"
HEADS = {"q_heads": 8, "kv_heads": 2, "head_dim": 128}
R = 1 / 257  # of a rounding to bf16, relative to the number
BOX = 4.0
#: Exact functions for those of the hardware, and sums in order: any format can compute with these.
PLAIN = {"mufu.ex2": "exp2", "mufu.rcp": "rcp", "mufu.lg2": "log2", "triton.exp": "exp", "div.full": "div"}


def mine(row: str, group: str = "", compute: str = "real", level: str = "tiles(4)") -> Side:
    text = f"""
schema = 1
name = "mine.sum"
status = "walkthrough"
summary = "a sum"
[numbers]
compute = "{compute}"
inputs = {{ q = "bf16", k = "bf16", v = "bf16" }}
[levels]
group = "{level}"
[token]
score = "sum(q * k, seq()) * scale"
[group]
top = "max(score)"
weight = "exp(score - top)"
norm = "sum(weight, seq())"
{group}
[row]
most = "max(top)"
{row}
"""
    return Side(parse_spec(text, "sum.toml"), load_platform("h200"))


MERGED = 'w = "exp(top - most)"\noutput = "sum(w * value, seq()) / sum(w * norm, seq())"'


def bounds(side: Side, n: int = 8, box: float = BOX, exact: frozenset[str] = frozenset()) -> list[float]:
    found = forward(side, {**HEADS, "kv_len": n}, box, exact)
    return [float(x) for x in (found.up, found.down, found.normal_up, found.normal_down)]


def test_each_rounding_counts_as_often_as_it_stands_before_a_token() -> None:
    one = bounds(mine(MERGED, 'value = "sum(bf16(weight) * v, seq())"'))
    assert one == pytest.approx([1 + R, 1 - R, 1, 1], rel=1e-12)
    two = bounds(mine(MERGED, 'value = "bf16(sum(bf16(weight) * v, seq()))"'))
    assert two == pytest.approx([(1 + R) ** 2, (1 - R) ** 2, 1, 1], rel=1e-12)
    # Four terms are three additions; the first term is 0 + x.
    added = bounds(mine(MERGED, 'value = "bf16.sum(bf16(weight * v), seq())"'))
    assert added == pytest.approx([(1 + R) ** 4, (1 - R) ** 4, 1, 1], rel=1e-12)
    tree = bounds(mine(MERGED, 'value = "bf16.sum(bf16(weight * v), pairwise())"'))
    assert tree == pytest.approx([(1 + R) ** 3, (1 - R) ** 3, 1, 1], rel=1e-12)


def test_a_division_by_what_is_multiplied_again_cancels() -> None:
    """The normaliser of a group is rounded to bf16; the merge multiplies by it again, and the rounding is gone."""
    row = 'w = "part * exp(top - most)"\noutput = "sum(w * value, seq()) / sum(w, seq())"'
    found = bounds(mine(row, 'part = "bf16(norm)"\nvalue = "sum(weight * v, seq()) / part"'))
    assert found == pytest.approx([1, 1, 1 + R, 1 - R], rel=1e-12)


def test_a_rounded_logit_counts_with_its_size() -> None:
    found = bounds(
        mine(MERGED.replace("exp(top - most)", "exp(bf16(top - most))"), 'value = "sum(weight * v, seq())"')
    )
    assert math.log(found[0]) == pytest.approx(2 * BOX * R, rel=0.01)  # top - most is at most 8


def coarse(name: str, compute: str) -> Side:
    """A spec of the library with all of its roundings, but to few bits."""
    text = re.sub(
        r'compute = "f32(\.ftz)?"', f'compute = "{compute}"', (LIBRARY / f"{name}.toml").read_text()
    )
    for function, exact in PLAIN.items():
        text = text.replace(function, exact)
    text = re.sub(r"mma\(\d+(, ?\w+)?\)", "seq(fma)", text).replace("f32(", f"{compute}(")
    return Side(parse_spec(text, f"{name}.toml"), load_platform("h200"))


def reached(side: Side, n: int, found: list[float], tries: int, seed: int = 0) -> float:
    """The largest part of its bound that the error has on some inputs, by the scalar oracle; above 1 it is broken."""
    rng, worst = np.random.default_rng(seed), 0.0
    context = {**HEADS, "kv_len": n}
    program, output, _ = before_rounding(side.program(context))
    plan, up, down, above, below = side.plan(context), *found
    row, _ = row_inputs(program, [0.0] * n)
    fmt = program.sites[program.score_site()].type.format or program.compute
    for i in range(tries):
        s = (rng.uniform(-BOX, BOX, n), rng.normal(0, 1, n), np.sort(rng.uniform(-3, 3, n)))[i % 3]
        s = np.clip(round_array(0.99 * np.clip(s, -BOX, BOX), fmt), -BOX, BOX)
        v = (np.abs(rng.normal(1, 0.5, n)) + 0.1) * (rng.choice([-1, 1], n) if i % 4 == 3 else 1)
        v = round_array(v, program.inputs["v"])
        inputs = type(row)(v=v[:, None], scalars=row.scalars, feed=dict.fromkeys(row.feed, s))
        out = float(
            evaluate(program, plan, inputs, [output], ScalarArithmetic(), dims=[0])[output].reshape(-1)[0]
        )
        p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        more, less = float(p @ np.maximum(v, 0)), float(p @ np.maximum(-v, 0))
        high, low, exact = up * more - down * less, down * more - up * less, more - less
        high, low = high / (below if high > 0 else above), low / (above if low > 0 else below)
        worst = max(worst, (out - exact) / (high - exact) if out > exact else (exact - out) / (exact - low))
    return worst


@pytest.mark.parametrize(
    "name",
    [
        *("walkthrough.xqa", "walkthrough.flash_attention_2", "walkthrough.trtllm_gen"),
        *("flash_attn2.splitkv_decode", "flash_attn3.decode", "vllm_triton.decode_3d"),
    ],
)
def test_no_input_breaks_the_bound_where_every_rounding_is_to_11_bits(name: str) -> None:
    side = coarse(name, "tf32")
    context = {**HEADS, "kv_len": 20}
    program, output, _ = before_rounding(side.program(context))
    found = of_program(program, side.plan(context), output, BOX)
    every = [float(x) for x in (found.up, found.down, found.normal_up, found.normal_down)]
    assert 0.02 < reached(side, 20, every, 24) < 1


def test_a_rounding_that_is_not_counted_is_found() -> None:
    """The bound without one line's roundings is broken by an input: the search for such inputs can find one."""
    side = mine(MERGED, 'value = "sum(bf16(weight) * v, seq())"', compute="f64")
    assert reached(side, 8, bounds(side), 60) < 1
    assert reached(side, 8, bounds(side, exact=frozenset({"value"})), 60) > 1e6


@pytest.mark.parametrize(
    ("row", "group", "says"),
    [
        ('w = "exp(top - most)"\noutput = "sum(value, seq()) / sum(norm, seq())"', "", "scaled otherwise"),
        (
            'w = "exp(top)"\noutput = "sum(w * value, seq()) / sum(exp(top - most) * norm, seq())"',
            "",
            "not divided",
        ),
        (MERGED, 'value = "sum(weight * v, seq()) + sum(weight * v, seq())"', "counted twice"),
        (MERGED, 'value = "sum(e4m3fn(weight) * v, seq())"', "smaller weights are lost"),
        (MERGED, 'value = "sum(weight * f16(f32(v) * 1.5), seq())"', "a value and a constant"),
        (MERGED, 'value = "sum(select(score < -1, bf16(weight), 0) * v, seq())"', "choice by data"),
        (
            'w = "exp(top - most)"\noutput = "at(value, group=0) / sum(w * norm, seq())"',
            "",
            "without token 4",
        ),
    ],
)
def test_what_is_no_weighted_mean_has_no_bound_and_the_line_is_named(row: str, group: str, says: str) -> None:
    side = mine(row, group or 'value = "sum(weight * v, seq())"')
    with pytest.raises(UnsupportedError, match=rf"line '\w+': .*{says}"):
        bounds(side)


def test_in_a_smaller_box_f16_keeps_every_weight() -> None:
    """e^-8 is above the smallest normal number of f16, 2^-14."""
    side = mine(MERGED, 'value = "sum(f16(weight) * v, seq())"')
    assert bounds(side)[0] == pytest.approx(1 + 1 / 2049, rel=1e-9)
    with pytest.raises(UnsupportedError, match="narrow the score box"):
        bounds(side, box=10.0)


def test_a_tensor_core_cuts_every_term_below_the_largest() -> None:
    """Hopper: 8 products and the sum so far, 25 bits below the largest, then 24 bits of the sum are kept."""
    side = mine(MERGED, 'value = "dot(bf16(weight), v, mma(16))"', compute="f32", level="tiles(8)")
    without = mine(MERGED, 'value = "f32.dot(bf16(weight), v, exact())"', compute="f32", level="tiles(8)")
    more = bounds(side, 8)[0] / bounds(without, 8)[0] - 1
    assert more == pytest.approx(9 * 2.0**-25 + 2.0**-23 - 2.0**-24, rel=0.01)


@pytest.mark.parametrize(
    "name", ["xqa.decode", "flash_attn2.splitkv_decode", "flashinfer.fa2_decode", "trtllm_gen.reduction"]
)
def test_kernels_of_the_library_are_walked(name: str) -> None:
    side = load_side(f"{name}@{'b200' if name.startswith('trt') else 'h200'}")
    up, down, above, below = bounds(side, 200, box=20.0)
    assert 1 + R < up < 1.04
    assert 0.96 < down < 1 - R
    assert 1 < above < 1.01
    assert 0.99 < below < 1
