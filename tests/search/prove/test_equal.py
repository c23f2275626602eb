"""Equal bits: proved by structure, refuted by inputs that show both patterns, and never proved by trying."""

import json

import pytest

from reports.cli import app
from search.prove.dots import prove_dots
from search.prove.equal import prove_equal
from search.prove.structure import difference, form
from search.prove.work import answer, small_job
from search.sides import load_side
from specs import load_platform
from specs.errors import InputError
from tests.commands import invoke

HEADS = {"q_heads": 24, "kv_heads": 4, "head_dim": 64}


def prove(a: str, b: str, **options):
    return prove_equal(load_side(a), load_side(b), HEADS, **options)


def test_gpus_with_as_many_sms_are_one_for_every_shape():
    found = prove("flash_attn2.splitkv_decode@h200", "flash_attn2.splitkv_decode@h100", witness=False)
    assert found.status == "proved"
    assert found.claim == "equal bits for every shape and input"
    assert "sm_count = 132" in found.reason
    assert any("special-function unit" in a for a in found.assumptions)
    assert any("'read'" in a for a in found.assumptions)


def test_the_pcie_card_has_fewer_sms():
    found = prove("flash_attn2.splitkv_decode@h200", "flash_attn2.splitkv_decode@h100_pcie", witness=False)
    assert found.status == "not decided"
    assert "auto" in found.reason


def test_what_differs_but_enters_nowhere_is_said():
    found = prove("flash_attn2.prefill@h200", "flash_attn2.prefill@b200", witness=False)
    assert found.status == "proved"
    assert "compute_capability (90 and 100) differs, but leaves every formula the same" in found.reason


def test_tensor_cores_are_part_of_the_program():
    """A100 and Ada fuse 8 products, Hopper 16: the same lines, other bits. With head_dim 64 A100 and Ada are one."""
    sides = load_side("flash_attn2.prefill@a100"), load_side("flash_attn2.prefill@h200")
    known = {"head_dim": 64, "window": 0}
    assert difference(*(form(s, known) for s in sides)) == "the tensor cores that it uses compute otherwise"
    assert prove("flash_attn2.prefill@a100", "flash_attn2.prefill@l40s", known=known).status == "proved"


def test_a_variant_that_an_earlier_one_decides_is_not_dropped(tmp_path):
    """`wide` is 0 in the file, 1 where the window is open: the second variant then reads the SM count."""
    text = """
schema = 1
name = "mine.chain"
status = "walkthrough"
summary = "a chain of variants"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[let]
wide = "0"
n = "64"
[levels]
tile = "tiles(n)"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[row]
top = "max(score)"
weight = "exp(score - top)"
output = "sum(weight * v, seq()) / sum(weight, seq())"
[[variant]]
when = "window > 0"
[variant.let]
wide = "1"
[[variant]]
when = "wide == 1"
[variant.let]
n = "sm_count"
"""
    path = tmp_path / "chain.toml"
    path.write_text(text)
    found = prove(f"{path}@h200", f"{path}@b200", witness=False)
    assert found.status == "not decided"
    assert prove(f"{path}@h200", f"{path}@h100", witness=False).status == "proved"
    fixed = prove(f"{path}@h200", f"{path}@b200", witness=False, known={"window": 0})
    assert fixed.status == "proved"
    assert fixed.claim.endswith("with window = 0")


def test_at_one_length_the_plan_is_compared():
    """128 tokens are one split on both; what differs in the heuristic does not matter there."""
    pair = "walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@b200"
    assert prove(*pair, kv_len=64, witness=False).status == "proved"


def test_a_witness_shows_both_patterns_and_its_replay():
    out, _ = invoke(
        app,
        *("prove", "equal", "walkthrough.xqa@h200", "walkthrough.triton@h200", "--kv-len", "17"),
        *("--q-heads", "2", "--kv-heads", "1", "--head-dim", "64", "--format", "json"),
    )
    (found,) = json.loads(out)["proofs"]
    assert found["status"] == "refuted"
    left, right = found["details"]["bits"]
    assert left != right
    assert "ulpscope compare walkthrough.xqa@h200 walkthrough.triton@h200 --random" in found["rechecked"]


def test_numbers_that_cancel_part_tensor_cores():
    """The lines are the same; A100 keeps fewer bits beside a large term. Scores by hand: 2^10 - 2^10 adds nothing."""
    small = {"q_heads": 1, "kv_heads": 1, "head_dim": 64}
    sides = load_side("flash_attn2.prefill@a100"), load_side("flash_attn2.prefill@h200")
    found = prove_equal(*sides, small, kv_len=96, seconds=20.0)
    assert found.status == "refuted"
    assert found.details["bits"][0] != found.details["bits"][1]


def test_a_side_that_takes_no_shape_is_said():
    found = prove("trtllm_gen.reduction@h200", "trtllm_gen.reduction@h100", witness=False)
    assert found.status == "refused"


@pytest.mark.parametrize(
    ("a", "b", "fmt"), [("a100", "l40s", "bf16"), ("h200", "b200", "bf16"), ("h200", "h100", "f16")]
)
def test_tensor_cores_that_are_one_function(a, b, fmt):
    found = prove_dots([load_platform(a), load_platform(b)], fmt)
    assert {p.status for p in found} == {"proved"}
    assert all("dot products" in p.rechecked for p in found)


def test_tensor_cores_that_are_not_have_a_witness():
    (found,) = prove_dots([load_platform("a100"), load_platform("h200")], "bf16")
    assert found.status == "refuted"
    assert found.details["results"][0] != found.details["results"][1]
    with pytest.raises(InputError):
        prove_dots([load_platform("a100")], "bf16")


def test_a_small_instance_bit_by_bit():
    """One token: both give its value."""
    a, b = load_side("walkthrough.xqa@h200"), load_side("walkthrough.triton@h200")
    (one,) = answer(small_job(a, b, 1, HEADS, "z3", 30.0))
    assert one.status == "proved"
    assert any("each score is one of" in text for text in one.assumptions)


@pytest.mark.slow
def test_a_small_instance_that_parts():
    """Two tokens: XQA's normaliser sums rounded weights."""
    a, b = load_side("walkthrough.xqa@h200"), load_side("walkthrough.triton@h200")
    (two,) = answer(small_job(a, b, 2, HEADS, "z3", 60.0))
    assert two.status == "refuted"
    assert two.details["distance"] >= 1
