"""What single operations do to numbers known up to factors: products, sums, exponentials, and a rounding after each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

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
from specs.formats import Format
from verify.numerics.rounding import round_fraction

#: Constants at or below it are below every score.
FLOOR = -10_000
#: How near a constant has to be to the logarithm of a base that it stands for.
CLOSE = 2.0**-18
NARROW = 16
ONE, ZERO = Const(Fraction(1)), Const(Fraction(0))
LOW, HIGH, UNDEFINED = Low(), High(), Undefined()
#: log2(e), and how far it may be off.
LOG2E = Const(Fraction("1.44269504088896340735992468100189214"), 0, 2.0**-100)
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Rounding:
    """One rounding: its largest relative error, and the format."""

    error: float
    fmt: Format

    @property
    def unit(self) -> float:
        """Half a unit in the last place."""
        return 2.0**-self.fmt.p


def nearest(x: Fraction, fmt: Format) -> Fraction:
    """The value of a format that a constant rounds to."""
    found = round_fraction(x, fmt)
    if not math.isfinite(found):
        raise OpenError(f"a constant that overflows {fmt}", remedy="use a wider format")
    return Fraction(found)


def falling(t: Table, m: Mass) -> bool:
    """Whether every weight of a sum is at most 1."""
    known = t.ends(m.mono, m.tokens)
    return not known.of and known.most <= 1.0


def is_exact(x: Number) -> bool:
    """Whether a number is a logit without an error."""
    return isinstance(x, Log) and not x.off and not x.slack


def rank(x: Number) -> int | None:
    """-1 for minus infinity and what stands for it, 0 for a logit."""
    match x:
        case Low():
            return -1
        case Log():
            return 0
        case Const() if x.value <= FLOOR:
            return -1
        case _:
            return None


def negated(x: Number) -> Number:
    """Minus a number."""
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
            raise OpenError(f"minus {kind_of(x)}", remedy="test it instead")


def kind_of(x: Number) -> str:
    """What a number is, in words."""
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


def error_of(fmt: Format) -> float:
    """The largest relative error of one rounding of a number that stays normal, relative to the number."""
    if fmt.is_real:
        return 0.0
    u = 2.0**-fmt.p
    return 2 * u if fmt.rz else u / (1 + u) * UP


class Steps:
    """The operations of one walk.

    Args:
        table: its symbols.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._based: dict[tuple[tuple[str, int], int], int] = {}
        self._units: dict[tuple[int, int], tuple[Const, Const, Const]] = {}

    def _rounded(self, x: Number, by: Rounding, site: tuple[str, int] = ("", 0)) -> Number:
        t = self.table
        match x:
            case Const():
                if not by.error or not x.value:
                    return x
                if x.power or x.off:
                    return Const(x.value, x.power, (x.off + by.error * (1 + x.off)) * UP)
                return Const(nearest(x.value, by.fmt))
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

    def _mul(self, a: Number, b: Number, by: Rounding, held: bool, site: tuple[str, int]) -> Number:
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
                    return self._mul(negated(log), Const(-c.value, c.power, c.off), by, held, site)
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
                raise OpenError(f"a product of {kind_of(a)} and {kind_of(b)}", remedy="test it instead")

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
        elif f.slack and not m.slack and not falling(t, m):
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

    def _add(self, a: Number, b: Number, by: Rounding, held: bool) -> Number:
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
                raise OpenError(f"a sum of {kind_of(a)} and {kind_of(b)}", remedy="test it instead")

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
        if (x.slack or y.slack) and not all(m.slack or falling(self.table, m) for m in (x, y)):
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

    def _less(self, a: Number, b: Number, by: Rounding, held: bool) -> Number:
        if isinstance(b, Low) and isinstance(a, Low):
            return UNDEFINED
        return ZERO if a is b and isinstance(a, Log) else self._add(a, negated(b), by, held)

    def _inverse(self, x: Number) -> Number:
        match x:
            case Const() if x.value:
                return Const(1 / x.value, -x.power, x.off * (1 + 2 * x.off) * UP)
            case Mass() if not x.values:
                x = self.table.alias(x)
            case Factor():
                pass
            case _:
                raise OpenError(f"a division by {kind_of(x)}", remedy="divide by a sum of weights")
        a, b = x.a, x.b
        if x.slack:
            e = x.slack * self.table.span(x.mono) * UP
            a, b = widened(a, b, e, math.expm1(e) * UP)
        if x.base is not None:
            a, b = widened(a, b, x.base.a, x.base.b)
        return Factor(inverted(x.mono), *below_one(a, b))

    def _exp(self, x: Number, base: float, by: Rounding, scaled: bool) -> Number:
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
                raise OpenError(f"an exponential of {kind_of(x)}", remedy="take it of logits")
        if scaled and by.error:
            x = self._rounded(x, Rounding(2 * by.unit, by.fmt))
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

    def _log(self, x: Number, unit: Const, by: Rounding) -> Number:
        if isinstance(x, Mass) and not x.values:
            x = self.table.alias(x)
        if isinstance(x, Const) and x.value == 1 and not x.power and not x.off:
            return ZERO
        if not isinstance(x, Factor):
            raise OpenError(f"a logarithm of {kind_of(x)}", remedy="take it of a sum of weights")
        a, b = x.a, x.b
        e = x.slack * self.table.span(x.mono) * UP
        a, b = widened(a, b, e, math.expm1(e) * UP) if e else (a, b)
        off = max(-math.log1p(-a), math.log1p(b)) * unit.size * UP
        found = self._rounded(Log(unit, x.mono, off), by)
        assert isinstance(found, Log)
        return replace(found, off=(found.off + by.error) * UP, slack=found.slack)
