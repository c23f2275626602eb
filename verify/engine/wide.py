"""The exact carriers: f32 with its subnormals in float64 arrays, and f64 itself."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine import bits, elementary, fixedpoint
from verify.engine.carriers import Carrier, Value, flush
from verify.engine.exact import (
    fma_parts,
    odd_product,
    odd_quotient,
    odd_root,
    odd_sum,
    to_odd,
    two_sum,
)


class _Wide(Carrier):
    """Carriers in float64 arrays, whose operations round an exact or rounded-to-odd float64 once."""

    width = bits.WIDTH64

    def _operands(self, fmt: Format, *operands: Value) -> list[Array]:
        return [flush(self.lift(x), fmt) for x in operands]

    def _rounded(self, wide: Array, fmt: Format) -> Array:
        return self.guards.seal(bits.round_to(wide, fmt, self.guards))

    def narrowed(self, wide: Array, fmt: Format) -> Array:
        """See `Carrier.narrowed`."""
        return self._rounded(wide, fmt)

    def cast(self, x: Value, fmt: Format, *, check: bool = True) -> Array:
        """See `Carrier.cast`."""
        if fmt == BASES["f64"]:
            return self.lift(x)
        return self._rounded(self.lift(x), fmt)


class F32Exact(_Wide):
    """Values of f32 and narrower formats, subnormals included, in float64 arrays. No risk, ever."""

    fmt = BASES["f32"]

    def _format(self, fmt: Format | None) -> Format:
        if fmt is not None and not BASES["f32"].holds(fmt):
            raise UnsupportedError(
                f"the f32 carrier does not round to {fmt.name}", remedy="use the f64 carrier"
            )
        return fmt or self.fmt

    def constant(self, value: float | np.ndarray) -> Array:
        """``value`` rounded to f32, unknown to the constant folder."""
        with np.errstate(over="ignore", under="ignore"):
            return self.guards.constant(np.asarray(value).astype(np.float32), self.dtype)

    def add(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.add`."""
        fmt = self._format(fmt)
        return self._rounded(odd_sum(*self._operands(fmt, a, b)), fmt)

    def mul(
        self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True, exact: bool = False
    ) -> Array:
        """See `Carrier.mul`. The float64 product of two f32 values is exact."""
        fmt = self._format(fmt)
        x, y = self._operands(fmt, a, b)
        return self._rounded(x * y, fmt)

    def div(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.div`."""
        fmt = self._format(fmt)
        x, y = self._operands(fmt, a, b)
        return self._rounded(odd_quotient(x, y, self.guards), fmt)

    def fma(self, a: Value, b: Value, c: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.fma`."""
        fmt = self._format(fmt)
        x, y, z = self._operands(fmt, a, b, c)
        return self._rounded(to_odd(*two_sum(x * y, z)), fmt)

    def sqrt(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.sqrt`."""
        fmt = self._format(fmt)
        (x,) = self._operands(fmt, a)
        return self._rounded(odd_root(x, self.guards), fmt)

    def exp(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp`."""
        fmt = self._format(self._nearest(fmt, "exp"))
        (x,) = self._operands(fmt, a)
        return self._rounded(elementary.exp(x), fmt)

    def exp2(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp2`."""
        fmt = self._format(self._nearest(fmt, "exp2"))
        (x,) = self._operands(fmt, a)
        return self._rounded(elementary.exp2(x), fmt)

    def log(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.log`."""
        fmt = self._format(self._nearest(fmt, "log"))
        (x,) = self._operands(fmt, a)
        return self._rounded(elementary.log(x), fmt)


class F64(_Wide):
    """Values of f64 in float64 arrays. `risk` flags f64 subnormals, which are not emulated.

    The operations that build on Dekker's product (`fma`, and every format but f64) also raise it where the
    product or its error may leave the range of doubles: sizes above 2**990 and below 2**-960. ``f64.rz`` is
    supported in casts only.
    """

    fmt = BASES["f64"]

    def _format(self, fmt: Format | None) -> Format:
        fmt = fmt or self.fmt
        if fmt.base == "f64" and fmt.rz:
            raise UnsupportedError(
                f"arithmetic that rounds to {fmt.name} is not emulated", remedy="f64 rounds to nearest"
            )
        return fmt

    def _native(self, result: Array, nonzero: Array, fmt: Format, check: bool) -> Array:
        result = self.guards.seal(result)
        if check:
            self.note((jnp.abs(result) < self._min_normal) & nonzero)
        return flush(result, fmt)

    def _note_range(self, result: Array, nonzero: Array, *operands: Array) -> None:
        """Flag numbers among operands and result whose error terms may overflow or underflow."""
        finite = jnp.ones((), jnp.bool_)
        for x in operands:
            finite = finite & (jnp.abs(x) < jnp.inf)
        largest = functools.reduce(jnp.maximum, [jnp.abs(x) for x in (result, *operands)])
        self.note(finite & (largest > 2.0**990))
        self.note(finite & nonzero & (jnp.abs(result) < 2.0**-960))

    def add(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.add`."""
        fmt = self._format(fmt)
        x, y = self._operands(fmt, a, b)
        if _hardware(fmt):
            return self._native(x + y, x != -y, fmt, check)
        odd = odd_sum(x, y)
        if check:
            self._note_range(odd, x != -y, x, y)
        return self._rounded(odd, fmt)

    def mul(
        self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True, exact: bool = False
    ) -> Array:
        """See `Carrier.mul`."""
        fmt = self._format(fmt)
        x, y = self._operands(fmt, a, b)
        if _hardware(fmt):
            return self._native(x * y, (x != 0) & (y != 0), fmt, check)
        odd = odd_product(x, y, self.guards)
        if check:
            self._note_range(odd, (x != 0) & (y != 0), x, y)
        return self._rounded(odd, fmt)

    def div(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.div`."""
        fmt = self._format(fmt)
        x, y = self._operands(fmt, a, b)
        if _hardware(fmt):
            divisor = self.guards.divisor(x, y)
            return self._native(x / divisor, (x != 0) & (jnp.abs(divisor) != jnp.inf), fmt, check)
        quotient = odd_quotient(x, y, self.guards)
        if check:
            regular = jnp.where(y == 0, 1.0, quotient)
            self._note_range(regular, x != 0, x, y)
            self._note_range(x, x != 0, y)
        return self._rounded(quotient, fmt)

    def fma(self, a: Value, b: Value, c: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.fma`: Dekker's product, two sums, one rounding to odd (Boldo and Melquiond)."""
        fmt = self._format(fmt)
        x, y, z = self._operands(fmt, a, b, c)
        product = self.guards.seal(x * y)
        high, low = fma_parts(x, y, z, self.guards)
        if check:
            self._note_range(product, (x != 0) & (y != 0), x, y)
            self._note_range(z, jnp.zeros((), jnp.bool_), z)
        finite = jnp.abs(high) < jnp.inf
        if _hardware(fmt):
            # Where a part is infinite, the sum with the rounded product is right: infinity or NaN.
            return self._native(jnp.where(finite, high + low, product + z), high != 0, fmt, check)
        odd = odd_sum(high, low)
        return self._rounded(jnp.where(finite, odd, product + z), fmt)

    def sqrt(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.sqrt`."""
        fmt = self._format(fmt)
        (x,) = self._operands(fmt, a)
        if _hardware(fmt):
            return self.guards.seal(jnp.sqrt(x))
        self._note_range(x, x != 0, x)
        return self._rounded(odd_root(x, self.guards), fmt)

    def exp(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp`."""
        return self._function(fixedpoint.exp, a, self._nearest(fmt, "exp"), check)

    def exp2(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp2`."""
        return self._function(fixedpoint.exp2, a, self._nearest(fmt, "exp2"), check)

    def log(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.log`."""
        return self._function(fixedpoint.log, a, self._nearest(fmt, "log"), False)

    def _function(self, function: fixedpoint.Function, a: Value, fmt: Format, check: bool) -> Array:
        (x,) = self._operands(fmt, a)
        result, subnormal = function(x, odd=not _hardware(fmt))
        if check and subnormal is not None:
            self.note(subnormal)
        return self.guards.seal(result if _hardware(fmt) else bits.round_to(result, fmt, self.guards))


def _hardware(fmt: Format) -> bool:
    return fmt.base == "f64" and not (fmt.rz or fmt.sat)
