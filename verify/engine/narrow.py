"""The fast carrier: f32 and everything narrower in float32 arrays, with a flag for flushed subnormals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from specs.formats import BASES, Format
from verify.engine import bits, elementary
from verify.engine.carriers import Carrier, Value, flush
from verify.engine.exact import odd_quotient, odd_root, odd_sum, to_odd, two_sum

_LAST_FLUSHED = float(np.float64(2.0**-126) * (1 - 2.0**-24))
"""Exact results from here to 2**-126 round up to 2**-126, which is normal; hardware may flush them."""


def _hardware(fmt: Format) -> bool:
    """Whether float32 arithmetic rounds as ``fmt`` does, subnormals aside."""
    return fmt.base == "f32" and not (fmt.rz or fmt.sat)


class F32(Carrier):
    """Values of f32, tf32, bf16, f16 and fp8 in float32 arrays.

    XLA on CPU flushes subnormal f32 numbers, so this carrier cannot hold them. Every value that enters
    through `decode`, `constant` or the result of an operation is checked instead: `risk` is true if one of
    them may be subnormal in f32, and the results must then be computed again with `F32Exact`. As no subnormal
    can enter unnoticed, operations check only their results: a result below 2**-126 whose exact value is
    neither zero nor below 2**-150. With ``f32.ftz`` flushing is what is asked for, and the flag rises only in
    the narrow zone just below 2**-126 where hardware may flush before it rounds.

    Formats other than f32 are rounded once from an exact (or rounded-to-odd) float64 result.
    """

    width = bits.WIDTH32
    fmt = BASES["f32"]

    # -- results ------------------------------------------------------------------------------------------

    def _tiny(self, result: Array) -> Array:
        return jnp.abs(result) < self._min_normal

    def _narrowed(self, wide: Array, fmt: Format, check: bool) -> Array:
        """A float64 result (exact, or rounded to odd) rounded once to ``fmt`` and brought to float32."""
        if _hardware(fmt):
            result = self.guards.seal(wide.astype(jnp.float32))
            if check:
                lowest = _LAST_FLUSHED if fmt.ftz else 2.0**-150
                self.note(self._tiny(result) & (jnp.abs(wide) >= lowest))
            return flush(result, fmt)
        rounded = bits.round_to(wide, fmt, self.guards)
        result = self.guards.seal(rounded.astype(jnp.float32))
        if check and fmt.emin <= self.fmt.emin:
            self.note(self._tiny(result) & (rounded != 0))
        return result

    def narrowed(self, wide: Array, fmt: Format) -> Array:
        """See `Carrier.narrowed`."""
        return self._narrowed(wide, fmt, check=False)

    def _wide(self, fmt: Format, *operands: Value) -> list[Array]:
        return [flush(self.lift(x), fmt).astype(jnp.float64) for x in operands]

    def cast(self, x: Value, fmt: Format, *, check: bool = True) -> Array:
        """See `Carrier.cast`. No check is needed: a normal f32 never becomes a subnormal one."""
        if fmt.base == "f64" and not (fmt.rz or fmt.sat or fmt.ftz):
            return self.lift(x)
        return bits.round_to(self.lift(x), fmt, self.guards)

    # -- operations ---------------------------------------------------------------------------------------

    def add(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.add`."""
        fmt = fmt or self.fmt
        if not _hardware(fmt):
            return self._narrowed(odd_sum(*self._wide(fmt, a, b)), fmt, check)
        x, y = self.lift(a), self.lift(b)
        result = self.guards.seal(x + y)
        # A sum below 2**-126 is exact, so with .ftz there is nothing that rounding could lift to normal.
        if check and not fmt.ftz:
            self.note(self._tiny(result) & (x != -y))
        return flush(result, fmt)

    def mul(
        self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True, exact: bool = False
    ) -> Array:
        """See `Carrier.mul`. ``exact`` leaves out the guard against contraction."""
        fmt = fmt or self.fmt
        if not _hardware(fmt):
            x, y = self._wide(fmt, a, b)
            return self._narrowed(x * y, fmt, check)
        x, y = self.lift(a), self.lift(b)
        result = x * y if exact else self.guards.seal(x * y)
        if check and fmt.ftz:
            product = x.astype(jnp.float64) * y.astype(jnp.float64)
            self.note(self._tiny(result) & (jnp.abs(product) >= _LAST_FLUSHED))
        elif check:
            self.note(self._tiny(result) & (x != 0) & (y != 0))
        return flush(result, fmt)

    def div(self, a: Value, b: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.div`."""
        fmt = fmt or self.fmt
        if not _hardware(fmt):
            x, y = self._wide(fmt, a, b)
            return self._narrowed(odd_quotient(x, y, self.guards), fmt, check)
        x, y = self.lift(a), self.lift(b)
        divisor = self.guards.divisor(x, y)
        result = self.guards.seal(x / divisor)
        if check and fmt.ftz:
            wide = x.astype(jnp.float64)
            quotient = wide / self.guards.divisor(wide, y.astype(jnp.float64))
            self.note(self._tiny(result) & (jnp.abs(quotient) >= _LAST_FLUSHED))
        elif check:
            self.note(self._tiny(result) & (x != 0) & (jnp.abs(divisor) != jnp.inf))
        return flush(result, fmt)

    def fma(self, a: Value, b: Value, c: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.fma`: exact float64 product, sum rounded to odd, then to ``fmt``."""
        fmt = fmt or self.fmt
        x, y, z = self._wide(fmt, a, b, c)
        return self._narrowed(to_odd(*two_sum(x * y, z)), fmt, check)

    def sqrt(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.sqrt`. The result is never subnormal."""
        fmt = fmt or self.fmt
        if _hardware(fmt):
            return self.guards.seal(jnp.sqrt(self.lift(a)))
        (x,) = self._wide(fmt, a)
        return self._narrowed(odd_root(x, self.guards), fmt, check=False)

    def exp(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp`: float64 exp rounded once."""
        fmt = self._nearest(fmt, "exp")
        x = self.lift(a)
        (wide,) = self._wide(fmt, x)
        return self._exponential(elementary.exp(wide), x, elementary.EXP_SUBNORMAL, fmt, check)

    def exp2(self, a: Value, fmt: Format | None = None, *, check: bool = True) -> Array:
        """See `Carrier.exp2`."""
        fmt = self._nearest(fmt, "exp2")
        x = self.lift(a)
        (wide,) = self._wide(fmt, x)
        return self._exponential(elementary.exp2(wide), x, (-150.0, -126.0), fmt, check)

    def log(self, a: Value, fmt: Format | None = None) -> Array:
        """See `Carrier.log`. The result is never subnormal."""
        fmt = self._nearest(fmt, "log")
        (x,) = self._wide(fmt, a)
        return self._narrowed(elementary.log(x), fmt, check=False)

    def _exponential(
        self, wide: Array, a: Array, subnormal: tuple[float, float], fmt: Format, check: bool
    ) -> Array:
        """Round an exponential of ``a``; ``subnormal`` are the arguments between which it is subnormal.

        No f32 argument has an exponential in the zone where .ftz would be in doubt.
        """
        if not _hardware(fmt):
            return self._narrowed(wide, fmt, check)
        result = self.guards.seal(wide.astype(jnp.float32))
        if check and not fmt.ftz:
            low, high = subnormal
            self.note((a > low) & (a < high))
        return flush(result, fmt)
