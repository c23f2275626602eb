"""What is said to have changed between two reports of runs, and what files are refused as a report."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from pydantic import ValidationError

from reports import reading
from reports.contract_base import to_json
from reports.runs import contract as c
from reports.runs.build import compare
from reports.runs.difference import compare_reports
from reports.runs.difftext import lines, markdown
from reports.runs.policy import judge, load_policy
from reports.runs.reading import read_report
from reports.runs.shape import misfit
from specs.errors import InputError
from tests.reports.runs import making
from tests.reports.runs.test_page import predicted
from tests.verify.metrics import made


def run(name, *steps, sha256=None):
    return made.run(name, made.sequence(values=making.moved(4, *steps)), sha256=sha256)


def report(*runs, **options):
    return compare(runs, draws=2, **options)[0]


def changes(old, new, part=None):
    found = compare_reports(old, new)
    text = "\n".join(lines(found))
    assert text.startswith(found.verdict)
    assert markdown(found).startswith("# What changed\n")
    assert (found.worse, found.better) == tuple(
        sum(x.tone == tone for x in found.changes) for tone in ("worse", "better")
    )
    return [x for x in found.changes if part in (None, x.part)]


def said(found):
    return {(x.tone, x.who, x.what, x.old, x.new) for x in found}


def test_nothing_changed():
    one = report(*making.triangle())
    assert changes(one, one) == []
    assert compare_reports(one, one).verdict == "Nothing changed."


def test_a_pair_stops_being_bit_identical_and_another_becomes():
    old = report(run("a"), run("b"), run("c", (1, 1.0)))
    new = report(run("a"), run("b", (1, 1.0)), run("c", (1, 1.0)))
    found = said(changes(old, new, "identity"))
    assert found == {
        ("worse", "a and b", "equality", "bit-identical", "not bit-identical any more"),
        ("better", "b and c", "equality", "different", "bit-identical"),
    }
    numbers = said(changes(old, new, "pairs"))
    assert ("worse", "a and b", "max_abs", "0", "1") in numbers
    assert ("better", "b and c", "max_abs", "1", "0") in numbers
    assert ("worse", "a and b", "different", "0%", "100%") in numbers
    verdict = compare_reports(old, new).verdict
    assert re.match(
        r"\d+ changes for the worse, among them a and b: not bit-identical any more; \d+ for the better",
        verdict,
    )


def test_numbers_that_grow_are_worse_and_order_of_a_pair_is_no_change():
    old, new = report(run("a"), run("b", (1, 1.0))), report(run("b", (1, 2.0)), run("a"))
    found = {x.what: x for x in changes(old, new, "pairs")}
    assert {name: (found[name].old, found[name].new) for name in ("max_abs", "rms", "mean_abs")} == {
        "max_abs": ("1", "2"),
        "rms": ("1", "2"),
        "mean_abs": ("1", "2"),
    }
    assert {x.tone for x in found.values()} == {"worse"}
    assert not {"kl_mean", "kl_max"} & set(found)  # those have a direction, and the pair is turned
    back = {x.what: x.tone for x in changes(new, old, "pairs")}
    assert set(back.values()) == {"better"}
    turned = report(run("b", (1, 1.0)), run("a"))
    assert changes(old, turned, "pairs") == []


def test_flips():
    """A row whose best token changes, by more than the differences of the other rows explain."""
    a = np.zeros((1000, 8), np.float32)
    a[:, 0], a[:, 1] = 10, 5
    b, worse = a + np.float32(0.25), a + np.float32(0.25)
    worse[3, :2] = 5, 10
    old, new = (
        report(made.run("a", made.sequence(values=a)), made.run("b", made.sequence(values=x)))
        for x in (b, worse)
    )
    found = said(changes(old, new, "pairs"))
    assert ("worse", "a and b", "top1_flips", "0%", "0.1%") in found
    assert ("worse", "a and b", "real_flips", "0%", "0.1%") in found


def test_runs_that_came_went_and_have_other_files():
    old = report(run("a", sha256="1" * 64), run("b", sha256="2" * 64), run("gone", sha256="3" * 64))
    new = report(run("a", sha256="4" * 64), run("b", sha256="2" * 64), run("renamed", sha256="3" * 64))
    found = said(changes(old, new, "runs"))
    assert found == {
        ("changed", "a", "files", "sha256 111111111111", "sha256 444444444444"),
        ("changed", "gone", "run", "gone", "gone"),
        ("changed", "renamed", "run", "the files of gone", "new: renamed"),
    }
    # Pairs of a run that is gone are not said to have got worse.
    assert not [x for x in changes(old, new) if x.tone == "worse"]


def test_a_pair_that_is_not_compared_any_more_is_worse():
    old = report(run("a"), run("b"))
    other = made.run("b", made.sequence("other", values=making.base(4)))
    new = report(run("a"), other)
    assert ("worse", "a and b", "rows", "4", "not compared") in said(changes(old, new, "pairs"))
    assert ("changed", "a and b", "rows", "not compared", "4") not in said(changes(new, old, "pairs"))


def test_not_numerics():
    wrong = made.run("b", made.sequence(values=made.logits(4, 64, seed=3, scale=900)))
    found = said(changes(report(run("a"), run("b", (1, 1.0))), report(run("a"), wrong), "pairs"))
    assert ("worse", "a and b", "kind", "numerics", "not numerics") in found


def test_repeats():
    def asked(*shifts):
        values = [making.base(2) + np.float32(s) for s in shifts]
        return report(made.run("a", *(made.sequence("c", i, values=v) for i, v in enumerate(values))))

    found = said(changes(asked(0, 0, 0), asked(0, 0.5, 0.5), "repeats"))
    assert found == {("worse", "a, c", "repeats", "identical (A*3)", "first request differs (A b*2)")}
    (back,) = changes(asked(0, 0.5, 0.5), asked(0, 0, 0), "repeats")
    assert back.tone == "better"
    (more,) = changes(asked(0, 0.5, 0.5), asked(0, 0.5, 1), "repeats")
    assert more.tone == "worse"


def test_health():
    values = making.base(4)
    values[0, 3] = np.nan
    broken = made.run("a", made.sequence(values=values))
    old, new = report(run("a"), run("b")), report(broken, run("b"))
    found = changes(old, new, "health")
    assert ("changed", "a", "nan", "0", "1") in said(found)
    assert ("worse", "a", "errors", "0", "1") in said(found) or ("worse", "a", "warnings", "0", "1") in said(
        found
    )


def test_who_is_closest():
    """b stands between a and c on a line; then a does."""
    old = report(run("a"), run("b", (1, 1.0)), run("c", (1, 2.5)))
    new = report(run("a"), run("b", (1, 1.0)), run("c", (1, -2.5)))
    found = {x.who: (x.old, x.new) for x in changes(old, new, "geometry")}
    assert found["closest to the medoid by root mean square difference of values"] == ("b", "a")


def test_policies(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[[rule]]\nmatch = "*"\nfail_if = "max_abs > 1.5"\n')
    rules = load_policy(path)

    def judged(step):
        found = report(run("a"), run("b", (1, step)))
        return found.model_copy(update={"policy": judge(found, rules)})

    (worse,) = changes(judged(1.0), judged(2.0), "policy")
    assert (worse.tone, worse.who, worse.what) == ("worse", "a and b", "max_abs > 1.5")
    assert (worse.old[:6], worse.new[:6]) == ("passed", "failed")
    (better,) = changes(judged(2.0), judged(1.0), "policy")
    assert better.tone == "better"
    (none,) = changes(report(run("a"), run("b", (1, 1.0))), judged(1.0), "policy")
    assert (none.tone, none.old, none.new) == ("changed", "none", "p.toml")


def test_predictions():
    found = changes(predicted(0), predicted(2.0), "prediction")
    assert ("worse", "a", "bit-exact") in {(x.tone, x.who, x.old) for x in found}
    assert {x.tone for x in changes(predicted(2.0), predicted(0), "prediction")} == {"better"}
    assert changes(predicted(0), report(run("a"), run("b", (1, 1.0))), "prediction") == []


def test_settings_are_told_as_numbers_may_differ_for_them():
    old, new = report(*making.triangle()), report(*making.triangle(), reference="a")
    assert ("changed", "reference", "", "none", "a") in said(changes(old, new, "settings"))


def test_nothing_in_common():
    old, new = report(run("a"), run("b")), report(run("c"), run("d"))
    assert compare_reports(old, new).verdict.startswith("The reports have no run in common")


def test_hostile_names_stay_text():
    evil = "<script>|`*\n\u202e\x1b[2J"
    old, new = report(run(evil), run("b", (1, 1.0))), report(run(evil), run("b", (1, 2.0)))
    found = compare_reports(old, new)
    assert not any(re.search("[\x00-\x1f\u202e]", line) for line in lines(found))
    assert "<script>" not in markdown(found)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", markdown(found))


@pytest.fixture(scope="module")
def text() -> str:
    return to_json(report(run("a"), run("b", (1, 1.0))))


def refused(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(InputError) as error:
        read_report(str(path))
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 1000
    return str(error.value)


def test_a_report_is_read_from_its_file_or_its_folder(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    assert read_report(str(tmp_path)) == read_report(str(tmp_path / "report.json")) == c.from_text(text)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda t: t[: len(t) // 2], "is no JSON, or cut off: Expecting"),
        (lambda _: "", "is empty"),
        (lambda _: "[]", "states no schema_id"),
        (lambda _: '{"name": 1}', "states no schema_id"),
        (lambda _: b"\xff\xfe\x00", "states no schema_id"),
        (lambda t: t.replace("ulpscope.divergence/1", "ulpscope.divergence/7"), "of version ulpscope.divergence/7"),
        (lambda t: t.replace("ulpscope.divergence/1", "ulpscope.report/1"), "another kind, ulpscope.report/1"),
        (lambda t: t.replace('"title"', '"titel"'), "ulpscope.divergence/1: title is missing"),
        (lambda t: t.replace('"rows":4', '"rows":NaN'), "NaN is no JSON"),
        (lambda t: t.replace('"rows":4', '"rows":' + "9" * 5000), "is no JSON, or cut off"),
        (lambda t: re.sub('"seconds":[^,]+', '"seconds":1e999', t), "provenance.seconds: Input should be a finite"),
        (lambda t: t.replace('"pairs":[', '"pairs":[' + "[]," * 100_000), "pairs.0 should be of type object"),
        (lambda t: t.replace('"rows":4', '"rows":-4'), "coordinates.0.rows should be at least 0"),
        (lambda t: t.encode().replace(b"Divergence", b"\xffivergence"), "is no UTF-8"),
        (lambda t: '{"schema_id":"ulpscope.divergence/1","title":' + "[" * 200_000, "is no JSON, or cut off"),
    ],
)  # fmt: skip
def test_files_that_are_no_report(tmp_path, text, change, cause):
    assert cause in refused(tmp_path / "x.json", change(text))


def places(value, path=()):
    """Every place in JSON, as the keys that lead there."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, x in items:
        yield from places(x, (*path, key))


