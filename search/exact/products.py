"""Scores as the real numbers that they stand for: q times k times the scale, exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.exact.dyadic import NEG_INF, ZERO, Number, from_float
from search.exact.operations import add, multiply

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def exact_scores(q: Floats, k: Floats, scale: Number, low: int, high: int) -> list[Number]:
    """The scaled dot product of each token from ``low`` to before ``high``; NEG_INF of the others.

    Args:
        q: ``[depth]``, finite. k: ``[token, depth]``, finite.
        scale: the softmax scale.
    """
    sums, exact = _doubles(q, k)
    found: list[Number] = []
    left = [from_float(x) for x in q.tolist()]
    for token, (total, certain) in enumerate(zip(sums.tolist(), exact.tolist(), strict=True)):
        if not low <= token < high:
            found.append(NEG_INF)
            continue
        product = from_float(total) if certain else _whole(left, k[token])
        found.append(multiply(product, scale))
    return found


def _whole(left: list[Number], key: Floats) -> Number:
    total = ZERO
    for x, y in zip(left, key.tolist(), strict=True):
        total = add(total, multiply(x, from_float(y)))
    return total


def _doubles(q: Floats, k: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The dot products in doubles, and where these are exact whatever the order.

    They are where all products are multiples of one power of two and their magnitudes add up to less than 2**53 of it.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sums = k @ q
        size = np.abs(k) @ np.abs(q)
    used = (k != 0) & (q != 0)
    unit = np.where(used, _last_bit(k) + _last_bit(q), np.iinfo(np.int64).max).min(axis=1)
    none = ~used.any(axis=1)
    unit = np.where(none, 0, unit)
    # A sum of magnitudes is off by far less than the factor of two that is left here; below -1000 doubles run out.
    with np.errstate(over="ignore"):
        fits = (unit > -1000) & (size < np.ldexp(1.0, np.clip(unit + 52, -1000, 1000)))
    return np.where(none, 0.0, sums), fits | none


def _last_bit(x: Floats) -> Whole:
    """The largest k such that ``x`` is a multiple of ``2**k``; anything for 0."""
    significand, exponent = np.frexp(x)
    whole = np.abs(np.ldexp(significand, 53)).astype(np.int64)
    lowest = np.maximum(whole & -whole, 1)
    return np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1 + exponent.astype(np.int64) - 53
