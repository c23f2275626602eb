"""Two sides on a few tokens, bit by bit: the existing encoding for solvers, with what a proof by it is worth."""

from __future__ import annotations

import time

from search.bitprecise import LEVELS, find
from search.prove.answer import Proof
from search.prove.work import Job
from search.sides import Side


def prove_small(a: Side, b: Side, job: Job) -> Proof:
    """Whether stored outputs can differ at all for a few tokens, scores on a few levels, values on a grid.

    Raises:
        UnsupportedError: a construct has no encoding (`search.bitprecise`), or the solver is not installed.
    """
    began = time.perf_counter()
    tokens, solver = int(job.values["tokens"]), str(job.values["solver"])
    found = find(a, b, 1, tokens=tokens, context=job.values["context"], solver=solver, signed=True)
    seconds = time.perf_counter() - began
    levels = ", ".join(f"{x:g}" for x in LEVELS)
    claim = f"equal outputs on {tokens} tokens"
    domain = (
        f"each score is one of {levels}; a value is 0 or has a bf16 significand in [1, 2), of either sign",
        "outputs are normal numbers above 0",
        "every rounding is encoded as it is; functions of scores are tabulated by the scalar oracle",
    )
    if found.status == "unsat":
        return Proof(
            job.subject, claim, "proved", f"{solver}: no such scores and values", domain, seconds=seconds
        )
    if found.status == "unknown" or found.scores is None or found.values is None:
        return Proof(job.subject, claim, "unknown", f"{solver} gave no answer", domain, seconds=seconds)
    scores, values = found.scores.tolist(), found.values.tolist()
    reason = f"scores {scores} and values {values} part them by {found.distance} ULP of the stored outputs"
    details = {"scores": scores, "values": values, "distance": found.distance}
    again = "both outputs by the scalar oracle"
    return Proof(job.subject, claim, "refuted", reason, domain, again, details, seconds)
