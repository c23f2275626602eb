"""The arithmetic of the oracle: doubles that hold values of a format, each operation rounded once.

`verify.numerics` defines every operation for every format. Where the result is plain f32 or f64 and the
operands are known to be values of it, the machine's own operation gives the same bits in a twentieth of the
time: a double result of ``+ - * /`` on f32 values, rounded once more to f32, is the correctly rounded one
(Figueroa, "When is double rounding innocuous?", 1995). The tests hold both routes equal.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from ctypes import c_float
from fractions import Fraction
from typing import Any

import numpy as np

from specs.dot_products import DotProduct, find
from specs.errors import SpecError, UnsupportedError
from specs.formats import BASES, Format
from specs.nodes import Tree
from verify.definition import trees
from verify.definition.arithmetic import COMPARISONS, Decided, Fold
from verify.numerics import elementary, operations, tensor_core
from verify.numerics.rounding import decode, round_float, round_fraction, word_dtype
from verify.numerics.special import REFUSED, SPECIAL, require_single

_F32, _F64 = BASES["f32"], BASES["f64"]
_EXP_MARGIN = 2.0**-48
"""How far `math.exp` may be off (16 ulps; it is off by one at most): nearer to a midpoint, balls decide."""

_ROUNDED: dict[str, Callable[..., float]] = {
    "+": operations.add,
    "-": operations.sub,
    "*": operations.mul,
    "/": operations.div,
    "add": operations.add,
    "sub": operations.sub,
    "mul": operations.mul,
    "div": operations.div,
    "fma": operations.fma,
    "sqrt": operations.sqrt,
    "exp": elementary.exp,
    "exp2": elementary.exp2,
    "log": elementary.log,
    "log2": elementary.log2,
    "rcp": elementary.rcp,
    **SPECIAL,
}
_MACHINE: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}


class ScalarArithmetic(Decided):
    """Correctly rounded arithmetic on Python floats: IEEE 754 with the modifiers of the format.

    ``max`` and ``min`` propagate NaN, and order -0 below +0. Comparisons are IEEE: NaN is unequal to all.
    """

    def number(self, x: Fraction, fmt: Format) -> float:
        """The rational rounded once."""
        return round_fraction(x, _stored(fmt))

    def special(self, x: float, fmt: Format) -> float:
        """An infinity or NaN, as the format has them."""
        return round_float(x, _stored(fmt))

    def pattern(self, bits: int, fmt: Format) -> float:
        """The number with this bit pattern.

        Raises:
            SpecError: the pattern is wider than the format.
        """
        dtype = word_dtype(_stored(fmt))
        if bits >> (8 * dtype.itemsize):
            raise SpecError(f"0x{bits:X} is wider than {fmt.base}", remedy=f"give {fmt.bits} bits")
        return float(decode(np.array([bits], dtype), fmt)[0])

    def lift(self, x: float) -> float:
        """The double itself."""
        return x

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., float]:
        """The function that rounds once to ``fmt``; ``neg abs min max`` never round.

        Raises:
            UnsupportedError: the function has no scalar definition yet.
        """
        if op in _EXACT:
            return _EXACT[op]
        if op in REFUSED:
            raise UnsupportedError(
                f"{op}() is not evaluated: {REFUSED[op]}", remedy="use a function with known bits"
            )
        if op not in _ROUNDED:
            known = ", ".join(k for k in _ROUNDED if k.isalnum())
            raise UnsupportedError(f"{op}() is not evaluated yet", remedy=f"supported functions: {known}")
        fmt = _stored(fmt)
        if op in SPECIAL:
            require_single(op, fmt)
        if fmt in (_F32, _F64) and all(fmt.holds(f) for f in operands):
            fast = _fast(op, fmt)
            if fast is not None:
                return fast
        return _bound(_ROUNDED[op], fmt)

    def cast(self, source: Format, target: Format) -> Callable[[float], float]:
        """`rounder` of the target."""
        return rounder(target)

    def compare(self, op: str) -> Callable[[float, float], bool]:
        """The IEEE comparison."""
        return COMPARISONS[op]

    def is_nan(self, x: float) -> bool:
        """Whether ``x`` is NaN."""
        return x != x

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree over additions that round to ``fmt``: see `verify.definition.trees`.

        Raises:
            UnsupportedError: an ``mma`` tree whose dot product the platform does not have.
        """

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> float:
            return exact_sum(terms if pairs else [(x, 1.0) for x in terms], start, fmt)

        def mma(node: Tree) -> Fold:
            a, b, k = operands[0], operands[1], trees.integer(node.ints[0])
            dot = find(dots, node.instruction, a, b, fmt, k)

            def chain(pairs: Sequence[tuple[float, float]], start: float | None) -> float:
                left, right = [x for x, _ in pairs], [y for _, y in pairs]
                return tensor_core.chained(dot, k, left, right, 0.0 if start is None else start, a, b)

            return chain

        formats = (*operands, fmt)
        steps = trees.Operations(
            add=self.operation("+", formats, fmt),
            mul=self.operation("*", formats, fmt),
            fma=self.operation("fma", formats, fmt),
            exact=exact,
            zero=0.0,
            mma=mma,
        )
        return trees.build(tree, steps, pairs=kind == "dot")


