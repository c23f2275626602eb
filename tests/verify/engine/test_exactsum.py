"""``exact()`` in the array engine: the definition's bits, or the flag; never another number."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specs import load_platform, parse_spec
from specs.formats import BASES
from tests.verify.small import HEADER
from verify import emulate
from verify.engine.exactsum import ExactSum
from verify.engine.primitives import F32, ZERO, Carrier, F32Exact, x64
from verify.engine.trees import Terms
from verify.numerics.rounding import round_fraction

F = BASES["f32"]
SIZE = 12


@functools.cache
def compiled(carrier: type[Carrier], pairs: bool) -> Any:
    def run(zero: jax.Array, parts: list[jax.Array], alive: jax.Array, start: jax.Array) -> Any:
        ops = carrier(zero)
        decoded = [ops.decode(p, F, check=False)[:, None] for p in parts[: 1 + pairs]]
        begin = ops.decode(start, F, check=False)[None]
        total = ExactSum(ops, F).total(Terms(tuple(decoded), alive[:, None]), begin, (1,))
        return ops.encode(total, F)[0], ops.risk()

    return jax.jit(run)


def engine(parts: list[np.ndarray], count: int, start: float, *, pairs: bool) -> float | None:
    """The total, or None where both carriers raise the flag."""
    words = [p.astype(np.float32).view(np.uint32) for p in parts]
    alive = np.arange(SIZE) < count
    for carrier in (F32, F32Exact):
        with x64():
            total, risk = compiled(carrier, pairs)(ZERO, words, alive, np.float32(start).view(np.uint32))
        if not bool(risk):
            return float(np.asarray(total).view(np.float32))
    return None


def exactly(parts: list[np.ndarray], count: int, start: float, *, pairs: bool) -> float:
    """By fractions."""
    a, b = (p[:count].tolist() for p in parts)
    terms = [Fraction(x) * Fraction(y) if pairs else Fraction(x) for x, y in zip(a, b, strict=True)]
    return round_fraction(sum(terms, Fraction(start)), F)


def numbers(top: int) -> st.SearchStrategy[list[float]]:
    one = st.floats(width=32, min_value=-(2.0**top), max_value=2.0**top, allow_subnormal=False)
    tidy = st.builds(lambda m, e: float(m) * 2.0**e, st.integers(-255, 255), st.integers(-top, top - 8))
    return st.lists(one.map(lambda x: x if abs(x) > 2.0**-top else 0.0) | tidy, min_size=SIZE, max_size=SIZE)


@pytest.mark.parametrize("pairs", [False, True])
@settings(max_examples=60, deadline=None)
@given(
    a=numbers(20),
    b=numbers(20),
    count=st.integers(0, SIZE),
    start=st.sampled_from([0.0, 1.0, -(2.0**-20), 2.0**20]),
)
@example(a=[2.0**20, 2.0**-20, -(2.0**20)] * 4, b=[1.0] * SIZE, count=9, start=0.0)
@example(a=[1.0, 2.0**-24, 2.0**-20 * 2.0**-20] + [0.0] * 9, b=[1.0] * SIZE, count=3, start=0.0)
def test_sums_of_moderate_range(
    pairs: bool, a: list[float], b: list[float], count: int, start: float
) -> None:
    parts = [np.array(a), np.array(b)]
    got = engine(parts, count, start, pairs=pairs)
    want = exactly(parts, count, start, pairs=pairs)
    assert got is not None
    assert np.float32(got).view(np.uint32) == np.float32(want).view(np.uint32), (got, want)


@settings(max_examples=60, deadline=None)
@given(a=numbers(60), b=numbers(60), count=st.integers(0, SIZE))
def test_what_is_too_wide_is_flagged(a: list[float], b: list[float], count: int) -> None:
    """Products over 240 binades and their cancellations: right, or no answer."""
    parts = [np.array(a), np.array(b)]
    got = engine(parts, count, 0.0, pairs=True)
    if got is not None:
        want = exactly(parts, count, 0.0, pairs=True)
        assert np.float32(got).view(np.uint32) == np.float32(want).view(np.uint32), (got, want)


def test_a_sum_beyond_three_doubles_has_no_answer() -> None:
    """2**60 + 2**-60, squared and taken apart again: the rest needs more bits than three doubles hold."""
    a = np.array(
        [2.0**60, 2.0**59, 1.0 + 2.0**-23, 2.0**-59 * (1 + 2.0**-23), 2.0**-60, -(2.0**60)] + [0.0] * 6
    )
    b = np.array([2.0**60, 2.0**5, 1.0 + 2.0**-23, 2.0**-50, 2.0**-60 * (1 + 2.0**-23), 2.0**60] + [0.0] * 6)
    assert engine([a, b], 6, 0.0, pairs=True) is None
    assert engine([a, b], 1, 0.0, pairs=True) == 2.0**120


@pytest.mark.parametrize("backend", ["engine", "oracle"])
@pytest.mark.parametrize(
    ("reduction", "want"),
    [("sum(score * v, exact())", 2.0**-23), ("dot(score, v, exact())", 2.0**-23 + 2.0**-30)],
)
def test_a_sum_rounds_its_products_and_a_dot_product_does_not(
    reduction: str, want: float, backend: str
) -> None:
    """(1 + 2**-23) * (1 + 2**-7) has a last term 2**-30, which f32 does not hold beside 1."""
    arrays: dict[str, Any] = {
        "scores": np.array([1 + 2.0**-23, -1], np.float32),
        "values": np.full((2, 1), 1 + 2.0**-7, np.float32),
    }
    spec = parse_spec(f'{HEADER}[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "{reduction}"\n')
    result = emulate(spec, load_platform("h200"), **arrays, backend=backend)
    assert float(np.asarray(result.output, np.float64).item()) == want
