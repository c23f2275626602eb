"""Bit-precise SMT: the whole computation as solver terms, for a handful of tokens."""

from __future__ import annotations

import math
import time

from search.baselines.tracking import Tracker, no_base
from search.bitprecise import MAX_TOKENS, find
from search.evolve import Found, Progress
from search.space import Inputs
from search.target import Target
from specs.errors import UnsupportedError


def bit_precise(
    target: Target, *, seed: int, evaluations: int, wall: float = math.inf, progress: Progress | None = None
) -> Found:
    """The largest k for which the solver finds scores and values whose stored outputs are k apart, from 1 upwards.

    Scores are free over a few levels, values over the significands of [1, 2) and 0. Each query counts as one evaluation;
    the seed has no effect.

    Raises:
        UnsupportedError: too many tokens for it, more than two sides, a construct without an encoding, or a space with an
            input to start from.
    """
    no_base(target, "bit-precise SMT")
    space = target.space
    if space.kv_len > MAX_TOKENS or len(target.sides) != 2 or space.dims != 1:
        raise UnsupportedError(
            f"bit-precise SMT on {space.kv_len} tokens, {len(target.sides)} sides, {space.dims} columns",
            place="method",
            remedy=f"it takes two sides, one column and at most {MAX_TOKENS} tokens",
        )
    tracker = Tracker(target, evaluations, wall, progress)
    a, b = target.sides
    k = 1
    while tracker.left > 0:
        seconds = min(60.0, wall - (time.monotonic() - tracker.begin))
        found = find(
            a,
            b,
            k,
            tokens=space.kv_len,
            context=dict(space.context),
            signed=space.cancellation < 1,
            seconds=max(1.0, seconds),
        )
        if found.status != "sat" or found.scores is None or found.values is None:
            tracker.cut = tracker.cut or found.status == "unknown"
            break
        tracker.measure(Inputs.one(found.scores, found.values))
        k = max(k, found.distance or 0) + 1
    return tracker.found()
