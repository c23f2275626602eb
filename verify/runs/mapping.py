"""Mappings: a TOML file that says where in any JSON, JSONL or npz file a run is. Nothing in it is evaluated.

`read_mapping`-files name paths (`verify.runs.paths`) for the parts of a sequence, the coordinate and the recording; a
value is a path, or a table: ``{value = 3}`` a constant, ``{text = "{gpu} of {file}"}`` a text with what was captured,
``{join = ["a", "b"]}`` several joined by ``/``, ``{columns = ["t[*][1]", "t[*][2]"]}`` several lists side by side; each
with ``map = {from = "to"}`` where names are to be changed. docs/runs.md has an example.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from specs.document import read_document, validate
from specs.errors import InputError, SpecError, did_you_mean
from specs.schema import Frozen
from verify.runs.adapters.base import Draft, shaped
from verify.runs.jsonio import records
from verify.runs.manifest import Coordinate, Recording
from verify.runs.mapped import Taker
from verify.runs.paths import MAX_RECORDS, matches, parse_path
from verify.runs.tensors import open_tensors

Text = Annotated[str, StringConstraints(max_length=400)]


class Value(Frozen):
    """Where a value comes from, if not from one path."""

    value: bool | int | float | Text | None = None
    text: Text | None = None
    path: Text | None = None
    join: Annotated[tuple[Text, ...], Field(strict=False, max_length=16)] = ()
    columns: Annotated[tuple[Text, ...], Field(strict=False, max_length=256)] = ()
    map: dict[Text, bool | int | float | Text] = Field(default_factory=dict, max_length=1000)


Where = Text | Value


class SequencePart(Frozen):
    """Parts of a sequence; see `verify.runs.sequence.Sequence`.

    ``text`` are all ids of the text (rows predict the next each; ``align = "end"`` where the rows are its last).
    ``prompt``, ``prompt_values``, ``prompt_texts`` are the prompt's tokens and what they were given, the first nothing.
    """

    conversation: Where | None = None
    repeat: Where | None = None
    text: Where | None = None
    prompt: Where | None = None
    prompt_values: Where | None = None
    prompt_texts: Where | None = None
    tokens: Where | None = None
    texts: Where | None = None
    chosen: Where | None = None
    positions: Where | None = None
    depths: Where | None = None
    ranges: Where | None = None
    top_ids: Where | None = None
    top_values: Where | None = None
    top_texts: Where | None = None
    lse: Where | None = None
    logits: Where | None = None
    finish: Where | None = None
    align: Literal["start", "end"] = "start"


class AttentionPart(Frozen):
    """Tensors of one layer. ``axes``: their order, h heads, n rows, d dim."""

    layer: Annotated[int, Field(ge=0, le=9999)]
    axes: Literal["hnd", "nhd"] = "hnd"
    q: Where | None = None
    k: Where | None = None
    v: Where | None = None
    out: Where | None = None
    lse: Where | None = None


class RunPart(Frozen):
    """One kind of record in the file, and what to make of it."""

    each: Text = "@"
    sequence: SequencePart
    attention: Annotated[tuple[AttentionPart, ...], Field(strict=False, max_length=1000)] = ()
    coordinate: dict[Text, Where] = Field(default_factory=dict, max_length=60)
    capture: dict[Text, Where] = Field(default_factory=dict, max_length=20)
    labels: dict[Text, Where] = Field(default_factory=dict, max_length=60)
    model: Where | None = None
    vocab_size: Where | None = None


class MappingFile(Frozen):
    """A mapping. ``form``: lines is one record a line. ``signature``: paths that a file of this kind has."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Text
    title: Text
    form: Literal["json", "jsonl", "npz"]
    signature: Annotated[tuple[Text, ...], Field(strict=False, max_length=16)] = ()
    run: Annotated[tuple[RunPart, ...], Field(strict=False, min_length=1, max_length=100)]


@dataclass(frozen=True)
class Mapping:
    """A mapping that was read and checked."""

    name: str
    sha256: str
    file: MappingFile


def shipped() -> dict[str, FilePath]:
    """The mappings that come with the package, by name."""
    home = FilePath(str(files("verify.runs"))) / "mappings"
    return {p.stem: p for p in sorted(home.glob("*.toml"))}


def shipped_for(value: Any) -> str | None:
    """The shipped mapping whose signature ``value`` (a file's first record) has."""
    for name in shipped():
        mapping = load_mapping(name).file
        wanted = [parse_path(text) for text in mapping.signature]
        if wanted and all(next(matches(path, value), None) is not None for path in wanted):
            return name
    return None


