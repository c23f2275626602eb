"""Elementary functions of f32 values: float64 by XLA, patched where one more rounding would fail.

A float64 result within a few of its own units in the last place rounds to the correctly rounded f32 result
unless it lies next to a midpoint of two f32 numbers. All 2**32 inputs were tried (`tests/verify/engine/
test_primitives_exhaustive.py`); the few that fail are in `PATCHES` with a float64 on the right side of the
midpoint, which `verify.numerics.hard_cases` knows from 256-bit evaluations. XLA's own float64 ``exp2`` is up
to 12 units off and is not used.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from verify.engine.guards import Guards

EXP_SUBNORMAL = (-103.973, -87.3365)
"""Arguments of f32 exp at and below the first give zero (log(2**-150) is -103.97208), at and above the second
normal numbers (log(2**-126) is -87.33654)."""

PATCHES: dict[str, tuple[tuple[int, str], ...]] = {
    "exp": (),
    "exp2": ((0xBCF3A937, "0x1.f58d610000001p-1"), (0x3B429D37, "0x1.0087090000001p+0")),
    "log": (
        (0x3C413D3A, "-0x1.1c2b1efffffffp+2"),
        (0x41178FEB, "0x1.1fcbcefffffffp+1"),
        (0x4C5D65A5, "0x1.1e06950000001p+4"),
        (0x65D890D3, "0x1.a9a3f10000001p+5"),
        (0x6F31A8EC, "0x1.08b5110000001p+6"),
    ),
}
"""Function to (bits of the f32 input, corrected float64 result), where XLA gives a midpoint exactly."""


def _patched(name: str, x: Array, y: Array) -> Array:
    for word, value in PATCHES[name]:
        y = jnp.where(x == float(np.uint32(word).view(np.float32)), float.fromhex(value), y)
    return y


_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45")
"""log(2) in two parts; the first has 42 bits, so that its product with a small integer is exact."""

_DEGREE = 13
"""The Taylor polynomial of exp on [-log(2)/2, log(2)/2] errs by less than 2**-57 from this degree on."""


def exp(x: Array) -> Array:
    """Exp of f32 values held in float64; the float64 result rounds correctly to f32 and narrower formats.

    XLA's own float64 exp is as good and eight times slower. Results past the ends of f32 are as far out as
    rounding needs; contraction moves the last bit of the float64 result, which does not matter.
    """
    near = jnp.clip(x, -110.0, 95.0)
    whole = jnp.round(near * (1.0 / math.log(2.0)))
    rest = (near - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = jnp.full_like(rest, 1.0 / math.factorial(_DEGREE))
    for i in range(_DEGREE - 1, -1, -1):
        series = series * rest + 1.0 / math.factorial(i)
    power = lax.bitcast_convert_type((whole.astype(jnp.int64) + 1023) * (1 << 52), jnp.float64)
    return _patched("exp", x, series * power)


def exp2(x: Array, guards: Guards) -> Array:
    """2**x of f32 values held in float64; the float64 result rounds correctly to f32 and narrower formats."""
    near = jnp.clip(x, -1000.0, 1000.0)
    whole = jnp.round(near)
    power = lax.bitcast_convert_type((whole.astype(jnp.int64) + 1023) * (1 << 52), jnp.float64)
    return _patched("exp2", x, guards.seal(jnp.exp((near - whole) * math.log(2.0))) * power)


def log(x: Array) -> Array:
    """Natural log of f32 values held in float64; the float64 result rounds correctly to f32 and narrower."""
    return _patched("log", x, jnp.log(x))
