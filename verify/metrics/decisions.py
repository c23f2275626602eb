"""Does it change tokens? Best tokens, flips, ranks, and where texts part.

A *flip* is a row on which the best tokens differ. It is a *tie* where one run gives both tokens, or its two best, one
value; *within distance* where the margin of both runs is at most a given distance, so that differences of that size
explain it; else *real*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import Aligned
from verify.metrics.likelihood import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Upper edges of the bins of margins, in the unit of the values; the last bin is open.
MARGIN_EDGES = (0.0, 0.001, 0.01, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class MarginBin:
    """Rows whose margin is above ``low`` and at most ``high`` (None: no limit), and how many of them flip."""

    low: float
    high: float | None
    rows: int
    flips: int


@dataclass(frozen=True)
class Decisions:
    """Best tokens of two runs.

    Attributes:
        n: rows on which both best tokens are known.
        same_best: share of rows with the same best token, with its standard error sqrt(p (1 - p) / (n - 1)).
        flips: rows with different ones.
        ties, within, real: the flips, split.
        unsplit: flips whose margins are not known.
        distance: the distance that ``within`` was judged by.
        overlap: mean share of the k best tokens that both have, and ``k``.
        rank_max: largest rank, from 0, of one run's best token in the other.
        ranks: rows by that rank: 0, 1, 2, 3-9, 10-99, 100 and more.
        margins: histogram of the smaller margin of the two runs.
    """

    n: int
    same_best: Estimate | None
    flips: int
    ties: int
    within: int
    real: int
    unsplit: int
    distance: float | None
    overlap: float | None
    k: int
    rank_max: int | None
    ranks: tuple[tuple[str, int], ...]
    margins: tuple[MarginBin, ...]


@dataclass(frozen=True)
class Divergence:
    """Where the texts of two free runs part.

    Attributes:
        pairs: pairs of sequences whose tokens are known.
        forked: pairs that part.
        first: of each pair, the number of common tokens before the fork, None where they never part.
        mean_first: mean of those that part (Div_Index), tokens.
        prefix_cdf: (tokens, share of pairs whose common prefix is at most that long because they part there).
        length_differences: rows of the second less rows of the first, of each pair.
        by_text: pairs in which tokens are known by text only: two tokens may have one text.
    """

    pairs: int
    forked: int
    first: tuple[int | None, ...]
    mean_first: float | None
    prefix_cdf: tuple[tuple[int, float], ...]
    length_differences: tuple[int, ...]
    by_text: int


@dataclass(frozen=True)
class Modal:
    """Distinct values among repeats: how many, and the share of the most frequent with its 95% Wilson interval."""

    n: int
    distinct: int
    share: float
    low: float
    high: float


def decide(
    best_a: Ints,
    best_b: Ints,
    margin_a: Floats,
    margin_b: Floats,
    *,
    distance: float | None,
    ranks: Floats | None = None,
    tied: NDArray[np.bool_] | None = None,
) -> Decisions:
    """Compare best tokens.

    Args:
        best_a: ``[rows, k]`` best tokens, best first; negative where not known.
        best_b: of the other run.
        margin_a: ``[rows]`` the best value less the second; NaN where not known.
        margin_b: of the other run.
        distance: what differences explain, in the unit of the margins; None where not known.
        ranks: ``[rows]`` rank of one run's best token in the other, the larger of the two; NaN where not known.
        tied: ``[rows]`` whether one run gives both best tokens one value.
    """
    known = (best_a[:, 0] >= 0) & (best_b[:, 0] >= 0) if best_a.size and best_b.size else np.zeros(0, bool)
    best_a, best_b = best_a[: known.size][known], best_b[: known.size][known]
    x, y = margin_a[: known.size][known], margin_b[: known.size][known]
    n = len(best_a)
    flip = best_a[:, 0] != best_b[:, 0] if n else np.zeros(0, bool)
    share = 1 - float(flip.mean()) if n else 0.0
    with np.errstate(invalid="ignore"):
        tie = (x == 0) | (y == 0)
        if tied is not None:
            tie |= tied[: known.size][known]
        unknown = np.isnan(x) | np.isnan(y)
        least, most = np.fmin(x, y), np.fmax(x, y)
        near = most <= (np.nan if distance is None else distance)
    split = flip & ~unknown
    k = min(best_a.shape[1], best_b.shape[1]) if n else 0
    return Decisions(
        n=n,
        same_best=Estimate(share, sqrt(share * (1 - share) / (n - 1)) if n > 1 else None) if n else None,
        flips=int(flip.sum()),
        ties=int((split & tie).sum()),
        within=int((split & ~tie & near).sum()) if distance is not None else 0,
        real=int((split & ~tie & ~near).sum()) if distance is not None else 0,
        unsplit=int((flip & unknown).sum()) + (int((split & ~tie).sum()) if distance is None else 0),
        distance=distance,
        overlap=_overlap(best_a[:, :k], best_b[:, :k]) if k else None,
        k=k,
        rank_max=_rank_max(ranks),
        ranks=_rank_bins(ranks),
        margins=_margins(least[~np.isnan(least)], flip[~np.isnan(least)]),
    )


def _overlap(a: Ints, b: Ints) -> float:
    """Mean share of known tokens of ``a`` that are among those of ``b``."""
    found = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).any(axis=2).sum(axis=1)
    listed = np.minimum((a >= 0).sum(axis=1), (b >= 0).sum(axis=1))
    return float(np.mean(found[listed > 0] / listed[listed > 0]))


def _rank_max(ranks: Floats | None) -> int | None:
    known = None if ranks is None else ranks[~np.isnan(ranks)]
    return int(known.max()) if known is not None and known.size else None


def _rank_bins(ranks: Floats | None) -> tuple[tuple[str, int], ...]:
    if ranks is None:
        return ()
    known = ranks[~np.isnan(ranks)]
    edges = ((0, 1, "0"), (1, 2, "1"), (2, 3, "2"), (3, 10, "3-9"), (10, 100, "10-99"), (100, np.inf, "100+"))
    return tuple((name, int(((known >= low) & (known < high)).sum())) for low, high, name in edges)


def _margins(margin: Floats, flip: NDArray[np.bool_]) -> tuple[MarginBin, ...]:
    at = np.searchsorted(np.array(MARGIN_EDGES), margin, side="left")
    found: list[MarginBin] = []
    for i in range(len(MARGIN_EDGES) + 1):
        low = MARGIN_EDGES[i - 1] if i else 0.0
        high = MARGIN_EDGES[i] if i < len(MARGIN_EDGES) else None
        inside = at == i
        found.append(MarginBin(low, high, int(inside.sum()), int((inside & flip).sum())))
    return tuple(found)


def diverge(aligned: Iterable[Aligned]) -> Divergence:
    """Where texts part, of all pairs of sequences that may be compared and whose tokens are known."""
    pairs = [p for p in aligned if p.refused is None and p.by != "positions"]
    first = tuple(p.fork for p in pairs)
    forks = sorted(f for f in first if f is not None)
    cdf = [(f, (i + 1) / len(pairs)) for i, f in enumerate(forks) if i + 1 == len(forks) or forks[i + 1] != f]
    return Divergence(
        pairs=len(pairs),
        forked=len(forks),
        first=first,
        mean_first=float(np.mean(forks)) if forks else None,
        prefix_cdf=tuple(cdf),
        length_differences=tuple(p.alone[1] - p.alone[0] for p in pairs),
        by_text=sum(p.by == "texts" for p in pairs),
    )


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval of a share; z is the normal quantile (95% by default)."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def modal(values: Sequence[Hashable]) -> Modal | None:
    """How often the most frequent of ``values`` occurs; None of nothing."""
    if not values:
        return None
    counts = Counter(values)
    most = max(counts.values())
    low, high = wilson(most, len(values))
    return Modal(len(values), len(counts), most / len(values), low, high)
