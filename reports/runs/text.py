"""A divergence report for a terminal: the verdict, then a few short tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from reports.formatting import count, percent, short
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.wording import far, foreign, not_numerics, plain, split
from verify.words import plural

ROWS = 12
_WIDTH = 44
_NUMBER = re.compile(r"-|inf|-?[\d,.]+(e[+-]?\d+)?")


def lines(report: c.DivergenceReport) -> Iterator[str]:
    """The lines, of which none moves a terminal's cursor."""
    yield from map(plain, _lines(report))


def summary(report: c.DivergenceReport) -> Iterator[str]:
    """Only the verdict and what a policy says: where files have the rest."""
    yield plain(report.verdict.headline)
    yield from (plain(f"  {point}") for point in report.verdict.points)
    yield from map(plain, _policy(report))


def _lines(report: c.DivergenceReport) -> Iterator[str]:
    yield report.verdict.headline
    yield from (f"  {point}" for point in report.verdict.points)
    yield ""
    yield from _runs(report)
    yield from _repeats(report)
    yield from _pairs(report)
    yield from _geometry(report)
    yield from _prediction(report)
    yield from _policy(report)
    for note in report.notes:
        yield f"{note.kind}: {note.text}"


def more(n: int, shown: int = ROWS) -> list[str]:
    """The line that says how many were left out."""
    return [f"  and {count(n - shown)} more"] if n > shown else []


def brief(name: str) -> str:
    """A name that fits a column: its middle is left out."""
    return name if len(name) <= _WIDTH else f"{name[:24]}...{name[-17:]}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as columns, those of numbers to the right; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = [not all(_NUMBER.fullmatch(row[i]) for row in rows[1:]) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(w) if flush else cell.rjust(w)
            for cell, w, flush in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]


def real(x: m.Real | None) -> str:
    """A number, or what stands for it."""
    return "-" if x is None else x if isinstance(x, str) else short(x)


def estimate(one: m.Interval | None) -> str:
    """A value with what is known of its uncertainty: [a, b] an interval, (a to b) the range of single conversations."""
    if one is None or one.value is None:
        return "-"
    return f"{real(one.value)} {reach(one)}".rstrip()


def reach(one: m.Interval | None, shown: Callable[[m.Real], str] = real) -> str:
    """Only what is known of a value's uncertainty, as in `estimate`; "" if nothing is."""
    if one is None or one.low is None or one.high is None or one.low == one.high:
        return ""
    low, high = shown(one.low), shown(one.high)
    return f"[{low}, {high}]" if one.kind == "bootstrap" else f"({low} to {high})"


def share_reach(one: m.Interval | None) -> str:
    """`reach` of a share, in percent."""
    return reach(one, lambda x: percent(float(x)))


def counts(health: m.RunHealth | None) -> str:
    """Counts of the health section in one line."""
    return (
        "" if health is None else ", ".join(f"{count(n)} {name}" for name, n in sorted(health.counts.items()))
    )


def _runs(report: c.DivergenceReport) -> Iterator[str]:
    by_name = {h.run: h for h in report.health}
    yield "runs"
    rows = [("name", "coordinate", "rows", "health")]
    rows += [
        (brief(r.name), brief(r.label), count(r.rows), counts(by_name.get(r.name)))
        for r in report.coordinates[:ROWS]
    ]
    yield from table(rows)
    yield from more(len(report.coordinates))


def _repeats(report: c.DivergenceReport) -> Iterator[str]:
    found = [(group.run, r) for group in report.repeats for r in group.conversations]
    if not found:
        return
    yield "repeats"
    rows = [("run", "conversation", "values", "finding")]
    for run, r in found[:ROWS]:
        values = r.level("values")
        pattern = "" if values is None else values.pattern
        most = f", at most {real(r.max_difference)} apart" if r.max_difference else ""
        rows.append((brief(run), brief(r.conversation), pattern, r.finding + most))
    yield from table(rows)
    yield from more(len(found))


