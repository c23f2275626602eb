"""Replays against the scalar oracle, bit for bit, and against values from outside."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from search.exact.arithmetic import ExactArithmetic
from search.exact.dyadic import NEG_INF, from_float, to_float, to_fraction
from search.exact.inputs import row_of
from search.exact.products import exact_scores
from search.exact.replay import columns, replay
from search.sides import Side, load_side
from specs import load_platform, parse_spec
from specs.errors import InputError, UnsupportedError
from specs.program import DIM
from tests.verify.small import HEADER
from verify import emulate
from verify.definition import RowInputs, ScalarArithmetic, Walker

WALKTHROUGH = ["dense", "flash_attention_2", "tiled", "triton", "trtllm_gen", "xqa"]
KERNELS = [
    ("flash_attn2.prefill", "a100"),
    ("flash_attn2.splitkv_decode", "h200"),
    ("flash_attn3.decode", "h200"),
    ("flashinfer.fa2_decode", "h200"),
    ("trtllm_gen.reduction", "b200"),
    ("vllm_triton.decode_2d", "h200"),
    ("vllm_triton.decode_3d", "b200"),
    ("vllm_triton.interpreter", "h200"),
    ("xqa.decode", "sm120"),
    ("xqa.decode", "h200"),
]


@cache
def side(name: str, platform: str = "h200") -> Side:
    return load_side(f"{name}@{platform}")


def both(which: Side, context: dict[str, Any], feed: Any, **arrays: Any) -> None:
    """Output and the value before its last rounding, by the replay and by the oracle on the emulator's plan."""
    row = row_of(context, **arrays)
    found = replay(which, {**context, "kv_len": row.kv_len}, row, ExactArithmetic())
    assert found.partition_difference == ""
    scalars = found.walker.inputs.scalars
    inputs = RowInputs(q=row.q, k=row.k, v=row.v, scalars=scalars, query=row.query, feed=feed(found.program))
    oracle = Walker(found.program, which.plan({**context, "kv_len": row.kv_len}), inputs, ScalarArithmetic())
    for site, got in ((found.site, found.before), ("output", found.output)):
        has_columns = DIM in found.program.sites[site].type.axes
        for j, x in enumerate(got):
            want = oracle.value(site, {DIM: j} if has_columns else {})
            assert str(to_float(x)) == str(want), site


bf16 = st.floats(-8, 8, width=16).map(lambda x: float(ml_dtypes.bfloat16(x)))
VALUES = st.one_of(bf16, st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-133, -(2.0**-126), 1.0078125]))
#: Scores with ties, masks, weights that are subnormal or vanish, and no order at all.
SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 0.5, -math.inf, -math.inf, -88.0, -100.0, -104.0, 2.0**-140]),
    st.floats(-20, 20, width=32),
)


@pytest.mark.parametrize("name", WALKTHROUGH)
@settings(max_examples=40)
@given(st.lists(st.tuples(SCORES, VALUES, VALUES), min_size=1, max_size=40))
def test_walkthrough_outputs_are_those_of_the_oracle(
    name: str, tokens: list[tuple[float, float, float]]
) -> None:
    table = np.array(tokens)
    both(
        side(f"walkthrough.{name}", "sm120"),
        {"kv_capacity": 4096},
        lambda program: {program.score_site(): table[:, 0]},
        scores=table[:, 0],
        values=table[:, 1:],
    )


@pytest.mark.parametrize("name", ["flash_attention_2", "xqa", "triton", "trtllm_gen"])
def test_several_groups_and_tiles(name: str) -> None:
    rng = np.random.default_rng(3)
    n = 900
    scores = rng.choice(np.float32([0.0, -1.0, 0.25, -math.inf, -30.0]), n) + rng.standard_normal(n).astype(
        "f4"
    )
    values = rng.standard_normal((n, 2)).astype(ml_dtypes.bfloat16).astype(np.float64)
    for platform in ("h200", "b200"):
        both(
            side(f"walkthrough.{name}", platform),
            {"q_heads": 24, "kv_heads": 4},
            lambda program: {program.score_site(): scores.astype(np.float64)},
            scores=scores,
            values=values,
        )


