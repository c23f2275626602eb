import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.formats import BASES, parse_format
from verify.numerics import operations as ops
from verify.numerics.rounding import round_float

F32, F64, BF16 = BASES["f32"], BASES["f64"], BASES["bf16"]
INF, NAN = math.inf, math.nan


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


singles = st.one_of(
    st.floats(width=32),
    st.floats(-(2.0**-120), 2.0**-120, width=32),
    st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-126), 3.4028234663852886e38]),
    # Short significands, for sums and products that tie.
    st.builds(lambda m, e: math.ldexp(m, e), st.integers(-(2**13), 2**13), st.integers(-145, 100)),
)
doubles = st.one_of(st.floats(), st.floats(-(2.0**-1020), 2.0**-1020))


# -- the two routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "f32.ftz"])
@settings(max_examples=500)
@given(a=singles, b=singles, c=singles)
def test_machine_f32_is_the_exact_route(name, a, b, c):
    fmt = parse_format(name)
    fa, fb, fc = (ops.flush(v, fmt) for v in (a, b, c))
    assert same(ops.add(a, b, fmt), ops._add_exact(fa, fb, fmt))
    assert same(ops.sub(a, b, fmt), ops._add_exact(fa, -fb, fmt))
    assert same(ops.mul(a, b, fmt), ops._mul_exact(fa, fb, fmt))
    assert same(ops.div(a, b, fmt), ops._div_exact(fa, fb, fmt))
    assert same(ops.fma(a, b, c, fmt), ops._fma_exact(fa, fb, fc, fmt))
    assert same(ops.sqrt(a, fmt), ops._sqrt_exact(fa, fmt))


@pytest.mark.parametrize("name", ["f64", "f64.ftz"])
@settings(max_examples=500)
@given(a=doubles, b=doubles)
def test_machine_f64_is_the_exact_route(name, a, b):
    fmt = parse_format(name)
    fa, fb = ops.flush(a, fmt), ops.flush(b, fmt)
    assert same(ops.add(a, b, fmt), ops._add_exact(fa, fb, fmt))
    assert same(ops.mul(a, b, fmt), ops._mul_exact(fa, fb, fmt))
    assert same(ops.div(a, b, fmt), ops._div_exact(fa, fb, fmt))
    assert same(ops.sqrt(a, fmt), ops._sqrt_exact(fa, fmt))


def test_numpy_float32_arithmetic():
    """Against NumPy's own float32 operations, a third of the results subnormal."""
    rng = np.random.default_rng(0)
    size = 3000
    exponents = rng.integers(-149, 20, (2, size))
    exponents[1, ::3] = -126 - exponents[0, ::3] // 2
    a, b = np.ldexp(rng.uniform(-2, 2, (2, size)), np.maximum(exponents, -149)).astype(np.float32)
    b[b == 0] = 1
    with np.errstate(all="ignore"):
        for mine, theirs in (
            (ops.add, a + b),
            (ops.sub, a - b),
            (ops.mul, a * b),
            (ops.div, a / b),
        ):
            for x, y, z in zip(a.tolist(), b.tolist(), theirs.tolist(), strict=True):
                assert same(mine(x, y, F32), z)
        for x, z in zip(abs(a).tolist(), np.sqrt(abs(a)).tolist(), strict=True):
            assert same(ops.sqrt(x, F32), z)


# -- values known from elsewhere --------------------------------------------------------------------------


def test_bf16_fma_needs_the_exact_product():
    # 3 * 87 = 261 lies halfway between 260 and 262; a sum in f32 loses 2^-20 and would tie to 260.
    assert ops.fma(3.0, 87.0, 2.0**-20, BF16) == 262.0
    assert ops.fma(3.0, 87.0, 0.0, BF16) == 260.0
    assert ops.fma(3.0, 87.0, -(2.0**-20), BF16) == 260.0


