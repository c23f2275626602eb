"""The part of the divergence contract that states what was measured, as `verify.metrics` defines it.

Field by field these are the results of that package, whose docstrings say what each number is; what a report does not use
is left out. A number that is not finite is the text "inf" or "-inf"; NaN is null.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from reports.contract_base import Count, Share
from verify.metrics.jsonable import to_json

Real = float | Literal["inf", "-inf"]


class Measured(BaseModel):
    """Base: frozen; keys that are not known are left out, so that results may grow."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=Measured)


def take(model: type[M], result: Any) -> M:
    """A result of `verify.metrics` as a model of this module."""
    return model.model_validate(to_json(result))


def take_all(model: type[M], results: Any) -> tuple[M, ...]:
    """Several."""
    return tuple(take(model, result) for result in results)


class Estimate(Measured):
    """A mean and its standard error."""

    value: Real
    error: Real | None


class Spread(Measured):
    """Mean, extremes and percentiles (percent, value) of ``n`` numbers."""

    n: Count
    mean: Estimate | None
    rms: Estimate | None
    minimum: Real | None
    maximum: Real | None
    percentiles: tuple[tuple[float, float], ...]


class Interval(Measured):
    """A ratio of sums over conversations; ``kind`` says what ``low`` and ``high`` are."""

    value: Real | None
    kind: Literal["bootstrap", "few conversations", "all equal", "none"]
    low: Real | None
    high: Real | None
    conversations: Count
    each: tuple[tuple[str, Real], ...] = ()
    level: Share


class Finding(Measured):
    """One thing to know; ``code`` is for programs, ``where`` names runs or conversations."""

    code: str
    severity: Literal["error", "warning", "note"]
    text: str
    where: tuple[str, ...] = ()
    count: Count | None = None


class RunHealth(Measured):
    """What is odd in one run."""

    run: str
    sequences: Count
    rows: Count
    counts: dict[str, Count]
    findings: tuple[Finding, ...]


class Modal(Measured):
    """Distinct values among repeats, and the share of the most frequent with its 95% Wilson interval."""

    n: Count
    distinct: Count
    share: Share
    low: Share
    high: Share


class Level(Measured):
    """Repeats at one level (text, ids, values): the class of each in order, and the order as a pattern."""

    name: str
    classes: tuple[Count, ...]
    pattern: str
    modal: Modal


class Repeated(Measured):
    """One conversation that was asked more than once."""

    conversation: str
    n: Count
    levels: tuple[Level, ...]
    finding: Literal["identical", "first request differs", "distinct", "race or bug", "text only"]
    max_difference: Real | None
    rows: Count
    first_fork: Count | None

    def level(self, name: str) -> Level | None:
        """The level of that name, if it was recorded."""
        return next((one for one in self.levels if one.name == name), None)


class FirstDifference(Measured):
    """Where two runs differ first; ``element`` is a token, or None where one value a row was compared."""

    conversation: str
    repeat: Count
    position: Count
    element: int | None
    a: Real | None
    b: Real | None


class Coverage(Measured):
    """Which rows of two runs were compared, and why others were not."""

    conversations: Count
    rows: Count
    after_fork: Count
    refused: tuple[tuple[str, str], ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    unmatched_repeats: tuple[Count, Count]
    alone: tuple[Count, Count]
    unverified: Count
    by_text: Count
    same_capture: str | None
    columns: tuple[Count, Count, Count] | None


class UlpBin(Measured):
    """Elements whose distance is in ``low .. high``, both included."""

    low: Count
    high: Count
    count: Count


class Ulps(Measured):
    """ULP distances in the stored dtype."""

    bits: Count
    max: Count
    mean: float | None
    histogram: tuple[UlpBin, ...]


class Values(Measured):
    """Distances of values over all compared elements."""

    n: Count
    rows: Count
    different: Count
    exactness: Literal["bits", "values", "printed digits"]
    decimals: Count | None
    zero_sign: Count
    max_abs: Real | None
    mean_abs: Real | None
    rms: Real | None
    mean: Real | None
    quantiles: tuple[tuple[float, Real | None], ...]
    max_relative: Real | None
    mean_relative: Real | None
    floor: float
    l2: Real
    l2_normalised: Real | None
    cosine: Real | None
    distance_cosine: Real | None
    sqnr: Real | None
    identical: bool
    ulp: Ulps | None
    agree: tuple[Count, ...]
    nan_both: Count
    nan_mismatch: Count
    inf_both: Count
    inf_mismatch: Count
    clamped: Count
    clamp_mismatch: Count = 0
    impossible: Count = 0
    impossible_mismatch: Count = 0
    dtypes: tuple[str, str]


class Distribution(Measured):
    """Distances of next-token distributions over rows, in nats."""

    rows: Count
    without: Count
    kl: Spread
    kl_reverse: Spread
    js: Spread
    tv: Spread
    chi2: Spread
    chi2_reverse: Spread
    infinite: Count
    lost: float
    lost_rows: Count
    quantisation: float | None


class Lists(Measured):
    """Distances where only the most likely tokens are known: bounds."""

    rows: Count
    shared: Count
    listed: tuple[Count, Count]
    clamped: Count
    impossible: Count = 0
    max_abs: Real | None
    mean_abs: Real | None
    rms: Real | None
    mean: Real | None
    quantiles: tuple[tuple[float, float], ...]
    lse_max: Real | None = None
    mass_a: Spread
    mass_b: Spread
    kl_low: Spread
    kl_reverse_low: Spread
    js_low: Spread
    js_high: Spread
    tv_low: Spread
    tv_high: Spread


class Likelihood(Measured):
    """Two runs on the tokens that followed; the first is the base."""

    n: Count
    left_out: Count
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
    chi2: Real | None
    ess: Real | None
    ratio_max: Real | None
    ratio_min: Real | None
    outside: Share | None
    high: Share | None
    low: Share | None


class MarginBin(Measured):
    """Rows whose margin is above ``low`` and at most ``high``, and how many of them flip."""

    low: float
    high: float | None
    rows: Count
    flips: Count


class Decisions(Measured):
    """Best tokens of two runs; flips are split into ties, within the distance, real, and those not known."""

    n: Count
    same_best: Estimate | None
    flips: Count
    ties: Count
    within: Count
    real: Count
    unsplit: Count
    distance: Real | None
    overlap: Share | None
    k: Count
    rank_max: Count | None
    ranks: tuple[tuple[str, Count], ...]
    margins: tuple[MarginBin, ...]


class Texts(Measured):
    """Where the texts of two free runs part."""

    pairs: Count
    forked: Count
    first: tuple[Count | None, ...]
    mean_first: float | None
    prefix_cdf: tuple[tuple[Count, Share], ...]
    length_differences: tuple[int, ...]
    by_text: Count


class Cell(Measured):
    """One metric in one bin or stratum."""

    n: Count
    mean: Real | None
    maximum: Real | None
    error: Real | None


class Stratum(Measured):
    """Rows of a bin whose ``by`` is in [low, high)."""

    by: str
    low: float
    high: float | None
    metrics: dict[str, Cell]


class Bin(Measured):
    """Rows of one depth or of one range."""

    name: str
    low: Count | None
    high: Count | None
    rows: Count
    conversations: Count
    metrics: dict[str, Cell]
    strata: tuple[Stratum, ...]


class Tensor(Measured):
    """One attention tensor of one layer in two runs."""

    layer: int
    tensor: str
    n: Count
    max_abs: Real | None
    mean_abs: Real | None
    rms: Real | None
    cosine: Real | None
    empty: Count
    nan_mismatch: Count
    inf_mismatch: Count
    finding: Finding | None
