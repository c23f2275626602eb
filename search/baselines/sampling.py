"""Random search: independent candidates of several spreads and shares of negative values."""

from __future__ import annotations

import math

import numpy as np

from search.baselines.tracking import Tracker
from search.evolve import Found, Progress, mutate, random_inputs
from search.target import Target


def sample(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """The best of random candidates.

    Half of them have values of one sign, so that none is lost to a bound on cancellation. Where the space has an input to
    start from, they are random edits of it.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    tracker = Tracker(target, evaluations, wall, progress)
    while tracker.left > 0:
        batch = random_inputs(target, rng, min(tracker.batch, tracker.left))
        tracker.measure(batch if target.space.base is None else mutate(batch, target, rng, batch.count))
    return tracker.found()
