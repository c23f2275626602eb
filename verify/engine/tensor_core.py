"""Tensor-core dot products on arrays: one fused block in 32-bit integers, bits in and bits out.

The arithmetic is that of `verify.numerics.tensor_core`, written a second time in JAX: any shape, any format of
`specs.dot_products`, subnormals kept (XLA on CPU flushes them in float operations, so there are none here).

A block of L products and an accumulator c:

* a product is a magnitude, an exponent and a sign word s (0 or -1). Zeros have an exponent so low that they are never
  the largest;
* cut to the largest exponent the magnitude is ``x = m >> d``, and the term ``(x ^ s) - s``. Kernels that know how many
  signs are -1 add up ``x ^ s`` and correct once;
* the sum of the products fits int32 (for 32 terms of fp8 each half of it does); adding c may wrap, so the magnitude
  is read as uint32 and the sign taken from the summands where they agree;
* then one count of leading zeros, one shift into place, one more where the result is subnormal.

`fused` takes finite operands and any accumulator; `fused_any` takes stored words, NaN and infinities included;
`instruction` and `instruction_any` run all blocks of one instruction. `verify.engine.tensor_core_kernels` holds the
kernels that are tuned for speed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import BASES, Format

Array = jax.Array

SCALE = 10
"""Fraction bits of an operand's significand: enough for every input format."""

NOTHING = -4096
"""The exponent of a zero operand: below every exponent, and a sum of two still fits int16."""

_ENDLESS = 8192
"""The exponent of an infinite accumulator: no finite product reaches it."""

_ONE, _ZERO = np.int32(1), np.int32(0)


class Operand(NamedTuple):
    """Finite numbers ``significand * 2**(exponent - SCALE)``: two int16 or int32 arrays of one shape.

    ``exponent`` is what the alignment sees: that of the number, but at least the format's ``emin``; a zero has
    `NOTHING`.
    """

    significand: Array
    exponent: Array


class Product(NamedTuple):
    """Finite products, not yet aligned: int32 arrays that broadcast against each other.

    ``magnitude`` has ``fraction`` bits below the place of ``2**exponent`` (see `block`); ``sign`` is 0 or -1.
    """

    magnitude: Array
    exponent: Array
    sign: Array


def decode(words: Array, fmt: Format, dot: DotProduct | None = None) -> Operand:
    """Stored words of finite values as operands, int16.

    Args:
        words: unsigned integers as wide as ``fmt`` (tf32: uint32, the low 13 bits are ignored), any shape.
        fmt: format of the words, one that tensor cores take. NaN and infinities give some finite number.
        dot: the instruction, where it converts its factors to another format first.

    Raises:
        TypeError: ``words`` has another dtype.
        UnsupportedError: ``fmt`` has more than 11 significant bits.
    """
    magnitude, p = _magnitude(words, fmt), fmt.p
    field = lax.shift_right_logical(magnitude, np.int32(p - 1))
    fraction = magnitude & np.int32((1 << (p - 1)) - 1)
    significand = jnp.where(field > 0, fraction | np.int32(1 << (p - 1)), fraction)
    significand = significand * np.int32(1 << (SCALE - p + 1))
    exponent = jnp.maximum(field, _ONE) + np.int32(fmt.emin - 1)
    if dot is not None and dot.converted and BASES[dot.converted].emin < fmt.emin:
        # Subnormals of `fmt` are normal numbers after the conversion: move the leading bit into place.
        room = np.int32(fmt.emin - BASES[dot.converted].emin)
        up = jnp.clip(lax.clz(significand) - np.int32(31 - SCALE), _ZERO, room)
        significand, exponent = lax.shift_left(significand, up), exponent - up
    exponent = jnp.where(magnitude == 0, np.int32(NOTHING), exponent)
    significand = jnp.where(_negative(words, fmt), -significand, significand)
    return Operand(significand.astype(jnp.int16), exponent.astype(jnp.int16))


def _magnitude(words: Array, fmt: Format) -> Array:
    """The code without its sign, int32; tf32 as the 18 bits below the sign of its word."""
    check_words(words, fmt)
    code = lax.bitcast_convert_type(words.astype(jnp.uint32), jnp.int32)
    if fmt.base == "tf32":
        return lax.shift_right_logical(code & np.int32(0x7FFFFFFF), np.int32(13))
    return code & np.int32((1 << (fmt.bits - 1)) - 1)


