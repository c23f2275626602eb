"""Spaces: limits that are checked when they are stated."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from search.space import Inputs, Space, Statistics
from specs.errors import InputError

BASE = Inputs.one([0.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_len": 0}, "kv_len = 0"),
        ({"dims": 0}, "dims = 0"),
        ({"score_box": 0.0}, "score_box"),
        ({"value_box": float("nan")}, "value_box"),
        ({"cancellation": 1.5}, "not between 0 and 1"),
        ({"cancellation": float("nan")}, "not between 0 and 1"),
        ({"fixed": frozenset({5})}, "a fixed token is not in 0..1"),
        ({"fixed": frozenset({1})}, "no input is given"),
        ({"edits": 1}, "no input is given"),
        ({"context": {"window": "8"}}, "window = 8"),
        ({"base": BASE, "dims": 2}, "the base has 2 tokens and 1 columns"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Space(**{"kv_len": 2, **given})


def test_c_is_the_decimal_that_was_meant() -> None:
    assert Space(kv_len=2, cancellation=0.1).exact_cancellation == Fraction(1, 10)


def test_shapes_of_inputs() -> None:
    with pytest.raises(InputError, match="give scores"):
        Inputs(np.zeros(3, np.float32), np.zeros((1, 3, 1), np.float32))
    both = Inputs.join([BASE, Inputs.one([3.0, -np.inf], [[5.0], [6.0]])])
    assert (both.count, both.kv_len, both.dims) == (2, 2, 1)
    assert both.pick([1]).values.ravel().tolist() == [5.0, 6.0]


def test_statistics() -> None:
    inputs = Inputs.join([Inputs.one([0.0, 2.0], [1.0, -1.0]), Inputs.one([0.0, -np.inf], [3.0, 3.0])])
    assert Statistics(score_std=0.5).hold(inputs).tolist() == [False, True]
    assert Statistics(value_mean=0.0).hold(inputs).tolist() == [True, False]
    assert Statistics(value_std=0.5).hold(inputs).tolist() == [False, True]
