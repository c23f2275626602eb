"""Tensor cores against words of the published model (and of GPUs, where the recordings are at hand)."""

from __future__ import annotations

import numpy as np
import pytest

from search.exact.dyadic import NAN, ZERO, Number, from_bits, order, to_bits
from search.exact.tensor_core import chain
from specs import load_platform
from specs.dot_products import find
from specs.formats import BASES, Format
from tests.verify.dots import RECORDED, SMALL, Case, model_cases, recorded_cases
from verify.numerics.tensor_core import NAN_WORDS


def number(word: int, fmt: Format) -> Number:
    return from_bits(word & 0xFFFFE000 if fmt.base == "tf32" else word, fmt)


def words(case: Case) -> list[int]:
    output = BASES[case.dot.output]
    found: list[int] = []
    for a, b, c in zip(case.a.tolist(), case.b.tolist(), case.c.tolist(), strict=True):
        pairs = [(number(x, case.fmt), number(y, case.fmt)) for x, y in zip(a, b, strict=True)]
        x = chain(case.dot, case.k, pairs, from_bits(c, output), (case.fmt, case.fmt))
        found.append(NAN_WORDS[case.dot.output] if x == NAN else to_bits(x, output))
    return found


@pytest.mark.parametrize("case", model_cases(SMALL), ids=lambda c: c.key)
def test_the_words_of_the_model(case: Case) -> None:
    some = case.part(4)
    assert words(some) == some.d.tolist()


def test_terms_are_not_aligned_below_the_floor() -> None:
    """With a floor of 2**-133 and 25 bits below it, -(2**-160) is cut to nothing and 2**-149 stays what it is."""
    bf16, f32 = BASES["bf16"], BASES["f32"]
    dot = find(load_platform("h200").dot_products, "mma", bf16, bf16, f32, 16)
    pairs: list[tuple[Number, Number]] = [((1, -75), (1, -74)), ((1, -80), (-1, -80))]
    got = chain(dot, 16, pairs, ZERO, (bf16, bf16))
    assert order(got, (1, -149)) == 0


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded words are not here")
def test_the_words_that_gpus_gave() -> None:
    for case in recorded_cases():
        some = case.part(7)
        assert np.array_equal(words(some), some.d), case.key
