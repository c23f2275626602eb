"""Simpler numbers in the place of given ones: fewer bits, fewer different ones, zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.space import Inputs

F32 = NDArray[np.float32]
#: Candidates of one round, and numbers of one kind that are looked at in one.
MOST, NUMBERS = 512, 64


def bits(x: float) -> int:
    """Bits of the significand from the first to the last that is 1: 0 of zero, 1 of a power of two."""
    if x == 0 or not np.isfinite(x):
        return 0
    m = int(abs(np.frexp(np.float64(x))[0]) * 2**53)
    return m.bit_length() - ((m & -m).bit_length() - 1)


def cost(x: float) -> int:
    """What a number costs to write: its bits, one for each binade away from [1, 2), and one for a sign."""
    if x == 0 or not np.isfinite(x):
        return 0
    exponent = int(np.frexp(np.float64(x))[1]) - 1
    return 2 * bits(x) + abs(exponent) + (1 if x < 0 else 0)


def simpler(x: float) -> list[float]:
    """Numbers near ``x`` that cost less: of fewer bits, nearest first; and zero."""
    if x == 0 or not np.isfinite(x):
        return []
    mantissa, exponent = np.frexp(np.float64(x))
    found: list[float] = []
    for width in range(1, bits(x)):
        scaled = float(mantissa) * 2.0**width
        for whole in (np.floor(scaled), np.ceil(scaled)):
            found.append(float(np.ldexp(whole, int(exponent) - width)))
    found += [0.0, float(np.sign(x))]
    return [y for y in dict.fromkeys(found) if cost(y) < cost(x)]


def total(scores: F32, values: F32) -> int:
    """What an input costs: each different score and value once."""
    different = [*np.unique(scores[np.isfinite(scores)]).tolist(), *np.unique(values).tolist()]
    return sum(1 + cost(x) for x in different)


def simplified(
    inputs: Inputs, at: NDArray[np.int64], stored: Callable[[NDArray[Any]], F32]
) -> tuple[Inputs, NDArray[np.int64]]:
    """Candidates that cost less than an input.

    Args:
        inputs: one candidate.
        at: the tokens that may change.
        stored: rounds values to the format of V.

    Returns:
        the candidates, and by how much each costs less; those that gain most first, at most `MOST`.
    """
    scores, values = inputs.scores[0], inputs.values[0]
    rows: list[tuple[F32, F32]] = []
    live_s, live_v = scores[at], values[at]
    known_s, known_v = _most(live_s), _most(live_v)
    for x in known_s:
        others = [float(y) for y in known_s if y != x]
        for y in [*simpler(float(x)), *others]:
            rows.append((np.where(live_s == x, np.float32(y), live_s), live_v))
        shifted = (live_s - x).astype(np.float32)
        rows.append((np.where(np.isfinite(live_s), shifted, live_s), live_v))
    for x in known_v:
        others = [float(y) for y in known_v if y != x]
        for y in [*simpler(float(x)), *others]:
            rows.append((live_s, np.where(live_v == x, np.float32(y), live_v)))
    for sign in (-1.0, 2.0, 0.5):
        rows.append((live_s, (live_v * sign).astype(np.float32)))
    now = total(live_s, live_v)
    gains = np.array([now - total(s, v) for s, v in rows], dtype=np.int64)
    order = np.argsort(-gains, kind="stable")
    order = order[gains[order] > 0][:MOST]
    if not len(order):
        return Inputs(
            np.zeros((0, len(scores)), np.float32), np.zeros((0, *values.shape), np.float32)
        ), gains[:0]
    new_s = np.repeat(scores[None], len(order), axis=0)
    new_v = np.repeat(values[None], len(order), axis=0)
    new_s[:, at] = np.stack([rows[i][0] for i in order])
    new_v[:, at] = stored(np.stack([rows[i][1] for i in order]))
    return Inputs(new_s, new_v), gains[order]


def _most(numbers: F32) -> NDArray[np.float32]:
    """The different finite numbers, the most frequent first, at most `NUMBERS`."""
    known, count = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    return known[np.argsort(-count, kind="stable")][:NUMBERS]
