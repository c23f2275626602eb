"""Questions run in processes that are killed at their limit."""

import json
import multiprocessing
import os
import signal
import threading
import time

import pytest

from search.prove.processes import ask_all
from search.prove.work import partition_job
from specs.errors import SpecError
from tests.commands import invoke


def test_a_question_that_takes_too_long_is_killed_and_the_next_one_answered():
    from reports.cli import app

    # FlashAttention-3 falls into 180 cases, which take many seconds.
    slow, fast = partition_job("flash_attn3.decode", {}, 0.3), partition_job("walkthrough.dense", {}, 30.0)
    began = time.perf_counter()
    first, second = ask_all([slow, fast], 1)
    assert time.perf_counter() - began < 25
    assert first.proofs[0].status == "unknown"
    assert "killed" in first.proofs[0].reason
    assert second.proofs[0].status == "proved"
    out, err = invoke(
        app,
        "prove",
        "partition",
        "walkthrough.xqa@h200",
        "--find",
        "batch",
        "--kv-len",
        "512",
        "--format",
        "json",
    )
    found = json.loads(out)
    assert found["schema"] == 1
    assert found["proofs"][0]["status"] == "exhaustive"
    assert found["proofs"][0]["details"]["first"] == 17  # of 132 SMs each of 17 * 4 KV heads has one
    assert "replay: ulpscope" in err


@pytest.mark.parametrize("seconds", [0.2, 1.5])
def test_an_interruption_kills_the_processes_at_once_and_no_thread_complains(seconds: float):
    """While they start, and while they work; warnings of threads are errors here."""
    jobs = [partition_job("flash_attn3.decode", {}, 60.0)] * 4
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        ask_all(jobs, 2)
    timer.join()
    assert time.perf_counter() - began < 20
    assert not [p for p in multiprocessing.active_children() if p.is_alive()]


def test_an_unknown_spec_is_said_at_once():
    with pytest.raises(SpecError, match="unknown spec"):
        partition_job("walkthrough.xka", {}, 1.0)


@pytest.mark.parametrize(
    "command",
    [
        "partition walkthrough.xqa --set head_dim=banana",
        "partition walkthrough.xqa --set foo=1",
        "partition walkthrough.xqa@h200 --find foo --kv-len 5",
        "partition walkthrough.xqa@h200 --find batch",
        "partition walkthrough.xqa --splits 3",
        "equal walkthrough.xqa",
        "equal walkthrough.xqa --platforms h200,h100 --set foo=1",
        "equal --platforms h200,t4 --dot bf16",
        "bound walkthrough.xqa@h200",
        "bound walkthrough.xqa@h200 --kv-len 64 -c 0",
        "bound walkthrough.xqa@h200 -i nowhere.npz",
        "algebra walkthrough.xqa --set foo=1",
        "library nosuch",
    ],
)
def test_mistakes_are_said(command):
    from reports.cli import app

    _, err = invoke(app, "prove", *command.split(), code=2)
    assert err.startswith("error: ")


def test_a_kernel_that_takes_no_shape_is_not_proved():
    (reply,) = ask_all([partition_job("flash_attn2.splitkv_decode@t4", {}, 60.0)], 1)
    assert reply.proofs[0].status == "refused"