def test_a_shape_is_refused_as_the_contract_refuses_it(text):
    """At places drawn at random: what has another type, or is gone, is a misfit if and only if pydantic refuses it."""
    schema = c.DivergenceReport.model_json_schema(mode="validation")
    whole = json.loads(text)
    assert misfit(whole, schema) is None
    every = [p for p in places(whole) if p]
    rng = np.random.default_rng(5)
    refused_ones = 0
    for pick in rng.choice(len(every), 250, replace=False):
        *path, last = every[pick]
        changed = json.loads(text)
        holder = changed
        for key in path:
            holder = holder[key]
        if isinstance(holder, dict) and rng.random() < 0.3:
            del holder[last]
        else:
            holder[last] = [None, {}, [], "a", -1, 0.5][rng.integers(6)]
        try:
            c.DivergenceReport.model_validate(changed)
            accepted = True
        except (
            ValidationError
        ) as error:  # what is no shape, such as indices behind a list, is no matter of a schema
            accepted = all(one["type"] == "value_error" for one in error.errors())
        assert (misfit(changed, schema) is None) == accepted, (every[pick], misfit(changed, schema))
        refused_ones += not accepted
    assert 100 < refused_ones < 250


def test_indices_of_no_point_are_refused(tmp_path):
    text = to_json(report(run("a"), run("b", (1, 1.0)), run("c", (1, 2.5))))
    for change in ("points", "centre", "ranking"):
        whole = json.loads(text)
        region = whole["geometry"][0]
        if change == "points":
            region["points"] = []
        elif change == "centre":
            region["centres"][0]["ranking"][0]["points"] = [999]
        else:
            region["centres"][0]["ranking"] = []
        assert "geometry.0" in refused(tmp_path / "x.json", json.dumps(whole))


