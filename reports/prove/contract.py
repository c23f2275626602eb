"""The contract of proofs, ``ulpscope.proofs/1``: what ``ulpscope prove --format json`` prints.

A claim is read together with its ``assumptions``; only ``proved`` is a proof. Hashes of specs and platforms say what a claim
is about, whatever a name stands for elsewhere. ``ulpscope prove schema`` prints the schema.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from reports.contract_base import Frozen, Sha256, absent
from search.prove.answer import Kind, Status

SCHEMA_ID = "ulpscope.proofs/1"
#: Nesting of the figures of a claim.
DEPTH = 8
Question = Literal["partition", "equal", "algebra", "bound", "library"]
Seconds = Annotated[float, Field(ge=0.0)]


def _figures(values: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [values]
    for _ in range(DEPTH):
        inside = [x for y in level for x in (y.values() if isinstance(y, dict) else y)]
        if any(isinstance(x, float) and not math.isfinite(x) for x in inside):
            raise ValueError("holds a number that is not finite")
        level = [x for x in inside if isinstance(x, dict | list)]
    if level:
        raise ValueError(f"is nested more than {DEPTH} deep")
    return values


class Side(Frozen):
    """A spec that a claim is about, on all of ``platforms``: the hash of each declaration, by name.

    ``sha256`` of the resolved spec, with lines that were changed; None where a claim is about tensor cores alone, and
    ``spec`` is empty. ``changes``: options, values of this side alone and changed lines.
    """

    spec: str
    sha256: Sha256 | None
    changes: dict[str, str]
    platforms: dict[str, Sha256]


class Proof(Frozen):
    """One claim and what became of it.

    ``status``: ``proved`` for every case in the claim; ``exhaustive``: every case of a finite grid was computed;
    ``tested``: some were; ``refuted``: a case breaks it; ``not decided``: the method has no answer; ``unknown``: a solver or
    the time gave out; ``refused``: the kernel takes no such shape. ``reason``: why, or which step breaks. ``rechecked``: by
    which independent means, or empty. ``details``: figures of the kind of question, such as the bits of a counterexample;
    what is in them may grow. ``seconds`` of wall time.
    """

    subject: str
    claim: str
    status: Status
    reason: str
    assumptions: tuple[str, ...]
    rechecked: str
    details: Annotated[dict[str, Any], AfterValidator(_figures)]
    seconds: Seconds
    kind: Kind
    about: tuple[Side, ...]


class SpecProofs(Frozen):
    """A row of the table of a library: the answers on one spec, by column."""

    spec: str
    proofs: dict[str, Proof]


class Provenance(Frozen):
    """How the proofs came about. ``versions``: of everything that proves or re-checks."""

    command: str
    started: str
    seconds: Seconds
    versions: dict[str, str]


class Proofs(Frozen):
    """The answers of one command: ``proofs`` or, where a whole library is asked, ``specs`` and ``others``.

    ``platforms``: those that a claim on all platforms of the library covers.
    """

    model_config = ConfigDict(serialize_by_alias=True, validate_by_alias=True, validate_by_name=True)

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    schema_id: Literal["ulpscope.proofs/1"] = SCHEMA_ID
    question: Question
    verdict: str
    provenance: Provenance
    platforms: tuple[str, ...] | None = Field(default=None, exclude_if=absent)
    specs: tuple[SpecProofs, ...] | None = Field(default=None, exclude_if=absent)
    others: tuple[Proof, ...] | None = Field(default=None, exclude_if=absent)
    proofs: tuple[Proof, ...] | None = Field(default=None, exclude_if=absent)

    @model_validator(mode="after")
    def _one_kind(self) -> Proofs:
        table = (self.platforms, self.specs, self.others)
        if any((part is None) == (self.question == "library") for part in table):
            raise ValueError("platforms, specs and others belong to a library, and only to it")
        if (self.proofs is None) != (self.question == "library"):
            raise ValueError("proofs belong to every question but that of a library")
        return self

    @property
    def claims(self) -> tuple[Proof, ...]:
        """All of them, in their order."""
        rows = [p for row in self.specs or () for p in row.proofs.values()]
        return (*rows, *(self.others or ()), *(self.proofs or ()))


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of proofs."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Proofs.model_json_schema(mode="serialization"),
    }
