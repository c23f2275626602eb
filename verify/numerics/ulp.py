"""Distance in units in the last place: how many representable values lie between two numbers.

Every format is laid on a line of integers, its values in order: zero at 0, the smallest positive subnormal at
1, the smallest negative one at -1. The distance of two numbers is the distance of their places. It crosses
zero and binades without a jump, and +0 and -0 are 0 apart.

NaN and infinity are never turned into a number. Two NaN, or two infinities of one sign, are 0 apart; NaN
against anything else, and infinity against anything but itself, is `MISMATCH` in `ulp_distance` and counted
by kind in `ulp_summary`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specs.errors import InputError
from specs.formats import BASES, Format
from verify.numerics.rounding import ceiling_code, encode, require_storable, storage_dtype, word_dtype

MISMATCH = -1
"""The entry of `ulp_distance` where NaN or an infinity meets something else: no distance at all."""

SATURATED = int(np.iinfo(np.int64).max)
"""The largest distance reported. Only f64 values of opposite sign can be further apart; they give this."""

NAN_PLACE = int(np.iinfo(np.int64).min)
"""The entry of `ordered` for NaN, which has no place on the line."""

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bin:
    """``count`` positions whose distance is in ``low .. high``, both included."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, slots=True)
class UlpSummary:
    """The comparison of two arrays of one format.

    ``n`` positions in all, of which ``compared`` have a distance; ``nan_both`` are NaN on both sides,
    ``nan_mismatch`` on one, and in ``inf_mismatch`` an infinity meets another number. ``equal`` positions
    hold the same value, ``nan_both`` among them; in ``zero_sign`` the zeros differ in sign. ``max`` and
    ``mean`` (ulp) are over the compared positions and None where there are none; ``worst`` is the first flat
    position of ``max``. ``histogram`` has bins 0, 1, 2, 3-4, 5-8, ... up to the one that holds ``max``.
    """

    n: int
    compared: int
    equal: int
    nan_both: int
    nan_mismatch: int
    inf_mismatch: int
    zero_sign: int
    max: int | None
    mean: float | None
    worst: int | None
    histogram: tuple[Bin, ...]

    @property
    def bit_equal(self) -> bool:
        """Whether the arrays have equal bits, NaN payloads aside."""
        return self.equal == self.n and self.zero_sign == 0


def format_of(dtype: np.dtype[Any]) -> Format:
    """The format that a NumPy or ml_dtypes dtype stores; float32 is f32, never tf32.

    Raises:
        InputError: the dtype is none of the stored formats.
    """
    known = {storage_dtype(fmt): fmt for name, fmt in BASES.items() if name not in ("real", "tf32")}
    if dtype not in known:
        raise InputError(
            f"no number format is stored as {dtype}",
            remedy="use one of " + ", ".join(str(d) for d in known),
        )
    return known[dtype]


def ordered(x: ArrayLike, fmt: Format | None = None) -> Places:
    """The place of each element on the line of its format's values.

    Args:
        x: array of any shape in a storage dtype; or, with ``fmt``, float64 that holds values of ``fmt``.
        fmt: the format, where the dtype does not say it (tf32 in float32, or values carried in float64).

    Returns:
        int64 of the shape of ``x``: order-preserving, both zeros 0, NaN `NAN_PLACE`, an infinity one step
        past the largest finite value.

    Raises:
        InputError: the dtype is no storage dtype of ``fmt``, or an element is no value of ``fmt``.
    """
    array = np.asarray(x)
    if fmt is None:
        fmt = format_of(array.dtype)
    require_storable(fmt)
    words = np.atleast_1d(_words(array, fmt)).astype(np.uint64)
    sign = np.uint64(1 << (fmt.bits - 1))
    magnitude = (words & (sign - np.uint64(1))).astype(np.int64)
    places = magnitude >> (13 if fmt.base == "tf32" else 0)
    is_nan = places >= ceiling_code(fmt) + int(fmt.inf)
    places = np.where(is_nan, NAN_PLACE, np.where(words & sign != 0, -places, places))
    return places.reshape(array.shape)


def _words(array: NDArray[Any], fmt: Format) -> NDArray[np.unsignedinteger]:
    if array.dtype == storage_dtype(fmt) and fmt.base != "tf32":
        return array.view(word_dtype(fmt))
    if array.dtype in (np.dtype(np.float64), storage_dtype(fmt)):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return encode(array.astype(np.float64), fmt)
    raise InputError(
        f"an array of {array.dtype} does not store {fmt.base}",
        remedy=f"pass {storage_dtype(fmt)}, or float64 that holds values of {fmt.base}",
    )


@overload
def ulp_distance(a: float | np.generic, b: float | np.generic, fmt: Format | None = None) -> int: ...
@overload
def ulp_distance(a: NDArray[Any], b: NDArray[Any], fmt: Format | None = None) -> Places: ...
def ulp_distance(a: ArrayLike, b: ArrayLike, fmt: Format | None = None) -> int | Places:
    """How many steps between neighbouring values lie between ``a`` and ``b``, element by element.

    Args:
        a: a scalar or an array in a storage dtype (see `ordered`); a Python float counts as f64.
        b: the other side, of the same dtype and shape.
        fmt: the format, where the dtype does not say it.

    Returns:
        An int for two scalars, else int64 of the common shape. `MISMATCH` (-1) where NaN or an infinity meets
        something else, never a number of steps; two NaN give 0. Distances beyond int64, which only f64 has,
        give `SATURATED`.

    Raises:
        InputError: dtypes or shapes differ, or the dtype stores no format.
    """
    left, right, fmt = _pair(a, b, fmt)
    distance = _distance(ordered(left, fmt), ordered(right, fmt), fmt)
    return distance.reshape(left.shape) if left.ndim else int(distance[0])


