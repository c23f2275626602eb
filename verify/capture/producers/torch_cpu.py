"""PyTorch's flash attention for CPUs, ``aten::_scaled_dot_product_flash_attention_for_cpu``, in this process."""

from __future__ import annotations

from verify.capture.machine import importable, imported, library, release
from verify.capture.manifest import Library
from verify.capture.producers.base import Call, Produced, to_numpy, to_torch


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    return None if importable("torch") else "PyTorch is not installed: pip install 'ulpscope[torch]'"


def libraries(kernel: str) -> tuple[Library, ...]:
    """PyTorch."""
    return (library("torch", "torch"),)


def run(kernel: str, call: Call) -> Produced:
    """One call on one thread."""
    torch = imported("torch")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        q, k, v = (to_torch(x, "cpu").transpose(0, 1)[None] for x in (call.q, call.k, call.v))
        if call.group > 1:
            k, v = (x.repeat_interleave(call.group, dim=1) for x in (k, v))
        attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        q, k, v = (x.contiguous() for x in (q, k, v))
        output, lse = attention(q, k, v, is_causal=call.causal, scale=call.scale)
    finally:
        torch.set_num_threads(threads)
    return Produced(
        arrays={"lse": to_numpy(lse[0].transpose(0, 1)), "output": to_numpy(output[0].transpose(0, 1))},
        context={"torch_version": release(torch.__version__)},
        options={"threads": 1},
        call={
            "is_causal": call.causal,
            "scale": call.scale,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    )
