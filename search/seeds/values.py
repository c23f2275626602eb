"""The best values for given scores, by linear arithmetic over integers.

With the scores fixed, both outputs are linear in the values: each token counts with its effective weight, the
rounded weight over the normaliser. Tokens with the same weights on both sides are one class; only the sum of
their values matters. Values are 0 or have a significand of a few bits in [1, 2), of either sign, so a sum of
them is an integer number of last places.

`models` looks for values that put the outputs at least k apart; it leaves out the float32 roundings, so each
answer is a candidate that an evaluation has to confirm. `impossible` proves that no values do, with the
float32 roundings as a slack on both sides.

The continuous index is concave on positive numbers: it is the smallest of the lines that continue its pieces.
So "at least k above an output in binade e" is a conjunction of linear inequalities, and only the binade of the
lower output has to be looped over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from search.resources import Resources, answer
from specs.errors import InputError

#: Bits that a weight keeps in the solver; what is cut counts as slack in a proof. More bits make it slower.
KEPT = 34
#: Classes of more tokens than this share their tokens between signs by an inequality, not case by case.
SHARED = 16
#: Solver resources of one query (about a second where it is hard).
RLIMIT = 4_000_000
Name = Literal["a", "b"]
_CUT = Fraction(1, 1 << (KEPT - 1))


@dataclass(frozen=True)
class Class:
    """Tokens that count alike in both outputs.

    Attributes:
        count: how many.
        a: effective weight of each in the output of side a: its rounded weight over the normaliser.
        b: likewise of side b.
        p: its exact softmax weight (or nearer than 2**-60 of it).
    """

    count: int
    a: Fraction
    b: Fraction
    p: Fraction

    def __post_init__(self) -> None:
        if self.count < 1 or min(self.a, self.b, self.p) < 0:
            raise InputError(
                f"a class of {self.count} tokens with weights {self.a}, {self.b}, {self.p}",
                place="classes",
                remedy="count tokens from 1; weights are at least 0",
            )


@dataclass(frozen=True)
class Sums:
    """The values of one class, in last places of [1, 2): sums of the positive and of the negative magnitudes."""

    positive: int
    negative: int

    @property
    def total(self) -> int:
        """The signed sum."""
        return self.positive - self.negative


@dataclass(frozen=True)
class Grid:
    """Values that a token may have, and the format of the output.

    Attributes:
        bits: significand bits of a value (8 for bf16).
        precision: significand bits of the output.
    """

    bits: int = 8
    precision: int = 8

    @property
    def low(self) -> int:
        """The magnitude 1 in last places."""
        return 1 << (self.bits - 1)

    @property
    def high(self) -> int:
        """The largest magnitude."""
        return (1 << self.bits) - 1


BF16 = Grid()


@dataclass(frozen=True)
class Model:
    """Values that should put the outputs at least k apart.

    Attributes:
        sums: for each class in the order given.
        binade: the lower output is in [2**binade, 2**(binade + 1)).
        raised: the side whose output is the higher one.
    """

    sums: tuple[Sums, ...]
    binade: int
    raised: Name


@dataclass(frozen=True)
class Verdict:
    """Whether k is out of reach for these weights.

    Attributes:
        status: ``impossible`` is proved; ``possible`` means that the slack leaves room; ``unknown`` that a query
            ran out of resources.
        by: ``ratios`` where real arithmetic without a grid was enough, ``grid`` where the integers were needed.
        where: the binade and the raised side that is not excluded.
    """

    status: Literal["impossible", "possible", "unknown"]
    by: Literal["ratios", "grid"]
    where: tuple[int, str] | None = None


def values_for(
    classes: Sequence[Class],
    k: Fraction | int,
    *,
    cancellation: Fraction,
    stored: bool = True,
    margin: Fraction = Fraction(0),
    grid: Grid = BF16,
    rlimit: int = RLIMIT,
) -> list[Sums] | None:
    """The first of `models`, or None."""
    found = next(
        models(classes, k, cancellation=cancellation, stored=stored, margin=margin, grid=grid, rlimit=rlimit),
        None,
    )
    return None if found is None else list(found.sums)


def models(
    classes: Sequence[Class],
    k: Fraction | int,
    *,
    cancellation: Fraction,
    stored: bool = True,
    margin: Fraction = Fraction(0),
    binades: Sequence[int] = tuple(range(0, -12, -1)),
    grid: Grid = BF16,
    rlimit: int = RLIMIT,
    most: int = 64,
    resources: Resources | None = None,
) -> Iterator[Model]:
    """Candidates, one after the other; each is excluded before the next is looked for.

    Args:
        classes: tokens by weight; classes with the same weights are merged inside.
        k: the distance.
        cancellation: c: ``|sum p v| >= c sum p |v|``.
        stored: whether k counts steps of the stored outputs (they are rounded to nearest), or is a distance of
            the continuous index before that rounding.
        margin: how far the outputs must lie beyond the rounding boundaries that set them k apart, in places of
            the index; with ``stored`` only. A float32 rounding moves an output by about 2**-17 places of bf16.
        binades: binades of the lower output to try, in order.
        grid: values and output format.
        rlimit: solver resources of each query; a query that needs more is passed over.
        most: candidates in one binade and direction.
        resources: what all queries together may take, of this call and of others; None: no more than ``rlimit`` each.
    """
    merged, members = _merged(classes)
    none = Fraction(0), Fraction(0)
    real = Fraction(k) - (1 if stored else 0)
    sides: list[Name] = [
        s
        for s in _SIDES
        if cancellation <= 0
        or not _out_of_reach(merged, real, s, cancellation, none, grid, rlimit, resources)
    ]
    for binade in binades:
        for raised in sides:
            system = _System(merged, grid, cancellation, none, rlimit, resources=resources)
            system.apart(Fraction(k), binade, raised, stored, margin, strict=True)
            for _ in range(most):
                if system.check() != "sat":
                    break
                sums = system.sums()
                yield Model(_divided(classes, members, sums, grid), binade, raised)
                system.block(sums)


def impossible(
    classes: Sequence[Class],
    k: Fraction | int,
    *,
    cancellation: Fraction,
    tau_a: Fraction,
    tau_b: Fraction,
    stored: bool = True,
    grid: Grid = BF16,
    rlimit: int = RLIMIT,
) -> Verdict:
    """Whether outputs at least k apart are impossible for these weights, whatever the values on the grid.

    Args:
        classes, k, cancellation, stored, grid: see `models`.
        tau_a: how far the value of side a before its last rounding may be off, relative to ``sum a |v|``: it must
            cover every rounding but those in the weights `Class.a`.
        tau_b: likewise of side b.
        rlimit: solver resources of each query.
    """
    if cancellation <= 0:
        raise InputError(
            "without a bound on cancellation every distance is possible",
            place="cancellation",
            remedy="give c > 0",
        )
    merged, _ = _merged(classes)
    taus = tau_a + _CUT, tau_b + _CUT
    kept = max(Fraction(0), cancellation - 2 * _CUT)
    real = Fraction(k) - (1 if stored else 0)
    sides = [s for s in _SIDES if not _out_of_reach(merged, real, s, kept, taus, grid, rlimit)]
    if not sides:
        return Verdict("impossible", "ratios")
    smallest = min((min(c.a, c.b, c.p) or c.p for c in merged if c.p > 0), default=Fraction(1))
    lowest = _binade(smallest * cancellation) - 2
    whole = [
        sum((c.count * x for c, x in zip(merged, side, strict=True)), Fraction(0))
        for side in zip(*((c.a, c.b) for c in merged), strict=True)
    ]
    largest = max(whole) * (1 + max(taus))
    for binade in range(_binade(2 * largest) if largest else lowest, lowest - 1, -1):
        for raised in sides:
            system = _System(merged, grid, kept, taus, rlimit, proof=True)
            system.apart(Fraction(k), binade, raised, stored, Fraction(0), strict=False)
            status = system.check()
            if status != "unsat":
                return Verdict("possible" if status == "sat" else "unknown", "grid", (binade, raised))
    for raised in sides:  # nothing lies below the last binade, or it is not excluded
        system = _System(merged, grid, kept, taus, rlimit, proof=True)
        system.below(lowest, raised)
        status = system.check()
        if status != "unsat":
            return Verdict("possible" if status == "sat" else "unknown", "grid", (lowest - 1, raised))
    return Verdict("impossible", "grid")


def significands(sums: Sums, count: int, grid: Grid = BF16) -> list[int]:
    """Signed values of ``count`` tokens in last places, positive ones first, zeros last, as even as possible.

    Raises:
        InputError: the sums do not fit that many tokens.
    """
    up, down = _number(sums.positive, grid), _number(sums.negative, grid)
    if up + down > count or not (_fits(sums.positive, up, grid) and _fits(sums.negative, down, grid)):
        raise InputError(
            f"{sums} does not fit {count} tokens", place="sums", remedy="use the sums of `models`"
        )
    return [*_even(sums.positive, up), *(-x for x in _even(sums.negative, down)), *[0] * (count - up - down)]


_SIDES: tuple[Name, Name] = ("b", "a")


class _System:
    """The constraints on the sums of each class, and one query.

    Sums are integers that some tokens of the class can have (``proof``: at least those), or, without ``whole``,
    any reals of the right signs.
    """

    def __init__(
        self,
        classes: Sequence[Class],
        grid: Grid,
        cancellation: Fraction,
        taus: tuple[Fraction, Fraction],
        rlimit: int,
        *,
        whole: bool = True,
        proof: bool = False,
        resources: Resources | None = None,
    ) -> None:
        self.rlimit, self.resources = rlimit, resources
        z3 = _solver()
        self.z3, self.grid, self.context = (
            z3,
            grid,
            z3.Context(),
        )  # a context of its own: answers do not depend on others
        self.solver = z3.Solver(ctx=self.context)
        self.solver.set("rlimit", rlimit)
        self.solver.set("random_seed", 0)
        make = z3.Int if whole else z3.Real
        self.up = [make(f"up{i}", self.context) for i in range(len(classes))]
        self.down = [make(f"down{i}", self.context) for i in range(len(classes))]
        self.solver.add(*(x >= 0 for x in (*self.up, *self.down)))
        if cancellation == 1:  # all values have one sign
            self.solver.add(*(d == 0 for d in self.down))
        if whole:
            for c, u, d in zip(classes, self.up, self.down, strict=True):
                self._fit(c.count, u, d, cancellation == 1, proof)
        exact, spread = self._sum(c.p for c in classes), self._mass(c.p for c in classes)
        self.solver.add(exact >= self._rational(cancellation) * spread, exact > 0)
        self.outputs = {
            "a": self._output("a", [c.a for c in classes], taus[0]),
            "b": self._output("b", [c.b for c in classes], taus[1]),
        }

    def _rational(self, x: Fraction) -> Any:
        return self.z3.Q(x.numerator, x.denominator, self.context)

    def _fit(self, count: int, up: Any, down: Any, one_sign: bool, proof: bool) -> None:
        """Sums of at most ``count`` magnitudes of the grid, both signs together.

        n magnitudes add up to anything from ``n * low`` to ``n * high``, and these ranges join: a sum needs
        ``ceil(sum / high)`` tokens, and is 0 or at least ``low``.
        """
        z3, low, high, add = self.z3, self.grid.low, self.grid.high, self.solver.add
        add(z3.Or(up == 0, up >= low))
        if one_sign:
            add(up <= count * high)
            return
        add(z3.Or(down == 0, down >= low))
        if count <= SHARED:
            add(z3.Or([z3.And(up <= n * high, down <= (count - n) * high) for n in range(count + 1)]))
        elif proof:
            add(up + down <= count * high)
        else:  # ceil(up / high) + ceil(down / high) is at most (up + down + 2 * high - 2) / high
            single = z3.Or(z3.And(down == 0, up <= count * high), z3.And(up == 0, down <= count * high))
            add(z3.Or(single, up + down <= (count - 1) * high + 1))

    def _sum(self, weights: Any) -> Any:
        terms = zip(self.up, self.down, weights, strict=True)
        return self.z3.Sum([self._rational(_trimmed(w)) * (u - d) for u, d, w in terms])

    def _mass(self, weights: Any) -> Any:
        terms = zip(self.up, self.down, weights, strict=True)
        return self.z3.Sum([self._rational(_trimmed(w)) * (u + d) for u, d, w in terms])

    def _output(self, name: str, weights: Sequence[Fraction], tau: Fraction) -> Any:
        """The value before the last rounding, in last places of [1, 2)."""
        linear = self._sum(weights)
        if not tau:
            return linear
        value, slack = self.z3.Real(f"out_{name}", self.context), self._rational(tau) * self._mass(weights)
        self.solver.add(value - linear <= slack, linear - value <= slack)
        return value

    def apart(
        self, k: Fraction, binade: int, raised: str, stored: bool, margin: Fraction, *, strict: bool
    ) -> None:
        """One output lies in ``binade``, the other at least ``k`` above it."""
        z3, one = self.z3, self.grid.low
        low, high = self.outputs["a" if raised == "b" else "b"], self.outputs[raised]
        bottom = self._rational(Fraction(2) ** binade * one)
        self.solver.add(low >= bottom, low < 2 * bottom)
        start, end = (
            self._line(low, binade, binade),
            [self._line(high, e, binade) for e in self._above(k, binade)],
        )
        if not stored:
            self.solver.add(*(line - start >= self._rational(k) for line in end))
            return
        # Rounded to nearest, the lower output is at most n and the higher one at least n + k.
        n = z3.Int("n", self.context)
        room = self._rational(Fraction(1, 2) - margin)
        far = self._rational(k - Fraction(1, 2) + margin)
        if strict:
            self.solver.add(start < n + room, *(line > n + far for line in end))
        else:
            self.solver.add(start <= n + room, *(line >= n + far for line in end))

    def below(self, binade: int, raised: str) -> None:
        """The lower output lies below ``2**binade``."""
        low = self.outputs["a" if raised == "b" else "b"]
        self.solver.add(low < self._rational(Fraction(2) ** binade * self.grid.low))

    def _above(self, k: Fraction, binade: int) -> range:
        """Binades that an output k above one in ``binade`` may reach, and one more."""
        return range(binade, binade + 2 + int(k) // (1 << (self.grid.precision - 1)) + 1)

    def _line(self, x: Any, e: int, base: int) -> Any:
        """The piece of the index in binade ``e``, counted from the start of binade ``base``."""
        places = 1 << (self.grid.precision - 1)
        return (
            self._rational(Fraction(places, self.grid.low) / Fraction(2) ** e) * x + (e - base - 1) * places
        )

    def check(self) -> str:
        """``sat``, ``unsat`` or ``unknown``."""
        if self.resources is not None:
            return self.resources.check(self.solver, self.rlimit)
        return answer(self.solver)

    def sums(self) -> list[Sums]:
        """The sums of the model that `check` found."""
        model = self.solver.model()

        def value(x: Any) -> int:
            return model.eval(x, model_completion=True).as_long()

        return [Sums(value(u), value(d)) for u, d in zip(self.up, self.down, strict=True)]

    def block(self, sums: Sequence[Sums]) -> None:
        """Exclude these sums."""
        pairs = zip(self.up, self.down, sums, strict=True)
        self.solver.add(self.z3.Or([self.z3.Or(u != s.positive, d != s.negative) for u, d, s in pairs]))


def _out_of_reach(
    classes: Sequence[Class],
    k: Fraction,
    raised: Name,
    cancellation: Fraction,
    taus: tuple[Fraction, Fraction],
    grid: Grid,
    rlimit: int,
    resources: Resources | None = None,
) -> bool:
    """Whether no real values at all put the continuous indices k apart, in any binade: all of them scale alike."""
    system = _System(classes, grid, cancellation, taus, rlimit, whole=False, resources=resources)
    system.apart(k, 0, raised, False, Fraction(0), strict=False)
    if system.check() != "unsat":
        return False
    system = _System(classes, grid, cancellation, taus, rlimit, whole=False, resources=resources)
    system.solver.add(system.outputs["a" if raised == "b" else "b"] <= 0)  # the lower output is above 0
    return system.check() == "unsat"


def _merged(classes: Sequence[Class]) -> tuple[list[Class], list[list[int]]]:
    """Classes with distinct weights, and which of the given ones each is made of."""
    where: dict[tuple[Fraction, Fraction, Fraction], list[int]] = {}
    for i, c in enumerate(classes):
        where.setdefault((c.a, c.b, c.p), []).append(i)
    merged = [Class(sum(classes[i].count for i in members), *key) for key, members in where.items()]
    return merged, list(where.values())


def _divided(
    classes: Sequence[Class], members: list[list[int]], sums: Sequence[Sums], grid: Grid
) -> tuple[Sums, ...]:
    """The sums of merged classes, dealt to the given ones."""
    result: dict[int, Sums] = {}
    for group, total in zip(members, sums, strict=True):
        values = significands(total, sum(classes[i].count for i in group), grid)
        for i in group:
            mine, values = values[: classes[i].count], values[classes[i].count :]
            result[i] = Sums(sum(x for x in mine if x > 0), -sum(x for x in mine if x < 0))
    return tuple(result[i] for i in range(len(classes)))


def _number(total: int, grid: Grid) -> int:
    """The fewest magnitudes that add up to ``total``."""
    return -(-total // grid.high)


def _fits(total: int, n: int, grid: Grid) -> bool:
    return n * grid.low <= total <= n * grid.high


def _even(total: int, n: int) -> list[int]:
    return [total // n + (i < total % n) for i in range(n)] if n else []


def _solver() -> Any:
    """The module ``z3``, which takes long to load."""
    import z3

    return z3


def _trimmed(x: Fraction) -> Fraction:
    """``x`` with `KEPT` significant bits."""
    if not x:
        return x
    scale = Fraction(2) ** (KEPT - 1 - _binade(x))
    return Fraction(round(x * scale)) / scale


def _binade(x: Fraction) -> int:
    """The exponent of the power of two at or below ``x`` > 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1
