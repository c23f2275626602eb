"""Prompts with ranges, and the scripts made of them: run with stand-ins for the engines, and with transformers itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports.cli import app
from specs import load_workload
from specs.errors import InputError
from tests.commands import invoke
from verify.runs.folder import read_run
from verify.runs.prompts import read_prompts
from verify.runs.run import Run
from verify.runs.script import ENGINES, capture_script
from verify.runs.validate import validate

VOCAB = 13


def write_prompts(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


def conversations(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCAB, 40).tolist()
    ranges = [
        {"name": "M1", "depth": 5, "tokens": 3, "content": "text"},
        {"name": "M2", "depth": 20, "tokens": 4},
    ]
    return write_prompts(
        folder / "prompts.jsonl",
        [{"id": "a", "token_ids": ids, "ranges": ranges}, {"id": "b", "token_ids": ids[:6]}],
    )


def test_rows_carry_range_depth_and_index(tmp_path: Path) -> None:
    first, second = read_prompts(conversations(tmp_path))
    rows = first.rows()
    assert rows.positions.tolist() == [4, 5, 6, 19, 20, 21, 22]
    assert rows.depths.tolist() == [5, 6, 7, 20, 21, 22, 23]
    assert rows.index.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert rows.ranges == ("M1",) * 3 + ("M2",) * 4
    assert second.rows().positions.tolist() == [0, 1, 2, 3, 4]


def test_the_22_ranges(tmp_path: Path) -> None:
    """Every range of the workload, by conversation; their tokens are those of the workload's file, added up by hand."""
    names = ["SP01", "SP03", "SP04", "SP06"]
    lines = [{"id": n, "text": "...", "workload": "agent_session"} for n in names]
    found = read_prompts(write_prompts(tmp_path / "p.jsonl", lines))
    assert [len(p.spans) for p in found] == [3, 6, 6, 7]
    assert sum(len(p.rows().positions) for p in found) == load_workload("agent_session").tokens == 9060
    assert found[0].spans[0].content == "text + tool calls"
    assert found[0].rows().positions[0] == 6334


BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": "a"}, "give one of the two"),
    ({"id": "a", "token_ids": [1]}, "has 1 tokens"),
    ({"id": "a", "token_ids": [1, -2]}, "no token id"),
    ({"id": "a", "tokens": [1, 2]}, "did you mean 'token_ids'?"),
    ({"id": "a", "text": "x", "workload": "agent"}, "agent_session"),
    ({"id": "SP1", "text": "x", "workload": "agent_session"}, "has no conversation 'SP1'"),
    (
        {"id": "a", "token_ids": [1, 2, 3], "ranges": [{"depth": 2, "tokens": 2}]},
        "ends at token 4, the text has 3",
    ),
    ({"id": "a", "token_ids": [1, 2, 3], "ranges": [{"depth": 0, "tokens": 2}]}, "ranges[0].depth"),
    (
        {"id": "a", "text": "x", "ranges": [{"depth": 2, "tokens": 2}, {"depth": 3, "tokens": 2}]},
        "before the end of 'R000'",
    ),
    ({"id": "a", "text": "x", "ranges": [{"depth": 2, "token": 2}]}, "did you mean 'tokens'?"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_prompts_are_named(tmp_path: Path, case: int) -> None:
    line, message = BAD[case]
    with pytest.raises(InputError) as error:
        read_prompts(write_prompts(tmp_path / "p.jsonl", [line]))
    assert message in str(error.value)
    assert "line 1" in str(error.value)


FAKE_VLLM = '''
import dataclasses, math
__version__ = "0.99"

def row(ids, top, token):
    """Log-probabilities of what follows ids: a function of how many there are, and of the last."""
    n = VOCAB if top < 0 else top
    logits = [math.sin(len(ids) * 7 + t) for t in range(VOCAB)]
    lse = math.log(sum(map(math.exp, logits)))
    best = sorted(range(VOCAB), key=lambda t: -logits[t])[:n]
    return {t: Logprob(logits[t] if top < 0 else logits[t] - lse) for t in {*best, token}}

@dataclasses.dataclass
class Logprob:
    logprob: float

class SamplingParams:
    def __init__(self, **more):
        self.__dict__.update(more)

class Out:
    pass

class LLM:
    def __init__(self, **told):
        print("told", sorted(told.items()))
        assert told["attention_backend"] in ("FLASH_ATTN", "TRITON_ATTN")
        if told["attention_backend"] == "TRITON_ATTN":
            raise RuntimeError("this backend is missing")

    def generate(self, prompts, params, use_tqdm):
        ids = prompts[0]["prompt_token_ids"]
        out, one = Out(), Out()
        if getattr(params, "prompt_logprobs", None) is not None:
            out.prompt_logprobs = [None] + [row(ids[:i], params.prompt_logprobs, ids[i]) for i in range(1, len(ids))]
        trace = getattr(params, "trace_decode_token_ids", None) or []
        one.token_ids = list(trace)
        one.logprobs = [row(ids + trace[:i], params.logprobs, trace[i]) for i in range(len(trace))]
        out.outputs = [one]
        return [out]
'''
FAKE_ARGS = """
import dataclasses
@dataclasses.dataclass
class EngineArgs:
    model: str = ""
    attention_backend: str = ""
    enable_trace_replay: bool = False
"""
FAKE_SGLANG = """
import math
__version__ = "0.99"

class Engine:
    def __init__(self, **told):
        assert told["attention_backend"] in ("fa3", "triton") and told["disable_radix_cache"]
        self.server_args = type("Args", (), {"attention_backend": told["attention_backend"]})

    def generate(self, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num):
        values, tops = [], []
        for i in range(logprob_start_len, len(input_ids)):
            logits = [math.sin(i * 7 + t) for t in range(VOCAB)]
            lse = math.log(sum(map(math.exp, logits)))
            best = sorted(range(VOCAB), key=lambda t: -logits[t])[:top_logprobs_num]
            first = i == logprob_start_len
            values.append([None if first else logits[input_ids[i]] - lse, input_ids[i], None])
            tops.append(None if first else [[logits[t] - lse, t, None] for t in best])
        return {"text": "", "meta_info": {"input_token_logprobs": values, "input_top_logprobs": tops}}

    def shutdown(self):
        pass
"""


def log_probabilities(length: int) -> np.ndarray[Any, Any]:
    """What the stand-ins predict behind ``length`` tokens."""
    logits = np.sin(length * 7 + np.arange(VOCAB, dtype=np.float64))
    return logits - np.log(np.exp(logits).sum())


def run_script(folder: Path, engine: str, backends: str, *more: str, code: int = 0) -> str:
    """Make a script with the command and run it with the stand-ins first on the path, without this project."""
    script = folder / "capture.py"
    command = ["capture", "script", "--engine", engine, "--backends", backends, "--out", str(script)]
    invoke(app, *command, "--prompts", str(conversations(folder)), "--model", "tiny")
    assert "import ulpscope" not in script.read_text()
    for name, text in (
        ("vllm/__init__", FAKE_VLLM),
        ("vllm/engine/arg_utils", FAKE_ARGS),
        ("sglang", FAKE_SGLANG),
    ):
        file = folder / "site" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("VOCAB", str(VOCAB)))
    if engine != "transformers":  # PyTorch is asked for the GPU alone, and takes seconds to come
        (folder / "site" / "torch.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(folder / "out"), *more],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def check(run: Run, top: int) -> None:
    """Chosen values and top entries are those of the stand-in's formula, at the positions of the ranges."""
    first, second = run.sequences
    assert first.positions.tolist() == [4, 5, 6, 19, 20, 21, 22]
    assert first.ranges == ("M1",) * 3 + ("M2",) * 4
    assert second.positions.tolist() == [0, 1, 2, 3, 4]
    for one in (first, second):
        assert one.depths is not None
        assert one.depths.tolist() == (one.positions + 1).tolist()
        for i, position in enumerate(one.positions):
            want = log_probabilities(int(position) + 1)
            if one.full is not None:
                row = one.full.read(i, i + 1)[0].astype(np.float64)
                np.testing.assert_allclose(row - np.log(np.exp(row).sum()), want, atol=1e-6)
                continue
            assert one.chosen is not None
            assert one.top is not None
            assert one.chosen[i] == pytest.approx(want[one.tokens[i]], abs=1e-12)
            assert one.top.ids[i].tolist() == np.argsort(-want)[:top].tolist()
            np.testing.assert_allclose(one.top.values[i], np.sort(want)[::-1][:top], atol=1e-12)


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_vllm(tmp_path: Path, mode: str) -> None:
    said = run_script(tmp_path, "vllm", "FLASH_ATTN", "--mode", mode, "--top", "3", "--gpu", "H200")
    assert ("('enable_trace_replay', True)" in said) is (mode == "decode")
    run = read_run(tmp_path / "out" / "vllm-FLASH_ATTN")
    check(run, 3)
    where = run.manifest.coordinate
    assert (where.gpu, where.engine, where.engine_version, where.requested_backend) == (
        "H200",
        "vllm",
        "0.99",
        "FLASH_ATTN",
    )
    assert where.flags["mode"] == mode
    assert run.manifest.capture.teacher_forced is True
    assert validate(tmp_path / "out" / "vllm-FLASH_ATTN")[0].ok


def test_vllm_whole_vocabulary_and_a_backend_that_fails(tmp_path: Path) -> None:
    """One backend that cannot run does not stop the others, and is named at the end."""
    said = run_script(tmp_path, "vllm", "TRITON_ATTN,FLASH_ATTN", "--top", "-1", code=1)
    assert "failed: TRITON_ATTN" in said
    run = read_run(tmp_path / "out" / "vllm-FLASH_ATTN")
    assert run.manifest.capture.value_kind == "raw_logits"
    assert run.manifest.vocab_size == VOCAB
    check(run, VOCAB)


def test_sglang(tmp_path: Path) -> None:
    run_script(tmp_path, "sglang", "fa3,triton", "--top", "3", "--repeats", "2")
    for name in ("fa3", "triton"):
        run = read_run(tmp_path / "out" / f"sglang-{name}")
        assert [s.repeat for s in run.sequences] == [0, 1, 0, 1]
        assert run.manifest.coordinate.attention_backend == name
        assert len({s.chosen.tobytes() for s in run.sequences[:2] if s.chosen is not None}) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_every_script_is_python_that_needs_no_project(tmp_path: Path, engine: str) -> None:
    prompts = read_prompts(conversations(tmp_path))
    text = capture_script(engine, ["a", "b:c"], prompts, model="it's \"m\"\n'''")
    names: dict[str, Any] = {"__name__": "capture", "__file__": "x", "__doc__": ""}
    exec(compile(text, "x", "exec"), names)
    assert names["MODEL"] == "it's \"m\"\n'''"
    found = names["prompts"](None)
    assert [(name, len(ids)) for name, ids, _ in found] == [("a", 40), ("b", 6)]
    assert found[0][2] == [("M1", 5, 3), ("M2", 20, 4)]
    with pytest.raises(InputError, match="is no name"):
        capture_script(engine, ["a; import os"], prompts)


def test_unknown_words_are_named(tmp_path: Path) -> None:
    prompts = str(conversations(tmp_path))
    out = str(tmp_path / "x.py")
    _, error = invoke(
        app, "capture", "script", "-e", "vlm", "-b", "a", "--prompts", prompts, "-o", out, code=2
    )
    assert "did you mean 'vllm'?" in error
    _, error = invoke(
        app, "capture", "script", "-e", "vllm", "-b", ",", "--prompts", prompts, "-o", out, code=2
    )
    assert "--backends" in error


@pytest.mark.slow
def test_transformers_itself(tmp_path: Path) -> None:
    """A tiny Llama with random weights in the Hugging Face format, through the script's backends and modes on the CPU.

    Four processes that import PyTorch and transformers: about 40 s of CPU. Logits are set against one forward pass of
    the same model.
    """
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        pytest.skip("torch or transformers is not installed")
    make = f"""
import torch, transformers
torch.manual_seed(0)
shape = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
config = transformers.LlamaConfig(vocab_size={VOCAB}, max_position_embeddings=64, **shape)
model = transformers.LlamaForCausalLM(config)
model.save_pretrained("tiny")
import json, numpy
with torch.inference_mode():
    for i, line in enumerate(open("prompts.jsonl")):
        ids = torch.tensor([json.loads(line)["token_ids"]])
        numpy.save(f"want_{{i}}.npy", model.eval()(input_ids=ids).logits[0].numpy())
"""
    conversations(tmp_path)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(
        [sys.executable, "-c", make],
        cwd=tmp_path,
        check=True,
        env=environment,
        timeout=300,
        capture_output=True,
    )
    for mode, backends in (("decode", "sdpa,eager"), ("prefill", "eager")):
        (tmp_path / "capture.py").unlink(missing_ok=True)
        more = ("--dtype", "float32", "--device", "cpu", "--mode", mode, "--out", str(tmp_path / mode))
        run_script(tmp_path, "transformers", backends, *more)
        for found in validate(tmp_path / mode):
            assert found.ok, found.problems.errors
        for name in backends.split(","):
            run = read_run(tmp_path / mode / f"transformers-{name}")
            assert run.manifest.coordinate.attention_backend == name
            assert run.manifest.model_sha256 is not None
            for i, one in enumerate(run.sequences):
                assert one.full is not None
                want = np.load(tmp_path / f"want_{i}.npy")[one.positions]
                np.testing.assert_allclose(one.full.read(0, one.rows), want, atol=2e-6)
                assert np.abs(want).max() > 0.05
