"""A program as a tape of real operations, and the derivative of its output by every rounding, backwards.

The walker of the definition runs over nodes of a tape: each operation keeps its value, its parents and the partial
derivatives. A rounding at a node multiplies its value by ``1 + delta``; the first-order effect of ``delta`` on the
output is the value times the adjoint of the node, so one backward pass gives the effects of all roundings.

What a value is, a `Field` says: rational functions with exact coefficients (`search.symbolic`), or NumPy arrays
that hold many sample points at once (`search.sensitivity`). A *logit* is a number that ends up in an exponential:
its rounding counts with the size of the logit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from specs.program import Program
from verify.definition.arithmetic import Condition, Decided, Fold
from verify.definition.inputs import RowInputs
from verify.definition.layout import Index, Read
from verify.definition.trees import Operations, build
from verify.definition.walker import Walker
from verify.partition import Plan

EXP = ("exp", "triton.exp", "cuda.expf", "cuda.fast_expf", "torch.fexp_u20", "glibc.expf")
EXP2 = ("exp2", "mufu.ex2", "fa4.exp2")
LOG = ("log", "cuda.logf", "glibc.logf")
LOG2 = ("log2", "mufu.lg2")
RECIPROCAL = ("rcp", "mufu.rcp")
QUOTIENT = ("/", "div", "div.full")
#: Operations whose result a function of the machine only approximates: one rounding counts as this many ulps.
APPROXIMATE = {
    "mufu.ex2": 3,
    "mufu.rcp": 2,
    "mufu.rsq": 2,
    "mufu.lg2": 3,
    "div.full": 2,
    "triton.exp": 3,
    "cuda.expf": 3,
    "cuda.fast_expf": 3,
    "fa4.exp2": 3,
    "torch.fexp_u20": 20,
    "glibc.expf": 1,
    "glibc.logf": 1,
    "cuda.logf": 1,
}


class Field(Protocol):
    """What values are. They support ``+ - * /`` and unary minus among themselves."""

    def constant(self, x: Fraction) -> Any:
        """A rational."""
        ...

    def infinity(self, sign: int) -> Any:
        """An infinity."""
        ...

    def function(self, name: str, x: Any) -> tuple[Any, Any]:
        """``exp exp2 log log2 rcp`` of ``x``, and its derivative there.

        Raises:
            UnsupportedError: the function has no value in this field.
        """
        ...

    def is_value(self, x: Any, constant: int) -> bool:
        """Whether ``x`` is 0, or 1, everywhere."""
        ...

    def finite(self, x: Any) -> bool:
        """Whether ``x`` is a finite number."""
        ...

    def decide(self, op: str, a: Any, b: Any) -> bool:
        """A comparison, in the order that scores are assumed to have."""
        ...


@dataclass(frozen=True)
class Event:
    """One rounding.

    Attributes:
        site: the line.
        index: where, a number for each axis of the line.
        operation: ``cast``, an operator, the name of a function, or ``fold`` for an addition of a reduction.
        format: where it rounds to.
        ulps: how many half-units of the last place it may be off (1: correctly rounded).
        logit: whether what is rounded is a logit.
    """

    site: str
    index: tuple[int, ...]
    operation: str
    format: Format
    ulps: int
    logit: bool


@dataclass(eq=False)
class Node:
    """A value on the tape.

    Attributes:
        value: see `Field`.
        parents: nodes that it was made of, each with the partial derivative.
        scale: of a logit: its unit in natural logarithms; None for other numbers.
        varies: whether it depends on an input.
        event: its rounding, if any.
    """

    value: Any
    parents: tuple[tuple[Node, Any], ...] = ()
    scale: Fraction | float | None = None
    varies: bool = True
    event: Event | None = None
    adjoint: Any = field(default=None, repr=False)


class TapeArithmetic(Decided):
    """The arithmetic of the definition over nodes.

    Args:
        values: what values are.
        inputs: the node of each value of v, by the number that stands for it.
    """

    def __init__(self, values: Field, inputs: Mapping[float, Node]) -> None:
        self.field, self.inputs = values, inputs
        self.nodes: list[Node] = []
        self.site = ""
        self.where: list[tuple[str, tuple[int, ...]]] = []

    @contextmanager
    def compiling(self, site: str) -> Iterator[None]:
        """While the line of ``site`` is compiled."""
        before, self.site = self.site, site
        yield
        self.site = before

    # -- leaves -------------------------------------------------------------------------------------------

    def number(self, x: Fraction, fmt: Format) -> Node:
        """A constant, exactly as written."""
        return Node(self.field.constant(x), varies=False)

    def special(self, x: float, fmt: Format) -> Node:
        """An infinity."""
        if x != x:
            raise UnsupportedError("NaN has no derivative", remedy="guard it by a select")
        return Node(self.field.infinity(1 if x > 0 else -1), scale=Fraction(1), varies=False)

    def pattern(self, bits: int, fmt: Format) -> Node:
        """The number of this pattern."""
        from verify.definition.scalar import ScalarArithmetic

        return Node(self.field.constant(Fraction(ScalarArithmetic().pattern(bits, fmt))), varies=False)

    def lift(self, x: float) -> Node:
        """The value of v that the number stands for."""
        return self.inputs[x]

    # -- operations ---------------------------------------------------------------------------------------

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Node]:
        """The real meaning of ``op``, with a rounding."""
        return self._operation(op, operands, fmt, "")

    def _operation(self, op: str, operands: Sequence[Format], fmt: Format, name: str) -> Callable[..., Node]:
        site, make = self.site, self._make(op, operands, fmt)
        label = name or op

        def apply(*args: Node) -> Node:
            node, rounds = make(*args)
            return self._round(node, site, label, fmt, APPROXIMATE.get(op, 1)) if rounds else node

        return apply

    def _make(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., tuple[Node, bool]]:
        """A function of nodes: the result, and whether it may have been rounded."""
        short = {"add": "+", "sub": "-", "mul": "*"}.get(op, op)
        held = (
            len(operands) == 2
            and sum(f.p for f in operands) <= fmt.p
            and not any(f.is_real for f in operands)
        )
        match short:
            case "+" | "-":
                return lambda a, b: self._sum(short, a, b)
            case "*":
                return lambda a, b: self._product(a, b, held)
            case "fma":

                def fused(a: Node, b: Node, c: Node) -> tuple[Node, bool]:
                    product, inexact = self._product(a, b, False)
                    total, rounds = self._sum("+", product, c)
                    return total, rounds or (inexact and total is product)

                return fused
            case "neg":
                return lambda a: (self._negated(a), False)
            case "max" | "min":
                order = ">=" if op == "max" else "<="

                def extreme(*xs: Node) -> tuple[Node, bool]:
                    best = xs[0]
                    for x in xs[1:]:
                        best = best if self.field.decide(order, best.value, x.value) else x
                    return best, False

                return extreme
            case "abs":
                zero = self.field.constant(Fraction(0))
                return lambda a: (
                    a if self.field.decide(">=", a.value, zero) else self._negated(a),
                    False,
                )
            case _ if short in QUOTIENT:
                return self._quotient
            case _ if short in (*EXP, *EXP2, *LOG, *LOG2, *RECIPROCAL):
                return lambda a: self._function(short, a)
            case _:
                raise UnsupportedError(
                    f"the derivative of {op}() is not known here",
                    remedy="search without a bound, or write the line with + - * / exp log rcp fma",
                )

    def _sum(self, op: str, a: Node, b: Node) -> tuple[Node, bool]:
        f = self.field
        if f.is_value(b.value, 0) and not b.varies:
            return a, False
        if f.is_value(a.value, 0) and not a.varies:
            return (b, False) if op == "+" else (self._negated(b), False)
        if op == "-" and a is b:
            return Node(f.constant(Fraction(0)), varies=False), False
        value = a.value + b.value if op == "+" else a.value - b.value
        one = f.constant(Fraction(1))
        scale = a.scale if a.scale is not None and a.varies else b.scale if b.scale is not None else a.scale
        node = self._node(value, ((a, one), (b, one if op == "+" else -one)), scale)
        exact = any(f.is_value(x.value, 0) for x in (a, b)) or f.is_value(value, 0)
        return node, not exact

    def _product(self, a: Node, b: Node, held: bool) -> tuple[Node, bool]:
        f = self.field
        for x, y in ((a, b), (b, a)):
            if f.is_value(x.value, 1) and not x.varies:
                return y, False
            if f.is_value(x.value, 0) and f.finite(y.value):
                return Node(f.constant(Fraction(0)), varies=False), False
        scale: Any = None
        for x, y in ((a, b), (b, a)):
            if x.scale is not None and x.varies and not y.varies:
                scale = x.scale * float(_plain(y.value))
        node = self._node(a.value * b.value, ((a, b.value), (b, a.value)), scale)
        exact = held or any(f.is_value(x.value, 1) for x in (a, b))
        return node, not exact

    def _quotient(self, a: Node, b: Node) -> tuple[Node, bool]:
        f = self.field
        if f.is_value(b.value, 1):
            return a, False
        value, one = a.value / b.value, f.constant(Fraction(1))
        node = self._node(value, ((a, one / b.value), (b, -(value / b.value))), None)
        return node, not f.is_value(a.value, 0)

    def _function(self, op: str, a: Node) -> tuple[Node, bool]:
        kind = next(
            k
            for k, names in (("exp", EXP), ("exp2", EXP2), ("log", LOG), ("log2", LOG2), ("rcp", RECIPROCAL))
            if op in names
        )
        value, slope = self.field.function(kind, a.value)
        scale = {"log": Fraction(1), "log2": 1.4426950408889634}.get(kind)
        node = self._node(value, ((a, slope),), scale)
        trivial = any(self.field.is_value(value, x) for x in (0, 1))
        return node, not trivial

    def _negated(self, a: Node) -> Node:
        scale = None if a.scale is None else -a.scale
        return self._node(-a.value, ((a, -self.field.constant(Fraction(1))),), scale)

    def cast(self, source: Format, target: Format) -> Callable[[Node], Node]:
        """A rounding, unless every value fits."""
        if target.holds(source) or target.is_real:
            return lambda x: x
        site, one = self.site, self.field.constant(Fraction(1))

        def cast(x: Node) -> Node:
            if not x.varies or any(self.field.is_value(x.value, k) for k in (0, 1)):
                return x
            return self._round(self._node(x.value, ((x, one),), x.scale), site, "cast", target, 1)

        return cast

    def compare(self, op: str) -> Callable[[Node, Node], Condition]:
        """A comparison in the assumed order of scores."""
        return lambda a, b: a is b and op in ("==", "<=", ">=") or self.field.decide(op, a.value, b.value)

    def is_nan(self, x: Node) -> Condition:
        """False: a real number is one."""
        return False

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree, each addition a rounding; a tensor core adds its products one by one."""
        factors = list(operands[:2])
        add = self._operation("+", (*operands, fmt), fmt, "fold")
        mul = self._operation("*", factors if kind == "dot" else [*operands, fmt], fmt, "*")
        fma = self._operation("fma", (*operands, fmt), fmt, "fold")
        zero = self.number(Fraction(0), fmt)
        site = self.site

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> Node:
            total = zero if start is None else start
            inexact = False
            for term in terms:
                value, rounds = self._product(*term, True) if pairs else (term, False)
                total, more = self._sum("+", total, value)
                inexact |= rounds or more
            return self._round(total, site, "fold", fmt, 1) if inexact and total.event is None else total

        def chain(node: Tree) -> Fold:
            def run(pairs: Sequence[Any], start: Any) -> Node:
                total = zero if start is None else start
                for a, b in pairs:
                    total = fma(a, b, total)
                return total

            return run

        return build(tree, Operations(add, mul, fma, exact, zero, chain), pairs=kind == "dot")

    # -- the tape -----------------------------------------------------------------------------------------

    def _node(self, value: Any, parents: tuple[tuple[Node, Any], ...], scale: Any) -> Node:
        live = tuple((node, partial) for node, partial in parents if node.varies)
        node = Node(value, live, scale, varies=bool(live))
        if live:
            self.nodes.append(node)
        return node

    def _round(self, node: Node, site: str, operation: str, fmt: Format, ulps: int) -> Node:
        if not node.varies or not self.field.finite(node.value) or fmt.is_real:
            return node
        if node.event is not None:  # the same node again, as ``x + 0``
            return node
        where = next((i for name, i in reversed(self.where) if name == site), ())
        logit = node.scale is not None
        node.event = Event(site, where, operation, fmt, ulps, logit)
        return node

    def backward(self, output: Node) -> list[tuple[Event, Any]]:
        """The effect of every rounding on ``output``: value times adjoint; of a logit, its unit times adjoint."""
        zero = self.field.constant(Fraction(0))
        for node in self.nodes:
            node.adjoint = zero
        output.adjoint = self.field.constant(Fraction(1))
        effects: list[tuple[Event, Any]] = []
        for node in reversed(self.nodes):
            adjoint = node.adjoint
            if self.field.is_value(adjoint, 0):
                continue
            if node.event is not None:
                unit = node.value if node.scale is None else self.unit(node.scale)
                effects.append((node.event, unit * adjoint))
            for parent, partial in node.parents:
                if parent.parents and self.field.finite(partial):
                    parent.adjoint = parent.adjoint + adjoint * partial
        return effects[::-1]

    def unit(self, scale: Fraction | float) -> Any:
        """The unit of a logit as a value."""
        return self.field.constant(Fraction(scale))


class TapeWalker(Walker):
    """The walker of the definition, which tells the tape what line it is in, and where."""

    def __init__(self, program: Program, plan: Plan, inputs: RowInputs, arithmetic: TapeArithmetic) -> None:
        super().__init__(program, plan, inputs, arithmetic)
        self.tape = arithmetic

    def read(self, site: str) -> Read:
        """As `Walker.read`."""
        if site in self._reads:
            return self._reads[site]
        with self.tape.compiling(site):
            inner = super().read(site)
        slots, where = self.layout.slots(self.program.sites[site].type.axes), self.tape.where

        def read(index: Index) -> Any:
            where.append((site, tuple(index[s] for s in slots)))
            value = inner(index)
            where.pop()
            return value

        self._reads[site] = read
        return read


def _plain(value: Any) -> Any:
    """A constant of either field as something that float() takes."""
    return value.flat[0] if hasattr(value, "flat") else value
