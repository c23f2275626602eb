"""Tensor-core dot products in integers: recorded words, model words, and the rules one at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES
from tests.verify.dots import (
    FORMATS,
    GPUS,
    RECORDED,
    SMALL,
    UNSUPPORTED,
    Case,
    model_cases,
    model_path,
    narrow,
    recorded,
    recorded_cases,
    scalar_words,
)
from verify.numerics.tensor_core import chained, fused

BF16, F16, F32, TF32, E4M3, E5M2 = (BASES[n] for n in ("bf16", "f16", "f32", "tf32", "e4m3fn", "e5m2"))
HOPPER = find(load_platform("h200").dot_products, "mma", BF16, BF16, F32, 16)
AMPERE = find(load_platform("a100").dot_products, "mma", BF16, BF16, F32, 16)
HALF = find(load_platform("h200").dot_products, "mma", F16, F16, F16, 16)
RECORDINGS = pytest.mark.skipif(
    not RECORDED.exists(), reason="the recorded words are not here: ../shared/oracle"
)


def test_the_small_copy_of_the_model() -> None:
    cases = model_cases(SMALL)
    assert len(cases) == 22
    for case in cases:
        assert np.array_equal(scalar_words(case), case.d), case.key


def test_the_model_on_all_classes_of_inputs() -> None:
    for number, case in enumerate(model_cases(model_path())):
        some = case.part(16, number % 16)
        assert np.array_equal(scalar_words(some), some.d), case.key


@RECORDINGS
def test_the_words_that_gpus_gave() -> None:
    cases = recorded_cases()
    assert len(cases) == 16
    for number, case in enumerate(cases):
        some = case.part(3, number % 3)
        assert np.array_equal(scalar_words(some), some.d), case.key


@RECORDINGS
def test_recorded_words_show_the_pairs_of_the_compiled_fp8_instruction() -> None:
    """mma.sync of fp8 to f16 is not offered; its words still tell in which order the f16 instructions take terms."""
    seen = set()
    for key, kind, gpu, data in recorded():
        if key not in UNSUPPORTED:
            continue
        seen.add(key)
        fmt = BASES[FORMATS[kind]]
        offered = find(load_platform(GPUS[gpu]).dot_products, "mma", fmt, fmt, F32, 32)
        to_half = offered.model_copy(
            update={"output": "f16", "rounding": "rne", "exponent_floor": HALF.exponent_floor}
        )
        c, d = (narrow(data[x], "f16") for x in ("c_f32", "d"))
        wrong = {}
        for split in ("pairs", "consecutive"):
            dot = to_half.model_copy(update={"split": split})
            case = Case(key, dot, 32, fmt, data["a"], data["b"], c, d).part(5)
            wrong[split] = int(np.sum(scalar_words(case) != case.d))
        assert wrong["pairs"] == 0
        assert wrong["consecutive"] > 50
    assert seen == UNSUPPORTED


@pytest.mark.parametrize("platform", ["h100", "h100_pcie", "h200", "b200"])
@pytest.mark.parametrize("fmt", [E4M3, E5M2])
def test_fp8_to_f16_by_mma_sync_is_refused(platform: str, fmt: object) -> None:
    with pytest.raises(UnsupportedError, match=r"no dot product mma of e.m.* to f16 .*described"):
        find(load_platform(platform).dot_products, "mma", fmt, fmt, F16, 32)  # type: ignore[arg-type]


# -- the rules, one at a time -----------------------------------------------------------------------------


def hopper(a: list[float], b: list[float], c: float = 0.0) -> float:
    return chained(HOPPER, 16, a, b, c, BF16, BF16)


def test_a_product_is_not_normalised() -> None:
    # 1.5 * 1.5 = 2.25 keeps exponent 0: the quantum stays 2**-25, and 2**-25 survives. As 2.25 * 1 it has
    # exponent 1, the quantum is 2**-24, and 2**-25 is lost. The last bit of f32 above 2 is 2**-22: add enough of them.
    tiny = [2.0**-25] * 8
    assert hopper([1.5, *tiny], [1.5] + [1.0] * 8) == 2.25 + 2.0**-22
    assert hopper([2.25, *tiny], [1.0] + [1.0] * 8) == 2.25


def test_the_accumulator_takes_part_in_the_alignment() -> None:
    small = [2.0**-20] * 4
    assert hopper(small, [2.0**-6] * 4, 1.0) == 1.0  # 2**-26 each, cut one by one below 2**-25
    assert hopper(small, [2.0**-6] * 4) == 2.0**-24
    assert hopper(small, [2.0**-4] * 4, 1.0) == 1.0 + 2.0**-22


def test_truncation_is_toward_zero_on_both_sides() -> None:
    up = hopper([1.0, 2.0**-13, 2.0**-13], [1.0, 2.0**-12 * 1.5, 2.0**-12 * 1.5])
    assert up == 1.0  # two times 1.5 * 2**-25 is cut to 2 * 2**-25, and the sum to 24 bits
    assert hopper([1.0, -(2.0**-13)], [1.0, 2.0**-12 * 1.5]) == 1.0 - 2.0**-24  # 1 - 2**-25, toward zero
    assert hopper([-1.0, 2.0**-13], [1.0, 2.0**-12 * 1.5]) == -(1.0 - 2.0**-24)


def test_blocks_chain_with_a_full_rounding_between_them() -> None:
    tiny = [2.0**-12] * 7
    a = b = [1.0, *tiny, *tiny, 0.0]
    # fourteen times 2**-24 in one block; seven and seven in two, each cut to 2**-23
    assert chained(HOPPER, 16, a, b, 0.0, BF16, BF16) == 1.0 + 7 * 2.0**-23
    assert chained(AMPERE, 16, a, b, 0.0, BF16, BF16) == 1.0 + 6 * 2.0**-23
    assert chained(HOPPER, 8, a, b, 0.0, BF16, BF16) == 1.0 + 6 * 2.0**-23


def test_a_short_last_block_is_padded_with_zeros() -> None:
    a, b = [1.5, -2.0, 3.0], [0.5, 4.0, 1.0]
    assert hopper(a, b, 8.0) == hopper(a + [0.0] * 13, b + [-0.0] * 13, 8.0) == 0.75 - 8.0 + 3.0 + 8.0
    assert math.copysign(1.0, chained(HOPPER, 16, [], [], -0.0, BF16, BF16)) == -1.0  # no instruction ran


def test_zero_is_positive() -> None:
    for a, c in (([-0.0], -0.0), ([0.0], -0.0), ([1.0, -1.0], 0.0), ([-1.0], 1.0)):
        assert math.copysign(1.0, hopper(a, [1.0] * len(a), c)) == 1.0
    # cut to zero in the subnormal range: the sum was negative
    assert str(hopper([-(2.0**-75)], [2.0**-76])) == "0.0"
    assert hopper([-(2.0**-75)], [2.0**-74]) == -(2.0**-149)


def test_subnormals_keep_the_lowest_exponent() -> None:
    # bf16 2**-133 is the significand 2**-7 at exponent -126
    assert hopper([2.0**-133, 2.0**-10], [1.0, 2.0**-126], 0.0) == 2.0**-133 + 2.0**-136
    # its product with 2**16 is 2**-117 at exponent -110: what is below 2**-135 is cut
    assert hopper([2.0**-133], [2.0**16], 2.0**-136) == 2.0**-117
    assert hopper([2.0**-133], [2.0**16], 2.0**-135) == 2.0**-117 + 2.0**-135


def test_overflow() -> None:
    most = F32.largest
    assert hopper([2.0**127], [1.0], most) == math.inf
    assert hopper([-(2.0**127)], [2.0]) == -math.inf
    assert hopper([2.0**103], [1.0], most) == most  # not yet 2**128 after truncation
    assert hopper([2.0**104], [1.0], most) == math.inf
    # products beyond f32 cancel exactly inside one block, and do not between two
    huge = 2.0**120
    assert hopper([huge, huge, 1.0], [huge, -huge, 1.0]) == 0.0  # the 1 is below the quantum
    assert math.isnan(
        chained(HOPPER, 4, [huge, 0.0, 0.0, 0.0, huge], [huge, 0.0, 0.0, 0.0, -math.inf], 0.0, BF16, BF16)
    )
    assert (
        chained(HOPPER, 4, [huge, 0.0, 0.0, 0.0, huge], [huge, 0.0, 0.0, 0.0, -huge], 0.0, BF16, BF16)
        == math.inf
    )


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        ([math.nan], [0.0], 0.0, math.nan),
        ([1.0], [1.0], math.nan, math.nan),
        ([math.inf], [0.0], 0.0, math.nan),
        ([-0.0], [math.inf], 1.0, math.nan),
        ([math.inf], [-2.0], 1.0, -math.inf),
        ([math.inf, math.inf], [1.0, -1.0], 0.0, math.nan),
        ([math.inf], [1.0], -math.inf, math.nan),
        ([2.0**127], [2.0**127], -math.inf, -math.inf),
        ([1.0], [1.0], math.inf, math.inf),
    ],
)
def test_nan_and_infinities(a: list[float], b: list[float], c: float, result: float) -> None:
    found = hopper(a, b, c)
    assert found == result or (math.isnan(found) and math.isnan(result))


def test_f16_output_is_rounded_to_nearest_even() -> None:
    def half(a: list[float], b: list[float], c: float = 0.0) -> float:
        return chained(HALF, 16, a, b, c, F16, F16)

    assert half([2048.0, 1.0], [1.0, 1.0]) == 2048.0  # a tie, to even
    assert half([2048.0, 3.0], [1.0, 1.0]) == 2052.0
    assert half([2.0**-12], [2.0**-13]) == 0.0  # half the smallest subnormal, to even
    assert half([2.0**-12 * 1.5], [2.0**-13]) == 2.0**-24
    assert half([65504.0, 15.0], [1.0, 1.0]) == 65504.0
    assert half([65504.0, 16.0], [1.0, 1.0]) == math.inf


def test_thirteen_bits() -> None:
    dot = find(load_platform("h200").dot_products, "wgmma", E4M3, E4M3, F32, 32)
    assert chained(dot, 32, [1.0, 2.0**-7], [1.0, 2.0**-6], 0.0, E4M3, E4M3) == 1.0 + 2.0**-13
    assert chained(dot, 32, [1.0, 2.0**-7], [1.0, 2.0**-7], 0.0, E4M3, E4M3) == 1.0
    assert chained(dot, 32, [0.0], [0.0], 1.0 + 2.0**-20, E4M3, E4M3) == 1.0  # the accumulator is cut too


def test_a_late_accumulator_is_added_to_nearest_even() -> None:
    dot = find(load_platform("b200").dot_products, "mma", E4M3, E4M3, F32, 32)
    assert (dot.addition, dot.split, dot.converted) == ("late", "pairs", "f16")
    one = [1.0] + [0.0] * 31
    assert chained(dot, 32, one, one, 2.0**24, E4M3, E4M3) == 2.0**24  # 2**24 + 1, a tie
    assert chained(dot, 32, one, one, 2.0**24 + 2.0, E4M3, E4M3) == 2.0**24 + 4.0
    assert chained(dot, 32, one, one, -1.0, E4M3, E4M3) == 0.0
    assert chained(dot, 32, one, one, math.inf, E4M3, E4M3) == math.inf


def test_a_converted_subnormal_is_normal() -> None:
    # e4m3 2**-9 is a subnormal with exponent -6; as f16 it is normal, with exponent -9.
    native = HOPPER.model_copy(update={"inputs": ("e4m3fn",)})
    compiled = native.model_copy(update={"converted": "f16"})
    a, b = [2.0**-9, 2.0**-9], [2.0**-9, 2.0**-9]
    assert fused(native, a, b, 2.0**-40, E4M3, E4M3) == 2.0**-17  # exponent -12: 2**-40 is below 2**-37
    assert chained(compiled, 16, a, b, 2.0**-40, E4M3, E4M3) == 2.0**-17 + 2.0**-40  # exponent -18


def test_operands_must_be_values_of_their_formats() -> None:
    with pytest.raises(InputError, match=r"1\.001953125 is no value of bf16"):
        hopper([1.0 + 2.0**-9], [1.0])
    with pytest.raises(InputError, match="is no value of f32"):
        hopper([1.0], [1.0], 1.0 + 2.0**-30)
    with pytest.raises(InputError, match="2 and 1 factors"):
        hopper([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="0 terms"):
        chained(HOPPER, 0, [1.0], [1.0], 0.0, BF16, BF16)


# -- laws -------------------------------------------------------------------------------------------------

bf16s = st.builds(lambda m, e: math.ldexp(m, e), st.integers(-255, 255), st.integers(-60, 40))
terms = st.lists(st.tuples(bf16s, bf16s), min_size=1, max_size=16)
accumulators = st.builds(math.ldexp, st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-80, 60))


@given(terms, accumulators, st.randoms(use_true_random=False))
def test_the_order_inside_a_block_does_not_matter(
    pairs: list[tuple[float, float]], c: float, random: object
) -> None:
    mixed = pairs.copy()
    random.shuffle(mixed)  # type: ignore[attr-defined]
    forward = hopper([a for a, _ in pairs], [b for _, b in pairs], c)
    assert forward == hopper([b for _, b in mixed], [a for a, _ in mixed], c)


@given(terms, accumulators)
def test_truncation_is_symmetric(pairs: list[tuple[float, float]], c: float) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    assert hopper(a, b, c) == -hopper([-x for x in a], b, -c)


@given(terms, accumulators)
def test_the_error_of_a_block_is_bounded(pairs: list[tuple[float, float]], c: float) -> None:
    exact = sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(c))
    largest = max([abs(a * b) for a, b in pairs] + [abs(c)])
    found = hopper([a for a, _ in pairs], [b for _, b in pairs], c)
    cut = (len(pairs) + 1) * Fraction(largest) / 2**25
    assert abs(Fraction(found) - exact) <= cut + max(abs(exact) + cut, Fraction(2) ** -126) / 2**23


@given(terms, accumulators)
def test_hopper_and_blackwell_agree(pairs: list[tuple[float, float]], c: float) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    other: DotProduct = find(load_platform("b200").dot_products, "tcgen05", BF16, BF16, F32, 16)
    assert hopper(a, b, c) == chained(other, 16, a, b, c, BF16, BF16)
