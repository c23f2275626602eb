"""SGLang: answers of ``POST /generate``, or what its offline engine returns.

Read: ``meta_info.input_token_logprobs`` and ``output_token_logprobs`` as ``[value | null, id, text | null]``,
``input_top_logprobs`` and ``output_top_logprobs`` as rows of the same or null. The first entry of the input has no value:
nothing predicts it. Values of the input are at temperature 1, those of the output divided by the request's temperature.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from verify.runs.adapters.base import Draft, Json, Options, answer_positions, name_of, shaped, unwrap, wrong
from verify.runs.jsonio import Counts, identifiers, numbers, pairs, records
from verify.runs.rows import RELATIVE, Conversations, Piece, sequence
from verify.runs.sequence import Floats, Ints, Sequence


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of answers (one, a list, or one a line).

    Raises:
        InputError: no such answers.
    """
    sequences: list[Sequence] = []
    draft = Draft(sequences, {"engine": "sglang"}, {"value_kind": "raw_logprobs"})
    order = Conversations()
    index = 0
    for record in records(file):
        for value in record.value if isinstance(record.value, list) else [record.value]:
            answer, said = unwrap(value)
            meta = answer.get("meta_info") if isinstance(answer, dict) else None
            if not isinstance(meta, dict):
                wrong(record.place, "is no answer of /generate: it has no meta_info")
            _temperature(draft, said)
            with shaped(f"{record.place}: answer {index}"):
                found = _answer(answer, meta, said, options, order, index)
            if found is not None:
                sequences.append(found)
            index += 1
    if not sequences:
        wrong(str(file), "has no answer with log-probabilities", "ask with return_logprob")
    return [draft]


def _temperature(draft: Draft, said: dict[str, Any]) -> None:
    request = said.get("request")
    sampling = request.get("sampling_params") if isinstance(request, dict) else None
    given = sampling.get("temperature") if isinstance(sampling, dict) else None
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0:
        draft.capture |= {"temperature": float(given), "greedy": given == 0}
        if given not in (0, 1):
            draft.capture["value_kind"] = "processed"


def _answer(
    answer: dict[str, Json],
    meta: dict[str, Json],
    said: dict[str, Any],
    options: Options,
    order: Conversations,
    index: int,
) -> Sequence | None:
    counts: Counts = {}
    before, after = meta.get("input_token_logprobs"), meta.get("output_token_logprobs")
    if not before and not after:
        return None
    length = meta.get("prompt_tokens")
    length = length if type(length) is int and length > 0 else None
    prompt = _prompt(said, answer, before, length)
    if length is None and prompt is not None:
        length = len(prompt)
    pieces: list[Piece] = []
    if before:
        if length is None:
            length = len(before)
        if len(before) > length:
            raise ValueError(f"input_token_logprobs has {len(before)} entries, prompt_tokens is {length}")
        first = length - len(before)
        piece = _piece(before, meta.get("input_top_logprobs"), first - 1, counts, "input_token_logprobs")
        pieces.append(piece)
    if after:
        start = int(answer_positions(length, 1)[0])
        pieces.append(_piece(after, meta.get("output_top_logprobs"), start, counts, "output_token_logprobs"))
    name, repeat = name_of(said, prompt, options, order, index)
    labels = {"answer_row": str(len(pieces[0].positions) if before and after else 0)}
    if length is None:
        labels |= RELATIVE
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else finish
    return sequence(
        name,
        repeat,
        pieces,
        prompt=prompt,
        finish=kind if isinstance(kind, str) else None,
        counts=counts,
        labels=labels,
    )


def _prompt(said: dict[str, Any], answer: dict[str, Json], before: Json, length: int | None) -> Ints | None:
    request = said.get("request")
    asked = request.get("input_ids") if isinstance(request, dict) else None
    for ids in (asked, said.get("prompt_token_ids"), answer.get("prompt_token_ids")):
        if isinstance(ids, list) and ids and type(ids[0]) is int:
            return identifiers(ids)
    if isinstance(before, list) and length is not None and len(before) == length:
        return _columns(before, {}, "input_token_logprobs")[1]
    return None


def _columns(rows: list[Any], counts: Counts, what: str) -> tuple[Floats, Ints, list[str] | None]:
    """Values, ids and texts of ``[value, id, text]`` rows."""
    widths = {len(r) if type(r) is list else 0 for r in rows}
    if not widths <= {2, 3}:
        raise ValueError(f"{what} has an entry that is no [value, id, text]")
    if len(widths) != 1:
        rows = [[*r, None][:3] for r in rows]
        widths = {3}
    width = min(widths)
    flat: list[Any] = list(chain.from_iterable(rows))
    try:
        values, ids = numbers(flat[0::width], counts), identifiers(flat[1::width])
    except ValueError as error:
        raise ValueError(f"{what}, {error}") from None
    texts = flat[2::width] if width == 3 else []
    named = any(t is not None for t in texts)
    return values, ids, ["" if t is None else str(t) for t in texts] if named else None


def _piece(rows: Json, tops: Json, start: int, counts: Counts, what: str) -> Piece:
    """Rows whose first entry is what position ``start`` predicted. One without a value at the front is left out:
    nothing predicts the first token of a text, and SGLang gives none for the first that was asked for.
    """
    if not isinstance(rows, list):
        raise ValueError(f"{what} is no list")
    skip = int(bool(rows) and type(rows[0]) is list and bool(rows[0]) and rows[0][0] is None)
    skip = max(skip, -start if start < 0 else 0) if what.startswith("input") else 0
    values, ids, texts = _columns(rows[skip:], counts, what)
    positions = np.arange(start + skip, start + len(rows), dtype=np.int64)
    top_ids: Ints | None = None
    top_values: Floats | None = None
    if isinstance(tops, list) and tops:
        if len(tops) != len(rows):
            counts["length_mismatches"] = counts.get("length_mismatches", 0) + abs(len(tops) - len(rows))
            tops = [*tops, *[None] * len(rows)][: len(rows)]
        try:
            top_ids, top_values = pairs(tops[skip:], counts, value_first=True)
        except ValueError as error:
            raise ValueError(f"{what.replace('token', 'top')}, {error}") from None
    return Piece(positions, ids, values, top_ids, top_values, texts)
