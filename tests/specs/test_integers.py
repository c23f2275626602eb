"""Integer formulas: exact, bounded, and refused where they are no integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import Place, SpecError
from specs.grammar import parse_expr
from specs.integers import evaluate

NAMES = {"a": 7, "b": 3, "word": "vllm", "zero": 0}


def value(text: str) -> object:
    return evaluate(parse_expr(text), NAMES, Place("my.toml", 4, 9))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a + b * 2 - 1", 12),
        ("a // b", 2),
        ("-a // b", -3),
        ("a % b", 1),
        ("-a % b", 2),
        ("a ^ b", 4),
        ("ceildiv(a, b)", 3),
        ("ceildiv(6, b)", 2),
        ("ceildiv(0, b)", 0),
        ("ceilpow2(a)", 8),
        ("ceilpow2(8)", 8),
        ("ceilpow2(0)", 1),
        ("min(a, b, 5)", 3),
        ("max(a, b)", 7),
        ("abs(b - a)", 4),
        ("select(a > b, 1, 2)", 1),
        ("select(a < b, 1 // zero, 2)", 2),  # the branch not taken is not evaluated
        ("a == 7 and b != 7", True),
        ("a <= 6 or b >= 3", True),
        ("not a < b", True),
        ("word == 'vllm'", True),
        ("word != 'dao' and 'x' == 'x'", True),
        ("fa2_num_splits(4, 92, 1585, 128)", 20),  # the first row of the table of the original
        ("a", 7),
        ("word", "vllm"),
    ],
)
def test_values(text: str, want: object) -> None:
    assert value(text) == want


@pytest.mark.parametrize(
    ("text", "column", "cause"),
    [
        ("a + c", 13, "unknown name 'c'"),
        ("a // zero", 9, "division by zero in //"),
        ("1 + a % zero", 13, "division by zero in %"),
        ("ceildiv(a, zero)", 9, "division by zero in ceildiv"),
        ("a / b", 9, "'/' does not divide integers"),
        ("a + 1.5", 13, r"1\.5 is not an integer"),
        ("a + bits(0x10)", 13, "0x10 is not an integer"),
        ("exp(a)", 9, r"exp\(\) is not a function of integers"),
        ("bf16(a)", 9, "cast is not part of an integer formula"),
        ("prev(a)", 9, "prev is not part"),
        ("max(a)", 9, "reduce is not part"),
        ("pos(a)", 9, "pos is not part"),
        ("word + 1", 9, "'vllm' is not an integer"),
        ("a + (word == 1)", 14, "cannot compare 'vllm' == 1"),
        ("word < 'x'", 9, "cannot compare 'vllm' < 'x'"),
        ("fa2_num_splits(a)", 9, r"fa2_num_splits\(\) takes 4 arguments, got 1"),
        ("1099511627777", 9, "integer of 41 bits"),
        ("1000000 * 1000000 * 1000000", 9, "integer of 60 bits"),
        ("f32.add(a, b)", 9, "op is not part"),
    ],
)
def test_what_is_refused_and_where(text: str, column: int, cause: str) -> None:
    with pytest.raises(SpecError, match=rf"^my\.toml:4:{column}: {cause}") as caught:
        value(text)
    assert caught.value.remedy


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_division_rounds_down_and_up(a: int, b: int) -> None:
    names = {"a": a, "b": b}

    def of(text: str) -> int:
        return int(evaluate(parse_expr(text), names, Place("")))  # pyright: ignore[reportArgumentType]

    assert of("a // b") * b <= a < (of("a // b") + 1) * b
    assert (of("ceildiv(a, b)") - 1) * b < a <= of("ceildiv(a, b)") * b
    assert of("a // b * b + a % b") == a


def test_words_are_suggested() -> None:
    with pytest.raises(SpecError, match="did you mean 'word'"):
        value("wrod")
