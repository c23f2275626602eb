"""Tensor-core trees in a spec: which factors, formats and platforms they take, and what they give.

The expected values come from the rule of a truncated fused dot-product-add in integers (`tests/verify/references`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs import load_platform, parse_spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import SpecError, UnsupportedError
from tests.verify.references.dots import AMPERE, HOPPER, Core, fused_by_integers
from tests.verify.small import HEADER
from verify.definition import RowInputs, ScalarArithmetic, Walker
from verify.definition.balls import BallArithmetic
from verify.partition import plan_program

CORES = {"a100": AMPERE, "h200": HOPPER}


def walk(line: str, v: Sequence[float], platform: str = "h200", arithmetic: Any = None) -> Walker:
    values = make_context({"sm_count": 4, "compute_capability": 90, "kv_len": len(v)})
    spec = parse_spec(f"{HEADER}[row]\n{line}")
    program = bind(spec, values, dot_products=load_platform(platform).dot_products)
    inputs = RowInputs(v=np.array(v, dtype=np.float64)[:, None])
    return Walker(program, plan_program(program, values), inputs, arithmetic or ScalarArithmetic())


def value(line: str, v: Sequence[float], platform: str = "h200") -> float:
    return walk(line, v, platform).value("output", {"dim": 0})


def truncated_chain(core: Core, v: Sequence[float], c: float) -> float:
    """Squares and the accumulator, block after block, in integers and fractions."""
    for at in range(0, len(v), core.length):
        block = list(v[at : at + core.length])
        c = fused_by_integers(core, "bf16", block, block, c)
    return c


BF16 = st.builds(lambda m, e: math.ldexp(m, e), st.integers(-255, 255), st.integers(-20, 12))


@given(st.lists(BF16, min_size=1, max_size=40), st.sampled_from(sorted(CORES)))
def test_a_chain_is_the_rule(v: list[float], platform: str) -> None:
    want = truncated_chain(CORES[platform], v, 0.0)
    assert value('output = "dot(v, v, mma(16))"', v, platform) == want
    want = truncated_chain(CORES[platform], v, 1.5)
    assert value('output = "dot(v, v, mma(16), start=1.5)"', v, platform) == want


def test_truncation_of_each_term() -> None:
    # 2**24 and ones: each 1 is kept at 25 fraction bits, the sum 2**24 + 1 is cut to 24 bits.
    assert value('output = "dot(v, 1, mma(16))"', [2.0**24, 1.0]) == 2.0**24
    assert value('output = "dot(v, 1, mma(16))"', [2.0**24, 1.0, 1.0]) == 2.0**24 + 2
    # 2**26 and four ones: each is below the last place that is kept, so all are lost; exactly, they would count.
    assert value('output = "dot(v, 1, mma(16))"', [2.0**26, *[1.0] * 8]) == 2.0**26
    # Cut to nothing in the first block, kept in the second one: 16 terms a block on H200, 8 on A100.
    v = [2.0**26, *[0.0] * 15, -(2.0**26), 1.0]
    assert value('output = "dot(v, 1, mma(16))"', v) == 0.0
    v = [2.0**26, -(2.0**26), *[0.0] * 14, 1.0]
    assert value('output = "dot(v, 1, mma(16))"', v) == 1.0
    v = [2.0**26, 1.0, *[0.0] * 7, -(2.0**26), 0.0]
    assert value('output = "dot(v, 1, mma(16))"', v, "h200") == 0.0
    v = [1.0, *[0.0] * 7, 2.0**24, -(2.0**24)]
    assert value('output = "dot(v, 1, mma(16))"', v, "a100") == 1.0
    v = [1.0, *[0.0] * 7, 2.0**26, -(2.0**26)]
    assert value('output = "dot(v, 1, mma(16))"', v, "a100") == 0.0


def test_inside_another_tree_each_chain_starts_at_zero() -> None:
    v = [2.0**26, 1.0, 1.0, -(2.0**26)]
    assert value('output = "dot(v, 1, chunks(2, mma(16), seq()))"', v) == 0.0
    assert value('output = "dot(v, 1, chunks(1, mma(16), pairwise()))"', [3.0, 4.0]) == 7.0


def test_a_literal_takes_the_format_of_the_other_factor() -> None:
    assert value('output = "dot(0.5, v, mma(16))"', [3.0, 5.0]) == 4.0
    assert value('output = "dot(v, -2, mma(16))"', [3.0, 5.0]) == -16.0
    with pytest.raises(SpecError, match=r"0\.3 is no value of bf16"):
        value('output = "dot(v, 0.3, mma(16))"', [1.0])


@pytest.mark.parametrize(
    ("line", "platform", "message"),
    [
        ("dot(v, f16(v), mma(16))", "h200", r"no dot product mma of bf16 and f16 to f32"),
        ("dot(v, bf16(v), mma(16, wgmma))", "a100", r"no dot product wgmma of bf16 and bf16 to f32"),
    ],
)
def test_what_a_platform_does_not_have(line: str, platform: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"<text>:\d+:\d+: {message}"):
        value(f'output = "{line}"', [1.0], platform)


@pytest.mark.parametrize("line", ["dot(v, v * 2, mma(16))", "dot(2 * v, 1, lanes(4, mma(16), seq()))"])
def test_what_no_tensor_core_reads(line: str) -> None:
    with pytest.raises(
        SpecError, match=r"<text>:\d+:\d+: a tensor core does not read f32\n.*cast the factor"
    ):
        walk(f'output = "{line}"', [1.0])


def test_real_meaning() -> None:
    found = walk('output = "dot(v, 1, mma(16), start=1)"', [2.0**26, 1.0], arithmetic=BallArithmetic())
    assert found.value("output", {"dim": 0}) == 2**26 + 2
