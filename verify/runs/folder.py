"""Run folders: ``manifest.json`` and the files that it names, written once and read with care.

Reading trusts nothing: sizes are bounded before memory is taken, names cannot lead out of the folder, every file has the
sha256 that the manifest states (computed in a stream), and what a file holds agrees with the manifest. Full logits stay
in their file and are mapped block by block.

A file is safetensors or npz (one sequence, arrays as in `verify.runs.assemble.FIELDS` and ``attn.L<l>.{q,k,v,out,lse}``
as ``[heads, N, dim]``) or JSON lines (one sequence a line, see `verify.runs.lines`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from specs.errors import InputError
from verify.capture.format import check_empty
from verify.runs.assemble import Parts, assemble, parts_of
from verify.runs.counts import RECOUNTED, floor_of, observe
from verify.runs.jsonio import no_twice, unswept
from verify.runs.lines import read_lines, write_lines
from verify.runs.manifest import MANIFEST, Manifest, RunFile
from verify.runs.problems import Problems
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Sequence
from verify.runs.tensors import TensorWriter, blocks, open_tensors

MAX_MANIFEST = 64 << 20
LINES = (".jsonl", ".ndjson")
_AGAIN = "make the capture again, or copy all of it"
_SCHEMA = "see docs/runs.md for the manifest of a run, schema 1"


@dataclass(frozen=True)
class Inspected:
    """What was found in a folder: the run where nothing is wrong with it, and everything that is."""

    run: Run | None
    problems: Problems


def is_run(path: str | Path) -> bool:
    """Whether ``path`` is a run folder, or its manifest."""
    file = Path(path)
    file = file if file.name == MANIFEST else file / MANIFEST
    try:
        if not file.is_file() or file.stat().st_size > MAX_MANIFEST:
            return False
        found: Any = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("kind") == "run"


def read_run(path: str | Path, *, name: str | None = None) -> Run:
    """The run in the folder ``path`` (or whose manifest it is).

    Args:
        path: the folder.
        name: how tables call it (default: the manifest's run_id).

    Raises:
        InputError: missing, damaged, or not what its manifest says: the first thing that is wrong, with file, field and
            row, and how many more there are.
    """
    found = inspect_run(path, name=name)
    found.problems.stop(str(_folder(path)))
    assert found.run is not None
    return found.run


def inspect_run(path: str | Path, *, name: str | None = None) -> Inspected:
    """The run in ``path`` and everything that is wrong with it, in one go.

    Raises:
        InputError: there is no such folder.
    """
    folder = _folder(path)
    problems = Problems()
    if not folder.is_dir():
        raise InputError(
            "no such run folder", place=str(path)[:200], remedy="give the folder that holds manifest.json"
        )
    manifest = _manifest(folder, problems)
    if manifest is None:
        return Inspected(None, problems)
    sequences: list[Sequence] = []
    for entry in manifest.files:
        if _intact(folder, entry, problems):
            for parts in _parts(folder, entry, problems):
                found = assemble(parts, manifest, problems)
                if found is not None:
                    sequences.append(found)
    _distinct(manifest, sequences, problems)
    if not sequences and not problems.count:
        problems.add(MANIFEST, "names no file that holds a sequence", "files")
    if problems.count:
        return Inspected(None, problems)
    digest = run_sha(entry.sha256 for entry in manifest.files)
    floor = floor_of(sequences, manifest.capture)
    if floor != manifest.capture.clamp_floor:
        if manifest.capture.clamp_floor is None:
            problems.warn(
                MANIFEST,
                f"says no clamp_floor, and values are {floor:g}: they are taken to stand for anything lower",
                "capture.clamp_floor",
            )
        capture = manifest.capture.model_copy(update={"clamp_floor": floor})
        manifest = manifest.model_copy(update={"capture": capture})
        sequences = [observe(s, capture, manifest.vocab_size) for s in sequences]
    return Inspected(Run(name or manifest.run_id, manifest, tuple(sequences), str(folder), digest), problems)


def run_sha(hashes: Iterable[str]) -> str:
    """One sha256 of all the files of a run, from theirs in order."""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def file_sha(file: Path) -> str:
    """The sha256 of a file, read in a stream.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(file), remedy=_AGAIN) from None


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    return folder.parent if folder.name == MANIFEST else folder


