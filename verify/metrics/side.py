"""What one run contributes to a block of rows: decoded values, exponentials, the best tokens, and counts for health.

Computed once a run and block, however many pairs the run is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
GROUPS = 512
LINES = 8
#: Products that one call of BLAS adds, in the dtype of the factors.
LINE = 256

#: Per-row numbers of one run; see `Side`.
SIDE_FIELDS: tuple[str, ...] = (
    "lse",
    "top",
    "second",
    "sum",
    "sum_squares",
    "chosen",
    "chosen_rank",
    "nan",
    "positive_infinity",
    "negative_infinity",
    "subnormal",
    "clamped",
)


class Scratch:
    """Arrays that one thread reuses, by name."""

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}
        self._views: dict[tuple[str, tuple[int, ...], Any], Array] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised C-contiguous array; the next call with the same name returns the same memory."""
        key = (name, shape, dtype)
        found = self._views.get(key)
        if found is not None:
            return found
        kind = np.dtype(dtype)
        size = prod(shape) * kind.itemsize
        held = self._held.get(name)
        if held is None or held.nbytes < size or len(self._views) > 1000:
            held = self._held[name] = np.empty(size + 64, np.uint8)
            self._views = {k: v for k, v in self._views.items() if k[0] != name and len(self._views) <= 1000}
        found = self._views[key] = held[:size].view(kind).reshape(shape)
        return found


@dataclass
class Side:
    """One run's rows of a block, ``[rows, vocab]``.

    Attributes:
        values: float32 (stored dtypes of 16 and 32 bits) or float64; exact.
        magnitudes: absolute values of ``values``.
        words: bit patterns as unsigned integers, None where values were printed (they have no bits of their own).
        powers: ``exp(values - top)``: float32 where 16 bits are stored, else float64.
        scale: ``[rows]`` ``exp(top - lse)``: ``powers * scale`` are the probabilities.
        rows: the fields of `SIDE_FIELDS` by name, ``[rows]`` float64: ``top`` and ``second`` are the two largest values,
            ``chosen`` the value of the token that followed (NaN if unknown), ``chosen_rank`` the number of larger values.
            ``sum`` and ``sum_squares`` are NaN in special rows. ``matrix``: the same, ``[fields, rows]``.
        best: ``[rows, k]`` ids of the k largest values: larger first, of equal ones the smaller id first;
            -1 in rows that hold nothing but NaN.
        best_values: ``[rows, k]`` their values.
        special: ``[rows]`` whether a row has NaN, an infinity, a clamped or an impossible value.
        valid: ``[rows]`` whether no value is impossible: such a row is no distribution.
    """

    values: Array
    magnitudes: Array
    words: Array | None
    powers: Array
    scale: Floats
    rows: dict[str, Floats]
    matrix: Floats
    best: NDArray[np.int64]
    best_values: Floats
    special: NDArray[np.bool_]
    valid: NDArray[np.bool_]


def count_rows(mask: NDArray[np.bool_]) -> Floats:
    """How many elements of each row of ``[rows, columns]`` are true."""
    if mask.shape[0] > 8 and mask.shape[1] < 4096:
        return mask.sum(axis=1).astype(np.float64)
    return np.array([np.count_nonzero(row) for row in mask], np.float64)


