"""vLLM's Triton unified attention, called as its backend calls it, with scratch of our own for the segments.

``unified_attention`` of vllm/v1/attention/ops/triton_unified_attention.py (vLLM 0.33.0, commit 4ba787ec9; before
0.14 under vllm/attention/ops). Scratch is filled with NaN first, so that segments that no program writes stay NaN.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import numpy as np

from verify.capture.machine import imported, library, number, release
from verify.capture.manifest import Library
from verify.capture.producers import base
from verify.capture.producers.base import Array, Call, Produced, needs, to_numpy, to_torch

HOMES = ("vllm.v1.attention.ops.triton_unified_attention", "vllm.attention.ops.triton_unified_attention")
PAGE = 16
SEGMENTS = 16


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    return needs("torch", "vllm", "triton")


def libraries(kernel: str) -> tuple[Library, ...]:
    """vLLM, Triton and PyTorch."""
    return library("vllm", "vllm"), library("triton", "triton"), library("torch", "torch")


def unified_attention() -> Any:
    """The function, from where this release has it.

    Raises:
        ImportError: it is in neither place.
    """
    try:
        return import_module(HOMES[0]).unified_attention
    except ModuleNotFoundError:
        return import_module(HOMES[1]).unified_attention


def segments(kv_heads: int) -> int:
    """How many the backend asks for: 64 for few sequences on SM 12.0 (0.33.0), else 16."""
    if number(_version())[:2] < (0, 33):
        return SEGMENTS
    few = (base.sm_count() - 1) // (SEGMENTS * kv_heads) >= 1
    return 64 if base.capability() == (12, 0) and few else SEGMENTS


def _version() -> str:
    return libraries("vllm_triton")[0].version


def run(kernel: str, call: Call) -> Produced:
    """One call: with scratch for the split kernel, without for the other."""
    where = base.device()
    return call_kernel(unified_attention(), call, where, split=kernel != "vllm_triton_2d")


def call_kernel(function: Any, call: Call, where: str, *, split: bool, segs: int | None = None) -> Produced:
    """Call ``function`` as `run` does; also for the interpreter."""
    torch = imported("torch")

    rows, heads, depth = call.q.shape
    k_cache, v_cache, table = base.pages(call, PAGE, where)
    n, kv_heads = call.k.shape[0], call.k.shape[1]
    count = segs or segments(kv_heads)
    padded = 1 << (depth - 1).bit_length()
    output = torch.zeros((rows, heads, depth), dtype=k_cache.dtype, device=where)
    scratch: dict[str, Any] = {}
    if split:
        shapes = {"softmax_segm_output": (padded,), "softmax_segm_max": (), "softmax_segm_expsum": ()}
        scratch = {
            name: torch.full((rows, heads, count, *last), float("nan"), dtype=torch.float32, device=where)
            for name, last in shapes.items()
        }
        scratch |= {"seq_threshold_3D": max(128 // kv_heads, 1), "num_par_softmax_segments": count}
    given: dict[str, Any] = {
        "max_seqlen_q": rows,
        "max_seqlen_k": n,
        "softmax_scale": call.scale,
        "causal": True,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
    }
    taken = inspect.signature(function).parameters
    function(
        q=to_torch(call.q, where),
        k=k_cache,
        v=v_cache,
        out=output,
        cu_seqlens_q=torch.tensor([0, rows], dtype=torch.int32, device=where),
        seqused_k=torch.tensor([n], dtype=torch.int32, device=where),
        block_table=table,
        **given,
        **{name: value for name, value in scratch.items() if name in taken},
    )
    base.sync(where)
    arrays: dict[str, Array] = {}
    if split:
        arrays = {
            "segm_max": to_numpy(scratch["softmax_segm_max"]),
            "segm_expsum": to_numpy(scratch["softmax_segm_expsum"]),
            "segm_output": np.ascontiguousarray(to_numpy(scratch["softmax_segm_output"])[..., :depth]),
        }
    compiler = number(library("triton", "triton").version)
    return Produced(
        arrays={**arrays, "output": to_numpy(output)},
        context={
            "vllm_version": release(_version()),
            "triton_version": 100 * compiler[0] + compiler[1],
            "page_size": PAGE,
            "kv_capacity": table.shape[1] * PAGE,
        },
        call={
            "function": "unified_attention",
            "segments": count if split else 0,
            **{name: str(value) if isinstance(value, tuple) else value for name, value in given.items()},
        },
    )
