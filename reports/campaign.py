"""A campaign as a report: values of its database and of its witness files, and nothing else.

A database or a witness may come from a stranger: texts are cut and made encodable, numbers that cannot be (negative
counts, infinities) are left out with the reason, and a witness that cannot be read says why in its place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from reports import contract as c
from reports.contract_campaign import Status
from search.campaign.case import UNITS
from specs.errors import UlpscopeError

if TYPE_CHECKING:
    from search.campaign.case import Case
    from search.campaign.reading import CaseRow, Loaded
    from search.record import Record

Progress = Callable[[str, int, int], None]
MAX_TEXT = 2_000
MAX_FILE = 200_000


def campaign_report(folder: Path, out: Path, command: str, progress: Progress | None = None) -> c.Report:
    """The report of a campaign.

    Args:
        folder: of the campaign.
        out: where the report will lie; links to witnesses are relative to it.
        command: what makes this report again.
        progress: called with what is done, how much of it, and of how much.

    Raises:
        InputError: there is no campaign, or its database is damaged.
    """
    from reports.build import run_id, versions
    from search.campaign.reading import load

    began = time.perf_counter()
    loaded = load(folder)
    view = campaign_view(loaded, out, progress)
    return c.Report(
        title="Campaign report",
        verdict=verdict(view),
        run=c.Run(
            id=run_id(),
            command=command,
            seed=None,
            started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            seconds=time.perf_counter() - began,
            versions=versions(),
        ),
        platforms=(),
        studies=(),
        specs=(),
        campaign=view,
    )


def campaign_folder(path: Path) -> Path:
    """The folder of a campaign that is named by it or by its database."""
    from search.campaign.database import FILE

    return path.parent if path.name == FILE else path


def campaign_view(loaded: Loaded, out: Path, progress: Progress | None = None) -> c.CampaignView:
    """The section of a campaign that was read."""
    keys: dict[str, int] = {}
    places: list[int] = []
    notes: list[c.Note] = []
    read: list[_Read] = []
    for done, row in enumerate(loaded.cases):
        if progress is not None:
            progress("witnesses", done, len(loaded.cases))
        places.append(keys.setdefault(_group_key(row.case), len(keys)))
        read.append(_read(row, out))
        notes += [c.Note(kind="warning", text=text) for text in read[-1].doubts]
    cases = [_case(row, found, group) for row, found, group in zip(loaded.cases, read, places, strict=True)]
    groups: list[c.CampaignGroup] = []
    for index in range(len(keys)):
        members = [i for i, place in enumerate(places) if place == index]
        group = _group(loaded.cases[members[0]].case, members, cases, [read[i].no_bound for i in members])
        groups.append(group)
        for i in members:
            best, bound = cases[i].best_ulp, group.bound_ulp
            if best is not None and bound:
                cases[i] = cases[i].model_copy(update={"share": best / bound})
            if (
                best is not None
                and bound is not None
                and group.rigor == "rigorous"
                and best > bound * (1 + 1e-9)
            ):
                text = f"{group.name}: {cases[i].method}, seed {cases[i].seed} lies above a rigorous bound"
                notes.append(c.Note(kind="warning", text=f"{text}: one of them is wrong."))
    counts: dict[Status, int] = dict.fromkeys(get_args(Status), 0)
    for case in cases:
        counts[case.status] += 1
    return c.CampaignView(
        name=text_of(loaded.name),
        title=text_of(loaded.title),
        created=text_of(loaded.created),
        file=text_of(loaded.file, MAX_FILE),
        counts=counts,
        groups=tuple(groups),
        cases=tuple(cases),
        runs=tuple(
            c.CampaignRun(
                began=text_of(run.began),
                ended=text_of(run.ended),
                how=text_of(run.how),
                engine=text_of(run.engine),
                workers=max(0, run.workers),
                versions={text_of(k): text_of(v) for k, v in _table(run.versions).items()},
            )
            for run in loaded.runs
        ),
        notes=tuple(notes[:100]),
    )


def text_of(value: object, most: int = MAX_TEXT) -> str:
    """A text from anywhere: encodable, and cut; what is no text is empty."""
    if not isinstance(value, str):
        return ""
    clean = value.encode("utf-8", "replace").decode()
    return clean if len(clean) <= most else f"{clean[:most]}…"


def _table(value: object) -> dict[Any, Any]:
    return dict(value) if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownArgumentType]


def _size(value: object) -> float | None:
    """A number that is finite and not negative, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if good else None  # pyright: ignore[reportArgumentType]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _group_key(case: Case) -> str:
    from search.campaign.case import canonical

    fields = case.to_json()
    del fields["method"], fields["seed"]
    return canonical(fields)


@dataclass(frozen=True)
class _Read:
    """What is known beside the row: its details, and its witness or why there is none."""

    details: dict[Any, Any]
    record: Record | None
    link: str | None
    problem: str
    doubts: tuple[str, ...]

    @property
    def no_bound(self) -> str:
        return text_of(self.details.get("no_bound"))


