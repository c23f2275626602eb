"""The parts in which two sides differ, as few as tell different stories.

A line belongs to a part by what it does in the dataflow, not by its name: what comes before a score; what makes weights
and sums of one group; the format of partial results with the merge that reads it. Besides lines, sides can differ in the
partition, in input and compute formats, and in the tensor cores of their platforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.explain.flat import Flat, FlatLine, reads, words_of
from specs.nodes import Reduce
from specs.platforms import Platform
from specs.program import ROW, TOKEN, Program

PARTITION, INPUTS, COMPUTE, CORES = "partition", "inputs", "compute format", "tensor cores"
SCORES, SUMS, MERGE = "scores", "weights and sums", "partials and merge"
#: Parts in the order of the dataflow.
ORDER = (INPUTS, COMPUTE, PARTITION, CORES, SCORES, SUMS, MERGE)
#: A thing that differs: one of the first four parts, or a line, as ``line NAME``.
Atom = str


@dataclass(frozen=True)
class Change:
    """One line that differs: its name, and its text on either side (None: it is not there)."""

    name: str
    a: str | None
    b: str | None
    place_a: str = ""
    place_b: str = ""


@dataclass(frozen=True)
class Part:
    """What is taken from one side or the other as a whole.

    Attributes:
        name: such as ``partition``; of several that cannot be told apart, joined by ``+``.
        atoms: what it consists of.
        changes: the same for people.
    """

    name: str
    atoms: tuple[Atom, ...]
    changes: tuple[Change, ...]


def line_atom(name: str) -> Atom:
    """The atom of a line."""
    return f"line {name}"


def references(flat: Flat, name: str) -> list[str]:
    """What a line, constant or view mentions: lines, constants and views, in the order of the text."""
    line: FlatLine | None = flat.lines.get(name)
    if line is not None:
        texts = [line.text, *([line.state[1]] if line.state is not None else [])]
    else:
        texts = [flat.constants[name] if name in flat.constants else flat.views[name]]
    known = {*flat.lines, *flat.constants, *flat.views}
    return [w for text in texts for w in dict.fromkeys(words_of(text)) if w in known]


def needed(flat: Flat, start: str = "output") -> set[str]:
    """Lines, constants and views that ``start`` depends on."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += references(flat, name)
    return found


def changed_lines(a: Flat, b: Flat) -> list[str]:
    """Lines that both sides need and write otherwise, in the order of ``a``."""
    both = needed(a) & needed(b)
    return [n for n in a.lines if n in both and n in b.lines and a.lines[n] != b.lines[n]]


def roles(program: Program) -> dict[str, str]:
    """The part of each line that the output depends on."""
    refs = {name: reads(program, name) for name in program.sites}
    live = _closure(refs, ["output"])
    sums = [
        n for n in live if n != "output" and program.sites[n].section != TOKEN and _sums_tokens(program, n)
    ]
    before_sums = _closure(refs, sums)
    found: dict[str, str] = {}
    for name in live:
        section = program.sites[name].section
        if section == TOKEN:
            found[name] = SCORES
        elif name in sums or (name in before_sums and (section != ROW or not program.levels)):
            found[name] = SUMS
        else:
            found[name] = MERGE
    return found


def _sums_tokens(program: Program, name: str) -> bool:
    return any(
        isinstance(n, Reduce) and n.kind in ("sum", "dot") and TOKEN in (n.over or ())
        for n in program.sites[name].expr.walk()
    )


def _closure(refs: Mapping[str, Sequence[str]], start: Sequence[str]) -> set[str]:
    found: set[str] = set()
    todo = list(start)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += refs[name]
    return found


