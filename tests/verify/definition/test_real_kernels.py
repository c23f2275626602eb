"""Every kernel of the library runs in the oracle, and over the reals it is softmax attention.

In balls, casts and trees are identities and approximate functions exact, so what is left of a spec is its
structure: partition, masks, running maxima, rescaling, merges, guards. The one difference to exact attention is
that kernels write log2(e) and ln(2) as 32-bit constants.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import Spec, load_platform, load_spec
from specs.discover import every
from specs.errors import UnsupportedError
from verify.case import Case
from verify.definition.balls import enclose
from verify.emulator import Run
from verify.features import Features
from verify.judge import judge, row_inputs

KERNELS = [f.name for f in every() if f.kind == "library" and not f.name.startswith("walkthrough.")]
PLATFORMS = ("h200", "b200", "sm120", "amd_avx512")
SHAPES: list[dict[str, Any]] = [
    {"n": 1, "d": 64},
    {"n": 65, "d": 128},
    {"n": 130, "d": 64},
    {"n": 300, "d": 64, "context": {"batch": 20}},
    {"n": 257, "d": 64, "context": {"max_kv_len": 900, "kv_capacity": 2000}},
    {"n": 70, "d": 128, "queries": 3, "causal": True},
    {"n": 200, "d": 64, "context": {"window": 40}},
    {"n": 20, "d": 256},
    {"n": 7, "d": 64, "queries": 7, "causal": True},
]


def given(spec: Spec, n: int, d: int, queries: int, *, eight: bool = False) -> dict[str, Any]:
    """Normal numbers in bf16; K and V in e4m3 if ``eight``, or where the kernel takes nothing else."""
    rng = np.random.default_rng(n + d)
    shapes = {"q": (queries, 2, d), "k": (n, 1, d), "v": (n, 1, d)}
    eight = eight or spec.numbers.accepts.k == ("e4m3fn",)
    kv = ml_dtypes.float8_e4m3fn if eight else ml_dtypes.bfloat16
    dtypes = {"q": ml_dtypes.bfloat16, "k": kv, "v": kv}
    return {name: rng.normal(0, 1, shape).astype(dtypes[name]) for name, shape in shapes.items()}


def start(case: Case, spec: Spec, first: int) -> Run | None:
    """The case on the first platform, from number ``first`` on, on which the kernel takes it."""
    for i in range(len(PLATFORMS)):
        try:
            platform = load_platform(PLATFORMS[(first + i) % len(PLATFORMS)])
            return case.start(spec, platform, backend="oracle")
        except UnsupportedError:
            continue
    return None


def exactly(
    arrays: dict[str, Any],
    window: int = 0,
    sink: float = -math.inf,
    slope: float = 0.0,
    cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[np.ndarray[Any, Any], float]:
    """The last row's output and log-sum-exp in float64; the last query sees every token of its window."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    low = max(0, len(k) - window) if window else 0
    s = k[low:, 0] @ q[-1, -1] * q.shape[-1] ** -0.5 * k_scale
    s = cap * np.tanh(s / cap) if cap else s
    s = s + slope * (np.arange(low, len(k)) - (len(k) - 1))
    top = max(float(s.max()), sink)
    weights = np.exp(s - top)
    total = weights.sum() + math.exp(sink - top)
    return weights @ (v[low:, 0] * v_scale) / total, top + math.log(total)


def assert_attention(run: Run, want: np.ndarray[Any, Any], want_lse: float, what: str) -> None:
    """The last row is ``want`` in balls but for the constants, and near it with the kernel's roundings."""
    row, dims = run.problem.rows - 1, [0, run.problem.v.shape[-1] - 1]
    sites = [site for site in ("output", "lse") if site in run.program.sites]
    inputs = row_inputs(run.program, run.problem, run.scalars, 0, row)
    real = enclose(run.program, run.plan, inputs, sites, dims)
    rounded = judge(run.program, run.plan, run.problem, run.scalars, sites, [(0, row)], dims)
    eight = "e4m3fn" in (run.problem.formats["v"].base, run.problem.formats["k"].base)
    middle = [float(ball.mid()) for ball in real["output"].data.ravel()]
    np.testing.assert_allclose(middle, want[dims], rtol=0, atol=1e-7, err_msg=what)
    kernel = rounded["output"][0].astype(np.float64)
    np.testing.assert_allclose(kernel, want[dims], rtol=0, atol=0.3 if eight else 2e-2, err_msg=what)
    if "lse" in sites:
        assert abs(float(real["lse"].item().mid()) - want_lse) < 1e-6, what
        assert abs(float(rounded["lse"][0]) - want_lse) < (0.1 if eight else 1e-2), what


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_attention(name: str) -> None:
    spec = load_spec(name)
    ran = 0
    for number, shape in enumerate(SHAPES):
        n, d, context = shape["n"], shape["d"], shape.get("context", {})
        arrays = given(spec, n, d, shape.get("queries", 1))
        case = Case("x", arrays, causal=shape.get("causal", False), context=context)
        want, want_lse = exactly(arrays, context.get("window", 0))
        run = start(case, spec, number)
        if run is None:
            continue  # the kernel does not take this shape
        ran += 1
        assert_attention(run, want, want_lse, f"{name} on {run.platform.name}: {shape}")
    assert ran >= 3


