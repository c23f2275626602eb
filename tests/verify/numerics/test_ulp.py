import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from specs.formats import BASES
from verify.numerics.ulp import (
    MISMATCH,
    NAN_PLACE,
    SATURATED,
    Bin,
    continuous_index,
    format_of,
    ordered,
    ulp_distance,
    ulp_summary,
)

INF, NAN = math.inf, math.nan
BF16 = ml_dtypes.bfloat16
NARROW = [np.float16, BF16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
singles = st.floats(width=32, allow_nan=False, allow_infinity=False)


def f32(*values):
    return np.array(values, dtype=np.float32)


# -- the line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW)
def test_the_line_counts_the_values_of_a_format(dtype):
    """Sorted by value, the non-NaN codes of a format are consecutive places, the two zeros one of them."""
    width = np.dtype(dtype).itemsize
    codes = np.arange(1 << 8 * width, dtype=f"u{width}").view(dtype)
    with np.errstate(invalid="ignore"):
        values = codes.astype(np.float64)
    order = np.argsort(values[~np.isnan(values)], kind="stable")
    places = ordered(codes)
    assert places.dtype == np.int64
    assert (places[np.isnan(values)] == NAN_PLACE).all()
    line = places[~np.isnan(values)][order]
    assert sorted(np.diff(line).tolist()) == [0] + [1] * (line.size - 2)
    assert places[0] == places[1 << (8 * width - 1)] == 0


@given(x=singles, y=singles)
def test_f32_places_follow_the_order_of_numbers(x, y):
    a, b = ordered(f32(x, y)).tolist()
    assert (a < b) == (x < y)
    assert (a == b) == (x == y)
    code = struct.unpack("<i", struct.pack("<f", abs(x)))[0]
    assert a == math.copysign(code, x)


def test_places_of_values_carried_in_float64():
    assert ordered(np.array([1.0, -1.0]), BASES["bf16"]).tolist() == [0x3F80, -0x3F80]
    assert ordered(np.array([1.0, 1 + 2.0**-10]), BASES["tf32"]).tolist() == [0x1FC00, 0x1FC01]
    assert ordered(f32(1 + 2.0**-10), BASES["tf32"]).tolist() == [0x1FC01]
    assert ordered(np.array([-5e-324, -0.0, INF])).tolist() == [-1, 0, 0x7FF << 52]
    with pytest.raises(InputError, match="no value of bf16"):
        ordered(np.array([1.001]), BASES["bf16"])
    with pytest.raises(InputError, match="float16 does not store bf16"):
        ordered(np.ones(1, dtype=np.float16), BASES["bf16"])


# -- distances --------------------------------------------------------------------------------------------


def test_distances_known_by_counting():
    a = f32(1.0, 1.0, 1.0, 0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 2.0, -1.0)
    b = f32(1.0, 1 + 2.0**-23, 1 - 2.0**-24, -0.0, -(2.0**-149), 0.0, 2.0**-126 - 2.0**-149, 1.0, 1.0)
    distance = ulp_distance(a, b)
    assert distance.dtype == np.int64
    assert distance.tolist() == [0, 1, 1, 0, 2, 1, 1, 2**23, 2 * 0x3F800000]


@pytest.mark.parametrize(
    ("dtype", "x", "y", "expected"),
    [
        (np.float64, 1.0, 1 + 2.0**-52, 1),
        (np.float64, 1.0, -1.0, 2 * (0x3FF << 52)),
        (np.float64, 1.7976931348623157e308, -1.7976931348623157e308, SATURATED),
        (np.float64, -2.0, 2.0, SATURATED),
        (np.float64, -1.9999999999999998, 1.9999999999999998, 2 * ((0x400 << 52) - 1)),
        (np.float64, 0.0, 1.7976931348623157e308, (0x7FF << 52) - 1),
        (np.float16, 1.0, 2.0, 1024),
        (np.float16, 65504.0, -65504.0, 2 * 0x7BFF),
        (BF16, 1.0, 1.0078125, 1),
        (BF16, 256.0, 258.0, 1),
        (ml_dtypes.float8_e4m3fn, 448.0, 416.0, 1),
        (ml_dtypes.float8_e4m3fn, -(2.0**-9), 2.0**-9, 2),
        (ml_dtypes.float8_e5m2, 1.0, 1.25, 1),
    ],
)
def test_two_scalars_give_an_int(dtype, x, y, expected):
    a, b = np.array([x, y]).astype(dtype)
    distance = ulp_distance(a, b)
    assert type(distance) is int
    assert distance == expected == ulp_distance(b, a)


def test_python_floats_count_as_f64():
    assert ulp_distance(1.0, 1.0000000000000004) == 2


def test_nan_and_infinity_are_no_numbers():
    largest = 3.4028234663852886e38
    a = f32(NAN, NAN, 1.0, INF, INF, -INF, largest, INF, NAN)
    b = f32(NAN, 1.0, NAN, INF, -INF, -INF, INF, -largest, INF)
    m = MISMATCH
    assert ulp_distance(a, b).tolist() == [0, m, m, 0, m, 0, m, m, m]
    assert ulp_distance(np.float32(NAN), np.float32(NAN)) == 0
    assert ulp_distance(np.float64(INF), np.float64(1.0)) == MISMATCH
    assert ulp_distance(np.float64(NAN), np.float64(-INF)) == MISMATCH


@given(x=singles, y=singles, z=singles)
def test_distance_is_a_metric(x, y, z):
    a, b, c = (np.float32(v) for v in (x, y, z))
    assert ulp_distance(a, b) == ulp_distance(b, a)
    assert (ulp_distance(a, b) == 0) == (x == y)
    assert ulp_distance(a, c) <= ulp_distance(a, b) + ulp_distance(b, c)


@given(x=singles, steps=st.integers(0, 40))
def test_distance_counts_nextafter_steps(x, steps):
    y = np.float32(x)
    for _ in range(steps):
        y = np.nextafter(y, np.float32(0) if x > 0 else np.float32(1))
    walked = min(steps, int(ordered(np.float32(x)))) if x > 0 else steps
    assert ulp_distance(np.float32(x), y) == walked


def test_tf32_counts_its_own_steps():
    assert ulp_distance(f32(1.0), f32(1 + 2.0**-10)).tolist() == [2**13]
    assert ulp_distance(f32(1.0), f32(1 + 2.0**-10), BASES["tf32"]).tolist() == [1]


def test_shapes():
    assert ulp_distance(np.zeros((2, 0), dtype=BF16), np.zeros((2, 0), dtype=BF16)).shape == (2, 0)
    a = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert ulp_distance(a.T, a.T[:, ::-1]).tolist() == ulp_distance(a.T.copy(), a.T[:, ::-1].copy()).tolist()
    one = ulp_distance(np.ones(1, dtype=np.float32), np.ones(1, dtype=np.float32))
    assert isinstance(one, np.ndarray)


# -- the summary ------------------------------------------------------------------------------------------


def test_summary_counts_each_kind_apart():
    step = 2.0**-23
    a = f32(1, 1, 1, 1, 1, 0.0, NAN, NAN, 2, INF, INF, INF)
    b = f32(1, 1 + step, 1 + 2 * step, 1 + 3 * step, 1 + 8 * step, -0.0, NAN, 1, NAN, INF, -INF, 3)
    s = ulp_summary(a, b)
    assert (s.n, s.compared, s.equal, s.nan_both, s.nan_mismatch, s.inf_mismatch) == (12, 7, 4, 1, 2, 2)
    assert (s.zero_sign, s.max, s.mean, s.worst) == (1, 8, 14 / 7, 4)
    assert s.histogram == (Bin(0, 0, 3), Bin(1, 1, 1), Bin(2, 2, 1), Bin(3, 4, 1), Bin(5, 8, 1))
    assert not s.bit_equal


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_summary_of_nothing(shape):
    s = ulp_summary(np.zeros(shape, dtype=BF16), np.zeros(shape, dtype=BF16))
    assert (s.n, s.compared, s.equal, s.max, s.mean, s.worst, s.histogram) == (0, 0, 0, None, None, None, ())
    assert s.bit_equal


def test_summary_where_nothing_compares():
    s = ulp_summary(f32(NAN, INF), f32(NAN, 1.0))
    assert (s.n, s.compared, s.max, s.nan_both, s.inf_mismatch) == (2, 0, None, 1, 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, *NARROW])
