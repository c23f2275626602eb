"""Intervals by resampling conversations: rows of one conversation are not independent, conversations are.

Every estimate is a ratio of sums over conversations. A resample draws conversations with replacement and forms the ratio
anew; the interval is between percentiles of `DRAWS` resamples, from a fixed seed. Fewer than `FEWEST` conversations give
no interval: then the value of each conversation and their range are what there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 2000
FEWEST = 10
SEED = 20240229
_CHUNK = 1 << 22

Kind = Literal["bootstrap", "few conversations", "all equal", "none"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its uncertainty.

    Attributes:
        value: ratio of the sums over all conversations; None where the denominator is zero.
        kind: "bootstrap": ``low .. high`` is an interval; "few conversations": it is the range of their values, given in
            ``each``; "all equal": every conversation has this value, and there is no interval; "none": no data.
        low, high: see ``kind``; None where there is none.
        conversations: how many have a nonzero denominator.
        each: values of the conversations, where they are few: (name, value).
        level: of the interval.
    """

    value: float | None
    kind: Kind
    low: float | None
    high: float | None
    conversations: int
    each: tuple[tuple[str, float], ...] = ()
    level: float = 0.95


def resample(sums: Floats, draws: int = DRAWS, seed: int = SEED) -> Floats:
    """Sums over resampled conversations.

    Args:
        sums: ``[conversations, metrics]``.
        draws: number of resamples.
        seed: of NumPy's default generator; equal seeds draw the same conversations for every metric.

    Returns:
        ``[draws, metrics]``.
    """
    n = len(sums)
    if n * draws <= _CHUNK:
        return _times_drawn(n, draws, seed) @ sums
    rng = np.random.default_rng(seed)
    out = np.empty((draws, sums.shape[1]))
    step = max(1, _CHUNK // n)
    share = np.full(n, 1 / n)
    for low in range(0, draws, step):
        high = min(draws, low + step)
        out[low:high] = rng.multinomial(n, share, size=high - low).astype(np.float64) @ sums
    return out


@lru_cache(maxsize=4)
def _times_drawn(n: int, draws: int, seed: int) -> Floats:
    """``[draws, n]`` how often each conversation is drawn; the same for all metrics of a comparison."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def interval(
    numerator: Floats,
    denominator: Floats,
    names: tuple[str, ...],
    *,
    draws: int = DRAWS,
    seed: int = SEED,
    level: float = 0.95,
) -> Interval:
    """The ratio of two sums over conversations, with its interval.

    Args:
        numerator: ``[conversations]``.
        denominator: ``[conversations]``; a conversation with 0 has nothing to say and is left out.
        names: of the conversations.
        draws: number of resamples.
        seed: of the resampling.
        level: of the interval.
    """
    use = denominator > 0
    numerator, denominator = numerator[use], denominator[use]
    names = tuple(name for name, u in zip(names, use, strict=True) if u)
    n = len(names)
    if not n:
        return Interval(None, "none", None, None, 0, (), level)
    value = float(numerator.sum() / denominator.sum())
    each = numerator / denominator
    if n < FEWEST:
        listed = tuple(zip(names, (float(v) for v in each), strict=True))
        return Interval(value, "few conversations", float(each.min()), float(each.max()), n, listed, level)
    if (each == each[0]).all():
        return Interval(value, "all equal", None, None, n, (), level)
    found = resample(np.stack([numerator, denominator], axis=1), draws, seed)
    ratios = found[:, 0] / found[:, 1]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    if low == high:  # one rare conversation: the percentiles fall on its absence
        low, high = ratios.min(), ratios.max()
    if low == high:
        low, high = each.min(), each.max()
    return Interval(value, "bootstrap", float(low), float(high), n, (), level)


def by_group(values: Floats, groups: NDArray[np.int64], count: int) -> tuple[Floats, Floats]:
    """Sum and number of the finite ``values`` of each group ``0 .. count - 1``; infinite and NaN are left out."""
    use = np.isfinite(values) & (groups >= 0)
    at = groups[use]
    return (
        np.bincount(at, values[use], minlength=count).astype(np.float64),
        np.bincount(at, minlength=count).astype(np.float64),
    )
