"""What is to be compiled, read from text: no file is executed, and each mistake is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.errors import InputError
from verify.lower.request import Wanted, architectures, wanted

KERNEL = """import triton
import triton.language as tl
from pathlib import Path
Path("executed").touch()

@triton.jit
def double(X, Y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(Y + at, 2 * tl.load(X + at, mask=at < n))
"""
TWO = KERNEL + "\n@triton.jit\ndef other(X):\n    pass\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "kernel.py"


def refused(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as found:
        wanted(path, **options)  # pyright: ignore[reportArgumentType]
    assert not Path("executed").exists()
    assert found.value.remedy
    return str(found.value)


def test_by_options(file: Path) -> None:
    file.write_text(KERNEL)
    (found,) = wanted(file, signature="*fp32:16, *bf16, i32", constexprs=["BLOCK=64"], num_warps=8)
    assert found == Wanted("double", {"X": "*fp32:16", "Y": "*bf16", "n": "i32"}, {"BLOCK": 64}, 8, 3)
    assert not Path("executed").exists()


def test_by_the_file_itself_and_by_a_table(file: Path) -> None:
    lower = '\nLOWER = {"double": {"signature": {"X": "*fp32", "Y": "*fp32", "n": "i32"}, "constexprs": {"BLOCK": 32}}}'
    file.write_text(TWO + lower)
    (found,) = wanted(file)
    assert (found.name, found.constexprs) == ("double", {"BLOCK": 32})
    table = file.with_name("how.toml")
    table.write_text('[other]\nnum_warps = 2\nnum_stages = 1\n[other.signature]\nX = "*i8"\n')
    assert wanted(file, how=table) == [Wanted("other", {"X": "*i8"}, {}, 2, 1)]
    assert "double" in refused(file, kernel="doubel")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1\n", "has no kernel"),
        ("def f(:\n", "kernel.py:1:7: is not valid Python"),
        ("x = '\0'\n", "is not valid Python"),
        (TWO, "has 2 kernels: double, other"),
        (KERNEL, "the types of its arguments are not given"),
        (KERNEL + "LOWER = dict(double=1)\n", "kernel.py:10:1: LOWER is no dictionary of plain values"),
        (
            KERNEL + "LOWER = {'double': {'signature': {'X': '*fp32'}}}\n",
            "no type or constant for Y, n, BLOCK",
        ),
        (KERNEL + "LOWER = {'nobody': {}}\n", "there is no such kernel"),
        (KERNEL + "LOWER = {'double': {'signature': 3}}\n", "signature is no table"),
        (
            KERNEL
            + "LOWER = {'double': {'signature': {'X': 'float', 'Y': '*fp32', 'n': 'i32'}, 'constexprs': {'BLOCK': 1}}}\n",
            "'float' is no type for X",
        ),
        (
            KERNEL
            + "LOWER = {'double': {'signature': {'X': '*i8', 'Y': '*i8', 'n': 'i32'}, 'constexprs': {'BLOCK': [1]}}}\n",
            "LOWER is no dictionary of plain values",
        ),
    ],
)
def test_files_that_cannot_be_lowered(file: Path, text: str, part: str) -> None:
    file.write_text(text)
    assert part in refused(file)


def test_missing_files_and_wrong_options(file: Path) -> None:
    assert "No such file" in refused(file)
    file.write_bytes(b"\xff\xfe")
    assert "it is not UTF-8 text" in refused(file)
    file.write_text(KERNEL)
    assert "1 types for the 3 arguments" in refused(file, signature="*fp32", constexprs=["BLOCK=1"])
    assert "'BLOCK' is not NAME=VALUE" in refused(file, signature="*fp32", constexprs=["BLOCK"])
    assert "cannot be read as TOML" in refused(file, how=file)
    good = {"signature": "*fp32,*fp32,i32", "constexprs": ["BLOCK=1"]}
    assert "3 warps" in refused(file, **good, num_warps=3)
    assert "99 stages" in refused(file, **good, num_stages=99)


def test_architectures() -> None:
    assert architectures("sm_90, sm_120,sm_90") == ["sm_90", "sm_120"]
    for text, part in (("sm_9", "'sm_9' is no architecture"), ("gfx942", "known:"), (",", "no architecture")):
        with pytest.raises(InputError, match=part):
            architectures(text)
