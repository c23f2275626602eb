"""A program as a tape of real operations, and the derivative of its output by every rounding, backwards.

The walker of the definition runs over nodes of a tape: each operation keeps its value, its parents and the partial
derivatives. A rounding at a node multiplies its value by ``1 + delta``; the first-order effect of ``delta`` on the
output is the value times the adjoint of the node, so one backward pass gives the effects of all roundings.

What a value is, a `Field` says: rational functions with exact coefficients (`search.symbolic`), or NumPy arrays
that hold many sample points at once (`search.sensitivity`). A *logit* is a number that ends up in an exponential:
its rounding counts with the size of the logit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from specs.program import Program
from verify.definition.arithmetic import Condition, Decided, Fold
from verify.definition.inputs import RowInputs
from verify.definition.layout import Index, Read
from verify.definition.trees import Operations, build, integer
from verify.definition.walker import Walker
from verify.partition import Plan

#: A line, and the number of the operation in it.
Label = tuple[str, int]
EXP = ("exp", "triton.exp", "cuda.expf", "cuda.fast_expf", "torch.fexp_u20", "glibc.expf")
EXP2 = ("exp2", "mufu.ex2", "fa4.exp2")
LOG = ("log", "cuda.logf", "glibc.logf")
LOG2 = ("log2", "mufu.lg2")
RECIPROCAL = ("rcp", "mufu.rcp")
QUOTIENT = ("/", "div", "div.full")
#: How far functions of machines and libraries may be off, in half-units of the last place of f32. Sources: CUDA's
#: tables of maximum errors and the PTX manual (ex2.approx 2**-22.5 relative, rcp.approx 1 ulp, rsqrt.approx
#: 2**-22.9, div.full 2 ulp, expf and logf 2 and 1 ulp); of two cubics what they are off at most: 1,887 for ``fexp_u20``
#: over all f32 numbers from -87 to 0, and 1,472 for FA4's.
APPROXIMATE = {
    "mufu.ex2": 3,
    "mufu.rcp": 2,
    "mufu.rsq": 3,
    "mufu.lg2": 4,
    "div.full": 4,
    "triton.exp": 3,
    "cuda.expf": 4,
    "cuda.fast_expf": 3,
    "fa4.exp2": 1536,
    "torch.fexp_u20": 2048,
    "glibc.expf": 2,
    "glibc.logf": 2,
    "cuda.logf": 2,
}
#: Exponentials that first multiply their argument by a rounded log2(e).
SCALED = ("triton.exp", "cuda.fast_expf")


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
        part: which operation of the line, by number.
    """

    site: str
    index: tuple[int, ...]
    operation: str
    format: Format
    ulps: int
    logit: bool
    part: int = 0


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
        shifts: by how much each rounding moves its value, in the order of evaluation: a number is multiplied by
            ``1 + shift``, and so is the exponential of a logit. None: not at all.
    """

    def __init__(
        self, values: Field, inputs: Mapping[float, Node], shifts: Sequence[float] | None = None
    ) -> None:
        self.field, self.inputs = values, inputs
        self.nodes: list[Node] = []
        self.events: list[Node] = []
        self.shifts = shifts
        self.site, self.part = "", 0
        self.where: list[tuple[str, tuple[int, ...]]] = []

    @contextmanager
    def compiling(self, site: str) -> Generator[None]:
        """While the line of ``site`` is compiled."""
        before = self.site, self.part
        self.site, self.part = site, 0
        yield
        self.site, self.part = before

    def label(self) -> Label:
        """The line that is being compiled, and the number of its operation."""
        self.part += 1
        return self.site, self.part

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
        site, make = self.label(), self._make(op, operands, fmt)

        if op in SCALED:
            scaled, one = self.label(), self.field.constant(Fraction(1))

            def exponential(x: Node) -> Node:
                if x.varies and self.field.finite(x.value):
                    x = self._round(self._node(x.value, ((x, one),), x.scale), scaled, "scale", fmt, 2)
                node, rounds = make(x)
                return self._round(node, site, op, fmt, APPROXIMATE[op]) if rounds else node

            return exponential

        def apply(*args: Node) -> Node:
            node, rounds = make(*args)
            return self._round(node, site, name or op, fmt, APPROXIMATE.get(op, 1)) if rounds else node

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
        return node, True

    def _product(self, a: Node, b: Node, held: bool) -> tuple[Node, bool]:
        f = self.field
        for x, y in ((a, b), (b, a)):
            if f.is_value(x.value, 1) and not x.varies:
                return y, False
            if f.is_value(x.value, 0) and f.finite(y.value):
                return Node(f.constant(Fraction(0)), varies=False), False
        value, scale = a.value * b.value, None
        for x, y in ((a, b), (b, a)):
            if x.scale is not None and x.varies and not y.varies:
                scale = x.scale * float(_plain(y.value))
        return self._node(value, ((a, b.value), (b, a.value)), scale), not held

    def _quotient(self, a: Node, b: Node) -> tuple[Node, bool]:
        f = self.field
        if f.is_value(b.value, 1) and not b.varies:
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
        return node, not self.field.is_value(value, 0)

    def _negated(self, a: Node) -> Node:
        scale = None if a.scale is None else -a.scale
        return self._node(-a.value, ((a, -self.field.constant(Fraction(1))),), scale)

    def cast(self, source: Format, target: Format) -> Callable[[Node], Node]:
        """A rounding, unless every value fits."""
        if target.holds(source) or target.is_real:
            return lambda x: x
        site, one = self.label(), self.field.constant(Fraction(1))

        def cast(x: Node) -> Node:
            if not x.varies or self.field.is_value(x.value, 0):
                return x
            return self._round(self._node(x.value, ((x, one),), x.scale), site, "cast", target, 1)

        return cast

    def compare(self, op: str) -> Callable[[Node, Node], Condition]:
        """A comparison in the assumed order of scores."""
        return lambda a, b: (a is b and op in ("==", "<=", ">=")) or self.field.decide(op, a.value, b.value)

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
        site = self.label()

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> Node:
            total = zero if start is None else start
            inexact = False
            for term in terms:
                value, rounds = self._product(term[0], term[1], True) if pairs else (term, False)
                total, more = self._sum("+", total, value)
                inexact |= rounds or more
            return self._round(total, site, "fold", fmt, 1) if inexact and total.event is None else total

        def chain(node: Tree) -> Fold:
            dot = find(dots, node.instruction, operands[0], operands[1], fmt, integer(node.ints[0]))
            # Terms are cut to so many bits below the largest of a block, then the sum is rounded or cut once.
            ulps = 1 + max(1, 1 << max(0, fmt.p - dot.fraction_bits))
            step, place = self._make("fma", (*operands, fmt), fmt), self.label()

            def run(pairs: Sequence[Any], start: Any) -> Node:
                total = zero if start is None else start
                for a, b in pairs:
                    total, rounds = step(a, b, total)
                    total = self._round(total, place, "mma", fmt, ulps) if rounds else total
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

    def _round(self, node: Node, label: Label, operation: str, fmt: Format, ulps: int) -> Node:
        if not node.varies or not self.field.finite(node.value) or fmt.is_real:
            return node
        if node.event is not None:  # the same node again, as ``x + 0``
            return node
        site, part = label
        where = next((i for name, i in reversed(self.where) if name == site), ())
        node.event = Event(site, where, operation, fmt, ulps, node.scale is not None, part)
        self.events.append(node)
        if self.shifts is not None and len(self.events) <= len(self.shifts):
            self._shift(node, self.shifts[len(self.events) - 1])
        return node

    def _shift(self, node: Node, shift: float) -> None:
        if node.scale is None:
            node.value = node.value * (1.0 + shift)
        else:
            node.value = node.value + float(node.scale) * math.log1p(shift)

    def backward(self, output: Node) -> list[tuple[Event, Any]]:
        """The effect of every rounding on ``output``: value times adjoint; of a logit, its unit times adjoint."""
        zero = self.field.constant(Fraction(0))
        for node in self.nodes:
            node.adjoint = zero
        output.adjoint = self.field.constant(Fraction(1))
        effects: list[tuple[Event, Any]] = []
        for node in reversed(self.nodes):
            adjoint = node.adjoint
            if node.event is not None:
                unit = node.value if node.scale is None else self.field.constant(Fraction(node.scale))
                effects.append((node.event, unit * adjoint))
            if self.field.is_value(adjoint, 0):
                continue
            for parent, partial in node.parents:
                if parent.parents and self.field.finite(partial):
                    parent.adjoint = parent.adjoint + adjoint * partial
        return effects[::-1]


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