@pytest.mark.parametrize(
    ("name", "platform"), [*((f"walkthrough.{n}", "h200") for n in WALKTHROUGH), *KERNELS]
)
def test_whole_chains_from_q_and_k(name: str, platform: str) -> None:
    rng = np.random.default_rng(7)
    n, depth = 70, 128

    def draw(*shape: int) -> NDArray[np.float64]:
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(np.float64)

    context = {"q_heads": 8, "kv_heads": 1, "head_dim": depth}
    both(
        side(name, platform),
        context,
        lambda program: {},
        q=draw(depth) / 2,
        k=draw(n, depth),
        v=draw(n, 2),
    )


def test_rows_that_a_kernel_computes_together() -> None:
    rng = np.random.default_rng(9)
    q = rng.standard_normal((4, 64)).astype(ml_dtypes.bfloat16).astype(np.float64) * 2
    k = rng.standard_normal((40, 64)).astype(ml_dtypes.bfloat16).astype(np.float64)
    v = rng.standard_normal((40, 1)).astype(ml_dtypes.bfloat16).astype(np.float64)
    context = {"kv_len": 40, "q_heads": 4, "kv_heads": 1, "head_dim": 64}
    which = side("xqa.decode", "sm120")
    want = emulate(which.spec, which.platform, q=q[None], k=k[:, None], v=v[:, None], backend="oracle")
    stored = np.asarray(want.output).astype(np.float64).reshape(4)
    for number in range(4):
        row = row_of(context, q=q, k=k, v=v, row=number)
        (got,) = replay(which, context, row, ExactArithmetic()).output
        assert to_float(got) == stored[number]


def test_functions_of_hardware_are_named() -> None:
    context = {"kv_len": 3, "head_dim": 64, "q_heads": 4}
    row = row_of(context, q=np.ones(64), k=np.ones((3, 64)), v=np.ones((3, 1)))
    arithmetic = ExactArithmetic()
    kernel = replay(side("vllm_triton.decode_2d"), context, row, arithmetic)
    plain = replay(side("walkthrough.triton"), context, row, arithmetic)
    assert kernel.borrowed == ("div.full", "triton.exp")
    assert plain.borrowed == ()


def test_a_window_masks_as_in_the_emulator() -> None:
    context = {"kv_len": 5, "head_dim": 2, "window": 2}
    k = np.eye(5, 2) * 4
    v = np.array([8.0, 8.0, 8.0, 1.0, 2.0])
    row = row_of(context, q=np.array([1.0, 1.0]), k=k, v=v)
    assert (row.low, row.high) == (3, 5)
    found = replay(side("walkthrough.triton"), context, row, ExactArithmetic())
    assert to_float(found.output[0]) == 1.5
    ready = row_of({"window": 2}, scores=np.zeros(5), values=v)
    assert [s[0] == 0 and s[1] == 3 for s in ready.scores] == [True] * 3 + [False] * 2


def test_any_other_site_can_be_read() -> None:
    row = row_of({}, scores=[0.0, 0.0, 0.0], values=[[1.0, 2.0], [1.0, 2.0], [1.0, 5.0]])
    found = replay(side("walkthrough.triton"), {"kv_len": 3}, row, ExactArithmetic())
    assert [to_fraction(x) for x in columns(found.walker, "total", row)] == [3, 3]
    assert [to_float(x) for x in found.before] == [1.0, 3.0]


