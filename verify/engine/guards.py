"""Guards: what keeps XLA from rewriting floating-point arithmetic.

XLA on CPU contracts ``a*b + c`` to a fused multiply-add, folds ``(a + c1) + c2`` and ``(a * c1) * c2``, turns
a division by a broadcast value into a multiplication by its reciprocal and drops ``x + 0.0``. None of that is
visible in the program, and no option turns all of it off. A value whose bits have been XOR-ed with a zero
that only the *caller* knows (an argument of the compiled function) is opaque to all these rewrites but one:
the division needs a divisor that depends on the dividend.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer


def bits_of(x: Array) -> Array:
    """The bits of a float32 or float64 array as uint32 or uint64."""
    return lax.bitcast_convert_type(x, jnp.uint32 if x.dtype == jnp.float32 else jnp.uint64)


def float_of(bits: Array) -> Array:
    """The float32 or float64 array with the given uint32 or uint64 bits."""
    return lax.bitcast_convert_type(bits, jnp.float32 if bits.dtype == jnp.uint32 else jnp.float64)


class Guards:
    """Opaque identities built on a zero that the compiler does not know.

    Args:
        zero: a traced unsigned scalar that is 0 at run time: an argument of the jitted function.

    Raises:
        TypeError: ``zero`` is a concrete value, which the compiler would fold away, guard and all.
    """

    def __init__(self, zero: Array) -> None:
        if not isinstance(zero, Tracer):
            raise TypeError("zero must be traced: pass it as an argument of the jitted function")
        self._zeros = {jnp.dtype(t): zero.astype(t) for t in (jnp.uint32, jnp.uint64)}

    def seal(self, x: Array) -> Array:
        """``x``, behind a barrier that no arithmetic rewrite sees through."""
        bits = bits_of(x)
        return float_of(bits ^ self._zeros[bits.dtype])

    def divisor(self, a: Array, b: Array) -> Array:
        """``b`` in a form that makes ``a / b`` a true division; where ``a`` is NaN, that NaN."""
        return jnp.where(a == a, b, a)

    def constant(self, value: float | np.ndarray, dtype: type[np.floating]) -> Array:
        """``value`` rounded to nearest even in ``dtype``, unknown to the constant folder."""
        return self.seal(jnp.asarray(np.asarray(value).astype(dtype)))
