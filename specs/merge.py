"""Lines laid over lines: how a variant changes a spec, and a child the spec that it extends.

Both work alike: what ``drop`` names disappears, then every line replaces the line of the same name in the
same table, where it keeps its position, or is added at the end. A spec also remembers where each of its lines
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from specs.document import Document
from specs.scan import Path
from specs.schema import Lines, SpecFile

Key = tuple[str, str]
"""A line of a spec: its section (``token``, ``row``, a level, ``let``, ``state.row``, ...) and its name."""
Places = dict[Key, tuple[Document, Path]]
TABLES = ("let", "constants", "levels")

_V = TypeVar("_V")


def index(file: SpecFile, document: Document) -> Places:
    """Where each line of ``file``, read from ``document``, stands; a variant's are in ``variant.2.row``."""
    places: Places = {}

    def add(section: str, names: Any, path: Path) -> None:
        for name in names:
            places[section, name] = (document, (*path, name))

    def lines(of: Lines, prefix: str, path: Path) -> None:
        for table in TABLES:
            add(prefix + table, getattr(of, table), (*path, table))
        for scope, table in of.state.items():
            add(f"{prefix}state.{scope}", table, (*path, "state", scope))
        for section, table in of.sections.items():
            add(prefix + section, table, (*path, section))

    add("", ("name", "status", "summary", "extends", "drop"), ())
    add("assumed", ("lines", "why"), ("assumed",))
    add("faults", file.faults, ("faults",))
    add("numbers", ("compute", "inputs"), ("numbers",))
    add("options", file.options, ("options",))
    for n in range(len(file.requires)):
        add(f"require.{n}", ("that", "message"), ("require", n))
    lines(file, "", ())
    for n, variant in enumerate(file.variants):
        add(f"variant.{n}", ("when", "drop"), ("variant", n))
        lines(variant, f"variant.{n}.", ("variant", n))
    return places


def apply_variant(
    file: SpecFile, places: Mapping[Key, tuple[Document, Path]], number: int
) -> tuple[SpecFile, Places]:
    """The file with the lines of variant ``number`` laid over it, and its places. All variants stay."""
    prefix = f"variant.{number}."
    moved = {(s.removeprefix(prefix), n): at for (s, n), at in places.items() if s.startswith(prefix)}
    return file.model_copy(update=_over(file, file.variants[number])), {**places, **moved}


def extend(
    base: SpecFile, base_places: Places, child: SpecFile, child_places: Places
) -> tuple[SpecFile, Places]:
    """``child`` laid over ``base``, which it extends.

    Name, status and summary are the child's; sources and requirements of both are kept; the child's variants
    come last.
    """
    update = _over(base, child)
    update |= {
        "name": child.name,
        "status": child.status,
        "summary": child.summary,
        "extends": None,
        "sources": (*child.sources, *(s for s in base.sources if s not in child.sources)),
        "assumed": child.assumed or base.assumed,
        "faults": {**base.faults, **child.faults},
        "numbers": child.numbers or base.numbers,
        "options": {**{k: v for k, v in base.options.items() if k not in child.drop}, **child.options},
        "requires": (*base.requires, *child.requires),
        "variants": (*base.variants, *child.variants),
    }
    by = {"variant": len(base.variants), "require": len(base.requires)}
    shifted = {(_shift(section, by), name): at for (section, name), at in child_places.items()}
    return base.model_copy(update=update), {**base_places, **shifted}


def _shift(section: str, by: Mapping[str, int]) -> str:
    head, _, rest = section.partition(".")
    if head not in by:
        return section
    number, dot, tail = rest.partition(".")
    return f"{head}.{int(number) + by[head]}{dot}{tail}"


def _over(base: Lines, top: Lines) -> dict[str, Any]:
    """The tables of ``top`` laid over those of ``base``, as an update of the model."""
    dropped = frozenset(top.drop)

    def flat(old: Mapping[str, _V], new: Mapping[str, _V]) -> dict[str, _V]:
        return {**{k: v for k, v in old.items() if k not in dropped}, **new}

    def deep(
        old: Mapping[str, dict[str, str]], new: Mapping[str, dict[str, str]]
    ) -> dict[str, dict[str, str]]:
        merged = {k: flat(old.get(k, {}), new.get(k, {})) for k in (*old, *(k for k in new if k not in old))}
        return {k: v for k, v in merged.items() if v}

    return {
        **{t: flat(getattr(base, t), getattr(top, t)) for t in TABLES},
        "state": deep(base.state, top.state),
        "sections": deep(base.sections, top.sections),
        "drop": (),
    }
