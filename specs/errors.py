"""Errors for people: where, what, and what to do. Every user mistake ends here, never in a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file: ``line`` and ``column`` count from 1; 0 means "not known"."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [self.file]
        if self.line:
            parts.append(str(self.line))
            if self.column:
                parts.append(str(self.column))
        return ":".join(parts)


class UlpscopeError(Exception):
    """A mistake in the input, with its place, its cause and a remedy. The command line exits with 2.

    Args:
        cause: one sentence that says what is wrong.
        place: a `Place`, or any text that says where ("argument q", "file.npz: array 'k'").
        remedy: one sentence that says what to do.
    """

    exit_code = 2

    def __init__(self, cause: str, *, place: Place | str | None = None, remedy: str = "") -> None:
        self.cause = cause
        self.place = place
        self.remedy = remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.place}: {self.cause}" if self.place else self.cause
        return f"{head}\n  {self.remedy}" if self.remedy else head


class SpecError(UlpscopeError):
    """A spec, platform, model or workload file that cannot be read, typed or bound."""


class InputError(UlpscopeError):
    """Arrays or arguments of the wrong name, shape, dtype or value."""


class UnsupportedError(UlpscopeError):
    """A construct that is legal but not emulated; the message names what is supported."""


class FidelityError(UlpscopeError):
    """This machine cannot emulate faithfully. The command line exits with 3."""

    exit_code = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy sentence for an unknown ``word``: the closest of ``known``, else the whole list."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"known names: {shown}" if names else "there are none"
