"""The arithmetic of the definition over numbers known up to factors: every rounding widens them, no input is put in.

What a walk with it finds holds for all scores in a box and all values: comparisons that data decide are left open, and
a choice between two numbers is both of them, or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from search.prove.spread import (
    Const,
    Factor,
    Log,
    Low,
    Mass,
    Number,
    OpenError,
    Table,
    Undefined,
    Value,
    times,
)
from search.prove.steps import (
    FLOOR,
    HIGH,
    LN2,
    LOG2E,
    LOW,
    ONE,
    UNDEFINED,
    ZERO,
    Rounding,
    Steps,
    error_of,
    is_exact,
    kind_of,
    nearest,
    negated,
    rank,
)
from search.tape import APPROXIMATE, EXP, EXP2, LOG, LOG2, QUOTIENT, RECIPROCAL, SCALED
from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition.arithmetic import COMPARISONS, Fold
from verify.definition.scalar import ScalarArithmetic
from verify.definition.trees import Operations, build, integer


@dataclass(frozen=True)
class Open:
    """A condition that data decide: a comparison, or ``and``, ``or`` and ``not`` of such."""

    op: str
    parts: tuple[Any, ...]

    def equal(self, holds: bool) -> list[tuple[Log, Log]]:
        """The logits that are equal where it holds, or does not."""
        match self.op:
            case "not":
                return self.parts[0].equal(not holds)
            case "and" | "or" if holds == (self.op == "and"):
                return [pair for p in self.parts for pair in p.equal(holds)]
            case "==" | "!=" if holds == (self.op == "=="):
                x, y = self.parts
                return [(x, y)] if isinstance(x, Log) and isinstance(y, Log) else []
            case _:
                return []


class Spreads(Steps):
    """One walk.

    Args:
        table: its symbols.
        scale: the double that stands for the softmax scale.
        exact: lines whose roundings are left out.

    Attributes:
        site: the line that is compiled.
    """

    def __init__(self, table: Table, scale: float, exact: frozenset[str] = frozenset()) -> None:
        super().__init__(table)
        self.scale, self.exact = Fraction(scale), exact
        self.site = ""
        self._parts: dict[str, int] = {}

    # -- leaves -------------------------------------------------------------------------------------------

    def number(self, x: Fraction, fmt: Format) -> Number:
        """A constant, rounded; the scale."""
        if x == self.scale:
            return Const(Fraction(1), 1)
        return Const(x if fmt.is_real else nearest(x, fmt))

    def special(self, x: float, fmt: Format) -> Number:
        """An infinity or NaN."""
        return UNDEFINED if x != x else HIGH if x > 0 else LOW

    def pattern(self, bits: int, fmt: Format) -> Number:
        """The number of this pattern."""
        return Const(Fraction(ScalarArithmetic().pattern(bits, fmt)))

    def lift(self, x: float) -> Number:
        """The value of the token that the double stands for."""
        return Value(int(x) - 1)

    # -- operations ---------------------------------------------------------------------------------------

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Number]:
        """``op``, with its rounding.

        Raises:
            UnsupportedError: nothing is known of it here.
        """
        held = all(fmt.holds(f) for f in operands)
        exact_product = len(operands) == 2 and sum(f.p for f in operands) <= fmt.p
        rounds = self._rounding(fmt, APPROXIMATE[op] * 2.0**-24 if op in APPROXIMATE else None)
        site = self._place()
        match {"add": "+", "sub": "-", "mul": "*"}.get(op, op):
            case "+":
                return lambda a, b: self._add(a, b, rounds, held)
            case "-":
                return lambda a, b: self._less(a, b, rounds, held)
            case "*":
                quiet = Rounding(0.0, fmt) if exact_product else rounds
                return lambda a, b: self._mul(a, b, quiet, held, site)
            case "fma":
                none = Rounding(0.0, fmt)
                return lambda a, b, c: self._add(self._mul(a, b, none, True, site), c, rounds, False)
            case "neg":
                return negated
            case "max":
                return self._max
            case short if short in QUOTIENT:
                return lambda a, b: self._mul(a, self._inverse(b), rounds, False, site)
            case short if short in RECIPROCAL:
                return lambda a: self._rounded(self._inverse(a), rounds, site)
            case short if short in EXP or short in EXP2:
                base = 1.0 if short in EXP else LN2
                return lambda a: self._exp(a, base, rounds, short in SCALED)
            case short if short in LOG or short in LOG2:
                return lambda a: self._log(a, ONE if short in LOG else LOG2E, rounds)
            case _:
                raise UnsupportedError(
                    f"the error of {op}() is not bounded here", remedy="use + - * / fma exp log rcp max"
                )

    def cast(self, source: Format, target: Format) -> Callable[[Number], Number]:
        """A rounding, unless every value fits."""
        if target.holds(source) or target.is_real:
            return lambda x: x
        rounds, site = self._rounding(target), self._place()
        return lambda x: self._rounded(x, rounds, site)

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree, each addition a rounding; of a tensor core its truncations."""
        factors = list(operands[:2])
        add = self.operation("+", (*operands, fmt), fmt)
        mul = self.operation("*", factors if kind == "dot" else [*operands, fmt], fmt)
        fma = self.operation("fma", (*operands, fmt), fmt)
        none, rounds, site = Rounding(0.0, fmt), self._rounding(fmt), self._place()
        quiet = self.site in self.exact

        def plus(total: Number, term: Any, pairs: bool) -> Number:
            product = self._mul(term[0], term[1], none, True, site) if pairs else term
            return self._add(total, product, none, True)

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> Number:
            total: Number = ZERO if start is None else start
            for term in terms:
                total = plus(total, term, pairs)
            return self._rounded(total, rounds, site)

        def chain(node: Tree) -> Fold:
            k = integer(node.ints[0])
            dot = find(dots, node.instruction, operands[0], operands[1], fmt, k)
            blocks = dot.blocks(k)
            last = {"rz": 2.0 ** (1 - fmt.p), "rz13": 2.0**-13, "rne": error_of(fmt)}[dot.rounding]

            def run(pairs: Sequence[Any], start: Any) -> Number:
                total: Number = ZERO if start is None else start
                for first in range(0, len(pairs), k):
                    part = pairs[first : first + k]
                    for block in blocks:
                        live = [part[i] for i in block if i < len(part)]
                        if not live:
                            continue
                        # Each term is cut below the largest, then the sum is.
                        cut = (len(live) + 1) * 2.0**-dot.fraction_bits
                        step = none if quiet else Rounding(cut + last + cut * last, fmt)
                        early = dot.addition == "early"
                        inner: Number = total if early else ZERO
                        for pair in live:
                            inner = plus(inner, pair, True)
                        inner = self._rounded(inner, step, site)
                        total = inner if early else self._add(total, inner, rounds, False)
                return total

            return run

        return build(tree, Operations(add, mul, fma, exact, ZERO, chain), pairs=kind == "dot")

    def _rounding(self, fmt: Format, error: float | None = None) -> Rounding:
        """A rounding of the line that is compiled."""
        return Rounding(0.0 if self.site in self.exact else error_of(fmt) if error is None else error, fmt)

    def _place(self) -> tuple[str, int]:
        self._parts[self.site] = self._parts.get(self.site, 0) + 1
        return self.site, self._parts[self.site]

    # -- comparisons --------------------------------------------------------------------------------------

    def _max(self, *xs: Number) -> Number:
        logs = [x for x in xs if isinstance(x, Log)]
        for x in xs:
            low = isinstance(x, Low) or (isinstance(x, Const) and x.value <= FLOOR)
            if not isinstance(x, Log) and not low:
                raise OpenError(f"a maximum of {kind_of(x)}", remedy="test it instead")
        if not logs:
            return max((x for x in xs if isinstance(x, Const)), key=lambda c: c.value, default=LOW)
        if len(logs) == 1 or all(x is logs[0] for x in logs):
            return logs[0]
        if not all(x.unit.same(logs[0].unit) for x in logs):
            raise OpenError("a maximum of logarithms to different bases", remedy="convert one of them")
        return Log(logs[0].unit, self.table.maximum(logs))

    def compare(self, op: str) -> Callable[[Number, Number], Any]:
        """Decided where it is the same for all data."""
        test = COMPARISONS[op]

        def decide(a: Number, b: Number) -> Any:
            if isinstance(a, Undefined) or isinstance(b, Undefined):
                return op == "!="
            ranks = rank(a), rank(b)
            if None not in ranks and ranks != (0, 0):
                return bool(test(*ranks))
            if isinstance(a, Const) and isinstance(b, Const):
                if a.power == b.power and not a.off and not b.off:
                    return bool(test(a.value, b.value))
            elif a is b:
                return bool(test(0, 0))
            for x, y, sign in ((a, b, 1), (b, a, -1)):
                positive = isinstance(x, Factor) or (isinstance(x, Mass) and not x.values)
                if positive and isinstance(y, Const) and y.value <= 0:
                    return bool(test(sign, 0))
            if is_exact(a) and is_exact(b) and a.mono == b.mono:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
                return bool(test(0, 0))
            return Open(op, (a, b))

        return decide

    def is_nan(self, x: Number) -> bool:
        """Whether it is one: a number is none."""
        return isinstance(x, Undefined)

    def logic(self, op: str, conditions: Sequence[Any]) -> Any:
        """Open conditions stay open."""
        return Open(op, tuple(conditions))

    def choose(self, condition: Any, a: Number, b: Number) -> Number:
        """Either of two numbers."""
        if a is b:
            return a
        t = self.table
        if isinstance(a, Log) and isinstance(b, Log) and a.unit.same(b.unit):
            if is_exact(a) and is_exact(b) and a.mono == b.mono:
                return a
            return Log(a.unit, t.maximum((a, b), either=True))
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Log) and rank(y) == -1:
                return Log(x.unit, t.maximum((x,), either=True, or_low=True))
        if isinstance(a, Factor | Mass) and isinstance(b, Factor | Mass):
            x, y = self._mass(a), self._mass(b)
            if x.mono != y.mono:
                y = self._renamed(y, x.mono, t.equal(condition.equal(False)))
                x = self._renamed(x, y.mono, t.equal(condition.equal(True)))
            if x.mono == y.mono and (x.values, x.tokens) == (y.values, y.tokens):
                return replace(self._hull(x, y), lost=max(x.lost, y.lost))
        raise OpenError(f"a choice by data between {kind_of(a)} and {kind_of(b)}", remedy="test it instead")

    def _renamed(self, x: Mass, wanted: Any, same: set[int]) -> Mass:
        """A sum with the other's symbols, where these are the same numbers."""
        apart = times(wanted, x.mono, -1)
        if apart and all(s in same for s, _ in apart) and not sum(n for _, n in apart):
            return replace(x, mono=wanted, alias=None, number=[])
        return x
