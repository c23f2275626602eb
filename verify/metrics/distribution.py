"""Distances between the next-token distributions of two runs.

Let p and q be the probabilities of the first and second run, and t = ln p - ln q = (a - b) - (lse_a - lse_b) for each
token. All f-divergences here are sums of p f(t):

    KL(p||q)    t + exp(-t) - 1          (the generalised form: its terms are never negative)
    KL(q||p)    1 - exp(-t) (1 + t)
    JS          ((1 - r) t / 2 - (1 + r) ln cosh(t / 2)) / 2    with r = exp(-t)
    chi2(p||q)  exp(t) - 2 + exp(-t)     = sum (p - q)^2 / q
    chi2(q||p)  (1 - r)^2                = sum (p - q)^2 / p

Where |t| <= `SMALL` the sum is taken by moments, sum p t^k for k = 2 .. 8, with the Taylor coefficients of f; the terms
left out are below 4e-8 of the result. Elements beyond are computed one by one with `expm1` and `log1p`. Total
variation is sum |p - q| / 2. Terms are float32 where 16 bits are stored, else float64; sums are float64. The
generalised form does not lose digits where runs are close: an error e of a log-sum-exp enters as e^2 / 2.
"""

from __future__ import annotations

from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.metrics.side import Scratch, Side, dots, total

Array = NDArray[Any]
Floats = NDArray[np.float64]

#: Per-row distances, in nats (total variation and chi2 have no unit).
DISTRIBUTION_FIELDS: tuple[str, ...] = ("kl", "kl_reverse", "js", "tv", "chi2", "chi2_reverse")
SMALL = 0.25
#: Where no |t| is larger, moments up to t^6 do.
TINY = 1 / 16
_TERMS = 8


def _series() -> NDArray[np.float64]:
    """Coefficients of t^2 .. t^8 of the five f, one row each, in the order of `DISTRIBUTION_FIELDS` without "tv"."""
    degree = range(_TERMS + 1)
    exp = [Fraction((-1) ** k, factorial(k)) for k in degree]  # exp(-t)
    cosh = [Fraction(1, factorial(k) * 2**k) if k % 2 == 0 else Fraction(0) for k in degree]  # cosh(t / 2)
    log: list[Fraction] = [Fraction(0)]  # its logarithm: k l_k = k c_k - sum j l_j c_{k-j}
    for k in range(1, _TERMS + 1):
        log.append(cosh[k] - sum((Fraction(j, k) * log[j] * cosh[k - j] for j in range(1, k)), Fraction(0)))

    def times(x: list[Fraction], y: list[Fraction]) -> list[Fraction]:
        return [sum((x[j] * y[k - j] for j in range(k + 1)), Fraction(0)) for k in degree]

    one = [Fraction(int(k == 0)) for k in degree]
    t = [Fraction(int(k == 1)) for k in degree]
    less = [x - y for x, y in zip(one, exp, strict=True)]
    more = [x + y for x, y in zip(one, exp, strict=True)]
    kl = [x - y for x, y in zip(t, less, strict=True)]
    back = [x - y for x, y in zip(less, times(t, exp), strict=True)]
    js = [(x / 2 - y) / 2 for x, y in zip(times(less, t), times(more, log), strict=True)]
    chi2 = [Fraction(2, factorial(k)) if k % 2 == 0 and k else Fraction(0) for k in degree]
    rows = [kl, back, js, chi2, times(less, less)]
    return np.array([[float(c) for c in row[2:]] for row in rows])


_COEFFICIENTS = _series()
_NAMES = tuple(name for name in DISTRIBUTION_FIELDS if name != "tv")


