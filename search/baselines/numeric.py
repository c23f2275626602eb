"""Numeric baselines: separable CMA-ES, a search on the condition number, and evolution from scratch."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from search.baselines.tracking import SHORT, Tracker, no_base, stored
from search.evolve import Found, Progress, evolve, mutate, random_inputs
from search.objective import cancellation, violation
from search.space import Inputs
from search.target import Target
from specs.errors import UnsupportedError

#: Variables that separable CMA-ES is run on, at most.
MAX_VARIABLES = 1 << 16


def evolution(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """`search.evolve.evolve` from scratch: the search without constructed inputs."""
    long = target.space.kv_len > SHORT
    return evolve(
        target,
        None,
        seed=seed,
        evaluations=evaluations,
        wall=wall,
        parents=8 if long else 32,
        children=16 if long else 128,
        progress=progress,
    )


def sep_cma(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """Separable CMA-ES (the package ``cma``) on scores and values, restarted when it stops.

    Raises:
        UnsupportedError: ``cma`` is not installed, there are too many variables, or the space has an input to start from.
    """
    no_base(target, "sep-CMA-ES")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it wants matplotlib
            import cma
    except ImportError:
        raise UnsupportedError(
            "sep-CMA-ES needs the package cma", place="method", remedy="pip install 'ulpscope[cma]'"
        ) from None
    space = target.space
    size = space.kv_len * (1 + space.dims)
    if size > MAX_VARIABLES:
        raise UnsupportedError(
            f"sep-CMA-ES on {size:,} variables",
            place="method",
            remedy=f"it is run on at most {MAX_VARIABLES:,}: search fewer tokens",
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    tracker = Tracker(target, evaluations, wall, progress)
    box = np.full(size, space.value_box)
    box[: space.kv_len] = space.score_box
    while tracker.left > 0:
        start = random_inputs(target, rng, 1)
        x0 = np.concatenate([start.scores[0], start.values[0].reshape(-1)]).astype(np.float64)
        options = {
            "CMA_diagonal": True,
            "popsize": min(64, tracker.batch),
            "seed": int(rng.integers(1, 1 << 31)),
            "verbose": -9,
            "maxiter": 10_000,
        }
        library: Any = cma
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = library.CMAEvolutionStrategy(x0, 0.5, options)
            while tracker.left > 0 and not search.stop():
                asked = search.ask()
                points = np.clip(np.stack(asked), -box, box)
                values = points[:, space.kv_len :].reshape(len(points), space.kv_len, space.dims)
                inputs = Inputs(points[:, : space.kv_len].astype(np.float32), stored(values, target))
                key = tracker.measure(inputs).key
                if len(key) < len(asked):
                    break
                search.tell(asked, (-key).tolist())
    return tracker.found()


def condition(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """Hill climbing on the condition number ``sum w|v| / |sum w v|``, in the manner of searches for ill-conditioned inputs.

    The condition number is the exact answer's, no backend takes part in the climb; the objective is evaluated on the way.
    With a bound c on cancellation it ends at 1/c, so it says little at c = 1.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    tracker = Tracker(target, evaluations, wall, progress)
    parents = random_inputs(target, rng, 32)
    while tracker.left > 0:
        children = mutate(parents, target, rng, min(tracker.batch, tracker.left))
        tracker.measure(children)
        both = Inputs.join([parents, children])
        out, mass = cancellation(both)
        with np.errstate(divide="ignore", invalid="ignore"):
            number = (mass / out).max(axis=1)
        feasible = violation(both, target.space) <= 0
        number = np.where(np.isfinite(number) & feasible, number, 0.0)
        parents = both.pick(np.argsort(-number, kind="stable")[:32])
    return tracker.found()
