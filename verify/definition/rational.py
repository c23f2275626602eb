"""The arithmetic of the algebra: exact rationals, with logits kept as the rational e**x.

A sum of logits is a product of their exponentials, ``exp(a - b)`` a quotient, ``max`` a choice of one side:
without roundings a program whose scores are fed is a rational function, so that "this dataflow is softmax
attention" is an equation that exact arithmetic decides. Only what keeps values rational is defined: a logit
cannot be multiplied, and a number other than 0 has no exponential.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from specs.errors import UnsupportedError
from specs.formats import Format
from verify.definition.arithmetic import COMPARISONS, Reals


@dataclass(frozen=True, slots=True)
class Log:
    """The real number whose exponential is ``exp``, a rational of at least 0; ``Log(0)`` is -inf."""

    exp: Fraction


@dataclass(frozen=True, slots=True)
class Infinity:
    """+inf, which has no use but to be negated."""


Value = Fraction | Log | Infinity


EXPONENTIALS = ("exp", "triton.exp", "cuda.expf", "cuda.fast_expf", "torch.fexp_u20", "glibc.expf")
LOGARITHMS = ("log", "cuda.logf", "glibc.logf")


class RationalArithmetic(Reals):
    """Rationals, and logarithms of rationals. A feed of scores is an array of `Log` objects."""

    def __init__(self) -> None:
        self.table: dict[str, Callable[..., Value]] = {
            "+": _add,
            "-": lambda a, b: _add(a, _negate(b)),
            "*": lambda a, b: _rational(a) * _rational(b),
            "/": lambda a, b: _rational(a) / _rational(b),
            "fma": lambda a, b, c: _add(_rational(a) * _rational(b), c),
            "neg": lambda a: _negate(a),
            **dict.fromkeys(EXPONENTIALS, lambda a: _logit(a).exp),
            **dict.fromkeys(LOGARITHMS, lambda a: Log(_rational(a))),
            **dict.fromkeys(("rcp", "mufu.rcp"), lambda a: 1 / _rational(a)),
            "div.full": lambda a, b: _rational(a) / _rational(b),
            "max": lambda *xs: reduce(lambda a, b: a if _compare(">=", a, b) else b, xs),
            "min": lambda *xs: reduce(lambda a, b: a if _compare("<=", a, b) else b, xs),
        }

    def number(self, x: Fraction, fmt: Format) -> Value:
        """The rational."""
        return x

    def special(self, x: float, fmt: Format) -> Value:
        """An infinity.

        Raises:
            UnsupportedError: NaN, which no rational is.
        """
        if x != x:
            raise UnsupportedError("NaN is no rational", remedy="evaluate with ScalarArithmetic")
        return Infinity() if x > 0 else Log(Fraction(0))

    def pattern(self, bits: int, fmt: Format) -> Value:
        """Not defined: a bit pattern stands for an irrational constant."""
        raise UnsupportedError("bits() has no rational meaning", remedy="evaluate with balls")

    def lift(self, x: float) -> Value:
        """The double, exactly; -inf as a logit."""
        return Log(Fraction(0)) if x == float("-inf") else Fraction(x)

    def compare(self, op: str) -> Callable[[Value, Value], bool]:
        """An exact comparison of two rationals or two logits."""
        return lambda a, b: _compare(op, a, b)


def _compare(op: str, a: Value, b: Value) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return COMPARISONS[op](a, b)
    return COMPARISONS[op](_logit(a).exp, _logit(b).exp)


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b
    return Log(_logit(a).exp * _logit(b).exp)


def _negate(a: Value) -> Value:
    match a:
        case Fraction():
            return -a
        case Log(exp=exp):
            return Log(1 / exp) if exp else Infinity()
        case Infinity():
            return Log(Fraction(0))


def _rational(a: Value) -> Fraction:
    if not isinstance(a, Fraction):
        raise UnsupportedError("a logit is multiplied or divided", remedy="feed the scaled score")
    return a


def _logit(a: Value) -> Log:
    if isinstance(a, Log):
        return a
    if a:
        raise UnsupportedError(
            f"exp({a}) is irrational", remedy="feed logits as Log(e**x), guard -inf - -inf"
        )
    return Log(Fraction(1))
