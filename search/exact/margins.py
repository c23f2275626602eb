"""How far the values that a narrow rounding takes in are from where it would go the other way.

A witness whose weights sit next to the midpoints of bf16 may part two backends only as long as exp is the function
that the spec names: another exp moves each weight by some units in the last place. A rounding of x to p bits keeps
its result while x moves by less than its distance from the nearest midpoint (from the nearest value, where the
format rounds toward zero).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from search.exact import elementary
from search.exact.dyadic import Number, exponent, to_fraction
from search.exact.operations import WIDE
from search.exact.replay import Replay, Row
from specs.formats import Format
from specs.nodes import Cast, Last, Name, Node, Op, Prev, Reduce
from specs.program import DIM, TOKEN, Program, Site, Type
from verify.definition import Walker

EXPONENTIALS = frozenset(
    ("exp", "exp2", "triton.exp", "mufu.ex2", "cuda.expf", "cuda.fast_expf", "fa4.exp2", "torch.fexp_u20")
    + ("glibc.expf",)
)
#: f32 ulps by which ex2.approx may be off.
RISK = 2
_BITS = 256


@dataclass(frozen=True)
class Margin:
    """The roundings of one place of a spec to a format narrower than its arithmetic.

    Attributes:
        site: the line.
        format: what it rounds to.
        of_exp: whether what it rounds is itself the result of an exponential.
        shielded: whether every exponential that the value depends on is rounded by another such place first, so
            that the value moves only if a rounding there changes.
        count: roundings whose result is used; a weight that meets a value of 0 and nothing else is not.
        distance: the smallest distance from where the rounding goes the other way, in units in the last place of
            the arithmetic's format at the value, as "num/den"; None where ``count`` is 0.
        token: where: the number of the token, None where the place has no tokens.
        value: there: what is rounded, as "num/den".
        at_risk: roundings with a distance of at most 2 units: those that an exponential of that error may turn.
    """

    site: str
    format: str
    of_exp: bool
    shielded: bool
    count: int
    distance: str | None
    token: int | None
    value: str | None
    at_risk: int


@dataclass(frozen=True)
class Margins:
    """All narrow roundings before the last one.

    Attributes:
        places: those that were measured.
        unmeasured: lines with narrow roundings inside a sum or a borrowed function, which were not.
        survives: the most ulps by which every exponential may be off without any narrow rounding changing. None
            where that does not follow: a place is unmeasured, or takes in exponentials unshielded.
    """

    places: tuple[Margin, ...]
    unmeasured: tuple[str, ...]
    survives: int | None


def margins(found: Replay, row: Row) -> Margins:
    """The margins of a replayed side."""
    program = found.program
    lines = _reachable(program, found.site)
    places: list[Margin] = []
    unmeasured: list[str] = []
    for site in lines:
        for number, node in enumerate(_narrow(site.expr, program.compute)):
            first = _inside_first(site.expr, node)
            margin = None if first else _measured(found, row, site, node, number, lines)
            if margin is not None:
                places.append(margin)
            elif _exposed(program, node, set()):
                unmeasured.append(site.name)
    tolerated = [_tolerated(Fraction(m.distance)) for m in places if m.of_exp and m.distance is not None]
    open_ = [m for m in places if not m.of_exp and not m.shielded and m.count]
    known = not unmeasured and not open_ and bool(tolerated)
    return Margins(
        tuple(places), tuple(dict.fromkeys(unmeasured)), min(tolerated) if known else None
    )


def _tolerated(distance: Fraction) -> int:
    """The largest whole number of ulps below ``distance``."""
    return max(0, -(-distance.numerator // distance.denominator) - 1)


# -- which lines, which nodes -------------------------------------------------------------------------------


def _reachable(program: Program, root: str) -> list[Site]:
    """The lines that ``root`` depends on, itself included, in the order of the file."""
    seen: set[str] = set()
    open_ = [root]
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        open_ += _referred(program, program.sites[name].expr)
        if name in program.states:
            open_ += _referred(program, program.states[name].start)
    return [site for site in program.sites.values() if site.name in seen]


def _referred(program: Program, expr: Node) -> list[str]:
    names = [n.id for n in expr.walk() if isinstance(n, Name)]
    names += [n.state for n in expr.walk() if isinstance(n, Prev | Last)]
    return [name for name in names if name in program.sites]


def _narrow(expr: Node, compute: Format) -> Iterator[Node]:
    """The nodes that round to fewer bits than ``compute`` has."""
    for n in expr.walk():
        fmt = n.format if isinstance(n, Cast | Op | Reduce) else None
        if fmt is not None and fmt.p < compute.p:
            yield n


def _inside_first(expr: Node, node: Node) -> bool:
    firsts = [n.first for n in expr.walk() if isinstance(n, Reduce) and n.first is not None]
    return any(node in first.walk() for first in firsts)


def _is_exponential(program: Program, node: Node) -> bool:
    if isinstance(node, Name) and node.id in program.sites:
        return _is_exponential(program, program.sites[node.id].expr)
    return isinstance(node, Op) and node.op in EXPONENTIALS


def _exposed(program: Program, node: Node, seen: set[str]) -> bool:
    """Whether ``node`` depends on an exponential that no narrow rounding of its own shields."""
    if isinstance(node, Cast) and node.format.p < program.compute.p and _is_exponential(program, node.arg):
        return False
    if isinstance(node, Op) and node.op in EXPONENTIALS:
        return node.format is None or node.format.p >= program.compute.p
    below: list[Node] = list(node.children())
    for name in [node.id] if isinstance(node, Name) else [node.state] if isinstance(node, Prev | Last) else []:
        if name in program.sites and name not in seen:
            seen.add(name)
            below.append(program.sites[name].expr)
    return any(_exposed(program, n, seen) for n in below)


def _only_times_v(lines: list[Site], site: Site, node: Node) -> bool:
    """Whether a value is used as a factor of ``v`` and nowhere else."""
    whole = site.expr == node
    uses = 0
    for line in lines:
        for n in line.expr.walk():
            product = (isinstance(n, Op) and n.op in ("*", "mul")) or (isinstance(n, Reduce) and n.kind == "dot")
            factors = n.args if isinstance(n, Op | Reduce) else ()
            with_v = product and any(isinstance(a, Name) and a.id == "v" for a in factors)
            for child in n.children():
                same = child == node and line is site
                if (whole and isinstance(child, Name) and child.id == site.name) or (same and not whole):
                    if not with_v:
                        return False
                    uses += 1
    return uses > 0


# -- the values -------------------------------------------------------------------------------------------


def _measured(
    found: Replay, row: Row, site: Site, node: Node, number: int, lines: list[Site]
) -> Margin | None:
    """The margin of one node; None where the exact value that it rounds is out of reach."""
    program = found.program
    match node:
        case Cast(arg=arg, format=fmt):
            args, wide = (arg,), None
        case Op(op=op, args=args, format=fmt) if fmt is not None and op in WIDE:
            wide = WIDE[op](_BITS)
        case Op(op=op, args=args, format=fmt) if fmt is not None and op in elementary.BALLS:
            name = op
            wide = lambda x: elementary.wide(name, x, _BITS)  # noqa: E731
        case _:
            return None
    types = [_type(program, arg) for arg in args]
    extra = [
        Site(f"margin {site.name} {number} {i}", site.section, arg, type_, site.place)
        for i, (arg, type_) in enumerate(zip(args, types, strict=True))
        if type_ is not None and type_.kind == "float"
    ]
    if len(extra) < len(args):  # a number or an integer: no exponential moves it
        return None
    program = replace(program, sites={**program.sites, **{s.name: s for s in extra}})
    walker = found.walker
    walker.program = program  # it compiles a line when that is first read
    axes = frozenset[str]().union(*(s.type.axes for s in extra))
    times_v = _only_times_v(lines, site, node) and TOKEN in axes
    of_exp = _is_exponential(program, args[0]) if isinstance(node, Cast) else (
        isinstance(node, Op) and node.op in EXPONENTIALS
    )
    smallest: tuple[Fraction, int | None, Number] | None = None
    count = at_risk = 0
    known: dict[Number, Fraction] = {}
    used: list[bool] = row.v.any(axis=1).tolist()
    for token, index in _positions(walker, axes, len(row.values)):
        if times_v and token is not None and not used[token]:
            continue
        xs = [walker.read(s.name)(index) for s in extra]
        x: Number = xs[0] if wide is None else wide(*xs)
        if not x[0]:
            continue
        if x not in known:
            known[x] = _distance(x, fmt, program.compute)
        apart = known[x]
        count += 1
        at_risk += apart <= RISK
        if smallest is None or apart < smallest[0]:
            smallest = apart, token, x
    shielded = not of_exp and not any(_exposed(program, a, set()) for a in args)
    if smallest is None:
        return Margin(site.name, fmt.name, of_exp, shielded, 0, None, None, None, 0)
    apart, token, x = smallest
    value = f"{to_fraction(x).numerator}/{to_fraction(x).denominator}"
    return Margin(
        site.name, fmt.name, of_exp, shielded, count, f"{apart.numerator}/{apart.denominator}", token, value, at_risk
    )


def _type(program: Program, node: Node) -> Type | None:
    if isinstance(node, Name) and node.id in program.sites:
        return program.sites[node.id].type
    return program.types.get(node)


def _positions(walker: Walker, axes: frozenset[str], dims: int) -> Iterator[tuple[int | None, list[Any]]]:
    """Every index at which a value with ``axes`` stands, and the number of its token."""
    layout = walker.layout
    others = [a for a in layout.axes if a in axes and a != DIM]
    slots = layout.slots(others)
    around = layout.slots(layout.around(TOKEN)) if TOKEN in axes else None
    for point in layout.points(others, frozenset(others), walker.index({})):
        index = walker.index({})
        for slot, i in zip(slots, point, strict=True):
            index[slot] = i
        token = None if around is None else int(layout.tokens[tuple(index[s] for s in around)])
        for column in range(dims) if DIM in axes else (None,):
            if column is not None:
                index[layout.slot[DIM]] = column
            yield token, index


def _distance(x: Number, fmt: Format, compute: Format) -> Fraction:
    """From ``x`` to where its rounding to ``fmt`` changes, in ulps of ``compute`` at ``x``."""
    value = abs(to_fraction(x))
    binade = exponent(x)
    step = _power(max(binade, fmt.emin) - fmt.p + 1)
    edge = Fraction(0) if fmt.rz else Fraction(1, 2)
    places = value / step - edge
    below = places.numerator // places.denominator
    apart = min(places - below, below + 1 - places)
    if not fmt.rz and binade > fmt.emin:
        # Below a power of two the values of the format are twice as dense, and the midpoint is nearer.
        apart = min(apart, (value - _power(binade)) / step + Fraction(1, 4))
    return apart * step / _power(max(binade, compute.emin) - compute.p + 1)


def _power(exponent_: int) -> Fraction:
    return Fraction(1 << exponent_) if exponent_ >= 0 else Fraction(1, 1 << -exponent_)
