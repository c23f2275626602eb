"""Operations against the machine's, which are IEEE 754, and against fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact import operations as o
from search.exact.dyadic import from_float, to_float
from specs.formats import BASES, parse_format

F64, F32 = BASES["f64"], BASES["f32"]
EDGES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-140), 3.0, 2.0**127]
doubles = st.one_of(st.sampled_from(EDGES), st.floats(allow_subnormal=True), st.floats(0.5, 2.0))
singles = st.one_of(st.sampled_from(EDGES), st.floats(width=32, allow_subnormal=True))
NAMES = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def call(name: str, fmt: str, *xs: float) -> str:
    f = parse_format(fmt)
    return str(to_float(o.rounded(o.WIDE[name](f.p), f)(*map(from_float, xs))))


@pytest.mark.parametrize("name", NAMES)
@given(x=doubles, y=doubles)
def test_f64_is_what_the_machine_does(name: str, x: float, y: float) -> None:
    with np.errstate(all="ignore"):
        assert call(name, "f64", x, y) == str(float(NAMES[name](np.float64(x), np.float64(y))))


@pytest.mark.parametrize("name", NAMES)
@given(x=singles, y=singles)
def test_f32_is_what_the_machine_does(name: str, x: float, y: float) -> None:
    with np.errstate(all="ignore"):
        assert call(name, "f32", x, y) == str(float(NAMES[name](np.float32(x), np.float32(y))))


@given(x=st.one_of(singles, st.floats(0, 2.0**100, width=32)))
def test_roots_are_what_the_machine_does(x: float) -> None:
    with np.errstate(all="ignore"):
        assert call("sqrt", "f32", x) == str(float(np.sqrt(np.float32(x))))
        assert call("sqrt", "f64", x) == str(float(np.sqrt(np.float64(x))))
        assert call("rcp", "f64", x) == str(float(np.float64(1.0) / np.float64(x)))


@given(x=st.floats(-1e90, 1e90), y=st.floats(-1e90, 1e90), z=st.floats(-1e90, 1e90))
def test_fma_rounds_once(x: float, y: float, z: float) -> None:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact:
        assert float(call("fma", "f64", x, y, z)) == float(exact)


@pytest.mark.parametrize(
    ("name", "fmt", "xs", "want"),
    [
        ("fma", "f32", (1.0 + 2.0**-23, 1.0 - 2.0**-23, -1.0), -(2.0**-46)),
        ("fma", "f32", (0.0, -1.0, -0.0), -0.0),
        ("fma", "f32", (0.0, -1.0, 0.0), 0.0),
        ("fma", "f32", (0.0, math.inf, 1.0), math.nan),
        ("fma", "f32", (1.0, 1.0, -1.0), 0.0),
        ("+", "f32.ftz", (2.0**-127, 1.0), 1.0),
        ("+", "f32.ftz", (-(2.0**-127), -(2.0**-127)), -0.0),
        ("*", "f32.ftz", (2.0**-100, -(2.0**-30)), -0.0),
        ("/", "f32.ftz", (1.0, -(2.0**-127)), -math.inf),
        ("sqrt", "f32.ftz", (2.0**-127,), 0.0),
        ("*", "bf16", (1.0 + 2.0**-7, 1.0 + 2.0**-7), 1.0 + 2.0**-6),
        ("+", "f32.rz", (1.0, 2.0**-24 + 2.0**-25), 1.0),
        ("-", "f32.rz", (-1.0, 2.0**-24 + 2.0**-25), -1.0),
        ("/", "f32.rz", (2.0, 3.0), 11184810 * 2.0**-24),
        ("/", "f32", (2.0, 3.0), 11184811 * 2.0**-24),
        ("*", "e4m3fn.sat", (400.0, 2.0), 448.0),
    ],
)
def test_by_hand(name: str, fmt: str, xs: tuple[float, ...], want: float) -> None:
    assert call(name, fmt, *xs) == str(want)


@pytest.mark.parametrize(
    ("name", "xs", "want"),
    [
        ("max", (1.0, 3.0, 2.0), 3.0),
        ("max", (-0.0, 0.0), 0.0),
        ("max", (0.0, -0.0), 0.0),
        ("max", (-0.0, -0.0), -0.0),
        ("max", (math.nan, 1.0), math.nan),
        ("max", (-math.inf, -5.0), -5.0),
        ("min", (0.0, -0.0), -0.0),
        ("min", (1.0, math.nan), math.nan),
        ("min", (4.0, math.inf, 3.5), 3.5),
        ("neg", (0.0,), -0.0),
        ("abs", (-(2.0**-149),), 2.0**-149),
        ("abs", (-math.inf,), math.inf),
    ],
)
def test_what_never_rounds(name: str, xs: tuple[float, ...], want: float) -> None:
    assert str(to_float(o.PLAIN[name](*map(from_float, xs)))) == str(want)
