"""The arrays that one compiled program reads, all traced, and the static sizes it was compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax

from specs.formats import Format
from verify.engine.ranges import Range
from verify.engine.values import Val

Array = jax.Array


@dataclass(frozen=True)
class Arrays:
    """Inputs of the array walker.

    Attributes:
        heads, rows: KV heads, and query rows that share one.
        sizes: the padded size of every axis.
        q: ``[kv_head, row, depth]`` in the carrier, or None when scores are fed.
        k: as `contract.prepare_keys` lays it out, or None.
        v: as `contract.prepare_values` lays it out: ``[capacity + 16, kv_head, dim / 16, 16]``.
        formats: formats of the values of ``q``, ``k`` and ``v``.
        ranges: exponent ranges of ``k`` and ``v``.
        kv_len: tokens of the sequence, int32.
        visible: ``[tile, 1, row, 16]``: whether a row may see a token.
        position: int32 ``[tile, 1, 1, 16]``: the number of each token.
        queries: int32 ``[row]``: the position of each query row.
        per_row: values that differ by query head, ``[kv_head, row]``, by name.
        tokens: int32 ``[*levels, step, 16]``, -1 pads.
        aligned: every step is 16 consecutive tokens from a multiple of 16 (static).
        consecutive: every step is consecutive ascending tokens from its first lane (static).
        live: whether a slot of ``tokens`` holds a token.
        exists: by level, whether a piece is visited.
        feed: sites of the token section supplied from outside, in natural order.
        scalars: the scale and the spec's constants, in the carrier.
        zero: a uint32 zero that the compiler does not know.
    """

    heads: int
    rows: int
    sizes: Mapping[str, int]
    q: Array | None
    k: Array | None
    v: Array
    formats: Mapping[str, Format]
    ranges: Mapping[str, Range]
    kv_len: Array
    visible: Array
    position: Array
    queries: Array
    tokens: Array
    aligned: bool
    consecutive: bool
    zero: Array
    live: Val
    exists: Mapping[str, Val]
    feed: Mapping[str, Array] = field(default_factory=dict[str, Array])
    scalars: Mapping[str, Array] = field(default_factory=dict[str, Array])
    per_row: Mapping[str, Array] = field(default_factory=dict[str, Array])
