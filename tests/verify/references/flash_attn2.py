"""FlashAttention-2 forward: split-KV decode with its combine kernel, the unsplit form, and prefill.

Read in Dao-AILab/flash-attention 0251105a, `csrc/flash_attn/src/`: `flash_fwd_kernel.h` (compute_attn_1rowblock,
compute_attn_1rowblock_splitkv, combine_attn_seqk_parallel), `softmax.h`, `mask.h`, `flash_fwd_launch_template.h`,
and `csrc/flash_attn/flash_api.cpp` (num_splits_heuristic). The fork vllm-project/flash-attention 617264c1 cuts splits
by the length of the sequence. Which products are fused is what ptxas (CUDA 13.0) does: the argument of exp2, the first
addition of a later block to the row sum, the log-sum-exp and the combine kernel's accumulation; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .dots import Core, chain
from .floats import F32, GPU, Array, f32, larger, largest, round_to
from .mufu import LN2, ex2, expf_fast, lg2, rcp

LANES = 4  # of a quad: lane t holds columns 8j + 2t and 8j + 2t + 1
MINUS_INF = F32(-np.inf)
NO_WINDOW = -1


@dataclass(frozen=True)
class Problem:
    """One KV head: q [rows, d] (heads of the group, or tokens of one head), k and v [n, d]; all of format `fmt`.

    `window` is (left, right), -1 for unbounded; `causal` is the window (-1, 0) with its own code path. Row i of q
    stands at key n - q_len + i.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    core: Core
    fmt: str = "bf16"
    causal: bool = False
    window: tuple[int, int] = (NO_WINDOW, NO_WINDOW)
    check_every_block: bool = True  # Is_even_MN = false: paged or of variable length
    first_position: int | None = None  # of row 0, where the rows are not the last ones

    @property
    def local(self) -> bool:
        return not self.causal and (self.window[0] >= 0 or self.window[1] >= 0)

    @property
    def n(self) -> int:
        return len(self.k)

    @property
    def position(self) -> int:
        """Key that row 0 stands at."""
        return self.n - len(self.q) if self.first_position is None else self.first_position

    @property
    def scale_log2(self) -> np.float32:
        """The host multiplies the narrowed scale by log2(e) in binary64."""
        return F32(np.float64(F32(self.scale)) * np.float64(1.4426950408889634074))


@dataclass(frozen=True)
class Piece:
    """What one CTA stores: normalised output [rows, d] f32, log-sum-exp [rows], and the state before."""

    out: Array
    lse: Array
    row_max: Array
    row_sum: Array


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def padded(d: int) -> int:
    """HEADDIM_SWITCH."""
    return next(size for size in (32, 64, 96, 128, 192, 256) if d <= size)


def tile_n(d: int, num_splits: int) -> int:
    """Keys per block of the split-KV kernel."""
    if num_splits == 1:
        return 128 if d <= 64 else 64
    return 256 if d <= 64 else 128 if d <= 128 else 64


def num_splits_heuristic(blocks: int, twice_sms: int, n_blocks: int, most: int = 128) -> int:
    """Host: f32 efficiencies compared in binary64."""
    if F32(blocks) >= F32(0.8) * F32(twice_sms):
        return 1
    most = min(most, twice_sms, n_blocks)
    best, efficiency = F32(0), []
    for s in range(1, most + 1):
        if s > 1 and ceil_div(n_blocks, s) == ceil_div(n_blocks, s - 1):
            efficiency.append(F32(0))
            continue
        waves = F32(blocks * s) / F32(twice_sms)
        efficiency.append(F32(waves / np.ceil(waves)))
        best = max(best, efficiency[-1])
    for s in range(1, most + 1):
        if s > 1 and ceil_div(n_blocks, s) == ceil_div(n_blocks, s - 1):
            continue
        if float(efficiency[s - 1]) >= 0.85 * float(best):
            return s
    return 1


def scores(p: Problem, start: int, size: int) -> Array:
    """q k^T of one block [rows, size]; columns past the end hold 0 and are masked afterwards."""
    keys = np.zeros((size, p.k.shape[1]), F32)
    there = p.k[start : start + size]
    keys[: len(there)] = there
    return chain(p.core, p.fmt, 16, p.q[:, None, :], keys[None, :, :])


def values(p: Problem, start: int, size: int) -> Array:
    """Rows of V past the end are zeros in shared memory."""
    rows = np.zeros((size, p.v.shape[1]), F32)
    there = p.v[start : start + size]
    rows[: len(there)] = there
    return rows


def allowed(p: Problem, start: int, size: int, kind: str) -> Array:
    """[rows, size]: `kind` is "end" (length only), "causal" or "local"."""
    rows, column = len(p.q), start + np.arange(size)[None, :]
    row = np.arange(rows)[:, None] + p.position
    if kind == "end":
        return np.broadcast_to(column < p.n, (rows, size))
    if kind == "causal":
        return column < np.minimum(p.n, row + 1)
    left = np.maximum(0, row - p.window[0]) if p.window[0] >= 0 else np.zeros_like(row)
    right = np.minimum(p.n, row + 1 + p.window[1]) if p.window[1] >= 0 else np.full_like(row, p.n)
    return (column < right) & (column >= left)


