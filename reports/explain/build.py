"""From what `search.explain` found to the contract, verdict included."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np

from reports.contract_base import Note
from reports.explain import contract as c
from search.explain.attribution import Attributed, Attribution, at_text
from search.explain.ensemble import Ensemble, Share
from search.explain.explain import Explanation
from search.explain.instructions import Realised, opcodes
from search.explain.parts import Part
from search.explain.ranks import Ranking
from search.explain.travel import OTHER, Point, Station, Travel
from search.sides import before_rounding
from verify.emulator import Run

#: Lines of a ranking that are kept.
RANKS = 40
#: Part of a difference that a verdict names.
NAMED = 3


def build(found: Explanation, *, input_name: str, command: str, seed: int, began: float) -> c.Explanation:
    """The contract of one input.

    Args:
        found: what was found.
        input_name: what the input is called.
        command: what makes this again.
        seed: of everything random.
        began: when, by `time.perf_counter`.
    """
    parts = found.attribution.parts if found.attribution is not None else None
    groups = (
        tuple(c.PartInfo(name=p.name, changes=_changes(p.changes)) for p in parts)
        if parts is not None
        else tuple(c.PartInfo(name=name, changes=_changes(changes)) for name, changes in found.changes)
    )
    return c.Explanation(
        title="Explanation of a difference",
        verdict=_verdict(found),
        provenance=_provenance(command, seed, began),
        input=input_name,
        sides=_sides(found.runs, found.labels),
        parts=groups,
        travel=_travel(found.travel),
        realised=tuple(_realised(one) for one in found.realised),
        attribution=None if found.attribution is None else _attribution(found.attribution, found),
        ensemble=None,
        notes=_notes(found),
    )


def build_ensemble(
    found: Ensemble,
    runs: tuple[Run, Run],
    *,
    input_name: str,
    command: str,
    seed: int,
    began: float,
) -> c.Explanation:
    """The contract of many inputs; ``runs`` are those of one of them."""
    labels = tuple(f"{run.spec.name}@{run.platform.name}" for run in runs)
    shares = sorted(zip(found.parts, found.shares, strict=True), key=lambda x: -x[1].value)
    said = ", ".join(f"{p.name} {_percent(s.value)}" for p, s in shares[:NAMED])
    headline = f"{_percent(found.changed.value)} of sampled outputs differ over {found.inputs} inputs: {said}"
    if not found.changed.value:
        headline = f"no sampled output differs over {found.inputs} inputs"
    notes: list[Note] = []
    if found.kind == "range":
        text = "Fewer than ten inputs give no interval: the range of single inputs is shown instead."
        notes.append(Note(kind="limit", text=text))
    if found.skipped:
        text = f"{found.skipped} sampled outputs are NaN or infinite on some hybrid and were left out."
        notes.append(Note(kind="warning", text=text))
    return c.Explanation(
        title="Explanation of changed outputs",
        verdict=c.Verdict(
            headline=headline,
            diverges=bool(found.whole),
            points=(f"Of all outputs of these inputs {_percent(found.whole)} differ.",),
        ),
        provenance=_provenance(command, seed, began),
        input=input_name,
        sides=_sides(runs, (labels[0], labels[1])),
        parts=tuple(c.PartInfo(name=p.name, changes=_changes(p.changes)) for p in found.parts),
        travel=None,
        attribution=None,
        ensemble=c.EnsembleInfo(
            inputs=found.inputs,
            sampled=found.sampled,
            skipped=found.skipped,
            changed=_share("", found.changed),
            shares=tuple(_share(p.name, s) for p, s in zip(found.parts, found.shares, strict=True)),
            whole=float(found.whole),
            interval="bootstrap" if found.kind == "bootstrap" else "range",
            hybrids=found.hybrids,
            orders=found.orders,
            joined=found.joined,
        ),
        notes=tuple(notes),
    )


def signed(x: float | Fraction) -> str:
    """A signed number of ULP for a sentence: ``+3.1``, ``-0.02``."""
    value = float(x)
    if not value:
        return "0"
    size = abs(value)
    text = f"{size:,.1f}" if size >= 0.95 else f"{size:.2g}"
    return ("+" if value > 0 else "-") + text


def figure(x: float | Fraction) -> str:
    """A signed number of ULP for a table, with more digits than `signed`."""
    value = float(x)
    if not value:
        return "0"
    return f"{value:+,.3f}" if abs(value) >= 0.01 else f"{value:+.2g}"


def where(point: Point) -> str:
    """``head 0, token 5, dim 3 (group 2 of the first, 0 of the second)``."""
    text = at_text(point.at)
    if point.group_a is not None and point.group_b is not None:
        own = f"{point.group_a}" if point.group_a == point.group_b else f"{point.group_a} and {point.group_b}"
        text += f", group {own}"
    return text


def _verdict(found: Explanation) -> c.Verdict:
    out = found.travel.output
    first = found.travel.first
    points: list[str] = []
    if found.same_program and not out.differing:
        headline = "the same program: no line, partition or primitive differs that the output depends on"
        return c.Verdict(headline=headline, diverges=False)
    said = "bits agree at every site that both have" if first is None else _first(first)
    attributed = found.attribution.elements[0] if found.attribution is not None else None
    if attributed is not None and found.attribution is not None and (attributed.total or out.differing):
        said += f"; {_accounts(attributed, found.attribution.parts)}"
    if not out.differing:
        said += "; stored outputs agree"
    points.append(
        f"{out.differing:,} of {out.compared:,} stored outputs differ"
        + (f", at most {out.max_ulp:,} ULP." if out.max_ulp else ".")
    )
    points.append(_partition(found.travel))
    same = found.travel.first_same
    if first is not None and same is not None and same is not first:
        said_of = _first(same).removeprefix("first parts at ")
        points.append(f"The first that is one real number on both sides and differs: {said_of}.")
    points += _behind(found.realised, found.labels)
    if attributed is not None:
        points.append(
            f"Stored at {at_text(attributed.element.at)}: {attributed.bits[0]} and {attributed.bits[1]}, "
            f"{attributed.ulp:+,d} ULP; the final rounding adds {signed(attributed.rounding)}."
        )
    return c.Verdict(headline=said, diverges=bool(out.differing), points=tuple(points))


def _first(station: Station) -> str:
    if station.other:
        return f"first parts at {station.name}, {OTHER}: {station.other}"
    point = station.first
    assert point is not None
    return (
        f"first parts at {station.name}, {where(point)}: {point.a} ({point.bits_a}) "
        f"against {point.b} ({point.bits_b})"
    )


def _behind(found: Sequence[Realised], labels: Sequence[str]) -> Iterator[str]:
    for one in found:
        said = opcodes(one) if not one.undecided else f"not decided, {one.undecided}"
        yield f"Behind {one.site} of {labels[one.side]} on {one.arch}: {said}."


def _accounts(one: Attributed, parts: Sequence[Part]) -> str:
    ranked = sorted(zip(parts, one.phi, strict=True), key=lambda x: -abs(x[1]))
    shown = [(p, x) for p, x in ranked if x][:NAMED]
    head = f"of {signed(one.total)} ULP at {at_text(one.element.at)}"
    if not shown:
        return f"{head}, nothing is left to account for"
    first, *others = [(p.name, signed(x)) for p, x in shown]
    return ", ".join([f"{head}, {first[0]} accounts for {first[1]}", *(f"{name} {x}" for name, x in others)])


def _partition(found: Travel) -> str:
    left, right = found.groups
    if found.same_partition:
        return f"Tokens are grouped and visited alike, in {left:,} groups."
    text = f"Tokens are grouped differently: {left:,} and {right:,} groups"
    if found.first_group is None:
        return text + "."
    number, a, b = found.first_group
    return f"{text}; first at group {number}: {_span(a)} and {_span(b)}."


def _span(span: tuple[int, int, int]) -> str:
    low, high, count = span
    if not count:
        return "none"
    return (
        f"{count:,} tokens from {low:,}"
        if count == high - low + 1
        else f"{count:,} tokens of {low:,} to {high:,}"
    )


def _notes(found: Explanation) -> tuple[Note, ...]:
    notes: list[Note] = []
    for run in found.runs:
        if run.spec.assumption:
            notes.append(Note(kind="warning", text=run.spec.assumption))
    if found.reason:
        notes.append(Note(kind="limit", text=found.reason))
    if found.attribution is not None:
        if found.attribution.unchecked:
            text = (
                f"Hybrids were not checked for their meaning in real numbers: {found.attribution.unchecked}."
            )
            notes.append(Note(kind="limit", text=text))
        elif not found.attribution.same_function:
            text = (
                "The two sides are not the same function of real numbers on a sample: a fault, or another attention. "
                "Hybrids were not checked for their meaning."
            )
            notes.append(Note(kind="warning", text=text))
        notes += [Note(kind="information", text=f"{text}.") for text in found.attribution.joined]
        if len(found.attribution.parts) == 1:
            text = "Everything that differs goes together: no hybrid of the two is a legal spec, so one part has it all."
            notes.append(Note(kind="limit", text=text))
    return tuple(notes)


def _changes(changes: Sequence[Any]) -> tuple[c.Change, ...]:
    return tuple(
        c.Change(name=x.name, a=x.a, b=x.b, place_a=_brief(x.place_a), place_b=_brief(x.place_b))
        for x in changes
    )


def _brief(place: str) -> str:
    """A place without the folders of this machine."""
    return place.replace("\\", "/").rpartition("/")[2]


def _sides(runs: tuple[Run, Run], labels: tuple[str, str]) -> tuple[c.SideInfo, c.SideInfo]:
    made: list[c.SideInfo] = []
    for run, label in zip(runs, labels, strict=True):
        _, site, fmt = before_rounding(run.program)
        made.append(
            c.SideInfo(
                label=label,
                spec=run.spec.name,
                spec_sha256=run.spec.content_hash,
                platform=run.platform.name,
                groups=run.plan.count,
                format=str(fmt),
                before=site,
            )
        )
    return made[0], made[1]


def _travel(found: Travel) -> c.Travel:
    first = next((i for i, s in enumerate(found.stations) if s.parts), None)
    return c.Travel(
        stations=tuple(_station(s) for s in found.stations),
        first=first,
        only_a=found.only_a,
        only_b=found.only_b,
        same_partition=found.same_partition,
        partition=_partition(found),
    )


def _station(s: Station) -> c.Station:
    return c.Station(
        name=s.name,
        text_a=s.text_a,
        text_b=s.text_b,
        place_a=_brief(s.place_a),
        place_b=_brief(s.place_b),
        compared=s.compared,
        only_a=s.only_a,
        only_b=s.only_b,
        differing=s.differing,
        max_ulp=s.max_ulp,
        max_abs=s.max_abs,
        special=s.special,
        first=_point(s.first),
        worst=_point(s.worst),
        note=s.note,
        other=s.other,
    )


def _realised(one: Realised) -> c.RealisedInfo:
    instructions = [i.model_dump() for i in one.instructions]
    return c.RealisedInfo.model_validate({**vars(one), "instructions": instructions})


def _point(p: Point | None) -> c.Point | None:
    if p is None:
        return None
    return c.Point(
        at=dict(p.at),
        group_a=p.group_a,
        group_b=p.group_b,
        tokens=p.tokens,
        a=p.a,
        b=p.b,
        bits_a=p.bits_a,
        bits_b=p.bits_b,
        format_a=p.format_a,
        format_b=p.format_b,
        ulp=p.ulp,
    )


def _attribution(found: Attribution, explanation: Explanation) -> c.AttributionInfo:
    rankings = explanation.rankings
    bounds = [_bounds(r) for r in rankings]
    return c.AttributionInfo(
        elements=tuple(_element(e, found.parts, bounds) for e in found.elements),
        hybrids=found.hybrids,
        orders=found.orders,
        joined=found.joined,
        format=str(found.format),
        rankings=tuple(_ranking(r, label) for r, label in zip(rankings, explanation.labels, strict=False)),
    )


def _bounds(ranking: Ranking) -> dict[str, float]:
    sums: dict[str, Fraction] = {}
    for r in ranking.ranks:
        sums[r.part] = sums.get(r.part, Fraction(0)) + r.bound
    return {part: float(x) for part, x in sums.items()}


def _ranking(ranking: Ranking, label: str) -> c.RankingInfo:
    return c.RankingInfo(
        side=label,
        ranks=tuple(
            c.RankInfo(line=r.line, format=r.format, roundings=r.roundings, bound=float(r.bound), part=r.part)
            for r in ranking.ranks[:RANKS]
        ),
        proved=ranking.proved,
        reason=ranking.reason,
    )


def _element(one: Attributed, parts: Sequence[Part], bounds: Sequence[Mapping[str, float]]) -> c.ElementInfo:
    everything = frozenset(range(len(parts)))
    contributions: list[c.Contribution] = []
    for i, (part, phi) in enumerate(zip(parts, one.phi, strict=True)):
        alone, rest = one.table.get(frozenset([i])), one.table.get(everything - {i})
        contributions.append(
            c.Contribution(
                part=part.name,
                ulp=float(phi),
                exact=ratio(phi),
                error=None if one.errors is None else one.errors[i],
                alone=None if alone is None else float(alone),
                last=None if rest is None else float(one.total - rest),
                bound_a=bounds[0].get(part.name) if bounds else None,
                bound_b=bounds[1].get(part.name) if bounds else None,
            )
        )
    return c.ElementInfo(
        at=dict(one.element.at),
        before_a=_decimal(one.before[0]),
        before_b=_decimal(one.before[1]),
        stored_a=repr(one.stored[0]),
        stored_b=repr(one.stored[1]),
        bits_a=one.bits[0],
        bits_b=one.bits[1],
        total=float(one.total),
        total_exact=ratio(one.total),
        rounding=float(one.rounding),
        rounding_exact=ratio(one.rounding),
        ulp=one.ulp,
        contributions=tuple(contributions),
    )


def _decimal(x: float) -> str:
    """The shortest decimal of an f32 number, of another double all of its digits."""
    single = np.float32(x)
    return str(single) if float(single) == x else repr(x)


def _share(part: str, share: Share) -> c.ShareInfo:
    return c.ShareInfo(
        part=part,
        share=float(share.value),
        exact=ratio(share.value),
        low=share.low,
        high=share.high,
        error=share.error,
    )


def ratio(x: Fraction) -> str:
    """A rational as ``num/den``."""
    return f"{x.numerator}/{x.denominator}"


def _percent(x: Fraction) -> str:
    return f"{100 * float(x):.1f}%"


def _provenance(command: str, seed: int, began: float) -> c.Provenance:
    from reports.build import versions

    return c.Provenance(
        command=command,
        seed=seed,
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        seconds=time.perf_counter() - began,
        versions=versions(),
    )
