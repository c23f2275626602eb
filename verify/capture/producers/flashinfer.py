"""FlashInfer: XQA decode with its scratch, native decode on tensor cores, and TensorRT-LLM's generated kernels.

XQA's partial results lie in the workspace that the caller gives. Layout (flashinfer-ai/flashinfer fb28d724,
csrc/xqa/mha.cu near line 2702, utils.h `Segmenter`, utils.cuh `Array2D::at<true>`), for S sub-sequences of one
sequence and H KV heads, G query heads a group, buffer b = S * kv_head + sub_sequence:

- maxima: S * H blocks of ``ceil(G / 32) * 8 * 4`` floats; row r at ``[r // 32, r % 8, r // 8 % 4]``;
- sums: the same;
- outputs, from the next multiple of their own size: S * H blocks ``[head_dim / 64, G, 8]`` of 16 bytes, eight numbers
  each; of row r, column group c lies at ``c ^ (r % 8)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.capture.machine import imported, library, release
from verify.capture.manifest import Library
from verify.capture.producers import base
from verify.capture.producers.base import Array, Call, Produced, needs, to_numpy, to_torch

XQA_PAGE, FA2_PAGE, GEN_PAGE = 64, 16, 64
SEMAPHORES = 8 << 20
WORKSPACE = 128 << 20


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    missing = needs("torch", "flashinfer")
    if missing is not None:
        return missing
    major = base.capability()[0]
    if kernel == "xqa" and major not in (9, 10, 12):
        return f"XQA runs on SM 9, 10 and 12, not on SM {major}"
    if kernel == "trtllm_gen" and major != 10:
        return f"TensorRT-LLM's generated kernels run on SM 10, not on SM {major}"
    return None


def libraries(kernel: str) -> tuple[Library, ...]:
    """FlashInfer and PyTorch."""
    return library("flashinfer-python", "flashinfer"), library("torch", "torch")


def _context(page: int, capacity: int) -> dict[str, int | str]:
    return {
        "flashinfer_version": release(libraries("xqa")[0].version),
        "page_size": page,
        "kv_capacity": capacity,
    }


def run(kernel: str, call: Call) -> Produced:
    """One call."""
    return {"xqa": _xqa, "flashinfer_fa2": _fa2, "trtllm_gen": _generated}[kernel](call)


def _xqa(call: Call) -> Produced:
    decode = imported("flashinfer.decode")
    torch = imported("torch")

    where = base.device()
    k_cache, v_cache, table = base.pages(call, XQA_PAGE, where)
    capacity = table.shape[1] * XQA_PAGE
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=where)
    given: dict[str, Any] = {
        "max_seq_len": capacity,
        "bmm1_scale": call.scale,
        "bmm2_scale": 1.0,
        "kv_layout": "NHD",
    }
    output = decode.xqa_batch_decode_with_kv_cache(
        query=to_torch(call.q, where),
        kv_cache=(k_cache, v_cache),
        workspace_buffer=workspace,
        block_tables=table,
        seq_lens=torch.tensor([call.k.shape[0]], dtype=torch.int32, device=where).view(torch.uint32),
        **given,
    )
    base.sync(where)
    subs = sub_sequences(base.sm_count(), call.k.shape[1], capacity)
    parts = to_numpy(workspace[SEMAPHORES : SEMAPHORES + scratch_bytes(subs, call)])
    arrays = xqa_scratch(parts, subs, call) if subs > 1 else {}
    return Produced(
        arrays={**arrays, "output": to_numpy(output.reshape(call.q.shape))},
        context=_context(XQA_PAGE, capacity),
        call={
            "function": "xqa_batch_decode_with_kv_cache",
            "page_size": XQA_PAGE,
            "sub_sequences": subs,
            **given,
        },
    )


def sub_sequences(sm_count: int, kv_heads: int, capacity: int) -> int:
    """How many one sequence has (launchMHAFlashInfer): by SMs, and by the capacity of the page table."""
    return max(1, min(max(1, sm_count // kv_heads), -(-capacity // 256)))


def _places(subs: int, call: Call) -> tuple[int, int, int]:
    """Floats of one block of maxima, bytes of one block of outputs, and where outputs begin."""
    group, depth = call.group, call.q.shape[-1]
    floats = -(-group // 32) * 32
    block = depth // 64 * group * 8 * 16
    begin = 2 * subs * call.k.shape[1] * floats * 4
    return floats, block, -(-begin // block) * block


def scratch_bytes(subs: int, call: Call) -> int:
    """Bytes of the scratch that one sequence uses."""
    _, block, begin = _places(subs, call)
    return begin + subs * call.k.shape[1] * block


def xqa_scratch(data: Array, subs: int, call: Call) -> dict[str, Array]:
    """Scratch as ``row_max``, ``row_sum [1, q_heads, sub]`` f32 and ``partial [1, q_heads, sub, head_dim]``."""
    floats, block, begin = _places(subs, call)
    kv_heads, group, depth = call.k.shape[1], call.group, call.q.shape[-1]
    row = np.arange(group)
    at = row // 32 * 32 + row % 8 * 4 + row // 8 % 4
    both = (
        data[: 2 * subs * kv_heads * floats * 4].view(np.float32).reshape(2, kv_heads, subs, floats)[..., at]
    )
    stats = np.moveaxis(both, 2, 3).reshape(2, 1, kv_heads * group, subs)
    outs = data[begin : begin + subs * kv_heads * block].view(call.q.dtype)
    outs = outs.reshape(kv_heads, subs, depth // 64, group, 8, 8)
    stored = np.arange(8)[None, :] ^ (row % 8)[:, None]
    outs = np.take_along_axis(outs, stored[None, None, None, :, :, None], axis=4)
    outs = outs.transpose(0, 3, 1, 2, 4, 5).reshape(1, kv_heads * group, subs, depth)
    names = {"row_max": stats[0], "row_sum": stats[1], "partial": outs}
    return {name: np.ascontiguousarray(array) for name, array in names.items()}


def _fa2(call: Call) -> Produced:
    flashinfer = imported("flashinfer")
    torch = imported("torch")

    where = base.device()
    k_cache, v_cache, table = base.pages(call, FA2_PAGE, where)
    count, n = table.shape[1], call.k.shape[0]
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=where)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=True, backend="fa2"
    )
    kind = k_cache.dtype
    wrapper.plan(
        torch.tensor([0, count], dtype=torch.int32, device=where),
        table[0],
        torch.tensor([(n - 1) % FA2_PAGE + 1], dtype=torch.int32, device=where),
        call.q.shape[1],
        call.k.shape[1],
        call.q.shape[2],
        FA2_PAGE,
        q_data_type=kind,
        kv_data_type=kind,
        sm_scale=call.scale,
    )
    output, lse = wrapper.run(to_torch(call.q, where), (k_cache, v_cache), return_lse=True)
    base.sync(where)
    return Produced(
        arrays={"lse": to_numpy(lse), "output": to_numpy(output)},
        context=_context(FA2_PAGE, count * FA2_PAGE),
        call={"function": "BatchDecodeWithPagedKVCacheWrapper", "backend": "fa2", "sm_scale": call.scale},
    )


def _generated(call: Call) -> Produced:
    decode = imported("flashinfer.decode")
    torch = imported("torch")

    where = base.device()
    k_cache, v_cache, table = base.pages(call, GEN_PAGE, where)
    k_cache, v_cache = (x.transpose(1, 2).contiguous() for x in (k_cache, v_cache))
    given: dict[str, Any] = {
        "max_seq_len": call.k.shape[0],
        "bmm1_scale": call.scale,
        "bmm2_scale": 1.0,
        "kv_layout": "HND",
        "backend": "trtllm-gen",
    }
    output = decode.trtllm_batch_decode_with_kv_cache(
        query=to_torch(call.q, where),
        kv_cache=(k_cache, v_cache),
        workspace_buffer=torch.zeros(WORKSPACE, dtype=torch.uint8, device=where),
        block_tables=table,
        seq_lens=torch.tensor([call.k.shape[0]], dtype=torch.int32, device=where),
        **given,
    )
    base.sync(where)
    return Produced(
        arrays={"output": to_numpy(output.reshape(call.q.shape))},
        context=_context(GEN_PAGE, table.shape[1] * GEN_PAGE),
        call={"function": "trtllm_batch_decode_with_kv_cache", "page_size": GEN_PAGE, **given},
    )
