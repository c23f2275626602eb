"""`emulate` end to end, through both backends, against values from outside."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reports.inputs import smollm2_layer, teaching_input
from specs import load_platform, load_spec
from specs.errors import InputError
from tests.verify.laws import assert_same_bits, bits, problem
from verify import Result, emulate
from verify.emulator import Run
from verify.exact import exact_attention
from verify.judge import judge

BF16 = ml_dtypes.bfloat16
DATA = Path(__file__).parents[1] / "data"
QWEN = {"batch": 1, "q_heads": 24, "kv_heads": 4, "head_dim": 256}
#: (spec, platform, the f32 before the last rounding, the bf16).
CELLS = [
    ("flash_attention_2", "h200", "0x1.52fc5ap+0", 1.3203125),
    ("flash_attention_2", "b200", "0x1.5300fap+0", 1.328125),
    ("flash_attention_2", "sm120", "0x1.5302a8p+0", 1.328125),
    ("xqa", "h200", "0x1.52b064p+0", 1.3203125),
    ("xqa", "sm120", "0x1.531154p+0", 1.328125),
    ("triton", "h200", "0x1.52fdd6p+0", 1.3203125),
    ("triton", "b200", "0x1.52fdd6p+0", 1.3203125),
    ("triton", "sm120", "0x1.52fdd6p+0", 1.3203125),
    ("trtllm_gen", "b200", "0x1.5359e6p+0", 1.328125),
]


# -- the teaching input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "platform", "f32", "bf16"),
    [CELLS[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in CELLS[1:])],
)
def test_the_teaching_input(spec: str, platform: str, f32: str, bf16: float) -> None:
    """Nine cells, 27,525 tokens: the f32 before the last rounding and the bf16, bit for bit, by the engine.

    One cell by default, and Triton's in `test_the_teaching_input_through_the_public_call`; all nine by the oracle in
    definition/test_expected.py.
    """
    scores, values = teaching_input()
    s = load_spec(f"walkthrough.{spec}")
    run = Run.start(s, load_platform(platform), problem(s, scores=scores, values=values), QWEN, {}, "engine")
    run.evaluate(
        ["output", "lse", "exact", *(["top"] if spec == "flash_attention_2" else [])]
    )  # compiled once
    output = run.outward("output")
    assert output.dtype == BF16
    assert output.shape == (1, 1)
    assert float(output[0, 0]) == bf16
    assert float(run.outward("exact")[0, 0]) == float.fromhex(f32)
    assert not run.exact_path
    if spec == "flash_attention_2":  # the local maximum of the first group, from the issue
        assert float(run.outward("top")[0, 0]) == {"h200": 1.875, "b200": 1.75, "sm120": 1.5}[platform]


@pytest.mark.parametrize("backend", ["engine", "oracle"])
def test_the_teaching_input_through_the_public_call(backend: str) -> None:
    scores, values = teaching_input()
    r = emulate(
        load_spec("walkthrough.triton"),
        load_platform("h200"),
        scores=scores[0],
        values=values[:, 0],
        context=QWEN,
        backend=backend,
    )
    assert (r.spec, r.platform, r.backend, r.empty_rows) == ("walkthrough.triton", "h200", backend, 0)
    assert float(r.output[0, 0]) == 1.3203125
    assert float(r.trace["exact"][0, 0]) == float.fromhex("0x1.52fdd6p+0")
    assert abs(float(r.lse[0]) - np.log(np.exp(scores[0].astype(np.float64)).sum())) < 1e-5


# -- dense and tiled --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dense_and_tiled_on_the_figures_of_the_issue() -> None:
    """The same figures by the oracle: definition/test_expected.py; the engine on both specs: test_laws.py."""
    draw = random.Random(42)
    q, k, v = (
        np.array([[[draw.uniform(-0.8, 0.8) for _ in range(16)]] for _ in range(64)]) for _ in range(3)
    )
    h200 = load_platform("h200")

    def run(name: str, backend: str = "engine", **options: bool) -> Any:
        spec = load_spec(f"walkthrough.{name}")
        given = {
            "q": q,
            "k": k,
            "v": v,
            "scale": 0.25,
            "causal": True,
            "options": options,
            "backend": backend,
        }
        return emulate(spec, h200, **given).output[:, 0]

    dense, tiled, faulty = run("dense"), run("tiled"), run("tiled", rescale_previous_accumulator=False)
    assert dense.dtype == tiled.dtype == np.float64
    assert f"{np.abs(tiled - dense).max():.3e}" == "1.110e-16"
    assert f"{np.abs(faulty - dense).max():.4f}" == "0.0521"
    for x in (dense, tiled):
        assert [f"{e:.6f}" for e in x[0, :4]] == ["-0.267257", "0.731232", "-0.775466", "0.699456"]
        assert [f"{e:.6f}" for e in x[63, :4]] == ["0.017991", "-0.007947", "0.059253", "0.070964"]
    scores = np.where(np.tri(64, dtype=bool), q[:, 0] @ k[:, 0].T * 0.25, -np.inf)
    exact = exact_attention(scores, v[:, 0]).midpoint
    assert np.abs(tiled - exact).max() < 1e-15
    assert np.abs(faulty - exact).max() > 0.05, "the declared fault is caught by exact attention"
    assert np.abs(run("dense", "oracle", subtract_max=False) - exact).max() < 1e-15


# -- vLLM's kernel, run elsewhere -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", json.loads((DATA / "vllm_triton_small.json").read_text()), ids=lambda c: c["key"]
)
def test_vllm_in_tritons_interpreter(case: dict[str, Any]) -> None:
    """One head and a few columns of what vLLM's kernel gave, through `judge`."""
    rng = np.random.default_rng(case["seed"])
    heads, kv_heads, n, d = case["hq"], case["hkv"], case["n"], case["d"]
    q = (rng.standard_normal((heads, d)).astype(np.float32) * np.float32(case["qscale"])).astype(BF16)
    k, v = (rng.standard_normal((n, kv_heads, d)).astype(np.float32).astype(BF16) for _ in "kv")
    words = b"".join(x.view(np.uint16).tobytes() for x in (q, k, v))
    assert hashlib.sha256(words).hexdigest()[:16] == case["in_sha"]
    result = emulate(
        load_spec("vllm_triton.interpreter"), load_platform("h200"), q=q[:1], k=k[:, :1], v=v[:, :1, :4],
        scale=case["scale"], backend="oracle", context={"head_dim": d},
    )  # fmt: skip
    with np.load(DATA / "vllm_triton_small.npz") as want:
        assert bits(result.output)[0].tolist() == want[f"{case['key']}/out"][0, :4].tolist()


