"""Solver resources and wall time that several queries share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Resources:
    """What queries may spend together: the same on every machine, but for wall time.

    Attributes:
        left: resource units of Z3.
        deadline: of `time.monotonic`; None: none.
        cut: whether time ended a query, or came before one.
    """

    left: int
    deadline: float | None = None
    cut: bool = False

    def check(self, solver: Any, most: int) -> str:
        """Ask a Z3 solver, which must have a context of its own: units are counted there.

        Args:
            solver: a ``z3.Solver``.
            most: resource units of this query.

        Returns:
            ``sat``, ``unsat`` or ``unknown``.
        """
        if self.deadline is not None:
            milliseconds = int(1000 * (self.deadline - time.monotonic()))
            if milliseconds <= 0:
                self.cut = True
                return "unknown"
            solver.set("timeout", min(milliseconds, (1 << 31) - 1))
        if self.left <= 0:
            return "unknown"
        solver.set("rlimit", min(most, self.left, (1 << 32) - 1))
        before = units(solver)
        status = answer(solver)
        self.left -= max(1, units(solver) - before)
        if status == "unknown" and self.deadline is not None and time.monotonic() >= self.deadline:
            self.cut = True
        return status


def answer(solver: Any) -> str:
    """``sat``, ``unsat`` or ``unknown``, of a Z3 solver or optimiser.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, which Z3 takes for itself while it works.
    """
    status = str(solver.check())
    if status == "unknown" and "interrupted" in str(solver.reason_unknown()):
        raise KeyboardInterrupt
    return status


def units(solver: Any) -> int:
    """Resource units that the context of a Z3 solver has used."""
    found = solver.statistics()
    return int(found.get_key_value("rlimit count")) if "rlimit count" in found.keys() else 0  # noqa: SIM118
