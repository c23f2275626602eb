"""Arrays from the outside, checked and brought into one shape: rows that share a KV head lie together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, UnsupportedError
from specs.formats import BASES, Format
from verify.numerics.rounding import storage_dtype, store

Floats = NDArray[Any]
_FLOATS: dict[np.dtype[Any], Format] = {
    np.dtype(np.float64): BASES["f64"],
    np.dtype(np.float32): BASES["f32"],
    np.dtype(np.float16): BASES["f16"],
    np.dtype(ml_dtypes.bfloat16): BASES["bf16"],
    np.dtype(ml_dtypes.float8_e4m3fn): BASES["e4m3fn"],
    np.dtype(ml_dtypes.float8_e5m2): BASES["e5m2"],
}
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Problem:
    """One attention problem, for either walker.

    Attributes:
        heads: KV heads. ``rows``: query rows that share one KV head.
        shape: leading shape of the output as the caller sees it.
        q: ``[kv_head, row, depth]`` or None; ``k``: ``[token, kv_head, depth]`` or None.
        v: ``[token, kv_head, dim]``.
        scores: ``[kv_head, row, token]`` or None.
        formats: formats of ``q``, ``k``, ``v`` and ``scores`` as stored.
        low, high: int32 ``[row]``; row r sees the tokens ``low[r] <= t < high[r]``.
        scale: the softmax scale as a Python float.
        queries: query tokens (rows = queries * query heads per KV head where q is given).
        per_row: float64 ``[kv_head, row]`` by name, ``sink`` and ``slope``: see `verify.features`.
        softcap: the cap on scores; 0: none. ``k_scale``, ``v_scale``: what stored K and V are multiplied by.
    """

    heads: int
    rows: int
    shape: tuple[int, ...]
    q: Floats | None
    k: Floats | None
    v: Floats
    scores: Floats | None
    formats: Mapping[str, Format]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    scale: float
    queries: int
    per_row: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])
    softcap: float = 0.0
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def kv_len(self) -> int:
        """Tokens of the sequence."""
        return int(self.v.shape[0])

    @property
    def query_index(self) -> NDArray[np.int32]:
        """int32 ``[row]``: the number of each row's own token in the sequence."""
        query = np.arange(self.rows) // (self.rows // self.queries)
        return (query + (self.kv_len - self.queries)).astype(np.int32)

    def head_scalars(self, head: int, row: int) -> dict[str, float]:
        """The values of ``per_row`` for one row."""
        return {name: float(values[head, row]) for name, values in self.per_row.items()}

    def outward(self, data: Floats) -> Floats:
        """``[kv_head, row, ...]`` in the caller's order: ``[*shape, ...]``."""
        rest = data.shape[2:]
        if self.q is None:
            return data[0]
        group = self.rows // self.queries
        data = data.reshape(self.heads, self.queries, group, *rest)
        return np.moveaxis(data, 0, 1).reshape(*self.shape, *rest)


def floats(name: str, value: Any, ndim: tuple[int, ...]) -> Floats:
    """``value`` as a NumPy array of a known float dtype and one of the given numbers of dimensions.

    Raises:
        InputError: it is no such array.
    """
    place = f"argument {name}"
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            "a masked array, whose mask would be lost", place=place, remedy="fill it: masks are -inf scores"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"no array: {str(error)[:120]}", place=place, remedy="give a NumPy array of floats"
        ) from None
    if array.dtype not in _FLOATS:
        raise _wrong_dtype(array.dtype, place)
    if array.ndim not in ndim:
        wanted = " or ".join(str(n) for n in ndim)
        raise InputError(
            f"shape {array.shape} has {array.ndim} dimensions, not {wanted}",
            place=place,
            remedy="see the docstring of emulate()",
        )
    return array


def format_of(dtype: np.dtype[Any]) -> Format | None:
    """The format of an array's elements; None where inputs do not come in it."""
    return _FLOATS.get(dtype)


def _wrong_dtype(dtype: np.dtype[Any], place: str) -> InputError:
    taken = "float32, float64, float16, bfloat16, float8_e4m3fn or float8_e5m2"
    if not dtype.name.startswith(("float", "longdouble")):
        return InputError(
            f"dtype {dtype} is not a floating-point dtype",
            place=place,
            remedy="give float32, float64, float16 or an ml_dtypes type such as bfloat16",
        )
    if dtype.name.startswith("float8_"):
        return InputError(
            f"the 8-bit format {dtype} is not supported",
            place=place,
            remedy="of 8-bit formats, float8_e4m3fn and float8_e5m2 are",
        )
    return InputError(f"the format {dtype} is not supported", place=place, remedy=f"give {taken}")


def whole_number(value: Any, name: str) -> int:
    """``value`` as an int.

    Raises:
        InputError: it is no integer.
    """
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise InputError(
            f"{value!r} is not an integer", place=f"argument {name}", remedy="give whole numbers"
        ) from None


