"""Chained tensor-core dot products at speed: scores of all tokens, and one step of a value product.

The arithmetic is `verify.engine.tensor_core.block`; this module is about how its terms come to it.

**Layouts.** Scores: tiles ``[C / 16, H, R, 16]`` of tokens in natural order, over keys of
`verify.engine.contract.prepare_keys` in stored words. Values: accumulators ``[G, H, D / 16, R, 16]`` as in
`verify.engine.contract.ordered_values`. The last axis is one vector register, R shares what was decoded for it.

**Why it is fast.** Per product and vector: two adds, a maximum and a subtraction for the exponent, one multiplication,
one shift and one three-way XOR for the aligned term; both signs enter by XOR, and one population count per block
corrects for them. The side that varies along the vector (keys, values) is decoded in the loop over vectors and
shared by the R rows; the other side (queries, weights) is decoded beforehand and read as broadcast memory operands.

**What XLA needs.** A constant that one fused loop uses more than a dozen times may become an argument of the loop; a
shift by an argument costs a branch. So the distance of the decoding shifts turns with the term.

Operands must be finite; who calls checks that once per tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specs.dot_products import DotProduct
from specs.formats import BASES, Format
from verify.engine import tensor_core
from verify.engine.contract import BLOCK, LANES
from verify.engine.tensor_core import NOTHING, SCALE, Product

Array = jax.Array

_CHUNK = 8  # blocks of keys that one dispatch works through


class Split(NamedTuple):
    """Finite words taken apart, int32: magnitude, biased exponent (zero: `NOTHING`), sign word (0 or -1)."""

    magnitude: Array
    exponent: Array
    sign: Array


def split(words: Array, fmt: Format, dot: DotProduct, turn: int = 0) -> Split:
    """Take words apart; ``magnitude * 2**(exponent - fraction_of(fmt, dot))``, the exponent as `exponent_bias` says.

    Args:
        words: stored words of finite values, any shape.
        fmt: their format.
        dot: the instruction (it may convert).
        turn: which spelling of the shifts to use; the result does not depend on it.
    """
    tensor_core.check_words(words, fmt)
    signed = lax.bitcast_convert_type(words, np.dtype(f"i{fmt.bits // 8}")).astype(jnp.int32)
    if dot.converted:
        operand = tensor_core.decode(words, fmt, dot)
        significand = operand.significand.astype(jnp.int32)
        return Split(
            jnp.abs(significand),
            operand.exponent.astype(jnp.int32),
            jnp.where(signed < 0, np.int32(-1), np.int32(0)),
        )
    if fmt.bits == 32:
        sign = jnp.where(signed < 0, np.int32(-1), np.int32(0))
        code = lax.shift_right_logical(
            signed & np.int32(0x7FFFFFFF), np.int32(13 if fmt.base == "tf32" else 0)
        )
    else:
        sign = lax.shift_right_arithmetic(signed, np.int32(16 + turn % 15))
        code = signed & np.int32((1 << (fmt.bits - 1)) - 1)
    up = 17 - fmt.p + turn % 8  # the code has 7 to 18 bits, so nothing is lost
    field = lax.shift_right_logical(code * np.int32(1 << up), np.int32(up + fmt.p - 1))
    fraction = code & np.int32((1 << (fmt.p - 1)) - 1)
    magnitude = jnp.where(field > 0, fraction | np.int32(1 << (fmt.p - 1)), fraction)
    exponent = jnp.where(code == 0, np.int32(NOTHING), jnp.maximum(field, np.int32(1)))
    return Split(magnitude, exponent, sign)


def fraction_of(fmt: Format, dot: DotProduct) -> int:
    """Fraction bits of the magnitudes of `split`."""
    return SCALE if dot.converted else fmt.p - 1


def exponent_bias(fmt: Format, dot: DotProduct) -> int:
    """What the exponents of `split` hold beyond their value."""
    return 0 if dot.converted else 1 - fmt.emin


class Side(NamedTuple):
    """The side of a product that is broadcast: `Split` of shape ``[..., terms]``, and its signs as bits."""

    magnitude: Array
    exponent: Array
    sign: Array
    signs: Array


def broadcast_side(words: Array, fmt: Format, other: Format, dot: DotProduct) -> Side:
    """Decode queries or weights, scaled so that products have ``dot.fraction_bits`` and the output's bias.

    Args:
        words: ``[..., terms]``, at most 32 terms, finite.
        fmt: their format.
        other: format of the other side.
        dot: the arithmetic.
    """
    part = split(words, fmt, dot)
    lift = dot.fraction_bits - fraction_of(fmt, dot) - fraction_of(other, dot)
    shift = _bias(dot) - exponent_bias(fmt, dot) - exponent_bias(other, dot)
    places = (np.uint32(1) << np.arange(words.shape[-1], dtype=np.uint32)).astype(np.int32)
    signs = jnp.sum(part.sign & places, axis=-1, dtype=jnp.int32)
    exponent = jnp.where(part.exponent == np.int32(NOTHING), part.exponent, part.exponent + np.int32(shift))
    magnitude = part.magnitude * np.int32(1 << lift) if lift >= 0 else part.magnitude
    return Side(magnitude, exponent, part.sign, signs)


def _bias(dot: DotProduct) -> int:
    """The bias of exponents inside a kernel: that of the output's field."""
    return 1 - BASES[dot.output].emin


