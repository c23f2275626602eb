"""A bound spec as plain tables: variants applied, integers written out, levels under names that both sides share.

Two sides become comparable line by line, and a hybrid of them is a spec again: its text is parsed and checked like any
other. Every integer of ``[let]``, option and word of the context stands in a line as the literal that `specs.bind` would
put there, so that a line means the same wherever it goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from specs.bind import applied
from specs.diff import paired_levels
from specs.errors import Place
from specs.loader import Spec
from specs.nodes import Last, Name, Prev
from specs.program import Program
from verify.emulator import Run

#: What a reduction calls its arguments: not the lines of these names.
KEYWORDS = ("start", "first", "over", "by")
#: A quoted word, a number, or a name with its dots.
_WORD = re.compile(r"'[^']*'|\d[\w.]*|[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class FlatLine:
    """A site: its section, its text, and how its state starts (scope and text) where it updates one."""

    section: str
    text: str
    state: tuple[str, str] | None = None


@dataclass(frozen=True)
class Flat:
    """One side.

    Attributes:
        spec: with its variants applied, under its own names.
        label: what messages call it.
        compute: format of unmarked operations. inputs: formats to which q, k and v are rounded.
        levels: nesting levels, outermost first; views, constants, lines: by name.
        own: by shared name of a level, view or constant, the name in the spec.
    """

    spec: Spec
    label: str
    compute: str
    inputs: Mapping[str, str]
    levels: Mapping[str, str]
    views: Mapping[str, str]
    constants: Mapping[str, str]
    lines: Mapping[str, FlatLine]
    own: Mapping[str, str]

    def names(self) -> set[str]:
        """Every name that the tables declare."""
        return {*self.levels, *self.views, *self.constants, *self.lines}

    def place(self, line: str) -> Place:
        """Where a line of a section stands in the file."""
        section = self.lines[line].section
        return self.spec.place(self.own.get(section, section), line)

    def source(self, line: str) -> str:
        """The text of a line as the file has it."""
        section = self.lines[line].section
        return self.spec.sections[self.own.get(section, section)][line]


def flatten(run: Run, label: str) -> Flat:
    """The tables of a bound run.

    Raises:
        SpecError, InputError: as `specs.bind.bind`.
    """
    formats = {n: f for n, f in run.problem.formats.items() if n in ("q", "k", "v")}
    spec, integers = applied(run.spec, run.plan.context, run.options, formats)
    words = {f"{n}_format": f.base for n, f in formats.items()}
    values: dict[str, Any] = {**run.plan.context, **words, **spec.file.options, **run.options, **integers}
    known = {
        name: _literal(value) for name, value in values.items() if isinstance(value, bool | int | float | str)
    }

    def text(line: str) -> str:
        return substituted(line, lambda word, keyword: word if keyword else known.get(word, word))

    file = spec.file
    is_view = {name: rule.lstrip().startswith("view") for name, rule in file.levels.items()}
    states = {
        name: (scope, text(start)) for scope, table in file.state.items() for name, start in table.items()
    }
    lines = {
        name: FlatLine(section, text(line), states.get(name))
        for section, table in file.sections.items()
        for name, line in table.items()
    }
    return Flat(
        spec=spec,
        label=label,
        compute=spec.numbers.compute,
        inputs={n: str(spec.numbers.input_format(n)) for n in ("q", "k", "v", "scores", "values")},
        levels={n: text(rule) for n, rule in file.levels.items() if not is_view[n]},
        views={n: text(rule) for n, rule in file.levels.items() if is_view[n]},
        constants={n: text(line) for n, line in file.constants.items()},
        lines=lines,
        own={},
    )


def paired(a: Flat, b: Flat) -> tuple[Flat, Flat]:
    """Both sides with levels of the same role under one name, and with views and constants told apart.

    Levels meet as `specs.diff` pairs them. A view or constant of ``b`` whose name means something else in ``a`` gets
    another name.
    """
    taken = a.names() | b.names()
    map_a: dict[str, str] = {}
    map_b: dict[str, str] = {}
    for x, y in paired_levels(a.spec, b.spec):
        if x is not None and y is not None and x != y:
            free = x if x not in b.names() else _free(f"{x}_{y}", taken)
            map_a[x], map_b[y] = free, free
            taken.add(free)
        elif y is not None and x is None and y in a.names():
            map_b[y] = _free(f"{y}_b", taken)
            taken.add(map_b[y])
        elif x is not None and y is None and x in b.names():
            map_a[x] = _free(f"{x}_a", taken)
            taken.add(map_a[x])
    left, right = renamed(a, map_a), renamed(b, map_b)
    more: dict[str, str] = {}
    for table, other in ((right.views, left.views), (right.constants, left.constants)):
        for name, text in table.items():
            if name in left.names() and other.get(name) != text:
                more[name] = _free(f"{name}_b", taken)
                taken.add(more[name])
    mine: dict[str, str] = {}
    for name in (*left.views, *left.constants):
        if name in right.lines:
            mine[name] = _free(f"{name}_a", taken)
            taken.add(mine[name])
    return renamed(left, mine), renamed(right, more)


def substituted(text: str, change: Callable[[str, bool], str]) -> str:
    """``text`` with its names changed, but for those of functions and formats that are called.

    ``change`` takes the name and whether it is a keyword: what stands before a single ``=``.
    """

    def one(match: re.Match[str]) -> str:
        word = match[0]
        if not (word[0].isalpha() or word[0] == "_") or "." in word:
            return word
        rest = text[match.end() :].lstrip()
        if rest.startswith("("):
            return word
        keyword = rest.startswith("=") and not rest.startswith("==")
        return word if keyword and word in KEYWORDS else change(word, keyword)

    return _WORD.sub(one, text)


def words_of(text: str) -> Iterator[str]:
    """The names in a line, but for those of functions."""
    found: list[str] = []
    substituted(text, lambda word, keyword: found.append(word) or word)
    yield from found


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "(0 == 0)" if value else "(0 == 1)"  # no literal of the language is a condition
    if isinstance(value, str):
        return f"'{value}'"
    return str(value) if value >= 0 else f"({value})"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name[:48]


def renamed(flat: Flat, names: Mapping[str, str]) -> Flat:
    """A side under other names."""
    if not names:
        return flat

    def text(line: str) -> str:
        return substituted(line, lambda word, keyword: names.get(word, word))

    def of(name: str) -> str:
        return names.get(name, name)

    lines = {
        name: FlatLine(
            of(line.section),
            text(line.text),
            None if line.state is None else (of(line.state[0]), text(line.state[1])),
        )
        for name, line in flat.lines.items()
    }
    own = dict(flat.own)
    own |= {new: flat.own.get(old, old) for old, new in names.items()}
    return replace(
        flat,
        levels={of(n): text(rule) for n, rule in flat.levels.items()},
        views={of(n): text(rule) for n, rule in flat.views.items()},
        constants={of(n): text(line) for n, line in flat.constants.items()},
        lines=lines,
        own=own,
    )


def reads(program: Program, name: str) -> list[str]:
    """The sites that a line reads, and the start of its state, as often as it does."""
    nodes = list(program.sites[name].expr.walk())
    if name in program.states:
        nodes += program.states[name].start.walk()
    found: list[str] = []
    for n in nodes:
        match n:
            case Name(id=other) | Prev(state=other) | Last(state=other) if other in program.sites:
                found.append(other)
            case _:
                pass
    return found