def test_bit_equal(dtype):
    a = np.array([1.0, -0.0, NAN, 2.0**-9]).astype(dtype)
    assert ulp_summary(a, a).bit_equal
    b = np.array([1.0, 0.0, NAN, 2.0**-9]).astype(dtype)
    s = ulp_summary(a, b)
    assert (s.max, s.zero_sign, s.bit_equal) == (0, 1, False)


def test_summary_of_scalars_and_of_the_widest_distance():
    s = ulp_summary(-2.0, 2.0)
    assert (s.n, s.max, s.worst) == (1, SATURATED, 0)
    assert s.histogram[-1] == Bin(2**62 + 1, SATURATED, 1)
    assert sum(b.count for b in s.histogram) == 1


def test_histogram_edges():
    base = np.float32(1).view(np.uint32)
    a = np.full(9, base, dtype=np.uint32).view(np.float32)
    b = (base + np.array([0, 1, 2, 3, 4, 5, 8, 9, 1024], dtype=np.uint32)).view(np.float32)
    bins = {(x.low, x.high): x.count for x in ulp_summary(a, b).histogram if x.count}
    assert bins == {(0, 0): 1, (1, 1): 1, (2, 2): 1, (3, 4): 2, (5, 8): 2, (9, 16): 1, (513, 1024): 1}


