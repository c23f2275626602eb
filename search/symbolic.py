"""The tape over exact rational functions: SymPy confirms what sample points suggest.

Scores enter as the logarithms of symbols x_t, values as symbols v_t. Without roundings a program of exponentials,
logarithms and ``+ - * /`` is then a rational function of both, and so is the effect of every rounding (of a logit:
per unit of its size). Comparisons are decided at one point, with the scores in the assumed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from specs.errors import UnsupportedError
from specs.program import Program
from verify.definition.arithmetic import COMPARISONS
from verify.partition import Plan

if TYPE_CHECKING:
    from search.samples import Effect
    from search.tape import Event


@dataclass(frozen=True, slots=True)
class Logit:
    """The logarithm of a rational function; of 0: -inf. ``infinite``: +inf."""

    exp: Any
    infinite: bool = False

    def __add__(self, other: Any) -> Logit:
        return Logit(self.exp * _exp(other))

    def __radd__(self, other: Any) -> Logit:
        return self + other

    def __sub__(self, other: Any) -> Logit:
        return Logit(self.exp / _exp(other))

    def __rsub__(self, other: Any) -> Logit:
        return Logit(_exp(other) / self.exp)

    def __neg__(self) -> Logit:
        if self.exp:
            return Logit(1 / self.exp)
        return Logit(self.exp, not self.infinite)

    def __mul__(self, other: Any) -> Any:
        raise UnsupportedError("a logit is multiplied", remedy="the sample points stand alone")

    __rmul__ = __truediv__ = __rtruediv__ = __mul__


class Rationals:
    """Rational functions of ``x0 .. v0 ..`` with rational coefficients: see `search.tape.Field`.

    Args:
        n: tokens.
        order: token numbers by falling score.
    """

    def __init__(self, n: int, order: Sequence[int]) -> None:
        from sympy import QQ
        from sympy.polys.fields import field

        names = [f"x{t}" for t in range(n)] + [f"v{t}" for t in range(n)]
        made: Any = field(names, QQ)
        self.field: Any = made[0]
        gens: list[Any] = list(made[1:])
        self.x, self.v = gens[:n], gens[n:]
        ranks = {t: i for i, t in enumerate(order)}
        self.point = [QQ(2 * n - ranks[t], n + 1) for t in range(n)] + [QQ(1)] * n

    def constant(self, x: Fraction) -> Any:
        """A rational."""
        return self.field(self.field.domain(x.numerator, x.denominator))

    def infinity(self, sign: int) -> Logit:
        """An infinity, as a logit."""
        return Logit(self.field.zero, infinite=sign > 0)

    def function(self, name: str, x: Any) -> tuple[Any, Any]:
        """``exp`` of a logit, ``log`` and ``rcp`` of a rational function.

        Raises:
            UnsupportedError: the result is no rational function.
        """
        if name == "exp":
            value = _exp(x)
            return value, value
        if name == "log" and not isinstance(x, Logit):
            return Logit(x), 1 / x
        if name == "rcp" and not isinstance(x, Logit):
            return 1 / x, -1 / (x * x)
        raise UnsupportedError(
            f"{name}() is no rational function of exponentials", remedy="the sample points stand alone"
        )

    def is_value(self, x: Any, constant: int) -> bool:
        """Whether ``x`` is 0, or 1, everywhere."""
        if isinstance(x, Logit):
            return constant == 0 and x.exp == 1
        return bool(x == constant)

    def finite(self, x: Any) -> bool:
        """Whether ``x`` is no infinity."""
        return not isinstance(x, Logit) or (not x.infinite and x.exp != 0)

    def decide(self, op: str, a: Any, b: Any) -> bool:
        """The comparison at the point."""
        if isinstance(a, Logit) or isinstance(b, Logit):
            if any(isinstance(k, Logit) and k.infinite for k in (a, b)):
                raise UnsupportedError("+inf is compared", remedy="the sample points stand alone")
            a, b = _exp(a), _exp(b)
        return COMPARISONS[op](self._at(a), self._at(b))

    def _at(self, x: Any) -> Any:
        point = list(zip(self.field.ring.gens, self.point, strict=True))
        return x.numer.evaluate(point) / x.denom.evaluate(point)


def _exp(x: Any) -> Any:
    if isinstance(x, Logit):
        return x.exp
    if x == 0:
        return x + 1
    raise UnsupportedError(f"exp({x}) is irrational", remedy="the sample points stand alone")


def confirm(
    program: Program, plan: Plan, output: str, effects: Sequence[Effect], order: Sequence[int]
) -> bool | None:
    """Whether exact rational functions give the same effects; None: the spec has none.

    Args:
        program, plan, output: the instance.
        effects: what the samples suggest, in the order of evaluation.
        order: token numbers by falling score.
    """
    from search.samples import walk
    from search.tape import Node

    n = len(order)
    values = Rationals(n, order)
    try:
        tape, out = walk(
            program,
            plan,
            output,
            values,
            [Node(Logit(x), scale=Fraction(1)) for x in values.x],
            [Node(v) for v in values.v],
        )
        exact = tape.backward(out)
    except UnsupportedError:
        return None
    total = sum(values.x[1:], values.x[0])
    shares = [x / total for x in values.x]
    mean = sum((p * v for p, v in zip(shares, values.v, strict=True)), values.field.zero)
    left: dict[Event, list[Any]] = {}
    for event, value in exact:
        left.setdefault(event, []).append(value)
    if out.value != mean or len(exact) != len(effects):
        return False
    for effect in effects:  # equal events are the additions of one sum, in order
        if not left.get(effect.event):
            return False
        found = left[effect.event].pop(0)
        direct = sum(
            (d * p * v for d, p, v in zip(effect.direct, shares, values.v, strict=True)), values.field.zero
        )
        through = sum((a * p for a, p in zip(effect.through, shares, strict=True)), values.field.zero)
        if found != direct + mean * through:
            return False
    return True
