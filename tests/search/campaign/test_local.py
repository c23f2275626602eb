"""Processes of this machine: results, crashes, Ctrl-C, time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from search.campaign import load, parse_campaign, resume, start
from search.campaign.coordinator import Interrupts
from specs.errors import InputError, UnsupportedError
from tests.search.campaign import working
from tests.search.campaign.making import HEAD, PAIR, campaign, results, statuses
from tests.search.campaign.working import ENDS, marks, name, outcome


def run(seeds, folder, function, **options):
    return start(campaign(seeds), folder, work=name(function), **options)


def test_every_case_gets_its_result_whatever_the_others_do(tmp_path):
    seeds = [0, *ENDS, 1, 2]
    summary = run(seeds, tmp_path / "a", working.mixed, workers=2)
    assert statuses(tmp_path / "a") == {0: "done", 1: "done", 2: "done", **ENDS}
    assert (summary.total, summary.counts["done"]) == (9, 3)
    assert (summary.counts["crashed"], summary.counts["failed"], summary.counts["pending"]) == (2, 4, 0)
    assert not summary.interrupted
    rows = {row.case.seed: row for row in load(tmp_path / "a").cases}
    assert "no such luck" in rows[working.RAISES].message
    assert "ValueError" in rows[working.RAISES].message
    assert "working.py" in rows[working.RAISES].message
    assert "SystemExit: leaving" in rows[working.LEAVES].message
    assert "returned no outcome" in rows[working.NO_OUTCOME].message
    assert "EXIT(7)" in rows[working.EXITS].message
    assert "SIGKILL(-9)" in rows[working.KILLED].message
    # once in company, and once alone
    assert rows[working.EXITS].attempts == rows[working.KILLED].attempts == 2
    assert rows[working.RAISES].attempts == rows[1].attempts == 1
    expected = outcome({"seed": 1, "kv_len": 64})
    assert rows[1].best_ulp == expected["best_ulp"]
    assert rows[1].details == {"seed": 1, "halves": [0.5]}
    assert rows[1].witness is not None
    assert rows[1].witness.read_bytes() == b'{"seed": 1}'


def test_results_depend_neither_on_the_number_of_workers_nor_on_the_order(tmp_path):
    run(range(8), tmp_path / "one", working.shuffled, workers=1)
    run(range(8), tmp_path / "two", working.shuffled, workers=2)
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert len(results(tmp_path / "one")) == 9


def test_each_worker_stays_with_the_programs_that_it_has_compiled(tmp_path, marked):
    lengths = "kv_lens = [64]\n", "kv_lens = [64, 65]\n"
    file = parse_campaign((HEAD + "seeds = [0, 1, 2, 3, 4, 5]\n" + PAIR).replace(*lengths))
    assert len({case.group for case in file.cases}) == 2
    start(file, tmp_path / "a", work=name(working.placed), workers=2)
    where: dict[str, set[str]] = {}
    for path in marked.glob("length*"):
        length, pid, _ = path.name.split(".")
        where.setdefault(length, set()).add(pid)
    # a worker that is done with a case goes on with its length
    assert len(where["length64"] | where["length65"]) == 2
    assert sum(len(pids) for pids in where.values()) <= 3  # one may help the other in the end


def test_a_worker_that_is_killed_from_outside_costs_nothing(tmp_path, marked):
    summary = run(range(4), tmp_path / "a", working.dies_once, workers=2)
    assert summary.counts["done"] == 4
    rows = {row.case.seed: row for row in load(tmp_path / "a").cases}
    assert [rows[seed].attempts for seed in range(4)] == [1, 1, 2, 1]
    run(range(4), tmp_path / "b", working.dies_once, workers=2)  # nobody dies: the mark is there
    assert [row.result() for row in load(tmp_path / "b").cases] == [
        row.result() for row in load(tmp_path / "a").cases
    ]


def test_what_is_done_stays_done_and_new_cases_are_added(tmp_path, marked):
    folder = tmp_path / "a"
    run([1, 2], folder, working.counted, workers=1)
    before = results(folder)
    run([3, 2, 1], folder, working.counted, workers=1)
    assert [marks(marked, f"case{seed}") for seed in (1, 2, 3)] == [1, 1, 1]
    assert [row.case.seed for row in load(folder).cases] == [3, 2, 1]
    run([1, 2], folder, working.counted, workers=1)
    assert results(folder)[:2] == before[:2]
    assert len(load(folder).runs) == 2  # the third had nothing to do


def test_only_with_a_flag_are_bad_cases_run_again(tmp_path, marked):
    folder = tmp_path / "a"
    run([0, working.KILLED, working.RAISES], folder, working.mixed, workers=1)
    resume(folder, workers=1, work=name(working.mixed))
    assert len(load(folder).runs) == 1
    resume(folder, workers=1, work=name(working.mixed), retry=True)
    rows = {row.case.seed: row for row in load(folder).cases}
    assert len(load(folder).runs) == 2
    assert statuses(folder) == {0: "done", working.KILLED: "crashed", working.RAISES: "failed"}
    # known to kill its worker: alone at once
    assert [rows[seed].attempts for seed in (0, working.KILLED, working.RAISES)] == [1, 3, 2]


SCRIPT = """
import json, sys
from search.campaign import start
from tests.search.campaign.making import campaign
made = start(campaign(range(6)), sys.argv[1], work=sys.argv[2], workers=2, notice=print)
print(json.dumps(made.to_json()))
"""


@contextmanager
def process(folder: Path, marked: Path) -> Iterator[subprocess.Popen[str]]:
    """A coordinator in a process group of its own, as in a shell, with two cases under way."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), name(working.waits)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as made:
        deadline = time.monotonic() + 60
        while marks(marked, "started") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made.poll() is None
        try:
            yield made
        finally:
            if made.poll() is None:
                os.killpg(made.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_lets_what_runs_finish_and_saves_it(tmp_path, marked):
    folder = tmp_path / "a"
    with process(folder, marked) as running:
        os.killpg(running.pid, signal.SIGINT)  # a terminal sends it to the workers, too
        assert running.stdout is not None
        assert "Ctrl-C again stops now" in running.stdout.readline()
        (marked / "go").touch()
        summary = json.loads(running.stdout.readline())
        assert running.wait(30) == 0
    assert summary["interrupted"]
    assert (summary["done"], summary["pending"], summary["crashed"]) == (2, 4, 0)
    assert load(folder).runs[0].how == "interrupted"
    assert [row.attempts for row in load(folder).cases] == [1, 1, 0, 0, 0, 0]
    done = resume(folder, workers=2, work=name(working.waits))
    assert not done.interrupted
    assert done.counts["done"] == 6
    assert marks(marked, "started") == 6


@pytest.mark.skipif(sys.platform == "win32", reason="workers do not see that their parent is gone")
def test_a_coordinator_that_is_killed_leaves_a_readable_database_and_no_workers(tmp_path, marked):
    folder = tmp_path / "a"
    with process(folder, marked) as running:
        with pytest.raises(InputError, match="another process runs this campaign"):
            resume(folder, work=name(working.waits))
        assert load(folder).summary.total == 6  # it is read while it runs
        workers = [int(path.name.split(".")[1]) for path in marked.glob("started.*")]
        assert all(alive(pid) for pid in workers)
        running.kill()
        running.wait(10)
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in workers)
    loaded = load(folder)
    assert loaded.runs[-1].how is None
    assert {row.status for row in loaded.cases} == {"pending"}
    (marked / "go").touch()
    assert resume(folder, work=name(working.waits), workers=1).counts["done"] == 6


