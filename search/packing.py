"""The two files of a witness as bytes: arrays packed and unpacked, JSON validated, files put in place whole."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from search.evaluate import realised
from search.objective import Objective
from search.record import SCHEMA, Record
from search.space import Inputs, Space
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from verify.files import stored_kinds
from verify.numerics.rounding import store

MAX_JSON = 64 << 20
MAX_ARRAYS = 1 << 30
#: The most that a header of safetensors takes for the few arrays of a witness.
_HEADER = 1 << 16
AGAIN = "copy both files of the witness again, or search again"
_KINDS: dict[str, np.dtype[Any]] = {n: np.dtype(k) for n, k in stored_kinds().items()}

Arrays = Mapping[str, NDArray[Any]]


def refuse_taken(path: Path) -> NoReturn:
    """A name is taken."""
    raise InputError(
        "another witness has this name", place=str(path), remedy="give another name, or ask to overwrite"
    )


def put(path: Path, data: bytes, overwrite: bool) -> None:
    """Write a file whole: under another name first, then by that of ``path``, which is not replaced unasked.

    Raises:
        InputError: the name is taken. OSError: it cannot be written.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it the owner's alone
        if overwrite:
            os.replace(temporary, path)
            return
        try:
            os.link(temporary, path)  # fails where the name was taken meanwhile
        except FileExistsError:
            refuse_taken(path)
        except OSError:  # a file system without links
            os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _once(pairs: list[tuple[str, Any]], place: str) -> None:
    """Refuse an object that has a key twice: one reader would see the one value, another reader the other."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"the key '{twice[:60]}' stands twice in one object", place=place, remedy=AGAIN)


def validated(text: bytes, place: str) -> Record:
    """The JSON of a witness.

    Raises:
        InputError: with the place in it, whatever is wrong.
    """
    with suppress(ValueError, RecursionError):  # the model says where
        json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, place))
    try:
        return Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(x)[:60] for x in first["loc"])
        rest = error.error_count() - 1
        more = f" (and {rest} more)" if rest else ""
        raise InputError(
            f"{first['msg'][:300]}{more}",
            place=f"{place}: {where}" if where else place,
            remedy=f"a witness of schema {SCHEMA} is written by `ulpscope search`; it is not edited by hand",
        ) from None


def arrays_of(
    formats: Mapping[str, Format], space: Space, objective: Objective, inputs: Inputs
) -> dict[str, NDArray[Any]]:
    """The arrays of a witness, as they are stored.

    Args:
        formats: of q, k and v.
        space, objective: what was searched.
        inputs: one candidate.

    Raises:
        UnsupportedError: a format that files do not hold.
    """

    def stored(values: NDArray[Any]) -> NDArray[Any]:
        return store(values.astype(np.float64), formats["v"])

    arrays: dict[str, NDArray[Any]] = {
        "scores": inputs.scores[0].astype(np.float32),
        "values": stored(inputs.values[0]),
    }
    if space.kind == "qkv":
        q, k = realised(inputs.scores, int(space.context.get("head_dim", 1)), formats, space.carry)
        arrays |= {"q": q, "k": k[0]}
    if space.base is not None:
        arrays["base_scores"] = space.base.scores[0].astype(np.float32)
        arrays["base_values"] = stored(space.base.values[0])
    if objective.projection is not None:
        arrays["projection"] = objective.projection.astype(np.float64)
    for name, array in arrays.items():
        if array.dtype not in _KINDS.values():
            raise UnsupportedError(f"arrays of {array.dtype}", place=name, remedy="files do not hold them")
    return arrays


def shapes_of(record: Record) -> dict[str, tuple[int, ...]]:
    """The arrays that the file must hold."""
    n, dims = record.space.kv_len, record.space.dims
    found: dict[str, tuple[int, ...]] = {"scores": (n,), "values": (n, dims)}
    if record.space.kind == "qkv":
        length = record.space.context.get("head_dim", 1)
        elements = length if isinstance(length, int) and 0 < length <= 1 << 16 else 1
        found |= {"q": (elements,), "k": (n, elements)}
    if record.space.base:
        found |= {"base_scores": (n,), "base_values": (n, dims)}
    if record.objective.vocabulary is not None:
        found["projection"] = (record.objective.vocabulary, dims)
    return found


def pack(arrays: Arrays) -> bytes:
    """Arrays as a safetensors file."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())})


def unpack(data: bytes, record: Record, place: str) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, which must be those of ``record``.

    Raises:
        InputError: damaged, or others.
    """
    from safetensors import SafetensorError, deserialize

    shapes = shapes_of(record)
    if len(data) > 8 * sum(map(math.prod, shapes.values())) + _HEADER:
        raise InputError(f"{len(data):,} bytes are too many", place=place, remedy=AGAIN)
    try:
        tensors = dict(deserialize(data))
    except (SafetensorError, ValueError, RecursionError, OverflowError) as error:
        raise InputError(f"truncated or damaged: {str(error)[:200]}", place=place, remedy=AGAIN) from None
    if tensors.keys() != shapes.keys():
        held = ", ".join(sorted(n[:40] for n in tensors))[:300]
        raise InputError(f"holds {held}", place=place, remedy=f"it must hold {', '.join(shapes)}")
    found: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        info: Any = tensors[name]
        kind = _KINDS.get(info["dtype"])
        fixed = {"scores": "F32", "base_scores": "F32", "projection": "F64"}.get(name, info["dtype"])
        if kind is None or kind.kind in "iu" or info["dtype"] != fixed or tuple(info["shape"]) != shape:
            raise InputError(
                f"is {str(info['dtype'])[:20]} {str(list(info['shape']))[:80]}",
                place=f"{place}: array '{name}'",
                remedy=f"it must be {fixed if fixed in _KINDS else 'a float'} {list(shape)}",
            )
        found[name] = np.frombuffer(bytes(info["data"]), dtype=kind).reshape(shape)
    return found
