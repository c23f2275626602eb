"""The arithmetic of the certificate for the generic walker: exact numbers, each operation rounded once by integers.

Functions that hardware or a library defines, and no formula of real numbers does (``mufu.ex2``, ``glibc.expf``), come
from the scalar definition, `verify.definition.ScalarArithmetic`. `ExactArithmetic.borrowed` names those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from search.exact import elementary, tensor_core, trees
from search.exact.dyadic import (
    NAN,
    ZERO,
    Number,
    from_bits,
    from_float,
    order,
    ratio,
    rounder,
    to_float,
)
from search.exact.operations import PLAIN, WIDE, Operation, add, fused, multiply, rounded
from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition import ScalarArithmetic
from verify.definition.arithmetic import Decided, Fold

_COMPARED: dict[str, Callable[[int | None], bool]] = {
    "==": lambda o: o == 0,
    "!=": lambda o: o != 0,
    "<": lambda o: o == -1,
    "<=": lambda o: o in (-1, 0),
    ">": lambda o: o == 1,
    ">=": lambda o: o in (0, 1),
}


class ExactArithmetic(Decided):
    """Values are `search.exact.dyadic.Number`; see `verify.definition.arithmetic.Arithmetic` for the methods.

    Attributes:
        borrowed: functions that were asked for and come from the scalar definition.
    """

    def __init__(self) -> None:
        self.borrowed: set[str] = set()
        self._operations: dict[tuple[str, Format], Operation] = {}
        self._lifted: dict[float, Number] = {}

    def number(self, x: Fraction, fmt: Format) -> Number:
        """The rational rounded once."""
        return rounder(_stored(fmt))(ratio(x, fmt.p))

    def special(self, x: float, fmt: Format) -> Number:
        """An infinity or NaN, as the format has them."""
        return rounder(_stored(fmt))(from_float(x))

    def pattern(self, bits: int, fmt: Format) -> Number:
        """The number with this bit pattern."""
        return from_bits(bits, _stored(fmt))

    def lift(self, x: float) -> Number:
        """The double, exactly."""
        if not x:
            return from_float(x)
        found = self._lifted.get(x)
        if found is None:
            found = self._lifted[x] = from_float(x)
        return found

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Operation:
        """The function that rounds once to ``fmt``; ``neg abs min max`` never round.

        Raises:
            UnsupportedError: the function has no scalar definition.
        """
        if op in PLAIN:
            return PLAIN[op]
        key = op, _stored(fmt)
        if key not in self._operations:
            self._operations[key] = self._made(op, operands, fmt)
        if op not in WIDE and op not in elementary.BALLS:
            self.borrowed.add(op)
        return self._operations[key]

    def _made(self, op: str, operands: Sequence[Format], fmt: Format) -> Operation:
        if op in WIDE:
            return rounded(WIDE[op](fmt.p), fmt)
        if op in elementary.BALLS:
            return elementary.rounded(op, fmt)
        apply = ScalarArithmetic().operation(op, operands, fmt)
        known: dict[tuple[Number, ...], Number] = {}

        def borrowed(*xs: Number) -> Number:
            if xs not in known:
                known[xs] = from_float(apply(*map(to_float, xs)))
            return known[xs]

        return borrowed

    def cast(self, source: Format, target: Format) -> Callable[[Number], Number]:
        """A rounding."""
        return rounder(_stored(target))

    def compare(self, op: str) -> Callable[[Number, Number], bool]:
        """The IEEE comparison: NaN is unequal to everything."""
        decide = _COMPARED[op]
        return lambda x, y: decide(order(x, y))

    def is_nan(self, x: Number) -> bool:
        """Whether ``x`` is NaN."""
        return x == NAN

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree over additions that round to ``fmt``.

        Raises:
            UnsupportedError: an ``any()`` tree, or a tensor core that the platform does not have.
        """
        last = rounder(_stored(fmt))

        def mma(node: Tree) -> trees.Fold:
            left, right, length = operands[0], operands[1], trees.size(node.ints[0])
            dot = find(dots, node.instruction, left, right, fmt, length)
            return lambda terms, start: tensor_core.chain(
                dot, length, terms, ZERO if start is None else start, (left, right)
            )

        steps = trees.Steps(rounded(add, fmt), rounded(multiply, fmt), rounded(fused, fmt), last, mma)
        return trees.fold(tree, steps, kind == "dot")


def _stored(fmt: Format) -> Format:
    if fmt.is_real:
        raise UnsupportedError("'real' has no bits to round to", remedy="name a stored format")
    return fmt
