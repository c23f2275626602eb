"""f64 subnormals are not emulated: the engine says so, and never gives a flushed result."""

from __future__ import annotations

import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import UnsupportedError
from verify import emulate


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        ([0.0], [2.0**-1040]),  # a subnormal input
        ([0.0, -3.0], [2.0**-1000, 2.0**-1021]),  # a weight times a normal value is subnormal
        ([0.0, 0.0], [2.0**-1021 * 1.25, -(2.0**-1021)]),  # a subnormal sum of normal products
    ],
)
def test_a_subnormal_is_refused(scores: list[float], values: list[float]) -> None:
    with pytest.raises(UnsupportedError, match="subnormal f64"):
        emulate(
            load_spec("walkthrough.dense"), load_platform("h200"), scores=np.array([scores]), values=values
        )


def test_a_subnormal_key_is_refused() -> None:
    key = np.full((3, 1, 1), 2.0**-1030)
    with pytest.raises(UnsupportedError, match="subnormal f64"):
        emulate(
            load_spec("walkthrough.dense"),
            load_platform("h200"),
            q=np.full((1, 1), 2.0**1020),
            k=key,
            v=np.ones((3, 1, 1)),
        )


def test_padding_raises_no_alarm() -> None:
    """Five tokens of a row of sixteen: zeros beyond them, and exact zeros among the products."""
    result = emulate(
        load_spec("walkthrough.dense"),
        load_platform("h200"),
        scores=np.zeros((1, 4)),
        values=np.array([0.0, 4.0, -0.0, 4.0]),
    )
    assert result.output.tolist() == [[2.0]]
