"""What two runs say of the tokens that followed: perplexities, probability ratios, changes of probability.

Works on log-probabilities of one token a position, so also where nothing else was recorded. Definitions of the means,
their uncertainties and the lists of percentiles are those of llama.cpp's ``llama-perplexity --kl-divergence``
(tools/perplexity/perplexity.cpp): the variance of a mean is (mean of squares - square of the mean) / (n - 1), and the
uncertainty of a root mean square is that of the mean square over twice the root. Estimators k1 and k3 of KL divergence:
John Schulman, "Approximating KL divergence" (2020); they are unbiased only where tokens were drawn from the first run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KL_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)
DP_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)
#: Ratios of probabilities outside are counted.
BOUNDS = (0.9, 1.1)


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; the error is None for fewer than two numbers."""

    value: float
    error: float | None


@dataclass(frozen=True)
class Spread:
    """A list of numbers: how many are finite, mean, extremes, and percentiles as (percent, value)."""

    n: int
    mean: Estimate | None
    rms: Estimate | None
    minimum: float | None
    maximum: float | None
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Likelihood:
    """Two runs on the tokens that followed; run a is the base.

    Attributes:
        n: tokens on which both have a finite log-probability.
        left_out: tokens on which one has none (null, NaN, infinite, clamped, above 0).
        difference: of ln p_b - ln p_a, nats.
        absolute: of its absolute value.
        delta_p: of p_b - p_a.
        nll_a, nll_b: mean negative log-likelihoods (ln PPL), nats.
        ppl_a, ppl_b: perplexities.
        ln_ratio: ln(PPL_b / PPL_a), with the error of a paired difference.
        ratio: PPL_b / PPL_a.
        correlation: of the two log-probabilities over tokens (llama.cpp's Cor(ln PPL)); None where one is constant.
        pearson_p: Pearson correlation of the probabilities.
        k1, k3: estimates of KL(a||b), nats.
        chi2: mean of (p_b / p_a)^2, less 1.
        ess: effective sample size of the weights p_b / p_a, over n.
        ratio_max, ratio_min: extremes of p_b / p_a.
        outside, high, low: share of ratios outside `BOUNDS`, above, below.
    """

    n: int
    left_out: int
    difference: Spread
    absolute: Spread
    delta_p: Spread
    nll_a: Estimate | None
    nll_b: Estimate | None
    ppl_a: Estimate | None
    ppl_b: Estimate | None
    ln_ratio: Estimate | None
    ratio: Estimate | None
    correlation: float | None
    pearson_p: float | None
    k1: Estimate | None
    k3: Estimate | None
    chi2: float | None
    ess: float | None
    ratio_max: float | None
    ratio_min: float | None
    outside: float | None
    high: float | None
    low: float | None


def estimate(x: Floats) -> Estimate | None:
    """Mean and its standard error; None of nothing."""
    if not x.size:
        return None
    mean = float(x.mean())
    if x.size < 2:
        return Estimate(mean, None)
    return Estimate(mean, float(np.sqrt(max(0.0, float(np.mean((x - mean) ** 2))) / (x.size - 1))))


def spread(x: Floats, percentiles: tuple[float, ...] = KL_PERCENTILES) -> Spread:
    """Summary of the finite numbers of ``x``. Percentiles interpolate linearly between order statistics."""
    x = x[np.isfinite(x)]
    if not x.size:
        return Spread(0, None, None, None, None, ())
    square = estimate(x * x)
    assert square is not None
    rms = float(np.sqrt(square.value))
    error = None if square.error is None or rms == 0 else square.error / (2 * rms)
    found = np.percentile(x, percentiles)
    return Spread(
        n=int(x.size),
        mean=estimate(x),
        rms=Estimate(rms, error),
        minimum=float(x.min()),
        maximum=float(x.max()),
        percentiles=tuple(zip(percentiles, (float(v) for v in found), strict=True)),
    )


def correlation(x: Floats, y: Floats) -> float | None:
    """Pearson correlation, or None where either is constant or there are fewer than two."""
    if x.size < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt(np.dot(x, x) * np.dot(y, y)))
    return float(np.dot(x, y)) / scale if scale > 0 else None


@np.errstate(over="ignore", invalid="ignore")
def likelihood(a: Floats, b: Floats) -> Likelihood:
    """Compare log-probabilities. Ratios of probabilities that overflow are infinite.

    Args:
        a: ``[tokens]`` natural log-probabilities of the base; not finite or above 0 means "none".
        b: of the other run.
    """
    use = np.isfinite(a) & np.isfinite(b) & (a <= 0) & (b <= 0)
    left_out = int(a.size - use.sum())
    a, b = a[use], b[use]
    d = b - a
    ratio = np.exp(d)
    some: dict[str, Any] = dict.fromkeys(
        ("chi2", "ess", "ratio_max", "ratio_min", "outside", "high", "low"), None
    )
    if a.size:
        high, low = float(np.mean(ratio > BOUNDS[1])), float(np.mean(ratio < BOUNDS[0]))
        heavy = np.exp(d - d.max())  # the scale cancels
        some = {
            "chi2": float(np.mean(ratio * ratio)) - 1,
            "ess": float(heavy.sum() ** 2 / (heavy * heavy).sum()) / a.size,
            "ratio_max": float(ratio.max()),
            "ratio_min": float(ratio.min()),
            "outside": high + low,
            "high": high,
            "low": low,
        }
    nll_a, nll_b, ln_ratio = estimate(-a), estimate(-b), estimate(-d)
    return Likelihood(
        n=int(a.size),
        left_out=left_out,
        difference=spread(d),
        absolute=spread(np.abs(d)),
        delta_p=spread(np.exp(b) - np.exp(a), DP_PERCENTILES),
        nll_a=nll_a,
        nll_b=nll_b,
        ppl_a=_exp(nll_a),
        ppl_b=_exp(nll_b),
        ln_ratio=ln_ratio,
        ratio=_exp(ln_ratio),
        correlation=correlation(a, b),
        pearson_p=correlation(np.exp(a), np.exp(b)),
        k1=estimate(-d),
        k3=estimate(np.expm1(d) - d),
        **some,
    )


def _exp(x: Estimate | None) -> Estimate | None:
    """The exponential of an estimate: its error to first order."""
    if x is None:
        return None
    with np.errstate(over="ignore"):
        value = float(np.exp(x.value))
    return Estimate(value, None if x.error is None else value * x.error)
