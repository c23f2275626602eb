"""Rounding, decoding and encoding on the bits of JAX arrays, for any format held in float32 or float64.

The rules are those of `verify.numerics.rounding`, written a second time in JAX. Everything is integer
arithmetic but one addition and subtraction of a power of two, because XLA on CPU flushes subnormals in
every floating-point operation and every conversion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine.guards import Guards, bits_of, float_of


@dataclass(frozen=True, slots=True)
class Width:
    """The layout of a carrier array: float32 in uint32 words or float64 in uint64 words."""

    fmt: Format
    word: type[np.unsignedinteger[Any]]
    real: type[np.floating[Any]]

    def bits(self, value: float) -> np.unsignedinteger[Any]:
        """The bits of a Python float in this layout."""
        return self.word(np.asarray(value, self.real).view(self.word))

    @property
    def sign(self) -> np.unsignedinteger[Any]:
        """The sign bit."""
        return self.word(1 << (self.fmt.bits - 1))

    @property
    def bias(self) -> int:
        """What is added to an exponent in its field."""
        return self.fmt.emax

    @property
    def infinity(self) -> np.unsignedinteger[Any]:
        """The bits of +infinity."""
        return self.bits(math.inf)


WIDTH32 = Width(BASES["f32"], np.uint32, np.float32)
WIDTH64 = Width(BASES["f64"], np.uint64, np.float64)


def width_of(x: Array) -> Width:
    """The layout of a carrier array."""
    return WIDTH32 if x.dtype == jnp.float32 else WIDTH64


def round_to(x: Array, fmt: Format, guards: Guards) -> Array:
    """Each element of ``x`` rounded once to ``fmt``, in the dtype of ``x``.

    Args:
        x: float32 or float64 array. A subnormal of its own dtype counts as zero.
        fmt: a format no wider than the dtype of ``x``, with any modifiers.
        guards: the guards of the carrier.
    """
    w = width_of(x)
    drop = w.fmt.p - fmt.p
    if fmt.is_real or drop < 0:
        raise UnsupportedError(
            f"cannot round a value held in {w.fmt.name} to {fmt.name}",
            remedy="use the f64 carrier for formats wider than f32; 'real' is not emulated",
        )
    bits = bits_of(x)
    sign = bits & w.sign
    magnitude = bits ^ sign
    rounded = magnitude
    if drop:
        rounded = _round_normal(magnitude, drop, w, fmt)
        if fmt.emin > w.fmt.emin:
            tiny = bits_of(_round_tiny(float_of(magnitude), fmt, guards, w))
            rounded = jnp.where(magnitude < w.bits(2.0**fmt.emin), tiny, rounded)
    if fmt.sat or fmt.emax < w.fmt.emax:
        beyond = w.bits(math.inf if fmt.inf else math.nan)
        most = w.bits(fmt.largest)
        rounded = jnp.where(rounded > most, most if fmt.sat or fmt.rz else beyond, rounded)
        rounded = jnp.where(magnitude >= w.infinity, most if fmt.sat else beyond, rounded)
    if fmt.ftz:
        rounded = jnp.where(rounded < w.bits(2.0**fmt.emin), w.word(0), rounded)
    return float_of(jnp.where(magnitude > w.infinity, w.bits(math.nan), rounded | sign))


def _round_normal(magnitude: Array, drop: int, w: Width, fmt: Format) -> Array:
    keep = ~w.word((1 << drop) - 1)
    if fmt.rz:
        return magnitude & keep
    # min(., 1) instead of a shift: a constant shift may become a kernel argument with a range check.
    odd = jnp.minimum(magnitude & w.word(1 << drop), w.word(1))
    return (magnitude + odd + w.word((1 << (drop - 1)) - 1)) & keep


def _round_tiny(magnitude: Array, fmt: Format, guards: Guards, w: Width) -> Array:
    """Round values below ``2**emin`` to multiples of ``2**quantum`` by adding a number of that last place."""
    anchor = guards.constant(1.5 * 2.0 ** (w.fmt.p - 1 + fmt.quantum), w.real)
    rounded = guards.seal(magnitude + anchor) - anchor
    if fmt.rz:
        rounded = jnp.where(rounded > magnitude, rounded - w.real(2.0**fmt.quantum), rounded)
    return rounded


# -- storage ----------------------------------------------------------------------------------------------


def _stored(fmt: Format) -> Format:
    """The layout in which ``fmt`` is stored: tf32 as f32, modifiers dropped."""
    return BASES["f32" if fmt.base == "tf32" else fmt.base]


def word_dtype(fmt: Format) -> np.dtype[np.unsignedinteger[Any]]:
    """The unsigned integer dtype in which ``fmt`` is stored; tf32 is stored in 32 bits."""
    return np.dtype(f"u{fmt.bits // 8}")


def decode(bits: Array, fmt: Format, w: Width) -> tuple[Array, Array | None]:
    """The values of stored ``bits``, and which of them are subnormal in the carrier (None: none can be).

    Args:
        bits: unsigned integers as wide as ``fmt``.
        fmt: the stored format; modifiers do not matter.
        w: the layout of the result.

    Raises:
        TypeError: ``bits`` has another dtype.
        UnsupportedError: the carrier does not hold every value of ``fmt``.
    """
    if bits.dtype != word_dtype(fmt):
        raise TypeError(f"bits of {fmt.base} come as {word_dtype(fmt)}, not as {bits.dtype}")
    s = _stored(fmt)
    if not w.fmt.holds(s):
        raise UnsupportedError(f"{s.name} values do not fit the {w.fmt.name} carrier")
    if s.p == w.fmt.p or (s.base == "bf16" and w is WIDTH32):
        scale = w.word(1 << (w.fmt.bits - s.bits))
        raw = bits.astype(w.word) * scale
        magnitude = raw & ~w.sign
        smallest = w.bits(2.0**w.fmt.emin)
        return float_of(raw), (magnitude - w.word(1)) < smallest - w.word(1)
    raw = bits.astype(w.word)
    top = w.word(1 << (s.bits - 1))
    magnitude = raw & (top - w.word(1))
    sign = (raw & top) * w.word(1 << (w.fmt.bits - s.bits))
    spread = magnitude * w.word(1 << (w.fmt.p - s.p)) + w.word((w.bias + s.emin - 1) << (w.fmt.p - 1))
    # The conversion of a small integer is exact, and so is its product with a power of two.
    small = magnitude.astype(jnp.int32).astype(w.real) * w.real(2.0**s.quantum)
    value = jnp.where(magnitude < w.word(1 << (s.p - 1)), bits_of(small), spread)
    largest = _code(s, s.largest)
    value = jnp.where(magnitude > w.word(largest), w.bits(math.nan), value)
    if s.inf:
        value = jnp.where(magnitude == w.word(largest + 1), w.infinity, value)
    return float_of(jnp.where(value > w.infinity, value, value | sign)), None


def _code(fmt: Format, value: float) -> int:
    """The magnitude code of a positive normal value of ``fmt``."""
    fraction, exponent = math.frexp(value)
    field = exponent - 1 - fmt.emin + 1
    return (field << (fmt.p - 1)) + int(math.ldexp(fraction, fmt.p)) - (1 << (fmt.p - 1))


def encode(x: Array, fmt: Format) -> Array:
    """The stored bits of values that are already values of ``fmt``; NaN becomes the positive quiet NaN.

    Args:
        x: carrier array, rounded to ``fmt``.
        fmt: the stored format; modifiers do not matter.

    Returns:
        An array of `word_dtype`.
    """
    w, s = width_of(x), _stored(fmt)
    bits = bits_of(x)
    magnitude = bits & ~w.sign
    if s.p == w.fmt.p:
        code = magnitude
    else:
        offset = w.word((w.bias + s.emin - 1) << (w.fmt.p - 1))
        code = (magnitude - offset) // w.word(1 << (w.fmt.p - s.p))
        if s.quantum > w.fmt.quantum and not (s.base == "bf16" and w is WIDTH32):
            small = (float_of(magnitude) * w.real(2.0**-s.quantum)).astype(jnp.int32).astype(w.word)
            code = jnp.where(magnitude < w.bits(2.0**s.emin), small, code)
    largest = _code(s, s.largest)
    sign = jnp.where((bits & w.sign) != 0, w.word(1 << (s.bits - 1)), w.word(0))
    if s.inf:
        code = jnp.where(magnitude == w.infinity, w.word(largest + 1), code)
    nan = w.word(largest + 1 | (1 << (s.p - 2) if s.inf else 0))
    return jnp.where(magnitude > w.infinity, nan, code | sign).astype(word_dtype(fmt))
