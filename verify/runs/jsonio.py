"""JSON and JSON lines from strangers: bounded, fast, and numbers that keep what they were.

orjson parses; what it refuses but Python's own parser takes (NaN and Infinity, which several engines print) is parsed
by that one. Lists become arrays in one pass where all their entries are numbers, entry by entry where not.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError
from verify.runs.sequence import UNKNOWN, Floats, Ints
from verify.runs.stream import Answers, events, is_stream, kind_in_stream, kind_of

MAX_JSON = 1 << 30
MAX_LINE = 256 << 20
#: The most that a parsed value may take in memory, as estimated from its text.
MAX_PARSED = 6 << 30
_WORDS = {
    "-inf": -np.inf,
    "inf": np.inf,
    "+inf": np.inf,
    "nan": np.nan,
    "-infinity": -np.inf,
    "infinity": np.inf,
    "+infinity": np.inf,
}
Counts = dict[str, int]


@dataclass(frozen=True)
class Record:
    """One JSON value of a file and its place: the file, and its line where the file is lines of JSON (else 0).

    ``event``: whether it came as a server-sent event.
    """

    value: Any
    file: str
    line: int
    event: bool = False

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}: line {self.line}" if self.line else self.file


class _TwiceError(ValueError):
    pass


def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON text, for ``object_pairs_hook``; one that has a name twice says two things.

    Raises:
        ValueError: a name is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"an object has the name '{twice[:80]}' twice")
    return found


def parse(data: bytes, place: str) -> Any:
    """The JSON value in ``data``.

    Raises:
        InputError: it is none, an object in it has a name twice, or it would take more memory than `MAX_PARSED`.
    """
    import orjson

    if len(data) > 16 << 20:
        # bytes that CPython takes for an object, a list, and a number or a short text with its place in them
        needed = len(data) + 232 * data.count(b"{") + 64 * data.count(b"[") + 64 * data.count(b",")
        if needed > MAX_PARSED:
            raise InputError(
                f"would take about {needed:,} bytes of memory",
                place=place,
                remedy=f"at most {MAX_PARSED:,}: give JSON lines, or fewer answers a file",
            )

    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as first:
        return _parse_slowly(data, place, str(first))
    try:
        again = orjson.dumps(value)
    except orjson.JSONEncodeError:  # nested too deeply to be written
        return _parse_slowly(data, place, "")
    if _quotes(again) != _quotes(data):  # a name that is there twice is read once
        return _parse_slowly(data, place, "")
    return value


def _parse_slowly(data: bytes, place: str, cause: str) -> Any:
    """As `parse`, by Python's own parser, which sees names that an object has twice."""
    try:
        return json.loads(data, object_pairs_hook=no_twice)
    except _TwiceError as error:
        raise InputError(
            str(error), place=place, remedy="which of the two is meant is not known: give one"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is no JSON: {(cause or str(error))[:200]}", place=place, remedy="give the file as it came"
        ) from None


def _quotes(data: bytes) -> int:
    """How many quotation marks begin or end a text in JSON."""
    if b"\\" not in data:
        return data.count(b'"')
    rest = data.replace(
        b"\\\\", b""
    )  # of backslashes in a row only the last may stand before a quotation mark
    return rest.count(b'"') - rest.count(b'\\"')


def records(file: Path) -> Iterator[Record]:
    """Every record of a file: its lines where it is JSON lines, else the one value that it is.

    Answers that came in pieces, as server-sent events or a piece a line, are put together (`verify.runs.stream`).

    A file is taken as lines where it is called .jsonl or .ndjson, or where it is not JSON as a whole and its first line
    is.

    Raises:
        InputError: missing, too large, or no JSON.
    """
    answers = Answers()
    place = 0
    for record in _records(file):
        value, place = record.value, record.line
        several = isinstance(value, list) and bool(value) and kind_of(value[0]) is not None
        pieces: list[Any] = value if several else [value]
        of = kind_in_stream if record.event else kind_of
        for piece in pieces:
            kind = of(piece)
            if kind is None:
                yield Record(piece, record.file, place)
                continue
            try:
                whole = list(answers.add(kind, piece))
            except (TypeError, AttributeError, KeyError):
                raise InputError(
                    "is no piece of an answer", place=record.place, remedy="give the stream as it came"
                ) from None
            yield from (Record(one, record.file, place) for one in whole)
    yield from (Record(one, str(file), place) for one in answers.rest())


def _records(file: Path) -> Iterator[Record]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            if is_stream(stream.read(64)):
                yield from _events(file)
                return
        if file.suffix in (".jsonl", ".ndjson"):
            yield from _lines(file)
            return
        if size > MAX_JSON:
            raise InputError(
                f"has {size:,} bytes",
                place=str(file),
                remedy=f"at most {MAX_JSON:,} are read: give JSON lines",
            )
        data = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(file), remedy="check the path"
        ) from None
    try:
        value = parse(data, str(file))
    except InputError:
        first = data[: data.find(b"\n")] if b"\n" in data else b""
        try:
            parse(first, "")
        except InputError:
            first = b""
        if not first:
            raise
        yield from _lines(file)
        return
    yield Record(value, str(file), 0)


