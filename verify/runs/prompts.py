"""Prompts and their ranges: which positions of which conversations are recorded.

A file of JSON lines, one conversation a line: ``{"id": "SP01", "token_ids": [...], "ranges": [{"name": "M001", "depth":
6335, "tokens": 108, "content": "text + tool calls"}]}``. ``text`` may stand for ``token_ids``: the model's tokenizer then
makes them where the capture is made. A range is a message of ``tokens`` tokens with ``depth`` tokens before it: its first
row stands at position ``depth - 1`` and predicts the message's first token. ``"workload": "agent_session"`` takes the
ranges of that conversation from a workload (`specs.workloads`); without either, every token but the first is recorded.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError, SpecError, did_you_mean
from specs.workloads import load_workload
from verify.runs.jsonio import identifiers, records
from verify.runs.sequence import Ints

KEYS = ("id", "token_ids", "text", "ranges", "workload")
RANGE = ("name", "depth", "tokens", "content")
MAX_TOKENS = 1 << 24
MAX_PROMPTS = 100_000


@dataclass(frozen=True)
class Span:
    """A range: ``tokens`` tokens behind ``depth`` others, and what they consist of, in words."""

    name: str
    depth: int
    tokens: int
    content: str = ""

    @property
    def end(self) -> int:
        """Tokens up to its last."""
        return self.depth + self.tokens


@dataclass(frozen=True)
class Prompt:
    """One conversation: its whole text as ids or as text, and the ranges that are recorded (none: all of it)."""

    conversation: str
    token_ids: tuple[int, ...] | None
    text: str | None
    spans: tuple[Span, ...]

    def rows(self, length: int | None = None) -> Rows:
        """The rows that are recorded; ``length`` is the number of tokens, where the ids are not known here."""
        count = len(self.token_ids) if self.token_ids is not None else length or 0
        spans = self.spans or (Span("all", 1, max(0, count - 1)),)
        depths = [np.arange(s.depth, s.end, dtype=np.int64) for s in spans]
        index = [np.arange(s.tokens, dtype=np.int64) for s in spans]
        whole = np.concatenate(depths)
        return Rows(
            whole - 1, tuple(s.name for s in spans for _ in range(s.tokens)), whole, np.concatenate(index)
        )


@dataclass(frozen=True)
class Rows:
    """Rows of a conversation: position, name of the range, tokens before the predicted one, place in the range."""

    positions: Ints
    ranges: tuple[str, ...]
    depths: Ints
    index: Ints


def read_prompts(path: str | Path) -> tuple[Prompt, ...]:
    """The conversations of a file.

    Raises:
        InputError: no such file, a line that is no conversation, a range outside the text, or two that overlap.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError("no such file", place=str(path)[:200], remedy="give a file of JSON lines")
    found: list[Prompt] = []
    for record in records(file):
        values = record.value if isinstance(record.value, list) else [record.value]
        found += [_prompt(value, record.place, len(found) + i) for i, value in enumerate(values)]
        if len(found) > MAX_PROMPTS:
            raise InputError(
                f"more than {MAX_PROMPTS:,} conversations", place=str(file), remedy="split the file"
            )
    if not found:
        raise InputError("is empty", place=str(file), remedy='as in {"id": "a", "token_ids": [1, 2, 3]}')
    names = [p.conversation for p in found]
    twice = next((n for n in names if names.count(n) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InputError(
            f"'{twice[:80]}' twice", place=f"{file}: id", remedy="give each conversation its own id"
        )
    return tuple(found)


def _prompt(value: Any, place: str, index: int) -> Prompt:
    def wrong(cause: str, field: str, remedy: str = "") -> InputError:
        return InputError(
            cause, place=f"{place}: {field}", remedy=remedy or "see docs/runs.md for the format"
        )

    if not isinstance(value, dict):
        raise wrong("is no object", "line", 'as in {"id": "a", "token_ids": [1, 2, 3]}')
    for name in value:
        if name not in KEYS:
            raise wrong("unknown key", str(name)[:80], did_you_mean(str(name)[:80], KEYS))
    text, ids = value.get("text"), value.get("token_ids")
    if (ids is None) == (text is None) or (text is not None and not isinstance(text, str)):
        raise wrong("give one of the two", "token_ids, text")
    tokens: tuple[int, ...] | None = None
    if ids is not None:
        try:
            tokens = tuple(identifiers(ids).tolist())
        except ValueError as error:
            raise wrong(str(error), "token_ids") from None
        if not 2 <= len(tokens) <= MAX_TOKENS:
            raise wrong(f"has {len(tokens):,} tokens", "token_ids", f"give 2 to {MAX_TOKENS:,}")
    name = str(value.get("id", f"prompt-{index}"))[:200]
    if value.get("ranges") is not None and value.get("workload") is not None:
        raise wrong("give one of the two", "ranges, workload")
    spans = _spans(value, name, wrong)
    length = len(tokens) if tokens is not None else MAX_TOKENS
    for before, span in zip((None, *spans), spans, strict=False):
        if span.end > length:
            raise wrong(
                f"'{span.name}' ends at token {span.end:,}, the text has {length:,}",
                "ranges",
                "correct depth and tokens",
            )
        if before is not None and span.depth < before.end:
            raise wrong(
                f"'{span.name}' begins at {span.depth:,}, before the end of '{before.name}'", "ranges"
            )
    return Prompt(name, tokens, text, spans)


def _spans(value: dict[str, Any], conversation: str, wrong: Any) -> tuple[Span, ...]:
    """The ranges of a line, by depth."""
    if value.get("workload") is not None:
        try:
            workload = load_workload(str(value["workload"]))
        except SpecError as error:
            raise wrong(error.cause, "workload", error.remedy) from None
        spans = [
            Span(r.message, r.depth, r.tokens, r.content)
            for r in workload.ranges
            if r.conversation == conversation
        ]
        if not spans:
            known = {r.conversation for r in workload.ranges}
            raise wrong(
                f"'{workload.name}' has no conversation '{conversation}'",
                "workload",
                did_you_mean(conversation, known),
            )
        return tuple(sorted(spans, key=lambda s: s.depth))
    given = value.get("ranges")
    if given is None:
        return ()
    if not isinstance(given, list) or not given:
        raise wrong("is no list of ranges", "ranges")
    spans = []
    for i, one in enumerate(given):
        if not isinstance(one, dict):
            raise wrong("is no object", f"ranges[{i}]")
        for name in one:
            if name not in RANGE:
                raise wrong(
                    "unknown key", f"ranges[{i}].{str(name)[:80]}", did_you_mean(str(name)[:80], RANGE)
                )
        depth, tokens = one.get("depth"), one.get("tokens")
        if type(depth) is not int or not 1 <= depth <= MAX_TOKENS:
            raise wrong(
                f"is {str(depth)[:40]}", f"ranges[{i}].depth", "give the tokens before the range, at least 1"
            )
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise wrong(f"is {str(tokens)[:40]}", f"ranges[{i}].tokens", "give at least 1")
        spans.append(
            Span(str(one.get("name", f"R{i:03d}"))[:200], depth, tokens, str(one.get("content", ""))[:2000])
        )
    names = [s.name for s in spans]
    if len(set(names)) < len(names):
        raise wrong("has a name twice", "ranges", "give each range its own name")
    return tuple(sorted(spans, key=lambda s: s.depth))


def packed(prompts: tuple[Prompt, ...]) -> str:
    """The prompts as text to put into a script: JSON, compressed, in base64."""
    whole = [
        {
            "id": p.conversation,
            "token_ids": p.token_ids,
            "text": p.text,
            "ranges": [[s.name, s.depth, s.tokens] for s in p.spans],
        }
        for p in prompts
    ]
    data = json.dumps(whole, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(data, 9)).decode()
