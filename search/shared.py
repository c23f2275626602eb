"""Lines that two sides compute alike, bit for bit: their roundings part nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from search.lines import of_logits
from search.sides import Side
from search.tape import APPROXIMATE
from specs.dot_products import DotProduct
from specs.nodes import Cast, Last, Name, Node, Op, Prev, Tree
from specs.program import Program


def shared_lines(a: Side, b: Side, p: Program, q: Program, context: Mapping[str, Any]) -> frozenset[str]:
    """The lines that are the same in both programs, and so is all that they read, on the same partition.

    Args:
        a, b: the sides.
        p, q: their programs.
        context: as for `Side.program`.

    Returns:
        names of lines; none where the partitions, the views or the formats of the inputs differ.
    """
    views = [{n: (v.size, v.axis, v.index) for n, v in x.views.items()} for x in (p, q)]
    if (p.compute, p.inputs) != (q.compute, q.inputs) or views[0] != views[1]:
        return frozenset()
    if not same_plan(a, b, context):
        return frozenset()
    found = {
        n for n in p.sites if n in q.sites and _same_line(p, q, n) and same_machine(_nodes(p, n), p, a, b)
    }
    while True:
        kept = {n for n in found if _reads(p, n) <= found}
        if kept == found:
            return frozenset(found)
        found = kept


def same_logits(a: Side, b: Side, context: Mapping[str, Any]) -> bool:
    """Whether both sides make the same scores of the same q and k: by the same lines, on machines that compute them alike.

    Where they do not, products of q and k that cancel can move a score by any amount, and there is no bound.
    """
    p, q = a.program(context), b.program(context)
    mine = of_logits(p)
    nodes = [n for line in mine.values() for n in line.walk()]
    same = mine == of_logits(q) and (p.compute, p.inputs) == (q.compute, q.inputs)
    return same and same_machine(nodes, p, a, b)


def same_plan(a: Side, b: Side, context: Mapping[str, Any]) -> bool:
    """Whether both sides give every piece the same tokens, in the same order."""
    p, q = a.plan(context), b.plan(context)
    return (
        p.levels == q.levels
        and np.array_equal(p.tokens, q.tokens)
        and all(np.array_equal(p.exists[name], q.exists[name]) for name in p.levels)
    )


def same_machine(nodes: list[Node], program: Program, a: Side, b: Side) -> bool:
    """Whether the platforms compute these nodes alike: their tensor cores and the functions of the hardware."""
    instructions = {n.instruction for n in nodes if isinstance(n, Tree) and n.kind == "mma"}
    casts = {
        n.format.base for site in program.sites.values() for n in site.expr.walk() if isinstance(n, Cast)
    }
    used = instructions, casts | {fmt.base for fmt in program.inputs.values()}
    functions = any(isinstance(n, Op) and n.op in APPROXIMATE for n in nodes)
    return _dots(a, used) == _dots(b, used) and (
        not functions or a.platform.special_functions == b.platform.special_functions
    )


def _dots(side: Side, used: tuple[set[str], set[str]]) -> list[dict[str, Any]]:
    """The arithmetic of these instructions on factors of these formats, whatever is known of where it comes from."""
    instructions, formats = used
    dots: tuple[DotProduct, ...] = side.platform.dot_products
    found = (d for d in dots if d.instruction in instructions and formats & set(d.inputs))
    return [d.model_dump(exclude={"evidence"}) for d in found]


def _same_line(p: Program, q: Program, name: str) -> bool:
    one, other = p.sites[name], q.sites[name]
    if (one.expr, one.section, one.type) != (other.expr, other.section, other.type):
        return False
    if (name in p.states) != (name in q.states):
        return False
    if name not in p.states:
        return True
    return (p.states[name].scope, p.states[name].start) == (q.states[name].scope, q.states[name].start)


def _nodes(program: Program, name: str) -> list[Node]:
    nodes = list(program.sites[name].expr.walk())
    return nodes + (list(program.states[name].start.walk()) if name in program.states else [])


def _reads(program: Program, name: str) -> set[str]:
    """The lines that a line reads."""
    out: set[str] = set()
    for n in _nodes(program, name):
        match n:
            case Name(id=other):
                out.add(other)
            case Prev(state=other) | Last(state=other):
                out.add(other)
            case _:
                pass
    return out & set(program.sites)
