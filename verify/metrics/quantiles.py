"""Exact quantiles of streams that do not fit memory: radix histograms of bit patterns.

The patterns of nonnegative IEEE numbers, read as integers, are ordered as the numbers are. A first pass counts the
leading 16 bits; patterns whose other bits are not all zero are kept as they are, up to a limit. Where the limit was
passed, the bins that hold a wanted order statistic are split by the next 16 bits in a further pass over the data, and
so on: one further pass for float32, at most three for float64.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Prefix = tuple[int, int]

#: Patterns with nonzero trailing bits that one histogram keeps.
KEEP = 4_000_000


class RadixHistogram:
    """Order statistics of a stream of nonnegative finite numbers of one dtype, float32 or float64; exact.

    ``add`` may be called from threads, and its order does not matter.
    """

    def __init__(self, dtype: Any = np.float32, keep: int = KEEP) -> None:
        self.dtype = np.dtype(dtype)
        self.word = np.dtype(f"u{self.dtype.itemsize}")
        self.low = self.dtype.itemsize * 8 - 16  # bits below the leading 16
        self.n = 0
        self.counts = np.zeros(1 << 15, np.int64)  # the sign bit is zero
        self._keep = keep
        self._rest: list[Array] | None = []
        self._kept = 0
        self._known: list[tuple[Array, NDArray[np.int64]]] = []
        self._levels: dict[Prefix, NDArray[np.int64]] = {}
        self._sorted: tuple[Array, NDArray[np.int64]] | None = None
        self._lock = threading.Lock()

    def add(self, x: Array, scratch: Array | None = None, spare: Array | None = None) -> None:
        """Count the elements of ``x``: any shape, contiguous, nonnegative (-0 is not), finite.

        Args:
            x: the numbers, in the histogram's dtype.
            scratch: int64 with at least as many elements, overwritten; saves an allocation.
            spare: the same in the dtype of the patterns.
        """
        keys = x.reshape(-1).view(self.word)
        index = np.empty(keys.size, np.int64) if scratch is None else scratch[: keys.size]
        np.right_shift(keys, self.low, out=index, dtype=np.int64 if self.low > 16 else None, casting="unsafe")
        counts = np.bincount(index, minlength=1 << 15)
        rest: Array | None = None
        if self._rest is not None:
            below = None if spare is None else spare[: keys.size]
            below = np.bitwise_and(keys, self.word.type((1 << self.low) - 1), out=below)
            at = (below != 0).nonzero()[0]
            if at.size:
                rest = keys[at]
        with self._lock:
            self.n += keys.size
            self.counts += counts
            self._sorted = None
            if rest is not None and self._rest is not None:
                self._kept += rest.size
                self._rest.append(rest)
                if self._kept > self._keep:
                    self._rest = None

    def add_counted(self, x: Array, counts: NDArray[np.int64]) -> None:
        """Count ``counts [n]`` elements of each of the numbers ``x [n]``."""
        keys = x.view(self.word)
        with self._lock:
            self.n += int(counts.sum())
            np.add.at(self.counts, (keys >> self.word.type(self.low)).astype(np.int64), counts)
            some = (keys & self.word.type((1 << self.low) - 1)) != 0
            self._known.append((keys[some], counts[some]))
            self._sorted = None

    def add_zeros(self, count: int) -> None:
        """Count ``count`` zeros."""
        with self._lock:
            self.n += count
            self.counts[0] += count

    def ranks(self, quantiles: Iterable[float]) -> list[int]:
        """The ranks (from 0) whose order statistics the quantiles need: the two around ``q * (n - 1)``."""
        wanted: set[int] = set()
        for q in quantiles:
            if self.n:
                place = q * (self.n - 1)
                wanted |= {int(np.floor(place)), int(np.ceil(place))}
        return sorted(wanted)

    def unresolved(self, quantiles: Iterable[float]) -> set[Prefix]:
        """What a further pass has to split before `quantiles` can answer: pairs (bits read, leading bits)."""
        return {p for p in (self._find(rank) for rank in self.ranks(quantiles)) if isinstance(p, tuple)}

    def refine(self, x: Array, prefixes: set[Prefix]) -> None:
        """Split ``prefixes`` by the next 16 bits of the elements of ``x``; the pass must show the same numbers again."""
        keys = x.reshape(-1).view(self.word)
        found: dict[Prefix, NDArray[np.int64]] = {}
        for bits, prefix in prefixes:
            shift = self.dtype.itemsize * 8 - bits
            inside = keys[(keys >> self.word.type(shift)) == self.word.type(prefix)]
            if inside.size:
                digits = (inside >> self.word.type(shift - 16)) & self.word.type(0xFFFF)
                found[bits, prefix] = np.bincount(digits.astype(np.int64), minlength=1 << 16)
        with self._lock:
            for key, counts in found.items():
                if key in self._levels:
                    self._levels[key] += counts
                else:
                    self._levels[key] = counts

    def _find(self, rank: int) -> float | Prefix:
        """The number of rank ``rank``, or the prefix that has to be split first."""
        total = np.cumsum(self.counts)
        bucket = int(np.searchsorted(total, rank, side="right"))
        rank -= int(total[bucket - 1]) if bucket else 0
        if self._rest is not None:
            if self._sorted is None:
                self._sorted = self._patterns()
            keys, before = self._sorted
            first, last = np.searchsorted(
                keys, np.array([bucket << self.low, (bucket + 1) << self.low], self.word)
            )
            plain = int(self.counts[bucket]) - int(before[last] - before[first])
            if rank < plain:
                return self._value(bucket << self.low)
            at = int(np.searchsorted(before, before[first] + rank - plain, side="right")) - 1
            return self._value(int(keys[at]))
        bits, prefix = 16, bucket
        while bits < self.dtype.itemsize * 8:
            counts = self._levels.get((bits, prefix))
            if counts is None:
                return bits, prefix
            total = np.cumsum(counts)
            digit = int(np.searchsorted(total, rank, side="right"))
            rank -= int(total[digit - 1]) if digit else 0
            bits, prefix = bits + 16, prefix << 16 | digit
        return self._value(prefix)

    def _patterns(self) -> tuple[Array, NDArray[np.int64]]:
        """Ascending patterns whose trailing bits are not zero, and how many elements come before each, and in all."""
        parts = [np.unique(part, return_counts=True) for part in self._rest or []]
        parts += self._known
        joined = np.concatenate([p for p, _ in parts]) if parts else np.empty(0, self.word)
        counts = np.concatenate([n for _, n in parts]) if parts else np.empty(0, np.int64)
        keys, inverse = np.unique(joined, return_inverse=True)
        each = np.zeros(keys.size, np.int64)
        np.add.at(each, inverse, counts)
        return keys, np.concatenate([[0], np.cumsum(each)])

    def _value(self, key: int) -> float:
        return float(np.array([key], self.word).view(self.dtype)[0])

    def quantiles(self, wanted: Sequence[float]) -> tuple[float | None, ...]:
        """The quantiles, by linear interpolation between neighbouring order statistics (NumPy's default); exact but
        for the one rounding of the interpolation. None where nothing was counted.

        Raises:
            ValueError: a further pass is needed; see `unresolved`.
        """
        found: list[float | None] = []
        for q in wanted:
            if not self.n:
                found.append(None)
                continue
            place = q * (self.n - 1)
            low, high = int(np.floor(place)), int(np.ceil(place))
            a, b = self._find(low), self._find(high)
            if isinstance(a, tuple) or isinstance(b, tuple):
                raise ValueError("a further pass over the data is needed")
            found.append(a + (b - a) * (place - low))
        return tuple(found)

    def max(self) -> float | None:
        """Largest number, or None where nothing was counted."""
        return self.quantiles([1.0])[0]


def log_bins(counts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Counts by integer value 0, 1, 2, ... put in bins 0, 1, 2, 3-4, 5-8, ...: (low, high, count), up to the last one
    that is not empty. The bins of `verify.numerics.ulp`.
    """
    used = np.flatnonzero(counts)
    if not used.size:
        return []
    bins: list[tuple[int, int, int]] = []
    low, high = 0, 0
    while low <= int(used[-1]):
        bins.append((low, high, int(counts[low : high + 1].sum())))
        low, high = high + 1, max(1, high * 2)
    return bins
