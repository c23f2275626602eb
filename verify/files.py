"""Inputs from files: npz and safetensors, read without pickle and checked before memory is taken for them.

A file holds ``scores`` and ``values``, or ``q``, ``k`` and ``v``; it may hold ``sinks`` and ``alibi_slopes``, and
``scale``, ``causal``, ``softcap``, ``k_scale``, ``v_scale`` and integers of the context (``batch``, ``kv_capacity``, ...)
as scalars. npz has neither bfloat16 nor 8-bit floats: give uint16 or uint8 bit patterns, and a string array ``dtype``
that says ``bfloat16``, ``float8_e4m3fn`` or ``float8_e5m2``, one or two of them; in safetensors use BF16, F8_E4M3 and
F8_E5M2, and metadata for the scalars.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.context import CONTEXT, MAX_TOKENS
from specs.errors import InputError, did_you_mean
from verify.case import Case
from verify.features import Features
from verify.npy import npy_header

#: The most that the arrays of one file may take together, decompressed.
MAX_BYTES = 4 << 30
ARRAYS = ("scores", "values", "q", "k", "v")
PER_HEAD = ("sinks", "alibi_slopes")
SCALARS = ("scale", "causal", "softcap", "k_scale", "v_scale")
_READABLE = (*ARRAYS, *PER_HEAD, *SCALARS, "dtype", *CONTEXT)


def load_case(path: str | Path) -> Case:
    """The input in ``path`` (.npz or .safetensors).

    Raises:
        InputError: the file is missing, truncated or of another kind; an array has an unknown name, is an
            object array, has more than `MAX_TOKENS` tokens, or its bytes are not what its header says; the
            arrays together take more than `MAX_BYTES`.
    """
    return _case(Path(path), read_arrays(path))


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every array in ``path`` (.npz or .safetensors), whatever it is called.

    Raises:
        InputError: the file is missing, truncated or of another kind; an array is an object array, or its bytes are
            not what its header says; the arrays together take more than `MAX_BYTES`.
    """
    file = Path(path)
    readers: dict[str, Callable[[Path], dict[str, NDArray[Any]]]] = {
        ".npz": _npz,
        ".safetensors": _safetensors,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(
            f"'{file.suffix}' files are not read", place=str(file), remedy="give .npz or .safetensors"
        )
    try:
        if not file.is_file():
            raise InputError("no such file", place=str(file), remedy="check the path")
        return reader(file)
    except OSError as error:
        cause = error.strerror or str(error)
        raise InputError(
            f"cannot be read: {cause}", place=str(file), remedy="check the path and its permissions"
        ) from None


def _case(file: Path, found: Mapping[str, NDArray[Any]]) -> Case:
    for name in found:
        if name not in _READABLE:
            raise InputError(
                f"unknown array '{name[:60]}'", place=str(file), remedy=did_you_mean(name, _READABLE)
            )
    dtype = str(found["dtype"]) if "dtype" in found else ""
    arrays = {n: _narrow(file, n, a, dtype) for n, a in found.items() if n in ARRAYS}
    if set(arrays) not in ({"scores", "values"}, {"q", "k", "v"}):
        held = ", ".join(arrays) or "none of them"
        raise InputError(
            f"holds {held}",
            place=str(file),
            remedy="give scores and values, or q, k and v, and not a mixture",
        )
    scalars = {n: _scalar(file, n, a) for n, a in found.items() if n not in (*ARRAYS, *PER_HEAD, "dtype")}
    per_head = {n: found[n] for n in PER_HEAD if n in found}
    caps = {n: scalars[n] for n in ("softcap", "k_scale", "v_scale") if n in scalars}
    return Case(
        name=file.name,
        arrays=arrays,
        scale=float(scalars["scale"]) if "scale" in scalars else None,
        causal=bool(scalars.get("causal", False)),
        features=Features(**per_head, **caps),
        context={n: int(x) for n, x in scalars.items() if n in CONTEXT and n != "causal"},
    )


def _narrow(file: Path, name: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if array.dtype.kind != "u" or array.dtype.itemsize > 2:
        return array
    import ml_dtypes

    kinds: dict[str, Any] = {
        "bfloat16": ml_dtypes.bfloat16,
        "bf16": ml_dtypes.bfloat16,
        "BF16": ml_dtypes.bfloat16,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }
    named = {kinds[word] for word in dtype.split() if word in kinds}
    fitting = [kind for kind in named if np.dtype(kind).itemsize == array.dtype.itemsize]
    if len(fitting) != 1:
        what = "bfloat16" if array.dtype == np.uint16 else "float8_e4m3fn or float8_e5m2"
        raise InputError(
            f"{array.dtype} without saying of what",
            place=f"{file}: array '{name}'",
            remedy=f"add a string array called dtype that says {what}",
        )
    return array.view(fitting[0])


def _scalar(file: Path, name: str, array: NDArray[Any]) -> float:
    if array.size != 1 or array.dtype.kind not in "biuf" or not math.isfinite(float(array.reshape(())[()])):
        raise InputError(
            f"shape {array.shape}, dtype {array.dtype}",
            place=f"{file}: '{name}'",
            remedy=f"{name} is one finite number",
        )
    value = float(array.reshape(())[()])
    if name in ("causal", *CONTEXT) and value != int(value):
        raise InputError(
            f"{value} is not an integer", place=f"{file}: '{name}'", remedy=f"{name} is an integer"
        )
    return value


@contextmanager
def _readable(place: str) -> Generator[None]:
    """Everything that a broken file makes a reader raise, as one message."""
    try:
        yield
    except (
        ValueError,
        EOFError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,  # zipfile: a compression, an encryption or a version of the format that it lacks
        OverflowError,
    ) as error:
        raise InputError(
            f"truncated or damaged: {error}",
            place=place,
            remedy="write the file again, with np.savez or safetensors",
        ) from None
    except (MemoryError, RuntimeError) as error:  # an encrypted member is a RuntimeError
        raise InputError(
            f"cannot be read: {error}", place=place, remedy="check how the file was written"
        ) from None


def _npz(file: Path) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    with _readable(str(file)), zipfile.ZipFile(file) as archive:
        _bounded(file, sum(member.file_size for member in archive.infolist()))
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            place = f"{file}: array '{name[:60]}'"
            with _readable(place), archive.open(member) as stream:
                out[name] = _npy(stream, member.file_size, place, name)
    return out


def _bounded(file: Path, size: int) -> None:
    """Refuse a file whose arrays take more memory than is good, before any of it is taken."""
    if size > MAX_BYTES:
        raise InputError(
            f"its arrays take {size:,} bytes together",
            place=str(file),
            remedy=f"give at most {MAX_BYTES:,} bytes: fewer tokens or heads, or 16-bit numbers",
        )


def _few_tokens(name: str, shape: Sequence[int], place: str) -> None:
    """Refuse an array whose token axis is too long, from its header alone."""
    axes = {"scores": -1, "values": 0, "k": 0, "v": 0, "q": 0 if len(shape) == 3 else None}
    axis = axes.get(name)
    if axis is not None and shape and shape[axis] > MAX_TOKENS:
        raise InputError(
            f"{shape[axis]:,} tokens", place=place, remedy=f"give a sequence of at most {MAX_TOKENS:,} tokens"
        )


def _npy(stream: Any, size: int, place: str, name: str) -> NDArray[Any]:
    """One .npy stream. The header is compared with the size of the member before anything is allocated."""
    shape, fortran, dtype = npy_header(stream)
    if dtype.hasobject:
        raise InputError(
            "an object array", place=place, remedy="store numbers: object arrays need pickle, which runs code"
        )
    _few_tokens(name, shape, place)
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > size:
        raise ValueError(f"{shape} of {dtype} need {wanted} bytes, the member has {size}")
    data = stream.read(wanted)
    if len(data) != wanted:
        raise ValueError(f"{len(data)} bytes instead of {wanted}")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def stored_kinds() -> dict[str, Any]:
    """NumPy's types of the dtypes of safetensors, by their names there."""
    import ml_dtypes

    return {
        "F64": np.float64,
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "I64": np.int64,
        "I32": np.int32,
        "U16": np.uint16,
        "U8": np.uint8,
    }


def _safetensors(file: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, deserialize

    kinds = stored_kinds()
    _bounded(file, file.stat().st_size)
    data = file.read_bytes()
    out: dict[str, NDArray[Any]] = {}
    with _readable(str(file)):
        try:
            tensors = deserialize(data)
        except SafetensorError as error:
            raise ValueError(str(error)) from None
        for name, info in tensors:
            if info["dtype"] not in kinds:
                raise InputError(
                    f"dtype {info['dtype']}",
                    place=f"{file}: array '{name[:60]}'",
                    remedy=f"give one of {', '.join(kinds)}",
                )
            _few_tokens(name, info["shape"], f"{file}: array '{name}'")
            raw = np.frombuffer(bytes(info["data"]), dtype=kinds[info["dtype"]])
            out[name] = raw.reshape(info["shape"])
        for key, text in _metadata(data).items():
            if key == "dtype":
                out[key] = np.array(text)
            elif key in (*SCALARS, *CONTEXT):
                out.setdefault(key, np.array(float({"true": "1", "false": "0"}.get(text.lower(), text))))
    return out


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    header = json.load(io.BytesIO(data[8 : 8 + length]))
    found = header.get("__metadata__", {})
    return {str(k): str(v) for k, v in found.items()}