def ulp_summary(a: ArrayLike, b: ArrayLike, fmt: Format | None = None) -> UlpSummary:
    """Count and summarise the distances of two arrays; mismatches of NaN and infinity are counted apart.

    Args:
        a: array of any shape, empty too, in a storage dtype.
        b: the other side, of the same dtype and shape.
        fmt: the format, where the dtype does not say it.

    Raises:
        InputError: dtypes or shapes differ, or the dtype stores no format.
    """
    left, right, fmt = _pair(a, b, fmt)
    p, q = ordered(left, fmt).ravel(), ordered(right, fmt).ravel()
    distance = _distance(p, q, fmt)
    nan_both = (p == NAN_PLACE) & (q == NAN_PLACE)
    nan_mismatch = (p == NAN_PLACE) ^ (q == NAN_PLACE)
    inf_mismatch = (distance == MISMATCH) & ~nan_mismatch
    measured = np.flatnonzero((distance >= 0) & ~nan_both)
    steps = distance[measured]
    zero_sign = (p == 0) & (q == 0) & (np.signbit(left) != np.signbit(right)).ravel()
    worst = int(measured[int(np.argmax(steps))]) if steps.size else None
    return UlpSummary(
        n=int(distance.size),
        compared=int(steps.size),
        equal=int(np.count_nonzero(distance == 0)),
        nan_both=int(np.count_nonzero(nan_both)),
        nan_mismatch=int(np.count_nonzero(nan_mismatch)),
        inf_mismatch=int(np.count_nonzero(inf_mismatch)),
        zero_sign=int(np.count_nonzero(zero_sign)),
        max=None if worst is None else int(distance[worst]),
        mean=float(np.mean(steps, dtype=np.float64)) if steps.size else None,
        worst=worst,
        histogram=_histogram(steps),
    )


def _pair(a: ArrayLike, b: ArrayLike, fmt: Format | None) -> tuple[NDArray[Any], NDArray[Any], Format]:
    left, right = np.asarray(a), np.asarray(b)
    for name, array in (("a", left), ("b", right)):
        try:
            format_of(array.dtype)
        except InputError as error:
            raise InputError(error.cause, place=f"argument {name}", remedy=error.remedy) from None
    if left.dtype != right.dtype:
        raise InputError(
            f"dtypes differ: {left.dtype} and {right.dtype}",
            place="arguments a and b",
            remedy="ULP distance is counted in one stored format: round both sides to it first",
        )
    if left.shape != right.shape:
        raise InputError(
            f"shapes differ: {left.shape} and {right.shape}",
            place="arguments a and b",
            remedy="pass arrays of one shape; nothing is broadcast",
        )
    return left, right, format_of(left.dtype) if fmt is None else fmt


def _distance(p: Places, q: Places, fmt: Format) -> Places:
    """Distances of two arrays of places, flattened."""
    p, q = p.ravel(), q.ravel()
    # Differences of int64 fit uint64, where subtraction wraps to the right answer.
    low, high = np.minimum(p, q).astype(np.uint64), np.maximum(p, q).astype(np.uint64)
    distance = np.minimum(high - low, np.uint64(SATURATED)).astype(np.int64)
    ceiling = ceiling_code(fmt)  # infinities lie here, NAN_PLACE far below the other end
    special = (low.view(np.int64) <= -ceiling) | (high.view(np.int64) >= ceiling)
    return np.where(special & (p != q), MISMATCH, distance)


def _histogram(steps: Places) -> tuple[Bin, ...]:
    """Bins 0, 1, 2, 3-4, 5-8, ...: each but the first two doubles the upper end."""
    if not steps.size:
        return ()
    highs = [0, *(1 << k for k in range(63)), SATURATED]
    counts = np.bincount(np.searchsorted(np.array(highs, dtype=np.int64), steps, side="left"))
    lows = [0, *(high + 1 for high in highs[:-1])]
    return tuple(Bin(lows[i], highs[i], int(count)) for i, count in enumerate(counts))


def continuous_index(x: float, fmt: Format) -> float:
    """Where ``x`` lies on the line of `ordered` before rounding: between the places of its two neighbours.

    Args:
        x: any double; it need not be a value of ``fmt``. Beyond the largest finite value the line goes on as
            if exponents had no bound; infinities stay infinite and NaN stays NaN.
        fmt: any format but ``real``; modifiers do not matter.

    Returns:
        The place as a double: at a value of ``fmt`` exactly its `ordered` integer, where that is below 2**53
        (every format but f64), and halfway between two values exactly halfway.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    require_storable(fmt)
    if not math.isfinite(x) or x == 0.0:
        return abs(x) if x == 0.0 else x
    magnitude = abs(x)
    exponent = max(math.frexp(magnitude)[1] - 1, fmt.emin)
    # In binade e values are 2**(e - p + 1) apart, and the binades below hold 2**(p - 1) places each.
    within = math.ldexp(magnitude, fmt.p - 1 - exponent)
    return math.copysign(within + (exponent - fmt.emin) * 2.0 ** (fmt.p - 1), x)
