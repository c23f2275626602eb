"""Random cases of each kernel that its spec takes: lengths around tiles, groups of 1 to 8, contexts, features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import judges
from .floats import to_e4m3
from .inputs import KINDS, attention
from .judging import Case

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 300, 383, 385, 511, 513)
GPUS = ("h200", "a100", "b200", "sm120", "rtx4090")
Judge = Callable[[Case, str, str], None]


def made(
    spec: str, platform: str, kind: str, shape: tuple[int, int, int, int], fmt: str = "bf16", **more: Any
) -> Case:
    """`shape` is n, q_heads, kv_heads, d; `q_len` among `more` gives q [q_len, q_heads, d]; `kv_fmt` e4m3 rounds k, v."""
    n, q_heads, kv_heads, d = shape
    rng = np.random.default_rng([n, d, KINDS.index(kind)])
    q, k, v = attention(kind, rng, n, q_heads, kv_heads, d, fmt=fmt, q_len=more.pop("q_len", 0))
    case = Case(spec, platform, q, k, v, fmt, **more)
    return replace(case, k=to_e4m3(k), v=to_e4m3(v)) if case.kv_fmt == "e4m3" else case


class Draw:
    """Choices that several kernels share."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.d = self.pick(64, 64, 128, 256)
        self.n = min(self.pick(*LENGTHS), 200 if self.d == 256 else 600)
        self.group, self.kv_heads = int(self.rng.integers(1, 9)), int(self.rng.integers(1, 3))
        self.fmt, self.kind, self.gpu = self.pick("bf16", "f16"), self.pick(*KINDS), self.pick(*GPUS)
        window = self.pick(0, 0, 0, 1, 20, 100, 257, 300)
        self.window: dict[str, Any] = {"window": window} if window else {}

    def pick(self, *of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.n, self.group * self.kv_heads, self.kv_heads, self.d

    def sinks(self) -> dict[str, Any]:
        if not self.chance(0.3):
            return {}
        return {"sinks": (3 * self.rng.standard_normal(self.group * self.kv_heads)).astype(np.float32)}


def flash_attn2(seed: int) -> Case:
    x = Draw(seed)
    splits = x.pick(0, 1, 2, 3, 5, 9, 17, 33, 65, 128) if x.group > 1 else 0
    context: dict[str, Any] = {"num_splits": splits, "fork": "dao" if splits > 1 else x.pick("dao", "vllm")}
    if x.chance(0.5):
        context["max_kv_len"] = x.n + x.pick(0, 1, 100, 2000)
    if x.window and x.chance(0.5):
        context |= {**x.window, "num_splits": 0}
    return made("flash_attn2.splitkv_decode", x.gpu, x.kind, x.shape, x.fmt, context=context)


def flash_attn2_tokens(seed: int) -> Case:
    x = Draw(seed)
    n = min(x.n, 200)
    q_len = min(x.pick(1, 2, 3, 5, 17, 63, 64, 65, 129, 130), n)
    d = x.d if q_len < 20 else 64
    spec = x.pick("flash_attn2.prefill", "flash_attn2.splitkv_decode")
    causal = bool(x.window) or x.chance(0.6)
    return made(spec, x.gpu, x.kind, (n, 2, 1, d), x.fmt, q_len=q_len, causal=causal, context=x.window)


def triton_3d(seed: int) -> Case:
    x = Draw(seed)
    context = {
        "triton_version": x.pick(307, 308),
        "vllm_version": x.pick(1100, 1300, 1401, 3100, 3300, 3300),
        **x.window,
    }
    if x.gpu == "sm120" and context["triton_version"] == 308:
        context["batch"] = 12
    return made("vllm_triton.decode_3d", x.gpu, x.kind, x.shape, x.fmt, context=context, features=x.sinks())


def triton_2d(seed: int) -> Case:
    x = Draw(seed)
    context = {"vllm_version": x.pick(1100, 1401, 3100, 3300, 3300), **x.window}
    return made("vllm_triton.decode_2d", x.gpu, x.kind, x.shape, x.fmt, context=context, features=x.sinks())


def xqa_decode(seed: int) -> Case:
    x = Draw(seed)
    context = dict(x.window)
    if x.chance(0.4):
        context["batch"] = x.pick(20, 40, 70, 200)
    if x.chance(0.3):
        context["kv_capacity"] = x.n + x.pick(0, 300, 1000)
    features, kv_fmt = x.sinks(), ""
    if x.gpu in ("b200", "sm120") and x.kind != "overflow" and x.chance(0.3):
        kv_fmt = "e4m3"
        if x.chance(0.5):
            features |= {"k_scale": 0.7, "v_scale": 1.3}
    return made(
        "xqa.decode", x.gpu, x.kind, x.shape, x.fmt, context=context, features=features, kv_fmt=kv_fmt
    )


def xqa_decode_fp8(seed: int) -> Case:
    x = Draw(seed)
    context = dict(x.window)
    if x.chance(0.4):
        context["batch"] = x.pick(20, 40, 70, 200)
    features = x.sinks()
    if x.chance(0.3):
        features |= {"k_scale": 0.7, "v_scale": 1.3}
    kind = "steps" if x.kind == "overflow" else x.kind
    more: dict[str, Any] = {"context": context, "features": features, "kv_fmt": "e4m3"}
    return made("xqa.decode_fp8_sm90", "h200", kind, x.shape, x.fmt, **more)


def trtllm_reduction(seed: int) -> Case:
    x = Draw(seed)
    more: dict[str, Any] = {"features": x.sinks(), "options": {"step_kv": x.pick(32, 64, 256)}}
    return made("trtllm_gen.reduction", "b200", x.kind, x.shape, x.fmt, **more)


def flashinfer_decode(seed: int) -> Case:
    x = Draw(seed)
    context: dict[str, Any] = {"page_size": x.pick(16, 32, 64, 1), "cuda_graph": x.pick(0, 0, 1)}
    if x.chance(0.5):
        context["batch"] = x.pick(2, 8, 60, 300)
    shape = (x.n, 17 * x.kv_heads, x.kv_heads, 64) if x.chance(0.1) else x.shape
    features: dict[str, Any] = {}
    kv_fmt = "e4m3" if x.kind != "overflow" and x.chance(0.3) else ""
    if kv_fmt and x.chance(0.5):
        features = {"k_scale": 0.7, "v_scale": 1.3}
    more: dict[str, Any] = {"context": context, "features": features, "kv_fmt": kv_fmt}
    return made("flashinfer.fa2_decode", x.gpu, x.kind, shape, x.fmt, **more)


def flash_attn3(seed: int) -> Case:
    x = Draw(seed)
    fork = x.pick("dao", "vllm")
    context: dict[str, Any] = {"fork": fork, "num_splits": x.pick(0, 1, 2, 3, 6, 17, 33)}
    if x.chance(0.3):
        context["cuda_graph"] = 1
    return made("flash_attn3.decode", x.pick("h200", "h100"), x.kind, x.shape, x.fmt, context=context)


KERNELS: dict[str, tuple[Callable[[int], Case], Judge]] = {
    "flash_attn2": (flash_attn2, judges.flash_attn2),
    "flash_attn2_tokens": (flash_attn2_tokens, judges.flash_attn2_tokens),
    "triton_3d": (triton_3d, judges.triton_3d),
    "triton_2d": (triton_2d, judges.triton_2d),
    "xqa_decode": (xqa_decode, judges.xqa_decode),
    "xqa_decode_fp8": (xqa_decode_fp8, judges.xqa_decode_fp8),
    "trtllm_reduction": (trtllm_reduction, judges.trtllm_reduction),
    "flash_attn3": (flash_attn3, judges.flash_attn3),
    "flashinfer_decode": (flashinfer_decode, judges.flashinfer_decode),
}
