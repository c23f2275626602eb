"""Reading a campaign, while it runs or later: for `ulpscope campaign status` and for reports."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from search.campaign.case import METRICS, UNITS, Case
from search.campaign.database import FILE, Status, connect
from specs.errors import InputError

_QUERY = """
SELECT cases.id, position, body, status, found, best_ulp, integer_ulp, bound_ulp, evaluations, cut_by_wall_time,
    witness, details, last.number, last.seconds, last.message
FROM cases
LEFT JOIN results ON results.case_id = cases.id
LEFT JOIN attempts AS last ON last.case_id = cases.id
    AND last.number = (SELECT max(number) FROM attempts WHERE case_id = cases.id)
WHERE position IS NOT NULL ORDER BY position
"""


@dataclass(frozen=True)
class CaseRow:
    """One case and what became of it; the results are None until it is done.

    Attributes:
        id: of the case.
        position: from 0, in the order of the campaign file.
        text: canonical JSON of the case; `case` has it as data.
        status: ``done``, ``failed``, ``crashed``, ``timeout`` or ``pending``.
        found: ``witness``, ``nothing``, ``infeasible`` or ``identical``.
        best_ulp, integer_ulp, bound_ulp, evaluations, cut_by_wall_time: see `search.campaign.work.Outcome`.
        witness: path of the witness.
        attempts: how often it was tried.
        seconds: wall time of the last attempt.
        message: why the last attempt failed.
    """

    id: str
    position: int
    text: str
    status: Status
    found: str | None
    best_ulp: float | None
    integer_ulp: int | None
    bound_ulp: float | None
    evaluations: int | None
    cut_by_wall_time: bool
    witness: Path | None
    details_text: str | None
    attempts: int
    seconds: float | None
    message: str

    @cached_property
    def case(self) -> Case:
        """The case as data.

        Raises:
            InputError: the database holds something else.
        """
        return Case.from_text(self.text, place=f"case {self.id[:12]}")

    @property
    def method(self) -> str:
        """The method of the case."""
        return self.case.method

    @property
    def details(self) -> dict[str, Any]:
        """JSON values that the search adds."""
        return {} if self.details_text is None else _json(self.details_text, self.id)

    def result(self) -> dict[str, Any]:
        """What must be equal whatever the engine and the number of workers, unless wall time cut it."""
        return {
            "id": self.id,
            "status": self.status,
            "found": self.found,
            "best_ulp": self.best_ulp,
            "integer_ulp": self.integer_ulp,
            "bound_ulp": self.bound_ulp,
            "evaluations": self.evaluations,
            "cut_by_wall_time": self.cut_by_wall_time,
            "witness": None if self.witness is None else self.witness.name,
            "details": self.details,
        }


@dataclass(frozen=True)
class RunRow:
    """One start of a coordinator. ``how`` is None while it runs, and for ever if it was killed."""

    id: int
    began: str
    ended: str | None
    how: str | None
    engine: str
    workers: int
    versions: dict[str, str]


@dataclass(frozen=True)
class EventRow:
    """Something that happened: ``kind`` in a word, ``message`` in a sentence."""

    run: int
    at: str
    kind: str
    message: str


@dataclass(frozen=True)
class Loaded:
    """A whole campaign.

    Attributes:
        folder: its folder.
        name, title, file: of the campaign file, and its text.
        created: when, in UTC.
        cases, runs, events: in order.
    """

    folder: Path
    name: str
    title: str
    file: str
    created: str
    cases: tuple[CaseRow, ...]
    runs: tuple[RunRow, ...]
    events: tuple[EventRow, ...]

    @property
    def summary(self) -> Summary:
        """The numbers."""
        counts: dict[Status, int] = dict.fromkeys(get_args(Status), 0)
        for row in self.cases:
            counts[row.status] += 1
        tried = [row for row in self.cases if row.best_ulp is not None]
        # Distances of outputs, of float32 results and of logits are not one unit: the first of them is told.
        metric = next((m for m in METRICS if any(row.case.metric == m for row in tried)), "ulp")
        alike = [row for row in tried if row.case.metric == metric]
        best = max(alike, key=lambda row: (row.best_ulp, -row.position), default=None)
        return Summary(
            folder=self.folder,
            name=self.name,
            total=len(self.cases),
            counts=counts,
            best_ulp=None if best is None else best.best_ulp,
            best_case=None if best is None else best.case.label,
            cut_by_wall_time=sum(row.cut_by_wall_time for row in self.cases),
            unit=UNITS[metric],
        )


@dataclass(frozen=True)
class Summary:
    """How far a campaign is.

    Attributes:
        folder, name: of the campaign.
        total: its cases.
        counts: cases by status.
        best_ulp, best_case: the largest distance so far, and the case that has it. unit: what it is counted in.
        cut_by_wall_time: how many finished cases wall time cut.
        interrupted: the run that this ends was interrupted.
    """

    folder: Path
    name: str
    total: int
    counts: dict[Status, int]
    best_ulp: float | None
    best_case: str | None
    cut_by_wall_time: int
    interrupted: bool = False
    unit: str = "ULP"

    @property
    def verdict(self) -> str:
        """One line."""
        done = self.counts["done"]
        bad = [
            f"{n} {status}" for status, n in self.counts.items() if n and status not in ("done", "pending")
        ]
        best = "no witness yet" if self.best_ulp is None else f"at most {self.best_ulp:.4g} {self.unit} apart"
        cut = [f"{self.cut_by_wall_time} cut by wall time"] if self.cut_by_wall_time else []
        return ", ".join([f"{self.name}: {done} of {self.total} cases done", *bad, *cut, best])

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {
            "schema": 1,
            "folder": str(self.folder),
            "name": self.name,
            "total": self.total,
            **self.counts,
            "best_ulp": self.best_ulp,
            "best_case": self.best_case,
            "cut_by_wall_time": self.cut_by_wall_time,
            "interrupted": self.interrupted,
        }


def load(path: str | Path) -> Loaded:
    """The campaign in a folder, also while it runs.

    Raises:
        InputError: there is none, or its database is not one of ours, damaged or newer.
    """
    folder = Path(path)
    if folder.name == FILE:
        folder = folder.parent
    connection = connect(folder / FILE, write=False)
    try:
        connection.execute("BEGIN")  # all tables as of one moment
        (name, title, file, created) = connection.execute(
            "SELECT name, title, file, created FROM campaign"
        ).fetchone()
        cases = tuple(_case(folder, row) for row in connection.execute(_QUERY))
        runs = tuple(
            RunRow(*row[:6], versions=_json(row[6], "versions"))
            for row in connection.execute("SELECT * FROM runs ORDER BY id")
        )
        events = tuple(
            EventRow(*row)
            for row in connection.execute("SELECT run_id, at, kind, message FROM events ORDER BY id")
        )
    except (sqlite3.Error, TypeError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {error}",
            place=str(folder / FILE),
            remedy="take a copy from before it was damaged",
        ) from None
    finally:
        connection.close()
    return Loaded(folder, name, title, file, created, cases, runs, events)


def _case(folder: Path, row: Any) -> CaseRow:
    id_, position, body, status, found, best, integer, bound, evaluations, cut, witness, details, *last = row
    number, seconds, message = last
    if status not in get_args(Status):
        raise InputError(f"unknown status {status!r}", place=f"case {id_}", remedy="the database is damaged")
    return CaseRow(
        id=id_,
        position=position,
        text=body,
        status=status,
        found=found,
        best_ulp=best,
        integer_ulp=integer,
        bound_ulp=bound,
        evaluations=evaluations,
        cut_by_wall_time=bool(cut),
        witness=None if witness is None else _inside(folder, witness),
        details_text=details,
        attempts=number or 0,
        seconds=seconds,
        message=message or "",
    )


def _inside(folder: Path, relative: str) -> Path:
    """A path of the database, which must not lead out of the folder."""
    parts = Path(relative).parts
    if Path(relative).is_absolute() or ".." in parts:
        raise InputError(f"'{relative}' leads out of it", place=str(folder), remedy="the database is damaged")
    return folder / relative


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", place=what, remedy="the database is damaged") from None
