"""Ctrl-C in commands: 130 at whatever moment, and what was found stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from search.resources import Resources, answer
from search.run import Budget, search
from search.sides import load_side
from search.space import Inputs, Space
from search.target import Target
from verify import interrupts
from verify.interrupts import remembered

FA2 = "walkthrough.flash_attention_2@h200"


def press(after: float = 0.0) -> threading.Timer:
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def hard():
    """Two factors of a product of two primes of 31 bits: minutes of work."""
    import z3

    context = z3.Context()
    a, b = (z3.BitVec(name, 64, context) for name in "ab")
    solver = z3.Solver(ctx=context)
    solver.add(a * b == 2147483647 * 2147483629, z3.UGT(a, 1), z3.UGT(b, 1))
    solver.add(z3.ULT(a, 1 << 32), z3.ULT(b, 1 << 32))
    return solver


@pytest.mark.parametrize("check", [answer, lambda s: Resources(1 << 31).check(s, 1 << 31)])
def test_z3_keeps_no_interruption_for_itself(check):
    solver = hard()
    timer = press(0.3)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        check(solver)
    timer.join()
    assert time.monotonic() - begin < 30


def test_an_interruption_that_a_library_drops_ends_the_search(monkeypatch: pytest.MonkeyPatch):
    """In the third batch; what was found until then comes back."""
    measure, calls = Target.measure, [0]

    def dropped(self: Target, inputs: Inputs):
        calls[0] += 1
        if calls[0] == 3:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return measure(self, inputs)

    monkeypatch.setattr(Target, "measure", dropped)
    sides = [load_side(FA2, {"split": rule, "block": "tiles(64)"}) for rule in ("tiles(20)", "tiles(12)")]
    with remembered():
        outcome = search(sides, Space(kv_len=64), budget=Budget(evaluations=2000), keep=True)
    assert outcome.interrupted
    assert outcome.cut
    assert calls[0] <= 5
    assert outcome.best is not None


def test_what_was_dropped_is_pressed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interrupts, "AGAIN", 0.05)
    with remembered():
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
        assert time.monotonic() - begin < 10
        interrupts.settle()
        time.sleep(0.2)  # and not any more


def test_an_import_is_not_interrupted_but_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An exception in the initialisation of jaxlib's modules ends the process with a segmentation fault."""
    (tmp_path / "pressed.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with remembered():
        import pressed  # pyright: ignore[reportMissingImports]

        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
        interrupts.settle()
    assert pressed.done


COMMANDS = {
    "search": ["search", "walkthrough.xqa@h200", "walkthrough.triton@h200", "--kv-len", "600", "-o", "out"],
    "kernels": [
        "search", "flash_attn2.splitkv_decode@h200", "xqa.decode@h200", "--kv-len", "256", "--space", "qkv",
        "--head-dim", "64", "--q-heads", "24", "--kv-heads", "4", "-o", "out",
    ],
    "explain": ["explain", "walkthrough.xqa@h200", "walkthrough.triton@h200", "--random", "0", "--kv-len", "4000"],
    "prove": ["prove", "library"],
    "campaign": ["campaign", "run", "campaign.toml", "-o", "out"],
}  # fmt: skip
CAMPAIGN = """schema = 1
name = "first"
kv_lens = [300, 400, 500]
cancellation = [0.5]
seeds = [0, 1]
methods = ["search"]
budget = { evaluations = 20000 }
[[pair]]
sides = ["walkthrough.xqa@h200", "walkthrough.triton@h200"]
"""


IMPORTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Presses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "search.cli":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if sys.argv[1] == "raised":
                    raise

sys.meta_path.insert(0, Presses)
from reports.main import main
main()
"""


@pytest.mark.parametrize("what", ["raised", "dropped"])
def test_an_interruption_of_an_import_ends_the_command(what: str):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, what], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 3.0, 10.0, 20.0, 40.0])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_end_with_130_whenever_they_are_interrupted(tmp_path: Path, name: str, seconds: float):
    (tmp_path / "campaign.toml").write_text(CAMPAIGN)
    process = subprocess.Popen(
        [sys.executable, "-m", "reports.main", *COMMANDS[name]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background ignore it
    )
    try:
        process.wait(seconds)
        pytest.skip("done before it was interrupted")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 130, (said, errors)
    assert "Traceback" not in errors
