"""One record of a file as a sequence, by a mapping: values are taken from their paths, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, SpecError
from verify.runs.adapters.base import Draft
from verify.runs.jsonio import Counts, identifiers, numbers
from verify.runs.paths import MISSING, Path, filled, find, parse_path
from verify.runs.rows import RELATIVE, Conversations, Piece, prompt_name, ragged, sequence
from verify.runs.sequence import UNKNOWN, Attention, Floats, Full, Ints, Sequence
from verify.runs.tensors import Stored

if TYPE_CHECKING:
    from verify.runs.mapping import RunPart


class Taker:
    """Takes records of one kind. ``seen`` counts for each path how often it led to something."""

    def __init__(self, part: RunPart, stem: str, name: str) -> None:
        self.part, self.stem, self.name = part, stem, name
        self.order: dict[str, Conversations] = {}
        self.paths: dict[str, Path] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.records = 0

    def take(
        self, root: Any, record: Any, captured: dict[str, str], place: str, drafts: dict[str, Draft]
    ) -> None:
        """Add the sequence of ``record`` to the draft of its coordinate.

        Raises:
            InputError: a value is not what it should be.
        """
        self.records += 1
        captured["file"] = self.stem
        one = _Record(self, root, record, captured, place)
        coordinate, capture = one.table(self.part.coordinate), one.table(self.part.capture)
        model, vocab = one.scalar("model", self.part.model), one.scalar("vocab_size", self.part.vocab_size)
        key = repr((sorted(coordinate.items()), sorted(capture.items()), model, vocab))
        draft = drafts.get(key)
        if draft is None:
            flags = {k[6:]: coordinate.pop(k) for k in list(coordinate) if k.startswith("flags.")}
            if flags:
                coordinate["flags"] = flags
            draft = drafts[key] = Draft(
                [], coordinate, capture, None if model is None else str(model)[:200], vocab
            )
        draft.sequences.append(one.sequence(self.order.setdefault(key, Conversations())))

    def finish(self, place: str) -> None:
        """Refuse paths that led nowhere in every record: they are misspelt.

        Raises:
            InputError: there is one.
        """
        for (key, text), n in self.seen.items():
            if n == 0 and self.records:
                raise InputError(
                    f"no record of {self.records:,} has '{text}'",
                    place=f"{place}, mapping {self.name}: {key}",
                    remedy="correct the path, or take it out of the mapping",
                )


class _Record:
    """One record: its root, itself, what was captured on the way, and what is counted."""

    def __init__(self, taker: Taker, root: Any, record: Any, captured: Mapping[str, str], place: str) -> None:
        self.taker, self.root, self.record, self.captured, self.place = taker, root, record, captured, place
        self.counts: Counts = {}

    def wrong(self, key: str, cause: str) -> InputError:
        return InputError(
            f"'{key}' {cause}", place=self.place, remedy=f"correct mapping '{self.taker.name}', or the file"
        )

    def at(self, key: str, text: str) -> Any:
        """What a path leads to; `MISSING` is noted."""
        taker = self.taker
        path = taker.paths.get(text)
        if path is None:
            path = taker.paths[text] = parse_path(text)
        try:
            found = find(path, self.root, self.record, self.captured)
        except SpecError as error:
            raise self.wrong(key, error.cause) from None
        place = (key, text)
        taker.seen[place] = taker.seen.get(place, 0) + (found is not MISSING)
        return None if found is MISSING else found

    def get(self, key: str, where: Any) -> Any:
        """A value, as its mapping says; None where there is none."""
        if where is None:
            return None
        if isinstance(where, str):
            return self.at(key, where)
        if where.value is not None and not where.map:
            return where.value
        if where.text is not None:
            found: Any = filled(where.text, self.captured)
        elif where.path is not None:
            found = self.at(key, where.path)
        elif where.join:
            parts = [self.at(key, text) for text in where.join]
            found = "/".join(str(p) for p in parts if p is not None)
        elif where.columns:
            return [self.at(key, text) for text in where.columns]
        else:
            found = where.value
        return where.map.get(str(found), found) if where.map else found

    def scalar(self, key: str, where: Any) -> Any:
        """A value that is one word, number or flag."""
        if where is None:
            return None
        found = self.get(key, where)
        if type(found) is str:
            return found
        if isinstance(found, np.ndarray) and found.size == 1:
            found = found.reshape(-1)[0].item()
        if found is not None and not isinstance(found, (str, int, float, bool)):
            raise self.wrong(key, "is no single value")
        return found

    def table(self, wheres: Mapping[str, Any]) -> dict[str, Any]:
        """Scalars by name; what is not there is left out."""
        found = {name: self.scalar(name, where) for name, where in wheres.items()}
        return {name: value for name, value in found.items() if value is not None}

    def ints(self, key: str, where: Any, *, unknown: bool = False) -> Ints | None:
        found = None if where is None else self.get(key, where)
        if found is None:
            return None
        if isinstance(found, np.ndarray):
            if found.dtype.kind not in "iu" or found.ndim != 1:
                raise self.wrong(key, f"is {found.dtype} {list(found.shape)}, no list of whole numbers")
            return found.astype(np.int64)
        try:
            return identifiers(found, unknown=unknown)
        except ValueError as error:
            raise self.wrong(key, str(error)) from None

    def floats(self, key: str, where: Any) -> Floats | None:
        found = self.get(key, where)
        return None if found is None else self.vector(key, found, self.counts)

    def vector(self, key: str, found: Any, counts: Counts) -> Floats:
        if isinstance(found, np.ndarray):
            if found.dtype.kind not in "fiu" or found.ndim != 1:
                raise self.wrong(key, f"is {found.dtype} {list(found.shape)}, no list of numbers")
            return found.astype(np.float64)
        try:
            return numbers(found, counts)
        except ValueError as error:
            raise self.wrong(key, str(error)) from None

    def words(self, key: str, where: Any) -> list[str] | None:
        found = self.get(key, where)
        if found is None:
            return None
        if not isinstance(found, list):
            raise self.wrong(key, "is no list of texts")
        if set(map(type, found)) <= {str}:
            return found
        return ["" if w is None else str(w) for w in found]

    def matrix(self, key: str, where: Any) -> tuple[NDArray[Any] | None, list[list[Any]] | None]:
        """Rows of entries: an array of two axes, or lists (of columns where the mapping says columns)."""
        found = self.get(key, where)
        if found is None:
            return None, None
        if isinstance(found, np.ndarray):
            if found.ndim != 2:
                raise self.wrong(key, f"has shape {list(found.shape)}, no rows of entries")
            return found, None
        if not isinstance(found, list):
            raise self.wrong(key, "is no list of rows")
        if not isinstance(where, str) and where.columns:
            columns = [c for c in found if c is not None]
            if not columns:
                return None, None
            if len({len(c) for c in columns}) != 1:
                raise self.wrong(key, "has columns of different lengths")
            return None, [list(row) for row in zip(*columns, strict=True)]
        return None, [[] if row is None else row for row in found]

    def tops(self) -> tuple[Ints | None, Floats | None, list[list[str]] | None]:
        """Top entries of the rows: ids, values, texts."""
        wanted = self.taker.part.sequence
        array, rows = self.matrix("top_values", wanted.top_values)
        id_array, id_rows = self.matrix("top_ids", wanted.top_ids)
        _, text_rows = self.matrix("top_texts", wanted.top_texts)
        texts = None if text_rows is None else [[str(t) for t in row] for row in text_rows]
        if array is not None:
            if array.dtype.kind != "f" or (id_array is not None and id_array.shape != array.shape):
                raise self.wrong("top_values", f"is {array.dtype} {list(array.shape)}")
            ids = np.full(array.shape, UNKNOWN, np.int64) if id_array is None else id_array.astype(np.int64)
            return ids, array.astype(np.float64), texts
        if rows is None:
            return None, None, None
        values = [self.vector("top_values", row, self.counts) for row in rows]
        if id_rows is None:
            id_rows = [[UNKNOWN] * len(v) for v in values]
        if [len(r) for r in id_rows] != [len(v) for v in values]:
            raise self.wrong("top_ids", "and 'top_values' have rows of different lengths")
        try:
            checked = [identifiers(r, unknown=True).tolist() for r in id_rows]
        except ValueError as error:
            raise self.wrong("top_ids", str(error)) from None
        pairs = [list(zip(i, v.tolist(), strict=True)) for i, v in zip(checked, values, strict=True)]
        return *ragged(pairs), texts

    def full(self) -> Full | None:
        """Logits of some columns, or all: rows of numbers, or one row."""
        found = self.get("logits", self.taker.part.sequence.logits)
        if found is None:
            return None
        if not isinstance(found, np.ndarray):
            rows: list[Any] = (
                found if isinstance(found, list) and found and isinstance(found[0], list) else [found]
            )
            vectors = [self.vector("logits", row, self.counts) for row in rows]
            if len({len(v) for v in vectors}) != 1:
                raise self.wrong("logits", "has rows of different lengths")
            found = np.stack(vectors)
        if found.ndim == 1:
            found = found[None]
        if found.ndim != 2 or found.dtype.kind != "f":
            raise self.wrong("logits", f"is {found.dtype} {list(found.shape)}, no rows of numbers")
        array = found
        key = f"{self.place}:{sorted(self.captured.items())}"
        return Full(array.shape[0], array.shape[1], array.dtype, lambda a, b: array[a:b], key)

    def attention(self) -> tuple[Attention, ...]:
        out: list[Attention] = []
        for layer in self.taker.part.attention:
            parts: dict[str, Any] = {}
            for name in ("q", "k", "v", "out", "lse"):
                found = self.get(f"attention.{name}", getattr(layer, name))
                if found is None:
                    continue
                axes = 2 if name == "lse" else 3
                if not isinstance(found, np.ndarray) or found.ndim != axes or found.dtype.kind not in "fV":
                    raise self.wrong(f"attention.{name}", f"is no array of {axes} axes")
                parts[name] = found.swapaxes(0, 1) if layer.axes == "hnd" else found
            out.append(Attention(layer.layer, **parts))
        return tuple(out)

    def sequence(self, order: Conversations) -> Sequence:
        """The whole record."""
        wanted = self.taker.part.sequence
        prompt, text = self.ints("prompt", wanted.prompt), self.ints("text", wanted.text)
        prompt = prompt if prompt is not None and len(prompt) else None
        tokens = self.ints("tokens", wanted.tokens, unknown=True)
        chosen, texts = self.floats("chosen", wanted.chosen), self.words("texts", wanted.texts)
        top_ids, top_values, top_texts = self.tops()
        full, lse, attention = self.full(), self.floats("lse", wanted.lse), self.attention()
        sizes = {
            name: len(v)
            for name, v in (
                ("tokens", tokens),
                ("texts", texts),
                ("chosen", chosen),
                ("top_values", top_values),
                ("lse", lse),
            )
            if v is not None
        }
        if full is not None:
            sizes["logits"] = full.rows
        count = self.count(sizes, text)
        positions = self.positions(count, prompt, text)
        if tokens is None:
            tokens = np.full(count, UNKNOWN, np.int64)
            if text is not None:
                inside = positions + 1 < len(text)
                tokens[inside] = text[positions[inside] + 1]
        pieces = [self.prompt_rows(prompt)] if wanted.prompt_values is not None and prompt is not None else []
        before = sum(len(p.positions) for p in pieces)
        pieces.append(
            Piece(
                positions,
                tokens[:count],
                None if chosen is None else chosen[:count],
                None if top_ids is None else top_ids[:count],
                None if top_values is None else top_values[:count],
                None if texts is None else texts[:count],
                None if top_texts is None else top_texts[:count],
            )
        )
        whole = prompt if prompt is not None else text
        name = self.scalar("conversation", wanted.conversation)
        if name is None:
            name = prompt_name(whole) if whole is not None else f"record-{self.taker.records - 1:05d}"
        repeat = self.scalar("repeat", wanted.repeat)
        number = order.repeat(str(name))
        labels = {k: str(v)[:2000] for k, v in self.table(self.taker.part.labels).items()}
        labels["answer_row"] = str(before)
        if whole is None and wanted.positions is None:
            labels |= RELATIVE
        finish = self.scalar("finish", wanted.finish)
        found = sequence(
            str(name)[:200],
            repeat if type(repeat) is int and repeat >= 0 else number,
            pieces,
            prompt=whole,
            full=full,
            lse=lse,
            finish=None if finish is None else str(finish),
            counts=self.counts,
            labels=labels,
        )
        return self.completed(found, attention)

    def completed(self, found: Sequence, attention: tuple[Attention, ...]) -> Sequence:
        """Ranges, depths and attention, which go with the rows as they are."""
        from dataclasses import replace

        wanted = self.taker.part.sequence
        depths, ranges = self.ints("depths", wanted.depths), self.words("ranges", wanted.ranges)
        if depths is None and ranges is None and not attention:
            return found
        for key, given in (("depths", depths), ("ranges", ranges)):
            if given is not None and len(given) != found.rows:
                raise self.wrong(key, f"has {len(given):,} entries for {found.rows:,} rows")
        return replace(
            found, attention=attention, depths=depths, ranges=None if ranges is None else tuple(ranges)
        )

    def count(self, sizes: dict[str, int], text: Ints | None) -> int:
        """The number of rows; lists of different lengths are cut to the shortest and counted."""
        if not sizes:
            if text is None:
                raise self.wrong("sequence", "has neither tokens nor values")
            return len(text)
        least, most = min(sizes.values()), max(sizes.values())
        if least != most:
            if "logits" in sizes or "lse" in sizes:
                raise self.wrong("sequence", f"has parts of different lengths: {sizes}")
            self.counts["length_mismatches"] = self.counts.get("length_mismatches", 0) + most - least
        return least

    def positions(self, count: int, prompt: Ints | None, text: Ints | None) -> Ints:
        wanted = self.taker.part.sequence
        said = self.ints("positions", wanted.positions)
        if said is not None:
            if len(said) != count:
                raise self.wrong("positions", f"has {len(said):,} entries for {count:,} rows")
            return said
        if text is not None and wanted.align == "end":
            start = len(text) - count
        elif text is not None and count not in (len(text), len(text) - 1):
            raise self.wrong(
                "text", f"has {len(text):,} tokens and there are {count:,} rows: say positions, or align"
            )
        else:
            start = len(prompt) - 1 if prompt is not None else 0
        if start < 0:
            raise self.wrong("text", f"has {len(text or ()):,} tokens and there are {count:,} rows")
        return np.arange(start, start + count, dtype=np.int64)

    def prompt_rows(self, prompt: Ints) -> Piece:
        """Rows of the prompt: its first token is predicted by nothing, so that its null is not counted."""
        wanted = self.taker.part.sequence
        given = self.get("prompt_values", wanted.prompt_values)
        if given is None or len(given) != len(prompt):
            raise self.wrong("prompt_values", "has not as many entries as 'prompt'")
        values = self.vector("prompt_values", given[1:], self.counts)
        texts = self.words("prompt_texts", wanted.prompt_texts)
        return Piece(
            np.arange(len(prompt) - 1, dtype=np.int64),
            prompt[1:],
            values,
            texts=None if texts is None else texts[1:],
        )


__all__ = ["Stored", "Taker"]
