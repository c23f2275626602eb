"""Where two runs of one input part, and how far the difference travels: site by site, in the order of the dataflow.

Values meet that mean the same. A line of tokens is compared token by token, whatever group a token is in. A value of a
group meets the value of the other side's group that owns the same tokens (of a state: that has seen the same tokens), and
none where no such group exists. Values of the row always meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.explain.flat import Flat
from search.explain.meaning import same_meaning
from specs.formats import Format
from specs.nodes import Last, Name, Prev
from specs.program import CONSTANTS, TOKEN, Program
from verify.emulator import Run
from verify.explain import bit_text, decimal
from verify.numerics.ulp import MISMATCH, ulp_distance

Array = NDArray[Any]
#: What is said of a site that is not the same real number on both sides.
OTHER = "another quantity on either side, even unrounded"


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
    """

    name: str
    text_a: str
    text_b: str
    place_a: str
    place_b: str
    compared: int
    only_a: int
    only_b: int
    differing: int
    max_ulp: int | None
    max_abs: float
    special: int
    first: Point | None
    worst: Point | None
    note: str = ""


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
        """The first site whose bits part."""
        return next((s for s in self.stations if s.differing), None)

    @property
    def first_same(self) -> Station | None:
        """The first site whose bits part though it is one real number on both sides."""
        return next((s for s in self.stations if s.differing and OTHER not in s.note), None)

    @property
    def output(self) -> Station:
        """The stored output."""
        return self.stations[-1]


def sites(a: Run, b: Run) -> list[str]:
    """Sites that both sides have, are numbers, and that the output needs on either side; the output last."""
    known = set(a.site_names()) & set(b.site_names())
    need = [_needed(r.program) for r in (a, b)]
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
    own = [_needed(r.program) for r in (a, b)]
    meant = same_meaning(a, b, [n for n in names if n != "output"])
    return Travel(
        stations=tuple(_station(a, b, flats, name, meant.get(name, True)) for name in names),
        only_a=_alone(a, b, own[0]),
        only_b=_alone(b, a, own[1]),
        same_partition=first_group is None,
        groups=(a.plan.count, b.plan.count),
        first_group=first_group,
    )


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


def _station(a: Run, b: Run, flats: tuple[Flat, Flat], name: str, meant: bool) -> Station:
    texts = [f.source(name) for f in flats]
    places = [str(f.place(name)) for f in flats]
    left, right = _Values(a, name), _Values(b, name)
    met = _meet(left, right)
    if isinstance(met, str):
        return Station(
            name,
            texts[0],
            texts[1],
            places[0],
            places[1],
            0,
            left.count,
            right.count,
            0,
            None,
            0.0,
            0,
            None,
            None,
            met,
        )
    x, y, rows_a, rows_b = met
    formats = left.format, right.format
    wide = [v.astype(np.float64) for v in (x, y)]
    same_format = formats[0].base == formats[1].base
    nan = np.isnan(wide[0]) & np.isnan(wide[1])
    if same_format:
        words = f"u{x.dtype.itemsize}"
        differs = (x.view(words) != y.view(words)) & ~nan
    else:
        differs = (wide[0] != wide[1]) & ~nan
    with np.errstate(invalid="ignore"):
        gap = np.abs(wide[0] - wide[1])
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    special = int((differs & ~finite).sum())
    gap = np.where(finite & differs, gap, 0.0)
    distance: Array | None = ulp_distance(x, y) if same_format and differs.any() else None
    most = None
    if distance is not None:
        real = distance[(distance != MISMATCH)]
        most = int(real.max()) if real.size else None
    if not differs.any():
        most = 0 if same_format else None

    def point(flat: int) -> Point:
        where = np.unravel_index(flat, x.shape)
        return _point(left, right, x, y, rows_a, rows_b, tuple(int(i) for i in where), distance)

    first = point(int(np.argmax(differs))) if differs.any() else None
    worst = point(int(np.argmax(gap))) if differs.any() else None
    notes = [] if same_format else [f"formats differ: {formats[0]} and {formats[1]}; values are compared"]
    if not meant:
        notes.append(OTHER)
    return Station(
        name,
        texts[0],
        texts[1],
        places[0],
        places[1],
        int(x.size),
        left.count - int(x.size),
        right.count - int(y.size),
        int(differs.sum()),
        most,
        float(gap.max(initial=0.0)),
        special,
        first,
        worst,
        "; ".join(notes),
    )