def test_f32_fma_keeps_the_low_half_of_the_product():
    x = 1 + 2.0**-23
    assert ops.fma(x, x, -(1 + 2.0**-22), F32) == 2.0**-46
    # The exact sum is a tie plus 2^-100: rounding to f64 first would lose it.
    assert ops.fma(1.0, 1.0, 2.0**-24, F32) == 1.0
    y = 1 + 2.0**-12
    assert ops.fma(y, y, 2.0**-100, F32) == 1 + 2.0**-11 + 2.0**-23
    assert ops.fma(y, y, -(2.0**-100), F32) == 1 + 2.0**-11


def test_f64_fma_is_exact():
    x = 1 + 2.0**-52
    assert ops.fma(x, x, -(1 + 2.0**-51), F64) == 2.0**-104
    assert ops.fma(5e-324, 0.5, 5e-324, F64) == 1e-323
    assert ops.fma(1e308, 10.0, -INF, F64) == -INF
    assert ops.fma(1e308, 10.0, -1.7e308, F64) == INF


def test_bf16_sum_drops_what_bf16_drops():
    """The error term of a compensated sum, which excess precision would turn into 0."""
    x, y = 1.0, 2.0**-8
    total = ops.add(x, y, BF16)
    assert total == 1.0
    assert ops.sub(y, ops.sub(total, x, BF16), BF16) == y


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ops.add(2.0**-8, 1 + 2.0**-40, BF16), 1.0078125),
        (lambda: ops.div(1.0, 3.0, BASES["f16"]), 0.333251953125),
        (lambda: ops.div(1.0, 3.0, parse_format("f16.rz")), 0.333251953125),
        (lambda: ops.div(2.0, 3.0, parse_format("f16.rz")), 0.66650390625),
        (lambda: ops.div(2.0, 3.0, BASES["f16"]), 0.66650390625),
        (lambda: ops.div(2.0, 3.0, BASES["e5m2"]), 0.625),
        (lambda: ops.sqrt(2.0, BF16), 1.4140625),
        (lambda: ops.sqrt(2.0, F64), 1.4142135623730951),
        (lambda: ops.sqrt(2.0, parse_format("f64.rz")), 1.4142135623730949),
        (lambda: ops.sqrt(2.0, parse_format("f32.rz")), 0xB504F3 * 2.0**-23),
        (lambda: ops.sqrt(3.0, F32), 0xDDB3D7 * 2.0**-23),
        (lambda: ops.sqrt(3.0, parse_format("f32.rz")), 0xDDB3D7 * 2.0**-23),
        (lambda: ops.sqrt(5e-324, F64), 2.2227587494850775e-162),
        (lambda: ops.sqrt(1.7976931348623157e308, BF16), INF),
        (lambda: ops.sqrt(2.25, parse_format("f64.rz")), 1.5),
        (lambda: ops.mul(16.0, 28.0, BASES["e4m3fn"]), 448.0),
        (lambda: ops.mul(16.0, 30.0, BASES["e4m3fn"]), NAN),
        (lambda: ops.mul(16.0, -30.0, parse_format("e4m3fn.sat")), -448.0),
        (lambda: ops.add(65504.0, 16.0, BASES["f16"]), INF),
        (lambda: ops.add(65504.0, 16.0, parse_format("f16.rz")), 65504.0),
        (lambda: ops.mul(2.0**-100, 2.0**-49, F32), 2.0**-149),
        (lambda: ops.mul(2.0**-100, -(2.0**-49), parse_format("f32.ftz")), -0.0),
        (lambda: ops.mul(2.0**-140, 2.0**60, parse_format("f32.ftz")), 0.0),
        (lambda: ops.mul(2.0**-140, 2.0**60, F32), 2.0**-80),
        (lambda: ops.div(1.0, -(2.0**-140), parse_format("f32.ftz")), -INF),
        (lambda: ops.div(1.0, -(2.0**-140), F32), -INF),
        (lambda: ops.div(1.0, -(2.0**-120), F32), -(2.0**120)),
        (lambda: ops.fma(2.0**-140, 2.0**20, 1.0, parse_format("f32.ftz")), 1.0),
    ],
)
def test_known_results(call, expected):
    assert same(call(), expected)


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f16.ftz", "tf32.rz"])
def test_zeros_infinities_and_nan(name):
    fmt = parse_format(name)
    table = [
        (ops.add, (0.0, -0.0), 0.0),
        (ops.add, (-0.0, -0.0), -0.0),
        (ops.add, (1.5, -1.5), 0.0),
        (ops.sub, (-0.0, 0.0), -0.0),
        (ops.sub, (0.0, 0.0), 0.0),
        (ops.add, (INF, -INF), NAN),
        (ops.add, (INF, 1.0), INF),
        (ops.mul, (-0.0, 2.0), -0.0),
        (ops.mul, (-0.0, -2.0), 0.0),
        (ops.mul, (0.0, INF), NAN),
        (ops.mul, (-INF, 2.0), -INF),
        (ops.div, (0.0, 0.0), NAN),
        (ops.div, (INF, INF), NAN),
        (ops.div, (1.0, -0.0), -INF),
        (ops.div, (-1.0, INF), -0.0),
        (ops.div, (INF, -2.0), -INF),
        (ops.div, (INF, 0.0), INF),
        (ops.div, (-0.0, 3.0), -0.0),
        (ops.div, (NAN, 0.0), NAN),
        (ops.fma, (0.0, 1.0, -0.0), 0.0),
        (ops.fma, (-0.0, 1.0, -0.0), -0.0),
        (ops.fma, (2.0, 1.0, -2.0), 0.0),
        (ops.fma, (INF, 0.0, 1.0), NAN),
        (ops.fma, (INF, 1.0, -INF), NAN),
        (ops.fma, (2.0, 1.0, -INF), -INF),
        (ops.fma, (2.0, 1.0, NAN), NAN),
        (ops.sqrt, (-0.0,), -0.0),
        (ops.sqrt, (-1.0,), NAN),
        (ops.sqrt, (INF,), INF),
        (ops.sqrt, (-INF,), NAN),
    ]
    for operation, operands, expected in table:
        assert same(operation(*operands, fmt), expected), (operation.__name__, operands)


