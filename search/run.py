"""`search`: the whole of it: a bound, constructed inputs, values by integer arithmetic, evolution, and the best of all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from search.bound import Bound, bound_of, same_logits, upper_bound
from search.objective import Objective
from search.outcome import Budget, Hit, Outcome, Progress, Step
from search.parts import Parts
from search.seeds.construct import Seed
from search.sides import Side
from search.space import Inputs, Space
from search.target import Target
from specs.errors import InputError, SpecError, UnsupportedError, did_you_mean

#: Up to this length evolution over every token is worth its time after inputs were constructed; with q, k and v at any
#: length, where what was constructed hardly parts the pair.
SHORT = 1024
#: Part of the bound at which inputs of a few tokens are enough.
ENOUGH = 0.15


def search(
    sides: Sequence[Side],
    space: Space,
    objective: Objective | None = None,
    *,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    keep: bool = False,
) -> Outcome:
    """Find inputs on which the sides part as far as possible.

    Args:
        sides: two or more.
        space: the inputs, and what they must satisfy.
        objective: what is maximised; real ULP by default.
        seed: seed of every random choice: with budgets in evaluations and solver resources alone, the same seed gives
            the same result.
        budget: what may be spent.
        progress: called often.
        keep: Ctrl-C ends the search, and what was found so far comes back, instead of a KeyboardInterrupt.

    Returns:
        the best inputs, evaluated whole by the array engine. `search.certificate` certifies them.

    Raises:
        InputError, SpecError, UnsupportedError: the sides do not fit each other or the space.
        FidelityError: this machine cannot emulate faithfully.
    """
    begin = time.monotonic()
    objective, budget = objective or Objective(), budget or Budget()
    bound, no_bound = bound_for(sides, space, objective)
    blank = Outcome(
        "nothing", "", tuple(sides), space, objective, budget, seed, bound=bound, no_bound=no_bound
    )
    why = _infeasible(space)
    if why:
        return replace(blank, status="infeasible", reason=why)
    if bound is not None and bound.real == 0 and bound.rigor == "rigorous":
        return replace(blank, status="identical", reason=bound.reason)
    target = Target(sides, space, objective)
    limit = (
        bound.real if bound is not None and bound.rigor == "rigorous" and math.isfinite(bound.real) else None
    )
    gaps = _gaps(sides, space)
    state = Parts(
        target, budget, seed, progress, limit, None if limit is None else _narrow(bound, gaps), begin, keep
    )
    if space.base is None:
        if target.compactable and space.dims == 1:
            state.step("closed form", state.closed_form)
        if space.kind == "qkv" and not _same_scores(sides, space):
            state.step("products", state.products)
        if not target.compactable and not _enough(state, bound):
            state.step("places", state.places)
        if not state.ahead and (space.kind == "scores" or not _enough(state, bound)):
            state.step("construct", state.construct)
        if len(sides) == 2 and objective.metric == "ulp" and target.compactable:
            state.step("values", state.values, always=True)
        for number, start in enumerate(_different(state.seeds)[:2]):
            share = state.left() // 2 if number == 0 else state.left() // 4
            state.step("evolve", lambda start=start, share=share: state.evolve(start, share))
    if not state.seeds or not (_enough(state, bound) if space.kind == "qkv" else space.kv_len > SHORT):
        state.step("scratch", state.scratch, kept=0)
    return _outcome(state, blank)


def _same_scores(sides: Sequence[Side], space: Space) -> bool:
    """Whether all sides make the same scores of q and k, so that products which cancel part nothing."""
    return all(same_logits(a, b, space.full_context()) for a, b in combinations(sides, 2))


def _enough(state: Parts, bound: Bound | None) -> bool:
    """Whether a few tokens gave so much that what takes every token, and long to compile, is left out."""
    stored = max((h.least_integer for h in state.hits), default=0)
    if bound is not None and bound.integer is not None and stored >= bound.integer:
        return True
    known = bound is not None and bound.rigor == "rigorous"  # an estimate may lie far too low
    reach = min(1.0, ENOUGH * bound.real) if bound is not None and known else 1.0
    return state.best >= reach


def search_by(
    method: str,
    sides: Sequence[Side],
    space: Space,
    objective: Objective | None = None,
    *,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    keep: bool = False,
) -> Outcome:
    """As `search`, by one of the baselines of `search.baselines.METHODS`; ``search`` is `search` itself.

    Raises:
        InputError: no such method. Others as `search`.
    """
    if method == "search":
        return search(sides, space, objective, seed=seed, budget=budget, progress=progress, keep=keep)
    from search.baselines import METHODS

    if method not in METHODS:
        raise InputError(
            f"unknown method '{method}'",
            place="method",
            remedy=did_you_mean(method, ["search", *METHODS]),
        )
    begin = time.monotonic()
    objective, budget = objective or Objective(), budget or Budget()
    bound, no_bound = bound_for(sides, space, objective)
    blank = Outcome(
        "nothing", "", tuple(sides), space, objective, budget, seed, bound=bound, no_bound=no_bound
    )
    target = Target(sides, space, objective)
    state = Parts(target, budget, seed, progress, None, None, begin, keep)

    def run() -> None:
        more = {"rlimit": budget.rlimit} if method == "smt" else {}
        found = METHODS[method](
            target,
            seed=seed,
            evaluations=budget.evaluations,
            wall=state.wall(),
            progress=lambda _, best: state.tell(method, best),
            **more,
        )
        state.take_found(target, found, method)

    state.step(method, run, kept=0)
    return _outcome(state, blank)


def _outcome(state: Parts, blank: Outcome) -> Outcome:
    common: dict[str, Any] = {
        "steps": tuple(state.steps),
        "evaluations": state.target.evaluations,
        "cut": state.cut,
        "interrupted": state.interrupted,
    }
    if not state.hits:
        reason = "no input that satisfies the constraints was found within the budget"
        reason += ": wall time, or an interruption, ended the search" if state.cut else ""
        return replace(blank, status="nothing", reason=reason, **common)
    best = max(state.hits, key=lambda h: h.score)
    stored = max(state.hits, key=lambda h: (h.least_integer, h.score))
    other = stored if stored.least_integer > best.least_integer else None
    return replace(blank, status="found", best=best, stored=other, **common)


def bound_for(sides: Sequence[Side], space: Space, objective: Objective) -> tuple[Bound | None, str]:
    """The upper bound of the smallest distance of any two sides, or None and why there is none.

    Of n numbers on a line the two nearest are at most the range over n - 1 apart.
    """
    if objective.metric != "ulp":
        return None, f"there is no bound for {objective.metric}"
    if objective.single is not None:
        return None, "there is no bound for one side singled out"
    if space.cancellation <= 0:
        return None, "without a bound on cancellation there is no bound on the distance"
    context = space.full_context()
    if space.kind == "qkv" and not all(same_logits(a, b, context) for a, b in combinations(sides, 2)):
        return (
            None,
            "the sides round q k otherwise: products that cancel move a score by any amount, so there is no bound",
        )
    found: list[Bound] = []
    why = ""
    for a, b in combinations(sides, 2):
        try:
            found.append(
                upper_bound(
                    a,
                    b,
                    context=space.full_context(),
                    cancellation=space.exact_cancellation,
                    score_box=space.score_box,
                )
            )
        except (UnsupportedError, SpecError) as error:
            why = error.cause
    if not found:
        return None, why
    least = min(found, key=lambda b: b.real)
    widest = max(found, key=lambda b: b.real)
    gaps = _gaps(sides, space)
    if why or widest.real / gaps >= least.real:
        return least, ""
    real = widest.real / gaps
    spread = f"the outputs lie at most {widest.real:.4f} apart: {widest.reason}"
    return replace(
        widest, real=real, first_order=widest.first_order / gaps, integer=math.floor(real) + 1, reason=spread
    ), ""


def _gaps(sides: Sequence[Side], space: Space) -> int:
    """Into how many gaps the smallest distance divides the largest.

    With one column the outputs lie on one line. With more, each pair may be apart in another column.
    """
    return len(sides) - 1 if space.dims == 1 else 1


def _narrow(bound: Bound | None, gaps: int) -> float | None:
    """What the roundings to narrow formats alone allow."""
    if bound is None or bound.a is None or bound.b is None:
        return None
    none = Fraction(0)
    a, b = (replace(terms, wide_direct=none, wide_through=none) for terms in (bound.a, bound.b))
    found = bound_of(a, b, cancellation=bound.cancellation, fmt=bound.format).real / gaps
    return found if math.isfinite(found) and found > 0 else None


def _infeasible(space: Space) -> str:
    """A proof that no input satisfies the constraints, or nothing."""
    base = space.base
    if base is None or not space.fixed:
        return ""
    fixed = [t for t in sorted(space.fixed) if t >= space.first]
    if not fixed:
        return ""
    s, v = np.abs(base.scores[0, fixed]), np.abs(base.values[0, fixed])
    if np.where(np.isinf(s), 0, s).max() > space.score_box or v.max() > space.value_box:
        return "a fixed token lies outside the box"
    if len(fixed) == space.kv_len - space.first:
        from search.objective import cancellation

        out, mass = cancellation(Inputs(base.scores[:, space.first :], base.values[:, space.first :]))
        if bool((out < 0.999 * space.cancellation * mass).any()):
            return "every token is fixed, and the input cancels more than c allows"
    return ""


def _different(seeds: Sequence[Seed]) -> list[Seed]:
    """One seed for each number of tokens, best first."""
    out: dict[int, Seed] = {}
    for seed in seeds:
        out.setdefault(len(seed.template.tokens), seed)
    return list(out.values())


__all__ = ["Budget", "Hit", "Outcome", "Progress", "Step", "search"]
