"""Which distance between runs a geometry is drawn in.

Each is a metric on runs that were compared on the same rows (symmetric, with the triangle inequality): the root mean square
is Euclidean; mean |d|, total variation and shares of differing elements are means of metrics; and so is the root of the
mean Jensen-Shannon divergence, whose root is one (Endres and Schindelin, "A new metric for probability distributions",
2003). KL divergence is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, did_you_mean
from verify.metrics.pairs import PairComparison

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A distance that adds over rows: the ratio of two sums of `PairComparison.sums`, or its root.

    ``source`` names the sums; "" for the largest difference, which does not add.
    """

    name: str
    title: str
    source: str
    root: bool = False

    def of(self, numerator: float, denominator: float) -> float | None:
        """The distance from its two sums, None without rows."""
        if denominator <= 0:
            return None
        return self.from_mean(numerator / denominator)

    def from_mean(self, mean: float | None) -> float | None:
        """The distance from the mean over rows of what is summed."""
        if mean is None or not isfinite(mean) or mean < 0:
            return None
        return sqrt(mean) if self.root else mean


MEASURES: dict[str, Measure] = {
    one.name: one
    for one in (
        Measure("rms", "root mean square difference of values", "mean_square", root=True),
        Measure("mean_abs", "mean absolute difference of values", "mean_abs"),
        Measure("max_abs", "largest difference of a value", ""),
        Measure("row_max", "mean over rows of the largest difference of a value", "max_abs"),
        Measure("logprob", "mean absolute difference of ln p of the token that followed", "abs_logprob"),
        Measure("js", "root of the mean Jensen-Shannon divergence", "js", root=True),
        Measure("tv", "mean total variation", "tv"),
        Measure("different", "share of elements that differ", "different"),
        Measure("flips", "share of rows whose best token differs", "flip"),
    )
}
#: In the order in which they are tried where none is asked for.
PREFERRED = ("rms", "logprob", "row_max")


def measure(name: str) -> Measure:
    """The distance of that name.

    Raises:
        InputError: there is none.
    """
    if name not in MEASURES:
        raise InputError(
            f"no distance is called '{name[:80]}'", place="--metric", remedy=did_you_mean(name, MEASURES)
        )
    return MEASURES[name]


def largest(pair: PairComparison) -> float | None:
    """The largest difference of all values that were compared, of whatever kind."""
    found = [part.max_abs for part in (pair.values, pair.chosen, pair.lists) if part is not None]
    known = [x for x in found if x is not None]
    return max(known) if known else None


def sums(pair: PairComparison, one: Measure) -> tuple[Floats, Floats] | None:
    """Numerators and denominators by conversation, in the order of ``pair.sums.names``; None where there are none."""
    return pair.sums.metrics.get(one.source) if one.source else None


def distance(pair: PairComparison, one: Measure) -> float | None:
    """The distance of a pair; None where it has none."""
    if not one.source:
        found = largest(pair)
        return found if found is not None and isfinite(found) else None
    both = sums(pair, one)
    return None if both is None else one.of(float(both[0].sum()), float(both[1].sum()))
