"""NVIDIA's special-function unit in JAX: arrays of f32 words in, arrays of f32 words out.

The rules are those of `verify.numerics.mufu`, written a second time, in integers; `lg2` interpolates in float64, where
its integers (below 2**45) are exact, whatever the compiler contracts. Subnormal operands count as zeros, as they do
for the instructions.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from verify.engine.guards import float_of
from verify.numerics.mufu_tables import coefficients

_SIGN = np.uint32(0x80000000)
_NAN = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_NORMAL = np.uint32(0x00800000)
_FRACTION = np.uint32(0x007FFFFF)

Function = Callable[[Array], Array]


def _square(r: Array) -> Array:
    """The truncated square of ``r``, int32 of 17 bits: see `verify.numerics.mufu.square`."""
    total = jnp.zeros_like(r)
    for i in range(2, 17):
        total = total + ((r >> (18 - i)) & -((r >> i) & 1))
    return total >> 1


def _rows(name: str, segment: Array, dtype: type[np.generic]) -> list[Array]:
    """The three coefficients of each segment. An unsigned index needs no care for negative ones."""
    columns = np.array(coefficients(name)).astype(dtype).T
    index = segment.astype(jnp.uint32)
    return [jnp.asarray(column).at[index].get(mode="promise_in_bounds") for column in columns]


def _interpolated(
    name: str, segment: Array, r: Array, square: Array, bits: int, offset: int, shift: int
) -> Array:
    """``((c0 << bits) + c1 * r + c2 * square + offset) >> shift`` in int32: a sum of two parts, at 0 and at ``bits``."""
    c0, c1, c2 = _rows(name, segment, np.int32)
    low = c1 * (r & ((1 << bits) - 1)) + c2 * square + offset
    high = c0 + c1 * (r >> bits) + (low >> bits)
    return high >> (shift - bits)


def _parts(words: Array) -> tuple[Array, Array, Array]:
    """Sign bit, magnitude, and the fraction as int32."""
    return words & _SIGN, words & ~_SIGN, (words & _FRACTION).astype(jnp.int32)


def ex2(words: Array) -> Array:
    """2**x: ``MUFU.EX2`` of an array of uint32 words."""
    sign, magnitude, _ = _parts(words)
    size = float_of(jnp.minimum(magnitude, np.uint32(0x43000000)))
    fixed = (size * np.float32(2.0**23)).astype(jnp.int32)
    negative = sign != 0
    fixed = jnp.where(negative, -fixed - jnp.minimum(fixed & 0x7FFFFF, 1), fixed)
    fraction = fixed & 0x7FFFFF
    r = fraction & 0x1FFFF
    part = _interpolated("ex2", fraction >> 17, r, _square(r), 13, 0x77E2, 15)
    result = (((fixed >> 23) + 126) << 23) + part
    result = jnp.where(result < np.int32(_NORMAL), 0, result).astype(jnp.uint32)
    result = jnp.where(
        magnitude >= np.uint32(0x43000000), jnp.where(negative, np.uint32(0), _INFINITY), result
    )
    return jnp.where(magnitude > _INFINITY, _NAN, result)


def rcp(words: Array) -> Array:
    """1 / x: ``MUFU.RCP`` of an array of uint32 words."""
    sign, magnitude, fraction = _parts(words)
    r = fraction & 0xFFFF
    part = _interpolated("rcp", fraction >> 16, r, _square(r << 1), 13, 0x47E7, 15)
    exponent = 252 - (magnitude >> np.uint32(23)).astype(jnp.int32)
    result = (exponent << 23) + part
    result = jnp.where(result < np.int32(_NORMAL), 0, result).astype(jnp.uint32)
    result = jnp.where(magnitude < _NORMAL, _INFINITY, result)
    result = jnp.where(magnitude == _INFINITY, np.uint32(0), result)
    return jnp.where(magnitude > _INFINITY, _NAN, result | sign)


def rsq(words: Array) -> Array:
    """1 / sqrt(x): ``MUFU.RSQ`` of an array of uint32 words; what -0 and negative numbers give has no meaning."""
    _, magnitude, fraction = _parts(words)
    exponent = (magnitude >> np.uint32(23)).astype(jnp.int32) - 127
    half, odd = exponent >> 1, exponent & 1
    r = fraction & 0x1FFFF
    part = _interpolated("rsq", 64 * odd + (fraction >> 17), r, _square(r) << 2, 14, 0x7FFF, 16)
    part = jnp.where((fraction | odd) == 0, 1 << 24, part)
    result = (((125 - half) << 23) + part).astype(jnp.uint32)
    result = jnp.where(magnitude < _NORMAL, _INFINITY, result)
    result = jnp.where(magnitude == _INFINITY, np.uint32(0), result)
    return jnp.where(magnitude > _INFINITY, _NAN, result)


def lg2(words: Array) -> Array:
    """The binary logarithm: ``MUFU.LG2`` of an array of uint32 words; see `rsq` on negative numbers."""
    _, magnitude, fraction = _parts(words)
    r = fraction & 0x1FFFF
    c0, c1, c2 = _rows("lg2", fraction >> 17, np.float64)
    square = _square(r).astype(jnp.float64)
    part = jnp.floor((c0 * 2.0**12 + c1 * r.astype(jnp.float64) + c2 * square * 2.0 + float(0x3345)) * 0.25)
    exponent = (magnitude >> np.uint32(23)).astype(jnp.int32) - 127
    total = part + exponent.astype(jnp.float64) * 2.0**36
    negative = total < 0
    size = jnp.where(negative, -total - 1.0, total)
    # Truncated to 24 bits; the rest of the conversion is exact.
    kept = lax.bitcast_convert_type(size, jnp.uint64) & ~np.uint64((1 << 29) - 1)
    value = (lax.bitcast_convert_type(kept, jnp.float64) * 2.0**-36).astype(jnp.float32)
    result = lax.bitcast_convert_type(value, jnp.uint32) | jnp.where(negative, _SIGN, np.uint32(0))
    result = jnp.where(magnitude == np.uint32(127 << 23), np.uint32(0), result)
    result = jnp.where(magnitude < _NORMAL, _SIGN | _INFINITY, result)
    result = jnp.where(magnitude == _INFINITY, _INFINITY, result)
    return jnp.where(magnitude > _INFINITY, _NAN, result)
