"""A folder of witnesses, each of which must replay: what was found once stays found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from search.replay import ReplayResult, replay
from search.witness import read
from specs.errors import InputError, UlpscopeError


@dataclass(frozen=True)
class Member:
    """One witness of a corpus.

    Attributes:
        path: of its JSON.
        result: of its replay; None where it cannot be read or replayed.
        error: why not.
    """

    path: Path
    result: ReplayResult | None
    error: UlpscopeError | None = None

    @property
    def replays(self) -> bool:
        """Whether all is as it says."""
        return self.result is not None and self.result.replays

    def lines(self) -> list[str]:
        """The result in sentences."""
        return self.result.lines() if self.result is not None else [f"{self.path}: {self.error}"]


def members(folder: str | Path) -> list[Path]:
    """The JSON files of the witnesses in ``folder``, by name; folders in it are not visited.

    Raises:
        InputError: there is no such folder, or no witness in it, or arrays without their JSON.
    """
    home = Path(folder)
    if not home.is_dir():
        raise InputError("no such folder", place=str(home)[:400], remedy="give a folder of witnesses")
    try:
        found = sorted(p for p in home.iterdir() if p.suffix in (".json", ".safetensors") and p.is_file())
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(home), remedy="check its permissions"
        ) from None
    named = sorted({p.parent / f"{p.stem}.json" for p in found})
    if not named:
        raise InputError(
            "holds no witness", place=str(home), remedy="write one with `ulpscope search --out FOLDER`"
        )
    return named


def check(folder: str | Path, *, progress: Callable[[Member], None] = lambda _: None) -> tuple[Member, ...]:
    """Replay every witness in ``folder``; a broken one is reported beside the others.

    Args:
        folder: see `members`.
        progress: called after each.

    Raises:
        InputError: as `members`.
    """
    return tuple(_each(folder, progress))


def _each(folder: str | Path, progress: Callable[[Member], None]) -> Iterator[Member]:
    for path in members(folder):
        try:
            member = Member(path, replay(read(path)))
        except UlpscopeError as error:
            member = Member(path, None, error)
        progress(member)
        yield member


def exit_code(found: tuple[Member, ...]) -> int:
    """0: all replay; 2: one cannot be read (3: this machine cannot emulate); 1: one differs."""
    errors = [m.error.exit_code for m in found if m.error is not None]
    return max(errors, default=0 if all(m.replays for m in found) else 1)
