"""What can be wrong with a spec before its shape is known: syntax, undeclared names, contradictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from specs.context import CONTEXT, INPUT_FORMATS, LENGTHS
from specs.document import Document, collect
from specs.errors import Place, SpecError, did_you_mean
from specs.grammar import parse_expr, parse_level
from specs.merge import Key
from specs.names import HEAD_SCALARS, INDICES, SCALARS
from specs.nodes import At, Last, LevelRule, Name, Node, Owns, Pos, Prev, Reduce
from specs.scan import Path
from specs.schema import TOP_KEYS, Lines, SpecFile

Where = Mapping[Key, tuple[Document, Path]]
AXES = ("token", "row", "dim", "depth")
#: Names that stand for a value in every expression.
GIVEN = ("q", "k", "v", *SCALARS, *HEAD_SCALARS, *INDICES, "visible", "inf", "nan", "true", "false")


def parse_line(section: str, text: str, where: tuple[Document, Path] | None, origin: str) -> Node:
    """Parse the text of one line: a level rule in ``levels``, an expression elsewhere.

    Args:
        section: the line's section, as in `Spec.place`.
        text: the text.
        where: the document and path of the line, for the position of an error.
        origin: the file's name where ``where`` is None.

    Raises:
        SpecError: a syntax error, with its column in the file.
    """
    parse: Callable[[str, Place], Node] = parse_level if section.endswith("levels") else parse_expr
    if where is None:
        return parse(text, Place(origin))
    document, path = where
    try:
        return parse(text, Place(document.name, 1, 1))  # columns as offsets into the text, mapped below
    except SpecError as error:
        offset = error.place.column - 1 if isinstance(error.place, Place) else 0
        raise SpecError(error.cause, place=document.char(path, offset), remedy=error.remedy) from None


def check_spec(file: SpecFile, places: Where, origin: str, *, variants: bool = True) -> None:
    """Check a resolved spec; with ``variants`` also the lines of its variants.

    Raises:
        SpecError: all that was found, in one error.
    """
    errors = list(_Checker(file, places, origin).errors(variants))
    if errors:
        raise collect(errors)


class _Checker:
    """The names of one spec, and the rules over them."""

    def __init__(self, file: SpecFile, places: Where, origin: str) -> None:
        self.file, self.places, self.origin = file, places, origin
        every: list[Lines] = [file, *file.variants]
        self.levels = {name for lines in every for name in lines.levels}
        self.integers = {name for lines in every for name in lines.let}
        self.constants = {name for lines in every for name in lines.constants}
        self.states = {name for lines in every for scope in lines.state.values() for name in scope}
        self.sites = {name for lines in every for section in lines.sections.values() for name in section}

    def at(self, section: str, name: str, offset: int | None = None) -> Place:
        """The place of a line's key, or of one character of its text."""
        found = self.places.get((section, name))
        if found is None:
            return Place(self.origin)
        return found[0].key(found[1]) if offset is None else found[0].char(found[1], offset)

    def errors(self, variants: bool) -> Iterator[SpecError]:
        yield from self.whole()
        yield from self.lines(self.file, "")
        for n, require in enumerate(self.file.requires):
            yield from self.line(f"require.{n}", "that", require.that, integer=True)
        if variants:
            for n, variant in enumerate(self.file.variants):
                yield from self.line(f"variant.{n}", "when", variant.when, integer=True)
                yield from self.lines(variant, f"variant.{n}.")
                known = self.sites | self.states | self.constants | self.integers | self.levels
                for name in variant.drop:
                    if name not in known:
                        where = self.at(f"variant.{n}", "drop")
                        yield SpecError(
                            f"drop: there is no '{name}'", place=where, remedy=did_you_mean(name, known)
                        )

    def whole(self) -> Iterator[SpecError]:
        """Rules over the spec without its variants."""
        file = self.file
        if file.numbers is None:
            yield SpecError(
                "[numbers] is missing",
                place=self.origin,
                remedy='add [numbers] with compute = "f32" and inputs',
            )
        if "output" not in file.sections.get("row", {}):
            yield SpecError(
                "[row] has no site 'output'",
                place=self.origin,
                remedy="the result of a row is the site output of [row]",
            )
        for name in file.assumed.lines if file.assumed is not None else ():
            if name not in self.sites:
                where = self.at("assumed", "lines")
                yield SpecError(
                    f"assumed: no line '{name}'", place=where, remedy=did_you_mean(name, self.sites)
                )
        for name in file.faults:
            if name not in self.sites:
                where = self.at("faults", name)
                yield SpecError(
                    f"faults: no line '{name}'", place=where, remedy=did_you_mean(name, self.sites)
                )
        owners: dict[str, str] = {}
        groups: list[tuple[str, Iterable[str]]] = [
            ("options", file.options),
            ("let", file.let),
            ("constants", file.constants),
            ("levels", file.levels),
            *file.sections.items(),
        ]
        for section, names in groups:
            for name in names:
                if name in owners:
                    yield SpecError(
                        f"'{name}' is in [{owners[name]}] and in [{section}]",
                        place=self.at(section, name),
                        remedy="a name means one thing: rename one of them, or drop it first",
                    )
                elif name in (*CONTEXT, LENGTHS, *INPUT_FORMATS, *GIVEN):
                    yield SpecError(
                        f"'{name}' is given to every spec",
                        place=self.at(section, name),
                        remedy="choose another name",
                    )
                elif section == "levels" and name in TOP_KEYS:
                    yield SpecError(
                        f"a level cannot be called '{name}'",
                        place=self.at(section, name),
                        remedy="choose another name",
                    )
                owners[name] = section
        for scope, starts in file.state.items():
            for name in starts:
                if owners.get(name) not in file.sections:
                    yield SpecError(
                        f"state '{name}' is never updated",
                        place=self.at(f"state.{scope}", name),
                        remedy=f"add a site '{name}' to a level inside {scope}, or remove the state",
                    )

    def lines(self, lines: Lines, prefix: str) -> Iterator[SpecError]:
        """Check every line of the spec or of one variant."""
        sections = {"token", "row", *self.levels}
        for section, sites in lines.sections.items():
            if section not in sections:
                known = sections | set(TOP_KEYS)
                where = self.at(prefix + section, next(iter(sites), ""))
                found = self.places.get((prefix + section, next(iter(sites), "")))
                where = found[0].key(found[1][:-1]) if found else where
                yield SpecError(
                    f"unknown section [{section}]: not token, row or a level",
                    place=where,
                    remedy=did_you_mean(section, known),
                )
                continue
            for name, text in sites.items():
                yield from self.line(prefix + section, name, text)
        for scope, starts in lines.state.items():
            if scope != "row" and scope not in self.levels:
                found = self.places.get((f"{prefix}state.{scope}", next(iter(starts), "")))
                where = found[0].key(found[1][:-1]) if found else Place(self.origin)
                known = {"row", *self.levels}
                yield SpecError(
                    f"unknown scope in [state.{scope}]", place=where, remedy=did_you_mean(scope, known)
                )
            for name, text in starts.items():
                yield from self.line(f"{prefix}state.{scope}", name, text)
        for name, text in lines.let.items():
            yield from self.line(f"{prefix}let", name, text, integer=True)
        for name, text in lines.constants.items():
            yield from self.line(f"{prefix}constants", name, text)
        for name, text in lines.levels.items():
            yield from self.line(f"{prefix}levels", name, text, integer=True)

    def line(self, section: str, name: str, text: str, *, integer: bool = False) -> Iterator[SpecError]:
        """Parse one line and check every name in it."""
        try:
            node = parse_line(section, text, self.places.get((section, name)), self.origin)
        except SpecError as error:
            yield error
            return
        known = {*CONTEXT, LENGTHS, *INPUT_FORMATS, *self.file.options, *self.integers}
        if not integer:
            known |= {*GIVEN, *self.constants, *self.sites}
        for inner, extra in _walk(node, frozenset()):
            for word, what, names in self.words(inner, known | extra):
                if word not in names:
                    yield SpecError(
                        f"unknown {what} '{word}'",
                        place=self.at(section, name, getattr(inner, "at", 0)),
                        remedy=did_you_mean(word, names),
                    )

    def words(self, node: Node, known: set[str]) -> Iterator[tuple[str, str, set[str]]]:
        """The names that a node uses itself: each with what it is and which names would do."""
        axes = {*AXES, *self.levels}
        match node:
            case Name(id=word):
                yield word, "name", known
            case Prev(state=state, level=level):
                yield state, "state", self.states
                if level is not None:
                    yield level, "level", self.levels
            case Last(state=state):
                yield state, "state", self.states
            case Pos(axis=axis):
                yield axis, "axis", axes
            case Owns(level=level):
                yield level, "level", self.levels
            case At(moves=moves):
                for axis, _ in moves:
                    yield axis, "axis", axes
            case Reduce(over=over, by=by):
                for axis in over or ():
                    yield axis, "axis", axes
                if by is not None:
                    yield by, "view", self.levels
            case _:
                pass


def _walk(node: Node, extra: frozenset[str]) -> Iterator[tuple[Node, frozenset[str]]]:
    """Every node, with the names that only exist inside it: ``it`` in ``first=``."""
    yield node, extra
    if isinstance(node, Reduce) and node.first is not None:
        yield from _walk(node.first, extra | {"it"})
        for child in (*node.args, node.tree, node.start):
            if child is not None:
                yield from _walk(child, extra)
        return
    for child in node.children():
        yield from _walk(child, extra)


__all__ = ["LevelRule", "check_spec", "parse_line"]
