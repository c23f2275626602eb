"""What every baseline keeps: the best so far, its budget, and when to stop."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from search.evolve import Found, Progress
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import UnsupportedError

#: Candidates of a batch, and up to how many tokens; longer sequences take smaller batches, so that wall time is kept.
BATCH, SHORT, LONG_BATCH = 128, 1024, 32


def no_base(target: Target, method: str) -> None:
    """Refuse a space of edits: for methods that draw every score and value anew.

    Raises:
        UnsupportedError: the space has an input to start from.
    """
    if target.space.base is not None:
        raise UnsupportedError(
            f"{method} cannot keep to an input that it starts from",
            place="method",
            remedy="use 'search', 'evolution', 'condition' or 'random'",
        )


def stored(values: NDArray[np.float64], target: Target) -> NDArray[np.float32]:
    """Values of the format of V; of one sign where c = 1, which nothing else satisfies."""
    return target.stored(np.abs(values) if target.space.cancellation == 1 else values)


class Tracker:
    """Measures batches within a budget and keeps the best feasible candidate.

    Args:
        target: what is searched for.
        evaluations: candidates that may be evaluated.
        wall: seconds that may pass.
        progress: called after each batch.
    """

    def __init__(self, target: Target, evaluations: int, wall: float, progress: Progress | None) -> None:
        self.target = target
        self.evaluations = evaluations
        self.wall = wall
        self.progress = progress
        self.batch = BATCH if target.space.kv_len <= SHORT else LONG_BATCH
        self.begin = time.monotonic()
        self.spent = 0
        self.best: Measured | None = None
        self.score = -math.inf
        self.cut = False

    @property
    def left(self) -> int:
        """Candidates that may still be evaluated: 0 where time is up."""
        if time.monotonic() - self.begin > self.wall:
            self.cut = self.cut or self.spent < self.evaluations
            return 0
        return self.evaluations - self.spent

    def measure(self, inputs: Inputs) -> Measured:
        """Evaluate a batch, cut to what the budget allows: at least one candidate."""
        batch = inputs.pick(slice(0, max(1, self.left)))
        measured = self.target.measure(batch)
        self.spent += batch.count
        feasible = np.where(measured.violation <= 0, measured.score, -math.inf)
        i = int(feasible.argmax())
        if feasible[i] > self.score:
            self.score, self.best = float(feasible[i]), measured.pick(i)
        if self.progress is not None:
            self.progress(self.spent, self.score)
        return measured

    def found(self) -> Found:
        """The best candidate; with an objective of -inf where none was feasible."""
        tokens = self.target.space.kv_len
        none = Inputs(
            np.zeros((1, tokens), np.float32), np.zeros((1, tokens, self.target.space.dims), np.float32)
        )
        inputs = none if self.best is None else self.best.inputs
        return Found(inputs, self.score, self.spent, self.cut, self.best)
