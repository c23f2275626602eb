"""XQA decode (`mha.cu`): 16-bit keys and values, one query token, the heads of one KV head.

Read in flashinfer-ai/flashinfer fb28d724, `csrc/xqa/mha.cu` (kernel_mha_impl, warpTileOnlineSoftmax, computeRowSum,
smemXVPartGemm, rescaleAcc, smemFp16ArraySum, mergeRowMax, addAttentionSinks), `csrc/xqa/mha_components.cuh`,
`csrc/xqa/utils.cuh`, built with -use_fast_math. Fused by ptxas (CUDA 13.0, SASS read): the argument of exp2 in a
tile, `S*this + other` of the cross-group merge, and `A += o*w` of the last CTA's merge; the others are separate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .dots import Core, chain
from .floats import F32, GPU, Array, f32, flush, larger, largest, round_to
from .mufu import LOG2E, ex2, expf_fast, rcp_rn

CTA_TILE, X_TILE = 256, 64
FLOOR = F32(-1e5)  # safeInitRowMax
LOWEST = F32(np.finfo(F32).min)


@dataclass(frozen=True)
class Layout:
    """How the four second-GEMM warps share a head and the X tiles; v_tile tokens of V are loaded at once."""

    d: int
    v_tile: int  # 64 on SM80/90/100, 32 on SM86/89/120

    @property
    def padded(self) -> int:
        return 64 if self.d <= 64 else 128 if self.d <= 128 else 256

    @property
    def warps_per_group(self) -> int:
        return min(self.padded // 64, 4)

    @property
    def groups(self) -> int:
        return 4 // self.warps_per_group

    @property
    def v_tiles_per_x(self) -> int:
        return X_TILE // self.v_tile

    @property
    def x_per_iteration(self) -> int:
        stride = self.v_tile * self.groups
        return 1 if stride < X_TILE else stride // X_TILE

    @property
    def groups_per_x(self) -> int:
        return min(self.v_tiles_per_x, self.groups)

    def x_tiles(self, group: int) -> list[int]:
        """X tiles of a CTA tile that a warp group reads, in order."""
        first = group // self.v_tiles_per_x if self.x_per_iteration > 1 else 0
        return list(range(first, 4, self.x_per_iteration))

    def slices(self, group: int) -> list[int]:
        """Which v_tile-token parts of such an X tile it multiplies, in order."""
        stride = self.v_tile * self.groups
        per_iteration = X_TILE * self.x_per_iteration // stride
        return [(self.groups * i + group) % self.v_tiles_per_x for i in range(per_iteration)]


@dataclass
class Tile:
    """What a first-GEMM warp leaves for one X tile: rounded weights [rows, 64], their maxima and sums."""

    x: Array
    top: Array
    total: Array


@dataclass
class Group:
    """State of one warp group: maxima, sums, accumulators."""

    top: Array
    total: Array
    acc: Array


@dataclass(frozen=True)
class Piece:
    """What a sub-sequence stores: output of the format, maxima and sums of group 0, and all groups before."""

    out: Array
    top: Array
    total: Array
    groups: list[Group] = field(default_factory=list)


@dataclass(frozen=True)
class Problem:
    """q [group, d], k and v [n, d] of `fmt`; `qk_scale` is the f32 factor of the dots; `v_scale` of the outputs."""

    q: Array
    k: Array
    v: Array
    qk_scale: np.float32
    core: Core
    v_tile: int
    fmt: str = "bf16"
    window: int = 0  # sliding_win_size; 0 is none
    sinks: Array | None = None
    v_scale: float = 1.0

    @property
    def skipped(self) -> int:
        """Tokens before the window."""
        return len(self.k) - self.window if self.window and len(self.k) > self.window else 0


def host_scale(
    scale: float, d: int, *, kv_scale: float = 1.0, bmm2: float = 1.0, quantized: bool = False
) -> np.float32:
    """qkScale: the caller's factor is narrowed, then multiplied by kvScale and by rsqrt(d), each rounded to f32."""
    q_scale = F32(scale / bmm2 * np.sqrt(np.float64(d)))
    if quantized:
        q_scale = GPU.mul(q_scale, F32(kv_scale))
    return F32(GPU.mul(q_scale, f32(1.0 / np.sqrt(np.float64(d)))))


