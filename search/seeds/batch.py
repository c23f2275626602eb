"""The arithmetic of the definition on arrays: each value holds all candidates of a batch, and nothing is compiled.

The walker of the definition runs over float64 arrays ``[candidate]`` as it runs over floats, so that a batch costs
little more than one candidate. Every operation rounds once, as `verify.definition.ScalarArithmetic` does (a fused
multiply-add rounds its sum twice in rare cases); a function without an array form is called candidate by candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from specs.nodes import Tree
from verify.definition import ScalarArithmetic
from verify.definition.arithmetic import COMPARISONS, Condition, Fold
from verify.definition.trees import Operations, build, integer
from verify.numerics.mufu_tables import coefficients
from verify.numerics.rounding import round_array

Floats = NDArray[np.float64]
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}
#: Functions that are correctly rounded: a double result rounded once more.
_UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}
_EXACT: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
}
_LOG2_E = float(np.uint32(0x3FB8AA3B).view(np.float32))
#: log2 of the smallest normal f32.
_NORMAL = -126


class BatchArithmetic:
    """Values are float64 arrays ``[candidate]``, or floats where all candidates agree.

    Args:
        inputs: the arrays of elements of v, by the float that stands for each: see `search.samples.row_inputs`.
    """

    def __init__(self, inputs: dict[float, Floats]) -> None:
        self.inputs = inputs
        self.scalar = ScalarArithmetic()
        #: While it is set, nothing that is compiled rounds to fewer bits than this format has.
        self.wide: Format | None = None

    def number(self, x: Fraction, fmt: Format) -> float:
        """The rational rounded once."""
        return self.scalar.number(x, fmt)

    def special(self, x: float, fmt: Format) -> float:
        """An infinity or NaN, as the format has them."""
        return self.scalar.special(x, fmt)

    def pattern(self, bits: int, fmt: Format) -> float:
        """The number with this bit pattern."""
        return self.scalar.pattern(bits, fmt)

    def lift(self, x: float) -> Any:
        """The array that the float stands for, or the float itself."""
        return self.inputs.get(x, x)

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Any]:
        """``op`` on arrays, rounded once to ``fmt``.

        Raises:
            UnsupportedError: as `verify.definition.ScalarArithmetic`.
        """
        scalar: Callable[..., float] = self.scalar.operation(op, operands, fmt)
        if op in _EXACT:
            return _EXACT[op]
        rounded = self._rounder(fmt)
        if op in _BINARY:
            binary = _BINARY[op]
            return lambda a, b: rounded(binary(a, b))
        if op in _UNARY:
            unary = _UNARY[op]
            return lambda a: rounded(unary(a))
        if op == "fma":
            return lambda a, b, c: rounded(np.multiply(a, b) + c)
        if op == "mufu.ex2" and fmt.ftz:
            return ex2
        if op == "mufu.ex2":
            return lambda a: _unflushed(a, rounded)
        if op in ("triton.exp", "cuda.fast_expf"):
            return lambda a: (
                ex2(rounded(np.multiply(a, _LOG2_E)))
                if fmt.ftz
                else _unflushed(rounded(np.multiply(a, _LOG2_E)), rounded)
            )
        each = np.frompyfunc(scalar, len(operands), 1)
        return lambda *args: np.asarray(each(*args), dtype=np.float64)

    def cast(self, source: Format, target: Format) -> Callable[[Any], Any]:
        """`rounder` of the target."""
        return self._rounder(target)

    def _rounder(self, fmt: Format) -> Callable[[Any], Any]:
        return rounder(fmt if self.wide is None or self.wide.p <= fmt.p else self.wide)

    def compare(self, op: str) -> Callable[[Any, Any], Condition]:
        """The comparison; a Python bool where all candidates agree."""
        compare = COMPARISONS[op]
        return lambda a, b: _decided(compare(a, b))

    def is_nan(self, x: Any) -> Condition:
        """Whether ``x`` is NaN."""
        return _decided(np.isnan(x))

    def choose(self, condition: Condition, a: Any, b: Any) -> Any:
        """Candidate by candidate."""
        return np.where(condition, a, b)

    def logic(self, op: str, conditions: Sequence[Condition]) -> Condition:
        """``and``, ``or``, ``not``."""
        if op == "not":
            return _decided(np.logical_not(conditions[0]))
        join = np.logical_and if op == "and" else np.logical_or
        out = conditions[0]
        for c in conditions[1:]:
            out = join(out, c)
        return _decided(out)

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree on arrays."""
        formats = (*operands, fmt)
        rounded = self._rounder(fmt)

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> Any:
            total: Any = 0.0 if start is None else start
            for term in terms:
                total = total + (np.multiply(*term) if pairs else term)
            return rounded(total)

        def chain(node: Tree) -> Fold:
            a, b, k = operands[0], operands[1], integer(node.ints[0])
            dot = find(dots, node.instruction, a, b, fmt, k)
            return lambda pairs, start: chained(dot, k, pairs, 0.0 if start is None else start, a, b)

        steps = Operations(
            self.operation("+", formats, fmt),
            self.operation("*", formats, fmt),
            self.operation("fma", formats, fmt),
            exact,
            0.0,
            chain,
        )
        return build(tree, steps, pairs=kind == "dot")


