"""The contract of a divergence report, ``ulpscope.divergence/1``: everything that its text and pages show.

Frozen models with a published JSON Schema (``ulpscope compare --schema``). Indices into ``coordinates`` count from 0;
distances are in the unit of the values (nats for log-probabilities) unless a metric says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reports.contract_base import Count, Frozen, Note, Sha256, Share, absent
from reports.prove.section import ProofSection
from reports.runs import measured as m
from reports.runs.prediction import Prediction

SCHEMA_ID = "ulpscope.divergence/1"
Outcome = Literal["passed", "failed", "error"]


class Verdict(Frozen):
    """The first thing that is said. ``diverges``: whether any two coordinates, or repeats of one, differ anywhere.

    ``not_numerics`` names pairs whose differences no rounding makes.
    """

    headline: str
    diverges: bool
    not_numerics: tuple[tuple[str, str], ...] = ()
    points: tuple[str, ...] = ()


class Provenance(Frozen):
    """How the report came about: ``command`` makes it again. ``settings`` are those of the comparison."""

    command: str
    started: str
    seconds: Annotated[float, Field(ge=0.0)]
    versions: dict[str, str]
    settings: dict[str, str | int | float | None]


class Coordinate(Frozen):
    """One run. ``name`` is what tables call it; ``coordinate`` and ``capture`` are as in its manifest.

    ``sha256`` is of all its files together; runs made in memory may have any word there.
    """

    name: str
    label: str
    place: str
    sha256: str
    coordinate: dict[str, Any]
    capture: dict[str, Any]
    model: str | None
    sequences: Count
    conversations: Count
    rows: Count
    vocab: Count | None
    dtype: str | None


class RepeatedRun(Frozen):
    """The conversations that one run was asked more than once."""

    run: str
    conversations: tuple[m.Repeated, ...]


class IdentityClass(Frozen):
    """Runs in which nothing that was compared differs.

    ``exactness``: "bits" of stored values; "values" as recorded, where the stored dtype is not known; "printed digits".
    ``decimals``: where they were printed with unequal numbers of decimals, the fewest: they are equal to these.
    ``partial``: some of their rows were not compared. ``rows``: fewest rows compared between two of them.
    """

    runs: tuple[str, ...]
    exactness: Literal["bits", "values", "printed digits"]
    decimals: Count | None = None
    partial: bool
    rows: Count


class Pair(Frozen):
    """Two runs. ``max_abs`` is the largest difference of all that was compared; ``exact`` the share of equal elements.

    ``equal_in``: conversations in which no value differs, where others do. ``depth``, ``position``
    (by position in the text, where that is not the depth) and ``ranges`` are None where there are many pairs and this is
    not among the farthest.
    """

    first: str
    second: str
    kind: Literal["full", "top", "chosen", "none"]
    identical: bool
    whole: bool
    max_abs: m.Real | None
    exact: Share | None
    equal_in: tuple[str, ...]
    coverage: m.Coverage
    first_difference: m.FirstDifference | None
    values: m.Values | None
    chosen: m.Values | None
    distribution: m.Distribution | None
    lists: m.Lists | None
    likelihood: m.Likelihood | None
    decisions: m.Decisions
    texts: m.Texts
    intervals: dict[str, m.Interval]
    depth: tuple[m.Bin, ...] | None
    position: tuple[m.Bin, ...] | None
    ranges: tuple[m.Bin, ...] | None
    attention: tuple[tuple[str, m.Tensor], ...]
    findings: tuple[m.Finding, ...]


class Place(Frozen):
    """A place in a ranking; several points are a tie."""

    points: tuple[Count, ...]
    names: tuple[str, ...]
    distance: float


class Centre(Frozen):
    """A named centre and who is closest to it. ``margin``: to the runner-up, None where all tie.

    ``at`` are its coordinates. ``chances[p][r]``: share of resamples in which point p takes place r (from 0; points that
    tie share the better place); None where there are too few conversations, or for the centre of the ball.
    """

    kind: Literal["centroid", "medoid", "ball"]
    ranking: tuple[Place, ...]
    margin: float | None
    at: tuple[float, float, float]
    radius: float | None
    chances: tuple[tuple[Share, ...], ...] | None


class Triangle(Frozen):
    """Three points: sides opposite to each, angles in degrees, area in the metric squared.

    ``shared``: what the three have in common of GPU and backend, such as "gpu H200"; "" if neither.
    """

    corners: tuple[Count, Count, Count]
    names: tuple[str, str, str]
    sides: tuple[float, float, float]
    kind: Literal["proper", "degenerate", "impossible"]
    angles: tuple[float, float, float] | None
    area: float | None
    shared: str


class Region(Frozen):
    """The geometry of some runs under one metric, in full or within one subset of rows or runs.

    ``subset`` is "all", "batch size", "depth" or "range" and ``name`` which. ``points``: runs at distance 0 from each
    other, collapsed; indices are into it. Where there are too many, ``points`` are clusters, each standing where its
    first run does, and ``cluster_width`` is the largest distance inside one. ``distances`` are between points;
    ``rows``: fewest and most rows of a pair. ``coordinates`` by classical MDS, with all ``eigenvalues``;
    ``negative_share`` of their mass is negative where no Euclidean space holds the distances. ``links`` join one backend
    on two GPUs. ``left_out``: triangles not listed.
    """

    metric: str
    title: str
    subset: Literal["all", "batch size", "depth", "range"]
    name: str
    rows: tuple[Count, Count]
    points: tuple[tuple[str, ...], ...]
    cluster_width: float = 0.0
    distances: tuple[tuple[float, ...], ...]
    coordinates: tuple[tuple[float, float, float], ...]
    eigenvalues: tuple[float, ...]
    euclidean: bool
    negative_share: Share
    shown_2d: Share
    shown_3d: Share
    hull: tuple[tuple[Count, Count, Count], ...]
    centres: tuple[Centre, ...]
    triangles: tuple[Triangle, ...]
    left_out: Count
    links: tuple[tuple[Count, Count], ...]

    @model_validator(mode="after")
    def _within(self) -> Region:
        """Indices are of points: a report may come from anywhere."""
        places = [place for centre in self.centres for place in centre.ranking]
        used = [i for place in places for i in place.points]
        used += [i for corners in (*self.hull, *self.links) for i in corners]
        used += [i for triangle in self.triangles for i in triangle.corners]
        if max(used, default=-1) >= len(self.points):
            raise ValueError(f"names point {max(used)} of {len(self.points)}")
        if not all(centre.ranking for centre in self.centres):
            raise ValueError("has a centre without a ranking")
        return self


class Matrix(Frozen):
    """Distances between all runs under one metric; None where a pair has none."""

    metric: str
    title: str
    names: tuple[str, ...]
    values: tuple[tuple[m.Real | None, ...], ...]


class PolicyCase(Frozen):
    """One condition on one pair, or on one run where ``second`` is empty.

    ``matched``: the coordinate that the rule was found by; ``measured``: its numbers.
    """

    first: str
    second: str
    matched: str
    rule: str
    condition: str
    outcome: Outcome
    text: str
    measured: dict[str, m.Real | None]


class PolicyResult(Frozen):
    """What a policy file says of the pairs."""

    file: str
    sha256: Sha256
    passed: Count
    failed: Count
    errors: Count
    cases: tuple[PolicyCase, ...]

    @property
    def ok(self) -> bool:
        """Whether every condition could be judged and holds."""
        return self.failed == 0 and self.errors == 0


class DivergenceReport(Frozen):
    """The comparison of N runs. ``unrelated``: pairs that have no row in common; they are not in ``pairs``.

    ``prediction``: None where no predicted run and no candidate was given. ``proofs``: claims about candidates and predicted
    kernels; without any the JSON has no such key.
    """

    schema_id: Literal["ulpscope.divergence/1"] = SCHEMA_ID
    title: str
    verdict: Verdict
    provenance: Provenance
    coordinates: tuple[Coordinate, ...]
    health: tuple[m.RunHealth, ...]
    identity: tuple[IdentityClass, ...]
    repeats: tuple[RepeatedRun, ...]
    matrices: tuple[Matrix, ...]
    pairs: tuple[Pair, ...]
    unrelated: Count
    geometry: tuple[Region, ...] = ()
    findings: tuple[m.Finding, ...] = ()
    policy: PolicyResult | None = None
    prediction: Prediction | None = None
    proofs: ProofSection | None = Field(default=None, exclude_if=absent)
    notes: tuple[Note, ...] = ()


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a divergence report."""
    return DivergenceReport.model_json_schema(mode="serialization")


def from_text(text: str) -> DivergenceReport:
    """The report in a JSON text.

    Raises:
        pydantic.ValidationError: the text is no report of this version.
    """
    return DivergenceReport.model_validate_json(text)
