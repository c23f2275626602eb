"""States of a program: which levels each is folded over."""

from __future__ import annotations

from collections.abc import Mapping

from specs.errors import Place, SpecError, did_you_mean
from specs.nodes import Node
from specs.program import ROW, State

#: (section or scope, name, expression, place) of one line.
Line = tuple[str, str, Node, Place]


def states_of(starts: list[Line], lines: Mapping[str, Line], levels: tuple[str, ...]) -> dict[str, State]:
    """The states that ``starts`` (scope, name, start expression, place) declare, by name.

    Args:
        lines: every site by name.
        levels: names of the nesting levels, outermost first.

    Raises:
        SpecError: an unknown scope, a state that no site updates, or one updated outside its scope.
    """
    states: dict[str, State] = {}
    for scope, name, start, place in starts:
        if scope not in (ROW, *levels):
            raise SpecError(
                f"[state.{scope}] names no level",
                place=place,
                remedy=did_you_mean(scope, (ROW, *levels)),
            )
        if name not in lines:
            raise SpecError(
                f"state '{name}' is never updated",
                place=place,
                remedy=f"add a site called {name} in a level's section",
            )
        section = lines[name][0]
        low = levels.index(scope) + 1 if scope in levels else 0
        high = levels.index(section) + 1 if section in levels else 0
        if high <= low:
            raise SpecError(
                f"state '{name}' of [{scope}] is updated in [{section}], which is not inside it",
                place=place,
                remedy="update a state in a level inside its scope",
            )
        states[name] = State(name, scope, start, section, levels[low:high], place)
    return states
