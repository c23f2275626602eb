"""Ranking candidates by the distances of their predictions, and how many positions tell two of them apart.

The unit is the position: its distance is the largest ULP distance of its elements. A candidate that is the truth gives
distance 0, but for a share ``e`` of positions that something disturbs (what repeats of one coordinate disagree in):

    P(d) = (1 - e) [d = 0] + e h(d)

where ``h`` is the histogram of all distances of all distinct candidates, pooled: how far wrong predictions lie in this
very capture. That none of the candidates is the truth is a candidate, too, with P(d) = h(d) at the distances of the best
of the others. Natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.int64]
"""``[positions]``: the largest ULP distance in each; `BEYOND` where no distance exists."""

BEYOND = -1
"""Distance of a position where NaN or infinity stands against a number."""

DISTURBED = 1e-3
"""Share of positions that may be disturbed, where no repeats say it."""

ERROR = 0.01
"""Chance of still confusing two candidates after `positions_needed`."""


BINS = 66
"""Bins of `bin_of`."""


def bin_of(distances: Distances) -> NDArray[np.int64]:
    """Bins of distances: 0, 1, 2, 3-4, 5-8, ...: bin k > 0 ends at ``2 ** (k - 1)``; the last, 65, is `BEYOND`."""
    d = np.asarray(distances, dtype=np.int64)
    edges = np.array([0, *(1 << k for k in range(63))], dtype=np.int64)
    bins = np.searchsorted(edges, d, side="left").astype(np.int64)
    return np.where(d == BEYOND, 65, bins)


def widths() -> NDArray[np.float64]:
    """How many distances each bin of `bin_of` holds (the last holds one)."""
    return np.array([1.0, 1.0, *(float(1 << k) for k in range(63)), 1.0])


def pooled(distances: Sequence[Distances]) -> NDArray[np.float64]:
    """``h``: the probability of one distance in each bin, from the distances of all distinct candidates.

    Each bin counts one half more than was seen (Jeffreys), so that no distance is impossible.
    """
    size = len(widths())
    counts = np.full(size, 0.5)
    for d in distances:
        counts += np.bincount(bin_of(d), minlength=size)
    return counts / counts.sum() / widths()


def log_likelihood(distances: Distances, h: NDArray[np.float64], e: float) -> float:
    """Sum over positions of ln P(d); see the module."""
    p = e * h[bin_of(distances)] + (1.0 - e) * (np.asarray(distances) == 0)
    return float(np.log(p).sum())


def log_likelihood_of_none(distances: Distances, h: NDArray[np.float64]) -> float:
    """Sum over positions of ln h(d)."""
    return float(np.log(h[bin_of(distances)]).sum())


def posteriors(log_likelihoods: Sequence[float]) -> list[float]:
    """Probabilities that add to 1, under equal priors."""
    if not log_likelihoods:
        return []
    top = max(log_likelihoods)
    weights = [math.exp(x - top) for x in log_likelihoods]
    total = math.fsum(weights)
    return [w / total for w in weights]


def positions_needed(share: float, error: float = ERROR) -> int | None:
    """Positions after which two candidates that differ in a ``share`` p of positions are confused with chance ``error``.

    ``ceil(ln error / ln(1 - p))``: the chance that none of n positions differs is ``(1 - p) ** n``. None where they do
    not differ at all.
    """
    if share <= 0.0:
        return None
    if share >= 1.0:
        return 1
    return max(1, math.ceil(math.log(error) / math.log1p(-share)))


def disturbed_share(differing: int, positions: int) -> float:
    """``e`` from repeats: the share of positions in which repeats differ, never below `DISTURBED` nor above one half.

    The bounds keep a candidate from being ruled out by one odd position, and from passing for the truth at random.
    """
    return DISTURBED if positions <= 0 else min(0.5, max(DISTURBED, differing / positions))
