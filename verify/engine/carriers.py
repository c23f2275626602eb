"""The method set that all carriers share, and the parts that do not depend on how values are held."""

from __future__ import annotations

import abc
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine import bits, special
from verify.engine.guards import Guards, bits_of, float_of
from verify.engine.risk import RiskLog

Value = Array | np.ndarray | np.floating[Any] | float | int
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]


class Carrier(RiskLog, abc.ABC):
    """Arithmetic on arrays of one dtype in which every operation rounds exactly once.

    Operands may be traced arrays (values of this carrier), NumPy arrays or Python numbers; the latter two are
    rounded to the carrier's dtype and guarded as constants. ``fmt`` is the format an operation rounds to, by
    default `fmt` of the carrier. With a ``.ftz`` format, subnormal operands count as zero, too. Shapes
    broadcast as in NumPy. NaN payloads and signs of NaN mean nothing.

    ``check=False`` leaves out the check for flushed subnormals: for callers who have shown that none arises.

    Args:
        zero: an unsigned scalar *argument* of the jitted function, 0 at run time. See `guards.Guards`.
    """

    width: bits.Width
    fmt: Format

    def __init__(self, zero: Array) -> None:
        super().__init__()
        self.guards = self._make_guards(zero)

    def _make_guards(self, zero: Array) -> Guards:
        return Guards(zero)

    # -- values -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """The dtype of the arrays: float32 or float64."""
        return self.width.real

    @property
    def _min_normal(self) -> np.floating[Any]:
        return self.width.real(2.0**self.width.fmt.emin)

    def constant(self, value: float | np.ndarray) -> Array:
        """``value`` rounded to the carrier's own format, unknown to the constant folder.

        A subnormal constant raises the risk flag in carriers that cannot hold it.
        """
        with np.errstate(over="ignore", under="ignore"):
            held = np.asarray(value).astype(self.dtype)
        if np.any((held != 0) & (np.abs(held) < self._min_normal)):
            self.note(jnp.ones((), jnp.bool_))
        return self.guards.constant(held, self.dtype)

    def lift(self, x: Value) -> Array:
        """A traced array as it is; anything else as a guarded constant.

        Raises:
            TypeError: the array has another dtype than the carrier.
        """
        if isinstance(x, Tracer):
            assert isinstance(x, Array)
            if x.dtype != self.dtype:
                raise TypeError(f"{type(self).__name__} holds {np.dtype(self.dtype)}, not {x.dtype}")
            return x
        return self.constant(np.asarray(x))

    def decode(self, words: Array, fmt: Format, *, check: bool = True) -> Array:
        """The values of stored words.

        Args:
            words: uint8, uint16, uint32 or uint64 array, as wide as ``fmt`` (tf32: uint32).
            fmt: the format of the words; modifiers do not matter.
            check: raise the risk flag where a word is a number that is subnormal in this carrier.
        """
        if not self.fmt.holds(fmt):
            raise UnsupportedError(f"values of {fmt.name} do not fit the {self.fmt.name} carrier")
        values, subnormal = bits.decode(words, fmt, self.width)
        if check and subnormal is not None:
            self.note(subnormal)
        return values

    def encode(self, x: Value, fmt: Format | None = None) -> Array:
        """The stored words of ``x`` rounded once to ``fmt``; NaN becomes the positive quiet NaN."""
        fmt = fmt or self.fmt
        return bits.encode(self.cast(x, fmt), fmt)

    @abc.abstractmethod
    def cast(self, x: Value, fmt: Format, *, check: bool = True) -> Array:
        """``x`` rounded once to ``fmt`` (all modifiers), still held in this carrier."""

    # -- without rounding ---------------------------------------------------------------------------------

    def neg(self, a: Value) -> Array:
        """``a`` with its sign bit flipped."""
        words = bits_of(self.lift(a))
        return float_of(words ^ self.width.sign)

    def abs(self, a: Value) -> Array:
        """``a`` with its sign bit cleared."""
        words = bits_of(self.lift(a))
        return float_of(words & ~self.width.sign)

    def maximum(self, a: Value, b: Value) -> Array:
        """IEEE 754-2019 maximum: +0 is above -0, and a NaN operand gives NaN."""
        return _unordered(jnp.maximum(self._ordered(a), self._ordered(b)), self.width)

    def minimum(self, a: Value, b: Value) -> Array:
        """IEEE 754-2019 minimum: -0 is below +0, and a NaN operand gives NaN."""
        return self.neg(self.maximum(self.neg(a), self.neg(b)))

    def max_over(self, a: Value, axis: int | tuple[int, ...] | None = None) -> Array:
        """The maximum along ``axis``, as `maximum`; -inf of an empty axis. Order does not matter."""
        lowest = np.iinfo(np.dtype(self.width.word).name[1:]).min
        keys = jnp.max(self._ordered(a), axis=axis, initial=lowest)
        smallest = _order(bits_of(jnp.asarray(-math.inf, self.dtype)), self.width)
        return _unordered(jnp.maximum(keys, smallest), self.width)

    def min_over(self, a: Value, axis: int | tuple[int, ...] | None = None) -> Array:
        """The minimum along ``axis``, as `minimum`; +inf of an empty axis."""
        return self.neg(self.max_over(self.neg(a), axis))

    def _ordered(self, a: Value) -> Array:
        """Signed integers in the order of the values, NaN on top: no float comparison, nothing flushed."""
        words = bits_of(self.lift(a))
        nan = (words & ~self.width.sign) > self.width.infinity
        return _order(jnp.where(nan, self.width.bits(math.nan), words), self.width)

    def compare(self, op: Comparison, a: Value, b: Value) -> Array:
        """A boolean array; -0 equals +0, and comparisons with NaN are false but for ``!=``."""
        x, y = self.lift(a), self.lift(b)
        match op:
            case "==":
                return x == y
            case "!=":
                return x != y
            case "<":
                return x < y
            case "<=":
                return x <= y
            case ">":
                return x > y
            case ">=":
                return x >= y

    def isnan(self, a: Value) -> Array:
        """Whether each element is NaN."""
        x = self.lift(a)
        return x != x

    def select(self, condition: Array, a: Value, b: Value) -> Array:
        """``a`` where ``condition`` (boolean) holds, else ``b``."""
        return jnp.where(condition, self.lift(a), self.lift(b))

    # -- with one rounding --------------------------------------------------------------------------------

    @abc.abstractmethod
    def add(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """``a + b``, rounded once."""

    def sub(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """``a - b``, rounded once."""
        return self.add(a, self.neg(b), fmt, check=check)

    @abc.abstractmethod
    def mul(
        self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True, exact: bool = False
    ) -> Array:
        """``a * b``, rounded once. ``exact``: the caller knows it to be exact (see `exact_product`)."""

    @abc.abstractmethod
    def div(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """``a / b``, rounded once."""

    @abc.abstractmethod
    def fma(self, a: Value, b: Value, c: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """``a * b + c``, rounded once."""

    @abc.abstractmethod
    def sqrt(self, a: Value, fmt: Format | None = None) -> Array:
        """The square root, rounded once."""

    def rcp(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """``1 / a``, rounded once."""
        return self.div(1.0, a, fmt, check=check)

    @abc.abstractmethod
    def exp(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """e**a, correctly rounded."""

    @abc.abstractmethod
    def exp2(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """2**a, correctly rounded."""

    @abc.abstractmethod
    def log(self, a: Value, fmt: Format | None = None) -> Array:
        """The natural logarithm, correctly rounded."""

    # -- functions of kernels -----------------------------------------------------------------------------

    def special(self, name: str, *args: Value, fmt: Format | None = None) -> Array:
        """A function of `verify.engine.special`, such as ``mufu.ex2``, to ``fmt``: f32 or f32.ftz.

        Raises:
            UnsupportedError: the carrier holds f64, or the function or format is not known.
        """
        if self.fmt.base != "f32":
            raise UnsupportedError(f"{name} computes in f32, not in {self.fmt.name}", remedy="compute in f32")
        return special.apply(self, name, tuple(self.lift(x) for x in args), fmt or self.fmt)

    def words(self, x: Array) -> Array:
        """The uint32 words of an array of f32 values, subnormals kept."""
        return bits_of(x) if self.width is bits.WIDTH32 else bits.encode(x, BASES["f32"])

    def values(self, words: Array, *, check: bool = False) -> Array:
        """The values of uint32 words of f32. ``check``: flag a subnormal that the carrier cannot hold."""
        return self.decode(words, BASES["f32"], check=check)

    @abc.abstractmethod
    def narrowed(self, wide: Array, fmt: Format) -> Array:
        """A float64 array rounded once to ``fmt``, held in this carrier; flushed subnormals are not flagged."""

    # -- shared helpers -----------------------------------------------------------------------------------

    def _nearest(self, fmt: Format | None, name: str) -> Format:
        """The format of a function result, which must round to nearest.

        Raises:
            UnsupportedError: ``fmt`` rounds toward zero.
        """
        fmt = fmt or self.fmt
        if fmt.rz:
            raise UnsupportedError(
                f"{name} rounded toward zero ({fmt.name}) is not emulated",
                remedy="the arithmetic operations and casts support .rz; functions round to nearest",
            )
        return fmt


def flush(x: Array, fmt: Format) -> Array:
    """``x``, with subnormals of ``fmt`` made zeros of the same sign if ``fmt`` is ``.ftz``."""
    if not fmt.ftz:
        return x
    w = bits.width_of(x)
    words = bits_of(x)
    small = (words & ~w.sign) < w.bits(2.0**fmt.emin)
    return float_of(jnp.where(small, words & w.sign, words))


def exact_product(a: Format, b: Format, into: Format = BASES["f32"]) -> bool:
    """Whether every product of a value of ``a`` with one of ``b`` is a value of ``into``, range aside.

    Then contraction into a fused multiply-add changes nothing and the product needs no guard. Products that
    leave the range of ``into`` (subnormals, overflow) are the business of the risk flag.
    """
    return not (a.is_real or b.is_real) and a.p + b.p <= into.p


def _order(words: Array, w: bits.Width) -> Array:
    signed = jnp.int32 if w.word is np.uint32 else jnp.int64
    keys = jax.lax.bitcast_convert_type(words, signed)
    return jnp.where(keys < 0, keys ^ signed(np.iinfo(np.dtype(signed)).max), keys)


def _unordered(keys: Array, w: bits.Width) -> Array:
    signed = keys.dtype
    top = np.iinfo(signed).max
    return jax.lax.bitcast_convert_type(jnp.where(keys < 0, keys ^ signed.type(top), keys), w.real)
