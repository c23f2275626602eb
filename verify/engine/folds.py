"""Which sites belong to which loop: the states of one scope and section, and what depends on them inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specs.errors import UnsupportedError
from specs.nodes import Last, Name, Node, Prev
from specs.program import TOKEN, Program, State


@dataclass(frozen=True)
class FoldSites:
    """The states of one scope and section.

    Attributes:
        states: carried together, step by step.
        levels: the levels that the steps run over, outermost first.
        section: where the states are updated.
        dynamic: the states and the sites at or inside ``section`` that depend on them: evaluated in each step.
    """

    states: tuple[State, ...]
    levels: tuple[str, ...]
    section: str
    dynamic: frozenset[str]


def fold_sites(program: Program) -> tuple[FoldSites, ...]:
    """The loops of a program.

    A site that depends on the states of two loops belongs to the one that needs the other's result.

    Raises:
        UnsupportedError: two loops need each other in each of their steps.
    """
    groups: dict[tuple[str, str], list[State]] = {}
    for state in program.states.values():
        groups.setdefault((state.scope, state.section), []).append(state)
    names = {key: frozenset(s.name for s in states) for key, states in groups.items()}
    everywhere = {key: _dependents(program, own, program.sites) for key, own in names.items()}
    within = {key: _dependents(program, own, _inside(program, key[1])) for key, own in names.items()}
    found: list[FoldSites] = []
    for key, states in groups.items():
        later = [other for other in groups if other != key and names[other] & everywhere[key]]
        for other in later:
            if names[key] & everywhere[other]:
                first = states[0]
                raise UnsupportedError(
                    f"the states {', '.join(sorted(names[key] | names[other]))} depend on each other across scopes",
                    place=first.place,
                    remedy='the scalar oracle may have it (backend="oracle"); the array engine does not yet',
                )
        dynamic = within[key].difference(*(within[other] for other in later))
        found.append(FoldSites(tuple(states), states[0].levels, key[1], dynamic))
    return tuple(found)


def outside_uses(program: Program, folds: tuple[FoldSites, ...]) -> frozenset[str]:
    """Sites of a loop that lines outside of it read by name."""
    used: set[str] = set()
    for fold in folds:
        lines = [site.expr for name, site in program.sites.items() if name not in fold.dynamic]
        lines += [state.start for state in program.states.values()]
        used |= {n.id for line in lines for n in line.walk() if isinstance(n, Name)} & fold.dynamic
    return frozenset(used)


def _inside(program: Program, section: str) -> tuple[str, ...]:
    """The sites of ``section`` and of everything inside it."""
    sections = {*program.level_names[program.level_names.index(section) :], TOKEN}
    return tuple(name for name, site in program.sites.items() if site.section in sections)


def _dependents(
    program: Program, states: frozenset[str], among: tuple[str, ...] | Mapping[str, object]
) -> frozenset[str]:
    """``states`` and the sites of ``among`` that read them, one through the other."""
    found = set(states)
    grown = True
    while grown:
        grown = False
        for name in among:
            if name not in found and any(_reads(n, found) for n in program.sites[name].expr.walk()):
                found.add(name)
                grown = True
    return frozenset(found)


def _reads(n: Node, names: set[str]) -> bool:
    match n:
        case Prev(state=state) | Last(state=state):
            return state in names
        case Name(id=name):
            return name in names
        case _:
            return False
