"""Which kernels a capture may hold: who runs each, which spec describes it, which array is which site.

Data only. Arrays are ``[q_len, q_heads, *axes of the site]``, levels outermost first, then ``dim``, as traces are
(`verify.result.Trace`), whatever layout the library uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from specs.errors import InputError
from verify.capture.inputs import ADVERSARIAL, around, recipe
from verify.capture.manifest import Recipe

Case = tuple[Recipe, bool]
"""A recipe, and whether the mask is causal."""


@dataclass(frozen=True)
class Site:
    """``array`` of the capture is ``site`` of the spec.

    ``whole``: as it stands; ``last``: the state that the innermost level leaves at the end of the level above it,
    NaN where nothing was visited.
    """

    array: str
    site: str
    at: Literal["whole", "last"] = "whole"


@dataclass(frozen=True)
class Releases:
    """Releases of the distribution ``library`` from ``low`` to ``high``; ``note``: what to know about others."""

    library: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    note: str


@dataclass(frozen=True)
class Kernel:
    """One shipped kernel.

    Attributes:
        title: for people. producer: module of `verify.capture.producers` that runs it.
        spec: what describes it.
        releases: those of its library that the spec describes.
        sites: arrays in the order in which the kernel computes them, so that the first difference is the cause.
        cases: the fixed inputs; takes whether only the quick ones are wanted.
        gpu: whether it runs on a GPU.
        oracle_up_to: products of q and k up to which the oracle predicts, where the engine would compile for longer.
        anywhere: the machine changes no bit.
    """

    title: str
    producer: str
    spec: str
    releases: Releases
    sites: tuple[Site, ...]
    cases: Callable[[bool], Iterator[Case]]
    gpu: bool = True
    oracle_up_to: int = 100_000
    anywhere: bool = False


_OUTPUT = (Site("lse", "lse"), Site("output", "output"))
_TRITON = (
    Site("segm_max", "m", "last"),
    Site("segm_expsum", "l", "last"),
    Site("segm_output", "acc", "last"),
    Site("output", "output"),
)
_SPLIT = (Site("lseaccum", "level"), Site("oaccum", "partial"), *_OUTPUT)


def _decode(
    lengths: tuple[int, ...],
    shapes: tuple[tuple[int, int, int], ...],
    dtypes: tuple[str, ...] = ("bf16", "f16"),
    kinds: tuple[str, ...] = ADVERSARIAL,
    teaching: bool = True,
) -> Callable[[bool], Iterator[Case]]:
    """One query token: every shape at every length, the other kinds at two lengths, the teaching input."""

    def cases(quick: bool) -> Iterator[Case]:
        some = lengths[:: max(1, len(lengths) // 4)] if quick else lengths
        for q_heads, kv_heads, head_dim in shapes[:1] if quick else shapes:
            sizes: dict[str, Any] = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
            for dtype in dtypes[:1] if quick else dtypes:
                for n in some:
                    yield recipe("random", n, dtype=dtype, seed=n, **sizes), False
                for kind in kinds:
                    for n in (some[-1],) if quick else (lengths[len(lengths) // 2], lengths[-1]):
                        yield recipe(kind, n, dtype=dtype, seed=1, **sizes), False
        if teaching and not quick:
            yield recipe("teaching", 27_525, q_heads=24, kv_heads=4, head_dim=256), False

    return cases


def _prefill(
    lengths: tuple[int, ...], heads: tuple[int, int], dims: tuple[int, ...]
) -> Callable[[bool], Iterator[Case]]:
    def cases(quick: bool) -> Iterator[Case]:
        for head_dim in dims[:1] if quick else dims:
            sizes: dict[str, Any] = {"q_heads": heads[0], "kv_heads": heads[1], "head_dim": head_dim}
            for n in lengths[:2] if quick else lengths:
                for causal in (False, True):
                    yield recipe("random", n, q_len=n, seed=n, **sizes), causal
                    yield recipe("spread", n, q_len=n, seed=n, **sizes), causal

    return cases


def _torch_cpu(quick: bool) -> Iterator[Case]:
    """Every branch of the kernel that its spec names, one head or two; small, since both sides run on a CPU."""
    sizes: dict[str, Any] = {"q_heads": 2, "kv_heads": 2, "head_dim": 64}
    kinds = ("spread", "sharp") if quick else ADVERSARIAL
    few = ((1, (17, 100)), (2, (17,)), (4, (5, 12)))
    more = ((1, (513,)), (3, (255,)), (4, (515,)), (7, (255,)), (33, (5,)), (34, (17,)))
    for q_len, lengths in few if quick else (*few, *more):
        for n in lengths:
            yield recipe("random", n, q_len=q_len, seed=n, **sizes), False
    for kind in kinds:
        yield recipe(kind, 110, q_len=1, seed=3, **sizes), False
        if not quick:
            yield recipe(kind, 110, q_len=4, seed=3, **sizes), False
    if not quick:
        yield recipe("random", 35, q_len=35, seed=35, **sizes), True
        for n in around(16, 256, 512):
            for q_len in (1, 2, 4):
                yield recipe("spread", n, q_len=q_len, seed=n, **sizes), False
        yield recipe("random", 40, q_heads=4, kv_heads=2, head_dim=128), False


_SHAPES = ((8, 2, 128), (24, 4, 256), (8, 1, 64), (16, 4, 128))
_FLASH = (1, 5, *around(64, 128, 256, 1024), 2_000, 4_096, 8_193)
_SEGMENTS = (1, *around(16, 256, 512, 4_096), 1_000, 8_193)
_XQA = (1, *around(64, 256, 512, 8_448), 1_000, 4_097)

_TORCH = Releases("torch", (2, 13, 0), (2, 13, 0), "pip install 'ulpscope[torch]' brings PyTorch 2.13.0")
_FLASH_ATTN = Releases(
    "flash-attn",
    (2, 8, 4),
    (2, 8, 4),
    "the spec describes 2.8.4 (commit 0251105a): from 2026-04 on a single split has tiles of its own",
)
_VLLM = Releases("vllm", (0, 11, 0), (0, 33, 0), "the spec describes vLLM 0.11.0 to 0.33.0")
_VLLM_INTERPRETED = replace(
    _VLLM, low=_VLLM.high, note="the spec describes vLLM 0.33.0, interpreted by Triton 3.7"
)
_VLLM_FORK = replace(
    _VLLM,
    low=_VLLM.high,
    note="the spec was read at commit 617264c1 of the fork; vLLM 0.33.0 is the release nearest to it",
)
_FLASHINFER = Releases("flashinfer-python", (0, 6, 18), (0, 7, 2), "the spec describes 0.6.18 to 0.7.2")

KERNELS: dict[str, Kernel] = {
    "torch_cpu": Kernel(
        title="PyTorch's flash attention on a CPU",
        producer="torch_cpu",
        spec="torch_cpu.sdpa_flash",
        releases=_TORCH,
        sites=_OUTPUT,
        cases=_torch_cpu,
        gpu=False,
        oracle_up_to=1_000_000,
    ),
    "triton_interpreter": Kernel(
        title="vLLM's Triton unified attention in Triton's interpreter, with a defined order",
        producer="triton_interpreter",
        spec="vllm_triton.interpreter",
        releases=_VLLM_INTERPRETED,
        sites=_TRITON,
        cases=_decode((1, 15, 17, 40), ((4, 1, 64),), ("bf16",), ("sharp", "spread"), teaching=False),
        gpu=False,
        anywhere=True,
    ),
    "flash_attn": Kernel(
        title="FlashAttention-2 of Dao-AILab, decode over a paged cache (flash_attn_with_kvcache)",
        producer="flash_attn",
        spec="flash_attn2.splitkv_decode",
        releases=_FLASH_ATTN,
        sites=_SPLIT,
        cases=_decode(_FLASH, _SHAPES),
    ),
    "flash_attn_prefill": Kernel(
        title="FlashAttention-2 of Dao-AILab, prefill (flash_attn_func)",
        producer="flash_attn",
        spec="flash_attn2.prefill",
        releases=_FLASH_ATTN,
        sites=_OUTPUT,
        cases=_prefill(around(64, 128, 513), (4, 2), (128, 64, 256)),
    ),
    "vllm_flash_attn": Kernel(
        title="vLLM's fork of FlashAttention-2, decode over a paged cache",
        producer="flash_attn",
        spec="flash_attn2.splitkv_decode",
        releases=_VLLM_FORK,
        sites=_SPLIT,
        cases=_decode(_FLASH, _SHAPES),
    ),
    "vllm_triton": Kernel(
        title="vLLM's Triton unified attention, split decode",
        producer="vllm_triton",
        spec="vllm_triton.decode_3d",
        releases=_VLLM,
        sites=_TRITON,
        cases=_decode(_SEGMENTS, _SHAPES),
    ),
    "vllm_triton_2d": Kernel(
        title="vLLM's Triton unified attention, one program a row block",
        producer="vllm_triton",
        spec="vllm_triton.decode_2d",
        releases=_VLLM,
        sites=(Site("output", "output"),),
        cases=_decode(_SEGMENTS[:-2], _SHAPES),
    ),
    "xqa": Kernel(
        title="FlashInfer's XQA decode (mha.cu)",
        producer="flashinfer",
        spec="xqa.decode",
        releases=_FLASHINFER,
        sites=(
            Site("row_max", "best"),
            Site("row_sum", "s0"),
            Site("partial", "partial"),
            Site("output", "output"),
        ),
        cases=_decode(_XQA, _SHAPES, kinds=(*ADVERSARIAL, "low")),
    ),
    "flashinfer_fa2": Kernel(
        title="FlashInfer's native decode on tensor cores (backend fa2)",
        producer="flashinfer",
        spec="flashinfer.fa2_decode",
        releases=_FLASHINFER,
        sites=(Site("lse", "lse2"), Site("output", "output")),
        cases=_decode(_FLASH, _SHAPES),
    ),
    "trtllm_gen": Kernel(
        title="TensorRT-LLM's generated decode kernels through FlashInfer",
        producer="flashinfer",
        spec="trtllm_gen.reduction",
        releases=_FLASHINFER,
        sites=(Site("output", "output"),),
        cases=_decode(_FLASH, _SHAPES[:1]),
    ),
}

PROBES: dict[str, str] = {
    "mufu": "MUFU.EX2, RCP, RSQ and LG2 over all 2**32 operands, against the model",
    "mma": "mma.sync on random and adversarial operands, against the dot-product model",
    "wgmma": "wgmma on random and adversarial operands, against the dot-product model",
}
NAMES = (*KERNELS, *PROBES)


def listed_kernels(names: str) -> tuple[str, ...]:
    """Names separated by commas, each once.

    Raises:
        InputError: there is none.
    """
    listed = tuple(dict.fromkeys(word.strip() for word in names.split(",") if word.strip()))
    if not listed:
        raise InputError("no kernel is named", place="--kernels", remedy=f"give some of {', '.join(NAMES)}")
    return listed
