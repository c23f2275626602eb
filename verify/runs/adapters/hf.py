"""Hugging Face transformers: what ``generate()`` or ``forward()`` returned, saved as npz or safetensors.

``generate(return_dict_in_generate=True, output_logits=True)``: ``sequences [B, L]`` and ``logits`` (or ``scores``,
which are processed: -infinity where a processor forbade a token) as ``[B, new, V]``, ``[new, B, V]``, ``[new, V]`` for a
batch of one, or one array ``logits.<i> [B, V]`` for each new token. ``forward()``: ``input_ids [B, T]`` and ``logits
[B, T, V]``. ``attention_mask`` marks the padding on the left.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from verify.runs.adapters.base import Draft, Options, answer_positions, name_of, wrong
from verify.runs.adapters.stored import checked, first_of, integers, joined, of_batch, rows_of
from verify.runs.rows import Conversations, Piece, sequence
from verify.runs.sequence import UNKNOWN, Full, Ints, Sequence
from verify.runs.tensors import Tensors, open_tensors

_STEP = re.compile(r"(logits|scores)\.(\d{1,6})")


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of arrays.

    Raises:
        InputError: the arrays do not fit together.
    """
    tensors = open_tensors(file)
    try:
        ids = integers(tensors, "sequences", "input_ids")
        if ids is None:
            wrong(str(file), "has neither 'sequences' nor 'input_ids'")
        ids = ids[None] if ids.ndim == 1 else ids
        if ids.ndim != 2:
            wrong(f"{file}: array 'sequences'", f"has shape {list(ids.shape)}", "give [batch, tokens]")
        raw = any(name == "logits" or name.startswith("logits.") for name in tensors.arrays)
        members, vocab = _members(tensors, "logits" if raw else "scores", ids)
        padding = _padding(tensors, ids)
    except ValueError as error:
        wrong(str(file), str(error))
    whole = "sequences" not in tensors.arrays
    order = Conversations()
    sequences: list[Sequence] = []
    for index, full in enumerate(members):
        text = ids[index, padding[index] :]
        rows = full.rows
        if whole and padding[index]:
            full = _behind(full, int(padding[index]))
            rows = full.rows
        if rows > len(text):
            wrong(str(file), f"has {rows:,} rows for {len(text):,} tokens of text {index}")
        if whole and rows != len(text):
            wrong(
                str(file),
                f"has {rows:,} rows for {len(text):,} tokens of text {index}",
                "give rows of all",
            )
        prompt = text if whole else text[: len(text) - rows]
        if not whole and not len(prompt):
            wrong(str(file), f"has no prompt before the {rows:,} rows of text {index}")
        sequences.append(_sequence(text, prompt, full, whole, options, order, index))
    kind = "raw_logits" if raw else "scores_processed"
    capture = {"value_kind": "raw_logits" if kind == "raw_logits" else "processed"}
    return [Draft(sequences, {"engine": "transformers"}, capture, vocab_size=vocab)]


def _sequence(
    text: Ints, prompt: Ints, full: Full, whole: bool, options: Options, order: Conversations, index: int
) -> Sequence:
    if whole:
        positions = np.arange(len(text), dtype=np.int64)
        tokens = np.concatenate([text[1:], np.array([UNKNOWN], np.int64)])
    else:
        positions = answer_positions(len(prompt), full.rows)
        tokens = text[len(prompt) :]
    name, repeat = name_of({}, prompt, options, order, index)
    labels = {"answer_row": "0", "batch_index": str(index)}
    return sequence(name, repeat, [Piece(positions, tokens)], prompt=prompt, full=full, labels=labels)


def _behind(full: Full, skip: int) -> Full:
    return Full(
        full.rows - skip,
        full.vocab,
        full.dtype,
        lambda start, stop: full.read(skip + start, min(skip + stop, full.rows)),
        f"{full.key}:{skip}",
    )


def _padding(tensors: Tensors, ids: Ints) -> Ints:
    """Tokens of padding before each text, from ``attention_mask``."""
    mask = integers(tensors, "attention_mask")
    if mask is None:
        return np.zeros(len(ids), np.int64)
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.ndim != 2 or len(mask) != len(ids) or mask.shape[1] > ids.shape[1]:
        raise ValueError(f"array 'attention_mask' has shape {list(mask.shape)}, the ids {list(ids.shape)}")
    first = np.argmax(mask != 0, axis=1)
    behind = np.array([bool((row[at:] == 0).any()) for row, at in zip(mask, first, strict=True)])
    if behind.any():
        raise ValueError("array 'attention_mask' has padding on the right: give texts of their own length")
    return first.astype(np.int64)


def _members(tensors: Tensors, name: str, ids: Ints) -> tuple[list[Full], int]:
    """The logits of each member of the batch, and the vocabulary."""
    batch = len(ids)
    steps = sorted((int(m[2]), m[0]) for n in tensors.arrays if (m := _STEP.fullmatch(n)) and m[1] == name)
    if steps:
        if [i for i, _ in steps] != list(range(len(steps))):
            raise ValueError(f"the arrays '{name}.<i>' do not count 0, 1, 2, ...")
        found = [checked(first_of(tensors, n)) for _, n in steps]
        arrays = [s for s in found if s is not None]
        if any(s.shape != arrays[0].shape or len(s.shape) != 2 or s.shape[0] != batch for s in arrays):
            raise ValueError(f"the arrays '{name}.<i>' are not all [{batch}, vocabulary]")
        members = [joined([rows_of(s, skip=b, rows=1) for s in arrays]) for b in range(batch)]
        return members, arrays[0].shape[1]
    stored = checked(first_of(tensors, name))
    if stored is None:
        raise ValueError("has neither 'logits' nor 'scores'")
    if len(stored.shape) == 2 and batch == 1:
        return [rows_of(stored)], stored.shape[1]
    if len(stored.shape) != 3:
        raise ValueError(f"array '{name}' has shape {list(stored.shape)}: give [batch, tokens, vocabulary]")
    first, second = stored.shape[0] == batch, stored.shape[1] == batch
    if first and second and batch > 1:
        raise ValueError(
            f"array '{name}' is [{batch}, {batch}, V] for a batch of {batch}: which axis is the batch is not known"
        )
    if not first and not second:
        raise ValueError(f"array '{name}' has shape {list(stored.shape)} for a batch of {batch}")
    axis = 0 if first else 1
    return [of_batch(stored, b, axis) for b in range(batch)], stored.shape[2]
