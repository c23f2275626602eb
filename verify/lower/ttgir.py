"""What a kernel reduces and multiplies, from the text of TTGIR: operations, layouts, and which feeds which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from verify.lower.layout import Spread, definitions, spread

Role = Literal["score_max", "tile_sum", "merge_max", "weights", "denominator", "numerator", "other"]

_OPERATION = re.compile(r'^\s*(?P<names>%[\w:, #%]+?) = "?(?P<op>[\w.]+)"?(?P<rest>.*)$')
_REDUCE_END = re.compile(r"^\s*\}\) : \((?P<types>.*)\) -> (?P<result>.*?)(?: loc\(.*\))?$")
_TENSOR = re.compile(r"tensor<(?P<shape>(?:\d+x)*)(?P<element>\w+)(?:, (?P<layout>#.*))?>$")
_PASSED = ("ttg.convert_layout", "arith.select", "tt.reshape", "tt.expand_dims", "tt.broadcast", "tt.trans")
DOTS = ("tt.dot", "ttng.warp_group_dot", "ttng.tc_gen5_mma")


@dataclass(frozen=True)
class Operation:
    """One operation: its operands by name and its text behind the name, types and all."""

    op: str
    operands: tuple[str, ...]
    rest: str


@dataclass(frozen=True)
class Reduction:
    """A ``tt.reduce``: ``length`` places along ``axis`` of a tensor of ``shape``, and how they are spread."""

    kind: str
    shape: tuple[int, ...]
    axis: int
    layout: str
    spread: Spread | None
    role: Role
    place: str
    columns: Spread | None

    @property
    def length(self) -> int:
        """Places along the axis."""
        return self.shape[self.axis]


@dataclass(frozen=True)
class Dot:
    """A matrix product: ``scores`` feeds a maximum, ``values`` takes weights, else ``other``."""

    role: Literal["scores", "values", "other"]
    op: str
    place: str


@dataclass(frozen=True)
class Program:
    """Operations of one kernel by the name of their (first) result."""

    defs: dict[str, Operation]
    reductions: tuple[Reduction, ...]
    dots: tuple[Dot, ...]


def program(text: str) -> Program:
    """Read a module's text."""
    known, places = definitions(text), _places(text)
    defs: dict[str, Operation] = {}
    raw: list[tuple[str, str, str, str, str]] = []
    inside: tuple[str, str, str] | None = None
    kind = ""
    for line in text.splitlines():
        if inside is not None:
            end = _REDUCE_END.match(line)
            if end is not None:
                name, operand, axis = inside
                raw.append((name, operand, axis, kind or "other", end["types"] + "@" + _place(line, places)))
                inside = None
            else:
                word = re.search(r"= (arith\.\w+)", line)
                if word is not None:
                    joined = {"arith.addf": "sum", "arith.maxnumf": "max", "arith.maximumf": "max"}
                    joined |= {"arith.minnumf": "min", "arith.minimumf": "min"}
                    kind = joined.get(word[1], "other") if not kind else "other"
            continue
        m = _OPERATION.match(line)
        if m is None:
            continue
        rest = re.sub(r" loc\(.*\)$", "", m["rest"])
        name = m["names"].split(",")[0].split(":")[0].strip()
        operands = tuple(re.findall(r"%[\w]+", rest))
        defs[name] = Operation(m["op"], operands, rest + "@" + _place(line, places))
        if m["op"] == "tt.reduce" and rest.rstrip().endswith("({"):
            axis = re.search(r"axis = (\d+)", rest)
            inside, kind = (name, operands[0], axis[1] if axis else "0"), ""
    found = tuple(r for r in (_reduction(defs, known, *each) for each in raw) if r is not None)
    return Program(defs, found, tuple(_dots(defs, raw)))


