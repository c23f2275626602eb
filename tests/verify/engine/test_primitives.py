"""The carriers' arithmetic, bit for bit, against NumPy and against exact rationals rounded once."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from specs.errors import UnsupportedError
from specs.formats import BASES, parse_format
from verify.engine.primitives import F32, F64, ZERO, F32Exact, exact_product, x64
from verify.numerics import operations, rounding

F, D, BF16 = BASES["f32"], BASES["f64"], BASES["bf16"]
EDGES = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        2.0**-126,
        2.0**-149,
        3.4028235e38,
        2.0**-75,
        2.0**-63,
        3.0,
    ],
    np.float32,
)


@pytest.fixture(autouse=True)
def quiet():
    """The references overflow, underflow and meet NaN on purpose."""
    with np.errstate(all="ignore"):
        yield


def words(x):
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def assert_same(got, want):
    """Equal bits, NaN with NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    same = (got.view(words(want).dtype) == words(want)) | (np.isnan(got) & np.isnan(want))
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, (wrong.size, wrong[0], got.ravel()[wrong[0]], want.ravel()[wrong[0]])


def singles(seed, count):
    """f32 numbers of four kinds: any bits, around 1, tiny, values of bf16; edges sprinkled in."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 2**32, count, dtype=np.uint32)
    tiny = rng.integers(0, 2**25, count, dtype=np.uint32) | rng.integers(0, 2, count, dtype=np.uint32) << 31
    kinds = [any_bits.view(np.float32), rng.standard_normal(count).astype(np.float32)]
    kinds += [tiny.view(np.float32), (any_bits & np.uint32(0xFFFF0000)).view(np.float32)]
    x = np.choose(rng.integers(0, 4, count), kinds)
    at = rng.random(count) < 0.1
    x[at] = rng.choice(EDGES, at.sum())
    return x


def triples(seed, count):
    """Three operands; a fifth of the third cancel the product of the others."""
    a, b, c = singles(seed, count), singles(seed + 1, count), singles(seed + 2, count)
    near = np.random.default_rng(seed).random(count) < 0.2
    with np.errstate(all="ignore"):
        c[near] = (-(a.astype(np.float64) * b)).astype(np.float32)[near]
    return a, b, c


def tiny(x):
    return (np.abs(x) < 2.0**-126) & (x != 0)


def operate(carrier, arrays, fmt):
    """Every operation on stored f32 (or f64) words, encoded to ``fmt``."""

    @jax.jit
    def run(zero, *stored):
        k = carrier(zero)
        a, b, c = (k.decode(x, D if carrier is F64 else F) for x in stored)
        values = {
            "add": k.add(a, b, fmt),
            "sub": k.sub(a, b, fmt),
            "mul": k.mul(a, b, fmt),
            "div": k.div(a, b, fmt),
            "fma": k.fma(a, b, c, fmt),
            "sqrt": k.sqrt(a, fmt),
            "cast": k.cast(a, fmt),
        }
        return {n: k.encode(v, fmt) for n, v in values.items()}

    with x64():
        got = run(ZERO, *(words(x) for x in arrays))
    return {n: rounding.decode(np.asarray(v), BASES[fmt.base]) for n, v in got.items()}


def by_rationals(arrays, fmt):
    a, b, c = (x.astype(np.float64).tolist() for x in arrays)
    pair = {n: getattr(operations, n) for n in ("add", "sub", "mul", "div")}
    want = {n: [f(x, y, fmt) for x, y in zip(a, b, strict=True)] for n, f in pair.items()}
    want["fma"] = [operations.fma(x, y, z, fmt) for x, y, z in zip(a, b, c, strict=True)]
    want["sqrt"] = [operations.sqrt(x, fmt) for x in a]
    want["cast"] = [rounding.round_float(x, fmt) for x in a]
    return {n: np.array(v) for n, v in want.items()}


FORMATS = ["f32", "f32.ftz", "f32.rz", "f32.sat", "tf32", "bf16", "bf16.rz", "bf16.ftz"]
FORMATS += ["f16", "f16.rz", "e5m2.ftz", "e5m2.sat", "e4m3fn", "e4m3fn.sat"]


#: Whose base and modifier others have: f32, bf16 and f16 toward zero or flushing, e4m3fn with saturation.
MORE = ("f32.sat", "bf16.rz", "bf16.ftz", "f16.rz", "e5m2.ftz")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in MORE else ()) for n in FORMATS]
)
def test_exact_carrier_rounds_once_to_every_format(name):
    """On demand: formats whose base and whose modifier others here have."""
    fmt, arrays = parse_format(name), triples(7, 1200)
    got, want = operate(F32Exact, arrays, fmt), by_rationals(arrays, fmt)
    for operation in want:
        assert_same(got[operation], want[operation])


@pytest.mark.parametrize("name", ["f32", "f32.ftz", "f32.rz", "bf16", "f16", "e4m3fn.sat"])
def test_fast_carrier_rounds_once_where_nothing_is_subnormal(name):
    fmt, arrays = parse_format(name), triples(11, 1200)
    got, want = operate(F32, arrays, fmt), by_rationals(arrays, fmt)
    for operation in want:
        used = {"sqrt": 1, "cast": 1, "fma": 3}.get(operation, 2)
        normal = ~np.any([tiny(x) for x in arrays[:used]], axis=0)
        # Just below 2**-126 hardware may flush before it rounds; the risk flag says so.
        normal &= ~tiny(by_rationals(arrays, F)[operation]) & (np.abs(want[operation]) != 2.0**-126)
        assert np.count_nonzero(normal) > 400
        assert_same(got[operation][normal], want[operation][normal])


@pytest.mark.parametrize("name", ["f64", "f64.ftz", "f32", "bf16.rz", "e4m3fn"])
def test_double_carrier_rounds_once(name):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 1200)) * 2.0 ** rng.integers(-160, 160, (2, 1200))
    c = np.where(rng.random(1200) < 0.3, -(a * b), rng.standard_normal(1200))
    a[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1 + 2.0**-8 + 2.0**-40, 464.0, 1e200]
    got, want = operate(F64, (a, b, c), parse_format(name)), by_rationals((a, b, c), parse_format(name))
    for operation in want:
        assert_same(got[operation], want[operation])


@pytest.mark.parametrize("count", [1, 257, 30011])
def test_f32_equals_numpy_in_fused_expressions_of_any_size(count):
    a, b, c = np.random.default_rng(count).standard_normal((3, count)).astype(np.float32)

    @jax.jit
    def run(zero, a, b, c):
        k = F32(zero)
        scaled = k.mul(k.mul(a, 1.1), 2.3)
        shifted = k.add(k.add(a, 1.1), 2.3)
        common = k.add(k.mul(a, b[0]), k.mul(c, b[0]))
        plain = k.add(k.mul(a, b), c)
        return (
            scaled,
            shifted,
            common,
            plain,
            k.div(a, 3.0),
            k.div(k.div(a, b), c),
            k.sub(c, k.mul(a, b)),
            k.risk(),
        )

    s1, s2, three = np.float32(1.1), np.float32(2.3), np.float32(3)
    want = (a * s1 * s2, a + s1 + s2, a * b[0] + c * b[0], a * b + c, a / three, a / b / c, c - a * b)
    with x64():
        *got, risk = run(ZERO, a, b, c)
    for x, y in zip(got, want, strict=True):
        assert_same(x, y)
    assert not risk


def test_division_by_a_row_a_scalar_and_the_reciprocal():
    rng = np.random.default_rng(0)
    a, row = rng.standard_normal((300, 65)).astype(np.float32), rng.uniform(1, 3, 300).astype(np.float32)
    run = jax.jit(
        lambda z, a, r: (
            F32(z).div(a, r[:, None]),
            F32(z).div(a, r[0]),
            F32(z).rcp(r),
            F32(z).rcp(F32(z).sqrt(r)),
        )
    )
    with x64():
        by_row, by_scalar, rcp, rsqrt = run(ZERO, a, row)
    assert_same(by_row, a / row[:, None])
    assert_same(by_scalar, a / row[0])
    assert_same(rcp, np.float32(1) / row)
    assert_same(rsqrt, np.float32(1) / np.sqrt(row))


@pytest.mark.parametrize("carrier", [F32, F32Exact])
@pytest.mark.parametrize("loop", ["scan", "fori_loop", "unjitted scan"])
def test_loops_equal_numpy(carrier, loop):
    rng = np.random.default_rng(4)
    a, b, d = rng.uniform(0.5, 1.5, (3, 40, 130)).astype(np.float32)

    def step(k, state, row):
        x, y, z = row
        return k.div(k.add(k.mul(state, x), k.mul(y, z)), z)

    def run(zero, *stored):
        k = carrier(zero)
        rows = tuple(k.decode(x, F) for x in stored)
        if loop == "scan":
            state, _ = k.scan(lambda s, row: (step(k, s, row), None), rows[0][0], rows)
        else:
            state = k.fori_loop(0, 40, lambda i, s: step(k, s, [r[i] for r in rows]), rows[0][0])
        return k.encode(state)

    def eager(zero, *stored):
        def body(carry, row):
            k = carrier(carry[1])
            return (step(k, carry[0], [k.decode(x, F) for x in row]), carry[1]), None

        (state, _), _ = lax.scan(body, (jnp.asarray(a[0], carrier.width.real), jnp.asarray(zero)), stored)
        return jax.jit(lambda z, s: carrier(z).encode(s))(zero, state)

    state = a[0]
    for x, y, z in zip(a, b, d, strict=True):
        state = (state * x + y * z) / z
    with x64():
        got = (eager if loop == "unjitted scan" else jax.jit(run))(ZERO, *(words(x) for x in (a, b, d)))
    assert_same(np.asarray(got).view(np.float32), state)


def test_sums_run_in_order():
    x = (np.random.default_rng(1).standard_normal((3000, 3)) * 1e3).astype(np.float32)

    @jax.jit
    def run(zero, x):
        k = F32(zero)
        return k.scan(lambda t, row: (k.add(t, row), None), jnp.zeros_like(x[0]), x)[0]

    with x64():
        assert_same(run(ZERO, x), np.add.accumulate(x)[-1])


def test_bf16_chain_keeps_every_rounding():
    x = singles(3, 4000)
    x = x[np.isfinite(x) & (np.abs(x) > 1e-10) & (np.abs(x) < 1e10)].astype(ml_dtypes.bfloat16)
    a, b = x[: x.size // 2], x[x.size // 2 : x.size // 2 * 2]

    @jax.jit
    def run(zero, a, b):
        k = F32(zero)
        a, b = k.decode(a, BF16), k.decode(b, BF16)
        total = k.cast(k.add(a, b), BF16)
        return k.encode(k.cast(k.sub(b, k.cast(k.sub(total, a), BF16)), BF16), BF16)

    with x64():
        got = np.asarray(run(ZERO, words(a), words(b))).view(ml_dtypes.bfloat16)
    assert_same(got.astype(np.float32), (b - ((a + b) - a)).astype(np.float32))


def test_cast_rounds_a_double_once():
    with x64():
        got = jax.jit(lambda z, x: F64(z).encode(x, BF16))(ZERO, np.array([1 + 2.0**-8 + 2.0**-40]))
    assert np.asarray(got).view(ml_dtypes.bfloat16)[0] == 1.0078125


def test_e4m3fn_overflow_is_nan_unless_saturated():
    fp8 = parse_format("e4m3fn"), parse_format("e4m3fn.sat")
    with x64():
        x = np.array([448.0, 464.0, 500.0, -500.0, np.inf], np.float32)
        plain, saturated = jax.jit(lambda z, x: [F32(z).encode(x, f) for f in fp8])(ZERO, x)
    assert np.asarray(plain).tolist() == [0x7E, 0x7E, 0x7F, 0x7F, 0x7F]
    assert np.asarray(saturated).tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7E]


@pytest.mark.parametrize("carrier", [F32, F32Exact, F64])
@pytest.mark.parametrize("name", ["bf16", "f16", "e5m2", "e4m3fn"])
def test_every_stored_word_decodes_and_encodes(carrier, name):
    fmt = BASES[name]
    stored = np.arange(1 << fmt.bits, dtype=f"u{fmt.bits // 8}")

    @jax.jit
    def run(zero, x):
        k = carrier(zero)
        value = k.decode(x, fmt)
        return value, k.encode(value, fmt)

    with x64():
        value, back = run(ZERO, stored)
    want = stored.view(rounding.storage_dtype(fmt)).astype(np.float64)
    held = want.astype(carrier.width.real)
    keep = ~tiny(want) if carrier is F32 else np.ones(want.shape, bool)
    assert_same(np.asarray(value)[keep], held[keep])
    number = keep & ~np.isnan(want)
    assert np.array_equal(np.asarray(back)[number], stored[number])


@pytest.mark.parametrize("carrier", [F32, F32Exact])
def test_maximum_minimum_and_comparisons(carrier):
    grid = np.concatenate([EDGES, np.float32([-3.0, -(2.0**-149), 5.0])])
    grid = grid if carrier is F32Exact else grid[~tiny(grid)]
    a, b = (x.ravel() for x in np.meshgrid(grid, grid))

    @jax.jit
    def run(zero, a, b):
        k = carrier(zero)
        a, b = k.decode(a, F), k.decode(b, F)
        tests = {op: k.compare(op, a, b) for op in ("==", "!=", "<", "<=", ">", ">=")}
        values = [k.maximum(a, b), k.minimum(a, b), k.neg(a), k.abs(a), k.select(a < b, a, b)]
        over = [k.max_over(jnp.stack([a, b]), axis=0), k.min_over(jnp.stack([a, b]), axis=0)]
        return tests, [k.encode(v) for v in values + over], k.isnan(a)

    with x64():
        tests, values, nan = run(ZERO, words(a), words(b))
    for op, ufunc in {
        "==": np.equal,
        "!=": np.not_equal,
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
    }.items():
        assert np.array_equal(tests[op], ufunc(a, b))
    both_zero = (a == 0) & (b == 0)
    top = np.where(
        both_zero, np.where(np.signbit(a) & np.signbit(b), np.float32(-0.0), np.float32(0)), np.maximum(a, b)
    )
    low = np.where(
        both_zero, np.where(np.signbit(a) | np.signbit(b), np.float32(-0.0), np.float32(0)), np.minimum(a, b)
    )
    for got, want in zip(values, (top, low, -a, np.abs(a), np.where(a < b, a, b), top, low), strict=True):
        assert_same(np.asarray(got).view(np.float32), want)
    assert np.array_equal(nan, np.isnan(a))


def test_max_over_an_empty_axis_is_minus_infinity():
    with x64():
        got = jax.jit(lambda z, x: F32(z).max_over(x, axis=1))(ZERO, np.zeros((3, 0), np.float32))
    assert np.asarray(got).tolist() == [-np.inf] * 3


def test_adding_zero_makes_minus_zero_plus_zero():
    with x64():
        got = jax.jit(lambda z, x: F32(z).add(x, 0.0))(ZERO, np.full(9, -0.0, np.float32))
    assert not np.signbit(np.asarray(got)).any()


def test_zero_must_be_an_argument():
    with x64(), pytest.raises(TypeError, match="argument of the jitted function"):
        F32(ZERO)


def test_arrays_of_another_carrier_are_refused():
    with x64(), pytest.raises(TypeError, match="F32 holds float32, not float64"):
        jax.jit(lambda z, x: F32(z).add(x, x))(ZERO, np.zeros(3))
    with x64(), pytest.raises(TypeError, match="bits of bf16 come as uint16, not as uint32"):
        jax.jit(lambda z, x: F32(z).decode(x, BF16))(ZERO, np.zeros(3, np.uint32))


def test_what_no_carrier_does_is_said():
    x = np.ones(3, np.float32)
    with x64(), pytest.raises(UnsupportedError, match="toward zero"):
        jax.jit(lambda z, x: F32(z).exp(x, parse_format("f32.rz")))(ZERO, x)
    with x64(), pytest.raises(UnsupportedError, match="real"):
        jax.jit(lambda z, x: F32(z).cast(x, BASES["real"]))(ZERO, x)
    with x64(), pytest.raises(UnsupportedError, match=r"f64\.rz"):
        jax.jit(lambda z, x: F64(z).add(x, x, parse_format("f64.rz")))(ZERO, np.ones(3))


def test_exact_products():
    assert exact_product(BF16, BF16)
    assert exact_product(BASES["f16"], BASES["f16"])
    assert exact_product(BF16, BASES["tf32"])
    assert not exact_product(BF16, F)
    assert not exact_product(BASES["real"], BF16)
    assert exact_product(F, F, D)


LANES = 16
NUMBERS = st.lists(st.integers(0, 2**32 - 1), min_size=LANES, max_size=LANES).map(
    lambda x: np.array(x, np.uint32)
)


@jax.jit
def _laws(zero, a, b, c):
    k = F32Exact(zero)
    x, y, z = (k.decode(v, F) for v in (a, b, c))
    narrow = k.cast(x, BASES["f16"])
    pairs = {
        "add commutes": (k.add(x, y), k.add(y, x)),
        "mul commutes": (k.mul(x, y), k.mul(y, x)),
        "fma with one is add": (k.fma(x, 1.0, y), k.add(x, y)),
        "sub is add of neg": (k.sub(x, y), k.add(x, k.neg(y))),
        "max commutes": (k.maximum(x, y), k.maximum(y, x)),
        "max associates": (k.maximum(k.maximum(x, y), z), k.maximum(x, k.maximum(y, z))),
        "max and min are dual": (k.minimum(x, y), k.neg(k.maximum(k.neg(x), k.neg(y)))),
        "cast is idempotent": (narrow, k.cast(narrow, BASES["f16"])),
        "scaling up is undone": (k.select(k.abs(x) < 2.0**107, k.mul(k.mul(x, 2.0**20), 2.0**-20), x), x),
    }
    return {n: (k.encode(p), k.encode(q)) for n, (p, q) in pairs.items()}


@given(NUMBERS, NUMBERS, NUMBERS)
@settings(max_examples=60, deadline=None)
def test_laws(a, b, c):
    with x64():
        for law, (left, right) in _laws(ZERO, a, b, c).items():
            assert np.array_equal(left, right), law
