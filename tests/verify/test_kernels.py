"""The array engine is the oracle on every site of every real kernel, with three or more groups and blocks.

The shapes are small; `test_references` and the live kernels judge the outputs of larger ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.discover import every
from tests.verify.laws import assert_engine_is_oracle, some_numbers
from verify.emulator import Run, start_run
from verify.engine.run import dispatch
from verify.sweep import KVCache

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """A kernel on a GPU and a shape that reaches each of its levels more than twice."""

    spec: str
    platform: str
    kv_len: int
    head_dim: int
    queries: int = 1
    heads: int = 3
    q_dtype: Any = BF16
    kv_dtype: Any = BF16
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    causal: bool = False
    quick: bool = True

    def __str__(self) -> str:
        return f"{self.spec}-{self.platform}-{self.head_dim}"


SHAPES = [
    Shape("flash_attn2.splitkv_decode", "h200", 1700, 64, context={"num_splits": 3}, quick=False),
    Shape(
        "flash_attn2.splitkv_decode", "a100", 500, 256, q_dtype=np.float16, kv_dtype=np.float16, quick=False
    ),
    Shape("flash_attn2.prefill", "h200", 200, 64, queries=3, causal=True, quick=False),
    Shape("flash_attn3.decode", "h200", 600, 128, context={"num_splits": 3}, quick=False),
    Shape("flashinfer.fa2_decode", "sm120", 500, 64, quick=False),
    Shape("trtllm_gen.reduction", "b200", 700, 128, quick=False),
    Shape("vllm_triton.decode_2d", "h200", 150, 128, quick=False),
    Shape("vllm_triton.decode_3d", "b200", 300, 128),
    Shape("vllm_triton.decode_3d", "h200", 300, 64, kv_dtype=F8, quick=False),
    Shape("vllm_triton.decode_3d", "a100", 300, 256, context={"triton_version": 307}, quick=False),
    Shape("vllm_triton.interpreter", "h200", 300, 16, quick=False),
    Shape("vllm_triton.interpreter_2d", "h200", 150, 16, quick=False),
    Shape("xqa.decode", "h200", 1700, 64, context={"sm_count": 3}, quick=False),
    Shape("xqa.decode", "sm120", 1700, 128, context={"sm_count": 3}, quick=False),
    Shape("xqa.decode_fp8_sm90", "h200", 500, 64, kv_dtype=F8, quick=False),
    Shape("torch_cpu.sdpa_flash", "amd_avx512", 1100, 64, quick=False),
]


def test_every_kernel_is_here() -> None:
    library = {f.name for f in every() if f.kind == "library"}
    assert {s.spec for s in SHAPES} == {n for n in library if not n.startswith("walkthrough.")}


def started(shape: Shape, kinds: tuple[str, str, str], seed: int) -> Run:
    """A run of the array engine on numbers of three kinds: of q, k and v."""
    rng = np.random.default_rng(seed)
    kv = (shape.kv_len, 1, shape.head_dim)
    q, k, v = (
        some_numbers(kind, rng, size, False)
        for kind, size in zip(kinds, ((shape.queries, shape.heads, shape.head_dim), kv, kv), strict=True)
    )
    k[:: max(1, shape.kv_len // 7)] *= 3  # maxima rise in the middle of the sequence, too
    most = 448.0 if shape.kv_dtype is F8 else 1e4
    arrays = {"q": q.astype(shape.q_dtype), "k": np.clip(k, -most, most).astype(shape.kv_dtype)}
    arrays["v"] = np.clip(v, -most, most).astype(shape.kv_dtype)
    platform = load_platform(shape.platform)
    return start_run(load_spec(shape.spec), platform, arrays, causal=shape.causal, context=shape.context)


@pytest.mark.parametrize(
    "kinds",
    [("usual", "usual", "usual"), pytest.param(("whole", "usual", "whole"), marks=pytest.mark.slow)],
    ids="-".join,
)
@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=() if s.quick else pytest.mark.slow, id=str(s)) for s in SHAPES]
)
def test_every_site(shape: Shape, kinds: tuple[str, str, str]) -> None:
    """By default one kernel on tensor cores; the plain operations of the others are those of the walkthroughs' laws."""
    run = started(shape, kinds, int(kinds[0] == "whole"))
    rows = shape.queries * shape.heads
    assert_engine_is_oracle(run, [(0, 0), (0, rows - 1)], [0, shape.head_dim - 1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "spread", "large"])
@pytest.mark.parametrize("spec", ["flash_attn2.splitkv_decode", "vllm_triton.decode_3d"])
def test_every_site_by_the_exact_path(spec: str, kind: str) -> None:
    """Numbers that f32 arrays on a CPU do not hold, with flushing and without."""
    shape = next(s for s in SHAPES if s.spec == spec)
    run = started(shape, ("usual", "usual", kind), 5)
    assert_engine_is_oracle(run, [(0, 0)], [1])


@pytest.mark.parametrize(
    ("spec", "platform"),
    [
        ("flash_attn2.splitkv_decode", "h200"),
        ("flash_attn3.decode", "h200"),
        ("flashinfer.fa2_decode", "h200"),
        ("vllm_triton.decode_3d", "h200"),
        ("xqa.decode", "h200"),
        ("xqa.decode", "sm120"),
    ],
)
def test_lengths_share_compiled_functions(spec: str, platform: str) -> None:
    """One function for each power of two of the capacity, with one table shape or two."""
    k = np.zeros((1 << 15, 1, 64), BF16)
    q = np.zeros((6, 64), BF16)
    cache = KVCache(load_spec(spec), k, k)
    recipes: set[Any] = set()
    shapes: set[Any] = set()
    for n in (4097, 5000, 6000, 7777, 8192, 8193, 10_000, 12_345, 16_000, 16_385, 20_001, 27_525, 32_768):
        run = cache.run(load_spec(spec), load_platform(platform), q, n, scale=0.125, more=True)
        recipe, dynamic = dispatch(run.work(), ["output"])
        recipes.add(recipe)
        shapes.add((dynamic["tokens"].shape, dynamic["v"].shape))
    assert len(recipes) == 1
    assert len(shapes) <= 5
