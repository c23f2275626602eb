"""What a difference looks like when it is no difference of arithmetic: faults of captures that are known to happen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LN2 = 0.6931471805599453
_MOST = 4096
"""Rows up to which permutations are looked for."""


def hint(want: NDArray[Any], got: NDArray[Any], array: str) -> str:
    """A likely cause that is not arithmetic, in a sentence; empty where none shows.

    Args:
        want: captured, ``[q_len, q_heads, ...]``. got: predicted, of the same shape.
        array: its name in the capture.
    """
    with np.errstate(invalid="ignore"):  # a captured NaN may be a signalling one
        w, g = want.astype(np.float64), got.astype(np.float64)
    if np.isnan(w).all() and not np.isnan(g).all():
        return f"{array} is NaN throughout: nothing was written there"
    rows = want.reshape(want.shape[0] * want.shape[1], -1)
    mine = got.reshape(rows.shape)
    if 1 < len(rows) <= _MOST and _permuted(rows, mine):
        return f"the rows of {array} are those that were predicted in another order: heads or queries are permuted"
    finite = np.isfinite(w) & np.isfinite(g)
    if array == "lse" and finite.any():
        for factor, text in (
            (LN2, "base 2, and base e is predicted"),
            (1 / LN2, "base e, and base 2 is predicted"),
        ):
            if np.allclose(w[finite] * factor, g[finite], rtol=1e-5, atol=1e-5):
                return f"lse looks like {text}"
    if finite.any() and np.abs(g[finite]).max() > 0:
        left, right = w[finite].ravel(), g[finite].ravel()
        size = float(np.linalg.norm(left) * np.linalg.norm(right))
        if size > 0 and left.size >= 8 and float(left @ right) / size < 0.9:
            return "this is not numerics: the two are not even alike (wrong inputs, layout or kernel?)"
    return ""


def _permuted(rows: NDArray[Any], mine: NDArray[Any]) -> bool:
    left, right = sorted(r.tobytes() for r in rows), sorted(r.tobytes() for r in mine)
    return left == right
