"""Every tree, over any number of terms of which some are absent: the array engine against the definition."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.formats import BASES, Format, parse_format
from specs.grammar import parse_expr
from specs.nodes import Reduce, Tree
from verify.definition import ScalarArithmetic
from verify.engine.primitives import F32, ZERO, Carrier, F32Exact, x64
from verify.engine.trees import Folder, Terms

F = BASES["f32"]


def tree(text: str, kind: str = "sum") -> Tree:
    """The tree of ``sum(x, TEXT)``."""
    node = parse_expr(f"sum(x, {text})" if kind == "sum" else f"dot(x, y, {text})")
    assert isinstance(node, Reduce)
    assert node.tree is not None
    return node.tree


SUMS = [
    "seq()",
    "seq(desc)",
    "pairwise()",
    "butterfly()",
    "butterfly(16, 8, 4, 2, 1)",
    "butterfly(1, 2, 4, 8, 16)",
    "lanes(4, seq(), butterfly(2, 1))",
    "lanes(4, pairwise(), butterfly(2, 1))",
    "lanes(3, seq(), seq())",
    "chunks(8, chunks(2, seq(), butterfly(2, 1)), seq())",
    "chunks(5, pairwise(), seq(desc))",
    "chunks(1, 2, 4, seq(), seq())",
    "chunks(1, 1, 2, seq(), seq(), cycle)",
    "whole(4, chunks(4, butterfly(2, 1), seq()), seq(desc))",
    "whole(16, lanes(8, seq(), butterfly(4, 2, 1)), seq())",
    "whole(3, seq(), pairwise())",
]
DOTS = [
    "seq()",
    "seq(fma)",
    "seq(fma, swap)",
    "seq(fma, desc)",
    "pairwise(fma)",
    "lanes(4, pairwise(fma), butterfly(2, 1))",
    "lanes(4, seq(fma, swap), butterfly(2, 1))",
    "chunks(4, seq(fma), seq())",
    "whole(4, chunks(4, butterfly(2, 1), seq()), seq(fma, desc))",
    "chunks(2, 3, seq(fma), butterfly())",
]


@functools.cache
def compiled(carrier: type[Carrier], t: Tree, fmt: Format) -> Any:
    """The jitted total: ``f(zero, parts, alive, start)``, words in, words and risk out."""

    def run(
        zero: jax.Array, parts: list[jax.Array], alive: jax.Array, start: Any
    ) -> tuple[jax.Array, jax.Array]:
        ops = carrier(zero)
        folder = Folder(ops, fmt, fmt, exact=False, check=True)
        terms = Terms(tuple(ops.decode(p, F, check=False)[:, None] for p in parts), alive[:, None])
        begin = None if start is None else ops.decode(start, F, check=False)[None]
        total = folder.fold(t, terms, begin, (1,))
        return ops.encode(total, F)[0], ops.risk()

    return jax.jit(run)


def engine(
    carrier: type[Carrier],
    t: Tree,
    parts: list[np.ndarray],
    alive: np.ndarray,
    start: float | None,
    fmt: Format,
) -> tuple[float, bool]:
    """The total by the array engine, and whether the risk flag rose."""
    with x64():
        words = [p.astype(np.float32).view(np.uint32) for p in parts]
        begin = None if start is None else np.float32(start).view(np.uint32)
        total, risk = compiled(carrier, t, fmt)(ZERO, words, alive, begin)
    return float(np.asarray(total).view(np.float32)), bool(risk)


def definition(t: Tree, parts: list[np.ndarray], count: int, start: float | None, fmt: Format) -> float:
    """The total by the scalar definition of the first ``count`` terms."""
    kind = "dot" if len(parts) == 2 else "sum"
    terms = (
        list(zip(*(p[:count].tolist() for p in parts), strict=True))
        if kind == "dot"
        else parts[0][:count].tolist()
    )
    fold = ScalarArithmetic().fold(t, kind, [F] * (len(parts) + (start is not None)), fmt, ())
    return fold(terms, start)


def check(t: Tree, parts: list[np.ndarray], count: int, start: float | None, fmt: Format = F) -> None:
    """Both, bit for bit; what the fast carrier is not sure of, by the exact one."""
    alive = np.arange(len(parts[0])) < count
    want = np.float32(definition(t, parts, count, start, fmt))
    got, risk = engine(F32, t, parts, alive, start, fmt)
    if risk:
        got, risk = engine(F32Exact, t, parts, alive, start, fmt)
    assert not risk
    assert np.float32(got).view(np.uint32) == want.view(np.uint32), (got, want)


numbers = st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60, allow_subnormal=False)


@pytest.mark.parametrize("text", SUMS)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_sums(text: str, data: st.DataObject) -> None:
    size = 24
    count = data.draw(st.integers(0, size))
    values = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float64)
    start = data.draw(numbers) if SUMS.index(text) % 2 else None  # one compilation a tree
    check(tree(text), [values], count, start)


@pytest.mark.parametrize("text", DOTS)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_dot_products(text: str, data: st.DataObject) -> None:
    size = 16
    count = data.draw(st.integers(0, size))
    a, b = (
        np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float64) for _ in range(2)
    )
    start = data.draw(numbers) if DOTS.index(text) % 2 else None
    check(tree(text, "dot"), [a, b], count, start)


@pytest.mark.parametrize("fmt", ["bf16", "f32.ftz"])
@pytest.mark.parametrize("text", ["seq()", "lanes(4, seq(), butterfly(2, 1))", "pairwise()"])
def test_sums_in_other_formats(text: str, fmt: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(20).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    scale = 2.0**-124 if fmt == "f32.ftz" else 1.0
    check(tree(text), [values.view(np.float32).astype(np.float64) * scale], 17, None, parse_format(fmt))


def test_order_matters_in_these_numbers() -> None:
    """The trees differ from each other on ordinary numbers, so that the tests above can tell them apart."""
    rows = np.random.default_rng(5).standard_normal((8, 24)).astype(np.float32).astype(np.float64)
    totals = {text: tuple(definition(tree(text), [x], 23, None, F) for x in rows) for text in SUMS}
    assert len(set(totals.values())) >= 10
