"""The lines of a program that its output depends on."""

from __future__ import annotations

from specs.nodes import Last, Name, Node, Prev
from specs.program import Program


def upstream(program: Program) -> dict[str, Node]:
    """The lines that the output depends on, without those above the score."""
    return _above(program, "output", program.score_site())


def of_logits(program: Program) -> dict[str, Node]:
    """The line of the score, and those that it depends on."""
    score = program.score_site()
    return _above(program, score, "") if score else {}


def _above(program: Program, start: str, fed: str) -> dict[str, Node]:
    states = program.states
    found: dict[str, Node] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        if name in found or name not in program.sites or name == fed:
            continue
        found[name] = program.sites[name].expr
        for n in found[name].walk():
            match n:
                case Name(id=other):
                    todo.append(other)
                case Prev(state=other) | Last(state=other):
                    todo += [other, *(x.id for x in states[other].start.walk() if isinstance(x, Name))]
                case _:
                    pass
    return found
