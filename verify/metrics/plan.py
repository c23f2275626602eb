"""From runs and their alignments to passes over full rows, and back to the rows of each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import Aligned, RunAlignment, by_conversation
from verify.metrics.sweep import Column, PairRows, Segment, SideRows, sweep
from verify.metrics.values import FLOOR
from verify.runs.manifest import Recording
from verify.runs.run import Run
from verify.runs.sequence import Full, Ints
from verify.runs.sequence import Sequence as Recorded

Pair = tuple[int, int]
Slot = tuple[str, int]

#: Runs of one pass, where there are many: pairs are taken block by block.
TILE = 8
#: Value kinds whose rows are one distribution.
DISTRIBUTIONS = ("raw_logits", "raw_logprobs", "processed")


@dataclass(frozen=True)
class Axis:
    """One axis of rows for all runs: for each conversation and ordinal of a repeat, all positions of any run.

    Attributes:
        slots: (conversation, ordinal) to (first row, positions).
        rows: number of rows.
    """

    slots: Mapping[Slot, tuple[int, Ints]]
    rows: int

    def of(self, aligned: Aligned) -> Ints:
        """The rows of two aligned sequences."""
        return self.at((aligned.conversation, aligned.ordinal), aligned.positions)

    def at(self, slot: Slot, positions: Ints) -> Ints:
        """The rows of some positions."""
        start, known = self.slots[slot]
        return start + np.searchsorted(known, positions)


@dataclass(frozen=True)
class FullRows:
    """What passes over full rows gave.

    Attributes:
        axis: of all rows.
        sides: of each run with full rows, over its own vocabulary or that of its first pass.
        pairs: rows of each pair; ``pair_sides`` of its two runs in the same pass.
        vocab: columns compared, by pair.
    """

    axis: Axis
    sides: dict[int, SideRows] = field(default_factory=dict)
    pairs: dict[Pair, PairRows] = field(default_factory=dict)
    pair_sides: dict[Pair, tuple[SideRows, SideRows]] = field(default_factory=dict)
    vocab: dict[Pair, int] = field(default_factory=dict)


def grouped(runs: Sequence[Run]) -> list[dict[Slot, Recorded]]:
    """The sequences of each run by conversation and ordinal."""
    return [
        {(name, k): s for name, group in by_conversation(run.sequences).items() for k, s in enumerate(group)}
        for run in runs
    ]


def make_axis(groups: Sequence[Mapping[Slot, Recorded]]) -> Axis:
    """One axis for all runs."""
    positions: dict[Slot, list[Ints]] = {}
    for group in groups:
        for slot, sequence in group.items():
            positions.setdefault(slot, []).append(sequence.positions)
    slots: dict[Slot, tuple[int, Ints]] = {}
    start = 0
    for slot, parts in positions.items():
        known = np.unique(np.concatenate(parts)).astype(np.int64)
        slots[slot] = start, known
        start += len(known)
    return Axis(slots, start)


def vocabulary(run: Run) -> int | None:
    """Columns of the full rows of a run, or None where it has none."""
    widths = [s.full.vocab for s in run.sequences if s.full is not None]
    return min(widths) if widths else None


def ceiling_of(capture: Recording) -> float | None:
    """What no value of a recording can exceed: 0 for log-probabilities. (Processed values may be logits.)"""
    return 0.0 if capture.value_kind == "raw_logprobs" else None


def column_of(run: Run) -> Column:
    """How a run's rows are to be read."""
    capture = run.manifest.capture
    return Column(
        capture.clamp_floor, capture.decimals, capture.value_kind in DISTRIBUTIONS, ceiling_of(capture)
    )


def pass_over(
    runs: Sequence[Run],
    alignments: Mapping[Pair, RunAlignment],
    *,
    best: int = 10,
    floor: float = FLOOR,
    threads: int | None = None,
) -> FullRows:
    """Compare the full rows of all pairs.

    Args:
        runs: all runs.
        alignments: of the pairs to compare, by the numbers of the runs.
        best: tokens kept of each row.
        floor: of the relative difference.
        threads: number of threads; as many as the machine has cores by default.
    """
    groups = grouped(runs)
    axis = make_axis(groups)
    found = FullRows(axis)
    widths = [vocabulary(run) for run in runs]
    blocks: dict[tuple[int, int, int], list[Pair]] = {}
    tile = TILE if sum(w is not None for w in widths) > 2 * TILE else len(runs) + 1
    for i, j in alignments:
        a, b = widths[i], widths[j]
        refused = all(s.refused is not None for s in alignments[i, j].sequences)
        if a is not None and b is not None and not refused:
            blocks.setdefault((min(a, b), i // tile, j // tile), []).append((i, j))
    for (width, _, _), pairs in blocks.items():
        members = sorted({run for pair in pairs for run in pair})
        masks = [(members.index(i), members.index(j), _mask(axis, alignments[i, j])) for i, j in pairs]
        segments = [s for slot in axis.slots if (s := _segment(axis, slot, members, groups)) is not None]
        columns = [column_of(runs[m]) for m in members]
        swept = sweep(
            columns, segments, masks, width, best=best, floor=floor, threads=threads, rows=axis.rows
        )
        for m, side in zip(members, swept.sides, strict=True):
            found.sides.setdefault(m, side)
        for (i, j), rows in zip(pairs, swept.pairs, strict=True):
            found.pairs[i, j] = rows
            found.pair_sides[i, j] = swept.sides[members.index(i)], swept.sides[members.index(j)]
            found.vocab[i, j] = width
    for i, width in enumerate(widths):
        if width is not None and i not in found.sides:
            segments = [s for slot in axis.slots if (s := _segment(axis, slot, [i], groups)) is not None]
            alone = sweep(
                [column_of(runs[i])], segments, [], width, best=best, threads=threads, rows=axis.rows
            )
            found.sides[i] = alone.sides[0]
    return found


def _mask(axis: Axis, alignment: RunAlignment) -> NDArray[np.bool_]:
    """Which rows of the axis a pair compares."""
    mask = np.zeros(axis.rows, bool)
    for aligned in alignment.sequences:
        mask[axis.of(aligned)[aligned.comparable]] = True
    return mask


def _segment(
    axis: Axis, slot: Slot, members: Sequence[int], groups: Sequence[Mapping[Slot, Recorded]]
) -> Segment | None:
    """One slot's rows in some runs; None where none has full rows there."""
    start, positions = axis.slots[slot]
    full: list[Full | None] = []
    rows: list[Ints | None] = []
    tokens: list[Ints | None] = []
    for m in members:
        sequence = groups[m].get(slot)
        if sequence is None or sequence.full is None:
            full.append(None)
            rows.append(None)
            tokens.append(None)
            continue
        known, first = np.unique(sequence.positions, return_index=True)
        where = np.full(len(positions), -1, np.int64)
        where[np.searchsorted(positions, known)] = first
        held = np.full(len(positions), -1, np.int64)
        held[np.searchsorted(positions, known)] = sequence.tokens[first]
        full.append(sequence.full)
        rows.append(where)
        tokens.append(held)
    if all(f is None for f in full):
        return None
    return Segment(start, len(positions), tuple(full), tuple(rows), tuple(tokens))
