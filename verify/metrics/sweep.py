"""One pass over the rows of many runs: every row is decoded once a run, then met by every pair that has it.

Rows are taken in groups, by threads; each group writes its own rows of the results and adds integers
to histograms, so that results depend neither on the number of threads nor on their order. Memory is bounded by the group
size times the number of runs, not by the number of rows times the vocabulary.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.metrics.distribution import DISTRIBUTION_FIELDS, add_distributions, special_row
from verify.metrics.quantiles import KEEP, RadixHistogram
from verify.metrics.side import SIDE_FIELDS, Scratch, Side, decode, make_side, rank_of
from verify.metrics.values import (
    COLUMNS,
    FLOOR,
    MANTISSAS,
    VALUE_FIELDS,
    Part,
    ValueState,
    add_values,
    difference,
    impossible,
    part_of,
    slack_of,
    special_part,
)
from verify.runs.sequence import Full

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Quantiles of |d| in every result.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
#: Per-row decisions of a pair: how many values of b exceed b's value of a's best token, the same the other way, and
#: the values that each gives to the token that followed in the other.
DECISION_FIELDS = ("a_best_in_b", "b_best_in_a", "a_chosen_in_b", "b_chosen_in_a")
#: All per-row numbers of a pair.
PAIR_FIELDS = (*VALUE_FIELDS, *DISTRIBUTION_FIELDS, *DECISION_FIELDS)
_VALUES, _DISTANCES = len(VALUE_FIELDS), len(VALUE_FIELDS) + len(DISTRIBUTION_FIELDS)
_SUMS = ("a_sum", "b_sum", "a_squares", "b_squares")
_KEEP_ALL = 32_000_000


@dataclass(frozen=True)
class Column:
    """One run in a sweep.

    Attributes:
        floor: clamp floor, or None.
        ceiling: what no value can exceed (0 for log-probabilities), or None.
        decimals: of values that were printed in so many, or None.
        softmax: whether a row is one distribution (logits or log-probabilities).
    """

    floor: float | None = None
    decimals: int | None = None
    softmax: bool = True
    ceiling: float | None = None


@dataclass(frozen=True)
class Segment:
    """Rows ``start .. start + count`` of the results: one conversation in one repeat.

    Attributes:
        start: first row.
        count: number of rows.
        full: each run's values, or None where it has none here.
        rows: each run's row in ``full`` for each row of the segment, -1 where missing; None where ``full`` is.
        tokens: the token that followed in each run, -1 where unknown; None where ``full`` is.
    """

    start: int
    count: int
    full: tuple[Full | None, ...]
    rows: tuple[Ints | None, ...]
    tokens: tuple[Ints | None, ...]


@dataclass
class SideRows:
    """What is kept of one run: ``matrix [fields, rows]`` of `SIDE_FIELDS`, NaN where it has no row; its best tokens."""

    matrix: Floats
    best: NDArray[np.int64]
    best_values: Floats

    @property
    def fields(self) -> dict[str, Floats]:
        """`SIDE_FIELDS` by name, ``[rows]``."""
        return dict(zip(SIDE_FIELDS, self.matrix, strict=True))


@dataclass
class PairRows:
    """What is kept of one pair: ``matrix [fields, rows]`` of `PAIR_FIELDS`, NaN where rows were not compared; histograms.

    ``lost`` is the probability left out of the distances of each row because values were infinite or clamped.
    """

    first: int
    second: int
    comparable: NDArray[np.bool_]
    state: ValueState
    matrix: Floats
    lost: Floats

    @property
    def fields(self) -> dict[str, Floats]:
        """`PAIR_FIELDS` by name, ``[rows]``."""
        return dict(zip(PAIR_FIELDS, self.matrix, strict=True))


@dataclass
class Swept:
    """The result of `sweep`: one entry a run, one entry a pair."""

    sides: list[SideRows]
    pairs: list[PairRows]


class Sweep:
    """The rows, runs and pairs of one pass, and the arrays that it fills."""

    def __init__(
        self,
        columns: Sequence[Column],
        segments: Sequence[Segment],
        pairs: Sequence[tuple[int, int, NDArray[np.bool_]]],
        vocab: int,
        *,
        best: int = 10,
        floor: float = FLOOR,
        threads: int | None = None,
        rows: int | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self.segments = tuple(segments)
        self.vocab = vocab
        self.best = min(best, vocab)
        self.threads = threads or os.cpu_count() or 1
        self._local = threading.local()
        self._all = np.arange(max(1, COLUMNS // vocab))
        rows = sum(s.count for s in self.segments) if rows is None else rows
        self.sides = [
            SideRows(
                np.full((len(SIDE_FIELDS), rows), np.nan),
                np.full((rows, self.best), -1, np.int64),
                np.full((rows, self.best), np.nan),
            )
            for _ in self.columns
        ]
        self.pairs = [self._pair(i, j, mask, floor, rows, len(pairs)) for i, j, mask in pairs]

    def _dtypes(self, column: int) -> set[np.dtype[Any]]:
        return {full.dtype for s in self.segments if (full := s.full[column]) is not None}

    def _pair(self, i: int, j: int, mask: NDArray[np.bool_], floor: float, rows: int, pairs: int) -> PairRows:
        dtypes = self._dtypes(i) | self._dtypes(j)
        places = [c.decimals for c in (self.columns[i], self.columns[j]) if c.decimals is not None]
        width = 0 if places or len(dtypes) != 1 else next(iter(dtypes)).itemsize * 8
        kind = np.float64 if any(d.itemsize == 8 for d in dtypes) else np.float32
        keep = min(_KEEP_ALL // pairs, KEEP * 8)
        slack = slack_of(self.columns[i].decimals, self.columns[j].decimals)
        mantissa = MANTISSAS.get(next(iter(dtypes)), 0) if width == 16 else 0
        state = ValueState(
            RadixHistogram(kind, keep), width, floor, min(places) if places else None, slack, mantissa
        )
        return PairRows(i, j, mask, state, np.full((len(PAIR_FIELDS), rows), np.nan), np.zeros(rows))

    def groups(self) -> Iterator[tuple[Segment, int, int]]:
        """Groups of rows: (segment, first, last + 1) within the segment."""
        step = max(1, COLUMNS // self.vocab)
        for segment in self.segments:
            for low in range(0, segment.count, step):
                yield segment, low, min(low + step, segment.count)

    def run(self) -> Swept:
        """Do the pass, and further ones for the pairs whose quantiles need them."""
        self._each(self._group)
        for pair in self.pairs:
            pair.state.settle()
        while True:
            missing = [pair.state.differences.unresolved(QUANTILES) for pair in self.pairs]
            if not any(missing):
                return Swept(self.sides, self.pairs)
            self._each(partial(self._refine, missing))

    def _each(self, work: Any) -> None:
        if self.threads == 1:
            for group in self.groups():
                work(group)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(work, self.groups()):
                pass

    def _scratch(self) -> Scratch:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = Scratch()
        return self._local.scratch

    def _raw(self, segment: Segment, column: int, low: int, high: int) -> tuple[Array, Ints] | None:
        """The stored values of one run, and where it has rows; absent rows are zeros."""
        full, rows = segment.full[column], segment.rows[column]
        if full is None or rows is None:
            return None
        at = rows[low:high]
        have = np.flatnonzero(at >= 0)
        if not have.size:
            return None
        if have.size == at.size and int(at[-1] - at[0]) == at.size - 1:
            return full.read(int(at[0]), int(at[-1]) + 1)[:, : self.vocab], self._all[: at.size]
        raw = np.zeros((at.size, self.vocab), full.dtype)
        for i in have:
            raw[i] = full.read(int(at[i]), int(at[i]) + 1)[0, : self.vocab]
        return raw, have

    def _group(self, group: tuple[Segment, int, int]) -> None:
        segment, low, high = group
        held: list[Array] = []
        scratch = self._scratch()
        blocks: dict[int, tuple[Side, Ints, Ints]] = {}
        for c, column in enumerate(self.columns):
            read = self._raw(segment, c, low, high)
            if read is None:
                continue
            raw, have = read
            held.append(raw)
            known = segment.tokens[c]
            tokens = np.full(high - low, -1, np.int64) if known is None else known[low:high]
            side = make_side(
                raw,
                tokens,
                scratch,
                f"{c} ",
                k=self.best,
                floor=column.floor,
                ceiling=column.ceiling,
                printed=column.decimals is not None,
                softmax=column.softmax,
            )
            kept, at = self.sides[c], segment.start + low + have
            kept.matrix[:, at] = side.matrix[:, have]
            kept.best[at], kept.best_values[at] = side.best[have], side.best_values[have]
            blocks[c] = side, tokens, have
        for pair in self.pairs:
            if pair.first in blocks and pair.second in blocks:
                self._meet(pair, blocks[pair.first], blocks[pair.second], segment.start + low, scratch)
        blocks.clear()
        for raw in held:
            release(raw)

    def _meet(
        self,
        pair: PairRows,
        one: tuple[Side, Ints, Ints],
        two: tuple[Side, Ints, Ints],
        start: int,
        scratch: Scratch,
    ) -> None:
        """One pair in one group: runs of ordinary rows at once, special rows one by one."""
        a, tokens_a, have_a = one
        b, tokens_b, have_b = two
        wanted = have_a if len(have_a) == len(have_b) == len(tokens_a) else np.intersect1d(have_a, have_b)
        wanted = wanted[pair.comparable[start + wanted]]
        special = a.special | b.special
        for rows in runs_of(wanted, special):
            at = slice(start + rows.start, start + rows.stop)
            block = np.zeros((len(PAIR_FIELDS), rows.stop - rows.start))
            values = dict(zip(VALUE_FIELDS, block, strict=False))
            distances = dict(zip(DISTRIBUTION_FIELDS, block[_VALUES:], strict=False))
            if special[rows.start]:
                self._special(pair, a, b, rows.start, values, distances, start, scratch)
            else:
                self._ordinary(pair, a, b, rows, values, distances, scratch)
            if not self._softmax(pair):
                block[_VALUES:_DISTANCES] = np.nan
            _decide(block[_DISTANCES:], a, b, tokens_a, tokens_b, rows)
            pair.matrix[:, at] = block

    def _softmax(self, pair: PairRows) -> bool:
        return self.columns[pair.first].softmax and self.columns[pair.second].softmax

    def _ordinary(
        self,
        pair: PairRows,
        a: Side,
        b: Side,
        rows: slice,
        values: dict[str, Floats],
        distances: dict[str, Floats],
        scratch: Scratch,
    ) -> None:
        for columns in self._columns():
            part = part_of(a, b, rows, columns, pair.state.width)
            signed = add_values(pair.state, part, values, scratch)
            if signed is not None and self._softmax(pair):
                add_distributions(a, b, rows, columns, signed, distances, scratch)
        for name, side, kept in zip(
            _SUMS, (a, b, a, b), ("sum", "sum", "sum_squares", "sum_squares"), strict=True
        ):
            values[name][:] = side.rows[kept][rows]

    def _columns(self) -> Iterator[slice]:
        for low in range(0, self.vocab, COLUMNS):
            yield slice(low, min(low + COLUMNS, self.vocab))

    def _floors(self, pair: PairRows) -> tuple[float | None, float | None]:
        return self.columns[pair.first].floor, self.columns[pair.second].floor

    def _ceilings(self, pair: PairRows) -> tuple[float | None, float | None]:
        return self.columns[pair.first].ceiling, self.columns[pair.second].ceiling

    def _special(
        self,
        pair: PairRows,
        a: Side,
        b: Side,
        row: int,
        values: dict[str, Floats],
        distances: dict[str, Floats],
        start: int,
        scratch: Scratch,
    ) -> None:
        part, keep = special_part(
            a, b, row, self._floors(pair), self._ceilings(pair), values, pair.state.width
        )
        if part.a.size:
            add_values(pair.state, part, values, scratch)
        if self._softmax(pair):
            pair.lost[start + row] = special_row(a, b, row, keep, distances)

    def _refine(self, missing: list[set[tuple[int, int]]], group: tuple[Segment, int, int]) -> None:
        """Show the same differences again to the histograms that need them."""
        segment, low, high = group
        scratch = self._scratch()
        blocks: dict[int, tuple[Array, Ints]] = {}
        start = segment.start + low
        for pair, prefixes in zip(self.pairs, missing, strict=True):
            if not prefixes:
                continue
            for c in (pair.first, pair.second):
                if c not in blocks and (read := self._raw(segment, c, low, high)) is not None:
                    blocks[c] = decode(read[0], scratch, f"{c} "), read[1]
                    release(read[0])
            if pair.first not in blocks or pair.second not in blocks:
                continue
            (x, have_x), (y, have_y) = blocks[pair.first], blocks[pair.second]
            wanted = np.intersect1d(have_x, have_y)
            wanted = wanted[pair.comparable[start + wanted]]
            for rows in runs_of(wanted, np.zeros(high - low, bool)):
                part = Part(x[rows], y[rows], x[rows], y[rows], None)
                with np.errstate(invalid="ignore"):
                    d = np.abs(difference(part, scratch)).astype(pair.state.differences.dtype, copy=False)
                ceilings = self._ceilings(pair)
                limits = *self._floors(pair), *ceilings
                if np.isfinite(d.max()) and all(limit is None for limit in limits):
                    pair.state.differences.refine(d, prefixes)
                    continue
                keep = np.isfinite(part.a) & np.isfinite(part.b)
                for side, floor in zip((part.a, part.b), self._floors(pair), strict=True):
                    keep &= True if floor is None else side > floor
                keep &= ~impossible(part.a, part.b, ceilings)
                pair.state.differences.refine(d[keep], prefixes)


def runs_of(rows: Ints, special: NDArray[np.bool_]) -> Iterable[slice]:
    """Ascending rows as slices without gaps; special rows alone."""
    if rows.size and rows[-1] - rows[0] == rows.size - 1 and not special.any():
        return [slice(int(rows[0]), int(rows[-1]) + 1)]
    found: list[slice] = []
    for r in rows.tolist():
        last = found[-1] if found else None
        if last is not None and last.stop == r and not special[r] and not special[last.start]:
            found[-1] = slice(last.start, r + 1)
        else:
            found.append(slice(r, r + 1))
    return found


def release(array: Array) -> None:
    """Let go of the pages of a read-only view of a mapped file: they are read again when they are needed.

    Pages of mapped files count as memory of the process; a pass would otherwise hold whole files.
    """
    if array.flags.writeable or array.flags.owndata:
        return
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(base, "madvise"):
        return
    start = np.frombuffer(base, np.uint8).ctypes.data
    low = (array.ctypes.data - start) // mmap.PAGESIZE * mmap.PAGESIZE
    high = array.ctypes.data - start + array.nbytes
    if 0 <= low < high <= len(base):
        base.madvise(mmap.MADV_DONTNEED, low, high - low)


def _decide(block: Floats, a: Side, b: Side, tokens_a: Ints, tokens_b: Ints, rows: slice) -> None:
    """Ranks and values of each run's tokens in the other: fills ``block [DECISION_FIELDS, rows]``."""
    vocab = a.values.shape[1]
    block[:2] = 0
    block[2:] = np.nan
    same = a.best[rows, 0] == b.best[rows, 0]
    for i, (mine, other) in enumerate(((a, b), (b, a))):
        for at in np.flatnonzero(~same):
            r = rows.start + int(at)
            token = int(mine.best[r, 0])
            known = token >= 0 and other.best[r, 0] >= 0 and not np.isnan(other.values[r, token])
            block[i, at] = rank_of(other.values[r], token, other.best[r]) if known else np.nan
    for i, (tokens, other) in enumerate(((tokens_a[rows], b), (tokens_b[rows], a))):
        known = np.flatnonzero((tokens >= 0) & (tokens < vocab))
        block[2 + i, known] = other.values[rows.start + known, tokens[known]]


def sweep(
    columns: Sequence[Column],
    segments: Sequence[Segment],
    pairs: Sequence[tuple[int, int, NDArray[np.bool_]]],
    vocab: int,
    **options: Any,
) -> Swept:
    """Compare runs over the first ``vocab`` columns of their rows.

    Args:
        columns: the runs.
        segments: their rows, aligned.
        pairs: (first run, second run, ``[rows]`` which rows are comparable).
        vocab: number of columns.
        options: of `Sweep`: ``best`` tokens kept a row, ``floor`` of the relative difference, ``threads``, and ``rows`` of
            the results, where they are more than those of the segments.
    """
    return Sweep(columns, segments, pairs, vocab, **options).run()


__all__ = ["Column", "PairRows", "Segment", "SideRows", "Sweep", "Swept", "sweep"]
