"""Numbers of a kernel known up to factors: what the roundings of a spec may do to each, whatever the input.

A weight is ``e^s`` of its token times powers of symbols (``e^m`` of whatever was subtracted, sums that something is divided
by) times a factor in ``[1 - a, 1 + b]``; a sum of weights, or of weights times values, is the sum over a set of tokens, each
with a factor of its own. Symbols stand for the numbers that the kernel has computed, roundings included, so that what
cancels does. Every bound here is rounded outward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from specs.errors import SpecError

#: Powers of symbols, sorted: a token is its number, any other symbol a negative one.
Mono = tuple[tuple[int, int], ...]
#: More than a handful of roundings of doubles, relative to a number.
UP, DOWN = 1 + 2.0**-48, 1 - 2.0**-48
#: How far rounding can move a number that has become subnormal, or is flushed, in f32 and in wider formats.
TINY = 2.0**-124
#: The same for logits, whose unit a softmax scale between 2**-20 and 2**20 may change.
TINY_LOG = 2.0**-100


class OpenError(SpecError):
    """A step whose error is not bounded here; ``site``: the line."""

    site: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Const:
    """A constant: ``value * scale**power``, within a factor of ``1 +- off``."""

    value: Fraction
    power: int = 0
    off: float = 0.0

    def same(self, other: Const) -> bool:
        """Whether it is the same number."""
        if self is other:
            return True
        return not self.off and not other.off and (self.value, self.power) == (other.value, other.power)

    @property
    def size(self) -> float:
        """Its magnitude at a scale of 1, at most."""
        return abs(float(self.value)) * (1 + self.off) * UP


@dataclass(frozen=True, eq=False, slots=True)
class Low:
    """Minus infinity, or a number that stands for it: no finite score is below, and its exponential is 0."""


@dataclass(frozen=True, eq=False, slots=True)
class High:
    """Infinity: only its negative is of use."""


@dataclass(frozen=True, eq=False, slots=True)
class Undefined:
    """A NaN."""


@dataclass(frozen=True, eq=False, slots=True)
class Log:
    """``unit * ln(mono) + e`` with ``|e| <= off + slack * unit * |ln(mono)|``."""

    unit: Const
    mono: Mono
    off: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """The value of a token in one column."""

    token: int


@dataclass(frozen=True, eq=False, slots=True)
class Base:
    """Factors in ``[1 - a, 1 + b]`` of single tokens that two sums may share: those of one narrow rounding."""

    name: tuple[str, int]
    a: float
    b: float


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """``mono * f`` with f in ``[1 - a, 1 + b]``, times ``exp(+-slack * |ln(mono)|)`` where mono is at most 1."""

    mono: Mono
    a: float = 0.0
    b: float = 0.0
    slack: float = 0.0
    base: Base | None = None


@dataclass(frozen=True, eq=False)
class Mass:
    """``mono * (sum over tokens of e^s * f * base)``, each times v where ``values``; plus at most ``lost``.

    Every token's f is in ``[1 - a, 1 + b] * exp(+-slack * |ln(e^s mono)|)``; slack only where ``e^s mono`` is at most 1.

    Attributes:
        tokens: as bits.
        alias: the same number by the symbols that it was made of, where there are such.
        number: its own symbol; shared by all who ask.
    """

    values: bool
    mono: Mono
    tokens: int
    a: float = 0.0
    b: float = 0.0
    slack: float = 0.0
    base: Base | None = None
    lost: float = 0.0
    alias: Factor | None = None
    number: list[int] = field(default_factory=list[int])


#: Stands for what is no symbol.
_UNKNOWN = -(1 << 60)
Number = Const | Low | High | Undefined | Log | Value | Factor | Mass


@dataclass
class _Maximum:
    """``e^X``: at least ``low * e^s`` of every token of ``above``; at most ``most`` times the largest e^s of ``of``.

    ``total``: at most so many times the sum of e^s of ``of``. ``made``: the symbols that it is the largest of, in each way
    in which it was made. ``parts``: what it is the largest of, as products, each with how far its logarithm may be off.
    """

    above: int
    of: int
    low: float
    most: float
    total: float
    atoms: tuple[int, frozenset[int]] | None
    made: set[frozenset[int]] = field(default_factory=set[frozenset[int]])
    parts: dict[Mono, float] = field(default_factory=dict[Mono, float])


def times(x: Mono, y: Mono, sign: int = 1) -> Mono:
    """The product, or the quotient."""
    if not y:
        return x
    if not x and sign == 1:
        return y
    out = dict(x)
    for s, n in y:
        out[s] = out.get(s, 0) + sign * n
    return tuple(sorted((s, n) for s, n in out.items() if n))


def inverted(x: Mono) -> Mono:
    """One over it."""
    return tuple((s, -n) for s, n in x)


def widened(a: float, b: float, r: float, s: float | None = None) -> tuple[float, float]:
    """The range ``[1 - a, 1 + b]`` times ``[1 - r, 1 + s]``."""
    s = r if s is None else s
    return min(1.0, (a + r * (1 - a)) * UP), (b + s + b * s) * UP


def below_one(a: float, b: float) -> tuple[float, float]:
    """One over the range.

    Raises:
        OpenError: it reaches 0.
    """
    if a >= 0.999:
        raise OpenError("a divisor that may be 0", remedy="bound it at a smaller score box")
    return b * UP, a / (1 - a) * UP


class Table:
    """The symbols of one walk, and what is known of each.

    Args:
        box: bound on the magnitude of scores, scaled, as natural logarithms.
        tokens: how many there are.
    """

    def __init__(self, box: float, tokens: int) -> None:
        self.box, self.every = box, (1 << tokens) - 1
        self._single: dict[Mono, float] = {}
        self.least, self.largest = math.exp(-box) * DOWN, math.exp(box) * UP
        self._symbols: list[_Maximum | Mass | Fraction] = []
        self._constants: dict[Fraction, int] = {}
        self._parts: set[Mono] = set()
        self._exact: dict[tuple[int, frozenset[int]], int] = {}
        self._bounds: dict[Mono, tuple[float, float]] = {}

    # -- symbols ------------------------------------------------------------------------------------------

    def symbol(self, known: _Maximum | Mass | Fraction) -> int:
        """A symbol of its own."""
        self._symbols.append(known)
        return -len(self._symbols)

    def of(self, symbol: int) -> _Maximum | Mass | Fraction | None:
        """What a symbol stands for; None for a token."""
        return self._symbols[-symbol - 1] if symbol < 0 else None

    def constant(self, value: Fraction) -> Mono:
        """A positive constant."""
        if value not in self._constants:
            self._constants[value] = self.symbol(value)
        return ((self._constants[value], 1),)

    def named(self, mass: Mass) -> int:
        """The symbol of a sum of weights."""
        if not mass.number:
            mass.number.append(self.symbol(mass))
        return mass.number[0]

    def alias(self, mass: Mass) -> Factor:
        """A sum of weights as a product of symbols."""
        return mass.alias or Factor(((self.named(mass), 1),))

    def maximum(self, logs: Iterable[Log], either: bool = False, or_low: bool = False) -> Mono:
        """``e^X`` of the largest of some logits of one unit, or of one of them, nobody knows which; or of minus infinity."""
        parts = list(logs)
        atoms: tuple[int, frozenset[int]] | None = (0, frozenset())
        above, of, low, most, total = (0 if not either else -1), 0, math.inf, 0.0, 0.0
        symbols: set[int] = {_UNKNOWN} if or_low else set()
        away: dict[Mono, float] = {}
        for x in parts:
            size = float(x.unit.value) * (1 - x.unit.off) * DOWN
            e = x.off / size * UP + x.slack * self.span(x.mono)
            away[x.mono] = e
            known = self.ends(x.mono)
            above = above & known.above if either else above | known.above
            of |= known.of
            if known.above:  # what it is not known to be above says nothing of how large it is at least
                low = min(low, _downward(known.low, math.exp(-e)))
            most = max(most, _upward(known.most, math.exp(e)))
            total = max(total, _upward(known.total, math.exp(e)))
            exact = not x.off and not x.slack and len(x.mono) == 1 and x.mono[0][1] == 1
            symbols.add(x.mono[0][0] if exact else _UNKNOWN)
            known_atoms = self._atoms(x.mono[0][0]) if exact else None
            atoms = None if atoms is None or known_atoms is None or either else _union(atoms, known_atoms)
        if or_low or low == math.inf:
            above, low = 0, 0.0
        found = None if atoms is None else self._exact.get(atoms)
        if found is None:
            found = self.symbol(_Maximum(above, of, low, most, total, atoms))
            if atoms is not None:
                self._exact[atoms] = found
        made = self.of(found)
        assert isinstance(made, _Maximum)
        made.made.add(frozenset(symbols))
        if not either:
            made.parts |= away
            self._parts.update(away)
        return ((found, 1),)

    def _atoms(self, symbol: int) -> tuple[int, frozenset[int]]:
        known = self.of(symbol)
        if known is None:
            return 1 << symbol, frozenset()
        if isinstance(known, _Maximum) and known.atoms is not None:
            return known.atoms
        return 0, frozenset([symbol])

    def equal(self, pairs: Iterable[tuple[Log, Log]]) -> set[int]:
        """The symbols that are one number where these logits are equal: one class, empty where they are no symbols."""
        same: set[int] = set()
        for x, y in pairs:
            logs = [p for p in (x, y) if not p.off and not p.slack and len(p.mono) == 1 and p.mono[0][1] == 1]
            if len(logs) == 2 and (not same or same & {p.mono[0][0] for p in logs}):
                same |= {p.mono[0][0] for p in logs}
        for number, known in enumerate(self._symbols):
            if same and isinstance(known, _Maximum) and any(m <= same for m in known.made):
                same.add(-number - 1)
        return same

    # -- bounds -------------------------------------------------------------------------------------------

    def bounds(self, mono: Mono) -> tuple[float, float]:
        """What a product of powers lies between."""
        found = self._bounds.get(mono)
        if found is None:
            found = self._bounds[mono] = self._bounded(mono)
        return found

    def span(self, mono: Mono) -> float:
        """``|ln(mono)|`` at most."""
        if not mono:
            return 0.0
        low, high = self.bounds(mono)
        if low <= 0:
            raise OpenError("a logit that may be minus infinity", remedy="guard it")
        return max(abs(math.log(low)), abs(math.log(high))) * UP + 2.0**-50

    def falls(self, mono: Mono) -> bool:
        """Whether a product is at most 1."""
        return not mono or self.bounds(mono)[1] <= 1.0

    def near(self, mono: Mono) -> tuple[float, float] | None:
        """``[1 - a, 1 + b]`` around a product whose sums and maxima cancel; None where they do not."""
        a, b, scale, left = self._cancelled(mono)
        if left:
            return None
        away = abs(scale - 1) + 2.0**-50 if scale != 1 else 0.0
        return widened(a, b, away)

    def ends(self, mono: Mono, tokens: int = 0) -> _Maximum:
        """A product, times e^s of some token of ``tokens``, between multiples of e^s."""
        a, b, scale, parts = self._cancelled(mono)
        if tokens:
            parts = [*parts, (_Maximum(0, tokens, 1.0, 1.0, 1.0, None), 1)]
        up = [p for p, n in parts for _ in range(n)]
        down = [p for p, n in parts for _ in range(-n)]
        low, high = (1 - a) * scale * DOWN, (1 + b) * scale * UP
        if scale == 1 and not a and not b:
            low = high = 1.0
        first: _Maximum | None = None
        for p in up:  # what divides it, as far as it is known to be larger
            over = next((d for d in down if p.of & ~d.above == 0), None)
            under = next((d for d in down if d.of & ~p.above == 0), None)
            pair = over or under
            if pair is None:
                if first is None:
                    first = p
                    continue
                low, high = low * self._least(p), high * p.most * self.largest
                continue
            down.remove(pair)
            above = p.most / pair.low if over else p.most * self.largest / self._least(pair)
            below = self._least(p) / pair.most / self.largest
            if pair.of & ~p.above == 0:
                below = p.low / pair.most
            high, low = _upward(high, above), _downward(low, below)
        for d in down:
            high, low = _upward(high, 1 / self._least(d)), _downward(low, 1 / (d.most * self.largest))
        if first is None:
            return _Maximum(0, 0, low, high, high, None)
        if low == high == 1:
            return first
        least, most, total = _downward(first.low, low), _upward(first.most, high), _upward(first.total, high)
        return _Maximum(first.above, first.of, least, most, total, None)

    def _least(self, p: _Maximum) -> float:
        return p.low * self.least * DOWN

    def _bounded(self, mono: Mono) -> tuple[float, float]:
        known = self.ends(mono)
        low, high = known.low, known.most
        if known.of:
            low, high = self._least(known), known.most * self.largest
        for s, n in mono:
            if high > 1 and n == -1 and isinstance(self.of(s), _Maximum):
                e = self._over(s, times(mono, ((s, 1),)))
                high = high if e is None else min(high, math.exp(e) * UP if e else 1.0)
        return low, high

    def _over(self, maximum: int, mono: Mono) -> float | None:
        """By how much the logarithm of a product may be above a maximum of it and others; None: it is no part of it."""
        todo, seen = [maximum] if mono in self._parts else [], set[int]()
        while todo:
            s = todo.pop()
            known = self.of(s)
            if s in seen or not isinstance(known, _Maximum):
                continue
            seen.add(s)
            if mono in known.parts:
                return known.parts[mono]
            todo += [p[0][0] for p, e in known.parts.items() if not e and len(p) == 1 and p[0][1] == 1]
        return None

    def _cancelled(self, mono: Mono) -> tuple[float, float, float, list[tuple[_Maximum, int]]]:
        """What is left of a product when its sums are written out.

        Returns:
            a factor in ``[1 - a, 1 + b]``, the product of constants, and maxima and sums that do not cancel.
        """
        a = b = 0.0
        scale = Fraction(1)
        sums: dict[int, int] = {}
        largest: dict[int, int] = {}
        todo = list(mono)
        bases: dict[tuple[tuple[str, int], int], list[tuple[Mass, int]]] = {}
        while todo:
            s, n = todo.pop()
            known = self.of(s)
            if isinstance(known, Fraction):
                scale *= known**n
            elif isinstance(known, Mass):
                todo += [(t, m * n) for t, m in known.mono]
                sums[known.tokens] = sums.get(known.tokens, 0) + n
                for _ in range(abs(n)):
                    a, b = _with_range(a, b, *self.range_of(known, based=False), n)
                if known.base is not None:
                    bases.setdefault((known.base.name, known.tokens), []).append((known, n))
            else:
                largest[s] = largest.get(s, 0) + n
        for found in bases.values():
            # Shared factors cancel between two sums over the same tokens.
            for known, n in found if sum(n for _, n in found) else ():
                assert known.base is not None
                for _ in range(abs(n)):
                    a, b = _with_range(a, b, known.base.a, known.base.b, n)
        parts: list[tuple[_Maximum, int]] = []
        for s, n in largest.items():
            if not n:
                continue
            known = self.of(s)
            bit = 1 << s if s >= 0 else 0
            parts.append(
                (known if isinstance(known, _Maximum) else _Maximum(bit, bit, 1.0, 1.0, 1.0, None), n)
            )
        for tokens, n in sums.items():
            if n:
                parts.append((_Maximum(tokens, tokens, 1.0, float(tokens.bit_count()), 1.0, None), n))
        return a, b, float(scale), parts

    def range_of(self, m: Mass, *, based: bool = True) -> tuple[float, float]:
        """The factors of single tokens, slack and (where asked) shared factors included."""
        a, b = m.a, m.b
        if m.slack:
            e = m.slack * self.reach(m) * UP
            a, b = widened(a, b, e, math.expm1(e) * UP)
        if based and m.base is not None:
            a, b = widened(a, b, m.base.a, m.base.b)
        return a, b

    def reach(self, m: Mass) -> float:
        """``|ln(e^s mono)|`` of its tokens, at most."""
        known = self.ends(m.mono, m.tokens)
        low, high = (
            (known.low, known.most) if not known.of else (self._least(known), known.most * self.largest)
        )
        return max(abs(math.log(low)), abs(math.log(high))) * UP

    def single(self, mono: Mono) -> float:
        """What a weight of any token times a product is at least."""
        if mono not in self._single:
            known = self.ends(mono, self.every)
            self._single[mono] = known.low if not known.of else self._least(known)
        return self._single[mono]

    def least_of(self, m: Mass) -> float:
        """What a sum of weights is at least: where all that a maximum is of is in it, the largest weight is."""
        a, _ = self.range_of(m)
        if len(m.mono) == 1 and m.mono[0][1] == -1:
            known = self.of(m.mono[0][0])
            if isinstance(known, _Maximum) and known.of & ~m.tokens == 0:
                return (1 - a) / known.total * DOWN
        low = self.ends(m.mono, m.tokens)
        return (1 - a) * (low.low if not low.of else self._least(low)) * DOWN


def _upward(x: float, y: float) -> float:
    """The product, rounded up unless a factor is 1."""
    return x if y == 1 else y if x == 1 else x * y * UP


def _downward(x: float, y: float) -> float:
    return x if y == 1 else y if x == 1 else x * y * DOWN


def _with_range(a: float, b: float, r: float, s: float, n: int) -> tuple[float, float]:
    return widened(a, b, r, s) if n > 0 else widened(a, b, *below_one(r, s))


def _union(x: tuple[int, frozenset[int]], y: tuple[int, frozenset[int]]) -> tuple[int, frozenset[int]]:
    return x[0] | y[0], x[1] | y[1]
