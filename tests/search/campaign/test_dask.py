"""A real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.campaign import load, resume, start
from search.campaign.engines import EngineError
from search.campaign.engines.on_dask import DaskEngine
from tests.search.campaign import working
from tests.search.campaign.making import campaign, results, statuses
from tests.search.campaign.working import EXITS, KILLED, RAISES, marks, name

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dask")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """A scheduler, and two workers of one thread. Their logs say at length that workers die."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(working.MARKS, str(folder / "marks"))
        (folder / "marks").mkdir()
        with distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as made:
            yield made


def address(cluster: Any) -> str:
    return cluster.scheduler_address.replace("tcp://", "dask://")


def run(cluster: Any, folder: Path, seeds: Any, function: Any) -> Any:
    return start(campaign(seeds), folder, engine=address(cluster), work=name(function))


def test_a_worker_is_killed_in_the_middle_and_nothing_is_lost(cluster, folder):
    pids = [worker.pid for worker in cluster.workers.values() for worker in [worker.process]]
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 30
        while marks(folder / "marks", "started") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        killed.append(pids[0])
        (folder / "marks" / "go").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    summary = run(cluster, folder / "a", range(8), working.waits)
    thread.join()
    assert killed
    assert summary.counts["done"] == summary.total == 8
    assert marks(folder / "marks", "started") > 8  # what the dead worker ran was run again
    start(campaign(range(8)), folder / "b", work=name(working.good), workers=2)
    assert results(folder / "a") == results(folder / "b")


def test_every_other_case_gets_its_result_when_two_kill_their_workers(cluster, folder):
    summary = run(cluster, folder / "c", [0, KILLED, 1, RAISES, EXITS, 2], working.mixed)
    assert statuses(folder / "c") == {
        0: "done",
        KILLED: "crashed",
        1: "done",
        RAISES: "failed",
        EXITS: "crashed",
        2: "done",
    }
    assert summary.counts["crashed"] == 2
    rows = {row.case.seed: row for row in load(folder / "c").cases}
    assert rows[KILLED].attempts == rows[EXITS].attempts == 2
    assert rows[KILLED].message == "the worker died: SIGKILL"
    assert rows[EXITS].message == "the worker died: exit code 7"


def test_nothing_answers():
    with pytest.raises(EngineError, match="no scheduler answers"):
        DaskEngine("127.0.0.1:9", connect=0.3)


def test_a_cluster_without_workers_is_not_waited_for(tmp_path):
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        host="127.0.0.1",
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
        protocol="tcp",
    ) as cluster:
        engine = DaskEngine(cluster.scheduler_address.removeprefix("tcp://"), patience=0.5)

        def leave(progress: Any) -> None:
            if progress.done == 1:
                cluster.scale(0)

        try:
            with pytest.raises(EngineError, match=r"no worker for 0\.5 s") as found:
                start(
                    campaign(range(6)),
                    tmp_path / "a",
                    engine=engine,
                    work=name(working.slowly),
                    progress=leave,
                )
        finally:
            engine.close(at_once=True)
    saved = load(tmp_path / "a")
    done = saved.summary.counts["done"]
    assert 1 <= done < 6
    assert f"{done} of 6 cases are saved" in str(found.value)
    assert saved.runs[0].how == "stopped"
    assert saved.events[0].kind == "stopped"
    assert resume(tmp_path / "a", work=name(working.slowly), workers=1).counts["done"] == 6
