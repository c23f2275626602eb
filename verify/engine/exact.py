"""Error-free transformations and rounding to odd, on float64 arrays.

A result *rounded to odd* (inexact results get an odd last bit) can be rounded once more to any format with at
least two bits less, in any rounding mode, as if the exact result had been rounded (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008). Contraction of an *exact*
product changes nothing, so only inexact products are sealed.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from verify.engine.guards import Guards, bits_of, float_of

Pair = tuple[Array, Array]

_SPLITTER = 2.0**27 + 1.0


def two_sum(a: Array, b: Array) -> Pair:
    """``a + b`` rounded, and its exact error (NaN where the sum overflows). Knuth's six operations."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _split(a: Array, guards: Guards) -> Pair:
    scaled = guards.seal(a * _SPLITTER)
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Array, b: Array, guards: Guards) -> Pair:
    """``a * b`` rounded, and its exact error. Dekker; needs ``|a|, |b| < 2**995`` and ``|a b| > 2**-968``."""
    product = guards.seal(a * b)
    ah, al = _split(a, guards)
    bh, bl = _split(b, guards)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def to_odd(value: Array, error: Array) -> Array:
    """``value + error`` rounded to odd, where ``value`` is that sum rounded to nearest.

    Only the sign of ``error`` matters; NaN counts as zero. A value of zero stays zero (it underflowed).
    """
    bits = bits_of(value)
    away = (error > 0) == (value > 0)
    moved = jnp.where(away, bits + np.uint64(1), bits - np.uint64(1))
    inexact = ((error > 0) | (error < 0)) & ((bits & np.uint64(1)) == 0) & (value != 0)
    return float_of(jnp.where(inexact, moved, bits))


def odd_sum(a: Array, b: Array) -> Array:
    """``a + b`` rounded to odd."""
    return to_odd(*two_sum(a, b))


def odd_quotient(a: Array, b: Array, guards: Guards) -> Array:
    """``a / b`` rounded to odd."""
    quotient = guards.seal(a / guards.divisor(a, b))
    high, low = two_product(quotient, b, guards)
    rest = (a - high) - low
    return to_odd(quotient, jnp.where(b < 0, -rest, rest))


def odd_root(a: Array, guards: Guards) -> Array:
    """The square root of ``a`` rounded to odd."""
    root = guards.seal(jnp.sqrt(a))
    high, low = two_product(root, root, guards)
    return to_odd(root, (a - high) - low)


def odd_product(a: Array, b: Array, guards: Guards) -> Array:
    """``a * b`` rounded to odd."""
    return to_odd(*two_product(a, b, guards))


def fma_parts(a: Array, b: Array, c: Array, guards: Guards) -> Pair:
    """A pair whose exact sum rounds, in any mode, as ``a * b + c`` does (Boldo and Melquiond)."""
    high, low = two_product(a, b, guards)
    t, t_error = two_sum(c, low)
    v, v_error = two_sum(high, t)
    return v, odd_sum(t_error, v_error)
