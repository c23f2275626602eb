"""Divergence by depth: the same growing sequence, cut at positions of a workload, through pairs of cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.contract import Depth, DepthPoint, DepthSeries, Note, RangeInfo
from reports.parallel import by_spec
from reports.target import Target
from specs.workloads import Range, Workload
from verify.case import Case
from verify.engine.layout import KV
from verify.numerics.ulp import ulp_distance, ulp_summary
from verify.partition import Plan, plan
from verify.together import common_shape, reshaped

ROWS, DIM = 4, 32
SPREAD = 2.0


@dataclass(frozen=True, slots=True)
class Position:
    """One decoded token: the range that it belongs to and the KV length at which it is decoded."""

    range: str
    kv_len: int


@dataclass(frozen=True)
class Measured:
    """One pair of cells at one position."""

    position: Position
    left: str
    right: str
    point: DepthPoint


def range_name(one: Range) -> str:
    """What a range is called: ``SP03-M010``."""
    return f"{one.conversation}-{one.message}"


def positions(workload: Workload) -> list[Position]:
    """Every decoded token of the workload, in order: token i of a range sees ``depth + i + 1`` tokens."""
    return [Position(range_name(r), r.depth + i + 1) for r in workload.ranges for i in range(r.tokens)]


def sample(workload: Workload, seed: int, each: int = 1) -> list[Position]:
    """``each`` positions of every range, drawn without replacement."""
    rng = np.random.default_rng(seed)
    out: list[Position] = []
    for r in workload.ranges:
        chosen = sorted(rng.choice(r.tokens, size=min(each, r.tokens), replace=False).tolist())
        out.extend(Position(range_name(r), r.depth + i + 1) for i in chosen)
    return out


def sequence(seed: int, tokens: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Scores ``[ROWS, tokens]`` and bf16 values ``[tokens, DIM]``; a shorter position sees a part of them."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    scores = (rng.standard_normal((tokens, ROWS)) * SPREAD).astype(np.float32).T
    values = rng.standard_normal((tokens, DIM)).astype(np.float32).astype(ml_dtypes.bfloat16)
    return np.ascontiguousarray(scores), values


def default_pairs(targets: Sequence[Target]) -> list[tuple[Target, Target]]:
    """Pairs that say most: backends on the first platform, then each backend across platforms."""
    first = targets[0].platform_title
    here = [t for t in targets if t.platform_title == first]
    pairs = [(a, b) for i, a in enumerate(here) for b in here[i + 1 :]]
    for backend in dict.fromkeys(t.backend for t in targets):
        mine = [t for t in targets if t.backend == backend]
        pairs += [(mine[0], other) for other in mine[1:]]
    return pairs


def cells_of(pairs: Sequence[tuple[Target, Target]]) -> list[Target]:
    """Every cell of ``pairs``, once."""
    return list({t.name: t for pair in pairs for t in pair}.values())


def measure(
    where: Sequence[Position], pairs: Sequence[tuple[Target, Target]], seed: int, context: dict[str, int]
) -> Iterator[list[Measured]]:
    """For each position, every pair of cells."""
    scores, values = sequence(seed, max(p.kv_len for p in where))
    laid: dict[str, KV] = {}
    for position in where:
        case = _case(scores, values, position, context)
        outputs: dict[str, NDArray[Any]] = {}
        for t in cells_of(pairs):
            if t.spec.content_hash not in laid:
                laid[t.spec.content_hash] = _lay_out(scores, values, t, context)
            run = case.start(t.spec, t.platform, kv=laid[t.spec.content_hash])
            outputs[t.name] = run.result().output
        yield [_compare(position, a.name, b.name, outputs[a.name], outputs[b.name]) for a, b in pairs]


def _lay_out(scores: Any, values: Any, target: Target, context: dict[str, int]) -> KV:
    """The values of the whole sequence as the engine wants them, for every shorter position as well."""
    whole = _case(scores, values, Position("", scores.shape[1]), context)
    kv = whole.start(target.spec, target.platform).kv
    assert kv is not None, "the engine lays out its values"
    return kv


def _case(scores: Any, values: Any, position: Position, context: dict[str, int]) -> Case:
    n = position.kv_len
    return Case("depth", {"scores": scores[:, :n], "values": values[:n]}, context=context)


def _plan(target: Target, position: Position, context: dict[str, int]) -> Plan:
    given: dict[str, Any] = {"kv_len": position.kv_len, **context}
    return plan(target.spec, target.platform, **given)


def _compare(position: Position, left: str, right: str, a: NDArray[Any], b: NDArray[Any]) -> Measured:
    s, distance = ulp_summary(a, b), ulp_distance(a, b)
    point = DepthPoint(
        range=position.range,
        position=position.kv_len,
        n=s.n,
        ulp_max=s.max or 0,
        ulp_p99=_within(distance[distance >= 0], 0.99),
        ulp_mean=s.mean or 0.0,
        flips=int(np.count_nonzero((a > 0) & (b < 0) | (a < 0) & (b > 0))),
        changed=(s.n - s.equal + s.zero_sign) / s.n,
    )
    return Measured(position, left, right, point)


def _within(distance: NDArray[np.int64], share: float) -> int:
    """The smallest distance that at least ``share`` of the outputs stay within; 0 if there are none."""
    last = math.ceil(share * distance.size) - 1
    return int(np.sort(distance, axis=None)[last]) if distance.size else 0


def depth(
    workload: Workload,
    targets: Sequence[Target],
    seed: int,
    context: dict[str, int],
    *,
    each: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Depth:
    """The sampled study of a report."""
    chosen = sample(workload, seed, each)
    pairs = default_pairs(targets)
    series: dict[tuple[str, str], list[DepthPoint]] = {(a.name, b.name): [] for a, b in pairs}
    cells = cells_of(pairs)
    scores, values = sequence(seed, max(p.kv_len for p in chosen))
    finished = [0]

    def run(group: list[Target]) -> list[list[NDArray[Any]]]:
        # One compilation for all lengths and platforms of a spec: tables as large as the largest of them.
        shape = common_shape(_plan(t, p, context) for t in group for p in chosen)
        kv = _lay_out(scores, values, group[0], context)
        outputs: list[NDArray[Any]] = []
        for target in group:
            for position in chosen:
                one = _case(scores, values, position, context).start(target.spec, target.platform, kv=kv)
                outputs.append(reshaped(one, shape, kv).result().output)
                finished[0] += 1
                progress(finished[0], len(cells) * len(chosen))
        return [outputs[i : i + len(chosen)] for i in range(0, len(outputs), len(chosen))]

    outputs = dict(zip((t.name for t in cells), by_spec(cells, run), strict=True))
    for n, position in enumerate(chosen):
        for a, b in pairs:
            found = _compare(position, a.name, b.name, outputs[a.name][n], outputs[b.name][n])
            series[a.name, b.name].append(found.point)
    shape = ", ".join(f"{k} {v}" for k, v in context.items())
    return Depth(
        format="bf16",
        ranges=tuple(
            RangeInfo(name=range_name(r), depth=r.depth, tokens=r.tokens, content=r.content)
            for r in sorted(workload.ranges, key=lambda r: r.depth)
        ),
        series=tuple(
            DepthSeries(left=a, right=b, points=tuple(sorted(points, key=lambda p: p.position)))
            for (a, b), points in series.items()
            if any(p.changed for p in points)
        ),
        sampled=len(chosen),
        positions=workload.tokens,
        seed=seed,
        input=f"one growing sequence of random scores (normal, deviation {SPREAD:g}) and bf16 values, "
        f"{ROWS} rows of {DIM} outputs; partition for {shape}.",
        notes=_notes(series),
    )


def _notes(series: dict[tuple[str, str], list[DepthPoint]]) -> tuple[Note, ...]:
    silent = [f"{a} and {b}" for (a, b), points in series.items() if not any(p.changed for p in points)]
    notes = [
        Note(
            kind="limit",
            text="Scores here are random and do not depend on the depth. In a real session the entropy of "
            "the text changes with it, so a curve of one session mixes both.",
        ),
        Note(
            kind="information",
            text="A maximum of tens of thousands of ULP is an output near zero whose two results differ in sign: "
            "all smaller numbers of both signs lie between them. The table says how many outputs change sign, "
            "and the distance that 99% of the outputs stay within.",
        ),
    ]
    if silent:
        notes.append(
            Note(kind="information", text=f"Bit-identical at every sampled position: {'; '.join(silent)}.")
        )
    return tuple(notes)
