"""Whether what a layer stores belongs together: lse to q and k, and the output to q, k and v.

Has lse another base, or another order of rows or heads?

The log-sum-exp of ``q . k / sqrt(dim)`` is computed again in float64 (query row i sees the keys up to ``M - N + i``; then,
if that is not it, all keys) and compared within `NEAR`: far more than rounding moves it, far less than another row does.
Libraries have had both faults: a grouped-query swap that kept the old layout of lse, and an lse to base 2 where base e was
promised. And q, k and v that were rounded for storing are no longer those that the output was computed from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.runs.sequence import Attention

NEAR = 0.05
#: Elements of the matrix of scores of one layer, and rows or heads that are matched with one another, at most.
MOST_SCORES, MOST_ROWS = 1 << 26, 1024
#: Scores of one layer whose values are summed again.
MOST_SUMMED = 1 << 22
_LN2 = math.log(2.0)
Matrix = NDArray[np.float64]
#: Unit roundoff of the formats of an output.
_UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Finding:
    """What is wrong with an lse: in words, the first row where it shows, and whether it is sure."""

    cause: str
    row: int | None
    sure: bool


def check_lse(layer: Attention) -> Finding | None:
    """What is wrong with the lse of a layer; None where nothing is, or where q, k or lse is not stored.

    Too many scores are not computed: the last query rows are looked at, as many as fit.
    """
    if layer.q is None or layer.k is None or layer.lse is None:
        return None
    rows, heads, _ = layer.q.shape
    keys = layer.k.shape[0]
    if not rows or not keys or keys < rows or heads % layer.k.shape[1]:
        return None
    taken = max(1, min(rows, MOST_ROWS, MOST_SCORES // max(1, keys * heads)))
    stored = np.asarray(layer.lse[-taken:], np.float64)
    causal = expected(layer.q[-taken:], layer.k, causal=True)
    for want in (causal, expected(layer.q[-taken:], layer.k, causal=False)):
        found = _against(stored, want, rows - taken)
        if found is None or found.sure:
            return found
    off = np.abs(stored - causal)
    return Finding(
        f"is not that of q and k at scale 1/sqrt(dim): off by {np.nanmax(off):.3g}: another scale or mask?",
        rows - taken + int(np.argmax(np.nanmax(off, axis=1))),
        False,
    )


@dataclass(frozen=True)
class OutputCheck:
    """How far a stored output lies from exact attention of the stored q, k and v.

    Attributes:
        distance: the largest distance of an element. at: its (query row, head, column).
        possible: how far arithmetic in the output's format could put it.
        causal: whether a query row sees the keys up to its own; all keys otherwise.
    """

    distance: float
    at: tuple[int, int, int]
    possible: float
    causal: bool

    @property
    def computed_from_them(self) -> bool:
        """Whether the output may have been computed from these inputs."""
        return self.distance <= self.possible

    def text(self, layer: Attention) -> str:
        """The result as a sentence."""
        row, head, column = self.at
        size = f"the output of layer {layer.layer} lies up to {self.distance:.2g} from exact attention of the stored q, k, v"
        if self.computed_from_them:
            return size
        assert layer.out is not None
        certain = layer.lse is not None and check_lse(layer) is None
        return (
            f"{size} (row {row}, head {head}, column {column}), where {layer.out.dtype} arithmetic stays within "
            f"{self.possible:.2g}: it was not computed from these numbers; were they rounded when they were stored?"
            + ("" if certain else " Or has the kernel another scale, mask, softcap or sinks?")
        )


def check_out(layer: Attention) -> OutputCheck | None:
    """Whether a layer's output is a function of its q, k and v; None where one is missing or shapes do not fit.

    ``possible`` is a bound of the first order: every score has ``dim`` products of size up to the largest score, sums have
    a term for each key, and a weight, a partial result and the output are rounded to the output's format. Of too many scores
    the last query rows are looked at.
    """
    q, k, v, out = layer.q, layer.k, layer.v, layer.out
    if q is None or k is None or v is None or out is None or str(out.dtype) not in _UNITS:
        return None
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    if not rows or not keys or keys < rows or heads % kv_heads or out.shape[:2] != q.shape[:2]:
        return None
    if k.shape[:2] != v.shape[:2] or v.shape[2] != out.shape[2]:
        return None
    taken = max(1, min(rows, MOST_ROWS, MOST_SUMMED // max(1, keys * heads)))
    stored = np.asarray(out[-taken:], np.float64)
    if not np.isfinite(stored).all():
        return None
    narrow, wide = _UNITS[str(out.dtype)], _UNITS["float32"]
    found: list[OutputCheck] = []
    for causal in (True, False):
        want, score = attend(q[-taken:], k, v, causal=causal)
        if not np.isfinite(want).all():
            return None
        off = np.abs(stored - want)
        at = np.unravel_index(int(off.argmax()), off.shape)
        largest = float(np.abs(v.astype(np.float64)).max())
        possible = largest * (narrow * (4 + 2 * score) + wide * (2 * keys + 2 * dim * score + 8))
        row, head, column = (int(i) for i in at)
        found.append(OutputCheck(float(off[at]), (rows - taken + row, head, column), possible, causal))
    return min(found, key=lambda x: x.distance)


def attend(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], *, causal: bool
) -> tuple[NDArray[np.float64], float]:
    """Softmax attention in float64 at scale ``1 / sqrt(dim)``: ``[rows, heads, dim of v]``, and the largest ``|score|``."""
    out = np.empty((*q.shape[:2], v.shape[2]))
    most = 0.0
    for head, own, scores in _scores(q, k, causal=causal):
        most = max(most, float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0)))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ v[:, own].astype(np.float64) / weights.sum(axis=1, keepdims=True)
    return out, most


def expected(q: NDArray[Any], k: NDArray[Any], *, causal: bool) -> Matrix:
    """The log-sum-exp ``[rows, heads]``, in nats, of ``q [rows, heads, dim]`` and ``k [keys, kv_heads, dim]``."""
    out = np.empty(q.shape[:2])
    for head, _, scores in _scores(q, k, causal=causal):
        top = scores.max(axis=1, keepdims=True)
        out[:, head] = (top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))[:, 0]
    return out


def _scores(q: NDArray[Any], k: NDArray[Any], *, causal: bool) -> Iterator[tuple[int, int, Matrix]]:
    """(query head, its KV head, scores ``[rows, keys]``): -inf where a row does not see a key."""
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    visible = np.arange(keys) <= np.arange(keys - rows, keys)[:, None]
    for head in range(heads):
        own = head * kv_heads // heads
        scores = q[:, head].astype(np.float64) @ k[:, own].astype(np.float64).T / math.sqrt(dim)
        yield head, own, np.where(visible, scores, -np.inf) if causal else scores


def _against(stored: Matrix, want: Matrix, first: int) -> Finding | None:
    """None where ``stored`` is ``want``; else what it is, where that can be told."""
    if _share(stored, want) >= 0.99:
        return None
    for factor, words in (
        (_LN2, "is to base 2, the manifest says e"),
        (1 / _LN2, "is to base e, the manifest says 2"),
    ):
        if _share(stored * factor, want) >= 0.99:
            return Finding(words, None, True)
    for words, a, b in (("rows", stored, want), ("heads", stored.T, want.T)):
        order = _order(a, b)
        if order is not None:
            at = int(np.argmax(order != np.arange(len(order))))
            place = first + at if words == "rows" else None
            other = int(order[at]) + (first if words == "rows" else 0)
            moved = int((order != np.arange(len(order))).sum())
            here = first + at if words == "rows" else at
            return Finding(
                f"is permuted: {moved} {words} are those of others, the first {here}, which is that of {other}",
                place,
                True,
            )
    if stored.size >= 16 and np.ptp(want) > 100 * NEAR:
        ordered = np.sort(stored, axis=None), np.sort(want, axis=None)
        if _share(*ordered) >= 0.99:
            moved = int((np.abs(stored - want) > NEAR).sum())
            words = f"is permuted: it holds the values of q and k, {moved} of {stored.size} at other places: another layout?"
            return Finding(words, None, True)
    return Finding("differs", None, False)


def _share(a: Matrix, b: Matrix) -> float:
    return float((np.abs(a - b) <= NEAR).mean())


def _order(stored: Matrix, want: Matrix) -> NDArray[np.int64] | None:
    """Which row of ``want`` each of ``stored`` is, if that is a permutation; rows that stand where they should stay."""
    if len(stored) > MOST_ROWS or stored.shape[1] < 2:
        return None
    order = np.empty(len(stored), np.int64)
    for i, row in enumerate(stored):
        far = np.abs(want - row).max(axis=1)
        order[i] = i if far[i] <= NEAR else int(np.argmin(far))
        if far[order[i]] > NEAR:
            return None
    return order if len(set(order.tolist())) == len(order) else None
