"""Every candidate's prediction against what was recorded, position by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import UlpscopeError
from verify.explain import bit_text, decimal
from verify.identify.candidates import Class
from verify.identify.likelihood import BEYOND, BINS, Distances, bin_of
from verify.identify.observations import Observation
from verify.identify.ranking import First, Refused
from verify.numerics.ulp import format_of, ulp_distance

Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """One site of one layer: ``elements`` compared, ``exact`` with equal bits, and how many in each of `bin_of`'s bins."""

    layer: int | None
    site: str
    elements: int
    exact: int
    bins: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Fit:
    """One class of candidates against the capture.

    Attributes:
        of: the class.
        elements, exact: how many numbers were compared, and how many have equal bits (NaN payloads aside).
        distances: ``[positions]``, see `verify.identify.likelihood`.
        first: the first element that differs, None if all agree.
        parts: the same by layer and site, in the order of the capture.
        refused: why the capture cannot be compared bit by bit, or nothing; the rest is then empty but for the outputs.
        outputs: predictions, ``[q_len, q_heads, head_dim]`` for each observation; lses likewise or None.
    """

    of: Class
    elements: int
    exact: int
    distances: Distances
    first: First | None
    outputs: tuple[Array, ...]
    lses: tuple[Array | None, ...]
    refused: str = ""
    parts: tuple[Part, ...] = ()


def fits(
    classes: Sequence[Class],
    observations: Sequence[Observation],
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[Fit], list[Refused]]:
    """Run every class on every observation.

    A candidate whose output format cannot hold the captured numbers is among both results.

    Args:
        progress: told the name of a class, and how many of how many are done.
    """
    found: list[Fit] = []
    refused: list[Refused] = []
    for done, of in enumerate(classes):
        if progress is not None:
            progress(of.name, done, len(classes))
        try:
            fit = _fit(of, observations)
        except UlpscopeError as error:
            refused.extend(Refused(member.name, error.cause) for member in of.members)
            continue
        found.append(fit)
        if fit.refused:
            refused.extend(Refused(member.name, fit.refused) for member in of.members)
    return found, refused


def _fit(of: Class, observations: Sequence[Observation]) -> Fit:
    outputs: list[Array] = []
    lses: list[Array | None] = []
    distances: list[Distances] = []
    elements = exact = 0
    first: First | None = None
    refused = ""
    bins: dict[tuple[int | None, str], NDArray[np.int64]] = {}
    for run, seen in zip(of.runs, observations, strict=True):
        result = run.result()
        run.known.clear()
        output = result.output.reshape(seen.out.shape)
        outputs.append(output)
        lses.append(result.lse)
        wanted = narrowed(seen.out, output.dtype)
        if wanted is None:
            refused = f"writes {output.dtype}, and the {seen.out.dtype} numbers of the capture are not of that format"
            continue
        pairs = [("output", wanted, output)]
        if seen.lse is not None and result.lse is not None and seen.lse.dtype == result.lse.dtype:
            pairs.append(("lse", seen.lse, result.lse.reshape(seen.lse.shape)))
        apart = np.zeros(seen.rows, np.int64)
        for site, want, got in pairs:
            d = distance(want, got)
            elements += d.size
            exact += int((d == 0).sum())
            apart = farther(apart, largest(d))
            counts = np.bincount(bin_of(d).reshape(-1), minlength=BINS)
            bins[seen.layer, site] = bins.get((seen.layer, site), 0) + counts
            if first is None and d.any():
                first = _first(seen, site, want, got, d)
        distances.append(apart)
    if refused:
        nothing = np.zeros(0, np.int64)
        return Fit(of, 0, 0, nothing, None, tuple(outputs), tuple(lses), refused)
    parts = tuple(
        Part(layer, site, int(n.sum()), int(n[0]), tuple(n.tolist())) for (layer, site), n in bins.items()
    )
    return Fit(
        of, elements, exact, np.concatenate(distances), first, tuple(outputs), tuple(lses), parts=parts
    )


def narrowed(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """``array`` in ``dtype`` where every number of it is held there exactly (a capture may store bf16 numbers as f32)."""
    if array.dtype == dtype:
        return array
    if array.dtype.itemsize < dtype.itemsize:
        return None
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    back = narrow.astype(array.dtype)
    return narrow if bool(((back == array) | (np.isnan(back) & np.isnan(array))).all()) else None


def distance(a: Array, b: Array) -> NDArray[np.int64]:
    """ULP distance of each element; zeros that differ in sign are 1 apart here, for their bits differ."""
    d = ulp_distance(a, b)
    odd = (d == 0) & (np.signbit(a) != np.signbit(b)) & ~np.isnan(a)
    return np.where(odd, 1, d)


def largest(d: NDArray[np.int64]) -> Distances:
    """The largest distance in each row; `BEYOND` if any is."""
    flat = d.reshape(len(d), -1)
    worst = flat.max(axis=1, initial=0)
    return np.where((flat == BEYOND).any(axis=1), BEYOND, worst)


def farther(a: Distances, b: Distances) -> Distances:
    """The larger distance of each pair, `BEYOND` being the largest."""
    return np.where((a == BEYOND) | (b == BEYOND), BEYOND, np.maximum(a, b))


def apart(a: Fit, b: Fit) -> NDArray[np.bool_]:
    """``[positions]``: whether two predictions differ in a bit of the output, or of the lse where both have one."""
    found: list[NDArray[np.bool_]] = []
    for i, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
        same = x.dtype == y.dtype
        differs = largest(distance(x, y)) != 0 if same else np.ones(len(x), np.bool_)
        p, q = a.lses[i], b.lses[i]
        if p is not None and q is not None and p.dtype == q.dtype:
            differs = differs | (largest(distance(p.reshape(len(x), -1), q.reshape(len(x), -1))) != 0)
        found.append(differs)
    return np.concatenate(found)


def _first(seen: Observation, site: str, want: Array, got: Array, d: NDArray[np.int64]) -> First:
    at = tuple(int(i) for i in np.argwhere(d != 0)[0])
    fmt = format_of(want.dtype)
    index: dict[str, int] = {"position": int(seen.positions[at[0]])}
    index |= dict(zip(("head", "dim"), at[1:], strict=False))
    return First(
        seen.name,
        site,
        index,
        f"{decimal(want[at], fmt)} ({bit_text(want[at], fmt)})",
        f"{decimal(got[at], fmt)} ({bit_text(got[at], fmt)})",
        seen.layer,
    )
