"""For each kernel: the sites of its spec that the second program gives, too, and their comparison."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import flash_attn2 as fa2
from . import flash_attn3 as fa3
from . import flashinfer_fa2 as flashinfer
from . import triton_attention as triton
from . import trtllm_gen, xqa, xqa_fp8
from .dots import AMPERE, HOPPER, Core
from .floats import F32, IEEE, Array, round_to
from .inputs import heads
from .judging import Case, assert_same, compare, core_of


def per_head(case: Case) -> Iterator[tuple[Array, Array, Array, Array | None]]:
    """q, k, v and sinks of each KV head."""
    sinks = case.features.get("sinks")
    for h in range(case.k.shape[1]):
        q, k, v = heads(case.q, case.k, case.v, h)
        yield q, k, v, None if sinks is None else np.asarray(sinks, F32)[h * len(q) : (h + 1) * len(q)]


def flash_attn2(case: Case, backend: str, what: str) -> None:
    """`flash_attn2.splitkv_decode`, one query token: output and log-sum-exp."""
    run = case.start(backend)
    splits = int(run.plan.program.integers["splits"])
    n, d, window = len(case.k), case.q.shape[-1], case.context.get("window", 0)
    longest = case.context.get("max_kv_len", n) if case.context.get("fork", "dao") == "dao" else n
    done: list[fa2.Result] = []
    for q, k, v, _ in per_head(case):
        if not window:
            done.append(
                fa2.splitkv(fa2.Problem(q, k, v, d**-0.5, core_of(case.device), case.fmt), splits, longest)
            )
            continue
        for row in q:  # not swapped: the rows of a block are tokens, here one
            p = fa2.Problem(row[None], k, v, d**-0.5, core_of(case.device), case.fmt, window=(window - 1, 0))
            done.append(fa2.splitkv(p, splits, longest))
    want = {"output": np.concatenate([x.out for x in done]), "lse": np.concatenate([x.lse for x in done])}
    compare(case, backend, run, want, f"{what} splits={splits}")


def flash_attn2_tokens(case: Case, backend: str, what: str) -> None:
    """`flash_attn2.prefill`, or `splitkv_decode` without a split: q [q_len, q_heads, d]."""
    run = case.start(backend)
    n, d, window = len(case.k), case.q.shape[-1], case.context.get("window", 0)
    q_len, q_heads = case.q.shape[:2]
    group = q_heads // case.k.shape[1]
    sides = (window - 1, 0 if case.causal else -1) if window else (-1, -1)
    causal = case.causal and not window and q_len > 1
    outs: list[Array] = []
    lses: list[Array] = []
    for h in range(q_heads):
        q, k, v = case.q[:, h], case.k[:, h // group], case.v[:, h // group]
        p = fa2.Problem(q, k, v, d**-0.5, core_of(case.device), case.fmt, causal, sides)
        if case.spec == "flash_attn2.prefill":
            sm = case.device.compute_capability  # 128 rows of head_dim 256 fit A100's shared memory best
            done = fa2.prefill(p, sm8x=80 < sm < 90, block_m_256=128 if sm == 80 else 64)
        else:
            done = fa2.splitkv(p, int(run.plan.program.integers["splits"]))
        outs.append(done.out)
        lses.append(done.lse)
    want = {"output": np.stack(outs, axis=1), "lse": np.stack(lses, axis=1)}
    compare(case, backend, run, want, f"{what} q={q_len} n={n}")


def triton_problems(case: Case, segments: int, tile: int) -> list[triton.Problem]:
    """One for each KV head."""
    vllm, d = case.context.get("vllm_version", 3300), case.q.shape[-1]
    return [
        triton.Problem(
            q,
            k,
            v,
            d**-0.5,
            core_of(case.device),
            case.fmt,
            case.context.get("window", 0),
            sinks,
            segments,
            tile,
            before_33=vllm < 3300,
            pruned=vllm >= 1401 or segments == 1,
        )
        for q, k, v, sinks in per_head(case)
    ]


def triton_3d(case: Case, backend: str, what: str) -> None:
    """What every segment stores; the output where the trees are in the facts (d = 128, 16 segments)."""
    run = case.start(backend)
    segments, tile = (int(run.plan.program.integers[x]) for x in ("segs", "tile_tokens"))
    version = {307: "3.7.1", 308: "3.8.0"}[case.context.get("triton_version", 308)]
    outs: list[Array] = []
    tops: list[Array] = []
    sums: list[Array] = []
    for p in triton_problems(case, segments, tile):
        pieces = [triton.segment(p, i) for i in range(segments)]
        seen = triton.counted(p, pieces)
        tops.append(
            np.stack([np.where(ok, x.top, -np.inf) for ok, x in zip(seen, pieces, strict=True)], axis=1)
        )
        sums.append(np.stack([np.where(ok, x.total, 0) for ok, x in zip(seen, pieces, strict=True)], axis=1))
        if p.q.shape[1] == 128 and segments == 16:
            outs.append(triton.reduce_segments(p, pieces, version, case.device.compute_capability)[0])
    want = {"top": np.concatenate(tops)}
    if not case.context.get("window", 0) or case.context.get("vllm_version", 3300) >= 3300:
        # vLLM 0.14 to 0.31 stores L = 1 with M = -inf where no tile of a segment is visited; the spec has 0 there,
        # which weighs as nothing, too
        want["norm"] = np.concatenate(sums)
    if outs:
        want["output"] = np.concatenate(outs)
    compare(case, backend, run, want, what)


def triton_2d(case: Case, backend: str, what: str) -> None:
    """The output of one CTA."""
    outs = [triton.decode_2d(p)[0] for p in triton_problems(case, 1, 32)]
    compare(case, backend, case.start(backend), {"output": np.concatenate(outs)}, what)


def xqa_scales(case: Case, *, quantized: bool) -> tuple[np.float32, float]:
    """The factor of the dots, and that of the outputs."""
    k_scale, v_scale = (case.features.get(x, 1.0) for x in ("k_scale", "v_scale"))
    d = case.q.shape[-1]
    factor = xqa.host_scale(d**-0.5 * k_scale, d, kv_scale=v_scale, bmm2=v_scale, quantized=quantized)
    return factor, v_scale if quantized else 1.0


def xqa_decode(case: Case, backend: str, what: str) -> None:
    """What every sub-sequence stores (output, maximum, sum) and what the last CTA makes of it."""
    run = case.start(backend)
    device, context, window = case.device, case.context, case.context.get("window", 0)
    v_tile = 32 if device.compute_capability in (86, 89, 120) else 64
    capacity = max(1, context.get("kv_capacity", len(case.k)))
    count = xqa.sub_sequences(device.sm_count, context.get("batch", 1), case.k.shape[1], capacity)
    qk, vo = xqa_scales(case, quantized=bool(case.kv_fmt))
    found: dict[str, list[Array]] = {"partial": [], "best": [], "output": [], "s0": []}
    for q, k, v, sinks in per_head(case):
        p = xqa.Problem(q, k, v, qk, core_of(device), v_tile, case.fmt, window, sinks, vo)
        out, pieces = xqa.decode(p, count)
        found["output"].append(out)
        found["partial"].append(np.stack([x.out for x in pieces], axis=1))
        found["best"].append(np.stack([x.top for x in pieces], axis=1))
        found["s0"].append(np.stack([x.total for x in pieces], axis=1))
    want = {name: np.concatenate(parts) for name, parts in found.items() if name in run.program.sites}
    compare(case, backend, run, want, f"{what} subs={count}")


def xqa_decode_fp8(case: Case, backend: str, what: str) -> None:
    """What every sub-sequence stores and the merge; e4m3 keys and values."""
    run = case.start(backend)
    context = case.context
    most = xqa_fp8.most_sub_sequences(
        case.device.sm_count,
        context.get("batch", 1),
        case.k.shape[1],
        max(1, context.get("kv_capacity", len(case.k))),
    )
    qk, vo = xqa_scales(case, quantized=True)
    outs: list[Array] = []
    parts: list[Array] = []
    for q, k, v, sinks in per_head(case):
        out, pieces = xqa_fp8.decode(
            xqa_fp8.Problem(q, k, v, qk, vo, case.fmt, context.get("window", 0), sinks), most
        )
        outs.append(out)
        parts.append(np.stack([x.out for x in pieces], axis=1))
    compare(case, backend, run, {"output": np.concatenate(outs), "partial": np.concatenate(parts)}, what)


def trtllm_reduction(case: Case, backend: str, what: str) -> None:
    """The closed kernel's results are an assumption of the spec; the reducer is judged on them as they are."""
    run = case.start(backend)
    run.evaluate(["top", "norm", "partial", "m", "denominator", "output"])
    given = {name: np.asarray(run.outward(name)).astype(F32) for name in ("top", "norm", "partial")}
    out, top, total = trtllm_gen.reduce_partials(
        given["top"].T,
        given["norm"].T,
        np.moveaxis(given["partial"], 1, 0),
        case.q.shape[-1] ** -0.5 * 1.4426950408889634074,
        fmt=case.fmt,
        sinks=case.features.get("sinks"),
    )
    assert_same(run.outward("output"), out, what)
    if "sinks" not in case.features:
        assert_same(run.outward("denominator"), total, what + " sum")
    assert_same(np.asarray(run.outward("m"))[:, -1], top, what + " maximum")


