"""Where two runs of one input part, and how far the difference travels: site by site, in the order of the dataflow.

Values meet that mean the same. A line of tokens is compared token by token, whatever group a token is in. A value of a
group meets the value of the other side's group that owns the same tokens (of a state: that has seen the same tokens), and
none where no such group exists. Values of the row always meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.explain.flat import Flat, reads
from search.explain.meaning import same_meaning
from search.explain.parts import roles
from search.explain.pieces import needed_sites, pieces_of
from specs.formats import Format
from specs.program import CONSTANTS, TOKEN
from verify.emulator import Run
from verify.explain import bit_text, decimal
from verify.numerics.ulp import MISMATCH, ulp_distance

Array = NDArray[Any]
#: What is said of a site that is not the same real number on both sides.
OTHER = "another quantity on either side"
#: What is said of groups that no group of the other side is.
APART = "groups own other tokens"


@dataclass(frozen=True)
class Point:
    """One place where two runs differ.

    Attributes:
        at: by axis (``query``, ``head`` or ``row``, ``token``, a level, ``dim``): the number of the value.
        group_a, group_b: the outermost group that owns it on either side; None for values of the row.
        tokens: the first and the last token of the group, for values of a group.
        a, b: decimal values. bits_a, bits_b: patterns. format_a, format_b: of the patterns.
        ulp: distance; None where formats differ or a NaN takes part.
    """

    at: Mapping[str, int]
    group_a: int | None
    group_b: int | None
    tokens: tuple[int, int] | None
    a: str
    b: str
    bits_a: str
    bits_b: str
    format_a: str
    format_b: str
    ulp: int | None


@dataclass(frozen=True)
class Station:
    """One site on the way.

    Attributes:
        name: of the line. text_a, text_b: the lines. place_a, place_b: file, line and column.
        compared: elements that meet. only_a, only_b: elements without a partner.
        differing: elements that meet and differ.
        max_ulp: the largest distance; None where formats differ or nothing has a distance.
        max_abs: the largest absolute difference of finite values.
        special: elements of which one side alone is NaN or infinite.
        first, worst: the first element that differs, and the one that is furthest apart.
        note: what limits the comparison.
        other: why the name means another quantity on either side; then nothing is compared, and ``first`` only shows a
            pair of values. Empty if it is one quantity, or that is not known.
    """

    name: str
    text_a: str
    text_b: str
    place_a: str
    place_b: str
    compared: int = 0
    only_a: int = 0
    only_b: int = 0
    differing: int = 0
    max_ulp: int | None = None
    max_abs: float = 0.0
    special: int = 0
    first: Point | None = None
    worst: Point | None = None
    note: str = ""
    other: str = ""

    @property
    def parts(self) -> bool:
        """Whether the sides part here: bits of one quantity differ, or it is two quantities, of other bits."""
        return self.differing > 0 or (bool(self.other) and self.first is not None)


@dataclass(frozen=True)
class Travel:
    """The way from the first difference to the stored output.

    Attributes:
        stations: sites that both sides have, in the order of the dataflow; the stored output is the last.
        only_a, only_b: lines that one side alone has and needs.
        same_partition: whether tokens are grouped and visited alike. groups: of either side.
        first_group: the number of the first group whose tokens differ, with the tokens of it; None if there is none.
    """

    stations: tuple[Station, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    same_partition: bool
    groups: tuple[int, int]
    first_group: tuple[int, tuple[int, int, int], tuple[int, int, int]] | None

    @property
    def first(self) -> Station | None:
        """The first site where the sides part."""
        return next((s for s in self.stations if s.parts), None)

    @property
    def first_same(self) -> Station | None:
        """The first site whose bits part though it is one real number on both sides."""
        return next((s for s in self.stations if s.differing), None)

    @property
    def output(self) -> Station:
        """The stored output."""
        return self.stations[-1]


def sites(a: Run, b: Run) -> list[str]:
    """Sites that both sides have, are numbers, and that the output needs on either side; the output last."""
    known = set(a.site_names()) & set(b.site_names())
    need = [needed_sites(r.program) for r in (a, b)]
    left, right = a.program.sites, b.program.sites
    found = [
        name
        for name, site in left.items()
        if name in known
        and name != "output"
        and site.section != CONSTANTS
        and right[name].section != CONSTANTS
        and site.type.kind == right[name].type.kind == "float"
        and (name in need[0] or name in need[1])
    ]
    return [*found, "output"]


def travel(a: Run, b: Run, flats: tuple[Flat, Flat]) -> Travel:
    """Compare two runs of one input that have the same shape of outputs."""
    names = sites(a, b)
    first_group = _first_group(a, b)
    own = [needed_sites(r.program) for r in (a, b)]
    stations = [_station(a, b, flats, name) for name in names]
    apart = [s.name for s in stations if s.differing and s.name != "output"]
    meant = same_meaning(a, b, apart)
    others = {name for name, same in meant.items() if same is False}
    shown = [
        _uncompared(s, _why(s.name, flats, (a, b), stations, others)) if s.name in others else s
        for s in stations
    ]
    return Travel(
        stations=tuple(shown),
        only_a=_alone(a, b, own[0]),
        only_b=_alone(b, a, own[1]),
        same_partition=first_group is None,
        groups=(a.plan.count, b.plan.count),
        first_group=first_group,
    )


def _why(
    name: str, flats: tuple[Flat, Flat], runs: tuple[Run, Run], stations: Sequence[Station], others: set[str]
) -> str:
    """Why a line is another quantity on either side: by what it reads, or by its text."""
    read = [dict.fromkeys(n for n in reads(run.program, name) if n != name) for run in runs]
    role = [roles(run.program).get(name, "") for run in runs]
    if not all(role):
        return f"the output of the {'second' if role[0] else 'first'} does not depend on it"
    if role[0] != role[1]:
        return f"it belongs to {role[0]} of the first, and to {role[1]} of the second"
    alone = [", ".join(n for n in mine if n not in other) for mine, other in (read, read[::-1])]
    if all(alone):
        return f"the first reads {alone[0]}, the second {alone[1]}"
    if any(alone):
        return f"only the {'first' if alone[0] else 'second'} reads {alone[0] or alone[1]}"
    by_name = {s.name: s for s in stations}
    for one in read[0]:
        if one in others:
            return f"it reads {one}, which is another quantity, too"
        station = by_name.get(one)
        if station is not None and not station.compared:
            return f"it reads {one}, whose {station.note}"
        if station is not None and station.only_a + station.only_b:
            return f"it reads {one}, of which some {APART}"
    return "its lines differ"


def _alone(run: Run, other: Run, need: set[str]) -> tuple[str, ...]:
    return tuple(
        n
        for n, s in run.program.sites.items()
        if n in need and n not in other.program.sites and s.section != CONSTANTS
    )


def _first_group(a: Run, b: Run) -> tuple[int, tuple[int, int, int], tuple[int, int, int]] | None:
    left, right = a.plan.groups, b.plan.groups
    for i, (x, y) in enumerate(zip(left, right, strict=False)):
        if not np.array_equal(x.tokens, y.tokens):
            return i, _span(x.tokens), _span(y.tokens)
    if len(left) == len(right):
        return None
    i = min(len(left), len(right))
    none = (0, -1, 0)
    return (
        i,
        _span(left[i].tokens) if i < len(left) else none,
        _span(right[i].tokens) if i < len(right) else none,
    )


def _span(tokens: Array) -> tuple[int, int, int]:
    """The smallest token, the largest, and how many."""
    return (int(tokens.min()), int(tokens.max()), len(tokens)) if len(tokens) else (0, -1, 0)


def _station(a: Run, b: Run, flats: tuple[Flat, Flat], name: str) -> Station:
    left, right = _Values(a, name), _Values(b, name)
    blank = Station(
        name=name,
        text_a=flats[0].source(name),
        text_b=flats[1].source(name),
        place_a=str(flats[0].place(name)),
        place_b=str(flats[1].place(name)),
        only_a=left.count,
        only_b=right.count,
    )
    met = _meet(left, right)
    if isinstance(met, str):
        return replace(blank, note=met)
    x, y, rows_a, rows_b = met
    formats = left.format, right.format
    same_format = formats[0].base == formats[1].base
    blank = replace(
        blank,
        compared=int(x.size),
        only_a=left.count - int(x.size),
        only_b=right.count - int(y.size),
        max_ulp=0 if same_format else None,
        note="" if same_format else f"formats differ: {formats[0]} and {formats[1]}; values are compared",
    )
    wide = [v.astype(np.float64) for v in (x, y)]
    differs = (_words(x) != _words(y)) if same_format else (wide[0] != wide[1])
    differs &= ~(np.isnan(wide[0]) & np.isnan(wide[1]))
    if not differs.any():
        return blank
    with np.errstate(invalid="ignore"):
        gap = np.abs(wide[0] - wide[1])
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    gap = np.where(finite & differs, gap, 0.0)
    distance: Array | None = ulp_distance(x, y) if same_format else None
    real = None if distance is None else distance[distance != MISMATCH]

    def point(flat: int) -> Point:
        where = np.unravel_index(flat, x.shape)
        return _point(left, right, x, y, rows_a, rows_b, tuple(int(i) for i in where), distance)

    return replace(
        blank,
        differing=int(differs.sum()),
        max_ulp=None if real is None or not real.size else int(real.max()),
        max_abs=float(gap.max(initial=0.0)),
        special=int((differs & ~finite).sum()),
        first=point(int(np.argmax(differs))),
        worst=point(int(np.argmax(gap))),
    )


def _words(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}")


def _uncompared(station: Station, why: str) -> Station:
    """A site whose two values are two quantities: one pair is shown, and no distance."""
    first = None if station.first is None else replace(station.first, ulp=None)
    met = station.compared
    return replace(
        station,
        compared=0,
        only_a=station.only_a + met,
        only_b=station.only_b + met,
        differing=0,
        max_ulp=None,
        max_abs=0.0,
        special=0,
        first=first,
        worst=None,
        other=why,
        note=f"{OTHER}: {why}",
    )


class _Values:
    """One site of one run, with the pieces of its groups laid out along one axis: ``[*rows, piece, *rest]``."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        self.format: Format = run.format_of(name)
        self.pieces = pieces_of(run.program, run.plan, name)
        array = run.outward(name)
        nest = len(self.pieces.shape)
        self.lead = array.ndim - nest - len(self.pieces.rest)
        self.array = array.reshape(*array.shape[: self.lead], -1, *array.shape[self.lead + nest :])
        self.count = int(len(self.pieces.keys) * self.array.size / max(1, self.array.shape[self.lead]))

    def group(self, number: int) -> tuple[int | None, tuple[int, int] | None]:
        """The outermost group of a piece, by number, and the span of the tokens of the piece."""
        levels = self.pieces.levels
        if not levels:
            return None, None
        index = self.pieces.index(number)
        tokens = self.run.plan.tokens[tuple(index[level] for level in levels)]
        owned = tokens[tokens >= 0]
        span = (int(owned.min()), int(owned.max())) if owned.size else None
        return index[levels[0]], span


