"""The arithmetic of rigorous enclosures: real numbers as python-flint balls.

Casts, roundings and trees are identities, so the value of a program is its real-number meaning, and the ball
that comes out contains it. Literals count as the decimals that were written, bit patterns as their value,
and approximate functions as what they approximate (`specs.functions.FUNCTIONS`). Infinities are exact;
``log(0)`` is -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import flint
import numpy as np

from specs.errors import UlpscopeError, UnsupportedError
from specs.formats import Format
from specs.program import Program
from verify.definition.arithmetic import COMPARISONS, Reals
from verify.definition.inputs import RowInputs
from verify.definition.scalar import ScalarArithmetic
from verify.definition.walker import evaluate
from verify.partition import Plan

Ball = flint.arb

_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
MOST_BITS = 4096


class UndecidedError(UnsupportedError):
    """A comparison that two balls of this precision do not decide."""


class BallArithmetic(Reals):
    """Real numbers enclosed in balls, at the precision of `flint.ctx` when an operation runs."""

    def __init__(self) -> None:
        self.table: dict[str, Callable[..., Ball]] = {
            "+": lambda a, b: a + b,
            "-": lambda a, b: a - b,
            "*": lambda a, b: a * b,
            "/": lambda a, b: a / b,
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "div": lambda a, b: a / b,
            "div.full": lambda a, b: a / b,
            "fma": lambda a, b, c: a * b + c,
            "neg": lambda a: -a,
            "abs": lambda a: abs(a),
            "exp": lambda a: a.exp(),
            "triton.exp": lambda a: a.exp(),
            "cuda.expf": lambda a: a.exp(),
            "cuda.fast_expf": lambda a: a.exp(),
            "torch.fexp_u20": lambda a: a.exp(),
            "glibc.expf": lambda a: a.exp(),
            "glibc.logf": _log,
            "fa4.exp2": _exp2,
            "tanh.approx": lambda a: a.tanh(),
            "exp2": _exp2,
            "mufu.ex2": _exp2,
            "log": _log,
            "cuda.logf": _log,
            "log2": lambda a: _log(a) / Ball.const_log2(),
            "mufu.lg2": lambda a: _log(a) / Ball.const_log2(),
            "rcp": lambda a: 1 / a,
            "mufu.rcp": lambda a: 1 / a,
            "sqrt": lambda a: a.sqrt(),
            "mufu.rsq": lambda a: a.rsqrt(),
            "max": lambda *xs: reduce(_larger, xs),
            "min": lambda *xs: -reduce(_larger, [-x for x in xs]),
        }

    def number(self, x: Fraction, fmt: Format) -> Ball:
        """The rational, exactly or to the working precision."""
        return Ball(flint.fmpq(x.numerator, x.denominator))

    def special(self, x: float, fmt: Format) -> Ball:
        """An exact infinity, or NaN."""
        return Ball(x)

    def pattern(self, bits: int, fmt: Format) -> Ball:
        """The value of the pattern, exactly."""
        return Ball(ScalarArithmetic().pattern(bits, fmt))

    def lift(self, x: float) -> Ball:
        """The double, exactly."""
        return Ball(x)

    def compare(self, op: str) -> Callable[[Ball, Ball], bool]:
        """A comparison that is certain.

        Raises (when it runs):
            UndecidedError: the balls overlap.
        """
        holds, fails = COMPARISONS[op], COMPARISONS[_OPPOSITE[op]]

        def decide(a: Ball, b: Ball) -> bool:
            if holds(a, b):
                return True
            if fails(a, b):
                return False
            if a is b and not a.is_nan():
                return op in ("==", "<=", ">=")
            raise UndecidedError(
                f"{_short(a)} {op} {_short(b)} is undecided",
                remedy="evaluate at a higher precision, or feed the site",
            )

        return decide

    def is_nan(self, x: Ball) -> bool:
        """False: a real number is one.

        Raises:
            UndecidedError: the ball holds no number, as after 0/0.
        """
        if x.is_nan():
            raise UndecidedError("isnan() of an indeterminate ball", remedy="evaluate at a higher precision")
        return False


def enclose(
    program: Program,
    plan: Plan,
    inputs: RowInputs,
    sites: Sequence[str],
    dims: Sequence[int] | None = None,
    bits: int = 128,
) -> dict[str, np.ma.MaskedArray[Any, Any]]:
    """Enclosures of the real-number values of ``sites``: as `evaluate`, with balls as objects.

    Args:
        program: a typed program.
        plan: its partition.
        inputs: one query row.
        sites: names of sites.
        dims: output columns; None: all.
        bits: the first precision; it doubles, up to `MOST_BITS`, while a comparison is undecided.

    Raises:
        UndecidedError: a comparison is undecided even then: its sides may be equal.
    """
    while True:
        try:
            with flint.ctx.workprec(bits):
                return evaluate(program, plan, inputs, sites, BallArithmetic(), dims)
        except UndecidedError as error:
            if 2 * bits > MOST_BITS:
                raise _final(error, bits) from None
            bits *= 2


def _final(error: UlpscopeError, bits: int) -> UndecidedError:
    return UndecidedError(
        f"{error.cause} at {bits} bits",
        place=error.place,
        remedy="the two sides may be equal reals; feed the site",
    )


def _short(x: Ball) -> str:
    return x.str(6)


def _larger(a: Ball, b: Ball) -> Ball:
    """The larger of two reals; the same object where that is certain, so that it compares equal to itself."""
    return a if a is b or a >= b else b if b > a else a.max(b)


def _log(x: Ball) -> Ball:
    return Ball(float("-inf")) if x == 0 else x.log()


def _exp2(x: Ball) -> Ball:
    return (x * Ball.const_log2()).exp()
