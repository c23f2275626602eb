"""What a search maximises, and the constraint that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from search.evaluate import Outputs, continuous_index
from search.space import Inputs, Space
from specs.errors import InputError
from specs.formats import parse_format
from verify.numerics.ulp import MISMATCH, ulp_distance

Metric = Literal["ulp", "f32", "flips", "kl"]
Floats = NDArray[np.float64]
#: How far double precision may be off in the constraint, relative.
SLACK = 1e-11
#: Likewise where scores are products of q and K: they are a rounding away from what was asked.
SLACK_OF_PRODUCTS = 1e-5


@dataclass(frozen=True, eq=False)
class Objective:
    """What is maximised over a batch, for each candidate.

    Attributes:
        metric: ``ulp``: distance of the continuous indices before the last rounding. ``f32``: the same distance in
            f32. ``flips``: how far the logits of one side put another token first. ``kl``: the divergence of the
            distributions of tokens.
        projection: float64 ``[vocabulary, dim]``, logits = projection @ output; for ``flips`` and ``kl``.
        single: the side to be singled out (all others alike); None: the smallest distance of any two.
    """

    metric: Metric = "ulp"
    projection: Floats | None = None
    single: int | None = None

    def __post_init__(self) -> None:
        if (self.metric in ("flips", "kl")) != (self.projection is not None):
            raise InputError(
                f"the objective {self.metric} {'needs a' if self.projection is None else 'has no use for a'} projection",
                place="objective",
                remedy="give W [vocabulary, dim] with flips and kl, and with nothing else",
            )

    def gaps(self, outputs: Sequence[Outputs]) -> Floats:
        """The distance of each pair of sides, float64 ``[pair, candidate]``; the best column of V counts."""
        pairs = list(combinations(range(len(outputs)), 2))
        return np.stack([self._gap(outputs[i], outputs[j]) for i, j in pairs])

    def score(self, outputs: Sequence[Outputs]) -> Floats:
        """The objective, float64 ``[candidate]``; NaN nowhere: what cannot be measured is -inf."""
        gaps = self.gaps(outputs)
        pairs = list(combinations(range(len(outputs)), 2))
        if self.single is None:
            return gaps.min(axis=0)
        apart = np.array([self.single in pair for pair in pairs])
        alike = gaps[~apart].max(axis=0) if (~apart).any() else np.zeros(gaps.shape[1])
        return gaps[apart].min(axis=0) - alike

    def _gap(self, a: Outputs, b: Outputs) -> Floats:
        match self.metric:
            case "ulp":
                gap = np.abs(a.index - b.index).max(axis=1)
            case "f32":
                f32 = parse_format("f32")
                gap = np.abs(continuous_index(a.before, f32) - continuous_index(b.before, f32)).max(axis=1)
            case "flips":
                gap = self._flips(a, b)
            case "kl":
                gap = self._divergence(a, b)
        return np.where(np.isfinite(gap), gap, -np.inf)

    def _logits(self, side: Outputs) -> Floats:
        assert self.projection is not None
        return side.stored.astype(np.float64) @ self.projection.T

    def _flips(self, a: Outputs, b: Outputs) -> Floats:
        """What the top token of ``a`` loses against the best of the others in ``b``; above 0: the token flips."""
        x, y = self._logits(a), self._logits(b)
        top = x.argmax(axis=1)
        rows = np.arange(len(top))
        others = y.copy()
        others[rows, top] = -np.inf
        return others.max(axis=1) - y[rows, top]

    def _divergence(self, a: Outputs, b: Outputs) -> Floats:
        p, q = _log_softmax(self._logits(a)), _log_softmax(self._logits(b))
        return (np.exp(p) * (p - q)).sum(axis=1)


def _log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def integer_distances(outputs: Sequence[Outputs]) -> dict[tuple[int, int], NDArray[np.int64]]:
    """The integer ULP distance of the stored outputs, by pair of sides: int64 ``[candidate]``, the largest column.

    `verify.numerics.ulp.MISMATCH` where a NaN or infinity meets something else.
    """
    found: dict[tuple[int, int], NDArray[np.int64]] = {}
    for i, j in combinations(range(len(outputs)), 2):
        distance: Any = ulp_distance(outputs[i].stored, outputs[j].stored)
        found[i, j] = np.where((distance == MISMATCH).any(axis=1), MISMATCH, distance.max(axis=1))
    return found


def cancellation(inputs: Inputs) -> tuple[Floats, Floats]:
    """``|out|`` and the weighted mean of ``|v|``, in double precision: float64 ``[candidate, dim]`` each."""
    s = inputs.scores.astype(np.float64)
    with np.errstate(invalid="ignore"):
        w = np.exp(s - s.max(axis=1, keepdims=True))
    w = np.where(np.isfinite(w), w, 0.0)
    v = inputs.values.astype(np.float64)
    total = w.sum(axis=1)[:, None]
    total = np.where(total > 0, total, 1.0)
    out = np.abs(np.matmul(w[:, None, :], v)[:, 0]) / total
    mass = np.matmul(w[:, None, :], np.abs(v))[:, 0] / total
    return out, mass


def violation(inputs: Inputs, space: Space) -> Floats:
    """How far a candidate is from what the space asks, float64 ``[candidate]``; 0: feasible.

    The certificate decides with exact numbers; this is for the search, and errs on the safe side.
    """
    first = space.first if inputs.kv_len == space.kv_len else 0  # tokens of a target that was cut are seen
    seen = Inputs(inputs.scores[:, first:], inputs.values[:, first:])
    out, mass = cancellation(seen)
    c = space.cancellation
    same_sign = (seen.values >= 0).all(axis=1) | (seen.values <= 0).all(axis=1)
    slack = SLACK if space.kind == "scores" else SLACK_OF_PRODUCTS
    wanted = c * mass * (1 + slack)
    lack = np.where(same_sign, 0.0, np.maximum(0.0, wanted - out) / np.where(mass > 0, mass, 1.0))
    lack = np.where(mass > 0, lack, 1.0)  # nothing but zeros
    worst = lack.max(axis=1)
    boxed = np.maximum(
        np.where(np.isneginf(seen.scores), 0.0, np.abs(seen.scores)).max(axis=1) - space.score_box, 0.0
    )
    worst = np.maximum(worst, boxed)
    worst = np.maximum(worst, np.abs(inputs.values).max(axis=(1, 2)) - space.value_box)
    if not space.masks:
        worst = np.where(np.isneginf(seen.scores).any(axis=1), np.maximum(worst, 1.0), worst)
    if space.statistics is not None:
        worst = np.where(space.statistics.hold(seen), worst, np.maximum(worst, 1.0))
    base = space.base
    if base is not None and base.kv_len == inputs.kv_len:
        scores = inputs.scores != base.scores
        values = inputs.values != base.values
        fixed = sorted(space.fixed)
        moved = scores[:, fixed].any(axis=1) | values[:, fixed].any(axis=(1, 2))
        worst = np.where(moved, np.maximum(worst, 1.0), worst)
        if space.edits is not None:
            count = scores.sum(axis=1) + values.sum(axis=(1, 2))
            worst = np.maximum(worst, count - space.edits)
    return np.maximum(worst, 0.0)
