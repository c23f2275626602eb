"""exp, exp2, log and log2 against 120 decimal digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact.dyadic import from_float, ratio, rounder, to_float, to_fraction
from search.exact.elementary import rounded, wide
from specs.formats import parse_format

#: The double whose exponential is the nearest to a midpoint (V. Lefevre and J.-M. Muller, "Worst cases for correct
#: rounding of the elementary functions in double precision", 2001): 1 + 2**-53 and a bit.
HARD = 7.541752749995959e-10


def decimals(name: str, x: float) -> Fraction:
    """The value to about 120 digits, by Python's decimal module."""
    with localcontext() as context:
        context.prec = 120
        d, two = Decimal(x), Decimal(2).ln()
        value = {
            "exp": lambda: d.exp(),
            "exp2": lambda: (d * two).exp(),
            "log": lambda: d.ln(),
            "log2": lambda: d.ln() / two,
        }[name]()
        return Fraction(value)


def check(name: str, x: float, fmt: str) -> None:
    f = parse_format(fmt)
    want = rounder(f)(ratio(decimals(name, x), 300))
    assert str(to_float(rounded(name, f)(from_float(x)))) == str(to_float(want))


@pytest.mark.parametrize("fmt", ["f32", "f64", "bf16", "f32.rz", "f32.ftz", "e4m3fn"])
@given(st.one_of(st.floats(-110, 6), st.floats(-1e-3, 1e-3)))
def test_exponentials(fmt: str, x: float) -> None:
    if x and abs(x) >= 2.0**-126:
        check("exp", x, fmt)
        if x != int(x):  # elsewhere the value is a power of two, which its decimals are only near
            check("exp2", x, fmt)


@pytest.mark.parametrize("fmt", ["f32", "f64", "bf16", "f64.rz"])
@given(st.floats(1e-30, 1e30))
def test_logarithms(fmt: str, x: float) -> None:
    if x != 1.0:
        check("log", x, fmt)
        if math.frexp(x)[0] != 0.5:
            check("log2", x, fmt)


@pytest.mark.parametrize("x", [HARD, math.nextafter(HARD, 1.0), 2.0**-60, -(2.0**-60)])
def test_next_to_a_midpoint(x: float) -> None:
    for fmt in ("f64", "f64.rz", "f32", "f32.rz"):
        check("exp", x, fmt)


@pytest.mark.parametrize(
    ("name", "fmt", "x", "want"),
    [
        ("exp", "f32", -math.inf, 0.0),
        ("exp", "f32", math.inf, math.inf),
        ("exp", "f32", 0.0, 1.0),
        ("exp", "f32", -0.0, 1.0),
        ("exp", "f32", math.nan, math.nan),
        ("exp", "f32", 1e30, math.inf),
        ("exp", "f64.rz", 1e30, 1.7976931348623157e308),
        ("exp", "f32", -1e30, 0.0),
        ("exp", "f32", -104.0, 0.0),
        ("exp", "f32", -103.0, 2.0**-149),
        ("exp", "f32.ftz", -88.0, 0.0),
        ("exp", "f32.ftz", -(2.0**-127), 1.0),
        ("exp2", "f32", -149.0, 2.0**-149),
        ("exp2", "f32", -150.0, 0.0),
        ("exp2", "f32", 127.0, 2.0**127),
        ("exp2", "f32", 128.0, math.inf),
        ("log", "f32", 1.0, 0.0),
        ("log", "f32", 0.0, -math.inf),
        ("log", "f32", -0.0, -math.inf),
        ("log", "f32", -1.0, math.nan),
        ("log", "f32", -math.inf, math.nan),
        ("log", "f32", math.inf, math.inf),
        ("log2", "f32", 2.0**-149, -149.0),
        ("log2", "f32", 1.0, 0.0),
    ],
)
def test_where_the_value_is_no_irrational(name: str, fmt: str, x: float, want: float) -> None:
    assert str(to_float(rounded(name, parse_format(fmt))(from_float(x)))) == str(want)


def test_many_bits_for_distances() -> None:
    got = to_fraction(wide("exp", from_float(1.25), 200))
    assert abs(got - decimals("exp", 1.25)) < Fraction(1, 2**190)
