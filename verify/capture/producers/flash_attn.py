"""FlashAttention-2 of Dao-AILab and of vLLM: decode over a paged cache with its split partial results, and prefill.

The partial results are tensors that the libraries allocate and drop: ``out_accum [splits, batch, heads, rows, depth]``
and ``softmax_lse_accum [splits, batch, heads, rows]`` in f32 (set_params_splitkv of csrc/flash_attn/flash_api.cpp,
Dao-AILab/flash-attention 0251105a, vllm-project/flash-attention 617264c1). With one query token and grouped heads
``heads`` are the KV heads and ``rows`` the query heads of a group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.capture.machine import imported, library
from verify.capture.manifest import Library
from verify.capture.producers import base
from verify.capture.producers.base import Array, Call, Produced, needs, to_numpy, to_torch

DAO_PAGE, VLLM_PAGE = 256, 16


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    return needs("torch", "vllm" if kernel.startswith("vllm") else "flash_attn")


def libraries(kernel: str) -> tuple[Library, ...]:
    """The library, and PyTorch."""
    if kernel.startswith("vllm"):
        return library("vllm", "vllm"), library("torch", "torch")
    return library("flash-attn", "flash_attn"), library("torch", "torch")


def run(kernel: str, call: Call) -> Produced:
    """One call."""
    if kernel == "flash_attn_prefill":
        return _prefill(call)
    return _vllm(call) if kernel == "vllm_flash_attn" else _dao(call)


def _prefill(call: Call) -> Produced:
    flash_attn = imported("flash_attn")

    where = base.device()
    q, k, v = (to_torch(x, where)[None] for x in (call.q, call.k, call.v))
    given = {"softmax_scale": call.scale, "causal": call.causal}
    output, lse, _ = flash_attn.flash_attn_func(q, k, v, **given, return_attn_probs=True)
    base.sync(where)
    arrays = {"lse": to_numpy(lse[0].transpose(0, 1)), "output": to_numpy(output[0])}
    return Produced(arrays, {"fork": "dao"}, call={"function": "flash_attn_func", **given})


def _dao(call: Call) -> Produced:
    flash_attn = imported("flash_attn")
    torch = imported("torch")

    from verify.capture.producers.allocations import Allocations

    where = base.device()
    k_cache, v_cache, table = base.pages(call, DAO_PAGE, where)
    given: dict[str, Any] = {"softmax_scale": call.scale, "causal": call.causal, "num_splits": 0}
    n = call.k.shape[0]
    q = to_torch(call.q, where)[None]
    with Allocations() as made:
        output, lse = flash_attn.flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            cache_seqlens=torch.tensor([n], dtype=torch.int32, device=where),
            block_table=table,
            return_softmax_lse=True,
            **given,
        )
        base.sync(where)
    return Produced(
        arrays={
            **_partial(call, made),
            "lse": to_numpy(lse[0].transpose(0, 1)),
            "output": to_numpy(output[0]),
        },
        context={
            "fork": "dao",
            "page_size": DAO_PAGE,
            "kv_capacity": table.shape[1] * DAO_PAGE,
            "num_splits": 0,
        },
        options={"kvcache": True},
        call={"function": "flash_attn_with_kvcache", "page_size": DAO_PAGE, **given},
    )


def _vllm(call: Call) -> Produced:
    torch = imported("torch")
    flash_attn_varlen_func = imported("vllm.vllm_flash_attn").flash_attn_varlen_func

    from verify.capture.producers.allocations import Allocations

    where = base.device()
    k_cache, v_cache, table = base.pages(call, VLLM_PAGE, where)
    rows, n = call.q.shape[0], call.k.shape[0]
    given: dict[str, Any] = {
        "max_seqlen_q": rows,
        "max_seqlen_k": n,
        "softmax_scale": call.scale,
        "causal": call.causal,
        "num_splits": 0,
        "fa_version": 2,
    }
    q = to_torch(call.q, where)
    with Allocations(getattr(torch._C.DispatchKey, where.upper())) as made:
        output, lse = flash_attn_varlen_func(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=torch.tensor([0, rows], dtype=torch.int32, device=where),
            seqused_k=torch.tensor([n], dtype=torch.int32, device=where),
            block_table=table,
            return_softmax_lse=True,
            **given,
        )
        base.sync(where)
    return Produced(
        arrays={**_partial(call, made), "lse": to_numpy(lse.transpose(0, 1)), "output": to_numpy(output)},
        context={
            "fork": "vllm",
            "page_size": VLLM_PAGE,
            "kv_capacity": table.shape[1] * VLLM_PAGE,
            "num_splits": 0,
        },
        call={"function": "flash_attn_varlen_func", "page_size": VLLM_PAGE, **given},
    )


def _partial(call: Call, made: Any) -> dict[str, Array]:
    """``oaccum [q_len, q_heads, split, head_dim]`` and ``lseaccum [q_len, q_heads, split]``; none where nothing split."""
    torch = imported("torch")

    outs, levels = made.find(torch.float32, 5), made.find(torch.float32, 4)
    outs = [t for t in outs if t.shape[-1] >= call.q.shape[-1]]
    levels = [t for t in levels if outs and t.shape == outs[-1].shape[:-1]]
    if not outs or not levels:
        return {}
    return {
        "oaccum": _rows(to_numpy(outs[-1]), call)[..., : call.q.shape[-1]],
        "lseaccum": _rows(to_numpy(levels[-1]), call),
    }


def _rows(array: Array, call: Call) -> Array:
    """``[splits, batch, heads, rows, ...]`` of the first sequence as ``[q_len, q_heads, splits, ...]``."""
    first = np.moveaxis(array[:, 0], 0, 2)
    if first.shape[0] == call.q.shape[1]:
        return np.ascontiguousarray(np.moveaxis(first, 0, 1))
    return np.ascontiguousarray(first.reshape(1, call.q.shape[1], *first.shape[2:]))
