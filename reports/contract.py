"""The report contract: everything a page shows, as frozen models with a published JSON Schema.

The HTML and Markdown pages are pure functions of a `Report`. Floats here are finite; a number of the
arithmetic under study is a `Number`, with its decimal text and its bit pattern, so that NaN, infinities and
the sign of zero survive. Token indices count from 0. ``ulpscope report --schema`` prints the schema.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_ID = "ulpscope.report/1"

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Bits = Annotated[str, Field(pattern=r"^0x[0-9a-f]+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Frozen(BaseModel):
    """Base of every model: frozen, closed to unknown keys, finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Number(Frozen):
    """One number of the arithmetic: ``text`` decimal, ``hexfloat`` as C prints it, ``bits`` of ``format``."""

    text: str
    hexfloat: str
    bits: Bits
    format: str


class Note(Frozen):
    """A sentence for the reader; ``kind`` "limit" says what the figures cannot tell."""

    kind: Literal["information", "limit", "warning"]
    text: str


class Verdict(Frozen):
    """The first thing on the page. ``diverges`` is whether any two cells differ in an output bit."""

    headline: str
    diverges: bool
    points: tuple[str, ...] = ()


class Run(Frozen):
    """How the report came about: ``command`` replays it; ``seconds`` is the run time."""

    id: str
    command: str
    seed: int
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


# --- specs ---------------------------------------------------------------------------------------------


class FlowSection(Frozen):
    """A column of the dataflow figure: inputs, token, a level or the row. ``rule``: how it divides tokens."""

    name: str
    rule: str = ""


class FlowNode(Frozen):
    """A site, state or input. ``rounds``: narrower formats to which its own result is rounded.

    ``inner``: roundings inside its expression that belong to no edge. ``carried`` names the scope in which
    a state lives, None for what is not carried.
    """

    id: str
    section: str
    kind: Literal["input", "site", "output"]
    text: str
    format: str
    bits: Count
    rounds: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    reduction: str = ""
    carried: str | None = None


class FlowEdge(Frozen):
    """A use of ``source`` in ``target``. ``cast``: the format to which the value is rounded on the way.

    ``format`` and ``bits`` describe the value as it leaves the source. ``when``: "now", "prev" (the state one
    step before) or "last" (the state after the fold).
    """

    source: str
    target: str
    format: str
    bits: Count
    cast: str | None = None
    cast_bits: Count | None = None
    when: Literal["now", "prev", "last"] = "now"


class Flow(Frozen):
    """The dataflow of one spec: columns from left to right, nodes in the order of the file, edges."""

    sections: tuple[FlowSection, ...]
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]


class Source(Frozen):
    """Where the arithmetic of a spec was read."""

    repository: str
    commit: str
    path: str


class SpecView(Frozen):
    """One spec as the page shows it: its resolved ``text`` and the hash of that text."""

    name: str
    status: str
    summary: str
    text: str
    sha256: Sha256
    sources: tuple[Source, ...] = ()
    flow: Flow


class DiffLine(Frozen):
    """One line of a spec difference, matched by the role of its section and its site."""

    kind: Literal["same", "changed", "left", "right"]
    section: str
    site: str
    left: str = ""
    right: str = ""


class SpecDiff(Frozen):
    """The line-by-line difference of two specs."""

    left: str
    right: str
    lines: tuple[DiffLine, ...]


# --- one input through all cells -----------------------------------------------------------------------


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


# --- beyond one input ----------------------------------------------------------------------------------


class DepthPoint(Frozen):
    """One sampled position: the KV length, and one comparison over ``n`` outputs."""

    range: str
    position: Count
    n: Count
    ulp_max: Count
    ulp_mean: float
    changed: Share


class DepthSeries(Frozen):
    """Divergence of two cells along the workload."""

    left: str
    right: str
    points: tuple[DepthPoint, ...]


class RangeInfo(Frozen):
    """One range of the workload: it starts at token ``depth`` and scores ``tokens`` tokens."""

    name: str
    depth: Count
    tokens: Count
    content: str


class Depth(Frozen):
    """Divergence by depth. ``sampled`` of ``positions`` positions were computed; a sweep computes all."""

    format: str
    ranges: tuple[RangeInfo, ...]
    series: tuple[DepthSeries, ...]
    sampled: Count
    positions: Count
    seed: int
    input: str
    notes: tuple[Note, ...] = ()


class SplitPoint(Frozen):
    """Error against the exact answer with one split count, over all inputs, in f32 ULP."""

    splits: Count
    mean: float
    low: float
    high: float
    worst: float
    best_share: Share


class SplitFamily(Frozen):
    """One family of inputs: the mean error of each split count, in the order of the points."""

    name: str
    inputs: Count
    means: tuple[float, ...]


class Splits(Frozen):
    """Is any split count more accurate in general? ``low`` and ``high`` of a point bound its mean (95%).

    ``best_share`` of a point is the share of inputs on which its count was the most accurate, ties shared.
    """

    spec: str
    kv_len: Count
    inputs: Count
    seed: int
    method: str
    points: tuple[SplitPoint, ...]
    families: tuple[SplitFamily, ...] = ()
    verdict: str


class TrafficRow(Frozen):
    """Logical accesses of one sequence length, in bytes."""

    tokens: Count
    qkvo: Count
    matrix: Count
    dense: Count
    tiled: Count
    dense_backward: Count
    tiled_backward: Count


class DecodeTraffic(Frozen):
    """Logical accesses of one decode step, in bytes, and the time at the platform's memory bandwidth."""

    cell: str
    groups: Count
    partial: Count
    kv: Count
    partials: Count
    total: Count
    microseconds: float | None = None


class TrafficTime(Frozen):
    """The time that a platform's memory bandwidth allows for one length, in milliseconds."""

    platform: str
    tokens: Count
    dense: float
    tiled: float


class TrafficView(Frozen):
    """Logical access counts, not measured traffic."""

    assumption: str
    rows: tuple[TrafficRow, ...]
    times: tuple[TrafficTime, ...] = ()
    tiles: str = ""
    decode: tuple[DecodeTraffic, ...]
    decode_note: str


class Report(Frozen):
    """A divergence report."""

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
    notes: tuple[Note, ...] = ()


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a report."""
    return Report.model_json_schema(mode="serialization")


def to_json(report: Report) -> str:
    """The report as JSON text, keys in the order of the contract."""
    return json.dumps(
        report.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )


def from_json(text: str) -> Report:
    """The report in a JSON text.

    Raises:
        pydantic.ValidationError: the text is no report of this version.
    """
    return Report.model_validate_json(text)