class _Values:
    """One site of one run, with the pieces of its groups laid out along one axis: ``[*rows, piece, *rest]``."""

    def __init__(self, run: Run, name: str) -> None:
        program = run.program
        self.run, self.name = run, name
        self.site = program.sites[name]
        self.format: Format = run.format_of(name)
        array = run.outward(name)
        axes = tuple(a for a in program.axes if a in self.site.type.axes)
        self.lead = array.ndim - len(axes)
        levels = [a for a in axes if a in program.level_names]
        self.kind = TOKEN if TOKEN in axes else "group" if levels else "row"
        nest = len(levels) + (TOKEN in axes)
        self.rest = axes[nest:]
        if self.kind == "row":
            array = np.expand_dims(array, self.lead)
        shape = array.shape
        self.pieces = shape[self.lead : self.lead + max(1, nest)]
        self.array = array.reshape(*shape[: self.lead], -1, *shape[self.lead + max(1, nest) :])
        self.levels = levels
        self.keys = self._keys()
        self.count = int(len(self.keys) * self.array.size / max(1, self.array.shape[self.lead]))

    def _keys(self) -> dict[Any, int]:
        """By what a piece means (a token, the tokens of a group), its number along the axis of pieces."""
        plan, program = self.run.plan, self.run.program
        if self.kind == "row":
            return {(): 0}
        if self.kind == TOKEN:
            if len(self.levels) != len(program.level_names):
                return {}
            flat = plan.tokens.reshape(-1)
            return {int(t): i for i, t in enumerate(flat) if t >= 0}
        depth = program.level_names.index(self.levels[-1]) + 1
        if self.levels != list(program.level_names[:depth]):
            return {}
        exists = plan.exists[self.levels[-1]]
        tokens = plan.tokens.reshape(*exists.shape, -1)
        folded = _folded_levels(program, self.name)
        found: dict[Any, int] = {}
        seen: dict[tuple[int, ...], NDArray[np.bool_]] = {}
        for number, index in enumerate(np.ndindex(*exists.shape)):
            if not exists[index]:
                continue
            own = tokens[index]
            own = own[own >= 0]
            mask = np.zeros(plan.kv_len, np.bool_)
            mask[own] = True
            key = _digest(mask)
            if folded is not None:
                scope = index[:folded]
                seen[scope] = seen.get(scope, np.zeros(plan.kv_len, np.bool_)) | mask
                own_key = () if self.name in program.states else key
                key = (own_key, _digest(seen[scope]))
            found.setdefault(key, number)
        return found

    def group(self, number: int) -> tuple[int | None, tuple[int, int] | None]:
        """The outermost group of a piece, by number, and the span of the tokens of the piece."""
        if self.kind == "row" or not self.levels:
            return None, None
        index = np.unravel_index(number, self.pieces)
        tokens = self.run.plan.tokens[tuple(int(i) for i in index[: len(self.levels)])]
        owned = tokens[tokens >= 0]
        span = (int(owned.min()), int(owned.max())) if owned.size else None
        return int(index[0]), span


def _digest(mask: NDArray[np.bool_]) -> bytes:
    return hashlib.blake2b(np.packbits(mask).tobytes(), digest_size=16).digest()


def _folded_levels(program: Program, name: str) -> int | None:
    """How many levels enclose the state that a line of a fold depends on; None: it depends on none."""
    section = program.sites[name].section
    around = program.levels_to(section)
    depths = [
        len(program.levels_to(state.scope))
        for state_name, state in program.states.items()
        if state_name in _needed(program, name) and set(state.levels) & set(around)
    ]
    return min(depths) if depths else None


def _needed(program: Program, start: str = "output") -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in found or name not in program.sites:
            continue
        found.add(name)
        nodes = list(program.sites[name].expr.walk())
        if name in program.states:
            nodes += program.states[name].start.walk()
        for n in nodes:
            match n:
                case Name(id=other) | Prev(state=other) | Last(state=other):
                    todo.append(other)
                case _:
                    pass
    return found


def _meet(a: _Values, b: _Values) -> tuple[Array, Array, list[int], list[int]] | str:
    """The values that mean the same, and which pieces they are; or why none do."""
    if a.kind != b.kind:
        return f"a value of a {a.kind} on one side, of a {b.kind} on the other"
    views = [[v.run.program.views[r] for r in v.rest if r in v.run.program.views] for v in (a, b)]
    if [(v.size, v.index) for v in views[0]] != [(v.size, v.index) for v in views[1]]:
        return "kept by other lanes on either side"
    if len(a.rest) != len(b.rest):
        return "other axes on either side"
    common = [k for k in a.keys if k in b.keys]
    if a.kind == TOKEN:
        common.sort()
    if not common:
        return "groups own other tokens"
    rows_a, rows_b = [a.keys[k] for k in common], [b.keys[k] for k in common]
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
    if a.kind == TOKEN:
        at["token"] = int(a.run.plan.tokens.reshape(-1)[rows_a[piece]])
        span = None
    at |= dict(zip(a.rest, where[a.lead + 1 :], strict=True))
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
