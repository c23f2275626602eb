"""The special functions of kernels in the array engine, built on the operations of a carrier.

The sequences are those of `verify.numerics.special`, written a second time. A function raises the flag of its
carrier where an operand or result is subnormal in the fast carrier (the program runs again in the exact one), and
in any carrier where what the hardware does is not known: -0 and negative numbers in `mufu_rsq` and `mufu_lg2` (the
exact run is then refused).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from specs.errors import UnsupportedError
from specs.formats import Format
from verify.engine import bits, libm, mufu
from verify.engine.guards import float_of
from verify.numerics import libm_tables as tables

if TYPE_CHECKING:
    from verify.engine.carriers import Carrier

_SIGN = np.uint32(0x80000000)
_NORMAL = np.uint32(0x00800000)
_FRACTION = np.uint32(0x007FFFFF)
_INFINITY = np.uint32(0x7F800000)
_MINUS_126 = np.uint32(0xC2FC0000)
_MINUS_151 = np.uint32(0xC3170000)
_MINUS_INFINITY = np.uint32(0xFF800000)
LOG2_E = float(np.uint32(0x3FB8AA3B).view(np.float32))


def _subnormal(words: Array) -> Array:
    """Where words are subnormal numbers: not zero, below 2**-126."""
    return ((words & ~_SIGN) - np.uint32(1)) < _NORMAL - np.uint32(1)


def _negative(words: Array) -> Array:
    """Where words are -0 or negative numbers."""
    return ((words & _SIGN) != 0) & ((words & ~_SIGN) <= _INFINITY)


def mufu_ex2(ops: Carrier, x: Array, fmt: Format) -> Array:
    """``ex2.approx``; without .ftz the argument below -126 is halved and the result squared."""
    words = ops.words(x)
    low = (words > _MINUS_126) & (words <= _MINUS_INFINITY)
    if not fmt.ftz:
        _flag(ops, low & (words < _MINUS_151))
    if fmt.ftz or _holds_no_subnormal(ops):
        return ops.values(mufu.ex2(words))
    # Half of a number of this size is one less in the exponent; infinity stays what it is.
    halved = jnp.where(low & (words < _MINUS_INFINITY), words - _NORMAL, words)
    root = ops.values(mufu.ex2(halved))
    return ops.mul(root, jnp.where(low, root, ops.constant(1.0)), fmt)


def mufu_rcp(ops: Carrier, x: Array, fmt: Format) -> Array:
    """``rcp.approx``; without .ftz an extreme operand is scaled, and so is the result."""
    scale, huge = _extreme(ops, x)
    if not fmt.ftz:
        _flag(ops, huge)
    if fmt.ftz or _holds_no_subnormal(ops):
        return ops.values(mufu.rcp(ops.words(x)))
    scaled = ops.mul(x, scale, fmt, check=False)
    return ops.mul(ops.values(mufu.rcp(ops.words(scaled))), scale, fmt, check=False)


def mufu_rsq(ops: Carrier, x: Array, fmt: Format) -> Array:
    """``rsqrt.approx``; without .ftz a subnormal operand is scaled. -0 and negative numbers are flagged."""
    words = ops.words(x)
    ops.note(_negative(words))
    if fmt.ftz or _holds_no_subnormal(ops):
        return ops.values(mufu.rsq(words))
    small = _subnormal(words)
    scaled = ops.mul(x, jnp.where(small, ops.constant(2.0**24), ops.constant(1.0)), fmt, check=False)
    root = ops.values(mufu.rsq(ops.words(scaled)))
    return ops.mul(root, jnp.where(small, ops.constant(2.0**12), ops.constant(1.0)), fmt, check=False)


def mufu_lg2(ops: Carrier, x: Array, fmt: Format) -> Array:
    """``lg2.approx``; without .ftz a subnormal operand is scaled. -0 and negative numbers are flagged."""
    words = ops.words(x)
    ops.note(_negative(words))
    if fmt.ftz or _holds_no_subnormal(ops):
        return ops.values(mufu.lg2(words))
    small = _subnormal(words)
    scaled = ops.mul(x, jnp.where(small, ops.constant(2.0**24), ops.constant(1.0)), fmt, check=False)
    result = ops.values(mufu.lg2(ops.words(scaled)))
    return ops.sub(result, jnp.where(small, ops.constant(24.0), ops.constant(0.0)), fmt, check=False)


def _extreme(ops: Carrier, x: Array) -> tuple[Array, Array]:
    """The power of two that keeps the reciprocal of ``x`` normal, and where ``x`` is finite and above 2**126."""
    size = ops.words(x) & ~_SIGN
    scale = jnp.where(size < _NORMAL, ops.constant(2.0**24), ops.constant(1.0))
    huge = (size > np.uint32(253 << 23)) & (size <= _INFINITY)
    return jnp.where(huge, ops.constant(0.25), scale), huge & (size < _INFINITY)


def div_full(ops: Carrier, a: Array, b: Array, fmt: Format) -> Array:
    """``div.full.f32``: both operands scaled where ``b`` is extreme, the reciprocal, and one product."""
    scale, _ = _extreme(ops, b)
    reciprocal = ops.values(mufu.rcp(ops.words(ops.mul(b, scale, fmt, check=False))))
    # A quotient may be subnormal where the exponents are so far apart; with .ftz, where it may be flushed or not.
    apart = _exponent(ops, a) - _exponent(ops, b)
    ordinary = (a != 0) & (ops.abs(b) < jnp.inf)
    _flag(ops, ordinary & (apart <= -125) & (apart >= (-127 if fmt.ftz else -152)))
    return ops.mul(ops.mul(a, scale, fmt, check=False), reciprocal, fmt, check=False)


def _exponent(ops: Carrier, x: Array) -> Array:
    return ((ops.words(x) & ~_SIGN) >> np.uint32(23)).astype(jnp.int32)


def _holds_no_subnormal(ops: Carrier) -> bool:
    """Whether this is the fast carrier, in which the forms with and without .ftz are one where no flag is raised."""
    return ops.width is bits.WIDTH32


def _flag(ops: Carrier, risk: Array) -> None:
    """Raise the flag of a carrier that holds no subnormal numbers.

    The functions flag by their operands, not by their results: a flag that reads a result makes the compiler evaluate
    the function twice.
    """
    if _holds_no_subnormal(ops):
        ops.note(risk)


def fast_expf(ops: Carrier, x: Array, fmt: Format) -> Array:
    """CUDA's ``__expf`` and Triton's ``tl.exp``: ``ex2.approx`` of the rounded product with log2(e)."""
    return mufu_ex2(ops, ops.mul(x, LOG2_E, fmt, check=False), fmt)


def expf(ops: Carrier, x: Array, fmt: Format) -> Array:
    """CUDA's ``expf``."""
    share = ops.fma(x, _float(tables.EXPF_STEPS), 0.5, fmt, check=False)
    share = jnp.where(share == share, jnp.clip(share, 0.0, 1.0), jnp.zeros_like(share))
    n = jnp.floor(share.astype(jnp.float64) * 252.0).astype(jnp.int32) - 126
    rest = ops.fma(x, LOG2_E, -n.astype(ops.dtype), fmt, check=False)
    rest = ops.fma(x, _float(tables.EXPF_TAIL), rest, fmt, check=False)
    power = ops.values(lax.bitcast_convert_type((n + 127) << 23, jnp.uint32))
    _flag(ops, (x < -87.0) & (x > (-87.5 if fmt.ftz else -105.0)))
    return ops.mul(ops.values(mufu.ex2(ops.words(rest))), power, fmt, check=False)


