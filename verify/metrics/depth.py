"""How a distance changes with depth, without mistaking the text for the depth.

Sequences leave as they end or part, and those that stay are often loops that every run predicts with certainty: a raw
curve over depth then falls though nothing changed. So every bin tells its rows and conversations, and each metric is
given by stratum of what the token cost (negative log-likelihood) or of the margin of the best token, too.

Bins are [0, 1), [1, 2), [2, 4), ..., [128, 256), [256, 512), ...: an edge at every power of two, as kernels change their
shapes there; 255 and 256 are never in one bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NLL_EDGES = (0.0, 0.001, 0.01, 0.1, 1.0)
MARGIN_EDGES = (0.0, 0.1, 1.0, 4.0)


@dataclass(frozen=True)
class Cell:
    """One metric in one bin, or in one stratum of it: finite values only."""

    n: int
    mean: float | None
    maximum: float | None
    error: float | None


@dataclass(frozen=True)
class Stratum:
    """Rows of a bin whose ``by`` is in [low, high) (None: no limit)."""

    by: str
    low: float
    high: float | None
    metrics: dict[str, Cell]


@dataclass(frozen=True)
class Bin:
    """Rows of one depth, or of one range.

    Attributes:
        name: as shown: "256-511", or the name of the range.
        low, high: depths, both included; None for a range.
        rows: how many are compared.
        conversations: how many have one.
        metrics: by name.
        strata: the same by what the token cost and by margin; only strata with rows.
    """

    name: str
    low: int | None
    high: int | None
    rows: int
    conversations: int
    metrics: dict[str, Cell]
    strata: tuple[Stratum, ...]


def depth_edges(largest: int) -> list[int]:
    """Lower edges 0, 1, 2, 4, ... up to the one at or below ``largest``."""
    edges = [0]
    edge = 1
    while edge <= largest:
        edges.append(edge)
        edge *= 2
    return edges


def cell(values: Floats) -> Cell:
    """Number, mean, maximum and standard error of the mean of the finite values."""
    values = values[np.isfinite(values)]
    if not values.size:
        return Cell(0, None, None, None)
    error = float(values.std() / np.sqrt(values.size - 1)) if values.size > 1 else None
    return Cell(int(values.size), float(values.mean()), float(values.max()), error)


def by_depth(
    depths: Ints, groups: Ints, metrics: Mapping[str, Floats], strata: Mapping[str, Floats] | None = None
) -> tuple[Bin, ...]:
    """Metrics by depth.

    Args:
        depths: ``[rows]`` tokens before each row.
        groups: ``[rows]`` number of the conversation.
        metrics: ``[rows]`` each; what is not finite is left out.
        strata: ``[rows]`` each, named "nll" or "margin"; NaN is in no stratum.
    """
    if not depths.size:
        return ()
    edges = depth_edges(int(depths.max()))
    at = np.searchsorted(np.array(edges), depths, side="right") - 1
    found: list[Bin] = []
    for i, low in enumerate(edges):
        high = 0 if i == 0 else 2 * low - 1
        inside = at == i
        if inside.any():
            name = str(low) if low == high else f"{low}-{high}"
            found.append(_bin(name, (low, high), inside, groups, metrics, strata or {}))
    return tuple(found)


def by_name(
    names: NDArray[np.str_],
    groups: Ints,
    metrics: Mapping[str, Floats],
    strata: Mapping[str, Floats] | None = None,
) -> tuple[Bin, ...]:
    """Metrics by range of the workload: ``names [rows]``, in the order in which ranges first occur; "" is none."""
    known, first = np.unique(names, return_index=True)
    ordered = known[np.argsort(first)]
    return tuple(
        _bin(str(n), (None, None), names == n, groups, metrics, strata or {}) for n in ordered if n != ""
    )


def _bin(
    name: str,
    ends: tuple[int | None, int | None],
    inside: NDArray[np.bool_],
    groups: Ints,
    metrics: Mapping[str, Floats],
    strata: Mapping[str, Floats],
) -> Bin:
    layers: list[Stratum] = []
    for by, values in strata.items():
        edges = NLL_EDGES if by == "nll" else MARGIN_EDGES
        for i, low in enumerate(edges):
            high = edges[i + 1] if i + 1 < len(edges) else None
            with np.errstate(invalid="ignore"):
                rows = inside & (values >= low) & (values < (np.inf if high is None else high))
            if rows.any():
                layers.append(Stratum(by, low, high, {m: cell(x[rows]) for m, x in metrics.items()}))
    return Bin(
        name=name,
        low=ends[0],
        high=ends[1],
        rows=int(inside.sum()),
        conversations=len(np.unique(groups[inside])),
        metrics={m: cell(x[inside]) for m, x in metrics.items()},
        strata=tuple(layers),
    )
