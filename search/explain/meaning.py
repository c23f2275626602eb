"""What a line means in real numbers, on a sample: few tokens, few elements, no rounding.

Two values of one name can be two quantities: a weight relative to the maximum of another group, a score before or after
it is scaled. Their distance says nothing about rounding, and is shown as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from search.explain.reals import CLOSE, RealArithmetic
from specs.errors import UlpscopeError
from specs.formats import BASES
from specs.names import SCALARS
from specs.program import DIM, TOKEN
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
    """Whether lines of tokens or of the row are one real number on both sides; what is not known is left out."""
    found: dict[str, bool] = {}
    tokens = sample_tokens((a, b))
    values = [_real_values(run, names, tokens) for run in (a, b)]
    for name in names:
        x, y = values[0].get(name), values[1].get(name)
        if x is not None and y is not None and x.shape == y.shape:
            known = np.isfinite(x) & np.isfinite(y)
            size = float(np.abs(y[known]).max(initial=0.0))
            near = np.abs(x[known] - y[known]) <= CLOSE * max(1e-3, size)
            found[name] = bool(near.all())
    return found


def _real_values(run: Run, names: Sequence[str], tokens: int) -> dict[str, NDArray[np.float64]]:
    """Lines of tokens as ``[token, ...]`` and lines of the row, in real numbers."""
    program = run.program
    sample = sample_of(run.problem, tokens)
    found: dict[str, NDArray[np.float64]] = {}
    try:
        plan = plan_program(program, {**run.plan.context, "kv_len": sample.kv_len})
        scalars = {n: x for n, x in run.scalars.items() if n in SCALARS}
        inputs = row_inputs(program, sample, scalars, 0, 0)
    except UlpscopeError:
        return {}
    walker = Walker(program, plan, inputs, RealArithmetic())
    for name in names:
        axes = program.sites[name].type.axes
        levels = axes & set(program.level_names)
        of_tokens = TOKEN in axes and levels == frozenset(program.level_names)
        if axes - {DIM} and not (of_tokens and axes <= {TOKEN, DIM, *levels}):
            continue
        dim = {DIM: 0} if DIM in axes else {}
        try:
            with np.errstate(all="ignore"):
                if not of_tokens:
                    found[name] = np.array([walker.value(name, dim)], np.float64)
                    continue
                values = np.full(plan.kv_len, np.nan)
                for index in np.argwhere(plan.tokens >= 0).tolist():
                    where = dict(zip((*program.level_names, TOKEN), index, strict=True))
                    values[plan.tokens[tuple(index)]] = walker.value(name, {**where, **dim})
        except (UlpscopeError, RecursionError):
            continue
        found[name] = values
    return found
