"""What every adapter gives: drafts of runs, whose coordinate and recording the file says in part and the user in part."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from specs.errors import InputError
from verify.runs.rows import Conversations, prompt_name
from verify.runs.sequence import Ints, Sequence

Json = Any


@dataclass
class Draft:
    """One run as a file has it. ``coordinate``, ``capture``: fields of the manifest, as far as the file says them.

    ``name`` distinguishes it from the other runs of its file; empty where there is one alone.
    """

    sequences: list[Sequence]
    coordinate: dict[str, Any] = field(default_factory=dict[str, Any])
    capture: dict[str, Any] = field(default_factory=dict[str, Any])
    model: str | None = None
    vocab_size: int | None = None
    name: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """What a user may say about a file: ``conversation`` names all its answers, which then are repeats of one."""

    conversation: str | None = None


Reader = Callable[[Path, Options], list[Draft]]


@dataclass(frozen=True)
class Adapter:
    """A format of an engine: where its reader is, and what it reads, in words."""

    name: str
    module: str
    title: str


def wrong(place: str, cause: str, remedy: str = "") -> NoReturn:
    """Refuse a file.

    Raises:
        InputError: always.
    """
    raise InputError(
        cause, place=place, remedy=remedy or "give the file as the engine wrote it, or use a mapping"
    )


@contextmanager
def shaped(place: str) -> Generator[None]:
    """Whatever an answer of another shape makes a reader raise, as one message with its place.

    Raises:
        InputError: something was raised.
    """
    try:
        yield
    except ValueError as error:
        wrong(place, str(error))
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        wrong(place, f"has another shape than such answers have: {str(error)[:200]}")


def unwrap(value: Json) -> tuple[Json, dict[str, Any]]:
    """An answer out of what clients wrap around it (``response``, ``body``), and what the wrapper said of it."""
    said: dict[str, Any] = {}
    for _ in range(3):
        if not isinstance(value, dict):
            break
        for key in ("custom_id", "conversation", "repeat", "prompt_token_ids"):
            if key in value and key not in said:
                said[key] = value[key]
        inner = next((value[k] for k in ("response", "body") if isinstance(value.get(k), (dict, list))), None)
        if inner is None or "choices" in value or "meta_info" in value:
            break
        request = value.get("request")
        if isinstance(request, dict):
            said["request"] = request
        value = inner
    return value, said


def name_of(
    said: Mapping[str, Any], prompt: Ints | None, options: Options, order: Conversations, index: int
) -> tuple[str, int]:
    """The conversation and repeat of an answer: as the user, the file or the prompt's ids say, or by its place."""
    name = options.conversation
    for key in ("conversation", "custom_id"):
        if name is None and isinstance(said.get(key), (str, int)):
            name = str(said[key])[:200]
    if name is None:
        name = prompt_name(prompt) if prompt is not None and len(prompt) else f"answer-{index:05d}"
    repeat = said.get("repeat")
    number = order.repeat(name)
    return name, repeat if type(repeat) is int and repeat >= 0 else number


def answer_positions(prompt_length: int | None, count: int) -> Ints:
    """Positions of ``count`` generated tokens: from the prompt's last token on, or from 0 if its length is not known."""
    first = prompt_length - 1 if prompt_length else 0
    return np.arange(first, first + count, dtype=np.int64)
