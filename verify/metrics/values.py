"""Distances between the values of two runs, element by element, over blocks of rows.

For elements a and b of one position and token:

- the difference d = a - b is computed in float32, in float64 where float64 is stored: one rounding of the exact
  difference, and none where a and b lie close. Squares are rounded once more; sums accumulate in float64 (see
  `verify.metrics.side.total`);
- the relative difference is |d| / max(|a|, |b|, floor);
- ULP distance is counted in the stored dtype on the line of `verify.numerics.ulp`: both zeros are one place;
- bits agree from the sign down: a histogram of the number of equal leading bits;
- NaN and infinity have no distance: they are counted apart, as are clamped values, which stand for anything lower, and
  log-probabilities above 0, which are none.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.metrics.quantiles import RadixHistogram
from verify.metrics.side import Scratch, Side, count_rows, squares, total
from verify.numerics.ulp import ulp_distance

Array = NDArray[Any]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Per-row numbers of a pair. ``n`` elements have a difference; ``different`` of them have other bits (other values
#: where values were printed or dtypes differ). Sums are over these elements; ``sum`` is of a - b.
VALUE_FIELDS: tuple[str, ...] = (
    "n",
    "different",
    "zero_sign",
    "sum",
    "sum_abs",
    "sum_squares",
    "max_abs",
    "sum_relative",
    "max_relative",
    "max_ulp",
    "a_sum",
    "b_sum",
    "a_squares",
    "b_squares",
    "printed_different",
    "nan_both",
    "nan_mismatch",
    "inf_both",
    "inf_mismatch",
    "clamped",
    "clamp_mismatch",
    "impossible",
    "impossible_mismatch",
)
_MAXIMA = ("max_abs", "max_relative", "max_ulp")

#: Columns that one step of a kernel takes: with fewer, threads wait for one another between the calls of NumPy.
COLUMNS = 1 << 19
#: Default floor of the relative difference.
FLOOR = 1e-3


def slack_of(first: int | None, second: int | None) -> float:
    """How far apart one number may stand that two runs printed with unequal numbers of decimals, None being all of them.

    Half a last digit of each; 0 where both have as many, so that equal numbers are printed alike.
    """
    if first == second:
        return 0.0
    return 1.001 * sum(0.5 * 10.0**-d for d in (first, second) if d is not None)


@dataclass
class ValueState:
    """Histograms of one pair, added to from threads.

    Attributes:
        differences: of |d|.
        ulps: counts of ULP distances 0, 1, 2, ... for 16-bit dtypes; of bins 0, 1, 2, 3-4, 5-8, ... for wider ones.
        xors: counts of elements by the exclusive or of their bits for 16-bit dtypes, by its length for wider ones.
        width: bits of the common stored dtype; 0 where the dtypes differ or values were printed.
        floor: of the relative difference.
        decimals: the smaller number of printed decimals, or None. slack: `slack_of` the two.
    """

    differences: RadixHistogram
    width: int
    floor: float = FLOOR
    decimals: int | None = None
    slack: float = 0.0
    ulps: Counts = field(init=False)
    xors: Counts = field(init=False)
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.ulps = np.zeros((1 << 16) if self.width == 16 else 66, np.int64)
        self.xors = np.zeros((1 << 16) if self.width == 16 else self.width + 1, np.int64)

    def agree(self) -> Counts:
        """Counts of elements by the number of equal leading bits, 0 to the width; empty without a common dtype."""
        if self.width == 0:
            return np.zeros(0, np.int64)
        lengths = self.xors
        if self.width == 16:
            total = np.concatenate([[0], np.cumsum(self.xors)])
            lengths = np.diff(total[[0, *(1 << k for k in range(17))]])
        return lengths[::-1].copy()


@dataclass
class Part:
    """Elements of two runs that have a difference, ``[rows, columns]``; fields as in `Side`."""

    a: Array
    b: Array
    size_a: Array
    size_b: Array
    words: tuple[Array, Array] | None
    places: tuple[Array, Array] | None


def part_of(a: Side, b: Side, rows: slice, columns: slice, width: int) -> Part:
    """A rectangle of two blocks. ``width`` is `ValueState.width`."""
    at = (rows, columns)
    words = (a.words[at], b.words[at]) if width and a.words is not None and b.words is not None else None
    places = (a.places[at], b.places[at]) if words and a.places is not None and b.places is not None else None
    sizes = a.magnitudes[at], b.magnitudes[at]
    return Part(a.values[at], b.values[at], *sizes, words, places)


def difference(part: Part, scratch: Scratch) -> Array:
    """The difference a - b in float32, or float64 where either is; in scratch memory."""
    kind = np.result_type(part.a.dtype, part.b.dtype)
    return np.subtract(part.a, part.b, out=scratch.get("signed", part.a.shape, kind))


def add_values(state: ValueState, part: Part, out: dict[str, Floats], scratch: Scratch) -> Array | None:
    """Add a rectangle of finite values to a pair's histograms and to its rows.

    Args:
        state: the pair's histograms.
        part: the elements.
        out: ``[rows]`` of `VALUE_FIELDS`, added to; ``a_sum`` to ``b_squares`` are left alone.
        scratch: the thread's.

    Returns:
        a - b, in scratch memory; None where all bits are equal (and nothing but ``n`` was added).
    """
    out["n"] += part.a.shape[1]
    xor: Array | None = None
    if part.words is not None:
        xor = np.bitwise_xor(*part.words, out=scratch.get("xor", part.a.shape, part.words[0].dtype))
        different = count_rows(np.not_equal(xor, 0, out=scratch.get("mask", xor.shape, bool)))
        if not different.any():
            state.differences.add_zeros(part.a.size)
            with state.lock:
                state.ulps[0] += part.a.size
                state.xors[0] += part.a.size
            return None
        out["different"] += different

    fast = part.places is not None
    signed = difference(part, scratch)
    index = scratch.get("index", (signed.size,), np.int64)
    out["sum"] += total(signed, fast)
    out["sum_squares"] += total(squares(signed, scratch, fast), fast)
    d = np.abs(signed, out=scratch.get("d", signed.shape, signed.dtype))
    d = d.astype(state.differences.dtype, copy=False)
    spare = scratch.get("base", d.shape, d.dtype).reshape(-1).view(state.differences.word)
    state.differences.add(d, index, spare)
    out["sum_abs"] += total(d, fast)
    np.maximum(out["max_abs"], d.max(axis=1), out=out["max_abs"])
    base = np.maximum(part.size_a, part.size_b, out=scratch.get("base", d.shape, d.dtype))
    np.maximum(base, d.dtype.type(state.floor), out=base)
    np.divide(d, base, out=base)
    out["sum_relative"] += total(base, fast)
    np.maximum(out["max_relative"], base.max(axis=1), out=out["max_relative"])
    if state.decimals is not None:
        out["printed_different"] += _printed(part, state.decimals, state.slack)
    if xor is None:
        out["different"] += count_rows(part.a != part.b)
    else:
        _add_bits(state, part, xor, out, scratch, index)
    return signed


def _printed(part: Part, decimals: int, slack: float) -> Floats:
    """Elements that differ in their printed decimals, or by more than ``slack`` where that is not 0, by row."""
    if slack:
        return count_rows(np.abs(part.a.astype(np.float64) - part.b) > slack)
    a, b = (np.round(x.astype(np.float64), decimals) for x in (part.a, part.b))
    return count_rows(a != b)


def _add_bits(
    state: ValueState, part: Part, xor: Array, out: dict[str, Floats], scratch: Scratch, index: Counts
) -> None:
    """What bit patterns tell: signs of zeros, equal leading bits, ULP distance."""
    mask = scratch.get("mask", xor.shape, bool)
    sign = xor.dtype.type(1 << (state.width - 1))
    flips = np.equal(xor, sign, out=mask)
    if flips.any():
        out["zero_sign"] += count_rows(flips & (part.a == 0))
    lengths = _lengths(xor, scratch, index)
    counts, most = _ulps(part, scratch, index, state.width)
    np.maximum(out["max_ulp"], most, out=out["max_ulp"])
    with state.lock:
        state.xors[: lengths.size] += lengths
        state.ulps[: counts.size] += counts


def _lengths(xor: Array, scratch: Scratch, index: Counts) -> Counts:
    """Counts of patterns, or of their lengths in bits for wide dtypes."""
    if xor.dtype.itemsize == 2:
        flat = index[: xor.size]
        np.copyto(flat, xor.reshape(-1))
        return np.bincount(flat)
    width = xor.dtype.itemsize * 8
    mask = scratch.get("mask", xor.shape, bool)
    below = [np.count_nonzero(np.less(xor, xor.dtype.type(1 << k), out=mask)) for k in range(width)]
    return np.diff(np.array([0, *below, xor.size], np.int64))


def _ulps(part: Part, scratch: Scratch, index: Counts, width: int) -> tuple[Counts, Floats]:
    """Counts of ULP distances (of their bins for wide dtypes), and the largest of each row."""
    if part.places is not None:
        pa, pb = part.places
        high = np.maximum(pa, pb, out=scratch.get("high", pa.shape, np.int16))
        low = np.minimum(pa, pb, out=scratch.get("low", pa.shape, np.int16))
        np.subtract(high, low, out=high)  # wraps to the right unsigned number
        steps = high.view(np.uint16)
        flat = index[: steps.size]
        np.copyto(flat, steps.reshape(-1))
        return np.bincount(flat), steps.max(axis=1).astype(np.float64)
    assert part.words is not None
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    steps = ulp_distance(part.words[0].view(kind), part.words[1].view(kind))
    return np.bincount(ulp_bin(steps).ravel(), minlength=1), steps.max(axis=1).astype(np.float64)


def ulp_bin(steps: NDArray[np.int64]) -> Counts:
    """The bin of each distance: 0, 1, 2, 3-4, 5-8, ... are bins 0, 1, 2, 3, 4, ..."""
    _, exponent = np.frexp(np.maximum(steps - 1, 0).astype(np.float64))
    return np.where(steps == 0, 0, exponent + 1).astype(np.int64)


def clamps_apart(x: Array, y: Array, floors: tuple[float | None, float | None]) -> NDArray[np.bool_]:
    """Where a value stands for anything lower than a floor that the other run's is above: they differ, by no known size."""
    found = np.zeros(x.shape, bool)
    with np.errstate(invalid="ignore"):
        for mine, other, floor in ((x, y, floors[0]), (y, x, floors[1])):
            if floor is not None:
                found |= (mine <= floor) & np.isfinite(mine) & (other > floor)
    return found