# -- a real layer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "flash_attention_2",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("xqa", "triton", "trtllm_gen")),
    ],
)
def test_a_real_layer(spec: str) -> None:
    """Every head near the exact answer; one row and three columns bit for bit by the oracle.

    One spec by default: the others are the oracle on the inputs of test_laws.py.
    """
    layer = smollm2_layer()
    q = layer.q[-1]
    context = dict(layer.context)
    r: Result = emulate(
        load_spec(f"walkthrough.{spec}"),
        load_platform("h200"),
        q=q,
        k=layer.k,
        v=layer.v,
        scale=layer.scale,
        context=context,
    )
    assert r.output.shape == (9, 64)
    k, v = (x.astype(np.float64)[:, np.repeat(np.arange(3), 3)] for x in (layer.k, layer.v))
    scores = np.einsum("hd,thd->ht", q.astype(np.float64), k) * layer.scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = np.einsum("ht,thd->hd", weights / weights.sum(axis=1, keepdims=True), v)
    error = np.abs(r.output.astype(np.float64) - want)
    # A bf16 rounding of each weight, of each partial and of the output: each at most 2**-9 of the values.
    assert error.max() <= 3 * 2.0**-9 * np.abs(v).max()
    assert np.median(error / np.abs(want)) < 2.0**-8
    lse = np.log(np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)) + scores.max(axis=1)
    assert np.abs(r.lse.astype(np.float64) - lse).max() < (2e-3 if spec == "xqa" else 2e-5)

    run: Run = r.trace._run  # pyright: ignore[reportPrivateUsage]
    pair, columns = (2, 1), [0, 31, 63]
    oracle = judge(run.program, run.plan, run.problem, run.scalars, ["output", "lse"], [pair], columns)
    assert_same_bits(r.output[7, columns], oracle["output"][0], "output")
    assert_same_bits(r.lse[7], oracle["lse"][0], "lse")


# -- what a result is -------------------------------------------------------------------------------------


