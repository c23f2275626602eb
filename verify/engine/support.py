"""What the array engine can evaluate, decided before anything is compiled. The rest is refused by name."""

from __future__ import annotations

from specs.errors import Place, UnsupportedError
from specs.nodes import At, Node, Op, Owns, Pos, Prev, Reduce
from specs.program import DEPTH, Program, Site

#: Operations that the carriers implement.
OPERATIONS = frozenset(
    {"+", "-", "*", "/", "neg", "fma", "exp", "exp2", "log", "rcp", "sqrt", "min", "max", "isnan", "abs"}
)
_ORACLE = 'the scalar oracle may have it (backend="oracle"); the array engine does not yet'


def check_supported(program: Program) -> None:
    """Refuse a program with a construct that the array engine cannot evaluate.

    Raises:
        UnsupportedError: with the place of the first such construct.
    """
    for name in program.views:
        raise UnsupportedError(f"{program.spec}: level '{name}' is a view", place="[levels]", remedy=_ORACLE)
    if program.compute.ftz or program.compute.rz or program.compute.base not in ("f32", "f64"):
        raise UnsupportedError(
            f"{program.spec} computes in {program.compute}", place="numbers.compute", remedy="the array engine computes in f32 and f64"
        )
    for site in program.sites.values():
        for node in site.expr.walk():
            reason = _refusal(node, program)
            if reason:
                raise UnsupportedError(f"{site.name}: {reason}", place=_place(site, node), remedy=_ORACLE)


def _place(site: Site, node: Node) -> Place:
    place = site.place
    column = place.column + getattr(node, "at", 0) if place.column else 0
    return Place(place.file, place.line, column)


def _refusal(n: Node, program: Program) -> str:
    match n:
        case At() | Pos() | Owns():
            return f"{type(n).__name__.lower()}() gathers or asks for a position"
        case Prev(level=level) if level is not None:
            return "prev() along one level"
        case Op(op=op) if op not in OPERATIONS:
            return f"{op}()"
        case Reduce(by=by) if by is not None:
            return "a sum by= a view"
        case Reduce(first=first) if first is not None:
            return "a sum with first="
        case Reduce(kind="any"):
            return "any()"
        case Reduce(tree=tree, args=args) if tree is not None:
            if tree.kind != "seq" or "swap" in tree.flags:
                return f"the tree {tree.kind}()"
            if n.over is not None and DEPTH in n.over and set(n.over) != {DEPTH}:
                return "a sum over head_dim and tokens at once"
            return ""
        case _:
            return ""
