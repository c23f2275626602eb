"""The section of a report as templates take it, and the filters that the macros of proofs use in any environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.prove import view
from reports.prove.section import ProofSection
from reports.runs.wording import plain
from search.prove.answer import words


def said(text: object, most: int = 300) -> str:
    """Any text on one line, without what turns the direction of writing, cut."""
    found = plain(str(text))
    return found if len(found) <= most else found[: most - 1] + "…"


#: Characters of a section of a page that has much else, and how many claims are tried.
SECTION, _MOST = 600_000, (300, 100, 30, 8, 2)
#: What the macros of `proofs_parts.html.j2` and its Markdown use, in whatever environment they are.
PROOF_FILTERS: Mapping[str, Callable[..., Any]] = {
    "said": said,
    "status_word": words,
    "meaning": view.MEANING.__getitem__,
    "method": view.METHODS.__getitem__,
    "kinds": view.kinds,
    "by_status": view.by_status,
    "by_subject": view.by_subject,
}


@dataclass(frozen=True)
class SectionView:
    """The section of a report as its template takes it: claims by how they fit, ``most`` of each status."""

    section: ProofSection
    all: tuple[view.Shown, ...]
    here: tuple[view.Shown, ...]
    partly: tuple[view.Shown, ...]
    other: tuple[view.Shown, ...]
    shared: tuple[view.Assumption, ...]
    most: int

    @classmethod
    def of(cls, section: ProofSection | None) -> SectionView | None:
        """The view of a section, if there is one."""
        if section is None:
            return None
        placed = section.claims
        claims = view.shown([x.proof for x in placed], [x.fit for x in placed], [x.remarks for x in placed])
        here, partly, other = (
            tuple(x for x in claims if x.fit == fit) for fit in ("here", "partly", "other")
        )
        shared = tuple(view.shared(claims))
        return cls(section, tuple(claims), here, partly, other, shared, _most([here, partly, other]))


def _most(groups: Sequence[Sequence[view.Shown]]) -> int:
    """How many claims of each status are shown, so that the section stays below `SECTION` characters or so."""
    for most in _MOST:
        shown = [x for group in groups for _, held in view.by_status(group) for x in held[:most]]
        if sum(_size(x) for x in shown) < SECTION:
            return most
    return 0


def _size(claim: view.Shown) -> int:
    """About what a claim takes on a page."""
    figures = sum(len(name) + len(text) for name, text in claim.figures[:24])
    return (
        1_500
        + len(claim.proof.reason[:2_000])
        + figures
        + sum(len(a.text[:2_000]) for a in claim.assumptions[:24])
    )