def check_words(words: Array, fmt: Format) -> None:
    """Check that ``words`` are stored words of a format that tensor cores take.

    Raises:
        TypeError: they have another dtype.
        UnsupportedError: the format has more than 11 significant bits.
    """
    if words.dtype != np.dtype(f"u{fmt.bits // 8}"):
        raise TypeError(f"words of {fmt.base} come as u{fmt.bits // 8}, not as {words.dtype}")
    if fmt.p > SCALE + 1:
        raise UnsupportedError(
            f"tensor cores do not take {fmt.base} factors", remedy="bf16, f16, tf32, e4m3fn or e5m2"
        )


def _negative(words: Array, fmt: Format) -> Array:
    return words >= words.dtype.type(1 << (fmt.bits - 1))


# -- one block --------------------------------------------------------------------------------------------


def fused(dot: DotProduct, a: Sequence[Operand], b: Sequence[Operand], acc: Array) -> Array:
    """One block: the products of ``a`` and ``b`` and the accumulator, aligned, truncated, added and rounded once.

    Args:
        dot: the arithmetic; ``addition`` and ``split`` are matters of the chain (`instruction`).
        a: at most ``dot.fused_length`` operands.
        b: as many; every array broadcasts to the shape of ``acc``.
        acc: bits of the accumulator: uint32 of f32, or uint16 of f16 where ``dot.output`` is f16. NaN and infinities
            may be among them.

    Returns:
        The bits of the result, dtype and shape of ``acc``; NaN is 0x7FFFFFFF (0x7FFF).

    Raises:
        ValueError: no terms, more than a block takes, or as many on one side as not on the other.
        UnsupportedError: the sums of such a block would not fit 32 bits.
    """
    if not 0 < len(a) == len(b) <= dot.fused_length:
        raise ValueError(f"{len(a)} and {len(b)} operands; a block takes 1 to {dot.fused_length}")
    products = [_product(dot, x, y) for x, y in zip(a, b, strict=True)]
    return block(dot, [p for p, _ in products], acc, fraction=products[0][1])


def _product(dot: DotProduct, x: Operand, y: Operand) -> tuple[Product, int]:
    """The product, and the fraction bits of its magnitude."""
    up = max(dot.fraction_bits - 2 * SCALE, 0)
    product = (_wide(x.significand) * np.int32(1 << up)) * _wide(y.significand)
    sign = lax.shift_right_arithmetic(product, np.int32(31))
    return Product((product ^ sign) - sign, _wide(x.exponent) + _wide(y.exponent), sign), 2 * SCALE + up


def _wide(x: Array) -> Array:
    return x.astype(jnp.int32)


def block(
    dot: DotProduct,
    products: Sequence[Product] | Product,
    acc: Array,
    *,
    fraction: int,
    bias: int = 0,
    negatives: Array | None = None,
) -> Array:
    """As `fused`, on products: the core of every kernel.

    Args:
        dot: the arithmetic.
        products: the terms, magnitudes below ``2**(fraction + 2)``. A list is written out, which is fast to run; one
            `Product` with the terms along its leading axis is reduced, which is fast to compile.
        acc: bits of the accumulator, finite or not.
        fraction: fraction bits of the magnitudes, at least ``dot.fraction_bits``.
        bias: what the exponents of the products hold beyond their value (zeros: far below every exponent).
        negatives: int32, how many products have sign -1; None: it is counted here.
    """
    c, c_exponent, c_sign = _accumulator(acc, dot, bias)
    if isinstance(products, Product):
        top = jnp.max(products.exponent, axis=0)
    else:
        top = functools.reduce(jnp.maximum, [p.exponent for p in products])
    top = jnp.maximum(jnp.maximum(top, c_exponent), np.int32(dot.exponent_floor + bias))
    down = top + np.int32(fraction - dot.fraction_bits) if fraction > dot.fraction_bits else top
    if isinstance(products, Product):
        terms, signs = _aligned(products, down), products.sign
    else:
        terms, signs = [_aligned(p, down) for p in products], [p.sign for p in products]
    lift = dot.fraction_bits - (BASES[dot.output].p - 1)
    c_down = top + np.int32(-lift) if lift < 0 else top
    c = lax.shift_left(c, np.int32(lift)) if lift > 0 else c
    c = _aligned(Product(c, c_exponent, c_sign), c_down) - c_sign
    if negatives is None:
        negatives = -_total(signs)
    if _needs_halves(dot, len(terms)):
        half = len(terms) // 2
        magnitude, negative = _sum_of_halves(_total(terms[:half]) + negatives, _total(terms[half:]), c)
    else:
        magnitude, negative = _sum(_total(terms) + negatives, c)
    return _signed(_round(magnitude, top, dot, bias), negative, acc, dot)