def add_distributions(
    a: Side, b: Side, rows: slice, columns: slice, signed: Array, out: dict[str, Floats], scratch: Scratch
) -> None:
    """Add a rectangle to the distances of its rows.

    Args:
        a: one run's block, without NaN, infinities or clamped values in ``rows``.
        b: the other's.
        rows: within the block.
        columns: of the vocabulary.
        signed: a - b of the rectangle, in scratch memory that is written over.
        out: ``[rows]`` of `DISTRIBUTION_FIELDS`, added to.
        scratch: the thread's.
    """
    shape, kind = signed.shape, np.result_type(signed.dtype, a.powers.dtype, b.powers.dtype)
    shift = a.rows["lse"][rows] - b.rows["lse"][rows]

    def take(name: str) -> Array:  # names of `add_values`: fewer arrays stay in the cache
        return scratch.get(name, shape, kind)

    fast = kind == np.float32
    one, two = a.powers[rows, columns], b.powers[rows, columns]
    scale_a, scale_b = a.scale[rows], b.scale[rows]
    t = np.subtract(signed, shift.astype(kind)[:, None], out=take("signed"))
    with np.errstate(over="ignore"):  # beyond `SMALL` all the same
        square = np.multiply(t, t, out=take("d"))
    reach = float(square.max())
    if reach > SMALL * SMALL:
        large = square > SMALL * SMALL
        where, _ = np.nonzero(large)
        p, q = one[large] * scale_a[where], two[large] * scale_b[where]
        terms = exactly(p, q, t[large].astype(np.float64))
        for name in _NAMES:
            out[name] += np.bincount(where, terms[name], minlength=shape[0])
        t[large] = 0
        square[large] = 0
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        apart = np.multiply(two, (scale_b / scale_a).astype(kind)[:, None], out=take("q"))
        np.subtract(one, apart, out=apart)
        np.abs(apart, out=apart)
        out["tv"] += total(apart, fast) * scale_a / 2
        moments = np.zeros((_TERMS - 1, shape[0]))
        cube = np.multiply(t, square, out=take("base"))
        weighted = np.multiply(one, cube, out=take("q"))
        moments[0], moments[1] = dots(one, square), dots(one, cube)
        moments[2], moments[3], moments[4] = dots(weighted, t), dots(weighted, square), dots(weighted, cube)
        if reach > TINY * TINY:
            np.multiply(weighted, square, out=weighted)
            moments[5], moments[6] = dots(weighted, square), dots(weighted, cube)
    for name, value in zip(_NAMES, _COEFFICIENTS @ moments * scale_a, strict=True):
        out[name] += value


def exactly(p: Floats, q: Floats, t: Floats) -> dict[str, Floats]:
    """The terms of each element, with ``t = ln p - ln q``, for any t; flat float64 arrays.

    The larger of p and q is taken as it is, and the other as its product with exp(-|t|).
    """
    s = np.abs(t)
    forward = t >= 0
    big = np.where(forward, p, q)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        less = np.expm1(-s)
        down = s + less  # KL of the larger against the smaller, over the larger
        up = -down - less * s
        ratio = np.exp(-s)
        half = np.where(
            s > 30, s / 2 - np.log(2.0), np.log1p(less * less / (4 * ratio)) / 2
        )  # ln cosh(s / 2)
        js = (-less * s / 2 - (1 + ratio) * half) / 2
        near = less * less
        far = np.where(big > 0, near / ratio, 0.0)
        terms = {
            "kl": np.where(forward, down, up),
            "kl_reverse": np.where(forward, up, down),
            "js": js,
            "chi2": np.where(forward, far, near),
            "chi2_reverse": np.where(forward, near, far),
        }
        return {name: np.where(big > 0, big * term, 0.0) for name, term in terms.items()}


def special_row(a: Side, b: Side, row: int, keep: NDArray[np.bool_], out: dict[str, Floats]) -> float:
    """Distances of a row in which some values are infinite or clamped; straightforward float64.

    Sums are over the tokens that have a difference (``keep``) and those that are impossible on both sides. A token that
    is impossible on one side only, or clamped, has no ratio: it is left out, and its probability is the result.

    Returns:
        The larger of the two probabilities left out; NaN where a row has NaN, +infinity or an impossible value: it has no
        distribution, and ``out`` becomes NaN.
    """
    fields = a.rows, b.rows
    none = not (a.valid[row] and b.valid[row])
    if none or any(
        f["nan"][row] or f["positive_infinity"][row] or not np.isfinite(f["lse"][row]) for f in fields
    ):
        for name in DISTRIBUTION_FIELDS:
            out[name][:] = np.nan
        return float("nan")
    p = a.powers[row].astype(np.float64) * a.scale[row]
    q = b.powers[row].astype(np.float64) * b.scale[row]
    wide = (side.values[row][keep].astype(np.float64) for side in (a, b))
    t = np.subtract(*wide) - (a.rows["lse"][row] - b.rows["lse"][row])
    for name, terms in exactly(p[keep], q[keep], t).items():
        out[name] += terms.sum()
    out["tv"] += np.abs(p - q).sum() / 2
    return float(max(p[~keep].sum(), q[~keep].sum()))
