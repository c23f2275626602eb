"""Runs as JSON lines: one sequence a line, for top-k values, chosen values and texts.

``{"id", "run_id", "repeat", "prompt_token_ids", "token_ids", "logprobs", "top": [[[id, value], ...] | null, ...]}``, with
``null`` or ``"-inf"`` among the values and null for ids that are not known; optionally ``positions``, ``lse``, ``texts``,
``top_texts``, ``ranges`` (a name a row), ``depths``, ``finish``, ``counts`` and ``labels``. Where ``top_texts`` stand for
the ids, a row of ``top`` may be values alone. Without ``positions`` the first row stands on the prompt's last token, or at
0 where the prompt is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, did_you_mean
from verify.runs.assemble import Parts
from verify.runs.jsonio import identifiers, numbers, pairs, records
from verify.runs.manifest import RunFile
from verify.runs.problems import Problems
from verify.runs.sequence import UNKNOWN, Sequence

_LIST, _OBJECT, _TEXT = (list, "list"), (dict, "object"), (str, "text")
#: The keys of a line, and what JSON each is where it is not null.
KEYS: dict[str, tuple[Any, str]] = {
    "id": ((str, int), "text"),
    "run_id": _TEXT,
    "repeat": (int, "whole number"),
    "prompt_token_ids": _LIST,
    "token_ids": _LIST,
    "logprobs": _LIST,
    "top": _LIST,
    "positions": _LIST,
    "lse": _LIST,
    "texts": _LIST,
    "top_texts": _LIST,
    "ranges": _LIST,
    "depths": _LIST,
    "finish": _TEXT,
    "counts": _OBJECT,
    "labels": _OBJECT,
}


def read_lines(folder: Path, entry: RunFile, problems: Problems) -> Iterator[Parts]:
    """The parts of every line of a file. What is wrong with a line goes to ``problems``, with its number as the row."""
    try:
        for record in records(folder / entry.path):
            before = problems.count
            parts = _parts(record.value, entry, max(0, record.line - 1), problems)
            if parts is not None and problems.count == before:
                yield parts
    except InputError as error:
        problems.add(entry.path, error.cause, remedy=error.remedy)


def _parts(line: Any, entry: RunFile, row: int, problems: Problems) -> Parts | None:
    file = f"{entry.path} line {row + 1}"
    if not isinstance(line, dict):
        problems.add(file, "is no object")
        return None
    if not _right(line, file, problems):
        return None
    counts = {k: v for k, v in (line.get("counts") or {}).items() if type(v) is int and v > 0}
    nulls: dict[str, int] = {}
    arrays: dict[str, Any] = {}

    def take(key: str, name: str, convert: Any) -> Any:
        if line.get(key) is None:
            return None
        try:
            arrays[name] = convert(line[key])
        except ValueError as error:
            problems.add(file, str(error), key)
        return arrays.get(name)

    tokens = take("token_ids", "tokens", lambda v: identifiers(v, unknown=True))
    take("logprobs", "chosen", lambda v: numbers(v, nulls))
    take("positions", "positions", identifiers)
    take("depths", "depths", identifiers)
    take("lse", "lse", lambda v: numbers(v, nulls))
    names = line.get("ranges")
    range_names: list[str] | None = None
    if isinstance(names, list):
        range_names = sorted({str(n) for n in names})
        index = {n: i for i, n in enumerate(range_names)}
        arrays["ranges"] = np.array([index[str(n)] for n in names], np.int64)
    if line.get("top") is not None:
        _top(line, nulls, arrays, file, problems)
    prompt: NDArray[np.int64] | None = None
    if line.get("prompt_token_ids"):
        try:
            prompt = identifiers(line["prompt_token_ids"])
        except ValueError as error:
            problems.add(file, str(error), "prompt_token_ids")
    _equal_lengths(arrays, tokens, counts, line)
    repeat = entry.repeat if line.get("repeat") is None else line["repeat"]
    if type(repeat) is not int or repeat < 0:
        problems.add(file, f"is {str(repeat)[:40]!r}", "repeat", remedy="give 0, 1, 2, ...")
        repeat = 0
    texts, tops = line.get("texts"), line.get("top_texts")
    counts = {**counts, **nulls}
    return Parts(
        file,
        str(entry.conversation or entry.path if line.get("id") is None else line["id"]),
        repeat,
        arrays,
        range_names,
        tuple(str(t) for t in texts) if isinstance(texts, list) else None,
        tuple(tuple(str(t) for t in r or ()) for r in tops) if isinstance(tops, list) else None,
        prompt,
        line.get("finish") if isinstance(line.get("finish"), str) else None,
        counts,
        {str(k): str(v) for k, v in (line.get("labels") or {}).items()},
        f"{entry.sha256}:{row}",
    )


def _right(line: dict[str, Any], file: str, problems: Problems) -> bool:
    """Whether every key is one, and holds what it should."""
    before = problems.count
    for name, value in line.items():
        if name not in KEYS:
            problems.add(file, "unknown key", str(name)[:80], remedy=did_you_mean(str(name)[:80], KEYS))
        elif value is not None and (not isinstance(value, KEYS[name][0]) or isinstance(value, bool)):
            problems.add(file, f"is {str(value)[:40]!r}, no {KEYS[name][1]}", name)
    tops: list[Any] = line.get("top_texts") or []
    if problems.count == before and any(r is not None and not isinstance(r, list) for r in tops):
        problems.add(file, "has a row that is no list", "top_texts")
    return problems.count == before


def _top(line: Any, nulls: dict[str, int], arrays: dict[str, Any], file: str, problems: Problems) -> None:
    """Top entries: pairs of id and value; values alone where ``top_texts`` stand for the ids."""
    try:
        if line.get("top_texts") is not None and all(
            r is None or not any(isinstance(e, list) for e in r) for r in line["top"]
        ):
            rows = [numbers(r or [], nulls) for r in line["top"]]
            width = max([0, *map(len, rows)])
            values = np.full((len(rows), width), np.nan)
            for i, found in enumerate(rows):
                values[i, : len(found)] = found
            arrays["topk_values"] = values
            arrays["topk_ids"] = np.full(values.shape, UNKNOWN, np.int64)
        else:
            arrays["topk_ids"], arrays["topk_values"] = pairs(line["top"], nulls)
    except (ValueError, TypeError) as error:
        problems.add(file, str(error), "top")


def _equal_lengths(
    arrays: dict[str, Any], tokens: NDArray[np.int64] | None, counts: dict[str, int], line: Any
) -> None:
    """Lists of different lengths: what has no partner is left out and counted."""
    per_row = {n: a for n, a in arrays.items() if a is not None}
    if not per_row:
        return
    lengths = {len(a) for a in per_row.values()}
    if len(lengths) == 1 or (tokens is not None and not len(tokens)):
        return
    least = min(lengths)
    counts["length_mismatches"] = counts.get("length_mismatches", 0) + max(lengths) - least
    for name, array in per_row.items():
        arrays[name] = array[:least]
    for name in ("texts", "top_texts"):
        if isinstance(line.get(name), list):
            line[name] = line[name][:least]


def line_of(sequence: Sequence, run_id: str) -> bytes:
    """A sequence without full logits and attention as one line, without its newline. Floats are written exactly."""
    import orjson

    top, null = sequence.top, "null_values" in sequence.counts
    out: dict[str, Any] = {"id": sequence.conversation, "run_id": run_id, "repeat": sequence.repeat}
    out["prompt_token_ids"] = None if sequence.prompt is None else sequence.prompt.tolist()
    out["positions"] = sequence.positions.tolist()
    out["token_ids"] = [None if t == UNKNOWN else t for t in sequence.tokens.tolist()]
    if sequence.chosen is not None:
        out["logprobs"] = _values(sequence.chosen, null)
    if top is not None:
        if top.texts is not None and (top.ids == UNKNOWN).all():
            out["top"] = [_values(v[: len(t)], null) for v, t in zip(top.values, top.texts, strict=True)]
        else:
            out["top"] = [_row(i, v, null) for i, v in zip(top.ids, top.values, strict=True)]
        if top.lse is not None:
            out["lse"] = _values(top.lse, null)
        if top.texts is not None:
            out["top_texts"] = [list(t) for t in top.texts]
    for name in ("texts", "ranges", "finish", "counts", "labels"):
        value = getattr(sequence, name)
        if value:
            out[name] = value
    if sequence.depths is not None:
        out["depths"] = sequence.depths.tolist()
    return orjson.dumps(out)


def _row(ids: NDArray[np.int64], values: NDArray[np.float64], null: bool) -> list[list[Any]] | None:
    """A row's entries: all but what only fills it up. An id that is not known is null."""
    there = (ids != UNKNOWN) | ~np.isnan(values)
    if not there.any():
        return None
    known = [None if i == UNKNOWN else i for i in ids[there].tolist()]
    return [[i, v] for i, v in zip(known, _values(values[there], null), strict=True)]


def _values(values: NDArray[np.float64], null: bool) -> list[Any]:
    """Floats as JSON has them: infinities and NaN as words, or NaN as null where it was null when it was read."""
    if np.isfinite(values).all():
        return values.tolist()
    words = {float("inf"): "inf", float("-inf"): "-inf"}
    return [(None if null else "nan") if v != v else words.get(v, v) for v in values.tolist()]


def write_lines(file: Path, sequences: list[Sequence], run_id: str) -> None:
    """Write sequences to ``file``, one a line."""
    with file.open("wb") as stream:
        for sequence in sequences:
            stream.write(line_of(sequence, run_id) + b"\n")