def _require_finite(name: str, array: Floats, *, masks: bool = False) -> None:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        bad = ~np.isfinite(part.astype(np.float32) if part.dtype.itemsize < 4 else part)
        if masks:
            bad &= ~np.isneginf(part)
        if bad.any():
            where = np.unravel_index(start + int(np.argmax(bad)), array.shape)
            value = float(array[where])
            what = "NaN and +inf are not scores; -inf masks a token" if masks else "inputs must be finite"
            raise InputError(
                f"{value} at index {tuple(int(i) for i in where)}", place=f"argument {name}", remedy=what
            )


def rounded(array: Floats, fmt: Format, *, keep_narrow: bool = False) -> Floats:
    """``array`` rounded once to ``fmt`` and stored in its dtype.

    With ``keep_narrow``, an array already in a 16-bit format stays as it is where ``fmt`` has 16 bits too: a
    kernel takes bf16 or f16 as it comes.
    """
    own = _FLOATS[array.dtype]
    target = storage_dtype(fmt)
    if keep_narrow and own.bits == 16 and fmt.bits == 16:
        return array
    plain = not (fmt.ftz or fmt.rz or fmt.sat)
    if plain and array.dtype == target:
        return array
    if plain and (fmt.holds(own) or (own.base == "f32" and fmt.base in ("bf16", "f16"))):
        with np.errstate(over="ignore"):
            return array.astype(target)
    flat = array.reshape(-1)
    parts = [store(flat[i : i + _CHUNK].astype(np.float64), fmt) for i in range(0, flat.size, _CHUNK)]
    return (np.concatenate(parts) if parts else np.zeros(0, target)).reshape(array.shape)


def _enter(
    name: str, array: Floats, inputs: Mapping[str, Format], accepts: Mapping[str, Sequence[str]]
) -> Floats:
    """An input as the kernel reads it: kept in a format that it accepts, else rounded once."""
    taken = accepts.get(name, ())
    own = _FLOATS[array.dtype]
    if not taken:
        return rounded(array, inputs[name], keep_narrow=name != "v")
    if own.base in taken:
        return array
    if own.bits < 32:
        raise UnsupportedError(
            f"the kernel takes no {name} in {own.base}",
            place=f"argument {name}",
            remedy=f"it takes {' and '.join(taken)}; float32 and float64 are rounded to {inputs[name].base} on entry",
        )
    return rounded(array, inputs[name])


def _visible(queries: int, repeat: int, kv_len: int, causal: bool, window: int) -> tuple[Any, Any]:
    position = np.repeat(np.arange(queries), repeat) + (kv_len - queries)
    high = np.clip(position + 1, 0, kv_len) if causal else np.full(position.shape, kv_len)
    low = np.clip(position + 1 - window, 0, kv_len) if window else np.zeros_like(position)
    return low.astype(np.int32), high.astype(np.int32)


def from_scores(
    scores: Any, values: Any, inputs: Mapping[str, Format], compute: Format, causal: bool, window: int
) -> Problem:
    """The problem of ready scores: ``scores [rows, kv_len]`` (or one row), ``values [kv_len, dim]`` (or one column).

    Raises:
        InputError: wrong shape, dtype or value.
    """
    s, v = floats("scores", scores, (1, 2)), floats("values", values, (1, 2))
    s = s[None] if s.ndim == 1 else s
    v = v[:, None] if v.ndim == 1 else v
    if s.shape[1] != v.shape[0]:
        raise InputError(
            f"scores have {s.shape[1]} tokens, values have {v.shape[0]}",
            place="argument values",
            remedy="scores are [rows, kv_len], values [kv_len, dim]",
        )
    if v.shape[1] == 0 or s.shape[0] == 0:
        raise InputError(
            f"scores {s.shape} and values {v.shape} have nothing to compute",
            place="argument scores",
            remedy="give at least one row and one column",
        )
    if causal and s.shape[0] > s.shape[1]:
        raise InputError(
            f"{s.shape[0]} rows but {s.shape[1]} tokens",
            place="argument causal",
            remedy="causal rows are the last tokens of the sequence",
        )
    _require_finite("scores", s, masks=True)
    _require_finite("values", v)
    exact = s.astype(storage_dtype(compute))
    if not np.array_equal(exact.astype(np.float64), s.astype(np.float64)):
        raise InputError(
            f"scores of dtype {s.dtype} are no values of {compute}",
            place="argument scores",
            remedy="round them yourself, as in scores.astype(np.float32)",
        )
    v = rounded(v, inputs["v"])
    _require_finite("values (after rounding on entry)", v)
    rows = s.shape[0]
    low, high = _visible(rows, 1, s.shape[1], causal, window)
    return Problem(
        heads=1,
        rows=rows,
        shape=(rows,),
        q=None,
        k=None,
        v=v[:, None, :],
        scores=exact[None],
        formats={"v": _FLOATS[v.dtype], "scores": compute},
        low=low,
        high=high,
        scale=1.0,
        queries=rows,
    )


