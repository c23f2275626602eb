"""The work function of campaigns: a case in, JSON and the bytes of a witness out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from search.campaign.case import Case
from search.run import Budget, Outcome, search_by
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
    short = _too_little(case, hit.score)
    if short:
        reply["details"]["reason"] = short
        return reply | {"found": "nothing"}
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


def _too_little(case: Case, score: float) -> str:
    """Why the best input is not what was asked for, or nothing."""
    if case.metric == "flips" and score <= 0:
        return f"no token flips: the first token of one side leads by {-score:.4g} on the other at least"
    if case.single is not None and score <= 0:
        return (
            f"no input singles that side out: the others are {-score:.4g} farther apart than it is from them"
        )
    return ""


def outcome_of(case: Case) -> Outcome:
    """The search that a case asks for."""
    budget = Budget(case.budget.evaluations, case.budget.rlimit, case.budget.seconds)
    return search_by(
        case.method,
        case.load_sides(),
        case.make_space(),
        case.make_objective(),
        seed=case.seed,
        budget=budget,
    )