def lane_columns(size: int, lane: int) -> list[int]:
    return [8 * j + 2 * lane + i for j in range(size // 8) for i in (0, 1)]


def row_block(
    p: Problem, block_n: int, first: int, last: int, masked_steps: int, *, check_masked: bool
) -> Piece:
    """Blocks last-1 down to first of one row block; every row of the CTA that is alive is in `p.q`."""
    rows, d = p.q.shape
    acc = np.zeros((rows, d), F32)
    row_max = np.full(rows, MINUS_INF)
    row_sum = np.zeros((rows, LANES), F32)
    for step, block in enumerate(range(last - 1, first - 1, -1)):
        start = block * block_n
        s = scores(p, start, block_n)
        masked = step < masked_steps
        if p.local:
            s = np.where(allowed(p, start, block_n, "local"), s, MINUS_INF)
        elif masked:
            s = np.where(allowed(p, start, block_n, "causal" if p.causal else "end"), s, MINUS_INF)
        check = check_masked if masked else p.local
        alpha = np.ones(rows, F32)  # unused in the first block
        old = row_max
        top = largest(s, axis=1)
        row_max = top if step == 0 else larger(old, top)
        if step > 0:
            current = np.where(np.isneginf(row_max), F32(0), row_max) if check else row_max
            alpha = ex2(GPU.mul(GPU.sub(old, current), p.scale_log2))
            acc = GPU.mul(acc, alpha[:, None])
        scaled = np.where(np.isneginf(row_max), F32(0), GPU.mul(row_max, p.scale_log2))
        weights = ex2(GPU.fma(s, p.scale_log2, -scaled[:, None]))
        for lane in range(LANES):
            mine = weights[:, lane_columns(block_n, lane)]
            begin = mine[:, 0] if step == 0 else GPU.fma(row_sum[:, lane], alpha, mine[:, 0])
            row_sum[:, lane] = GPU.sum_in_order(mine[:, 1:], begin)
        rounded = round_to(p.fmt, weights)
        v = values(p, start, block_n)
        acc = chain(p.core, p.fmt, 16, rounded[:, None, :], v.T[None, :, :], acc)
    return Piece(acc, np.zeros(rows, F32), row_max, row_sum)


def finish(p: Problem, piece: Piece, *, split: bool) -> Piece:
    """The quad adds its sums (xor 2, then xor 1); output times MUFU.RCP; log-sum-exp."""
    lanes = piece.row_sum
    total = GPU.add(GPU.add(lanes[:, 0], lanes[:, 2]), GPU.add(lanes[:, 1], lanes[:, 3]))
    bad = (total == 0) | np.isnan(total)
    inverse = np.where(bad, F32(1), rcp(total))
    lse = GPU.fma(piece.row_max, F32(p.scale), GPU.mul(lg2(total), LN2))
    lse = np.where(bad, F32(-np.inf if split else np.inf), lse)
    return Piece(GPU.mul(piece.out, inverse[:, None]), lse, piece.row_max, total)


def truncated_div(a: int, b: int) -> int:
    """C's division."""
    return -(-a // b) if a < 0 else a // b


def block_range(p: Problem, block_m: int, block_n: int, first: int, last: int) -> tuple[int, int]:
    """Blocks [first, last) of a split cut to what a causal or local mask lets through."""
    last = min(last, ceil_div(p.n, block_n))
    if p.causal or p.local:
        right = 0 if p.causal else p.window[1]
        if right < 0:
            right = p.n  # the host replaces an open window by the length
        last = min(last, ceil_div(block_m + p.position + right, block_n))
    if p.local:
        left = p.window[0] if p.window[0] >= 0 else p.n
        first = max(first, truncated_div(p.position - left, block_n))
    return first, last


def empty(p: Problem, *, split: bool) -> Piece:
    rows, d = p.q.shape
    nothing = np.zeros(rows, F32)
    lse = np.full(rows, F32(-np.inf if split else np.inf))
    return Piece(np.zeros((rows, d), F32), lse, np.full(rows, MINUS_INF), nothing)


def split_piece(p: Problem, split: int, num_splits: int, seqlen_k: int, *, block_n: int = 0) -> Piece:
    """One CTA of the split-KV kernel; `seqlen_k` decides how many blocks a split has (module text)."""
    block_n = block_n or tile_n(p.q.shape[1], num_splits)
    per_split = ceil_div(ceil_div(seqlen_k, block_n), max(1, num_splits))
    first, last = block_range(p, 64, block_n, split * per_split, (split + 1) * per_split)
    split_form = num_splits > 1
    if first >= last:
        return empty(p, split=split_form)
    steps = 1 if not (p.causal or p.local) else ceil_div(64, block_n) + 1
    check = p.causal or p.local or p.check_every_block
    return finish(p, row_block(p, block_n, first, last, steps, check_masked=check), split=split_form)


def butterfly(lanes: list[Array], op: str) -> Array:
    """Allreduce of a power of two of lanes: xor half, ..., xor 1; lane 0's result."""
    work = list(lanes)
    half = len(work) // 2
    while half:
        both = [(work[i], work[i ^ half]) for i in range(len(work))]
        work = [larger(x, y) if op == "max" else GPU.add(x, y) for x, y in both]
        half //= 2
    return work[0]


def combine(lse: Array, out: Array, fmt: str) -> tuple[Array, Array, Array]:
    """lse [splits, rows], out [splits, rows, d] f32: (output of `fmt`, log-sum-exp, weights [splits, rows])."""
    splits, rows, d = out.shape
    most = 2
    while most < splits:
        most *= 2
    block_m = 4 if padded(d) % 128 == 0 else 8 if padded(d) % 64 == 0 else 16
    per_thread = ceil_div(most * block_m, 128)
    lanes = min(128 // block_m, most)
    missing = np.full(rows, MINUS_INF)

    def held(t: int, i: int) -> Array:
        s = t + i * lanes
        return lse[s] if s < splits else missing

    maxima = []
    for t in range(lanes):
        top = held(t, 0)
        for i in range(1, per_thread):
            top = larger(top, held(t, i))
        maxima.append(top)
    top = butterfly(maxima, "max")
    top = np.where(np.isneginf(top), F32(0), top)
    sums = []
    for t in range(lanes):
        total = expf_fast(GPU.sub(held(t, 0), top))
        for i in range(1, per_thread):
            total = GPU.add(total, expf_fast(GPU.sub(held(t, i), top)))
        sums.append(total)
    total = butterfly(sums, "sum")
    final = GPU.fma(lg2(total), LN2, top)
    final = np.where((total == 0) | np.isnan(total), F32(np.inf), final)
    weights = np.stack([expf_fast(GPU.sub(lse[s], final)) for s in range(splits)])
    acc = np.zeros((rows, d), F32)
    for s in range(splits):
        acc = GPU.fma(weights[s][:, None], out[s], acc)
    return round_to(fmt, acc), final, weights


@dataclass(frozen=True)
class Result:
    """Output of the format, its log-sum-exp, what each split stored."""

    out: Array
    lse: Array
    pieces: list[Piece]


def splitkv(p: Problem, num_splits: int, seqlen_k: int | None = None) -> Result:
    """The split-KV kernel; `num_splits` 0 is one piece with the tile of several.

    `seqlen_k`: the batch's longest (Dao) or this sequence's (vLLM, the default) length.
    """
    seqlen_k = p.n if seqlen_k is None else seqlen_k
    pieces = [split_piece(p, s, num_splits, seqlen_k) for s in range(max(1, num_splits))]
    if num_splits <= 1:
        return Result(round_to(p.fmt, pieces[0].out), pieces[0].lse, pieces)
    out, lse, _ = combine(np.stack([x.lse for x in pieces]), np.stack([x.out for x in pieces]), p.fmt)
    return Result(out, lse, pieces)


def prefill_tile(
    d: int, *, sm8x: bool = False, causal: bool = False, block_m_256: int = 128
) -> tuple[int, int]:
    """(kBlockM, kBlockN) of the standard kernel without dropout."""
    if d <= 64:
        return 128, 128
    if d <= 96:
        return (64, 64) if sm8x and causal else (128, 64)
    if d <= 128:
        return ((64, 64) if causal else (128, 32)) if sm8x else (128, 64)
    return (128, 64) if d <= 192 else (block_m_256, 64)


def prefill(p: Problem, **tile: bool | int) -> Result:
    """All query tokens of one head: rows of a kBlockM tile share their range of blocks and nothing else."""
    rows, d = p.q.shape
    block_m, block_n = prefill_tile(d, causal=p.causal, **tile)  # type: ignore[arg-type]
    pieces: list[Piece] = []
    for begin in range(0, rows, block_m):
        part = replace(p, q=p.q[begin : begin + block_m], first_position=p.position + begin)
        first, last = block_range(part, block_m, block_n, 0, ceil_div(p.n, block_n))
        if (p.causal or p.local or p.check_every_block) and last <= first:
            pieces.append(empty(part, split=False))
            continue
        steps = 1
        if p.causal or p.local:
            steps = ceil_div(block_m, block_n) + (1 if p.check_every_block or p.local else 0)
        piece = row_block(part, block_n, first, last, steps, check_masked=p.causal or p.local)
        pieces.append(finish(part, piece, split=False))
    out = np.concatenate([x.out for x in pieces])
    return Result(round_to(p.fmt, out), np.concatenate([x.lse for x in pieces]), pieces)


def reals(p: Problem) -> Array:
    """A plain binary64 attention, for a rough check of the programs themselves."""
    s = (p.q.astype(np.float64) @ p.k.astype(np.float64).T) * p.scale
    kind = "local" if p.local else "causal" if p.causal else "end"
    s = np.where(allowed(p, 0, p.n, kind), s, -np.inf)
    w = np.exp(s - s.max(axis=1, keepdims=True))
    return f32(w @ p.v.astype(np.float64) / w.sum(axis=1, keepdims=True))
