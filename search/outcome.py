"""What a search may spend, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from search.bound import Bound
from search.evaluate import Outputs
from search.objective import Objective
from search.sides import Side
from search.space import Inputs, Space
from specs.errors import InputError

Status = Literal["found", "nothing", "infeasible", "identical"]


@dataclass(frozen=True)
class Budget:
    """What a search may spend. The first two are the same on every machine.

    Attributes:
        evaluations: candidates evaluated.
        rlimit: solver resources, over all queries.
        seconds: wall time; a search that it ends says so. None: no limit.
    """

    evaluations: int = 50_000
    rlimit: int = 20_000_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("evaluations", "rlimit"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}", place="budget", remedy="give 1 or more")
        if self.seconds is not None and not 0 < self.seconds <= 1e9:
            raise InputError(
                f"seconds = {self.seconds}", place="budget", remedy="give more than 0, up to a billion"
            )


@dataclass(frozen=True)
class Step:
    """One part of a search.

    Attributes:
        method: ``closed form``, ``construct``, ``products``, ``values``, ``evolve``, ``scratch``.
        score: the best objective after it.
        evaluations: candidates evaluated by it.
        seconds: wall time it took.
    """

    method: str
    score: float
    evaluations: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Hit:
    """An input, evaluated whole.

    Attributes:
        inputs: one candidate with every token.
        score: the objective.
        outputs: by side.
        integer: distance of the stored outputs, by pair of sides.
        method: what found it.
        space: the space it lies in: the one that was asked for, but for `Space.carry`.
    """

    inputs: Inputs
    score: float
    outputs: tuple[Outputs, ...]
    integer: Mapping[tuple[int, int], int]
    method: str
    space: Space

    @property
    def least_integer(self) -> int:
        """The smallest distance of stored outputs of any two sides."""
        return min(self.integer.values())


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search found.

    Attributes:
        status: ``found``; ``nothing`` within the budget; ``infeasible``: proved; ``identical``: proved to be the same.
        reason: of a status that is not ``found``.
        sides, space, objective, budget, seed: what was asked.
        best: the input with the largest objective, or None.
        stored: the input with the largest distance of stored outputs, where it is another than ``best``.
        bound: the upper bound, where there is one.
        no_bound: why there is none.
        steps: what was done.
        evaluations: candidates evaluated.
        cut: whether wall time, or an interruption, ended it.
        interrupted: whether Ctrl-C did.
    """

    status: Status
    reason: str
    sides: tuple[Side, ...]
    space: Space
    objective: Objective
    budget: Budget
    seed: int
    best: Hit | None = None
    stored: Hit | None = None
    bound: Bound | None = None
    no_bound: str = ""
    steps: tuple[Step, ...] = ()
    evaluations: int = 0
    cut: bool = False
    interrupted: bool = False


@dataclass(frozen=True)
class Progress:
    """Where a search stands: the part it is in, evaluations so far, the best objective, the bound or None."""

    method: str
    evaluations: int
    best: float
    bound: float | None
