"""The parts of a search, each within what is left of the budget, and what they found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from search.evolve import Found, evolve
from search.meter import OverBudgetError
from search.objective import integer_distances
from search.outcome import Budget, Hit, Progress, Step
from search.resources import Resources
from search.seeds.construct import Seed, construct, crowds
from search.seeds.drip import drips, narrow_states
from search.seeds.places import places
from search.seeds.products import products
from search.seeds.sparse import Sparse
from search.seeds.values import models, significands
from search.seeds.weights import classes_of
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import UnsupportedError
from verify.interrupts import check, settle

#: Part of what narrow roundings alone allow at which a search is content.
CONTENT = 0.997
#: How far weights stay from midpoints in closed forms: on the grid of scores, as near as it goes.
SHARP = 2.0**-20
#: Part of the budget that constructed inputs may take.
CONSTRUCTED = 0.5
#: Lost drops are walked by the scalar definition up to so many groups, and inputs of any spec up to so many tokens.
WALKED = 512
#: Lost drops that are worth so many times what templates are leave those nothing to win.
AHEAD = 4.0
#: Evaluations in which evolution has to gain something after such drops: a few roundings of weights are left to win.
PATIENCE = 2048
#: Part of the resources of the solver that one query may take.
QUERY = 8


@dataclass(eq=False)
class Parts:
    """The state of one search.

    Attributes:
        target: the whole target; its meter counts.
        budget, seed, report: as `search.run.search` takes them.
        bound: the rigorous upper bound. narrow: what roundings to narrow formats alone allow. None: not known.
        begin: of `time.monotonic`: when the search began.
        keep: whether Ctrl-C ends the search, with what was found so far, instead of raising.
    """

    target: Target
    budget: Budget
    seed: int
    report: Callable[[Progress], None]
    bound: float | None
    narrow: float | None
    begin: float
    keep: bool = False
    steps: list[Step] = field(default_factory=list[Step])
    hits: list[Hit] = field(default_factory=list[Hit])
    seeds: list[Seed] = field(default_factory=list[Seed])
    cut: bool = False
    interrupted: bool = False
    ahead: bool = False

    def __post_init__(self) -> None:
        self.meter = self.target.meter
        seconds = self.budget.seconds
        self.deadline = None if seconds is None else self.begin + seconds
        self.resources = Resources(self.budget.rlimit, self.deadline)

    @property
    def best(self) -> float:
        """The best objective of what was evaluated whole."""
        return max((h.score for h in self.hits), default=-math.inf)

    @property
    def content(self) -> float:
        """The objective at which to stop."""
        return math.inf if self.narrow is None else CONTENT * self.narrow

    def left(self) -> int:
        """Candidates that the part that runs may still evaluate."""
        return int(min(self.meter.left, self.budget.evaluations - self.meter.spent))

    def wall(self) -> float:
        """Seconds that are left."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def out_of_time(self) -> bool:
        """Whether wall time is up, which is remembered."""
        if self.wall() <= 0:
            self.cut = True
        return self.cut

    def step(self, method: str, run: Callable[[], None], *, always: bool = False, kept: int = 1) -> None:
        """Run one part, unless there is no budget or, but for ``always``, no need for it.

        Args:
            method: what it is called.
            run: the part.
            always: run it though the search is content.
            kept: evaluations that are kept back, to evaluate what it finds whole.
        """
        allowed = self.budget.evaluations - kept
        if self.meter.spent >= allowed or self.out_of_time() or (self.best >= self.content and not always):
            return
        evaluations, start = self.meter.spent, time.monotonic()
        self.tell(method)
        try:
            with self.meter.within(allowed, self.deadline):
                run()
                check()
        except OverBudgetError as error:
            self.cut |= error.time
            self.save(method)
        except KeyboardInterrupt:
            if not self.keep:
                raise
            settle()
            self.cut = self.interrupted = True
            self.save(method)
        self.cut |= self.resources.cut
        self.steps.append(Step(method, self.best, self.meter.spent - evaluations, time.monotonic() - start))

    def save(self, method: str) -> None:
        """Keep the best of what a part evaluated before it was ended."""
        best = self.meter.best
        if best is not None and best[1].score[0] > self.best:
            self.take(*best, method)

    def tell(self, method: str, best: float = -math.inf) -> None:
        """Report where the search stands."""
        self.report(Progress(method, self.meter.spent, max(self.best, best), self.bound))

    def take(self, target: Target, measured: Measured | Inputs, method: str) -> None:
        """Keep an input that is feasible; one of a target that was cut is evaluated whole first, if the budget allows."""
        if isinstance(measured, Inputs) or target.support is not None:
            inputs = measured if isinstance(measured, Inputs) else measured.inputs
            judge = self.target if target.space is self.target.space else self.target.of(target.space)
            # One input by the scalar definition costs less than compiling a function of every token.
            few = self.target.compactable or target.space.kv_len <= WALKED
            judge = judge.by_definition() if few and target.space.dims == 1 else judge
            with self.meter.within(self.budget.evaluations, None):
                if not self.meter.left:
                    return
                measured = judge.measure(target.expand(inputs))
        if measured.violation[0] > 0 or not math.isfinite(measured.score[0]):
            return
        distance = {pair: int(d[0]) for pair, d in integer_distances(measured.outputs).items()}
        score = float(measured.score[0])
        self.hits.append(Hit(measured.inputs, score, measured.outputs, distance, method, target.space))

    def take_found(self, target: Target, found: Found, method: str) -> None:
        """Keep what a method found."""
        self.cut |= found.cut
        if math.isfinite(found.score):
            self.take(target, found.inputs if found.measured is None else found.measured, method)

    # -- parts ----------------------------------------------------------------------------------------------

    def closed_form(self) -> None:
        """A few constructed inputs by the scalar definition, before anything is compiled."""
        slow = self.target.by_definition()
        lost = drips(slow) if self._groups() <= WALKED else []
        found = construct(
            slow,
            self.seed,
            eps=SHARP,
            most=3,
            until=self.content,
            evaluations=max(1, self.left()),
            stop=self.out_of_time,
        )
        self.ahead = bool(lost and found) and lost[0].score >= AHEAD * found[0].score
        if self.ahead:
            self.seeds = [
                Seed(self.target.on(s.template.tokens), s.inputs, s.score, s.template) for s in lost
            ]
            self.take(lost[0].target, lost[0].inputs, "drops")
            return
        if not found or found[0].score < self.content:
            return
        if self.target.space.cancellation == 1:
            found = sorted([*found, *crowds(slow, self.seed, eps=SHARP)], key=lambda s: -s.score)
        self.seeds = found
        self.take(found[0].target, found[0].inputs, "closed form")

    def _groups(self) -> int:
        """The most groups of tokens of a side that carries a narrow sum."""
        pieces = self.target.geometry.piece
        sides = zip(self.target.evaluators, pieces, strict=True)
        return max((len(np.unique(piece)) for e, piece in sides if narrow_states(e.program)), default=0)

    def construct(self) -> None:
        """Constructed inputs by the array engine."""
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

    def places(self) -> None:
        """A few tokens, evolved in the places where the sides group them differently."""
        found = places(
            self.target,
            self.seed,
            evaluations=max(1, int(CONSTRUCTED * self.budget.evaluations)),
            wall=self.wall,
            until=self.content,
            progress=lambda best: self.tell("places", best),
        )
        self.seeds = sorted([*self.seeds, *found], key=lambda s: -s.score)
        for seed in found[:2]:
            self.take(seed.target, seed.inputs, "places")

    def products(self) -> None:
        """Products of q and K that cancel."""
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
        exact = self.target.space.exact_cancellation
        found = models(
            classes,
            k,
            cancellation=exact,
            rlimit=max(1, self.budget.rlimit // QUERY),
            most=8,
            resources=self.resources,
        )
        for tried, model in enumerate(found):
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
        """Evolution from a constructed input, over its tokens."""
        found = evolve(
            seed.target,
            seed.inputs,
            seed=self.seed,
            evaluations=max(1, share),
            wall=self.wall(),
            until=self.content,
            patience=PATIENCE if self.ahead or isinstance(seed.target, Sparse) else math.inf,
            progress=lambda _, best: self.tell("evolve", best),
        )
        self.take_found(seed.target, found, "evolve")

    def scratch(self) -> None:
        """Evolution over every token, from scratch."""
        found = evolve(
            self.target,
            None,
            seed=self.seed,
            evaluations=max(1, self.left()),
            wall=self.wall(),
            until=self.content,
            parents=8 if self.target.space.kv_len > 1024 else 32,
            children=16 if self.target.space.kv_len > 1024 else 128,
            progress=lambda _, best: self.tell("scratch", best),
        )
        self.take_found(self.target, found, "scratch")
