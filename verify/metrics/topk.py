"""Distances where only the most likely tokens of each row were recorded.

With S the tokens that both rows have, and all others lumped in one:

- KL, JS and total variation of the lumped distributions are lower bounds of the true ones (data processing inequality);
- total variation and JS have upper bounds, as the part outside S adds at most (P + Q) / 2 and (P + Q) ln 2 / 2, with P and
  Q the probability that each run puts outside S; KL has none: nothing keeps a token that was not recorded from being
  arbitrarily unlikely.

Censored mass is the probability outside the recorded tokens of each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verify.metrics.values import clamps_apart, impossible
from verify.runs.sequence import UNKNOWN, Floats, Ints, Top

_BLOCK = 1 << 21
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
    "clamp_mismatch",
    "impossible",
    "impossible_mismatch",
    "infinite",
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
    "lse_a",
    "lse_b",
)


@dataclass(frozen=True)
class TopRows:
    """Fields of `TOP_FIELDS` by name, ``[rows]``; ``differences``: a - b of every shared token of every row, in order.

    ``shared`` tokens with two ordinary values; ``listed_a`` and ``listed_b`` how many each has; ``clamped`` shared tokens
    of which a value stands for anything lower, ``clamp_mismatch`` those of which the other is above that floor,
    ``impossible`` those of which a log-probability is above 0, ``impossible_mismatch`` of them those that are not equal,
    ``infinite`` those with one infinity in both; ``best_same`` 1 or 0, NaN where not known; ``a_best_in_b`` the rank in b,
    from 0, of a's best token (the number of tokens listed where it is not among them); ``lse_a`` and ``lse_b`` the
    log-sum-exps where both were recorded.
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
    ceilings: tuple[float | None, float | None] = (None, None),
) -> TopRows:
    """Compare lists of the most likely tokens, row by row.

    Args:
        keys: ``[rows, K]`` each; `UNKNOWN` marks an empty place. A token that is there twice counts once.
        values: ``[rows, K]`` of the tokens; NaN where there is none.
        lse: ``[rows]`` each, subtracted to give log-probabilities (zeros where they are ones already), or None: then
            values are compared and nothing is said of distributions.
        floors: values at or below are clamped.
        ceilings: finite values above are impossible.
    """
    rows = len(keys[0])
    fields = {name: np.full(rows, np.nan) for name in TOP_FIELDS}
    differences: list[Floats] = []
    step = max(1, _BLOCK // max(1, keys[0].shape[1] * keys[1].shape[1]))
    for low in range(0, rows, step):
        at = slice(low, min(rows, low + step))
        sides = [_clean(k[at], v[at]) for k, v in zip(keys, values, strict=True)]
        logs = None if lse is None else (lse[0][at], lse[1][at])
        found, d = _block(sides[0], sides[1], logs, floors, ceilings)
        differences.append(d)
        for name, numbers in found.items():
            fields[name][at] = numbers
    return TopRows(fields, np.concatenate(differences) if differences else np.zeros(0))


def _clean(keys: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Lists in which each token is there once, with `UNKNOWN` and -infinity elsewhere."""
    keys = np.where(np.isnan(values), UNKNOWN, keys)
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, axis=1)
    again = np.zeros(keys.shape, bool)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    keys = np.where(again, UNKNOWN, keys)
    return keys, np.where(keys == UNKNOWN, -np.inf, values)


def unequal(fields: Mapping[str, Floats], slack: float = 0.0) -> NDArray[np.bool_]:
    """``[rows]`` whether two lists differ in a token or a value.

    Lists of two lengths, the same ones in all rows, were asked for so: what the shorter ones have is compared. Else a
    token that only one list has is a difference. ``slack``: as in `verify.metrics.values.slack_of`.
    """
    shared = np.nan_to_num(fields["shared"] + fields["clamped"] + fields["impossible"] + fields["infinite"])
    a, b = fields["listed_a"], fields["listed_b"]
    asked = a.size > 1 and np.ptp(a) == 0 and np.ptp(b) == 0 and min(a[0], b[0]) > 0
    apart = fields["max_abs"] > slack
    apart |= (fields["clamp_mismatch"] > 0) | (fields["impossible_mismatch"] > 0)
    with np.errstate(invalid="ignore"):
        apart |= np.abs(fields["lse_a"] - fields["lse_b"]) > 0
    return apart | (shared < (np.minimum(a, b) if asked else np.maximum(a, b)))


def _block(
    a: tuple[Ints, Floats],
    b: tuple[Ints, Floats],
    lse: tuple[Floats, Floats] | None,
    floors: tuple[float | None, float | None],
    ceilings: tuple[float | None, float | None],
) -> tuple[dict[str, Floats], Floats]:
    """`TOP_FIELDS` of some rows, and the differences in order."""
    n = len(a[0])
    listed = [(side[0] != UNKNOWN).sum(axis=1) for side in (a, b)]
    if not a[0].shape[1] or not b[0].shape[1]:
        zero = np.zeros(n)
        return {
            "shared": zero,
            "clamped": zero,
            "clamp_mismatch": zero,
            "impossible": zero,
            "impossible_mismatch": zero,
            "infinite": zero,
            "listed_a": listed[0],
            "listed_b": listed[1],
        }, np.zeros(0)
    hit = (a[0][:, :, None] == b[0][:, None, :]) & (a[0] != UNKNOWN)[:, :, None]
    x, y = a[1], np.take_along_axis(b[1], hit.argmax(axis=2), axis=1)
    shared = hit.any(axis=2)
    clamped = np.zeros(shared.shape, bool)
    for value, floor in ((x, floors[0]), (y, floors[1])):
        if floor is not None:
            clamped |= shared & (value <= floor) & np.isfinite(value)
    infinite = shared & ~clamped & np.isinf(x) & (x == y)
    usable = shared & ~clamped & np.isfinite(x) & np.isfinite(y)
    none = usable & impossible(x, y, ceilings)
    usable &= ~none
    y0 = y
    x, y = np.where(usable, x, 0.0), np.where(usable, y, 0.0)
    d = x - y
    some = usable.any(axis=1)
    out: dict[str, Floats] = {
        "shared": usable.sum(axis=1),
        "listed_a": listed[0],
        "listed_b": listed[1],
        "clamped": clamped.sum(axis=1),
        "clamp_mismatch": (shared & clamps_apart(a[1], y0, floors)).sum(axis=1),
        "impossible": none.sum(axis=1),
        "impossible_mismatch": (none & (a[1] != y0)).sum(axis=1),
        "infinite": infinite.sum(axis=1),
        "max_abs": np.where(some, np.abs(d).max(axis=1), np.nan),
        "sum_abs": np.abs(d).sum(axis=1),
        "sum": d.sum(axis=1),
        "sum_squares": (d * d).sum(axis=1),
    }
    known = (listed[0] > 0) & (listed[1] > 0)
    best = [np.take_along_axis(side[0], side[1].argmax(axis=1)[:, None], axis=1) for side in (a, b)]
    out["best_same"] = np.where(known, best[0][:, 0] == best[1][:, 0], np.nan)
    out["a_best_in_b"] = np.where(known, _rank(b, best[0], listed[1]), np.nan)
    out["b_best_in_a"] = np.where(known, _rank(a, best[1], listed[0]), np.nan)
    if lse is not None:
        known &= np.isfinite(lse[0]) & np.isfinite(lse[1]) & ~none.any(axis=1)
        la, lb = x - lse[0][:, None], y - lse[1][:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            bounds = _bounds(la, lb, usable)
            for name, side, own in (("mass_a", a, lse[0]), ("mass_b", b, lse[1])):
                bounds[name] = np.maximum(0.0, 1 - np.exp(side[1] - own[:, None]).sum(axis=1))
        out |= {name: np.where(known, numbers, np.nan) for name, numbers in bounds.items()}
    return out, d[usable]


def _rank(side: tuple[Ints, Floats], token: Ints, listed: Ints) -> Ints:
    """How many values of each row exceed that of ``token [rows, 1]``; the length of the list where it is not in it."""
    hit = side[0] == token
    value = np.where(hit, side[1], -np.inf).max(axis=1)
    larger = (side[1] > value[:, None]).sum(axis=1)
    return np.where(hit.any(axis=1), larger, listed)


def _bounds(la: Floats, lb: Floats, usable: NDArray[np.bool_]) -> dict[str, Floats]:
    """Bounds from the log-probabilities of the shared tokens, ``[rows, K]``."""
    p, q = np.where(usable, np.exp(la), 0.0), np.where(usable, np.exp(lb), 0.0)
    rest_p, rest_q = (np.maximum(0.0, 1 - z.sum(axis=1)) for z in (p, q))
    middle = (rest_p + rest_q) / 2
    mean = np.log(np.where(p + q > 0, (p + q) / 2, 1.0))
    t = np.where(usable, la - lb, 0.0)
    near = 0.5 * np.where(usable, p * (la - mean) + q * (lb - mean), 0.0).sum(axis=1)
    far = 0.5 * (_term(rest_p, middle) + _term(rest_q, middle))
    apart = np.abs(p - q).sum(axis=1) / 2
    return {
        "kl_low": np.maximum(0.0, (p * t).sum(axis=1) + _term(rest_p, rest_q)),
        "kl_reverse_low": np.maximum(0.0, -(q * t).sum(axis=1) + _term(rest_q, rest_p)),
        "js_low": np.maximum(0.0, near + far),
        "js_high": np.maximum(0.0, near + middle * np.log(2.0)),
        "tv_low": apart + np.abs(rest_p - rest_q) / 2,
        "tv_high": np.minimum(1.0, apart + middle),
    }


def _term(p: Floats, q: Floats) -> Floats:
    """``p ln(p / q)``; nothing where p is 0 or q is (rounded to) 0."""
    use = (p > 0) & (q > 0)
    return np.where(use, p * np.log(np.where(use, p, 1.0) / np.where(use, q, 1.0)), 0.0)


def masses(values: NDArray[np.float64], lse: NDArray[np.float64]) -> Floats:
    """``[rows]`` sum of the probabilities of the listed tokens: above 1 it is no distribution."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.nansum(np.exp(values - lse[:, None]), axis=1)