def _aligned(p: Product, top: Array) -> Array:
    """The term in units of the quantum, less one where it is negative.

    The shift is arithmetic: right for every distance, and one instruction where the compiler sees that.
    """
    return lax.shift_right_arithmetic(p.magnitude, top - p.exponent) ^ p.sign


def _total(xs: Sequence[Array] | Array) -> Array:
    if isinstance(xs, jax.Array):
        return jnp.sum(xs, axis=0, dtype=jnp.int32)
    return functools.reduce(operator.add, xs)


def _needs_halves(dot: DotProduct, terms: int) -> bool:
    """Whether the sum of the products may pass int32, though not that of each half."""
    p = max(BASES[i].p for i in dot.inputs)
    largest = terms * (2 - 2.0 ** (1 - p)) ** 2 * 2.0**dot.fraction_bits
    if largest + 2.0 ** (dot.fraction_bits + 1) >= 2.0**32 or dot.fraction_bits > 28:
        raise UnsupportedError(
            f"{terms} products of {'/'.join(dot.inputs)} with {dot.fraction_bits} fraction bits overflow 32 bits",
            remedy="use the scalar definition",
        )
    return largest >= 2.0**31


def _accumulator(acc: Array, dot: DotProduct, bias: int) -> tuple[Array, Array, Array]:
    """Magnitude, biased exponent (far below for zero, far above for infinity) and sign word, int32."""
    fmt = BASES[dot.output]
    if acc.dtype != np.dtype(f"u{fmt.bits // 8}"):
        raise TypeError(f"accumulators in {fmt.base} come as u{fmt.bits // 8}, not as {acc.dtype}")
    signed = lax.bitcast_convert_type(acc, np.dtype(f"i{fmt.bits // 8}")).astype(jnp.int32)
    magnitude = signed & np.int32((1 << (fmt.bits - 1)) - 1)
    field = lax.shift_right_logical(magnitude, np.int32(fmt.p - 1))
    fraction = magnitude & np.int32((1 << (fmt.p - 1)) - 1)
    significand = jnp.where(field > 0, fraction | np.int32(1 << (fmt.p - 1)), fraction)
    exponent = jnp.maximum(field, _ONE)
    if fmt.emin - 1 + bias:
        exponent = exponent + np.int32(fmt.emin - 1 + bias)
    exponent = jnp.where(magnitude == 0, np.int32(2 * NOTHING), exponent)
    exponent = jnp.where(field == np.int32(fmt.emax - fmt.emin + 2), np.int32(_ENDLESS), exponent)
    return significand, exponent, lax.shift_right_arithmetic(signed, np.int32(31))


def _sum(products: Array, c: Array) -> tuple[Array, Array]:
    """Magnitude (uint32) and sign of ``products + c``, which may pass int32 where both have one sign."""
    total = products + c
    negative = ((products & c) | ((products | c) & total)) < 0
    return lax.bitcast_convert_type(jnp.where(negative, -total, total), jnp.uint32), negative


def _sum_of_halves(x: Array, y: Array, c: Array) -> tuple[Array, Array]:
    """As `_sum` for three summands: the sign is that of half the sum, rounded down."""
    low = (x & _ONE) + (y & _ONE) + (c & _ONE)
    halves = [lax.shift_right_arithmetic(z, _ONE) for z in (x, y, c, low)]
    negative = functools.reduce(operator.add, halves) < 0
    total = x + y + c
    return lax.bitcast_convert_type(jnp.where(negative, -total, total), jnp.uint32), negative


