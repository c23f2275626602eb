"""`evaluate`: arrays of values, and refusals of what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from specs.errors import InputError, UnsupportedError
from tests.verify.small import HEADER, planned
from verify.definition import RowInputs, ScalarArithmetic, Walker, evaluate


def walker_of(text: str, kv_len: int, inputs: RowInputs) -> Walker:
    plan = planned(text, kv_len)
    return Walker(plan.program, plan, inputs, ScalarArithmetic())


TILED = """
[levels]
tile = "tiles(2)"
"""
ROW = """
[row]
output = "sum(v, seq())"
"""


def test_evaluate_masks_what_does_not_exist() -> None:
    text = """
[levels]
group = "deal(2, unit=2)"
tile = "tiles(2)"
[token]
s = "sum(q * k, seq())"
[tile]
top = "max(s)"
big = "top > 2"
where = "pos(tile)"
[row]
lse = "max(top)"
output = "sum(v * s, seq())"
"""
    plan = planned(text, 5)
    inputs = RowInputs(v=np.arange(15.0).reshape(5, 3), feed={"s": np.arange(5.0)})
    got = evaluate(
        plan.program, plan, inputs, ["s", "top", "big", "where", "output", "lse"], ScalarArithmetic(), [2, 0]
    )
    assert got["s"].tolist() == [[[0.0, 1.0], [4.0, None]], [[2.0, 3.0], [None, None]]]
    assert got["top"].tolist() == [[1.0, 4.0], [3.0, None]]
    assert np.isnan(got["top"].data[1, 1])
    assert got["big"].dtype == np.bool_
    assert got["big"].tolist() == [[False, True], [True, None]]
    assert got["where"].dtype == np.int64
    assert got["where"].tolist() == [0, 1]
    # sum of t * (3 t + column) for column 2 and column 0
    assert got["output"].tolist() == [90.0 + 20.0, 90.0]
    assert got["lse"].item() == 4.0


def test_refusals_name_the_line_and_what_is_supported() -> None:
    line = 'output = "dot(v, 1, any())"\n'
    text = "[row]\n" + line
    place = (HEADER + text).splitlines().index(line.strip()) + 1
    with pytest.raises(UnsupportedError, match=rf"<text>:{place}:\d+: any\(\) is not evaluated yet\n.*seq"):
        walker_of(text, 1, RowInputs(v=np.zeros((1, 1)))).value("output", {"dim": 0})
    text = '[row]\noutput = "tanh.approx(sum(v, seq()))"\n'
    plan = planned(text, 1)
    with pytest.raises(UnsupportedError, match=r"<text>:\d+:\d+: tanh\.approx\(\) is not evaluated"):
        evaluate(plan.program, plan, RowInputs(v=np.zeros((1, 1))), ["output"], ScalarArithmetic())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (RowInputs(v=np.zeros((2, 1))), r"v: shape \(2, 1\) where \(3, 1\) is needed"),
        (RowInputs(v=np.full((3, 1), 1.001)), r"v: 1\.001 at \[0, 0\] is no value of bf16"),
        (RowInputs(v=np.zeros((3, 1), dtype=np.float32)), r"v: dtype float32"),
        (
            RowInputs(q=np.zeros(2), k=np.zeros((3, 4)), v=np.zeros((3, 1))),
            r"k: shape \(3, 4\) where \(3, 2\)",
        ),
        (RowInputs(v=np.zeros((3, 1)), scalars={"sclae": 1.0}), "unknown scalar 'sclae'"),
        (RowInputs(v=np.zeros((3, 1)), feed={"score": np.zeros(3)}), "feed 'score': no such site"),
        (RowInputs(v=np.zeros((3, 1)), feed={"s": np.zeros(2)}), r"feed 's': shape \(2,\) where \(3,\)"),
        (
            RowInputs(v=np.zeros((3, 1)), feed={"s": np.full(3, 0.1)}),
            r"feed 's': 0\.1 at \[0\] is no value of f32",
        ),
    ],
)
def test_inputs_that_do_not_fit(inputs: RowInputs, message: str) -> None:
    with pytest.raises(InputError, match=message):
        walker_of('[token]\ns = "sum(q * k, seq())"\n' + ROW, 3, inputs)


def test_indices_that_do_not_fit() -> None:
    walker = walker_of(
        TILED + '[tile]\npart = "sum(v, seq())"\n[row]\noutput = "sum(part, seq())"\n',
        3,
        RowInputs(v=np.zeros((3, 1))),
    )
    with pytest.raises(InputError, match="no site 'prat'"):
        walker.value("prat")
    with pytest.raises(InputError, match="unknown axis 'tiel'"):
        walker.value("part", {"tiel": 0})
    for index in ({"tile": 2, "dim": 0}, {"tile": 0, "dim": 1}, {"tile": 0}, {"tile": -1, "dim": 0}):
        with pytest.raises(InputError, match="nothing stands at"):
            walker.value("part", index)
    plan = planned(ROW, 1)
    with pytest.raises(InputError, match="no column 1"):
        evaluate(plan.program, plan, RowInputs(v=np.zeros((1, 1))), ["output"], ScalarArithmetic(), [1])
