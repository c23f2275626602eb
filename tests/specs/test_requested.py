"""Which kernel runs where a user asks for a backend: the table of vLLM 0.33.0 and of FlashInfer's own functions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from specs import SpecError, UnsupportedError, load_platform, load_spec, resolve_kernel, resolve_requested
from specs.bind import integers
from specs.context import make_context
from specs.document import parse_document, validate
from specs.requested import RequestedFile, load_requested
from verify.backends import load_backend

HEADS = {"q_heads": 8, "kv_heads": 2, "head_dim": 128}
CLOSED = "TRT-LLM-gen: the main kernel is a closed binary"
FA4 = "B200 runs FlashAttention-4"
VLLM: dict[str, Any] = {"fork": "vllm"}


def kernel(name: str, platform: str, **context: Any) -> str:
    """The spec, or the cause of the refusal."""
    try:
        return resolve_kernel(name, load_platform(platform), {**HEADS, **context})
    except UnsupportedError as error:
        return error.cause


@pytest.mark.parametrize(
    ("name", "platform", "context", "want"),
    [
        # FlashInfer in vLLM: XQA on Hopper and SM12x, TRT-LLM-gen on B200, native elsewhere
        ("flashinfer", "h200", {}, "xqa.decode"),
        ("flashinfer", "h200", {"k_format": "e4m3fn"}, "xqa.decode_fp8_sm90"),
        ("flashinfer", "h100_pcie", {"head_dim": 256}, "xqa.decode"),
        ("flashinfer", "sm120", {}, "xqa.decode"),
        ("flashinfer", "sm120", {"k_format": "e4m3fn"}, "xqa.decode"),
        ("flashinfer", "rtx5090", {"head_dim": 64}, "xqa.decode"),
        ("flashinfer", "b200", {}, CLOSED),
        ("flashinfer", "a100", {}, "flashinfer.fa2_decode"),
        ("flashinfer", "l40s", {}, "flashinfer.fa2_decode"),
        # the guards of XQA: head_dim 16 to 256 in steps of 16, no batch-invariant mode
        ("flashinfer", "sm120", {"head_dim": 512}, "flashinfer.fa2_decode"),
        ("flashinfer", "sm120", {"head_dim": 72}, "flashinfer.fa2_decode"),
        ("flashinfer", "sm120", {"batch_invariant": 1}, "flashinfer.fa2_decode"),
        ("flashinfer", "b200", {"batch_invariant": 1}, "flashinfer.fa2_decode"),
        (
            "flashinfer",
            "h200",
            {"batch_invariant": 1},
            "FlashInfer: Hopper runs FlashInfer's native fa3 kernel",
        ),
        ("flashinfer", "h200", {"head_dim": 512}, "FlashInfer: Hopper runs FlashInfer's native fa3 kernel"),
        ("flashinfer", "sm120", {"vllm_version": 1300}, "FlashInfer: what vLLM before 0.33.0 chooses"),
        ("flashinfer", "sm120", {"q_len": 4}, "FlashInfer: kernels for several query tokens"),
        # FlashInfer's own choice between XQA kernels
        ("xqa", "a100", {}, "xqa.decode"),
        ("xqa", "b200", {}, "xqa.decode"),
        ("xqa", "h200", {"k_format": "f16"}, "xqa.decode"),
        ("xqa", "h200", {"k_format": "e4m3fn"}, "xqa.decode_fp8_sm90"),
        ("xqa", "h200", {"k_format": "e4m3fn", "head_dim": 512}, "xqa.decode"),
        ("xqa", "h200", {"k_format": "e5m2"}, "XQA: it runs on Ampere and later, with KV in bf16"),
        ("trtllm_gen", "b200", {}, CLOSED),
        ("trtllm_gen", "h200", {}, "TRT-LLM-gen: its kernels exist for compute capability 10.0"),
        # FlashAttention in vLLM: 3 on Hopper, 4 on B200 but for head_dim 256, 2 elsewhere and with ALiBi
        ("flash_attn", "h200", VLLM, "flash_attn3.decode"),
        ("flash_attn", "h200", {"has_alibi": 1, **VLLM}, "flash_attn2.splitkv_decode"),
        ("flash_attn", "h200", {"q_len": 9}, "FlashAttention as vLLM calls it: Hopper runs FlashAttention-3"),
        ("flash_attn", "b200", {}, FA4),
        ("flash_attn", "b200", {"head_dim": 192}, FA4),
        ("flash_attn", "b200", {"head_dim": 256, **VLLM}, "flash_attn2.splitkv_decode"),
        ("flash_attn", "sm120", VLLM, "flash_attn2.splitkv_decode"),
        # the cache is paged, which takes the split kernel for any number of query tokens
        ("flash_attn", "l40s", {"q_len": 9, **VLLM}, "flash_attn2.splitkv_decode"),
        # other tiles and cuts than the library that it was forked from
        ("flash_attn", "h200", {}, "vLLM runs its own fork of version 3, with other tiles: set fork=vllm"),
        ("flash_attn", "sm120", {}, "vLLM runs its own fork of it"),
        # the order of backends in vLLM
        ("vllm", "h200", VLLM, "flash_attn3.decode"),
        ("vllm", "b200", {}, CLOSED),
        ("vllm", "sm120", VLLM, "flash_attn2.splitkv_decode"),
        ("vllm", "a100", VLLM, "flash_attn2.splitkv_decode"),
        (
            "vllm",
            "h200",
            {"vllm_version": 1300},
            "vLLM's default attention backend: what this version chooses",
        ),
        # Triton: 3D up to 128 // kv_heads sequences of one token, and of up to 8 causal ones
        ("triton", "h200", {"batch": 64}, "vllm_triton.decode_3d"),
        ("triton", "h200", {"batch": 65}, "vllm_triton.decode_2d"),
        ("triton", "sm120", {"batch_invariant": 1}, "vllm_triton.decode_2d"),
        ("triton", "b200", {"q_len": 16}, "vllm_triton.decode_2d"),
        ("triton", "h200", {"q_len": 8, "causal": 1}, "vllm_triton.decode_3d"),
        ("triton", "h200", {"q_len": 8}, "vllm_triton.decode_2d"),
        ("triton", "b200", {"q_len": 8, "causal": 1, "head_dim": 256}, "vllm_triton.decode_2d"),
    ],
)
def test_the_kernel_that_runs(name: str, platform: str, context: dict[str, Any], want: str) -> None:
    got = kernel(name, platform, **context)
    assert got == want if "." in want and " " not in want else want in got


@pytest.mark.parametrize(
    ("platform", "dim"),
    [
        ("h200", 128),
        ("b200", 256),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("h200", 256), ("b200", 128))),
    ],
)
def test_triton_is_3d_where_its_spec_says_that_it_fits(platform: str, dim: int) -> None:
    """Where one formula says 3D and the other does not, a name runs the wrong kernel, or none."""
    spec = load_spec("vllm_triton.decode_3d")
    free = spec.file.model_copy(update={"requires": ()})
    spec = replace(spec, file=free)
    seen: set[str] = set()
    for version, q_len, batch, group in product(
        (1100, 1300, 3300), (1, 2, 8, 9), (1, 15, 16, 17, 64, 65), (1, 6, 16)
    ):
        heads = {"q_heads": 2 * group, "kv_heads": 2, "head_dim": dim}
        shape = {**heads, "kv_len": 9, "q_len": q_len, "batch": batch, "vllm_version": version, "causal": 1}
        where = load_platform(platform)
        fits = integers(spec, make_context({**where.context, **shape}))["fits"]
        found = resolve_kernel("triton", where, shape)
        assert found == ("vllm_triton.decode_3d" if fits else "vllm_triton.decode_2d"), (platform, shape)
        seen.add(found)
    assert len(seen) == 2


def test_every_choice_leads_to_a_spec_of_the_library() -> None:
    table = load_requested()
    for asked in table.values():
        assert asked.kernels or asked.any or asked.by_capability
        for choice in asked.kernels:
            assert choice.ask is None or table[choice.ask].kernels
            assert choice.spec is None or load_spec(choice.spec).name == choice.spec


def test_a_refusal_says_where_it_came_from_and_what_is_described() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve_kernel("vllm", load_platform("b200"), HEADS)
    assert str(caught.value).startswith(
        "requested backend 'vllm -> flashinfer -> trtllm_gen' on b200: TRT-LLM-gen: the main kernel is a closed"
    )
    assert "trtllm_gen.reduction, which runs on given partial results" in caught.value.remedy


def test_names_with_a_defined_arithmetic_keep_it() -> None:
    h200 = load_platform("h200")
    assert resolve_requested("flashinfer", h200) == "walkthrough.xqa"
    assert resolve_requested("vllm:flashinfer", h200, HEADS) == "xqa.decode"
    assert resolve_requested("xqa", h200, HEADS) == "xqa.decode"
    assert load_backend("vllm:triton", h200, HEADS).name == "vllm_triton.decode_3d"
    assert load_backend("flash_attn", h200, VLLM).name == "flash_attn3.decode"
    with pytest.raises(SpecError, match="did you mean 'xqa'"):
        resolve_requested("vllm:xqqa", h200)
    with pytest.raises(UnsupportedError, match="dense attention: no kernel is described"):
        resolve_requested("vllm:dense", h200)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('spec = "a.b"\nask = "c"', "a choice has one of spec, ask and refuse"),
        ('when = "q_len == 1"', "a choice has one of spec, ask and refuse"),
        ('specs = "a.b"', "unknown key"),
    ],
)
def test_a_wrong_table_is_refused(text: str, cause: str) -> None:
    body = f'schema = 1\n[requested.mine]\ntitle = "mine"\n[[requested.mine.kernel]]\n{text}\n'
    with pytest.raises(SpecError, match=cause):
        validate(RequestedFile, parse_document(body, "mine.toml"))
