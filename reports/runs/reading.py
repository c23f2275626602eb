"""A report of runs from a file that somebody sends: sized up before it is parsed, and refused in words."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reports.runs.contract import SCHEMA_ID, DivergenceReport
from reports.runs.shape import misfit
from specs.errors import InputError

#: Bytes of a report.json, and values in it: what is larger would not fit into memory as objects.
MAX_BYTES, MAX_VALUES = 512 << 20, 12_000_000
NAME = "report.json"
_SCHEMA = re.compile(rb'"schema_id"\s*:\s*"([^"\\]{0,100})"')


def read_report(name: str) -> DivergenceReport:
    """The report in a file, or in the report.json of a folder.

    Raises:
        InputError: there is none, it is too large, no JSON, cut off, another kind of report, or of another version.
    """
    path, data = _bytes(name)
    found = _SCHEMA.search(data)
    schema = found[1].decode("utf-8", "replace") if found else ""
    if schema != SCHEMA_ID:
        raise _other(schema, data, path)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise InputError(
            "holds too many values", place=str(path), remedy=f"a report has at most {MAX_VALUES:,} of them"
        )
    value = _parsed(data, path)
    del data  # as large as what it says
    found = misfit(value, DivergenceReport.model_json_schema(mode="validation"))
    if found is not None:
        raise InputError(f"is no report of version {SCHEMA_ID}: {found}", place=str(path), remedy=_AGAIN)
    try:
        return DivergenceReport.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        cause = f"is no report of version {SCHEMA_ID}: {where or 'the whole'}: {first['msg'][:160]}"
        raise InputError(cause, place=str(path), remedy=_AGAIN) from None


def _parsed(data: bytes, path: Path) -> Any:
    """The JSON in ``data``.

    Raises:
        InputError: it is none, is cut off, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8 text: {error.reason}", place=str(path), remedy=_AGAIN) from None
    except (ValueError, RecursionError) as error:
        cause = f"is no JSON, or cut off: {str(error)[:160]}"
        raise InputError(cause, place=str(path), remedy=_AGAIN) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_AGAIN = "make the report again with: ulpscope report RUN ..."


def _bytes(name: str) -> tuple[Path, bytes]:
    path = Path(name)
    try:
        if "\0" in name:
            raise FileNotFoundError(2, "no such file or folder")
        if path.is_dir():
            path /= NAME
            if not path.exists():
                raise InputError(f"holds no {NAME}", place=name, remedy="name the folder of a report")
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise InputError("is no regular file", place=str(path), remedy=f"name a {NAME}")
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
        raise InputError(cause, place=place, remedy=f"name a {NAME} or its folder") from None
    return path, data[:MAX_BYTES]


def _other(schema: str, data: bytes, path: Path) -> InputError:
    """Why a file is not compared that is no report of runs of this version."""
    if schema.startswith(SCHEMA_ID.rsplit("/", 1)[0] + "/"):
        return InputError(
            f"is a report of version {schema}; this ulpscope reads {SCHEMA_ID}",
            place=str(path),
            remedy=_AGAIN,
        )
    if schema.startswith("ulpscope."):
        return InputError(
            f"is a report of another kind, {schema}: only reports of runs are compared",
            place=str(path),
            remedy="name the report.json of `ulpscope report RUN ...` or `ulpscope compare RUN ... --out`",
        )
    kind = "is empty" if not data.strip() else "is no report of runs: it states no schema_id"
    return InputError(kind, place=str(path), remedy=f"name the {NAME} of `ulpscope report RUN ...`")
