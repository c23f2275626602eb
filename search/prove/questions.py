"""Questions about partitions: where two differ first, and which values of a name give some count of groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.prove.answer import Proof, Status
from search.prove.arrays import DEAL, cuts
from search.prove.domain import RANGES, relevant
from search.sides import Side
from specs.errors import InputError, UlpscopeError, UnsupportedError, did_you_mean
from verify.partition import Plan

Ints = NDArray[np.int64]
#: Lengths that are looked at together; the chunks grow.
FIRST, LARGEST = 4096, 1 << 17
#: Lengths whose arguments differ and whose plans are compared whole, at most: real plans take a millisecond.
COMPARED = 20_000
#: Names that can be searched for.
FREE = (
    "kv_len",
    "sm_count",
    "batch",
    "kv_heads",
    "q_heads",
    "kv_capacity",
    "max_kv_len",
    "num_splits",
    "page_size",
)


def path_of(plan: Plan) -> Ints:
    """Where every token is: int64 ``[token, level + 1]``: the number of its piece at each level, counting pieces that own a
    token in visiting order, and its place in the visiting order.
    """
    tokens = plan.tokens if plan.levels else plan.tokens.reshape(1, -1)
    live = tokens >= 0
    columns: list[Ints] = []
    for depth in range(tokens.ndim - 1):
        owns = live.any(axis=tuple(range(depth + 1, live.ndim)))
        rank = np.cumsum(owns, axis=-1) - 1
        columns.append(
            np.broadcast_to(rank.reshape(*rank.shape, *[1] * (live.ndim - rank.ndim)), live.shape)[live]
        )
    order = np.arange(int(live.sum()))
    out = np.empty((plan.kv_len, len(columns) + 1), np.int64)
    out[tokens[live]] = np.stack([*columns, order], axis=1)
    return out


def differ(a: Plan, b: Plan) -> bool:
    """Whether two plans give any token another place; of plans with different levels the outermost and the order count."""
    p, q = path_of(a), path_of(b)
    if a.levels != b.levels and p.shape != q.shape:
        p, q = p[:, [0, -1]], q[:, [0, -1]]
    return not np.array_equal(p, q)


@dataclass(frozen=True)
class _Sides:
    a: Side
    b: Side
    context: Mapping[str, Any]

    def plans(self, kv_len: int) -> tuple[Plan, Plan]:
        full = {**self.context, "kv_len": kv_len}
        return self.a.plan(full), self.b.plan(full)


def first_difference(
    a: Side, b: Side, context: Mapping[str, Any], most: int = RANGES["kv_len"][1], seconds: float = 60.0
) -> Proof:
    """The smallest kv_len at which two sides cut the sequence differently.

    Args:
        a, b: the sides.
        context: the rest of the shape; what is not given has its default.
        most: the largest kv_len that is looked at.
        seconds: wall time, at most (kept to within one chunk).

    Lengths at which the rules of all levels have the same arguments on both sides have the same partition; the others are
    compared plan by plan.

    Raises:
        InputError: a side takes no length at all, or as `search.sides.Side.plan`.
    """
    began = time.perf_counter()
    subject, claim = f"{a.label} and {b.label}", f"the same partition up to {most:,} tokens"
    sides = _Sides(a, b, {n: v for n, v in context.items() if n != "kv_len"})
    if reason := same_by_names(a, b):
        sides.plans(64)
        return Proof(subject, "the same partition for every shape", "proved", reason)
    compared, low, size, refused = 0, 1, FIRST, 0
    while low <= most:
        values = np.arange(low, min(most, low + size - 1) + 1)
        p, q = (
            cuts(s.spec, s.platform, s.options, {**sides.context, **s.context}, "kv_len", values)
            for s in (a, b)
        )
        both = p.taken & q.taken
        refused += int((~both).sum())
        for kv_len in values[both & _unlike(p.levels, q.levels)].tolist():
            plans = sides.plans(kv_len)
            compared += 1
            if differ(*plans):
                return _parts(subject, sides, kv_len, plans, refused, compared, began)
            if compared >= COMPARED or time.perf_counter() - began > seconds:
                reason = f"no difference up to {kv_len:,} tokens; {compared:,} plans were compared one by one"
                return Proof(subject, claim, "unknown", reason, seconds=time.perf_counter() - began)
        low, size = low + size, min(2 * size, LARGEST)
    if refused == most:
        sides.plans(1)  # says why
        raise InputError(f"{subject} take no length in common", place="kv_len", remedy="change the shape")
    reason = f"the rules of all levels have the same arguments on both sides, or make the same plan ({compared:,} compared)"
    if refused:
        reason += f"; {refused:,} lengths are refused by a side"
    assumed = (f"the rest of the shape: {_shown(context)}",)
    return Proof(subject, claim, "exhaustive", reason, assumed, seconds=time.perf_counter() - began)


def same_by_names(a: Side, b: Side) -> str:
    """Why two sides partition alike: one spec, and every figure of the platform that its levels use is the same."""
    if a.spec != b.spec or (a.options, a.context) != (b.options, b.context):
        return ""
    used = sorted(relevant(a.spec) & set(a.platform.context))
    mine, other = a.platform.context, b.platform.context
    if any(mine[n] != other[n] for n in used):
        return ""
    same = ", ".join(f"{n} = {mine[n]}" for n in used)
    return (
        f"one spec, and of the platform only {same} enters its levels, on both"
        if used
        else "one spec, and nothing of the platform enters its levels"
    )


def _unlike(p: Ints, q: Ints) -> NDArray[np.bool_]:
    if p.shape[1] == q.shape[1]:
        return (p != q).any(axis=(1, 2))
    if not min(p.shape[1], q.shape[1]):
        return np.ones(len(p), np.bool_)
    # Of plans with different levels the outermost one and the order count: tiles in rising order keep the order.
    unlike = (p[:, 0] != q[:, 0]).any(axis=1)
    for side in (p, q):
        inner = side[:, 1:]
        unlike |= ((inner[:, :, 0] == DEAL) | (inner[:, :, 5] != 0)).any(axis=1)
    return unlike


def _parts(
    subject: str,
    sides: _Sides,
    kv_len: int,
    plans: tuple[Plan, Plan],
    refused: int,
    compared: int,
    began: float,
) -> Proof:
    a, b = plans
    shown = [_partition(s, p) for s, p in ((sides.a, a), (sides.b, b))]
    reason = f"the smallest is {kv_len:,} tokens: {shown[0]}; {shown[1]}"
    details = {
        "kv_len": kv_len,
        "groups": [[list(g.span) for g in p.groups if g.tokens.size] for p in plans],
        "first_token": int(_first(a, b)),
    }
    again = (
        f"both plans at {kv_len:,}; {compared - 1:,} shorter plans of other arguments are equal, one by one"
    )
    if refused:
        again += f"; {refused:,} shorter lengths are refused by a side"
    assumed = (f"the rest of the shape: {_shown(sides.context)}",)
    claim = "the same partition for every length"
    return Proof(subject, claim, "refuted", reason, assumed, again, details, time.perf_counter() - began)


def _first(a: Plan, b: Plan) -> int:
    p, q = path_of(a), path_of(b)
    if p.shape != q.shape:
        p, q = p[:, [0, -1]], q[:, [0, -1]]
    return int(np.flatnonzero((p != q).any(axis=1))[0])


def _partition(side: Side, plan: Plan) -> str:
    groups = [g for g in plan.groups if g.tokens.size]
    sizes = sorted({g.tokens.size for g in groups}, reverse=True)
    words = " or ".join(f"{n:,}" for n in sizes[:3]) + (" ..." if len(sizes) > 3 else "")
    return f"{side.label} {len(groups)} group{'s' * (len(groups) != 1)} of {words} tokens"


def find_values(side: Side, context: Mapping[str, Any], free: str, splits: int | None) -> Proof:
    """For which values of a name the outermost level has ``splits`` pieces; or from which on it has one alone.

    Args:
        side: the side.
        context: the rest of the shape.
        free: the name; of `FREE`.
        splits: the count of pieces that the spec's rule gives; None: the value from which on there is one.

    Raises:
        InputError: the name cannot be searched for, or its length is missing.
    """
    began = time.perf_counter()
    if free not in FREE:
        raise InputError(f"--find {free}", place="--find", remedy=did_you_mean(free, FREE))
    if free != "kv_len" and "kv_len" not in context:
        raise InputError("no --kv-len", place="arguments", remedy="say for how many tokens")
    low, high = RANGES[free]
    low = max(low, int(context.get("kv_len", 0))) if free in ("kv_capacity", "max_kv_len") else max(1, low)
    values = np.arange(low, high + 1)
    rest = {n: v for n, v in {**context, **side.context}.items() if n != free}
    if free in ("q_heads", "kv_heads"):
        other = int(rest["kv_heads" if free == "q_heads" else "q_heads"])
        values = values[(values % other == 0) if free == "q_heads" else (other % values == 0)]
    found = cuts(side.spec, side.platform, side.options, rest, free, values)
    if not found.taken.any():
        _plan(side, rest, free, int(values[0]))  # says why
    if splits is None:
        return _from_where(side, rest, free, values, found.count, found.taken, began)
    hits = values[found.taken & (found.count == splits)]
    said = f"{len(hits):,} values of {free}: {_runs(hits)}" if hits.size else f"no value of {free}"
    wrong, checked = _again(side, rest, free, values, found.count, found.taken, hits)
    claim = f"{free} for which the rule gives {splits} pieces at {_shown(rest)}"
    reason = f"{said}, of {int(found.taken.sum()):,} from {values[0]:,} to {values[-1]:,}" + (
        f"; {wrong}" if wrong else ""
    )
    details: dict[str, Any] = {"values": hits.tolist(), "of": [int(values[0]), int(values[-1])]}
    status: Status = "refuted" if wrong else "exhaustive"
    again = f"{checked:,} plans by the code that makes plans"
    return Proof(side.label, claim, status, reason, (), again, details, time.perf_counter() - began)


def _from_where(
    side: Side,
    rest: Mapping[str, Any],
    free: str,
    values: Ints,
    count: Ints,
    taken: NDArray[np.bool_],
    began: float,
) -> Proof:
    split = values[taken & (count > 1)]
    claim = f"the {free} from which on the kernel no longer splits, at {_shown(rest)}"
    refused = values[~taken]
    edge = int(split[-1]) if split.size else None
    later = values[taken & (values > edge)] if edge is not None else values[taken]
    if edge is not None and not later.size:
        reason = f"it splits up to {free} = {edge:,}, the largest that it takes"
        first = None
    else:
        first = int(later[0])
        reason = f"one piece alone from {free} = {first:,} on"
        if edge is not None:
            reason += f"; {int(count[values == edge][0])} pieces at {edge:,}"
    if refused.size:
        reason += f"; refused: {_runs(refused)}"
    edges = np.array([v for v in (edge, first) if v is not None])
    wrong, checked = _again(side, rest, free, values, count, taken, edges)
    status: Status = "refuted" if wrong else "exhaustive"
    again = f"{checked:,} plans by the code that makes plans"
    details = {"first": first, "last_that_splits": edge, "of": [int(values[0]), int(values[-1])]}
    return Proof(
        side.label, claim, status, f"{reason}{wrong}", (), again, details, time.perf_counter() - began
    )


def _again(
    side: Side,
    rest: Mapping[str, Any],
    free: str,
    values: Ints,
    count: Ints,
    taken: NDArray[np.bool_],
    hits: Ints,
) -> tuple[str, int]:
    """Compute the plans of the hits, of their neighbours, and of a sample of the others: what is wrong, and how many."""
    near = np.concatenate([hits, hits - 1, hits + 1])[:1200]
    open_ones = values[taken]
    sample = np.concatenate([near, open_ones[:: max(1, len(open_ones) // 64)]])
    where = np.flatnonzero(np.isin(values, sample))
    done = 0
    for i in where.tolist():
        try:
            plan = _plan(side, rest, free, int(values[i]))
        except UnsupportedError:
            continue  # requirements on what is not a length, or as the arrays say
        except UlpscopeError as error:
            return f"{free} = {values[i]}: {error.cause}", done
        done += 1
        if taken[i] and _pieces(plan) != int(count[i]):
            return f"{free} = {values[i]}: the plan has {_pieces(plan)} pieces, not {count[i]}", done
    return "", done


def _pieces(plan: Plan) -> int:
    """The argument of the outermost level."""
    if not plan.levels:
        return 1
    number: Any = plan.program.levels[0].rule.args[0]
    return max(1, int(number.text))


def _plan(side: Side, rest: Mapping[str, Any], free: str, value: int) -> Plan:
    if free == "sm_count":
        platform = side.platform.model_copy(update={"sm_count": value})
        return replace(side, platform=platform).plan(rest)
    return side.plan({**rest, free: value})


def _runs(values: Ints) -> str:
    """``120-132, 140``: at most eight runs."""
    if not values.size:
        return "none"
    ends = np.flatnonzero(np.diff(values) > 1)
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(values) - 1]])
    runs = [
        f"{values[i]}" if i == j else f"{values[i]}-{values[j]}" for i, j in zip(starts, stops, strict=True)
    ]
    return ", ".join(runs[:8]) + (f" and {len(runs) - 8} more runs" if len(runs) > 8 else "")


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in values.items()) or "as by default"
