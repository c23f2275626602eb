"""Specs of real kernels against second programs that were written apart from them (`tests/verify/references`).

Every comparison is bit for bit; NaN payloads alone are not compared. The scalar definition is compared in sampled rows
and columns of small shapes, the array engine whole on larger ones. Each test names what it reaches; what the two once
disagreed on stands at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.references import cases, judges
from tests.verify.references.cases import KERNELS, made
from tests.verify.references.judging import Case

SPLITKV, PREFILL = "flash_attn2.splitkv_decode", "flash_attn2.prefill"
TRITON, TRITON_2D = "vllm_triton.decode_3d", "vllm_triton.decode_2d"
XQA, XQA_FP8 = "xqa.decode", "xqa.decode_fp8_sm90"
FA3 = "flash_attn3.decode"
FLASHINFER, TRTLLM = "flashinfer.fa2_decode", "trtllm_gen.reduction"


def splits(count: int, **more: Any) -> dict[str, Any]:
    return {"num_splits": count, **more}


@pytest.mark.parametrize(
    ("gpu", "kind", "shape", "fmt", "context"),
    [
        ("h200", "normal", (1, 2, 1, 64), "bf16", {}),
        ("h200", "rising", (300, 2, 1, 64), "bf16", splits(1)),  # the aligned kernel, three blocks
        ("h200", "deep", (513, 2, 1, 64), "f16", splits(2)),
        ("a100", "falling", (129, 2, 1, 128), "bf16", {}),
        ("sm120", "steps", (130, 2, 1, 256), "bf16", splits(0)),
        ("h200", "peaked", (65, 8, 1, 64), "bf16", splits(33)),  # more splits than lanes of a combine row
        ("b200", "normal", (64, 4, 2, 128), "bf16", splits(128, max_kv_len=8000)),  # all splits but one empty
        ("h200", "overflow", (130, 4, 1, 64), "bf16", splits(3)),
        ("h200", "floor", (70, 2, 1, 64), "bf16", splits(2)),
        ("h200", "normal", (200, 2, 1, 64), "bf16", {"fork": "vllm", "max_kv_len": 5000}),
        ("h200", "normal", (140, 2, 2, 64), "bf16", {"window": 20}),
    ],
)
def test_flash_attention_2_decode(
    gpu: str, kind: str, shape: tuple[int, int, int, int], fmt: str, context: dict[str, Any]
) -> None:
    judges.flash_attn2(made(SPLITKV, gpu, kind, shape, fmt, context=context), "oracle", kind)


@pytest.mark.parametrize(
    ("spec", "gpu", "kind", "n", "q_len", "causal", "window"),
    [
        (PREFILL, "h200", "normal", 130, 3, False, 0),
        (PREFILL, "h200", "rising", 150, 130, True, 0),  # two row blocks, three blocks of keys
        (PREFILL, "rtx4090", "falling", 70, 5, True, 0),
        (PREFILL, "h200", "steps", 140, 20, True, 33),
        (SPLITKV, "h200", "deep", 140, 66, True, 0),
        (SPLITKV, "a100", "normal", 200, 3, True, 50),
    ],
)
def test_flash_attention_2_tokens(
    spec: str, gpu: str, kind: str, n: int, q_len: int, causal: bool, window: int
) -> None:
    context = {"window": window} if window else {}
    case = made(spec, gpu, kind, (n, 2, 1, 64), q_len=q_len, causal=causal, context=context)
    judges.flash_attn2_tokens(case, "oracle", kind)


@pytest.mark.parametrize(
    ("gpu", "kind", "shape", "fmt", "context"),
    [
        ("h200", "normal", (1, 2, 1, 128), "bf16", {}),
        ("h200", "rising", (150, 2, 1, 128), "bf16", {"triton_version": 307}),
        ("b200", "peaked", (130, 2, 1, 128), "bf16", {"triton_version": 307}),
        ("b200", "falling", (255, 2, 1, 128), "bf16", {}),
        ("sm120", "steps", (130, 2, 1, 128), "f16", {"batch": 12}),  # 16 segments there, too
        ("a100", "deep", (257, 2, 1, 64), "bf16", {}),
        ("h200", "overflow", (70, 4, 1, 64), "bf16", {}),
        (
            "h200",
            "floor",
            (200, 2, 1, 128),
            "bf16",
            {"window": 20, "vllm_version": 1300},
        ),  # segments that store 0
        ("h200", "tiny", (200, 2, 1, 128), "bf16", {"window": 100}),
    ],
)
def test_triton_3d(
    gpu: str, kind: str, shape: tuple[int, int, int, int], fmt: str, context: dict[str, Any]
) -> None:
    judges.triton_3d(made(TRITON, gpu, kind, shape, fmt, context=context), "oracle", kind)


@pytest.mark.parametrize(("kind", "n", "window"), [("rising", 100, 0), ("peaked", 65, 20), ("deep", 33, 0)])
def test_triton_2d(kind: str, n: int, window: int) -> None:
    case = made(TRITON_2D, "h200", kind, (n, 2, 1, 64), context={"window": window})
    judges.triton_2d(replace(case, features={"sinks": np.array([0.5, -3.0], np.float32)}), "oracle", kind)


@pytest.mark.parametrize(
    ("gpu", "kind", "shape", "fmt", "context", "sinks"),
    [
        ("h200", "normal", (1, 2, 1, 64), "bf16", {}, False),  # three of four warp groups without a tile
        ("h200", "rising", (300, 2, 1, 64), "bf16", {"batch": 200}, False),  # one CTA
        ("h200", "steps", (513, 2, 1, 64), "bf16", {"batch": 60}, True),  # two CTAs, second rounds of hints
        ("sm120", "steps", (300, 2, 1, 64), "bf16", {"batch": 200}, True),
        ("h200", "falling", (385, 1, 1, 128), "bf16", {"batch": 200}, False),
        ("sm120", "peaked", (257, 2, 1, 128), "f16", {}, False),
        ("h200", "deep", (150, 2, 1, 256), "bf16", {}, False),
        ("h200", "floor", (65, 2, 1, 64), "bf16", {}, False),  # below -1e5: NaN
        ("h200", "overflow", (130, 4, 1, 64), "bf16", {}, False),
        (
            "h200",
            "normal",
            (300, 2, 1, 64),
            "bf16",
            {"window": 20, "kv_capacity": 1000},
            False,
        ),  # idle sub-sequences
    ],
)
def test_xqa(
    gpu: str, kind: str, shape: tuple[int, int, int, int], fmt: str, context: dict[str, Any], sinks: bool
) -> None:
    features = {"sinks": np.linspace(-2, 3, shape[1]).astype(np.float32)} if sinks else {}
    judges.xqa_decode(made(XQA, gpu, kind, shape, fmt, context=context, features=features), "oracle", kind)


@pytest.mark.parametrize(
    ("spec", "gpu", "kind", "shape", "context"),
    [
        (XQA, "sm120", "steps", (129, 2, 1, 64), {}),
        (XQA_FP8, "h200", "steps", (257, 2, 1, 64), {}),
        (XQA_FP8, "h200", "rising", (200, 2, 1, 128), {"batch": 400}),  # one CTA
        (XQA_FP8, "h200", "falling", (300, 2, 1, 64), {"window": 100}),
        (XQA_FP8, "h200", "floor", (65, 2, 1, 64), {}),
    ],
)
def test_xqa_with_an_fp8_cache(
    spec: str, gpu: str, kind: str, shape: tuple[int, int, int, int], context: dict[str, Any]
) -> None:
    features = {"k_scale": 0.7, "v_scale": 1.3, "sinks": np.linspace(-2, 3, shape[1]).astype(np.float32)}
    case = made(spec, gpu, kind, shape, context=context, features=features, kv_fmt="e4m3")
    (judges.xqa_decode if spec == XQA else judges.xqa_decode_fp8)(case, "oracle", kind)


@pytest.mark.parametrize(
    ("gpu", "kind", "shape", "fmt", "context"),
    [
        ("h200", "normal", (1, 2, 1, 64), "bf16", {}),
        ("h200", "rising", (300, 2, 1, 64), "bf16", {}),  # three chunks
        ("a100", "falling", (257, 2, 1, 128), "f16", {"batch": 300}),  # one chunk
        ("sm120", "steps", (200, 2, 1, 128), "bf16", {"page_size": 1}),
        ("h200", "deep", (140, 2, 1, 256), "bf16", {}),
        ("h200", "peaked", (150, 17, 1, 64), "bf16", {}),  # one warp a tile
        ("h200", "overflow", (65, 4, 1, 64), "bf16", {"cuda_graph": 1}),
        (
            "h200",
            "overflow",
            (129, 2, 1, 64),
            "bf16",
            {"cuda_graph": 1},
        ),  # a chunk of NaN: its maximum is passed over
    ],
)
def test_flashinfer(
    gpu: str, kind: str, shape: tuple[int, int, int, int], fmt: str, context: dict[str, Any]
) -> None:
    judges.flashinfer_decode(made(FLASHINFER, gpu, kind, shape, fmt, context=context), "oracle", kind)


@pytest.mark.parametrize(
    ("kind", "shape", "fmt", "context"),
    [
        ("normal", (1, 2, 1, 64), "bf16", {}),
        ("rising", (390, 2, 1, 64), "bf16", splits(1)),  # four blocks
        ("falling", (260, 2, 1, 128), "bf16", splits(2)),
        ("steps", (100, 2, 1, 256), "f16", splits(7)),  # most of them empty
        ("deep", (300, 2, 1, 128), "bf16", {"fork": "vllm"}),
        ("overflow", (200, 4, 1, 64), "bf16", splits(3)),
        ("overflow", (129, 2, 1, 128), "bf16", splits(2)),  # a weight that is NaN is skipped as 0 is
    ],
)
def test_flash_attention_3(
    kind: str, shape: tuple[int, int, int, int], fmt: str, context: dict[str, Any]
) -> None:
    judges.flash_attn3(made(FA3, "h200", kind, shape, fmt, context=context), "oracle", kind)


@pytest.mark.parametrize("kind", ["rising", "peaked", "floor"])
def test_reducer_of_trtllm_gen(kind: str) -> None:
    case = made(TRTLLM, "b200", kind, (270, 1, 1, 64), options={"step_kv": 64})  # three partial results
    judges.trtllm_reduction(case, "oracle", kind)
    if kind == "peaked":
        judges.trtllm_reduction(replace(case, features={"sinks": np.array([1.5])}), "oracle", kind)


def test_a_difference_is_seen() -> None:
    """Hopper's tensor cores give what every split stores, and Ampere's do not."""
    case = made(SPLITKV, "h200", "normal", (300, 2, 1, 64), context=splits(2))
    got = case.start("oracle").outward("partial")
    q, k, v, _ = next(judges.per_head(case))

    def stored(core: judges.Core) -> Any:
        pieces = judges.fa2.splitkv(judges.fa2.Problem(q, k, v, 0.125, core), 2).pieces
        return np.stack([x.out for x in pieces], axis=1)

    judges.assert_same(got, stored(judges.HOPPER), "Hopper")
    with pytest.raises(AssertionError, match="differ"):
        judges.assert_same(got, stored(judges.AMPERE), "Ampere")


# -- what they disagreed on -------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["h200", "sm120"])
def test_xqa_keeps_subnormal_accumulators_where_no_maximum_changes(gpu: str) -> None:
    """`mha.cu`, skipAllRescale: without a change in any row nothing is multiplied, so nothing is flushed."""
    case = made(XQA, gpu, "faint", (128, 2, 1, 256), context={"batch": 200})
    judges.xqa_decode(case, "oracle", "faint")


@pytest.mark.parametrize("spec", [SPLITKV, PREFILL])
def test_flash_attention_2_skips_blocks_before_the_window_of_a_row_block(spec: str) -> None:
    """The same of many query tokens, in blocks of 64 or 128."""
    case = made(spec, "h200", "tiny", (200, 1, 1, 64), q_len=140, causal=True, context={"window": 1})
    judges.flash_attn2_tokens(case, "oracle", "tiny")


@pytest.mark.parametrize("n", [257, 520])
def test_flash_attention_2_skips_blocks_before_the_window(n: int) -> None:
    """`flash_fwd_kernel.h`, n_block_min: blocks that are not visited leave an underflowed output its sign."""
    judges.flash_attn2(made(SPLITKV, "h200", "tiny", (n, 2, 2, 64), context={"window": 1}), "oracle", "tiny")


# -- more of the same -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_cases(kernel: str, seed: int) -> None:
    draw, judge = KERNELS[kernel]
    judge(draw(seed), "oracle", f"{kernel}({seed})")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kernel", KERNELS)
def test_infinite_scores(kernel: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that overflow: what NaN and infinity become in maxima, guards and merges."""
    monkeypatch.setattr(cases, "KINDS", ("overflow", "overflow", "overflow", "steps"))
    draw, judge = KERNELS[kernel]
    judge(draw(1000 + seed), "oracle", f"{kernel}({1000 + seed})")


