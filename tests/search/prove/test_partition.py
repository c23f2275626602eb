"""Partitions: every token has one owner, faults are found and shown, and questions have the right answers."""

import csv
from pathlib import Path

import numpy as np
import pytest

from search.prove.contracts import fa2_many, fa3_many
from search.prove.domain import cases
from search.prove.lemmas import KINDS, prove_level
from search.prove.partition import prove_partition
from search.prove.questions import differ, find_values, first_difference
from search.sides import load_side
from specs import load_platform, load_spec, parse_spec
from specs.rules import fa2_num_splits

DATA = Path(__file__).parents[2] / "data"
HEADS = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
FA2 = "walkthrough.flash_attention_2"


def table(name: str) -> list[str]:
    return (DATA / name).read_text().splitlines()


def spec_with(levels: str, let: str = "") -> str:
    return f"""
schema = 1
name = "mine.cut"
status = "walkthrough"
summary = "a cut"
[numbers]
compute = "f32"
inputs = {{ q = "bf16", k = "bf16", v = "bf16" }}
[let]
{let}
[levels]
{levels}
[token]
score = "sum(q * k, seq()) * scale"
[row]
top = "max(score)"
weight = "exp(score - top)"
output = "sum(weight * v, seq()) / sum(weight, seq())"
"""


def proof(levels: str, let: str = ""):
    platforms = {"h200": load_platform("h200")}
    return prove_partition(parse_spec(spec_with(levels, let), "cut.toml"), platforms)


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_owns_each_token_once_for_all_integers(kind):
    assert prove_level(kind) == "unsat"


def test_vectorised_rules_equal_the_compiled_originals():
    """The counts were computed by FlashAttention's own functions, compiled: see tests/data/PARTITION_ORIGIN.md."""
    rows = list(csv.DictReader(table("fa2_num_splits_small.csv")))
    for r in rows:
        found = fa2_many(
            int(r["batch_nheads_mblocks"]),
            int(r["num_SMs_arg"]),
            np.array([int(r["num_n_blocks"])]),
            int(r["max_splits"]),
        )
        assert found.tolist() == [int(r["num_splits"])], r
    small = [
        r
        for r in csv.DictReader(table("fa3_num_splits_small.csv"))
        if int(r["num_m_blocks"]) < 2 * int(r["num_SMs"])
    ]
    for r in small:
        found = fa3_many(
            int(r["total_mblocks"]),
            int(r["num_SMs"]),
            np.array([int(r["num_n_blocks"])]),
            int(r["max_splits"]),
        )
        assert found.tolist() == [int(r["num_splits"])], r
    assert len(rows) > 50
    assert len(small) > 50


def test_round_robin_is_proved_for_all_shapes():
    found = prove_partition(load_spec("walkthrough.xqa"), {"h200": load_platform("h200")})
    assert found.status == "proved"
    assert found.details["most_pieces"] == 512  # as many groups as SMs: batch and heads of 1
    assert "2^20" in found.assumptions[0]


def test_the_compute_capability_makes_cases():
    """V tokens of a warp group in XQA: 32 on sm_86, 89 and 120, so that two groups share an X tile; else 64."""
    platforms = {n: load_platform(n) for n in ("a100", "l40s", "h200")}
    found = cases(load_spec("xqa.decode"), platforms, {"head_dim": 128})
    by_machine = {c.example["compute_capability"]: dict(c.levels)["half"].args[0] for c in found}
    assert {k: n.text for k, n in by_machine.items()} == {80: "1", 89: "2"}  # 90 is as 80


@pytest.mark.parametrize(
    ("levels", "let", "says"),
    [
        ('g = "deal(n, unit=256)"', 'n = "sm_count // (batch * kv_heads)"', "n below 1"),
        ('g = "pieces(4, unit=64, of=short)"', 'short = "kv_len // 128 * 128"', "past the whole"),
        ('g = "tiles(64)"\nlane = "view(4, pos(token) // 2)"', "", "colour out of range"),
        ('g = "pieces(n, unit=16)"', 'n = "max(1, 64 // (kv_len // 4096))"', "division by zero"),
    ],
)
def test_a_fault_is_refuted_by_a_shape_that_the_code_refuses(levels, let, says):
    found = proof(levels, let)
    assert found.status == "refuted"
    assert says in found.reason
    assert "kv_len = " in found.reason


def test_a_rule_that_nothing_is_known_of_is_not_decided():
    found = proof('g = "pieces(n, unit=16)"', 'n = "1 + (kv_len ^ 3)"')
    assert found.status == "not decided"


def test_guards_are_understood_where_they_stand():
    """A division that is guarded by select() is no fault; the same division alone is."""
    assert (
        proof('g = "pieces(n, unit=16)"', 'n = "select(kv_len > 99, 1 + 9 // (kv_len - 99), 1)"').status
        == "proved"
    )
    assert (
        proof(
            'g = "pieces(n, unit=m)"',
            'n = "select(kv_len > 9, 1 + 9 // (kv_len // 10), 1)"\nm = "1 + 9 // (kv_len // 10)"',
        ).status
        == "refuted"
    )


def test_the_smallest_length_at_which_two_gpus_part():
    a, b = load_side(f"{FA2}@h200"), load_side(f"{FA2}@b200")
    found = first_difference(a, b, HEADS)
    assert found.status == "refuted"
    n = found.details["kv_len"]
    assert n == 4225
    assert found.details["first_token"] == 0  # H200's first group visits its second block before it
    # Brute force, by the rule itself: 66 blocks are cut alike, 67 are not.
    workers = 4
    for blocks in range(1, 67):
        splits = [fa2_num_splits(workers, 2 * sms, blocks, 128) for sms in (132, 148)]
        assert -(-blocks // splits[0]) == -(-blocks // splits[1])
    shape = {**HEADS, "kv_len": n}
    assert differ(a.plan(shape), b.plan(shape))
    assert not differ(a.plan({**shape, "kv_len": n - 1}), b.plan({**shape, "kv_len": n - 1}))


def test_gpus_with_as_many_sms_cut_alike_for_every_shape():
    found = first_difference(load_side(f"{FA2}@h200"), load_side(f"{FA2}@h100"), HEADS)
    assert found.status == "proved"
    assert "sm_count = 132" in found.reason


def test_plans_with_other_levels_are_compared_by_their_groups():
    sides = load_side("walkthrough.triton@h200"), load_side("vllm_triton.interpreter@h200")
    found = first_difference(*sides, HEADS, 2000)
    assert found.status == "exhaustive"
    found = first_difference(load_side("walkthrough.xqa@h200"), sides[0], HEADS)
    assert found.details["kv_len"] == 17  # the second segment begins at token 16


def test_sm_counts_for_which_a_rule_gives_54_splits():
    found = find_values(load_side(f"{FA2}@h200"), {**HEADS, "kv_len": 27525}, "sm_count", 54)
    expected = [s for s in range(1, 513) if fa2_num_splits(4, 2 * s, 431, 128) == 54]
    assert found.details["values"] == expected
    assert 132 in expected


def test_the_batch_from_which_a_kernel_no_longer_splits():
    found = find_values(load_side("walkthrough.xqa@h200"), {**HEADS, "kv_len": 27525}, "batch", None)
    assert found.details == {"first": 17, "last_that_splits": 16, "of": [1, 4096]}  # 132 // (17 * 4) == 1
    assert found.status == "exhaustive"
