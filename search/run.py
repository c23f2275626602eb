"""`search`: the whole of it: a bound, constructed inputs, values by integer arithmetic, evolution, and the best of all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from search.bound import Bound, bound_of, upper_bound
from search.evaluate import Outputs
from search.evolve import evolve
from search.objective import Objective, integer_distances
from search.outcome import Budget, Hit, Outcome, Progress, Step
from search.seeds.construct import Seed, construct, crowds
from search.seeds.drip import drips
from search.seeds.products import products
from search.seeds.values import models, significands
from search.seeds.weights import classes_of
from search.sides import Side
from search.space import Inputs, Space
from search.target import Target
from specs.errors import InputError, SpecError, UnsupportedError, did_you_mean

#: Part of what narrow roundings alone allow at which a search is content.
CONTENT = 0.997
#: How far weights stay from midpoints in closed forms: on the grid of scores, as near as it goes.
SHARP = 2.0**-20
#: Part of the budget that constructed inputs may take.
CONSTRUCTED = 0.5
#: Up to this length evolution over every token is worth its time after inputs were constructed; with q, k and v always,
#: since what is constructed for them may not part the pair at all.
SHORT = 1024


@dataclass
class _Search:
    """The state of one search."""

    target: Target
    budget: Budget
    seed: int
    report: Callable[[Progress], None]
    bound: float | None
    narrow: float | None
    begin: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list[Step])
    hits: list[Hit] = field(default_factory=list[Hit])
    seeds: list[Seed] = field(default_factory=list[Seed])
    cut: bool = False

    @property
    def best(self) -> float:
        return max((h.score for h in self.hits), default=-math.inf)

    @property
    def content(self) -> float:
        """The objective at which to stop."""
        return math.inf if self.narrow is None else CONTENT * self.narrow

    def left(self) -> int:
        return self.budget.evaluations - self.target.evaluations

    def wall(self) -> float:
        seconds = self.budget.seconds
        return math.inf if seconds is None else seconds - (time.monotonic() - self.begin)

    def out_of_time(self) -> bool:
        if self.wall() <= 0:
            self.cut = True
        return self.cut

    def take(self, target: Target, inputs: Inputs, method: str) -> None:
        """Evaluate an input whole, and keep it where it is feasible."""
        judge = self.target if target.space is self.target.space else self.target.of(target.space)
        judge = judge.by_definition() if target.scalar else judge
        measured = judge.measure(target.expand(inputs))
        integers = integer_distances(measured.outputs)
        for i in range(inputs.count):
            if measured.violation[i] <= 0 and math.isfinite(measured.score[i]):
                outputs = tuple(
                    Outputs(o.before[i : i + 1], o.stored[i : i + 1], o.format) for o in measured.outputs
                )
                distance = {pair: int(d[i]) for pair, d in integers.items()}
                self.hits.append(
                    Hit(
                        measured.inputs.pick([i]),
                        float(measured.score[i]),
                        outputs,
                        distance,
                        method,
                        target.space,
                    )
                )

    def step(self, method: str, run: Callable[[], None], *, always: bool = False) -> None:
        """Run one part, unless there is no budget or, but for ``always``, no need for it."""
        if self.left() <= 0 or self.out_of_time() or (self.best >= self.content and not always):
            return
        evaluations, start = self.target.evaluations, time.monotonic()
        self.tell(method)
        run()
        spent = self.target.evaluations - evaluations
        self.steps.append(Step(method, self.best, spent, time.monotonic() - start))

    def tell(self, method: str, best: float = -math.inf) -> None:
        self.report(Progress(method, self.target.evaluations, max(self.best, best), self.bound))

    # -- parts ----------------------------------------------------------------------------------------------

    def closed_form(self) -> None:
        """A few constructed inputs by the scalar definition, before anything is compiled."""
        slow = self.target.by_definition()
        found = construct(
            slow,
            self.seed,
            eps=SHARP,
            most=3,
            until=self.content,
            evaluations=self.left(),
            stop=self.out_of_time,
        )
        if not found or found[0].score < self.content:
            return
        if self.target.space.cancellation == 1:
            found = sorted([*found, *crowds(slow, self.seed, eps=SHARP)], key=lambda s: -s.score)
        self.seeds = found
        self.take(found[0].target, found[0].inputs, "closed form")

    def construct(self) -> None:
        share = max(1, int(CONSTRUCTED * self.budget.evaluations))
        found = drips(self.target)
        found += construct(
            self.target,
            self.seed,
            until=self.content,
            evaluations=share,
            most=24 if self.target.compactable else 4,
            stop=self.out_of_time,
        )
        self.seeds = sorted(found, key=lambda s: -s.score)
        for seed in self.seeds[:2]:
            self.take(seed.target, seed.inputs, "construct")

    def products(self) -> None:
        found = products(self.target)
        self.seeds = sorted([*self.seeds, *found], key=lambda s: -s.score)
        for seed in found[:1]:
            self.take(seed.target, seed.inputs, "products")

    def values(self) -> None:
        """Integer distances from the bound downwards, by values for the scores of the best constructed inputs."""
        for seed in self.seeds[:2]:
            try:
                classes, members = classes_of(seed.target, seed.inputs, (0, 1))
            except UnsupportedError:
                return
            known = max((h.least_integer for h in self.hits), default=0)
            top = math.floor(self.bound) + 1 if self.bound is not None else known + 8
            for k in range(min(top, known + 64), known, -1):
                if self.out_of_time() or self._with_values(seed, classes, members, k):
                    break

    def _with_values(self, seed: Seed, classes: Sequence[Any], members: Sequence[list[int]], k: int) -> bool:
        limit = max(1, self.budget.rlimit // 8)
        exact = self.target.space.exact_cancellation
        for tried, model in enumerate(models(classes, k, cancellation=exact, rlimit=limit, most=8)):
            values = seed.inputs.values.copy()
            for tokens, sums in zip(members, model.sums, strict=True):
                values[0, tokens] = (np.array(significands(sums, len(tokens))) / 128.0)[:, None]
            inputs = Inputs(seed.inputs.scores, values)
            measured = seed.target.measure(inputs)
            reached = min(int(d[0]) for d in integer_distances(measured.outputs).values())
            if reached >= k and measured.violation[0] <= 0:
                self.take(seed.target, inputs, "values")
                return True
            if tried == 7 or self.left() <= 0:
                break
        return False

    def evolve(self, seed: Seed, share: int) -> None:
        start = seed.inputs
        found = evolve(
            seed.target,
            start,
            seed=self.seed,
            evaluations=max(1, share),
            wall=self.wall(),
            until=self.content,
            progress=lambda _, best: self.tell("evolve", best),
        )
        self.cut |= found.cut
        if math.isfinite(found.score):
            self.take(seed.target, found.inputs, "evolve")

    def scratch(self, evaluations: int) -> None:
        """Evolution over every token, from scratch or from what is known."""
        found = evolve(
            self.target,
            None,
            seed=self.seed,
            evaluations=max(1, evaluations),
            wall=self.wall(),
            until=self.content,
            parents=8 if self.target.space.kv_len > 1024 else 32,
            children=16 if self.target.space.kv_len > 1024 else 128,
            progress=lambda _, best: self.tell("scratch", best),
        )
        self.cut |= found.cut
        if math.isfinite(found.score):
            self.take(self.target, found.inputs, "scratch")


def search(
    sides: Sequence[Side],
    space: Space,
    objective: Objective | None = None,
    *,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
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

    Returns:
        the best inputs, evaluated whole by the array engine. `search.certificate` certifies them.

    Raises:
        InputError, SpecError, UnsupportedError: the sides do not fit each other or the space.
        FidelityError: this machine cannot emulate faithfully.
    """
    objective, budget = objective or Objective(), budget or Budget()
    bound, no_bound = _bound(sides, space, objective)
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
    state = _Search(
        target, budget, seed, progress, limit, None if limit is None else _narrow(bound, len(sides))
    )
    if space.base is None:
        if target.compactable and space.dims == 1:
            state.step("closed form", state.closed_form)
        state.step("construct", state.construct)
        if space.kind == "qkv":
            state.step("products", state.products)
        if len(sides) == 2 and objective.metric == "ulp" and target.compactable:
            state.step("values", state.values, always=True)
        for number, start in enumerate(_different(state.seeds)[:2]):
            share = state.left() // 2 if number == 0 else state.left() // 4
            state.step("evolve", lambda start=start, share=share: state.evolve(start, share))
    if not state.seeds or space.kv_len <= SHORT or space.kind == "qkv":
        state.step("scratch", lambda: state.scratch(state.left()))
    return _outcome(state, blank)


