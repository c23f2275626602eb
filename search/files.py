"""Arrays that a search takes from files: an input to start from, and a projection to logits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.space import MAX_TOKENS, Inputs
from specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Rows of a projection, at most.
MAX_VOCABULARY = 1 << 18
#: The most that a file may have that a search reads.
MAX_FILE = 4 << 30


def read_base(file: str | Path) -> Inputs:
    """The input in a file: ``scores`` [token], or [1, token], and ``values`` [token] or [token, dim].

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    arrays = _arrays(file)
    if not {"scores", "values"} <= set(arrays):
        raise InputError(
            f"holds {', '.join(sorted(arrays)) or 'nothing'}",
            place=str(file),
            remedy="give scores [token] and values [token] or [token, dim]",
        )
    scores, values = (_numbers(arrays, name, file) for name in ("scores", "values"))
    scores = scores[0] if scores.ndim == 2 and scores.shape[0] == 1 else scores
    if scores.ndim != 1 or values.ndim not in (1, 2) or values.shape[0] != scores.shape[0] or not values.size:
        raise InputError(
            f"scores of shape {list(arrays['scores'].shape)} and values of shape {list(arrays['values'].shape)}",
            place=str(file),
            remedy="give scores [token] and values [token] or [token, dim], of one query and one KV head",
        )
    if np.isnan(scores).any() or (scores == np.inf).any() or not np.isfinite(values).all():
        raise InputError(
            "a score is NaN or +inf, or a value is not finite",
            place=str(file),
            remedy="give finite numbers; a score of -inf masks a token",
        )
    return Inputs.one(scores, values)


def read_projection(file: str | Path) -> NDArray[np.float64]:
    """W [vocabulary, dim], the only array of a file, whatever it is called.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    arrays = _arrays(file)
    if len(arrays) != 1:
        raise InputError(
            f"holds {len(arrays)} arrays: {', '.join(sorted(arrays))[:200]}",
            place=str(file),
            remedy="give one array W [vocabulary, dim]",
        )
    found = _numbers(arrays, next(iter(arrays)), file)
    if found.ndim != 2 or not found.size or found.shape[0] > MAX_VOCABULARY or found.shape[0] < 2:
        raise InputError(
            f"an array of shape {list(found.shape)}",
            place=str(file),
            remedy=f"give W [vocabulary, dim], with 2 to {MAX_VOCABULARY:,} rows",
        )
    if not np.isfinite(found).all():
        raise InputError("an element is not finite", place=str(file), remedy="give finite numbers")
    return found


def digest(file: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        InputError: it cannot be read, or has more than `MAX_FILE` bytes.
    """
    path = Path(file)
    try:
        if not path.is_file():
            raise InputError("no such file", place=str(file), remedy="check the path")
        if path.stat().st_size > MAX_FILE:
            raise InputError(
                f"has {path.stat().st_size:,} bytes", place=str(file), remedy=f"at most {MAX_FILE:,} are read"
            )
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}", place=str(file), remedy="check its permissions"
        ) from None


def token_numbers(text: str | None, place: str = "--fixed") -> frozenset[int]:
    """Numbers and ranges, such as ``0-15,40``.

    Raises:
        InputError: it is something else, or a number of no token.
    """
    out: set[int] = set()
    for part in (text or "").split(","):
        first, sign, last = part.strip().partition("-")
        if not part.strip():
            continue
        good = first.isdecimal() and (last.isdecimal() if sign else True) and len(first) < 8 > len(last)
        low, high = (int(first), int(last or first)) if good else (0, -1)
        if not low <= high < MAX_TOKENS:
            raise InputError(f"'{part[:40]}' is no token or range", place=place, remedy="write 0-15,40")
        out |= set(range(low, high + 1))
    return frozenset(out)


def _arrays(file: str | Path) -> Mapping[str, NDArray[Any]]:
    from verify.files import read_arrays

    found = read_arrays(file)
    named = str(found["dtype"]) if "dtype" in found else ""
    return {
        name: _bfloat16(array)
        if array.dtype == np.uint16 and named in ("bfloat16", "bf16", "BF16")
        else array
        for name, array in found.items()
        if name != "dtype"
    }


def _bfloat16(array: NDArray[Any]) -> NDArray[Any]:
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


def _numbers(arrays: Mapping[str, NDArray[Any]], name: str, file: str | Path) -> NDArray[np.float64]:
    array = arrays[name]
    # ml_dtypes' types are of kind V and have a name.
    if array.dtype.kind not in "fiu" and not array.dtype.name.startswith(("bfloat16", "float8")):
        raise InputError(f"dtype {array.dtype}", place=f"{file}: array '{name[:60]}'", remedy="give numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float64)
