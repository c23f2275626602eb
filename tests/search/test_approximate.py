"""How far functions of machines and libraries are off at most, as bounds have it: against float64, over dense inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from search.tape import APPROXIMATE
from tests.verify.engine.test_special import run

#: The exact function, and the ends of the operands whose results are normal numbers.
WANTED: dict[str, tuple[Callable[..., Any], float, float]] = {
    "mufu.ex2": (np.exp2, -126.0, 0.0),
    "mufu.rcp": (np.reciprocal, 2.0**-10, 2.0**10),
    "cuda.expf": (np.exp, -87.0, 0.0),
    "glibc.expf": (np.exp, -87.0, 0.0),
    "fa4.exp2": (np.exp2, -126.0, 0.0),
    "torch.fexp_u20": (np.exp, -87.0, 0.0),
    "glibc.logf": (np.log, 0.5, 4.0),
    "cuda.logf": (np.log, 0.5, 4.0),
}


def worst(name: str, x: np.ndarray[Any, np.dtype[np.float32]]) -> float:
    """The largest error of a function on ``x``, in half-units of the last place relative to the exact result."""
    function, _, _ = WANTED[name]
    words, _ = run("fast", name, "f32", x.view(np.uint32))
    exact = function(x.astype(np.float64))
    return float((np.abs(words.view(np.float32).astype(np.float64) - exact) / np.abs(exact)).max()) * 2.0**24


@pytest.mark.parametrize("name", WANTED)
def test_no_operand_is_off_by_more(name: str) -> None:
    _, low, high = WANTED[name]
    x = np.random.default_rng(3).uniform(low, high, 1 << 18).astype(np.float32)
    assert APPROXIMATE[name] / 16 < worst(name, x) <= APPROXIMATE[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fa4.exp2", "torch.fexp_u20"])
def test_the_two_cubics_over_every_fraction(name: str) -> None:
    """Every multiple of 2^-24 from -1 to 0 is every fraction that a cubic is given; and all f32 numbers of some binades."""
    whole = -np.arange(1 << 24, dtype=np.float64) / (1 << 24)
    ends = [np.arange(1 << 23, dtype=np.float64) / (1 << 23) * -(2.0**k) - 2.0**k for k in range(6)]
    for part in [whole, *ends]:
        x = part.astype(np.float32)
        for block in np.array_split(x[x > WANTED[name][1]], 16):
            if block.size:
                assert worst(name, np.ascontiguousarray(block)) <= APPROXIMATE[name]
