"""Arrays in safetensors and npz files, found by their headers and mapped block by block. No pickle.

Nothing is read into memory but what is asked for: rows of a stored array are a view of a mapping that lives as long as
the view, so that going over a file of many gigabytes needs the memory of one block. What a header claims is compared
with the size of the file first. Members of an npz that are compressed cannot be mapped: they are unpacked, up to
`MAX_UNPACKED` bytes each.

Format of safetensors: https://huggingface.co/docs/safetensors (a length as 8 bytes little-endian, a JSON header, data).
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.capture.format import KINDS
from verify.npy import npy_header
from verify.runs.jsonio import no_twice

Array = NDArray[Any]

MAX_HEADER = 16 << 20
MAX_UNPACKED = 512 << 20
MAX_WHOLE = 2 << 30
MAX_ARRAYS = 100_000
_NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
_AGAIN = "write the file again, or copy all of it"
_LOCAL = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True)
class Stored:
    """One array of a file: its dtype, shape and place. ``member`` is set where it lies compressed in an archive."""

    name: str
    file: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    member: str | None = None
    _cache: list[Array] = field(default_factory=list[Array], repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` of the first axis, read-only: a view of mapped memory where that is possible.

        Raises:
            InputError: the file has changed since its header was read, or cannot be read.
        """
        if self.member is not None or not self.shape:
            return self.whole()[start:stop]
        start, stop = max(0, start), min(stop, self.shape[0])
        shape = (max(0, stop - start), *self.shape[1:])
        step = math.prod(self.shape[1:]) * self.dtype.itemsize
        if math.prod(shape) == 0:
            return np.empty(shape, self.dtype)
        try:
            return np.memmap(self.file, self.dtype, "r", self.offset + start * step, shape)
        except (OSError, ValueError) as error:
            raise _unreadable(self, error) from None

    def whole(self) -> Array:
        """All of it, in memory, at most `MAX_WHOLE` bytes.

        Raises:
            InputError: it is larger, or the file cannot be read.
        """
        if self._cache:
            return self._cache[0]
        most = MAX_WHOLE if self.member is None else MAX_UNPACKED
        if self.nbytes > most:
            raise InputError(
                f"takes {self.nbytes:,} bytes",
                place=f"{self.file}: array '{self.name}'",
                remedy=f"at most {most:,} are unpacked: use safetensors, or np.savez without compression",
            )
        try:
            data = self._bytes()
        except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise _unreadable(self, error) from None
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        if self.member is not None:
            self._cache.append(array)
        return array

    def _bytes(self) -> bytes:
        if self.member is None:
            with self.file.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read(self.nbytes)
        else:
            with zipfile.ZipFile(self.file) as archive, archive.open(self.member) as stream:
                stream.read(self.offset)
                data = stream.read(self.nbytes)
        if len(data) != self.nbytes:
            raise ValueError("ends too early")
        return data


def _unreadable(stored: Stored, error: Exception) -> InputError:
    return InputError(
        f"cannot be read: {error}", place=f"{stored.file}: array '{stored.name[:80]}'", remedy=_AGAIN
    )


@dataclass(frozen=True)
class Tensors:
    """What a file holds: arrays by name, and texts beside them."""

    arrays: dict[str, Stored]
    texts: dict[str, str]


def open_tensors(file: Path) -> Tensors:
    """Headers of ``file`` (.safetensors or .npz).

    Raises:
        InputError: missing, truncated, damaged, of another kind, or with arrays that no reader here takes (objects,
            Fortran order in several dimensions, dtypes that are unknown).
    """
    try:
        if file.suffix == ".safetensors":
            return _safetensors(file)
        if file.suffix == ".npz":
            return _npz(file)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"truncated or damaged: {error}", place=str(file), remedy=_AGAIN) from None
    except (RecursionError, MemoryError, RuntimeError, OverflowError, struct.error, KeyError) as error:
        raise InputError(f"cannot be read: {type(error).__name__}", place=str(file), remedy=_AGAIN) from None
    raise InputError(
        f"'{file.suffix}' files are not read", place=str(file), remedy="give .npz or .safetensors"
    )


def _safetensors(file: Path) -> Tensors:
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > size - 8:
            raise ValueError(f"the header claims {length:,} bytes, the file has {size:,}")
        if length > MAX_HEADER:
            raise ValueError(f"a header of {length:,} bytes: at most {MAX_HEADER:,} are read")
        header: Any = json.loads(stream.read(length), object_pairs_hook=no_twice)
    if not isinstance(header, dict) or len(header) > MAX_ARRAYS:
        raise ValueError("its header is no object of arrays")
    meta: Any = header.pop("__metadata__", None) or {}
    if not isinstance(meta, dict):
        raise ValueError("its __metadata__ is no object")
    arrays = {str(k): _entry(file, str(k), v, 8 + length, size) for k, v in header.items()}
    _apart(arrays)
    return Tensors(arrays, {str(k): str(v) for k, v in meta.items()})


def _entry(file: Path, name: str, entry: Any, start: int, size: int) -> Stored:
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the entry of array '{name[:80]}' is damaged") from None
    numbers = [begin, end, *shape] if isinstance(shape, list) else []
    if not numbers or not all(type(n) is int and 0 <= n <= 1 << 48 for n in numbers) or len(shape) > 8:
        raise ValueError(f"shape or place of array '{name[:80]}' is damaged")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"array '{name[:80]}' has dtype {str(kind)[:20]}: give one of {', '.join(KINDS)}")
    dtype = np.dtype(KINDS[kind])
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > size:
        raise ValueError(
            f"array '{name[:80]}', {kind} {shape}, lies at {begin:,} to {end:,} in {size - start:,} bytes of data"
        )
    return Stored(name, file, dtype, tuple(shape), start + begin)


