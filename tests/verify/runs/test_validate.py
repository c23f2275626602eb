"""`ulpscope capture validate` and `capture import`: every problem named in one go, values looked at, folders written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy.special import logsumexp

from reports.cli import app
from tests.commands import invoke
from tests.verify.runs.making import arrays, lines, manifest, tensors
from tests.verify.runs.test_adapters import OFFLINE, completion, written
from verify.runs.folder import read_run
from verify.runs.validate import special, validate, value_problems

run = partial(invoke, app)


def test_a_good_folder(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays(), vocab_size=7)
    stdout, stderr = run("capture", "validate", str(folder))
    assert "H200, 1 sequence, 5 rows" in stdout
    assert stderr.startswith("valid: 1 run, 5 rows, 0 warnings")
    data = json.loads(run("capture", "validate", str(folder), "--format", "json")[0])
    assert data["ok"] is True
    assert data["runs"][0]["sha256"] == read_run(folder).sha256


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", {**arrays(), "positions": np.array([0, 1, 1, 3, 9])}, vocab_size=9)
    (folder / "b.npz").write_bytes(b"no")
    manifest(folder, ["a.safetensors", "b.npz"], vocab_size=9)
    stdout, stderr = run("capture", "validate", str(folder), code=2)
    for message in (
        "a.safetensors: field 'positions', row 2: position 1 again",
        "a.safetensors: field 'positions', row 4: position 9 in a text of 5 tokens",
        "a.safetensors: field 'logits': has 7 columns, the manifest says vocab_size 9",
        "b.npz: truncated or damaged",
    ):
        assert message in stdout, message
    assert "4 problems in 1 of 1 runs" in stderr
    data = json.loads(run("capture", "validate", str(folder), "--format", "json", code=2)[0])
    assert data["ok"] is False
    assert {(e["file"], e["field"], e["row"]) for e in data["runs"][0]["errors"]} == {
        ("a.safetensors", "positions", 2),
        ("a.safetensors", "positions", 4),
        ("a.safetensors", "logits", None),
        ("b.npz", None, None),
    }


def test_every_field_of_a_wrong_manifest(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays(), vocab_size=0, capture={"value_kind": "x", "temperature": -1})
    (one,) = validate(folder)
    assert {p.field for p in one.problems} == {"capture.value_kind", "capture.temperature", "vocab_size"}


def test_several_runs_in_a_folder(tmp_path: Path) -> None:
    tensors(tmp_path / "a", arrays())
    tensors(tmp_path / "b", {**arrays(), "positions": np.array([0, 1, 1, 3, 4])})
    stdout, stderr = run("capture", "validate", str(tmp_path), code=2)
    assert "1 problem in 1 of 2 runs" in stderr
    assert f"{tmp_path / 'b'}: wrong" in stdout


def test_several_folders_at_once(tmp_path: Path) -> None:
    tensors(tmp_path / "a", arrays())
    tensors(tmp_path / "in" / "b", arrays())
    stdout, told = run("capture", "validate", str(tmp_path / "a"), str(tmp_path / "in"))
    assert [line.split(":")[0] for line in stdout.splitlines()[:2]] == [
        str(tmp_path / "a"),
        str(tmp_path / "in" / "b"),
    ]
    assert "valid: 2 runs, 10 rows, 0 warnings" in told
    tensors(tmp_path / "c", {**arrays(), "positions": np.array([0, 1, 1, 3, 4])})
    data = json.loads(
        run("capture", "validate", str(tmp_path / "a"), str(tmp_path / "c"), "--format", "json", code=2)[0]
    )
    assert [r["ok"] for r in data["runs"]] == [True, False]


@pytest.mark.parametrize("command", [["compare"], ["capture", "import", "--out", "x"]])
def test_a_file_of_a_run_folder_alone(tmp_path: Path, command: list[str]) -> None:
    """The remedy is its folder, where there is a manifest, or a manifest."""
    folder = lines(tmp_path / "r", [{"id": "a", "token_ids": [1, 2], "logprobs": [-0.5, -1.0]}])
    (file,) = folder.glob("*.jsonl")
    assert f"give the folder: {folder}" in run(*command, str(file), code=2)[1]
    (folder / "manifest.json").unlink()
    assert "put a manifest.json beside it" in run(*command, str(file), code=2)[1]
    tensors(tmp_path / "s", arrays())
    assert (
        f"give the folder: {tmp_path / 's'}"
        in run(*command, str(tmp_path / "s" / "a.safetensors"), code=2)[1]
    )


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is no folder" in run("capture", "validate", str(tmp_path / "file"), code=2)[1]
    (tmp_path / "file").unlink()
    assert "no such folder" in run("capture", "validate", str(tmp_path / "x"), code=2)[1]
    assert "holds no manifest.json" in run("capture", "validate", str(tmp_path), code=2)[1]


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_special_values_are_counted(kind: Any) -> None:
    values = [np.nan, -np.inf, np.inf, -9999.0, -10000.0, 0.0, -0.0, 1.5, -2.0, 2.0**-14]
    block = np.array(values, np.float32).astype(kind).reshape(2, 5)
    # -9999 and -10000 round to one number in bfloat16, and to -10000 both in float16
    assert special(block, True, float(np.float32(kind(-9999.0)))) == {
        "nan_values": 1,
        "neg_inf_values": 1,
        "pos_inf_values": 1,
        "clamped_values": 2,
        "positive_logprobs": 3,
    }


def test_nan_and_infinities_of_full_logits(tmp_path: Path) -> None:
    found = arrays()
    found["logits"][1, 2], found["logits"][3, :2] = np.nan, -np.inf
    (one,) = validate(tensors(tmp_path / "r", found))
    assert one.ok
    assert one.counts == {"nan_values": 1, "neg_inf_values": 2}


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = logits.astype(np.float64)
    return (wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))).astype(np.float32)


def test_logits_that_are_said_to_be_log_probabilities(tmp_path: Path) -> None:
    found = arrays()
    kind = {"value_kind": "raw_logprobs"}
    (one,) = validate(tensors(tmp_path / "r", found, capture=kind))
    (problem,) = one.problems
    assert (problem.field, problem.row) == ("capture.value_kind", 0)
    assert one.run is not None
    assert value_problems(one.run).errors == [problem]
    found["logits"] = log_softmax(found["logits"])
    assert validate(tensors(tmp_path / "s", found, capture=kind))[0].ok
    (one,) = validate(tensors(tmp_path / "t", found))
    assert one.ok
    assert "log-probabilities?" in str(one.problems.warnings[0])


def test_an_lse_to_the_wrong_base_or_of_other_rows(tmp_path: Path) -> None:
    """ln 2 is less than 1: an lse to base e that is taken for one to base 2 is below the largest logit."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((6, 50)) * 5 + 20
    ids = np.argsort(-logits, axis=1)[:, :4]
    found = {
        "input_ids": np.zeros(6, np.int32),
        "topk_ids": ids.astype(np.int32),
        "topk_values": np.take_along_axis(logits, ids, axis=1).astype(np.float32),
        "lse": np.log(np.exp(logits).sum(axis=1)).astype(np.float32),
    }
    assert validate(tensors(tmp_path / "r", found, capture={"lse_base": "e"}))[0].ok
    (one,) = validate(tensors(tmp_path / "s", found, capture={"lse_base": "2"}))
    assert {(p.field, p.row) for p in one.problems} == {("lse", i) for i in range(6)}