def _decided(condition: Any) -> Condition:
    """A Python bool where all candidates agree."""
    found = np.asarray(condition)
    if found.ndim == 0 or found.all():
        return bool(found.all())
    return found if found.any() else False


@cache
def rounder(fmt: Format) -> Callable[[Any], Any]:
    """Rounding of a double, or an array of them, to ``fmt``."""
    if fmt.base == "f64" and not fmt.ftz:
        return lambda x: x
    if fmt.base == "f32" and not (fmt.sat or fmt.rz):
        if not fmt.ftz:
            return lambda x: np.asarray(x, dtype=np.float32).astype(np.float64)
        least = 2.0**fmt.emin

        def flushed(x: Any) -> Any:
            y = np.asarray(x, dtype=np.float32).astype(np.float64)
            return np.where(np.abs(y) < least, np.copysign(0.0, y), y)

        return flushed
    low, high, bits = 2.0**fmt.emin, fmt.largest, np.uint64(53 - fmt.p)
    one, half = np.uint64(1), np.uint64((1 << (52 - fmt.p)) - 1)
    plain = not (fmt.sat or fmt.rz)

    def nearest(x: Any) -> Any:
        y = np.asarray(x, dtype=np.float64)
        size = np.abs(y)
        if not plain or not bool(((size >= low) & (size < high) | (y == 0)).all()):
            return round_array(y, fmt)
        words = np.atleast_1d(y).view(np.uint64)
        words = (words + half + (words >> bits & one)) >> bits << bits
        return words.view(np.float64).reshape(y.shape)

    return nearest


# -- the special-function unit --------------------------------------------------------------------------------


@cache
def _segments(function: str) -> NDArray[np.int64]:
    return np.array(coefficients(function), dtype=np.int64).T


def ex2(x: Any) -> Any:
    """`verify.numerics.mufu.ex2` on f32 values in doubles."""
    values = np.asarray(x, dtype=np.float64)
    # In multiples of 2**-23, magnitudes cut towards 0.
    fixed = (np.fmin(np.abs(values), 256.0) * 2.0**23).astype(np.int64)
    cut = np.where(fixed & 0x7FFFFF, ~fixed, -fixed)
    signed = np.where(np.signbit(values), cut, fixed)
    whole, fraction = signed >> 23, signed & 0x7FFFFF
    c0, c1, c2 = _segments("ex2")[:, fraction >> 17]
    r = fraction & 0x1FFFF
    significand = ((c0 << 13) + c1 * r + c2 * _squares()[r] + 0x77E2) >> 15
    word = ((whole + 126) << 23) + significand
    found = np.clip(word, 0, 0x7F800000).astype(np.uint32).view(np.float32).astype(np.float64)
    found = np.where((whole < _NORMAL) | (word < 0x800000), 0.0, found)
    found = np.where(fixed >= 128 << 23, np.where(np.signbit(values), 0.0, np.inf), found)
    return np.where(np.isnan(values), np.nan, found)


