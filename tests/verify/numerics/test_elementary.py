import math

import flint
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.formats import BASES, Format, parse_format
from verify.numerics import elementary
from verify.numerics.elementary import (
    exp,
    exp2,
    exp2_f32,
    exp_f32,
    log,
    log2,
    log_f32,
    near_midpoint,
    rcp,
)
from verify.numerics.rounding import round_fraction

F32, F64, BF16 = BASES["f32"], BASES["f64"], BASES["bf16"]
INF, NAN = math.inf, math.nan
ARRAYS = {"exp": exp_f32, "exp2": exp2_f32, "log": log_f32}
SCALARS = {"exp": exp, "exp2": exp2, "log": log, "log2": log2}
BALLS = {
    "exp": lambda x: x.exp(),
    "exp2": lambda x: flint.arb(2) ** x,
    "log": lambda x: x.log(),
    "log2": lambda x: x.log() / flint.arb(2).log(),
}


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def bits32(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def single(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def array32(values) -> np.ndarray:
    return np.array(values, dtype=np.float32)


# -- values known from elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "x", "fmt", "expected"),
    [
        (exp, 1.0, "f64", math.e),
        (exp, 1.0, "f32", single(0x402DF854)),
        (exp, 1.0, "bf16", 2.71875),
        (exp, 1.0, "f32.rz", single(0x402DF854)),
        (exp, 1.0, "bf16.rz", 2.703125),
        (exp, 1.0, "e4m3fn", 2.75),
        (exp, 6.0, "e4m3fn", 416.0),
        (exp, 7.0, "e4m3fn", NAN),
        (exp, 7.0, "e4m3fn.sat", 448.0),
        (exp, -10.0, "f16", 762 * 2.0**-24),
        (exp, -10.0, "f16.ftz", 0.0),
        (exp, 0.0, "f32", 1.0),
        (exp, -0.0, "f32", 1.0),
        (exp, 2.0**-1074, "f64", 1.0),
        (exp, 2.0**-1074, "f64.rz", 1.0),
        (exp, -(2.0**-1074), "f64.rz", 1 - 2.0**-53),
        (exp, 709.782712893384, "f64", 1.7976931348622732e308),
        (exp, 709.7827128933841, "f64", INF),
        (exp, 709.7827128933841, "f64.rz", 1.7976931348623157e308),
        (exp, -745.1332191019411, "f64", 5e-324),
        (exp, -745.1332191019412, "f64", 0.0),
        (exp, -1e300, "f64", 0.0),
        (exp, 1e300, "f32.sat", 3.4028234663852886e38),
        # The ends of expf: the first two round below and to infinity, the others to 2^-149 and to zero.
        (exp, single(0x42B17217), "f32", single(0x7F7FFF84)),
        (exp, single(0x42B17218), "f32", INF),
        (exp, single(0xC2CFF1B4), "f32", 2.0**-149),
        (exp, single(0xC2CFF1B5), "f32", 0.0),
        (exp, -90.0, "f32.ftz", 0.0),
        (exp2, 0.5, "f32", single(0x3FB504F3)),
        (exp2, 10.0, "f32", 1024.0),
        (exp2, -149.0, "f32", 2.0**-149),
        (exp2, -150.0, "f32", 0.0),
        (exp2, math.nextafter(-150.0, 0), "f32", 2.0**-149),
        (exp2, 128.0, "f32", INF),
        (exp2, 128.0, "bf16.rz", 2.0**127 * (2 - 2.0**-7)),
        (exp2, 1e300, "f64", INF),
        (exp2, -1e300, "f64", 0.0),
        (exp2, -1074.0, "f64", 5e-324),
        (exp2, 5e-324, "f64", 1.0),
        (log, 1.0, "f32", 0.0),
        (log, 2.0, "f64", 0.6931471805599453),
        (log, 10.0, "f32", single(0x40135D8E)),
        (log, 10.0, "bf16", 2.296875),
        (log, math.e, "f64", 1.0),
        (log, 5e-324, "f64", -744.4400719213812),
        (log, 2.0**-149, "f32", single(0xC2CE8ED0)),
        (log, 2.0**-149, "f32.ftz", -INF),
        (log, 1.7976931348623157e308, "f64", 709.782712893384),
        (log, 1 - 2.0**-53, "e5m2", -0.0),
        (log2, 8.0, "f32", 3.0),
        (log2, 5e-324, "f64", -1074.0),
        (log2, 10.0, "f64", 3.321928094887362),
        (log2, 3.0, "f16", 1.5849609375),
        (rcp, 3.0, "f32", single(0x3EAAAAAB)),
        (rcp, -0.0, "f32", -INF),
        (rcp, 2.0**-140, "f32.ftz", INF),
        (rcp, INF, "bf16", 0.0),
    ],
)
def test_known_values(function, x, fmt, expected):
    assert same(function(x, parse_format(fmt)), expected)


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16.ftz", "e4m3fn"])
def test_special_operands(fmt):
    fmt = parse_format(fmt)
    infinity = INF if fmt.inf else NAN
    for function in (exp, exp2, log, log2):
        assert math.isnan(function(NAN, fmt))
        assert same(function(INF, fmt), infinity)
    assert same(exp(-INF, fmt), 0.0)
    assert same(exp2(-INF, fmt), 0.0)
    for function in (log, log2):
        assert same(function(0.0, fmt), -infinity)
        assert same(function(-0.0, fmt), -infinity)
        assert math.isnan(function(-1.0, fmt))
        assert math.isnan(function(-INF, fmt))


def test_the_worst_case_of_exp_in_double_precision():
    """The hardest double for exp (Lefevre and Muller 2001): 110 bits do not decide it."""
    x = float.fromhex("0x1.9E9CBBFD6080Bp-31")
    with flint.ctx.workprec(400):
        value = flint.arb(x).exp()
        guess = float(value.mid())
        below, above = math.nextafter(guess, 0.0), math.nextafter(guess, 2.0)
        midpoints = [(flint.arb(v) + flint.arb(guess)) / 2 for v in (below, above)]
        assert any(abs(value - m) < flint.arb(2) ** -105 for m in midpoints)
        expected = below if value < midpoints[0] else guess if value < midpoints[1] else above
    assert exp(x, F64) == expected


def test_the_sign_of_a_vanishing_result_is_decided():
    """An enclosure around zero rounds to zero at both ends, yet does not say which zero."""

    def unsure_at_first(_):
        return flint.arb(2.0**-200, 2.0**-100 if flint.ctx.prec < 100 else 0)

    assert same(elementary._ziv(unsure_at_first, 1.0, BASES["e5m2"]), 0.0)
    assert same(elementary._ziv(lambda x: -unsure_at_first(x), 1.0, BASES["e5m2"]), -0.0)


# -- against an enclosure of 400 bits ---------------------------------------------------------------------


def by_comparison(name: str, x: float, fmt: Format) -> float:
    """The nearest value of ``fmt``, found by comparing an enclosure with the midpoints around a guess."""
    with flint.ctx.workprec(400):
        value = BALLS[name](flint.arb(x))
        guess = round_fraction(elementary._exact(value.mid()), fmt)
        gap = flint.arb(2) ** (max(math.frexp(guess)[1] - fmt.p, fmt.quantum) - 1)
        # The spacing halves below a power of two.
        below = gap / 2 if abs(math.frexp(guess)[0]) == 0.5 and abs(guess) > 2.0**fmt.emin else gap
        toward, away = (gap, below) if guess < 0 else (below, gap)
        assert flint.arb(guess) - toward < value < flint.arb(guess) + away
    return guess


@pytest.mark.parametrize("fmt", ["f64", "f32", "bf16", "f16", "tf32"])
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2"])
@given(data=st.data())
def test_nearest(name, fmt, data):
    fmt = BASES[fmt]
    if name.startswith("exp"):
        scale = 1.0 if name == "exp2" else math.log(2)
        x = data.draw(st.floats(scale * (fmt.quantum + 1), scale * fmt.emax) | st.floats(-1e-3, 1e-3))
    else:
        x = data.draw(st.floats(5e-324, 1.7e308) | st.floats(0.99, 1.01))
    if (name.startswith("exp") and x == math.floor(x)) or x == 1.0:
        return
    if name == "log2" and math.frexp(x)[0] == 0.5:
        return
    assert same(SCALARS[name](x, fmt), by_comparison(name, x, fmt))


# -- float32 arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ARRAYS))
def test_arrays_agree_with_the_scalar_oracle(name):
    rng = np.random.default_rng(0)
    if name == "log":
        x = rng.integers(0, 0x7F800000, 3000, dtype=np.uint32).view(np.float32)
        x[:200] = array32(rng.integers(1, 2**23, 200)) * array32(2.0**-149)
    else:
        limits = (-104, 89) if name == "exp" else (-151, 129)
        x = rng.uniform(*limits, 3000).astype(np.float32)
        x[:700] = rng.uniform(limits[0], limits[0] + 17, 700).astype(np.float32)  # subnormal results
    result = ARRAYS[name](x)
    assert result.dtype == np.float32
    expected = [bits32(SCALARS[name](float(v), F32)) for v in x]
    assert result.view(np.uint32).tolist() == expected


def test_arrays_at_special_values():
    x = array32([0.0, -0.0, INF, -INF, NAN, -1.0, 2.0**-149, 3e38, -3e38, 1.0])
    signalling = np.array([0x7F800001], dtype=np.uint32).view(np.float32)

    def check(result, expected):
        assert np.array_equal(result.view(np.uint32), array32(expected).view(np.uint32))

    for array in ARRAYS.values():
        assert np.isnan(array(signalling)).all()
    finite = np.array([True, True, True, True, False, True, True, True, True, True])
    e = single(0x402DF854)
    check(exp_f32(x[finite]), [1, 1, INF, 0, single(0x3EBC5AB2), 1, INF, 0, e])
    check(exp2_f32(x[finite]), [1, 1, INF, 0, 0.5, 1, INF, 0, 2])
    positive = np.array([True, True, True, False, False, False, True, False, False, True])
    check(log_f32(x[positive]), [-INF, -INF, INF, single(0xC2CE8ED0), 0])
    for array in (exp_f32, exp2_f32, log_f32):
        assert math.isnan(array(x)[4])
    assert np.isnan(log_f32(x)[[3, 5, 8]]).all()


@pytest.mark.parametrize("array", list(ARRAYS.values()))
def test_array_shapes_are_kept(array):
    for shape in [(), (0,), (3, 2), (2, 0)]:
        result = array(np.full(shape, 0.5, dtype=np.float32))
        assert isinstance(result, np.ndarray)
        assert result.shape == shape
        assert result.dtype == np.float32
    grid = np.linspace(0.1, 2, 24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(array(grid.T[::2]), array(np.ascontiguousarray(grid.T[::2])))


def test_subnormal_results_of_exp_are_not_flushed():
    x = np.arange(-103.0, -87.4, 0.25, dtype=np.float32)
    result = exp_f32(x)
    assert (result > 0).all()
    assert (result < 2.0**-126).all()
    steps = np.exp(x.astype(np.float64)) / 2.0**-149
    assert np.abs(result.astype(np.float64) / 2.0**-149 - steps).max() <= 0.5


# -- the guard --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("code", [0x3F800000, 0x3FFFFFFF, 0x7F7FFFFE, 0x00800000, 0x007FFFFF, 0x00000001, 0])
def test_near_midpoint_counts_f64_ulps(code, sign):
    low, high = single(code), single(code + 1)
    midpoint = (low + high) / 2
    for steps in (-20, -17, -16, -3, 0, 1, 16, 17, 20):
        value = midpoint
        for _ in range(abs(steps)):
            value = math.nextafter(value, math.copysign(INF, steps))
        near = near_midpoint(np.array([sign * value]), 16)
        # Below a power of two f64 ulps halve, so the last steps on that side may count half.
        if abs(steps) in (17, 20) and math.frexp(midpoint)[0] == 0.5:
            continue
        assert near.tolist() == [abs(steps) <= 16]


def test_near_midpoint_is_never_at_a_value_of_f32_or_nan():
    with np.errstate(invalid="ignore"):
        codes = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
        wide = np.concatenate([codes.astype(np.float64), [NAN, INF, -INF, 0.0, -0.0, 5e-324]])
    assert not near_midpoint(wide, 16).any()


@pytest.mark.parametrize("name", list(ARRAYS))
@pytest.mark.parametrize("error", [-14, -6, 6, 14])
def test_a_poor_float64_function_does_not_matter(name, error, monkeypatch):
    """With every float64 value off by several ulps, the array functions still round right."""
    from verify.numerics.hard_cases import hard_cases

    honest = getattr(np, name)

    def poor(x):
        values = honest(x)
        return (values.view(np.int64) + error).view(np.float64)

    monkeypatch.setattr(elementary.np, name, poor)
    x, expected = hard_cases(name)
    assert ARRAYS[name](x).view(np.uint32).tolist() == expected.view(np.uint32).tolist()
    assert not np.array_equal(poor(x.astype(np.float64)).astype(np.float32), expected)
