"""FlashInfer's own decode on tensor cores (backend fa2, q_len 1): plan, CTA with four KV warps, merge kernel.

Read in flashinfer-ai/flashinfer fb28d724, `include/flashinfer/attention/`: `prefill.cuh` (BatchPrefillWithPagedKVCache,
update_mdo_states, compute_sfm_v, finalize_m, threadblock_sync_mdo_states, transform_output), `variant_helper.cuh`,
`state.cuh`, `cascade.cuh` (PersistentVariableLengthMergeStatesKernel), `scheduler.cuh`. Fused (SASS, CUDA 13.0):
arguments of exp2, the CTA merge's sums, and o*f1 + (v*f2), d*f1 + f2 of a state merge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dots import Core, chain
from .floats import F32, GPU, Array, larger, largest, round_to
from .mufu import LOG2E, ex2, lg2, rcp

MINUS_INF = F32(-np.inf)
MOST_NEGATIVE = F32(np.finfo(F32).min)


@dataclass(frozen=True)
class Problem:
    """q [group, d], k and v [n, d] of `fmt`; `tile` tokens per CTA tile (each warp has a quarter of it)."""

    q: Array
    k: Array
    v: Array
    scale: float
    core: Core
    tile: int
    fmt: str = "bf16"
    warps: int = 4  # that share the tokens of a tile; 1 for more than 16 query heads a KV head


@dataclass(frozen=True)
class Piece:
    """Partial of a chunk: output of the format, base-2 log-sum-exp, merged maximum (times scale) and sum."""

    out: Array
    lse: Array
    top: Array
    total: Array


def plan(
    kv_lens: list[int],
    sm_count: int,
    kv_heads: int,
    page: int,
    *,
    graph: bool,
    group: int = 1,
    tile_q: int = 16,
) -> tuple[bool, int]:
    """(split, tokens per chunk) of PrefillPlan for one query token per request."""
    most = 2 * sm_count // kv_heads
    pages = [-(-n // page) for n in kv_lens]
    low, high = max(128 // page, 1), max([1, *pages])
    longest = high
    q_tiles = -(-group // tile_q)
    while low < high:
        middle = (low + high) // 2
        if sum(q_tiles * -(-max(x, 1) // middle) for x in pages) > most:
            low = middle + 1
        else:
            high = middle
    return graph or low < longest, low * page


def join(top: Array, total: Array, acc: Array) -> tuple[Array, Array, Array]:
    """The warps' states [warps, rows, ...] in order: maximum, sum, output."""
    rows = top.shape[1]
    new, norm = np.full(rows, MINUS_INF), np.ones(rows, F32)
    for w in range(len(top)):
        old = new
        new = larger(old, top[w])
        fall, lag = (ex2(larger(GPU.sub(m, new), MINUS_INF)) for m in (old, top[w]))
        norm = GPU.fma(norm, fall, GPU.mul(total[w], lag))
    out = np.zeros_like(acc[0])
    for w in range(len(top)):
        out = GPU.fma(acc[w], ex2(larger(GPU.sub(top[w], new), MINUS_INF))[:, None], out)
    return new, norm, out


