"""Each tree against a bracketing written by hand: the operations build text instead of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specs.errors import SpecError, UnsupportedError
from specs.grammar import parse_expr
from specs.nodes import Num, Reduce, Tree
from verify.definition.trees import Operations, build


def exact(terms: Sequence[Any], pairs: bool, start: Any) -> str:
    texts = [f"{a}*{b}" for a, b in terms] if pairs else list(terms)
    return "exact(" + ", ".join(texts if start is None else [start, *texts]) + ")"


def mma(node: Tree) -> Any:
    size = node.ints[0]
    assert isinstance(size, Num)
    return lambda pairs, start: f"mma{size.text}({start}, {' '.join(a + b for a, b in pairs)})"


TEXT = Operations(
    add=lambda a, b: f"({a}+{b})",
    mul=lambda a, b: f"{a}{b}",
    fma=lambda a, b, c: f"[{a}{b}+{c}]",
    exact=exact,
    zero="0",
    mma=mma,
)


def tree(text: str) -> Tree:
    from specs.errors import Place

    node = parse_expr(f"dot(x, y, {text})", Place("test"))
    assert isinstance(node, Reduce)
    assert node.tree is not None
    return node.tree


def total(text: str, n: int, start: str | None = None) -> str:
    """The bracketing of x0 ... of a sum."""
    return build(tree(text), TEXT, pairs=False)([f"x{i}" for i in range(n)], start)


def product(text: str, n: int, start: str | None = None) -> str:
    """The bracketing of a0 b0 + a1 b1 ... of a dot."""
    return build(tree(text), TEXT, pairs=True)([(f"a{i}", f"b{i}") for i in range(n)], start)


@pytest.mark.parametrize(
    ("text", "n", "start", "want"),
    [
        ("seq()", 3, None, "(((0+x0)+x1)+x2)"),
        ("seq()", 2, "s", "((s+x0)+x1)"),
        ("pairwise()", 2, None, "(x0+x1)"),
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
        ("lanes(2, seq(), seq())", 1, "s", "((s+(0+x0))+0)"),
        ("lanes(2, pairwise(), pairwise())", 1, None, "x0"),
        ("chunks(2, pairwise(), seq())", 5, "s", "(((s+(x0+x1))+(x2+x3))+x4)"),
        # Triton's row sum of 16, facts/triton_decode.md 4b (each thread's pair starts from 0 here).
        (
            "chunks(8, chunks(2, pairwise(), butterfly(2, 1)), pairwise())",
            16,
            None,
            "((((x0+x1)+(x4+x5))+((x2+x3)+(x6+x7)))+(((x8+x9)+(x12+x13))+((x10+x11)+(x14+x15))))",
        ),
        ("seq(desc)", 3, "s", "(((s+x2)+x1)+x0)"),
        ("chunks(3, 2, pairwise(), seq())", 9, "s", "((((s+((x0+x1)+x2))+(x3+x4))+(x5+x6))+(x7+x8))"),
        ("chunks(2, 9, seq(), pairwise())", 4, None, "(((0+x0)+x1)+((0+x2)+x3))"),
        # Sizes that repeat as a whole, as in a BLAS kernel on two and three rows.
        ("chunks(1, 2, pairwise(), seq(), cycle)", 8, "s", "((((((s+x0)+(x1+x2))+x3)+(x4+x5))+x6)+x7)"),
        ("chunks(3, 1, seq(), pairwise(), cycle)", 5, None, "(((((0+x0)+x1)+x2)+(0+x3))+(0+x4))"),
        ("whole(2, pairwise(), seq(desc))", 2, None, "(x0+x1)"),
        ("whole(2, pairwise(), seq())", 1, None, "(0+x0)"),
        ("whole(4, seq(), pairwise())", 2, "s", "(s+(x0+x1))"),
        ("whole(4, seq(), pairwise())", 0, "s", "s"),
        # The weighted values of one query row in ATen's CPU kernel: four keys at a time, the rest from the end.
        (
            "whole(4, chunks(4, butterfly(2, 1), seq()), seq(desc))",
            10,
            "s",
            "((((s+((x0+x2)+(x1+x3)))+((x4+x6)+(x5+x7)))+x9)+x8)",
        ),
        # Its row sum: two vectors of lanes (here of 2), added, halved, and the tail term by term.
        (
            "whole(2, lanes(4, seq(), butterfly(2, 1)), seq())",
            7,
            None,
            "(((((0+x0)+x4)+(0+x2))+(((0+x1)+x5)+(0+x3)))+x6)",
        ),
        ("exact()", 2, None, "exact(x0, x1)"),
        ("exact()", 1, "s", "exact(s, x0)"),
        ("seq()", 0, None, "0"),
        ("pairwise()", 0, None, "0"),
        ("butterfly()", 0, None, "0"),
        ("chunks(4, seq(), pairwise())", 0, None, "0"),
        ("pairwise()", 0, "s", "s"),
        ("seq()", 0, "s", "s"),
    ],
)
def test_sums(text: str, n: int, start: str | None, want: str) -> None:
    assert total(text, n, start) == want


@pytest.mark.parametrize(
    ("text", "n", "start", "want"),
    [
        ("seq()", 2, None, "((0+a0b0)+a1b1)"),
        ("seq(fma)", 3, None, "[a2b2+[a1b1+[a0b0+0]]]"),
        ("seq(fma)", 1, "s", "[a0b0+s]"),
        ("seq(fma, desc)", 3, None, "[a0b0+[a1b1+[a2b2+0]]]"),
        ("whole(2, chunks(2, seq(fma), seq()), seq(desc))", 4, "s", "((s+[a1b1+[a0b0+0]])+[a3b3+[a2b2+0]])"),
        ("whole(2, chunks(2, seq(fma), seq()), seq(desc))", 3, "s", "((s+[a1b1+[a0b0+0]])+a2b2)"),
        ("mma(2)", 3, "s", "mma2(s, a0b0 a1b1 a2b2)"),
        ("chunks(2, mma(16), seq())", 3, "s", "((s+mma16(None, a0b0 a1b1))+mma16(None, a2b2))"),
        # Triton 3.7.1, facts/triton_decode.md: fma(s12, x12, fma(s8, x8, fma(s0, x0, RN(s4 x4)))).
        ("seq(fma, swap)", 4, None, "[a3b3+[a2b2+[a0b0+a1b1]]]"),
        ("seq(fma, swap)", 1, None, "[a0b0+0]"),
        ("seq(fma, swap)", 2, "s", "[a0b0+[a1b1+s]]"),
        ("pairwise()", 3, None, "((a0b0+a1b1)+a2b2)"),
        # Triton 3.8.0: fma(s0, x0, RN(s4 x4)) + fma(s8, x8, RN(s12 x12)).
        ("pairwise(fma)", 4, None, "([a0b0+a1b1]+[a2b2+a3b3])"),
        ("pairwise(fma)", 3, None, "([a0b0+a1b1]+a2b2)"),
        # and across warps (W0 + W2) + (W1 + W3).
        (
            "lanes(4, pairwise(fma), butterfly(2, 1))",
            16,
            None,
            "((([a0b0+a4b4]+[a8b8+a12b12])+([a2b2+a6b6]+[a10b10+a14b14]))"
            "+(([a1b1+a5b5]+[a9b9+a13b13])+([a3b3+a7b7]+[a11b11+a15b15])))",
        ),
        ("exact()", 2, "s", "exact(s, a0*b0, a1*b1)"),
    ],
)
def test_dots(text: str, n: int, start: str | None, want: str) -> None:
    assert product(text, n, start) == want


@pytest.mark.parametrize("text", ["any()", "lanes(4, any(), seq())", "whole(4, seq(), any())"])
def test_what_is_not_evaluated_says_what_is(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"any\(\) is not evaluated yet\n.*seq, pairwise, butterfly"):
        build(tree(text), TEXT, pairs=True)


def test_a_place_for_a_term() -> None:
    with pytest.raises(SpecError, match="no place for a term"):
        build(tree("chunks(4, 0, seq(), seq())"), TEXT, pairs=True)


def test_a_fused_tree_needs_products() -> None:
    with pytest.raises(SpecError, match="no products"):
        build(tree("seq(fma)"), TEXT, pairs=False)
    with pytest.raises(SpecError, match="no products"):
        build(tree("lanes(4, seq(), pairwise(fma))"), TEXT, pairs=True)
    for text, pairs in (("mma(16)", False), ("lanes(4, seq(), mma(16))", True)):
        with pytest.raises(SpecError, match=r"mma\(\) over terms that are no products"):
            build(tree(text), TEXT, pairs=pairs)


def test_strides_must_reach_every_term() -> None:
    with pytest.raises(SpecError, match="never adds term 4 of 5"):
        total("butterfly(2, 1)", 5)
    with pytest.raises(SpecError, match="never adds term 2 of 3"):
        total("butterfly(1, 1)", 3)