# -- before rounding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, *NARROW])
def test_continuous_index_is_the_place_of_every_value(dtype):
    fmt = format_of(np.dtype(dtype))
    width = fmt.bits // 8
    codes = np.arange(1 << 8 * width, dtype=f"u{width}") if width < 4 else np.arange(0, 2**32, 9973331)
    values = codes.astype(f"u{width}").view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = values[np.isfinite(values)]
    places = [continuous_index(float(v), fmt) for v in values]
    assert places == ordered(values).tolist()


def test_continuous_index_between_values():
    bf16, f32_, e4m3fn = BASES["bf16"], BASES["f32"], BASES["e4m3fn"]
    assert continuous_index(1 + 2.0**-8, bf16) == 0x3F80 + 0.5
    assert continuous_index(-1 - 2.0**-9, bf16) == -0x3F80 - 0.25
    assert continuous_index(1 - 2.0**-10, bf16) == 0x3F80 - 0.25
    assert continuous_index(2.0**-150, f32_) == 0.5
    assert continuous_index(2.0**-160, f32_) == 2.0**-11
    assert continuous_index(480.0, e4m3fn) == 127.0
    assert continuous_index(464.0, e4m3fn) == 126.5
    assert continuous_index(5e-324, BASES["f64"]) == 1.0
    assert continuous_index(INF, bf16) == INF
    assert continuous_index(-INF, bf16) == -INF
    assert math.isnan(continuous_index(NAN, bf16))
    assert math.copysign(1, continuous_index(-0.0, bf16)) == 1


@given(x=st.floats(-1e30, 1e30), y=st.floats(-1e30, 1e30))
def test_continuous_index_is_monotone(x, y):
    a, b = continuous_index(x, BASES["f32"]), continuous_index(y, BASES["f32"])
    if x < y:
        assert a <= b


# -- mistakes ---------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    with pytest.raises(InputError, match=r"dtypes differ: float32 and float64"):
        ulp_distance(f32(1.0), np.array([1.0]))
    with pytest.raises(InputError, match=r"shapes differ: \(2,\) and \(1,\)"):
        ulp_distance(f32(1.0, 2.0), f32(1.0))
    with pytest.raises(InputError, match="argument a: no number format is stored as int64"):
        ulp_distance(np.array([1]), np.array([1]))
    with pytest.raises(InputError, match="argument b: no number format is stored as object"):
        ulp_distance(f32(1.0), np.array([None]))
    with pytest.raises(InputError, match="no number format is stored as"):
        ulp_summary(np.array(["x"]), f32(1.0))
    with pytest.raises(InputError, match="float32 does not store f16"):
        ulp_distance(f32(1.0), f32(1.0), BASES["f16"])
    with pytest.raises(InputError, match="'real' has no bits"):
        continuous_index(1.0, BASES["real"])


def test_formats_of_dtypes():
    known = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(BF16): "bf16"}
    assert {d: format_of(d).name for d in known} == known
