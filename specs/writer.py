"""TOML out: the canonical text of a spec, from which reading gives the same spec back."""

from __future__ import annotations

import re
from collections.abc import Mapping

from specs.schema import Lines, SpecFile

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def quote(text: str) -> str:
    """``text`` as a basic string of TOML."""
    out: list[str] = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif ord(char) < 0x20 or ord(char) == 0x7F:
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(char)
    return f'"{"".join(out)}"'


def value(item: str | bool | int | float) -> str:
    """A scalar as TOML."""
    if isinstance(item, str):
        return quote(item)
    if isinstance(item, bool):
        return "true" if item else "false"
    return repr(item)  # the shortest decimal that reads back; inf and 1e+16 are TOML too


def key(name: str) -> str:
    """A key as TOML, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else quote(name)


def table(header: str, items: Mapping[str, str | bool | int | float]) -> str:
    """A table with its keys aligned; nothing if it is empty."""
    if not items:
        return ""
    width = max(len(key(k)) for k in items)
    return f"{header}\n" + "".join(f"{key(k):<{width}} = {value(v)}\n" for k, v in items.items())


def section_order(levels: Mapping[str, str], sections: Mapping[str, object]) -> list[str]:
    """Sections in the order of the dataflow: token, levels from the innermost out, row; others last."""
    order = ["token", *reversed(list(levels)), "row"]
    return [s for s in order if s in sections] + [s for s in sections if s not in order]


def to_toml(file: SpecFile) -> str:
    """The canonical text of a spec file, resolved or not. Comments are not part of a spec and are gone."""
    header: dict[str, str | int] = {
        "schema": 1,
        "name": file.name,
        "status": file.status,
        "summary": file.summary,
    }
    if file.extends is not None:
        header["extends"] = file.extends
    head = table("", header).lstrip("\n") + _drop(file)
    parts = [head]
    for source in file.sources:
        items = {"repository": source.repository, "commit": source.commit, "path": source.path}
        parts.append(table("[[source]]", {**items, **({"note": source.note} if source.note else {})}))
    parts += [table("[[require]]", {"that": r.that, "message": r.message}) for r in file.requires]
    if file.assumed is not None:
        names = ", ".join(quote(n) for n in file.assumed.lines)
        parts.append(f"[assumed]\nlines = [{names}]\nwhy   = {quote(file.assumed.why)}\n")
    parts.append(table("[faults]", file.faults))
    if file.numbers is not None:
        formats = file.numbers.inputs.model_dump(exclude_none=True)
        inner = ", ".join(f"{k} = {quote(v)}" for k, v in formats.items())
        text = f"[numbers]\ncompute = {quote(file.numbers.compute)}\ninputs  = {{ {inner} }}\n"
        taken = {k: v for k, v in file.numbers.accepts.model_dump().items() if v}
        if taken:
            inner = ", ".join(f"{k} = [{', '.join(quote(f) for f in v)}]" for k, v in taken.items())
            text += f"accepts = {{ {inner} }}\n"
        parts.append(text)
    parts.append(table("[options]", file.options))
    parts.extend(_lines(file, file.levels, ""))
    for variant in file.variants:
        parts.append(f"[[variant]]\nwhen = {quote(variant.when)}\n{_drop(variant)}")
        parts.extend(_lines(variant, {**file.levels, **variant.levels}, "variant."))
    return "\n".join(p for p in parts if p)


def _drop(lines: Lines) -> str:
    return f"drop = [{', '.join(quote(n) for n in lines.drop)}]\n" if lines.drop else ""


def _lines(lines: Lines, levels: Mapping[str, str], prefix: str) -> list[str]:
    parts = [table(f"[{prefix}{name}]", getattr(lines, name)) for name in ("let", "constants", "levels")]
    parts += [table(f"[{prefix}state.{key(scope)}]", starts) for scope, starts in lines.state.items()]
    order = section_order(levels, lines.sections)
    return parts + [table(f"[{prefix}{key(s)}]", lines.sections[s]) for s in order]
