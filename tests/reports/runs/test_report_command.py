"""``ulpscope report`` on runs and ``report diff``: files, exit codes, what goes with what, and what a mistake gets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.runs.contract import from_text
from tests.reports.runs import making
from tests.verify.metrics import made
from verify.runs.folder import write_run

FILES = ["report.html", "report.json", "report.md"]


def make(folder, name, *steps):
    one = made.sequence(
        "q", values=making.moved(3, *steps), tokens=[4, 5, 6], prompt=[1, 2], positions=[1, 2, 3]
    )
    write_run(folder / name, made.run(name, one).manifest, (one,), form="npz")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Three run folders in ``runs``: a and c are bit-identical, b is not."""
    monkeypatch.chdir(tmp_path)
    for name, steps in (("a", ()), ("b", ((1, 2.0),)), ("c", ())):
        make(tmp_path / "all", name, *steps)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["report", *arguments])


def refused(*arguments):
    done = run(*arguments)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def names(path: Path):
    return sorted(p.name for p in path.iterdir())


def test_it_writes_three_files_and_says_the_verdict(folder):
    done = run("all", "--out", "out")
    assert done.exit_code == 0, done.stderr
    assert names(folder / "out") == FILES
    said = done.stdout.splitlines()
    assert said[0].startswith(
        "a and c are bit-identical; 2 pairs differ, farthest a and b: at most 2 (RMS 2);"
    )
    assert said[-3:] == [str(Path("out") / f"report.{x}") for x in ("json", "html", "md")]
    page = (folder / "out" / "report.html").read_text()
    assert ">a and c are bit-identical; 2 pairs differ" in page
    assert from_text((folder / "out" / "report.json").read_text()).verdict.headline == said[0]


def test_without_a_folder_it_makes_one_of_a_new_name(folder):
    done = run("all/a", "all/b", "--format", "json")
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    (made_one,) = (folder / "runs").iterdir()
    assert names(made_one) == FILES
    assert [Path(x).name for x in data["files"]] == ["report.json", "report.html", "report.md"]
    assert data["report"] == json.loads((made_one / "report.json").read_text())


def test_one_run_alone(folder):
    done = run("all/a", "-o", "one")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("a is one run without repeats: 3 rows")
    assert names(folder / "one") == FILES


def test_a_folder_of_files_of_engines(folder):
    """Scores in npz files, beside a licence; what is in it is told by the file's own names."""
    (folder / "files").mkdir()
    (folder / "files" / "LICENSE").write_text("MIT")
    for name, step in (("one", 0), ("two", 2.0**-20)):
        scores = np.linspace(0.25, 0.75, 50) + step
        labels = {"__label": [name], "__device": ["cpu"], "__artifact_sha256": ["0" * 64]}
        arrays = {"scores_cal__fp32": scores, "scores_te__fp32": scores, "argmax_te__fp32": np.arange(50)}
        np.savez(folder / "files" / f"{name}.npz", **arrays, **labels)
    done = run("files", "-o", "x")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("one and two differ by at most 9.54e-07")


def test_exit_codes_and_policies(folder):
    assert run("all/a", "all/c", "-o", "x", "--fail-on-divergence").exit_code == 0
    assert run("all/a", "all/b", "-o", "x", "--fail-on-divergence").exit_code == 1
    (folder / "policy.toml").write_text('[[rule]]\nmatch = "*"\nfail_if = "max_abs > 1.5"\n')
    done = run("all", "-o", "x", "--policy", "policy.toml", "--junit", "junit.xml", "--reference", "a")
    assert done.exit_code == 1, done.stderr
    assert "policy policy.toml: 1 passed, 1 failed, 0 errors" in done.stdout
    assert (folder / "junit.xml").read_text().startswith("<?xml")
    assert "max_abs &gt; 1.5" in (folder / "x" / "report.html").read_text()


def test_other_options_have_the_meaning_of_compare(folder):
    done = run("all", "-o", "x", "--metric", "flips", "--reference", "b")
    found = from_text((folder / "x" / "report.json").read_text())
    assert done.exit_code == 0, done.stderr
    assert {(p.first, p.second) for p in found.pairs} == {("a", "b"), ("b", "c")}
    assert found.provenance.settings["metric"] == "flips"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("all/a", "all/nope"), "no such file or folder"),
        (("all/a", "--teaching"), "--teaching: does not go with runs"),
        (("all/a", "--input", "x"), "--input: does not go with runs"),
        (("all/a", "--spec", "x"), "--spec: does not go with runs"),
        (("all/a", "--seed", "1"), "--seed: does not go with runs"),
        (("all/a", "--kv-len", "3"), "--kv-len: does not go with runs"),
        (("all/a", "--campaign", "x"), "--campaign: does not go with runs"),
        (("all/a", "--schema"), "--schema: does not go with runs"),
        (("all/a", "--metric", "rmz"), "no distance is called 'rmz'"),
        (("all/a", "--junit", "x.xml"), "needs a policy"),
        (("--policy", "x.toml"), "--policy: only goes with runs"),
        (("--campaign", "x", "--reference", "a"), "--reference: only goes with runs"),
        (("--campaign", "x", "--seed", "3"), "--seed: does not go with --campaign"),
        (("all/a", "torch_cpu_2.13.0"), "torch_cpu_2.13.0: is a capture of kernels, which has no runs"),
        (("diff",), "takes two reports, not 0"),
        (("diff", "a", "b", "c"), "takes two reports, not 3"),
        (("diff", "all", "all"), "holds no report.json"),
        (("diff", "a", "b", "--policy", "x"), "--policy: does not go with diff"),
        (("diff", "a", "b", "--spec", "x"), "--spec: does not go with diff"),
        (("a\0b",), "NUL"),
    ],
)
def test_mistakes(folder, arguments, cause):
    assert cause in refused(*arguments)
    # A folder that was made for a report goes again.
    assert not (folder / "runs").exists()


def test_a_folder_that_cannot_be_written(folder):
    (folder / "file").write_text("")
    assert "cannot be written" in refused("all", "--out", "file/x")


def test_compare_writes_the_page_too(folder):
    assert CliRunner().invoke(app, ["compare", "all", "--out", "out"]).exit_code == 0
    assert names(folder / "out") == FILES


def test_diff(folder):
    assert run("all", "-o", "old").exit_code == 0
    make(folder / "later", "a")
    make(folder / "later", "b", (1, 2.0))
    make(folder / "later", "c", (1, 0.5))
    assert run("later", "-o", "new").exit_code == 0
    done = run("diff", "old", "new/report.json")
    assert done.exit_code == 0, done.stderr
    assert "changes for the worse, among them a and c: not bit-identical any more" in done.stdout
    assert "  old: a and c are bit-identical;" in done.stdout
    assert run("diff", "old", "new", "--fail-on-divergence").exit_code == 1
    assert run("diff", "old", "old", "--fail-on-divergence").exit_code == 0
    done = run("diff", "old", "new", "--format", "json", "-o", "d")
    data = json.loads(done.stdout)
    assert data["schema_id"] == "ulpscope.divergence-diff/1"
    assert data == json.loads((folder / "d" / "diff.json").read_text())
    assert (folder / "d" / "diff.md").read_text().startswith("# What changed\n")


def test_a_run_that_is_called_diff(folder):
    make(folder, "diff")
    done = run("./diff", "-o", "x")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("diff is one run")