def sub_sequences(sm_count: int, batch: int, kv_heads: int, capacity: int) -> int:
    return min(max(1, sm_count // (batch * kv_heads)), -(-capacity // CTA_TILE))


def x_tile(p: Problem, q: Array, begin: int, hint: Array, *, first_tile: bool) -> Tile:
    """One first-GEMM warp: tokens [begin, begin + 64) against every row, with the hint as least maximum."""
    keys = np.zeros((X_TILE, q.shape[1]), F32)
    there = p.k[begin : begin + X_TILE]
    keys[: len(there)] = there
    s = GPU.mul(chain(p.core, p.fmt, 16, q[:, None, :], keys[None, :, :]), p.qk_scale)
    token = begin + np.arange(X_TILE)
    dead = token >= len(p.k)
    if first_tile:
        dead = dead | (token < p.skipped)
    s = np.where(dead[None, :], LOWEST, s)
    top = larger(hint, largest(s, axis=1))
    bias = GPU.mul(top, LOG2E)
    x = round_to(p.fmt, ex2(GPU.fma(s, LOG2E, -bias[:, None])))
    total = chain(p.core, p.fmt, 16, x, np.ones_like(x))
    return Tile(x, top, total)


def absorb(p: Problem, state: Group, tile: Tile, v: list[Array], parts: list[Array]) -> bool:
    """A second-GEMM group takes one X tile; True if it wrote its maxima back (nothing changed: it does not)."""
    changed = bool((tile.top != state.top).any())
    total, parts = tile.total, list(parts)
    if changed:
        old = state.top
        lower = tile.top < old
        state.top = larger(old, tile.top)
        alpha = expf_fast(GPU.sub(old, state.top))
        state.total = GPU.mul(state.total, alpha)
        state.acc = GPU.mul(state.acc, alpha[:, None])
        if lower.any():
            beta = expf_fast(GPU.sub(tile.top, state.top))
            total = GPU.mul(total, beta)
            narrow = round_to(p.fmt, beta)[:, None].astype(np.float64)
            # a 16-bit multiply: exact in binary64, one rounding, subnormals kept
            with np.errstate(invalid="ignore"):
                parts = [round_to(p.fmt, (part.astype(np.float64) * narrow).astype(F32)) for part in parts]
    state.total = GPU.add(state.total, total)
    for part, rows in zip(parts, v, strict=True):
        state.acc = chain(p.core, p.fmt, 16, part[:, None, :], rows.T[None, :, :], state.acc)
    return changed


def merge_groups(layout: Layout, groups: list[Group]) -> None:
    """Groups with maxima of their own exchange them; each does it with itself as the first operand."""
    before = [(g.top, g.total) for g in groups]
    for index, g in enumerate(groups):
        for i in range(1, layout.x_per_iteration):
            top, total = before[(index + layout.groups_per_x * i) % layout.groups]
            new = larger(g.top, top)
            mine, other = expf_fast(GPU.sub(g.top, new)), expf_fast(GPU.sub(top, new))
            g.acc = GPU.mul(g.acc, mine[:, None])
            g.total = GPU.fma(g.total, mine, GPU.mul(total, other))
            g.top = new


def add16(fmt: str, parts: list[Array]) -> Array:
    """HADD2 of the groups' rounded outputs, from +0 in the order of the groups."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total = round_to(fmt, (total.astype(np.float64) + part.astype(np.float64)).astype(F32))
    return total


def sub_sequence(p: Problem, index: int, count: int) -> Piece:
    """Sub-sequence `index` of `count`: CTA tiles index, index + count, ... after the tiles before the window."""
    rows, d = p.q.shape
    layout = Layout(d, p.v_tile)
    padded = -(-rows // 16) * 16
    q = np.zeros((padded, d), F32)
    q[:rows] = p.q
    n, lead = len(p.k), p.skipped // CTA_TILE
    groups = [
        Group(np.full(padded, FLOOR), np.zeros(padded, F32), np.zeros((padded, d), F32))
        for _ in range(layout.groups)
    ]
    hints = [np.full(padded, FLOOR) for _ in range(4)]
    tiles = range(lead + index, -(-n // CTA_TILE), count)
    for cta in tiles:
        made: dict[int, Tile] = {}
        for w in range(4):
            begin = CTA_TILE * cta + X_TILE * w
            if begin < n:
                made[w] = x_tile(p, q, begin, hints[w], first_tile=cta == lead)
        for g, state in enumerate(groups):
            mine = range(g * layout.warps_per_group, (g + 1) * layout.warps_per_group)
            for w in layout.x_tiles(g):
                if w not in made:
                    break
                begin = CTA_TILE * cta + X_TILE * w
                v = np.zeros((X_TILE, d), F32)
                there = p.v[begin : begin + X_TILE]
                v[: len(there)] = there
                cuts = [slice(s * p.v_tile, (s + 1) * p.v_tile) for s in layout.slices(g)]
                wrote = absorb(p, state, made[w], [v[c] for c in cuts], [made[w].x[:, c] for c in cuts])
                if (
                    wrote and w in mine
                ):  # gemm1 warp w, if it reads X tile w at all, hands gemm0 warp w its maxima
                    hints[w] = state.top
    kept = [Group(g.top[:rows].copy(), g.total[:rows].copy(), g.acc[:rows].copy()) for g in groups]
    if layout.x_per_iteration > 1:
        merge_groups(layout, groups)
    scaled = []
    for g in groups:
        acc = g.acc[:rows]
        total = g.total[:rows]
        if len(tiles):
            if count == 1 and p.sinks is not None:
                total = GPU.add(total, expf_fast(GPU.sub(p.sinks, g.top[:rows])))
            acc = GPU.mul(acc, GPU.mul(rcp_rn(total), F32(p.v_scale))[:, None])
        scaled.append(round_to(p.fmt, acc))
    out = add16(p.fmt, scaled) if layout.groups > 1 else scaled[0]
    return Piece(out, groups[0].top[:rows], groups[0].total[:rows], kept)


def merge(p: Problem, pieces: list[Piece]) -> Array:
    """The last CTA: group g takes sub-sequences g, g+G, ..., each normalised, and the groups add in 16 bits."""
    rows, d = p.q.shape
    layout = Layout(d, p.v_tile)
    top = largest(np.stack([x.top for x in pieces]), axis=0)
    accs, sums = [], []
    for g in range(layout.groups):
        acc, total = np.zeros((rows, d), F32), np.zeros(rows, F32)
        for piece in pieces[g :: layout.groups]:
            weight = GPU.mul(piece.total, expf_fast(GPU.sub(piece.top, top)))
            total = GPU.add(total, weight)
            acc = GPU.fma(piece.out, weight[:, None], acc)
        accs.append(acc)
        sums.append(total)
    total = sums[0]
    if layout.groups > 1:
        total = np.zeros(rows, F32)
        for part in sums:
            total = GPU.add(total, part)
    if p.sinks is not None:
        total = GPU.add(total, expf_fast(GPU.sub(p.sinks, top)))
    inverse = rcp_rn(total)[:, None]
    outs = [round_to(p.fmt, GPU.mul(acc, inverse)) for acc in accs]
    return add16(p.fmt, outs) if layout.groups > 1 else outs[0]


def decode(p: Problem, count: int) -> tuple[Array, list[Piece]]:
    """Output [group, d] of the format, and what every sub-sequence stored."""
    pieces = [sub_sequence(p, i, count) for i in range(count)]
    if count == 1:
        return pieces[0].out, pieces
    return merge(p, pieces), pieces


__all__ = ["CTA_TILE", "Layout", "Piece", "Problem", "decode", "flush", "host_scale", "sub_sequences"]
