"""Exact numbers of an attention kernel without roundings: products of symbols and sums, and logarithms of them.

A `Value` is a coefficient times powers of symbols times powers of sums: e^s and v of tokens, and e^m of whatever was
subtracted. A `Log` is a unit times the natural logarithm of a value: the unit tells base 2 from base e, and scaled scores
from raw ones. Everything is exact; sums are kept as factors, so that what cancels does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from specs.errors import SpecError

#: A monomial: symbols with their powers, sorted.
Mono = tuple[tuple[str, int], ...]
#: A sum of monomials with coefficients, sorted; more than one, and the first has the coefficient 1 and no symbols alone.
Poly = tuple[tuple[Mono, Fraction], ...]
MAX_TERMS = 4000
#: The softmax scale, and log2(e).
SCALE, LOG2E = "scale", "log2(e)"


class BreaksError(SpecError):
    """A step that no attention takes, such as the exponential of a base-2 logarithm; ``site``: the line."""

    site: str = ""


def _times(a: Mono, b: Mono, power: int = 1) -> Mono:
    out = dict(a)
    for symbol, n in b:
        out[symbol] = out.get(symbol, 0) + n * power
    return tuple(sorted((s, n) for s, n in out.items() if n))


@dataclass(frozen=True)
class Value:
    """``coefficient * product of symbols * product of sums``; 0 is the coefficient 0 alone."""

    coefficient: Fraction
    mono: Mono = ()
    factors: tuple[tuple[Poly, int], ...] = ()

    def __mul__(self, other: Value) -> Value:
        if not self.coefficient or not other.coefficient:
            return ZERO
        return Value(
            self.coefficient * other.coefficient,
            _times(self.mono, other.mono),
            _joined(self.factors, other.factors),
        )

    def inverse(self) -> Value:
        """1 over it.

        Raises:
            BreaksError: it is 0.
        """
        if not self.coefficient:
            raise BreaksError("a division by zero", remedy="guard it")
        return Value(
            1 / self.coefficient,
            tuple((s, -n) for s, n in self.mono),
            tuple((p, -n) for p, n in self.factors),
        )

    def __truediv__(self, other: Value) -> Value:
        return self * other.inverse()

    def __neg__(self) -> Value:
        return Value(-self.coefficient, self.mono, self.factors)

    def __add__(self, other: Value) -> Value:
        if not self.coefficient:
            return other
        if not other.coefficient:
            return self
        mine, theirs = dict(self.factors), dict(other.factors)
        common = {p: min(mine.get(p, 0), theirs.get(p, 0)) for p in {**mine, **theirs}}
        shared = tuple(sorted(((p, n) for p, n in common.items() if n), key=repr))
        total: dict[Mono, Fraction] = {}
        for value, own in ((self, mine), (other, theirs)):
            for mono, c in _expanded(value, {p: own.get(p, 0) - n for p, n in common.items()}).items():
                total[mono] = total.get(mono, Fraction(0)) + c
        return _of_sum({m: c for m, c in total.items() if c}, shared)

    def __sub__(self, other: Value) -> Value:
        return self + -other

    def power(self, n: int) -> Value:
        """A whole power."""
        out = ONE
        for _ in range(abs(n)):
            out = out * self
        return out if n >= 0 else out.inverse()

    def positive(self) -> bool | None:
        """Whether it is above 0 for all positive symbols: None where that is open (values of v have any sign)."""
        if not self.coefficient:
            return False
        if any(s.startswith("v") for s, _ in self.mono):
            return None
        sign = self.coefficient > 0
        for p, _ in self.factors:
            if any(s.startswith("v") for m, _ in p for s, _ in m) or any(c < 0 for _, c in p):
                return None
        return sign

    def terms(self) -> tuple[dict[Mono, Fraction], tuple[tuple[Poly, int], ...]]:
        """Its numerator as a sum of monomials, and the sums that it is divided by."""
        below = tuple((p, n) for p, n in self.factors if n < 0)
        above = {p: n for p, n in self.factors if n > 0}
        return _expanded(self, above), below

    def at(self, point: Mapping[str, Fraction]) -> Fraction:
        """Its number where every symbol has one."""
        out = self.coefficient
        for s, n in self.mono:
            out *= point[s] ** n
        for p, n in self.factors:
            out *= sum((c * Value(Fraction(1), m).at(point) for m, c in p), Fraction(0)) ** n
        return out

    def renamed(self, names: Mapping[str, str]) -> Value:
        """The value with other names for some symbols."""
        if not self.symbols() & set(names):
            return self
        out = Value(self.coefficient)
        for s, n in self.mono:
            out = out * symbol(names.get(s, s)).power(n)
        for p, n in self.factors:
            total = ZERO
            for m, c in p:
                total = total + Value(c, m).renamed(names)
            out = out * total.power(n)
        return out

    def symbols(self) -> set[str]:
        """Every symbol in it."""
        return {s for s, _ in self.mono} | {s for p, _ in self.factors for m, _ in p for s, _ in m}

    def sympy(self) -> Any:
        """The value as an expression of SymPy."""
        import sympy

        def mono(m: Mono) -> Any:
            return sympy.Mul(*(sympy.Symbol(s, positive=not s.startswith("v"), real=True) ** n for s, n in m))

        out = sympy.Rational(self.coefficient.numerator, self.coefficient.denominator) * mono(self.mono)
        for p, n in self.factors:
            total = sympy.Add(*(sympy.Rational(c.numerator, c.denominator) * mono(m) for m, c in p))
            out *= total**n
        return out


def _joined(a: tuple[tuple[Poly, int], ...], b: tuple[tuple[Poly, int], ...]) -> tuple[tuple[Poly, int], ...]:
    if not a or not b:
        return a or b
    out = dict(a)
    for p, n in b:
        out[p] = out.get(p, 0) + n
    return tuple(sorted(((p, n) for p, n in out.items() if n), key=repr))


def _expanded(value: Value, factors: Mapping[Poly, int]) -> dict[Mono, Fraction]:
    total: dict[Mono, Fraction] = {value.mono: value.coefficient}
    for p, n in factors.items():
        assert n >= 0
        for _ in range(n):
            grown: dict[Mono, Fraction] = {}
            for m, c in total.items():
                for k, d in p:
                    both = _times(m, k)
                    grown[both] = grown.get(both, Fraction(0)) + c * d
            if len(grown) > MAX_TERMS:
                raise BreaksError("a sum of too many terms", remedy="prove it on smaller pieces")
            total = grown
    return total


def _of_sum(total: Mapping[Mono, Fraction], factors: tuple[tuple[Poly, int], ...]) -> Value:
    """A sum as a value: what all its terms share before it, the rest a factor."""
    if not total:
        return ZERO
    if len(total) == 1:
        ((mono, c),) = total.items()
        return Value(c, mono, factors)
    least: dict[str, int] | None = None
    for m in total:
        powers = dict(m)
        if least is None:
            least = powers
            continue
        both = {s: min(n, powers.get(s, 0)) for s, n in least.items()}
        both |= {s: min(n, 0) for s, n in powers.items() if s not in least}
        least = {s: n for s, n in both.items() if n}
    assert least is not None
    shared: Mono = tuple(sorted((s, n) for s, n in least.items() if n))
    rest = sorted((_times(m, shared, -1), c) for m, c in total.items())
    lead = rest[0][1]
    poly: Poly = tuple((m, c / lead) for m, c in rest)
    return Value(lead, shared, _joined(factors, ((poly, 1),)))


ZERO, ONE = Value(Fraction(0)), Value(Fraction(1))


def symbol(name: str) -> Value:
    """A symbol."""
    return Value(Fraction(1), ((name, 1),))


def number(x: Fraction | int) -> Value:
    """A rational number."""
    return Value(Fraction(x))


@cache
def unit(scale: int, log2e: int) -> Value:
    """A product of powers of the softmax scale and log2(e)."""
    return Value(Fraction(1), tuple(sorted((s, n) for s, n in ((SCALE, scale), (LOG2E, log2e)) if n)))


@dataclass(frozen=True)
class Log:
    """``unit * ln(value)``: of 0 it is -inf; ``infinite``: +inf."""

    value: Value
    unit: Value = field(default_factory=lambda: ONE)
    infinite: bool = False

    def base(self) -> str:
        """What kind of logarithm it is, in words."""
        known = {
            ONE: "a natural logarithm",
            unit(0, 1): "a logarithm in base 2",
            unit(-1, 0): "a logarithm that is not scaled yet",
        }
        return known.get(self.unit, f"a logarithm times {self.unit.sympy()}")