LARGE: list[tuple[str, Case]] = [
    ("flash_attn2", made(SPLITKV, "h200", "steps", (1100, 6, 2, 128))),
    ("triton_3d", made(TRITON, "h200", "steps", (1100, 6, 2, 128))),
    ("triton_2d", made(TRITON_2D, "h200", "steps", (600, 6, 2, 128))),
    ("xqa_decode", made(XQA, "h200", "steps", (1100, 6, 2, 128), context={"batch": 30})),
    ("xqa_decode", made(XQA, "sm120", "steps", (1100, 3, 1, 256), context={"batch": 60})),
    ("xqa_decode_fp8", made(XQA_FP8, "h200", "steps", (600, 6, 2, 128), kv_fmt="e4m3")),
    ("flashinfer_decode", made(FLASHINFER, "h200", "steps", (1100, 6, 2, 128))),
    ("flash_attn3", made(FA3, "h200", "steps", (1100, 6, 2, 128), context=splits(3))),
    ("trtllm_reduction", made(TRTLLM, "b200", "steps", (1100, 6, 2, 128))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "case"), LARGE, ids=[f"{name}-{case.platform}" for name, case in LARGE])
def test_engine_on_larger_shapes(kernel: str, case: Case) -> None:
    KERNELS[kernel][1](case, "engine", f"{kernel} n={len(case.k)}")