def _read(row: CaseRow, out: Path) -> _Read:
    from search.witness import read

    details = _table(row.details)
    if row.witness is None:
        found = "it found none" if row.best_ulp is None else "the database names no witness file"
        found = found if row.status == "done" else _unfinished(row)
        return _Read(details, None, None, found, ())
    try:
        record = read(row.witness).record
    except UlpscopeError as error:
        problem = f"the witness cannot be read: {error}"
        return _Read(details, None, None, text_of(problem), (text_of(f"{row.case.label}: {problem}"),))
    doubts: list[str] = []
    for name, here, there in (
        ("objective", row.best_ulp, record.score),
        ("seed", row.case.seed, record.search.seed),
        ("integer ULP", row.integer_ulp, record.least_integer),
        ("tokens", row.case.kv_len, record.space.kv_len),
        ("c", row.case.cancellation, record.space.cancellation),
        ("objective's metric", row.case.metric, record.objective.metric),
        ("number of sides", len(row.case.sides), len(record.sides)),
    ):
        if here != there:
            text = f"{row.case.label}: {name} is {here} in the database and {there} in the witness"
            doubts.append(text_of(f"{text}; the page shows the database."))
    doubts += [text_of(f"{row.case.label}: {text}") for text in _other_sides(row.case, record)]
    link = quote(Path(os.path.relpath(row.witness, out)).as_posix())
    return _Read(details, record, f"./{link}", "", tuple(doubts))


def _other_sides(case: Case, record: Record) -> list[str]:
    """Where the witness holds another spec or platform than the case names, by hash."""
    from search.campaign.case import LETTERS, content_hash

    return [
        f"side {letter} of the witness, {there.label}, has another spec or platform than the case's, {here.cell}: "
        "the witness is of something else."
        for letter, here, there in zip(LETTERS, case.sides, record.sides, strict=False)
        if content_hash(there.spec_sha256, there.platform) != here.content
    ]


def _unfinished(row: CaseRow) -> str:
    return "the case has not run yet" if row.status == "pending" else f"the case ended as {row.status}"


def _case(row: CaseRow, read: _Read, group: int) -> c.CampaignCase:
    """One case; ``missing`` says why of every value that a reader looks for and that is not there."""
    details, record = read.details, read.record
    certificate = None if record is None else record.certificate
    means = [] if record is None else [r.over_mean for r in record.ratios if r.over_mean is not None]
    largest = [] if record is None else [r.over_largest for r in record.ratios if r.over_largest is not None]
    values: dict[str, Any] = {
        "best_ulp": _size(row.best_ulp),
        "integer_ulp": _count(row.integer_ulp),
        "bound_ulp": _size(row.bound_ulp),
        "evaluations": _count(row.evaluations),
        "certified": None if record is None else certificate is not None and certificate.holds,
        "over_mean": min(means, default=None),
        "over_largest": min(largest, default=None),
        "survives": None if certificate is None else certificate.survives_exp_error_ulps,
        "witness": read.link,
    }
    done = row.status == "done"
    whys = {
        "best_ulp": "no finite value in the database" if row.best_ulp is not None else read.problem,
        "integer_ulp": "the database has none" if row.witness is not None else read.problem,
        "bound_ulp": (read.no_bound or "this case computed none") if done else read.problem,
        "evaluations": "the database has none" if done else read.problem,
        "survives": "not certified" if record is not None else read.problem,
    }
    missing = {n: whys.get(n, read.problem) or "the witness has none" for n, v in values.items() if v is None}
    if record is not None and not values["certified"]:
        errors = "; ".join(certificate.errors) if certificate is not None else record.no_certificate
        missing["certified"] = text_of(errors) or "a constraint is not known to hold"
    reason = text_of(details.get("reason")) if done else text_of(row.message) or read.problem
    return c.CampaignCase(
        group=group,
        method=text_of(row.case.method),
        seed=row.case.seed,
        status=row.status,
        found=text_of(row.found),
        **values,
        rigor=text_of(details.get("bound_rigor")) if values["bound_ulp"] is not None else "",
        cut=row.cut_by_wall_time,
        attempts=max(0, row.attempts),
        seconds=_size(row.seconds),
        reason=reason,
        missing=missing,
    )


