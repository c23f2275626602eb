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


def given(spec: Spec, n: int, d: int, queries: int) -> dict[str, Any]:
    """Normal numbers in bf16; K and V in e4m3 where the kernel takes nothing else."""
    rng = np.random.default_rng(n + d)
    shapes = {"q": (queries, 2, d), "k": (n, 1, d), "v": (n, 1, d)}
    dtypes = {
        name: ml_dtypes.float8_e4m3fn
        if getattr(spec.numbers.accepts, name) == ("e4m3fn",)
        else ml_dtypes.bfloat16
        for name in shapes
    }
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


def exactly(arrays: dict[str, Any], window: int) -> tuple[np.ndarray[Any, Any], float]:
    """The last row's output and log-sum-exp in float64; the last query sees every token of its window."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    low = max(0, len(k) - window) if window else 0
    s = k[low:, 0] @ q[-1, -1] * q.shape[-1] ** -0.5
    weights = np.exp(s - s.max())
    return weights @ v[low:, 0] / weights.sum(), float(s.max()) + math.log(weights.sum())


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
        row, dims = run.problem.rows - 1, [0, d - 1]
        sites = [site for site in ("output", "lse") if site in run.program.sites]
        inputs = row_inputs(run.program, run.problem, run.scalars, 0, row)
        real = enclose(run.program, run.plan, inputs, sites, dims)
        rounded = judge(run.program, run.plan, run.problem, run.scalars, sites, [(0, row)], dims)
        what = f"{name} on {run.platform.name}: {shape}"
        eight = "e4m3fn" in (run.problem.formats["v"].base, run.problem.formats["k"].base)
        middle = [float(ball.mid()) for ball in real["output"].data.ravel()]
        np.testing.assert_allclose(middle, want[dims], rtol=0, atol=1e-7, err_msg=what)
        kernel = rounded["output"][0].astype(np.float64)
        np.testing.assert_allclose(kernel, want[dims], rtol=0, atol=0.3 if eight else 2e-2, err_msg=what)
        if "lse" in sites:
            assert abs(float(real["lse"].item().mid()) - want_lse) < 1e-6, what
            assert abs(float(rounded["lse"][0]) - want_lse) < (0.1 if eight else 1e-2), what
    assert ran >= 3
