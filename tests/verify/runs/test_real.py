"""The recorded files in ../shared/data, where they are, through the shipped mappings, against counts made with json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verify.runs.making import REAL, SMOLLM2
from verify.runs.folder import read_run, write_run
from verify.runs.load import load_runs
from verify.runs.run import Run
from verify.runs.validate import validate


def at_hand(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"not here: ../shared/data/{path.relative_to(REAL.parent)}")
    return path


def total(runs: tuple[Run, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for run in runs:
        for one in run.sequences:
            found.update(one.counts)
    return found


def test_replicas() -> None:
    file = at_hand(REAL / "tgi" / "replicas.jsonl")
    rows: list[Any] = [json.loads(line) for line in file.read_text().splitlines()]
    runs = load_runs(file)
    assert len(rows) == sum(len(r.sequences) for r in runs) == 243
    assert len(runs) == len({r["commit"] for r in rows})
    counts = total(runs)
    values = [t[1] for r in rows for t in r["tokens"]]
    before = [t[1] for r in rows for t in r["prefill"][1:]]
    assert counts["null_values"] == values.count(None) + before.count(None) == 20
    assert counts["exact_zero_logprobs"] == values.count(0.0) + before.count(0.0)
    by_key = {(r["commit"], r["snapshot"], r["replica"]): r for r in rows}
    assert len(by_key) == len(rows)
    for run in runs:
        for one in run.sequences:
            row = by_key[run.manifest.coordinate.engine_version, one.conversation, one.repeat]
            ids = [t[0] for t in row["prefill"]][1:] + [t[0] for t in row["tokens"]]
            assert one.tokens.tolist() == ids
            assert one.rows - int(one.labels["answer_row"]) == len(row["tokens"])
            assert (one.prompt is None) is (not row["prefill"])


@pytest.mark.parametrize(("name", "gpu"), [("rtx4090", "RTX 4090"), ("metal", "Apple Metal")])
def test_repeats(name: str, gpu: str, tmp_path: Path) -> None:
    """The first request differs and the other 19 agree: in the bytes of their values, through a run folder too."""
    (run,) = load_runs(at_hand(REAL / "ollama" / f"{name}_repeats.jsonl"))
    assert run.manifest.coordinate.gpu == gpu
    again = write_run(tmp_path / "r", run.manifest, run.sequences)
    for found in (run, read_run(again.place)):
        assert [s.repeat for s in found.sequences] == list(range(20))
        kinds = [s.chosen.tobytes() for s in found.sequences if s.chosen is not None]
        assert len(kinds) == 20
        assert len(set(kinds[1:])) == 1
        assert kinds[0] != kinds[1]
        assert len({s.texts for s in found.sequences}) == 1
    (checked,) = validate(tmp_path / "r")
    rows: list[Any] = [json.loads(line) for line in Path(run.place).read_text().splitlines()]
    stated = sum(r["logprob_margins"]["chosen_not_top1"] for r in rows)
    assert checked.counts["chosen_not_top1"] == stated == {"RTX 4090": 179, "Apple Metal": 120}[gpu]


def test_devices() -> None:
    file = at_hand(REAL / "transformers" / "llama2_7b_logits_by_device.json")
    runs = load_runs(file)
    assert len(runs) == 4 + 3 + 3 + 2
    raw = json.loads(file.read_text())
    for run in runs:
        assert run.manifest.capture.decimals == 4
        where = run.manifest.coordinate
        for one in run.sequences:
            if where.dtype is None:
                want = raw["other"][f"{run.manifest.model} mean"][where.gpu]
            else:
                want = raw[where.dtype][one.conversation][where.gpu]
            got = one.chosen if one.chosen is not None else one.full and one.full.read(0, 1)[0]
            assert got is not None
            assert got.tolist() == want


def test_scores() -> None:
    a, c = (
        {s.conversation: s for s in load_runs(at_hand(REAL / "conformal" / f))[0].sequences}
        for f in ("scores_A_desktop_cpu.npz", "scores_C_laptop_cpu.npz")
    )
    assert a["scores_te"].chosen is not None
    assert c["scores_te"].chosen is not None
    assert a["scores_te"].chosen.tobytes() == c["scores_te"].chosen.tobytes()
    assert a["scores_te"].tokens.tobytes() == c["scores_te"].tokens.tobytes()
    with (
        np.load(REAL / "conformal" / "scores_A_desktop_cpu.npz") as x,
        np.load(REAL / "conformal" / "scores_C_laptop_cpu.npz") as y,
    ):
        off = int((x["scores_cal__fp32"] != y["scores_cal__fp32"]).sum())
    assert off > 0
    assert int((a["scores_cal"].chosen != c["scores_cal"].chosen).sum()) == off
    assert [r.name for r in load_runs(REAL / "conformal" / "scores_B_desktop_gpu.npz")] == ["fp32", "fp16"]


def test_smollm2(tmp_path: Path) -> None:
    (run,) = load_runs(at_hand(SMOLLM2 / "smollm2_T320_attn_fp16in.npz"))
    back = write_run(tmp_path / "r", run.manifest, run.sequences)
    (checked,) = validate(tmp_path / "r")  # its lse is that of its q and k, to 0.003
    assert checked.ok
    assert not checked.problems.warnings
    with np.load(SMOLLM2 / "smollm2_T320_attn_fp16in.npz") as raw:
        for found in (run, back):
            (one,) = found.sequences
            assert one.positions.tolist() == list(range(312, 320))
            assert one.full is not None
            np.testing.assert_array_equal(one.full.read(0, 8), raw["logits_last8"])
            (layer,) = one.attention
            assert layer.k is not None
            assert layer.lse is not None
            np.testing.assert_array_equal(layer.k.swapaxes(0, 1), raw["layer15.k"])
            np.testing.assert_array_equal(layer.lse.T, raw["layer15.lse"])
    for name, rows in (("T320", 320), ("T96", 96)):
        (top,) = load_runs(SMOLLM2 / f"smollm2_T320_top50_{name}run.npz")[0].sequences
        assert top.rows == rows
        assert top.top is not None
        assert top.top.ids.shape == (rows, 50)
