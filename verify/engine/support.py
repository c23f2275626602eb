"""What the array engine can evaluate, decided before anything is compiled. The rest is refused by name."""

from __future__ import annotations

from specs.dot_products import DotProduct, find
from specs.errors import Place, UnsupportedError
from specs.formats import BASES, Format
from specs.names import SCALARS
from specs.nodes import At, Last, Name, Node, Num, Op, Prev, Reduce, Tree
from specs.program import CONSTANTS, DEPTH, TOKEN, Program, Site
from verify.engine.folds import fold_sites
from verify.engine.special import FUNCTIONS, refusal

#: Operations that the carriers implement.
OPERATIONS = frozenset(
    {"+", "-", "*", "/", "neg", "fma", "exp", "exp2", "log", "rcp", "sqrt", "min", "max", "isnan", "abs"}
    | FUNCTIONS.keys()
)
INTEGER = frozenset({"//", "%", "^", "ceildiv"})
_ORACLE = 'the scalar oracle may have it (backend="oracle"); the array engine does not yet'


def check_supported(program: Program) -> None:
    """Refuse a program with a construct that the array engine cannot evaluate.

    Raises:
        UnsupportedError: with the place of the first such construct.
    """
    flushing = program.compute.ftz and program.compute.base != "f32"
    if flushing or program.compute.rz or program.compute.base not in ("f32", "f64"):
        raise UnsupportedError(
            f"{program.spec} computes in {program.compute}",
            place="numbers.compute",
            remedy="the array engine computes in f32, f32.ftz and f64",
        )
    for name, fmt in program.inputs.items():
        if not program.compute.holds(fmt):
            raise UnsupportedError(
                f"{name} comes in {fmt}, which {program.compute} does not hold",
                place="numbers.inputs",
                remedy=_ORACLE,
            )
    fold_sites(program)
    for site in program.sites.values():
        factors: set[int] = set()
        for node in site.expr.walk():
            reason = _refusal(node, program)
            if isinstance(node, Reduce):
                factors |= {id(x) for f in (sum_factors(node) or ()) for x in f.walk()}
                if node.kind in ("sum", "dot"):  # rows of V may be added as they are
                    factors |= {
                        id(x) for f in node.args for x in f.walk() if isinstance(x, Name) and x.id == "v"
                    }
            elif isinstance(node, Name) and node.id in ("k", "v") and id(node) not in factors:
                reason = f"{node.id} outside a sum of its products"
            if reason:
                raise UnsupportedError(f"{site.name}: {reason}", place=_place(site, node), remedy=_ORACLE)
            if isinstance(node, Reduce):
                _check_dots(node, program, _place(site, node))


def _check_dots(n: Reduce, program: Program, place: Place) -> None:
    """Refuse tensor-core instructions that the platform does not have."""
    factors = sum_factors(n)
    for tree in n.tree.walk() if n.tree is not None else ():
        if isinstance(tree, Tree) and tree.kind == "mma" and factors is not None:
            try:
                dot_product(program, n, factors, tree)
            except UnsupportedError as error:
                raise UnsupportedError(error.cause, place=place, remedy=error.remedy) from None


def dot_product(
    program: Program, n: Reduce, factors: tuple[Node, Node], tree: Tree
) -> tuple[DotProduct, Format, Format, Format]:
    """The arithmetic of an ``mma`` tree of ``n``, and the formats of its factors and of its accumulator.

    Raises:
        UnsupportedError: the platform does not have it.
    """
    a, b = (BASES[factor_format(program, x).base] for x in factors)
    if isinstance(factors[0], Num):  # a literal takes the format of the other factor
        a = b
    elif isinstance(factors[1], Num):
        b = a
    out = BASES[(n.format or program.compute).base]
    return find(program.dot_products, tree.instruction, a, b, out, integer(tree.ints[0])), a, b, out


def factor_format(program: Program, x: Node) -> Format:
    """The format of the values of a float expression."""
    if isinstance(x, Name) and x.id in program.inputs:
        return program.inputs[x.id]
    known = program.types.get(x)
    return (known.format if known is not None else None) or program.compute