def chain(
    dot: DotProduct,
    k: int,
    left: Sequence[Split],
    right: Sequence[Split],
    left_signs: Array,
    right_signs: Array,
    acc: Array,
    fraction: int,
) -> Array:
    """Instructions of ``k`` terms each on sides taken apart.

    Args:
        dot: the arithmetic.
        k: terms of one instruction; divides the number of terms.
        left: the broadcast side, one `Split` a term, from `broadcast_side`.
        right: the other side.
        left_signs: bit i is the sign of term i.
        right_signs: likewise.
        acc: bits of the accumulator; the shapes of all others broadcast to its shape.
        fraction: fraction bits of the products.
    """
    odd = left_signs ^ right_signs
    for first in range(0, len(left), k):
        total = jnp.zeros_like(acc) if dot.addition == "late" else acc
        for terms in dot.blocks(k):
            at = [first + i for i in terms]
            products = [
                Product(
                    left[i].magnitude * right[i].magnitude,
                    left[i].exponent + right[i].exponent,
                    left[i].sign ^ right[i].sign,
                )
                for i in at
            ]
            bits = sum(1 << i for i in at)
            own = odd if len(at) == len(left) else odd & np.uint32(bits).astype(np.int32)
            total = tensor_core.block(
                dot, products, total, fraction=fraction, bias=_bias(dot), negatives=lax.population_count(own)
            )
        acc = tensor_core.add(acc, total, BASES[dot.output]) if dot.addition == "late" else total
    return acc


def _fraction(dot: DotProduct, a: Format, b: Format) -> int:
    return max(dot.fraction_bits, fraction_of(a, dot) + fraction_of(b, dot))


def _slice(x: Array, start: Sequence[Any], sizes: Sequence[int]) -> Array:
    at = [jnp.asarray(i, jnp.int32) for i in start]
    return lax.dynamic_slice(x, at, sizes, allow_negative_indices=False)