def _places(text: str) -> dict[str, str]:
    """``#locN`` to "line:column" of the user's file where that is known."""
    out: dict[str, str] = {}
    table = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))
    for name in table:
        body = table[name]
        for _ in range(8):
            outer = re.search(r"callsite\(.* at (#loc\d*)\)|\"[^\"]*\"\((#loc\d*)\)", body)
            if outer is None:
                break
            body = table.get(outer[1] or outer[2], "")
        at = re.search(r'"[^"]*":(\d+):(\d+)', body)
        if at is not None:
            out[name] = f"{at[1]}:{at[2]}"
    return out


def _place(line: str, places: dict[str, str]) -> str:
    found = re.search(r" loc\((#loc\d*)\)$", line)
    return places.get(found[1], "") if found else ""


def tensor(text: str) -> tuple[tuple[int, ...], str] | None:
    """Shape and layout of a tensor type."""
    m = _TENSOR.match(text.strip())
    if m is None:
        return None
    return tuple(int(n) for n in m["shape"].split("x") if n), m["layout"] or ""


def _behind(
    defs: dict[str, Operation], start: str, *, through_sums: bool = False
) -> Iterator[tuple[str, str]]:
    """(name, op) of everything a value is computed from, nearest first, not through reductions and products."""
    seen, left = set[str](), [start]
    while left:
        name = left.pop(0)
        if name in seen or name not in defs:
            continue
        seen.add(name)
        found = defs[name]
        yield name, found.op
        if (found.op == "tt.reduce" and not through_sums) or found.op in (*DOTS, "tt.load", "scf.for"):
            continue
        left.extend(found.operands)


def _reduction(
    defs: dict[str, Operation],
    known: dict[str, str],
    name: str,
    operand: str,
    axis: str,
    kind: str,
    types: str,
) -> Reduction | None:
    kind_of, _, place = types.partition("@")
    read = tensor(kind_of)
    if read is None:
        return None
    shape, layout = read
    at = int(axis)
    return Reduction(
        kind=kind,
        shape=shape,
        axis=at,
        layout=known.get(layout, layout),
        spread=spread(layout, shape, at, known),
        role=_role(defs, operand, kind, shape),
        place=place,
        columns=_columns(defs, known, name),
    )


def _role(defs: dict[str, Operation], operand: str, kind: str, shape: tuple[int, ...]) -> Role:
    ops = [op for _, op in _behind(defs, operand)]
    dots, loads = any(op in DOTS for op in ops), "tt.load" in ops
    if kind == "max":
        return "score_max" if dots else "merge_max" if loads and len(shape) == 1 else "other"
    exps = [n for n, op in _behind(defs, operand) if op in ("math.exp", "math.exp2")]
    if kind != "sum" or not exps:
        return "other"
    top = next(op for _, op in _behind(defs, operand) if op not in _PASSED)
    if top in ("math.exp", "math.exp2"):
        return "tile_sum" if dots else "weights" if len(shape) == 1 else "other"
    if top == "arith.mulf" and not dots:
        return "denominator" if len(shape) == 1 else "numerator"
    return "other"


def _columns(defs: dict[str, Operation], known: dict[str, str], name: str) -> Spread | None:
    """How the columns are spread that a scalar result divides."""
    for other in defs.values():
        if other.op == "tt.splat" and other.operands[:1] == (name,):
            read = tensor(other.rest.partition("@")[0].rpartition("-> ")[2])
            if read is not None and len(read[0]) == 1:
                return spread(read[1], read[0], 0, known)
    return None


def _dots(defs: dict[str, Operation], raw: list[tuple[str, str, str, str, str]]) -> Iterator[Dot]:
    scores = {n for each in raw if each[3] == "max" for n, op in _behind(defs, each[1]) if op in DOTS}
    for name, found in defs.items():
        if found.op not in DOTS:
            continue
        weights = found.operands and any(
            op.startswith("math.exp") for _, op in _behind(defs, found.operands[0])
        )
        role = "scores" if name in scores else "values" if weights else "other"
        yield Dot(role, found.op, found.rest.rpartition("@")[2])
