"""Ray, started on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from search.campaign import load, start
from search.campaign.engines import Engine, EngineError
from search.campaign.engines.on_ray import RayEngine
from tests.search.campaign import working
from tests.search.campaign.making import campaign, statuses
from tests.search.campaign.working import KILLED, PARENT, name, outcome

pytest.importorskip("ray")
# Ray starts its processes by fork and exec at once; JAX, where an earlier test has loaded it, warns of any fork.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = RayEngine("local", 2)
    yield made
    made.close(at_once=False)


def run(engine: Engine, folder: Any, seeds: list[int]) -> Any:
    return start(campaign(seeds), folder, engine=engine, work=name(working.mixed))


def test_every_other_case_gets_its_result_when_one_kills_its_worker(engine, tmp_path):
    run(engine, tmp_path, [0, KILLED, 1])
    assert statuses(tmp_path) == {0: "done", KILLED: "crashed", 1: "done"}
    rows = {row.case.seed: row for row in load(tmp_path).cases}
    assert rows[KILLED].attempts == 2
    assert rows[KILLED].message == "the worker died: SIGKILL"
    assert rows[1].best_ulp == outcome({"seed": 1, "kv_len": 64})["best_ulp"]
    assert load(tmp_path).runs[0].engine == "ray://local"


@pytest.mark.slow
def test_a_worker_of_the_cluster_that_dies_takes_one_case_with_it(engine, tmp_path):
    run(engine, tmp_path, [0, PARENT, 1, 2])
    assert statuses(tmp_path) == {0: "done", PARENT: "crashed", 1: "done", 2: "done"}
    rows = {row.case.seed: row for row in load(tmp_path).cases}
    assert rows[PARENT].attempts == 2
    assert "WorkerCrashedError" in rows[PARENT].message


@pytest.mark.slow
def test_nothing_answers():
    import ray

    if ray.is_initialized():
        pytest.skip("Ray is in use in this process")
    with pytest.raises(EngineError, match="no cluster answers"):
        RayEngine("127.0.0.1:9")
