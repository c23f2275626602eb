"""From what `search.prove` found to the contract of proofs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any

from reports.prove import contract as c
from reports.versions import versions
from search.prove.answer import Proof, tally

if TYPE_CHECKING:
    from search.prove.library import Library

#: What proves, and what re-checks: solvers, exact arithmetic, and the emulation that makes plans and replays inputs.
TOOLS = ("ulpscope", "z3-solver", "sympy", "python-flint", "numpy", "jax", "jaxlib")
OPTIONAL = ("bitwuzla",)


def proofs_report(
    question: c.Question, found: Iterable[Proof], *, command: str = "", began: float | None = None
) -> c.Proofs:
    """The answers of a command.

    Args:
        question: its sub-command.
        found: proofs that say what was asked (`search.prove.about.asked`).
        command: what the user typed.
        began: `time.perf_counter` when it began.
    """
    every = tuple(_proof(p) for p in found)
    return c.Proofs(
        question=question,
        verdict=tally(p.status for p in every),
        provenance=_provenance(command, began),
        proofs=every,
    )


def library_report(found: Library, *, command: str = "", began: float | None = None) -> c.Proofs:
    """The answers on a library, as `proofs_report`."""
    from search.prove.work import library_platforms

    rows = ((row.subject, {n: _proof(p) for n, p in row.cells.items()}) for row in found.rows)
    return c.Proofs(
        question="library",
        verdict=found.verdict(),
        provenance=_provenance(command, began),
        platforms=tuple(sorted(library_platforms())),
        specs=tuple(c.SpecProofs(spec=name, proofs=proofs) for name, proofs in rows),
        others=tuple(map(_proof, found.others)),
    )


def _proof(found: Proof) -> c.Proof:
    values: dict[str, Any] = asdict(found) | {"seconds": round(found.seconds, 3)}
    values["about"] = [side | {"sha256": side["sha256"] or None} for side in values["about"]]
    return c.Proof.model_validate(values)


def _provenance(command: str, began: float | None) -> c.Provenance:
    seconds = 0.0 if began is None else perf_counter() - began
    return c.Provenance(
        command=command,
        started=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        seconds=round(seconds, 3),
        versions=versions(TOOLS, OPTIONAL),
    )
