"""Triton's interpreter as a producer: the arithmetic that is put in its place, and vLLM's kernel itself where it is."""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.formats import BASES
from verify.capture.producers import triton_interpreter as interpreter
from verify.capture.producers.base import Call
from verify.numerics.rounding import round_fraction

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[2] / "data"
ORACLE = Path(__file__).parents[4] / "shared" / "oracle"
BF16 = st.integers(0, 0xFFFF).map(lambda w: float(np.array([w], np.uint16).view(ml_dtypes.bfloat16)[0]))


@given(st.lists(BF16.filter(lambda x: math.isfinite(x) and abs(x) < 2.0**60), min_size=1, max_size=20))
def test_a_sum_is_rounded_once(terms: list[float]) -> None:
    want = round_fraction(sum((Fraction(x) for x in terms), Fraction(0)), BASES["f32"])
    assert float(interpreter.rounded_sum(terms)) == want


@pytest.mark.parametrize(
    ("terms", "want"),
    [
        ([1.0, 2.0**-24], 1.0),  # a tie goes to even
        ([1.0, 2.0**-24, 2.0**-100], 1.0 + 2.0**-23),  # float64 loses what breaks it
        ([1.0, 2.0**-24, -(2.0**-100)], 1.0),
        ([-1.0, -(2.0**-24), -(2.0**-100)], -1.0 - 2.0**-23),
        ([1.0 + 2.0**-23, 2.0**-24, -(2.0**-100)], 1.0 + 2.0**-23),
        ([2.0**127, 2.0**127], math.inf),
        ([math.inf, 1.0], math.inf),
    ],
)
def test_ties(terms: list[float], want: float) -> None:
    assert float(interpreter.rounded_sum(terms)) == want


def test_sums_run_left_to_right() -> None:
    data = np.array([[2.0**24, 1.0, 1.0], [1.0, 1.0, 2.0**24]], np.float32)
    assert interpreter.left_to_right(data, 1, False).tolist() == [2.0**24, 2.0**24 + 2]
    assert interpreter.left_to_right(data, 1, True).shape == (2, 1)
    assert interpreter.left_to_right(data.reshape(-1)[:3], None, False) == 2.0**24


def test_products_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((3, 5)).astype(ml_dtypes.bfloat16).astype(float) for _ in range(2))
    found = interpreter.exact_product(a, b.T)
    for i, j in np.ndindex(3, 3):
        exact = sum((Fraction(x) * Fraction(y) for x, y in zip(a[i], b[j], strict=True)), Fraction(0))
        assert float(found[i, j]) == round_fraction(exact, BASES["f32"])


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "importable", lambda name: name != "vllm")
    assert interpreter.available("triton_interpreter") == "vllm is not installed"


@pytest.mark.skipif(
    interpreter.available("triton_interpreter") is not None,
    reason=f"the kernel itself: {interpreter.available('triton_interpreter')}",
)
def test_recorded_words_of_the_interpreter() -> None:
    """Where Triton 3.7 and vLLM are: outputs and segments recorded in an interpreter that was put right elsewhere."""
    file = ORACLE / "vllm_triton.json" if ORACLE.is_dir() else DATA / "vllm_triton_small.json"
    recorded = np.load(file.with_suffix(".npz"))
    cases = [c for c in json.loads(file.read_text()) if c["n"] * c["hq"] * c["d"] <= 20_000]
    assert cases
    before = set(sys.modules)
    for case in cases:
        rng = np.random.default_rng(case["seed"])
        shapes = ((case["hq"], case["d"]), *[(case["n"], case["hkv"], case["d"])] * 2)
        q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        q = q * np.float32(case["qscale"])
        q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (q, k, v))
        found = interpreter.run("triton_interpreter", Call(q[None], k, v, case["scale"])).arrays
        key = case["key"]
        assert (found["output"][0].view(np.uint16) == recorded[f"{key}/out"]).all(), key
        for name in ("segm_max", "segm_expsum"):
            np.testing.assert_array_equal(found[name][0], recorded[f"{key}/{name}"], err_msg=key)
    assert not any(name.startswith("vllm.") for name in set(sys.modules) - before)
