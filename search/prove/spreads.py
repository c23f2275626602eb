"""The arithmetic of the definition over numbers known up to factors: every rounding widens them, no input is put in.

What a walk with it finds holds for all scores in a box and all values: comparisons that data decide are left open, and
a choice between two numbers is both of them, or refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from search.prove.spread import (
    TINY,
    TINY_LOG,
    UP,
    Base,
    Const,
    Factor,
    High,
    Log,
    Low,
    Mass,
    Number,
    OpenError,
    Table,
    Undefined,
    Value,
    below_one,
    inverted,
    times,
    widened,
)
from search.tape import APPROXIMATE, EXP, EXP2, LOG, LOG2, QUOTIENT, RECIPROCAL, SCALED
from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition.arithmetic import COMPARISONS, Fold
from verify.definition.scalar import ScalarArithmetic
from verify.definition.trees import Operations, build, integer
from verify.numerics.rounding import round_fraction

#: Constants at or below it are below every score.
FLOOR = -10_000
#: How near a constant has to be to the logarithm of a base that it stands for.
CLOSE = 2.0**-18
NARROW = 16
ONE, ZERO = Const(Fraction(1)), Const(Fraction(0))
LOW, HIGH, UNDEFINED = Low(), High(), Undefined()
#: log2(e), and how far it may be off.
_LOG2E = Const(Fraction("1.44269504088896340735992468100189214"), 0, 2.0**-100)
_LN2 = 0.6931471805599453


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


def error_of(fmt: Format) -> float:
    """The largest relative error of one rounding of a number that stays normal, relative to the number."""
    if fmt.is_real:
        return 0.0
    u = 2.0**-fmt.p
    return 2 * u if fmt.rz else u / (1 + u) * UP


class Spreads:
    """One walk.

    Args:
        table: its symbols.
        scale: the double that stands for the softmax scale.
        exact: lines whose roundings are left out.

    Attributes:
        site: the line that is compiled.
    """

    def __init__(self, table: Table, scale: float, exact: frozenset[str] = frozenset()) -> None:
        self.table, self.scale, self.exact = table, Fraction(scale), exact
        self.site = ""
        self._parts: dict[str, int] = {}
        self._based: dict[tuple[tuple[str, int], int], int] = {}
        self._units: dict[tuple[int, int], tuple[Const, Const, Const]] = {}

    # -- leaves -------------------------------------------------------------------------------------------

    def number(self, x: Fraction, fmt: Format) -> Number:
        """A constant, rounded; the scale."""
        if x == self.scale:
            return Const(Fraction(1), 1)
        return Const(x if fmt.is_real else _nearest(x, fmt))

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
                quiet = _Rounding(0.0, fmt) if exact_product else rounds
                return lambda a, b: self._mul(a, b, quiet, held, site)
            case "fma":
                none = _Rounding(0.0, fmt)
                return lambda a, b, c: self._add(self._mul(a, b, none, True, site), c, rounds, False)
            case "neg":
                return _negated
            case "max":
                return self._max
            case short if short in QUOTIENT:
                return lambda a, b: self._mul(a, self._inverse(b), rounds, False, site)
            case short if short in RECIPROCAL:
                return lambda a: self._rounded(self._inverse(a), rounds, site)
            case short if short in EXP or short in EXP2:
                base = 1.0 if short in EXP else _LN2
                return lambda a: self._exp(a, base, rounds, short in SCALED)
            case short if short in LOG or short in LOG2:
                return lambda a: self._log(a, ONE if short in LOG else _LOG2E, rounds)
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
        none, rounds, site = _Rounding(0.0, fmt), self._rounding(fmt), self._place()
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
                        step = none if quiet else _Rounding(cut + last + cut * last, fmt)
                        early = dot.addition == "early"
                        inner: Number = total if early else ZERO
                        for pair in live:
                            inner = plus(inner, pair, True)
                        inner = self._rounded(inner, step, site)
                        total = inner if early else self._add(total, inner, rounds, False)
                return total

            return run

        return build(tree, Operations(add, mul, fma, exact, ZERO, chain), pairs=kind == "dot")

    def _rounding(self, fmt: Format, error: float | None = None) -> _Rounding:
        """A rounding of the line that is compiled."""
        return _Rounding(0.0 if self.site in self.exact else error_of(fmt) if error is None else error, fmt)

    def _place(self) -> tuple[str, int]:
        self._parts[self.site] = self._parts.get(self.site, 0) + 1
        return self.site, self._parts[self.site]

    # -- numbers ------------------------------------------------------------------------------------------

    def _rounded(self, x: Number, by: _Rounding, site: tuple[str, int] = ("", 0)) -> Number:
        t = self.table
        match x:
            case Const():
                if not by.error or not x.value:
                    return x
                if x.power or x.off:
                    return Const(x.value, x.power, (x.off + by.error * (1 + x.off)) * UP)
                return Const(_nearest(x.value, by.fmt))
            case Log():
                if not by.error:
                    return x
                off = (x.off * (1 + by.error) + TINY_LOG) * UP
                if t.falls(x.mono):
                    return replace(x, off=off, slack=(x.slack * (1 + by.error) + by.error) * UP)
                more = by.error * (1 + x.slack) * x.unit.size * t.span(x.mono)
                return replace(x, off=(off + more) * UP)
            case Factor():
                if not by.error:
                    return x
                self._stays(t.bounds(x.mono)[0] * (1 - x.a), by.fmt)
                token = next((s for s, n in x.mono if s >= 0 and n == 1), None)
                if by.fmt.p <= NARROW and x.base is None and token is not None:
                    return replace(x, base=Base(self._base(site, token), by.error, by.error))
                a, b = widened(x.a, x.b, by.error)
                return replace(x, a=a, b=b)
            case Value():
                raise OpenError("a rounding of values", remedy="give values that the format holds")
            case Mass():
                if not by.error and not x.values:
                    return x
                a, b = widened(x.a, x.b, by.error)
                alias = None
                if not x.values:
                    self._stays(t.single(x.mono) * (1 - x.a), by.fmt)
                    if x.alias is not None:
                        more = widened(x.alias.a, x.alias.b, by.error)
                        alias = replace(x.alias, a=more[0], b=more[1])
                lost = (x.lost * (1 + by.error) + max(TINY, 4 * 2.0**by.fmt.emin)) * UP if x.values else 0.0
                return replace(x, a=a, b=b, lost=lost, alias=alias, number=[])
            case _:
                return x

    def _stays(self, least: float, fmt: Format) -> None:
        """Refuse a positive number that may be too small for a format."""
        if least < 2.0 ** (fmt.emin + 1):
            raise OpenError(
                f"a rounding to {fmt}, whose smallest normal number is 2^{fmt.emin}: smaller weights are lost",
                remedy="narrow the score box",
            )

    def _base(self, site: tuple[str, int], token: int) -> tuple[str, int]:
        """A name for the factors of one rounding of weights, each weight once."""
        count = self._based.get((site, token), 0)
        self._based[site, token] = count + 1
        return site if not count else (f"{site[0]} {count} of {token}", site[1])

    def _mul(self, a: Number, b: Number, by: _Rounding, held: bool, site: tuple[str, int]) -> Number:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Const) and not x.value and not isinstance(y, Low | Undefined):
                return ZERO
            if isinstance(x, Const) and x.value == 1 and not x.power and not x.off:
                return y if held else self._rounded(y, by, site)
        match a, b:
            case (Const(), Const()):
                off = (a.off + b.off + a.off * b.off) * UP
                product = Const(a.value * b.value, a.power + b.power, off)
                return self._rounded(product, by)
            case (Log(), Const()) | (Const(), Log()):
                log, c = (a, b) if isinstance(a, Log) else (b, a)
                assert isinstance(log, Log)
                assert isinstance(c, Const)
                if c.value < 0:
                    return self._mul(_negated(log), Const(-c.value, c.power, c.off), by, held, site)
                unit = self._unit(log.unit, c)
                return self._rounded(Log(unit, log.mono, log.off * c.size * UP, log.slack), by)
            case (Factor() | Mass(), Const()) | (Const(), Factor() | Mass()):
                x, c = (a, b) if isinstance(b, Const) else (b, a)
                assert isinstance(x, Factor | Mass)
                assert isinstance(c, Const)
                if c.power or c.value < 0:
                    raise OpenError("a weight times the scale, or less than 0", remedy="test it instead")
                by_constant = Factor(self.table.constant(c.value), c.off, c.off)
                return self._mul(x, by_constant, by, held, site)
            case (Low(), Const()) | (Const(), Low()):
                if (a if isinstance(a, Const) else b).value < 0:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
                    raise OpenError("plus infinity", remedy="guard it")
                return LOW
            case (Undefined(), _) | (_, Undefined()):
                return UNDEFINED
            case (Factor(), Factor()):
                return self._rounded(self._joined(a, b), by, site)
            case (Factor() | Mass(), Value()) | (Value(), Factor() | Mass()):
                weight, value = (a, b) if isinstance(b, Value) else (b, a)
                assert isinstance(value, Value)
                assert isinstance(weight, Factor | Mass)
                m = self._mass(weight)
                if m.values or m.tokens != 1 << value.token:
                    raise OpenError("a value times a weight that is not its own", remedy="test it instead")
                return self._rounded(replace(m, values=True, lost=0.0, alias=None, number=[]), by)
            case (Mass(), Factor()) | (Factor(), Mass()):
                m, f = (a, b) if isinstance(a, Mass) else (b, a)
                assert isinstance(m, Mass)
                assert isinstance(f, Factor)
                return self._rounded(self._scaled(m, f), by)
            case (Mass(), Mass()) if a.values != b.values or not a.values:
                m, f = (a, b) if a.values else (b, a)
                return self._rounded(self._scaled(m, self.table.alias(f)), by)
            case _:
                raise OpenError(f"a product of {_kind(a)} and {_kind(b)}", remedy="test it instead")

    def _unit(self, unit: Const, c: Const) -> Const:
        key = (id(unit), id(c))
        if key not in self._units:
            off = (unit.off + c.off + unit.off * c.off) * UP
            self._units[key] = Const(unit.value * c.value, unit.power + c.power, off), unit, c
        return self._units[key][0]

    def _joined(self, a: Factor, b: Factor) -> Factor:
        mono = times(a.mono, b.mono)
        base, other = (a.base, b.base) if a.base is not None else (b.base, a.base)
        low, high = widened(a.a, a.b, b.a, b.b)
        if other is not None:
            low, high = widened(low, high, other.a, other.b)
        slack = max(a.slack, b.slack)
        if slack and not (self.table.falls(a.mono) and self.table.falls(b.mono)):
            for x in (a, b):
                e = x.slack * self.table.span(x.mono) * UP
                low, high = widened(low, high, e, math.expm1(e) * UP)
            slack = 0.0
        return Factor(mono, low, high, slack, base)

    def _scaled(self, m: Mass, f: Factor) -> Mass:
        t = self.table
        if f.base is not None:
            raise OpenError("a sum times a rounded weight", remedy="test it instead")
        a, b = widened(m.a, m.b, f.a, f.b)
        slack = max(m.slack, f.slack)
        if slack and not t.falls(f.mono):
            e = (m.slack * t.reach(m) if m.slack else 0.0) + f.slack * t.span(f.mono)
            a, b = widened(a, b, e * UP, math.expm1(e * UP) * UP)
            slack = 0.0
        elif f.slack and not m.slack and not _falling(t, m):
            e = f.slack * t.span(f.mono) * UP
            a, b = widened(a, b, e, math.expm1(e) * UP)
            slack = 0.0
        lost = m.lost * t.bounds(f.mono)[1] * (1 + f.b) * UP if m.lost else 0.0
        alias = None if m.values else self._joined(t.alias(m), f)
        return Mass(m.values, times(m.mono, f.mono), m.tokens, a, b, slack, m.base, lost, alias)

    def _mass(self, x: Factor | Mass) -> Mass:
        """A product that is a weight, or a multiple of a sum of weights, as a sum over tokens."""
        if isinstance(x, Mass):
            return x
        for s, n in x.mono:
            if s >= 0 and n == 1:
                slack, a, b = x.slack, x.a, x.b
                alias = x if x.base is None else None
                mono = times(x.mono, ((s, 1),), -1)
                return Mass(False, mono, 1 << s, a, b, slack, x.base, 0.0, alias)
        for s, n in x.mono:
            known = self.table.of(s)
            if isinstance(known, Mass) and n == 1:
                rest = replace(x, mono=times(x.mono, ((s, 1),), -1), slack=0.0)
                made = self._scaled(known, rest)
                e = x.slack * self.table.span(x.mono) * UP
                a, b = widened(made.a, made.b, e, math.expm1(e) * UP) if e else (made.a, made.b)
                return replace(made, a=a, b=b, alias=x, number=[])
        raise OpenError("a sum of numbers that are no weights", remedy="test it instead")

    def _add(self, a: Number, b: Number, by: _Rounding, held: bool) -> Number:
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Const) and not x.value:
                return y if held else self._rounded(y, by)
            if isinstance(x, Undefined):
                return x
        match a, b:
            case (Const(), Const()) if a.power == b.power:
                off = max(a.off, b.off)
                if off and (a.value < 0) != (b.value < 0):
                    raise OpenError("a difference of constants", remedy="write it as one")
                return self._rounded(Const(a.value + b.value, a.power, off), by)
            case (Low(), _) | (_, Low()):
                return LOW
            case (Log(), Const()) | (Const(), Log()):
                c = a if isinstance(a, Const) else b
                assert isinstance(c, Const)
                if c.value <= FLOOR:
                    return LOW
                raise OpenError("a constant plus a logarithm", remedy="test it instead")
            case (Log(), Log()):
                return self._rounded(self._log_sum(a, b), by)
            case (Factor() | Mass(), Factor() | Mass()):
                return self._rounded(self._sum(self._mass(a), self._mass(b)), by)
            case _:
                raise OpenError(f"a sum of {_kind(a)} and {_kind(b)}", remedy="test it instead")

    def _log_sum(self, a: Log, b: Log) -> Log:
        t = self.table
        off = (a.off + b.off) * UP
        for x in (a, b):
            if x.slack:
                off = (off + x.slack * x.unit.size * t.span(x.mono)) * UP
        if not a.unit.same(b.unit):
            # The second logarithm in the unit of the first.
            if a.unit.power != b.unit.power:
                raise OpenError("a sum of scaled and unscaled logits", remedy="scale both")
            apart = abs(b.unit.value / a.unit.value - 1)
            if apart > CLOSE:
                raise OpenError("a sum of logarithms to different bases", remedy="convert one of them")
            away = (float(apart) + a.unit.off + b.unit.off) * UP
            off = (off + away * 1.01 * b.unit.size * t.span(b.mono)) * UP
        return Log(a.unit, times(a.mono, b.mono), off)

    def _sum(self, x: Mass, y: Mass) -> Mass:
        t = self.table
        if x.values != y.values:
            raise OpenError("a sum of weights and of values", remedy="test it instead")
        if x.tokens & y.tokens:
            raise OpenError("a token that is counted twice", remedy="count each token once")
        if x.mono != y.mono:
            away = t.near(times(y.mono, x.mono, -1))
            if away is None or max(away) > 0.25:
                raise OpenError("a sum of terms that were scaled otherwise", remedy="rescale one of them")
            y = self._plain(y)
            a, b = widened(y.a, y.b, *away)
            y = replace(y, mono=x.mono, a=a, b=b)
        return replace(self._hull(x, y), tokens=x.tokens | y.tokens, lost=(x.lost + y.lost) * UP)

    def _plain(self, m: Mass) -> Mass:
        """Without slack: it is one more factor."""
        if not m.slack:
            return m
        e = m.slack * self.table.reach(m) * UP
        a, b = widened(m.a, m.b, e, math.expm1(e) * UP)
        return replace(m, a=a, b=b, slack=0.0)

    def _hull(self, x: Mass, y: Mass) -> Mass:
        """The ranges of both, which have one product before them."""
        if (x.slack or y.slack) and not all(m.slack or _falling(self.table, m) for m in (x, y)):
            x, y = self._plain(x), self._plain(y)
        base, other = x.base, y.base
        if base is None or other is None or base.name != other.name:
            base = None
            x, y = (
                m if m.base is None else replace(m, a=w[0], b=w[1])
                for m in (x, y)
                for w in [widened(m.a, m.b, m.base.a, m.base.b) if m.base is not None else (0.0, 0.0)]
            )
        a, b = max(x.a, y.a), max(x.b, y.b)
        return Mass(x.values, x.mono, x.tokens, a, b, max(x.slack, y.slack), base)

    def _less(self, a: Number, b: Number, by: _Rounding, held: bool) -> Number:
        if isinstance(b, Low) and isinstance(a, Low):
            return UNDEFINED
        return ZERO if a is b and isinstance(a, Log) else self._add(a, _negated(b), by, held)

    def _inverse(self, x: Number) -> Number:
        match x:
            case Const() if x.value:
                return Const(1 / x.value, -x.power, x.off * (1 + 2 * x.off) * UP)
            case Mass() if not x.values:
                x = self.table.alias(x)
            case Factor():
                pass
            case _:
                raise OpenError(f"a division by {_kind(x)}", remedy="divide by a sum of weights")
        a, b = x.a, x.b
        if x.slack:
            e = x.slack * self.table.span(x.mono) * UP
            a, b = widened(a, b, e, math.expm1(e) * UP)
        if x.base is not None:
            a, b = widened(a, b, x.base.a, x.base.b)
        return Factor(inverted(x.mono), *below_one(a, b))

    def _exp(self, x: Number, base: float, by: _Rounding, scaled: bool) -> Number:
        t = self.table
        match x:
            case Low():
                return ZERO
            case Undefined():
                return x
            case Const():
                if x.value <= FLOOR:
                    return ZERO
                if not x.value:
                    return ONE
                raise OpenError("the exponential of a constant", remedy="test it instead")
            case Log():
                pass
            case _:
                raise OpenError(f"an exponential of {_kind(x)}", remedy="take it of logits")
        if scaled and by.error:
            x = self._rounded(x, _Rounding(2 * by.unit, by.fmt))
            assert isinstance(x, Log)
        plain = x.unit.value == 1 and base == 1.0
        away = 0.0 if plain else abs(float(x.unit.value) * base - 1) + 2.0**-50
        if x.unit.power or away > CLOSE:
            raise OpenError(
                f"a power of {'e' if base == 1.0 else 2} whose exponent is no logarithm to it",
                remedy="convert by log2(e), ln(2) or the scale",
            )
        slack = (x.slack * (1 + away) + away + x.unit.off * 1.01) * UP
        e = x.off * base * UP * UP
        if not t.falls(x.mono):
            e, slack = (e + slack * t.span(x.mono)) * UP, 0.0
        low, high = (e, math.expm1(e) * UP) if e else (0.0, 0.0)
        return self._rounded(Factor(x.mono, low, high, slack), by)

    def _log(self, x: Number, unit: Const, by: _Rounding) -> Number:
        if isinstance(x, Mass) and not x.values:
            x = self.table.alias(x)
        if isinstance(x, Const) and x.value == 1 and not x.power and not x.off:
            return ZERO
        if not isinstance(x, Factor):
            raise OpenError(f"a logarithm of {_kind(x)}", remedy="take it of a sum of weights")
        a, b = x.a, x.b
        e = x.slack * self.table.span(x.mono) * UP
        a, b = widened(a, b, e, math.expm1(e) * UP) if e else (a, b)
        off = max(-math.log1p(-a), math.log1p(b)) * unit.size * UP
        found = self._rounded(Log(unit, x.mono, off), by)
        assert isinstance(found, Log)
        return replace(found, off=(found.off + by.error) * UP, slack=found.slack)

    # -- comparisons --------------------------------------------------------------------------------------

    def _max(self, *xs: Number) -> Number:
        logs = [x for x in xs if isinstance(x, Log)]
        for x in xs:
            low = isinstance(x, Low) or (isinstance(x, Const) and x.value <= FLOOR)
            if not isinstance(x, Log) and not low:
                raise OpenError(f"a maximum of {_kind(x)}", remedy="test it instead")
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
            ranks = _rank(a), _rank(b)
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
            if _exact(a) and _exact(b) and a.mono == b.mono:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
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
            if _exact(a) and _exact(b) and a.mono == b.mono:
                return a
            return Log(a.unit, t.maximum((a, b), either=True))
        for x, y in ((a, b), (b, a)):
            if isinstance(x, Log) and _rank(y) == -1:
                return Log(x.unit, t.maximum((x,), either=True, or_low=True))
        if isinstance(a, Factor | Mass) and isinstance(b, Factor | Mass):
            x, y = self._mass(a), self._mass(b)
            if x.mono != y.mono:
                y = self._renamed(y, x.mono, t.equal(condition.equal(False)))
                x = self._renamed(x, y.mono, t.equal(condition.equal(True)))
            if x.mono == y.mono and (x.values, x.tokens) == (y.values, y.tokens):
                return replace(self._hull(x, y), lost=max(x.lost, y.lost))
        raise OpenError(f"a choice by data between {_kind(a)} and {_kind(b)}", remedy="test it instead")

    def _renamed(self, x: Mass, wanted: Any, same: set[int]) -> Mass:
        """A sum with the other's symbols, where these are the same numbers."""
        apart = times(wanted, x.mono, -1)
        if apart and all(s in same for s, _ in apart) and not sum(n for _, n in apart):
            return replace(x, mono=wanted, alias=None, number=[])
        return x