@cache
def _squares() -> NDArray[np.int64]:
    """`verify.numerics.mufu.square` of every 17-bit number."""
    r = np.arange(1 << 17)
    total = np.zeros_like(r)
    for i in range(17):
        total += np.where(r >> i & 1, r >> (18 - i), 0)
    return total >> 1


def _unflushed(x: Any, rounded: Callable[[Any], Any]) -> Any:
    """``ex2.approx`` without .ftz: below -126 the argument is halved and the result squared."""
    low = np.less(x, -126.0)
    root = ex2(np.where(low, rounded(np.multiply(x, 0.5)), x))
    return np.where(low, rounded(root * root), root)


# -- tensor cores ---------------------------------------------------------------------------------------------


def chained(dot: DotProduct, k: int, pairs: Sequence[Any], start: Any, fmt_a: Format, fmt_b: Format) -> Any:
    """`verify.numerics.tensor_core.chained` on arrays, for finite factors and results above the subnormals.

    Args:
        dot: the arithmetic of the instruction.
        k: terms of one instruction.
        pairs: factors, arrays or floats.
        start: the accumulator.
        fmt_a, fmt_b: formats of the factors.

    Raises:
        UnsupportedError: the factors are converted first, or blocks are not consecutive.
    """
    if dot.converted is not None or dot.split != "consecutive":
        raise UnsupportedError("converted factors", place="batch", remedy="evaluate with the definition")
    live = [p for p in pairs if not (_zero(p[0]) or _zero(p[1]))]
    if not live and dot.addition == "early":
        return start + 0.0
    total: Any = start
    for first in range(0, len(pairs), k):
        part = pairs[first : first + k]
        acc: Any = 0.0 if dot.addition == "late" else total
        for block in range(0, len(part), dot.fused_length):
            acc = _fused(dot, part[block : block + dot.fused_length], acc, fmt_a, fmt_b)
        total = rounder(BASES[dot.output])(acc + total) if dot.addition == "late" else acc
    return total


def _zero(x: Any) -> bool:
    return isinstance(x, float) and x == 0.0


def _fused(dot: DotProduct, pairs: Sequence[Any], acc: Any, fmt_a: Format, fmt_b: Format) -> Any:
    pairs = [p for p in pairs if not (_zero(p[0]) or _zero(p[1]))]
    if not pairs:
        return acc + 0.0
    columns = np.broadcast_arrays(acc, *(x for p in pairs for x in p))
    c, a, b = columns[0], np.stack(columns[1::2]), np.stack(columns[2::2])
    output = BASES[dot.output]
    nothing = -10_000
    exponent = np.where((a == 0) | (b == 0), nothing, _exponent(a, fmt_a) + _exponent(b, fmt_b))
    own = np.where(c == 0, nothing, _exponent(c, output))
    top = np.maximum(np.maximum(exponent.max(axis=0), own), dot.exponent_floor)
    unit = (dot.fraction_bits - top).astype(np.int32)
    total = np.trunc(np.ldexp(a * b, unit)).sum(axis=0) + np.trunc(np.ldexp(c, unit))
    if dot.rounding == "rne":
        return round_array(np.asarray(np.ldexp(total, -unit), dtype=np.float64), output)
    bits = 14 if dot.rounding == "rz13" else output.p
    significand, e = np.frexp(total)
    return np.ldexp(np.trunc(np.ldexp(significand, bits)), e - bits - unit) + 0.0


def _exponent(x: Any, fmt: Format) -> Any:
    return np.maximum(np.frexp(x)[1] - 1, fmt.emin)