def hits(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Flat indices of what is true, ascending; eight at a time where there are few."""
    flat = mask.reshape(-1)
    if flat.size % 8:
        return np.flatnonzero(flat)
    words = np.flatnonzero(flat.view(np.uint64))
    at = np.flatnonzero(flat.reshape(-1, 8)[words])
    return words[at >> 3] * 8 + (at & 7)


def total(x: Array, fast: bool = False) -> Floats:
    """Row sums in float64.

    Args:
        x: ``[rows, columns]``.
        fast: add `LINES` numbers in the dtype of ``x`` first: for float32 made from values that were stored in 16 bits,
            where the error of such a partial sum, below 2^-21 of the sum of its magnitudes, is far below theirs.
    """
    if not fast or x.shape[1] < 64 * LINES:
        return np.add.reduce(x, axis=1, dtype=np.float64)
    main = x.shape[1] // LINES * LINES
    with np.errstate(over="ignore", invalid="ignore"):
        lines = np.add.reduce(x[:, :main].reshape(len(x), LINES, -1), axis=1)
        found = np.add.reduce(lines, axis=1, dtype=np.float64)
        if main < x.shape[1]:
            found += np.add.reduce(x[:, main:], axis=1, dtype=np.float64)
        for i in np.flatnonzero(
            ~np.isfinite(found)
        ):  # eight may overflow where their sum in float64 does not
            found[i] = np.add.reduce(x[i], dtype=np.float64)
    return found


def dots(x: Array, y: Array) -> Floats:
    """Row sums of the products of ``x`` and ``y``, ``[rows, columns]``, in float64.

    `LINE` products at a time are added in the dtype of the factors, all of a row in float64 where that overflows. For
    float32 made from values that were stored in 16 bits the error of such a partial sum is far below theirs.
    """
    main = x.shape[1] // LINE * LINE
    found = np.zeros(len(x))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if main:
            lines = (z[:, :main].reshape(len(x), -1, LINE) for z in (x, y))
            found += np.add.reduce(np.vecdot(*lines), axis=1, dtype=np.float64)
        if main < x.shape[1]:
            found += np.add.reduce(x[:, main:].astype(np.float64) * y[:, main:], axis=1)
        for i in np.flatnonzero(~np.isfinite(found)):
            found[i] = np.add.reduce(x[i].astype(np.float64) * y[i])
    return found


def sum_squares(x: Array, scratch: Scratch, narrow: bool) -> Floats:
    """Row sums of squares. Of float32 they are in float64 where they would overflow or vanish.

    Where 16 bits were stored (``narrow``) they are exact in float32, or far from its ends.
    """
    if narrow:
        return dots(x, x)
    if x.dtype == np.float32 and x.size:
        with np.errstate(invalid="ignore"):
            most = max(float(x.max()), -float(x.min()))
        if not (most == 0 or 1e-15 < most < 1e18):  # also where it is NaN
            return total(np.square(x, dtype=np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return total(np.multiply(x, x, out=scratch.get("squares", x.shape, x.dtype)))


def words_of(raw: Array) -> Array:
    """The bit patterns of an array in a stored dtype, as unsigned integers of its size."""
    return np.ascontiguousarray(raw).view(np.dtype(f"u{raw.dtype.itemsize}"))


def decode(raw: Array, scratch: Scratch, name: str) -> Array:
    """Values in float32, or float64 where that is stored; exact, subnormal numbers included."""
    if raw.dtype == BFLOAT16:
        words = scratch.get(name + "values", raw.shape, np.uint32)
        np.left_shift(words_of(raw), 16, out=words, dtype=np.uint32, casting="unsafe")
        return words.view(np.float32)
    kind = np.float64 if raw.dtype.itemsize == 8 else np.float32
    values = scratch.get(name + "values", raw.shape, kind)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        np.copyto(values, raw)
    return values


def best_of(values: Array, k: int) -> NDArray[np.int64]:
    """Ids of the k largest of each row of ``[rows, vocab]`` without NaN: larger first, of equal ones the smaller id first.

    Columns are dealt to `GROUPS` groups: whatever is among the k largest is at least the k-th largest of the groups'
    maxima, and only such values are sorted.
    """
    rows, vocab = values.shape
    k = min(k, vocab)
    main = vocab // GROUPS * GROUPS
    if main <= GROUPS * 4 or k >= GROUPS:
        wide = values if values.dtype.kind == "f" else values.astype(np.int32)
        return np.argsort(-wide, axis=1, kind="stable")[:, :k].astype(np.int64)
    peaks = values[:, :main].reshape(rows, -1, GROUPS).max(axis=1)
    peaks.partition(GROUPS - k, axis=1)
    row, column = np.divmod(hits(values >= peaks[:, GROUPS - k, None]), vocab)
    order = np.lexsort((column, -values[row, column].astype(np.float64), row))
    starts = np.searchsorted(row, np.arange(rows))
    return column[order[starts[:, None] + np.arange(k)]]


def make_side(
    raw: Array,
    tokens: NDArray[np.int64],
    scratch: Scratch,
    name: str,
    *,
    k: int = 10,
    floor: float | None = None,
    ceiling: float | None = None,
    printed: bool = False,
    softmax: bool = True,
) -> Side:
    """Everything of one run that pairs need in a block.

    Args:
        raw: ``[rows, vocab]`` in the stored dtype: bfloat16, float16, float32 or float64.
        tokens: ``[rows]`` tokens that followed; negative where unknown.
        scratch: the thread's; the result lives in it until the next call with the same ``name``.
        name: of the run within the block.
        k: how many of the best tokens to keep.
        floor: values at or below it are clamped: they stand for anything lower.
        ceiling: finite values above it are impossible.
        printed: values were printed in decimals: bits mean nothing.
        softmax: whether a row is logits or log-probabilities of one distribution.
    """
    rows = len(raw)
    values = decode(raw, scratch, name)
    matrix = np.zeros((len(SIDE_FIELDS), rows))
    fields = dict(zip(SIDE_FIELDS, matrix, strict=True))
    words = None if printed else words_of(raw)
    narrow = raw.dtype.itemsize == 2
    magnitudes = np.abs(values, out=scratch.get(name + "magnitudes", values.shape, values.dtype))

    special = _special(values, floor)
    valid = np.ones(rows, bool)
    if ceiling is not None:
        valid = _valid(values, special, ceiling)
        special |= ~valid
    usable = values
    if special.any():
        usable = _count_special(values, special, fields, floor)
    fields["subnormal"][:] = _subnormal(words, magnitudes, raw.dtype, scratch)
    best = best_of(usable, max(k, 2))
    best_values = usable[np.arange(rows)[:, None], best]
    top = best_values[:, 0]
    fields["top"][:] = top
    fields["second"][:] = best_values[:, 1] if best.shape[1] > 1 else -np.inf
    with np.errstate(invalid="ignore"):
        fields["sum"][:] = total(values, narrow)
        fields["sum_squares"][:] = sum_squares(values, scratch, narrow)
    fields["sum"][special] = fields["sum_squares"][special] = np.nan
    _chosen(usable, values, tokens, fields, best)

    known = best[:, :k].copy()
    known[fields["nan"] == values.shape[1]] = -1  # no value, no best token

    powers, scale = magnitudes, np.ones(rows)
    if softmax:
        powers, scale = _softmax(usable, top, narrow, fields, scratch, name)
    else:
        fields["lse"][:] = np.nan
    return Side(
        values=values,
        magnitudes=magnitudes,
        words=words,
        powers=powers,
        scale=scale,
        rows=fields,
        matrix=matrix,
        best=known,
        best_values=best_values[:, :k].astype(np.float64),
        special=special,
        valid=valid,
    )


def _special(values: Array, floor: float | None) -> NDArray[np.bool_]:
    """Rows with NaN, an infinity, or a value at or below ``floor``."""
    with np.errstate(invalid="ignore"):
        bottom, top = values.min(axis=1), values.max(axis=1)
    special = ~(np.isfinite(bottom) & np.isfinite(top))
    return special if floor is None else special | (bottom <= floor)


def _valid(values: Array, special: NDArray[np.bool_], ceiling: float) -> NDArray[np.bool_]:
    """Rows without finite values above ``ceiling``. Rows that are ``special`` are looked at one by one."""
    with np.errstate(invalid="ignore"):
        valid = values.max(axis=1) <= ceiling
    for i in np.flatnonzero(special):
        valid[i] = not ((values[i] > ceiling) & (values[i] < np.inf)).any()
    return valid


def _count_special(values: Array, special: Any, fields: dict[str, Floats], floor: float | None) -> Array:
    """Count what is no ordinary number, and give a copy in which NaN is the least of all."""
    usable = values.copy()
    for i in np.flatnonzero(special):
        row = values[i]
        nan = np.isnan(row)
        fields["nan"][i] = np.count_nonzero(nan)
        fields["positive_infinity"][i] = np.count_nonzero(row == np.inf)
        fields["negative_infinity"][i] = np.count_nonzero(row == -np.inf)
        if floor is not None:
            fields["clamped"][i] = np.count_nonzero((row <= floor) & (row != -np.inf))
        usable[i, nan] = -np.inf
    return usable


def _subnormal(words: Array | None, magnitudes: Array, dtype: np.dtype[Any], scratch: Scratch) -> Floats:
    """Subnormal numbers in each row: exponent zero, significand not."""
    rows = len(magnitudes)
    with np.errstate(invalid="ignore"):
        if words is None or magnitudes.min() >= float(ml_dtypes.finfo(dtype).smallest_normal):
            return np.zeros(rows)
    mantissa = {2: 7 if dtype == BFLOAT16 else 10, 4: 23, 8: 52}[dtype.itemsize]
    kind = words.dtype.type
    low = kind((1 << (words.dtype.itemsize * 8 - 1)) - 1)
    magnitude = np.bitwise_and(words, low, out=scratch.get("words", words.shape, words.dtype))
    np.subtract(magnitude, kind(1), out=magnitude)  # zero wraps to the largest
    ceiling = kind((1 << mantissa) - 1)
    if magnitude.min() >= ceiling:
        return np.zeros(rows)
    return count_rows(np.less(magnitude, ceiling, out=scratch.get("mask", words.shape, bool)))


def _chosen(
    order: Array, values: Array, tokens: NDArray[np.int64], fields: dict[str, Floats], best: NDArray[np.int64]
) -> None:
    """Value and rank of the tokens that followed."""
    known = (tokens >= 0) & (tokens < values.shape[1])
    fields["chosen"][:] = fields["chosen_rank"][:] = np.nan
    at = np.flatnonzero(known)
    fields["chosen"][at] = values[at, tokens[at]]
    hit = known & (tokens == best[:, 0]) & ~np.isnan(fields["chosen"])
    fields["chosen_rank"][hit] = 0
    rest = np.flatnonzero(known & ~hit & ~np.isnan(fields["chosen"]))
    larger = order[rest[:, None], best[rest]] > order[rest, tokens[rest]][:, None]
    fields["chosen_rank"][rest] = larger.sum(axis=1)
    for i in rest[larger.all(axis=1)]:
        fields["chosen_rank"][i] = rank_of(order[i], int(tokens[i]), best[i])


def rank_of(order: Array, token: int, best: NDArray[np.int64]) -> int:
    """How many values of a row are larger than a token's; ``best`` are the row's best tokens, which often answer."""
    larger = order[best] > order[token]
    return int(larger.sum()) if not larger.all() else int(np.count_nonzero(order > order[token]))


def _softmax(
    usable: Array, top: Array, narrow: bool, fields: dict[str, Floats], scratch: Scratch, name: str
) -> tuple[Array, Floats]:
    """Exponentials and their scale; fills ``lse``. Sums are in float64.

    Exponentials of 16-bit values are in float32 (NumPy's are within 4 ULP): that is far below the steps of the values.
    """
    kind = np.float32 if narrow else np.float64
    powers = scratch.get(name + "powers", usable.shape, kind)
    with np.errstate(invalid="ignore", under="ignore", over="ignore"):
        np.subtract(usable, top[:, None], out=powers)
        np.exp(powers, out=powers)
        mass = total(powers, narrow)
        fields["lse"][:] = top.astype(np.float64) + np.log(mass)
        scale = 1.0 / mass
    return powers, scale