def test_files_that_are_too_large(tmp_path, text, monkeypatch):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(reading.MAX_BYTES + 1)
    with pytest.raises(InputError, match="is too large: 536,870,913 bytes"):
        read_report(str(path))
    monkeypatch.setattr(reading, "MAX_VALUES", 100)
    assert "holds too many values" in refused(tmp_path / "many.json", text)


def test_what_is_no_file(tmp_path):
    for name, cause in (
        (str(tmp_path / "nope"), "no such file or folder"),
        (str(tmp_path), "holds no report.json"),
        ("a\0b", "no such file or folder"),
        ("x" * 5000, "name too long"),
    ):
        with pytest.raises(InputError, match=re.compile(cause, re.I)):
            read_report(name)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no regular file"):
        read_report(str(tmp_path / "pipe"))


def test_the_contract_of_a_difference():
    old, new = report(run("a"), run("b", (1, 1.0))), report(run("a"), run("b", (1, 2.0)))
    found = compare_reports(old, new, old="x/report.json", new="y")
    data = json.loads(found.model_dump_json())
    assert data["schema_id"] == "ulpscope.divergence-diff/1"
    assert (data["old"]["place"], data["new"]["place"]) == ("x/report.json", "y")
    assert data["old"]["headline"] == old.verdict.headline
    assert data["worse"] == len([x for x in data["changes"] if x["tone"] == "worse"]) > 0
    # The worse come first.
    tones = [x["tone"] for x in data["changes"]]
    assert tones == sorted(tones, key=["worse", "changed", "better"].index)


def test_twelve_digits_are_the_same():
    one = report(run("a"), run("b", (1, 1.0)))
    (pair,) = one.pairs
    close = one.model_copy(update={"pairs": (pair.model_copy(update={"max_abs": 1.0 + 1e-14}),)})
    assert changes(one, close) == []
    far = one.model_copy(update={"pairs": (pair.model_copy(update={"max_abs": 1.0 + 1e-9}),)})
    assert [x.what for x in changes(one, far)] == ["max_abs"]
