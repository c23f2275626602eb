"""The arithmetic of the definition without roundings, over `search.prove.values`, where every maximum is any number.

A kernel subtracts maxima so that nothing overflows; in real numbers its answer must not depend on what it subtracts. So
``max`` gives a symbol of its own, the same for the same arguments. What holds for free symbols holds for maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from search.prove.values import LOG2E, ONE, SCALE, ZERO, BreaksError, Log, Value, number, symbol, unit
from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition.arithmetic import Decided, Fold
from verify.definition.scalar import ScalarArithmetic

#: What stands for these irrational numbers in a spec is within this of them.
CLOSE = Fraction(1, 1 << 21)
_LOG2E, _LN2 = Fraction(1.4426950408889634), Fraction(0.6931471805599453)
#: A number at or below it stands for minus infinity where logarithms are compared.
FLOOR = -10_000
_EXP = ("exp", "triton.exp", "cuda.expf", "cuda.fast_expf", "torch.fexp_u20", "glibc.expf")
_EXP2 = ("exp2", "mufu.ex2", "fa4.exp2")
_LOG = ("log", "cuda.logf", "glibc.logf")
_LOG2 = ("log2", "mufu.lg2")

Number = Value | Log


@dataclass(frozen=True)
class Decision:
    """How an open comparison comes out on one path: ``equal`` unifies two symbols."""

    key: tuple[str, Any, Any]
    holds: bool


@dataclass(frozen=True)
class Open:
    """A comparison that data decide; ``equal``: the values are the same where it is (not) true."""

    key: tuple[str, Any, Any]
    negated: bool = False


class ForkError(Exception):
    """A comparison that data decide: both ways have to be walked."""

    def __init__(self, key: tuple[str, Any, Any]) -> None:
        super().__init__(str(key))
        self.key = key


@dataclass(frozen=True)
class Sum:
    """One sum of a line: the line, its terms and where it starts."""

    site: str
    terms: tuple[Value, ...]
    start: Value | None


class Realm(Decided):
    """One walk, on one path.

    Args:
        values: what the doubles stand for that enter as values of v.
        scalars: likewise as scalars.
        path: how open comparisons come out.

    Attributes:
        sums: the sums that were made, in order.
        maxima: the symbol of each maximum, with what it is the maximum of.
        floors: constants that stood for minus infinity.
        approximate: whether constants stood for log2(e) or ln(2).
    """

    def __init__(
        self, values: Mapping[float, Number], scalars: Mapping[float, Number], path: Sequence[Decision]
    ) -> None:
        self.values, self.scalars = values, scalars
        self.path = {d.key: d.holds for d in path}
        self.sums: list[Sum] = []
        self.maxima: dict[str, frozenset[Any]] = {}
        self.floors: set[float] = set()
        self.approximate = False
        self.site = ""
        self._symbols: dict[frozenset[Any], str] = {}
        self._equal = [
            (k[1], k[2])
            for k, holds in self.path.items()
            if ((k[0] == "==" and holds) or (k[0] == "!=" and not holds))
            and isinstance(k[1], frozenset)  # two maxima; a number leaves the symbol free
        ]

    # -- leaves -------------------------------------------------------------------------------------------

    def number(self, x: Fraction, fmt: Format) -> Number:
        """A constant: log2(e) and ln(2) where it is near them; or a scalar that a double stands for."""
        if x in self.scalars:
            return self.scalars[float(x)]
        for known, power in ((_LOG2E, 1), (_LN2, -1)):
            for sign in (1, -1):
                if abs(x - sign * known) < CLOSE:
                    self.approximate = True
                    return number(sign) * unit(0, power)
        return number(x)

    def special(self, x: float, fmt: Format) -> Number:
        """An infinity."""
        if x != x:
            raise BreaksError("a NaN", remedy="guard it by a select")
        return Log(ZERO, infinite=x > 0)

    def pattern(self, bits: int, fmt: Format) -> Number:
        """The number of this pattern."""
        return self.number(Fraction(ScalarArithmetic().pattern(bits, fmt)), fmt)

    def lift(self, x: float) -> Number:
        """What the double stands for; itself, where it stands for nothing."""
        return self.values.get(x, number(Fraction(x)))

    # -- operations ---------------------------------------------------------------------------------------

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Number]:
        """The real meaning of ``op``.

        Raises:
            UnsupportedError: it has none here.
        """
        short = {"add": "+", "sub": "-", "mul": "*", "div": "/", "div.full": "/"}.get(op, op)
        simple: dict[str, Callable[..., Number]] = {
            "+": self._add,
            "-": lambda a, b: self._add(a, self._neg(b)),
            "*": self._mul,
            "/": lambda a, b: self._mul(a, self._inverse(b)),
            "fma": lambda a, b, c: self._add(self._mul(a, b), c),
            "neg": self._neg,
            "rcp": self._inverse,
            "mufu.rcp": self._inverse,
            "max": self._max,
        }
        if short in simple:
            return simple[short]
        if op in _EXP:
            return lambda a: self._exp(a, ONE)
        if op in _EXP2:
            return lambda a: self._exp(a, unit(0, 1))
        if op in _LOG:
            return lambda a: self._log(a, ONE)
        if op in _LOG2:
            return lambda a: self._log(a, unit(0, 1))
        raise UnsupportedError(
            f"{op}() has no algebra here", remedy="use + - * / fma exp exp2 log log2 rcp max"
        )

    def cast(self, source: Format, target: Format) -> Callable[[Number], Number]:
        """The identity: there are no roundings."""
        return lambda x: x

    def is_nan(self, x: Number) -> bool:
        """False: a real number is one."""
        return False

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The sum, whatever the tree; its terms are kept."""
        site = self.site

        def total(terms: Sequence[Any], start: Any) -> Number:
            each = [self._mul(*t) for t in terms] if kind == "dot" else list(terms)
            plain = [t for t in each if isinstance(t, Value)]
            if len(plain) != len(each):
                raise BreaksError("a sum of logarithms", remedy="sum weights, not scores")
            self.sums.append(Sum(site, tuple(plain), start if isinstance(start, Value) else None))
            acc: Number = ZERO if start is None else start
            for t in plain:
                acc = self._add(acc, t)
            return acc

        return total

    def _add(self, a: Number, b: Number) -> Number:
        if isinstance(a, Value) and isinstance(b, Value):
            return a + b
        for x, y in ((a, b), (b, a)):  # minus infinity, and any number
            if isinstance(x, Log) and not x.value.coefficient and not x.infinite and isinstance(y, Value):
                return x
        a, b = self._as_log(a, b), self._as_log(b, a)
        if a.infinite or b.infinite:
            return Log(ZERO, a.unit, infinite=True)
        # ln(0) and ln(1) are the same in every base.
        for x, y in ((a, b), (b, a)):
            if x.value in (ZERO, ONE):
                return Log(x.value * y.value, y.unit)
        if a.unit != b.unit:
            raise BreaksError(f"{a.base()} plus {b.base()}", remedy="convert one of them")
        return Log(a.value * b.value, a.unit)

    def _as_log(self, x: Number, other: Number) -> Log:
        """A number that meets a logarithm."""
        if isinstance(x, Log):
            return x
        known = other.unit if isinstance(other, Log) else ONE
        if not x.coefficient:
            return Log(ONE, known)
        floor = self._floor(x)
        if floor is not None:
            return Log(ZERO, known)
        raise BreaksError(f"the number {x.sympy()} plus a logarithm", remedy="add logarithms to logarithms")

    def _floor(self, x: Value) -> float | None:
        """A constant that stands for minus infinity."""
        if x.mono or x.factors or x.coefficient > FLOOR:
            return None
        self.floors.add(float(x.coefficient))
        return float(x.coefficient)

    def _neg(self, a: Number) -> Number:
        if isinstance(a, Value):
            return -a
        if not a.value.coefficient:
            return Log(ZERO, a.unit, infinite=not a.infinite)
        return Log(a.value.inverse(), a.unit)

    def _mul(self, a: Number, b: Number) -> Number:
        if isinstance(a, Value) and isinstance(b, Value):
            return a * b
        if isinstance(a, Log) and isinstance(b, Log):
            raise BreaksError("a product of two logarithms", remedy="multiply weights, not scores")
        log, by = (a, b) if isinstance(a, Log) else (b, a)
        assert isinstance(log, Log)
        assert isinstance(by, Value)
        if by.factors or {s for s, _ in by.mono} - {SCALE, LOG2E}:
            raise BreaksError(
                "a logarithm times a number that is no constant", remedy="multiply weights, not scores"
            )
        if not by.coefficient:
            return ZERO
        if by.coefficient.denominator != 1:
            raise BreaksError(f"a logarithm times {by.coefficient}", remedy="use log2(e), ln(2) or the scale")
        return Log(
            log.value.power(int(by.coefficient)) if log.value.coefficient else log.value,
            log.unit * Value(Fraction(1), by.mono),
            log.infinite,
        )

    def _inverse(self, a: Number) -> Number:
        if isinstance(a, Log):
            raise BreaksError("a division by a logarithm", remedy="divide by a sum of weights")
        return a.inverse()

    def _exp(self, a: Number, wanted: Value) -> Number:
        if isinstance(a, Value):
            if not a.coefficient:
                return ONE
            if self._floor(a) is not None:
                return ZERO
            raise BreaksError(
                f"an exponential of {a.sympy()}, no logarithm", remedy="take it of scores and maxima"
            )
        if a.infinite:
            raise BreaksError("an exponential of +inf", remedy="guard it")
        if a.value in (ZERO, ONE):
            return a.value
        if a.unit != wanted:
            base = "2" if wanted == unit(0, 1) else "e"
            raise BreaksError(
                f"base {base} to the power of {a.base()}",
                remedy="convert by log2(e) or ln(2), or by the scale",
            )
        return a.value

    def _log(self, a: Number, wanted: Value) -> Number:
        if isinstance(a, Log):
            raise BreaksError("a logarithm of a logarithm", remedy="take it of a sum of weights")
        return Log(a, wanted)

    # -- maxima and comparisons ---------------------------------------------------------------------------

    def _max(self, *xs: Number) -> Number:
        logs = [x if isinstance(x, Log) else None for x in xs]
        plain = [x for x in xs if isinstance(x, Value)]
        if all(x is None for x in logs):
            raise UnsupportedError("a maximum of numbers that are no logarithms", remedy="test it instead")
        for x in plain:
            if self._floor(x) is None:
                raise UnsupportedError(f"a maximum with {x.sympy()}", remedy="test it instead")
        live = [x for x in logs if x is not None and (x.value.coefficient or x.infinite)]
        if not live and plain:
            return plain[0]  # a number that stands for minus infinity, but is none
        if not live:
            return Log(ZERO, next(x for x in logs if x is not None).unit)
        if any(x.infinite for x in live):
            return next(x for x in live if x.infinite)
        if len({x.unit for x in live}) > 1:
            kinds = " and ".join(dict.fromkeys(x.base() for x in live))
            raise BreaksError(f"a maximum of {kinds}", remedy="compare logarithms of one base")
        key = frozenset(atom for x in live for atom in self._atoms(x.value))
        return Log(symbol(self._symbol(key)), live[0].unit)

    def _atoms(self, value: Value) -> frozenset[Any]:
        if len(value.mono) == 1 and not value.factors and value.coefficient == 1 and value.mono[0][1] == 1:
            name = value.mono[0][0]
            if name in self.maxima:
                return self.maxima[name]
        return frozenset([value])

    def _symbol(self, key: frozenset[Any]) -> str:
        for a, b in self._equal:
            if key in (a, b, a | b):
                key = a
        if key not in self._symbols:
            name = f"X{len(self._symbols) + 1}"
            self._symbols[key] = name
            self.maxima[name] = key
        return self._symbols[key]

    def compare(self, op: str) -> Callable[[Number, Number], Any]:
        """A comparison: decided where it is the same for all data or the path says it, else open."""

        def decide(a: Number, b: Number) -> Any:
            known = self._known(op, a, b)
            if known is not None:
                return known
            key = self._key(op, a, b)
            return self.path[key] if key in self.path else Open(key)

        return decide

    def logic(self, op: str, conditions: Sequence[Any]) -> Any:
        """Open conditions: one of them stays open, of several the first is walked both ways."""
        if op == "not":
            (c,) = conditions
            return Open(c.key, not c.negated)
        if len(conditions) == 1:
            return conditions[0]
        raise ForkError(conditions[0].key)

    def choose(self, condition: Any, a: Number, b: Number) -> Number:
        """One branch, where the other is the same whenever it is taken; a free symbol for logarithms; else both ways.

        A test for equality that holds makes two maxima one: the branches are compared with that.
        """
        op, x, y = condition.key
        if a == b:
            return a
        if op in ("==", "!=") and isinstance(x, frozenset) and isinstance(y, frozenset):
            same, other = (a, b) if (op == "==") != condition.negated else (b, a)
            if self._unified(same, x, y) == self._unified(other, x, y):
                return other  # where the test holds both are equal
        logs = [x for x in (a, b) if isinstance(x, Log)]
        floors = [x for x in (a, b) if isinstance(x, Value) and self._floor(x) is not None]
        if logs and len(logs) + len(floors) == 2 and len({x.unit for x in logs}) == 1:
            either = frozenset([("either", condition, a, b)])
            return Log(symbol(self._symbol(either)), logs[0].unit)
        raise ForkError(condition.key)

    def _unified(self, value: Number, x: frozenset[Any], y: frozenset[Any]) -> Number:
        """A number where two maxima are the same."""
        names = {self._symbols[k] for k in (x, y, x | y) if k in self._symbols}
        if len(names) < 2:
            return value
        keep = min(names)
        if isinstance(value, Log):
            return Log(value.value.renamed(dict.fromkeys(names, keep)), value.unit, value.infinite)
        return value.renamed(dict.fromkeys(names, keep))

    def _known(self, op: str, a: Number, b: Number) -> bool | None:
        sign: int | None = None
        if isinstance(a, Log) or isinstance(b, Log):
            x, y = self._rank(a), self._rank(b)
            if x is not None and y is not None and (x, y) != (0, 0):
                sign = (x > y) - (x < y)
            elif a == b:
                sign = 0
        else:
            positive = (a - b).positive()
            if a == b:
                sign = 0
            elif positive is not None:
                sign = 1 if positive else -1
        if sign is None:
            return None
        return {
            "<": sign < 0,
            "<=": sign <= 0,
            ">": sign > 0,
            ">=": sign >= 0,
            "==": sign == 0,
            "!=": sign != 0,
        }[op]

    def _rank(self, x: Number) -> int | None:
        """-1 for -inf and what stands for it, 1 for +inf, 0 for a finite logarithm."""
        if isinstance(x, Value):
            return -1 if self._floor(x) is not None else None
        return 1 if x.infinite else 0 if x.value.coefficient else -1

    def _key(self, op: str, a: Number, b: Number) -> tuple[str, Any, Any]:
        if op in ("==", "!=") and isinstance(a, Log) and isinstance(b, Log):
            return op, self._atoms(a.value), self._atoms(b.value)
        return op, a, b