def small(backend: str = "engine", **more: Any) -> Result:
    rng = np.random.default_rng(0)
    arrays = {
        "q": rng.normal(0, 1, (2, 4, 8)),
        "k": rng.normal(0, 1, (40, 2, 8)),
        "v": rng.normal(0, 1, (40, 2, 3)),
    }
    return emulate(
        load_spec("walkthrough.triton"), load_platform("h200"), **{**arrays, "backend": backend, **more}
    )


def test_shapes_follow_the_query() -> None:
    for backend in ("engine", "oracle"):
        r = small(backend)
        assert (r.output.shape, r.lse.shape) == ((2, 4, 3), (2, 4))
        assert r.lse.dtype == np.float32
        assert r.trace["weight"].shape == (2, 4, 3, 16)
        assert r.trace.axes("weight") == ("segment", "token")
        assert r.trace["value"].shape == (2, 4, 3, 3)
        assert r.trace.axes("value") == ("segment", "dim")
        assert np.isnan(r.trace["weight"][0, 0, 2, 8:]).all(), "the last segment has 8 tokens"
        assert {"score", "top", "norm", "output", "lse"} <= set(r.trace)
        assert len(r.trace) == len(list(r.trace))
        with pytest.raises(InputError, match="no site 'wieght'\n  did you mean 'weight'"):
            r.trace["wieght"]


def test_the_trace_holds_what_the_answer_is_made_of() -> None:
    r = small("oracle")
    t = r.trace
    assert_same_bits(t["exact"].astype(BF16), r.output, "output is exact rounded to bf16")
    assert_same_bits(t["output"], r.output, "output")
    assert np.array_equal(np.nanmax(t["score"], axis=-1), t["top"])
    norm = np.zeros(t["norm"].shape, np.float32)
    for i in range(16):
        norm = np.where(np.isnan(t["weight"][..., i]), norm, norm + t["weight"][..., i])
    assert_same_bits(norm, t["norm"], "f32 sum in order")


@pytest.mark.parametrize("backend", [pytest.param("engine", marks=pytest.mark.slow), "oracle"])
def test_rows_that_see_nothing_are_counted(backend: str) -> None:
    """By the engine on demand: the laws have such rows and, in a ragged batch, a sequence without tokens."""
    scores = np.zeros((3, 20), np.float32)
    scores[1] = -np.inf
    spec, h200 = load_spec("walkthrough.flash_attention_2"), load_platform("h200")
    r = emulate(spec, h200, scores=scores, values=np.ones((20, 1), np.float32), backend=backend)
    assert r.empty_rows == 1
    assert r.output[:, 0].astype(float).tolist() == [1.0, 0.0, 1.0]
    assert r.lse[1] == -np.inf
    nothing = emulate(
        spec, h200, q=np.ones((2, 8)), k=np.ones((0, 1, 8)), v=np.ones((0, 1, 4)), backend=backend
    )
    assert nothing.empty_rows == 2
    assert nothing.output.astype(float).tolist() == [[0.0] * 4] * 2
    assert nothing.lse.tolist() == [-np.inf, -np.inf]
    assert nothing.plan.count == 0


def test_a_window_hides_older_tokens() -> None:
    for backend in ("engine", "oracle"):
        q, k, v = np.ones((3, 1, 8)), np.ones((20, 1, 8)), np.arange(20.0)[:, None, None] * np.ones((1, 1, 2))
        r = emulate(
            load_spec("walkthrough.triton"), load_platform("h200"), q=q, k=k, v=v, causal=True, backend=backend,
            context={"window": 5},
        )  # fmt: skip
        assert r.output[:, 0, 0].astype(float).tolist() == [15.0, 16.0, 17.0], "the mean of five tokens"


def test_the_default_scale_is_one_over_the_root_of_head_dim() -> None:
    assert_same_bits(small().output, small(scale=8**-0.5).output, "scale")


def test_subnormal_weights_take_the_exact_path() -> None:
    """exp(-90) = 8.19e-40 is a subnormal f32; times 2**100 it decides the answer."""
    scores = np.array([[0.0] + [-90.0] * 63], np.float32)
    values = np.array([0.0] + [2.0**100] * 63)
    r = emulate(load_spec("walkthrough.triton"), load_platform("h200"), scores=scores, values=values)
    assert r.exact_path
    assert abs(float(r.output[0, 0]) / (63 * 8.194e-40 * 2.0**100) - 1) < 0.06, (
        "bf16 keeps 5 bits of the weight"
    )
