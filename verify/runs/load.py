"""Anything that holds runs, as runs: a run folder, a folder of run folders, or a file in an engine's format.

What a file does not say of its coordinate the user does: ``gpu=H200``, ``flags.cudnn=9.1``, ``capture.temperature=0``,
``model=...``. What the user says goes before what the file says.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

from specs.errors import InputError, did_you_mean
from verify.runs.adapters import ADAPTERS, reader_of
from verify.runs.adapters.base import Draft, Options
from verify.runs.counts import floor_of, observe
from verify.runs.folder import file_sha, is_run, no_files, read_run
from verify.runs.jsonio import unswept
from verify.runs.manifest import Coordinate, Manifest, Recording, RunFile
from verify.runs.run import Run
from verify.runs.sequence import Sequence

TOP = ("run_id", "model", "model_sha256", "tokenizer_sha256", "vocab_size")
MAX_RUNS = 10_000
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,3})?")


def load_runs(
    path: str | Path,
    *,
    adapter: str | None = None,
    mapping: str | Path | None = None,
    options: Options | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Run, ...]:
    """The runs in ``path``.

    Args:
        path: a run folder, a folder of run folders, or a file.
        adapter: a name of `ADAPTERS`; ``mapping``: a mapping's name or file. Without both the file's content decides.
        options: what the user says of the file's answers.
        settings: fields of the manifest, as `parse_settings` gives them; not for run folders.

    Raises:
        InputError: nothing that is read, or something is wrong with it.
    """
    place = Path(path)
    if is_run(place):
        return (read_run(place),)
    if place.is_dir():
        inner = sorted(p for p in place.iterdir() if p.is_dir() and is_run(p))
        if not inner:
            raise InputError(
                "holds no run: no manifest.json of kind 'run'",
                place=str(place),
                remedy="`ulpscope capture import` makes run folders of an engine's files",
            )
        return unique([read_run(p) for p in inner[:MAX_RUNS]])
    if not place.is_file():
        raise InputError("no such file or folder", place=str(path)[:200], remedy="check the path")
    drafts, label = drafts_of(place, adapter, mapping, options or Options())
    digest = file_sha(place)
    runs = [complete(d, place, digest, label, settings or {}, alone=len(drafts) == 1) for d in drafts]
    return unique(runs)


def drafts_of(
    file: Path, adapter: str | None, mapping: str | Path | None, options: Options
) -> tuple[list[Draft], dict[str, str]]:
    """What an adapter or mapping reads in one file, and the words for how, for a manifest's ``origin``.

    Raises:
        InputError: it is not what that reads.
    """
    from verify.runs.mapping import load_mapping, read_mapped

    if adapter is not None and mapping is not None:
        raise InputError(
            "both an adapter and a mapping", place="--adapter, --mapping", remedy="give one of them"
        )
    if adapter is None and mapping is None:
        from verify.runs.detect import detect

        adapter, mapping = detect(file)
    if mapping is not None:
        found = load_mapping(mapping)
        with unswept():
            drafts = read_mapped(file, found)
        return drafts, {"mapping": found.name, "mapping_sha256": found.sha256}
    assert adapter is not None
    with unswept():
        return reader_of(adapter)(file, options), {"adapter": adapter}


def complete(
    draft: Draft,
    file: Path,
    digest: str,
    label: Mapping[str, str],
    settings: Mapping[str, Any],
    *,
    alone: bool = True,
) -> Run:
    """A draft with its manifest, its clamp floor and its counts.

    Raises:
        InputError: a field is wrong; the message names it.
    """
    said = dict(settings)
    coordinate = {**draft.coordinate, **said.pop("coordinate", {})}
    flags = {**draft.coordinate.get("flags", {}), **settings.get("coordinate", {}).get("flags", {})}
    if flags:
        coordinate["flags"] = flags
    capture = {**draft.capture, **said.pop("capture", {})}
    name = draft.name or file.stem
    fields: dict[str, Any] = {
        "run_id": name[:200],
        "coordinate": coordinate,
        "capture": capture,
        "model": draft.model,
        "vocab_size": draft.vocab_size,
        "origin": {"file": file.name[:200], "sha256": digest, **label},
    }
    manifest = no_files({**fields, **said})
    safe = re.sub(r"[^A-Za-z0-9_.+-]", "_", file.name)[:200]
    path = safe if safe[0].isalnum() else f"x{safe}"[:200]
    manifest = manifest.model_copy(update={"files": (RunFile(path=path, sha256=digest),)})
    floor = floor_of(draft.sequences, manifest.capture)
    capture_found = manifest.capture.model_copy(update={"clamp_floor": floor})
    manifest = manifest.model_copy(update={"capture": capture_found})
    sequences = [observe(s, manifest.capture, manifest.vocab_size) for s in draft.sequences]
    sequences = [_keyed(s, digest) for s in sequences]
    identity = digest if alone else hashlib.sha256(f"{digest}\n{draft.name}".encode()).hexdigest()
    return Run(manifest.run_id, manifest, tuple(sequences), str(file), identity)


def _keyed(sequence: Sequence, digest: str) -> Sequence:
    """``sequence`` whose full logits are known by the file's content, not by its name."""
    full = sequence.full
    return sequence if full is None else replace(sequence, full=replace(full, key=f"{digest}:{full.key}"))


