"""The commands, and PyTorch's CPU kernel captured and compared from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports.cli import app
from tests.commands import invoke
from tests.verify.capture.making import flip, write
from tests.verify.torch_live import machine
from verify.capture.format import packaged, read_capture
from verify.capture.machine import cpu_class, installed

SAMPLE = "torch_cpu_2.13.0"


pytestmark = pytest.mark.usefixtures("here")
run = partial(invoke, app)


def ulpscope(*args: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = "from reports.main import main; main()"
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )


def test_pytorch_itself(here: Path) -> None:
    """Capture and comparison in processes of their own; one flipped bit of the capture is found where it is."""
    found = machine(here)
    if found.skip:
        pytest.skip(found.skip)
    out = here / "capture"
    done = ulpscope(
        "capture", "kernels", "-k", "torch_cpu", "--quick", "-o", str(out), environment=found.environment
    )
    assert done.returncode == 0, done.stderr
    capture = read_capture(out)
    assert capture.manifest.machine.cpu_class == "amd_avx512"
    assert capture.manifest.libraries["torch_cpu"].version.startswith("2.13.0")
    stdout, stderr = run("compare", str(out))
    assert stdout.startswith(
        "bit-exact with torch_cpu.sdpa_flash on amd_avx512: 7 cases, 14 arrays, 1,820 numbers\n"
    )
    assert "replay: ulpscope" in stderr
    old = read_capture(SAMPLE)
    for key in old.manifest.stored():
        if key.startswith("records/"):
            assert capture.array(key).tobytes() == old.array(key).tobytes(), key


def test_a_cpu_of_another_class_is_refused(here: Path) -> None:
    if installed("torch") is None or cpu_class() == "amd_avx512":
        pytest.skip(f"PyTorch {installed('torch')} on a CPU of class {cpu_class()}")
    run("capture", "kernels", "-k", "torch_cpu", "--quick", "-o", "capture")
    _, error = run("compare", "capture", code=2)
    assert f"captured on a CPU of class {cpu_class()}" in error
    assert "--platform" in error


def test_the_packaged_capture() -> None:
    stdout, _ = run("compare", SAMPLE)
    first, *rest = stdout.splitlines()
    assert first.startswith("bit-exact with torch_cpu.sdpa_flash on amd_avx512: 7 cases")
    assert any("output       is output           0 of 1,792 differ, in 7 cases" in line for line in rest)
    data = json.loads(run("compare", SAMPLE, "--format", "json")[0])
    assert data["exact"] is True
    assert data["schema"] == 1
    assert data["kernels"][0]["spec"] == "torch_cpu.sdpa_flash"
    assert len(data["kernels"][0]["records"]) == 7


def damaged(folder: Path) -> str:
    """The packaged capture with one bit of one output flipped, sealed as if it had been captured so."""
    capture = read_capture(packaged()[SAMPLE])
    key = "torch_cpu.random-q2-n17-h2-2-d64-bf16-seed17"
    record = capture.manifest.records[key]
    arrays = capture.arrays(f"records/{key}")
    arrays["output"] = flip(arrays["output"], (1, 0, 33))
    info = capture.manifest.inputs[record.input]
    assert info.recipe is not None
    options: Any = record.options
    write(
        folder,
        "torch_cpu",
        arrays,
        r=info.recipe,
        context=record.context,
        options=options,
        library=("torch", "2.13.0+cpu"),
    )
    return str(folder)


def test_the_place_of_a_difference_and_its_exit_code(here: Path) -> None:
    path = damaged(here / "c")
    stdout, _ = run("compare", path)
    assert stdout.startswith("unexplained from one, site output, row 1, head 0, dim 33: captured ")
    run("compare", path, "--fail-on-divergence", code=1)
    _, error = run("compare", path, "-k", ",", code=2)
    assert "no kernel is named" in error
    data = json.loads(run("compare", path, "--format", "json", "--fail-on-divergence", code=1)[0])
    (record,) = data["kernels"][0]["records"]
    assert record["exact"] is False
    (site,) = [s for s in record["sites"] if s["differing"]]
    assert site["first"]["index"] == {"row": 1, "head": 0, "dim": 33}
    words = [int(site["first"][n], 16) for n in ("captured_bits", "predicted_bits")]
    assert words[0] ^ words[1] == 1


def test_another_version_and_damaged_files(here: Path) -> None:
    write(
        here / "old", "torch_cpu", {"output": np.zeros((1, 4, 64), np.float32)}, library=("torch", "2.14.0")
    )
    _, error = run("compare", "old", code=2)
    assert "captured from torch 2.14.0, but torch_cpu.sdpa_flash describes torch 2.13.0" in error
    (here / "old" / "manifest.json").write_text("{}")
    _, error = run("compare", "old", code=2)
    assert "manifest.json: " in error
    _, error = run("compare", "nowhere", code=2)
    assert "no such capture" in error
    assert "did you mean" not in error
    _, error = run("compare", "torch_cpu_2.13", code=2)
    assert "did you mean 'torch_cpu_2.13.0'" in error


def test_options_of_captures_do_not_go_with_specs() -> None:
    for option in ("--spec", "--platform", "--kernels"):
        _, error = run(
            "compare", "walkthrough.xqa@h200", "walkthrough.triton@h200", "--teaching", option, "h200", code=2
        )
        assert "only goes with a capture" in error


def test_what_can_run_here() -> None:
    """Refused before anything runs: an unknown kernel, and none."""
    stdout, _ = run("capture", "kernels", "--list")
    assert "torch_cpu            PyTorch's flash attention on a CPU" in stdout
    data = json.loads(run("capture", "kernels", "--list", "--format", "json")[0])
    for row in data["kernels"]:
        assert row["available"] == (row["reason"] is None)
    gpu = [row for row in data["kernels"] if row["kernel"] in ("mufu", "mma", "xqa")]
    if not any(row["available"] for row in gpu):
        _, error = run("capture", "kernels", "-k", "mufu,mma,xqa", code=3)
        assert "none of the kernels can run on this machine" in error
    _, error = run("capture", "kernels", "-k", "xqq", code=2)
    assert "xqa" in error


def test_an_input_of_the_users_own(here: Path) -> None:
    if installed("torch") is None:
        pytest.skip("PyTorch is not installed")
    (here / "used").mkdir()
    (here / "used" / "x").touch()
    _, error = run("capture", "kernels", "-k", "torch_cpu", "--quick", "-o", "used", code=2)
    assert "is not an empty folder" in error
    np.savez("mine.npz", scores=np.zeros((1, 4), np.float32), values=np.ones((4, 1), np.float32))
    _, error = run("capture", "kernels", "-k", "torch_cpu", "--quick", "-i", "mine.npz", "-o", "x", code=2)
    assert "kernels take q, k and v" in error
    q, k = np.ones((2, 8), np.float16), np.ones((4, 2, 8), np.float16)
    np.savez("mine.npz", q=q, k=k, v=k)
    run("capture", "kernels", "-k", "torch_cpu", "--quick", "-i", "mine.npz", "-o", "y")
    info = read_capture("y").manifest.inputs["given-mine.npz"]
    assert info.embedded
    assert info.recipe is None