def logf(ops: Carrier, x: Array, fmt: Format) -> Array:
    """CUDA's ``logf``."""
    low = ops.compare("<", x, 2.0**-126)
    m = ops.mul(x, jnp.where(low, ops.constant(2.0**23), ops.constant(1.0)), fmt, check=False)
    words = ops.words(m)
    offset = words - np.uint32(tables.LOGF_OFFSET)
    exponent = (lax.bitcast_convert_type(offset, jnp.int32) >> 23) - jnp.where(low, 23, 0)
    t = ops.sub(ops.values(words - (offset & ~_FRACTION)), 1.0, fmt, check=False)
    p = ops.constant(_float(tables.LOGF_POLYNOMIAL[0]))
    for coefficient in tables.LOGF_POLYNOMIAL[1:]:
        p = ops.fma(p, t, _float(coefficient), fmt, check=False)
    p = ops.fma(ops.mul(t, p, fmt, check=False), t, t, fmt, check=False)
    result = ops.fma(exponent.astype(ops.dtype), _float(tables.LOGF_LN2), p, fmt, check=False)
    result = jnp.where(words >= _INFINITY, jnp.where(words == _INFINITY, m, jnp.nan), result)
    return jnp.where((words & ~_SIGN) == 0, -jnp.inf, result)


