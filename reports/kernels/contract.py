"""The contract of a report on a capture of kernels, ``ulpscope.kernels/1``: everything that its page shows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from reports.contract_base import Count, Frozen, Sha256, absent
from reports.prove.section import ProofSection

SCHEMA_ID = "ulpscope.kernels/1"


class Site(Frozen):
    """One captured array against one site of the spec: how many elements differ, and the first in words."""

    array: str
    site: str
    elements: Count
    differing: Count
    first: str
    hint: str


class Record(Frozen):
    """One call. ``refused``: why the spec does not describe it; ``unmatched``: arrays that have no site there."""

    name: str
    backend: str
    exact: bool
    repeatable: bool
    refused: str
    sites: tuple[Site, ...]
    unmatched: tuple[str, ...]


class Kernel(Frozen):
    """All calls of one kernel against one spec on one platform."""

    name: str
    spec: str
    spec_sha256: Sha256
    platform: str
    version: str
    exact: bool
    verdict: str
    warnings: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def compared(self) -> tuple[Record, ...]:
        """Calls that the spec describes."""
        return tuple(r for r in self.records if not r.refused)


class Probe(Frozen):
    """One sweep of a function unit or a matrix instruction against its model."""

    name: str
    platform: str
    exact: bool
    compared: Count
    differing: Count
    unknown: Count
    first: str
    note: str
    refused: str
    verdict: str


class Capture(Frozen):
    """Where and when the capture was made; ``machine`` as its manifest has it; ``skipped``: kernels that could not run."""

    place: str
    made: str
    tool: str
    sha256: str
    machine: dict[str, Any]
    skipped: dict[str, str]


class Provenance(Frozen):
    """How the report came about."""

    command: str
    started: str
    seconds: float = Field(ge=0.0)
    versions: dict[str, str]


class KernelsReport(Frozen):
    """A capture against its specs. ``exact``: something was compared, and all of it has the predicted bits."""

    schema_id: Literal["ulpscope.kernels/1"] = SCHEMA_ID
    title: str
    headline: str
    points: tuple[str, ...]
    exact: bool
    provenance: Provenance
    capture: Capture
    kernels: tuple[Kernel, ...]
    probes: tuple[Probe, ...]
    proofs: ProofSection | None = Field(default=None, exclude_if=absent)


def from_text(text: str) -> KernelsReport:
    """The report in a JSON text.

    Raises:
        pydantic.ValidationError: the text is no report of this version.
    """
    return KernelsReport.model_validate_json(text)
