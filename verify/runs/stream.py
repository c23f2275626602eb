"""Answers that came in pieces: server-sent events, or the pieces as lines, put together again.

Pieces that are known: chat and completion chunks (by ``id`` and the ``index`` of the choice), Text Generation Inference
(one token a piece, until ``generated_text``), SGLang (``meta_info`` by ``id``; lists that grow are taken as they grew),
Ollama (until ``done``) and llama.cpp's server (until ``stop``). An answer that was cut off ends with the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Json = Any
Piece = dict[str, Any]
_LISTS = ("token_ids", "logprobs", "completion_probabilities", "tokens")


def is_stream(head: bytes) -> bool:
    """Whether a file begins as server-sent events do."""
    return head.lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b": "))


def events(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """The data of each event of a stream, and the number of its line; ``[DONE]`` and comments are left out."""
    for number, line in enumerate(lines, 1):
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if data and data != b"[DONE]":
            yield data, number


def kind_of(value: Json) -> str | None:
    """Which engine's piece of an answer a value is, if it cannot be a whole one."""
    if not isinstance(value, dict):
        return None
    if value.get("object") == "chat.completion.chunk":
        return "openai"
    if isinstance(value.get("token"), dict) and "generated_text" in value:
        return "tgi"
    if type(value.get("done")) is bool and ("response" in value or "message" in value):
        return "ollama"
    return None


def kind_in_stream(value: Json) -> str | None:
    """The same of what came as an event, where a piece may look like a whole answer."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("choices"), list):
        return "openai"
    if isinstance(value.get("meta_info"), dict):
        return "sglang"
    return kind_of(value) or ("llama_cpp" if type(value.get("stop")) is bool else None)


class Answers:
    """Answers under way, by engine and id."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Piece] = {}

    def add(self, kind: str, piece: Piece) -> Iterator[Piece]:
        """Add a piece; what it completes."""
        own = piece.get("meta_info") if kind == "sglang" else piece
        name = str(own.get("id")) if isinstance(own, dict) and kind in ("openai", "sglang") else ""
        key = (kind, name)
        held = self._open.get(key)
        if held is None:
            held = self._open[key] = _begun(kind, piece)
        _JOIN[kind](held, piece)
        ends = {"tgi": "generated_text", "ollama": "done", "llama_cpp": "stop"}.get(kind)
        if ends is not None and piece.get(ends) not in (None, False):
            yield self._open.pop(key)

    def rest(self) -> Iterator[Piece]:
        """Those that no piece said were complete, in the order in which they began."""
        yield from self._open.values()
        self._open = {}


def _begun(kind: str, piece: Piece) -> Piece:
    if kind == "openai":
        return {**{k: v for k, v in piece.items() if k != "usage"}, "choices": []}
    if kind == "tgi":
        return {"details": {"tokens": [], "top_tokens": [], "prefill": []}}
    if kind == "sglang":
        return {**piece, "meta_info": {}}
    return {k: v for k, v in piece.items() if k not in _LISTS}


def _extended(held: Piece, piece: Piece) -> None:
    """Lists are joined, other fields replaced where they say something."""
    for name, value in piece.items():
        if isinstance(value, list) and name in held and isinstance(held[name], list):
            held[name].extend(value)
        elif value is not None or name not in held:
            held[name] = value


def _openai(held: Piece, piece: Piece) -> None:
    for choice in piece.get("choices") or []:
        if not isinstance(choice, dict):
            continue
        index = choice.get("index")
        mine: Piece | None = next((c for c in held["choices"] if c.get("index") == index), None)
        if mine is None:
            mine = {"index": index, "logprobs": None}
            held["choices"].append(mine)
        given = choice.get("logprobs")
        if isinstance(given, dict):
            logs: Piece = mine["logprobs"] or {}
            _extended(logs, given)
            mine["logprobs"] = logs
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            mine.setdefault("token_ids", []).extend(ids)
        for name, value in choice.items():
            if name not in ("index", "logprobs", "token_ids", "delta", "text") and value is not None:
                mine.setdefault(name, value)


def _tgi(held: Piece, piece: Piece) -> None:
    details = held["details"]
    details["tokens"].append(piece["token"])
    top = piece.get("top_tokens")
    details["top_tokens"].append(top if isinstance(top, list) else [])
    if isinstance(piece.get("details"), dict):
        details |= {k: v for k, v in piece["details"].items() if k not in ("tokens", "top_tokens")}
    held["generated_text"] = piece.get("generated_text")


def _sglang(held: Piece, piece: Piece) -> None:
    before, said = held["meta_info"], piece["meta_info"]
    lists = {k: v for k, v in said.items() if k.endswith("_logprobs") and isinstance(v, list)}
    for name, value in lists.items():
        old = before.get(name) or []
        before[name] = value if value[: len(old)] == old else old if name.startswith("input") else old + value
    before |= {k: v for k, v in said.items() if k not in lists and v is not None}


def _flat(held: Piece, piece: Piece) -> None:
    """Ollama and llama.cpp: lists at the top."""
    lists = {k: v for k, v in piece.items() if k in _LISTS and isinstance(v, list)}
    for name, value in lists.items():
        held.setdefault(name, []).extend(value)
    held |= {k: v for k, v in piece.items() if k not in _LISTS and v is not None}


_JOIN = {"openai": _openai, "tgi": _tgi, "sglang": _sglang, "ollama": _flat, "llama_cpp": _flat}
