"""A spec for a reader: the resolved tables on a page of text, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specs.functions import evidence
from specs.loader import Spec
from specs.schema import Lines
from specs.writer import section_order, value

if TYPE_CHECKING:
    from rich.text import Text

Row = tuple[str, str, str]
"""Heading (only on the first line of a table), name, text."""


def rows(spec: Spec) -> Iterator[Row]:
    """The lines of a spec in reading order: formats, integers, levels, state, sites from the token out, evidence."""
    file = spec.file
    numbers = spec.numbers
    formats = numbers.inputs.model_dump(exclude_none=True)
    yield "numbers", "compute", numbers.compute
    yield "", "inputs", ", ".join(f"{k} {v}" for k, v in formats.items())
    taken = {k: v for k, v in numbers.accepts.model_dump().items() if v}
    if taken:
        yield "", "accepts", ", ".join(f"{k} {'/'.join(v)}" for k, v in taken.items())
    for require in file.requires:
        yield "require", "that", require.that
        yield "", "message", require.message
    if file.assumed is not None:
        yield "assumed", "lines", ", ".join(file.assumed.lines)
        yield "", "why", file.assumed.why
    yield from _table("faults", file.faults)
    yield from _table("options", {k: value(v) for k, v in file.options.items()})
    yield from _lines(file, file.levels)
    for variant in file.variants:
        yield "variant", "when", variant.when
        if variant.drop:
            yield "", "drop", ", ".join(variant.drop)
        yield from _lines(variant, {**file.levels, **variant.levels}, "  ")
    yield from _table("evidence", _evidence(spec))


def _evidence(spec: Spec) -> dict[str, str]:
    """What the functions of hardware and libraries that a spec calls were held against, by name."""
    lines = (spec.file, *spec.file.variants)
    return evidence(text for part in lines for *_, text in _lines(part, {**spec.file.levels, **part.levels}))


def _table(heading: str, items: dict[str, str]) -> Iterator[Row]:
    for n, (name, text) in enumerate(items.items()):
        yield (heading if n == 0 else ""), name, text


def _lines(lines: Lines, levels: dict[str, str], indent: str = "") -> Iterator[Row]:
    yield from _table(f"{indent}let", lines.let)
    yield from _table(f"{indent}constants", lines.constants)
    yield from _table(f"{indent}levels", lines.levels)
    for scope, starts in lines.state.items():
        yield from _table(f"{indent}state of {scope}", starts)
    for section in section_order(levels, lines.sections):
        yield from _table(f"{indent}{section}", lines.sections[section])


def _head(spec: Spec) -> list[str]:
    file = spec.file
    head = [f"{file.name}  [{file.status}]  {spec.content_hash[:12]}", file.summary]
    head += [
        f"source {s.repository} @ {s.commit[:12]} {s.path}" + (f" ({s.note})" if s.note else "")
        for s in file.sources
    ]
    return head


def show_text(spec: Spec) -> str:
    """The spec as plain text, about forty lines, no line end at the end."""
    table = list(rows(spec))
    first = max(len(r[0]) for r in table)
    second = max(len(r[1]) for r in table)
    body = [f"{heading:<{first}}  {name:<{second}} = {text}" for heading, name, text in table]
    return "\n".join([*_head(spec), *body])


def show_rich(spec: Spec) -> Text:
    """The same text in colours, for a terminal."""
    from rich.text import Text

    table = list(rows(spec))
    first = max(len(r[0]) for r in table)
    second = max(len(r[1]) for r in table)
    title, *rest = _head(spec)
    out = Text(title + "\n", style="bold")
    out.append("".join(line + "\n" for line in rest), style="dim")
    for heading, name, text in table:
        out.append(f"{heading:<{first}}  ", style="bold cyan")
        out.append(f"{name:<{second}}", style="green")
        out.append(f" = {text}\n")
    out.rstrip()
    return out


def show_json(spec: Spec) -> dict[str, Any]:
    """The resolved spec as JSON: the tables as in TOML, with origin, hash and the order of the sections."""
    file = spec.file
    data = file.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    data.pop("sections", None)
    sections = section_order(file.levels, file.sections)
    return {
        **data,
        "origin": spec.origin,
        "content_hash": spec.content_hash,
        "levels": file.levels,
        "evidence": _evidence(spec),
        "sections": [{"section": s, "sites": file.sections[s]} for s in sections],
    }
