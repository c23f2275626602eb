"""Distances where only the most likely tokens of each row were recorded.

With S the tokens that both rows have, and all others lumped in one:

- KL, JS and total variation of the lumped distributions are lower bounds of the true ones (data processing inequality);
- total variation and JS have upper bounds, as the part outside S adds at most (P + Q) / 2 and (P + Q) ln 2 / 2, with P and
  Q the probability that each run puts outside S; KL has none: nothing keeps a token that was not recorded from being
  arbitrarily unlikely.

Censored mass is the probability outside the recorded tokens of each run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.runs.sequence import UNKNOWN, Floats, Ints, Top

#: Per-row numbers of a pair of lists; see `compare_tops`.
TOP_FIELDS: tuple[str, ...] = (
    "shared",
    "listed_a",
    "listed_b",
    "max_abs",
    "sum_abs",
    "sum",
    "sum_squares",
    "clamped",
    "mass_a",
    "mass_b",
    "kl_low",
    "kl_reverse_low",
    "js_low",
    "js_high",
    "tv_low",
    "tv_high",
    "best_same",
    "a_best_in_b",
    "b_best_in_a",
)


@dataclass(frozen=True)
class TopRows:
    """Fields of `TOP_FIELDS` by name, ``[rows]``; ``differences``: a - b of every shared token of every row, in order.

    ``shared`` tokens with two ordinary values; ``listed_a`` and ``listed_b`` how many each has; ``clamped`` shared
    tokens of which a value stands for anything lower; ``best_same`` 1 or 0, NaN where not known; ``a_best_in_b`` the
    rank in b, from 0, of a's best token (the number of tokens listed where it is not among them).
    """

    fields: dict[str, Floats]
    differences: Floats


def keys_of(tops: tuple[Top, Top], rows: tuple[Ints, Ints]) -> tuple[Ints, Ints] | None:
    """Tokens of two lists as numbers that are equal where the tokens are: ids, or else texts; None where neither is known.

    `UNKNOWN` marks an empty place.
    """
    a, b = tops
    if (a.ids != UNKNOWN).any() and (b.ids != UNKNOWN).any():
        return a.ids[rows[0]], b.ids[rows[1]]
    if a.texts is None or b.texts is None:
        return None
    numbers: dict[str, int] = {}
    found: list[Ints] = []
    for top, at in ((a, rows[0]), (b, rows[1])):
        assert top.texts is not None
        keys = np.full((len(at), top.values.shape[1]), UNKNOWN, np.int64)
        for i, row in enumerate(at):
            for j, text in enumerate(top.texts[row][: keys.shape[1]]):
                keys[i, j] = numbers.setdefault(text, len(numbers))
        found.append(keys)
    return found[0], found[1]


def compare_tops(
    keys: tuple[Ints, Ints],
    values: tuple[Floats, Floats],
    lse: tuple[Floats, Floats] | None,
    floors: tuple[float | None, float | None] = (None, None),
) -> TopRows:
    """Compare lists of the most likely tokens, row by row.

    Args:
        keys: ``[rows, K]`` each; `UNKNOWN` marks an empty place. A token that is there twice counts once.
        values: ``[rows, K]`` of the tokens; NaN where there is none.
        lse: ``[rows]`` each, subtracted to give log-probabilities (zeros where they are ones already), or None: then
            values are compared and nothing is said of distributions.
        floors: values at or below are clamped.
    """
    rows = len(keys[0])
    fields = {name: np.full(rows, np.nan) for name in TOP_FIELDS}
    differences: list[Floats] = []
    for i in range(rows):
        row = [_row(k[i], v[i]) for k, v in zip(keys, values, strict=True)]
        logs = None if lse is None else (float(lse[0][i]), float(lse[1][i]))
        differences.append(_pair(row[0], row[1], logs, floors, fields, i))
    return TopRows(fields, np.concatenate(differences) if differences else np.zeros(0))


def _row(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    """The tokens of a row, best first: each once, those without value left out."""
    use = np.flatnonzero((keys != UNKNOWN) & ~np.isnan(values))
    _, first = np.unique(keys[use], return_index=True)
    use = use[np.sort(first)]
    use = use[np.argsort(-values[use], kind="stable")]
    return keys[use], values[use]


def _pair(
    a: tuple[Ints, Floats],
    b: tuple[Ints, Floats],
    lse: tuple[float, float] | None,
    floors: tuple[float | None, float | None],
    out: dict[str, Floats],
    i: int,
) -> Floats:
    shared, in_a, in_b = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    x, y = a[1][in_a], b[1][in_b]
    usable = np.isfinite(x) & np.isfinite(y)
    clamped = np.zeros(len(shared), bool)
    for value, floor in ((x, floors[0]), (y, floors[1])):
        if floor is not None:
            clamped |= value <= floor
    usable &= ~clamped
    x, y = x[usable], y[usable]
    d = x - y
    out["shared"][i], out["listed_a"][i], out["listed_b"][i] = len(d), len(a[0]), len(b[0])
    out["clamped"][i] = np.count_nonzero(clamped)
    out["max_abs"][i] = np.abs(d).max() if d.size else np.nan
    out["sum_abs"][i], out["sum"][i], out["sum_squares"][i] = np.abs(d).sum(), d.sum(), (d * d).sum()
    if len(a[0]) and len(b[0]):
        out["best_same"][i] = float(a[0][0] == b[0][0])
        out["a_best_in_b"][i] = _rank(b, int(a[0][0]))
        out["b_best_in_a"][i] = _rank(a, int(b[0][0]))
    if lse is not None and np.isfinite(lse).all() and len(a[0]) and len(b[0]):
        _bounds(x - lse[0], y - lse[1], out, i)
        out["mass_a"][i] = max(0.0, 1 - float(np.exp(a[1] - lse[0]).sum()))
        out["mass_b"][i] = max(0.0, 1 - float(np.exp(b[1] - lse[1]).sum()))
    return d


def _rank(row: tuple[Ints, Floats], key: int) -> int:
    """How many values of a row are larger than that of ``key``; the length of the row where it is not listed."""
    at = np.flatnonzero(row[0] == key)
    return int(np.count_nonzero(row[1] > row[1][at[0]])) if at.size else len(row[0])


def _bounds(la: Floats, lb: Floats, out: dict[str, Floats], i: int) -> None:
    """Bounds from the log-probabilities of the shared tokens."""
    p, q = np.exp(la), np.exp(lb)
    rest_p, rest_q = max(0.0, 1 - float(p.sum())), max(0.0, 1 - float(q.sum()))
    out["kl_low"][i] = max(0.0, float((p * (la - lb)).sum()) + _term(rest_p, rest_q))
    out["kl_reverse_low"][i] = max(0.0, float((q * (lb - la)).sum()) + _term(rest_q, rest_p))
    middle = (rest_p + rest_q) / 2
    near = 0.5 * float((p * (la - np.log((p + q) / 2)) + q * (lb - np.log((p + q) / 2))).sum())
    far = 0.5 * (_term(rest_p, middle) + _term(rest_q, middle))
    out["js_low"][i], out["js_high"][i] = max(0.0, near + far), max(0.0, near + middle * np.log(2.0))
    apart = float(np.abs(p - q).sum()) / 2
    out["tv_low"][i], out["tv_high"][i] = apart + abs(rest_p - rest_q) / 2, min(1.0, apart + middle)


def _term(p: float, q: float) -> float:
    """``p ln(p / q)``; nothing where p is 0 or q is (rounded to) 0."""
    return p * float(np.log(p / q)) if p > 0 and q > 0 else 0.0


def masses(values: NDArray[np.float64], lse: NDArray[np.float64]) -> Floats:
    """``[rows]`` sum of the probabilities of the listed tokens: above 1 it is no distribution."""
    with np.errstate(over="ignore"):
        return np.nansum(np.exp(values - lse[:, None]), axis=1)
