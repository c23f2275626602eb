"""Paths into JSON and npz files: names, indices and wildcards. A small language that is read, never evaluated.

``a.b``, ``a."b.c"`` (a name with dots or brackets in quotes), ``a[3]``, ``a[-1]``, ``a[1:]``, ``a[*]`` (each entry),
``$.a`` from the root of the file, ``@`` the record itself. In names, ``{x}`` stands for what was captured under x; in the
path of the records it captures: ``scores_{part:cal|te}__{dtype}`` matches every name of that form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from specs.errors import SpecError
from verify.runs.tensors import Stored

MAX_PATH = 400
MAX_STEPS = 32
MAX_RECORDS = 10_000_000
_STEP = re.compile(
    r"""\.?(?P<name>[^.\["\]\s][^.\["\]]*)|\.?"(?P<quoted>[^"]*)"|\[(?P<all>\*)\]
    |\[(?P<index>-?\d{1,9})\]|\[(?P<start>\d{0,9}):(?P<stop>-?\d{0,9})\]""",
    re.X,
)
_HOLE = re.compile(r"\{(\w{1,40})(?::([^{}]*))?\}")


class _Missing:
    """Nothing is there."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING = _Missing()


@dataclass(frozen=True)
class Step:
    """One step of a path: a name (perhaps with holes), an index, a slice or every entry."""

    kind: Literal["name", "index", "slice", "all"]
    name: str = ""
    index: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Path:
    """A path that was read. ``root``: from the root of the file."""

    text: str
    root: bool
    steps: tuple[Step, ...]

    @property
    def holes(self) -> tuple[str, ...]:
        """The names in ``{}``, in order."""
        return tuple(m[1] for step in self.steps for m in _HOLE.finditer(step.name))


def parse_path(text: str) -> Path:
    """A path.

    Raises:
        SpecError: it is none; the message says where it stops being one.
    """
    rest = text.strip()
    if len(rest) > MAX_PATH:
        raise SpecError(f"a path of {len(rest)} characters", remedy=f"at most {MAX_PATH}")
    root, at = rest.startswith("$"), 1 if rest[:1] in ("$", "@") else 0
    steps: list[Step] = []
    while at < len(rest):
        match = _STEP.match(rest, at)
        if match is None or (steps and match["name"] and rest[at] != "."):
            raise SpecError(
                f"'{text[:80]}' is no path from character {at + 1} on",
                remedy='as in  tokens[*][1],  choices[0].logprobs,  "a.b"  or  $.model',
            )
        steps.append(_step(match))
        at = match.end()
    if len(steps) > MAX_STEPS:
        raise SpecError(f"a path of {len(steps)} steps", remedy=f"at most {MAX_STEPS}")
    return Path(text, root, tuple(steps))


def _step(match: re.Match[str]) -> Step:
    if match["all"]:
        return Step("all")
    if match["index"]:
        return Step("index", index=int(match["index"]))
    if match["start"] is not None:
        stop = match["stop"]
        return Step("slice", index=int(match["start"] or 0), stop=int(stop) if stop else None)
    return Step("name", match["quoted"] if match["quoted"] is not None else match["name"].strip())


def filled(text: str, captured: Mapping[str, str]) -> str:
    """``text`` with its ``{x}`` replaced by what was captured.

    Raises:
        SpecError: an x that nothing captures.
    """

    def put(match: re.Match[str]) -> str:
        if match[1] not in captured:
            raise SpecError(
                f"nothing captures '{match[1]}'", remedy=f"captured are: {', '.join(captured) or 'none'}"
            )
        return captured[match[1]]

    return _HOLE.sub(put, text)


def find(path: Path, root: Any, record: Any, captured: Mapping[str, str]) -> Any:
    """What ``path`` leads to, or `MISSING`."""
    return _walk(path.steps, root if path.root else record, captured)


def _walk(steps: tuple[Step, ...], value: Any, captured: Mapping[str, str]) -> Any:
    for i, step in enumerate(steps):
        if step.kind == "name":
            name = filled(step.name, captured) if "{" in step.name else step.name
            value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
        elif step.kind == "all":
            return _each(steps[i + 1 :], _opened(value), captured)
        else:
            value = _taken(step, _opened(value))
        if value is MISSING or value is None:
            return value
    return _opened(value)


def _opened(value: Any) -> Any:
    return value.whole() if isinstance(value, Stored) else value


def _taken(step: Step, value: Any) -> Any:
    if not isinstance(value, (list, np.ndarray)):
        return MISSING
    if step.kind == "slice":
        return value[step.index : step.stop]
    inside = -len(value) <= step.index < len(value)
    return value[step.index] if inside else MISSING


def _each(steps: tuple[Step, ...], value: Any, captured: Mapping[str, str]) -> Any:
    """The rest of a path for each entry; the common cases without a call for each."""
    if isinstance(value, np.ndarray):
        if not steps:
            return value
        if len(steps) == 1 and steps[0].kind == "index" and value.ndim > 1:
            inside = -value.shape[1] <= steps[0].index < value.shape[1]
            return value[:, steps[0].index] if inside else MISSING
        return MISSING
    if not isinstance(value, list):
        return MISSING
    if not steps:
        return value
    if len(steps) == 1:
        step = steps[0]
        try:
            if step.kind == "index":
                return list(map(itemgetter(step.index), value))
            if step.kind == "name" and "{" not in step.name:
                return list(map(itemgetter(step.name), value))
        except (KeyError, IndexError, TypeError):
            pass
    out = [_walk(steps, entry, captured) for entry in value]
    return (
        MISSING if out and all(one is MISSING for one in out) else [None if x is MISSING else x for x in out]
    )


def matches(path: Path, root: Any) -> Iterator[tuple[Any, dict[str, str]]]:
    """Every value that ``path``, with its captures, leads to, in the order of the file."""
    yield from _matches(path.steps, root, {})


def _matches(
    steps: tuple[Step, ...], value: Any, captured: dict[str, str]
) -> Iterator[tuple[Any, dict[str, str]]]:
    if not steps:
        yield value, dict(captured)
        return
    step, rest = steps[0], steps[1:]
    if step.kind == "name" and "{" in step.name:
        if isinstance(value, dict):
            pattern = _pattern(step.name)
            for name, inner in value.items():
                found = pattern.fullmatch(str(name)[:1000])
                if found is not None:
                    yield from _matches(rest, inner, {**captured, **found.groupdict()})
    elif step.kind == "name":
        if isinstance(value, dict) and step.name in value:
            yield from _matches(rest, value[step.name], captured)
    elif step.kind == "all":
        if isinstance(value, list):
            for inner in value:
                yield from _matches(rest, inner, captured)
    else:
        taken = _taken(step, _opened(value))
        if taken is not MISSING:
            yield from _matches(rest, taken, captured)


def _pattern(name: str) -> re.Pattern[str]:
    """A name with holes as a regular expression: everything but the holes stands for itself."""
    out, at = "", 0
    for hole in _HOLE.finditer(name):
        words = "|".join(re.escape(w) for w in hole[2].split("|")) if hole[2] else ".+?"
        out += re.escape(name[at : hole.start()]) + f"(?P<{hole[1]}>{words})"
        at = hole.end()
    try:
        return re.compile(out + re.escape(name[at:]), re.S)
    except re.error as error:
        raise SpecError(
            f"'{name[:80]}': {error}", remedy="name each {hole} differently, with letters"
        ) from None
