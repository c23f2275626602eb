"""``ulpscope predict``: a run folder comes out, and mistakes are told."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from tests.verify.forward.making import TINY, forward64, tensors_of, write_model
from verify.forward.cli import arithmetic_of
from verify.runs.folder import read_run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny", TINY, tensors_of(TINY))


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_a_run_folder(model, tmp_path):
    ids = [[3, 17, 79, 0, 41], [8, 8]]
    (tmp_path / "t.json").write_text(json.dumps(ids))
    out = tmp_path / "run"
    code, text, _ = run(model, "--tokens", tmp_path / "t.json", "-o", out, "--layer", 1, "--format", "json")
    assert code == 0
    assert json.loads(text)["rows"] == 7
    found = read_run(out)
    assert (found.manifest.model, found.manifest.vocab_size) == ("tiny", 80)
    assert found.manifest.coordinate.flags["arithmetic"] == "f32"
    assert found.manifest.capture.value_kind == "raw_logits"
    first, second = found.sequences
    assert (first.conversation, second.conversation) == ("t-0", "t-1")
    assert (first.positions.tolist(), first.tokens.tolist()) == ([0, 1, 2, 3, 4], [17, 79, 0, 41, -1])
    assert first.full is not None
    np.testing.assert_allclose(first.full.read(0, 5), forward64(TINY, tensors_of(TINY), ids[0]), atol=2e-5)
    (layer,) = first.attention
    assert layer.layer == 1
    assert layer.q is not None
    assert layer.q.shape == (5, 4, 16)
    assert layer.lse is not None
    assert layer.lse.shape == (5, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", "t.json", "--text", "a"], "give either --tokens or --text"),
        ([], "give either --tokens or --text"),
        (["--tokens", "no.json"], "no such file"),
        (["--tokens", "t.json", "--config", "vlm_bf16"], "did you mean 'vllm_bf16'"),
        (["--tokens", "t.json", "--attention", "xqa"], "not SPEC@PLATFORM"),
        (["--tokens", "t.json", "--layer", "2"], "no layer 2"),
        (["--tokens", "big.json"], "token 80 at position 1"),
        (["--tokens", "long.json"], "600 tokens"),
        (["--text", "a"], "without a tokenizer"),
        (["--tokens", "t.json", "-o", "full"], "full"),
    ],
)
def test_mistakes(options, words, model, here):
    for name, ids in (("t", [1, 2]), ("big", [1, 80]), ("long", [1] * 600)):
        (here / f"{name}.json").write_text(json.dumps(ids))
    (here / "full").mkdir()
    (here / "full" / "x").write_text("")
    code, text, errors = run(model, *options)
    assert code == 2
    assert words in errors
    assert "Traceback" not in errors
    assert text == ""


def test_another_kernel_takes_its_platform_along():
    made = arithmetic_of("vllm_bf16", "xqa.decode@sm120")
    assert (made.attention.kernel, made.gemm.platform) == ("xqa.decode@sm120", "sm120")
    assert made.norm == arithmetic_of("vllm_bf16", None).norm
    assert arithmetic_of("f32", "xqa.decode@sm120").gemm.platform is None


def test_an_unknown_model(here):
    code, _, errors = run("nothing", "--text", "a")
    assert code == 2
    assert "give a folder, a .gguf file, or: smollm2" in errors
