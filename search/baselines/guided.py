"""Binary guided random testing, in the manner of S3FP: boxes of inputs, halved towards the better half.

A re-implementation of the idea of Chiang, Gopalakrishnan, Rakamaric and Solovyev, "Efficient search for inputs causing
high floating-point errors" (PPoPP 2014), on this objective; not their tool.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search.baselines.tracking import Tracker, no_base, stored
from search.evolve import Found, Progress
from search.space import Inputs
from search.target import Target

#: Halvings before a restart, and samples of each half.
DEPTH, SAMPLES = 24, 16

Box = tuple[NDArray[np.float64], NDArray[np.float64]]


def guided(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """The best candidate of guided sampling: a box is split at random, and the half with the better sample kept.

    Raises:
        UnsupportedError: the space has an input to start from.
    """
    no_base(target, "guided sampling")
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    tracker = Tracker(target, evaluations, wall, progress)
    space = target.space
    size = space.kv_len * (1 + space.dims)
    while tracker.left > 0:
        box = _first(target, rng, size)
        for _ in range(DEPTH):
            if tracker.left <= 0:
                break
            halves = _halves(box, rng)
            points = np.concatenate([rng.uniform(*half, size=(SAMPLES, size)) for half in halves])
            measured = tracker.measure(_inputs(points, target))
            keys = np.full(2 * SAMPLES, -np.inf)
            keys[: len(measured.key)] = measured.key
            box = halves[int(keys[:SAMPLES].max() < keys[SAMPLES:].max())]
    return tracker.found()


def _first(target: Target, rng: np.random.Generator, size: int) -> Box:
    """A box about scores of some spread and values of one sign or both."""
    space = target.space
    low, high = np.empty(size), np.empty(size)
    spread = min(space.score_box, float(rng.choice([1.0, 4.0, 20.0])))
    low[: space.kv_len], high[: space.kv_len] = -spread, spread
    largest = min(space.value_box, 2.0)
    low[space.kv_len :] = float(rng.choice([0.0, -0.25, -1.0])) * largest
    high[space.kv_len :] = largest
    return low, high


def _halves(box: Box, rng: np.random.Generator) -> tuple[Box, Box]:
    """Two boxes: each variable keeps its lower half in one and its upper half in the other."""
    low, high = box
    middle = (low + high) / 2
    up = rng.random(len(low)) < 0.5
    return (
        (np.where(up, middle, low), np.where(up, high, middle)),
        (np.where(up, low, middle), np.where(up, middle, high)),
    )


def _inputs(points: NDArray[np.float64], target: Target) -> Inputs:
    space = target.space
    values = points[:, space.kv_len :].reshape(len(points), space.kv_len, space.dims)
    return Inputs(points[:, : space.kv_len].astype(np.float32), stored(values, target))
