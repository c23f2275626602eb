"""XQA decode on SM90 with e4m3 keys and values (`mha_sm90.cu`): 64-token tiles, wgmma, one running maximum.

Read in flashinfer-ai/flashinfer fb28d724, `csrc/xqa/mha_sm90.cu` (kernel_mha, computeWarpGrpColMax_sync,
warpGrpOnlineSoftmax, computeWarpColSum, rescaleGemm1AccForNewColMax_sync, finalizeAndWriteOut_sync and the merge at the
end of the kernel). Fused (SASS, CUDA 13.0): the argument of exp2 and every `x*y + z` of the merge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dots import HOPPER_FP8, chain
from .floats import F32, GPU, Array, larger, largest, round_to, to_e4m3
from .mufu import LOG2E, ex2, expf_fast, rcp, rcp_rn
from .xqa import FLOOR

TILE = 64
QUADS, WARPS = 8, 4


@dataclass(frozen=True)
class Problem:
    """q [group, d] of `fmt` (quantised here), k and v [n, d] of e4m3; scales as in xqa.host_scale(quantized)."""

    q: Array
    k: Array
    v: Array
    qk_scale: np.float32
    kv_scale: float = 1.0
    fmt: str = "bf16"
    window: int = 0
    sinks: Array | None = None

    @property
    def skipped(self) -> int:
        return len(self.k) - self.window if self.window and len(self.k) > self.window else 0


@dataclass(frozen=True)
class Piece:
    """Output of the format, normalised; maxima and sums [group]."""

    out: Array
    top: Array
    total: Array


def most_sub_sequences(sm_count: int, batch: int, kv_heads: int, capacity: int) -> int:
    """Host: a quarter of 3 CTAs per SM, rounded half away from zero in f32."""
    share = F32(3 * sm_count // (batch * kv_heads)) * F32(0.25)
    return min(max(1, int(np.floor(share + F32(0.5)))), -(-capacity // TILE))


def sub_sequences(most: int, n: int, skipped: int = 0) -> int:
    """In the kernel: at most one sub-sequence per tile in use, and one where there are fewer than two tiles."""
    tiles = -(-n // TILE) - skipped // TILE
    return min(tiles, most) if most > 1 and tiles >= 2 else 1


def column_sum(p: Array) -> list[Array]:
    """p [rows, 64] f32 -> the four warps' sums: two additions' worth in a thread, then xor 16, 8, 4 of the lanes."""
    sums = []
    for warp in range(WARPS):
        lanes = [GPU.add(p[:, 16 * warp + quad], p[:, 16 * warp + 8 + quad]) for quad in range(QUADS)]
        for half in (4, 2, 1):
            lanes = [GPU.add(lanes[i], lanes[i ^ half]) for i in range(QUADS)]
        sums.append(lanes[0])
    return sums


def sub_sequence(p: Problem, index: int, count: int, *, alone: bool) -> Piece:
    """Tiles index, index + count, ...; `alone`: no merge follows, so sinks are added here."""
    rows, d = p.q.shape
    n, lead = len(p.k), p.skipped // TILE
    q = to_e4m3(p.q)
    top, total, acc = np.full(rows, FLOOR), np.zeros(rows, F32), np.zeros((rows, d), F32)
    seen = top  # of the first GEMM; never falls
    for tile in range(lead + index, -(-n // TILE), count):
        begin = TILE * tile
        k, v = np.zeros((TILE, d), F32), np.zeros((TILE, d), F32)
        k[: len(p.k[begin : begin + TILE])] = p.k[begin : begin + TILE]
        v[: len(p.v[begin : begin + TILE])] = p.v[begin : begin + TILE]
        s = GPU.mul(chain(HOPPER_FP8, "e4m3", 32, q[:, None, :], k[None, :, :]), p.qk_scale)
        token = begin + np.arange(TILE)
        dead = (token >= n) | ((tile == lead) & (token < p.skipped))
        s = np.where(dead[None, :], FLOOR, s)
        seen = larger(seen, largest(s, axis=1))
        weights = ex2(GPU.fma(s, LOG2E, -GPU.mul(seen, LOG2E)[:, None]))
        if (top < seen).any():
            alpha = expf_fast(GPU.sub(top, seen))
            acc = GPU.mul(acc, alpha[:, None])
            total = GPU.mul(total, alpha)
        top = seen
        for part in column_sum(weights):
            total = GPU.add(total, part)
        x = to_e4m3(GPU.mul(weights, F32(448)))
        acc = chain(HOPPER_FP8, "e4m3", 32, x[:, None, :], v.T[None, :, :], acc)
    final = total
    if alone and p.sinks is not None:
        final = GPU.add(total, expf_fast(GPU.sub(p.sinks, top)))
    out_scale = GPU.mul(F32(1) / F32(448), F32(p.kv_scale))
    out = GPU.mul(acc, GPU.mul(rcp_rn(final), out_scale)[:, None])
    return Piece(round_to(p.fmt, out), top, total)


def merge(p: Problem, pieces: list[Piece]) -> Array:
    """One recurrence over the sub-sequences in order; which operand is fused depends on which maximum is larger."""
    rows, d = p.q.shape
    top, total, acc = np.full(rows, FLOOR), np.zeros(rows, F32), np.zeros((rows, d), F32)
    for piece in pieces:
        rises = piece.top > top
        fall = expf_fast(GPU.sub(top, piece.top))
        lag = expf_fast(GPU.sub(piece.top, top))
        weight = GPU.mul(piece.total, lag)
        up_acc = GPU.fma(acc, fall[:, None], GPU.mul(piece.out, piece.total[:, None]))
        down_acc = GPU.fma(piece.out, weight[:, None], acc)
        acc = np.where(rises[:, None], up_acc, down_acc)
        total = np.where(rises, GPU.fma(total, fall, piece.total), GPU.add(total, weight))
        top = np.where(rises, piece.top, top)
    if p.sinks is not None:
        total = GPU.add(total, expf_fast(GPU.sub(p.sinks, top)))
    return round_to(p.fmt, GPU.mul(acc, rcp(total)[:, None]))


def decode(p: Problem, most: int) -> tuple[Array, list[Piece]]:
    """`most` is what the host launches (most_sub_sequences)."""
    count = sub_sequences(most, len(p.k), p.skipped)
    pieces = [sub_sequence(p, i, count, alone=count == 1) for i in range(count)]
    return (pieces[0].out if count == 1 else merge(p, pieces)), pieces
