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
from verify.metrics.side import BFLOAT16, Scratch, Side, count_rows, hits, sum_squares, total
from verify.numerics.ulp import ulp_distance

Array = NDArray[Any]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Counts of elements without a difference.
WITHOUT = (
    "nan_both",
    "nan_mismatch",
    "inf_both",
    "inf_mismatch",
    "clamped",
    "clamp_mismatch",
    "impossible",
    "impossible_mismatch",
)
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
    *WITHOUT,
)
_MAXIMA = ("max_abs", "max_relative", "max_ulp")

#: Columns that one step of a kernel takes: with fewer, threads wait for one another between the calls of NumPy.
COLUMNS = 1 << 19
#: Stored bits of the significands of 16-bit dtypes.
MANTISSAS = {BFLOAT16: 7, np.dtype(np.float16): 10}
#: Elements that are counted at a time, so that their indices stay in a core's cache.
CHUNK = 1 << 17
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
        xors: counts of elements by the length in bits of the exclusive or of their bits.
        width: bits of the common stored dtype; 0 where the dtypes differ or values were printed.
        floor: of the relative difference.
        decimals: the smaller number of printed decimals, or None. slack: `slack_of` the two.
        mantissa: stored bits of the significand of a 16-bit dtype, else 0.
        near: of 16-bit dtypes, counts of elements that have one sign and exponent in both runs, by exponent and ULP
            distance: both tell |d|. `settle` puts them in the other histograms.
    """

    differences: RadixHistogram
    width: int
    floor: float = FLOOR
    decimals: int | None = None
    slack: float = 0.0
    mantissa: int = 0
    near: Counts = field(init=False)
    ulps: Counts = field(init=False)
    xors: Counts = field(init=False)
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.ulps = np.zeros((1 << 16) if self.width == 16 else 66, np.int64)
        self.xors = np.zeros(self.width + 1, np.int64)
        self.near = np.zeros(1 << 15, np.int64)

    def agree(self) -> Counts:
        """Counts of elements by the number of equal leading bits, 0 to the width; empty without a common dtype."""
        return self.xors[::-1].copy() if self.width else np.zeros(0, np.int64)

    def settle(self) -> None:
        """Put the elements that `near` counts in the histograms of |d| and of ULP distances."""
        with self.lock:
            used = np.flatnonzero(self.near)
            counts, steps = self.near[used], used & ((1 << self.mantissa) - 1)
            np.add.at(self.ulps, steps, counts)
            bias = (1 << (14 - self.mantissa)) - 1
            exponents = (
                np.maximum(used >> self.mantissa, 1) - bias - self.mantissa
            )  # subnormals are spaced as the next
            self.differences.add_counted(
                np.ldexp(steps.astype(np.float64), exponents).astype(np.float32), counts
            )
            self.near[:] = 0


@dataclass
class Part:
    """Elements of two runs that have a difference, ``[rows, columns]``; fields as in `Side`."""

    a: Array
    b: Array
    size_a: Array
    size_b: Array
    words: tuple[Array, Array] | None

    @property
    def narrow(self) -> bool:
        """Whether both were stored in the same 16 bits."""
        return self.words is not None and self.words[0].dtype.itemsize == 2


def part_of(a: Side, b: Side, rows: slice, columns: slice, width: int) -> Part:
    """A rectangle of two blocks. ``width`` is `ValueState.width`."""
    at = (rows, columns)
    words = (a.words[at], b.words[at]) if width and a.words is not None and b.words is not None else None
    return Part(a.values[at], b.values[at], a.magnitudes[at], b.magnitudes[at], words)


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

    fast = part.narrow
    signed = difference(part, scratch)
    out["sum"] += total(signed, fast)
    out["sum_squares"] += sum_squares(signed, scratch, fast)
    d = np.abs(signed, out=scratch.get("d", signed.shape, signed.dtype))
    d = d.astype(state.differences.dtype, copy=False)
    if xor is None or not _near(state, part, xor, d, out, scratch):
        index = scratch.get("index", (signed.size,), np.int64)
        spare = scratch.get("base", d.shape, d.dtype).reshape(-1).view(state.differences.word)
        state.differences.add(d, index, spare)
        if xor is not None:
            _add_bits(state, part, xor, out, scratch, index)
    out["sum_abs"] += total(d, fast)
    np.maximum(out["max_abs"], d.max(axis=1), out=out["max_abs"])
    base = np.maximum(part.size_a, part.size_b, out=scratch.get("base", d.shape, d.dtype))
    np.maximum(base, np.full(d.shape[1], state.floor, d.dtype), out=base)  # faster than a number
    np.divide(d, base, out=base)
    out["sum_relative"] += total(base, fast)
    np.maximum(out["max_relative"], base.max(axis=1), out=out["max_relative"])
    if state.decimals is not None:
        out["printed_different"] += _printed(part, state.decimals, state.slack)
    if xor is None:
        out["different"] += count_rows(part.a != part.b)
    return signed


def _printed(part: Part, decimals: int, slack: float) -> Floats:
    """Elements that differ in their printed decimals, or by more than ``slack`` where that is not 0, by row."""
    if slack:
        return count_rows(np.abs(part.a.astype(np.float64) - part.b) > slack)
    a, b = (np.round(x.astype(np.float64), decimals) for x in (part.a, part.b))
    return count_rows(a != b)


def _near(
    state: ValueState,
    part: Part,
    xor: Array,
    d: Array,
    out: dict[str, Floats],
    scratch: Scratch,
) -> bool:
    """Add a rectangle of 16-bit values to all histograms; False, and nothing is added, where too many are far apart.

    Of two values of one sign and exponent the exponent and the ULP distance tell |d|, so that one histogram does for
    both. The others are far and few, and are counted one by one.
    """
    if not state.mantissa or part.words is None:
        return False
    edge = 1 << state.mantissa
    far = hits(np.greater_equal(xor, edge, out=scratch.get("mask", xor.shape, bool)))
    if far.size > xor.size >> 3:
        return False
    a, b = part.words
    signed = scratch.get("high", xor.shape, np.int16)
    steps = np.abs(np.subtract(a.view(np.int16), b.view(np.int16), out=signed), out=signed).view(np.uint16)
    steps.reshape(-1)[far] = 0
    most = steps.max(axis=1).astype(np.float64)
    keys = np.bitwise_and(a, 0x8000 - edge, out=scratch.get("low", xor.shape, np.uint16))
    np.bitwise_or(keys, steps, out=keys)
    keys.reshape(-1)[far] = 0
    near, index = np.zeros(1 << 15, np.int64), scratch.get("chunk", (CHUNK,), np.int64)
    for low in range(0, keys.size, CHUNK):
        chunk = keys.reshape(-1)[low : low + CHUNK]
        np.copyto(index[: chunk.size], chunk)
        near += np.bincount(index[: chunk.size], minlength=1 << 15)
    near[0] -= far.size
    x, y, apart = (z.reshape(-1).take(far) for z in (a, b, d))
    patterns = x ^ y
    ulps = np.abs(_order(x) - _order(y))
    starts = np.searchsorted(far, np.arange(len(xor)) * xor.shape[1])
    some = np.flatnonzero(np.diff(starts, append=far.size))
    if some.size:
        most[some] = np.maximum(most[some], np.maximum.reduceat(ulps, starts[some]))
    np.maximum(out["max_ulp"], most, out=out["max_ulp"])
    zeros = far[(patterns == 0x8000) & (x << 1 == 0)]
    out["zero_sign"] += np.bincount(zeros // xor.shape[1], minlength=len(xor))
    state.differences.add(apart)
    counts = np.bincount(ulps)
    if state.mantissa < 8:  # a byte will do, and is faster
        low_bits = scratch.get("byte", xor.shape, np.uint8)
        np.copyto(low_bits, xor, casting="unsafe")
        low_bits.reshape(-1)[far] = 0xFF
        lengths = _lengths(low_bits, scratch, state.mantissa, xor.size - far.size)
    else:
        lengths = _lengths(xor, scratch, state.mantissa, xor.size - far.size)
    exponents = (patterns.astype(np.float32).view(np.int32) >> 23) - 126  # the length in bits
    with state.lock:
        state.near += near
        state.ulps[: counts.size] += counts
        state.xors[: lengths.size] += lengths
        state.xors += np.bincount(exponents, minlength=17)
    return True


def _order(words: Array) -> NDArray[np.int32]:
    """16-bit patterns as integers that are ordered as the numbers are; both zeros are 0."""
    signed = words.view(np.int16).astype(np.int32)
    sign = signed >> 31
    return ((signed & 0x7FFF) ^ sign) - sign


def _add_bits(
    state: ValueState, part: Part, xor: Array, out: dict[str, Floats], scratch: Scratch, index: Counts
) -> None:
    """What bit patterns tell: signs of zeros, equal leading bits, ULP distance."""
    mask = scratch.get("mask", xor.shape, bool)
    sign = xor.dtype.type(1 << (state.width - 1))
    flips = np.equal(xor, sign, out=mask)
    if flips.any():
        out["zero_sign"] += count_rows(flips & (part.a == 0))
    lengths = _lengths(xor, scratch, state.width, xor.size)
    counts, most = _ulps(part, scratch, index, state.width)
    np.maximum(out["max_ulp"], most, out=out["max_ulp"])
    with state.lock:
        state.xors += lengths
        state.ulps[: counts.size] += counts


def _lengths(xor: Array, scratch: Scratch, most: int, within: int) -> Counts:
    """Counts of patterns by their length in bits, 0 to ``most``, which ``within`` of them do not exceed."""
    mask = scratch.get("mask", xor.shape, bool)
    below = [np.count_nonzero(np.less(xor, xor.dtype.type(1 << k), out=mask)) for k in range(most)]
    return np.diff(np.array([0, *below, within], np.int64))


def _ulps(part: Part, scratch: Scratch, index: Counts, width: int) -> tuple[Counts, Floats]:
    """Counts of ULP distances (of their bins for wide dtypes), and the largest of each row."""
    assert part.words is not None
    if part.narrow:
        pa, pb = (ordered16(w, scratch, name) for w, name in zip(part.words, ("high", "low"), strict=True))
        sign = scratch.get("sign", pa.shape, np.int16)
        np.subtract(np.maximum(pa, pb, out=sign), np.minimum(pa, pb, out=pb), out=sign)
        steps = sign.view(np.uint16)  # wraps to the right unsigned number
        flat = index[: steps.size]
        np.copyto(flat, steps.reshape(-1))
        return np.bincount(flat), steps.max(axis=1).astype(np.float64)
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    steps = ulp_distance(part.words[0].view(kind), part.words[1].view(kind))
    return np.bincount(ulp_bin(steps).ravel(), minlength=1), steps.max(axis=1).astype(np.float64)


def ordered16(words: Array, scratch: Scratch, name: str) -> NDArray[np.int16]:
    """16-bit patterns as int16 that are ordered as the numbers are; both zeros are 0 (`verify.numerics.ulp.ordered`)."""
    signed = words.view(np.int16)
    places = scratch.get(name, words.shape, np.int16)
    sign = scratch.get("sign", words.shape, np.int16)
    np.right_shift(signed, 15, out=sign)
    np.bitwise_and(signed, 0x7FFF, out=places)
    np.bitwise_xor(places, sign, out=places)
    np.subtract(places, sign, out=places)
    return places


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
    part = Part(take(a.values), take(b.values), take(a.magnitudes), take(b.magnitudes), words)
    for name, values in (("a", part.a), ("b", part.b)):
        wide = values.astype(np.float64)
        out[f"{name}_sum"] += wide.sum()
        out[f"{name}_squares"] += np.square(wide).sum()
    return part, keep
