"""Chained scores and value steps: bit for bit the scalar definition, whatever the shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.formats import BASES, Format
from tests.verify.dots import Case, Words, scalar_words
from tests.verify.engine.test_tensor_core import AMPERE, BF16, F16, F32, HOPPER, draw
from verify.engine import tensor_core_kernels as kernels
from verify.engine.contract import BLOCK, COMPILER_OPTIONS, LANES

E4M3, TF32 = BASES["e4m3fn"], BASES["tf32"]
LATE = find(load_platform("h100").dot_products, "mma", E4M3, E4M3, F32, 32)
WIDE = find(load_platform("b200").dot_products, "tcgen05", E4M3, E4M3, F32, 32)
HALF = find(load_platform("h200").dot_products, "mma", F16, F16, F16, 16)
TENSOR32 = find(load_platform("a100").dot_products, "mma", TF32, TF32, F32, 8)


def laid_out(k: Words, capacity: int) -> Words:
    """Words [tokens, H, D] in the layout of prepared keys, zeros in padding."""
    tokens, heads, dim = k.shape
    depth = -(-dim // LANES)
    whole = np.zeros((capacity, heads, depth * LANES), k.dtype)
    whole[:tokens, :, :dim] = k
    shaped = whole.reshape(capacity // BLOCK, BLOCK // LANES, LANES, heads, depth, LANES)
    return np.ascontiguousarray(shaped.transpose(0, 4, 1, 3, 5, 2))


def finite(words: Words, fmt: Format) -> Words:
    """Words with NaN and infinities replaced."""
    top = word = words.dtype.type((1 << (fmt.bits - 1)) - 1)
    limit = ((fmt.emax - fmt.emin + 2) << (fmt.p - 1)) if fmt.inf else int(top)
    limit <<= 13 if fmt.base == "tf32" else 0
    return np.where((words & word) >= limit, words & ~words.dtype.type(limit & -limit), words)


def sample(fmt: Format, dot: DotProduct, shape: tuple[int, ...], seed: int) -> Words:
    """Words of mixed classes: subnormals, zeros of both signs, wide ranges, everything but NaN and infinities."""
    n = int(np.prod(shape))
    kinds = ("any bits", "near one", "wide", "subnormal", "sparse")
    parts = [draw(kind, seed + i, dot, fmt, 16, -(-n // 80) + 1).a.ravel() for i, kind in enumerate(kinds)]
    mixed = np.concatenate(parts)
    np.random.default_rng(seed).shuffle(mixed)
    return finite(mixed[:n], fmt).reshape(shape)


@pytest.mark.parametrize(
    ("dot", "k", "fmt", "heads", "rows", "dim"),
    [
        pytest.param(HOPPER, 16, BF16, 2, 3, 40, id="hopper-bf16"),
        pytest.param(AMPERE, 16, BF16, 1, 2, 32, id="ampere-bf16", marks=pytest.mark.slow),  # the next has it
        pytest.param(AMPERE, 8, F16, 1, 1, 24, id="ampere-f16-k8"),
        pytest.param(HALF, 16, F16, 1, 2, 32, id="f16-to-f16"),
        pytest.param(TENSOR32, 8, TF32, 1, 2, 16, id="tf32"),
        pytest.param(LATE, 32, E4M3, 1, 2, 48, id="hopper-fp8-compiled"),
        pytest.param(WIDE, 32, E4M3, 1, 1, 32, id="tcgen05-fp8"),
    ],
)
def test_scores(dot: DotProduct, k: int, fmt: Format, heads: int, rows: int, dim: int) -> None:
    tokens, capacity = 530, 2 * BLOCK
    q = sample(fmt, dot, (heads, rows, dim), 1)
    key = sample(fmt, dot, (tokens, heads, dim), 2)
    run = jax.jit(
        lambda q, keys, n: kernels.qk(dot, k, q, fmt, keys, fmt, n), compiler_options=COMPILER_OPTIONS
    )
    tiles = np.asarray(run(q, laid_out(key, capacity), np.int32(tokens)))
    found = tiles.transpose(0, 3, 1, 2).reshape(capacity, heads, rows)
    at = np.random.default_rng(3).choice(tokens, 150, replace=False)
    a = np.broadcast_to(q, (len(at), *q.shape)).reshape(-1, dim)
    b = np.broadcast_to(key[at][:, :, None], (len(at), heads, rows, dim)).reshape(-1, dim)
    zero = np.zeros(len(a), found.dtype)
    expected = scalar_words(Case("", dot, k, fmt, a, b, zero, zero)).reshape(len(at), heads, rows)
    assert np.array_equal(found[at], expected)
    assert not found[tokens:].any()


def test_only_chunks_with_live_tokens_are_scored() -> None:
    q = sample(BF16, HOPPER, (1, 1, 16), 4)
    key = sample(BF16, HOPPER, (10 * BLOCK, 1, 16), 5)
    run = jax.jit(lambda q, keys, n: kernels.qk(HOPPER, 16, q, BF16, keys, BF16, n))
    keys = laid_out(key, 10 * BLOCK)
    whole = np.asarray(run(q, keys, np.int32(10 * BLOCK)))
    some = np.asarray(run(q, keys, np.int32(17)))
    assert np.array_equal(some[:2], whole[:2])
    assert not some[8 * BLOCK // LANES :].any()
    assert not np.asarray(run(q, keys, np.int32(0))).any()
    a, zero = np.repeat(q[0], 64, axis=0), np.zeros(64, np.uint32)
    expected = scalar_words(Case("", HOPPER, 16, BF16, a, key[-64:, 0], zero, zero))
    assert np.array_equal(whole[-4:].reshape(-1), expected)


@pytest.mark.parametrize(
    ("dot", "k", "fmt", "tokens"),
    [
        pytest.param(HOPPER, 16, BF16, 16, id="hopper"),
        pytest.param(AMPERE, 16, BF16, 16, id="ampere"),
        pytest.param(AMPERE, 8, F16, 32, id="four instructions"),
        pytest.param(LATE, 32, E4M3, 32, id="late"),
    ],
)
def test_steps_of_a_value_product(dot: DotProduct, k: int, fmt: Format, tokens: int) -> None:
    groups, heads, rows, depth, steps = 2, 1, 3, 2, 3
    weights = sample(fmt, dot, (steps, groups, heads, rows, tokens), 6)
    values = sample(fmt, dot, (steps, groups, tokens, heads, depth, LANES), 7)
    start = draw("great accumulator", 8, dot, fmt, 16, groups * heads * depth * rows * LANES).c
    start[:3] = [0x7F800000, 0xFF800000, 0x7FC00000]
    start = start.reshape(groups, heads, depth, rows, LANES)

    @jax.jit
    def run(acc: Any, weights: Any, values: Any) -> Any:
        def step(i: Any, acc: Any) -> Any:
            w, v = (jax.lax.dynamic_index_in_dim(x, i, 0, False) for x in (weights, values))
            return kernels.values_step(dot, k, acc, w, fmt, v, fmt)

        return jax.lax.fori_loop(0, steps, step, acc)

    found = np.asarray(run(jnp.asarray(start), jnp.asarray(weights), jnp.asarray(values)))
    shape = (groups, heads, depth, rows, LANES, steps, tokens)
    a = np.moveaxis(weights, 0, 3)[:, :, None, :, None]
    b = np.moveaxis(np.moveaxis(values, (0, 2), (4, 5)), 3, 3)[:, :, :, None]
    a, b = (np.broadcast_to(x, shape).reshape(-1, steps * tokens) for x in (a, b))
    flat = start.reshape(-1)
    assert np.array_equal(found.reshape(-1), scalar_words(Case("", dot, k, fmt, a, b, flat, flat)))


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, keys = np.zeros((1, 1, 16), np.uint16), np.zeros((1, 1, 32, 1, 16, 16), np.uint16)
    with pytest.raises(ValueError, match="instructions of 24 terms"):
        kernels.qk(HOPPER, 24, jnp.asarray(q), BF16, jnp.asarray(keys), BF16, jnp.int32(1))
    acc, v = jnp.zeros((1, 1, 1, 1, 16), jnp.uint32), jnp.zeros((1, 24, 1, 1, 16), jnp.uint16)
    with pytest.raises(ValueError, match="24 tokens in instructions of 16 terms"):
        kernels.values_step(HOPPER, 16, acc, jnp.zeros((1, 1, 1, 24), jnp.uint16), BF16, v, BF16)
