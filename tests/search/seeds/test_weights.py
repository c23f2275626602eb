"""Effective weights: what each class of tokens counts for, against the scalar definition and by hand."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.seeds.weights import classes_of
from search.sides import Side, load_side
from search.space import Inputs, Space
from search.target import Target
from specs import load_platform, parse_spec
from specs.errors import UnsupportedError
from verify.definition import RowInputs, ScalarArithmetic, Walker

SHAPE = {"q_heads": 4, "kv_heads": 1, "head_dim": 64}


@pytest.fixture(scope="module")
def target() -> Target:
    sides = [
        load_side("walkthrough.flash_attention_2@h200", {"split": "tiles(2)", "block": "tiles(64)"}),
        load_side("walkthrough.xqa@h200", {"group": "tiles(3)"}),
    ]
    return Target(sides, Space(kv_len=5, context=SHAPE))


def test_by_hand(target: Target) -> None:
    """All scores 0: every weight is 1, every token counts a fifth on both sides."""
    classes, members = classes_of(target, Inputs.one([0.0] * 5, [1, 1, 1, 1, 0]), (0, 1))
    assert sorted(t for m in members for t in m) == [0, 1, 2, 3]  # the token of value 0 stays at 0
    assert {(c.a, c.b) for c in classes} == {(Fraction(1, 5), Fraction(1, 5))}
    assert all(abs(c.p - Fraction(1, 5)) < Fraction(1, 1 << 60) for c in classes)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 255)), min_size=5, max_size=5))
def test_against_the_definition(target: Target, tokens: list[tuple[int, int]]) -> None:
    scores = np.array([s / 16 for s, _ in tokens], dtype=np.float32)
    values = np.array([v / 64 for _, v in tokens])
    classes, members = classes_of(target, Inputs.one(scores, values), (0, 1))
    evaluator = target.evaluators[0]
    row = RowInputs(
        v=values[:, None], scalars={"scale": 1.0}, query=4, feed={"score": scores.astype(np.float64)}
    )
    found = Walker(evaluator.program, evaluator.plan, row, ScalarArithmetic()).value("exact", {"dim": 0})
    exact = sum(
        (c.a * Fraction(float(values[t])) for c, m in zip(classes, members, strict=True) for t in m),
        Fraction(0),
    )
    assert abs(Fraction(found) / exact - 1) < Fraction(20, 1 << 24)  # the float32 roundings of the sums
    weights = np.exp(scores.astype(np.float64))
    for c, m in zip(classes, members, strict=True):
        assert float(c.p) == pytest.approx(weights[m[0]] / weights.sum(), rel=1e-12)
        assert abs(c.a / c.p - 1) < Fraction(1, 256) + Fraction(1, 1 << 20)
        assert abs(c.b / c.p - 1) < Fraction(1, 127)


def test_what_is_not_linear_is_refused() -> None:
    lines = {"value": "sum(bf16(weight) * (v * v), seq())"}
    sides = [load_side("walkthrough.triton@h200", lines), load_side("walkthrough.triton@b200")]
    with pytest.raises(UnsupportedError, match="values are multiplied by values"):
        classes_of(Target(sides, Space(kv_len=5, context=SHAPE)), Inputs.one([0.0] * 5, [1.0] * 5), (0, 1))


@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32"])
def test_values_of_every_format_are_unknowns(fmt: str) -> None:
    """All scores 0, value i is its own class by its piece: each of 40 tokens counts a fortieth."""
    text = f"""
schema = 1
name = "mine.{fmt}"
status = "walkthrough"
summary = "one token a piece"
[numbers]
compute = "f32"
inputs = {{ q = "{fmt}", k = "{fmt}", v = "{fmt}" }}
[levels]
piece = "tiles(1)"
[token]
score = "sum(q * k, seq()) * scale"
[piece]
value = "sum(v, seq())"
[row]
output = "{fmt if fmt != "f32" else "bf16"}(sum(value, seq()) / 40)"
"""
    side = Side(parse_spec(text, "kernel.toml"), load_platform("h200"))
    target = Target([side, side], Space(kv_len=40, context=SHAPE))
    classes, members = classes_of(target, Inputs.one([0.0] * 40, [1] * 40), (0, 1))
    assert sorted(members) == [[i] for i in range(40)]
    assert {c.a for c in classes} == {Fraction(1, 40)}
