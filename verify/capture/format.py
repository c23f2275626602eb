"""The file of a capture: a folder with ``manifest.json`` and ``arrays.safetensors``, written once and read with care.

Reading trusts nothing: sizes are bounded before memory is taken, the manifest is validated field by field, names in
it cannot lead out of the folder, and each array's bytes have the sha256 that the manifest states. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from specs.errors import InputError
from verify.capture.manifest import ARRAYS, MANIFEST, ArrayInfo, File, Manifest
from verify.files import stored_kinds

MAX_MANIFEST = 64 << 20
MAX_HEADER = 64 << 20
KINDS: dict[str, Any] = {**stored_kinds(), "U64": np.uint64, "U32": np.uint32}
_NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
_AGAIN = "make the capture again, or copy all of it"


def array_info(array: NDArray[Any]) -> ArrayInfo:
    """Dtype, shape and sha256 of an array.

    Raises:
        InputError: a dtype that captures do not have.
    """
    name = _NAMES.get(array.dtype)
    if name is None:
        raise InputError(f"dtype {array.dtype}", place="capture", remedy=f"give one of {', '.join(KINDS)}")
    data = np.ascontiguousarray(array)
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    return ArrayInfo.model_validate({"dtype": name, "shape": array.shape, "sha256": digest})


def array_infos(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What a manifest says of arrays, by name, as JSON."""
    return {name: array_info(array).model_dump(mode="json") for name, array in arrays.items()}


class Place(NamedTuple):
    """An array, and its bytes in the file."""

    info: ArrayInfo
    begin: int
    end: int


@dataclass(frozen=True)
class Capture:
    """A capture that was read: its manifest, and its arrays, read from the file and checked when they are taken."""

    path: Path
    manifest: Manifest
    _places: Mapping[str, Place] = field(repr=False)

    def array(self, key: str) -> NDArray[Any]:
        """The array under ``key`` (see `Manifest.stored`), read-only.

        Raises:
            InputError: there is none, or its bytes are not those of the manifest.
        """
        if key not in self._places:
            raise InputError("no such array", place=f"{self.path}: '{key[:200]}'", remedy=_AGAIN)
        info, begin, end = self._places[key]
        kind = np.dtype(KINDS[info.dtype])
        data = _read(self.path / ARRAYS, begin, end - begin)
        if hashlib.sha256(data).hexdigest() != info.sha256:
            raise InputError(
                "its bytes are not those whose sha256 the manifest states",
                place=f"{self.path / ARRAYS}: array '{key}'",
                remedy=_AGAIN,
            )
        return np.frombuffer(data, dtype=kind).reshape(info.shape)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Every array whose key is ``prefix/NAME``, by NAME."""
        keys = [key for key in self._places if key.rpartition("/")[0] == prefix]
        return {key.rpartition("/")[2]: self.array(key) for key in keys}


def _read(file: Path, begin: int, size: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(begin)
            data = stream.read(size)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(file), remedy=_AGAIN) from None
    if len(data) != size:
        raise InputError("ends too early", place=str(file), remedy=_AGAIN)
    return data


def check_empty(folder: Path) -> None:
    """Refuse a folder that a capture cannot be written to.

    Raises:
        InputError: it is a file, or holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("is not an empty folder", place=str(folder), remedy="give another --out")


def write_capture(folder: Path, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Capture:
    """Write a capture to ``folder``, which must be new or empty.

    Args:
        folder: where to.
        fields: of `Manifest`, as JSON would have them, without ``schema``, ``kind`` and ``file``.
        arrays: by key, exactly those of `Manifest.stored`.

    Raises:
        InputError: the folder holds something, or cannot be written.
    """
    from safetensors.numpy import save_file

    try:
        check_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / ARRAYS
        save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, target)
        target.chmod(0o644)  # the library makes it the owner's alone
        data = {"name": ARRAYS, "bytes": target.stat().st_size, "sha256": _sha_of(target)}
        whole = {"schema": 1, "kind": "kernels", **fields, "file": File.model_validate(data).model_dump()}
        manifest = Manifest.model_validate_json(json.dumps(whole, allow_nan=False))
        text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", place=str(folder), remedy="give another --out"
        ) from None
    return read_capture(folder)


def packaged() -> dict[str, Path]:
    """The captures that come with the package, by name."""
    home = Path(str(files("verify.capture"))) / "data"
    return {p.name: p for p in sorted(home.iterdir()) if (p / MANIFEST).is_file()} if home.is_dir() else {}


def is_capture(text: str) -> bool:
    """Whether ``text`` names a capture: a packaged one, or a path that exists or looks like one."""
    if text in packaged():
        return True
    if "\0" in text or not text:
        return False
    path = Path(text)
    try:
        return path.name == MANIFEST or path.suffix in (".json", ".safetensors") or path.is_dir()
    except OSError:
        return False


