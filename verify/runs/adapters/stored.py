"""Full logits that lie in several arrays, or in one behind an axis of the batch, as one `Full`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.runs.sequence import Full, Ints
from verify.runs.tensors import Stored, Tensors

Read = Callable[[int, int], NDArray[Any]]


def rows_of(stored: Stored, *, skip: int = 0, rows: int | None = None) -> Full:
    """Rows ``skip`` to ``skip + rows`` of ``[N, V]``."""
    count = stored.shape[0] - skip if rows is None else rows

    def read(start: int, stop: int) -> NDArray[Any]:
        return stored.rows(skip + start, skip + min(stop, count))

    return Full(count, stored.shape[1], stored.dtype, read, f"{stored.file.name}:{stored.name}:{skip}")


def of_batch(stored: Stored, index: int, axis: int, *, skip: int = 0, rows: int | None = None) -> Full:
    """Rows of one member of a batch: ``stored`` is ``[B, T, V]`` (``axis`` 0) or ``[T, B, V]`` (``axis`` 1)."""
    length = stored.shape[1 - axis]
    count = length - skip if rows is None else rows
    key = f"{stored.file.name}:{stored.name}:{index}:{skip}"
    if axis == 1:

        def read_column(start: int, stop: int) -> NDArray[Any]:
            return stored.rows(skip + start, skip + min(stop, count))[:, index]

        return Full(count, stored.shape[2], stored.dtype, read_column, key)
    flat = flattened(stored)
    first = index * length + skip

    def read(start: int, stop: int) -> NDArray[Any]:
        return flat.rows(first + start, first + min(stop, count))

    return Full(count, stored.shape[2], stored.dtype, read, key)


def flattened(stored: Stored) -> Stored:
    """``[B, T, V]`` as ``[B * T, V]``: the same bytes."""
    b, t, v = stored.shape
    found = Stored(stored.name, stored.file, stored.dtype, (b * t, v), stored.offset, stored.member)
    return found


def joined(parts: list[Full]) -> Full:
    """Rows of several, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([p.rows for p in parts]).tolist()

    def read(start: int, stop: int) -> NDArray[Any]:
        found: list[NDArray[Any]] = []
        begin = 0
        for part, end in zip(parts, ends, strict=True):
            a, b = max(start, begin), min(stop, end)
            if a < b:
                found.append(part.read(a - begin, b - begin))
            begin = end
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else parts[0].read(0, 0)

    return Full(ends[-1], parts[0].vocab, parts[0].dtype, read, "+".join(p.key for p in parts))


def integers(tensors: Tensors, *names: str) -> Ints | None:
    """The first of these arrays that the file has, as int64.

    Raises:
        ValueError: it holds no whole numbers.
    """
    for name in names:
        if name in tensors.arrays:
            array = tensors.arrays[name].whole()
            if array.dtype.kind not in "iu":
                raise ValueError(f"array '{name}' holds {array.dtype}: give token ids")
            return array.astype(np.int64)
    return None


def first_of(tensors: Tensors, *names: str) -> Stored | None:
    """The first of these arrays that the file has; uint16 with a text ``NAME_dtype`` of bfloat16 as that."""
    for name in names:
        if name in tensors.arrays:
            stored = tensors.arrays[name]
            word = tensors.texts.get(f"{name}_dtype", tensors.texts.get("logits_dtype", ""))
            if stored.dtype == np.dtype(np.uint16) and word.lower() in ("bfloat16", "bf16"):
                import ml_dtypes

                bf16 = np.dtype(ml_dtypes.bfloat16)
                return Stored(stored.name, stored.file, bf16, stored.shape, stored.offset, stored.member)
            return stored
    return None


def checked(stored: Stored | None) -> Stored | None:
    """``stored``, if it holds floats.

    Raises:
        ValueError: it does not.
    """
    if stored is not None and stored.dtype.kind != "f" and stored.dtype.name != "bfloat16":
        raise ValueError(f"array '{stored.name}' holds {stored.dtype}: give F32, F16 or BF16")
    return stored
