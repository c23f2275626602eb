"""exp, exp2 and log of the carriers: hard cases, subnormal results, special values, and f64 against flint."""

import math

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specs.formats import BASES, parse_format
from verify.engine.primitives import F32, F64, ZERO, F32Exact, x64
from verify.numerics import elementary
from verify.numerics.hard_cases import TABLES

F, D = BASES["f32"], BASES["f64"]
NAMES = ["exp", "exp2", "log"]
POINTS = {
    "exp": -np.linspace(0, 110, 20011),
    "exp2": np.linspace(-155, 130, 20011),
    "log": np.geomspace(1e-44, 1e38, 20011),
}


def run_words(carrier, name, stored, fmt=F):
    """The words of a function of stored f32 words, and the risk flag of each element alone."""

    def alone(zero, word):
        k = carrier(zero)
        return k.encode(getattr(k, name)(k.decode(word, F), fmt), fmt), k.risk()

    with x64():
        got, flag = jax.jit(jax.vmap(alone, (None, 0)))(ZERO, stored)
    return np.asarray(got), np.asarray(flag)


@pytest.mark.parametrize("name", NAMES)
def test_hard_cases(name):
    table = np.array(TABLES[name], np.uint32)
    got, _ = run_words(F32Exact, name, table[:, 0])
    assert np.array_equal(got, table[:, 1])
    got, flag = run_words(F32, name, table[:, 0])
    assert np.array_equal(got[~flag], table[:, 1][~flag])
    assert np.count_nonzero(~flag) > 30


@pytest.mark.parametrize("name", NAMES)
def test_points_against_rounded_float64(name):
    x = POINTS[name].astype(np.float32)
    want = getattr(elementary, f"{name}_f32")(x).view(np.uint32)
    got, _ = run_words(F32Exact, name, x.view(np.uint32))
    assert np.array_equal(got, want)
    got, flag = run_words(F32, name, x.view(np.uint32))
    assert np.array_equal(got[~flag], want[~flag])
    # Raised just where operand or result is subnormal, but for a small margin of the exponentials.
    subnormal = [(w & 0x7FFFFFFF) - np.uint32(1) < 0x7FFFFF for w in (x.view(np.uint32), want)]
    needed = subnormal[0] if name == "log" else subnormal[0] | subnormal[1]
    assert np.all(flag[needed])
    assert np.count_nonzero(flag & ~needed) <= 3


@jax.jit
def double_functions(zero, x):
    """exp, exp2 and log of doubles, each with the flag of the element: compiled once, for 16 elements."""

    def alone(v):
        f, g = F64(zero), F64(zero)
        exp = f.exp(v), f.risk()
        return exp, (g.exp2(v), g.risk()), (g.log(v), jnp.array(False))

    return jax.vmap(alone)(x)


@pytest.mark.parametrize("carrier", [F32, F32Exact, F64])
def test_special_values(carrier):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0, -2.0], carrier.width.real)

    @jax.jit
    def run(zero, x):
        k = carrier(zero)
        return k.exp(x), k.exp2(x), k.log(x)

    with x64():
        got = [v for v, _ in double_functions(ZERO, np.resize(x, 16))] if carrier is F64 else run(ZERO, x)
    exp, exp2, log = (np.asarray(y)[:8].tolist() for y in got)
    assert exp[:3] == [1.0, 1.0, math.inf]
    assert (exp[3], math.copysign(1, exp[3])) == (0.0, 1.0)
    assert exp2[:4] == [1.0, 1.0, math.inf, 0.0]
    assert exp2[5:] == [2.0, 8.0, 0.25]
    assert log[:3] == [-math.inf, -math.inf, math.inf]
    assert log[5] == 0.0
    assert all(math.isnan(v) for v in (exp[4], exp2[4], log[3], log[4], log[7]))


def test_scores_far_below_the_maximum_have_subnormal_weights():
    x = -np.linspace(87, 105, 4001).astype(np.float32)
    with flint.ctx.workprec(120):
        want = [float(np.float32(float(flint.arb(float(v)).exp().mid()))) for v in x]
    got, flag = run_words(F32Exact, "exp", x.view(np.uint32))
    assert np.array_equal(got.view(np.float32), np.array(want, np.float32))
    assert not flag.any()
    fast, flag = run_words(F32, "exp", x.view(np.uint32))
    assert np.all(flag | (fast == got))
    assert np.count_nonzero(flag) > 3000