def load_mapping(name: str | FilePath) -> Mapping:
    """The mapping of a name or path.

    Raises:
        SpecError: unknown name, a file that is no mapping, or a path or field in it that is wrong.
    """
    known = shipped()
    text = str(name)
    if text not in known and "/" not in text and not text.endswith(".toml"):
        raise SpecError(f"no mapping '{text[:80]}'", place="--mapping", remedy=did_you_mean(text, known))
    path = known.get(text, FilePath(text))
    document = read_document(path)
    found = validate(MappingFile, document)
    for part in found.run:
        _check(part, str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Mapping(found.name, digest, found)


def _check(part: RunPart, place: str) -> None:
    """Every path is one, every coordinate and capture field exists."""
    captured = set(_parsed(part.each, f"{place}: each").holes)
    captured.add("file")
    for where, key in _wheres(part):
        texts = (
            [where]
            if isinstance(where, str)
            else [*where.join, *where.columns, *([where.path] if where.path else [])]
        )
        used: list[str] = []
        for text in texts:
            used += _parsed(text, f"{place}: {key}").holes
        if isinstance(where, Value) and where.text is not None:
            used += parse_path(f'"{where.text}"').holes if '"' not in where.text else ()
        for name in used:
            if name not in captured:
                raise SpecError(
                    f"nothing captures '{name}'", place=f"{place}: {key}", remedy=did_you_mean(name, captured)
                )
    for table, model in (("coordinate", Coordinate), ("capture", Recording)):
        for name in getattr(part, table):
            field = "flags" if name.startswith("flags.") else name
            if field not in model.model_fields or name == "flags":
                raise SpecError(
                    f"unknown field '{name}'",
                    place=f"{place}: {table}",
                    remedy=did_you_mean(name, model.model_fields),
                )
    if "value_kind" not in part.capture:
        raise SpecError(
            "'value_kind' is missing",
            place=f"{place}: capture",
            remedy='as in  value_kind = {value = "raw_logprobs"}',
        )


def _parsed(text: str, place: str) -> Any:
    try:
        return parse_path(text)
    except SpecError as error:
        raise SpecError(error.cause, place=place, remedy=error.remedy) from None


def _wheres(part: RunPart) -> Iterator[tuple[Where, str]]:
    for name in SequencePart.model_fields:
        where = getattr(part.sequence, name)
        if where is not None and name != "align":
            yield where, f"sequence.{name}"
    for layer in part.attention:
        for name in ("q", "k", "v", "out", "lse"):
            if getattr(layer, name) is not None:
                yield getattr(layer, name), f"attention.{name}"
    for table in ("coordinate", "capture", "labels"):
        for name, where in getattr(part, table).items():
            yield where, f"{table}.{name}"
    for name in ("model", "vocab_size"):
        if getattr(part, name) is not None:
            yield getattr(part, name), name


def read_mapped(file: FilePath, mapping: Mapping) -> list[Draft]:
    """The runs that a mapping finds in a file: one for each coordinate, recording and model.

    Raises:
        InputError: not the form that the mapping reads, no record, a path that no record has, or a value that is no
            number or id; with its place.
    """
    drafts: dict[str, Draft] = {}
    takers = [Taker(part, file.stem, mapping.name) for part in mapping.file.run]
    count = 0
    each = [parse_path(taker.part.each) for taker in takers]
    for root, place in _roots(file, mapping):
        for taker, path in zip(takers, each, strict=True):
            for record, captured in matches(path, root):
                count += 1
                if count > MAX_RECORDS:
                    raise InputError(
                        f"more than {MAX_RECORDS:,} records", place=str(file), remedy="split the file"
                    )
                with shaped(place):
                    taker.take(root, record, captured, place, drafts)
    if not count:
        sought = ", ".join(f"'{t.part.each}'" for t in takers)
        raise InputError(
            f"has nothing at {sought}",
            place=str(file),
            remedy=f"is '{mapping.name}' the mapping for this file?",
        )
    for taker in takers:
        taker.finish(str(file))
    found = list(drafts.values())
    _named(found)
    return found


def _roots(file: FilePath, mapping: Mapping) -> Iterator[tuple[Any, str]]:
    if mapping.file.form == "npz":
        tensors = open_tensors(file)
        yield {**tensors.arrays, **tensors.texts}, str(file)
        return
    for record in records(file):
        yield record.value, record.place


def _named(drafts: list[Draft]) -> None:
    """Names that tell the runs of a file apart: the fields in which they differ."""
    if len(drafts) < 2:
        return
    rows = [
        {**d.coordinate, **{f"capture.{k}": v for k, v in d.capture.items()}, "model": d.model}
        for d in drafts
    ]
    keys = {k for row in rows for k in row}
    differing = [k for k in sorted(keys) if len({json.dumps(row.get(k), sort_keys=True) for row in rows}) > 1]
    for draft, row in zip(drafts, rows, strict=True):
        draft.name = " / ".join(str(row[k]) for k in differing if row.get(k) is not None)[:200]