def unique(runs: Items[Run]) -> tuple[Run, ...]:
    """Runs with distinct names: of equal ones the later get a number."""
    seen: dict[str, int] = {}
    taken = {r.name for r in runs}
    out: list[Run] = []
    for run in runs:
        n = seen[run.name] = seen.get(run.name, 0) + 1
        name = run.name
        while n > 1 and name in taken:
            name = f"{run.name} ({n})"
            n += 1
        taken.add(name)
        out.append(run if name == run.name else replace(run, name=name))
    return tuple(out)


def parse_settings(words: Items[str]) -> dict[str, Any]:
    """``NAME=VALUE`` words as fields of a manifest: of the coordinate, ``flags.X``, ``capture.X`` or of the whole.

    Raises:
        InputError: a word without ``=``, an unknown name, or a name twice.
    """
    out: dict[str, Any] = {}
    known = (
        *(n for n in Coordinate.model_fields if n != "flags"),
        *(f"capture.{n}" for n in Recording.model_fields),
        *TOP,
    )
    seen: set[str] = set()
    for word in words:
        name, mark, value = word.partition("=")
        name = name.strip().removeprefix("coordinate.")
        if not mark or not name:
            raise InputError(f"'{word[:80]}' is no NAME=VALUE", place="--set", remedy="as in --set gpu=H200")
        if name in seen:
            raise InputError(f"'{name[:80]}' twice", place="--set", remedy="give it once")
        seen.add(name)
        if name.startswith("flags.") and len(name) > 6:
            out.setdefault("coordinate", {}).setdefault("flags", {})[name[6:]] = _value(value, True)
        elif name in known:
            text = name in TOP and name != "vocab_size"
            target = out if name in TOP else out.setdefault(*_part(name))
            target[name.removeprefix("capture.")] = _value(value, not text and not _is_word(name))
        else:
            raise InputError(
                f"unknown field '{name[:80]}'",
                place="--set",
                remedy=did_you_mean(name, (*known, "flags.NAME")),
            )
    return out


def _part(name: str) -> tuple[str, dict[str, Any]]:
    return ("capture", {}) if name.startswith("capture.") else ("coordinate", {})


def _is_word(name: str) -> bool:
    """Whether a field is text alone, so that ``gpu=4090`` and ``lse_base=2`` stay words."""
    if name == "capture.lse_base":
        return True
    field = Coordinate.model_fields.get(name)
    numeric = ("sm_count", "num_splits", "tensor_parallel", "batch_size", "cuda_graph")
    return field is not None and name not in numeric


def _value(text: str, guess: bool) -> Any:
    """A value as typed: true, false, null and numbers are what they say where ``guess`` allows it."""
    text = text.strip()
    if text in ("null", "none", ""):
        return None
    if not guess:
        return text
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    return text


__all__ = ["ADAPTERS", "Manifest", "complete", "load_runs", "parse_settings", "unique"]