@pytest.mark.parametrize("name", ["bf16", "f16", "f32.ftz"])
@pytest.mark.parametrize("function", NAMES)
def test_one_rounding_to_other_formats(name, function):
    fmt = parse_format(name)
    x = POINTS[function].astype(np.float32)[::37]
    got, _ = run_words(F32Exact, function, x.view(np.uint32), fmt)
    want = [getattr(elementary, function)(float(v), fmt) for v in x]
    with x64():
        held = jax.jit(lambda z, w: F64(z).decode(w, BASES[fmt.base]))(ZERO, got)
    assert np.array_equal(held, want)


def nearest(ball):
    """The double that the midpoint of a 200-bit ball rounds to, ties aside."""
    mantissa, exponent = ball.mid().man_exp()
    mantissa, exponent = int(mantissa), int(exponent)
    shift = abs(mantissa).bit_length() - 53
    if shift > 0:
        mantissa, exponent = (mantissa + (1 << (shift - 1))) >> shift, exponent + shift
    return math.ldexp(mantissa, exponent)


BALLS = {"exp": lambda x: x.exp(), "exp2": lambda x: flint.arb(2) ** x, "log": lambda x: x.log()}


def doubles(name, count):
    """Random doubles over the range of the function, tiny ones, ones next to 1, and preimages of midpoints.

    The double nearest to the preimage of a midpoint has a result that lies up to 2**-50 of a unit from it.
    """
    rng = np.random.default_rng(8)
    small = rng.standard_normal(count // 4) * 10.0 ** rng.uniform(-18, 0, count // 4)
    powers = 2.0 ** -np.arange(1.0, 70)
    if name == "log":
        wide = np.exp(rng.uniform(-708, 709, count - count // 4))
        values = rng.uniform(300, 700, 2000)
        return np.concatenate(
            [wide, np.abs(1 + small), 1 + powers, 1 - powers[:53], np.exp(values + np.spacing(values) / 2)]
        )
    reach = (-708.3, 709.7) if name == "exp" else (-1021.9, 1023.9)
    size = rng.integers(0, 2 ** rng.integers(1, 40, 3000)) * 2.0 + 1
    above, below = np.log1p(size * 2.0**-53), np.log1p(-size * 2.0**-54)
    hard = np.concatenate([above, below]) / (1 if name == "exp" else np.log(2))
    return np.concatenate([rng.uniform(*reach, count - count // 4), small, powers, -powers, hard])


@pytest.mark.parametrize("name", NAMES)
def test_f64_functions_are_correctly_rounded(name):
    x = doubles(name, 34000)
    x = x[x > 0] if name == "log" else x
    with x64():
        got = np.asarray(jax.jit(lambda z, x: getattr(F64(z), name)(x))(ZERO, x))
    with flint.ctx.workprec(200):
        want = np.array([nearest(BALLS[name](flint.arb(v))) for v in x.tolist()])
    assert np.array_equal(got.view(np.uint64), want.view(np.uint64))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_f64_functions_on_a_million_points(name):
    x = doubles(name, 1_000_000)
    x = x[x > 0] if name == "log" else x
    with x64():
        got = np.asarray(jax.jit(lambda z, x: getattr(F64(z), name)(x))(ZERO, x))
    with flint.ctx.workprec(200):
        want = np.array([nearest(BALLS[name](flint.arb(v))) for v in x.tolist()])
    assert np.array_equal(got.view(np.uint64), want.view(np.uint64))


def test_f64_carrier_rounds_functions_once():
    fmt = BASES["bf16"]
    x = doubles("exp", 400)
    x = x[np.abs(x) < 80]
    with x64():
        got = jax.jit(lambda z, x: (F64(z).exp(x, fmt), F64(z).log(F64(z).abs(x), fmt)))(ZERO, x)
    for values, function, points in zip(got, (elementary.exp, elementary.log), (x, np.abs(x)), strict=True):
        assert np.asarray(values).tolist() == [function(v, fmt) for v in points.tolist()]


def test_f64_subnormal_results_are_flagged():
    x = np.array([-708.3, -708.5, -745.1, -745.2, -np.inf])
    with x64():
        (_, flag), _, _ = double_functions(ZERO, np.resize(x, 16))
    assert np.asarray(flag)[:5].tolist() == [False, True, True, False, False]
