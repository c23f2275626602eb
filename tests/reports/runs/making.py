"""Runs for tests of reports: integer logits whose distances are known by construction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.verify.metrics import made
from verify.runs.run import Run

VOCAB = 64


def base(rows: int, seed: int = 0) -> Any:
    """Integer logits [rows, 64], far apart, so that small steps keep order and correlation."""
    rng = np.random.default_rng(seed)
    return (np.argsort(rng.random((rows, VOCAB)), axis=1) * 50 - 1600).astype(np.float32)


def pattern(number: int) -> Any:
    """One of 64 mutually orthogonal rows of +1 and -1 (Walsh functions); all but the first have mean 0."""
    return np.array([1 - 2 * ((number & j).bit_count() % 2) for j in range(VOCAB)], np.float32)


def moved(rows: int, *steps: tuple[int, float], seed: int = 0) -> Any:
    """`base` with ``size`` times a pattern added for each (number, size): sqrt(sum size^2) from `base` in RMS."""
    return base(rows, seed) + sum((size * pattern(n) for n, size in steps), np.zeros(VOCAB, np.float32))


def at(run: Run, **coordinate: Any) -> Run:
    """The run at another coordinate."""
    place = run.manifest.coordinate.model_copy(update=coordinate)
    return replace(run, manifest=run.manifest.model_copy(update={"coordinate": place}))


def triangle() -> tuple[Run, ...]:
    """a, b and c at the corners of a right triangle with legs 3 (a, b) and 4 (a, c); and d, which is a again."""
    values = {"a": (), "b": ((1, 3.0),), "c": ((2, 4.0),), "d": ()}
    return tuple(made.run(n, made.sequence(values=moved(4, *steps))) for n, steps in values.items())
