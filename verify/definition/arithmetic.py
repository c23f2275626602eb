"""What the walker asks of an arithmetic: a handful of functions, chosen once for each node of a program.

A value is whatever the arithmetic says (a float, a ball, a rational, a term of a solver). A condition is a
Python bool where the arithmetic can decide it; only where it cannot does the walker call `Arithmetic.choose`
and `Arithmetic.logic`, so an arithmetic on concrete numbers needs neither.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree

V = TypeVar("V")
Condition = Any
#: Terms of a sum (values, or pairs of factors for ``dot``) and the start value, or None, to the total.
Fold = Callable[[Sequence[Any], Any], Any]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Arithmetic(Protocol[V]):
    """The operations of one arithmetic. Every method but `choose` and `logic` is called once per node.

    An unknown operation or tree raises `specs.errors.UnsupportedError`; the walker adds the place.
    """

    def number(self, x: Fraction, fmt: Format) -> V:
        """The rational ``x`` rounded once to ``fmt``."""
        ...

    def special(self, x: float, fmt: Format) -> V:
        """An infinity or NaN."""
        ...

    def pattern(self, bits: int, fmt: Format) -> V:
        """The number of ``fmt`` with this bit pattern."""
        ...

    def lift(self, x: float) -> V:
        """An input: a double that is already a value of its format."""
        ...

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., V]:
        """``+ - * / neg abs min max`` or a function of the language, rounded once to ``fmt``.

        ``operands`` are formats whose values the operands are known to be.
        """
        ...

    def cast(self, source: Format, target: Format) -> Callable[[V], V]:
        """A rounding of values of ``source`` to ``target``."""
        ...

    def compare(self, op: str) -> Callable[[V, V], Condition]:
        """One of ``== != < <= > >=``."""
        ...

    def is_nan(self, x: V) -> Condition:
        """Whether ``x`` is NaN."""
        ...

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """How the terms of a ``sum`` or ``dot`` become one value, each addition rounded to ``fmt``.

        ``operands``: formats whose values the terms and the start are; for ``dot`` those of its two factors come
        first. ``dots``: the tensor cores of the platform, for ``mma`` trees.
        """
        ...

    def choose(self, condition: Condition, a: V, b: V) -> V:
        """``a`` where the undecided ``condition`` holds, else ``b``."""
        ...

    def logic(self, op: str, conditions: Sequence[Condition]) -> Condition:
        """``and``, ``or``, ``not`` of undecided conditions."""
        ...


class Decided:
    """Base of arithmetics whose conditions are always Python bools."""

    def choose(self, condition: Condition, a: Any, b: Any) -> Any:
        """Never reached: the walker takes the branch itself."""
        raise AssertionError(f"undecided condition {condition!r}")

    def logic(self, op: str, conditions: Sequence[Condition]) -> Condition:
        """Never reached: the walker decides by itself."""
        raise AssertionError(f"undecided {op} of {conditions!r}")


class Reals(Decided, abc.ABC):
    """Base of arithmetics on the real numbers: every cast and every tree is the identity, nothing is NaN.

    A subclass gives `table`: the real meaning of each operation, by the names of `specs.functions.FUNCTIONS`.
    """

    table: dict[str, Callable[..., Any]]

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Any]:
        """The real meaning of ``op``."""
        if op not in self.table:
            raise UnsupportedError(
                f"{op}() has no meaning here yet", remedy=f"known: {', '.join(sorted(self.table))}"
            )
        return self.table[op]

    def cast(self, source: Format, target: Format) -> Callable[[Any], Any]:
        """The identity."""
        return lambda x: x

    def is_nan(self, x: Any) -> bool:
        """Always false: a real number is one."""
        return False

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The sum, whatever the tree."""
        add, mul, zero = self.table["+"], self.table["*"], self.number(Fraction(0), fmt)

        def total(terms: Sequence[Any], start: Any) -> Any:
            acc = zero if start is None else start
            for term in terms:
                acc = add(acc, mul(*term) if kind == "dot" else term)
            return acc

        return total

    @abc.abstractmethod
    def number(self, x: Fraction, fmt: Format) -> Any:
        """The rational itself."""