def layer(rows: int = 12, heads: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    """Attention tensors of a causal layer with grouped queries, computed with scipy's log-sum-exp."""
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((heads, rows, 16)) * 2, rng.standard_normal((2, rows, 16))
    lse = np.empty((heads, rows), np.float32)
    for h in range(heads):
        for n in range(rows):
            lse[h, n] = logsumexp(k[h // (heads // 2), : n + 1] @ q[h, n] / 4.0)
    names = {"q": q.astype(np.float32), "k": k.astype(np.float32), "lse": lse}
    return {"input_ids": np.zeros(rows, np.int32), **{f"attn.L0.{n}": a for n, a in names.items()}}


def test_an_lse_in_another_order(tmp_path: Path) -> None:
    """Rows or heads of lse that are those of others are called permuted, not far off."""
    found, kind = layer(), {"lse_base": "e"}
    assert validate(tensors(tmp_path / "good", found, capture=kind))[0].ok
    cases = {
        "rows": (
            np.roll(found["attn.L0.lse"], 1, axis=1),
            "12 rows are those of others, the first 0, which is that of 11",
        ),
        "heads": (
            found["attn.L0.lse"][[0, 2, 1, 3]],
            "2 heads are those of others, the first 1, which is that of 2",
        ),
        "layout": (
            found["attn.L0.lse"].T.reshape(found["attn.L0.lse"].shape),
            "at other places: another layout?",
        ),
        "base": (found["attn.L0.lse"] / np.float32(np.log(2)), "is to base 2, the manifest says e"),
    }
    for name, (lse, message) in cases.items():
        (one,) = validate(tensors(tmp_path / name, {**found, "attn.L0.lse": lse}, capture=kind))
        (problem,) = one.problems
        assert problem.field == "attn.L0.lse"
        assert message in problem.cause
    (one,) = validate(
        tensors(tmp_path / "far", {**found, "attn.L0.lse": found["attn.L0.lse"] + 3}, capture=kind)
    )
    assert one.ok
    assert "another scale or mask?" in str(one.problems.warnings[0])


def test_more_decimals_than_were_printed(tmp_path: Path) -> None:
    row = {"id": "c", "token_ids": [1, 2], "logprobs": [-0.1234, -1.5]}
    assert validate(lines(tmp_path / "r", [row], capture={"decimals": 4}))[0].ok
    (one,) = validate(
        lines(tmp_path / "s", [{**row, "logprobs": [-0.1234, -0.12345]}], capture={"decimals": 4})
    )
    (problem,) = one.problems
    assert (problem.field, problem.row) == ("capture.decimals of chosen", 1)
    many = [round(-0.01 * i - 0.001, 3) for i in range(40)]
    (one,) = validate(lines(tmp_path / "t", [{**row, "token_ids": [1] * 40, "logprobs": many}]))
    assert "capture.decimals" in str(one.problems.warnings[0])


def test_greedy_and_sums(tmp_path: Path) -> None:
    row = {
        "id": "c",
        "token_ids": [1, 2, 3],
        "logprobs": [-0.5, -1.0, -0.1],
        "top": [[[1, -0.5], [4, -1.5]], [[5, -0.5], [2, -1.0]], [[3, -0.1], [6, -0.2]]],
    }
    (one,) = validate(lines(tmp_path / "r", [row], capture={"greedy": True}))
    assert one.counts == {"chosen_not_top1": 1, "sums_above_one": 1}


def test_strays_and_copies_are_warned_of(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays())
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "note.txt").write_text("x")
    manifest(folder, ["a.safetensors", "b.safetensors"])
    (one,) = validate(folder)
    assert one.ok
    said = [str(w) for w in one.problems.warnings]
    assert any(w.startswith("note.txt: is not in the manifest") for w in said)
    assert any("has the same bytes as b.safetensors" in w for w in said)


def test_import_writes_what_validate_accepts(tmp_path: Path) -> None:
    file = written(tmp_path, OFFLINE)
    out = tmp_path / "out"
    stdout, stderr = run(
        "capture", "import", str(file), "-o", str(out), "--set", "gpu=H200", "--set", "num_splits=4"
    )
    assert "H200 / vllm" in stdout
    assert stderr.startswith("imported 1 run")
    back = read_run(out)
    assert back.manifest.coordinate.num_splits == 4
    assert back.manifest.origin["adapter"] == "vllm"
    (one,) = back.sequences
    assert one.chosen is not None
    assert one.chosen.tolist() == [-3.5, -0.25, -0.125, -9999.0]
    assert one.counts == {"clamped_values": 1}
    assert run("capture", "validate", str(out))[1].startswith("valid")
    assert "is not an empty folder" in run("capture", "import", str(file), "-o", str(out), code=2)[1]


def test_import_of_several_coordinates(tmp_path: Path) -> None:
    from tests.verify.runs.test_mapping import replica

    file = written(tmp_path, [replica("t", c, i, [-0.5]) for c in ("v1", "v2") for i in (0, 1)], "a.jsonl")
    data = json.loads(run("capture", "import", str(file), "-o", str(tmp_path / "o"), "--format", "json")[0])
    assert [(Path(r["path"]).name, r["sequences"]) for r in data["runs"]] == [("000_v1", 2), ("001_v2", 2)]
    assert run("capture", "validate", str(tmp_path / "o"))[1].startswith("valid: 2 runs, 8 rows")


def test_import_of_several_files_is_one_run(tmp_path: Path) -> None:
    """Two answers to one prompt in two files are repeats; answers without a prompt are called by their files."""
    (tmp_path / "in").mkdir()
    first, again = (str(written(tmp_path / "in", OFFLINE, f"{n}.json")) for n in "ab")
    run("capture", "import", first, again, "-o", str(tmp_path / "o"))
    one, two = read_run(tmp_path / "o").sequences
    assert one.conversation == two.conversation
    assert (one.repeat, two.repeat) == (0, 1)
    texts = [str(written(tmp_path / "in", completion(), f"{n}.json")) for n in "cd"]
    run("capture", "import", *texts, "-o", str(tmp_path / "p"))
    assert [s.conversation for s in read_run(tmp_path / "p").sequences] == ["c", "d"]
    other = str(written(tmp_path / "in", {**completion(), "model": "n"}, "e.json"))
    error = run("capture", "import", *texts, other, "-o", str(tmp_path / "q"), code=2)[1]
    assert "e.json: model is 'n', in the files before it 'm'" in error


def test_import_mistakes(tmp_path: Path) -> None:
    file, out = str(written(tmp_path, OFFLINE)), str(tmp_path / "o")
    assert "did you mean 'vllm'?" in run("capture", "import", file, "-o", out, "-a", "vlm", code=2)[1]
    assert (
        "did you mean 'tgi_replicas'?"
        in run("capture", "import", file, "-o", out, "-m", "tgi_replica", code=2)[1]
    )
    assert "give one of them" in run("capture", "import", file, "-o", out, "-a", "tgi", "-m", "x", code=2)[1]
    assert (
        "is in no format that is known"
        in run("capture", "import", str(written(tmp_path, {"a": 1}, "b.json")), "-o", out, code=2)[1]
    )
    assert "--out" in run("capture", "import", file, code=2)[1]
    assert "adapter  vllm" in run("capture", "import", "--list")[0]