def rounder(fmt: Format) -> Callable[[float], float]:
    """The function that rounds a double once to ``fmt``: `round_float`, faster where it is plain.

    Raises:
        UnsupportedError: ``fmt`` is ``real``.
    """
    fmt = _stored(fmt)
    if fmt == _F64:
        return float
    if fmt == _F32:
        return _single
    if fmt.ftz or fmt.sat or fmt.rz:
        return lambda x: round_float(x, fmt)
    largest, quantum, p = fmt.largest, fmt.quantum, fmt.p
    limit = 2.0 * largest
    frexp, ldexp, copysign = math.frexp, math.ldexp, math.copysign

    def nearest(x: float) -> float:
        if not -limit < x < limit:
            return round_float(x, fmt)
        step = max(frexp(x)[1] - p, quantum)
        y = ldexp(round(ldexp(x, -step)), step)
        return copysign(y, x) if -largest <= y <= largest else round_float(x, fmt)

    return nearest


def exact_sum(pairs: Sequence[tuple[float, float]], start: float | None, fmt: Format) -> float:
    """The exact value of ``start + sum of a * b``, rounded once to ``fmt``; an exact zero is +0.

    Infinities and NaN among the factors decide the result as IEEE addition would.
    """
    terms = list(pairs) if start is None else [(start, 1.0), *pairs]
    special = 0.0
    numerators: list[tuple[int, int]] = []
    for a, b in terms:
        if a - a != 0.0 or b - b != 0.0:
            special += a * b
            continue
        (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
        if n and m:
            numerators.append((n * m, d.bit_length() + e.bit_length() - 2))
    if special != 0.0:
        return round_float(special, fmt)
    scale = max((s for _, s in numerators), default=0)
    total = sum(n << (scale - s) for n, s in numerators)
    return round_fraction(Fraction(total, 1 << scale), _stored(fmt))


def maximum(*xs: float) -> float:
    """The largest; NaN if any is NaN; ``max(-0, +0)`` is +0."""
    best = xs[0]
    for x in xs[1:]:
        if x != x or best != best:
            best = math.nan
        elif x > best or (x == best == 0.0 and math.copysign(1.0, best) < 0):
            best = x
    return best


def minimum(*xs: float) -> float:
    """The smallest; NaN if any is NaN; ``min(-0, +0)`` is -0."""
    return -maximum(*(-x for x in xs))


_EXACT: dict[str, Callable[..., float]] = {
    "neg": lambda x: -x,
    "abs": math.fabs,
    "max": maximum,
    "min": minimum,
}


def _stored(fmt: Format) -> Format:
    if fmt.is_real:
        raise UnsupportedError(
            "the format 'real' has no bits to round to", remedy="evaluate with balls, or name a stored format"
        )
    return fmt


def _single(x: float) -> float:
    return c_float(x).value


def _bound(function: Callable[..., float], fmt: Format) -> Callable[..., float]:
    return lambda *args: function(*args, fmt)


def _fast(op: str, fmt: Format) -> Callable[..., float] | None:
    """A faster function for operands that are values of f32 or f64, or None."""
    if fmt == _F64:
        return _MACHINE.get(op)
    if op in _MACHINE:
        machine = _MACHINE[op]
        return lambda a, b: c_float(machine(a, b)).value
    if op in ("/", "div"):
        return lambda a, b: c_float(a / b).value if b else operations.div(a, b, _F32)
    return _exp_f32 if op == "exp" else None


def _exp_f32(x: float) -> float:
    if -200.0 < x < 100.0:
        wide = math.exp(x)
        low, high = c_float(wide * (1.0 - _EXP_MARGIN)).value, c_float(wide * (1.0 + _EXP_MARGIN)).value
        if low == high:
            return low
    return elementary.exp(x, _F32)
