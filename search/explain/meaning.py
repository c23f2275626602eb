"""What a line means in real numbers, on a sample: few tokens, few elements, no rounding.

Two values of one name can be two quantities: a weight relative to the maximum of another group, a score before or after
it is scaled. Their distance says nothing about rounding, and is shown as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search.explain.pieces import Pieces, pieces_of
from search.explain.reals import CLOSE, RealArithmetic
from specs.errors import UlpscopeError
from specs.formats import BASES
from specs.names import SCALARS
from specs.program import DIM
from verify.arguments import Problem
from verify.definition import Walker
from verify.emulator import Run
from verify.judge import row_inputs
from verify.partition import plan_program

#: Tokens of a sample, at least (up to so many doublings), and elements of its heads.
TOKENS, DOUBLINGS, DEPTH = 600, 5, 32
SEED = 20240609


def sample_tokens(runs: Sequence[Run]) -> int:
    """How many tokens a sample has: so many that every side has more than one group, if it has more than one at all."""
    whole = runs[0].problem.kv_len
    n = TOKENS
    for _ in range(DOUBLINGS):
        if n >= whole or all(_groups(run, n) > 1 for run in runs if _groups(run, whole) > 1):
            break
        n *= 2
    return min(n, whole)


def _groups(run: Run, tokens: int) -> int:
    """Groups that own a token, of a sequence of so many."""
    plan = run.plan
    if tokens != plan.kv_len:
        plan = plan_program(run.program, {**plan.context, "kv_len": tokens})
    return sum(len(group.tokens) > 0 for group in plan.groups)


def sample_of(problem: Problem, n: int) -> Problem:
    """One row of ``n`` tokens and few elements, of numbers that every input format has."""
    rng = np.random.default_rng(SEED)
    v = rng.integers(-8, 9, (n, 1, min(problem.v.shape[-1], DEPTH))) / 8.0
    q = k = scores = None
    if problem.q is not None:
        depth = min(problem.q.shape[-1], DEPTH)
        q = rng.integers(-8, 9, (1, 1, depth)) / 8.0
        k = rng.integers(-8, 9, (n, 1, depth)) / 8.0
    else:
        scores = rng.integers(-32, 33, (1, 1, n)) / 16.0
    return replace(
        problem,
        heads=1,
        rows=1,
        shape=(1,),
        q=q,
        k=k,
        v=v,
        scores=scores,
        formats=dict.fromkeys(problem.formats, BASES["f64"]),
        low=np.zeros(1, np.int32),
        high=np.full(1, n, np.int32),
        queries=1,
        per_row={name: x[:1, :1] for name, x in problem.per_row.items()},
    )


def same_meaning(a: Run, b: Run, names: Sequence[str]) -> dict[str, bool]:
    """Whether lines are one real number on both sides, where a piece of the sample means the same on either.

    Lines of which no piece does, or that have no value, are left out.
    """
    found: dict[str, bool] = {}
    if not names:
        return found
    tokens = sample_tokens((a, b))
    left, right = (_Sample(run, tokens) for run in (a, b))
    for name in names:
        x, y = left.values(name, right), right.values(name, left)
        if x is None or y is None or not x.size:
            continue
        known = np.isfinite(x) & np.isfinite(y)
        size = float(np.abs(y[known]).max(initial=0.0))
        near = np.abs(x[known] - y[known]) <= CLOSE * max(1e-3, size)
        found[name] = bool(near.all())
    return found


class _Sample:
    """One side on the sample, in real numbers."""

    def __init__(self, run: Run, tokens: int) -> None:
        self.program = run.program
        self.walker: Walker | None = None
        self._pieces: dict[str, Pieces] = {}
        sample = sample_of(run.problem, tokens)
        scalars = {n: x for n, x in run.scalars.items() if n in SCALARS}
        with suppress(UlpscopeError):
            self.plan = plan_program(run.program, {**run.plan.context, "kv_len": sample.kv_len})
            inputs = row_inputs(run.program, sample, scalars, 0, 0)
            self.walker = Walker(run.program, self.plan, inputs, RealArithmetic())

    def pieces(self, name: str) -> Pieces:
        """The pieces of a site of the sample."""
        if name not in self._pieces:
            self._pieces[name] = pieces_of(self.program, self.plan, name)
        return self._pieces[name]

    def values(self, name: str, other: _Sample) -> NDArray[np.float64] | None:
        """A site (its first column) at the pieces that the other side has, too, in one order for both."""
        if self.walker is None or other.walker is None:
            return None
        mine, theirs = self.pieces(name), other.pieces(name)
        if mine.kind != theirs.kind or set(mine.rest) - {DIM} or set(theirs.rest) - {DIM}:
            return None
        keys = sorted((k for k in mine.keys if k in theirs.keys), key=repr)
        where = {DIM: 0} if DIM in mine.rest else {}
        with np.errstate(all="ignore"), suppress(UlpscopeError, RecursionError):
            return np.array(
                [self.walker.value(name, {**mine.index(mine.keys[k]), **where}) for k in keys], np.float64
            )
        return None
