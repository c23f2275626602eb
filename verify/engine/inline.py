"""Lines that hold every element of K or V, put where they are read: the engine never lays such an array out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from specs.nodes import Name, Node, Reduce
from specs.program import Program, Type


def element_sites(program: Program) -> frozenset[str]:
    """The sites that are made of ``k`` or ``v`` element by element, one through the other."""
    found: set[str] = set()
    grown = True
    while grown:
        grown = False
        for name, site in program.sites.items():
            if name not in found and _reads_elements(site.expr, found):
                found.add(name)
                grown = True
    return frozenset(found)


def inlined(program: Program) -> Program:
    """The program with `element_sites` written out where they are read, and gone."""
    gone = element_sites(program)
    if not gone:
        return program
    types = dict(program.types)

    def put(n: Node) -> Node:
        if isinstance(n, Name) and n.id in gone:
            return put(program.sites[n.id].expr)
        changes: dict[str, Any] = {}
        for f in fields(n):
            value: Any = getattr(n, f.name)
            if isinstance(value, Node):
                new: Any = put(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                new = tuple(put(x) for x in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            else:
                continue
            if new != value:
                changes[f.name] = new
        if not changes:
            return n
        written = replace(n, **changes)
        known: Type | None = types.get(n)
        if known is not None:
            types[written] = known
        return written

    sites = {name: replace(s, expr=put(s.expr)) for name, s in program.sites.items() if name not in gone}
    return replace(program, sites=sites, types=types)


def _reads_elements(n: Node, found: set[str]) -> bool:
    """Whether ``n`` reads k, v or one of ``found`` outside of every sum."""
    if isinstance(n, Reduce):
        return False
    if isinstance(n, Name):
        return n.id in ("k", "v") or n.id in found
    return any(_reads_elements(child, found) for child in n.children())
