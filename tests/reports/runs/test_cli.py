"""``ulpscope compare`` on runs: what it takes for runs, what it writes, exit codes, and what a mistake gets."""

from __future__ import annotations

import json
from xml.etree import ElementTree as Xml

import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.runs.contract import from_text
from tests.reports.runs import making
from tests.verify.metrics import made
from verify.runs.folder import write_run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Three run folders in ``runs``: a and c are bit-identical, b is not."""
    monkeypatch.chdir(tmp_path)
    for name, steps in (("a", ()), ("b", ((1, 2.0),)), ("c", ())):
        values = making.moved(3, *steps)
        one = made.sequence("q", values=values, tokens=[4, 5, 6], prompt=[1, 2], positions=[1, 2, 3])
        write_run(tmp_path / "runs" / name, made.run(name, one).manifest, (one,), form="npz")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


def refused(*arguments):
    done = run(*arguments)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_text():
    done = run("runs/a", "runs/b", "runs/c")
    assert done.exit_code == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("a and c are bit-identical; 2 pairs differ, farthest a and b: at most 2 (RMS 2);")
    assert done.stderr.strip().splitlines()[-1].startswith(first)
    assert "replay: ulpscope" in done.stderr


def test_a_folder_of_runs_as_json_and_files(folder):
    done = run("runs", "--format", "json", "--out", "out/deep")
    assert done.exit_code == 0, done.stderr
    found = from_text(done.stdout)
    assert [k.runs for k in found.identity] == [("a", "c"), ("b",)]
    path = folder / "out" / "deep" / "report.json"
    assert from_text(path.read_text()) == found
    assert (
        path.with_suffix(".md")
        .read_text()
        .startswith("# Divergence of 3 runs\n\n**a and c are bit-identical;")
    )
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.json", "report.md"]


def test_exit_codes(folder):
    assert run("runs/a", "runs/c", "--fail-on-divergence").exit_code == 0
    assert run("runs/a", "runs/b", "--fail-on-divergence").exit_code == 1
    (folder / "policy.toml").write_text('[[rule]]\nmatch = "*"\nfail_if = "max_abs > 1.5"\n')
    done = run("runs/a", "runs/b", "runs/c", "--policy", "policy.toml", "--junit", "ci/junit.xml")
    assert done.exit_code == 1, done.stderr
    assert "policy policy.toml: 1 passed, 2 failed, 0 errors" in done.stdout
    suite = Xml.parse(folder / "ci" / "junit.xml").getroot()[0]
    assert {k: suite.attrib[k] for k in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "2",
        "errors": "0",
    }
    loose = '[[rule]]\nmatch = "*"\nfail_if = "max_abs > 2"\n'
    (folder / "policy.toml").write_text(loose)
    assert run("runs/a", "runs/b", "--policy", "policy.toml").exit_code == 0
    (folder / "policy.toml").write_text(loose.replace('"*"', '"a"'))
    assert "no rule matches the coordinate 'b'" in refused("runs/a", "runs/b", "--policy", "policy.toml")


def test_a_reference_leaves_other_pairs_out():
    found = from_text(run("runs", "--reference", "b", "--metric", "flips", "--format", "json").stdout)
    assert {(p.first, p.second) for p in found.pairs} == {("a", "b"), ("b", "c")}
    assert found.provenance.settings["reference"] == "b"
    assert found.geometry == ()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("runs/a", "runs/nope"), "no such file or folder"),
        (("nope", "nix"), "no such file or folder"),
        (("runs/a", "runs/b", "--metric", "rmz"), "no distance is called 'rmz'"),
        (("runs/a", "runs/b", "--reference", "z"), "no run is called 'z'"),
        (("runs/a", "runs/b", "--spec", "x"), "does not go with runs"),
        (("runs/a", "runs/b", "--kv-len", "3"), "does not go with runs"),
        (("runs/a", "runs/b", "--junit", "x.xml"), "needs a policy"),
        (("runs/a", "runs/b", "--policy", "x.toml"), "cannot be read"),
        (("a@h200", "b@h200", "--out", "x"), "only goes with runs"),
        (("a@h200", "b@h200", "c@h200"), "3 arguments"),
        ((), "nothing to compare"),
    ],
)
def test_mistakes(arguments, cause):
    assert cause in refused(*arguments)


def test_a_damaged_run_is_refused(folder):
    manifest = folder / "runs" / "a" / "manifest.json"
    found = json.loads(manifest.read_text())
    found["files"][0]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(found))
    assert "sha256" in refused("runs/a", "runs/b")


def test_a_folder_that_cannot_be_written(folder):
    (folder / "file").write_text("")
    assert "cannot be written" in refused("runs/a", "runs/b", "--out", "file/x")


def test_schema():
    done = run("--schema")
    assert json.loads(done.stdout)["properties"]["schema_id"]["const"] == "ulpscope.divergence/1"
