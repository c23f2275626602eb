"""``ulpscope campaign``: output and exit codes. The searches are stood in for."""

from __future__ import annotations

import json
import os
import signal

import pytest

from search.campaign import load, work
from search.campaign.cli import app
from tests.commands import invoke
from tests.search.campaign import working
from tests.search.campaign.making import HEAD, PAIR
from tests.search.campaign.test_database import Here


@pytest.fixture
def file(here, monkeypatch):
    """A campaign file in an empty working directory; cases run in this process."""
    from search.campaign import runner

    monkeypatch.setattr(runner, "open_engine", lambda *_: Here())
    monkeypatch.setattr(work, "run_case", working.mixed)
    (here / "small.toml").write_text(HEAD + f"seeds = [0, 1, {working.RAISES}]\n" + PAIR)
    return here


def test_run_status_and_resume(file):
    out, err = invoke(app, "run", "small.toml")
    assert out.splitlines()[0] == "runs/small"
    assert out.splitlines()[1].startswith("best: walkthrough.xqa@h200 / walkthrough.triton@h200, 64 tokens")
    assert "small: 2 of 3 cases done, 1 failed, at most " in err
    assert load(file / "runs" / "small").summary.counts["failed"] == 1
    out, err = invoke(app, "status", "runs/small", "--cases")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["done", "done", "failed"]
    assert "no such luck" in lines[2]
    assert "ULP" in lines[0]
    out, _ = invoke(app, "resume", "runs/small", "--retry", "--format", "json")
    answer = json.loads(out)
    assert (answer["schema"], answer["done"], answer["failed"], answer["total"]) == (1, 2, 1, 3)
    assert load(file / "runs" / "small").cases[2].attempts == 2
    invoke(app, "resume", "runs/small", "--fail-on-failure", code=1)


def test_json_stands_alone_on_stdout(file):
    out, _ = invoke(app, "run", "small.toml", "-o", "there", "--format", "json")
    answer = json.loads(out)
    assert answer["folder"] == "there"
    assert answer["best_ulp"] == load("there").summary.best_ulp
    out, _ = invoke(app, "status", "there", "--cases", "--format", "json")
    rows = json.loads(out)["cases"]
    assert [row["status"] for row in rows] == ["done", "done", "failed"]
    assert rows[0]["best_ulp"] == working.outcome({"seed": 0, "kv_len": 64})["best_ulp"]
    out, _ = invoke(app, "run", "small.toml", "--dry-run", "--format", "json")
    cases = json.loads(out)["cases"]
    assert [case["seed"] for case in cases] == [0, 1, working.RAISES]
    assert [case["id"] for case in cases] == [row["id"] for row in rows]


def test_a_dry_run_makes_nothing(file):
    out, err = invoke(app, "run", "small.toml", "--dry-run")
    assert len(out.splitlines()) == 3
    assert "small: 3 cases" in err
    assert not (file / "runs").exists()


def test_ctrl_c_says_how_to_go_on(file, monkeypatch):
    def stopped(case):
        if case["seed"] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return working.outcome(case)

    monkeypatch.setattr(work, "run_case", stopped)
    _, err = invoke(app, "run", "small.toml", "-o", "my runs", "--engine", "dask://h:1", "-w", "3", code=130)
    assert "stopping when the cases under way are done" in err
    assert "interrupted, saved: small: 1 of 3 cases done" in err
    assert "resume: ulpscope campaign resume 'my runs' --engine dask://h:1 --workers 3" in err
    invoke(app, "resume", "my runs")
    assert load("my runs").summary.counts["done"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "none.toml"), "none.toml: no such file"),
        (("run", "bad.toml"), "bad.toml:4:1: unknown key 'method'"),
        (("status", "nowhere"), "nowhere: no such folder"),
        (("resume", "."), ".: holds no campaign"),
        (("run", "small.toml", "-o", "small.toml"), "small.toml: cannot be made"),
        (("run", "small.toml", "--kill-after", "0"), "--kill-after: 0.0 seconds"),
    ],
)
def test_mistakes(file, arguments, message):
    (file / "bad.toml").write_text(HEAD + "method = 'search'\n" + PAIR)
    _, err = invoke(app, *arguments, code=2)
    assert f"error: {message}" in err
