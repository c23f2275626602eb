"""What the page and the Markdown show of a campaign: the lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reports.contract import CampaignCase, CampaignGroup, CampaignView

#: The page shows this many cases, and draws this many comparisons; the JSON holds all.
MAX_SHOWN = 1_000
MAX_FIGURES = 12


_WHY = (
    ("nothing", "Nothing within the budget", "The search ended without an input that keeps the constraints."),
    ("infeasible", "Proved infeasible", "No input keeps the constraints; the reason is that of the proof."),
    ("identical", "Proved identical", "The sides agree on every input; the reason is that of the proof."),
    ("failed", "Failed", "The case ended with an error, which is its reason."),
    ("crashed", "Crashed", "The case killed its worker every time, also alone."),
    ("timeout", "Timed out", "Wall time stopped the case before it gave a result; another run may have one."),
    ("pending", "Not run yet", "The campaign still runs, or was stopped."),
    (
        "cut",
        "Cut by wall time",
        "These ended early, so that another run may find another result. A seed and a budget give the same result "
        "again only for the others.",
    ),
)


def _kinds(case: CampaignCase) -> set[str]:
    """The lists that a case belongs to."""
    kinds = {case.found if case.status == "done" else case.status}
    return kinds | {"cut"} if case.cut else kinds


@dataclass(frozen=True, slots=True)
class Missing:
    """Cases without a result that others can count on: ``count`` of them, of which ``cases`` are shown."""

    key: str
    heading: str
    text: str
    count: int
    cases: list[CampaignCase]


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign for the templates."""

    view: CampaignView

    @property
    def shown(self) -> int:
        """How many cases the table shows."""
        return min(MAX_SHOWN, len(self.view.cases))

    def groups(self) -> Iterator[tuple[int, CampaignGroup, list[CampaignCase]]]:
        """Number from 1, group and cases, as far as they are shown."""
        left = MAX_SHOWN
        by_group: dict[int, list[CampaignCase]] = {}
        for case in self.view.cases:
            by_group.setdefault(case.group, []).append(case)
        for index, group in enumerate(self.view.groups):
            cases = by_group.get(index, [])[:left]
            left -= len(cases)
            if cases:
                yield index + 1, group, cases

    def contests(self) -> list[tuple[int, CampaignGroup]]:
        """Groups on which several methods ran, with their numbers."""
        return [(i + 1, g) for i, g in enumerate(self.view.groups) if len(g.methods) > 1][:MAX_SHOWN]

    def drawn(self) -> list[tuple[int, CampaignGroup]]:
        """Those of them that have a figure."""
        return [(i, g) for i, g in self.contests() if any(m.points for m in g.methods)][:MAX_FIGURES]

    def not_found(self) -> list[Missing]:
        """What was not found, by why; lists without a case are left out."""
        lists: list[Missing] = []
        for key, heading, text in _WHY:
            found = [m for m in self.view.cases if key in _kinds(m)]
            if found:
                lists.append(Missing(key, heading, text, len(found), found[:MAX_SHOWN]))
        return lists

    def group(self, case: CampaignCase) -> CampaignGroup:
        """The group of a case."""
        return self.view.groups[case.group]

    def elsewhere(self, case: CampaignCase) -> CampaignCase | None:
        """The best case of its group, where there is one."""
        best = self.view.groups[case.group].best
        return None if best is None else self.view.cases[best]