def _round(magnitude: Array, top: Array, dot: DotProduct, bias: int) -> Array:
    """The bits, sign aside, of ``magnitude * 2**(top - bias - fraction_bits)`` rounded to the output; uint32."""
    fmt = BASES[dot.output]
    zeros = lax.clz(magnitude)
    # The field of a normal result less one: its hidden bit adds the one.
    field = (
        top + np.int32(31 - dot.fraction_bits - fmt.emin - bias) - lax.bitcast_convert_type(zeros, jnp.int32)
    )
    left = lax.shift_left(magnitude, zeros)
    below = jnp.maximum(-field, _ZERO)
    drop = 32 - fmt.p
    if dot.rounding == "rne":
        left = lax.shift_right_logical(left, np.uint32(1)) | (
            left & np.uint32(1)
        )  # a sticky bit: room to shift
        by = jnp.minimum(below, np.int32(fmt.p + 1)).astype(jnp.uint32) + np.uint32(drop - 1)
        kept = lax.shift_right_logical(left, by)
        rest = left - lax.shift_left(kept, by)
        half = lax.shift_left(np.uint32(1), by - np.uint32(1))
        kept = kept + ((rest > half) | ((rest == half) & ((kept & np.uint32(1)) == 1))).astype(jnp.uint32)
    else:
        cut = lax.bitcast_convert_type(lax.shift_right_logical(left, np.uint32(drop)), jnp.int32)
        kept = lax.bitcast_convert_type(lax.shift_right_arithmetic(cut, below), jnp.uint32)
    base = lax.bitcast_convert_type(jnp.maximum(field, _ZERO), jnp.uint32)
    word = base * np.uint32(1 << (fmt.p - 1)) + kept
    if dot.rounding == "rz13":
        word = word & np.uint32(0xFFFFFC00)
    infinity = _infinity(fmt)
    if dot.rounding == "rne":
        word = jnp.minimum(word, infinity)  # rounding up may reach it
    word = jnp.where(field > np.int32(fmt.emax - fmt.emin), infinity, word)
    return jnp.where(magnitude == 0, np.uint32(0), word)


def _infinity(fmt: Format) -> np.uint32:
    return np.uint32((fmt.emax - fmt.emin + 2) << (fmt.p - 1))


def _signed(rounded: Array, negative: Array, acc: Array, dot: DotProduct) -> Array:
    """The word with its sign, where it is not zero; NaN where the accumulator was NaN."""
    fmt = BASES[dot.output]
    sign = np.uint32(1 << (fmt.bits - 1))
    word = jnp.where(negative & (rounded != 0), rounded | sign, rounded)
    size = acc.astype(jnp.uint32) & (sign - np.uint32(1))
    return jnp.where(size > _infinity(fmt), sign - np.uint32(1), word).astype(acc.dtype)


def fused_any(
    dot: DotProduct, a: Sequence[Array], b: Sequence[Array], acc: Array, fmt_a: Format, fmt_b: Format
) -> Array:
    """As `fused` on stored words, with NaN and infinities anywhere.

    Args:
        dot: the arithmetic.
        a: at most ``dot.fused_length`` arrays of words of ``fmt_a``.
        b: as many of ``fmt_b``.
        acc: bits of the accumulator.
        fmt_a: format of ``a``.
        fmt_b: format of ``b``.
    """
    if not 0 < len(a) == len(b) <= dot.fused_length:
        raise ValueError(f"{len(a)} and {len(b)} arrays of words; a block takes 1 to {dot.fused_length}")
    x, y = (jnp.stack(jnp.broadcast_arrays(*side)) for side in (a, b))
    x, y = (lax.expand_dims(z, range(1, 1 + acc.ndim - (z.ndim - 1))) for z in (x, y))
    (x_nan, x_inf, x_zero), (y_nan, y_inf, y_zero) = _classes(x, fmt_a), _classes(y, fmt_b)
    left = decode(jnp.where(x_inf | x_nan, x.dtype.type(0), x), fmt_a, dot)
    right = decode(jnp.where(y_inf | y_nan, y.dtype.type(0), y), fmt_b, dot)
    word = _fused(dot, left, right, acc).astype(jnp.uint32)
    sign, infinity = np.uint32(1 << (BASES[dot.output].bits - 1)), _infinity(BASES[dot.output])
    old = acc.astype(jnp.uint32)
    infinite, negative = x_inf | y_inf, _negative(x, fmt_a) ^ _negative(y, fmt_b)
    nan = jnp.any(x_nan | y_nan | (x_inf & y_zero) | (x_zero & y_inf), axis=0)
    nan = nan | ((old & (sign - np.uint32(1))) > infinity)
    plus = jnp.any(infinite & ~negative, axis=0) | (old == infinity)
    minus = jnp.any(infinite & negative, axis=0) | (old == (infinity | sign))
    word = jnp.where(plus, infinity, word)
    word = jnp.where(minus, infinity | sign, word)
    return jnp.where(nan | (plus & minus), sign - np.uint32(1), word).astype(acc.dtype)


def _fused(dot: DotProduct, left: Operand, right: Operand, acc: Array) -> Array:
    """`fused` on operands with the terms along the leading axis."""
    product, fraction = _product(dot, left, right)
    return block(dot, product, acc, fraction=fraction)


