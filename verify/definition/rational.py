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
from typing import Any

from specs.errors import UnsupportedError
from specs.formats import Format
from verify.definition.arithmetic import COMPARISONS, Reals


@dataclass(frozen=True, slots=True)
class Log:
    """The real number whose exponential is ``exp``, a rational of at least 0; ``Log(0)`` is -inf."""

    exp: Fraction


Value = Fraction | Log


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
            "exp": lambda a: _logit(a).exp,
            "log": lambda a: Log(_rational(a)),
            "rcp": lambda a: 1 / _rational(a),
            "max": lambda *xs: reduce(lambda a, b: a if _compare(">=", a, b) else b, xs),
            "min": lambda *xs: reduce(lambda a, b: a if _compare("<=", a, b) else b, xs),
        }

    def number(self, x: Fraction, fmt: Format) -> Value:
        """The rational."""
        return x

    def special(self, x: float, fmt: Format) -> Value:
        """-inf as the logarithm of 0.

        Raises:
            UnsupportedError: any other infinity, or NaN.

        """
        if x != float("-inf"):
            raise UnsupportedError(f"{x} is no rational", remedy="only -inf is the logarithm of a rational")
        return Log(Fraction(0))

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
    if isinstance(a, Log) or isinstance(b, Log):
        return COMPARISONS[op](_logit(a).exp, _logit(b).exp)
    return COMPARISONS[op](a, b)


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, Log) or isinstance(b, Log):
        return Log(_logit(a).exp * _logit(b).exp)
    return a + b


def _negate(a: Value) -> Value:
    if not isinstance(a, Log):
        return -a
    if not a.exp:
        raise UnsupportedError(
            "-(-inf) is no logarithm of a rational", remedy="guard the subtraction of -inf"
        )
    return Log(1 / a.exp)


def _rational(a: Any) -> Fraction:
    if isinstance(a, Log):
        raise UnsupportedError("a logit is multiplied or divided", remedy="feed the scaled score")
    return a


def _logit(a: Value) -> Log:
    if isinstance(a, Log):
        return a
    if a:
        raise UnsupportedError(f"exp({a}) is irrational", remedy="feed logits as Log(e**x)")
    return Log(Fraction(1))
