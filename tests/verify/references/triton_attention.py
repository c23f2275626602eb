"""vLLM's Triton attention for decode, 16-bit inputs, g <= 16 heads a KV head, d = 128, as compiled by Triton.

Read in vllm-project/vllm 4ba787ec9 (0.33.0), `vllm/v1/attention/ops/triton_unified_attention.py` and
`triton_attention_helpers.py`; lanes, butterflies and contraction from the TTGIR, PTX and SASS of Triton 3.7.1 and 3.8.0
for sm_90, sm_100 and sm_120 (compiled without a GPU). Nothing is flushed: Triton asks for IEEE f32, and exp is
`mul; ex2.approx`, halved and squared below -126.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dots import Core, chain
from .floats import F32, IEEE, Array, larger, largest, round_to
from .mufu import div_full, exp_triton

MINUS_INF = F32(-np.inf)


@dataclass(frozen=True)
class Problem:
    """q [group, d], k and v [n, d] of `fmt`; one query token at position n - 1."""

    q: Array
    k: Array
    v: Array
    scale: float
    core: Core
    fmt: str = "bf16"
    window: int = 0  # tokens that the query sees, itself included; 0 is all
    sinks: Array | None = None
    segments: int = 16
    tile: int = 16
    before_33: bool = False  # vLLM before 0.33.0: a maximum of -inf is kept as 0, and every segment counts
    pruned: bool = True  # tiles outside the window are not visited (3D: from 0.14.1)


@dataclass
class Piece:
    """What a segment stores: not normalised acc [group, d], maximum, sum [group]; `written` False: it returned."""

    acc: Array
    top: Array
    total: Array
    written: bool


def tile_sum(p: Array) -> Array:
    """p [rows, tile]: a lane adds its two columns of an 8-column warp part, bfly 2, bfly 1; then the warps' parts."""
    parts = []
    for w in range(p.shape[1] // 8):
        lanes = [IEEE.add(p[:, 8 * w + 2 * t], p[:, 8 * w + 2 * t + 1]) for t in range(4)]
        for distance in (2, 1):
            lanes = [IEEE.add(lanes[t], lanes[t ^ distance]) for t in range(4)]
        parts.append(lanes[0])
    distance = len(parts) // 2
    while distance:
        parts = [IEEE.add(parts[i], parts[i ^ distance]) for i in range(len(parts))]
        distance //= 2
    return parts[0]


def tiles(p: Problem, first: int, last: int, piece: Piece) -> None:
    """The online loop over tiles [first, last)."""
    n = len(p.k)
    start = max(0, n - p.window) if p.window else 0
    for j in range(first, last):
        token = p.tile * j + np.arange(p.tile)
        k, v = np.zeros((p.tile, p.k.shape[1]), F32), np.zeros((p.tile, p.k.shape[1]), F32)
        live = (token < n) & (token >= start)
        inside = token < n
        k[inside], v[live] = p.k[token[inside]], p.v[token[live]]
        dot = chain(p.core, p.fmt, 16, p.q[:, None, :], k[None, :, :])
        s = IEEE.fma(F32(p.scale), dot, F32(0))
        s = np.where(live[None, :], s, MINUS_INF)
        old = piece.top
        new = larger(old, largest(s, axis=1))
        safe = np.where(np.isneginf(new), F32(0), new)
        weights = exp_triton(IEEE.sub(s, safe[:, None]))
        alpha = exp_triton(IEEE.sub(old, safe))
        piece.total = IEEE.fma(piece.total, alpha, tile_sum(weights))
        piece.top = safe if p.before_33 else new
        acc = IEEE.mul(piece.acc, alpha[:, None])
        piece.acc = chain(p.core, p.fmt, 16, round_to(p.fmt, weights)[:, None, :], v.T[None, :, :], acc)


def start(p: Problem, *, sinks: bool) -> Piece:
    rows, d = p.q.shape
    top = np.full(rows, MINUS_INF) if not sinks or p.sinks is None else np.asarray(p.sinks, F32).copy()
    return Piece(np.zeros((rows, d), F32), top, np.ones(rows, F32), True)


def loop_range(p: Problem) -> tuple[int, int]:
    """Tiles that the window lets through."""
    n = len(p.k)
    first = max(0, n - p.window) // p.tile if p.window and p.pruned else 0
    return first, (n - 1) // p.tile + 1


def segment(p: Problem, index: int) -> Piece:
    """One CTA of the 3D kernel."""
    n = len(p.k)
    share = -(-n // (p.segments * p.tile))
    piece = start(p, sinks=index == 0)
    if index * share * p.tile >= n:
        piece.written = False
        return piece
    low, high = loop_range(p)
    tiles(p, max(index * share, low), min((index + 1) * share, high), piece)
    return piece


def denominator(totals: Array, scales: Array) -> tuple[Array, Array]:
    """Sixteen lanes, bfly 8 (fused), 4, 2, 1: what lanes with bit 3 clear hold, and what those with it set hold."""
    lanes = []
    for i in range(16):
        other = IEEE.mul(totals[i ^ 8], scales[i ^ 8])
        lanes.append(IEEE.fma(totals[i], scales[i], other))
    for distance in (4, 2, 1):
        lanes = [IEEE.add(lanes[i], lanes[i ^ distance]) for i in range(16)]
    return lanes[0], lanes[8]


def thread_sum(x: list[Array], s: list[Array], triton: str, sm: int) -> Array:
    """Four segments of a warp, in a thread: x [.., d], s the factors of the rows."""
    if triton == "3.7.1":
        total = IEEE.fma(s[0], x[0], IEEE.mul(s[1], x[1]))
        chained = IEEE.fma(s[3], x[3], IEEE.fma(s[2], x[2], total))
        if sm != 100:
            return chained
        # one mul.f32x2 replaces the last two fma of every fourth column
        apart = IEEE.add(IEEE.add(total, IEEE.mul(s[2], x[2])), IEEE.mul(s[3], x[3]))
        return np.where(np.arange(x[0].shape[-1]) % 4 == 0, apart, chained)
    if sm != 100:
        return IEEE.add(
            IEEE.fma(s[0], x[0], IEEE.mul(s[1], x[1])), IEEE.fma(s[2], x[2], IEEE.mul(s[3], x[3]))
        )
    r = [IEEE.mul(a, b) for a, b in zip(s, x, strict=True)]
    return IEEE.add(IEEE.add(r[0], r[1]), IEEE.add(r[2], r[3]))


def counted(p: Problem, pieces: list[Piece]) -> Array:
    """[segments, group]: whose results the reduction takes."""
    written = np.array([[x.written] * len(p.q) for x in pieces])
    if p.before_33:
        return written
    return written & np.stack([(x.total > 0) & ~np.isneginf(x.top) for x in pieces])


def reduce_segments(p: Problem, pieces: list[Piece], triton: str, sm: int) -> tuple[Array, Array, Array]:
    """Output of the format [group, d], quotient in f32, numerator."""
    rows, d = p.q.shape
    if d != 128 or len(pieces) != 16:
        raise ValueError("the trees are known for d = 128 and 16 segments only")
    tops = np.stack([x.top if x.written else np.full(rows, MINUS_INF) for x in pieces])
    totals = np.stack([x.total if x.written else np.zeros(rows, F32) for x in pieces])
    accs = np.stack([x.acc if x.written else np.zeros((rows, d), F32) for x in pieces])
    valid = counted(p, pieces)
    top = largest(np.where(valid, tops, MINUS_INF), axis=0)
    with np.errstate(all="ignore"):
        scales = np.where(valid, exp_triton(IEEE.sub(tops, top)), F32(0)).astype(F32)
    low, high = denominator(totals, scales)
    column = np.arange(d)
    below = np.where(((column // 32) % 2 == 0)[None, :], low[:, None], high[:, None])
    warps = []
    for w in range(4):
        mine = [w, w + 4, w + 8, w + 12]
        warps.append(thread_sum([accs[i] for i in mine], [scales[i][:, None] for i in mine], triton, sm))
    above = IEEE.add(IEEE.add(warps[0], warps[2]), IEEE.add(warps[1], warps[3]))
    with np.errstate(all="ignore"):
        quotient = np.where(below == 0, F32(0), div_full(above, below))
    return round_to(p.fmt, quotient), quotient, above


def decode_3d(p: Problem, triton: str, sm: int) -> tuple[Array, list[Piece]]:
    """Segments and their reduction."""
    pieces = [segment(p, i) for i in range(p.segments)]
    return reduce_segments(p, pieces, triton, sm)[0], pieces


def decode_2d(p: Problem) -> tuple[Array, Piece]:
    """One CTA over all tiles (give `tile` 32), divided without a guard."""
    piece = start(p, sinks=True)
    low, high = loop_range(p)
    tiles(p, low, high, piece)
    return round_to(p.fmt, div_full(piece.acc, piece.total[:, None])), piece
