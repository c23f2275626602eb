"""The special-function unit, scalar, against recorded words and the tables of its model."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import UnsupportedError
from verify.numerics import mufu
from verify.numerics.mufu_tables import SEGMENTS, coefficients

HERE = Path(__file__)
WHOLE = HERE.parents[4] / "shared" / "oracle" / "mufu_model.npz"
TABLE = np.load(WHOLE if WHOLE.exists() else HERE.parents[2] / "data" / "mufu_small.npz")
UNIT = {"ex2": mufu.ex2, "rcp": mufu.rcp, "rsq": mufu.rsq, "lg2": mufu.lg2}


@pytest.mark.parametrize("name", UNIT)
def test_every_word_of_the_table(name):
    given_words, expected = TABLE[f"{name}_in"], TABLE[f"{name}_out"]
    got = np.array([UNIT[name](int(w)) for w in given_words], np.uint32)
    wrong = np.flatnonzero(got != expected)
    assert wrong.size == 0, (wrong.size, hex(given_words[wrong[0]]), hex(got[wrong[0]]))


def test_ten_words_of_a_gb200():
    """The operands are known to six decimals: one of the f32 numbers that print so gives the recorded word."""
    for x, word in zip(TABLE["hw_gb200_ex2_x6dec"], TABLE["hw_gb200_ex2_out"], strict=True):
        middle = int(np.float32(x).view(np.uint32))
        near = [w for w in range(middle - 20, middle + 21) if round(mufu.from_word(w), 6) == x]
        assert int(word) in {mufu.ex2(w) for w in near}, x


@pytest.mark.parametrize("name", SEGMENTS)
def test_coefficients_have_the_widths_of_the_unit(name):
    rows = coefficients(name)
    assert len(rows) == SEGMENTS[name]
    assert all(0 <= c0 < 1 << 26 and abs(c1) < 1 << 16 and abs(c2) < 1 << 10 for c0, c1, c2 in rows)


@pytest.mark.parametrize(
    ("name", "word", "result"),
    [
        ("ex2", 0x00000001, 0x3F800000),
        ("ex2", 0x80000000, 0x3F800000),
        ("ex2", 0xFF800000, 0x00000000),
        ("ex2", 0x7F800000, 0x7F800000),
        ("ex2", 0xC2FC0000, 0x00800000),  # -126: the smallest normal number
        ("ex2", 0xC2FC0001, 0x00000000),  # just below: flushed
        ("ex2", 0x42FE0000, 0x7F000000),
        ("rcp", 0x80000000, 0xFF800000),
        ("rcp", 0x007FFFFF, 0x7F800000),  # a subnormal operand counts as zero
        ("rcp", 0xFF800000, 0x80000000),
        ("rcp", 0x7E800000, 0x00800000),
        ("rcp", 0x7E800001, 0x00000000),  # a subnormal result is zero
        ("rcp", 0xC0000000, 0xBF000000),
        ("rsq", 0x40800000, 0x3F000000),  # powers of four are exact
        ("rsq", 0x00800000, 0x5F000000),
        ("rsq", 0x007FFFFF, 0x7F800000),
        ("lg2", 0x3F800000, 0x00000000),
        ("lg2", 0x7F800000, 0x7F800000),
        ("lg2", 0x007FFFFF, 0xFF800000),
        ("lg2", 0x34000000, 0xC1B7FFFF),  # 2**-23: one's complement and truncation
    ],
)
def test_edges(name, word, result):
    assert hex(UNIT[name](word)) == hex(result)


@pytest.mark.parametrize("name", UNIT)
def test_nan_is_nan(name):
    assert UNIT[name](0x7F800001) == UNIT[name](0xFFC00000) == mufu.NAN


@pytest.mark.parametrize("name", ["rsq", "lg2"])
@pytest.mark.parametrize("word", [0x80000000, 0x80000001, 0xBF800000, 0xFF800000])
def test_negative_operands_are_refused(name, word):
    with pytest.raises(UnsupportedError, match=rf"mufu\.{name} of -.*not known"):
        UNIT[name](word)


@given(st.integers(0x00800000, 0x7F7FFFFF))
def test_results_are_as_close_as_documented(word):
    """The bounds of the PTX ISA: 1 ulp for the reciprocal, 2**-22.9 relative for its root, 2**-22 for lg2."""
    x = mufu.from_word(word)
    if word < 0x7E800000:
        assert abs(mufu.from_word(mufu.rcp(word)) * x - 1) < 2.0**-22.9
    assert abs(mufu.from_word(mufu.rsq(word)) * np.sqrt(x) - 1) < 2.0**-22.5
    assert abs(mufu.from_word(mufu.lg2(word)) - np.log2(x)) <= 2.0**-22 * max(1.0, abs(np.log2(x)))


@given(st.floats(-126, 127, width=32))
def test_ex2_is_within_two_units(x):
    result = mufu.from_word(mufu.ex2(mufu.to_word(x)))
    assert abs(result - np.exp2(np.float64(x))) <= 2 * np.spacing(np.float32(result))


def test_words_are_of_f32():
    with pytest.raises(UnsupportedError, match="no value of f32"):
        mufu.to_word(0.1)
    with pytest.raises(UnsupportedError, match="no value of f32"):
        mufu.to_word(1e300)
    assert mufu.to_word(float("nan")) == mufu.NAN
    assert mufu.from_word(mufu.to_word(-0.0)).hex() == "-0x0.0p+0"
