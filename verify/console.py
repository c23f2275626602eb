"""Manners of every command: where output goes, what a mistake looks like, and the last line."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import typer

from specs.errors import UlpscopeError
from verify.interrupts import INTERRUPTED, check, remembered, settle

DIVERGED = 1


@dataclass(frozen=True)
class Answer:
    """One command under way. ``json``: JSON alone on stdout; everything else then goes to stderr."""

    json: bool
    began: float
    lines: set[str] = field(default_factory=set[str])  # printed on stdout

    def data(self, value: dict[str, Any]) -> None:
        """Print ``value`` as JSON, if JSON was asked for."""
        if self.json:
            typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

    def text(self, line: str = "") -> None:
        """Print a line for people, if text was asked for."""
        if not self.json:
            self.lines.add(line)
            typer.echo(line)

    def close(self, verdict: str, *, diverged: bool = False) -> None:
        """The last line, on stderr: verdict, run time, command to replay. ``diverged`` ends with exit code 1.

        Where both streams are one terminal, a verdict that stands there already is not repeated.
        """
        seconds = time.perf_counter() - self.began
        seen = verdict in self.lines and sys.stdout.isatty() and sys.stderr.isatty()
        said = "" if seen else f"{verdict}  "
        typer.echo(f"{said}[{seconds:.1f} s]  replay: {command_line()}", err=True)
        if diverged:
            raise typer.Exit(DIVERGED)


def command_line() -> str:
    """The command as typed, quoted for a shell."""
    return shlex.join(["ulpscope", *sys.argv[1:]])


@contextmanager
def answering(as_json: bool) -> Generator[Answer]:
    """Run a command: a user's mistake becomes a message on stderr and an exit code, an interrupt 130."""
    try:
        with remembered():
            yield Answer(as_json, time.perf_counter())
            check()
    except UlpscopeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        settle()
        typer.echo(f"interrupted  replay: {command_line()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


class Progress:
    """One line on stderr that is written over; where stderr is not a terminal, a whole line for each stage.

    A stage that goes on gets another whole line each minute, and one at its end.
    """

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self.began = time.perf_counter()
        self.last = 0.0
        self.stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are done, and the time since the start.

        A ``total`` of 0 says that the stage begins and that its steps are not counted yet.
        """
        now = time.perf_counter()
        new, pause = stage != self.stage, 0.2 if self.shown else 60.0
        if not new and (done < total or total == 0) and now - self.last < pause:
            return
        self.last, self.stage = now, stage
        steps = f": {done} of {total}" if total else ""
        line = f"{stage}{steps}, {now - self.began:.0f} s"
        sys.stderr.write(f"\r\x1b[K{line}" if self.shown else f"{line}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
