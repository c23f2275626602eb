"""What has been evaluated, how much more may be, and the best of it: one count for all targets of a search."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verify.interrupts import check

if TYPE_CHECKING:
    from search.target import Measured, Target


class OverBudgetError(Exception):
    """Nothing may be evaluated any more. Caught where a budget is set; it reaches no user.

    Attributes:
        time: whether wall time is up, not the number of evaluations.
    """

    def __init__(self, *, time: bool) -> None:
        super().__init__("out of time" if time else "no evaluations left")
        self.time = time


@dataclass(eq=False)
class Meter:
    """Counts evaluations, and refuses those that a budget does not allow.

    Attributes:
        spent: candidates evaluated.
        limit: ``spent`` never gets above it; None: no limit.
        deadline: of `time.monotonic`: nothing is begun after it; None: none.
        best: the feasible candidate with the largest objective, and the target that it is an input of.
    """

    spent: int = 0
    limit: int | None = None
    deadline: float | None = None
    best: tuple[Target, Measured] | None = None

    @property
    def left(self) -> float:
        """Candidates that may still be evaluated, whatever the time."""
        return math.inf if self.limit is None else max(0, self.limit - self.spent)

    @property
    def late(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def granted(self, count: int) -> int:
        """How many of ``count`` candidates may be evaluated: at least one of them.

        Raises:
            OverBudgetError: none may be.
            KeyboardInterrupt: Ctrl-C was pressed, and got lost.
        """
        check()
        if self.late:
            raise OverBudgetError(time=True)
        allowed = int(min(count, self.left))
        if count and not allowed:
            raise OverBudgetError(time=False)
        return allowed

    def note(self, target: Target, measured: Measured) -> None:
        """Count a batch, and keep its best feasible candidate if it is the best so far."""
        self.spent += measured.inputs.count
        if not measured.inputs.count:
            return
        i = measured.best
        known = -math.inf if self.best is None else float(self.best[1].score[0])
        if measured.violation[i] <= 0 and math.isfinite(measured.score[i]) and measured.score[i] > known:
            self.best = target, measured.pick(i)

    @contextmanager
    def within(self, limit: int | None, deadline: float | None) -> Generator[None]:
        """Other limits for a while, which may be wider."""
        before = self.limit, self.deadline
        self.limit, self.deadline = limit, deadline
        try:
            yield
        finally:
            self.limit, self.deadline = before
