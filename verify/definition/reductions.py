"""``sum``, ``dot``, ``max`` and ``any`` as closures: list the terms where they exist, then fold them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from specs.formats import Format
from specs.names import is_literal, is_mma
from specs.nodes import Reduce, Tree
from specs.program import ROW
from verify.definition.layout import Index, Point, Read, getter, move

if TYPE_CHECKING:
    from verify.definition.expressions import Float, Line

Terms = Callable[[Index], list[Any]]


def total(line: Line, n: Reduce) -> Float:
    """``sum`` and ``dot``, folded by their tree."""
    fmt = n.format or line.format
    tree = n.tree
    assert tree is not None
    fused = n.kind == "dot" and any(is_mma(t) for t in tree.walk())

    def factors(here: Line) -> list[Float]:
        return _factors(here, n) if fused else [here.number(a) for a in n.args]

    formats = [f for _, f in factors(line)]
    terms = _terms(line, n, lambda here: [read for read, _ in factors(here)])
    if n.first is not None:
        return _with_first(line, n, tree, terms, formats)
    start: Read = lambda index: None  # noqa: E731
    if n.start is not None:
        start, start_format = line.number(n.start)
        formats.append(start_format)
    fold = line.ask(n, line.arithmetic.fold, tree, n.kind, formats, fmt, line.program.dot_products)
    return lambda index: line.ask(n, fold, terms(index), start(index)), fmt


def _factors(line: Line, n: Reduce) -> list[Float]:
    """The factors of an ``mma`` tree in the formats that the instruction takes: a literal takes the other's."""
    literal = [is_literal(a) for a in n.args]
    formats = [line.format_of(a) for a in n.args]
    if literal == [True, False] or literal == [False, True]:
        formats = [formats[literal.index(False)]] * 2
    return [
        line.literal(a, fmt) if known else (line.number(a)[0], fmt)
        for a, fmt, known in zip(n.args, formats, literal, strict=True)
    ]


def _with_first(line: Line, n: Reduce, tree: Tree, terms: Terms, formats: list[Format]) -> Float:
    """A sum whose first term is replaced by ``first``, a function of it; the term is +0 where there is none.

    ``seq()`` then begins with that value itself, not with +0.
    """
    assert n.first is not None
    if n.kind != "sum" or n.start is not None:
        line.refuse(
            n, "first= stands with sum() and without start=", "write the product as a site of its own"
        )
    fmt = n.format or line.format
    line.it = line.join(*formats)
    first, first_format = line.number(n.first)
    fold = line.ask(n, line.arithmetic.fold, tree, "sum", [*formats, first_format], fmt, ())
    zero, slot = line.arithmetic.number(Fraction(0), fmt), line.walker.it

    def read(index: Index) -> Any:
        found, there = terms(index), index.copy()
        there[slot] = found[0] if found else zero
        head = first(there)
        if tree.kind == "seq":
            return line.ask(n, fold, found[1:], head)
        return line.ask(n, fold, [head, *found[1:]], None)

    return read, fmt


def maximum(line: Line, n: Reduce) -> Float:
    """``max``: -inf over nothing; NaN if any term is NaN; +0 above -0."""
    fmt = line.number(n.args[0])[1]
    terms = _terms(line, n, lambda here: [here.number(n.args[0])[0]])
    larger = line.ask(n, line.arithmetic.operation, "max", [fmt, fmt], fmt)
    lowest = line.ask(n, line.arithmetic.special, float("-inf"), fmt)

    def read(index: Index) -> Any:
        best = lowest
        for term in terms(index):
            best = larger(best, term)
        return best

    return read, fmt


def any_(line: Line, n: Reduce) -> Read:
    """``any``: whether some term holds; false over nothing."""
    terms, logic = _terms(line, n, lambda here: [here.condition(n.args[0])]), line.arithmetic.logic

    def read(index: Index) -> Any:
        found = terms(index)
        if any(c is True for c in found):
            return True
        undecided = [c for c in found if not isinstance(c, bool)]
        return logic("or", undecided) if undecided else False

    return read


def _terms(line: Line, n: Reduce, reads: Callable[[Line], list[Read]]) -> Terms:
    """The terms in visiting order: values, or pairs of factors for ``dot``; with ``over=row`` row after row.

    ``reads`` compiles the operands in a line of one row.
    """
    if ROW not in (n.over or ()):
        return _listed(line, n, reads(line))
    # The same terms for every row of the block: one list of readers, and each list of terms made once.
    block = line.walker.block
    key = line.section, n
    if key not in block.terms:
        fixed = getter(line.layout.slots(frozenset(line.program.axes) - set(n.over or ())))
        block.terms[key] = _shared([_listed(here, n, reads(here)) for here in block.lines(line)], fixed)
    return block.terms[key]


def _shared(rows: list[Terms], fixed: Callable[[Index], Any]) -> Terms:
    known: dict[Any, list[Any]] = {}

    def terms(index: Index) -> list[Any]:
        key = fixed(index)
        if key not in known:
            known[key] = [term for row in rows for term in row(index)]
        return known[key]

    return terms


def _listed(line: Line, n: Reduce, reads: list[Read]) -> Terms:
    """The terms of one row."""
    slots, points = _positions(line, n)
    read: Read = reads[0]
    if len(reads) == 2:
        a, b = reads
        read = lambda index: (a(index), b(index))  # noqa: E731

    def terms(index: Index) -> list[Any]:
        there = index.copy()
        found: list[Any] = []
        for point in points(index):
            move(there, slots, point)
            found.append(read(there))
        return found

    return terms


def _positions(line: Line, n: Reduce) -> tuple[list[int], Callable[[Index], list[Point]]]:
    """The slots that ``n`` runs over, and a function that lists the positions of its terms."""
    layout, program = line.layout, line.program
    over = tuple(a for a in n.over or () if a != ROW)
    axes = frozenset[str]().union(*(program.types[a].axes for a in n.args))
    chain = layout.around(layout.deepest(axes | set(over)))
    loose = [a for a in chain if a not in axes and a not in over]
    if loose and any(a in chain for a in over):
        line.refuse(
            n, f"the terms do not depend on '{loose[0]}'", f"give them a factor that differs by {loose[0]}"
        )
    fixed = getter(layout.slots([a for a in chain if a not in over]))
    slots = [layout.slot[a] for a in over]
    lists: dict[Any, list[Point]] = {}

    def points(index: Index) -> list[Point]:
        key = fixed(index)
        if key not in lists:
            lists[key] = layout.points(over, axes, index)
        return lists[key]

    if n.by is None:
        return slots, points
    view = program.views[n.by]
    colour, mine = line.integer(view.index), itemgetter(layout.slot[view.name])
    coloured: dict[Any, list[Point]] = {}

    def of_colour(index: Index) -> list[Point]:
        key = fixed(index), mine(index)
        if key not in coloured:
            there, kept = index.copy(), list[Point]()
            for point in points(index):
                move(there, slots, point)
                if colour(there) == key[1]:
                    kept.append(point)
            coloured[key] = kept
        return coloured[key]

    return slots, of_colour