def _apart(arrays: dict[str, Stored]) -> None:
    """Two arrays that share bytes are a damaged, or a crafted, file."""
    end, last = 0, ""
    for stored in sorted(arrays.values(), key=lambda s: (s.offset, s.nbytes)):
        if stored.nbytes and stored.offset < end:
            raise ValueError(f"arrays '{last[:80]}' and '{stored.name[:80]}' share bytes")
        end, last = max(end, stored.offset + stored.nbytes), stored.name


def _npz(file: Path) -> Tensors:
    arrays: dict[str, Stored] = {}
    texts: dict[str, str] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS:
            raise ValueError(f"{len(members):,} members")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays or name in texts:
                raise ValueError(f"array '{name[:80]}' twice")
            with archive.open(member) as stream:
                shape, dtype, used = _npy_header(stream, name)
                nbytes = math.prod(shape) * dtype.itemsize
                if used + nbytes > member.file_size:
                    raise ValueError(
                        f"array '{name[:80]}' needs {nbytes:,} bytes, its member has {member.file_size:,}"
                    )
                if dtype.kind in "US":
                    texts[name] = _text(stream.read(min(nbytes, MAX_HEADER)), dtype, shape, name)
                    continue
            if member.compress_type == zipfile.ZIP_STORED:
                arrays[name] = Stored(name, file, dtype, shape, _begin(file, member) + used)
            else:
                arrays[name] = Stored(name, file, dtype, shape, used, member.filename)
    return Tensors(arrays, texts)


def _npy_header(stream: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    try:
        shape, fortran, dtype = npy_header(stream)
    except ValueError as error:
        raise ValueError(f"array '{name[:80]}': {str(error)[:200]}") from None
    if dtype.hasobject or dtype.kind not in "biufUS":
        raise ValueError(
            f"array '{name[:80]}' holds {dtype}: store numbers, objects need pickle, which runs code"
        )
    if not dtype.isnative:
        raise ValueError(
            f"array '{name[:80]}' is big-endian: store array.astype(array.dtype.newbyteorder('='))"
        )
    if fortran and len(shape) > 1:
        raise ValueError(f"array '{name[:80]}' is in Fortran order: store np.ascontiguousarray of it")
    return shape, dtype, stream.tell()


def _begin(file: Path, member: zipfile.ZipInfo) -> int:
    """Where a stored member's data begin: behind its local header, whose lengths may differ from the directory's."""
    with file.open("rb") as stream:
        stream.seek(member.header_offset)
        head = _LOCAL.unpack(stream.read(_LOCAL.size))
    if head[0] != b"PK\x03\x04" or head[2] & 1:
        raise ValueError(f"member '{member.filename[:80]}' is damaged or encrypted")
    begin = member.header_offset + _LOCAL.size + head[9] + head[10]
    if begin + member.file_size > file.stat().st_size:
        raise ValueError(f"member '{member.filename[:80]}' ends behind the file")
    return begin


def _text(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> str:
    count = math.prod(shape)
    if count == 0 or len(data) < count * dtype.itemsize:
        raise ValueError(f"array '{name[:80]}' of text is empty or too large")
    values = np.frombuffer(data, dtype, count)
    first = values.reshape(-1)[0]
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
    return text if count == 1 else json.dumps([str(v) for v in values])


def blocks(rows: int, row_bytes: int, *, block_bytes: int = 32 << 20) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about ``block_bytes`` each."""
    step = max(1, block_bytes // max(1, row_bytes))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


class TensorWriter:
    """Writes a safetensors file whose dtypes and shapes are known beforehand, block after block.

    Used as a context: ``with TensorWriter(path, {"logits": (dtype, shape)}, texts) as out: out.write("logits", block)``.
    Arrays are written in the order given, each whole before the next.
    """

    def __init__(
        self, file: Path, layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]], texts: dict[str, str]
    ) -> None:
        self.file = file
        self.left = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in layout.items()}
        self.dtypes = {name: dtype for name, (dtype, _) in layout.items()}
        header: dict[str, Any] = {"__metadata__": texts} if texts else {}
        begin = 0
        for name, (dtype, shape) in layout.items():
            end = begin + self.left[name]
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
            begin = end
        text = json.dumps(header, ensure_ascii=True).encode()
        self.head = text + b" " * (-len(text) % 8)

    def __enter__(self) -> TensorWriter:
        self.stream = self.file.open("wb")
        self.stream.write(len(self.head).to_bytes(8, "little") + self.head)
        return self

    def write(self, name: str, block: Array) -> None:
        """The next rows of ``name``."""
        current = next((n for n, left in self.left.items() if left), "")
        if name != current or block.dtype != self.dtypes[name] or block.nbytes > self.left[name]:
            if block.nbytes:
                raise ValueError(f"{block.nbytes} bytes of {name} where {current} is due")
            return
        self.stream.write(np.ascontiguousarray(block).data.cast("B") if _plain(block) else block.tobytes())
        self.left[name] -= block.nbytes

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.stream.close()
        if kind is None and any(self.left.values()):
            with contextlib.suppress(OSError):
                self.file.unlink()
            raise ValueError(f"not all was written: {self.left}")


def _plain(block: Array) -> bool:
    """Whether the dtype has a buffer format that Python knows (ml_dtypes' have none)."""
    return block.dtype.kind in "iuf" and block.size > 0