def fa4_exp2(ops: Carrier, x: Array, fmt: Format) -> Array:
    """FlashAttention-4's exponential on the FMA units."""
    x = jnp.where(_subnormal(ops.words(x)), jnp.zeros_like(x), x)
    x = jnp.where(x > tables.FA4_LOWEST, x, ops.constant(tables.FA4_LOWEST))
    # Rounded down: the floor below 2**22, where the last place of the sum is 1, and 24 bits of the sum above.
    near = tables.FA4_SHIFT + jnp.floor(jnp.minimum(x, 2.0**22).astype(jnp.float64))
    far = lax.bitcast_convert_type(x.astype(jnp.float64) + tables.FA4_SHIFT, jnp.uint64)
    far = float_of(far & ~np.uint64((1 << 29) - 1))
    rounded = jnp.where(x < 2.0**22, near, far).astype(ops.dtype)
    whole = ops.sub(rounded, tables.FA4_SHIFT, fmt, check=False)
    fraction = ops.sub(x, whole, fmt, check=False)
    p = ops.constant(_float(tables.FA4_POLYNOMIAL[0]))
    for coefficient in tables.FA4_POLYNOMIAL[1:]:
        p = ops.fma(p, fraction, _float(coefficient), fmt, check=False)
    words = (ops.words(rounded) << np.uint32(23)) + ops.words(p)
    # Exponent fields of 0, and past 255, where words wrap.
    _flag(ops, ((x > -127.0) & (x < -126.0)) | (x >= 128.0))
    return ops.values(jnp.where(x == jnp.inf, np.uint32(0x7FC00000), words))


def _float(word: int) -> float:
    return float(np.uint32(word).view(np.float32))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "mufu.ex2": mufu_ex2,
    "mufu.rcp": mufu_rcp,
    "mufu.rsq": mufu_rsq,
    "mufu.lg2": mufu_lg2,
    "div.full": div_full,
    "triton.exp": fast_expf,
    "cuda.fast_expf": fast_expf,
    "cuda.expf": expf,
    "cuda.logf": logf,
    "fa4.exp2": fa4_exp2,
    "torch.fexp_u20": libm.fexp_u20,
    "glibc.expf": libm.expf,
    "glibc.logf": libm.logf,
}
"""Name to ``function(carrier, *operands, fmt)``."""


def refusal(name: str, fmt: Format) -> str:
    """Why function ``name`` does not exist in ``fmt``; empty where it does."""
    if name not in FUNCTIONS:
        return f"{name}() is not evaluated"
    if fmt.ftz and name.startswith(("torch.", "glibc.")):
        return f"{name} in {fmt.name}: the function does not flush"
    if fmt.base != "f32" or fmt.rz or fmt.sat:
        return f"{name} in {fmt.name}: the function exists in f32 and f32.ftz"
    return ""


def apply(ops: Carrier, name: str, args: tuple[Array, ...], fmt: Format) -> Array:
    """Function ``name`` of arrays in a carrier of f32 values.

    Raises:
        UnsupportedError: see `refusal`.
    """
    if reason := refusal(name, fmt):
        raise UnsupportedError(reason, remedy="compute in f32")
    return FUNCTIONS[name](ops, *args, fmt)