def _classes(words: Array, fmt: Format) -> tuple[Array, Array, Array]:
    """Which words are NaN, infinite, zero."""
    magnitude = _magnitude(words, fmt)
    if not fmt.inf:
        return magnitude == np.int32((1 << (fmt.bits - 1)) - 1), jnp.zeros(words.shape, bool), magnitude == 0
    top = np.int32((fmt.emax - fmt.emin + 2) << (fmt.p - 1))
    return magnitude > top, magnitude == top, magnitude == 0


# -- instructions -----------------------------------------------------------------------------------------


def instruction(dot: DotProduct, a: Sequence[Operand], b: Sequence[Operand], acc: Array) -> Array:
    """One instruction of ``len(a)`` terms on finite operands: its blocks, and a late accumulator added.

    Arguments and result are those of `fused`, but for the number of operands.
    """
    total = jnp.zeros_like(acc) if dot.addition == "late" else acc
    for terms in dot.blocks(len(a)):
        total = fused(dot, [a[i] for i in terms], [b[i] for i in terms], total)
    return add(acc, total, BASES[dot.output]) if dot.addition == "late" else total


def instruction_any(
    dot: DotProduct, a: Sequence[Array], b: Sequence[Array], acc: Array, fmt_a: Format, fmt_b: Format
) -> Array:
    """As `instruction` on stored words, with NaN and infinities anywhere."""
    total = jnp.zeros_like(acc) if dot.addition == "late" else acc
    for terms in dot.blocks(len(a)):
        total = fused_any(dot, [a[i] for i in terms], [b[i] for i in terms], total, fmt_a, fmt_b)
    return add(acc, total, BASES[dot.output]) if dot.addition == "late" else total


def add(x: Array, y: Array, fmt: Format) -> Array:
    """``x + y`` rounded once to nearest even, on bits of f32 (uint32) or f16 (uint16); NaN is 0x7FFFFFFF (0x7FFF).

    Subnormals are kept; the sum of two zeros is +0 unless both are -0.
    """
    sign, infinity = np.uint32(1 << (fmt.bits - 1)), _infinity(fmt)
    u, v = x.astype(jnp.uint32), y.astype(jnp.uint32)
    below = sign - np.uint32(1)
    swap = (u & below) < (v & below)
    u, v = jnp.where(swap, v, u), jnp.where(swap, u, v)  # |u| >= |v|
    big, small = u & below, v & below
    (m, e), (n, f) = _parts(big, fmt), _parts(small, fmt)
    by = jnp.minimum(e - f, np.uint32(fmt.p + 3))
    m, n = m * np.uint32(8), n * np.uint32(8)
    moved = lax.shift_right_logical(n, by)
    moved = moved | (lax.shift_left(moved, by) != n).astype(jnp.uint32)
    total = jnp.where((u ^ v) < sign, m + moved, m - moved)
    # Normalise: the leading bit to p + 3 bits, one place further after a carry, never below emin.
    zeros = lax.clz(total)
    lead = np.uint32(32 - (fmt.p + 3))
    carry = (zeros < lead).astype(jnp.uint32)
    total = lax.shift_right_logical(total, carry) | (total & carry)
    up = jnp.minimum(jnp.where(zeros > lead, zeros - lead, np.uint32(0)), e - np.uint32(1))
    total = lax.shift_left(total, up)
    rest, kept = total & np.uint32(7), lax.shift_right_logical(total, np.uint32(3))
    up_one = (rest > np.uint32(4)) | ((rest == np.uint32(4)) & ((kept & np.uint32(1)) == 1))
    kept = kept + up_one.astype(jnp.uint32)
    word = jnp.minimum((e + carry - up - np.uint32(1)) * np.uint32(1 << (fmt.p - 1)) + kept, infinity)
    word = jnp.where(total == 0, u & v & sign, word | (u & sign))
    cancel = (small == infinity) & ((u ^ v) >= sign)
    word = jnp.where(big >= infinity, jnp.where((big > infinity) | cancel, below, u), word)
    return word.astype(x.dtype)


def _parts(magnitude: Array, fmt: Format) -> tuple[Array, Array]:
    """Significand and exponent field (1 for subnormals), uint32."""
    field = lax.shift_right_logical(magnitude, np.uint32(fmt.p - 1))
    hidden = np.uint32(1 << (fmt.p - 1))
    fraction = magnitude & (hidden - np.uint32(1))
    return jnp.where(field > 0, fraction | hidden, fraction), jnp.maximum(field, np.uint32(1))
