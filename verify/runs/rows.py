"""Rows from what an engine answered: pieces of a text, put in order, as a `Sequence`.

An answer may have values for its prompt and for what it generated: two `Piece` s. Rows at a position that is there
already are left out and counted; rows that came out of order are sorted and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from verify.runs.sequence import UNKNOWN, Floats, Full, Ints, Sequence, Top

#: Label of a sequence whose positions count from the first answered token, as the prompt's length is not known.
RELATIVE = {"positions": "from the first answered token"}


@dataclass(frozen=True)
class Piece:
    """Neighbouring or separate rows.

    Attributes:
        positions, tokens: ``[rows]``.
        chosen: ``[rows]``, or None.
        top_ids, top_values: ``[rows, K]``, or None.
        texts: ``[rows]``, or None; ``top_texts``: rows of texts, or None.
    """

    positions: Ints
    tokens: Ints
    chosen: Floats | None = None
    top_ids: Ints | None = None
    top_values: Floats | None = None
    texts: Items[str] | None = None
    top_texts: Items[Items[str]] | None = None


@dataclass
class Conversations:
    """Numbers repeats: the n-th answer to one conversation is its repeat n."""

    seen: dict[str, int] = field(default_factory=dict[str, int])

    def repeat(self, conversation: str) -> int:
        """The number of this answer to ``conversation``, from 0."""
        self.seen[conversation] = self.seen.get(conversation, -1) + 1
        return self.seen[conversation]


def prompt_name(prompt: Ints | Items[int]) -> str:
    """A conversation's name from the ids of its prompt: the same prompt has the same name in every run."""
    ids = np.asarray(prompt, dtype="<i8")
    return f"prompt-{hashlib.sha256(ids.tobytes()).hexdigest()[:12]}"


def sequence(
    conversation: str,
    repeat: int,
    pieces: Items[Piece],
    *,
    prompt: Ints | None = None,
    full: Full | None = None,
    lse: Floats | None = None,
    finish: str | None = None,
    counts: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
) -> Sequence:
    """The rows of all pieces together. ``prompt`` is the whole prompt: what stands before the first row's token is kept.

    ``full`` and ``lse`` go with the rows as they come, and only with rows that need no sorting.
    """
    pieces = [p for p in pieces if len(p.positions)] or list(pieces[:1])
    positions = np.concatenate([p.positions for p in pieces]) if pieces else np.zeros(0, np.int64)
    tokens = np.concatenate([p.tokens for p in pieces]) if pieces else np.zeros(0, np.int64)
    counts = dict(counts or {})
    order, found = _order(positions)
    counts.update({k: counts.get(k, 0) + n for k, n in found.items()})
    chosen = _joined([p.chosen for p in pieces], [len(p.positions) for p in pieces])
    top = _top(pieces, lse)
    texts: tuple[str, ...] | None = None
    if any(p.texts is not None for p in pieces):
        empty = [p.texts if p.texts is not None else [""] * len(p.positions) for p in pieces]
        texts = tuple(chain.from_iterable(empty))
    if order is not None:
        positions, tokens = positions[order], tokens[order]
        chosen = None if chosen is None else chosen[order]
        texts = None if texts is None else tuple(texts[i] for i in order)
        top = None if top is None else _picked(top, order)
        full = None if full is None else _picked_full(full, order)
    if prompt is not None and len(positions):
        prompt = prompt[: int(positions[0]) + 1]
    return Sequence(
        conversation,
        repeat,
        positions,
        tokens,
        prompt,
        texts,
        chosen,
        full,
        top,
        finish=finish,
        counts=counts,
        labels=dict(labels or {}),
    )


def _order(positions: Ints) -> tuple[Ints | None, dict[str, int]]:
    """Which rows to take so that positions ascend and are distinct (None: all, as they are), and what was counted."""
    steps = np.diff(positions)
    if (steps > 0).all():
        return None, {}
    _, first = np.unique(positions, return_index=True)
    twice = len(positions) - len(first)
    kept = positions[np.sort(first)]
    behind = int((kept < np.maximum.accumulate(kept)).sum())
    return first.astype(np.int64), {
        name: n for name, n in (("duplicate_positions", twice), ("unsorted_positions", behind)) if n
    }


def _joined(parts: list[Floats | None], lengths: list[int]) -> Floats | None:
    if all(p is None for p in parts):
        return None
    return np.concatenate(
        [p if p is not None else np.full(n, np.nan) for p, n in zip(parts, lengths, strict=True)]
    )


def _top(pieces: Items[Piece], lse: Floats | None) -> Top | None:
    widths = [0 if p.top_values is None else p.top_values.shape[1] for p in pieces]
    if not any(widths):
        return None
    rows = sum(len(p.positions) for p in pieces)
    ids = np.full((rows, max(widths)), UNKNOWN, np.int64)
    values = np.full((rows, max(widths)), np.nan)
    texts: list[tuple[str, ...]] = []
    at = 0
    for piece, width in zip(pieces, widths, strict=True):
        n = len(piece.positions)
        if piece.top_values is not None:
            values[at : at + n, :width] = piece.top_values
        if piece.top_ids is not None:
            ids[at : at + n, :width] = piece.top_ids
        texts += [tuple(t) for t in piece.top_texts] if piece.top_texts is not None else [()] * n
        at += n
    return Top(ids, values, lse, tuple(texts) if any(texts) else None)


def _picked(top: Top, order: Ints) -> Top:
    texts = None if top.texts is None else tuple(top.texts[i] for i in order)
    return Top(top.ids[order], top.values[order], None if top.lse is None else top.lse[order], texts)


def _picked_full(full: Full, order: Ints) -> Full:
    def read(start: int, stop: int) -> Any:
        wanted = order[start:stop]
        return (
            np.concatenate([full.read(int(i), int(i) + 1) for i in wanted])
            if len(wanted)
            else full.read(0, 0)
        )

    return Full(len(order), full.vocab, full.dtype, read, f"{full.key}:rows")


def ragged(rows: Iterable[Items[tuple[int, float]] | None]) -> tuple[Ints, Floats]:
    """Rows of (id, value) of different lengths as ``[rows, K]``, with `UNKNOWN` and NaN where a row is shorter."""
    taken = [row or () for row in rows]
    width = max([0, *map(len, taken)])
    ids = np.full((len(taken), width), UNKNOWN, np.int64)
    values = np.full((len(taken), width), np.nan)
    for i, row in enumerate(taken):
        if row:
            ids[i, : len(row)] = [entry[0] for entry in row]
            values[i, : len(row)] = [entry[1] for entry in row]
    return ids, values
