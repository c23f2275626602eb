"""A report from a file that somebody sends: sized up before it is parsed, and refused in words."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from reports.runs.shape import misfit
from specs.errors import InputError

M = TypeVar("M", bound=BaseModel)
#: Bytes of a file, and values in it: what is larger would not fit into memory as objects.
MAX_BYTES, MAX_VALUES = 512 << 20, 12_000_000
_SCHEMA = re.compile(rb'"schema_id"\s*:\s*"([^"\\]{0,100})"')


@dataclass(frozen=True)
class Readable(Generic[M]):
    """What can be read.

    Attributes:
        model: the contract, and its ``schema_id``.
        name: of the file in a folder.
        noun, kind: what it is called in short, "report", and in full, "report of runs".
        again: how it is made.
        why, instead: what is said of another kind of file, and what to name.
        none: what to name where there is no contract at all.
    """

    model: type[M]
    schema_id: str
    name: str
    noun: str
    kind: str
    again: str
    why: str
    instead: str
    none: str


def read(name: str, kind: Readable[M]) -> M:
    """What a file holds, or the file of that name in a folder.

    Raises:
        InputError: there is none, it is too large, no JSON, cut off, of another kind, or of another version.
    """
    return parse(*read_bytes(name, kind), kind)


def parse(path: Path, data: bytes, kind: Readable[M]) -> M:
    """What the bytes of a file hold; as `read`."""
    found = _SCHEMA.search(data)
    schema = found[1].decode("utf-8", "replace") if found else ""
    if schema != kind.schema_id:
        raise _other(schema, data, path, kind)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise InputError(
            "holds too many values",
            place=str(path),
            remedy=f"a {kind.noun} has at most {MAX_VALUES:,} of them",
        )
    value = _parsed(data, path, kind)
    del data  # as large as what it says
    wrong = f"is no {kind.noun} of version {kind.schema_id}"
    misfits = misfit(value, kind.model.model_json_schema(mode="validation"))
    if misfits is not None:
        raise InputError(f"{wrong}: {misfits}", place=str(path), remedy=kind.again)
    try:
        return kind.model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        cause = f"{wrong}: {where or 'the whole'}: {first['msg'][:160]}"
        raise InputError(cause, place=str(path), remedy=kind.again) from None


def _parsed(data: bytes, path: Path, kind: Readable[Any]) -> Any:
    """The JSON in ``data``.

    Raises:
        InputError: it is none, is cut off, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text: {error.reason}", place=str(path), remedy=kind.again) from None
    except (ValueError, RecursionError) as error:
        cause = f"is no JSON, or cut off: {str(error)[:160]}"
        raise InputError(cause, place=str(path), remedy=kind.again) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def read_bytes(name: str, kind: Readable[Any]) -> tuple[Path, bytes]:
    """The place and the bytes of a file that is a regular one and not too large; as `read`."""
    path = Path(name)
    try:
        if "\0" in name:
            raise FileNotFoundError(2, "no such file or folder")
        if path.is_dir():
            path /= kind.name
            if not path.exists():
                raise InputError(
                    f"holds no {kind.name}", place=name, remedy=f"name the folder of a {kind.noun}"
                )
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError("is no regular file", place=str(path), remedy=f"name a {kind.name}")
        if about.st_size > MAX_BYTES:
            raise InputError(
                f"is too large: {about.st_size:,} bytes",
                place=str(path),
                remedy=f"at most {MAX_BYTES:,} are read",
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        cause = (
            "no such file or folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        )
        place = str(path).replace("\0", "\\0")
        raise InputError(cause, place=place, remedy=f"name a {kind.name} or its folder") from None
    return path, data[:MAX_BYTES]


def _other(schema: str, data: bytes, path: Path, kind: Readable[Any]) -> InputError:
    """Why a file is not read that is none of this kind and version."""
    if schema.startswith(kind.schema_id.rsplit("/", 1)[0] + "/"):
        return InputError(
            f"is a {kind.noun} of version {schema}; this ulpscope reads {kind.schema_id}",
            place=str(path),
            remedy=kind.again,
        )
    if schema.startswith("ulpscope."):
        cause = f"is a report of another kind, {schema}: {kind.why}"
        return InputError(cause, place=str(path), remedy=kind.instead)
    cause = "is empty" if not data.strip() else f"is no {kind.kind}: it states no schema_id"
    return InputError(cause, place=str(path), remedy=kind.none)