def test_exact_scores_are_exact() -> None:
    q, k = (
        np.array([2.0**100, 2.0**-100, 1.0]),
        np.array([[1.0, 1.0, -3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]),
    )
    first, second, third = exact_scores(q, k, from_float(0.5), 0, 2)
    assert to_fraction(first) == (2**100 - 3 + Fraction(1, 2**100)) / 2
    assert to_fraction(second) == 0
    assert third == NEG_INF


ELEMENT = st.one_of(
    st.floats(-8, 8, width=16), st.floats(-1e4, 1e4), st.sampled_from([0.0, 2.0**-1074, 1e300])
)


@given(st.lists(st.tuples(ELEMENT, ELEMENT), min_size=1, max_size=8))
def test_exact_scores_are_sums_of_fractions(pairs: list[tuple[float, float]]) -> None:
    q, k = np.array([p[0] for p in pairs]), np.array([[p[1] for p in pairs]])
    (found,) = exact_scores(q, k, from_float(0.125), 0, 1)
    assert to_fraction(found) == sum(Fraction(x) * Fraction(y) for x, y in pairs) / 8


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": [0.0]}, "give scores and values"),
        ({"scores": [0.0], "values": [1.0], "q": [1.0]}, "give scores and values"),
        ({"scores": [0.0, 1.0], "values": [1.0]}, "values of shape"),
        ({"scores": [], "values": []}, "values of shape"),
        ({"scores": [math.nan], "values": [1.0]}, "NaN or"),
        ({"scores": [0.0], "values": [math.inf]}, "not finite"),
        ({"scores": ["a"], "values": [1.0]}, "no array of numbers"),
        ({"q": [1.0], "k": [[1.0, 2.0]], "v": [1.0]}, "q of shape"),
        ({"q": [[1.0], [2.0]], "k": [[1.0]], "v": [1.0], "row": 2}, "row 2 of q of shape"),
        ({"q": [1.0], "k": [[1.0]], "v": [1.0], "scale": math.inf}, "scale"),
    ],
)
def test_wrong_arrays(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        row_of({}, **arrays)


def test_wrong_lengths_and_values() -> None:
    with pytest.raises(InputError, match="kv_len"):
        row_of({"kv_len": 3}, scores=[0.0], values=[1.0])
    triton = side("walkthrough.triton")
    with pytest.raises(InputError, match="token 1 is no value of f32"):
        replay(
            triton,
            {"kv_len": 2},
            row_of({}, scores=[0.0, 1.0 + 2.0**-40], values=[1.0, 1.0]),
            ExactArithmetic(),
        )
    with pytest.raises(InputError, match="no value of bf16"):
        replay(triton, {"kv_len": 1}, row_of({}, scores=[0.0], values=[1.0 + 2.0**-20]), ExactArithmetic())


def test_ready_scores_for_a_spec_that_scales_them_later() -> None:
    spec = parse_spec(
        HEADER
        + '[token]\nscore = "sum(q * k, seq())"\n[row]\nw = "exp(score * scale)"\noutput = "sum(w * v, seq())"\n'
    )
    own = Side(spec, load_platform("h200"))
    with pytest.raises(UnsupportedError, match=r"'w' of test\.small scales the scores"):
        replay(own, {"kv_len": 1}, row_of({}, scores=[0.0], values=[1.0]), ExactArithmetic())


def test_a_long_chain_of_lines_is_refused() -> None:
    lines = ['s0 = "sum(v, seq())"', *(f's{i} = "s{i - 1} + 1"' for i in range(1, 400)), 'output = "s399"']
    text = HEADER + '[token]\nscore = "sum(q * k, seq()) * scale"\n[row]\n' + "\n".join(lines)
    own = Side(parse_spec(text), load_platform("h200"))
    row = row_of({}, scores=[0.0], values=[1.0])
    with pytest.raises(UnsupportedError, match="too long a chain"):
        replay(own, {"kv_len": 1}, row, ExactArithmetic())


def test_a_maximum_over_the_rows_of_a_head() -> None:
    spec = parse_spec(
        HEADER
        + '[token]\nscore = "sum(q * k, seq()) * scale"\n[row]\ntop = "max(score)"\nall = "max(top, over=row)"\n'
        + 'output = "all + sum(v, seq())"\n'
    )
    own = Side(spec, load_platform("h200"))
    context = {"kv_len": 1, "q_heads": 3, "head_dim": 1}
    row = row_of(context, q=[[1.0], [5.0], [2.0]], k=[[2.0]], v=[0.5], row=2)
    (got,) = replay(own, context, row, ExactArithmetic()).output
    assert to_float(got) == 10.5
    assert to_fraction(row.scores[0]) == 4


def test_scores_past_53_bits() -> None:
    big = float(2**53)
    (found,) = exact_scores(np.array([1.0, 1.0]), np.array([[big, 1.0]]), from_float(1.0), 0, 1)
    assert to_fraction(found) == 2**53 + 1
