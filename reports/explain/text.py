"""An explanation for a terminal: the verdict, then where bits part, how that travels, and what accounts for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.explain import contract as c
from reports.explain.build import figure
from reports.formatting import percent, short

#: Lines of a ranking that are shown, and lines of a part.
SHOWN = 5


def lines(found: c.Explanation) -> Iterator[str]:
    """The lines."""
    yield found.verdict.headline
    yield from (f"  {point}" for point in found.verdict.points)
    if found.travel is not None and found.travel.first is not None:
        yield from _first(found.travel.stations[found.travel.first], found.sides)
    yield from _realised(found.realised, found.sides)
    if found.travel is not None:
        yield from _travel(found.travel)
    if found.parts:
        yield from _parts(found.parts)
    if found.attribution is not None:
        for element in found.attribution.elements:
            yield from _element(element, found.attribution)
        yield from _rankings(found.attribution.rankings)
    if found.ensemble is not None:
        yield from _ensemble(found.ensemble)
    for note in found.notes:
        yield f"{note.kind}: {note.text}"


def _first(station: c.Station, sides: Sequence[c.SideInfo]) -> Iterator[str]:
    yield ""
    said = f", {station.note}" if station.other else ""
    yield f"first site that differs: {station.name}{said}"
    width = max(len(s.label) for s in sides)
    for side, text, place in zip(
        sides, (station.text_a, station.text_b), (station.place_a, station.place_b), strict=True
    ):
        yield f"  {side.label:<{width}}  {station.name} = {text}  ({place})"


def _realised(found: Sequence[c.RealisedInfo], sides: Sequence[c.SideInfo]) -> Iterator[str]:
    for one in found:
        yield ""
        yield f"behind {one.site} of {sides[one.side].label}: {one.file} by {one.made}, on {one.arch}"
        if one.undecided:
            yield f"  not decided: {one.undecided}"
        if one.instructions:
            rows = [(f"{one.kernel}, {one.source}", "", "line", "the first of them")]
            rows += [
                (i.part, f"{len(i.lines)} {i.opcode}", str(i.lines[0]), i.text) for i in one.instructions
            ]
            yield from _table(rows, left=(0, 1, 3))


def _travel(found: c.Travel) -> Iterator[str]:
    rows = [("site", "compared", "differ", "max ULP", "max difference", "")]
    for s in found.stations:
        ulp = "-" if s.max_ulp is None else f"{s.max_ulp:,}"
        lonely = s.compared and s.only_a + s.only_b
        said = [s.note, f"{s.only_a:,} and {s.only_b:,} have no partner" if lonely else ""]
        rows.append(
            (
                s.name,
                f"{s.compared:,}",
                f"{s.differing:,}",
                ulp,
                short(s.max_abs),
                "; ".join(x for x in said if x),
            )
        )
    yield ""
    yield "how it travels, in the order of the dataflow:"
    yield from _table(rows, left=(0, 5))
    for name, only in (("the first", found.only_a), ("the second", found.only_b)):
        if only:
            yield f"  only {name} has: {', '.join(only)}"


def _parts(parts: Sequence[c.PartInfo]) -> Iterator[str]:
    yield ""
    yield "what differs:"
    for part in parts:
        yield f"  {part.name}"
        for change in part.changes:
            if change.a is not None:
                yield f"    - {change.name} = {change.a}"
            if change.b is not None:
                yield f"    + {change.name} = {change.b}"


def _element(one: c.ElementInfo, found: c.AttributionInfo) -> Iterator[str]:
    where = ", ".join(f"{axis} {i}" for axis, i in one.at.items())
    yield ""
    yield f"what accounts for it at {where}, in {found.format} ULP:"
    sampled = found.orders > 0
    rows = [
        ("part", "ULP", *(["std. error"] if sampled else []), "alone", "without it", "bound, first order")
    ]
    for x in one.contributions:
        bound = max((b for b in (x.bound_a, x.bound_b) if b is not None), default=None)
        rows.append(
            (
                x.part,
                figure(x.ulp),
                *([short(x.error or 0.0)] if sampled else []),
                "-" if x.alone is None else figure(x.alone),
                "-" if x.last is None else figure(one.total - x.last),
                "-" if bound is None else f"{bound:.1e}",
            )
        )
    more = ("",) * (len(rows[0]) - 2)
    rows += [("before the last rounding", figure(one.total), *more)]
    rows += [
        ("final rounding", figure(one.rounding), *more),
        ("stored", f"{one.ulp:+,d}" if one.ulp else "0", *more),
    ]
    yield from _table(rows, left=(0,))
    how = f"{found.orders} sampled orders" if sampled else "every set of parts"
    stored = f"stored {one.stored_a} and {one.stored_b}"
    yield f"  {how}, {found.hybrids} hybrids; {one.before_a} against {one.before_b}, {stored}"


def _rankings(rankings: Sequence[c.RankingInfo]) -> Iterator[str]:
    for ranking in rankings:
        if ranking.reason:
            yield f"  no sensitivities of {ranking.side}: {ranking.reason}"
            continue
        shown = ", ".join(f"{r.line} to {r.format} {r.bound:.1e}" for r in ranking.ranks[:SHOWN])
        proved = "; confirmed by exact rational functions" if ranking.proved else ""
        yield f"  roundings that can move {ranking.side} most: {shown}{proved}"


def _ensemble(found: c.EnsembleInfo) -> Iterator[str]:
    yield ""
    interval = "95% interval" if found.interval == "bootstrap" else "range of inputs"
    yield f"shares of the outputs that change, {found.inputs} inputs, {found.sampled} outputs of each:"
    rows = [("part", "share", interval)]
    rows += [(s.part, percent_signed(s.share), _range(s)) for s in found.shares]
    rows += [("all that differ", percent_signed(found.changed.share), _range(found.changed))]
    yield from _table(rows, left=(0,))


def percent_signed(x: float) -> str:
    """A share that may be below zero."""
    return f"-{percent(-x)}" if x < 0 else percent(x)


def _range(s: c.ShareInfo) -> str:
    return f"{percent_signed(s.low)} to {percent_signed(s.high)}"


def _table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            x.ljust(w) if i in left else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()