def _manifest(folder: Path, problems: Problems) -> Manifest | None:
    file = folder / MANIFEST
    try:
        size = file.stat().st_size
        if size > MAX_MANIFEST:
            problems.add(MANIFEST, f"has {size:,} bytes", remedy=f"at most {MAX_MANIFEST:,} are read")
            return None
        text = file.read_bytes()
    except OSError as error:
        problems.add(MANIFEST, f"cannot be read: {error.strerror}", remedy=_AGAIN)
        return None
    try:
        found = Manifest.model_validate_json(text)
        json.loads(text, object_pairs_hook=no_twice)
        return found
    except ValueError as error:
        if not isinstance(error, ValidationError):
            problems.add(MANIFEST, str(error), remedy=_SCHEMA)
            return None
        for one in error.errors(include_url=False, include_input=False):
            where = ".".join(str(x)[:60] for x in one["loc"])
            problems.add(MANIFEST, one["msg"][:300], where, remedy=_SCHEMA)
        return None


def _intact(folder: Path, entry: RunFile, problems: Problems) -> bool:
    """Whether a file is there, within the folder, and has the bytes of the manifest."""
    file = folder / entry.path
    if ".." in Path(entry.path).parts or not file.resolve().is_relative_to(folder.resolve()):
        problems.add(entry.path, "leads out of the folder", "files.path")
        return False
    if not file.is_file():
        problems.add(entry.path, "no such file", "files.path", remedy=_AGAIN)
        return False
    try:
        digest = file_sha(file)
    except InputError as error:
        problems.add(entry.path, error.cause, "files.path", remedy=error.remedy)
        return False
    if digest != entry.sha256:
        problems.add(
            entry.path,
            f"has sha256 {digest[:12]}..., the manifest says {entry.sha256[:12]}...",
            "files.sha256",
            remedy=_AGAIN,
        )
        return False
    return True


def _parts(folder: Path, entry: RunFile, problems: Problems) -> Iterator[Parts]:
    suffix = Path(entry.path).suffix
    if suffix in LINES:
        with unswept():
            yield from read_lines(folder, entry, problems)
        return
    try:
        tensors = open_tensors(folder / entry.path)
    except InputError as error:
        problems.add(entry.path, error.cause, remedy=error.remedy)
        return
    parts = parts_of(tensors, entry, problems)
    if parts is not None:
        yield parts


def _distinct(manifest: Manifest, sequences: list[Sequence], problems: Problems) -> None:
    """A path twice, or one conversation twice in one repeat, is a mistake in the manifest."""
    for path, n in Counter(entry.path for entry in manifest.files).items():
        if n > 1:
            problems.add(MANIFEST, f"names '{path}' {n} times", "files.path")
    for (conversation, repeat), n in Counter((s.conversation, s.repeat) for s in sequences).items():
        if n > 1:
            problems.add(
                MANIFEST,
                f"{n} sequences are conversation '{conversation[:80]}', repeat {repeat}",
                "files.repeat",
                remedy="number the repeats of one conversation 0, 1, 2, ...",
            )


def write_run(
    folder: Path, manifest: Manifest, sequences: Iterable[Sequence], *, form: str | None = None
) -> Run:
    """Write a run to ``folder``, which must be new or empty, and read it again.

    Args:
        folder: where to.
        manifest: what it says; its ``files`` are not used.
        sequences: taken one at a time; full logits are copied in blocks.
        form: ``safetensors``, ``npz`` or ``jsonl`` (default: safetensors for sequences with full logits or attention,
            JSON lines for the others).

    Raises:
        InputError: the folder holds something or cannot be written, or a form cannot hold what a sequence has.
    """
    files: list[RunFile] = []
    light: list[Sequence] = []
    nats = False
    try:
        check_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for index, sequence in enumerate(sequences):
            nats = nats or _has_lse(sequence)
            heavy = sequence.full is not None or bool(sequence.attention)
            kind = form or ("safetensors" if heavy else "jsonl")
            if kind == "jsonl":
                if heavy:
                    raise InputError(
                        "JSON lines hold no full logits and no tensors",
                        place="form",
                        remedy="safetensors or npz",
                    )
                light.append(sequence)
                continue
            path = f"sequence_{index:05d}.{kind}"
            _write_tensors(folder / path, sequence, manifest.run_id)
            files.append(_entry(folder, path, sequence))
        if light:
            write_lines(folder / "sequences.jsonl", light, manifest.run_id)
            files.append(_entry(folder, "sequences.jsonl", None))
        capture = manifest.capture.model_copy(update={"lse_base": "e"}) if nats else manifest.capture
        whole = manifest.model_copy(update={"files": tuple(files), "capture": capture})
        text = json.dumps(whole.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", place=str(folder), remedy="give another --out"
        ) from None
    return read_run(folder)


def _has_lse(sequence: Sequence) -> bool:
    return (sequence.top is not None and sequence.top.lse is not None) or any(
        a.lse is not None for a in sequence.attention
    )


