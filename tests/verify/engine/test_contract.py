"""Order-exact contractions against NumPy loops that add one token, or one head_dim entry, at a time."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify.engine import contract

F32 = np.float32


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    return rng.standard_normal(shape).astype(F32).astype(dtype)


def loop_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """[H, R, D] x [T, H, D] -> [H, R, T], d ascending, one rounding per product and per sum."""
    q, k = q.astype(F32), k.astype(F32)
    acc = np.zeros((*q.shape[:2], len(k)), F32)
    for d in range(q.shape[2]):
        acc = (acc + (q[:, :, d, None] * k[:, :, d].T[:, None, :]).astype(F32)).astype(F32)
    return acc


def loop_values(w: np.ndarray, v: np.ndarray, tokens: list[np.ndarray]) -> np.ndarray:
    """[H, R, T] x [T, H, D] -> [G, H, R, D], tokens of a group in visiting order."""
    v = v.astype(F32)
    out = []
    for group in tokens:
        acc = np.zeros((*w.shape[:2], v.shape[2]), F32)
        for t in group:
            acc = (acc + (w[:, :, t, None] * v[t][:, None, :]).astype(F32)).astype(F32)
        out.append(acc)
    return np.array(out)


def loop_sums(w: np.ndarray, tokens: list[np.ndarray]) -> np.ndarray:
    out = []
    for group in tokens:
        acc = np.zeros(w.shape[:2], F32)
        for t in group:
            acc = (acc + w[:, :, t]).astype(F32)
        out.append(acc)
    return np.array(out)


def split_backwards(n: int, blocks: int) -> list[np.ndarray]:
    """Contiguous groups of 64-token blocks, the last block of each group visited first."""
    count = -(-n // 64)
    return [
        np.concatenate(
            [np.arange(b * 64, min(n, b * 64 + 64)) for b in reversed(range(g, min(count, g + blocks)))]
        )
        for g in range(0, count, blocks)
    ]


def dealt(n: int, groups: int) -> list[np.ndarray]:
    """256-token tiles dealt round-robin."""
    tiles = [np.arange(t, min(n, t + 256)) for t in range(0, n, 256)]
    return [np.concatenate(tiles[g::groups]) for g in range(min(groups, len(tiles)))]


def padded(tokens: list[np.ndarray]) -> contract.Steps:
    """Tables of one size for all plans here, so that a kernel compiles once a shape; never called aligned."""
    return dataclasses.replace(contract.steps_from_plan(tokens, groups=8, steps=96), aligned=False)


def to_plan_by_hand(w: np.ndarray, steps: contract.Steps) -> np.ndarray:
    """[H, R, T] to plan layout with +0 in padding, by lists of tokens."""
    groups, count = steps.start.shape
    out = np.zeros((groups, count, *w.shape[:2], contract.LANES), F32)
    for g in range(groups):
        for s in range(count):
            first, size = steps.start[g, s], steps.length[g, s]
            out[g, s, :, :, :size] = w[:, :, first : first + size]
    return out


def same_bits(got: object, want: np.ndarray) -> None:
    got = np.asarray(got)
    assert got.shape == want.shape
    assert got.dtype == want.dtype == F32
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@jax.jit
def scores_exact(q: jax.Array, keys: jax.Array, n: jax.Array) -> jax.Array:
    return contract.natural(contract.ordered_scores(q, keys, n))


@jax.jit
def scores_rounded(q: jax.Array, keys: jax.Array, n: jax.Array, zero: jax.Array) -> jax.Array:
    return contract.natural(contract.ordered_scores(q, keys, n, exact=False, zero=zero))


@jax.jit
def values_exact(w: jax.Array, values: jax.Array, steps: contract.Steps) -> jax.Array:
    return contract.ordered_values(w, values, steps)


@jax.jit
def values_rounded(w: jax.Array, values: jax.Array, steps: contract.Steps, zero: jax.Array) -> jax.Array:
    return contract.ordered_values(w, values, steps, exact=False, zero=zero)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("dim", [1, 16, 17, 32])
def test_a_sum_of_minus_zeros_is_plus_zero(dim: int, parallel: bool) -> None:
    """The accumulator starts at +0, also where a loop of one trip lets the compiler see the first addition."""
    q = np.full((1, 2, dim), -0.0, F32)
    keys = contract.prepare_keys(np.ones((20, 1, dim), ml_dtypes.bfloat16), 512)

    def score(q: jax.Array, keys: jax.Array, n: jax.Array) -> jax.Array:
        return contract.natural(contract.ordered_scores(q, keys, n, parallel=parallel))

    got = np.asarray(jax.jit(score)(q, keys, np.int32(20)))[:, :, :20]
    same_bits(got, np.zeros((1, 2, 20), F32))


@pytest.mark.parametrize(
    ("heads", "rows", "dim", "tokens", "capacity"),
    [
        (1, 1, 1, 5, 512),
        (1, 1, 256, 700, 1024),
        (3, 3, 64, 1000, 1536),
        (4, 6, 80, 530, 1024),
        (2, 40, 48, 90, 512),
    ],
)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_scores_add_head_dim_in_order(
    heads: int, rows: int, dim: int, tokens: int, capacity: int, dtype: object
) -> None:
    rng = np.random.default_rng(dim)
    q, k = draw(rng, (heads, rows, dim), dtype), draw(rng, (tokens, heads, dim), dtype)
    got = scores_exact(q.astype(F32), contract.prepare_keys(k, capacity), np.int32(tokens))
    same_bits(got[:, :, :tokens], loop_scores(q, k))


def test_scores_round_products_of_f32() -> None:
    rng = np.random.default_rng(7)
    q, k = draw(rng, (2, 3, 96), F32), draw(rng, (600, 2, 96), F32)
    want = loop_scores(q, k)
    fused = np.zeros(want.shape, F32)
    for d in range(96):  # what contraction into FMAs would give
        product = q[:, :, d, None].astype(np.float64) * k[:, :, d].T[:, None, :].astype(np.float64)
        fused = (fused.astype(np.float64) + product).astype(F32)
    assert np.mean(fused != want) > 0.1
    got = scores_rounded(q, contract.prepare_keys(k, 1024), np.int32(600), np.uint32(0))
    same_bits(got[:, :, :600], want)


def test_scores_of_bits_equal_scores_of_bfloat16() -> None:
    rng = np.random.default_rng(8)
    k = draw(rng, (30, 2, 32), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        contract.prepare_keys(k, 512), contract.prepare_keys(k.view(np.uint16), 512)
    )


@pytest.mark.parametrize(("heads", "rows"), [(1, 2), (4, 5)])
def test_scores_of_live_tokens_ignore_what_follows_and_the_capacity(heads: int, rows: int) -> None:
    rng = np.random.default_rng(9)
    q, k = draw(rng, (heads, rows, 32), ml_dtypes.bfloat16), draw(rng, (5500, heads, 32), ml_dtypes.bfloat16)
    k[4900:] = 3e38
    want = loop_scores(q, k[:4900])
    for capacity in (5632, 6656, 8192):  # 11, 13 and 16 blocks: chunks of 8 fit, overlap, or stop early
        got = scores_exact(q.astype(F32), contract.prepare_keys(k, capacity), np.int32(4900))
        same_bits(got[:, :, :4900], want)


def test_scores_of_no_tokens_are_zero() -> None:
    keys = contract.prepare_keys(np.ones((3, 1, 16), np.float16), 512)
    assert not np.any(scores_exact(np.ones((1, 1, 16), F32), keys, np.int32(0)))


TOKENS = 1477
PLANS = [
    pytest.param(split_backwards(TOKENS, 3), id="last-block-first"),
    pytest.param(dealt(1400, 3), id="round-robin"),
    pytest.param([np.arange(0, 432), np.arange(432, 864), np.arange(864, 901)], id="contiguous"),
    pytest.param(list(np.array_split(np.random.default_rng(1).permutation(333), 4)), id="permutation"),
    pytest.param([np.arange(5, 50), np.zeros(0, np.int64), np.arange(50, 51)], id="ragged-and-empty"),
]


@pytest.mark.parametrize("tokens", PLANS)
@pytest.mark.parametrize(("heads", "rows", "dim"), [(1, 1, 1), (4, 6, 64), (2, 3, 40), (2, 100, 256)])
def test_values_add_tokens_in_visiting_order(
    tokens: list[np.ndarray], heads: int, rows: int, dim: int
) -> None:
    if rows == 100:
        tokens = [t[:100] for t in tokens]
    rng = np.random.default_rng(dim)
    v = draw(rng, (TOKENS, heads, dim), ml_dtypes.bfloat16)
    w = np.abs(draw(rng, (heads, rows, TOKENS), ml_dtypes.bfloat16)).astype(F32)
    steps = padded(tokens)
    got = values_exact(to_plan_by_hand(w, steps), contract.prepare_values(v, TOKENS), steps)
    same_bits(contract.join_values(got, dim)[: len(tokens)], loop_values(w, v, tokens))
    assert not np.any(got[len(tokens) :])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_values_round_products_with_f32_weights(dtype: object) -> None:
    rng = np.random.default_rng(3)
    tokens = split_backwards(277, 2)
    v, w = draw(rng, (277, 2, 32), dtype), draw(rng, (2, 3, 277), F32)
    want = loop_values(w, v, tokens)
    fused = np.zeros(want.shape, F32)
    for g, group in enumerate(tokens):
        for t in group:
            product = w[:, :, t, None].astype(np.float64) * v[t][:, None, :].astype(np.float64)
            fused[g] = (fused[g].astype(np.float64) + product).astype(F32)
    assert np.mean(fused != want) > 0.1
    steps = contract.steps_from_plan(tokens)
    got = values_rounded(to_plan_by_hand(w, steps), contract.prepare_values(v, 277), steps, np.uint32(0))
    same_bits(contract.join_values(got, 32), want)


def test_both_forms_give_the_same_bits() -> None:
    rng = np.random.default_rng(11)
    tokens = split_backwards(150, 1)
    steps = contract.steps_from_plan(tokens)
    q, k = draw(rng, (2, 3, 20), ml_dtypes.bfloat16), draw(rng, (150, 2, 20), ml_dtypes.bfloat16)
    w, zero = draw(rng, (2, 3, 150), F32), np.uint32(0)
    weights, values, keys = (
        to_plan_by_hand(w, steps),
        contract.prepare_values(k, 150),
        contract.prepare_keys(k, 512),
    )

    @functools.partial(jax.jit, static_argnames="parallel")
    def run(q: jax.Array, keys: jax.Array, zero: jax.Array, *, parallel: bool) -> tuple[jax.Array, jax.Array]:
        scores = contract.ordered_scores(q, keys, jnp.int32(150), parallel=parallel)
        sums = contract.ordered_values(weights, values, steps, exact=False, zero=zero, parallel=parallel)
        return contract.natural(scores)[:, :, :150], contract.join_values(sums, 20)

    for parallel in (True, False):
        scores, sums = run(q.astype(F32), keys, zero, parallel=parallel)
        same_bits(scores, loop_scores(q, k))
        same_bits(sums, loop_values(w, k, tokens))


def test_operands_may_be_literals_and_kernels_may_sit_in_branches() -> None:
    rng = np.random.default_rng(12)
    tokens = split_backwards(700, 4)
    steps = contract.steps_from_plan(tokens)
    q, k = draw(rng, (2, 3, 64), ml_dtypes.bfloat16), draw(rng, (700, 2, 64), ml_dtypes.bfloat16)
    w = np.abs(draw(rng, (2, 3, 700), ml_dtypes.bfloat16)).astype(F32)
    weights, values, keys = (
        to_plan_by_hand(w, steps),
        contract.prepare_values(k, 700),
        contract.prepare_keys(k, 1024),
    )
    query = q.astype(F32)

    def sums() -> tuple[jax.Array, jax.Array, jax.Array]:
        return (
            contract.natural(contract.ordered_scores(query, keys, jnp.int32(700)))[:, :, :700],
            contract.join_values(contract.ordered_values(weights, values, steps), 64),
            contract.ordered_sums(weights, steps),
        )

    want = loop_scores(q, k), loop_values(w, k, tokens), loop_sums(w, tokens)
    branch = jax.jit(lambda yes: jax.lax.cond(yes, sums, lambda: jax.tree.map(jnp.zeros_like, sums())))
    for got in (jax.jit(sums)(), branch(True)):
        for have, expected in zip(got, want, strict=True):
            same_bits(have, expected)
    assert not any(np.any(x) for x in branch(False))


def test_a_batch_axis_maps_over_the_kernels() -> None:
    rng = np.random.default_rng(13)
    tokens = split_backwards(100, 1)
    steps = contract.steps_from_plan(tokens)
    q, k = draw(rng, (3, 1, 2, 32), ml_dtypes.bfloat16), draw(rng, (3, 100, 1, 32), ml_dtypes.bfloat16)
    w = np.abs(draw(rng, (3, 1, 2, 100), ml_dtypes.bfloat16)).astype(F32)
    weights = np.array([to_plan_by_hand(x, steps) for x in w])
    values = np.array([contract.prepare_values(x, 100) for x in k])
    keys = np.array([contract.prepare_keys(x, 512) for x in k])
    lengths = np.array([100, 60, 100], np.int32)
    scores = jax.jit(jax.vmap(contract.ordered_scores))(q.astype(F32), keys, lengths)
    sums = jax.jit(jax.vmap(lambda w, v: contract.ordered_values(w, v, steps)))(weights, values)
    for i, n in enumerate(lengths):
        same_bits(contract.natural(scores[i])[:, :, :n], loop_scores(q[i], k[i][:n]))
        same_bits(contract.join_values(sums[i], 32), loop_values(w[i], k[i], tokens))


def test_values_stay_positive_zero_where_products_are_negative_zero() -> None:
    steps = contract.steps_from_plan([np.arange(20)])
    v = np.full((20, 1, 16), -1, ml_dtypes.bfloat16)
    got = values_exact(np.zeros((1, 2, 1, 1, 16), F32), contract.prepare_values(v, 20), steps)
    same_bits(contract.join_values(got, 16), np.zeros((1, 1, 1, 16), F32))


@pytest.mark.parametrize("tokens", PLANS)
def test_sums_add_weights_in_visiting_order(tokens: list[np.ndarray]) -> None:
    w = draw(np.random.default_rng(4), (2, 3, TOKENS), F32)
    steps = padded(tokens)
    got = jax.jit(contract.ordered_sums)(to_plan_by_hand(w, steps), steps)
    same_bits(got[: len(tokens)], loop_sums(w, tokens))
    assert not np.any(got[len(tokens) :])


@pytest.mark.parametrize("tokens", PLANS)
@pytest.mark.parametrize("padding", [True, False])
def test_to_plan_picks_the_tokens_of_every_step(tokens: list[np.ndarray], padding: bool) -> None:
    w = draw(np.random.default_rng(5), (2, 3, contract.capacity_of(TOKENS)), F32)
    tiles = w.reshape(2, 3, -1, 16).transpose(2, 0, 1, 3)
    steps = padded(tokens) if padding else contract.steps_from_plan(tokens)
    got = np.where(steps.live()[:, :, None, None, :], jax.jit(contract.to_plan)(tiles, steps), F32(0))
    same_bits(got, to_plan_by_hand(w, steps))
    same_bits(contract.natural(jnp.asarray(tiles)), w)


def test_one_compilation_serves_many_lengths_and_partitions() -> None:
    @jax.jit
    def attend(
        q: jax.Array, keys: jax.Array, values: jax.Array, n: jax.Array, steps: contract.Steps
    ) -> object:
        tiles = contract.ordered_scores(q, keys, n)
        rounded = jax.lax.reduce_precision(jnp.abs(contract.to_plan(tiles, steps)), 8, 7)
        weights = jnp.where(steps.live()[:, :, None, None, :], rounded, 0)
        return contract.ordered_values(weights, values, steps), contract.ordered_sums(weights, steps)

    rng = np.random.default_rng(6)
    k, v = draw(rng, (2000, 2, 32), ml_dtypes.bfloat16), draw(rng, (2000, 2, 32), ml_dtypes.bfloat16)
    q = draw(rng, (2, 3, 32), ml_dtypes.bfloat16)
    keys, values = contract.prepare_keys(k, 2048), contract.prepare_values(v, 2048)
    for n, plan in [
        (1477, split_backwards(1477, 5)),
        (2000, dealt(2000, 3)),
        (64, [np.arange(64)]),
        (900, dealt(900, 2)),
    ]:
        steps = contract.steps_from_plan(plan, groups=5, steps=64)
        got_values, got_sums = attend(q.astype(F32), keys, values, np.int32(n), steps)
        w = np.abs(loop_scores(q, k[:n])).astype(ml_dtypes.bfloat16).astype(F32)
        same_bits(contract.join_values(got_values, 32)[: len(plan)], loop_values(w, v, plan))
        same_bits(got_sums[: len(plan)], loop_sums(w, plan))
        assert not np.any(got_values[len(plan) :])
        assert not np.any(got_sums[len(plan) :])
        assert attend._cache_size() == 1


def test_64_bit_types_change_nothing() -> None:
    rng = np.random.default_rng(14)
    tokens = split_backwards(300, 1)
    steps = contract.steps_from_plan(tokens)
    q, k = draw(rng, (1, 2, 32), ml_dtypes.bfloat16), draw(rng, (300, 1, 32), ml_dtypes.bfloat16)
    w = draw(rng, (1, 2, 300), F32)
    with jax.enable_x64(True):
        scores = scores_exact(q.astype(F32), contract.prepare_keys(k, 512), np.int32(300))
        weights, values = to_plan_by_hand(w, steps), contract.prepare_values(k, 300)
        sums = values_rounded(weights, values, steps, np.uint32(0))
        total = jax.jit(contract.ordered_sums)(weights, steps)
    same_bits(scores[:, :, :300], loop_scores(q, k))
    same_bits(contract.join_values(sums, 32), loop_values(w, k, tokens))
    same_bits(total, loop_sums(w, tokens))


def test_kernels_hold_inside_scan_and_with_the_compiler_options() -> None:
    rng = np.random.default_rng(10)
    tokens = split_backwards(200, 2)
    steps = contract.steps_from_plan(tokens)
    q, k = draw(rng, (4, 2, 3, 16), ml_dtypes.bfloat16), draw(rng, (200, 2, 16), ml_dtypes.bfloat16)
    v, w = draw(rng, (200, 2, 16), ml_dtypes.bfloat16), draw(rng, (2, 3, 200), F32)
    weights, zero = to_plan_by_hand(w, steps), np.uint32(0)
    keys, values = contract.prepare_keys(k, 512), contract.prepare_values(v, 512)

    def run(q: jax.Array, keys: jax.Array, values: jax.Array, weights: jax.Array, zero: jax.Array) -> object:
        def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, object]:
            s = contract.natural(contract.ordered_scores(x, keys, carry, exact=False, zero=zero))
            return carry, (s, contract.ordered_values(weights, values, steps, exact=False, zero=zero))

        return jax.lax.scan(body, jnp.int32(200), q)[1]

    compiled = jax.jit(run, compiler_options=contract.COMPILER_OPTIONS)
    scores, sums = compiled(q.astype(F32), keys, values, weights, zero)
    for i in range(4):
        same_bits(scores[i][:, :, :200], loop_scores(q[i], k))
        same_bits(contract.join_values(sums[i], 16), loop_values(w, v, tokens))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 200), max_size=60), min_size=1, max_size=5), st.integers(0, 3))
def test_steps_list_the_tokens_in_visiting_order(tokens: list[list[int]], spare: int) -> None:
    bare = contract.steps_from_plan([np.array(t, np.int64) for t in tokens])
    steps = contract.steps_from_plan(
        [np.array(t, np.int64) for t in tokens],
        groups=bare.start.shape[0] + spare,
        steps=bare.start.shape[1] + spare,
    )
    assert steps.groups == len(tokens)
    for g, want in enumerate(tokens):
        runs = zip(steps.start[g, : steps.count[g]], steps.length[g, : steps.count[g]], strict=True)
        assert [t for first, size in runs for t in range(first, first + size)] == want
        assert np.all(steps.length[g, : steps.count[g]] > 0)
        assert not np.any(steps.length[g, steps.count[g] :])
    assert not np.any(steps.count[len(tokens) :])
    assert steps.aligned == all(first % 16 == 0 for first in steps.start.ravel())


def test_a_plan_without_groups_sums_to_nothing() -> None:
    steps = contract.steps_from_plan([])
    assert steps.groups == 0
    w, v = np.ones((1, 1, 1, 1, 16), F32), contract.prepare_values(np.ones((4, 1, 3), F32), 4)
    assert not np.any(contract.ordered_values(w, v, steps))
    assert not np.any(contract.ordered_sums(w, steps))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
def test_decode_of_27525_tokens_bit_for_bit(parallel: bool) -> None:
    rng = np.random.default_rng(15)
    n = 27_525
    q = draw(rng, (4, 6, 256), ml_dtypes.bfloat16)
    k, v = draw(rng, (n, 4, 256), ml_dtypes.bfloat16), draw(rng, (n, 4, 256), ml_dtypes.bfloat16)
    w = np.abs(draw(rng, (4, 6, n), ml_dtypes.bfloat16)).astype(F32)
    score = jax.jit(functools.partial(contract.ordered_scores, parallel=parallel))
    keys = contract.prepare_keys(k, contract.capacity_of(n))
    same_bits(contract.natural(score(q.astype(F32), keys, np.int32(n)))[:, :, :n], loop_scores(q, k))
    values, widened = contract.prepare_values(v, n), v.astype(F32)
    add_up = jax.jit(functools.partial(contract.ordered_values, parallel=parallel))
    segments = [np.arange(t, min(n, t + 1728)) for t in range(0, n, 1728)]
    for tokens in (split_backwards(n, 8), dealt(n, 33), segments):
        steps = contract.steps_from_plan(tokens)
        got = add_up(to_plan_by_hand(w, steps), values, steps)
        same_bits(contract.join_values(got, 256), loop_values(w, widened, tokens))


def test_steps_of_a_plan_that_does_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 groups of up to 3 steps"):
        contract.steps_from_plan([np.arange(40), np.arange(40, 50)], groups=2, steps=2)


def test_rounded_products_need_the_run_time_zero() -> None:
    with pytest.raises(ValueError, match="zero"):
        contract.ordered_scores(
            jnp.zeros((1, 1, 16)), jnp.zeros((1, 1, 32, 1, 16, 16)), jnp.int32(1), exact=False
        )