def search_by(
    method: str,
    sides: Sequence[Side],
    space: Space,
    objective: Objective | None = None,
    *,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """As `search`, by one of the baselines of `search.baselines.METHODS`; ``search`` is `search` itself.

    Raises:
        InputError: no such method. Others as `search`.
    """
    if method == "search":
        return search(sides, space, objective, seed=seed, budget=budget, progress=progress)
    from search.baselines import METHODS

    if method not in METHODS:
        raise InputError(
            f"unknown method '{method}'",
            place="method",
            remedy=did_you_mean(method, ["search", *METHODS]),
        )
    objective, budget = objective or Objective(), budget or Budget()
    bound, no_bound = _bound(sides, space, objective)
    blank = Outcome(
        "nothing", "", tuple(sides), space, objective, budget, seed, bound=bound, no_bound=no_bound
    )
    target = Target(sides, space, objective)
    state = _Search(target, budget, seed, progress, None, None)

    def run() -> None:
        found = METHODS[method](
            target,
            seed=seed,
            evaluations=budget.evaluations,
            wall=state.wall(),
            progress=lambda _, best: state.tell(method, best),
        )
        state.cut |= found.cut
        if math.isfinite(found.score):
            state.take(target, found.inputs, method)

    state.step(method, run)
    return _outcome(state, blank)


def _outcome(state: _Search, blank: Outcome) -> Outcome:
    common: dict[str, Any] = {
        "steps": tuple(state.steps),
        "evaluations": state.target.evaluations,
        "cut": state.cut,
    }
    if not state.hits:
        reason = "no input that satisfies the constraints was found within the budget"
        return replace(blank, status="nothing", reason=reason, **common)
    best = max(state.hits, key=lambda h: h.score)
    stored = max(state.hits, key=lambda h: (h.least_integer, h.score))
    other = stored if stored.least_integer > best.least_integer else None
    return replace(blank, status="found", best=best, stored=other, **common)


def _bound(sides: Sequence[Side], space: Space, objective: Objective) -> tuple[Bound | None, str]:
    """The upper bound of the smallest distance of any two sides.

    Of n numbers on a line the two nearest are at most the range over n - 1 apart.
    """
    if objective.metric != "ulp":
        return None, f"there is no bound for {objective.metric}"
    if objective.single is not None:
        return None, "there is no bound for one side singled out"
    if space.cancellation <= 0:
        return None, "without a bound on cancellation there is no bound on the distance"
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
    gaps = len(sides) - 1
    if why or widest.real / gaps >= least.real:
        return least, ""
    real = widest.real / gaps
    spread = f"the outputs lie at most {widest.real:.4f} apart: {widest.reason}"
    return replace(
        widest, real=real, first_order=widest.first_order / gaps, integer=math.floor(real) + 1, reason=spread
    ), ""


def _narrow(bound: Bound | None, sides: int) -> float | None:
    """What the roundings to narrow formats alone allow."""
    if bound is None or bound.a is None or bound.b is None:
        return None
    none = Fraction(0)
    a, b = (replace(terms, wide_direct=none, wide_through=none) for terms in (bound.a, bound.b))
    found = bound_of(a, b, cancellation=bound.cancellation, fmt=bound.format).real / (sides - 1)
    return found if math.isfinite(found) else None


def _infeasible(space: Space) -> str:
    """A proof that no input satisfies the constraints, or nothing."""
    base = space.base
    if base is None or not space.fixed:
        return ""
    fixed = sorted(space.fixed)
    s, v = np.abs(base.scores[0, fixed]), np.abs(base.values[0, fixed])
    if np.where(np.isinf(s), 0, s).max() > space.score_box or v.max() > space.value_box:
        return "a fixed token lies outside the box"
    if len(fixed) == space.kv_len:
        from search.objective import cancellation

        out, mass = cancellation(base)
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
