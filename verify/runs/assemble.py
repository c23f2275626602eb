"""From named arrays to a `Sequence`: the fields of a run's files, and everything about them that is checked.

Used for all three formats, so that a field means the same everywhere: `FIELDS` says its axes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, did_you_mean
from verify.runs.counts import observe
from verify.runs.manifest import Manifest, RunFile
from verify.runs.problems import Problems
from verify.runs.sequence import UNKNOWN, Attention, Floats, Full, Ints, Sequence, Top
from verify.runs.tensors import Stored, Tensors

#: Axes of every field. T: tokens of the text; N: rows; K: top entries; V: columns of the vocabulary; P: tokens before
#: the first row's, where the whole text is not recorded.
FIELDS = {
    "input_ids": "T",
    "positions": "N",
    "tokens": "N",
    "logits": "NV",
    "topk_ids": "NK",
    "topk_values": "NK",
    "lse": "N",
    "chosen": "N",
    "ranges": "N",
    "depths": "N",
    "prompt": "P",
}
INTEGER = ("input_ids", "positions", "tokens", "topk_ids", "ranges", "depths", "prompt")
ATTENTION = re.compile(r"attn\.L(\d{1,4})\.(q|k|v|out|lse)")
TEXTS = ("range_names", "counts", "labels", "texts", "top_texts", "finish", "run_id", "format")
_NARROW = re.compile(r".+_dtype")
_LN2 = math.log(2.0)


@dataclass
class Parts:
    """What one sequence is made of, before it is checked: arrays by field, and what stands beside them."""

    file: str
    conversation: str
    repeat: int
    arrays: dict[str, Stored | NDArray[Any]]
    range_names: list[str] | None = None
    texts: tuple[str, ...] | None = None
    top_texts: tuple[tuple[str, ...], ...] | None = None
    prompt: Ints | None = None
    finish: str | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    key: str = ""


def parts_of(tensors: Tensors, entry: RunFile, problems: Problems) -> Parts | None:
    """The parts in one file of tensors: names, and bit patterns of bfloat16 where a text says so."""
    arrays: dict[str, Stored | NDArray[Any]] = {}
    known = (*FIELDS, "attn.L0.q", "attn.L0.k", "attn.L0.v", "attn.L0.out", "attn.L0.lse")
    before = problems.count
    for name, stored in tensors.arrays.items():
        if name not in FIELDS and not ATTENTION.fullmatch(name):
            problems.add(entry.path, "unknown array", name[:80], remedy=did_you_mean(name[:80], known))
            continue
        found = _narrow(name, stored, tensors.texts, entry.path, problems)
        if found is not None:
            arrays[name] = found
    for name in tensors.texts:
        if name not in TEXTS and not _NARROW.fullmatch(name):
            problems.warn(entry.path, "unknown text, not read", name[:80])
    meta = {name: _json(entry.path, name, tensors.texts, problems) for name in TEXTS}
    if problems.count > before:
        return None
    conversation = entry.conversation if entry.conversation is not None else entry.path.rpartition(".")[0]
    texts, tops = meta["texts"], meta["top_texts"]
    return Parts(
        entry.path,
        conversation,
        entry.repeat,
        arrays,
        range_names=meta["range_names"],
        texts=None if texts is None else tuple(str(t) for t in texts),
        top_texts=None if tops is None else tuple(tuple(str(t) for t in row) for row in tops),
        finish=tensors.texts.get("finish"),
        counts=_counts(meta["counts"]),
        labels={str(k): str(v) for k, v in (meta["labels"] or {}).items()},
        key=entry.sha256,
    )


def _counts(found: Any) -> dict[str, int]:
    return {str(k): v for k, v in (found or {}).items() if type(v) is int and v > 0}


def _json(file: str, name: str, texts: Mapping[str, str], problems: Problems) -> Any:
    """The JSON in the text ``name``; None where there is none."""
    if name in ("finish", "run_id", "format") or name not in texts:
        return None
    try:
        found: Any = json.loads(texts[name])
    except (ValueError, RecursionError):
        found = None
    wanted = dict if name in ("counts", "labels") else list
    if not isinstance(found, wanted) or (name == "top_texts" and not all(isinstance(x, list) for x in found)):
        problems.add(file, f"is no JSON {'object' if wanted is dict else 'list'}", name)
        return None
    return found


def _narrow(
    name: str, stored: Stored, texts: Mapping[str, str], file: str, problems: Problems
) -> Stored | None:
    """``stored``, where it holds bit patterns of 16 bits as what they are."""
    if stored.dtype != np.dtype(np.uint16) or name in INTEGER:
        return stored
    import ml_dtypes

    word = texts.get(f"{name}_dtype", "")
    kind = {"bfloat16": ml_dtypes.bfloat16, "BF16": ml_dtypes.bfloat16, "float16": np.float16}.get(word)
    if kind is None:
        problems.add(
            file,
            f"is uint16 and '{name}_dtype' says '{word[:20]}'",
            name,
            remedy=f"add a text array {name}_dtype that says bfloat16",
        )
        return None
    return replace(stored, dtype=np.dtype(kind))


def assemble(parts: Parts, manifest: Manifest, problems: Problems) -> Sequence | None:
    """The sequence of ``parts``, or None with what is wrong in ``problems``."""
    check = _Check(parts, manifest, problems)
    return check.sequence()


class _Check:
    """One sequence being checked. ``bad`` notes an error; a step that fails gives None and others go on."""

    def __init__(self, parts: Parts, manifest: Manifest, problems: Problems) -> None:
        self.parts, self.manifest, self.problems = parts, manifest, problems
        self.arrays = parts.arrays
        self.vocab = manifest.vocab_size

    def bad(self, cause: str, field: str = "", row: int | None = None, remedy: str = "") -> None:
        self.problems.add(self.parts.file, cause, field, row, remedy=remedy)

    def ints(self, name: str) -> Ints | None:
        """A field of integers as int64."""
        found = self.arrays.get(name)
        if found is None:
            return None
        array = self.load(found)
        if array is None:
            return None
        if array.dtype.kind not in "iu" or array.dtype == np.uint64:
            self.bad(f"has dtype {array.dtype}", name, remedy="give int32 or int64")
            return None
        return array.astype(np.int64)

    def floats(self, name: str) -> Floats | None:
        """A field of numbers as float64, which holds each of them exactly."""
        found = self.arrays.get(name)
        if found is None:
            return None
        array = self.load(found)
        if array is None:
            return None
        if not _is_float(array.dtype):
            self.bad(f"has dtype {array.dtype}", name, remedy="give float32, float16, bfloat16 or float64")
            return None
        return array.astype(np.float64)

    def load(self, found: Stored | NDArray[Any]) -> NDArray[Any] | None:
        if not isinstance(found, Stored):
            return found
        try:
            return found.whole()
        except InputError as error:
            self.bad(error.cause, found.name, remedy=error.remedy)
            return None

    def axes(self) -> int | None:
        """The number of rows, once every field has the axes it should; None where they do not fit."""
        sizes: dict[str, tuple[str, int]] = {}
        good = True
        for name, axes in FIELDS.items():
            if name not in self.arrays:
                continue
            shape = self.arrays[name].shape
            if len(shape) != len(axes):
                self.bad(f"has shape {list(shape)}, its axes are [{', '.join(axes)}]", name)
                good = False
                continue
            for axis, size in zip(axes, shape, strict=True):
                first, n = sizes.setdefault(axis, (name, size))
                if n != size:
                    self.bad(f"has {size:,} along {axis}, '{first}' has {n:,}", name)
                    good = False
        for axis, what in (("K", "topk_ids"), ("K", "topk_values")):
            if (
                axis in sizes
                and what not in self.arrays
                and not (what == "topk_ids" and self.parts.top_texts)
            ):
                self.bad("is missing beside the other of the two", what)
                good = False
        if not good:
            return None
        if "N" in sizes:
            return sizes["N"][1]
        return sizes["T"][1] if "T" in sizes and self.layers() else 0

    def layers(self) -> list[int]:
        found = [ATTENTION.fullmatch(name) for name in self.arrays]
        return sorted({int(m[1]) for m in found if m})

    def positions(self, rows: int, text: Ints | None) -> Ints | None:
        """Where the rows stand. Ascending and distinct, and within the text."""
        found = self.ints("positions")
        if found is None:
            if "positions" in self.arrays:
                return None
            if text is not None and rows not in (len(text), len(text) - 1):
                self.bad(
                    f"is missing, and {rows:,} rows do not cover a text of {len(text):,} tokens",
                    "positions",
                    remedy="say which token each row predicts: an engine that reuses its KV cache gives suffix rows only",
                )
                return None
            prompt = self.parts.prompt
            start = len(prompt) - 1 if prompt is not None and len(prompt) and text is None else 0
            return np.arange(start, start + rows, dtype=np.int64)
        steps = np.diff(found)
        for row in np.nonzero(steps <= 0)[0][:20]:
            what = "again" if steps[row] == 0 else f"behind {found[row]}"
            self.bad(f"position {found[row + 1]} {what}", "positions", int(row) + 1)
        for row in np.nonzero((found < 0) | (found > (1 << 40)))[0][:20]:
            self.bad(f"position {found[row]}", "positions", int(row))
        if text is not None and len(found) and found[-1] >= len(text):
            self.bad(f"position {found[-1]} in a text of {len(text):,} tokens", "positions", len(found) - 1)
            return None
        return found if not (steps <= 0).any() and not (found < 0).any() else None

    def tokens(self, rows: int, positions: Ints, text: Ints | None) -> Ints | None:
        """The token after each position: of the text, and as said."""
        said = self.ints("tokens")
        if said is None and "tokens" in self.arrays:
            return None
        if text is None:
            return said if said is not None else np.full(rows, UNKNOWN, np.int64)
        following = positions + 1
        inside = following < len(text)
        read = np.full(rows, UNKNOWN, np.int64)
        read[inside] = text[following[inside]]
        if said is None:
            return read
        for row in np.nonzero(inside & (said != read) & (said != UNKNOWN))[0][:20]:
            self.bad(f"token {said[row]}, input_ids has {read[row]} there", "tokens", int(row))
        return np.where(said == UNKNOWN, read, said)

    def vocabulary(self, name: str, ids: Ints | None, least: int) -> None:
        """Every id must be in the vocabulary."""
        if ids is None or ids.size == 0:
            return
        most = self.vocab if self.vocab is not None else 1 << 31
        wrong = (ids < least) | (ids >= most)
        for place in np.argwhere(wrong)[:20]:
            self.bad(
                f"token id {ids[tuple(place)]}, vocab_size is {most:,}"
                if self.vocab is not None
                else f"token id {ids[tuple(place)]}",
                name,
                int(place[0]),
            )

    def full(self, rows: int) -> Full | None:
        found = self.arrays.get("logits")
        if found is None:
            return None
        columns = found.shape[1]
        kind = self.manifest.capture.value_kind
        if not _is_float(found.dtype):
            self.bad(f"has dtype {found.dtype}", "logits", remedy="give BF16, F16, F32 or F64")
            return None
        if self.vocab is not None and columns < self.vocab and kind != "logits_slice":
            self.bad(
                f"has {columns:,} columns, the manifest says vocab_size {self.vocab:,}",
                "logits",
                remedy="correct vocab_size, or say that value_kind is logits_slice",
            )
            return None
        read = found.rows if isinstance(found, Stored) else _slicer(found)
        return Full(rows, columns, found.dtype, read, f"{self.parts.key}:logits")

    def top(self, rows: int) -> Top | None:
        ids, values, lse = self.ints("topk_ids"), self.floats("topk_values"), self.floats("lse")
        if lse is not None and self.manifest.capture.lse_base is None:
            self.bad(
                "the manifest does not say to which base lse is", "capture.lse_base", remedy='"e" or "2"'
            )
            return None
        if values is None:
            if lse is not None and "logits" not in self.arrays:
                self.bad("stands alone: give topk_ids and topk_values too", "lse")
            return None
        if ids is None:
            ids = np.full(values.shape, UNKNOWN, np.int64)
        self.vocabulary("topk_ids", ids, UNKNOWN)
        if lse is not None and self.manifest.capture.lse_base == "2":
            lse = lse * _LN2
        texts = self.parts.top_texts
        if texts is not None and len(texts) != rows:
            self.bad(f"has {len(texts):,} rows of {rows:,}", "top_texts")
            return None
        return Top(ids, values, lse, texts)

    def attention(self) -> tuple[Attention, ...]:
        out: list[Attention] = []
        for layer in self.layers():
            found = {name: self.part(layer, name) for name in ("q", "k", "v", "out", "lse")}
            shapes = {name: a.shape for name, a in found.items() if a is not None}
            place = f"attn.L{layer}"
            if found["lse"] is not None and self.manifest.capture.lse_base is None:
                self.bad(
                    "the manifest does not say to which base lse is", "capture.lse_base", remedy='"e" or "2"'
                )
            for a, b, axes in (
                ("k", "v", (0, 1)),
                ("q", "out", (0, 1)),
                ("q", "lse", (0, 1)),
                ("q", "k", (2,)),
            ):
                if a in shapes and b in shapes and any(shapes[a][i] != shapes[b][i] for i in axes):
                    self.bad(
                        f"'{a}' is {list(shapes[a])} and '{b}' {list(shapes[b])}, as [rows, heads, dim]",
                        place,
                    )
            if "q" in shapes and "k" in shapes and shapes["q"][1] % max(1, shapes["k"][1]):
                self.bad(f"{shapes['q'][1]} query heads are no multiple of {shapes['k'][1]} KV heads", place)
            out.append(Attention(layer, **found))
        return tuple(out)

    def part(self, layer: int, name: str) -> NDArray[Any] | None:
        """One tensor of a layer as [rows, heads, dim]; lse as [rows, heads] in nats."""
        key = f"attn.L{layer}.{name}"
        found = self.arrays.get(key)
        if found is None:
            return None
        axes = 2 if name == "lse" else 3
        if len(found.shape) != axes or not _is_float(found.dtype):
            self.bad(
                f"is {found.dtype} {list(found.shape)}: give numbers as [H, N{', D' * (axes == 3)}]", key
            )
            return None
        array = found.rows(0, found.shape[0]) if isinstance(found, Stored) else found
        array = array.swapaxes(0, 1)
        if name == "lse" and self.manifest.capture.lse_base == "2":
            return array.astype(np.float64) * _LN2
        return array

    def named(self, rows: int) -> tuple[str, ...] | None:
        """Names of the rows' ranges."""
        index, names = self.ints("ranges"), self.parts.range_names
        if index is None:
            return None
        if names is None:
            self.bad("is missing beside 'ranges'", "range_names")
            return None
        wrong = (index < 0) | (index >= len(names))
        for row in np.nonzero(wrong)[0][:20]:
            self.bad(f"range {index[row]} of {len(names)}", "ranges", int(row))
        return None if wrong.any() else tuple(str(names[i]) for i in index)

    def sequence(self) -> Sequence | None:
        before = self.problems.count
        rows = self.axes()
        if rows is None:
            return None
        text = self.ints("input_ids")
        if text is None and "input_ids" in self.arrays:
            return None
        if text is None and "prompt" in self.arrays:
            self.parts.prompt = self.ints("prompt")
            self.vocabulary("prompt", self.parts.prompt, 0)
        self.vocabulary("input_ids", text, 0)
        positions = self.positions(rows, text)
        tokens = None if positions is None else self.tokens(rows, positions, text)
        self.vocabulary("tokens", tokens if "tokens" in self.arrays else None, UNKNOWN)
        full, top, chosen = self.full(rows), self.top(rows), self.floats("chosen")
        ranges, depths, attention = self.named(rows), self.ints("depths"), self.attention()
        if self.parts.texts is not None and len(self.parts.texts) != rows:
            self.bad(f"has {len(self.parts.texts):,} of {rows:,} rows", "texts")
        if self.problems.count > before or positions is None or tokens is None:
            return None
        prompt = self.parts.prompt
        if prompt is None and text is not None and rows:
            prompt = text[: int(positions[0]) + 1]
        found = Sequence(
            self.parts.conversation,
            self.parts.repeat,
            positions,
            tokens,
            prompt,
            self.parts.texts,
            chosen,
            full,
            top,
            attention,
            ranges,
            depths,
            self.parts.finish,
            dict(self.parts.counts),
            dict(self.parts.labels),
        )
        return observe(found, self.manifest.capture, self.vocab)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _slicer(array: NDArray[Any]) -> Callable[[int, int], NDArray[Any]]:
    return lambda start, stop: array[start:stop]
