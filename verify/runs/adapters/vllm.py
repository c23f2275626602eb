"""vLLM: answers of its server, and what ``LLM.generate`` returns, as JSON.

Read: ``/v1/completions`` and ``/v1/chat/completions`` (with ``return_token_ids`` ids are known; ``prompt_logprobs``
gives rows of the prompt; ``packed_top_logprobs`` is decoded), and `RequestOutput` s as dictionaries with
``prompt_token_ids``, ``prompt_logprobs`` and ``outputs[].{token_ids, logprobs}``, where a row is ``{id: {logprob, rank,
decoded_token}}`` or the whole is vLLM's flat form. The server clamps -infinity to -9999.
"""

from __future__ import annotations

import base64
import binascii
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from verify.runs.adapters.base import Draft, Json, Options, answer_positions, name_of, shaped, unwrap, wrong
from verify.runs.adapters.openai import about, answered, choices, prompt_of
from verify.runs.adapters.tokens import padded
from verify.runs.jsonio import Counts, identifiers, numbers, records
from verify.runs.rows import RELATIVE, Conversations, Piece, sequence
from verify.runs.sequence import UNKNOWN, Floats, Ints, Sequence

CLAMP = -9999.0
MAX_PACKED = 1 << 30


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of answers or offline outputs (one, a list, or one a line).

    Raises:
        InputError: no such answers.
    """
    sequences: list[Sequence] = []
    draft = Draft(sequences, {"engine": "vllm"}, {"value_kind": "raw_logprobs", "clamp_floor": CLAMP})
    order = Conversations()
    index = 0
    for record in records(file):
        for value in record.value if isinstance(record.value, list) else [record.value]:
            answer, said = unwrap(value)
            if not isinstance(answer, dict):
                wrong(record.place, "is no answer object")
            about(draft, answer, said)
            with shaped(f"{record.place}: answer {index}"):
                sequences += answers(answer, said, options, order, index)
            index += 1
    if not sequences:
        wrong(str(file), "has no answer with log-probabilities or token ids", "ask for logprobs")
    return [draft]


def answers(
    answer: dict[str, Json], said: dict[str, Any], options: Options, order: Conversations, index: int
) -> list[Sequence]:
    """The sequences of one answer, or of one offline output.

    Raises:
        ValueError: something in it is wrong; the message says what.
    """
    offline = isinstance(answer.get("outputs"), list)
    out: list[Sequence] = []
    for choice in [c for c in answer["outputs"] if isinstance(c, dict)] if offline else choices(answer):
        counts: Counts = {}
        prompt = prompt_of(choice, answer, said)
        length = None if prompt is None else len(prompt)
        before = choice.get("prompt_logprobs", answer.get("prompt_logprobs"))
        pieces: list[Piece] = []
        if before is not None and prompt is not None:
            pieces.append(_prompt_rows(before, prompt, counts))
        found = _offline(choice, length, counts) if offline else _served(choice, length, counts)
        if found is not None:
            pieces.append(found)
        if not pieces:
            continue
        name, repeat = name_of(said, prompt, options, order, index)
        labels = {"answer_row": str(len(pieces[0].positions) if len(pieces) == 2 else 0)}
        if prompt is None:
            labels |= RELATIVE
        finish = choice.get("finish_reason")
        out.append(
            sequence(
                name,
                repeat,
                pieces,
                prompt=prompt,
                finish=finish if isinstance(finish, str) else None,
                counts=counts,
                labels=labels,
            )
        )
    return out


def _prompt_rows(before: Json, prompt: Ints, counts: Counts) -> Piece:
    """Entry i of ``prompt_logprobs`` is what position i - 1 predicted; entry 0 is null, as nothing predicts it."""
    if _is_flat(before):
        before = _unflatten(before)
    if not isinstance(before, list):
        raise ValueError("prompt_logprobs is no list")
    if len(before) > len(prompt):
        raise ValueError(f"prompt_logprobs has {len(before)} entries for {len(prompt)} prompt tokens")
    if len(before) < len(prompt):
        counts["length_mismatches"] = len(prompt) - len(before)
    tokens = prompt[1 : len(before)]
    chosen, ids, values = _rows(before[1:], tokens, counts, "prompt_logprobs")
    return Piece(np.arange(len(tokens), dtype=np.int64), tokens, chosen, ids, values)


def _offline(choice: dict[str, Json], length: int | None, counts: Counts) -> Piece | None:
    if not isinstance(choice.get("token_ids"), list):
        return None
    tokens = identifiers(choice["token_ids"])
    rows = choice.get("logprobs")
    if rows is None:
        return Piece(answer_positions(length, len(tokens)), tokens)
    if _is_flat(rows):
        rows = _unflatten(rows)
    if not isinstance(rows, list):
        raise ValueError("logprobs is no list")
    if len(rows) != len(tokens):
        counts["length_mismatches"] = abs(len(rows) - len(tokens))
    count = min(len(rows), len(tokens))
    chosen, ids, values = _rows(rows[:count], tokens[:count], counts, "logprobs")
    return Piece(answer_positions(length, count), tokens[:count], chosen, ids, values)


def _rows(rows: list[Any], tokens: Ints, counts: Counts, what: str) -> tuple[Floats, Ints, Floats]:
    """Values of the chosen tokens, and top entries, of rows ``{id: {logprob, rank}}``.

    A row of k top entries has one more where the chosen token is not among them: then its rank is larger than the row,
    unless it is the next most likely, and may stay.
    """
    for i, row in enumerate(rows):
        if row is not None and type(row) is not dict:
            raise ValueError(f"{what}, row {i} is no object")
    missing = rows.count(None)
    if missing:
        counts["null_values"] = counts.get("null_values", 0) + missing
    taken: list[dict[str, Any]] = [row or {} for row in rows]
    lengths = np.array(list(map(len, taken)), np.int64)
    keys = list(chain.from_iterable(taken))
    entries: list[Any] = list(chain.from_iterable(row.values() for row in taken))
    ranks: list[Any] | None = None
    if set(map(type, entries)) == {dict}:
        ranks = [e.get("rank") for e in entries]
        entries = [e.get("logprob") for e in entries]
    try:
        ids, values = identifiers(list(map(int, keys))), numbers(entries, counts)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{what}, {error}") from None
    row_of = np.repeat(np.arange(len(taken)), lengths)
    own = ids == tokens[row_of]
    chosen = np.full(len(rows), np.nan)
    chosen[row_of[own]] = values[own]
    if ranks is not None and set(map(type, ranks)) == {int}:
        keep = ~(own & (np.array(ranks) > lengths[row_of]))
        ids, values = ids[keep], values[keep]
        lengths = np.bincount(row_of[keep], minlength=len(taken))
    top = padded(lengths.tolist(), ids, values, None)
    return chosen, top.ids, top.values


def _served(choice: dict[str, Json], length: int | None, counts: Counts) -> Piece | None:
    given: Any = choice.get("logprobs")
    packed = given.get("packed_top_logprobs") if isinstance(given, dict) else None
    if packed is None or not isinstance(given, dict):
        found = answered(choice, length, counts)
        if found is None and isinstance(choice.get("token_ids"), list):
            tokens = identifiers(choice["token_ids"])
            found = Piece(answer_positions(length, len(tokens)), tokens)
        return found
    found = answered({**choice, "logprobs": {**given, "top_logprobs": []}}, length, counts)
    if found is None:
        raise ValueError("logprobs has packed_top_logprobs and no tokens")
    ids, values = _packed(packed)
    if len(ids) != len(found.positions):
        raise ValueError(f"packed_top_logprobs has {len(ids)} rows for {len(found.positions)} tokens")
    return Piece(found.positions, found.tokens, found.chosen, ids, values, found.texts)


def _packed(packed: Json) -> tuple[Ints, Floats]:
    """``{shape, token_ids_dtype, logprobs_dtype, token_ids_b64, logprobs_b64}``: little-endian, row after row."""
    try:
        rows, width = packed["shape"]
        kinds = packed.get("token_ids_dtype", "<i4"), packed.get("logprobs_dtype", "<f4")
        texts = packed["token_ids_b64"], packed["logprobs_b64"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError("packed_top_logprobs lacks its shape or its data") from None
    if not all(type(n) is int and 0 <= n < 1 << 31 for n in (rows, width)):
        raise ValueError(f"packed_top_logprobs has shape {str(packed['shape'])[:40]}")
    if kinds[0] not in ("<i4", "<i8") or kinds[1] not in ("<f4", "<f8", "<f2"):
        raise ValueError(f"packed_top_logprobs has dtypes {str(kinds)[:60]}")
    arrays: list[Any] = []
    for text, kind in zip(texts, kinds, strict=True):
        if not isinstance(text, str) or len(text) > MAX_PACKED:
            raise ValueError("packed_top_logprobs has no text of base64, or too much of it")
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"packed_top_logprobs is no base64: {error}") from None
        if len(data) != rows * width * np.dtype(kind).itemsize:
            raise ValueError(f"packed_top_logprobs has {len(data)} bytes for {rows} x {width} of {kind}")
        arrays.append(np.frombuffer(data, kind).reshape(rows, width))
    ids = arrays[0].astype(np.int64)
    return np.where(ids < 0, UNKNOWN, ids), arrays[1].astype(np.float64)


def _is_flat(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("start_indices"), list)


def _unflatten(flat: dict[str, Json]) -> list[dict[str, Json] | None]:
    """FlatLogprobs of vLLM as the list of rows that it stands for."""
    try:
        starts, ends, ids, values = (
            flat[k] for k in ("start_indices", "end_indices", "token_ids", "logprobs")
        )
        ranks = flat.get("ranks") or [None] * len(ids)
        rows: list[dict[str, Json] | None] = []
        for a, b in zip(starts, ends, strict=True):
            row = {str(ids[i]): {"logprob": values[i], "rank": ranks[i]} for i in range(a, b)}
            rows.append(row or None)
    except (KeyError, TypeError, ValueError, IndexError):
        raise ValueError("the flat logprobs are damaged") from None
    return rows


def dump(outputs: Any) -> list[dict[str, Json]]:
    """What ``LLM.generate`` returned, as dictionaries that `read` takes once they are written as JSON.

    Only attributes are read, so that vLLM need not be installed here.
    """

    def row(entry: Any) -> Any:
        if entry is None:
            return None
        return {
            str(token): {"logprob": float(one.logprob), "rank": getattr(one, "rank", None)}
            for token, one in entry.items()
        }

    def some(rows: Any) -> Any:
        return None if rows is None else [row(entry) for entry in rows]

    return [
        {
            "prompt_token_ids": list(output.prompt_token_ids),
            "prompt_logprobs": some(getattr(output, "prompt_logprobs", None)),
            "outputs": [
                {
                    "token_ids": list(one.token_ids),
                    "logprobs": some(getattr(one, "logprobs", None)),
                    "finish_reason": getattr(one, "finish_reason", None),
                }
                for one in output.outputs
            ],
        }
        for output in outputs
    ]
