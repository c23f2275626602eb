"""FlashAttention-3 decode in 16 bits: split row blocks and combine, as far as the sources say.

Read in Dao-AILab/flash-attention 0251105a, `hopper/`: `softmax.h`, `mainloop_fwd_sm90_tma_gmma_ws.hpp` (mma),
`block.h`, `tile_size.h`, `heuristics.h`, `flash_fwd_combine_kernel.h`, `flash_fwd_combine_launch_template.h`. No SASS
was read: products are taken as fused where FlashAttention-2's are, for the same statements.
"""

from __future__ import annotations

import numpy as np

from .dots import chain
from .flash_attn2 import (
    LANES,
    MINUS_INF,
    Piece,
    Problem,
    allowed,
    butterfly,
    ceil_div,
    lane_columns,
    scores,
    values,
)
from .floats import F32, GPU, Array, larger, largest, round_to
from .mufu import LN2, ex2, expf_fast, lg2, rcp


def num_splits_heuristic(total_mblocks: int, sm_count: int, n_blocks: int, most: int = 128) -> int:
    """Host, one KV head below 50 MiB: as FlashAttention-2's, without its rule of eligibility."""
    if F32(total_mblocks) >= F32(0.8) * F32(sm_count):
        return 1
    if n_blocks <= 4:
        return 1
    most = min(most, sm_count, n_blocks)
    efficiency = []
    for s in range(1, most + 1):
        waves = F32(total_mblocks * s) / F32(sm_count)
        efficiency.append(F32(waves / np.ceil(waves)))
    best = max(efficiency)
    for s in range(1, most + 1):
        if float(efficiency[s - 1]) >= 0.85 * float(best):
            return s
    return 1


def row_block(p: Problem, block_n: int, first: int, last: int) -> Piece:
    """Blocks last-1 down to first; the first one is checked for length, causal and local masks apply everywhere."""
    rows, d = p.q.shape
    kind = "local" if p.local else "causal" if p.causal else "end"
    check = p.local or p.causal
    acc = np.zeros((rows, d), F32)
    row_max, row_sum = np.full(rows, MINUS_INF), np.zeros((rows, LANES), F32)
    for step, block in enumerate(range(last - 1, first - 1, -1)):
        start = block * block_n
        s = scores(p, start, block_n)
        s = np.where(allowed(p, start, block_n, kind), s, MINUS_INF)
        old, top = row_max, largest(s, axis=1)
        row_max = top if step == 0 else larger(old, top)
        safe = np.where(np.isneginf(row_max), F32(0), row_max) if check or step == 0 else row_max
        alpha = np.ones(rows, F32)  # unused in the first block
        if step > 0:
            alpha = ex2(GPU.mul(GPU.sub(old, safe), p.scale_log2))
            acc = GPU.mul(acc, alpha[:, None])
        scaled = GPU.mul(safe, p.scale_log2)
        weights = ex2(GPU.fma(s, p.scale_log2, -scaled[:, None]))
        for lane in range(LANES):
            mine = weights[:, lane_columns(block_n, lane)]
            begin = mine[:, 0] if step == 0 else GPU.fma(row_sum[:, lane], alpha, mine[:, 0])
            row_sum[:, lane] = GPU.sum_in_order(mine[:, 1:], begin)
        acc = chain(
            p.core, p.fmt, 16, round_to(p.fmt, weights)[:, None, :], values(p, start, block_n).T[None], acc
        )
    total = GPU.add(GPU.add(row_sum[:, 0], row_sum[:, 2]), GPU.add(row_sum[:, 1], row_sum[:, 3]))
    bad = (total == 0) | np.isnan(total)
    inverse = np.where(bad, F32(0), rcp(total))
    lse = GPU.fma(row_max, GPU.mul(p.scale_log2, LN2), GPU.mul(lg2(total), LN2))
    return Piece(GPU.mul(acc, inverse[:, None]), np.where(bad, MINUS_INF, lse), row_max, total)


def combine(lse: Array, out: Array, fmt: str) -> tuple[Array, Array, Array]:
    """lse [splits, rows], out [splits, rows, d]: (output of `fmt`, log-sum-exp, normalised weights)."""
    splits, rows, d = out.shape
    lanes = 32 if d > 64 else 16
    most = 16 if d <= 64 and splits <= 16 else 32
    while most < splits:
        most *= 2
    per_thread = ceil_div(most, lanes)
    missing = np.full(rows, MINUS_INF)

    def held(t: int, i: int) -> Array:
        s = t + i * lanes
        return lse[s] if s < splits else missing

    top = butterfly(
        [largest(np.stack([held(t, i) for i in range(per_thread)]), 0) for t in range(lanes)], "max"
    )
    safe = np.where(np.isneginf(top), F32(0), top)
    sums = []
    for t in range(lanes):
        total = np.zeros(rows, F32)
        for i in range(per_thread):
            total = GPU.add(total, expf_fast(GPU.sub(held(t, i), safe)))
        sums.append(total)
    total = butterfly(sums, "sum")
    final = GPU.fma(lg2(total), LN2, top)
    inverse = np.where((total == 0) | np.isnan(total), F32(0), rcp(total))
    weights = np.stack([GPU.mul(expf_fast(GPU.sub(lse[s], safe)), inverse) for s in range(splits)])
    acc = np.zeros((rows, d), F32)
    for s in range(splits):
        taken = weights[s] > 0  # splits without keys never wrote their output
        acc = np.where(taken[:, None], GPU.fma(weights[s][:, None], out[s], acc), acc)
    return round_to(fmt, acc), final, weights


def decode(p: Problem, block_n: int, num_splits: int) -> tuple[Array, Array, list[Piece]]:
    """Splits of ceil(blocks / num_splits) blocks; output of the format, log-sum-exp, pieces."""
    rows, d = p.q.shape
    blocks = ceil_div(p.n, block_n)
    first = 0
    if p.local and p.window[0] >= 0:
        first = max(0, p.n - 1 - p.window[0]) // block_n
    share = ceil_div(blocks - first, num_splits) if blocks > first else 0
    pieces = []
    for s in range(num_splits):
        begin = first + s * share
        end = min(begin + share, blocks)
        if end <= begin:
            nothing = np.zeros(rows, F32)
            pieces.append(
                Piece(np.zeros((rows, d), F32), np.full(rows, MINUS_INF), np.full(rows, MINUS_INF), nothing)
            )
        else:
            pieces.append(row_block(p, block_n, begin, end))
    if num_splits == 1:
        return round_to(p.fmt, pieces[0].out), pieces[0].lse, pieces
    out, lse, _ = combine(np.stack([x.lse for x in pieces]), np.stack([x.out for x in pieces]), p.fmt)
    return out, lse, pieces