def test_a_second_ctrl_c_stops_at_once(tmp_path, marked):
    # the file `go` is never there: without the second Ctrl-C this takes 20 s
    began = time.monotonic()
    stopper = Interrupts(lambda _: None)

    def twice(progress):
        if progress.running == 2:
            stopper.add()
            stopper.add()

    summary = run(range(4), tmp_path / "b", working.waits, workers=2, interrupts=stopper, progress=twice)
    assert time.monotonic() - began < 15
    assert summary.interrupted
    assert summary.counts["pending"] == 4
    (marked / "go").touch()
    assert resume(tmp_path / "b", workers=2, work=name(working.waits)).counts["done"] == 4


def test_a_case_that_never_ends_is_stopped_and_said_so(tmp_path):
    summary = run([0, 1, 2], tmp_path / "a", working.endless, workers=2, kill_after=1.0)
    assert statuses(tmp_path / "a") == {0: "done", 1: "timeout", 2: "done"}
    assert summary.counts["timeout"] == 1
    assert load(tmp_path / "a").cases[1].message == "stopped after 1 s"


@pytest.mark.slow
def test_a_case_that_hangs_in_a_library_is_stopped_too(tmp_path):
    run([0, 1, 2], tmp_path / "a", working.hangs, workers=2, kill_after=0.5)
    assert statuses(tmp_path / "a") == {0: "done", 1: "timeout", 2: "done"}
    assert load(tmp_path / "a").cases[1].attempts == 2


def test_a_cut_by_wall_time_and_what_was_not_found_are_marked(tmp_path):
    summary = run([3, 4, 6], tmp_path / "a", working.cut, workers=1)
    rows = load(tmp_path / "a").cases
    assert [row.cut_by_wall_time for row in rows] == [False, True, True]
    assert [row.found for row in rows] == ["witness", "nothing", "infeasible"]
    assert [row.witness is None for row in rows] == [False, True, True]
    assert summary.cut_by_wall_time == 2
    assert summary.best_ulp == outcome({"seed": 3, "kv_len": 64})["best_ulp"]


def test_progress_says_how_far_it_is(tmp_path):
    seen = []
    run([0, 1, working.RAISES], tmp_path / "a", working.mixed, workers=1, progress=seen.append)
    last = seen[-1]
    assert (last.done, last.total, last.failed, last.crashed) == (3, 3, 1, 0)
    assert last.best_ulp == max(outcome({"seed": s, "kv_len": 64})["best_ulp"] for s in (0, 1))
    assert last.seconds_left == 0
    assert last.per_second > 0
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert str(last).startswith("3 of 3 cases, best ")


@pytest.mark.parametrize(
    ("engine", "workers", "message"),
    [
        ("locally", None, "'locally' is no engine"),
        ("dask://", None, "is no engine"),
        ("tcp://1.2.3.4:5", None, "is no engine"),
        ("local", 0, "0 workers"),
        ("local", 5000, "5000 workers"),
    ],
)
def test_engines_that_are_none(tmp_path, engine, workers, message):
    with pytest.raises(InputError, match=message):
        run([0], tmp_path / "a", working.good, engine=engine, workers=workers)


@pytest.mark.parametrize(
    ("module", "engine"), [("distributed", "dask://127.0.0.1:1"), ("ray", "ray://local")]
)
def test_a_package_that_is_not_installed(tmp_path, monkeypatch, module, engine):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UnsupportedError, match=r"pip install 'ulpscope\[(dask|ray)\]'"):
        run([0], tmp_path / "a", working.good, engine=engine)
