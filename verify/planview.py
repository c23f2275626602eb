"""A plan for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec
from verify.partition import Plan

SHOWN = 24


def token_runs(tokens: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Tokens in visiting order as (start, count) of runs of consecutive ones."""
    if not tokens.size:
        return []
    cuts = np.flatnonzero(np.diff(tokens) != 1) + 1
    return [(int(part[0]), len(part)) for part in np.split(tokens, cuts)]


def plan_json(plan: Plan, spec: Spec, platform: Platform) -> dict[str, Any]:
    """The plan as JSON; ``runs`` are [start, count] in visiting order."""
    return {
        "schema": 1,
        "spec": spec.name,
        "spec_sha256": spec.content_hash,
        "platform": platform.name,
        "context": dict(plan.context),
        "levels": list(plan.levels),
        "count": plan.count,
        "span": plan.span,
        "groups": [
            {
                "index": g.index,
                "tokens": int(g.tokens.size),
                "runs": [list(run) for run in token_runs(g.tokens)],
            }
            for g in plan.groups
        ],
    }


def plan_text(plan: Plan) -> Iterator[str]:
    """The plan as a table: one line a group, the runs of tokens in visiting order."""
    yield f"{'group':>5}  {'tokens':>7}  visited"
    for group in plan.groups[:SHOWN]:
        runs = token_runs(group.tokens)
        shown = ", ".join(f"{start}..{start + count - 1}" for start, count in runs[:5])
        more = f", ... ({len(runs)} runs)" if len(runs) > 5 else ""
        yield f"{group.index:>5}  {group.tokens.size:>7}  {shown}{more}"
    if plan.count > SHOWN:
        yield f"  ...  {plan.count - SHOWN} more groups; --format json lists them all"
