"""Token entries of answers: ``{token | text, id?, logprob, bytes?, top_logprobs?}``, which most engines share in parts.

Texts are keys only where ids are missing, and then a token's bytes decide where its text is not all of it (part of a
character): ``b'\\xe2\\x80'`` and another part would both be shown as a replacement character. Entries are taken column by
column, for speed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from verify.runs.jsonio import Counts, identifiers, numbers
from verify.runs.rows import Piece
from verify.runs.sequence import UNKNOWN, Floats, Ints

AS_ID = "token_id:"
_VALUE, _TOKEN, _TEXT = itemgetter("logprob"), itemgetter("token"), itemgetter("text")


@dataclass(frozen=True)
class Columns:
    """Entries as columns: ids (`UNKNOWN` where there is none), texts and values."""

    ids: Ints
    texts: list[str]
    values: Floats


@dataclass(frozen=True)
class Tops:
    """Top entries of rows, padded: ids and values ``[rows, K]``, and texts where they are needed."""

    ids: Ints
    values: Floats
    texts: list[list[str]] | None


def columns(entries: list[Any], counts: Counts, what: str) -> Columns:
    """A list of entries.

    Raises:
        ValueError: one is no entry of that kind; the message says which.
    """
    for i, kind in enumerate(map(type, entries)):
        if kind is not dict:
            raise ValueError(f"{what}, entry {i} is no object")
    texts: list[Any] = _taken(entries, _TOKEN, "token", _TEXT, "text")
    given: list[Any] = _taken(entries, _VALUE, "logprob")
    try:
        values = numbers(given, counts)
    except ValueError as error:
        raise ValueError(f"{what}, {error}") from None
    identities: list[Any] | None = None
    if entries and ("id" in entries[0] or "token_id" in entries[0] or type(texts[0]) is int):
        identities = [
            e.get("id", e.get("token_id", t if type(t) is int else None))
            for e, t in zip(entries, texts, strict=True)
        ]
        texts = [t if type(t) is str else "" for t in texts]
    elif set(map(type, texts)) > {str}:
        i = next(i for i, t in enumerate(texts) if type(t) is not str)
        raise ValueError(f"{what}, entry {i} has the token {str(texts[i])[:40]!r}")
    try:
        ids = ids_in(texts) if identities is None else identifiers(identities, unknown=True)
    except ValueError as error:
        raise ValueError(f"{what}, {error}") from None
    if identities is None:
        texts = [_spelled(e, t) if "\ufffd" in t else t for e, t in zip(entries, texts, strict=True)]
    return Columns(ids, texts, values)


def _taken(entries: list[Any], get: Any, name: str, second: Any = None, other: str = "") -> list[Any]:
    """One field of every entry; of another name, or None, where it is missing."""
    for getter in (get, second):
        if getter is not None:
            try:
                return list(map(getter, entries))
            except KeyError:
                pass
    missing = "" if other else None
    return [e.get(name, e.get(other, missing) if other else None) for e in entries]


def ids_in(texts: list[str]) -> Ints:
    """The ids in ``token_id:N``, which vLLM prints for texts if asked to; `UNKNOWN` for other texts."""
    if texts and texts[0].startswith(AS_ID):
        import orjson

        whole = ",".join(texts)
        try:  # a text that holds a comma or no number makes another count, or no JSON
            found: Any = orjson.loads(f"[{whole.replace(AS_ID, '')}]")
            if whole.count(AS_ID) == len(texts) == len(found):
                return identifiers(found)
        except ValueError:
            pass
        return np.array([_id_in(t) for t in texts], np.int64)
    return np.full(len(texts), UNKNOWN, np.int64)


def _id_in(text: str) -> int:
    digits = text.removeprefix(AS_ID)
    return int(digits) if digits != text and digits.isdecimal() and len(digits) < 12 else UNKNOWN


def _spelled(entry: dict[str, Any], text: str) -> str:
    try:
        raw = bytes(entry.get("bytes") or [])
    except (ValueError, TypeError):
        return text
    if not raw:
        return text
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return repr(raw)


def padded(lengths: Items[int], ids: Ints, values: Floats, texts: list[str] | None) -> Tops:
    """Flat entries of rows of these lengths as ``[rows, K]``, most likely first (NaN last), ties as they came."""
    rows, width = len(lengths), max([0, *lengths])
    sizes = np.asarray(lengths, np.int64)
    out_ids, out_values = np.full((rows, width), UNKNOWN, np.int64), np.full((rows, width), np.nan)
    if not width:
        return Tops(out_ids, out_values, None)
    inside = np.arange(width) < sizes[:, None]
    out_ids[inside], out_values[inside] = ids, values
    order: Ints | None = None
    with np.errstate(invalid="ignore"):
        rising = (out_values[:, 1:] > out_values[:, :-1]).any()
    if rising or np.isnan(values).any():
        keys = np.where(inside, np.where(np.isnan(out_values), np.inf, -out_values), np.inf)
        last = np.where(inside, 0, 1)
        order = np.lexsort((keys, last), axis=1).astype(np.int64)
        out_ids = np.take_along_axis(out_ids, order, axis=1)
        out_values = np.take_along_axis(out_values, order, axis=1)
    named: list[list[str]] | None = None
    if texts is not None:
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        named = [texts[a:b] for a, b in pairwise(starts)]
        if order is not None:
            named = [[row[j] for j in o[: len(row)]] for row, o in zip(named, order.tolist(), strict=True)]
    return Tops(out_ids, out_values, named)


def piece(positions: Ints, entries: list[Any], tops: list[Any] | None, counts: Counts, what: str) -> Piece:
    """The rows of a list of entries with their top entries. Texts are kept where an id is missing.

    Raises:
        ValueError: an entry is none; the message says which.
    """
    found = columns(entries, counts, what)
    top: Tops | None = None
    if tops is not None and any(tops):
        for i, row in enumerate(tops):
            if row is not None and type(row) is not list:
                raise ValueError(f"top entries of {what}, row {i} is no list")
        rows = [row or [] for row in tops]
        flat = columns(list(chain.from_iterable(rows)), counts, f"top entries of {what}")
        named = flat.texts if (flat.ids == UNKNOWN).any() else None
        top = padded(list(map(len, rows)), flat.ids, flat.values, named)
    return of(positions, found, top)


def of(positions: Ints, found: Columns, top: Tops | None) -> Piece:
    """Columns and top entries as rows."""
    texts = found.texts if any(found.texts) else None
    if top is None or top.values.shape[1] == 0:
        return Piece(positions, found.ids, found.values, texts=texts)
    return Piece(positions, found.ids, found.values, top.ids, top.values, texts, top.texts)
