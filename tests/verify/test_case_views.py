"""Explanations, comparisons and partials, on an input small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import InputError
from verify import plan
from verify.case import Case
from verify.compare import compare
from verify.explain import as_json, as_text, explain, site_names
from verify.partials import partial_fields
from verify.planview import plan_json, plan_text, token_runs
from verify.traffic import PartialField

H200 = load_platform("h200")
SHAPE = {"kv_len": 27525, "q_heads": 24, "kv_heads": 4, "head_dim": 256}

# Two tokens, scores 0 and 0: weights 1 and 1, norm 2, value 1 + 4 = 5, partial 2.5, lse log 2.
TWO = Case("two", {"scores": np.zeros((1, 2), np.float32), "values": np.array([[1.0], [4.0]], np.float32)})


def test_an_explanation_is_the_arithmetic() -> None:
    spec = load_spec("walkthrough.flash_attention_2")
    result = TWO.emulate(spec, H200, sites=site_names(spec), backend="oracle")
    steps = explain(result, spec, tokens=2)
    assert [s.title.split(" (")[0] for s in steps] == [
        "token 0",
        "token 1",
        "split 0: 2 tokens, the first 0, the last 1",
        "row: 1 groups merged",
    ]
    token = {line.site: line for line in steps[0].lines}
    assert (token["weight"].value, token["weight"].bits) == ("1.0", "0x3f800000")
    split = {line.site: line for line in steps[2].lines}
    assert (split["norm"].value, split["value"].value, split["partial"].value) == ("2.0", "5.0", "2.5")
    assert split["partial"].bits == "0x40200000"
    assert split["level"].bits == "0x3f317218"  # log 2 in f32
    row = {line.site: line for line in steps[3].lines}
    assert (row["output"].value, row["output"].bits, row["output"].format) == ("2.5", "0x4020", "bf16")
    text = list(as_text(steps))
    assert any("0x3f317218" in line and "top + log(norm)" in line for line in text)
    assert as_json(steps)[3]["lines"][-1]["site"] == "lse"


def test_fewer_tokens_than_asked_and_none() -> None:
    spec = load_spec("walkthrough.triton")
    result = TWO.emulate(spec, H200, backend="oracle")
    assert len([s for s in explain(result, spec, 9) if s.title.startswith("token")]) == 2
    assert not [s for s in explain(result, spec, 0) if s.title.startswith("token")]
    with pytest.raises(InputError, match="negative"):
        explain(result, spec, -1)


def test_the_first_difference_is_where_p_is_rounded() -> None:
    # One group each. XQA rounds exp(-1) to bf16 before it sums the normaliser, FlashAttention 2 does not.
    case = Case(
        "p", {"scores": np.array([[0.0, -1.0]], np.float32), "values": np.array([[1.0], [3.0]], np.float32)}
    )
    fa2, xqa = (load_spec(f"walkthrough.{n}") for n in ("flash_attention_2", "xqa"))
    found = compare(case.emulate(fa2, H200, backend="oracle"), case.emulate(xqa, H200, backend="oracle"))
    assert found.same_partition
    assert found.groups == (1, 1)
    assert found.sites["score"]
    assert found.sites["top"]
    assert not found.sites["norm"]
    assert found.first is not None
    assert found.first.site == "norm"
    # 1 + f32(exp(-1)) against 1 + bf16(exp(-1)): 0.36787945 and 0.3671875.
    assert float(found.first.left) == pytest.approx(1.36787945, rel=1e-7)
    assert found.first.right == "1.3671875"
    assert "head 0, split 0" in str(found.first)


def test_tokens_are_compared_in_the_order_of_the_sequence() -> None:
    scores = (np.arange(130, dtype=np.float32) % 7)[None] / 4
    case = Case("order", {"scores": scores, "values": np.ones((130, 1), np.float32)})
    a = case.emulate(load_spec("walkthrough.flash_attention_2"), H200, backend="oracle")
    b = case.emulate(load_spec("walkthrough.triton"), H200, backend="oracle")
    found = compare(a, b)
    assert not found.same_partition
    assert found.sites["score"]  # visited in another order, and equal token by token
    assert found.identical  # every value is 1


def test_a_run_equals_itself() -> None:
    a = TWO.emulate(load_spec("walkthrough.xqa"), H200, backend="oracle")
    found = compare(a, a)
    assert found.identical
    assert found.first is None
    assert found.verdict("a", "b") == "bit-exact: b gives the output bits of a"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("triton", {("top", 32, False), ("norm", 32, False), ("value", 32, True)}),
        ("flash_attention_2", {("level", 32, False), ("partial", 32, True)}),
        ("xqa", {("top", 32, False), ("norm", 32, False), ("partial", 16, True)}),
        ("trtllm_gen", {("top", 32, False), ("norm", 32, False), ("partial", 16, True)}),
        ("tiled", set()),
        ("dense", set()),
    ],
)
def test_partials_are_what_the_issue_says(name: str, fields: set[tuple[str, int, bool]]) -> None:
    found = partial_fields(plan(load_spec(f"walkthrough.{name}"), load_platform("b200"), **SHAPE).program)
    assert set(found) == {PartialField(*field) for field in fields}


def test_plans_for_people_and_machines() -> None:
    spec = load_spec("walkthrough.flash_attention_2")
    found = plan(spec, H200, **SHAPE)
    data = plan_json(found, spec, H200)
    assert data["count"] == len(data["groups"]) == 54
    assert data["groups"][0]["runs"] == [[64 * b, 64] for b in range(7, -1, -1)]
    assert sum(group["tokens"] for group in data["groups"]) == 27525
    lines = list(plan_text(found))
    assert "448..511, 384..447" in lines[1]
    assert "30 more groups" in lines[-1]
    assert token_runs(np.array([5, 6, 7, 2, 3], dtype=np.int64)) == [(5, 3), (2, 2)]
    assert token_runs(np.array([], dtype=np.int64)) == []
