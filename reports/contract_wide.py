"""The part of the contract beyond one input: depth, split counts, memory traffic."""

from __future__ import annotations

from reports.contract_base import Count, Frozen, Note, Share


class DepthPoint(Frozen):
    """One sampled position: the KV length, and one comparison over ``n`` outputs.

    99% of the outputs that have a distance are at most ``ulp_p99`` apart; ``flips`` outputs change sign.
    """

    range: str
    position: Count
    n: Count
    ulp_max: Count
    ulp_p99: Count
    ulp_mean: float
    flips: Count
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