@given(a=st.floats(width=32, allow_nan=False, allow_infinity=False), b=st.floats(width=16, allow_nan=False))
def test_operands_of_a_wider_format_round_once(a, b):
    if math.isfinite(b):
        exact = Fraction(a) + Fraction(b)
        result = ops.add(a, b, BASES["f16"])
        below, above = (math.nextafter(float(exact), s) for s in (-INF, INF))
        assert round_float(below, BASES["f16"]) <= result <= round_float(above, BASES["f16"])


def test_an_f64_operand_of_an_f32_operation_is_not_rounded_first():
    # 1 + 2^-24 is no f32; rounded first it would be 1, and the sum 2.
    assert ops.add(1 + 2.0**-24, 1 + 3 * 2.0**-24, F32) == 2 + 2.0**-22
    assert ops.fma(1 + 2.0**-24, 1.0, -1.0, F32) == 2.0**-24
    # The exact sum lies above a tie of f32, its double on it.
    assert ops.add(1.0, 2.0**-24 + 2.0**-60, F32) == 1 + 2.0**-23


def test_square_roots_just_above_a_tie():
    """If n is odd with 54 bits and n^2 + 7 = x 2^54, sqrt(x 2^54) is above the midpoint n by 2^-51 only."""
    root = 1
    for bit in range(3, 60):  # lift a square root of -7 modulo 2^bit to one modulo 2^(bit + 1)
        if (root * root + 7) % 2 ** (bit + 1):
            root += 2 ** (bit - 1)
    found = []
    for n in {sign * root % 2**54 | high for sign in (1, -1) for high in (0, 2**53)}:
        x, rest = divmod(n * n + 7, 2**54)
        if rest == 0 and 2**53 < n < 2**54 and float(x) == x:
            found.append(n)
            assert ops._sqrt_exact(math.ldexp(x, 54), F64) == math.sqrt(math.ldexp(x, 54)) == float(n + 1)
    # Without the part above the tie one of these would go to its even neighbour, n - 1.
    assert any(n % 4 == 1 for n in found)
