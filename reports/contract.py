"""The report contract: everything a page shows, as frozen models with a published JSON Schema.

The HTML and Markdown pages are pure functions of a `Report`. Floats here are finite; a number of the
arithmetic under study is a `Number`, with its decimal text and its bit pattern, so that NaN, infinities and
the sign of zero survive. Token indices count from 0. ``ulpscope report --schema`` prints the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from reports.contract_base import Bits as Bits
from reports.contract_base import Count as Count
from reports.contract_base import Frozen as Frozen
from reports.contract_base import Note as Note
from reports.contract_base import Number as Number
from reports.contract_base import Sha256 as Sha256
from reports.contract_base import Share as Share
from reports.contract_base import absent
from reports.contract_base import to_json as to_json
from reports.contract_campaign import CampaignCase as CampaignCase
from reports.contract_campaign import CampaignGroup as CampaignGroup
from reports.contract_campaign import CampaignRun as CampaignRun
from reports.contract_campaign import CampaignView as CampaignView
from reports.contract_campaign import MethodResult as MethodResult
from reports.contract_specs import DiffLine as DiffLine
from reports.contract_specs import Flow as Flow
from reports.contract_specs import FlowEdge as FlowEdge
from reports.contract_specs import FlowNode as FlowNode
from reports.contract_specs import FlowSection as FlowSection
from reports.contract_specs import Source as Source
from reports.contract_specs import SpecDiff as SpecDiff
from reports.contract_specs import SpecView as SpecView
from reports.contract_wide import DecodeTraffic as DecodeTraffic
from reports.contract_wide import Depth as Depth
from reports.contract_wide import DepthPoint as DepthPoint
from reports.contract_wide import DepthSeries as DepthSeries
from reports.contract_wide import RangeInfo as RangeInfo
from reports.contract_wide import SplitFamily as SplitFamily
from reports.contract_wide import SplitPoint as SplitPoint
from reports.contract_wide import Splits as Splits
from reports.contract_wide import TrafficRow as TrafficRow
from reports.contract_wide import TrafficTime as TrafficTime
from reports.contract_wide import TrafficView as TrafficView
from reports.prove.section import ProofSection

SCHEMA_ID = "ulpscope.report/1"


class Verdict(Frozen):
    """The first thing on the page. ``diverges`` is whether any two cells differ in an output bit."""

    headline: str
    diverges: bool
    points: tuple[str, ...] = ()


class Run(Frozen):
    """How the report came about: ``command`` replays it; ``seconds`` is the run time.

    ``seed`` is None where nothing was drawn at random: the seeds of a campaign are those of its cases.
    """

    id: str
    command: str
    seed: int | None
    started: str
    seconds: Annotated[float, Field(ge=0.0)]
    versions: dict[str, str]


class Platform(Frozen):
    """A GPU as declared. ``bandwidth`` in bytes a second."""

    name: str
    title: str
    sm_count: Count
    capability: str
    bandwidth: float | None = None


class ArrayInfo(Frozen):
    """One array of an input."""

    name: str
    shape: tuple[Count, ...]
    dtype: str
    sha256: Sha256


class InputInfo(Frozen):
    """Where an input comes from, and the integers that a plan needs beside the arrays."""

    name: str
    title: str
    description: str
    origin: str
    licence: str
    arrays: tuple[ArrayInfo, ...]
    context: dict[str, int]


class Reading(Frozen):
    """One cell's outputs in one format, against the exact answer.

    ``sample`` is the first output. ``ulp_max``, ``ulp_mean``: distance from the exact real number in units in
    the last place of the format, at most 0.5 where an output is correctly rounded; ``off_share``: share of
    outputs that are not; ``special``: outputs that are NaN or infinite, in none of the others.
    """

    site: str
    format: str
    sample: Number
    ulp_max: Annotated[float, Field(ge=0.0)]
    ulp_mean: Annotated[float, Field(ge=0.0)]
    off_share: Share
    special: Count = 0


class Cell(Frozen):
    """One backend on one platform. ``span``: tokens of the smallest and the largest group.

    ``name`` is what tables and figures call the cell. ``requested`` is what a user asked for where it
    resolves to this spec. ``readings`` run from the widest format to the output's. ``dead_rows`` counts rows
    without a live token, which give 0 and lse -inf.
    """

    name: str
    backend: str
    platform: str
    spec: str
    requested: str | None = None
    status: Literal["computed", "unsupported", "skipped"]
    reason: str = ""
    content_hash: Sha256 | None = None
    groups: Count = 0
    span: tuple[Count, Count] | None = None
    outputs: Count = 0
    readings: tuple[Reading, ...] = ()
    lse: Number | None = None
    dead_rows: Count = 0


class Exact(Frozen):
    """The answer in real arithmetic. ``sample``: its first output; ``width`` of the enclosure around it."""

    sample: str
    method: str
    width: str = ""


class TokenRun(Frozen):
    """``count`` tokens from ``start``, visited upwards."""

    start: Count
    count: Count


class Ownership(Frozen):
    """Who owns which tokens: for each group of one cell its runs in visiting order."""

    cell: str
    kv_len: Count
    rule: str
    groups: tuple[tuple[TokenRun, ...], ...]


class Distances(Frozen):
    """Pairwise distances between cells over all outputs, in units in the last place of ``format``."""

    site: str
    format: str
    cells: tuple[str, ...]
    outputs: Count
    maximum: tuple[tuple[Count, ...], ...]
    mean: tuple[tuple[float, ...], ...]
    changed: tuple[tuple[Share, ...], ...]
    special: tuple[tuple[Count, ...], ...]


class RankView(Frozen):
    """A place in a ranking; several names are a tie."""

    names: tuple[str, ...]
    distance: float


class CentreView(Frozen):
    """A named centre, who is closest to it and by how much. ``margin`` is None where all tie."""

    kind: Literal["centroid", "medoid", "ball"]
    ranking: tuple[RankView, ...]
    margin: float | None
    at: tuple[float, float, float]
    radius: float | None = None


class TriangleView(Frozen):
    """The backends of one platform as a triangle; sides, and angles opposite to them in degrees."""

    platform: str
    corners: tuple[int, int, int]
    names: tuple[str, str, str]
    sides: tuple[float, float, float]
    kind: Literal["proper", "degenerate", "impossible"]
    angles: tuple[float, float, float] | None = None
    area: float | None = None


class GeometryView(Frozen):
    """Pairwise distances embedded by classical MDS; indices are into ``points``.

    ``points``: names of bit-identical cells, collapsed. ``links`` join the same backend on two platforms.
    """

    metric: str
    points: tuple[tuple[str, ...], ...]
    coordinates: tuple[tuple[float, float, float], ...]
    eigenvalues: tuple[float, ...]
    euclidean: bool
    negative_share: Share
    shown_2d: Share
    shown_3d: Share
    centres: tuple[CentreView, ...]
    hull: tuple[tuple[Count, Count, Count], ...] = ()
    triangles: tuple[TriangleView, ...] = ()
    links: tuple[tuple[Count, Count], ...] = ()


class HistogramSeries(Frozen):
    """Counts of one cell or pair, one per bucket."""

    name: str
    counts: tuple[Count, ...]


class Histogram(Frozen):
    """How often each distance from the exact answer occurs. ``buckets`` are labels such as "1-2"."""

    title: str
    format: str
    buckets: tuple[str, ...]
    series: tuple[HistogramSeries, ...]


class Study(Frozen):
    """One input through every cell."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    input: InputInfo
    verdict: Verdict
    exact: Exact
    cells: tuple[Cell, ...]
    distances: tuple[Distances, ...] = ()
    geometry: tuple[GeometryView, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    ownership: tuple[Ownership, ...] = ()
    notes: tuple[Note, ...] = ()


class Report(Frozen):
    """A divergence report, or the report of a campaign. Without a campaign, or proofs, its JSON has no such key."""

    schema_id: Literal["ulpscope.report/1"] = SCHEMA_ID
    title: str
    verdict: Verdict
    run: Run
    platforms: tuple[Platform, ...]
    studies: tuple[Study, ...]
    specs: tuple[SpecView, ...]
    diffs: tuple[SpecDiff, ...] = ()
    depth: Depth | None = None
    splits: Splits | None = None
    traffic: TrafficView | None = None
    campaign: CampaignView | None = Field(default=None, exclude_if=absent)
    proofs: ProofSection | None = Field(default=None, exclude_if=absent)
    notes: tuple[Note, ...] = ()


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a report."""
    return Report.model_json_schema(mode="serialization")


def from_json(text: str) -> Report:
    """The report in a JSON text.

    Raises:
        pydantic.ValidationError: the text is no report of this version.
    """
    return Report.model_validate_json(text)
