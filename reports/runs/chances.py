"""How sure a ranking is: the share of resampled conversations in which each point takes each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reports.geometry import SLACK
from verify.metrics.bootstrap import FEWEST, resample

Floats = NDArray[np.float64]
Pair = tuple[int, int]
#: Conversations by name with their two sums, of one pair of points.
Sums = tuple[Sequence[str], Floats, Floats]


def rank_chances(
    n: int, pairs: Mapping[Pair, Sums], *, root: bool, draws: int, seed: int
) -> dict[str, Floats] | None:
    """Resample conversations, rank the points in each resample.

    Args:
        n: number of points, numbered from 0.
        pairs: the sums of every pair (i, j), i < j.
        root: whether the distance is the root of the ratio of sums.
        draws: resamples.
        seed: of the resampling.

    Returns:
        By kind of centre (centroid, medoid) ``[n, n]``: the share of resamples in which a point takes a place; points that
        tie share the better one. None with fewer than `FEWEST` conversations, or where no resample has all distances.
    """
    names = sorted({name for listed, _, _ in pairs.values() for name in listed})
    if len(names) < FEWEST or n < 2:
        return None
    at = {name: i for i, name in enumerate(names)}
    columns = np.zeros((len(names), 2 * len(pairs)))
    for k, (listed, numerator, denominator) in enumerate(pairs.values()):
        rows = [at[name] for name in listed]
        columns[rows, 2 * k], columns[rows, 2 * k + 1] = numerator, denominator
    drawn = resample(columns, draws, seed)
    drawn = drawn[(drawn[:, 1::2] > 0).all(axis=1)]
    if not len(drawn):
        return None
    means = drawn[:, ::2] / drawn[:, 1::2]
    d = np.zeros((len(drawn), n, n))
    for k, (i, j) in enumerate(pairs):
        d[:, i, j] = d[:, j, i] = np.sqrt(means[:, k]) if root else means[:, k]
    # The squared distance to the centroid is the mean of a point's squared distances, less the same number for all.
    scores = {"centroid": (d * d).mean(axis=2), "medoid": d.mean(axis=2)}
    return {kind: _places(score) for kind, score in scores.items()}


def _places(score: Floats) -> Floats:
    """``[draws, n]`` scores as shares of places ``[n, n]``; scores within rounding of each other tie."""
    n = score.shape[1]
    slack = SLACK * score.max(axis=1, keepdims=True)
    place = (score[:, None, :] < (score - slack)[:, :, None]).sum(axis=2)
    return np.stack([(place == r).mean(axis=0) for r in range(n)], axis=1)
