"""docs/smollm2-report.md and the figures of docs/predict.md, made again. Minutes on two cores."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.runs.contract import from_text
from verify.forward import smollm2
from verify.forward.export import write_folder

DOCS = Path(__file__).parents[3] / "docs"
PROMPTS = DOCS / "smollm2-prompts.jsonl"
PREDICTED = {
    "fa2": ["-c", "vllm_bf16"],
    "triton": ["-c", "vllm_bf16", "--attention", "vllm_triton.decode_3d@h200"],
    "xqa": ["-c", "vllm_bf16", "--attention", "xqa.decode@h200"],
    "f32": ["-c", "f32"],
    "torch_bf16": ["-c", "torch_cpu_bf16"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="the package gguf is an extra")
    if smollm2.cached() is None:
        pytest.skip("SmolLM2 is not in the cache: `ulpscope predict smollm2 --text a` fetches it")
    return tmp_path_factory.mktemp("smollm2")


@cache
def predicted(folder: Path, name: str) -> str:
    out = folder / "predicted" / name
    words = ["predict", "smollm2", "--tokens", str(PROMPTS), *PREDICTED[name], "-o", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return str(out)


def plain(text: str) -> list[str]:
    """The lines of a report without date, command and provenance; empty ones left out."""
    text = re.sub(r"\n## Provenance\n.*", "\n", text, flags=re.S)
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("# ") and " Replay: " not in line]


@pytest.mark.slow
def test_the_report_of_three_backends(folder: Path) -> None:
    """Word for word, every figure in it."""
    names = [predicted(folder, name) for name in ("fa2", "triton", "xqa")]
    done = CliRunner().invoke(app, ["compare", *names, "--out", str(folder / "report")])
    assert done.exit_code == 0, done.output
    found = plain((folder / "report" / "report.md").read_text(encoding="utf-8"))
    want = plain((DOCS / "smollm2-report.md").read_text(encoding="utf-8"))
    assert found == want[-len(found) :]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="needs torch and transformers",
)
def test_what_bf16_does_to_f32_on_this_cpu(folder: Path) -> None:
    """On another CPU the bits are others; direction and size are predicted there, too, and f32 to 1e-4."""
    weights = write_folder(smollm2.load(), folder / "hf", "float32")
    words = ["capture", "script", "--engine", "transformers", "--backends", "sdpa", "--prompts", str(PROMPTS)]
    assert CliRunner().invoke(app, [*words, "--out", str(folder / "capture.py")]).exit_code == 0
    for name, dtype in (("torch_f32", "float32"), ("torch_bf16", "bfloat16")):
        options = [
            "--model",
            str(weights),
            "--mode",
            "prefill",
            "--dtype",
            dtype,
            "--out",
            str(folder / name),
        ]
        subprocess.run([sys.executable, str(folder / "capture.py"), *options], check=True)
        (folder / name / "transformers-sdpa").rename(folder / f"real_{name}")
    reals = [str(folder / f"real_{name}") for name in ("torch_f32", "torch_bf16")]
    pairs = [
        f"{predicted(folder, 'f32')}=real_torch_f32",
        f"{predicted(folder, 'torch_bf16')}=real_torch_bf16",
    ]
    words = ["compare", *reals, "--format", "json", *(w for p in pairs for w in ("--predicted", p))]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    section = from_text(done.stdout).prediction
    assert section is not None
    f32, bf16 = (x.fits[0] for x in section.coordinates)
    assert (f32.rows, f32.elements, f32.flips) == (598, 598 * 49_152, 0)
    assert float(f32.rms or 1) < 1e-4
    assert 0.1 < float(bf16.rms or 0) < 0.25
    (found,) = section.differences
    assert found.outcome == "direction and size"
    assert 0.4 < float(found.correlation.value or 0) < 0.9
    assert found.flips.both >= 5


@pytest.mark.slow
def test_the_text_is_real() -> None:
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12
    assert all(len(row["text"].split()) > 35 for row in rows)
