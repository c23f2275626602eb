"""Attention tensors of two runs: value distances by layer and tensor, and faults of the log-sum-exp.

A log-sum-exp of -infinity, or of +infinity as FlashAttention-2 writes it, belongs to a query that saw no key: it is
counted as empty, and equal on both sides it is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.metrics.health import LN2, Finding, find_permutation
from verify.numerics.ulp import UlpSummary, ulp_summary
from verify.runs.sequence import Sequence

Array = NDArray[Any]
TENSORS = ("q", "k", "v", "out", "lse")


@dataclass(frozen=True)
class TensorDistance:
    """One tensor of one layer in two runs.

    Attributes:
        layer, tensor: which.
        n: elements with two finite values.
        max_abs, mean_abs, rms: of a - b in float64; None where n is 0.
        cosine: of the two; None where undefined.
        ulp: in the stored dtype, None where the dtypes differ.
        empty: queries that saw no key in either run (lse only).
        nan_mismatch, inf_mismatch: elements that have no distance.
        finding: a cause that the numbers show: "permuted", "scale"; or why the tensor was not compared.
    """

    layer: int
    tensor: str
    n: int
    max_abs: float | None
    mean_abs: float | None
    rms: float | None
    cosine: float | None
    ulp: UlpSummary | None
    empty: int
    nan_mismatch: int
    inf_mismatch: int
    finding: Finding | None


def compare_attention(a: Sequence, b: Sequence, rows_a: Any, rows_b: Any) -> tuple[TensorDistance, ...]:
    """Compare the tensors that both sequences have, layer by layer.

    Args:
        a: one sequence.
        b: the other.
        rows_a: rows of ``a`` that are compared; of ``q``, ``out`` and ``lse``. Keys and values are compared whole.
        rows_b: their partners in ``b``.
    """
    others = {layer.layer: layer for layer in b.attention}
    found: list[TensorDistance] = []
    for layer in a.attention:
        other = others.get(layer.layer)
        if other is None:
            continue
        for name in TENSORS:
            x, y = getattr(layer, name), getattr(other, name)
            if x is None or y is None:
                continue
            if name in ("q", "out", "lse") and len(x) == a.rows and len(y) == b.rows:
                x, y = x[rows_a], y[rows_b]
            found.append(tensor_distance(layer.layer, name, x, y))
    return tuple(found)


def tensor_distance(layer: int, name: str, a: Array, b: Array) -> TensorDistance:
    """Compare one tensor of two runs, in any stored dtype; shapes must be equal, else the finding says they are not."""
    if a.shape != b.shape:
        finding = Finding("shape", "error", f"shapes differ: {list(a.shape)} and {list(b.shape)}")
        return TensorDistance(layer, name, 0, None, None, None, None, None, 0, 0, 0, finding)
    x, y = a.astype(np.float64), b.astype(np.float64)
    empty = np.isinf(x) & np.isinf(y) if name == "lse" else np.zeros(x.shape, bool)
    finite = np.isfinite(x) & np.isfinite(y)
    nan = np.isnan(x) ^ np.isnan(y)
    with np.errstate(invalid="ignore"):
        inf = (np.isinf(x) | np.isinf(y)) & (x != y) & ~nan & ~empty
    d = (x - y)[finite] if finite.all() else x[finite] - y[finite]
    size = float(np.sqrt(np.square(x[finite]).sum() * np.square(y[finite]).sum()))
    summary: UlpSummary | None = None
    if a.dtype == b.dtype:
        try:
            summary = ulp_summary(a, b)
        except InputError:
            summary = None
    return TensorDistance(
        layer=layer,
        tensor=name,
        n=int(d.size),
        max_abs=float(np.abs(d).max()) if d.size else None,
        mean_abs=float(np.abs(d).mean()) if d.size else None,
        rms=float(np.sqrt(np.mean(d * d))) if d.size else None,
        cosine=float((x[finite] * y[finite]).sum()) / size if size > 0 else None,
        ulp=summary,
        empty=int(empty.sum()),
        nan_mismatch=int(nan.sum()),
        inf_mismatch=int(inf.sum()),
        finding=_cause(name, x, y) if finite.all() else None,
    )


def _cause(name: str, x: Array, y: Array) -> Finding | None:
    """A permutation of rows or heads, or a log-sum-exp to base 2."""
    scale = float(np.std(x))
    if x.size < 4 or scale == 0 or float(np.abs(x - y).max()) < 0.01 * scale:
        return None
    if name == "lse":
        rows = x.reshape(-1), y.reshape(-1)
        factor = float(rows[0] @ rows[1]) / float(rows[0] @ rows[0])
        for value, base in ((1 / LN2, "the second"), (LN2, "the first")):
            if abs(factor / value - 1) < 0.01 and np.allclose(
                rows[0] * value, rows[1], rtol=0.01, atol=0.01 * scale
            ):
                return Finding("scale", "error", f"the log-sum-exp of {base} run is to base 2")
    views = {"rows": lambda z: z.reshape(len(z), -1)}
    if x.ndim > 1:
        views["heads"] = lambda z: np.moveaxis(z, 1, 0).reshape(z.shape[1], -1)
    if x.ndim == 2 and x.shape[0] * x.shape[1] <= 4096:
        views["elements"] = lambda z: z.reshape(-1, 1)
    for what, view in views.items():
        if find_permutation(view(x), view(y)) is not None:
            return Finding(
                "permuted", "error", f"{what} are permuted: the same numbers stand at other places"
            )
    return None
