"""Choices in a spec that depend on data or on positions: where roundings found on a few tokens may not be all there are.

The roundings of a spec are counted on a small instance (`search.sensitivity`). A ``select`` whose condition only guards
against the empty and the undefined (minus infinity, NaN, a sum of 0, a token that is not seen) takes one and the same
branch wherever there is something to bound. Any other condition may take a branch on other data, or at another position,
that the small instance never saw; so may a ``min`` or ``max`` of two lines that is no running maximum.
"""

from __future__ import annotations

from collections.abc import Mapping

from specs.nodes import Cmp, Logic, Name, Node, Num, Op, Owns, Prev, Reduce, Select
from specs.program import TOKEN, Program


def open_choice(program: Program, lines: Mapping[str, Node]) -> str:
    """The name of the first line with a choice that is no guard, or nothing.

    Args:
        program: a bound program.
        lines: those that the output depends on (`search.lines.upstream`).
    """
    for name, line in lines.items():
        for n in line.walk():
            if isinstance(n, Select) and not _guards(n.cond, program, frozenset()):
                return name
            if isinstance(n, Op) and n.op in ("min", "max") and not _running(n, program):
                return name
    return ""


def _guards(n: Node, program: Program, above: frozenset[str]) -> bool:
    match n:
        case Name(id="visible") | Owns():
            return True
        case Name(id=name) if name in program.sites and name not in above:
            return _guards(program.sites[name].expr, program, above | {name})
        case Num(text=text):
            return text in ("true", "false")
        case Logic(args=args):
            return all(_guards(a, program, above) for a in args)
        case Reduce(kind="any", args=args):
            return all(_guards(a, program, above) for a in args)
        case Op(op="isnan"):
            return True
        case Cmp(left=left, right=right):
            sides = ((left, right), (right, left))
            return any(_infinite(x) or (_zero(x) and _joined(y, program)) for x, y in sides)
        case _:
            return False


def _infinite(n: Node) -> bool:
    inner = n.args[0] if isinstance(n, Op) and n.op == "neg" else n
    return isinstance(inner, Name) and inner.id == "inf"


def _zero(n: Node) -> bool:
    return isinstance(n, Num) and n.bits is None and float(n.text or 1) == 0.0


def _joined(n: Node, program: Program) -> bool:
    """Whether a value stands for many tokens, as sums of weights do: it is 0 only where there are none."""
    known = program.types.get(n)
    return known is not None and known.kind == "float" and TOKEN not in known.axes


def _running(n: Op, program: Program) -> bool:
    """Whether a ``max`` is exact for any data: a maximum with what came before, or of integers."""
    known = program.types.get(n)
    if known is not None and known.kind == "int":
        return True
    return n.op == "max" and any(isinstance(x, Prev) for a in n.args for x in a.walk())
