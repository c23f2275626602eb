"""Trees against bracketings written by hand, and against the other definition of the language."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact.arithmetic import ExactArithmetic
from search.exact.dyadic import ZERO, from_float, to_float
from search.exact.trees import Steps, fold
from specs.errors import Place, SpecError, UnsupportedError
from specs.formats import BASES, parse_format
from specs.grammar import parse_expr
from specs.nodes import Reduce, Tree
from verify.definition import ScalarArithmetic


def tree(text: str) -> Tree:
    node = parse_expr(f"dot(x, y, {text})", Place("test"))
    assert isinstance(node, Reduce)
    assert node.tree is not None
    return node.tree


def word(x: Any) -> str:
    return "0" if x == ZERO else x


TEXT: Any = Steps(
    add=lambda a, b: f"({word(a)}+{word(b)})",  # pyright: ignore[reportArgumentType]
    mul=lambda a, b: f"{a}{b}",  # pyright: ignore[reportArgumentType]
    fma=lambda a, b, c: f"[{a}{b}+{word(c)}]",  # pyright: ignore[reportArgumentType]
    last=lambda x: x,
    mma=lambda node: lambda terms, start: f"mma({word(start)})",  # pyright: ignore[reportArgumentType, reportReturnType]
)


@pytest.mark.parametrize(
    ("text", "n", "start", "want"),
    [
        ("seq()", 3, None, "(((0+x0)+x1)+x2)"),
        ("seq()", 2, "s", "((s+x0)+x1)"),
        ("seq(desc)", 3, "s", "(((s+x2)+x1)+x0)"),
        ("pairwise()", 5, None, "(((x0+x1)+(x2+x3))+x4)"),
        ("pairwise()", 7, None, "(((x0+x1)+(x2+x3))+((x4+x5)+x6))"),
        ("pairwise()", 2, "s", "(s+(x0+x1))"),
        ("butterfly(2, 1)", 4, None, "((x0+x2)+(x1+x3))"),
        ("butterfly(1, 2)", 4, None, "((x0+x1)+(x2+x3))"),
        ("butterfly()", 8, None, "(((x0+x4)+(x2+x6))+((x1+x5)+(x3+x7)))"),
        ("butterfly()", 3, None, "((x0+x2)+x1)"),
        ("butterfly(2, 1)", 1, None, "x0"),
        ("lanes(4, pairwise(), butterfly(2, 1))", 6, None, "(((x0+x4)+x2)+((x1+x5)+x3))"),
        ("lanes(2, seq(), seq())", 3, None, "((0+((0+x0)+x2))+(0+x1))"),
        ("lanes(2, pairwise(), pairwise())", 1, None, "x0"),
        ("chunks(2, pairwise(), seq())", 5, "s", "(((s+(x0+x1))+(x2+x3))+x4)"),
        ("chunks(3, 2, pairwise(), seq())", 9, "s", "((((s+((x0+x1)+x2))+(x3+x4))+(x5+x6))+(x7+x8))"),
        ("chunks(1, 2, pairwise(), seq(), cycle)", 8, "s", "((((((s+x0)+(x1+x2))+x3)+(x4+x5))+x6)+x7)"),
        ("whole(4, seq(), pairwise())", 2, "s", "(s+(x0+x1))"),
        ("whole(2, pairwise(), seq(desc))", 2, None, "(x0+x1)"),
        ("pairwise()", 0, "s", "s"),
        ("seq()", 0, None, "0"),
        ("butterfly()", 0, None, "0"),
    ],
)
def test_sums(text: str, n: int, start: str | None, want: str) -> None:
    total: Any = fold(tree(text), TEXT, False)
    assert word(total([f"x{i}" for i in range(n)], start)) == want


@pytest.mark.parametrize(
    ("text", "n", "start", "want"),
    [
        ("seq()", 2, None, "((0+a0b0)+a1b1)"),
        ("seq(fma)", 3, None, "[a2b2+[a1b1+[a0b0+0]]]"),
        ("seq(fma, swap)", 3, None, "[a2b2+[a0b0+a1b1]]"),
        ("seq(fma, swap)", 3, "s", "[a2b2+[a0b0+[a1b1+s]]]"),
        ("pairwise(fma)", 3, None, "([a0b0+a1b1]+a2b2)"),
        ("pairwise()", 2, None, "(a0b0+a1b1)"),
        ("lanes(2, seq(fma), seq())", 3, None, "((0+[a2b2+[a0b0+0]])+[a1b1+0])"),
    ],
)
def test_products(text: str, n: int, start: str | None, want: str) -> None:
    total: Any = fold(tree(text), TEXT, True)
    assert total([(f"a{i}", f"b{i}") for i in range(n)], start) == want


def test_the_exact_sum_rounds_once() -> None:
    f32 = BASES["f32"]
    total = ExactArithmetic().fold(tree("exact()"), "sum", [f32], f32, ())
    terms = [1.0, 2.0**-24, 2.0**-60, -1.0]
    assert to_float(total([from_float(x) for x in terms], None)) == 2.0**-24
    assert total([from_float(-0.0)], None) == ZERO
    assert total([from_float(-0.0)], from_float(-0.0)) == ZERO


TREES = [
    "seq()",
    "seq(desc)",
    "seq(fma)",
    "seq(fma, swap)",
    "pairwise()",
    "pairwise(fma)",
    "butterfly()",
    "exact()",
    "lanes(3, seq(fma), pairwise())",
    "chunks(2, 3, butterfly(), seq(), cycle)",
    "whole(4, chunks(2, pairwise(), seq()), exact())",
]
number = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 2.0**-149, 1.0, -1.0]),
)


@given(
    st.sampled_from(TREES),
    st.sampled_from(["f32", "f32.ftz", "f32.rz", "bf16", "f64"]),
    st.lists(st.tuples(number, number), max_size=9),
    st.one_of(st.none(), number),
)
def test_every_tree_is_what_the_oracle_says(
    text: str, name: str, pairs: list[tuple[float, float]], start: float | None
) -> None:
    fmt, f32 = parse_format(name), BASES["f32"]
    operands = [f32, f32] if start is None else [f32, f32, f32]
    want = ScalarArithmetic().fold(tree(text), "dot", operands, fmt, ())(pairs, start)
    mine = ExactArithmetic().fold(tree(text), "dot", operands, fmt, ())
    got = mine(
        [(from_float(a), from_float(b)) for a, b in pairs], None if start is None else from_float(start)
    )
    assert str(to_float(got)) == str(float(want))


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="set of results"):
        fold(tree("any()"), TEXT, True)
    with pytest.raises(SpecError, match="fuses products"):
        fold(tree("seq(fma)"), TEXT, False)
    stuck: Any = fold(tree("butterfly(1)"), TEXT, False)
    with pytest.raises(SpecError, match="term 2"):
        stuck(["x0", "x1", "x2"], None)