def _group(
    case: Case, members: Sequence[int], cases: Sequence[c.CampaignCase], no_bounds: Sequence[str]
) -> c.CampaignGroup:
    mine = [cases[i] for i in members]
    bounds = [(m.rigor != "rigorous", m.bound_ulp, m.rigor) for m in mine if m.bound_ulp is not None]
    bound = min(bounds, default=None)
    tried = [i for i in members if cases[i].best_ulp is not None]
    methods = dict.fromkeys(m.method for m in mine)
    s = case.space
    words = [f"|s| ≤ {s.score_box:g}", f"|v| ≤ {s.value_box:g}"]
    words += ["q and K are searched"] if s.kind == "qkv" else []
    words += [f"{s.dims} columns"] if s.dims > 1 else []
    words += ["masks"] if s.masks else []
    if case.base is not None:
        edits = "any number of" if case.base.edits is None else f"at most {case.base.edits}"
        words += [f"{edits} edits of {case.base.file.path}"]
        words += [f"fixed tokens {case.base.fixed[:80]}"] if case.base.fixed else []
    words += [f"logits by {case.projection.path}"] if case.projection is not None else []
    if s.statistics is not None:
        words += [f"{n} ≤ {v:g}" for n, v in s.statistics.model_dump().items() if v is not None]
    words += [f"{name} = {value}" for name, value in case.context.items()]
    return c.CampaignGroup(
        sides=tuple(text_of(part) for part in _sides(case)),
        kv_len=case.kv_len,
        cancellation=case.cancellation,
        objective=text_of(case.objective),
        space=text_of(", ".join(words)),
        evaluations=case.budget.evaluations,
        seconds=case.budget.seconds,
        bound_ulp=None if bound is None else bound[1],
        rigor="" if bound is None else bound[2],
        no_bound=next(filter(None, no_bounds), "no case of it computed one") if bound is None else "",
        best=max(tried, key=lambda i: (cases[i].best_ulp, -i), default=None),
        methods=tuple(_method(name, [m for m in mine if m.method == name]) for name in methods),
    )


def _sides(case: Case) -> list[str]:
    shown: list[str] = []
    for side in case.sides:
        name, _, platform = side.cell.rpartition("@")
        changes = ", ".join(f"{n}={t}" for n, t in side.set.items())
        shown.append(f"{name}[{changes}]@{platform}" if changes else side.cell)
    return shown


def _method(name: str, cases: Sequence[c.CampaignCase]) -> c.MethodResult:
    finished = [m for m in cases if m.status == "done"]
    points = [(m.seed, m.best_ulp) for m in finished if m.best_ulp is not None]
    ranked = [-1.0 if m.best_ulp is None else m.best_ulp for m in finished]
    middle = sorted(ranked)[(len(ranked) - 1) // 2] if ranked else -1.0
    spent = [m.evaluations for m in finished if m.evaluations is not None]
    return c.MethodResult(
        method=name,
        seeds=len(cases),
        finished=len(finished),
        found=len(points),
        median=median(ranked) if middle >= 0 else None,
        best=max((value for _, value in points), default=None),
        evaluations=float(median(spent)) if spent else None,
        cut=sum(m.cut for m in finished),
        points=tuple(points),
    )


def verdict(view: c.CampaignView) -> c.Verdict:
    """The first thing on the page."""
    n, counts = len(view.cases), view.counts
    tried = [m for m in view.cases if m.best_ulp is not None]
    # Distances of outputs, of float32 results and of logits are not one unit: the first of them is told.
    units = [view.groups[m.group].unit for m in tried]
    first = next((unit for unit in UNITS.values() if unit in units), "")
    best = max(
        (m for m, unit in zip(tried, units, strict=True) if unit == first),
        key=lambda m: m.best_ulp or 0.0,
        default=None,
    )
    said = [f"{k} {word}" for word, k in ((w, counts[w]) for w in ("failed", "crashed", "pending")) if k]
    said += [f"{counts['timeout']} timed out"] if counts["timeout"] else []
    cut = sum(m.cut for m in view.cases)
    said += [f"{cut} of the done cut by wall time"] if cut else []
    points = [", ".join([f"{counts['done']} of {n} cases done", *said]) + "."]
    if not n:
        headline = f"{view.name}: no cases"
    elif best is None:
        headline = f"{view.name}: no witness " + ("yet" if counts["pending"] else "found")
    else:
        unit = "real ULP" if first == "ULP" else first
        headline = f"{view.name}: up to {best.best_ulp:.4g} {unit} apart"
        group = view.groups[best.group]
        points.append(f"Largest: {group.name}; {best.method}, seed {best.seed}.")
        if best.share is not None and group.bound_ulp is not None:
            kind = (
                "a rigorous" if group.rigor == "rigorous" else f"a {group.rigor or 'not further described'}"
            )
            points.append(f"That is {100 * best.share:.1f}% of {kind} bound of {group.bound_ulp:.4g} ULP.")
        else:
            points.append(f"It has no bound to compare with: {group.no_bound or 'the bound is 0'}.")
        holds = sum(m.certified is True for m in view.cases)
        points.append(f"{holds} of {len(tried)} witnesses are certified by an exact replay.")
    bare = sum(g.best is None for g in view.groups)
    if bare:
        points.append(f"{bare} of {len(view.groups)} combinations have no witness: see what was not found.")
    return c.Verdict(headline=headline, diverges=any(m.best_ulp for m in tried), points=tuple(points))
