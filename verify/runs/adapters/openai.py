"""OpenAI-style answers: chat and completions, and the engines that answer like them (Ollama, llama.cpp's server).

Tokens come as texts, seldom with ids: two tokens of one text cannot be told apart, which is counted. Fields read:
``choices[].logprobs.content[]{token, logprob, bytes, top_logprobs[]}`` (chat), ``choices[].logprobs{tokens[],
token_logprobs[], top_logprobs[], token_ids[]}`` (completions), ``logprobs[]`` at the top (Ollama) and
``completion_probabilities[]{id, token, logprob, top_logprobs[]}`` (llama.cpp's server).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from verify.runs.adapters.base import Draft, Json, Options, answer_positions, name_of, shaped, unwrap, wrong
from verify.runs.adapters.tokens import Columns, Tops, ids_in, of, padded, piece
from verify.runs.jsonio import Counts, identifiers, numbers, records
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
                with shaped(f"{record.place}: answer {index}"):
                    found = _choice(choice, answer, said, options, order, index)
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
    if not entries:
        return None
    if any(isinstance(e, dict) and ("probs" in e or "top_probs" in e) for e in entries):
        raise ValueError(
            "its entries have 'probs', probabilities after the sampler, and no 'logprob': ask llama.cpp's server without "
            "post_sampling_probs, or a newer one"
        )
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
    words = [t if type(t) is str else str(t) for t in texts[:count]]
    top = dicts(tops[:count], words, counts) if isinstance(tops, list) and any(tops) else None
    positions = answer_positions(1 if echoed else prompt_length, count)
    found = of(positions, Columns(ids_in(words), words, chosen[:count]), top)
    ids = choice.get("token_ids") or given.get("token_ids")
    return found if echoed else with_ids(found, ids, counts)


def dicts(tops: list[Any], chosen: list[str], counts: Counts) -> Tops:
    """Top entries of rows ``{text: value}``.

    Rows have k entries, and one more where the chosen token is not among the k most likely: that one is taken out.
    """
    tops = [*tops, *[None] * (len(chosen) - len(tops))]
    for i, row in enumerate(tops):
        if row is not None and type(row) is not dict:
            raise ValueError(f"top_logprobs, row {i} is no object")
    rows: list[dict[str, Any]] = [row or {} for row in tops]
    lengths = list(map(len, rows))
    texts = list(chain.from_iterable(rows))
    try:
        values = numbers(list(chain.from_iterable(row.values() for row in rows)), counts)
    except ValueError as error:
        raise ValueError(f"top_logprobs, {error}") from None
    ids, wanted = ids_in(texts), ids_in(chosen)
    known = bool((ids != UNKNOWN).all() and (wanted != UNKNOWN).all())
    found = padded(lengths, ids, values, None if known else texts)
    sizes = np.array(lengths, np.int64)
    least = int(
        np.bincount(sizes[sizes > 0], minlength=1).argmax()
    )  # the most common; equal texts make rows shorter
    more = np.nonzero(sizes == least + 1)[0]
    if sizes.max(initial=0) != least + 1:
        return found
    named = found.texts
    for i in more.tolist():
        same = found.ids[i, least] == wanted[i] if named is None else named[i][least] == chosen[i]
        if same:
            found.ids[i, least], found.values[i, least] = UNKNOWN, np.nan
            if named is not None:
                named[i].pop()
    if (found.ids[:, least] == UNKNOWN).all() and np.isnan(found.values[:, least]).all():
        return Tops(found.ids[:, :least], found.values[:, :least], named)
    return found