def integer(node: object) -> int:
    """The value of a literal."""
    assert isinstance(node, Num), node
    return int(node.text)


def sum_factors(n: Reduce) -> tuple[Node, Node] | None:
    """The two factors of a sum of products: of ``sum(a * b, ...)`` or ``dot(a, b, ...)``."""
    if n.kind == "dot":
        return n.args[0], n.args[1]
    arg = n.args[0]
    if n.kind == "sum" and isinstance(arg, Op) and arg.op == "*" and arg.format is None:
        return arg.args[0], arg.args[1]
    return None


def _depth_refusal(n: Reduce) -> str:
    """Sums over head_dim are dot products of something in q with k itself."""
    factors = sum_factors(n)
    if set(n.over or ()) != {DEPTH}:
        return "a sum over head_dim and tokens at once"
    if n.start is not None or n.first is not None or n.by is not None:
        return "a sum over head_dim with start=, first= or by="
    if factors is None or not any(reads(f, "k") for f in factors):
        return "a sum over head_dim that is not sum(... q ... * k, tree)"
    return ""


def _value_refusal(n: Reduce, program: Program) -> str:
    """Elements of V are read one by one: what is made of them before they are weighted may use constants only."""
    pair = sum_factors(n)
    terms = pair if pair is not None and any(reads(x, "v") for x in pair) else n.args
    for term in terms:
        if not reads(term, "v"):
            continue
        for x in term.walk():
            if isinstance(x, Name) and x.id != "v" and not _is_constant(x, program):
                return f"a sum of an expression of both v and {x.id}, other than their product"
            if isinstance(x, Reduce | At | Last | Prev):
                return "a sum of an expression of v and of another reduction or state"
    return ""


def _is_constant(x: Name, program: Program) -> bool:
    """Whether a name is one number for the whole problem."""
    site = program.sites.get(x.id)
    return x.id in (*SCALARS, "inf", "nan") if site is None else site.section == CONSTANTS


def _place(site: Site, node: Node) -> Place:
    place = site.place
    column = place.column + getattr(node, "at", 0) if place.column else 0
    return Place(place.file, place.line, column)


def _refusal(n: Node, program: Program) -> str:
    match n:
        case At(moves=moves) if any(axis == TOKEN for axis, _ in moves):
            return "at() along tokens"
        case At(arg=arg, moves=moves) if reads(arg, "v") or (
            reads(arg, "k") and [a for a, _ in moves] != [DEPTH]
        ):
            return "at() of K or V along another axis than head_dim"
        case Op(op=op) if op not in OPERATIONS | INTEGER and program.types[n].kind == "float":
            return f"{op}()"
        case Op(op="exp" | "exp2" | "log") if (fmt := program.types[n].format or program.compute).rz:
            return f"{n.op}() rounded toward zero, in {fmt}"
        case Op(op=op) if op in FUNCTIONS:
            return refusal(op, program.types[n].format or program.compute)
        case Reduce(tree=tree) if tree is not None:
            if tree.kind == "any":
                return "the tree any()"
            if tree.kind == "exact" and program.compute.base == "f64":
                return "exact() in f64"
            for inside in tree.walk():
                if isinstance(inside, Tree) and inside is not tree and inside.kind in ("any", "exact"):
                    return f"the tree {inside.kind}() inside another"
            if n.over is not None and DEPTH in n.over:
                return _depth_refusal(n)
            return _value_refusal(n, program)
        case _:
            return ""


def by_key(n: Reduce) -> tuple[Node, Node]:
    """The factors of a dot product over head_dim: what is made of q, and what of k."""
    pair = sum_factors(n)
    assert pair is not None
    return pair if reads(pair[1], "k") else (pair[1], pair[0])


def reads(n: Node, name: str) -> bool:
    """Whether an expression reads the input ``name`` itself."""
    return any(isinstance(x, Name) and x.id == name for x in n.walk())
