"""The traffic table of a report: dense against tiled, time at each bandwidth, split-KV decode by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.contract import DecodeTraffic, TrafficRow, TrafficTime, TrafficView
from reports.target import Target
from specs import Platform, load_spec
from specs.bind import bind
from specs.context import make_context
from verify.partials import partial_fields
from verify.traffic import (
    Layer,
    dense,
    dense_backward,
    partial_bytes,
    split_decode,
    tile_count,
    tiled,
    tiled_backward,
)

LENGTHS = (1024, 4096, 16384, 32768)


def row(layer: Layer) -> TrafficRow:
    """One line of the dense and tiled table."""
    full = dense(layer)
    return TrafficRow(
        tokens=layer.tokens,
        qkvo=full.part("q, k, v, output"),
        matrix=full.part("matrix"),
        dense=full.total,
        tiled=tiled(layer).total,
        dense_backward=dense_backward(layer).total,
        tiled_backward=tiled_backward(layer).total,
    )


def traffic_view(
    targets: Sequence[Target],
    platforms: Sequence[Platform],
    kv_len: int,
    context: dict[str, int],
    lengths: Sequence[int] = LENGTHS,
) -> TrafficView:
    """The whole section: the issue's shape for dense and tiled, ``context`` for decode."""
    layers = [Layer(n) for n in lengths]
    small = small_tiles()
    tiles = tile_count(small)
    shape = ", ".join(f"{name} {value}" for name, value in context.items())
    return TrafficView(
        assumption="32 heads, head_dim 128, 2-byte elements, 128 × 128 blocks, causal. Dense makes four passes "
        "over the score matrix; tiled reads k and v once per query block.",
        rows=tuple(row(layer) for layer in layers),
        times=tuple(
            TrafficTime(
                platform=p.title,
                tokens=layer.tokens,
                dense=dense(layer).seconds(bandwidth(p)) * 1e3,
                tiled=tiled(layer).seconds(bandwidth(p)) * 1e3,
            )
            for p in platforms
            for layer in layers
        ),
        tiles=f"At {small.tokens} tokens in {small.q_block} × {small.kv_block} blocks one head of the dense algorithm keeps "
        f"{tiles.dense_elements:,} elements of scores and probabilities, the tiled one "
        f"{tiles.tiled_elements}: a score tile of "
        f"{tiles.tile_elements} elements stays on chip, and {tiles.tiles_visited} tiles are visited.",
        decode=tuple(decode_row(t, kv_len, context) for t in targets),
        decode_note=f"{kv_len:,} tokens, {shape}, 2-byte elements. Partials have the formats of each spec.",
    )


def small_tiles() -> Layer:
    """One head of 64 tokens in the blocks of ``walkthrough.tiled``."""
    spec = load_spec("walkthrough.tiled")
    context = make_context({"kv_len": 64, "sm_count": 1, "compute_capability": 0})
    blocks = bind(spec, context).integers
    q_block, kv_block = int(blocks["q_block"]), int(blocks["kv_block"])
    return Layer(64, q_heads=1, kv_heads=1, head_dim=16, q_block=q_block, kv_block=kv_block)


def bandwidth(platform: Platform) -> float:
    """Memory bandwidth in bytes a second."""
    return platform.memory_bandwidth_gb_s * 1e9


def decode_row(target: Target, kv_len: int, context: dict[str, int]) -> DecodeTraffic:
    """One decode step of one cell."""
    from verify import plan

    given: dict[str, Any] = {"kv_len": kv_len, **context}
    partition = plan(target.spec, target.platform, **given)
    shape = partition.context
    layer = Layer(
        tokens=kv_len,
        q_heads=int(shape["q_heads"]),
        kv_heads=int(shape["kv_heads"]),
        head_dim=int(shape["head_dim"]),
        batch=int(shape["batch"]),
        element_bytes=int(shape["element_bytes"]),
    )
    fields = partial_fields(partition.program)
    count = split_decode(layer, max(1, partition.count), fields)
    return DecodeTraffic(
        cell=target.name,
        groups=partition.count,
        partial=partial_bytes(fields, layer.head_dim),
        kv=count.part("k, v once"),
        partials=count.part("partials written") + count.part("partials read back"),
        total=count.total,
        microseconds=count.seconds(bandwidth(target.platform)) * 1e6,
    )