def find_parts(
    a: Flat,
    b: Flat,
    programs: tuple[Program, Program],
    platforms: tuple[Platform, Platform],
    inputs: tuple[Mapping[str, str], Mapping[str, str]],
    *,
    fine: bool = False,
) -> list[Part]:
    """The parts in which two sides differ, in the order of the dataflow.

    Args:
        a, b: the sides, as `search.explain.flat.paired` gives them.
        programs: both, bound.
        platforms: both.
        inputs: formats in which q, k, v (or scores) are used, by side.
        fine: each line is a part of its own.
    """
    groups: dict[str, tuple[list[Atom], list[Change]]] = {}

    def add(part: str, atom: Atom, *changes: Change) -> None:
        atoms, listed = groups.setdefault(part, ([], []))
        atoms.append(atom)
        listed += changes

    if dict(inputs[0]) != dict(inputs[1]):
        names = [n for n in dict.fromkeys((*inputs[0], *inputs[1])) if inputs[0].get(n) != inputs[1].get(n)]
        add(INPUTS, INPUTS, *(Change(n, inputs[0].get(n), inputs[1].get(n)) for n in names))
    if a.compute != b.compute:
        add(COMPUTE, COMPUTE, Change("compute", a.compute, b.compute))
    if list(a.levels.items()) != list(b.levels.items()):
        names = [n for n in dict.fromkeys((*a.levels, *b.levels)) if a.levels.get(n) != b.levels.get(n)]
        names = names or list(a.levels)
        add(PARTITION, PARTITION, *(level_change(a, b, n) for n in names))
    used = _instructions(programs)
    left, right = ([d for d in p.dot_products if d.instruction in used] for p in platforms)
    if left != right:
        add(CORES, CORES, Change("mma", platforms[0].name, platforms[1].name))
    where = (roles(programs[0]), roles(programs[1]))
    changes = changed_lines(a, b)
    for name in changes:
        parts = {r[name] for r in where if name in r} or {MERGE}
        part = next(p for p in (MERGE, SUMS, SCORES) if p in parts)
        add(f"line {name}" if fine else part, line_atom(name), line_change(a, b, name))
    _add_lonely(a, b, groups, where)
    ranked = sorted(groups, key=lambda p: ORDER.index(p) if p in ORDER else len(ORDER))
    return [Part(p, tuple(groups[p][0]), tuple(groups[p][1])) for p in ranked]


def _add_lonely(
    a: Flat, b: Flat, groups: dict[str, tuple[list[Atom], list[Change]]], where: tuple[dict[str, str], ...]
) -> None:
    """Lines of one side alone come with the lines that read them: they are shown there."""
    for flat, other in ((a, b), (b, a)):
        alone = [n for n in flat.lines if n in needed(flat) and n not in other.lines]
        for name in alone:
            home = _reader(flat, name, groups)
            if home is not None:
                groups[home][1].append(line_change(a, b, name))


def _reader(flat: Flat, name: str, groups: dict[str, tuple[list[Atom], list[Change]]]) -> str | None:
    """The part of the nearest line that reads ``name`` and that differs."""
    seen, todo = {name}, [name]
    while todo:
        current = todo.pop(0)
        for part, (atoms, _) in groups.items():
            if line_atom(current) in atoms:
                return part
        for other in flat.lines:
            if other not in seen and current in references(flat, other):
                seen.add(other)
                todo.append(other)
    return None


def line_change(a: Flat | None, b: Flat | None, name: str) -> Change:
    """A line on both sides; None: the side has it not, or not here."""
    own = [flat if flat is not None and name in flat.lines else None for flat in (a, b)]
    texts = [None if flat is None else _shown(flat, name) for flat in own]
    places = ["" if flat is None else str(flat.place(name)) for flat in own]
    return Change(name, texts[0], texts[1], places[0], places[1])


def _shown(flat: Flat, name: str) -> str:
    """The text of the file, with how the state starts, where it says so."""
    line = flat.lines[name]
    start = f"  (starts at {line.state[1]})" if line.state is not None else ""
    return flat.source(name) + start


def level_change(a: Flat, b: Flat, name: str) -> Change:
    """A level on both sides."""
    shown = [
        f"{flat.own.get(name, name)}: {flat.levels[name]}" if name in flat.levels else None for flat in (a, b)
    ]
    return Change(name, shown[0], shown[1])


def _instructions(programs: Sequence[Program]) -> set[str]:
    found: set[str] = set()
    for program in programs:
        for site in program.sites.values():
            for n in site.expr.walk():
                if isinstance(n, Reduce) and n.tree is not None:
                    todo = [n.tree]
                    while todo:
                        tree = todo.pop()
                        if tree.kind == "mma":
                            found.add(tree.instruction)
                        todo += tree.inner
    return found
