"""Campaign files and the cases that they make."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.campaign import Case, parse_campaign, read_campaign
from search.campaign.plan import MAX_CASES
from specs.errors import InputError, SpecError
from tests.search.campaign.making import HEAD, PAIR, campaign

FULL = """
schema = 1
name = "groups"
title = "Two groupings, and one spec on three platforms"
kv_lens = [64, 128]
cancellation = [1, 0.5]
methods = ["search", "random"]
seeds = [0, 1]
context = { q_heads = 8, kv_heads = 2 }
[budget]
evaluations = 1000
seconds = 60
[space]
masks = true
[[pair]]
sides = ["walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@h200"]
set = { "a.split" = "tiles(20)", "b.split" = "tiles(12)" }
[[pair]]
sides = ["walkthrough.xqa"]
platforms = ["h200", "b200", "sm120"]
kv_lens = [96]
methods = ["search"]
seeds = [7]
[[pair]]
sides = ["walkthrough.xqa", "walkthrough.triton@b200", "walkthrough.triton"]
platforms = ["h200", "sm120"]
kv_lens = [64]
objectives = ["ulp", "f32:single=c"]
methods = ["search"]
seeds = [0]
cancellation = [0.1]
"""


def test_a_file_is_every_combination_in_its_order():
    cases = parse_campaign(FULL).cases
    assert len(cases) == 2 * 2 * 2 * 2 + 3 * 2 + 2 * 2
    first, second = cases[0], cases[1]
    assert [side.cell for side in first.sides] == ["walkthrough.flash_attention_2@h200"] * 2
    assert [side.set for side in first.sides] == [{"split": "tiles(20)"}, {"split": "tiles(12)"}]
    assert first.sides[0].content != first.sides[1].content
    assert (first.kv_len, first.cancellation, first.method, first.seed) == (64, 1.0, "search", 0)
    assert (second.seed, second.method) == (1, "search")
    assert (first.budget.evaluations, first.budget.seconds, first.space.masks) == (1000, 60.0, True)
    assert first.context == {"q_heads": 8, "kv_heads": 2}
    platforms = [tuple(side.cell.split("@")[1] for side in case.sides) for case in cases[16:22:2]]
    assert platforms == [("h200", "b200"), ("h200", "sm120"), ("b200", "sm120")]
    assert {case.kv_len for case in cases[16:22]} == {96}
    three = cases[22]
    assert [side.cell for side in three.sides] == [
        "walkthrough.xqa@h200",
        "walkthrough.triton@b200",
        "walkthrough.triton@h200",
    ]
    assert (three.metric, three.single) == ("ulp", None)
    assert (cases[23].metric, cases[23].single) == ("f32", 2)
    assert "c = 0.1, f32:single=c, search, seed 0" in cases[23].label


def test_the_identity_is_the_sha256_of_canonical_json():
    case = campaign([5]).cases[0]
    plain = json.dumps(case.to_json(), sort_keys=True, separators=(",", ":"))
    assert case.id == hashlib.sha256(plain.encode()).hexdigest()
    again = Case.from_json(json.loads(plain))
    assert again == case
    assert again.id == case.id


def test_cases_keep_their_identity_when_others_are_added_and_a_case_that_is_written_twice_is_one():
    few = {case.id for case in campaign([1, 2]).cases}
    assert few < {case.id for case in campaign([3, 2, 1]).cases}
    assert len(campaign([1, 1, 1]).cases) == 1
    assert [c.id for c in campaign([1], "cancellation = [1]\n").cases] == [
        c.id for c in campaign([1], "cancellation = [1.0]\n").cases
    ]
    assert len(campaign([1], "cancellation = [0.0, -0.0]\n").cases) == 1


@pytest.mark.parametrize(
    "change",
    [
        "cancellation = [0.25]",
        'methods = ["random"]',
        'objectives = ["f32"]',
        "budget = { evaluations = 7 }",
        "space = { value_box = 4.0 }",
        "context = { q_heads = 4 }",
    ],
)
def test_whatever_decides_a_result_makes_another_case(change):
    assert campaign([1], f"{change}\n").cases[0].id != campaign([1]).cases[0].id


def test_a_changed_spec_is_another_case_and_an_old_case_refuses_it(tmp_path, monkeypatch):
    from specs import load_spec

    monkeypatch.chdir(tmp_path)
    text = load_spec("walkthrough.triton").to_toml()
    file = Path("mine.toml")
    file.write_text(text)
    source = HEAD + '[[pair]]\nsides = ["./mine.toml@h200", "walkthrough.triton@b200"]\n'
    before = parse_campaign(source).cases[0]
    assert [side.spec.name for side in before.load_sides()] == ["walkthrough.triton"] * 2
    file.write_text(text.replace("f32 numerator", "another numerator"))
    assert file.read_text() != text
    assert parse_campaign(source).cases[0].id != before.id
    with pytest.raises(InputError, match="is not what it was"):
        before.load_sides()


def test_a_case_is_what_a_search_takes():
    three = parse_campaign(FULL).cases[23]
    space, objective = three.make_space(), three.make_objective()
    assert (space.kv_len, space.cancellation, space.masks, space.context) == (64, 0.1, True, three.context)
    assert (space.score_box, space.value_box, space.kind, space.dims) == (20.0, 8.0, "scores", 1)
    assert (objective.metric, objective.single) == ("f32", 2)
    assert space.statistics is None
    bounded = (
        campaign([0], "space = { statistics = { score_std = 1.5 }, value_box = 2.0 }\n").cases[0].make_space()
    )
    assert bounded.value_box == 2.0
    assert bounded.statistics is not None
    assert (bounded.statistics.score_std, bounded.statistics.value_std) == (1.5, None)


XQ = PAIR.replace("triton@", "trito@")
BAD = [
    ("", "'schema' is missing"),
    ("schema = 2\n" + HEAD[11:] + PAIR, "'schema'"),
    (HEAD, "'pair' is missing"),
    (HEAD + "pair = []\n", "'pair': an empty list"),
    (HEAD.replace("kv_lens = [64]\n", "") + PAIR, "f.toml:3:3: pair 1 has no lengths"),
    (HEAD + "kv_len = [3]\n" + PAIR, "f.toml:4:1: unknown key 'kv_len'\n  did you mean 'kv_lens'?"),
    (
        HEAD + 'methods = ["serch"]\n' + PAIR,
        "f.toml:4:13: 'methods.0': 'serch' is not known\n  did you mean 'search'?",
    ),
    (HEAD + 'objectives = ["k1"]\n' + PAIR, "'objectives.0': 'k1' is no objective"),
    (HEAD + 'objectives = ["ulp", "kl"]\n' + PAIR, "the objective kl needs a projection"),
    (HEAD + PAIR + 'projection = "w.npz"\n', "f.toml:6:1: no objective of this pair takes a projection"),
    (HEAD + 'objectives = ["kl"]\nprojection = "none.npz"\n' + PAIR, "f.toml:5:1: none.npz: no such file"),
    (HEAD + 'base = { file = "none.npz" }\n' + PAIR, "f.toml:4:1: none.npz: no such file"),
    (HEAD + 'base = { file = "x.npz", edits = 0 }\n' + PAIR, "'base.edits'"),
    (HEAD + "context = { window = -8 }\n" + PAIR, "f.toml:4:1: window = -8"),
    (HEAD + "context = { has_sinks = 1 }\n" + PAIR, "no search gives a kernel sinks"),
    (
        HEAD + PAIR.replace("xqa", "dense"),
        "outputs are stored in f64 by walkthrough.dense@h200 and in bf16 by walkthrough.triton@h200",
    ),
    (HEAD + 'objectives = ["ulp:single=c"]\n' + PAIR, "'ulp:single=c', but there are 2 sides"),
    (HEAD + "cancellation = [1.5]\n" + PAIR, "'cancellation.0'"),
    (HEAD + "cancellation = [nan]\n" + PAIR, "'cancellation.0'"),
    (HEAD + "seeds = []\n" + PAIR, "'seeds': an empty list"),
    (HEAD + "seeds = [-1]\n" + PAIR, "'seeds.0'"),
    (HEAD + "seeds = [true]\n" + PAIR, "'seeds.0'"),
    (HEAD.replace("64", "0") + PAIR, "'kv_lens.0'"),
    (HEAD.replace("64", "2097152") + PAIR, "'kv_lens.0'"),
    (HEAD + "budget = { evaluations = 0 }\n" + PAIR, "'budget.evaluations'"),
    (HEAD + "budget = { seconds = inf }\n" + PAIR, "'budget.seconds'"),
    (HEAD + "context = { sm_count = 3 }\n" + PAIR, "'sm_count' is fixed by the platform"),
    (HEAD + "context = { kv_len = 3 }\n" + PAIR, "'kv_len' stands in kv_lens"),
    (
        HEAD + "context = { q_head = 3 }\n" + PAIR,
        "'q_head' is nothing that formulas see\n  did you mean 'q_heads'?",
    ),
    (HEAD + 'context = { fork = "tao" }\n' + PAIR, "'tao' is unknown"),
    (HEAD + PAIR + 'set = { split = "tiles(3)" }\n', "set: 'split' names no side"),
    (HEAD + PAIR + 'set = { "c.split" = "tiles(3)" }\n', "set: 'c.split' names no side"),
    (HEAD + PAIR + 'set = { "a.splat" = "tiles(3)" }\n', "'splat' is no line of walkthrough.xqa"),
    (HEAD + XQ, "f.toml:5:35: side b, walkthrough.trito@h200: unknown spec 'walkthrough.trito'"),
    (HEAD + PAIR.replace("triton@h200", "triton"), "'walkthrough.triton' names no platform"),
    (HEAD + PAIR + 'platforms = ["b200"]\n', "every side has its own"),
    (HEAD + '[[pair]]\nsides = ["walkthrough.xqa"]\nplatforms = ["h200"]\n', "nothing to differ from"),
    (HEAD + '[[pair]]\nsides = ["walkthrough.xqa@h200"]\n', "nothing to differ from"),
    (HEAD + PAIR + 'work = "os:system"\n', "unknown key"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_what_is_wrong_with_a_file_is_said_with_its_place(text, message):
    with pytest.raises(SpecError) as found:
        _ = parse_campaign(text, "f.toml").cases
    assert message in str(found.value)
    assert str(found.value).startswith("f.toml")


def test_too_many_cases_are_counted_and_not_made():
    seeds = f"seeds = {list(range(1000))}\ncancellation = {[i / 1000 for i in range(1000)]}\n"
    with pytest.raises(SpecError, match="1,000,000 cases"):
        _ = parse_campaign(HEAD + seeds + PAIR).cases
    assert MAX_CASES == 100_000


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        read_campaign(tmp_path / "none.toml")
    (tmp_path / "big.toml").write_text("#" * 300_000)
    with pytest.raises(SpecError, match="larger than"):
        read_campaign(tmp_path / "big.toml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["sides", "kv_len", "seed", "method", "budget"]), JSON))
def test_what_is_no_case_is_refused(change):
    good = campaign([1]).cases[0].to_json()
    value = {**good, **change}
    try:
        made = Case.from_json(value)
    except InputError as error:
        said = str(error)
    else:
        said = "not a case"
        assert {k: v for k, v in made.to_json().items() if k != "budget"} == {
            k: v for k, v in value.items() if k != "budget"
        }
    assert "not a case" in said


def test_making_cases_imports_no_arithmetic():
    script = (
        "import sys; from search.campaign import parse_campaign; "
        f"print(len(parse_campaign({HEAD + PAIR!r}).cases)); "
        "print(sorted({'jax', 'numpy', 'sympy', 'z3', 'joblib', 'distributed', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
