"""Exponent ranges of arrays: the cheap proof that no sum of products can meet a subnormal or overflow early.

Every value of a format with precision ``p`` and exponent ``e`` is a multiple of ``2**(e - p + 1)``. If all
products of two arrays are multiples of at least ``2**-126``, so are all their sums, and none is subnormal; if no
product reaches ``2**128``, a fused and an unfused multiply-add of exact products are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from specs.formats import Format

Array = jax.Array
_EMPTY_LOW, _EMPTY_HIGH = 1 << 20, -(1 << 20)


@dataclass(frozen=True)
class Range:
    """The smallest and largest exponent of the nonzero finite values of an array: traced or plain int32 scalars."""

    low: Array
    high: Array


def exponent_range(x: Array) -> Range:
    """The exponents of a float32 array without subnormals (NaN and infinities count as exponent 128)."""
    field = ((jax.lax.bitcast_convert_type(x, jnp.uint32) >> 23) & 0xFF).astype(jnp.int32)
    nonzero = field != 0
    low = jnp.min(jnp.where(nonzero, field - 127, _EMPTY_LOW), initial=_EMPTY_LOW)
    high = jnp.max(jnp.where(nonzero, field - 127, _EMPTY_HIGH), initial=_EMPTY_HIGH)
    return Range(low, high)


def sum_at_risk(x: Range, fmt: Format) -> Array:
    """Whether a sum of values of ``fmt`` in this range may pass through a subnormal f32."""
    return x.low - (fmt.p - 1) < -126


def products_at_risk(a: Range, fmt_a: Format, b: Range, fmt_b: Format) -> Array:
    """Whether sums of products may meet a subnormal f32, as a factor, product or sum, or a product that overflows."""
    small = a.low + b.low - (fmt_a.p - 1) - (fmt_b.p - 1) < -126
    # A subnormal factor counts as zero, however large the other one is.
    small |= jnp.minimum(a.low, b.low) < -126
    large = a.high + b.high + 2 > 127
    return small | (large & (a.high > _EMPTY_HIGH) & (b.high > _EMPTY_HIGH))
