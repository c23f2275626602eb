"""Correctly rounded exp, exp2 and log of float64 arrays, in 192-bit fixed point on integers.

No floating-point arithmetic decides a bit, so nothing here depends on what XLA does to it. The evaluation is
good to about 2**-184 in absolute terms, and no double has an exponential or logarithm that lies nearer than
about 2**-118 (relative; 2**-158 absolute next to 1) to a midpoint of two doubles without being one
(Lefevre and Muller, "Worst cases for correct rounding of the elementary functions in double precision",
2001), so the result is the correctly rounded one.

A number is a list of 32-bit limbs in uint64 arrays, least significant first: six limbs after the point and,
in sums, one before it (two's complement).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from verify.engine import constants
from verify.engine.guards import bits_of, float_of

Limbs = list[Array]
Words = NDArray[np.uint64]
Function = Callable[..., tuple[Array, Array | None]]

FRACTION = 6
SCALE = 32 * FRACTION
_MASK = np.uint64(0xFFFFFFFF)
_THIRTY_TWO = np.uint64(32)
_HIDDEN = np.uint64(1 << 52)
_STEPS = 64
"""The exponentials split 2**x at multiples of 1/64."""
_CELLS = 128
_CELL_SCALE = 15
"""The logarithm splits [1, 2) into 128 cells, each with a reciprocal of 15 bits."""

_OVERFLOW, _UNDERFLOW = 1100.0, -1100.0
_EXP_ZERO = -745.1332191019412
"""The smallest double whose exponential does not round to zero."""


# -- multi-limb arithmetic --------------------------------------------------------------------------------


def _carried(columns: Sequence[Array], count: int) -> Limbs:
    """The ``count`` low limbs of a number given by column sums below 2**63."""
    result: Limbs = []
    carry = np.uint64(0)
    for column in columns[:count]:
        total = column + carry
        result.append(total & _MASK)
        carry = total >> _THIRTY_TWO
    return result


def _negated(x: Limbs) -> Limbs:
    columns = [limb ^ _MASK for limb in x]
    columns[0] = columns[0] + np.uint64(1)
    return _carried(columns, len(x))


def _where(condition: Array, a: Limbs, b: Limbs) -> Limbs:
    return [jnp.where(condition, u, v) for u, v in zip(a, b, strict=True)]


def _times(a: Limbs, b: Limbs) -> Limbs:
    """The product of two fractions, truncated; what is left out weighs less than 2**-28 of the last place."""
    low = FRACTION - 2
    columns: list[Array] = [jnp.zeros((), jnp.uint64)] * (2 * FRACTION)
    for i in range(FRACTION):
        for j in range(FRACTION):
            if i + j >= low:
                product = a[i] * b[j]
                columns[i + j] = columns[i + j] + (product & _MASK)
                columns[i + j + 1] = columns[i + j + 1] + (product >> _THIRTY_TWO)
    return _carried(columns[low:], 2 * FRACTION - low)[FRACTION - low :]


def _integer_times(n: Array, constant: int) -> Limbs:
    """``n * constant / 2**(SCALE + 32)`` in seven limbs, two's complement.

    Args:
        n: int64, at most 2**31 in size.
        constant: a positive constant below 1, times 2**(SCALE + 32).
    """
    size = jnp.abs(n).astype(jnp.uint64)
    words = constants.limbs(constant, FRACTION + 2)
    columns = [size * np.uint64(word) for word in words]
    product = _carried(columns, FRACTION + 2)[1:]
    return _where(n < 0, _negated(product), product)


def _polynomial(x: Limbs, coefficients: Words, subtract: bool) -> Limbs:
    """Horner's rule ``c[0] +- x * (c[1] +- x * ...)`` in a loop, which keeps the compiled program small."""
    table = jnp.asarray(coefficients)
    count = len(coefficients)

    def step(i: Array, p: tuple[Array, ...]) -> tuple[Array, ...]:
        product = _times(x, list(p))
        if subtract:
            product = _negated(product)
        row = lax.dynamic_index_in_dim(table, count - 2 - i, keepdims=False)
        return tuple(_carried([product[k] + row[k] for k in range(FRACTION)], FRACTION))

    shape = x[0].shape
    last = tuple(jnp.full(shape, word, jnp.uint64) for word in coefficients[-1])
    return list(lax.fori_loop(0, count - 1, step, last))


def _rows(values: Sequence[int]) -> Words:
    return np.array([constants.limbs(v, FRACTION) for v in values], np.uint64)