def impossible(x: Array, y: Array, ceilings: tuple[float | None, float | None]) -> NDArray[np.bool_]:
    """Where a finite value of either run is above what its kind can be."""
    found = np.zeros(x.shape, bool)
    with np.errstate(invalid="ignore"):
        for value, ceiling in ((x, ceilings[0]), (y, ceilings[1])):
            if ceiling is not None:
                found |= (value > ceiling) & np.isfinite(value)
    return found


def special_part(
    a: Side,
    b: Side,
    row: int,
    floors: tuple[float | None, float | None],
    ceilings: tuple[float | None, float | None],
    out: dict[str, Floats],
    width: int,
) -> tuple[Part, NDArray[np.bool_]]:
    """A row with NaN, infinities, clamped or impossible values: count those, and keep the elements with a difference.

    Args:
        a: one block.
        b: the other.
        row: within the block.
        floors: clamp floors of the two runs.
        ceilings: what no value of each can exceed (0 for log-probabilities), or None.
        out: one row of `VALUE_FIELDS`, each ``[1]``, added to.
        width: `ValueState.width`.

    Returns:
        The elements, ``[1, n]``, and where they were.
    """
    x, y = a.values[row], b.values[row]
    nan_x, nan_y = np.isnan(x), np.isnan(y)
    inf_x, inf_y = np.isinf(x), np.isinf(y)
    nan = nan_x | nan_y
    low = np.zeros(x.shape, bool)
    for value, floor in ((x, floors[0]), (y, floors[1])):
        if floor is not None:
            low |= (value <= floor) & np.isfinite(value)
    low &= ~nan
    both = inf_x & inf_y & (x == y)
    out["nan_both"] += np.count_nonzero(nan_x & nan_y)
    out["nan_mismatch"] += np.count_nonzero(nan_x ^ nan_y)
    out["inf_both"] += np.count_nonzero(both)
    out["inf_mismatch"] += np.count_nonzero((inf_x | inf_y) & ~nan & ~both & ~low)
    out["clamped"] += np.count_nonzero(low)
    out["clamp_mismatch"] += np.count_nonzero(clamps_apart(x, y, floors))
    high = impossible(x, y, ceilings) & ~(nan | inf_x | inf_y | low)
    out["impossible"] += np.count_nonzero(high)
    out["impossible_mismatch"] += np.count_nonzero(high & (x != y))
    keep = ~(nan | inf_x | inf_y | low | high)

    def take(array: Array | None) -> Any:
        return None if array is None else np.ascontiguousarray(array[row][keep])[None]

    words = (take(a.words), take(b.words)) if width and a.words is not None and b.words is not None else None
    places = (
        (take(a.places), take(b.places)) if words and a.places is not None and b.places is not None else None
    )
    part = Part(take(a.values), take(b.values), take(a.magnitudes), take(b.magnitudes), words, places)
    for name, values in (("a", part.a), ("b", part.b)):
        wide = values.astype(np.float64)
        out[f"{name}_sum"] += wide.sum()
        out[f"{name}_squares"] += np.square(wide).sum()
    return part, keep
