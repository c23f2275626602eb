"""One run from several files, as clients write them that keep each answer by itself.

The answers come in the order of the files; the n-th answer to one conversation is its repeat n. What the files say of the
run must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specs.errors import InputError
from verify.runs.adapters.base import Draft, Options
from verify.runs.folder import file_sha, run_sha
from verify.runs.load import complete, drafts_of
from verify.runs.rows import Conversations
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Answer

MAX_FILES = 100_000


def load_files(
    files: Sequence[Path],
    *,
    adapter: str | None = None,
    mapping: str | Path | None = None,
    options: Options | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """The run whose answers are in ``files``; the arguments are those of `verify.runs.load.load_runs`.

    Raises:
        InputError: a file is not read, holds several runs, or says something else of the run than the others.
    """
    if len(files) > MAX_FILES:
        raise InputError(
            f"{len(files):,} files", place="FILE", remedy=f"give at most {MAX_FILES:,}: use JSON lines"
        )
    whole: Draft | None = None
    hashes: list[str] = []
    label: dict[str, str] = {}
    order = Conversations()
    for file in files:
        if not file.is_file():
            raise InputError("no such file", place=str(file), remedy="check the path")
        drafts, label = drafts_of(file, adapter, mapping, options or Options())
        if len(drafts) != 1:
            raise InputError(f"holds {len(drafts)} runs", place=str(file), remedy="import it by itself")
        (draft,) = drafts
        hashes.append(file_sha(file))
        if whole is None:
            whole = replace(draft, sequences=[])
        _agree(whole, draft, file)
        whole.sequences += [_named(one, draft, file, order) for one in draft.sequences]
    if whole is None:
        raise InputError("none", place="FILE", remedy="give files with answers")
    name = f"{files[0].stem}-and-{len(files) - 1}-more"
    return complete(replace(whole, name=name), files[0], run_sha(hashes), label, settings or {})


def _agree(whole: Draft, draft: Draft, file: Path) -> None:
    """Refuse a file that says another coordinate, recording, model or vocabulary than those before it."""
    for place, a, b in (
        ("coordinate", whole.coordinate, draft.coordinate),
        ("capture", whole.capture, draft.capture),
    ):
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                raise _differs(file, f"{place}.{key}", a.get(key), b.get(key))
    for key in ("model", "vocab_size"):
        if getattr(whole, key) != getattr(draft, key):
            raise _differs(file, key, getattr(whole, key), getattr(draft, key))


def _differs(file: Path, field: str, a: Any, b: Any) -> InputError:
    return InputError(
        f"{field} is {str(b)[:80]!r}, in the files before it {str(a)[:80]!r}",
        place=str(file),
        remedy="import the files of each coordinate by themselves",
    )


def _named(one: Answer, draft: Draft, file: Path, order: Conversations) -> Answer:
    """An answer that was called by its place in its file is called by the file; repeats are counted over all files."""
    name = one.conversation
    if name.startswith("answer-"):
        name = file.stem if len(draft.sequences) == 1 else f"{file.stem}-{name.removeprefix('answer-')}"
    return replace(one, conversation=name[:200], repeat=order.repeat(name[:200]))
