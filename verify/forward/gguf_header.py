"""The header of a GGUF file: metadata and where each tensor lies. Nothing is believed that the file's size contradicts.

The format: magic, version, counts, then keys with typed values, then tensors (name, dimensions from the innermost out, type,
offset), then data at the next multiple of ``general.alignment``. Source: the GGUF specification of ggml-org/ggml,
docs/gguf.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError, UnsupportedError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS, _MAX_TENSORS, _MAX_ITEMS = 10_000, 100_000, 1 << 24
_MAX_HEADER = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One tensor: dimensions from the outermost in, number of its type, and where its data begins in the file."""

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    fields: dict[str, Any]
    tensors: dict[str, Entry]
    size: int


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        if count < 0 or count > len(self.data) - self.at:
            raise ValueError("its header ends too early")
        part = self.data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > 2:
            raise ValueError(f"a value of type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if count > _MAX_ITEMS:
            raise ValueError(f"a list of {count:,} items")
        if inner in _SCALARS:
            code = "<" + ("u1" if inner == 7 else np.dtype(_SCALARS[inner]).str[1:])
            whole = self.take(count * np.dtype(code).itemsize)
            return np.frombuffer(whole, code).tolist()
        return [self.value(inner, depth + 1) for _ in range(count)]


def read_gguf_header(file: Path) -> Header:
    """Metadata and tensors of ``file``.

    Raises:
        InputError: missing, no GGUF file, truncated or damaged. UnsupportedError: a version that is not read.
    """
    place = str(file)
    try:
        if not file.is_file():
            raise InputError("no such file", place=place, remedy="check the path")
        size = file.stat().st_size
        with file.open("rb") as stream:
            data = stream.read(min(size, _MAX_HEADER))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=place, remedy="check its permissions"
        ) from None
    if data[:4] != b"GGUF" or len(data) < 24:
        raise InputError("not a GGUF file", place=place, remedy="its first bytes are not 'GGUF'")
    reader = _Reader(memoryview(data))
    reader.take(4)
    version, tensors, keys = reader.number("I"), reader.number("Q"), reader.number("Q")
    if version not in (2, 3):
        raise UnsupportedError(
            f"GGUF version {version}", place=place, remedy="little-endian versions 2 and 3 are read"
        )
    try:
        if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
            raise ValueError(f"{tensors:,} tensors and {keys:,} keys")
        fields = {reader.string(): reader.value(reader.number("I")) for _ in range(keys)}
        found = {reader.string(): _entry(reader) for _ in range(tensors)}
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
            raise ValueError(f"an alignment of {alignment!r}")
    except (ValueError, struct.error) as error:
        raise InputError(
            f"truncated or damaged: {error}", place=place, remedy="download the file again"
        ) from None
    base = -(-reader.at // alignment) * alignment
    moved = {name: Entry(e.shape, e.kind, base + e.start) for name, e in found.items()}
    return Header(fields, moved, size)


def _entry(reader: _Reader) -> Entry:
    count = reader.number("I")
    if not 1 <= count <= 4:
        raise ValueError(f"a tensor of {count} dimensions")
    inward = [int(reader.number("Q")) for _ in range(count)]
    return Entry(tuple(reversed(inward)), int(reader.number("I")), int(reader.number("Q")))
