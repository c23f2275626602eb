"""What a run holds: sequences of positions, each with the values recorded there.

A *row* predicts one token: row i of a sequence stands at ``positions[i]``, the index in the text after which the next
token is predicted, and ``tokens[i]`` is the token that followed (chosen or forced). Rows are read in blocks: nothing here
holds a vocabulary for every position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Array = NDArray[Any]

#: Token of a row of which only the text is known, or nothing.
UNKNOWN = -1


@dataclass(frozen=True)
class Full:
    """Values over the whole vocabulary, read in blocks.

    Attributes:
        rows: how many rows.
        vocab: how many columns.
        dtype: the stored dtype: bfloat16 (ml_dtypes), float16, float32 or float64.
        read: ``read(start, stop)`` gives rows as ``[stop - start, vocab]`` in the stored dtype; a view of mapped memory
            where the file allows it. It may be called in any order, again, and from threads.
        key: what identifies these bytes (file, offset, sha256), so that two readers of one file are seen as one.
    """

    rows: int
    vocab: int
    dtype: np.dtype[Any]
    read: Callable[[int, int], Array]
    key: str = ""


@dataclass(frozen=True)
class Top:
    """The K most likely tokens of each row.

    Attributes:
        ids: ``[rows, K]`` int64; `UNKNOWN` where a row has fewer, or where only texts are known.
        values: ``[rows, K]`` float64 (exact for every stored format), NaN where a row has fewer.
        lse: ``[rows]`` float64, the log-sum-exp over the whole vocabulary in nats, or None where the values are
            log-probabilities already.
        texts: texts of the tokens, where ids are not known: one list a row, or None.
    """

    ids: Ints
    values: Floats
    lse: Floats | None = None
    texts: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True)
class Attention:
    """Attention tensors of one layer: ``q [N, heads, dim]``, ``k, v [M, kv_heads, dim]``, ``out [N, heads, dim]`` and
    ``lse [N, heads]`` in nats, each in its stored dtype; None where it was not recorded.
    """

    layer: int
    q: Array | None = None
    k: Array | None = None
    v: Array | None = None
    out: Array | None = None
    lse: Array | None = None


@dataclass(frozen=True)
class Sequence:
    """One conversation in one repeat.

    Attributes:
        conversation: its id: the unit of the bootstrap; sequences of two runs are compared where ids are equal.
        repeat: 0, 1, ... in the order in which the requests were answered.
        positions: ``[rows]`` int64, ascending, distinct.
        tokens: ``[rows]`` int64; `UNKNOWN` where not recorded.
        prompt: token ids before the first row's, or None where not recorded.
        texts: texts of ``tokens``, or None.
        chosen: ``[rows]`` float64, value of ``tokens`` as the capture's value kind says; NaN where it was null.
        full, top, attention: what else was recorded.
        ranges: ``[rows]`` names of the ranges of a workload, or None; ``depths``: ``[rows]`` int64 tokens before, or None
            (then ``positions`` is the depth).
        finish: why it ended ("length", "stop"), or None.
        counts: what a reader saw and could not keep (nulls, clamped values, duplicates, ...), by name: for the health
            section.
        labels: whatever else distinguishes it (batch, cell, request hash, snapshot version), by name.
    """

    conversation: str
    repeat: int
    positions: Ints
    tokens: Ints
    prompt: Ints | None = None
    texts: tuple[str, ...] | None = None
    chosen: Floats | None = None
    full: Full | None = None
    top: Top | None = None
    attention: tuple[Attention, ...] = ()
    ranges: tuple[str, ...] | None = None
    depths: Ints | None = None
    finish: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.positions)