def chunk(p: Problem, begin: int, end: int) -> Piece:
    """One CTA over tokens [begin, end)."""
    rows, d = p.q.shape
    k_log2 = GPU.mul(F32(p.scale), LOG2E)
    share = p.tile // p.warps
    top = np.full((p.warps, rows), MINUS_INF)
    total = np.ones((p.warps, rows), F32)
    acc = np.zeros((p.warps, rows, d), F32)
    for iteration in range(-(-(end - begin) // p.tile)):
        for w in range(p.warps):
            start = begin + (iteration * p.warps + w) * share
            live = max(0, min(share, end - start))
            k, v = np.zeros((share, d), F32), np.zeros((share, d), F32)
            k[:live], v[:live] = p.k[start : start + live], p.v[start : start + live]
            s = chain(p.core, p.fmt, 16, p.q[:, None, :], k[None, :, :])
            s = np.where(np.arange(share)[None, :] < live, s, MINUS_INF)
            old = top[w].copy()
            top[w] = larger(old, largest(s, axis=1))
            scaled = larger(GPU.mul(top[w], k_log2), MOST_NEGATIVE)
            alpha = ex2(GPU.fma(old, k_log2, -scaled))
            total[w] = GPU.mul(total[w], alpha)
            acc[w] = GPU.mul(acc[w], alpha[:, None])
            x = round_to(p.fmt, ex2(GPU.fma(s, k_log2, -scaled[:, None])))
            total[w] = chain(p.core, p.fmt, 16, x, np.ones_like(x), total[w])
            acc[w] = chain(p.core, p.fmt, 16, x[:, None, :], v.T[None, :, :], acc[w])
    top = np.where(np.isneginf(top), top, GPU.mul(top, k_log2))
    if p.warps == 1:
        new, norm, out = top[0], total[0], acc[0]
    else:
        new, norm, out = join(top, total, acc)
    inverse = np.where(np.isneginf(new), F32(0), rcp(norm))
    out = GPU.mul(out, inverse[:, None])
    return Piece(round_to(p.fmt, out), GPU.add(lg2(norm), new), new, norm)


@dataclass
class State:
    """state_t of one row: [d] outputs, maximum, sum."""

    o: Array
    m: np.float32
    d: np.float32

    @classmethod
    def fresh(cls, width: int) -> State:
        return cls(np.zeros(width, F32), MINUS_INF, F32(1))

    def merge(self, v: Array, s: np.float32) -> None:
        """Another state with sum 1."""
        m = larger(self.m, s)
        fall = ex2(larger(GPU.sub(self.m, m), MINUS_INF))
        lag = ex2(larger(GPU.sub(s, m), MINUS_INF))
        self.d = F32(GPU.fma(self.d, fall, lag))
        self.o = GPU.fma(self.o, fall, GPU.mul(v, lag))
        self.m = F32(m)

    def normalize(self) -> None:
        inverse = rcp(self.d) if self.d > 0 else F32(0)
        self.o = GPU.mul(self.o, inverse)

    @property
    def lse(self) -> np.float32:
        return F32(GPU.add(self.m, lg2(self.d)))


def merge_row(outs: Array, lses: Array, fmt: str) -> tuple[Array, np.float32]:
    """outs [chunks, d] of the format, lses [chunks]: output of the format and base-2 log-sum-exp."""
    chunks, d = outs.shape
    if chunks == 1:
        return outs[0], F32(lses[0])
    vector = max(8, d // 32)
    lanes = 128 // (d // vector)
    first = []
    for lane in range(lanes):
        state = State.fresh(d)
        for i in range(lane, chunks, lanes):
            state.merge(outs[i], lses[i])
        state.normalize()
        first.append((round_to(fmt, state.o), state.lse))
    state = State.fresh(d)
    for o, s in first:
        state.merge(o, s)
    state.normalize()
    return round_to(fmt, state.o), state.lse


def decode(p: Problem, chunk_tokens: int | None) -> tuple[Array, Array, list[Piece]]:
    """Output [group, d] of the format, base-2 log-sum-exp [group], chunks; `chunk_tokens` None: no split."""
    n, rows = len(p.k), len(p.q)
    size = chunk_tokens or max(n, 1)
    pieces = [chunk(p, i * size, min((i + 1) * size, n)) for i in range(max(1, -(-n // size)))]
    if chunk_tokens is None:
        return pieces[0].out, pieces[0].lse, pieces
    outs, lses = [], []
    for r in range(rows):
        out, lse = merge_row(
            np.stack([x.out[r] for x in pieces]), np.array([x.lse[r] for x in pieces]), p.fmt
        )
        outs.append(out)
        lses.append(lse)
    return np.stack(outs), np.array(lses), pieces