def _meet(a: _Values, b: _Values) -> tuple[Array, Array, list[int], list[int]] | str:
    """The values that mean the same, and which pieces they are; or why none do."""
    if a.pieces.kind != b.pieces.kind:
        return f"a value of a {a.pieces.kind} on one side, of a {b.pieces.kind} on the other"
    views = [[v.run.program.views[r] for r in v.pieces.rest if r in v.run.program.views] for v in (a, b)]
    if [(v.size, v.index) for v in views[0]] != [(v.size, v.index) for v in views[1]]:
        return "kept by other lanes on either side"
    if len(a.pieces.rest) != len(b.pieces.rest):
        return "other axes on either side"
    common = [k for k in a.pieces.keys if k in b.pieces.keys]
    if a.pieces.kind == TOKEN:
        common.sort()
    if not common:
        return APART
    rows_a, rows_b = [a.pieces.keys[k] for k in common], [b.pieces.keys[k] for k in common]
    x = np.ascontiguousarray(np.take(a.array, rows_a, axis=a.lead))
    y = np.ascontiguousarray(np.take(b.array, rows_b, axis=b.lead))
    if x.shape != y.shape:
        return "other sizes on either side"
    return x, y, rows_a, rows_b


def _point(
    a: _Values,
    b: _Values,
    x: Array,
    y: Array,
    rows_a: list[int],
    rows_b: list[int],
    where: tuple[int, ...],
    distance: Array | None,
) -> Point:
    lead = ("row",) if a.run.problem.q is None else ("query", "head")[-a.lead :]
    at: dict[str, int] = dict(zip(lead, where[: a.lead], strict=True))
    piece = where[a.lead]
    group_a, span = a.group(rows_a[piece])
    group_b, _ = b.group(rows_b[piece])
    if a.pieces.kind == TOKEN:
        at["token"] = int(a.run.plan.tokens.reshape(-1)[rows_a[piece]])
        span = None
    at |= dict(zip(a.pieces.rest, where[a.lead + 1 :], strict=True))
    ulp = None if distance is None or distance[where] == MISMATCH else int(distance[where])
    return Point(
        at=at,
        group_a=group_a,
        group_b=group_b,
        tokens=span,
        a=decimal(x[where], a.format),
        b=decimal(y[where], b.format),
        bits_a=bit_text(x[where], a.format),
        bits_b=bit_text(y[where], b.format),
        format_a=str(a.format),
        format_b=str(b.format),
        ulp=ulp,
    )
