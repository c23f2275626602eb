"""Sides, space and objective together: what a method of search calls."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.compact import Geometry, compactable
from search.evaluate import Evaluator, Outputs, on_grid
from search.meter import Meter, OverBudgetError
from search.objective import Objective, violation
from search.sides import Side
from search.space import Inputs, Space
from specs.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """A batch with what it is worth.

    Attributes:
        inputs: the candidates.
        score: float64 ``[candidate]``: the objective.
        violation: float64 ``[candidate]``: 0 where the space's constraints hold.
        outputs: by side.
    """

    inputs: Inputs
    score: Floats
    violation: Floats
    outputs: tuple[Outputs, ...]

    @property
    def key(self) -> Floats:
        """One number to compare by: the objective of what is feasible, below all of them minus the violation."""
        feasible = (self.violation <= 0) & np.isfinite(self.score)
        return np.where(feasible, self.score, -1e6 * (1 + np.minimum(self.violation, 1e6)))

    @property
    def best(self) -> int:
        """The number of the best candidate."""
        return int(self.key.argmax())

    def pick(self, i: int) -> Measured:
        """Candidate ``i`` alone."""
        some = slice(i, i + 1)
        outputs = tuple(Outputs(o.before[some], o.stored[some], o.format) for o in self.outputs)
        return Measured(self.inputs.pick([i]), self.score[some], self.violation[some], outputs)


class Target:
    """What is searched for.

    Args:
        sides: two or more backends; their outputs must have one format.
        space: the inputs.
        objective: what is maximised.

    Attributes:
        meter: counts what is evaluated, by this target and by those cut from it, and keeps to a budget.

    Raises:
        InputError: fewer than two sides, or their outputs differ in format.
        UnsupportedError, SpecError: as `Evaluator`.
    """

    def __init__(self, sides: Sequence[Side], space: Space, objective: Objective | None = None) -> None:
        if len(sides) < 2:
            raise InputError("one side alone", place="search", remedy="give two or more SPEC@PLATFORM")
        self.sides = tuple(sides)
        self.space = space
        self.objective = objective or Objective()
        self.evaluators = tuple(Evaluator(side, space) for side in sides)
        self.support: NDArray[np.int64] | None = None
        #: Whether tokens of weight zero may be left out on every side: see `search.compact`.
        self.compactable = space.kind == "scores" and all(compactable(e.program) for e in self.evaluators)
        #: Whether the scalar definition computes: see `by_definition`.
        self.scalar = False
        self.meter = Meter()
        formats = {str(e.format) for e in self.evaluators}
        if len(formats) > 1:
            raise InputError(
                f"the sides store their outputs in {' and '.join(sorted(formats))}",
                place="search",
                remedy="a distance is counted in one format: choose variants that store the same",
            )
        if len({str(e.value_format) for e in self.evaluators}) > 1:
            raise InputError(
                "the sides take values in different formats",
                place="search",
                remedy="choose variants that take the same input",
            )
        base = space.base
        if base is not None and not np.array_equal(self.stored(base.values), base.values):
            raise InputError(
                f"the base has values that are no numbers of {self.evaluators[0].value_format}",
                place="base",
                remedy="round them to the format of V",
            )
        projection = self.objective.projection
        if projection is not None and projection.shape[1] != space.dims:
            raise InputError(
                f"a projection of {projection.shape[1]} columns, where {space.dims} are searched",
                place="projection",
                remedy="search as many columns of V as it has (--dims)",
            )

    @property
    def evaluations(self) -> int:
        """Candidates evaluated so far."""
        return self.meter.spent

    def share(self, other: Target) -> None:
        """Count evaluations together with ``other`` from now on."""
        self.meter = other.meter

    @property
    def geometry(self) -> Geometry:
        """Who owns which token, on each side, of the whole sequence."""
        found = Geometry.of([e.plan for e in self.evaluators])
        found.piece[:, : self.space.first] = Geometry.UNSEEN
        return found

    def on(self, support: NDArray[np.int64]) -> Target:
        """The target on some tokens alone, ascending; `expand` puts the others back.

        Where they may not be left out (see `search.compact`) they are put back before every evaluation.
        """
        cut = copy.copy(self)
        cut.support = support
        if self.compactable:
            cut.evaluators = tuple(e.on(support) for e in self.evaluators)
        return cut

    def by_definition(self) -> Target:
        """The same, computed by the scalar definition: nothing is compiled, which pays for a handful of candidates."""
        slow = copy.copy(self)
        slow.scalar = True
        slow.evaluators = tuple(copy.copy(e) for e in self.evaluators)
        for evaluator in slow.evaluators:
            evaluator.scalar = True
        return slow

    def of(self, space: Space) -> Target:
        """The same sides and objective in another space of the same length."""
        other = Target(self.sides, space, self.objective)
        other.share(self)
        return other

    def expand(self, inputs: Inputs) -> Inputs:
        """Candidates of a target that was cut, with all tokens: the others have the lowest score, and value 0."""
        if self.support is None:
            return inputs
        floor = -np.inf if self.space.masks else -self.space.score_box
        scores = np.full((inputs.count, self.space.kv_len), floor, np.float32)
        values = np.zeros((inputs.count, self.space.kv_len, inputs.dims), np.float32)
        scores[:, self.support] = inputs.scores
        values[:, self.support] = inputs.values
        return Inputs(scores, values)

    def measure(self, inputs: Inputs) -> Measured:
        """Evaluate a batch on every side: of a batch that is larger than the budget allows, the first ones.

        Raises:
            OverBudgetError: the budget, or the time, is spent.
        """
        inputs = inputs.pick(slice(0, self.meter.granted(inputs.count)))
        whole = inputs if self.compactable else self.expand(inputs)
        outputs: list[Outputs] = []
        for evaluator in self.evaluators:
            if self.meter.late:  # the first call of a side compiles, which takes long
                raise OverBudgetError(time=True)
            outputs.append(evaluator.run(whole))
        score = self.objective.score(outputs)
        measured = Measured(inputs, score, violation(inputs, self.space), tuple(outputs))
        self.meter.note(self, measured)
        return measured

    def stored(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Values rounded to the format of V."""
        return on_grid(values, self.evaluators[0].value_format)
