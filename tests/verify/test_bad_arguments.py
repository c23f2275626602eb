"""What `emulate` says to arguments of the wrong kind, and constants in a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specs import load_platform, load_spec, parse_spec
from specs.errors import InputError, SpecError
from verify import emulate

Q = np.ones((2, 4), np.float32)
K = np.ones((20, 1, 4), np.float32)
RAGGED: dict[str, Any] = {"q": Q[None], "k": K[None], "v": K[None]}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"scale": "a"}, "argument scale"),
        ({"scale": 1j}, "argument scale"),
        ({"scale": np.ones(3)}, "argument scale"),
        ({"scale": 10**400}, "argument scale"),
        ({"scale": 1e300}, "argument scale"),
        ({"q": [[1.0, 2.0], [1.0]]}, "argument q"),
        ({"context": [1]}, "argument context"),
        ({"context": {"window": "x"}}, "argument window"),
        ({"options": [1]}, "argument options"),
        ({"backend": None}, "argument backend"),
        ({"kv_lens": 5}, "argument kv_lens"),
        ({"kv_lens": ["a"]}, "argument kv_lens"),
        ({**RAGGED, "kv_lens": [2.7]}, "argument kv_lens"),
        ({"q": np.float32(1), "kv_lens": [1]}, "argument q"),
    ],
)
def test_the_wrong_kind_of_argument_is_named(given: dict[str, Any], place: str) -> None:
    arguments: dict[str, Any] = {"q": Q, "k": K, "v": K, "backend": "oracle", **given}
    with pytest.raises(InputError, match=place):
        emulate(load_spec("walkthrough.triton"), load_platform("h200"), **arguments)


def test_the_engine_traces_constants() -> None:
    spec = parse_spec(
        """
schema = 1
name = "test.constants"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[constants]
third = "1 / 3"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[row]
total = "sum(exp(score * third), seq())"
output = "bf16(sum(exp(score * third) * v, seq()) / total)"
"""
    )
    for backend in ("engine", "oracle"):
        result = emulate(spec, load_platform("h200"), q=Q, k=K[:2], v=K[:2], backend=backend)
        assert np.array_equal(result.trace["third"].astype(np.float64), np.full(2, 1 / 3)), backend


def test_a_table_nested_thousands_deep_is_refused() -> None:
    with pytest.raises(SpecError, match="nested"):
        parse_spec("schema = 1\n[" + ".".join(["a"] * 3000) + "]\nx = 1\n")