FEATURES: dict[str, tuple[Features, dict[str, float]]] = {
    "sinks": (Features(sinks=np.array([0.5, 1.5])), {"sink": 1.5}),
    "low sinks": (Features(sinks=np.array([0.5, -30.0])), {"sink": -30.0}),
    "high sinks": (Features(sinks=np.array([0.5, 20.0])), {"sink": 20.0}),
    "alibi": (Features(alibi_slopes=np.array([0.5, 0.0625])), {"slope": 0.0625}),
    "softcap": (Features(softcap=1.5), {"cap": 1.5}),
    "scales": (Features(k_scale=0.5, v_scale=3.0), {"k_scale": 0.5, "v_scale": 3.0}),
}


@pytest.mark.parametrize(
    "feature", [pytest.param(f, marks=pytest.mark.slow if " " in f else ()) for f in FEATURES]
)
def test_a_feature_of_a_kernel_is_what_it_is_called(feature: str) -> None:
    """Each kernel computes it, or refuses it; kernels with scales read an 8-bit cache.

    On demand: sinks that hardly count and sinks above all scores.
    """
    features, meaning = FEATURES[feature]
    took: list[str] = []
    for name in KERNELS:
        spec = load_spec(name)
        eight = feature == "scales" and "e4m3fn" in spec.numbers.accepts.k
        arrays = given(spec, 70, 64, 1, eight=eight)
        run = start(Case("x", arrays, features=features), spec, 1)
        if run is not None:
            took.append(name)
            want, want_lse = exactly(arrays, **meaning)
            assert_attention(run, want, want_lse, f"{name} with {feature} on {run.platform.name}")
    least = {"alibi": {"flash_attn2.prefill"}, "softcap": set[str](), "scales": {"xqa.decode"}}
    assert set(took) >= least.get(feature, {"xqa.decode"}) | {"vllm_triton.decode_3d"}


def test_a_token_outside_the_window_changes_no_bit() -> None:
    ran = 0
    for name in KERNELS:
        spec = load_spec(name)
        arrays = given(spec, 200, 64, 1)
        other = {n: a.copy() for n, a in arrays.items()}
        for n in ("k", "v"):
            other[n][: 200 - 40] = (
                np.random.default_rng(0).normal(0, 100, (160, 1, 64)).astype(other[n].dtype)
            )
        found: list[Any] = []
        for given_arrays in (arrays, other):
            run = start(Case("x", given_arrays, context={"window": 40}), spec, 0)
            if run is not None:
                names = [n for n in ("output", "lse") if n in run.program.sites]
                row = judge(run.program, run.plan, run.problem, run.scalars, names, [(0, 0)], [0, 17, 63])
                found.append([row[n].tobytes() for n in names])
        ran += len(found) == 2
        assert len(set(map(tuple, found))) <= 1, name
    assert ran >= 4


EMPTY = {
    # Over nothing: what each kernel writes. FlashAttention-2: 0 and +inf; PyTorch and fp8 XQA are not called so.
    "flash_attn2.splitkv_decode": (0.0, math.inf),
    "flash_attn2.prefill": (0.0, math.inf),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_sequence(name: str) -> None:
    spec = load_spec(name)
    run = start(Case("x", given(spec, 0, 64, 1)), spec, 0)
    assert run is not None
    result = run.result()
    output, lse = EMPTY[name]
    assert set(result.output.astype(np.float64).reshape(-1).tolist()) == {output}
    assert result.lse is not None
    assert result.lse.tolist() == [[lse] * 2]


def test_empty_splits_change_nothing() -> None:
    """Of 9 splits over 150 tokens in blocks of 256, eight are empty: the combine adds zeros to the first."""
    spec = load_spec("flash_attn2.splitkv_decode")
    arrays = given(spec, 150, 64, 1)
    run = start(Case("x", arrays, context={"num_splits": 9}), spec, 0)
    assert run is not None
    got = judge(run.program, run.plan, run.problem, run.scalars, ["level", "partial"], [(0, 1)], [0])
    assert got["level"][0, 1:].tolist() == [-math.inf] * 8
    assert got["partial"][0, 1:].tolist() == [[0.0]] * 8
    assert_attention(run, *exactly(arrays), "nine splits")