def _entry(folder: Path, path: str, sequence: Sequence | None) -> RunFile:
    said: dict[str, Any] = {}
    if sequence is not None:
        said = {"conversation": sequence.conversation, "repeat": sequence.repeat}
    return RunFile.model_validate({"path": path, "sha256": file_sha(folder / path), **said})


def _small(sequence: Sequence) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Every array of a sequence but its full logits, and its texts."""
    arrays: dict[str, NDArray[Any]] = {}
    counts = {k: n for k, n in sequence.counts.items() if k not in RECOUNTED}
    texts: dict[str, str] = {"counts": json.dumps(counts), "labels": json.dumps(sequence.labels)}
    contiguous = sequence.rows > 0 and bool((np.diff(sequence.positions) == 1).all())
    prompt = sequence.prompt
    if prompt is not None and contiguous and len(prompt) == sequence.positions[0] + 1:
        known = sequence.tokens
        last = len(known) - 1 if known[-1] == UNKNOWN else len(known)
        if (known[:last] != UNKNOWN).all():
            arrays["input_ids"] = np.concatenate([prompt, known[:last]])
    if prompt is not None and "input_ids" not in arrays:
        arrays["prompt"] = prompt
    arrays["positions"], arrays["tokens"] = sequence.positions, sequence.tokens
    if sequence.chosen is not None:
        arrays["chosen"] = sequence.chosen
    if sequence.top is not None:
        arrays["topk_ids"], arrays["topk_values"] = sequence.top.ids, sequence.top.values
        if sequence.top.lse is not None:
            arrays["lse"] = sequence.top.lse
        if sequence.top.texts is not None:
            texts["top_texts"] = json.dumps(sequence.top.texts)
    if sequence.depths is not None:
        arrays["depths"] = sequence.depths
    if sequence.ranges is not None:
        names = sorted(set(sequence.ranges))
        arrays["ranges"] = np.array([names.index(r) for r in sequence.ranges], np.int32)
        texts["range_names"] = json.dumps(names)
    if sequence.texts is not None:
        texts["texts"] = json.dumps(sequence.texts)
    if sequence.finish is not None:
        texts["finish"] = sequence.finish
    for layer in sequence.attention:
        for name in ("q", "k", "v", "out", "lse"):
            array = getattr(layer, name)
            if array is not None:
                arrays[f"attn.L{layer.layer}.{name}"] = np.ascontiguousarray(array.swapaxes(0, 1))
    return arrays, texts


def _write_tensors(file: Path, sequence: Sequence, run_id: str) -> None:
    arrays, texts = _small(sequence)
    texts["run_id"] = run_id
    full = sequence.full
    if file.suffix == ".npz":
        _write_npz(file, sequence, arrays, texts)
        return
    layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    if full is not None:
        layout["logits"] = (full.dtype, (full.rows, full.vocab))
    layout |= {name: (array.dtype, array.shape) for name, array in arrays.items()}
    with TensorWriter(file, layout, texts) as out:
        if full is not None:
            for start, stop in blocks(full.rows, full.vocab * full.dtype.itemsize):
                out.write("logits", full.read(start, stop))
        for name, array in arrays.items():
            out.write(name, array)


def _write_npz(
    file: Path, sequence: Sequence, arrays: dict[str, NDArray[Any]], texts: dict[str, str]
) -> None:
    full = sequence.full
    if full is not None:
        arrays = {**arrays, "logits": full.read(0, full.rows)}
    out: dict[str, NDArray[Any]] = {name: np.array(text) for name, text in texts.items()}
    for name, array in arrays.items():
        if array.dtype.name == "bfloat16":
            out[f"{name}_dtype"], array = np.array("bfloat16"), array.view(np.uint16)
        out[name] = np.ascontiguousarray(array)
    np.savez(file, allow_pickle=False, **out)


def no_files(fields: dict[str, Any]) -> Manifest:
    """A manifest of ``fields`` (as JSON has them), to be written: its files come later.

    Raises:
        InputError: a field is wrong; the message names it.
    """
    try:
        whole = json.dumps({"schema": 1, "kind": "run", "files": [], **fields}, allow_nan=False)
        return Manifest.model_validate_json(whole)
    except ValidationError as error:
        one = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(x)[:60] for x in one["loc"])
        raise InputError(one["msg"][:300], place=f"manifest: {where}", remedy=_SCHEMA) from None
    except (TypeError, ValueError) as error:
        raise InputError(str(error)[:200], place="manifest", remedy=_SCHEMA) from None
