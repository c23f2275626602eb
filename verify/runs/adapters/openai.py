"""OpenAI-style answers: chat and completions, and the engines that answer like them (Ollama, llama.cpp's server).

Tokens come as texts, seldom with ids: two tokens of one text cannot be told apart, which is counted. Fields read:
``choices[].logprobs.content[]{token, logprob, bytes, top_logprobs[]}`` (chat), ``choices[].logprobs{tokens[],
token_logprobs[], top_logprobs[], token_ids[]}`` (completions), ``logprobs[]`` at the top (Ollama) and
``completion_probabilities[]{id, token, logprob, top_logprobs[]}`` (llama.cpp's server).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from verify.runs.adapters.base import Draft, Json, Options, answer_positions, name_of, unwrap, wrong
from verify.runs.adapters.tokens import Token, from_tokens, id_in, piece
from verify.runs.jsonio import Counts, identifiers, number, numbers, records
from verify.runs.rows import RELATIVE, Conversations, Piece, sequence
from verify.runs.sequence import UNKNOWN, Ints, Sequence

ENTRIES = ("content", "completion_probabilities", "logprobs")


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of answers (one, a list, or one a line).

    Raises:
        InputError: no such answers.
    """
    sequences: list[Sequence] = []
    draft = Draft(sequences, {}, {"value_kind": "raw_logprobs"})
    order = Conversations()
    index = 0
    for record in records(file):
        for value in record.value if isinstance(record.value, list) else [record.value]:
            answer, said = unwrap(value)
            if not isinstance(answer, dict):
                wrong(record.place, "is no answer object")
            about(draft, answer, said)
            for choice in choices(answer):
                try:
                    found = _choice(choice, answer, said, options, order, index)
                except ValueError as error:
                    wrong(f"{record.place}: answer {index}", str(error))
                if found is not None:
                    sequences.append(found)
            index += 1
    if not sequences:
        wrong(str(file), "has no answer with log-probabilities", "ask for logprobs, or name another adapter")
    return [draft]


def about(draft: Draft, answer: dict[str, Json], said: dict[str, Any]) -> None:
    """Keep what an answer and its request say of the run."""
    if isinstance(answer.get("model"), str) and draft.model is None:
        draft.model = answer["model"][:200]
    print_ = answer.get("system_fingerprint")
    if isinstance(print_, str) and print_:
        flags = draft.coordinate.setdefault("flags", {})
        flags.setdefault("system_fingerprint", print_[:200])
    request = said.get("request")
    temperature = request.get("temperature") if isinstance(request, dict) else None
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool) and temperature >= 0:
        draft.capture.setdefault("temperature", float(temperature))
        draft.capture.setdefault("greedy", temperature == 0)


def choices(answer: dict[str, Json]) -> list[dict[str, Json]]:
    """The choices of an answer; the answer itself where it has none."""
    found = answer.get("choices")
    if isinstance(found, list):
        return [c for c in found if isinstance(c, dict)]
    return [answer]


def prompt_of(choice: dict[str, Json], answer: dict[str, Json], said: dict[str, Any]) -> Ints | None:
    """Ids of the prompt, wherever they stand.

    Raises:
        ValueError: they are no ids.
    """
    for place in (choice, answer, said):
        if isinstance(place.get("prompt_token_ids"), list) and place["prompt_token_ids"]:
            return identifiers(place["prompt_token_ids"])
    return None


def _choice(
    choice: dict[str, Json],
    answer: dict[str, Json],
    said: dict[str, Any],
    options: Options,
    order: Conversations,
    index: int,
) -> Sequence | None:
    counts: Counts = {}
    prompt = prompt_of(choice, answer, said)
    found = answered(choice, None if prompt is None else len(prompt), counts)
    if found is None:
        return None
    name, repeat = name_of(said, prompt, options, order, index)
    labels = {} if prompt is not None else dict(RELATIVE)
    finish = choice.get("finish_reason", choice.get("done_reason", choice.get("stop_type")))
    return sequence(
        name,
        repeat,
        [found],
        prompt=prompt,
        finish=finish if isinstance(finish, str) else None,
        counts=counts,
        labels=labels,
    )


