"""Masks and causality: what emulate refuses rather than half understands."""

import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import InputError, SpecError
from specs.grammar import parse_expr
from verify import emulate

SPEC, PLATFORM = load_spec("walkthrough.triton"), load_platform("h200")
SCORES, VALUES = np.zeros((2, 4), np.float32), np.ones((4, 1), np.float32)


@pytest.mark.parametrize("causal", ["x", 1, None])
def test_causal_is_a_bool(causal):
    with pytest.raises(InputError, match="neither true nor false"):
        emulate(SPEC, PLATFORM, scores=SCORES, values=VALUES, causal=causal)


def test_causal_in_the_context_masks_like_the_keyword():
    scores, values = np.zeros((2, 4), np.float32), np.array([[1.0], [2.0], [4.0], [8.0]], np.float32)
    a = emulate(SPEC, PLATFORM, scores=scores, values=values, context={"causal": 1}, backend="oracle")
    assert a.output.astype(float).ravel().tolist() == [2.328125, 3.75]  # 7/3 in bf16, 15/4
    b = emulate(SPEC, PLATFORM, scores=scores, values=values, causal=True, backend="oracle")
    assert a.output.tobytes() == b.output.tobytes()


def test_more_causal_rows_than_tokens():
    with pytest.raises(InputError, match="5 rows but 4 tokens"):
        emulate(SPEC, PLATFORM, scores=np.zeros((5, 4), np.float32), values=VALUES, causal=True)


def test_a_masked_array_would_lose_its_mask():
    with pytest.raises(InputError, match="masked array"):
        emulate(SPEC, PLATFORM, scores=np.ma.masked_equal(SCORES, 1), values=VALUES)


@pytest.mark.parametrize(
    ("text", "cause"), [("1e99999", "large"), ("sum(a * b, seq(fma))", "no products to fuse")]
)
def test_grammar_refuses(text, cause):
    with pytest.raises(SpecError, match=cause):
        parse_expr(text)