def softmax_scale(scale: Any, depth: int, compute: Format) -> float:
    """The softmax scale: ``scale``, or ``depth ** -0.5`` where it is None.

    Raises:
        InputError: it is no finite number of the compute format.
    """
    if scale is None:
        return float(depth) ** -0.5
    try:
        factor = float(scale)
    except (TypeError, ValueError, OverflowError):
        factor = math.nan
    if not (math.isfinite(factor) and (compute.is_real or abs(factor) <= compute.largest)):
        raise InputError(
            f"scale = {str(scale)[:40]}", place="argument scale", remedy=f"give a finite number of {compute}"
        )
    return factor


def from_qkv(
    q: Any,
    k: Any,
    v: Any,
    inputs: Mapping[str, Format],
    scale: float | None,
    causal: bool,
    window: int,
    compute: Format = BASES["f64"],
    accepts: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Problem:
    """The problem of q ``[q_heads, head_dim]`` or ``[q_len, q_heads, head_dim]``, k and v ``[kv_len, kv_heads, head_dim]``.

    Args:
        inputs: formats that arrays are rounded to on entry.
        accepts: formats that the kernel takes as they come, by input (`specs.schema.Numbers`).

    Raises:
        InputError: wrong shape, dtype, ratio of heads or value.
        UnsupportedError: a narrow dtype that the kernel does not take.
    """
    query, key, value = floats("q", q, (2, 3)), floats("k", k, (3,)), floats("v", v, (3,))
    full = query[None] if query.ndim == 2 else query
    queries, q_heads, depth = full.shape
    kv_len, heads, key_depth = key.shape
    if key_depth != depth:
        raise InputError(
            f"q has head_dim {depth}, k has {key_depth}",
            place="argument k",
            remedy="k is [kv_len, kv_heads, head_dim]",
        )
    if value.shape[:2] != key.shape[:2]:
        raise InputError(
            f"k is {key.shape}, v is {value.shape}",
            place="argument v",
            remedy="v has the tokens and heads of k",
        )
    if 0 in (queries, q_heads, depth, heads, value.shape[2]):
        raise InputError(
            f"q {full.shape}, k {key.shape}, v {value.shape}: an axis is empty",
            place="argument q",
            remedy="only kv_len may be 0",
        )
    if q_heads % heads:
        raise InputError(
            f"{q_heads} query heads are not a multiple of {heads} KV heads",
            place="argument q",
            remedy="grouped-query attention gives every KV head the same number of query heads",
        )
    if causal and queries > kv_len:
        raise InputError(
            f"{queries} queries but {kv_len} tokens",
            place="argument causal",
            remedy="causal queries are the last tokens of the sequence",
        )
    for name, array in (("q", query), ("k", key), ("v", value)):
        _require_finite(name, array)
    factor = softmax_scale(scale, depth, compute)
    full = _enter("q", full, inputs, accepts)
    key = _enter("k", key, inputs, accepts)
    value = _enter("v", value, inputs, accepts)
    for name, array in (("q", full), ("k", key), ("v", value)):
        _require_finite(f"{name} (after rounding on entry)", array)
    group = q_heads // heads
    low, high = _visible(queries, group, kv_len, causal, window)
    rows = np.moveaxis(full.reshape(queries, heads, group, depth), 1, 0).reshape(
        heads, queries * group, depth
    )
    return Problem(
        heads=heads,
        rows=queries * group,
        shape=tuple(query.shape[:-1]),
        q=rows,
        k=key,
        v=value,
        scores=None,
        formats={"q": _FLOATS[full.dtype], "k": _FLOATS[key.dtype], "v": _FLOATS[value.dtype]},
        low=low,
        high=high,
        scale=factor,
        queries=queries,
    )


def query_rows(q: Any, like: Problem, fmt: Format) -> tuple[Floats, Format, tuple[int, ...]]:
    """One query token ``q [q_heads, head_dim]`` for the keys of ``like``.

    Returns:
        ``[kv_head, row, depth]``, the format it is stored in, and the leading shape of the output.

    Raises:
        InputError: it does not fit.
    """
    query = floats("q", q, (2,))
    assert like.k is not None
    depth = like.k.shape[2]
    if query.shape[1] != depth or query.shape[0] == 0 or query.shape[0] % like.heads:
        raise InputError(
            f"q is {query.shape} for {like.heads} KV heads of {depth}",
            place="argument q",
            remedy="q is [q_heads, head_dim], q_heads a multiple of kv_heads",
        )
    _require_finite("q", query)
    stored = rounded(query, fmt, keep_narrow=True)
    _require_finite("q (after rounding on entry)", stored)
    return stored.reshape(like.heads, -1, depth), _FLOATS[stored.dtype], (query.shape[0],)
