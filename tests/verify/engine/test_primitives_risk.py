"""The risk flag: up wherever the fast carrier is wrong, down on ordinary numbers, carried out of loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from specs.formats import BASES, parse_format
from verify.engine.primitives import F32, F64, ZERO, F32Exact, x64

F, BF16, F16 = BASES["f32"], BASES["bf16"], BASES["f16"]
FTZ = parse_format("f32.ftz")
MIN = 2.0**-126

OPERATIONS = {
    "add": lambda k, x, y, z: k.add(x, y),
    "sub": lambda k, x, y, z: k.sub(x, y),
    "mul": lambda k, x, y, z: k.mul(x, y),
    "div": lambda k, x, y, z: k.div(x, y),
    "fma": lambda k, x, y, z: k.fma(x, y, z),
    "rcp": lambda k, x, y, z: k.rcp(x),
    "exp": lambda k, x, y, z: k.exp(x),
    "exp2": lambda k, x, y, z: k.exp2(x),
    "max": lambda k, x, y, z: k.maximum(x, y),
    "less": lambda k, x, y, z: k.select(k.compare("<", x, y), 1.0, 0.0),
    "bf16": lambda k, x, y, z: k.cast(x, BF16),
    "f16": lambda k, x, y, z: k.cast(x, F16),
    "bf16.mul": lambda k, x, y, z: k.mul(x, y, BF16),
    "bf16.add": lambda k, x, y, z: k.add(x, y, BF16),
    "f32.ftz mul": lambda k, x, y, z: k.mul(x, y, FTZ),
    "f32.ftz div": lambda k, x, y, z: k.div(x, y, FTZ),
    "f32.ftz fma": lambda k, x, y, z: k.fma(x, y, z, FTZ),
    "f32.ftz add": lambda k, x, y, z: k.add(x, y, FTZ),
    "f32.ftz exp": lambda k, x, y, z: k.exp(x, FTZ),
}


@jax.jit
def compare(zero, a, b, c):
    """For every operation: where the fast carrier differs from the exact one, and each element's own flag."""

    def alone(x, y, z):
        out = {}
        for name, operation in OPERATIONS.items():
            f, e = F32(zero), F32Exact(zero)
            fast = operation(f, *(f.decode(w, F) for w in (x, y, z)))
            exact = operation(e, *(e.decode(w, F) for w in (x, y, z)))
            out[name] = f.encode(fast) != e.encode(exact), f.risk()
        return out

    return jax.vmap(alone)(a, b, c)


def near_the_edge(seed, count):
    """Words of operands whose sums, products, quotients and exponentials are around 2**-126."""
    rng = np.random.default_rng(seed)
    fraction = rng.integers(0, 1 << 23, (3, count), dtype=np.uint32)
    fraction[rng.random((3, count)) < 0.3] |= 0x7FFF00
    fraction[rng.random((3, count)) < 0.2] &= 0x7F0000
    field = np.choose(
        rng.integers(0, 4, (3, count)),
        [
            rng.integers(0, 3, (3, count)),
            rng.integers(55, 73, (3, count)),
            rng.integers(125, 129, (3, count)),
            rng.integers(251, 255, (3, count)),
        ],
    ).astype(np.uint32)
    words = (
        fraction | field << np.uint32(23) | rng.integers(0, 2, (3, count), dtype=np.uint32) << np.uint32(31)
    )
    score = -rng.uniform(85, 152, count).astype(np.float32)
    at = rng.random(count) < 0.2
    words[0, at] = score.view(np.uint32)[at]
    return words


def test_never_wrong_without_a_flag():
    with x64():
        got = jax.tree.map(np.asarray, compare(ZERO, *near_the_edge(1, 40000)))
    seen = 0
    for name, (wrong, flag) in got.items():
        assert not np.any(wrong & ~flag), name
        seen += np.count_nonzero(wrong)
    assert seen > 20000


def test_the_zone_where_hardware_flushes_before_it_rounds():
    """(1 - 2**-24) * 2**-126 is halfway: it rounds to the normal 2**-126, which is no subnormal to flush."""
    a = np.array([1 - 2.0**-24], np.float32)
    b = np.array([MIN], np.float32)
    with x64():
        got = compare(ZERO, *(np.resize(np.float32(x), 8).view(np.uint32) for x in (a, b, [0.0])))
        exact = jax.jit(lambda z, a, b: F32Exact(z).mul(a, b, FTZ))(ZERO, a.astype(float), b.astype(float))
    assert np.asarray(exact)[0] == MIN
    for name in ("mul", "f32.ftz mul", "f32.ftz fma"):
        wrong, flag = got[name]
        assert bool(flag[0]) >= bool(wrong[0])


WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8).map(lambda x: np.array(x, np.uint32))


