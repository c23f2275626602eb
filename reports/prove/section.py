"""The section of a report that shows proofs: the claims about its specs and platforms, as files record them.

A claim is about a spec if the hashes say so: one of a spec that has only its name is shown as about another spec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reports.contract_base import Count, Frozen, Sha256
from reports.prove.contract import Proof, Proofs, Side
from reports.prove.view import ORDER, side_name
from search.prove.answer import words
from specs.loader import Spec
from specs.platforms import Platform

#: ``here``: about specs of the report, on platforms that they run on there. ``partly``: of its sides one is.
#: ``other``: about a spec or platform that has only the name of one in the report, or that has other options.
Fit = Literal["here", "partly", "other"]


class ProofFile(Frozen):
    """A file of proofs: what it is called, its hash, and how it came about. ``claims``: all in it."""

    name: str
    sha256: Sha256
    command: str
    started: str
    versions: dict[str, str]
    claims: Count


class PlacedProof(Frozen):
    """A claim in a report; ``file`` is the number of its file, from 0. ``remarks``: what it does not cover, and why."""

    proof: Proof
    file: Count
    fit: Fit
    remarks: tuple[str, ...] = ()


class ProofSection(Frozen):
    """Claims about what the report is about. ``left_out``: claims of the files that are about nothing in it."""

    headline: str
    files: tuple[ProofFile, ...]
    claims: tuple[PlacedProof, ...]
    left_out: Count

    @property
    def point(self) -> str:
        """What the verdict of a report says of it."""
        return f"Proofs: {self.headline}."


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        specs: content hashes of its specs, by name.
        platforms: content hashes of its platforms, by name.
        cells: which spec runs on which platform there.
    """

    specs: Mapping[str, str]
    platforms: Mapping[str, str]
    cells: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, cells: Iterable[tuple[Spec, Platform]], more: Iterable[Spec] = ()) -> Subject:
        """Of specs on platforms, and of specs that are only shown."""
        held = list(cells)
        return cls(
            {spec.name: spec.content_hash for spec in (*(s for s, _ in held), *more)},
            {platform.name: platform.content_hash for _, platform in held},
            frozenset((spec.name, platform.name) for spec, platform in held),
        )

    def on(self, spec: str) -> list[str]:
        """The platforms that a spec runs on."""
        return sorted(p for s, p in self.cells if s == spec)


def proof_section(files: Sequence[tuple[ProofFile, Proofs]], subject: Subject) -> ProofSection:
    """The claims of files that concern a report.

    Args:
        files: as `reports.prove.reading.read_proofs` reads them.
        subject: what the report is about.
    """
    placed = [
        PlacedProof(proof=claim, file=number, fit=fit, remarks=tuple(remarks))
        for number, (_, proofs) in enumerate(files)
        for claim in proofs.claims
        for fit, remarks in [_fit(claim, subject)]
        if fit is not None
    ]
    return ProofSection(
        headline=_headline(placed),
        files=tuple(file for file, _ in files),
        claims=tuple(placed),
        left_out=sum(file.claims for file, _ in files) - len(placed),
    )


def _fit(claim: Proof, subject: Subject) -> tuple[Fit | None, list[str]]:
    each = [_side(side, subject) for side in claim.about]
    found = {fit for fit, _ in each}
    remarks = list(dict.fromkeys(r for _, more in each for r in more))
    if "other" in found:
        return "other", remarks
    if "here" not in found:
        return None, remarks
    return ("partly" if None in found else "here"), remarks


def _side(side: Side, subject: Subject) -> tuple[Fit | None, list[str]]:
    """Whether a side is one of the report's."""
    if side.spec and side.spec not in subject.specs:
        return None, [f"{side.spec} is not in this report"]
    if side.spec and side.sha256 != subject.specs[side.spec]:
        theirs, ours = (side.sha256 or "")[:12], subject.specs[side.spec][:12]
        return "other", [f"about another text of {side.spec}: sha256 {theirs}…, in this report {ours}…"]
    if side.changes:
        changes = ", ".join(f"{name} = {value}" for name, value in side.changes.items())
        return "other", [f"about {side.spec} with {changes}, not as it is in this report"]
    wrong = [p for p in side.platforms if _redeclared(p, side, subject)]
    known = subject.on(side.spec) or list(subject.platforms)  # of a spec that is only shown: any of them
    covered = [p for p in known if p in side.platforms and p not in wrong]
    again = [f"about another declaration of platform {p} than in this report" for p in wrong]
    if covered:
        missing = [p for p in known if p not in side.platforms]
        alone = [f"does not cover {', '.join(missing)}"] if missing and len(side.platforms) > 1 else []
        return "here", alone + again
    if wrong:
        return "other", again
    if side.spec:
        return None, [f"{side.spec} does not run on {' or '.join(side.platforms)} in this report"]
    return None, [f"{side_name(side)} is not in this report"]


def _redeclared(platform: str, side: Side, subject: Subject) -> bool:
    ours = subject.platforms.get(platform)
    return ours is not None and ours != side.platforms[platform]


def _headline(placed: Iterable[PlacedProof]) -> str:
    """What the files say of the report's own specs, what is not proved first."""
    counts = Counter(x.proof.status for x in placed if x.fit == "here")
    if not counts:
        return "No claim of these files is about the specs of this report as they are here"
    total = sum(counts.values())
    parts = [f"{counts[s]} {words(s)}" for s in ORDER if counts[s]]
    return f"{total} claim{'s' * (total != 1)} about this report: {', '.join(parts)}"