def qk(dot: DotProduct, k: int, q: Array, q_fmt: Format, keys: Array, k_fmt: Format, tokens: Array) -> Array:
    """Score every token: chained instructions of ``k`` terms over the head dimension, from +0.

    Args:
        dot: the arithmetic.
        k: terms of one instruction: 4, 8, 16 or 32.
        q: words of ``q_fmt``, [H, R, D], finite.
        q_fmt: format of the queries.
        keys: words of ``k_fmt`` in the layout of `verify.engine.contract.prepare_keys`, finite.
        k_fmt: format of the keys.
        tokens: int32 scalar, live tokens; chunks of blocks past them are not computed and hold 0.

    Returns:
        Bits of ``dot.output``, tiles [C / 16, H, R, 16].

    Raises:
        ValueError: ``k`` is another.
    """
    if k not in (4, 8, 16, 32):
        raise ValueError(f"instructions of {k} terms; this kernel knows 4, 8, 16 and 32")
    blocks, _, tiles, heads, _, _ = keys.shape
    rows, dim = q.shape[1], q.shape[2]
    terms = max(k, LANES)
    steps = -(-dim // terms)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, steps * terms - dim)))
    side = broadcast_side(q.reshape(heads, rows, steps, terms).transpose(0, 2, 1, 3), q_fmt, k_fmt, dot)
    fraction = _fraction(dot, q_fmt, k_fmt)
    chunk = min(blocks, _CHUNK)
    word = np.dtype(f"u{BASES[dot.output].bits // 8}")

    def work(i: Array, out: Array) -> Array:
        first = jnp.minimum(i * np.int32(chunk), np.int32(blocks - chunk))  # the last may repeat some blocks

        def deepen(s: Array, acc: Array) -> Array:
            left: list[Split] = []
            right: list[Split] = []
            signs: Any = 0
            for u in range(terms):
                left.append(
                    Split(
                        *(
                            _slice(x, (0, s, 0, u), (heads, 1, rows, 1)).reshape(heads, rows, 1)
                            for x in side[:3]
                        )
                    )
                )
                # Where the head dimension ends inside an instruction the queries are 0, whatever is read here.
                at = (first, s * np.int32(terms // LANES) + np.int32(u // LANES), 0, 0, u % LANES, 0)
                words = _slice(keys, at, (chunk, 1, tiles, heads, 1, LANES))
                right.append(split(words.reshape(chunk * tiles, heads, 1, LANES), k_fmt, dot, u))
                signs = signs | (right[-1].sign & np.uint32(1 << u).astype(np.int32))
            own = _slice(side.signs, (0, s, 0), (heads, 1, rows)).reshape(heads, rows, 1)
            return chain(dot, k, left, right, own, signs, acc, fraction)

        acc = jnp.zeros((chunk * tiles, heads, rows, LANES), word)
        acc = lax.fori_loop(np.int32(0), np.int32(steps), deepen, acc)
        return lax.dynamic_update_slice(out, acc, [first * np.int32(tiles), *[jnp.int32(0)] * 3])

    out = jnp.zeros((blocks * tiles, heads, rows, LANES), word)
    size = chunk * BLOCK
    count = (jnp.asarray(tokens, jnp.int32) + np.int32(size - 1)) // np.int32(size)
    return lax.fori_loop(np.int32(0), count, work, out)


def values_step(
    dot: DotProduct, k: int, acc: Array, weights: Array, w_fmt: Format, values: Array, v_fmt: Format
) -> Array:
    """One step of a value product: up to 32 tokens, in instructions of ``k`` terms, into live accumulators.

    Args:
        dot: the arithmetic.
        k: terms of one instruction; divides the number of tokens.
        acc: bits of ``dot.output``, [G, H, D / 16, R, 16]; NaN and infinities may be among them.
        weights: words of ``w_fmt``, [G, H, R, tokens], finite; zero where there is no token.
        w_fmt: format of the weights.
        values: words of ``v_fmt``, [G, tokens, H, D / 16, 16], finite.
        v_fmt: format of the values.

    Returns:
        The accumulators after the step.

    Raises:
        ValueError: more than 32 tokens, or not a multiple of ``k``.
    """
    groups, heads, rows, tokens = weights.shape
    depth = values.shape[3]
    if tokens > 32 or tokens % k:
        raise ValueError(
            f"{tokens} tokens in instructions of {k} terms; a step has at most 32, whole instructions"
        )
    side = Side(*lax.optimization_barrier(broadcast_side(weights, w_fmt, v_fmt, dot)))
    left: list[Split] = []
    right: list[Split] = []
    signs: Any = 0
    for u in range(tokens):
        left.append(Split(*(x[..., u].reshape(groups, heads, 1, rows, 1) for x in side[:3])))
        right.append(split(values[:, u].reshape(groups, heads, depth, 1, LANES), v_fmt, dot, u))
        signs = signs | (right[-1].sign & np.uint32(1 << u).astype(np.int32))
    own = side.signs.reshape(groups, heads, 1, rows, 1)
    return chain(dot, k, left, right, own, signs, acc, _fraction(dot, w_fmt, v_fmt))