def answered(choice: dict[str, Json], prompt_length: int | None, counts: Counts) -> Piece | None:
    """The rows of what was generated, in either shape; None where no values were asked for.

    Raises:
        ValueError: something in it is wrong; the message says what.
    """
    given = choice.get("logprobs")
    if isinstance(given, dict) and isinstance(given.get("tokens"), list):
        return _lists(choice, given, prompt_length, counts)
    entries = given.get("content") if isinstance(given, dict) else None
    if entries is None:
        entries = next((choice[k] for k in ENTRIES if isinstance(choice.get(k), list)), None)
    if entries is None:
        return None
    tops = [e.get("top_logprobs") if isinstance(e, dict) else None for e in entries]
    found = piece(answer_positions(prompt_length, len(entries)), entries, tops, counts, "logprobs")
    return with_ids(found, choice.get("token_ids"), counts)


def with_ids(found: Piece, ids: Json, counts: Counts) -> Piece:
    """``found`` with the ids that stand beside it; where they are fewer, the rows behind have none."""
    if not isinstance(ids, list) or not ids:
        return found
    known = identifiers(ids)
    if len(known) != len(found.tokens):
        counts["length_mismatches"] = abs(len(known) - len(found.tokens))
    tokens = found.tokens.copy()
    n = min(len(known), len(tokens))
    tokens[:n] = known[:n]
    return Piece(
        found.positions, tokens, found.chosen, found.top_ids, found.top_values, found.texts, found.top_texts
    )


def _lists(
    choice: dict[str, Json], given: dict[str, Json], prompt_length: int | None, counts: Counts
) -> Piece:
    """Completions: parallel lists. Where the first value is null the prompt is echoed: nothing predicts its first token."""
    texts, values, tops = given["tokens"], given.get("token_logprobs"), given.get("top_logprobs")
    echoed = False
    if isinstance(values, list) and values and values[0] is None:
        echoed, texts, values = True, texts[1:], values[1:]
        tops = tops[1:] if isinstance(tops, list) else None
    chosen = numbers(values, counts) if isinstance(values, list) else np.full(len(texts), np.nan)
    count = min(len(texts), len(chosen))
    if len(texts) != len(chosen):
        counts["length_mismatches"] = abs(len(texts) - len(chosen))
    rows = _dicts(tops, count, counts) if isinstance(tops, list) and tops else [[] for _ in range(count)]
    words = [str(t) for t in texts[:count]]
    found = from_tokens(
        answer_positions(1 if echoed else prompt_length, count),
        [Token(id_in(t), t, float(v)) for t, v in zip(words, chosen, strict=False)],
        trimmed(rows, words),
    )
    ids = choice.get("token_ids") or given.get("token_ids")
    if echoed:
        return found
    return with_ids(found, ids, counts)


def _dicts(tops: list[Any], count: int, counts: Counts) -> list[list[Token]]:
    """Rows of ``{text: value}``."""
    rows: list[list[Token]] = []
    for i in range(count):
        row = tops[i] if i < len(tops) else None
        if row is None:
            rows.append([])
        elif isinstance(row, dict):
            rows.append([Token(id_in(k), k, number(v, counts)) for k, v in row.items()])
        else:
            raise ValueError(f"top_logprobs, row {i} is no object")
    return rows


def trimmed(rows: list[list[Token]], chosen: list[str]) -> list[list[Token]]:
    """Rows of k top entries: where a row has one more, the chosen token that is not among the k, that one is taken out."""
    lengths = [len(row) for row in rows if row]
    least = min(lengths, default=0)
    out: list[list[Token]] = []
    for row, text in zip(rows, chosen, strict=True):
        ordered = sorted(row, key=lambda t: -t.value if t.value == t.value else np.inf)
        if len(row) == least + 1 and ordered[-1].text == text:
            ordered.pop()
        out.append(ordered)
    return out


__all__ = ["UNKNOWN", "about", "answered", "choices", "prompt_of", "read", "with_ids"]
