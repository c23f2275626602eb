"""The work function of campaigns: a case in, JSON and the bytes of a witness out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from search.campaign.case import Case
from search.objective import Objective
from search.run import Budget, Outcome, search_by
from search.space import Space, Statistics
from search.witness import certified, to_bytes, witness_of

NAME = "witness"


def search_case(value: Mapping[str, Any]) -> dict[str, Any]:
    """Run one case of a campaign.

    Args:
        value: JSON values of a `search.campaign.case.Case`.

    Returns:
        the keys of `search.campaign.work.Outcome`, and ``files``: the witness, by file name.

    Raises:
        UlpscopeError: the case cannot be searched.
    """
    case = Case.from_json(value)
    outcome = outcome_of(case)
    found = {"found": "witness", "nothing": "nothing", "infeasible": "infeasible", "identical": "identical"}
    bound = outcome.bound
    reply: dict[str, Any] = {
        "found": found[outcome.status],
        "bound_ulp": None if bound is None or not math.isfinite(bound.real) else bound.real,
        "evaluations": outcome.evaluations,
        "cut_by_wall_time": outcome.cut,
        "details": {
            "reason": outcome.reason,
            "steps": [
                {
                    "method": s.method,
                    "score": s.score if math.isfinite(s.score) else None,
                    "evaluations": s.evaluations,
                }
                for s in outcome.steps
            ],
            "bound_rigor": None if bound is None else bound.rigor,
            "no_bound": outcome.no_bound,
        },
        "files": {},
    }
    if outcome.best is None:
        return reply
    hit = outcome.best
    certificate, why = certified(outcome.sides, hit.space, hit.inputs, hit.outputs)
    witness = witness_of(outcome, hit, certificate, no_certificate=why, note=case.label)
    holds = certificate is not None and certificate.holds
    reply["details"] |= {"certified": holds, "no_certificate": why}
    files = to_bytes(witness, NAME)
    return reply | {
        "best_ulp": hit.score,
        "integer_ulp": max(0, hit.least_integer),
        "witness": f"{NAME}.json",
        "files": files,
    }


def outcome_of(case: Case) -> Outcome:
    """The search that a case asks for."""
    s = case.space
    space = Space(
        kv_len=case.kv_len,
        kind=s.kind,
        context=dict(case.context),
        dims=s.dims,
        score_box=s.score_box,
        value_box=s.value_box,
        cancellation=case.cancellation,
        masks=s.masks,
        statistics=None if s.statistics is None else Statistics(**s.statistics.model_dump()),
    )
    metric: Any = case.metric
    budget = Budget(case.budget.evaluations, case.budget.rlimit, case.budget.seconds)
    return search_by(
        case.method,
        case.load_sides(),
        space,
        Objective(metric, single=case.single),
        seed=case.seed,
        budget=budget,
    )
