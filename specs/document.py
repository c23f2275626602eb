"""One TOML file read with care: size, encoding and syntax checked, values and positions side by side."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specs.errors import Place, SpecError, did_you_mean
from specs.scan import Path, Scan, scan

MAX_BYTES = 256 * 1024
MAX_REPORTED = 8

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed TOML text with its positions. ``name`` is what messages call it: mostly the path."""

    name: str
    data: dict[str, Any]
    positions: Scan

    def key(self, path: Path) -> Place:
        """The place of a key, or of the nearest table around it that the text has."""
        for length in range(len(path), 0, -1):
            found = self.positions.key(path[:length])
            if found is not None:
                return Place(self.name, *found)
        return Place(self.name)

    def char(self, path: Path, index: int = 0) -> Place:
        """The place of one character of the string at ``path``; of its key where there is no string."""
        found = self.positions.char(path, index)
        return self.key(path) if found is None else Place(self.name, *found)


def parse_document(text: str, name: str) -> Document:
    """Parse a TOML text called ``name``.

    Raises:
        SpecError: TOML syntax, with line and column.
    """
    try:
        data = tomllib.loads(text)
        return Document(name, data, scan(text))
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
        cause = str(error)[: found.start()] if found else str(error)
        end = text.rstrip().split("\n")
        place = (
            Place(name, int(found[1]), int(found[2]))
            if found and found[1]
            else Place(name, len(end), len(end[-1]) + 1)
        )
        raise SpecError(
            f"not TOML: {cause}", place=place, remedy="see https://toml.io for the syntax"
        ) from None
    except RecursionError:
        raise SpecError(
            "too deeply nested", place=name, remedy="a spec needs three levels of nesting"
        ) from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise SpecError(
            f"a value cannot be read: {error}", place=name, remedy="use an ordinary number"
        ) from None


def read_document(path: FilePath) -> Document:
    """Read and parse the TOML file ``path`` (UTF-8, at most 256 KiB).

    Raises:
        SpecError: the file is missing, not a file, too large, not UTF-8 or not TOML.
    """
    name = str(path)
    try:
        if not path.exists():
            raise SpecError(
                "no such file", place=name, remedy="check the path; `ulpscope spec list` names the library"
            )
        if not path.is_file():
            raise SpecError("not a regular file", place=name, remedy="give the path of a .toml file")
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(
                f"larger than {MAX_BYTES // 1024} KiB", place=name, remedy="a spec is a page of text"
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # no permission, a loop of links, a null byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            f"cannot be read: {reason}", place=name, remedy="check the path and its permissions"
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise SpecError(
            f"not UTF-8: byte 0x{raw[error.start]:02x}",
            place=Place(name, line, column),
            remedy="save the file as UTF-8",
        ) from None
    return parse_document(text, name)


def collect(errors: Sequence[SpecError]) -> SpecError:
    """One error for several: the first with its place, the others below it."""
    first = errors[0]
    if len(errors) == 1:
        return first
    rest = [str(e) for e in errors[1:MAX_REPORTED]]
    if len(errors) > MAX_REPORTED:
        rest.append(f"and {len(errors) - MAX_REPORTED} more")
    return SpecError(first.cause, place=first.place, remedy="\n".join([first.remedy, *rest]))


def validate(
    model: type[Model], document: Document, to_path: Callable[[Path], Path] = lambda loc: loc
) -> Model:
    """The document as a ``model``; every error with its place in the file.

    Args:
        model: a pydantic class that forbids extra keys.
        document: what was read.
        to_path: turns a location in the model into the path in the TOML text, where the two differ.

    Raises:
        SpecError: what the model refuses; unknown keys come with "did you mean".
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = sorted(
            error.errors(), key=lambda e: e["type"] == "missing"
        )  # a misspelt key explains a missing one
        raise collect([_explain(model, document, e, to_path) for e in found]) from None
    except RecursionError:
        raise SpecError(
            "too deeply nested", place=document.name, remedy="a spec needs three levels of nesting"
        ) from None


def _explain(
    model: type[BaseModel], document: Document, error: Any, to_path: Callable[[Path], Path]
) -> SpecError:
    path = to_path(tuple(error["loc"]))
    shown = (
        ".".join(str(p) for p in path if not str(p).startswith(("function-", "lax-or-strict"))) or "the file"
    )
    kind = error["type"]
    place = document.key(path) if "[key]" in error["loc"] else document.char(path)
    if kind == "extra_forbidden":
        known = _fields_at(model, tuple(error["loc"][:-1]))
        return SpecError(
            f"unknown key '{shown}'", place=document.key(path), remedy=did_you_mean(str(path[-1]), known)
        )
    if kind == "missing":
        return SpecError(
            f"'{shown}' is missing", place=document.key(path[:-1]), remedy=f"add a line  {path[-1]} = ..."
        )
    if kind == "value_error":
        raised = error["ctx"]["error"]
        cause, remedy = getattr(raised, "cause", str(raised)), getattr(raised, "remedy", "")
        return SpecError(f"'{shown}': {cause}", place=place, remedy=remedy)
    try:
        got = repr(error["input"])
    except RecursionError:
        got = "something too deeply nested"
    got = got if len(got) <= 60 else got[:57] + "..."
    return SpecError(
        f"'{shown}': {error['msg'][:1].lower()}{error['msg'][1:]}", place=place, remedy=f"got {got}"
    )


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """The key names of the model that a location leads to."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = next((f for n, f in current.model_fields.items() if part in (n, f.alias)), None)
        inner = [] if field is None else [a for a in _annotations(field.annotation) if _is_model(a)]
        if not inner:
            return []
        current = inner[0]
    return [f.alias or n for n, f in current.model_fields.items()]


def _annotations(annotation: Any) -> list[Any]:
    args = getattr(annotation, "__args__", ())
    return [annotation, *(x for a in args for x in _annotations(a))]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
