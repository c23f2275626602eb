import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import InputError
from specs.formats import BASES, Format, parse_format
from verify.numerics.rounding import (
    decode,
    encode,
    round_array,
    round_float,
    round_fraction,
    storage_dtype,
    store,
    word_dtype,
)

STORED = [name for name in BASES if name != "real"]
MODIFIED = [n + m for n in STORED for m in ("", ".ftz", ".sat", ".rz", ".ftz.sat", ".sat.rz", ".ftz.sat.rz")]
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def same(a, b):
    """Equal as bits of float64, NaN payloads aside."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return a.shape == b.shape and bool(np.all((a.view("u8") == b.view("u8")) | (np.isnan(a) & np.isnan(b))))


def both(x, name):
    """The scalar and the vectorised rounding of one double, held equal."""
    fmt = parse_format(name)
    scalar = round_float(x, fmt)
    assert same(round_array(np.array([x]), fmt), [scalar])
    return scalar


def spread(fmt: Format, seed: int, n: int) -> np.ndarray:
    """Doubles of every size around the range of a format: signs, binades, subnormals, overflow."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(max(fmt.quantum - 4, -1074), min(fmt.emax + 3, 1023), n)
    return np.ldexp(rng.uniform(1, 2, n) * rng.choice([-1.0, 1.0], n), exponents)


@st.composite
def near_format(draw, fmt: Format):
    """A double whose significand is mostly short, so that ties and values of the format are common."""
    bits = draw(st.sampled_from([fmt.p, fmt.p + 1, fmt.p + 2, 53]))
    significand = draw(st.integers(-(2**bits) + 1, 2**bits - 1))
    sticky = draw(st.sampled_from([0.0, 0.0, 2.0**-20, -(2.0**-20)]))
    exponent = draw(st.integers(fmt.quantum - 3, fmt.emax + 2))
    scale = max(min(exponent - bits, 900), -1074)
    return math.ldexp(significand + (sticky if abs(significand) < 2**32 else 0.0), scale)


# -- values known from elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "name", "expected"),
    [
        # One rounding where two would tie: 1 + 2^-8 is halfway between bf16 neighbours, the rest decides.
        (1 + 2.0**-8 + 2.0**-40, "bf16", 1.0078125),
        (1 + 2.0**-8, "bf16", 1.0),
        (1 + 3 * 2.0**-8, "bf16", 1.015625),
        (float(16973823), "bf16", 16908288.0),
        (1 + 2.0**-8 + 2.0**-40, "bf16.rz", 1.0),
        (1 + 2.0**-11 + 2.0**-40, "f16", 1 + 2.0**-10),
        (1 + 2.0**-11 + 2.0**-40, "tf32", 1 + 2.0**-10),
        (1 + 2.0**-24, "f32", 1.0),
        (1 + 2.0**-24 + 2.0**-52, "f32", 1 + 2.0**-23),
        # Overflow: e4m3fn ends at 448 and has no infinity; 464 is a tie with the absent 480.
        (464.0, "e4m3fn", 448.0),
        (465.0, "e4m3fn", math.nan),
        (-465.0, "e4m3fn.sat", -448.0),
        (500.0, "e4m3fn.rz", 448.0),
        (math.inf, "e4m3fn", math.nan),
        (-math.inf, "e4m3fn.sat", -448.0),
        (61439.0, "e5m2", 57344.0),
        (61440.0, "e5m2", math.inf),
        (61440.0, "e5m2.sat", 57344.0),
        (1e9, "e5m2.rz", 57344.0),
        (math.inf, "e5m2.rz", math.inf),
        (math.inf, "e5m2.sat", 57344.0),
        (65519.0, "f16", 65504.0),
        (65520.0, "f16", math.inf),
        (-65520.0, "f16", -math.inf),
        (3.4028235677973362e38, "f32", 3.4028234663852886e38),
        (3.4028235677973366e38, "f32", math.inf),
        # Subnormals: half of the smallest one is a tie with zero.
        (2.0**-150, "f32", 0.0),
        (math.nextafter(2.0**-150, 1), "f32", 2.0**-149),
        (-(2.0**-150), "f32", -0.0),
        (3 * 2.0**-150, "f32", 2.0**-148),
        (2.0**-149, "f32.ftz", 0.0),
        (-(2.0**-149), "f32.ftz", -0.0),
        (2.0**-126 - 2.0**-149, "f32.ftz", 0.0),
        # Tiny before rounding but normal after it: kept.
        (2.0**-126 - 2.0**-151, "f32.ftz", 2.0**-126),
        (2.0**-126 - 2.0**-151, "f32.ftz.rz", 0.0),
        (2.0**-10, "e4m3fn", 0.0),
        (2.0**-10 * 1.01, "e4m3fn", 2.0**-9),
        (2.0**-133 * 0.75, "bf16", 2.0**-133),
        (2.0**-133 * 0.75, "bf16.rz", 0.0),
        (5e-324, "f64", 5e-324),
        (5e-324, "f64.ftz", 0.0),
        (math.inf, "f64.sat", 1.7976931348623157e308),
        (1.7976931348623157e308, "f32", math.inf),
        (5e-324, "f32", 0.0),
        (math.nan, "f32.ftz.sat", math.nan),
        (-0.0, "bf16.ftz", -0.0),
        (0.0, "e4m3fn.sat", 0.0),
    ],
)
def test_known_values(x, name, expected):
    assert same(both(x, name), expected)