@given(WORDS, WORDS, WORDS)
@settings(max_examples=40, deadline=None)
def test_never_wrong_without_a_flag_on_any_words(a, b, c):
    with x64():
        for name, (wrong, flag) in compare(ZERO, a, b, c).items():
            assert not np.any(np.asarray(wrong) & ~np.asarray(flag)), name


def test_ordinary_numbers_zeros_infinities_and_nan_raise_nothing():
    x = np.array([0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan, 2.0**-100], np.float32)
    a, b = (y.ravel() for y in np.meshgrid(x, x))
    tiny = (np.abs(a) < 1) & (a != 0) & (np.abs(b) < 1) & (b != 0)

    @jax.jit
    def run(zero, a, b):
        k = F32(zero)
        k.add(a, b)
        k.mul(a, b)
        k.fma(a, b, a)
        k.exp(a)
        k.div(a, b)
        k.cast(a, F16)
        return k.risk()

    with x64():
        assert not run(ZERO, a[~tiny], b[~tiny])
        assert run(ZERO, a[tiny], b[tiny])


def test_weights_below_the_last_subnormal_are_plain_zeros():
    with x64():
        x = np.array([-104.5, -1e4, -np.inf, 0.0], np.float32)
        got, risk = jax.jit(lambda z, x: (lambda k: (k.exp(x), k.risk()))(F32(z)))(ZERO, x)
    assert np.asarray(got).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert not risk


@pytest.mark.parametrize("fmt", [F, BF16])
def test_decode_flags_subnormal_words(fmt):
    one = np.array([1], np.uint32 if fmt is F else np.uint16)
    with x64():
        for check in (True, False):
            run = jax.jit(lambda z, w, c=check: (lambda k: (k.decode(w, fmt, check=c), k.risk()))(F32(z)))
            assert bool(run(ZERO, one)[1]) is check
            assert not run(ZERO, np.zeros_like(one))[1]


def test_subnormal_constants_are_flagged():
    with x64():
        run = jax.jit(lambda z, x: (lambda k: (k.add(x, 2.0**-140), k.risk()))(F32(z)))
        assert run(ZERO, np.ones(3, np.float32))[1]


def test_checks_can_be_left_out():
    x = np.full(5, 2.0**-100, np.float32)
    with x64():
        run = jax.jit(lambda z, x: (lambda k: (k.mul(x, x, check=False), k.risk()))(F32(z)))
        assert not run(ZERO, x)[1]


def halving(k, state, _):
    return k.mul(state, 0.5), None


@pytest.mark.parametrize("steps", [100, 140])
@pytest.mark.parametrize("loop", ["scan", "fori_loop", "vmap", "cond", "own scan", "nested"])
def test_flags_leave_loops(loop, steps):
    """Halving 1 is fine 126 times, and subnormal after that."""

    @jax.jit
    def run(zero, x):
        k = F32(zero)

        def many(y):
            return k.scan(halving_of, y, None, length=steps)[0]

        def halving_of(y, _):
            return halving(k, y, _)

        if loop == "scan":
            out = many(x)
        elif loop == "fori_loop":
            out = k.fori_loop(0, steps, lambda i, y: halving_of(y, None)[0], x)
        elif loop == "vmap":
            out = k.vmap(many)(jnp.stack([x, x]))
        elif loop == "cond":
            out = k.cond(x[0] > 0, many, lambda y: y, x)
        elif loop == "nested":
            out = k.fori_loop(0, 1, lambda i, y: many(y), x)
        else:

            def body(carry, _):
                y, flag = carry
                with k.scope():
                    y, _ = halving_of(y, None)
                    flag = flag | k.take_risk()
                return (y, flag), None

            (out, flag), _ = lax.scan(body, (x, jnp.zeros((), bool)), None, length=steps)
            k.note(flag)
        return out, k.risk()

    with x64():
        _, risk = run(ZERO, np.ones(4, np.float32))
    assert bool(risk) is (steps > 126)


def test_take_risk_forgets():
    @jax.jit
    def run(zero, x):
        k = F32(zero)
        k.mul(x, x)
        first = k.take_risk()
        return first, k.risk()

    with x64():
        first, second = run(ZERO, np.full(3, 2.0**-100, np.float32))
    assert bool(first)
    assert not bool(second)


def test_the_exact_carrier_is_never_at_risk():
    with x64():
        words = near_the_edge(2, 500)
        run = jax.jit(
            lambda z, a, b: (lambda k: (k.mul(k.decode(a, F), k.decode(b, F)), k.risk()))(F32Exact(z))
        )
        assert not run(ZERO, words[0], words[1])[1]


def test_f64_flags_its_own_subnormals():
    def alone(zero, a, b):
        k = F64(zero)
        k.mul(a, b)
        return k.risk()

    a = np.array([1.0, 2.0**-600, 0.0, 2.0**-500])
    with x64():
        flags = jax.jit(jax.vmap(alone, (None, 0, 0)))(ZERO, a, a)
    assert np.asarray(flags).tolist() == [False, True, False, False]
