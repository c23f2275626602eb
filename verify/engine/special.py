"""The special functions of kernels in the array engine, built on the operations of a carrier.

The sequences are those of `verify.numerics.special`, written a second time. A function raises the flag of its
carrier where an operand or result is subnormal in the fast carrier (the program runs again in the exact one), and
in any carrier where what the hardware does is not known (the exact run is then refused).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from specs.errors import UnsupportedError
from specs.formats import Format
from verify.engine import mufu

_SIGN = np.uint32(0x80000000)
_NORMAL = np.uint32(0x00800000)
_INFINITY = np.uint32(0x7F800000)
LOG2_E = float(np.uint32(0x3FB8AA3B).view(np.float32))


class Ops(Protocol):
    """What the functions ask of a carrier of f32 values."""

    def words(self, x: Array) -> Array:
        """The uint32 words of f32 values, subnormals kept."""
        ...

    def values(self, words: Array, *, check: bool = False) -> Array:
        """The values of uint32 words; with ``check``, a subnormal that the carrier cannot hold raises its flag."""
        ...

    def note(self, flag: Array) -> None:
        """Raise the flag where ``flag`` is true."""
        ...

    def constant(self, value: float) -> Array:
        """A number that the compiler does not see."""
        ...

    def mul(
        self, a: Array | float, b: Array | float, fmt: Format | None = None, *, check: bool = True
    ) -> Array:
        """``a * b`` rounded once."""
        ...


def _subnormal(words: Array) -> Array:
    """Where words are subnormal numbers: not zero, below 2**-126."""
    return ((words & ~_SIGN) - np.uint32(1)) < _NORMAL - np.uint32(1)


def _negative(words: Array) -> Array:
    """Where words are -0 or negative numbers."""
    return ((words & _SIGN) != 0) & ((words & ~_SIGN) <= _INFINITY)


def mufu_ex2(ops: Ops, x: Array, fmt: Format) -> Array:
    """``ex2.approx``; without .ftz the argument below -126 is halved and the result squared."""
    words = ops.words(x)
    if fmt.ftz:
        return ops.values(mufu.ex2(words))
    low = (words > np.uint32(0xC2FC0000)) & (words <= np.uint32(0xFF800000))
    # Half of a number of this size is one less in the exponent; infinity stays what it is.
    halved = jnp.where(low & (words < np.uint32(0xFF800000)), words - _NORMAL, words)
    root = ops.values(mufu.ex2(halved))
    # From -151 down the square is zero for certain; a factor of zero keeps it from raising the flag.
    square = jnp.where(words < np.uint32(0xC3170000), root, ops.constant(0.0))
    factor = jnp.where(low, square, ops.constant(1.0))
    return ops.mul(root, factor, fmt)


def mufu_rcp(ops: Ops, x: Array, fmt: Format) -> Array:
    """``rcp.approx``; without .ftz, subnormal operands and results are flagged."""
    words = ops.words(x)
    if not fmt.ftz:
        size = words & ~_SIGN
        ops.note(_subnormal(words) | ((size > np.uint32(253 << 23)) & (size < _INFINITY)))
    return ops.values(mufu.rcp(words))


def mufu_rsq(ops: Ops, x: Array, fmt: Format) -> Array:
    """``rsqrt.approx``; -0, negative numbers and without .ftz subnormals are flagged."""
    return _unsigned(ops, mufu.rsq, x, fmt)


def mufu_lg2(ops: Ops, x: Array, fmt: Format) -> Array:
    """``lg2.approx``; -0, negative numbers and without .ftz subnormals are flagged."""
    return _unsigned(ops, mufu.lg2, x, fmt)


def _unsigned(ops: Ops, function: mufu.Function, x: Array, fmt: Format) -> Array:
    words = ops.words(x)
    unknown = _negative(words)
    ops.note(unknown if fmt.ftz else unknown | _subnormal(words))
    return ops.values(function(words))


def div_full(ops: Ops, a: Array, b: Array, fmt: Format) -> Array:
    """``div.full.f32``: both operands scaled where ``b`` is extreme, the reciprocal, and one product."""
    size = ops.words(b) & ~_SIGN
    scale = jnp.where(size < _NORMAL, ops.constant(2.0**24), ops.constant(1.0))
    huge = (size > np.uint32(253 << 23)) & (size <= _INFINITY)
    scale = jnp.where(huge, ops.constant(0.25), scale)
    reciprocal = ops.values(mufu.rcp(ops.words(ops.mul(b, scale, fmt))))
    return ops.mul(ops.mul(a, scale, fmt), reciprocal, fmt)


def fast_expf(ops: Ops, x: Array, fmt: Format) -> Array:
    """CUDA's ``__expf`` and Triton's ``tl.exp``: ``ex2.approx`` of the rounded product with log2(e)."""
    return mufu_ex2(ops, ops.mul(x, LOG2_E, fmt), fmt)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "mufu.ex2": mufu_ex2,
    "mufu.rcp": mufu_rcp,
    "mufu.rsq": mufu_rsq,
    "mufu.lg2": mufu_lg2,
    "div.full": div_full,
    "triton.exp": fast_expf,
    "cuda.fast_expf": fast_expf,
}
"""Name to ``function(carrier, *operands, fmt)``."""


def apply(ops: Ops, name: str, args: tuple[Array, ...], fmt: Format) -> Array:
    """Function ``name`` of arrays in a carrier of f32 values.

    Raises:
        UnsupportedError: the function is not known, or ``fmt`` is not f32 or f32.ftz.
    """
    if name not in FUNCTIONS:
        raise UnsupportedError(f"{name}() is not evaluated", remedy=f"known: {', '.join(sorted(FUNCTIONS))}")
    if fmt.base != "f32" or fmt.rz or fmt.sat:
        raise UnsupportedError(
            f"{name} in {fmt.name}: the function exists in f32 and f32.ftz",
            remedy="compute in f32 or f32.ftz",
        )
    return FUNCTIONS[name](ops, *args, fmt)