def read_capture(path: str | Path) -> Capture:
    """The capture in ``path``: its folder, its manifest, or the name of a packaged one.

    Raises:
        InputError: missing, truncated, damaged, of another schema, or not what its manifest says.
    """
    folder = packaged().get(str(path), Path(path))
    folder = folder.parent if folder.name in (MANIFEST, ARRAYS) else folder
    if not folder.is_dir():
        remedy = "give the folder that holds manifest.json"
        close = get_close_matches(str(path)[:200], packaged(), n=1)
        raise InputError(
            "no such capture",
            place=str(path)[:200],
            remedy=f"did you mean '{close[0]}', which comes with the package? Or {remedy}"
            if close
            else remedy,
        )
    manifest = _manifest(folder / MANIFEST)
    file = folder / ARRAYS
    if not file.is_file():
        raise InputError("no such file", place=str(file), remedy=_AGAIN)
    size = file.stat().st_size
    if size != manifest.file.bytes:
        raise InputError(
            f"has {size:,} bytes, the manifest says {manifest.file.bytes:,}", place=str(file), remedy=_AGAIN
        )
    places = _places(file, size, manifest)
    capture = Capture(folder, manifest, places)
    if _sha_of(file) != manifest.file.sha256:
        for key in places:
            capture.array(key)  # names the damaged one
        raise InputError(
            "its sha256 is not the one that the manifest states, though each array's is",
            place=str(file),
            remedy=_AGAIN,
        )
    return capture


def _manifest(file: Path) -> Manifest:
    try:
        if not file.is_file():
            raise InputError(
                "no such file", place=str(file), remedy="give the folder that holds manifest.json"
            )
        if file.stat().st_size > MAX_MANIFEST:
            raise InputError(
                f"has {file.stat().st_size:,} bytes",
                place=str(file),
                remedy=f"at most {MAX_MANIFEST:,} are read",
            )
        text = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(file), remedy=_AGAIN) from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(x)[:60] for x in first["loc"])
        rest = error.error_count() - 1
        more = f" (and {rest} more)" if rest else ""
        raise InputError(
            f"{first['msg'][:300]}{more}",
            place=f"{file}: {where}" if where else str(file),
            remedy="a manifest of schema 1 is written by `ulpscope capture kernels`; it is not edited by hand",
        ) from None


def _places(file: Path, size: int, manifest: Manifest) -> dict[str, Place]:
    """Where each array lies in the file: its header, checked against its size and the manifest."""

    def damaged(cause: str) -> NoReturn:
        raise InputError(cause, place=str(file), remedy=_AGAIN)

    if size < 8:
        damaged(f"{size} bytes are no safetensors file")
    length = int.from_bytes(_read(file, 0, 8), "little")
    if length > min(MAX_HEADER, size - 8):
        damaged(f"its header claims {length:,} bytes, the file has {size:,}")
    try:
        header: Any = json.loads(_read(file, 8, length))
    except (ValueError, RecursionError):
        damaged("its header is not JSON")
    if not isinstance(header, dict):
        damaged("its header is not an object")
    header.pop("__metadata__", None)
    wanted = manifest.stored()
    missing, extra = [k for k in wanted if k not in header], [str(k) for k in header if k not in wanted]
    if missing or extra:
        what = (
            f"lacks array '{missing[0]}'"
            if missing
            else f"holds array '{extra[0][:120]}', not in the manifest"
        )
        damaged(what)
    return {key: _place(file, key, header[key], info, 8 + length, size) for key, info in wanted.items()}


def _place(file: Path, key: str, entry: Any, info: ArrayInfo, start: int, size: int) -> Place:
    where = f"{file}: array '{key}'"
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = isinstance(begin, int) and isinstance(end, int)
    except (KeyError, TypeError, ValueError):
        raise InputError("its header entry is damaged", place=where, remedy=_AGAIN) from None
    if dtype != info.dtype or shape != info.shape:
        raise InputError(
            f"is {str(dtype)[:20]} {str(list(shape))[:80]}, the manifest says {info.dtype} {list(info.shape)}",
            place=where,
            remedy=_AGAIN,
        )
    need = math.prod(info.shape) * np.dtype(KINDS[info.dtype]).itemsize
    if not whole or begin < 0 or end - begin != need or start + end > size:
        raise InputError(
            f"takes {need:,} bytes, its place in the file is {str(begin)[:20]} to {str(end)[:20]}",
            place=where,
            remedy=_AGAIN,
        )
    return Place(info, start + begin, start + end)


def _sha_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(file), remedy=_AGAIN) from None
