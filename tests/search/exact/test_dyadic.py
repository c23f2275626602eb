"""Numbers and their rounding: against the machine, ml_dtypes, and a search through all values of a format."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact.dyadic import (
    INF,
    NAN,
    NEG_INF,
    NEG_ZERO,
    ZERO,
    Number,
    from_bits,
    from_float,
    index,
    order,
    place,
    quotient,
    ratio,
    reduced,
    rounder,
    to_bits,
    to_float,
    to_fraction,
)
from specs.errors import InputError
from specs.formats import BASES, parse_format

DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
doubles = st.floats(allow_subnormal=True)
finite = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)


@given(doubles)
def test_a_double_comes_back(x: float) -> None:
    assert str(to_float(from_float(x))) == str(x)


@given(doubles)
def test_f32_is_the_cast_of_the_machine(x: float) -> None:
    with np.errstate(over="ignore"):
        want = float(np.float32(x))
    assert str(to_float(rounder(BASES["f32"])(from_float(x)))) == str(want)


@given(st.integers(-(2**300), 2**300), st.integers(1, 2**300))
def test_f64_is_what_python_makes_of_a_fraction(n: int, d: int) -> None:
    x = Fraction(n, d)
    assert to_float(rounder(BASES["f64"])(ratio(x, 53))) == float(x)


@pytest.mark.parametrize("name", DTYPES)
def test_bits_are_those_of_ml_dtypes(name: str) -> None:
    fmt = BASES[name]
    words = np.arange(2**fmt.bits, dtype=f"u{fmt.bits // 8}")
    with np.errstate(invalid="ignore"):
        values = words.view(DTYPES[name]).astype(np.float64).tolist()
    for word, value in zip(words.tolist(), values, strict=True):
        found = from_bits(word, fmt)
        assert str(to_float(found)) == str(value)
        if value == value:
            assert to_bits(found, fmt) == word


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3fn", "e5m2"])
def test_rounding_finds_the_nearest_of_all_values(name: str) -> None:
    fmt = BASES[name]
    words = np.arange(2 ** (fmt.bits - 1), dtype=f"u{fmt.bits // 8}")
    with np.errstate(invalid="ignore"):
        values = words.view(DTYPES[name]).astype(np.float64)
    values = values[np.isfinite(values)]
    nearest, down = rounder(fmt), rounder(parse_format(f"{name}.rz"))
    rng = np.random.default_rng(5)
    for i in rng.integers(0, len(values) - 1, 300).tolist():
        low, high = Fraction(values[i]), Fraction(values[i + 1])
        middle, step = (low + high) / 2, (high - low) / 4096
        # At a tie the even one of two neighbours has an even pattern.
        cases = [(low, i), (middle - step, i), (middle, i + i % 2), (middle + step, i + 1), (high, i + 1)]
        for x, want in cases:
            assert to_float(nearest(ratio(x, 60))) == values[want]
            assert to_float(nearest(ratio(-x, 60))) == -values[want]
            assert to_float(down(ratio(x, 60))) == values[i + (x == high)]


@pytest.mark.parametrize(
    ("fmt", "x", "want"),
    [
        ("f32", 1.0 + 2.0**-24, 1.0),
        ("f32", 1.0 + 2.0**-24 + 2.0**-50, 1.0 + 2.0**-23),
        ("f32", 2.0**-150, 0.0),
        ("f32", 1.5 * 2.0**-150, 2.0**-149),
        ("f32", -(2.0**-160), -0.0),
        ("f32.ftz", 2.0**-126, 2.0**-126),
        ("f32.ftz", -(2.0**-126) + 2.0**-149, -0.0),
        ("f32.rz", 2.0**128, float(np.finfo(np.float32).max)),
        ("f32", 2.0**128 - 2.0**103, math.inf),
        ("f32", 2.0**128 - 2.0**103 - 2.0**80, float(np.finfo(np.float32).max)),
        ("bf16", 1.0 + 2.0**-8 + 2.0**-40, 1.0078125),
        ("e4m3fn", 464.0, 448.0),
        ("e4m3fn", 465.0, math.nan),
        ("e4m3fn.sat", -1e30, -448.0),
        ("e4m3fn.sat", -math.inf, -448.0),
        ("e4m3fn", math.inf, math.nan),
        ("e5m2", math.inf, math.inf),
        ("f32.rz", -math.inf, -math.inf),
        ("f32.rz", math.nan, math.nan),
    ],
)
def test_the_rules_of_rounding(fmt: str, x: float, want: float) -> None:
    assert str(to_float(rounder(parse_format(fmt))(from_float(x)))) == str(want)


def test_tf32_sits_in_the_high_bits_of_its_word() -> None:
    one = 0x3F800000
    assert to_bits((1, 0), BASES["tf32"]) == one
    assert to_bits((1025, -10), BASES["tf32"]) == one + (1 << 13)
    assert from_bits(one + (1 << 13), BASES["tf32"]) == (1025, -10)
    with pytest.raises(InputError, match="no pattern"):
        from_bits(one + 1, BASES["tf32"])


@given(finite, finite)
def test_order_is_that_of_floats(x: float, y: float) -> None:
    assert order(from_float(x), from_float(y)) == (x > y) - (x < y)


def test_order_of_what_is_no_rational() -> None:
    line: list[Number] = [NEG_INF, (-5, 900), (-1, -900), ZERO, (1, -900), (3, 900), INF]
    for i, x in enumerate(line):
        for j, y in enumerate(line):
            assert order(x, y) == (i > j) - (i < j)
        assert order(x, NAN) is None
        assert order(NAN, x) is None
    assert order(ZERO, NEG_ZERO) == 0


def test_a_pair_need_not_be_in_lowest_terms() -> None:
    assert order((8, -3), (1, 0)) == 0
    assert reduced((8, -3)) == (1, 0)
    assert to_bits((8, -3), BASES["bf16"]) == 0x3F80
    assert to_fraction((-6, 1)) == -12


@given(st.integers(1, 2**80), st.integers(1, 2**80), st.integers(2, 60))
def test_a_quotient_keeps_a_sticky_bit(n: int, d: int, bits: int) -> None:
    m, e = quotient((n, 0), (d, 0), bits)
    exact = Fraction(n, d)
    got = to_fraction((m, e))
    assert m & 1 or got == exact
    assert abs(got - exact) < exact / 2**bits


@pytest.mark.parametrize(
    ("x", "want"),
    [
        (Fraction(1), 127 * 128),
        (Fraction(257, 256), 127 * 128 + Fraction(1, 2)),
        (Fraction(-2), -128 * 128),
        (Fraction(1, 2**133), 1),
        (Fraction(1, 2**135), Fraction(1, 4)),
        (Fraction(0), 0),
        (Fraction(4, 3), 127 * 128 + Fraction(128, 3)),
    ],
)
def test_the_index_counts_values_of_the_format(x: Fraction, want: Fraction) -> None:
    assert index(x, BASES["bf16"]) == want


@given(st.integers(0, 0xFFFF))
def test_the_index_of_a_value_is_its_place(word: int) -> None:
    fmt = BASES["f16"]
    x = from_bits(word, fmt)
    if x in (INF, NEG_INF, NAN):
        assert place(word, fmt) in (None, 0x7C00, -0x7C00)
    else:
        assert place(word, fmt) == index(to_fraction(x), fmt)


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(InputError, match="no value"):
        to_bits((257, 0), BASES["bf16"])
    with pytest.raises(InputError, match="beyond"):
        to_bits((1, 200), BASES["bf16"])
    with pytest.raises(InputError, match="no infinity"):
        to_bits(INF, BASES["e4m3fn"])
    with pytest.raises(InputError, match="no double"):
        to_float((2**60 + 1, 0))
    with pytest.raises(InputError, match="real"):
        rounder(BASES["real"])