def _entry(table: Words, index: Array) -> Limbs:
    rows = jnp.asarray(table)[index]
    return [rows[..., k] for k in range(FRACTION)]


# -- exponentials -----------------------------------------------------------------------------------------


@functools.cache
def _exp_tables() -> tuple[Words, Words, int]:
    """Halves of 2**(j/64), halves of 1/k!, and log(2) times 2**(SCALE + 32)."""
    powers = _rows([p >> 1 for p in constants.root_powers(_STEPS, SCALE)])
    coefficients, factorial = [], 1
    for k in range(21):
        factorial *= max(k, 1)
        coefficients.append((1 << (SCALE - 1)) // factorial)
    return powers, _rows(coefficients), constants.log_fixed(2, 1, SCALE + 32)


def _fixed(x: Array) -> Limbs:
    """A double of size 2**-54 to 2**11 in seven limbs, exactly, two's complement."""
    words = bits_of(x)
    field = ((words >> np.uint64(52)) & np.uint64(0x7FF)).astype(jnp.int64)
    significand = (words & (_HIDDEN - np.uint64(1))) | _HIDDEN
    place = SCALE + field - 1075
    result: Limbs = []
    for i in range(FRACTION + 1):
        shift = place - 32 * i
        left = significand << jnp.clip(shift, 0, 31).astype(jnp.uint64)
        right = significand >> jnp.clip(-shift, 0, 63).astype(jnp.uint64)
        result.append(jnp.where(shift >= 32, np.uint64(0), jnp.where(shift >= 0, left, right) & _MASK))
    return _where(x < 0, _negated(result), result)


def _power(n: Array, rest: Limbs, exact: Array, odd: bool) -> tuple[Array, Array]:
    """2**(n / 64) * e**rest as a double, and its binary exponent; ``exact``: no bits follow (rest is 0)."""
    powers, coefficients, _ = _exp_tables()
    index = (n & (_STEPS - 1)).astype(jnp.int32)
    quarter = _times(_polynomial(rest, coefficients, subtract=False), _entry(powers, index))
    top = (quarter[5] << _THIRTY_TWO) | quarter[4]
    high = (top >> np.uint64(63)) != 0
    top = jnp.where(high, top, top << np.uint64(1))
    exponent = (n >> 6) + high.astype(jnp.int64)
    return _assembled(top, exponent, exact, odd), exponent


def _assembled(top: Array, exponent: Array, exact: Array, odd: bool) -> Array:
    """A positive double from 64 leading bits (the first is set), rounded to nearest or to odd.

    Beyond the leading bits there always is something, unless ``exact``, so there are no ties.
    """
    words = (top >> np.uint64(11)) - _HIDDEN
    # Truncation lets an exact power of two appear as the number just below it.
    up = (top >> np.uint64(10)) & np.uint64(1)
    words = jnp.where(exact, words + up, words | np.uint64(1)) if odd else words + up
    field = jnp.clip(exponent + 1023, 1, 2046).astype(jnp.uint64)
    return float_of(words + (field << np.uint64(52)))


def _exponential(
    x: Array, n: Array, rest: Limbs, exact: Array, odd: bool, zero: float
) -> tuple[Array, Array]:
    value, exponent = _power(n, rest, exact, odd)
    near_one = jnp.where(x > 0, 1 + 2.0**-52, 1 - 2.0**-53) if odd else jnp.ones_like(x)
    value = jnp.where(jnp.abs(x) <= 2.0**-54, jnp.where(x == 0, 1.0, near_one), value)
    overflow = exponent > 1023
    subnormal = exponent < -1022
    value = jnp.where(overflow, np.float64(np.finfo(np.float64).max if odd else np.inf), value)
    value = jnp.where(x == jnp.inf, jnp.inf, jnp.where(subnormal, 0.0, value))
    return jnp.where(x != x, x, value), subnormal & (x >= zero) & (x == x)


def exp(x: Array, odd: bool = False) -> tuple[Array, Array]:
    """e**x rounded to nearest (or to odd), and where the result is subnormal (and given as 0).

    Args:
        x: float64 array.
        odd: round to odd, for a second rounding to a narrower format.
    """
    near = jnp.clip(x, _UNDERFLOW, _OVERFLOW)
    _, _, log2 = _exp_tables()
    # A little below the quotient, so that the rest is never negative.
    n = jnp.floor(near * (_STEPS / np.log(2.0)) - 2.0**-20).astype(jnp.int64)
    multiple = _integer_times(n, log2 // _STEPS)
    rest = _carried([a + b for a, b in zip(_fixed(near), _negated(multiple), strict=True)], FRACTION)
    return _exponential(x, n, rest, x == 0, odd, _EXP_ZERO)


def exp2(x: Array, odd: bool = False) -> tuple[Array, Array]:
    """2**x rounded to nearest (or to odd), and where the result is subnormal (and given as 0)."""
    near = jnp.clip(x, _UNDERFLOW, _OVERFLOW)
    _, _, log2 = _exp_tables()
    n = jnp.floor(near * _STEPS).astype(jnp.int64)
    multiple = _integer_times(n, (1 << (SCALE + 32)) // _STEPS)
    rest = _carried([a + b for a, b in zip(_fixed(near), _negated(multiple), strict=True)], FRACTION)
    factor = [jnp.full((), word, jnp.uint64) for word in constants.limbs(log2 >> 32, FRACTION)]
    return _exponential(x, n, _times(rest, factor), x == jnp.floor(x), odd, -1074.0)


# -- logarithm --------------------------------------------------------------------------------------------


@functools.cache
def _log_tables() -> tuple[Words, Words, Words, int]:
    """Reciprocals of the cells, minus their logarithms, halves of 1/k, and log(2) times 2**(SCALE + 32)."""
    unit = 1 << _CELL_SCALE
    reciprocals = [-(-unit * _CELLS // (_CELLS + j)) for j in range(_CELLS)]
    logs = _rows([constants.log_fixed(unit, r, SCALE) for r in reciprocals])
    coefficients = _rows([(1 << (SCALE - 1)) // k for k in range(1, 29)])
    return np.array(reciprocals, np.uint64), logs, coefficients, constants.log_fixed(2, 1, SCALE + 32)


def log(x: Array, odd: bool = False) -> tuple[Array, None]:
    """The natural logarithm rounded to nearest (or to odd). A subnormal argument counts as zero.

    Args:
        x: float64 array.
        odd: round to odd, for a second rounding to a narrower format.
    """
    reciprocals, logs, coefficients, log2 = _log_tables()
    words = bits_of(x)
    exponent = ((words >> np.uint64(52)) & np.uint64(0x7FF)).astype(jnp.int64) - 1023
    fraction = words & (_HIDDEN - np.uint64(1))
    cell = (fraction >> np.uint64(52 - 7)).astype(jnp.int32)
    # significand * reciprocal - 1, times 2**67: below 2**61, so arithmetic modulo 2**64 is exact.
    rest = (fraction | _HIDDEN) * jnp.asarray(reciprocals)[cell]
    none = jnp.zeros_like(rest)
    low, middle = (rest << np.uint64(29)) & _MASK, (rest >> np.uint64(3)) & _MASK
    z = [none, none, none, low, middle, rest >> np.uint64(35)]
    half = _times(z, _polynomial(z, coefficients, subtract=True))
    parts = [*zip(half, half, _entry(logs, cell), strict=True)]
    columns = [sum(part[1:], part[0]) for part in parts] + [none]
    multiple = _integer_times(exponent, log2)
    total = _carried([a + b for a, b in zip(columns, multiple, strict=True)], FRACTION + 1)
    negative = total[FRACTION] >= np.uint64(1 << 31)
    value = _normalised(_where(negative, _negated(total), total), odd)
    value = jnp.where(negative, -value, value)
    value = jnp.where(x == 1.0, 0.0, value)
    value = jnp.where(x == jnp.inf, jnp.inf, value)
    value = jnp.where(x < 2.0**-1022, jnp.where(x < 0, jnp.nan, -jnp.inf), value)
    return jnp.where(x != x, x, value), None


def _normalised(x: Limbs, odd: bool) -> Array:
    """A positive number of at least 2**-64 in seven limbs as a double."""
    first, second, third = x[4], x[3], x[2]
    base = jnp.full(first.shape, 4 * 32 + 31 - SCALE, jnp.int64)
    for k in (5, 6):
        present = x[k] != 0
        first = jnp.where(present, x[k], first)
        second = jnp.where(present, x[k - 1], second)
        third = jnp.where(present, x[k - 2], third)
        base = jnp.where(present, k * 32 + 31 - SCALE, base)
    word = (first << _THIRTY_TWO) | second
    zeros = jnp.minimum(lax.clz(word), np.uint64(31))
    top = (word << zeros) | (third >> (_THIRTY_TWO - zeros))
    return _assembled(top, base - zeros.astype(jnp.int64), jnp.zeros_like(base, bool), odd)
