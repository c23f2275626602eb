"""From a name or a path to a checked, resolved `Spec`.

Everything that can be wrong without knowing the shape is found here, with file, line and column: TOML, keys,
formats, the syntax of every formula, names that nothing declares, sections that no level names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path as FilePath
from types import MappingProxyType

from specs.check import check_spec, parse_line
from specs.discover import is_path, resolve
from specs.document import Document, parse_document, read_document, validate
from specs.errors import Place, SpecError
from specs.merge import Key, Places, apply_variant, extend, index
from specs.nodes import LevelRule, Node
from specs.scan import Path
from specs.schema import Numbers, SpecFile
from specs.writer import to_toml

MAX_EXTENDS = 8


@dataclass(frozen=True, eq=False)
class Spec:
    """A resolved spec: no ``extends`` is left, variants are not yet applied.

    Two specs are equal when their canonical texts are.

    Attributes:
        file: the tables, as pydantic models.
        origin: the path it was read from, or what its text was called.
        warnings: sentences for the user, such as that this file hides another of the same name.
    """

    file: SpecFile
    origin: str
    warnings: tuple[str, ...] = ()
    places: Mapping[Key, tuple[Document, Path]] = field(
        default_factory=dict[Key, tuple[Document, Path]], repr=False
    )

    @property
    def name(self) -> str:
        """The spec's name, such as ``walkthrough.xqa``."""
        return self.file.name

    @property
    def numbers(self) -> Numbers:
        """The number formats. Every resolved spec has them."""
        assert self.file.numbers is not None
        return self.file.numbers

    @property
    def assumption(self) -> str:
        """What every result of this spec has to say besides: which lines are assumed, and why; or nothing."""
        found = self.file.assumed
        if found is None:
            return ""
        return f"{self.name}: {', '.join(found.lines)} are assumed, not known: {found.why}"

    @property
    def levels(self) -> dict[str, str]:
        """Level name to rule, outermost first."""
        return self.file.levels

    @property
    def sections(self) -> dict[str, dict[str, str]]:
        """Section (``token``, a level, ``row``) to its sites, in the order of the file."""
        return self.file.sections

    def place(self, section: str, name: str, at: int = 0) -> Place:
        """Where a line stands: the character ``at`` of its text, or its key where the value is not a string.

        Args:
            section: ``token``, ``row``, a level, ``let``, ``constants``, ``levels``, ``options``,
                ``numbers``, ``state.SCOPE`` or ``variant.N.SECTION``; ``variant.N`` with name ``when``.
            name: the site or key.
            at: offset into the text of the line (`Node.at`).
        """
        found = self.places.get((section, name))
        return Place(self.origin) if found is None else found[0].char(found[1], at)

    def node(self, section: str, name: str) -> Node:
        """The parsed expression of a line, by the same two names as `place`.

        Raises:
            KeyError: there is no such line.
        """
        return self._parsed(section, name, self.text(section, name))

    def level(self, name: str) -> LevelRule:
        """The parsed rule of level ``name``."""
        rule = self._parsed("levels", name, self.levels[name])
        assert isinstance(rule, LevelRule)
        return rule

    def text(self, section: str, name: str) -> str:
        """The text of a line, by the same two names as `place`.

        Raises:
            KeyError: there is no such line.
        """
        head, _, rest = section.partition(".")
        if head == "variant":
            number, _, inner = rest.partition(".")
            variant = self.file.variants[int(number)]
            return variant.when if not inner else self._lines(variant, inner)[name]
        return self._lines(self.file, section)[name]

    @staticmethod
    def _lines(lines: object, section: str) -> dict[str, str]:
        if section.startswith("state."):
            return lines.state[section.removeprefix("state.")]  # type: ignore[attr-defined]
        if section in ("let", "constants", "levels"):
            return getattr(lines, section)
        return lines.sections[section]  # type: ignore[attr-defined]

    def _parsed(self, section: str, name: str, text: str) -> Node:
        known = self._nodes
        if (section, name) not in known:
            known[section, name] = parse_line(section, text, self.places.get((section, name)), self.origin)
        return known[section, name]

    @cached_property
    def _nodes(self) -> dict[Key, Node]:
        return {}

    def with_variant(self, number: int) -> Spec:
        """Lay the lines of variant ``number`` over this spec; the list of variants stays as it is.

        Raises:
            SpecError: the result is contradictory, such as one site in two sections.
        """
        if number not in self._laid_over:
            file, places = apply_variant(self.file, self.places, number)
            out = Spec(file, self.origin, self.warnings, MappingProxyType(places))
            check_spec(out.file, out.places, out.origin, variants=False)
            self._laid_over[number] = out
        return self._laid_over[number]

    @cached_property
    def _laid_over(self) -> dict[int, Spec]:
        return {}

    def to_toml(self) -> str:
        """The canonical text: reading it gives an equal spec."""
        return to_toml(self.file)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the canonical text, in hexadecimal."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)


def load_spec(name_or_path: str | FilePath) -> Spec:
    """The spec of a name (``walkthrough.xqa``) or a path (``./my.toml``), resolved and checked.

    Raises:
        SpecError: with place, cause and remedy, whatever is wrong with the name, the file or its text.
    """
    found = resolve(str(name_or_path), base=None)
    path = found.path
    document = read_document(path)
    spec = _build(document, path)
    if found.kind != "path" and spec.name != found.name:
        raise SpecError(
            f"the file is called {found.name} but holds '{spec.name}'",
            place=spec.place("name", "name") if not spec.places else document.char(("name",)),
            remedy=f"rename the file to {spec.name}.toml, or load it by its path",
        )
    if found.warning:
        spec = Spec(spec.file, spec.origin, (found.warning, *spec.warnings), spec.places)
    return spec


def parse_spec(text: str, name: str = "<text>") -> Spec:
    """The spec of a TOML text. ``name`` is what messages call the text.

    Raises:
        SpecError: as `load_spec`.
    """
    return _build(parse_document(text, name), None)


def _build(document: Document, path: FilePath | None) -> Spec:
    file, places = _resolved(document, path, ())
    check_spec(file, places, document.name)
    return Spec(file, document.name, (), MappingProxyType(places))


def _resolved(document: Document, path: FilePath | None, chain: tuple[str, ...]) -> tuple[SpecFile, Places]:
    """The file with everything that it extends under it."""
    file = validate(SpecFile, document, _to_path)
    places = index(file, document)
    if file.extends is None:
        return file, places
    place = document.char(("extends",))
    here = document.name if path is None else str(path.resolve())
    folder = None if path is None else path.parent
    try:
        parent = resolve(file.extends, base=folder if is_path(file.extends) else None, but=path)
        if len(chain) >= MAX_EXTENDS or str(parent.path.resolve()) in (*chain, here):
            raise SpecError(
                f"'{file.name}' extends itself by way of '{file.extends}'", remedy="break the cycle"
            )
        below = read_document(parent.path)
    except SpecError as error:
        raise SpecError(f"extends: {error.cause}", place=place, remedy=error.remedy) from None
    base, base_places = _resolved(below, parent.path, (*chain, here))
    return extend(base, base_places, file, places)


def _to_path(loc: Path) -> Path:
    """A location in the models as a path in the TOML text, which has no table ``sections``."""
    path = tuple(p for p in loc if p != "[key]")
    if path and path[0] == "sections":
        return path[1:]
    if len(path) > 2 and path[0] == "variant" and path[2] == "sections":
        return (*path[:2], *path[3:])
    return path
