"""Attention of a whole sequence: every position has the bits of its own call."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from verify import emulate
from verify.forward.architecture import Architecture
from verify.forward.attention import bind_steps, bind_whole
from verify.forward.config import Attention

TOKENS = 150
MODEL = Architecture("llama", 1, 64, 64, 100, 4, 2, 32, 1e4, "halves", 1e-5, True)


def inputs(count: int = TOKENS) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(7)
    bf16 = ml_dtypes.bfloat16
    q = (2 * rng.standard_normal((count, 4, 32))).astype(bf16)
    k = (2 * rng.standard_normal((count, 2, 32))).astype(bf16)
    return q, k, rng.standard_normal((count, 2, 32)).astype(bf16)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def check_steps(cell: str, part: Attention, first: int, positions: list[int], backend: str) -> int:
    q, k, v = inputs()
    bound = bind_steps(part, MODEL, cell, first, TOKENS, q.dtype)
    assert [g.first for g in bound.groups[1:]] == [g.last for g in bound.groups[:-1]]
    assert (bound.groups[0].first, bound.groups[-1].last) == (first, TOKENS)
    out, lse = bound.attend(q[first:], k, v)
    for p in positions:
        n = p + 1
        own = emulate(
            bound.spec, bound.platform, q=q[p], k=k[:n], v=v[:n], context=dict(part.context), backend=backend
        )
        assert same(out[p - first], own.output), p
        if lse is not None:
            assert same(lse[p - first], own.lse), p
    return len(bound.groups)


def test_steps_are_calls_of_their_own():
    """walkthrough.triton cuts every length into other segments of whole tiles: groups are few but more than one."""
    part = Attention(kernel="walkthrough.triton@h200", context={"batch": 2})
    groups = check_steps(part.kernel, part, 3, [3, 15, 16, 31, 32, 100, 149], "oracle")
    assert 1 < groups < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        "flash_attn2.splitkv_decode@h200",
        "vllm_triton.decode_3d@b200",
        "xqa.decode@sm120",
        "flashinfer.fa2_decode@h200",
        "walkthrough.flash_attention_2@b200",
    ],
)
def test_steps_of_real_kernels(cell):
    """A minute each: two compilations of a kernel."""
    model = Architecture("llama", 1, 64, 64, 100, 4, 2, 64, 1e4, "halves", 1e-5, True)
    rng = np.random.default_rng(7)
    q, k, v = ((2 * rng.standard_normal((TOKENS, h, 64))).astype(ml_dtypes.bfloat16) for h in (4, 2, 2))
    bound = bind_steps(Attention(kernel=cell), model, cell, 0, TOKENS, q.dtype)
    out, _ = bound.attend(q, k, v)
    for p in (0, 1, 15, 16, 63, 64, 65, 127, 128, 149):
        own = emulate(bound.spec, bound.platform, q=q[p], k=k[: p + 1], v=v[: p + 1])
        assert same(out[p], own.output), p


def test_a_whole_call_is_one_causal_call():
    q, k, v = inputs(70)
    part = Attention(kernel="walkthrough.flash_attention_2@h200", calls="whole")
    bound = bind_whole(part, MODEL, part.kernel, 70, q.dtype)
    out, lse = bound.attend(q, k, v)
    own = emulate(bound.spec, bound.platform, q=q, k=k, v=v, causal=True)
    assert same(out, own.output)
    assert lse is not None
    assert same(lse, own.lse)
