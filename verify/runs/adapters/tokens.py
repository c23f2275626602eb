"""Token entries of answers: ``{token | text, id?, logprob, bytes?, top_logprobs?}``, which most engines share in parts.

Texts are keys only where ids are missing, and then a token's bytes decide where its text is not all of it (part of a
character): ``b'\\xe2\\x80'`` and another part would both be shown as a replacement character.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.runs.jsonio import Counts, number
from verify.runs.rows import Piece, ragged
from verify.runs.sequence import UNKNOWN, Ints

_AS_ID = "token_id:"


@dataclass(frozen=True)
class Token:
    """One token of an entry: id or `UNKNOWN`, text and value."""

    id: int
    text: str
    value: float


def token(entry: Any, counts: Counts) -> Token:
    """One entry.

    Raises:
        ValueError: it is no entry of that kind.
    """
    if not isinstance(entry, dict):
        raise ValueError("is no object")
    text = entry.get("token", entry.get("text", ""))
    identity = entry.get("id", entry.get("token_id"))
    if type(text) is int and identity is None:
        text, identity = "", text
    if not isinstance(text, str):
        raise ValueError(f"has the token {str(text)[:40]!r}")
    if identity is None:
        identity = id_in(text)
    if type(identity) is not int or not UNKNOWN <= identity < 1 << 40:
        raise ValueError(f"has the id {str(identity)[:40]!r}")
    spelled = entry.get("bytes")
    if identity == UNKNOWN and isinstance(spelled, list):
        text = _spelled(spelled, text)
    return Token(identity, text, number(entry.get("logprob"), counts))


def id_in(text: str) -> int:
    """The id in ``token_id:N``, which vLLM prints for texts if asked to; else `UNKNOWN`."""
    digits = text.removeprefix(_AS_ID)
    return int(digits) if text.startswith(_AS_ID) and digits.isdecimal() and len(digits) < 12 else UNKNOWN


def _spelled(spelled: list[Any], text: str) -> str:
    try:
        raw = bytes(spelled)
    except (ValueError, TypeError):
        return text
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return repr(raw)


def piece(
    positions: Ints, entries: Items[Any], tops: Items[Items[Any] | None] | None, counts: Counts, what: str
) -> Piece:
    """The rows of a list of entries with their top entries.

    Raises:
        ValueError: an entry is none; the message says which.
    """
    found: list[Token] = []
    rows: list[list[Token]] = []
    for i, entry in enumerate(entries):
        try:
            found.append(token(entry, counts))
            given = tops[i] if tops is not None else None
            rows.append([token(t, counts) for t in given or ()])
        except ValueError as error:
            raise ValueError(f"{what}, entry {i} {error}") from None
    return from_tokens(positions, found, rows)


def from_tokens(positions: Ints, found: list[Token], rows: list[list[Token]]) -> Piece:
    """Rows of tokens. Texts are kept where an id is missing, or throughout."""
    tokens = np.array([t.id for t in found], np.int64)
    chosen = np.array([t.value for t in found], np.float64)
    ids, values = ragged([[(t.id, t.value) for t in row] for row in rows])
    named = any(t.text for t in found)
    texts = [t.text for t in found] if named else None
    top_texts = [[t.text for t in row] for row in rows] if any(t.text for row in rows for t in row) else None
    has = values.shape[1] > 0
    return Piece(positions, tokens, chosen, ids if has else None, values if has else None, texts, top_texts)
