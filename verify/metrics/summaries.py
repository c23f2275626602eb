"""Totals of a pair from its rows and histograms: what a report prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log10, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.metrics.likelihood import Spread, spread
from verify.metrics.quantiles import log_bins
from verify.metrics.topk import TopRows
from verify.metrics.values import WITHOUT, ValueState
from verify.numerics.ulp import Bin

Floats = NDArray[np.float64]

#: Quantiles of |d| that are printed; the maximum stands apart.
SHOWN = (0.5, 0.9, 0.95, 0.99, 0.999)
#: Step of llama.cpp's 16-bit log-probabilities: they span at most 16 nats.
KLD_STEP = 16 / 65535


@dataclass(frozen=True)
class UlpCounts:
    """ULP distances in ``bits``-bit words of the stored dtype: largest, mean (None for dtypes above 16 bits), histogram."""

    bits: int
    max: int
    mean: float | None
    histogram: tuple[Bin, ...]


@dataclass(frozen=True)
class ValueSummary:
    """Distances of values over all compared elements; see `verify.metrics.values` for what a difference is.

    Attributes:
        n: elements with a difference; ``rows`` they came from.
        different: elements with other bits (other values where ``exactness`` is "values").
        exactness: "bits", "values" (dtypes differ, or the stored dtype is not known), or "printed digits".
        decimals: printed decimals that ``different`` was told by, or None.
        zero_sign: zeros that differ in sign.
        max_abs, mean_abs, rms, mean: of |d| and d.
        quantiles: of |d|: (q, value); exact.
        max_relative, mean_relative: of |d| / max(|a|, |b|, floor); ``floor``.
        l2: root of the sum of squares; ``l2_normalised``: over that of a.
        cosine, distance_cosine: of all values as one vector, and 1 - cosine without loss of digits.
        sqnr: 10 log10(sum a^2 / sum d^2) in dB; None where values are identical, as it is undefined ("identical" says).
        identical: whether no element differs.
        ulp: ULP distances, None without a common stored dtype.
        agree: elements by number of equal leading bits, 0 to the width.
        nan_both, nan_mismatch, inf_both, inf_mismatch, clamped: elements without a difference; clamp_mismatch: clamped
            ones of which one run says that the value is above the floor; impossible: log-probabilities above 0 in either
            run, which have no difference; impossible_mismatch: those that are not equal in both.
        dtypes: stored dtypes of the two.
    """

    n: int
    rows: int
    different: int
    exactness: str
    decimals: int | None
    zero_sign: int
    max_abs: float | None
    mean_abs: float | None
    rms: float | None
    mean: float | None
    quantiles: tuple[tuple[float, float | None], ...]
    max_relative: float | None
    mean_relative: float | None
    floor: float
    l2: float
    l2_normalised: float | None
    cosine: float | None
    distance_cosine: float | None
    sqnr: float | None
    identical: bool
    ulp: UlpCounts | None
    agree: tuple[int, ...]
    nan_both: int
    nan_mismatch: int
    inf_both: int
    inf_mismatch: int
    clamped: int
    clamp_mismatch: int
    impossible: int
    impossible_mismatch: int
    dtypes: tuple[str, str]

    @property
    def exact(self) -> float | None:
        """Share of elements that do not differ, of those that have a difference or are NaN or infinite on both sides."""
        whole = self.n + self.nan_both + self.nan_mismatch + self.inf_both + self.inf_mismatch
        return (self.n - self.different + self.nan_both + self.inf_both) / whole if whole else None


@dataclass(frozen=True)
class DistributionSummary:
    """Distances of next-token distributions over rows, in nats.

    Attributes:
        rows: rows with a distribution in both runs; ``without``: compared rows that have none (NaN, +infinity).
        kl, kl_reverse, js, tv, chi2, chi2_reverse: over rows; run a is p.
        infinite: rows whose KL is infinite.
        lost: largest probability left out of a row (clamped, or impossible in one run), and ``lost_rows`` with any.
        quantisation: by how much KL may be off as values were quantised (nats), or None: they are as recorded.
    """

    rows: int
    without: int
    kl: Spread
    kl_reverse: Spread
    js: Spread
    tv: Spread
    chi2: Spread
    chi2_reverse: Spread
    infinite: int
    lost: float
    lost_rows: int
    quantisation: float | None


@dataclass(frozen=True)
class TopSummary:
    """Distances where only the most likely tokens are known; bounds as in `verify.metrics.topk`.

    ``impossible``: shared tokens of which a log-probability is above 0; they have no difference, nor bounds their rows.
    """

    rows: int
    shared: int
    listed: tuple[int, int]
    clamped: int
    impossible: int
    max_abs: float | None
    mean_abs: float | None
    rms: float | None
    mean: float | None
    quantiles: tuple[tuple[float, float], ...]
    lse_max: float | None
    mass_a: Spread
    mass_b: Spread
    kl_low: Spread
    kl_reverse_low: Spread
    js_low: Spread
    js_high: Spread
    tv_low: Spread
    tv_high: Spread


def value_summary(
    state: ValueState, fields: Mapping[str, Floats], dtypes: tuple[str, str], exactness: str
) -> ValueSummary:
    """Totals of one pair.

    Args:
        state: its histograms.
        fields: `VALUE_FIELDS` of its rows, NaN where not compared.
        dtypes: stored dtypes.
        exactness: see `ValueSummary`.
    """

    def whole(name: str) -> float:
        return float(np.nansum(fields[name]))

    n = int(whole("n"))
    different = int(whole("printed_different" if exactness == "printed digits" else "different"))
    squares, aa, bb = whole("sum_squares"), whole("a_squares"), whole("b_squares")
    shown = tuple(zip(SHOWN, state.differences.quantiles(SHOWN), strict=True))
    bad = {name: int(whole(name)) for name in WITHOUT}
    apart: float | None = None
    if aa > 0 and bb > 0:
        apart = max(0.0, (squares - (sqrt(aa) - sqrt(bb)) ** 2) / (2 * sqrt(aa) * sqrt(bb)))
    return ValueSummary(
        n=n,
        rows=int(np.count_nonzero(~np.isnan(fields["n"]))),
        different=different,
        exactness=exactness,
        decimals=state.decimals,
        zero_sign=int(whole("zero_sign")),
        max_abs=state.differences.max(),
        mean_abs=whole("sum_abs") / n if n else None,
        rms=sqrt(squares / n) if n else None,
        mean=whole("sum") / n if n else None,
        quantiles=shown,
        max_relative=float(np.nanmax(fields["max_relative"])) if n else None,
        mean_relative=whole("sum_relative") / n if n else None,
        floor=state.floor,
        l2=sqrt(squares),
        l2_normalised=sqrt(squares / aa) if aa > 0 else None,
        cosine=None if apart is None else 1 - apart,
        distance_cosine=apart,
        sqnr=10 * log10(aa / squares) if aa > 0 and squares > 0 else None,
        identical=n + bad["nan_both"] + bad["inf_both"] > 0
        and different == 0
        and not any(n for name, n in bad.items() if name.endswith("_mismatch")),
        ulp=_ulp(state, fields) if n else None,
        agree=tuple(int(c) for c in state.agree()),
        dtypes=dtypes,
        **bad,
    )


def _ulp(state: ValueState, fields: Mapping[str, Floats]) -> UlpCounts | None:
    if not state.width:
        return None
    n = int(np.nansum(fields["n"]))
    used = np.flatnonzero(state.ulps)
    most = int(used[-1]) if used.size else 0
    if state.width == 16:
        mean = float(np.arange(most + 1) @ state.ulps[: most + 1]) / n
        return UlpCounts(16, most, mean, tuple(Bin(*b) for b in log_bins(state.ulps)))
    bins = [Bin(0, 0, int(state.ulps[0]))]
    bins += [Bin((1 << k >> 1) + 1 if k else 1, 1 << k, int(state.ulps[k + 1])) for k in range(most)]
    return UlpCounts(state.width, int(np.nanmax(fields["max_ulp"])), None, tuple(bins))


def distribution_summary(fields: Mapping[str, Floats], lost: Floats, quantised: int) -> DistributionSummary:
    """Totals of the distances of distributions.

    Args:
        fields: `VALUE_FIELDS` and `DISTRIBUTION_FIELDS` of the rows.
        lost: ``[rows]`` probability left out.
        quantised: how many of the two runs were stored with 16 bits a row.
    """
    compared = ~np.isnan(fields["n"])
    known = compared & ~np.isnan(fields["tv"])
    left = np.nan_to_num(lost[known])
    spreads: dict[str, Any] = {
        name: spread(fields[name][known]) for name in ("kl", "kl_reverse", "js", "tv", "chi2", "chi2_reverse")
    }
    return DistributionSummary(
        rows=int(known.sum()),
        without=int((compared & ~known).sum()),
        infinite=int(np.isinf(fields["kl"][known]).sum()),
        lost=float(left.max(initial=0.0)),
        lost_rows=int((left > 0).sum()),
        quantisation=KLD_STEP * quantised if quantised else None,
        **spreads,
    )


def _finite_max(x: Floats) -> float | None:
    found = x[np.isfinite(x)]
    return float(found.max()) if found.size else None


def top_summary(rows: TopRows) -> TopSummary:
    """Totals of a comparison of lists."""
    f = rows.fields
    with np.errstate(invalid="ignore"):  # infinite in both
        log_sums = np.abs(f["lse_a"] - f["lse_b"])
    d = rows.differences
    size = np.abs(d)
    spreads: dict[str, Any] = {
        name: spread(f[name])
        for name in ("mass_a", "mass_b", "kl_low", "kl_reverse_low", "js_low", "js_high", "tv_low", "tv_high")
    }
    found = np.quantile(size, SHOWN) if d.size else ()
    return TopSummary(
        rows=len(f["shared"]),
        shared=int(d.size),
        listed=(int(np.nansum(f["listed_a"])), int(np.nansum(f["listed_b"]))),
        clamped=int(np.nansum(f["clamped"])),
        impossible=int(np.nansum(f["impossible"])),
        max_abs=float(size.max()) if d.size else None,
        mean_abs=float(size.mean()) if d.size else None,
        rms=float(np.sqrt(np.mean(d * d))) if d.size else None,
        mean=float(d.mean()) if d.size else None,
        quantiles=tuple(zip(SHOWN, (float(v) for v in found), strict=False)),
        lse_max=_finite_max(log_sums),
        **spreads,
    )
