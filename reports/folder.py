"""The folder of a run: known to be writable before anything is computed for it."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from specs.errors import InputError


def run_id() -> str:
    """A name for a run that sorts by time: ``20260131-235959-1f2e``."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


@contextmanager
def reserved(folder: Path) -> Generator[None]:
    """Make ``folder`` and try to write to it; if the body fails, folders that were made and are empty go again.

    Raises:
        InputError: the folder cannot be made or written to; nothing is left of it.
    """
    made: list[Path] = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _remove(made)
        raise unwritable(folder, error) from None
    try:
        yield
    except BaseException:
        _remove(made)
        raise


def replace_file(path: Path, text: str) -> Path:
    """Write ``text`` to ``path``, whole or not at all: beside its place, then renamed.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write ``texts`` by name into ``folder``, which is there, each whole or not at all.

    Raises:
        InputError: it cannot be written to.
    """
    try:
        return [replace_file(folder / name, text) for name, text in texts.items()]
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> InputError:
    """What is said of a folder that cannot be made or written to."""
    cause = f"cannot be written: {error.strerror or error}"
    return InputError(cause, place=str(folder), remedy="choose another folder with -o")


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
