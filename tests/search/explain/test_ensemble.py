"""Ensembles: shares of changed outputs add up, and a planted change has them all."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from search.explain.explain import explain_many
from specs import load_spec
from specs.errors import InputError
from tests.search.explain.test_attribution import normal, with_line
from tests.search.explain.tiny import h200
from verify.case import Case


def case(i: int) -> Case:
    return normal(300, dim=3, seed=i)


def test_a_planted_change_explains_all_that_changes() -> None:
    spec = load_spec("walkthrough.trtllm_gen")
    changed = with_line(spec, "partial", "f16(sum(bf16(weight) * v, seq()))")
    found = explain_many(case, 4, (spec, h200()), (changed, h200()), backend="oracle")
    assert found is not None
    assert [p.name for p in found.parts] == ["weights and sums"]
    outputs = [
        [case(i).emulate(s, h200(), backend="oracle").output.view(np.uint16) for s in (spec, changed)]
        for i in range(4)
    ]
    share = Fraction(sum(int((a != b).sum()) for a, b in outputs), 12)
    assert 0 < share < 1
    assert found.whole == share
    assert found.changed.value == share  # three columns of one row: all of them are sampled
    assert found.shares[0].value == share
    assert found.kind == "range"


def test_shares_add_up_and_have_intervals() -> None:
    a, b = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    found = explain_many(case, 10, (a, h200()), (b, h200()), backend="oracle", seed=5)
    assert found is not None
    assert sum(s.value for s in found.shares) == found.changed.value
    assert found.kind == "bootstrap"
    assert found.changed.low <= float(found.changed.value) <= found.changed.high
    assert found.inputs == 10
    assert found.sampled == 3


def test_the_same_program_has_no_shares() -> None:
    spec = load_spec("walkthrough.triton")
    assert explain_many(case, 2, (spec, h200()), (spec, h200()), backend="oracle") is None


def test_no_input_is_refused() -> None:
    a, b = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    with pytest.raises(InputError, match="0 inputs"):
        explain_many(case, 0, (a, h200()), (b, h200()), backend="oracle")
