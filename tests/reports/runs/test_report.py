"""What a report says of runs made for the purpose: identity, flips, not numerics, special values, names, Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from reports.contract_base import to_json
from reports.runs import build as building
from reports.runs.build import compare, named
from reports.runs.contract import from_text, json_schema
from reports.runs.markdown import render_markdown
from reports.runs.page import render
from reports.runs.text import lines
from reports.runs.wording import listed
from tests.reports.runs import making
from tests.verify.metrics import made
from verify.runs.sequence import Attention


def report(*runs, **options):
    found = compare(runs, draws=2, **options)[0]
    assert from_text(to_json(found)) == found
    first, *_ = lines(found)
    assert first == found.verdict.headline
    assert render_markdown(found).startswith(f"# {found.title}\n")
    assert render(found).count("</section>") >= 2
    return found


def test_bit_identical_runs():
    found = report(*(made.run(n, made.sequence(values=making.base(3).astype(made.BF16))) for n in "abc"))
    assert found.verdict.headline == "All 3 runs are bit-identical; no best token changes on 3 rows."
    assert not found.verdict.diverges
    assert found.identity[0].runs == ("a", "b", "c")
    assert (found.identity[0].exactness, found.identity[0].partial) == ("bits", False)
    assert found.geometry[0].points == (("a", "b", "c"),)


def test_recorded_values_that_are_equal_are_not_called_bits():
    runs = [
        made.run(n, made.sequence(chosen=[-1.0, -2.0], tokens=[1, 2]), kind="raw_logprobs", decimals=d)
        for n, d in (("a", None), ("b", None), ("c", 2), ("d", 2))
    ]
    plain = report(*runs[:2]).verdict.headline
    assert plain.startswith("a and b are equal in every recorded value; best tokens were not recorded")
    assert report(*runs[2:]).verdict.headline.startswith("c and d are equal to the printed digits;")


def test_one_capture_twice():
    one = made.run("a", made.sequence(values=making.base(2)), sha256="0" * 64)
    found = report(one, replace(one, name="b"))
    assert "they are one capture" in found.verdict.headline
    assert any("look like the same capture" in p for p in found.verdict.points)


def test_flips_are_split():
    """Row by row: no flip; a flip at a tie; a flip within what differences explain; and a real one."""
    a = np.zeros((1004, 8), np.float32)
    a[:, 0], a[:, 1] = 10, 5
    b = a.copy()
    a[1, 1], b[1, :2] = 10, (10, 10.0625)  # a gives both tokens one value
    a[2, :2], b[2, :2] = (10, 9.9375), (9.9375, 10)  # margins of 1/16
    b[3, :2] = 5, 10
    b[4:, 2] += 0.25  # what most rows differ by: margins up to twice that are explained
    found = report(made.run("a", made.sequence(values=a)), made.run("b", made.sequence(values=b)))
    d = found.pairs[0].decisions
    assert (d.n, d.flips, d.ties, d.within, d.real) == (1004, 3, 1, 1, 1)
    said = "the best token changes on 3 of 1,004 rows, 0.3%: 1 at ties, 1 within what the differences explain, 1 real"
    assert said in found.verdict.headline
    assert "3 flips" in "\n".join(lines(found))


def test_values_that_are_not_finite_survive_json():
    a = making.base(4)
    b = a.copy()
    a[0, 3], b[1, 2], a[2, 5], b[2, 5] = np.nan, np.inf, np.inf, np.inf
    found = report(made.run("a", made.sequence(values=a)), made.run("b", made.sequence(values=b)))
    (pair,) = found.pairs
    assert pair.values is not None
    assert (pair.values.nan_mismatch, pair.values.inf_mismatch, pair.values.inf_both) == (1, 1, 1)
    assert not pair.identical
    assert pair.first_difference is not None
    assert (pair.first_difference.element, pair.first_difference.a) == (3, None)
    assert any("NaN and " in p for p in found.verdict.points)
    assert any(p.startswith("a: 1 value is NaN") for p in found.verdict.points)
    json.loads(to_json(found), parse_constant=lambda x: pytest.fail(f"{x} is no JSON"))


def test_other_weights_are_not_numerics():
    wrong = made.run("wrong", made.sequence(values=made.logits(4, 64, seed=3, scale=900)))
    found = report(made.run("right", made.sequence(values=making.base(4))), wrong)
    assert found.verdict.headline.startswith(
        "right and wrong differ by more than rounding makes: not numerics"
    )
    assert any("check weights" in p for p in found.verdict.points)
    assert found.verdict.not_numerics == (("right", "wrong"),)


def test_other_models_are_set_apart():
    runs = [
        made.run(n, made.sequence(values=making.base(4, seed=s)), model=m)
        for n, s, m in (("a", 0, "one"), ("b", 0, "one"), ("c", 3, "two"))
    ]
    found = report(*runs)
    assert found.verdict.headline.startswith("a and b are bit-identical;")
    assert "not numerics" not in found.verdict.headline
    assert "2 pairs of runs of different models: set apart, as they have to differ." in found.verdict.points
    assert "other model" in "\n".join(lines(found))


def test_runs_without_anything_in_common():
    runs = [made.run("a", made.sequence("p", n=2)), made.run("b", made.sequence("q", n=2))]
    found = report(*runs)
    assert found.verdict.headline == "Nothing can be compared: no two runs have a row in common."
    assert (found.unrelated, found.pairs, found.geometry) == (1, (), ())


def test_prompts_that_differ():
    runs = [
        made.run(n, made.sequence("p", tokens=[5, 6], prompt=p, chosen=[-1, -2]))
        for n, p in (("a", [1, 2]), ("b", [1, 3]))
    ]
    found = report(*runs)
    assert found.verdict.headline.startswith("Nothing can be compared")
    assert "prompts differ" in found.verdict.headline
    assert "Not compared, as prompts differ: 1 conversation in 1 pair." in found.verdict.points


def test_one_run():
    assert "one run without repeats" in report(made.run("a", made.sequence(n=3))).verdict.headline
    values = [making.base(2), making.base(2) + np.float32(0.5), making.base(2)]
    run = made.run("a", *(made.sequence("c", i, values=v) for i, v in enumerate(values)))
    found = report(run)
    assert found.verdict.headline == "a: 3 repeats give 2 different results (A b A), by at most 0.5."
    far = made.run("a", *(made.sequence("c", i, values=v * (1 + i)) for i, v in enumerate(values)))
    assert report(far).verdict.headline.endswith("a race or a bug.")


def test_repeats_are_the_measure_of_pairs():
    """Repeats of a differ by 1/2; b is 1/4 from a, c is 2 from it and at least 7/4 from b."""

    def run(name, *shifts):
        return made.run(
            name,
            *(made.sequence("c", i, values=making.base(2) + np.float32(s)) for i, s in enumerate(shifts)),
        )

    found = report(run("a", 0, 0.5), run("b", 0.25), run("c", 2))
    said = "Repeats within a run differ by up to 0.5: 1 of 3 pairs of runs are no farther apart."
    assert said in found.verdict.points


def test_attention_tensors():
    def run(name, step):
        tensors = {n: np.arange(12, dtype=np.float32).reshape(3, 2, 2) for n in ("q", "k", "v")}
        tensors["out"] = tensors["q"] + step
        one = made.sequence(values=making.base(3), attention=(Attention(7, **tensors),))
        return made.run(name, one)

    found = report(run("a", 0), run("b", np.float32(0.25)))
    assert "a and b: attention differs first in layer 7, out, of c, by at most 0.25." in found.verdict.points
    assert not found.pairs[0].identical
    same = report(run("a", 0), run("b", 0))
    assert "a and b: all 4 attention tensors are equal." in same.verdict.points


def test_details_are_kept_for_the_farthest_pairs(monkeypatch):
    monkeypatch.setattr(building, "DETAILED", 1)
    found = report(*making.triangle()[:3])
    assert [(p.first, p.second) for p in found.pairs if p.depth is not None] == [("b", "c")]
    assert any("1 pairs that are farthest apart, of 3" in n.text for n in found.notes)


def test_a_switch_without_effect_is_named():
    runs = [
        making.at(made.run(n, made.sequence(values=making.base(2))), gpu="H200", num_splits=k)
        for n, k in (("one", 1), ("none", 0))
    ]
    found = report(*runs)
    assert any(p.startswith("num_splits has no effect: 1 and 0") for p in found.verdict.points)


def test_names():
    a, b = (made.run("answer", made.sequence(n=1)) for _ in range(2))
    assert [r.name for r in named([("x/h200", [a]), ("x/b200", [b])])] == ["h200", "b200"]
    assert [r.name for r in named([("x/h200", [a]), ("y/h200", [b])])] == ["answer", "answer (2)"]
    two = [replace(a, name="fp32"), replace(a, name="fp16")]
    assert [r.name for r in named([("one.npz", two), ("b", [b])])] == ["one: fp32", "one: fp16", "answer"]
    assert [r.name for r in named([("one.npz", two)])] == ["fp32", "fp16"]
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
    assert (listed(["a"]), listed(["a", "b"]), listed(list("abcde"))) == ("a", "a and b", "a, b, c, d and e")


def test_markdown_escapes_names():
    evil = "<script>|`*"
    values = making.moved(2, (1, 1))
    runs = [
        made.run(evil, made.sequence("`|<b>", values=making.base(2)), sha256="0"),
        made.run("b", made.sequence("`|<b>", values=values)),
    ]
    text = render_markdown(report(*runs))
    assert "<script>" not in text
    assert not re.search(r"(?<!\\)<b>", text)
    rows = [line for line in text.splitlines() if line.startswith("| \\<script")]
    assert rows
    heads = {
        line.count("|") for line in text.splitlines() if line.startswith("|--") or line.startswith("|---")
    }
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= heads


def test_every_table_row_has_its_columns():
    text = render_markdown(report(*making.triangle()))
    width = 0
    for line in text.splitlines():
        columns = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not columns or not width or columns == width, line
        width = columns
    assert "## Geometry by root mean square" in text
    assert "- 0 apart: a = d" in text


def test_the_schema_is_published():
    schema = json_schema()
    assert schema["properties"]["schema_id"]["const"] == "ulpscope.divergence/1"
    assert set(schema["required"]) >= {"verdict", "pairs", "provenance", "coordinates"}


def test_names_from_strangers_move_no_cursor():
    evil = "a\x1b[2J\n\u202eb"
    runs = [
        made.run(evil + n, made.sequence("c\x07", chosen=[-1.0, x], tokens=[1, 2]), kind="raw_logprobs")
        for n, x in (("1", -2.0), ("2", -2.5))
    ]
    found = report(*runs)
    said = [found.verdict.headline, *found.verdict.points, *lines(found)]
    assert not any(re.search("[\x00-\x1f\x7f\u202e]", line) for line in said)
    assert evil + "1" in {r.name for r in found.coordinates}
    assert not re.search("[\x00-\x09\x0b-\x1f]", render_markdown(found))


def test_half_a_character_in_a_name_is_mended():
    runs = [
        made.run(n, made.sequence("q\ud800", chosen=[-1.0, x], tokens=[1, 2], ranges=("\udfff", "r")))
        for n, x in (("a", -2.0), ("b", -2.5))
    ]
    found = report(*named([(r.name, [r]) for r in runs]))
    assert found.pairs[0].first_difference.conversation == "q?"
    to_json(found).encode()


def test_differences_without_a_distance():
    runs = [
        made.run(n, made.sequence(chosen=[-1.0, x], tokens=[1, 2]), kind="raw_logprobs")
        for n, x in (("a", -2.0), ("b", np.nan))
    ]
    found = report(*runs)
    assert not found.pairs[0].identical
    assert any("part first in c at position 1: -2.0 and NaN" in p for p in found.verdict.points)
    nothing = [
        made.run(n, made.sequence(chosen=x, tokens=[1, 2]), kind="raw_logprobs")
        for n, x in (("a", [np.nan, -2.0]), ("b", [-1.0, np.nan]))
    ]
    assert "a and b differ by what has no distance (NaN, infinities" in report(*nothing).verdict.headline