def exact(pair: c.Pair) -> str:
    """How many values are equal, in words; what was not compared as bits does not say so."""
    if pair.identical:
        return "equal"
    if foreign(pair):
        return "other model"
    if not_numerics(pair):
        return "not numerics"
    return "-" if pair.exact is None else f"{percent(pair.exact)} equal"


def _pairs(report: c.DivergenceReport) -> Iterator[str]:
    found = sorted(report.pairs, key=lambda p: (foreign(p), -far(p)))
    if not found:
        return
    yield "pairs, farthest first"
    rows = [("first", "second", "rows", "max |d|", "RMS", "KL", "best token", "")]
    for p in found[:ROWS]:
        part = p.values or p.lists or p.chosen
        kl = None
        if p.distribution is not None and p.distribution.kl.mean is not None:
            kl = p.distribution.kl.mean.value
        flips = f"{plural(p.decisions.flips, 'flip')}: {split(p.decisions)}" if p.decisions.flips else "same"
        rows.append(
            (
                brief(p.first),
                brief(p.second),
                count(p.coverage.rows),
                real(p.max_abs),
                real(None if part is None else part.rms),
                real(kl),
                flips if p.decisions.n else "-",
                exact(p),
            )
        )
    yield from table(rows)
    yield from more(len(found))


def centre_text(centre: c.Centre) -> str:
    """Who is closest to a centre, and by how much."""
    first = centre.ranking[0]
    who = " and ".join(first.names)
    if centre.margin is None:
        return f"{centre.kind}: all tie at {short(first.distance)}"
    text = f"{centre.kind}: {who} at {short(first.distance)}"
    text += " (a tie)" if len(first.names) > 1 else ""
    text += f", next {' and '.join(centre.ranking[1].names)}, {short(centre.margin)} farther"
    if centre.chances is not None:
        chance = centre.chances[first.points[0]][0]
        text += f"; first in {percent(chance)} of resamples"
    return text


def where(region: c.Region) -> str:
    """What part of the rows or runs a region is of."""
    return region.subset if not region.name else f"{region.subset} {region.name}"


def _geometry(report: c.DivergenceReport) -> Iterator[str]:
    whole = [g for g in report.geometry if g.subset == "all"]
    for g in whole[:3]:
        points = plural(len(g.points), "point")
        yield f"geometry by {g.title}: {points}" + ("" if g.euclidean else ", not Euclidean")
        apart = f"at most {short(g.cluster_width)} apart" if g.cluster_width else "0 apart"
        yield from (
            f"  {apart}: {(', ' if g.cluster_width else ' = ').join(p)}" for p in g.points if len(p) > 1
        )
        yield from (f"  {centre_text(centre)}" for centre in g.centres)
        for t in g.triangles[:4]:
            area = "" if t.area is None else f", area {short(t.area)}"
            shared = f" [{t.shared}]" if t.shared else ""
            yield f"  triangle{shared} {' · '.join(t.names)}: {', '.join(map(short, t.sides))}, {t.kind}{area}"
    yield from [f"  and {plural(len(whole) - 3, 'more group')} of runs"] if len(whole) > 3 else []
    parts = len(report.geometry) - len(whole)
    if parts:
        yield f"  by batch size, depth or range: {parts} more in the JSON and in --out"


def _prediction(report: c.DivergenceReport) -> Iterator[str]:
    from reports.runs.text_prediction import prediction_lines  # it builds on this module

    yield from prediction_lines(report.prediction)


def _policy(report: c.DivergenceReport) -> Iterator[str]:
    result = report.policy
    if result is None:
        return
    yield f"policy {result.file}: {result.passed} passed, {result.failed} failed, {plural(result.errors, 'error')}"
    bad = [x for x in result.cases if x.outcome != "passed"]
    for x in bad[:ROWS]:
        who = " and ".join(n for n in (x.first, x.second) if n)
        yield f"  {x.outcome}  {who}: {x.text}  [rule {x.rule}]"
    yield from more(len(bad))
