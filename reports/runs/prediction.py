"""The prediction section of the divergence contract: what was computed beforehand, set against what was recorded.

Field by field the numbers are those of `verify.metrics.predicted` and `verify.identify`, whose docstrings define them and
whose thresholds decide the outcomes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reports.contract_base import Count, Frozen, Note, Share
from reports.runs import measured as m

Outcome = Literal["bit-exact", "direction and size", "unexplained"]
How = Literal["named", "coordinate", "best", "none"]


class PredictedRun(Frozen):
    """A run of predicted logits: its name and place, the arithmetic that it declares, and its attention kernel.

    ``kernel`` is SPEC@PLATFORM, or "plain"; ``declared``: whether the run says that it was predicted.
    """

    name: str
    place: str
    sha256: str
    arithmetic: str
    kernel: str
    declared: bool


class Fit(Frozen):
    """One predicted run against one real one: ``equal`` of ``elements`` do not differ, in the sense of ``exactness``.

    ``same_capture``: why the two are one and the same file, which says nothing of the prediction.
    """

    predicted: str
    real: str
    identical: bool
    exactness: Literal["bits", "values", "printed digits"]
    conversations: Count
    rows: Count
    elements: Count
    equal: Count
    max_abs: m.Real | None
    rms: m.Real | None
    flips: Count
    decided: Count
    first_difference: m.FirstDifference | None
    same_capture: str | None


class CoordinatePrediction(Frozen):
    """What is said of one coordinate. ``how`` its prediction was found: by name, by its GPU and backend, as the nearest of
    several (``fits``, nearest first), or not at all.
    """

    run: str
    outcome: Outcome
    reason: str
    predicted: str | None
    how: How
    fits: tuple[Fit, ...]


class Flips(m.Measured):
    """Rows on which best tokens differ: really, in the prediction, in both; missed, and predicted in vain (``idle``)."""

    rows: Count
    real: Count
    predicted: Count
    both: Count
    same_tokens: Count
    missed: Count
    idle: Count


class FlipRow(m.Measured):
    """One position at which a best token differs; best tokens of the first and the second coordinate."""

    conversation: str
    repeat: Count
    position: Count
    kind: Literal["predicted and happened", "missed", "predicted, did not happen"]
    real: tuple[int, int]
    predicted: tuple[int, int]


class Difference(m.Measured):
    """The predicted difference of two coordinates against the real one."""

    first: str
    second: str
    predicted_first: str
    predicted_second: str
    outcome: Outcome
    reason: str
    conversations: Count
    rows: Count
    elements: Count
    correlation: m.Interval
    slope: m.Interval
    cosine: m.Interval
    signs: m.Interval
    rms_ratio: m.Interval
    real_rms: float | None
    predicted_rms: float | None
    rows_alike: Count
    rows_told: Count
    flips: Flips
    found: m.Interval
    right: m.Interval
    positions: tuple[FlipRow, ...]
    left_out: Count


class AttentionPart(Frozen):
    """One site (output or lse) of one layer: how many numbers have the predicted bits."""

    layer: int | None
    site: str
    elements: Count
    exact: Count


class AttentionPlace(Frozen):
    """The first number that differs; ``captured`` and ``predicted`` with their bits in hex."""

    observation: str
    site: str
    layer: int | None
    position: int | None
    head: int | None
    dim: int | None
    captured: str
    predicted: str


class AttentionFit(Frozen):
    """Candidates that are one program, on the captured q, k and v of a run.

    ``histogram``: numbers by ULP distance from low to high, both included; ``beyond``: NaN or infinity against a number.
    """

    names: tuple[str, ...]
    elements: Count
    exact: Count
    share: Share
    positions: Count
    exact_positions: Count
    histogram: tuple[m.UlpBin, ...]
    beyond: Count
    parts: tuple[AttentionPart, ...]
    first: AttentionPlace | None


class AttentionRun(Frozen):
    """The attention tensors of one run against every candidate, best first; ``refused``: (candidates, why)."""

    run: str
    outcome: Literal["bit-exact", "unexplained"]
    verdict: str
    layers: tuple[int, ...]
    fits: tuple[AttentionFit, ...]
    refused: tuple[tuple[str, str], ...]


class Prediction(Frozen):
    """The section. ``thresholds``: the numbers that outcomes were decided by."""

    headline: str
    predicted: tuple[PredictedRun, ...] = ()
    coordinates: tuple[CoordinatePrediction, ...] = ()
    differences: tuple[Difference, ...] = ()
    attention: tuple[AttentionRun, ...] = ()
    thresholds: dict[str, float] = Field(default_factory=dict)
    notes: tuple[Note, ...] = ()
