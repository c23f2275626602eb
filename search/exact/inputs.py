"""The arrays of a certificate as one exact row, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search.exact.dyadic import INF, NAN, from_float
from search.exact.products import exact_scores
from search.exact.replay import Row
from specs.errors import InputError


def row_of(
    context: Mapping[str, Any],
    scores: ArrayLike | None = None,
    values: ArrayLike | None = None,
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    scale: float | None = None,
    row: int = 0,
) -> Row:
    """One query row from ``scores`` and ``values``, or from ``q``, ``k`` and ``v``.

    Args:
        context: what formulas see; ``causal`` and ``window`` mask as they do in the emulator.
        scores: ``[token]``, scaled; -inf masks.
        values: ``[token]`` or ``[token, dim]``.
        q: ``[depth]``, the last query of the sequence; or ``[row, depth]``, that query in every head of one KV head.
        k: ``[token, depth]``. v: ``[token]`` or ``[token, dim]``.
        scale: the softmax scale, taken as the double that it is; by default ``depth ** -0.5``.
        row: which of the rows of ``q``. A spec that computes rows together sees all of them.

    Raises:
        InputError: not one of the two, a wrong shape, or a number that is not finite.
    """
    ready = scores is not None or values is not None
    named: dict[str, Any] = {"scores": scores, "values": values} if ready else {"q": q, "k": k, "v": v}
    rest = (q, k, v) if ready else (scores, values)
    if any(x is None for x in named.values()) or any(x is not None for x in rest):
        raise InputError(
            "give scores and values, or q, k and v", place="arguments", remedy="not a mixture of the two"
        )
    arrays = {name: _floats(name, x) for name, x in named.items()}
    v_ = arrays["values" if ready else "v"]
    v_ = v_[:, None] if v_.ndim == 1 else v_
    lead = arrays["scores" if ready else "k"]
    if v_.ndim != 2 or lead.ndim != (1 if ready else 2) or len(lead) != len(v_) or not v_.size:
        raise InputError(
            f"values of shape {v_.shape} for {len(lead) if lead.ndim else 0} tokens",
            place="arguments",
            remedy="give one row: scores [token] or k [token, depth], values [token, dim]",
        )
    n = len(lead)
    if context.get("kv_len", n) != n:
        raise InputError(
            f"{n} tokens where the context says kv_len = {context['kv_len']}",
            place="context",
            remedy="leave kv_len out, or give that many tokens",
        )
    query = n - 1
    window = int(context.get("window") or 0)
    low, high = max(0, query + 1 - window) if window else 0, n
    columns = [[from_float(x) for x in column] for column in v_.T.tolist()]
    if ready:
        seen = lead.copy()
        seen[:low] = -np.inf
        exact = [from_float(x) for x in seen.tolist()]
        if any(x in (INF, NAN) for x in set(exact)):
            raise InputError("a score is NaN or +inf", place="scores", remedy="give scores below infinity")
        return Row(exact, columns, v_, None, None, (), 1.0, low, high, query)
    queries = np.atleast_2d(arrays["q"])
    if (
        queries.ndim != 2
        or lead.shape[1] != queries.shape[1]
        or not queries.size
        or not 0 <= row < len(queries)
    ):
        raise InputError(
            f"row {row} of q of shape {arrays['q'].shape}, and k of shape {lead.shape}",
            place="q",
            remedy="give q [depth] or [row, depth], and k [token, depth]",
        )
    mates = tuple(queries)
    own = mates[row]
    factor = float(len(own)) ** -0.5 if scale is None else float(scale)
    if not math.isfinite(factor):
        raise InputError(f"scale = {factor}", place="scale", remedy="give a finite number")
    exact = exact_scores(own, lead, from_float(factor), low, high)
    return Row(exact, columns, v_, own, lead, mates, factor, low, high, query)


def _floats(name: str, x: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(x)
        found = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("no array of numbers", place=f"argument {name}", remedy="give floats") from None
    if array.dtype.kind == "c" or found.ndim == 0:
        raise InputError(
            f"an array of {array.dtype} of shape {array.shape}",
            place=f"argument {name}",
            remedy="give floats",
        )
    if name != "scores" and not np.isfinite(found).all():
        raise InputError("an element is not finite", place=f"argument {name}", remedy="give finite numbers")
    return found
