"""Specs of real kernels against second programs that were written apart from them (`tests/verify/references`).

Every comparison is bit for bit; NaN payloads alone are not compared. The scalar definition is compared on small
shapes in sampled rows and columns, the array engine whole on larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.references import flash_attn2 as fa2
from tests.verify.references import triton_attention as triton
from tests.verify.references import xqa
from tests.verify.references.floats import Array
from tests.verify.references.inputs import KINDS, attention, heads
from tests.verify.references.judging import Case, compare, core_of


def per_head(case: Case) -> Iterator[tuple[Array, Array, Array]]:
    for h in range(case.k.shape[1]):
        yield heads(case.q, case.k, case.v, h)


def made(
    spec: str, platform: str, kind: str, shape: tuple[int, int, int, int], fmt: str = "bf16", **more: Any
) -> Case:
    """`shape` is n, q_heads, kv_heads, d."""
    n, q_heads, kv_heads, d = shape
    rng = np.random.default_rng([n, d, KINDS.index(kind)])
    q, k, v = attention(kind, rng, n, q_heads, kv_heads, d, fmt=fmt)
    return Case(spec, platform, q, k, v, fmt, **more)


# -- FlashAttention-2 -------------------------------------------------------------------------------------


def judge_fa2(case: Case, backend: str, what: str) -> None:
    run = case.start(backend)
    splits = int(run.plan.program.integers["splits"])
    n, d = len(case.k), case.q.shape[-1]
    longest = case.context.get("max_kv_len", n) if case.context.get("fork", "dao") == "dao" else n
    problems = [fa2.Problem(*x, d**-0.5, core_of(case.device), case.fmt) for x in per_head(case)]
    done = [fa2.splitkv(p, splits, longest) for p in problems]
    want = {"output": np.concatenate([x.out for x in done]), "lse": np.concatenate([x.lse for x in done])}
    compare(case, backend, run, want, f"{what} splits={splits}")


@pytest.mark.parametrize("kind", KINDS)
def test_fa2_kinds(kind: str) -> None:
    case = made("flash_attn2.splitkv_decode", "h200", kind, (300, 4, 2, 64))
    judge_fa2(case, "oracle", kind)


def judge_fa2_prefill(case: Case, backend: str, what: str, window: int = 0) -> None:
    """q [q_len, q_heads, d]; the window of the context counts the query's own token."""
    run = case.start(backend)
    n, d = len(case.k), case.q.shape[-1]
    q_len, q_heads = case.q.shape[:2]
    group = q_heads // case.k.shape[1]
    causal = case.causal and not window and q_len > 1
    sides = (window - 1, 0) if window else (-1, -1)
    sm8x = 80 < case.device.compute_capability < 90
    outs, lses = [], []
    for h in range(q_heads):
        p = fa2.Problem(
            case.q[:, h],
            case.k[:, h // group],
            case.v[:, h // group],
            d**-0.5,
            core_of(case.device),
            case.fmt,
        )
        done = fa2.prefill(replace(p, causal=causal, window=sides), sm8x=sm8x)
        outs.append(done.out)
        lses.append(done.lse)
    want = {"output": np.stack(outs, axis=1), "lse": np.stack(lses, axis=1)}
    compare(case, backend, run, want, f"{what} q={q_len} n={n}")


# -- vLLM's Triton kernels --------------------------------------------------------------------------------


def judge_triton(case: Case, backend: str, what: str, **more: Any) -> None:
    """What every segment stores; the output where the trees were read apart from the spec (d = 128, 16 segments)."""
    run = case.start(backend)
    d, sm = case.q.shape[-1], case.device.compute_capability
    segments, tile = (int(run.plan.program.integers[x]) for x in ("segs", "tile_tokens"))
    version = {307: "3.7.1", 308: "3.8.0"}[case.context.get("triton_version", 308)]
    outs, tops, sums = [], [], []
    for q, k, v in per_head(case):
        p = triton.Problem(
            q, k, v, d**-0.5, core_of(case.device), case.fmt, segments=segments, tile=tile, **more
        )
        pieces = [triton.segment(p, i) for i in range(segments)]
        live = [x.written & (x.total > 0) & ~np.isneginf(x.top) for x in pieces]
        tops.append(
            np.stack([np.where(ok, x.top, -np.inf) for ok, x in zip(live, pieces, strict=True)], axis=1)
        )
        sums.append(np.stack([np.where(ok, x.total, 0) for ok, x in zip(live, pieces, strict=True)], axis=1))
        if d == 128 and segments == 16:
            outs.append(triton.reduce_segments(p, pieces, version, sm)[0])
    want = {"top": np.concatenate(tops), "norm": np.concatenate(sums)}
    if outs:
        want["output"] = np.concatenate(outs)
    compare(case, backend, run, want, what)


def judge_triton_2d(case: Case, backend: str, what: str, **more: Any) -> None:
    run = case.start(backend)
    d = case.q.shape[-1]
    problems = [
        triton.Problem(*x, d**-0.5, core_of(case.device), case.fmt, tile=32, **more) for x in per_head(case)
    ]
    compare(case, backend, run, {"output": np.concatenate([triton.decode_2d(p)[0] for p in problems])}, what)


# -- XQA --------------------------------------------------------------------------------------------------


def judge_xqa(case: Case, backend: str, what: str, window: int = 0) -> None:
    """What every sub-sequence stores (output, maximum, sum) and what the last CTA makes of it."""
    run = case.start(backend)
    n, d, kv_heads = len(case.k), case.q.shape[-1], case.k.shape[1]
    device, features = case.device, case.features
    v_tile = 32 if device.compute_capability in (86, 89, 120) else 64
    capacity = case.context.get("kv_capacity", n)
    count = max(1, xqa.sub_sequences(device.sm_count, case.context.get("batch", 1), kv_heads, capacity))
    k_scale, v_scale = features.get("k_scale", 1.0), features.get("v_scale", 1.0)
    quantized = bool(case.kv_fmt)
    qk = xqa.host_scale(d**-0.5 * k_scale, d, kv_scale=v_scale, bmm2=v_scale, quantized=quantized)
    outs, parts, tops, sums = [], [], [], []
    for h, (q, k, v) in enumerate(per_head(case)):
        sinks = features.get("sinks")
        mine = None if sinks is None else sinks[h * len(q) : (h + 1) * len(q)]
        p = xqa.Problem(
            q, k, v, qk, core_of(device), v_tile, case.fmt, window, mine, v_scale if quantized else 1.0
        )
        out, pieces = xqa.decode(p, count)
        outs.append(out)
        parts.append(np.stack([x.out for x in pieces], axis=1))
        tops.append(np.stack([x.top for x in pieces], axis=1))
        sums.append(np.stack([x.total for x in pieces], axis=1))
    want = {"partial": np.concatenate(parts), "best": np.concatenate(tops), "output": np.concatenate(outs)}
    if count > 1:
        want["s0"] = np.concatenate(sums)
    compare(case, backend, run, want, f"{what} subs={count}")
