"""Text Generation Inference: answers with ``details{prefill[], tokens[], top_tokens[]}``.

Entries are ``{id, text, logprob, special}``; the first of ``prefill`` has no value. Newer versions leave ``prefill``
empty: then the prompt is not known and positions count from the first answered token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from verify.runs.adapters.base import Draft, Json, Options, answer_positions, name_of, shaped, unwrap, wrong
from verify.runs.adapters.tokens import piece
from verify.runs.jsonio import Counts, records
from verify.runs.rows import RELATIVE, Conversations, Piece, sequence
from verify.runs.sequence import UNKNOWN, Ints, Sequence


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of answers (one, a list, or one a line).

    Raises:
        InputError: no such answers.
    """
    sequences: list[Sequence] = []
    draft = Draft(sequences, {"engine": "tgi"}, {"value_kind": "raw_logprobs"})
    order = Conversations()
    index = 0
    for record in records(file):
        for value in record.value if isinstance(record.value, list) else [record.value]:
            answer, said = unwrap(value)
            if not isinstance(answer, dict):
                wrong(record.place, "is no answer object")
            inner: Any = answer.get("details")
            details: dict[str, Json] = inner if isinstance(inner, dict) else answer
            if not isinstance(details.get("tokens"), list):
                wrong(record.place, "has no details.tokens", "ask with details and decoder_input_details")
            for one in [details, *_others(details)]:
                with shaped(f"{record.place}: answer {index}"):
                    sequences.append(_answer(one, said, options, order, index))
            index += 1
    if not sequences:
        wrong(str(file), "has no answer")
    return [draft]


def _others(details: dict[str, Json]) -> list[dict[str, Json]]:
    found = details.get("best_of_sequences")
    return (
        [d for d in found if isinstance(d, dict) and isinstance(d.get("tokens"), list)]
        if isinstance(found, list)
        else []
    )


def _answer(
    details: dict[str, Json], said: dict[str, Any], options: Options, order: Conversations, index: int
) -> Sequence:
    counts: Counts = {}
    before = details.get("prefill")
    prompt: Ints | None = None
    pieces: list[Piece] = []
    if isinstance(before, list) and before:
        found = piece(np.arange(-1, len(before) - 1), before[:1], None, {}, "prefill")
        rest = piece(np.arange(len(before) - 1, dtype=np.int64), before[1:], None, counts, "prefill")
        prompt = np.concatenate([found.tokens, rest.tokens])
        if (prompt == UNKNOWN).any():
            raise ValueError("prefill has a token without id")
        pieces.append(rest)
    tokens, tops = details["tokens"], details.get("top_tokens")
    positions = answer_positions(None if prompt is None else len(prompt), len(tokens))
    if isinstance(tops, list) and tops and len(tops) != len(tokens):
        counts["length_mismatches"] = abs(len(tops) - len(tokens))
        tops = [*tops, *[None] * len(tokens)][: len(tokens)]
    pieces.append(
        piece(positions, tokens, tops if isinstance(tops, list) and tops else None, counts, "tokens")
    )
    name, repeat = name_of(said, prompt, options, order, index)
    labels = {"answer_row": str(len(pieces[0].positions) if len(pieces) == 2 else 0)}
    if prompt is None:
        labels |= RELATIVE
    finish = details.get("finish_reason")
    return sequence(
        name,
        repeat,
        pieces,
        prompt=prompt,
        finish=finish if isinstance(finish, str) else None,
        counts=counts,
        labels=labels,
    )