def test_fractions_no_double_holds():
    third = Fraction(1, 3)
    assert round_fraction(third, BASES["f64"]) == 1 / 3
    assert round_fraction(third, BASES["f32"]) == float(np.float32(1) / np.float32(3))
    just_above_tie = 1 + Fraction(1, 2**8) + Fraction(1, 10**400)
    assert round_fraction(just_above_tie, BASES["bf16"]) == 1.0078125
    assert round_fraction(-just_above_tie, parse_format("bf16.rz")) == -1.0
    assert round_fraction(Fraction(10) ** 400, BASES["f64"]) == math.inf
    assert round_fraction(Fraction(10) ** 400, parse_format("f64.rz")) == 1.7976931348623157e308
    assert same(round_fraction(-Fraction(1, 10**400), BASES["f64"]), -0.0)
    assert same(round_fraction(Fraction(0), BASES["f32"], negative_zero=True), -0.0)
    assert same(round_fraction(Fraction(0), BASES["f32"]), 0.0)


def test_f32_is_the_machine_cast():
    x = spread(BASES["f32"], 1, 200_000)
    with np.errstate(over="ignore", under="ignore"):
        assert same(round_array(x, BASES["f32"]), x.astype(np.float32).astype(np.float64))


def test_f16_is_the_numpy_cast():
    x = spread(BASES["f16"], 2, 200_000)
    with np.errstate(over="ignore", under="ignore"):
        assert same(round_array(x, BASES["f16"]), x.astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e5m2"])
def test_f32_values_round_as_ml_dtypes_does(name):
    """From float32 (not float64) ml_dtypes rounds once."""
    x = spread(BASES[name], 3, 200_000)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        x = x.astype(np.float32)
        expected = x.astype(DTYPES[name]).astype(np.float64)
    assert same(round_array(x.astype(np.float64), BASES[name]), expected)


def test_tf32_toward_zero_drops_the_low_bits():
    with np.errstate(over="ignore", under="ignore"):
        x = spread(BASES["f32"], 4, 100_000).astype(np.float32)
    x = x[np.isfinite(x)]
    expected = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    assert same(round_array(x.astype(np.float64), parse_format("tf32.rz")), expected.astype(np.float64))


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2"])
@settings(max_examples=300)
@given(data=st.data())
def test_nearest_of_all_256_values(name, data):
    """The result is the closest of all values, and of two closest the one with the even code."""
    fmt = BASES[name]
    values = np.arange(256, dtype=np.uint8).view(DTYPES[name]).astype(np.float64)
    x = data.draw(near_format(fmt).filter(lambda v: v != 0 and abs(v) <= fmt.largest))
    finite = [i for i in range(256) if math.isfinite(values[i]) and np.signbit(values[i]) == (x < 0)]
    best = min(finite, key=lambda i: (abs(Fraction(float(values[i])) - Fraction(x)), i % 2))
    assert abs(both(x, name)) == abs(values[best])


# -- laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODIFIED)
def test_scalar_and_array_agree(name):
    fmt = parse_format(name)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, fmt.largest, 2.0**fmt.emin, -(2.0**fmt.emin)]
    raw = np.random.default_rng(5).integers(0, 2**64, 200, dtype=np.uint64).view(np.float64)
    x = np.concatenate([special, raw, spread(fmt, 6, 500)])
    assert same(round_array(x, fmt), [round_float(float(v), fmt) for v in x])


@pytest.mark.parametrize("name", MODIFIED)
@settings(max_examples=25)
@given(data=st.data())
def test_scalar_and_array_agree_near_ties(name, data):
    both(data.draw(near_format(parse_format(name))), name)


@given(name=st.sampled_from(MODIFIED), x=st.floats(), y=st.floats())
def test_monotone_idempotent_and_odd(name, x, y):
    fmt = parse_format(name)
    a, b = round_float(x, fmt), round_float(y, fmt)
    if x <= y and not math.isnan(a) and not math.isnan(b):
        assert a <= b
    assert same(round_float(a, fmt), a)
    assert same(round_float(-x, fmt), -a)


@given(name=st.sampled_from(STORED), x=st.floats(allow_nan=False, allow_infinity=False))
def test_toward_zero_never_grows(name, x):
    assert abs(both(x, f"{name}.rz")) <= abs(x)


def test_shapes_are_kept():
    for shape in [(), (0,), (2, 3), (4, 0, 1)]:
        x = np.ones(shape)
        for result in (round_array(x, BASES["bf16"]), encode(x, BASES["bf16"]), store(x, BASES["bf16"])):
            assert isinstance(result, np.ndarray)
            assert result.shape == shape
    x = np.arange(12.0).reshape(3, 4).T[::2] + 2.0**-30
    assert same(round_array(x, BASES["f16"]), np.arange(12.0).reshape(3, 4).T[::2])