def flashinfer_decode(case: Case, backend: str, what: str) -> None:
    """Output and base-2 log-sum-exp; the plan is the program's own, the tile that of the spec's rule."""
    run = case.start(backend)
    integers, context, n = run.plan.program.integers, case.context, len(case.k)
    group, page = case.q.shape[0] // case.k.shape[1], context.get("page_size", 16)
    lens = list(context.get("kv_lens", (n,) * context.get("batch", 1)))
    split, tokens = flashinfer.plan(
        lens,
        case.device.sm_count,
        case.k.shape[1],
        page,
        graph=bool(context.get("cuda_graph", 0)),
        group=group,
        tile_q=int(integers["QT"]),
    )
    outs: list[Array] = []
    lses: list[Array] = []
    for q, k, v, _ in per_head(case):
        p = flashinfer.Problem(
            q,
            k,
            v,
            case.q.shape[-1] ** -0.5 * case.features.get("k_scale", 1.0),
            core_of(case.device),
            int(integers["T"]),
            case.fmt,
            int(integers["warps"]),
        )
        out, lse, _ = flashinfer.decode(p, tokens if split else None)
        if "v_scale" in case.features:  # the wrapper multiplies the stored output
            out = round_to(case.fmt, IEEE.mul(out, F32(case.features["v_scale"])))
        outs.append(out)
        lses.append(lse)
    compare(case, backend, run, {"output": np.concatenate(outs), "lse2": np.concatenate(lses)}, what)


def flash_attn3(case: Case, backend: str, what: str) -> None:
    """Output, log-sum-exp and what the splits store; tile and split count are those of the spec's rules."""
    run = case.start(backend)
    block_n, splits = (int(run.plan.program.integers[x]) for x in ("BN", "splits"))
    found: dict[str, list[Array]] = {"output": [], "lse": [], "level": []}
    for q, k, v, _ in per_head(case):
        p = fa2.Problem(q, k, v, q.shape[-1] ** -0.5, core_of(case.device), case.fmt)
        out, lse, pieces = fa3.decode(p, block_n, splits)
        found["output"].append(out)
        found["lse"].append(lse)
        found["level"].append(np.stack([x.lse for x in pieces], axis=1))
    want = {name: np.concatenate(parts) for name, parts in found.items()}
    compare(case, backend, run, want, f"{what} splits={splits} N={block_n}")


__all__ = ["AMPERE", "HOPPER", "Core", "assert_same", "core_of", "fa2", "per_head"]
