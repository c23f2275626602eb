"""What the integers of a bound expression must be: sizes and strides of trees, and divisors.

They are checked once they are literals, so both walkers may rely on them.
"""

from __future__ import annotations

from typing import NoReturn

from specs.errors import Place, SpecError
from specs.nodes import Node, Num, Op, Tree

#: The largest size or stride of a tree.
MAX_TREE_INT = 1 << 16
_DIVISIONS = frozenset({"//", "%", "ceildiv"})


def check_bounds(expr: Node, place: Place) -> None:
    """Refuse integers that have no meaning where they stand in a bound expression.

    Args:
        expr: an expression whose integers are folded.
        place: where its text begins.

    Raises:
        SpecError: a size or stride of a tree that is no whole number from 1 to 65536; strides of a butterfly that
            are no powers of two or repeat; a divisor that is zero or not known when the spec is bound.
    """
    for n in expr.walk():
        if isinstance(n, Tree):
            _check_tree(n, place)
        elif isinstance(n, Op) and n.op in _DIVISIONS and n.format is None and len(n.args) == 2:
            divisor = _literal(n.args[1])
            if divisor == 0:
                _fail(n, place, f"division by zero in {n.op}", "divide by a whole number other than 0")
            if divisor is None:
                _fail(
                    n,
                    place,
                    f"the divisor of {n.op} is not known when the spec is bound, and may be zero",
                    "divide by a literal or by an integer of [let]",
                )


def _check_tree(tree: Tree, place: Place) -> None:
    numbers: list[int] = []
    for node in tree.ints:
        value = _literal(node)
        if value is None or not 1 <= value <= MAX_TREE_INT:
            shown = "an expression that is no integer of the shape" if value is None else str(value)
            _fail(
                tree,
                place,
                f"{tree.kind}() with {shown}; a whole number from 1 to {MAX_TREE_INT} is needed",
                "write a number or an integer of [let], guarded as in max(1, ...)",
            )
        numbers.append(value)
    if tree.kind != "butterfly":
        return
    for stride in numbers:
        if stride & (stride - 1):
            _fail(
                tree,
                place,
                f"butterfly() with the stride {stride}, which is no power of two",
                "strides are those of shuffles: 1, 2, 4, ...",
            )
    if len(set(numbers)) < len(numbers):
        twice = next(s for s in numbers if numbers.count(s) > 1)
        _fail(
            tree,
            place,
            f"butterfly() with the stride {twice} twice, which counts terms twice",
            "name each stride once",
        )


def _literal(n: Node) -> int | None:
    """The value of a literal, perhaps negated; None if it is none."""
    if isinstance(n, Op) and n.op == "neg":
        inner = _literal(n.args[0])
        return None if inner is None else -inner
    return int(n.text) if isinstance(n, Num) and n.bits is None and n.text.isdigit() else None


def _fail(n: Tree | Op, place: Place, cause: str, remedy: str) -> NoReturn:
    column = place.column + n.at if place.column else 0
    raise SpecError(cause, place=Place(place.file, place.line, column), remedy=remedy)
