"""Two differences, element by element, from sums: correlation, slope, cosine, signs, size, each with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from verify.metrics.bootstrap import DRAWS, FEWEST, SEED, Interval, resample

Floats = NDArray[np.float64]

#: Sums over the elements of a row: their number, of p and r, their squares and products, those in which neither is 0 and
#: those in which both have one sign.
FIELDS = ("n", "p", "r", "pp", "rr", "pr", "both", "alike")
N, P, R, PP, RR, PR, BOTH, ALIKE = range(len(FIELDS))


def correlation(s: Floats) -> Floats:
    """Pearson's correlation of p and r from sums ``[..., FIELDS]``; NaN where either does not vary."""
    with np.errstate(invalid="ignore", divide="ignore"):
        n = s[..., N]
        across = n * s[..., PR] - s[..., P] * s[..., R]
        spread = [n * s[..., x2] - s[..., x] ** 2 for x, x2 in ((P, PP), (R, RR))]
        ok = (spread[0] > 1e-12 * n * s[..., PP]) & (spread[1] > 1e-12 * n * s[..., RR])
        return np.where(ok, np.clip(across / np.sqrt(spread[0] * spread[1]), -1, 1), np.nan)


def slope(s: Floats) -> Floats:
    """Slope of the regression of r on p."""
    with np.errstate(invalid="ignore", divide="ignore"):
        n = s[..., N]
        spread = n * s[..., PP] - s[..., P] ** 2
        across = n * s[..., PR] - s[..., P] * s[..., R]
        return np.where(spread > 1e-12 * n * s[..., PP], across / spread, np.nan)


def cosine(s: Floats) -> Floats:
    """Cosine of p and r as vectors."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            (s[..., PP] > 0) & (s[..., RR] > 0), s[..., PR] / np.sqrt(s[..., PP] * s[..., RR]), np.nan
        )


def signs(s: Floats) -> Floats:
    """Share of equal signs, of elements in which neither p nor r is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(s[..., BOTH] > 0, s[..., ALIKE] / s[..., BOTH], np.nan)


def rms_ratio(s: Floats) -> Floats:
    """RMS of p over RMS of r."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(s[..., RR] > 0, np.sqrt(s[..., PP] / s[..., RR]), np.nan)


def interval_of(
    sums: Floats,
    names: Sequence[str],
    statistic: Callable[[Floats], Floats],
    *,
    draws: int = DRAWS,
    seed: int = SEED,
    level: float = 0.95,
) -> Interval:
    """A function of sums over conversations, with its bootstrap interval; as `verify.metrics.bootstrap.interval`.

    Args:
        sums: ``[conversations, metrics]``.
        names: of the conversations.
        statistic: of sums ``[..., metrics]``, NaN where it is not defined.
        draws: resamples, ``seed`` of them; ``level`` of the interval.
    """
    each = statistic(sums)
    value = float(statistic(sums.sum(axis=0))) if len(sums) else np.nan
    known = np.isfinite(each)
    n = int(known.sum())
    if not np.isfinite(value) or not n:
        return Interval(None, "none", None, None, n, (), level)
    some = each[known]
    if n < FEWEST:
        listed = tuple((name, float(x)) for name, x, k in zip(names, each, known, strict=True) if k)
        return Interval(value, "few conversations", float(some.min()), float(some.max()), n, listed, level)
    if (some == some[0]).all():
        return Interval(value, "all equal", None, None, n, (), level)
    found = statistic(resample(sums, draws, seed))
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]) if found.size else (value, value)
    if low == high:
        low, high = some.min(), some.max()
    return Interval(value, "bootstrap", float(low), float(high), n, (), level)
