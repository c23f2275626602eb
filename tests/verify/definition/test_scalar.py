"""The scalar arithmetic: its fast routes against `verify.numerics`, and its rules for signs and NaN."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specs.errors import SpecError, UnsupportedError
from specs.formats import BASES, Format, parse_format
from verify.definition.scalar import ScalarArithmetic, exact_sum, maximum, minimum, rounder
from verify.numerics import elementary, operations
from verify.numerics.hard_cases import EXP
from verify.numerics.rounding import round_float, round_fraction

F32, F64, BF16 = BASES["f32"], BASES["f64"], BASES["bf16"]
ARITHMETIC = ScalarArithmetic()
STORED = [BASES[b] for b in BASES if b != "real"] + [
    parse_format(n) for n in ("f32.ftz", "bf16.rz", "e4m3fn.sat")
]

singles = st.floats(width=32) | st.floats(min_value=-(2.0**-120), max_value=2.0**-120, width=32)
doubles = st.floats()
midpoints = st.tuples(
    st.floats(width=16, allow_nan=False, allow_infinity=False), st.sampled_from([-1, 0, 1])
).map(lambda t: math.nextafter(t[0], t[1] * math.inf) if t[1] else t[0])


def same(a: float, b: float) -> bool:
    return struct.pack("<d", a) == struct.pack("<d", b) or (a != a and b != b)


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "fma", "exp"])
@given(xs=st.tuples(singles, singles, singles))
@example(xs=(1e-30, 1e-30, 0.0))
@example(xs=(3e38, -3e38, 3e38))
@example(xs=(-1.0, 0.0, -0.0))
@example(xs=(-100.25, 1.0, 1.0))
def test_f32_is_the_same_by_both_routes(op: str, xs: tuple[float, float, float]) -> None:
    names = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
    slow = elementary.exp if op == "exp" else getattr(operations, names.get(op, op))
    args = xs[: 3 if op == "fma" else 1 if op == "exp" else 2]
    assert same(ARITHMETIC.operation(op, [F32] * len(args), F32)(*args), slow(*args, F32))


def test_exp_at_the_arguments_that_are_hardest_to_round() -> None:
    exp = ARITHMETIC.operation("exp", [F32], F32)
    arguments, results = (
        np.array(x, dtype=np.uint32).view(np.float32).tolist() for x in zip(*EXP, strict=True)
    )
    assert [exp(x) for x in arguments] == results


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
@given(a=doubles, b=doubles)
@example(a=1.0, b=-0.0)
def test_f64_is_the_same_by_both_routes(op: str, a: float, b: float) -> None:
    slow = {"+": operations.add, "-": operations.sub, "*": operations.mul, "/": operations.div}[op]
    assert same(ARITHMETIC.operation(op, [F64, F64], F64)(a, b), slow(a, b, F64))


def test_an_operand_wider_than_the_result_is_rounded_once() -> None:
    # 1 + 2**-24 + 2**-60 is above the midpoint of f32; a stop at f64 would lose the last term.
    a, b = 1.0 + 2.0**-24, 2.0**-60
    assert ARITHMETIC.operation("+", [F64, F32], F32)(a, b) == 1.0 + 2.0**-23
    # bf16.mul of f32 values is not the f32 product rounded again.
    x = 1.0 + 2.0**-8
    assert ARITHMETIC.operation("*", [F32, F32], BF16)(x, 1.0 + 2.0**-23) == 1.0 + 2.0**-7
    assert round_float(operations.mul(x, 1.0 + 2.0**-23, F32), BF16) == 1.0 + 2.0**-7
    assert ARITHMETIC.operation("+", [F32, F32], BF16)(x, 2.0**-40) == 1.0 + 2.0**-7
    assert round_float(operations.add(x, 2.0**-40, F32), BF16) == 1.0


@pytest.mark.parametrize("fmt", STORED, ids=str)
@given(x=doubles | singles | midpoints)
@example(x=1.0 + 2.0**-8 + 2.0**-40)
@example(x=-(2.0**-150))
@example(x=-(2.0**-149) / 3)
@example(x=3.4028235677973366e38)
@example(x=464.0)
@example(x=-0.0)
@example(x=5e-324)
def test_rounder_is_round_float(fmt: Format, x: float) -> None:
    assert same(rounder(fmt)(x), round_float(x, fmt))


@given(st.lists(st.tuples(singles, singles), max_size=6), st.none() | singles)
def test_the_exact_sum_is_the_sum_of_fractions(pairs: list[tuple[float, float]], start: float | None) -> None:
    flat = [x for p in pairs for x in p] + ([] if start is None else [start])
    got = exact_sum(pairs, start, F32)
    if all(math.isfinite(x) for x in flat):
        assert same(
            got,
            round_fraction(sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(start or 0.0)), F32),
        )
    else:
        products = [a * b for a, b in pairs] + [start or 0.0]
        infinite = [x for x in products if not math.isfinite(x)]
        assert same(got, sum(infinite) if infinite else got)


def test_exact_sum_of_a_long_cancellation() -> None:
    assert exact_sum([(2.0**100, 1.0), (1.0, 2.0**-100), (-(2.0**50), 2.0**50)], None, F32) == 2.0**-100
    assert math.copysign(1.0, exact_sum([(-0.0, 1.0)], None, F32)) == 1.0
    assert exact_sum([], None, F32) == 0.0


def test_max_and_min() -> None:
    assert math.isnan(maximum(1.0, math.nan))
    assert math.isnan(maximum(math.nan, 1.0, 2.0))
    assert math.copysign(1.0, maximum(-0.0, 0.0)) == math.copysign(1.0, maximum(0.0, -0.0)) == 1.0
    assert math.copysign(1.0, minimum(-0.0, 0.0)) == math.copysign(1.0, minimum(0.0, -0.0)) == -1.0
    assert math.copysign(1.0, maximum(-0.0, -0.0)) == -1.0
    assert maximum(-math.inf, -3.0, -4.0) == -3.0
    assert minimum(5.0, 3.0, math.inf) == 3.0


def test_numbers_patterns_and_specials() -> None:
    # The decimal is rounded once: by way of f64 this one would lie on the midpoint and fall to even.
    above = Fraction("1.0000000596046447753906251")
    assert ARITHMETIC.number(above, F32) == 1.0 + 2.0**-23
    assert ARITHMETIC.number(Fraction(float(above)), F32) == 1.0
    assert ARITHMETIC.pattern(0x3FB8AA3B, F32).hex() == "0x1.7154760000000p+0"
    assert ARITHMETIC.special(-math.inf, F32) == -math.inf
    assert math.isnan(ARITHMETIC.special(math.inf, BASES["e4m3fn"]))
    with pytest.raises(SpecError, match="wider than f32"):
        ARITHMETIC.pattern(1 << 32, F32)


def test_functions_without_a_definition_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"tanh\.approx\(\) is not evaluated: no table"):
        ARITHMETIC.operation("tanh.approx", [F32], F32)


def test_the_real_line_has_no_rounding() -> None:
    with pytest.raises(UnsupportedError, match="real"):
        rounder(BASES["real"])
    with pytest.raises(UnsupportedError, match="real"):
        ARITHMETIC.operation("+", [F32, F32], BASES["real"])