def test_the_operand_is_not_changed():
    x = np.array([1 + 2.0**-40, math.nan, 1e300])
    before = x.copy()
    for name in MODIFIED:
        round_array(x, parse_format(name))
    assert same(x, before)


# -- storage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_code_decodes_as_its_dtype(name):
    fmt = BASES[name]
    codes = np.arange(1 << fmt.bits, dtype=word_dtype(fmt))
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = codes.view(DTYPES[name]).astype(np.float64)
    assert same(decode(codes, fmt), np.where(np.isnan(expected), np.nan, expected))
    numbers = codes[~np.isnan(expected)]
    assert np.array_equal(encode(decode(numbers, fmt), fmt), numbers)


@pytest.mark.parametrize(("name", "single"), [("f32", np.float32), ("f64", np.float64)])
def test_wide_codes_decode_as_numpy(name, single):
    fmt = BASES[name]
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 2**fmt.bits, 100_000, dtype=np.uint64).astype(word_dtype(fmt))
    codes[:1000] &= np.array((1 << (fmt.p - 1)) - 1, dtype=codes.dtype)  # subnormals
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = codes.view(single).astype(np.float64)
    assert same(decode(codes, fmt), expected)
    numbers = codes[~np.isnan(expected)]
    assert np.array_equal(encode(decode(numbers, fmt), fmt), numbers)


def test_bits_written_by_hand():
    def bits(x, name):
        return int(encode(np.array(x), BASES[name]))

    assert bits(1.0, "f64") == 0x3FF0000000000000
    assert bits(-2.0, "f32") == 0xC0000000
    assert bits(1 + 2.0**-10, "tf32") == 0x3F802000
    assert bits(2.0**-136, "tf32") == 0x00002000
    assert bits(1.0078125, "bf16") == 0x3F81
    assert bits(-448.0, "e4m3fn") == 0xFE
    assert bits(-0.0, "f16") == 0x8000
    nans = {"f64": 0x7FF8 << 48, "f32": 0x7FC00000, "tf32": 0x7FC00000, "f16": 0x7E00, "bf16": 0x7FC0}
    nans |= {"e5m2": 0x7E, "e4m3fn": 0x7F}
    assert {name: bits(math.nan, name) for name in STORED} == nans
    assert bits(math.inf, "tf32") == 0x7F800000
    assert bits(-math.inf, "e5m2") == 0xFC


@pytest.mark.parametrize("name", STORED)
def test_store_rounds_once_into_the_dtype(name):
    fmt = BASES[name]
    x = np.concatenate([spread(fmt, 8, 5000), [0.0, -0.0, math.nan, math.inf, 1 + 2.0**-8 + 2.0**-40]])
    stored = store(x, fmt)
    assert stored.dtype == storage_dtype(fmt)
    assert same(stored.astype(np.float64), round_array(x, fmt))


def test_storage_dtypes():
    assert storage_dtype(BASES["tf32"]) == np.float32
    assert storage_dtype(parse_format("bf16.ftz")) == ml_dtypes.bfloat16
    assert word_dtype(BASES["tf32"]) == np.uint32
    assert word_dtype(BASES["e4m3fn"]) == np.uint8


# -- mistakes ---------------------------------------------------------------------------------------------


def test_a_value_outside_the_format_is_named():
    with pytest.raises(InputError, match=r"x\[1, 0\]: 1.001 is no value of bf16 \(1 such"):
        encode(np.array([[1.0, 2.0], [1.001, -0.0]]), BASES["bf16"])
    with pytest.raises(InputError, match="inf is no value of e4m3fn"):
        encode(np.array(math.inf), BASES["e4m3fn"])
    for x, name in [(1e-300, "f32"), (1e300, "f32"), (480.0, "e4m3fn"), (2.0**-150, "tf32")]:
        with pytest.raises(InputError, match="is no value of"):
            encode(np.array([x]), BASES[name])


def test_wrong_dtypes_are_refused():
    with pytest.raises(InputError, match="float32 where float64"):
        round_array(np.ones(2, dtype=np.float32), BASES["bf16"])
    with pytest.raises(InputError, match="bits of bf16 come as uint16, not as uint32"):
        decode(np.zeros(2, dtype=np.uint32), BASES["bf16"])
    with pytest.raises(InputError, match="bits set below the 19 of tf32"):
        decode(np.array([0x3F800001], dtype=np.uint32), BASES["tf32"])


def test_real_is_not_rounded_to():
    real = BASES["real"]
    for call in (
        lambda: round_float(1.0, real),
        lambda: round_fraction(Fraction(1), real),
        lambda: round_array(np.ones(1), real),
        lambda: storage_dtype(real),
        lambda: encode(np.ones(1), real),
    ):
        with pytest.raises(InputError, match="'real' has no bits"):
            call()
