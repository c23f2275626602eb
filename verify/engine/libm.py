"""Functions of CPU libraries in the array engine: glibc's expf and logf, and PyTorch's fexp_u20.

The steps are those of `verify.numerics.libm`, written a second time. The fused operations of glibc are exact
products and sums in doubles (`verify.engine.exact`), rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specs.formats import BASES, Format
from verify.engine import bits
from verify.engine.exact import fma_parts
from verify.engine.guards import float_of
from verify.numerics import libm_tables as tables

if TYPE_CHECKING:
    from verify.engine.carriers import Carrier

_F32 = BASES["f32"]
_FRACTION = np.uint32(0x007FFFFF)


def _fma(ops: Carrier, a: Array, b: Array | float, c: Array | float) -> Array:
    """``a * b + c`` of float64 arrays, rounded once; neither overflows nor underflows."""
    high, low = fma_parts(a, _wide(ops, b), _wide(ops, c), ops.guards)
    return ops.guards.seal(high + low)


def _wide(ops: Carrier, x: Array | float) -> Array:
    return ops.guards.constant(x, np.float64) if isinstance(x, float | int) else x


def _row(table: tuple[float, ...] | tuple[int, ...], index: Array, dtype: type[np.generic]) -> Array:
    return jnp.asarray(np.array(table, dtype)).at[index].get(mode="promise_in_bounds")


def expf(ops: Carrier, x: Array, fmt: Format) -> Array:
    """The ``expf`` of glibc, with contraction."""
    near = jnp.clip(x.astype(jnp.float64), -110.0, 95.0)
    shifted = _fma(ops, near, tables.EXP_STEPS, tables.EXP_SHIFT)
    words = lax.bitcast_convert_type(shifted, jnp.uint64)
    multiple = ops.guards.seal(shifted - _wide(ops, tables.EXP_SHIFT))
    r = _fma(ops, near, tables.EXP_STEPS, -multiple)
    row = _row(tables.EXP_TABLE, (words & np.uint64(31)).astype(jnp.int32), np.uint64)
    scale = float_of(row + (words << np.uint64(47)))
    c0, c1, c2 = tables.EXP_POLYNOMIAL
    square = ops.guards.seal(r * r)
    total = _fma(ops, _fma(ops, r, c0, c1), square, _fma(ops, r, c2, 1.0))
    value = ops.guards.seal(total * scale)
    value = jnp.where(x > tables.EXP_OVERFLOW, jnp.inf, value)
    value = jnp.where(x < tables.EXP_SMALLEST, 2.0**-149, value)
    value = jnp.where(x < tables.EXP_UNDERFLOW, 0.0, value)
    if ops.width is bits.WIDTH32:  # as in verify.engine.special: flagged by the operand
        ops.note((x < -87.3) & (x >= tables.EXP_UNDERFLOW))
    return ops.narrowed(jnp.where(x == x, value, jnp.nan), _F32)


def logf(ops: Carrier, x: Array, fmt: Format) -> Array:
    """The ``logf`` of glibc, with contraction."""
    small = jnp.abs(x) < 2.0**-126
    words = ops.words(jnp.where(small, x * x.dtype.type(2.0**23), x))
    words = words - jnp.where(small, np.uint32(23 << 23), np.uint32(0))
    offset = words - np.uint32(tables.LOG_OFFSET)
    row = ((offset >> np.uint32(19)) & np.uint32(15)).astype(jnp.int32)
    exponent = lax.bitcast_convert_type(offset, jnp.int32) >> 23
    significand = float_of(words - (offset & ~_FRACTION)).astype(jnp.float64)
    r = _fma(ops, significand, _row(tables.LOG_INVERSES, row, np.float64), -1.0)
    base = _fma(ops, exponent.astype(jnp.float64), tables.LOG_LN2, _row(tables.LOG_VALUES, row, np.float64))
    a0, a1, a2 = tables.LOG_POLYNOMIAL
    square = ops.guards.seal(r * r)
    inner = _fma(ops, square, a0, _fma(ops, r, a1, a2))
    value = _fma(ops, square, inner, ops.guards.seal(r + base))
    value = jnp.where(x == 1.0, 0.0, value)
    value = jnp.where(x == jnp.inf, jnp.inf, jnp.where(x == 0.0, -jnp.inf, value))
    return ops.narrowed(jnp.where(x >= 0.0, value, jnp.nan), _F32)


def fexp_u20(ops: Carrier, x: Array, fmt: Format) -> Array:
    """PyTorch's ``fexp_u20``."""
    lowest, highest = (_float(w) for w in (tables.U20_LOWEST, tables.U20_HIGHEST))
    inside = ops.compare(">=", x, lowest) & ops.compare("<=", x, highest)
    near = jnp.where(inside, x, jnp.zeros_like(x))
    scaled = ops.mul(near, _float(0x3FB8AA3B), _F32, check=False)
    fraction = ops.sub(scaled, jnp.floor(scaled), _F32, check=False)
    poly = ops.constant(_float(tables.U20_POLYNOMIAL[0]))
    for coefficient in tables.U20_POLYNOMIAL[1:]:
        poly = ops.fma(fraction, poly, _float(coefficient), _F32, check=False)
    less = ops.sub(scaled, poly, _F32, check=False)
    place = ops.fma(2.0**23, less, 127.0 * 2.0**23, _F32, check=False)
    words = jnp.where(inside, place, jnp.zeros_like(place)).astype(jnp.int32).astype(jnp.uint32)
    words = jnp.where(x > highest, np.uint32(0x7F800000), words)
    if ops.width is bits.WIDTH32:  # as in verify.engine.special: flagged by the operand
        ops.note(inside & (x < -87.3))
    return ops.values(jnp.where(x == x, words, np.uint32(0x80000000)))


def _float(word: int) -> float:
    return float(np.uint32(word).view(np.float32))