def _events(file: Path) -> Iterator[Record]:
    with file.open("rb") as stream:
        for data, number in events(iter(lambda: stream.readline(MAX_LINE + 1), b"")):
            yield Record(parse(data, f"{file}: line {number}"), str(file), number, event=True)


def _lines(file: Path) -> Iterator[Record]:
    with file.open("rb") as stream:
        for number in range(1, 1 << 62):
            line = stream.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise InputError(
                    "is too long", place=f"{file}: line {number}", remedy=f"at most {MAX_LINE:,} bytes a line"
                )
            if line.strip():
                yield Record(parse(line, f"{file}: line {number}"), str(file), number)


@contextmanager
def unswept() -> Generator[None]:
    """Without sweeps for cycles: what a JSON parser makes has none, and the sweeps take more time than the parsing."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def number(value: Any, counts: Counts) -> float:
    """A float of a JSON value: null is NaN and counted, words for infinities and NaN are what they say.

    Raises:
        ValueError: it is no number.
    """
    if value is None:
        counts["null_values"] = counts.get("null_values", 0) + 1
        return float("nan")
    kind = type(value)
    if kind is float or kind is int:
        try:
            return float(value)
        except OverflowError:
            raise ValueError("is a number too large") from None
    if kind is str and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    raise ValueError(f"is {str(value)[:40]!r}, no number")


def numbers(values: Any, counts: Counts) -> Floats:
    """A list of JSON numbers as float64.

    Raises:
        ValueError: it is no list, or an entry is no number; the message says which.
    """
    if not isinstance(values, list):
        raise ValueError("is no list")
    if set(map(type, values)) <= {float, int}:
        try:
            return np.array(values, np.float64)
        except OverflowError:
            raise ValueError("holds a number too large") from None
    out = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            out[i] = number(value, counts)
        except ValueError as error:
            raise ValueError(f"entry {i} {error}") from None
    return out


def identifiers(values: Any, *, unknown: bool = False) -> Ints:
    """A list of token ids as int64; null is `UNKNOWN` where ``unknown`` allows it.

    Raises:
        ValueError: it is no list of whole numbers in range.
    """
    if not isinstance(values, list):
        raise ValueError("is no list")
    if unknown and None in values:
        values = [UNKNOWN if v is None else v for v in values]
    if not set(map(type, values)) <= {int}:
        wrong = next(i for i, v in enumerate(values) if type(v) is not int)
        raise ValueError(f"entry {wrong} is {str(values[wrong])[:40]}, no token id")
    least = UNKNOWN if unknown else 0
    try:
        found = np.array(values, np.int64)
        outside = (found < least) | (found >= 1 << 40)
    except OverflowError:
        found, outside = np.zeros(0, np.int64), np.array([not least <= v < 1 << 40 for v in values])
    if outside.any():
        wrong = int(np.argmax(outside))
        raise ValueError(f"entry {wrong} is {str(values[wrong])[:40]}, no token id")
    return found


def pairs(rows: Any, counts: Counts, *, value_first: bool = False) -> tuple[Ints, Floats]:
    """Top entries: a list of rows, each null or a list of ``[id | null, value, ...]`` (or ``[value, id, ...]``).

    Returns:
        Ids and values as ``[rows, K]`` with K the longest row; `UNKNOWN` and NaN where a row is shorter.

    Raises:
        ValueError: something in it is neither; the message says where.
    """
    if not isinstance(rows, list):
        raise ValueError("is no list")
    lengths = {len(r) if type(r) is list else -1 for r in rows}
    if len(lengths) == 1 and -1 not in lengths and 0 not in lengths:
        entries: list[Any] = list(chain.from_iterable(rows))
        widths = set(map(len, entries)) if set(map(type, entries)) == {list} else {0}
        if len(widths) == 1 and min(widths) >= 2:
            width = min(widths)
            flat: list[Any] = list(chain.from_iterable(entries))
            ids, values = flat[int(value_first) :: width], flat[int(not value_first) :: width]
            if set(map(type, ids)) == {int} and set(map(type, values)) <= {float, int}:
                shape = (len(rows), len(rows[0]))
                return identifiers(ids).reshape(shape), numbers(values, counts).reshape(shape)
    width = max([0, *lengths])
    out = np.full((len(rows), width), UNKNOWN, np.int64), np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        if row is None:
            continue
        if type(row) is not list:
            raise ValueError(f"row {i} is no list")
        for j, entry in enumerate(row):
            try:
                _pair(out[0][i], out[1][i], j, entry, counts, value_first)
            except ValueError as error:
                raise ValueError(f"row {i}, entry {j} {error}") from None
    return out


def _pair(ids: Ints, values: Floats, at: int, entry: Any, counts: Counts, value_first: bool) -> None:
    if type(entry) is not list or len(entry) < 2:
        raise ValueError("is no pair of id and value")
    token, value = (entry[1], entry[0]) if value_first else (entry[0], entry[1])
    if token is None:
        token = UNKNOWN
    elif type(token) is not int or not 0 <= token < 1 << 40:
        raise ValueError(f"is {str(token)[:40]!r}, no token id")
    ids[at] = token
    values[at] = number(value, counts)
