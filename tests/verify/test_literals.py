"""`true` and `false` wherever a condition may stand: lines, formulas, variants, requirements; in both walkers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.loader import parse_spec
from verify import emulate

PLAIN = load_spec("walkthrough.triton").to_toml()


@pytest.mark.parametrize("backend", ["engine", "oracle"])
def test_conditions_that_are_literals(backend: str) -> None:
    text = PLAIN.replace("exp(score - safe)", "select(false or not (true and false), exp(score - safe), nan)")
    text = text.replace("pieces(16, unit=16)", "pieces(n, unit=select(n == 16 and not false, 16, 8))")
    text = text.replace("[levels]", '[let]\nn = "select(true, 16, 8)"\n\n[levels]')
    text += '\n[[require]]\nthat = "true"\nmessage = "always"\n'
    text += '\n[[variant]]\nwhen = "true"\n[variant.row]\nlse = "most + log(total) + 1"\n'
    text += '\n[[variant]]\nwhen = "false"\n[variant.row]\nlse = "nan"\n'
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        "scores": rng.standard_normal((1, 40)).astype(np.float32),
        "values": rng.standard_normal((40, 2)).astype(np.float32),
    }
    platform = load_platform("h200")
    found = emulate(parse_spec(text), platform, **given, backend=backend)
    plain = emulate(parse_spec(PLAIN), platform, **given, backend=backend)
    assert found.output.tobytes() == plain.output.tobytes()
    assert found.lse == np.float32(plain.lse + np.float32(1))
