"""State: ``prev`` and ``last`` as closures.

The steps of a fold are the existing positions along its levels, in order. A step is only ever evaluated after
all steps before it, so that a chain of two thousand tiles needs no deep recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specs.formats import Format
from specs.nodes import Last, Prev
from specs.program import State
from verify.definition.layout import Index, Point, getter, move, tuple_getter

if TYPE_CHECKING:
    from verify.definition.expressions import Float, Line


@dataclass
class Steps:
    """Steps in order, with their numbers; ``lines`` are those with one level free and the others fixed."""

    points: list[Point]
    lines: dict[Point, Steps] = field(default_factory=dict[Point, "Steps"])

    def __post_init__(self) -> None:
        self.number = {point: i for i, point in enumerate(self.points)}

    def along(self, point: Point, free: int) -> Steps:
        """The steps that differ from ``point`` in place ``free`` only."""
        rest = (*point[:free], *point[free + 1 :])
        if rest not in self.lines:
            self.lines[rest] = Steps([p for p in self.points if (*p[:free], *p[free + 1 :]) == rest])
        return self.lines[rest]


class _Fold:
    """One state as a line refers to it."""

    def __init__(self, line: Line, n: Prev | Last) -> None:
        self.walker = line.walker
        self.layout = line.layout
        self.state: State = line.program.states[n.state]
        self.start, start_format = line.elsewhere(self.state.scope, self.state.place).number(self.state.start)
        known = line.program.sites[n.state].type.format
        self.format: Format = line.join(known or line.program.compute, start_format)
        self.slots = self.layout.slots(self.state.levels)
        self._scope = getter(self.layout.slots(line.program.levels_to(self.state.scope)))
        self._steps: dict[Any, Steps] = {}

    def steps(self, index: Index) -> Steps:
        """The steps of the scope that ``index`` is in."""
        scope = self._scope(index)
        if scope not in self._steps:
            self._steps[scope] = Steps(self.layout.steps(self.state, index))
        return self._steps[scope]

    def at(self, index: Index, points: list[Point], i: int) -> Any:
        """The state after step ``i`` of ``points``, or its start where ``i`` is -1."""
        if i < 0:
            return self.start(index)
        # Looked up late: the line that is being compiled may be the state's own.
        read = self.walker.read(self.state.name)
        key, known = self.walker.memo(self.state.name)
        there, first = index.copy(), i
        move(there, self.slots, points[first])
        while first > 0 and key(there) not in known:
            first -= 1
            move(there, self.slots, points[first])
        value = read(there)
        for step in points[first + 1 : i + 1]:
            move(there, self.slots, step)
            value = read(there)
        return value


def last(line: Line, n: Last) -> Float:
    """``last(state)``: after the final step of the scope; the start value if there was none."""
    fold = _Fold(line, n)

    def read(index: Index) -> Any:
        points = fold.steps(index).points
        return fold.at(index, points, len(points) - 1)

    return read, fold.format


def prev(line: Line, n: Prev) -> Float:
    """``prev(state)``: the step before; ``prev(state, LEVEL)``: one before along LEVEL, the rest as it is."""
    fold = _Fold(line, n)
    free = None if n.level is None else fold.state.levels.index(n.level)
    here = tuple_getter(fold.slots)

    def read(index: Index) -> Any:
        steps, point = fold.steps(index), here(index)
        if free is not None:
            steps = steps.along(point, free)
        return fold.at(index, steps.points, steps.number[point] - 1)

    return read, fold.format
