"""Work functions for tests: what a case does follows from its seed. Worker processes import this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Where work functions leave marks: the folder of the environment, which workers inherit.
MARKS = "ULPSCOPE_TEST_MARKS"
NAMES = "tests.search.campaign.working"

EXITS, KILLED, RAISES, LEAVES, NO_JSON, NO_OUTCOME, PARENT = range(101, 108)
#: What each of these cases ends as, by seed, wherever it runs.
ENDS = {
    EXITS: "crashed",
    KILLED: "crashed",
    RAISES: "failed",
    LEAVES: "failed",
    NO_JSON: "failed",
    NO_OUTCOME: "failed",
}


def name(function: Any) -> str:
    """How a work function of this module is named."""
    return f"{NAMES}:{function.__name__}"


def outcome(case: Mapping[str, Any]) -> dict[str, Any]:
    """An outcome that follows from the case alone."""
    seed, length = case["seed"], case["kv_len"]
    return {
        "found": "witness",
        "best_ulp": ((seed * 7919) % 97) / 7 + length,
        "integer_ulp": length + seed,
        "bound_ulp": None if seed % 2 else 1000.5,
        "evaluations": 10 * seed + 1,
        "details": {"seed": seed, "halves": [seed / 2]},
        "witness": "witness.json",
        "files": {"witness.json": f'{{"seed": {seed}}}'.encode(), "witness.safetensors": bytes([seed % 256])},
    }


def mark(what: str) -> int:
    """Leave a mark; how many there are of its kind now."""
    folder = Path(os.environ[MARKS])
    handle = f"{what}.{os.getpid()}.{time.monotonic_ns()}"
    (folder / handle).touch()
    return marks(folder, what)


def marks(folder: Path, what: str) -> int:
    """How many marks of a kind there are."""
    return len(list(folder.glob(f"{what}.*")))


def good(case: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing but an outcome."""
    return outcome(case)


def slowly(case: Mapping[str, Any]) -> dict[str, Any]:
    """A fifth of a second."""
    time.sleep(0.2)
    return outcome(case)


def shuffled(case: Mapping[str, Any]) -> dict[str, Any]:
    """Later cases end earlier."""
    time.sleep(0.02 * (3 - case["seed"] % 4))
    return outcome(case)


def counted(case: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves a mark for each run."""
    mark(f"case{case['seed']}")
    return outcome(case)


def placed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves a mark of its length and its process."""
    mark(f"length{case['kv_len']}")
    time.sleep(0.05)
    return outcome(case)


def mixed(case: Mapping[str, Any]) -> Any:
    """Some cases end badly: see `ENDS`."""
    print("noise")
    match case["seed"]:
        case seed if seed == EXITS:
            os._exit(7)
        case seed if seed == KILLED:  # as when memory runs out
            os.kill(os.getpid(), signal.SIGKILL)
        case seed if seed == PARENT:  # the worker of the cluster that this one is a child of
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(20)
        case seed if seed == RAISES:
            raise ValueError("no such luck")
        case seed if seed == LEAVES:
            sys.exit("leaving")
        case seed if seed == NO_JSON:
            return {**outcome(case), "details": {"x": float("nan")}}
        case seed if seed == NO_OUTCOME:
            return {**outcome(case), "found": "perhaps"}
    return outcome(case)


def dies_once(case: Mapping[str, Any]) -> dict[str, Any]:
    """Case 2 kills its worker the first time."""
    if case["seed"] == 2 and mark("died") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome(case)


def waits(case: Mapping[str, Any]) -> dict[str, Any]:
    """Runs until the file ``go`` is there, at most 20 s."""
    print("noise")
    mark("started")
    go, deadline = Path(os.environ[MARKS]) / "go", time.monotonic() + 20
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return outcome(case)


def endless(case: Mapping[str, Any]) -> dict[str, Any]:
    """Case 1 never ends."""
    while case["seed"] == 1:
        time.sleep(0.01)
    return outcome(case)


def hangs(case: Mapping[str, Any]) -> dict[str, Any]:
    """Case 1 hangs where no exception reaches it."""
    if case["seed"] == 1:
        time.sleep(60)
    return outcome(case)


def cut(case: Mapping[str, Any]) -> dict[str, Any]:
    """Even seeds say that wall time cut them; case 4 finds nothing, case 6 proves that there is nothing."""
    found = {4: "nothing", 6: "infeasible"}.get(case["seed"], "witness")
    mine = {**outcome(case), "cut_by_wall_time": case["seed"] % 2 == 0, "found": found}
    if found != "witness":
        mine |= {"best_ulp": None, "integer_ulp": None, "witness": None, "files": {}}
    return mine
