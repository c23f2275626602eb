"""What a group hands to the merge, read off a typed spec: the numbers that split-KV decode writes to memory."""

from __future__ import annotations

from specs.nodes import Last, Name, Node, Prev
from specs.program import CONSTANTS, DIM, ROW, TOKEN, Program
from verify.traffic import PartialField


def reads(node: Node) -> set[str]:
    """Every site, state and input that a line reads."""
    found: set[str] = set()
    for n in node.walk():
        match n:
            case Name(id=name):
                found.add(name)
            case Prev(state=state) | Last(state=state):
                found.add(state)
            case _:
                pass
    return found


def partial_fields(program: Program) -> tuple[PartialField, ...]:
    """What one group hands to the merge, in the formats of the spec.

    The merge is the row's section and every site that carries state of the row; a field is a site of a level
    that the merge reads and that does not itself carry that state. A spec whose state reads tokens directly
    (online softmax) has no partial.
    """
    inner = {s.name for s in program.sites.values() if s.section not in (ROW, TOKEN, CONSTANTS)}
    carried = {name for name, state in program.states.items() if state.scope == ROW}
    while more := {n for n in inner - carried if reads(program.sites[n].expr) & carried}:
        carried |= more
    merging = [s for s in program.sites.values() if s.section == ROW or s.name in carried]
    read = {name for site in merging for name in reads(site.expr)}
    return tuple(
        PartialField(site.name, site.type.format.bits, DIM in site.type.axes)
        for site in program.sites.values()
        if site.name in read & inner - carried and site.type.format is not None
    )
