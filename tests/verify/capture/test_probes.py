"""Probes without a GPU: the model in C, operands, and how captured sweeps are judged."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specs import load_platform
from specs.errors import InputError
from specs.formats import BASES
from tests.verify.capture.making import flip, write
from verify.capture import probing
from verify.capture.format import array_infos, read_capture
from verify.capture.judge import probes_of
from verify.capture.probing import checksum
from verify.capture.producers.probe_sources import (
    BLOCKS,
    INSTRUCTIONS,
    MMA,
    SPAN,
    WGMMA,
    matrix_source,
    model_source,
    sweep_source,
)
from verify.capture.producers.probes import CLASSES, operands
from verify.numerics import mufu
from verify.numerics.rounding import decode
from verify.numerics.special import SPECIAL
from verify.numerics.tensor_core import chained

Array = np.ndarray[Any, Any]
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
MAIN = """
#include <cstdio>
int main() {
  word x;
  while (fread(&x, 4, 1, stdin) == 1) {
    word y[8] = {model_ex2(x), model_rcp(x), model_rsq(x), model_lg2(x), model_ex2_full(x), model_rcp_full(x),
                 model_rsq_full(x), model_lg2_full(x)};
    fwrite(y, 4, 8, stdout);
  }
}
"""


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_model_in_c_is_the_model(tmp_path: Path) -> None:
    """Random words of every exponent, and the edges; what is not known is marked as such."""
    source, program = tmp_path / "model.cpp", tmp_path / "model"
    source.write_text(model_source() + MAIN)
    assert COMPILER is not None
    subprocess.run([COMPILER, "-O1", "-w", "-o", program, source], check=True, timeout=120)
    rng = np.random.default_rng(0)
    edges = [0, 1, 0x3FFFFF, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001]
    edges += [0x42FC0000, 0x42FC0001, 0x43160000, 0x7E800000, 0x7E800001]
    low = rng.integers(0, 1 << 23, 300)
    words = np.array(
        [*edges, *(e | 0x80000000 for e in edges), *low, *rng.integers(0, 1 << 32, 5000)], np.uint32
    )
    words = np.append(words, rng.integers(0xC2FC0000, 0xC3160000, 300).astype(np.uint32))  # -126 to -150
    done = subprocess.run([program], input=words.tobytes(), capture_output=True, check=True, timeout=60)
    found = np.frombuffer(done.stdout, np.uint32).reshape(-1, 8)
    for word, row in zip(words.tolist(), found.tolist(), strict=True):
        want = [mufu.ex2(word), mufu.rcp(word)]
        known = not word & 0x80000000 or word & 0x7FFFFFFF > 0x7F800000
        want += [mufu.rsq(word), mufu.lg2(word)] if known else [0x7FC0DEAD] * 2
        assert row[:4] == want, hex(word)
        names = ("mufu.ex2", "mufu.rcp", "mufu.rsq", "mufu.lg2")
        for name, got in zip(names[: 4 if known else 2], row[4:], strict=False):
            assert got == mufu.to_word(SPECIAL[name](mufu.from_word(word), BASES["f32"])), (name, hex(word))
        assert known or row[6:] == [0x7FC0DEAD] * 2


def test_sources_have_no_holes() -> None:
    assert INSTRUCTIONS["rsq"] == "rsqrt.approx.ftz.f32"
    assert INSTRUCTIONS["ex2_full"] == "ex2.approx.f32"
    for name in INSTRUCTIONS:
        text = sweep_source(name)
        assert f"word model_{name}(word x)" in text
        assert f'"{INSTRUCTIONS[name]} %0, %1;"' in text
        assert f"sweep_{name}(" in text
    for instruction, table in (("mma", MMA), ("wgmma", WGMMA)):
        for name in table:
            text = matrix_source(instruction, name)
            assert table[name][0] in text
            assert "INSTRUCTION" not in text
            assert "LAST" not in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("instruction", ["mufu", "mma", "wgmma"])
def test_sources_compile(instruction: str, tmp_path: Path) -> None:
    table: dict[str, Any] = {"mufu": INSTRUCTIONS, "mma": MMA, "wgmma": WGMMA}[instruction]
    for name in table:
        file = tmp_path / f"{name}.cu"
        file.write_text(sweep_source(name) if instruction == "mufu" else matrix_source(instruction, name))
        command = ["nvcc", "-arch", "sm_90a", "-cubin", "-o", str(tmp_path / "out"), str(file)]
        subprocess.run(command, check=True, timeout=300, capture_output=True)


@pytest.mark.parametrize("name", MMA)
def test_operands_hold_every_class(name: str) -> None:
    a, b, c = operands(name, 10)
    again = operands(name, 10)
    assert all(x.tobytes() == y.tobytes() for x, y in zip((a, b, c), again, strict=True))
    assert a.shape == (10, 16, 32 // a.dtype.itemsize)
    assert b.shape == (10, 8, 32 // a.dtype.itemsize)
    assert c.shape == (10, 16, 8)
    assert len(CLASSES) == 5
    fmt = BASES[name.partition("_")[0]]
    values = decode(a, fmt)
    assert np.isfinite(values[:4]).all()
    assert ((np.abs(values[2]) < 2.0**fmt.emin) & (values[2] != 0)).any() == (name not in ("bf16", "tf32"))


# -- captured sweeps ----------------------------------------------------------------------------------------


def _probe(folder: Path, kernel: str, what: str, arrays: dict[str, Array]) -> Any:
    key = f"{kernel}.{what}"
    write(
        folder,
        "",
        {},
        probes={key: {"kernel": kernel, "what": what, "arrays": array_infos(arrays)}},
        more={f"probes/{key}/{n}": x for n, x in arrays.items()},
    )
    (result,) = probes_of(read_capture(folder), None, None)
    return result


def _hardware(name: str, instruction: str = "mma", problems: int = 5) -> dict[str, Array]:
    """What an H200 would give if the scalar model is right: a row and a column of each problem, the rest by it, too."""
    from specs.dot_products import find

    a, b, c = operands(name, problems)
    fmt, out = BASES[name.partition("_")[0]], BASES["f16" if name.endswith("_f16") else "f32"]
    k = a.shape[2]
    dot = find(load_platform("h200").dot_products, instruction, fmt, fmt, out, k)
    x, y, z = decode(a, fmt), decode(b, fmt), decode(c, out)
    d = np.zeros_like(c)
    for p, row, column in np.ndindex(c.shape):
        value = chained(dot, k, x[p, row].tolist(), y[p, column].tolist(), float(z[p, row, column]), fmt, fmt)
        word = np.array(value, np.float16 if out.base == "f16" else np.float32)
        d[p, row, column] = word.view(c.dtype)[()]
    return {"a": a, "b": b, "c": c, "d": d}


@pytest.mark.parametrize(
    ("instruction", "name"),
    [
        ("mma", "bf16"),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("mma", "f16_f16"), ("wgmma", "e4m3fn"))),
    ],
)
def test_matrix_instructions(tmp_path: Path, instruction: str, name: str) -> None:
    arrays = _hardware(name, instruction)
    result = _probe(tmp_path / "a", instruction, name, arrays)
    assert result.exact
    assert result.compared == 5 * 16 * 8
    wrong = _probe(tmp_path / "b", instruction, name, {**arrays, "d": flip(arrays["d"], (3, 15, 7))})
    assert wrong.differing == 1
    assert "problem 3, row 15, column 7" in wrong.first
    assert f"{instruction}.{name} unexplained: 1 of 640" in wrong.verdict()


def test_an_instruction_that_the_platform_lacks(tmp_path: Path) -> None:
    a, b, c = operands("e4m3fn", 2)
    folder = tmp_path / "c"
    key, arrays = "wgmma.e4m3fn", {"a": a, "b": b, "c": c, "d": c}
    write(
        folder,
        "",
        {},
        machine={"gpu": "NVIDIA A100", "sm_count": 108, "compute_capability": 80},
        probes={key: {"kernel": "wgmma", "what": "e4m3fn", "arrays": array_infos(arrays)}},
        more={f"probes/{key}/{n}": x for n, x in arrays.items()},
    )
    (result,) = probes_of(read_capture(folder), None, None)
    assert not result.exact
    assert "no dot product wgmma" in result.refused


def _sweep(what: str) -> dict[str, Array]:
    """A sweep without a difference; the ranges that are checked have the checksums that are computed for them."""
    counts = np.zeros(BLOCKS, np.uint32)
    sums = np.zeros(BLOCKS, np.uint64)
    for block in probing.CHECKED:
        sums[block] = checksum(probing.predicted(what, block))
    return {
        "checksum": sums,
        "mismatches": counts,
        "unknown": counts.copy(),
        "kept": np.zeros((0, 3), np.uint32),
    }


def test_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "CHECKED", (127,))
    arrays = _sweep("ex2")
    result = _probe(tmp_path / "a", "mufu", "ex2", arrays)
    assert result.exact
    assert result.compared == 1 << 32
    assert "1 of 512 checksums computed again" in result.verdict()
    wrong = _probe(tmp_path / "b", "mufu", "ex2", {**arrays, "checksum": flip(arrays["checksum"], (127,))})
    assert "in operands 0x3f800000 to 0x3fffffff: another checksum" in wrong.verdict()
    counts = arrays["mismatches"].copy()
    counts[127] = 2
    kept = np.array([[0x3F800001, 5, 6], [0x3F800000, 7, 8]], np.uint32)
    wrong = _probe(tmp_path / "c", "mufu", "ex2", {**arrays, "mismatches": counts, "kept": kept})
    assert wrong.differing == 2
    assert wrong.first == "ex2(0x3f800000): hardware 0x00000007, model 0x00000008"


def test_checksums_are_of_the_published_words() -> None:
    """Words of [1, 2): 2**1, 2**(1 + 2**-23), ... by the scalar model, as in the range that is computed; order counts."""
    words = np.array([mufu.ex2(127 * SPAN + i) for i in range(100)], np.uint32)
    found = probing.predicted("ex2_full", 127)
    assert (found[:100] == words).all()
    assert found[-1] == mufu.ex2(128 * SPAN - 1)
    assert checksum(words) == sum(int(w) * (2 * i + 1) for i, w in enumerate(words)) % (1 << 64)
    assert checksum(words) != checksum(words[::-1])


def test_probes_with_wrong_arrays(tmp_path: Path) -> None:
    arrays = _hardware("bf16", problems=1)
    for change, said in (
        ({"d": arrays["d"][:, :8]}, r"array 'd': is uint32 \[1, 8, 8\]"),
        ({"a": arrays["a"].view(np.int16).view(np.float16)}, "is float16"),
    ):
        with pytest.raises(InputError, match=said):
            _probe(tmp_path / said[:8].strip(), "mma", "bf16", {**arrays, **change})
    with pytest.raises(InputError, match="lacks array 'd'"):
        _probe(tmp_path / "d", "mma", "bf16", {n: arrays[n] for n in "abc"})
    with pytest.raises(InputError, match="'mma' of 'int8' is not known"):
        _probe(tmp_path / "e", "mma", "int8", arrays)
