"""Elementary functions of f32 values: float64, patched where one more rounding could fail.

A float64 result within a few of its own units in the last place rounds to the correctly rounded f32 result
unless it lies next to a midpoint of two f32 numbers. `verify.numerics.hard_cases` knows those inputs from
256-bit evaluations; the ones that are too close are in `PATCHES`. All 2**32 inputs were tried
(`tests/verify/engine/test_primitives_exhaustive.py`). XLA's own float64 ``exp2`` is up to 12 units off.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

EXP_SUBNORMAL = (-103.973, -87.3365)
"""Arguments of f32 exp at and below the first give zero (log(2**-150) is -103.97208), at and above the second
normal numbers (log(2**-126) is -87.33654)."""

PATCHES: dict[str, tuple[tuple[int, str], ...]] = {
    "exp": ((0xC16912CD, "0x1.fa66350000004p-22"),),
    "exp2": (
        (0x3A07857C, "0x1.00177cffffffcp+0"),
        (0x3B429D37, "0x1.0087090000004p+0"),
        (0xB52D1F9A, "0x1.fffff0ffffffcp-1"),
        (0xB8D3D026, "0x1.fff6d2ffffffcp-1"),
        (0xBAEC2B40, "0x1.ff5c670000004p-1"),
        (0xBCF3A937, "0x1.f58d610000004p-1"),
    ),
    "log": (
        (0x0DC8BBA4, "-0x1.1375870000004p+6"),
        (0x111C87F8, "-0x1.010bbd0000004p+6"),
        (0x1A8446CB, "-0x1.9a14890000004p+5"),
        (0x1F116AB8, "-0x1.676a7b0000004p+5"),
        (0x2C4C24B7, "-0x1.a90e1f0000004p+4"),
        (0x38DCBE38, "-0x1.2517470000004p+3"),
        (0x3BF86EF0, "-0x1.38733b0000004p+2"),
        (0x3C413D3A, "-0x1.1c2b1effffffcp+2"),
        (0x41178FEB, "0x1.1fcbceffffffcp+1"),
        (0x464D5B2B, "0x1.2f79e2ffffffcp+3"),
        (0x4665A9A6, "0x1.330e4affffffcp+3"),
        (0x4C5D65A5, "0x1.1e06950000004p+4"),
        (0x4D604EBE, "0x1.346a570000004p+4"),
        (0x5EE8984E, "0x1.5c9442ffffffcp+5"),
        (0x65D890D3, "0x1.a9a3f10000004p+5"),
        (0x66A8C860, "0x1.b2bc8b0000004p+5"),
        (0x6F31A8EC, "0x1.08b5110000004p+6"),
        (0x79E7EC37, "0x1.43ff6effffffcp+6"),
    ),
}
"""Function to (bits of the f32 input, a float64 that rounds right) for every input whose result lies within two
float64 units of a midpoint of f32: no evaluation that is good to 1.5 units gets another one wrong, whatever the
compiler contracts."""


def _patched(name: str, x: Array, y: Array) -> Array:
    for word, value in PATCHES[name]:
        y = jnp.where(x == float(np.uint32(word).view(np.float32)), float.fromhex(value), y)
    return y


_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45")
"""log(2) in two parts; the first has 42 bits, so that its product with a small integer is exact."""

_DEGREE = 13
"""The Taylor polynomial of exp on [-log(2)/2, log(2)/2] errs by less than 2**-57 from this degree on."""


def _series(rest: Array) -> Array:
    """Exp of ``rest`` in [-log(2)/2, log(2)/2], to 1.5 float64 units, contracted or not."""
    total = jnp.full_like(rest, 1.0 / math.factorial(_DEGREE))
    for i in range(_DEGREE - 1, -1, -1):
        total = total * rest + 1.0 / math.factorial(i)
    return total


def _power_of_two(whole: Array) -> Array:
    return lax.bitcast_convert_type((whole.astype(jnp.int64) + 1023) * (1 << 52), jnp.float64)


def exp(x: Array) -> Array:
    """Exp of f32 values held in float64; the float64 result rounds correctly to f32 and narrower formats.

    XLA's own float64 exp is as good and up to eight times slower. Arguments past the ends of f32 give results
    as far out as rounding needs.
    """
    near = jnp.clip(x, -110.0, 95.0)
    whole = jnp.round(near * (1.0 / math.log(2.0)))
    rest = (near - whole * _LN2_HIGH) - whole * _LN2_LOW
    return _patched("exp", x, _series(rest) * _power_of_two(whole))


def exp2(x: Array) -> Array:
    """2**x of f32 values held in float64; the float64 result rounds correctly to f32 and narrower formats."""
    near = jnp.clip(x, -160.0, 135.0)
    whole = jnp.round(near)
    return _patched("exp2", x, _series((near - whole) * math.log(2.0)) * _power_of_two(whole))


def log(x: Array) -> Array:
    """Natural log of f32 values held in float64; the float64 result rounds correctly to f32 and narrower."""
    return _patched("log", x, jnp.log(x))
