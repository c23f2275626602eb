"""The scalar arithmetic of the oracle, faster where formats flush subnormals.

An operation in f32.ftz on normal numbers with a normal result is the operation in f32, which the oracle computes by the
machine; whatever comes near a subnormal number takes the oracle's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specs.formats import BASES, Format, parse_format
from verify.definition import ScalarArithmetic

_F32, _FTZ = BASES["f32"], parse_format("f32.ftz")
#: Well above the smallest normal number of f32, 2^-126.
_SMALL = 2.0**-100
_TWO = ("+", "-", "*", "/", "add", "sub", "mul", "div")


class QuickArithmetic(ScalarArithmetic):
    """`ScalarArithmetic` with the same results, bit for bit."""

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., float]:
        """As there."""
        slow = super().operation(op, operands, fmt)
        if fmt != _FTZ or not all(_F32.holds(f) for f in operands):
            return slow
        if op in _TWO:
            return _pairs(super().operation(op, [_F32, _F32], _F32), slow)
        if op == "exp":
            return _exponential(super().operation(op, [_F32], _F32), slow)
        return slow


def _pairs(fast: Callable[..., float], slow: Callable[..., float]) -> Callable[..., float]:
    def f(a: float, b: float) -> float:
        if (a >= _SMALL or a <= -_SMALL or a == 0.0) and (b >= _SMALL or b <= -_SMALL or b == 0.0):
            x = fast(a, b)
            if x >= _SMALL or x <= -_SMALL:
                return x
        return slow(a, b)

    return f


def _exponential(fast: Callable[..., float], slow: Callable[..., float]) -> Callable[..., float]:
    def f(a: float) -> float:
        return fast(a) if -60.0 < a < 80.0 else slow(a)

    return f