@dataclass(frozen=True)
class _Rounding:
    """One rounding: its largest relative error, and the format."""

    error: float
    fmt: Format

    @property
    def unit(self) -> float:
        """Half a unit in the last place."""
        return 2.0**-self.fmt.p


def _nearest(x: Fraction, fmt: Format) -> Fraction:
    found = round_fraction(x, fmt)
    if not math.isfinite(found):
        raise OpenError(f"a constant that overflows {fmt}", remedy="use a wider format")
    return Fraction(found)


def _falling(t: Table, m: Mass) -> bool:
    known = t.ends(m.mono, m.tokens)
    return not known.of and known.most <= 1.0


def _exact(x: Number) -> bool:
    return isinstance(x, Log) and not x.off and not x.slack


def _rank(x: Number) -> int | None:
    match x:
        case Low():
            return -1
        case Log():
            return 0
        case Const() if x.value <= FLOOR:
            return -1
        case _:
            return None


def _negated(x: Number) -> Number:
    match x:
        case Const():
            return replace(x, value=-x.value)
        case Log():
            return replace(x, mono=inverted(x.mono))
        case Low():
            return HIGH
        case High():
            return LOW
        case Undefined():
            return x
        case _:
            raise OpenError(f"minus {_kind(x)}", remedy="test it instead")


def _kind(x: Number) -> str:
    match x:
        case Const():
            return "a constant"
        case Log():
            return "a logit"
        case Low() | High():
            return "an infinity"
        case Undefined():
            return "a NaN"
        case Value():
            return "a value"
        case Factor():
            return "a weight"
        case Mass():
            return "a sum of values" if x.values else "a sum of weights"
