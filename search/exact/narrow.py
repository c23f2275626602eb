"""Where a spec rounds to a format narrower than its arithmetic, and which of these places an exponential can move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specs.formats import Format
from specs.nodes import Cast, Last, Name, Node, Op, Prev, Reduce
from specs.program import TOKEN, Program, Site, Type

EXPONENTIALS = frozenset(
    {"exp", "exp2", "mufu.ex2", "triton.exp", "cuda.expf", "cuda.fast_expf", "fa4.exp2", "torch.fexp_u20"}
    | {"glibc.expf"}
)


@dataclass(frozen=True)
class Narrow:
    """One node that rounds to fewer bits than the arithmetic has.

    Attributes:
        site: the line that it stands in.
        node: a cast, an operation or a reduction.
        format: what it rounds to.
        of_exp: whether it rounds the result of an exponential whose argument no other exponential moves.
        shielded: whether each exponential that it depends on is rounded by such a place before.
        only_with_v: whether its result is a factor of ``v`` and nothing else.
        operands: what it takes in, as lines of their own; empty where that is no value of one index: a term inside a
            reduction, a number, an integer.
    """

    site: Site
    node: Cast | Op | Reduce
    format: Format
    of_exp: bool
    shielded: bool
    only_with_v: bool
    operands: tuple[Site, ...]


def narrow_places(program: Program, root: str) -> list[Narrow]:
    """The places that the line ``root`` depends on, in the order of the file."""
    lines = _reachable(program, root)
    return [
        _place(program, lines, site, node) for site in lines for node in _narrow(site.expr, program.compute)
    ]


def _place(program: Program, lines: list[Site], site: Site, node: Cast | Op | Reduce) -> Narrow:
    assert node.format is not None
    of_exp = _rounds_exponential(program, node)
    return Narrow(
        site,
        node,
        node.format,
        of_exp,
        not of_exp and not any(_exposed(program, n, set()) for n in node.children()),
        TOKEN in (_type(program, node) or site.type).axes and _only_with_v(lines, site, node),
        _operands(program, site, node),
    )


def _reachable(program: Program, root: str) -> list[Site]:
    seen: set[str] = set()
    open_ = [root]
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        starts = [program.states[name].start] if name in program.states else []
        for expr in (program.sites[name].expr, *starts):
            open_ += [n for n in _mentioned(expr) if n in program.sites]
    return [site for site in program.sites.values() if site.name in seen]


def _mentioned(expr: Node) -> list[str]:
    nodes = list(expr.walk())
    names = [n.id for n in nodes if isinstance(n, Name)]
    return names + [n.state for n in nodes if isinstance(n, Prev | Last)]


def _narrow(expr: Node, compute: Format) -> Iterator[Cast | Op | Reduce]:
    for n in expr.walk():
        if isinstance(n, Cast | Op | Reduce) and n.format is not None and n.format.p < compute.p:
            yield n


def _type(program: Program, node: Node) -> Type | None:
    if isinstance(node, Name) and node.id in program.sites:
        return program.sites[node.id].type
    return program.types.get(node)


def _operands(program: Program, site: Site, node: Cast | Op | Reduce) -> tuple[Site, ...]:
    firsts = [n.first for n in site.expr.walk() if isinstance(n, Reduce) and n.first is not None]
    if isinstance(node, Reduce) or any(node in first.walk() for first in firsts):
        return ()
    found: list[Site] = []
    for i, arg in enumerate((node.arg,) if isinstance(node, Cast) else node.args):
        type_ = _type(program, arg)
        if type_ is None or type_.kind != "float":
            return ()
        found.append(Site(f"{site.name}: operand {i} at {node.at}", site.section, arg, type_, site.place))
    return tuple(found)


def _exponential(program: Program, node: Node) -> Op | None:
    """The exponential that ``node`` is, by itself or by the name of its line."""
    if isinstance(node, Name) and node.id in program.sites:
        return _exponential(program, program.sites[node.id].expr)
    return node if isinstance(node, Op) and node.op in EXPONENTIALS else None


def _rounds_exponential(program: Program, node: Node) -> bool:
    found = _exponential(program, node.arg if isinstance(node, Cast) else node)
    return found is not None and not any(_exposed(program, a, set()) for a in found.args)


def _exposed(program: Program, node: Node, seen: set[str]) -> bool:
    """Whether ``node`` depends on an exponential that no narrow rounding of its own shields."""
    narrow = isinstance(node, Cast | Op) and node.format is not None and node.format.p < program.compute.p
    if narrow and _rounds_exponential(program, node):
        return False
    if isinstance(node, Op) and node.op in EXPONENTIALS:
        return True
    below: list[Node] = list(node.children())
    name = node.id if isinstance(node, Name) else node.state if isinstance(node, Prev | Last) else ""
    if name in program.sites and name not in seen:
        seen.add(name)
        below.append(program.sites[name].expr)
        if name in program.states:
            below.append(program.states[name].start)
    return any(_exposed(program, n, seen) for n in below)


def _only_with_v(lines: list[Site], site: Site, node: Node) -> bool:
    whole = site.expr == node
    uses = 0
    for line in lines:
        for n in line.expr.walk():
            product = n.op in ("*", "mul") if isinstance(n, Op) else isinstance(n, Reduce) and n.kind == "dot"
            factors = n.args if isinstance(n, Op | Reduce) else ()
            with_v = product and any(isinstance(a, Name) and a.id == "v" for a in factors)
            for child in n.children():
                if isinstance(child, Prev | Last) and child.state == site.name:
                    return False
                named = whole and isinstance(child, Name) and child.id == site.name
                if named or (not whole and line is site and child == node):
                    if not with_v:
                        return False
                    uses += 1
    return uses > 0
