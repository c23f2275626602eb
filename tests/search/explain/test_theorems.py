"""Two statements that explanations rest on, with witnesses: rounding and scaling do not commute, brackets matter."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import arb, ctx, fmpq  # pyright: ignore[reportMissingTypeStubs]

from specs.formats import BASES
from specs.nodes import Num, Tree
from verify.definition import ScalarArithmetic
from verify.numerics.elementary import exp
from verify.numerics.rounding import round_float

BF16, F32 = BASES["bf16"], BASES["f32"]


def enclosed(x: Fraction) -> arb:
    """e^x in a ball."""
    return arb(fmpq(x.numerator, x.denominator)).exp()


def test_rounding_a_weight_and_rescaling_it_do_not_commute() -> None:
    """round_bf16(e^(x - c)) against e^-c * round_bf16(e^x), with x = c = 1: 1 against 2.71875 / e > 1.

    They differ for every rational c other than 0: the left side is a dyadic rational, the right side a dyadic rational
    other than 0 times e^-c, which is transcendental (Lindemann), unless both round to 0.
    """
    old, ctx.prec = ctx.prec, 128
    try:
        left = round_float(exp(0.0, F32), BF16)
        rounded = round_float(float(enclosed(Fraction(1)).mid()), BF16)
        right = enclosed(Fraction(-1)) * arb(fmpq(*rounded.as_integer_ratio()))
        assert (left, rounded) == (1.0, 2.71875)
        assert bool(right > arb(1))
        assert bool(right < arb(1.001))
    finally:
        ctx.prec = old


def test_nor_when_the_product_is_rounded_again() -> None:
    """x = -1, c = 1. e^-2 is 138.58 * 2^-10: 139. e^-1 is 188.35 * 2^-9: 188; times e^-1 that is 138.32 * 2^-10: 138."""
    left = round_float(exp(-2.0, F32), BF16)
    right = round_float(exp(-1.0, F32) * round_float(exp(-1.0, F32), BF16), BF16)
    assert (left, right) == (139 / 1024, 138 / 1024)
    tenth = arb("0.1")
    assert bool(abs(enclosed(Fraction(-2)) * 1024 - arb("138.58")) < tenth)
    assert bool(abs(enclosed(Fraction(-1)) * 512 - arb("188.35")) < tenth)
    assert bool(abs(enclosed(Fraction(-1)) * 188 / 512 * 1024 - arb("138.32")) < tenth)


def test_another_bracketing_is_another_sum() -> None:
    """1 + 2^-24 + 2^-24: from the left each addition is a tie that goes to even; the two small ones first make 2^-23."""
    half = 2.0**-24
    reals = ScalarArithmetic()
    seq = reals.fold(Tree("seq"), "sum", [F32], F32, ())
    outer = Tree("chunks", (Num("1"), Num("2")), (), (Tree("seq"), Tree("seq")))
    right_first = reals.fold(outer, "sum", [F32], F32, ())
    assert seq([1.0, half, half], None) == 1.0
    assert right_first([1.0, half, half], None) == 1.0000001192092896
    one, small = np.float32(1), np.float32(half)
    assert float((one + small) + small) == 1.0
    assert float(one + (small + small)) == 1.0000001192092896
    assert Fraction(1.0000001192092896) == 1 + Fraction(1, 2**23)
