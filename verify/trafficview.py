"""The traffic counts for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specs import Platform, Spec
from verify.partials import partial_fields
from verify.traffic import (
    MEGABYTE,
    Layer,
    Traffic,
    dense,
    dense_backward,
    partial_bytes,
    split_decode,
    tile_count,
    tiled,
    tiled_backward,
)

CAUTION = "logical accesses counted from the algorithms, in MB of 10^6 bytes; not measured traffic"


def traffic_json(
    layers: Sequence[Layer], platforms: Sequence[Platform], cells: Sequence[tuple[Spec, Platform]]
) -> dict[str, Any]:
    """Every count: forward and backward for each layer, and decode of each cell, a spec on a platform."""
    rows = [_row(layer, platforms) for layer in layers]
    decode = [_decode(layer, p, spec) for layer in layers for spec, p in cells]
    return {"schema": 1, "what": CAUTION, "rows": rows, "decode": decode}


def _row(layer: Layer, platforms: Sequence[Platform]) -> dict[str, Any]:
    counts = [dense(layer), tiled(layer), dense_backward(layer), tiled_backward(layer)]
    tiles = tile_count(layer)
    return {
        "tokens": layer.tokens,
        "algorithms": {c.algorithm: _count(c, platforms) for c in counts},
        "tiles": {
            "dense_elements": tiles.dense_elements,
            "tiled_elements": tiles.tiled_elements,
            "tile_elements": tiles.tile_elements,
            "tiles_visited": tiles.tiles_visited,
        },
    }


def _count(count: Traffic, platforms: Sequence[Platform]) -> dict[str, Any]:
    return {
        "bytes": count.total,
        "parts": dict(count.parts),
        "seconds": {p.name: count.seconds(p.memory_bandwidth_gb_s * 1e9) for p in platforms},
    }


def _decode(layer: Layer, platform: Platform, spec: Spec) -> dict[str, Any]:
    from verify import plan

    found = plan(
        spec,
        platform,
        kv_len=layer.tokens,
        q_heads=layer.q_heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        element_bytes=layer.element_bytes,
    )
    fields = partial_fields(found.program)
    count = split_decode(layer, max(1, found.count), fields)
    return {
        "tokens": layer.tokens,
        "spec": spec.name,
        "platform": platform.name,
        "groups": found.count,
        "partial_bytes": partial_bytes(fields, layer.head_dim),
        "partial": [f.name for f in fields],
        **_count(count, [platform]),
    }


def traffic_text(table: dict[str, Any]) -> Iterator[str]:
    """The tables."""
    yield CAUTION
    yield ""
    heads = ("q,k,v,o", "matrix", "dense", "tiled", "dense bwd", "tiled bwd")
    yield "  ".join(["tokens".rjust(7), *(name.rjust(12) for name in heads)])
    for row in table["rows"]:
        a = row["algorithms"]
        figures = [
            a["dense"]["parts"]["q, k, v, output"],
            a["dense"]["parts"]["matrix"],
            *(a[name]["bytes"] for name in a),
        ]
        yield "  ".join([f"{row['tokens']:>7}", *(f"{size / MEGABYTE:>12.2f}" for size in figures)])
    yield ""
    yield "time that memory bandwidth alone allows, forward, ms"
    names = list(table["rows"][0]["algorithms"]["dense"]["seconds"]) if table["rows"] else []
    yield f"{'tokens':>7}  " + "  ".join(f"{name + ' dense':>14}  {name + ' tiled':>14}" for name in names)
    for row in table["rows"]:
        a = row["algorithms"]
        pairs = [f"{a[kind]['seconds'][n] * 1e3:>14.3f}" for n in names for kind in ("dense", "tiled")]
        yield f"{row['tokens']:>7}  " + "  ".join(pairs)
    if table["decode"]:
        yield ""
        yield "one decode step"
        columns = ("groups", "partial B", "k, v", "partials", "total", "us")
        yield "  ".join(["tokens".rjust(7), "platform".ljust(10), *(name.rjust(10) for name in columns)])
    for d in table["decode"]:
        parts = d["parts"]
        both = parts["partials written"] + parts["partials read back"]
        yield (
            f"{d['tokens']:>7}  {d['platform']:<10}  {d['groups']:>10}  {d['partial_bytes']:>10}  "
            f"{parts['k, v once'] / MEGABYTE:>10.2f}  {both / MEGABYTE:>10.2f}  {d['bytes'] / MEGABYTE:>10.2f}  "
            f"{d['seconds'][d['platform']] * 1e6:>10.1f}"
        )
