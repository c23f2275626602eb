"""``ulpscope lower``: what it prints, what it writes, how it refuses."""

from __future__ import annotations

import gzip
import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from reports.cli import app
from specs.errors import InputError
from tests.commands import invoke
from tests.verify.lower.test_trees import kept
from verify.lower import compile as compiling
from verify.lower import stages
from verify.lower.behind import behind

run = partial(invoke, app)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        return None if name == "triton" else find_spec(name)

    monkeypatch.setattr(compiling, "find_spec", missing)


def test_a_kept_lowering(here: Path) -> None:
    out, err = run("lower", "attention@3.8.0", "--fragments", "specs.d", "--keep", "mine.lower.gz")
    first, *rest = out.splitlines()
    assert first == "sums are bracketed differently: merge: numerator over splits (sm_90 = sm_120 | sm_100)"
    assert any(line.endswith("does not hold: LLVM IR already differs, layouts are the same") for line in rest)
    assert "Triton 3.8.0, fp fusion on, ptxas 12.9.86 and 13.3.33" in err
    assert (here / "mine.lower.gz").read_bytes() == (
        Path(stages.__file__).parent / "data" / "attention_3.8.0.lower.gz"
    ).read_bytes()
    again, _ = run("lower", "mine.lower.gz", "--kernel", "merge", "--arch", "sm_90")
    assert again.startswith("lowered for sm_90\n")
    assert "attend" not in again
    assert "equal" not in again  # one architecture has nothing to be equal to
    for arch in ("sm_90", "sm_100", "sm_120"):
        checked, _ = run("spec", "check", f"specs.d/attention.{arch}.toml")
        assert checked.startswith(f"ok: lowered.attention.{arch}")


def test_json() -> None:
    out, _ = run("lower", "attention@3.7.1", "--format", "json")
    found = json.loads(out)
    assert (found["schema"], found["triton"], found["fp_fusion"]) == (1, "3.7.1", True)
    (attend, merge) = found["kernels"]
    assert (attend["last_common"], attend["parted"]) == ("ptx", "sass")
    assert {r["arch"] for r in merge["readings"]} == {"sm_90", "sm_100", "sm_120"}
    assert merge["readings"][0]["reductions"][2]["tree"] == "lanes(4, seq(fma, swap), butterfly())"


@pytest.mark.usefixtures("no_triton")
def test_without_triton_it_says_so() -> None:
    _, err = run("lower", "attention", code=3)
    assert "Triton is not installed" in err
    assert "pip install 'ulpscope[triton]'" in err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["missing.py"], "No such file"),
        (["attention", "--arch", "sm_91"], "'sm_91' is no architecture"),
        (["attention", "--kernel", "merg"], "did you mean 'merge'?"),
        (["attention@3.7.2"], "did you mean 'attention@3.7.1'?"),
        (["attention@3.7.1", "--arch", "sm_80"], "it has sm_90, sm_100, sm_120"),
        (["attention@3.7.1", "--kernel", "none"], "has no kernel 'none'"),
        (["attention@3.7.1", "--no-fp-fusion"], "a kept lowering is compiled already"),
        (["missing.lower.gz"], "No such file"),
        (["attention@3.7.1", "--keep", "no/such/folder.lower.gz"], "cannot be written: No such file"),
        (["attention@3.7.1", "--fragments", "bad.lower.gz"], "cannot be written: File exists"),
        (["."], "Is a directory"),
        (["elsewhere.lower.gz"], "String should match pattern"),
        (["bad.lower.gz"], "is no kept lowering"),
        (["cut.lower.gz"], "is no kept lowering"),
        (["other.lower.gz"], "Field required"),
        (["uneven.lower.gz"], "its kernels have no stages, or different ones"),
    ],
)
def test_refusals(here: Path, args: list[str], part: str) -> None:
    (here / "bad.lower.gz").write_bytes(b"no gzip")
    whole = gzip.compress(b'{"schema": 1}')
    (here / "other.lower.gz").write_bytes(whole)
    (here / "cut.lower.gz").write_bytes(whole[:-9])
    elsewhere = kept("3.7.1").model_dump(mode="json", by_alias=True)
    elsewhere["kernels"][0]["stages"]["sm_90/../../x"] = elsewhere["kernels"][0]["stages"]["sm_90"]
    (here / "elsewhere.lower.gz").write_bytes(gzip.compress(json.dumps(elsewhere).encode()))
    uneven = kept("3.7.1").model_dump(mode="json", by_alias=True)
    del uneven["kernels"][0]["stages"]["sm_90"]
    (here / "uneven.lower.gz").write_bytes(gzip.compress(json.dumps(uneven).encode()))
    _, err = run("lower", *args, code=2)
    assert part in err


def test_a_file_that_unpacks_to_too_much_is_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "LARGEST", 1 << 20)
    (here / "bomb.lower.gz").write_bytes(gzip.compress(b" " * (2 << 20)))
    _, err = run("lower", "bomb.lower.gz", code=2)
    assert "is larger than 1 MiB" in err


def test_no_path_of_a_machine_is_kept() -> None:
    for version in ("3.7.1", "3.8.0"):
        for kernel in kept(version).kernels:
            for texts in kernel.stages.values():
                for text in (texts.ttir, texts.ttgir, texts.llir, texts.ptx, texts.sass):
                    assert '"/' not in text


@pytest.mark.parametrize("args", [("pipe.py",), ("zeros.py",), ("k.py", "--how", "pipe.py")])
def test_what_is_no_regular_file_is_not_read(here: Path, args: tuple[str, ...]) -> None:
    """A pipe waits for ever, and a device has no end."""
    os.mkfifo(here / "pipe.py")
    (here / "zeros.py").symlink_to("/dev/zero")
    (here / "k.py").write_text("import triton\n\n@triton.jit\ndef k(x):\n    pass\n")
    _, err = run("lower", *args, code=2)
    assert "not a regular file" in err
    with pytest.raises(InputError, match="not a regular file"):
        behind(str(here / "pipe.py"), "sm_90")
