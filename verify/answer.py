"""The exact answer to a problem: attention over the reals on the inputs that a backend reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verify.arguments import Problem
from verify.exact import Enclosure, exact_attention

Floats = NDArray[np.float64]


def exact_answer(problem: Problem) -> Enclosure:
    """The real-number answer to ``problem`` over all outputs, flat, in the order of `emulate`'s output.

    Inputs are taken as the spec takes them, rounded on entry, and each row sees what it sees there. Sinks, slopes,
    the cap and the scales of K and V count. Scores of q and k are summed in float64: see `score_error`.
    """
    balls: list[NDArray[np.object_]] = []
    for head in range(problem.heads):
        values = problem.v[:, head].astype(np.float64) * problem.v_scale
        sinks = problem.per_row["sink"][head] if "sink" in problem.per_row else -np.inf
        balls.append(exact_attention(real_scores(problem, head), values, sinks=sinks).balls)
    return Enclosure(problem.outward(np.stack(balls)).reshape(-1))


def real_scores(problem: Problem, head: int) -> Floats:
    """The scores of one KV head in float64, ``[row, token]``: scaled, capped, biased, -inf where a row sees nothing.

    ALiBi adds ``-slope * abs(query - key)``, which for causal rows is ``slope * (key - query)``.
    """
    position = np.arange(problem.kv_len)
    seen = (position >= problem.low[:, None]) & (position < problem.high[:, None])
    if problem.scores is not None:
        scores = problem.scores[head].astype(np.float64)
    else:
        assert problem.q is not None
        assert problem.k is not None
        keys = problem.k[:, head].astype(np.float64)
        scores = problem.q[head].astype(np.float64) @ keys.T * (problem.scale * problem.k_scale)
        if problem.softcap:
            scores = problem.softcap * np.tanh(scores / problem.softcap)
        if "slope" in problem.per_row:
            apart = np.abs(problem.query_index[:, None] - position)
            scores = scores - problem.per_row["slope"][head][:, None] * apart
    return np.where(seen, scores, -np.inf)


def score_error(head_dim: int) -> float:
    """A bound of the error of a score summed in float64, in units of its largest product, in any order.

    Each of ``head_dim`` roundings, and one by the scale, errs by at most 2**-53 of a sum that is at most
    ``head_dim`` products; one more stands for the terms of second order. A cap or a bias adds a few roundings of
    the score itself, far less than the sum.
    """
    return head_dim * (head_dim + 2) * 2.0**-53
