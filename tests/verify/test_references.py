"""Specs of real kernels against second programs that were written apart from them (`tests/verify/references`).

Every comparison is bit for bit; NaN payloads alone are not compared. The scalar definition is compared on small
shapes in sampled rows and columns, the array engine whole on larger ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.verify.references import judges
from tests.verify.references.inputs import KINDS, attention
from tests.verify.references.judging import Case


def made(
    spec: str, platform: str, kind: str, shape: tuple[int, int, int, int], fmt: str = "bf16", **more: Any
) -> Case:
    """`shape` is n, q_heads, kv_heads, d; `q_len` among `more` gives q [q_len, q_heads, d]."""
    n, q_heads, kv_heads, d = shape
    rng = np.random.default_rng([n, d, KINDS.index(kind)])
    q, k, v = attention(kind, rng, n, q_heads, kv_heads, d, fmt=fmt, q_len=more.pop("q_len", 0))
    return Case(spec, platform, q, k, v, fmt, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_fa2_kinds(kind: str) -> None:
    case = made("flash_attn2.splitkv_decode", "h200", kind, (300, 4, 2, 64))
    judges.flash_attn2(case, "oracle", kind)
