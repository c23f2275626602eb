"""Campaigns over flips and kl, and over edits of an input: what their files hold is part of a case's identity."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from search.campaign import Campaign, Case, load, parse_campaign, resume, start
from search.campaign.work import call, payload, read_reply
from search.witness import from_bytes
from specs.errors import SpecError

TEXT = """
schema = 1
name = "edits"
kv_lens = [64]
objectives = ["ulp", "flips", "kl"]
projection = "w.npz"
base = { file = "base.npz", edits = 3, fixed = "0-15" }
space = { dims = 2 }
budget = { evaluations = 200 }
context = { q_heads = 24, kv_heads = 4, head_dim = 256 }
[[pair]]
sides = ["walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@h200"]
set = { "a.split" = "tiles(20)", "a.block" = "tiles(64)", "b.split" = "tiles(12)", "b.block" = "tiles(64)" }
"""
WORK = "search.campaign.work:run_case"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input and a projection, which is the one that commands run in."""
    rng = np.random.default_rng(3)
    values = rng.integers(128, 256, (64, 2)) / 256
    np.savez(tmp_path / "base.npz", scores=rng.normal(size=64).astype(np.float32), values=values)
    np.savez(tmp_path / "w.npz", W=np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(text: str = TEXT) -> Campaign:
    return parse_campaign(text, "edits.toml")


def done(case: Case):
    reply = read_reply(call(payload(WORK, case.text, None)))
    assert reply.outcome is not None, reply.message
    return reply


def test_cases_hold_the_hashes_of_what_they_read(files: Path) -> None:
    ulp, flips, kl = plan().cases
    held = hashlib.sha256((files / "w.npz").read_bytes()).hexdigest()
    assert ulp.projection is None
    assert flips.projection == kl.projection
    assert flips.to_json()["projection"] == {"path": "w.npz", "sha256": held}
    assert kl.base is not None
    assert kl.base.file.sha256 == hashlib.sha256((files / "base.npz").read_bytes()).hexdigest()
    assert (kl.base.edits, kl.base.fixed) == (3, "0-15")
    assert Case.from_text(kl.text) == kl
    assert "edits of base.npz" in kl.label
    np.savez(files / "w.npz", W=np.eye(2))
    assert plan().cases[1].id != flips.id
    assert plan().cases[0].id == ulp.id


def test_a_case_without_files_has_the_identity_that_it_always_had(files: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith(("objectives", "projection", "base"))]
    (case,) = plan("\n".join(lines)).cases
    assert "projection" not in case.to_json()
    assert "base" not in case.to_json()
    assert case.id == hashlib.sha256(case.text.encode()).hexdigest()


def test_edits_are_searched_on_every_objective(files: Path) -> None:
    base = np.load(files / "base.npz")
    for case in plan().cases:
        reply = done(case)
        assert reply.outcome is not None
        assert reply.outcome.evaluations <= 200
        if case.metric == "flips" and reply.outcome.found == "nothing":
            assert "no token flips" in reply.outcome.details["reason"]
            continue
        witness = from_bytes(reply.files, "witness")
        assert witness.record.objective.metric == case.metric
        assert witness.record.objective.vocabulary == (None if case.metric == "ulp" else 3)
        scores = witness.inputs.scores[0] != base["scores"]
        values = witness.inputs.values[0] != base["values"].astype(np.float32)
        assert scores.sum() + values.sum() <= 3
        assert not scores[:16].any()
        assert not values[:16].any()


def test_a_file_that_changed_fails_its_case_and_comes_back_on_resume(files: Path) -> None:
    text = TEXT.replace('"ulp", "flips", "kl"', '"kl"')
    before = (files / "w.npz").read_bytes()
    campaign = plan(text)
    assert len(campaign.cases) == 1
    np.savez(files / "w.npz", W=np.eye(2))
    made = start(campaign, files / "run", workers=1)
    assert made.counts["failed"] == 1
    (row,) = load(files / "run").cases
    assert "is not the file that it was when the campaign was made" in row.message
    (files / "w.npz").write_bytes(before)
    made = resume(files / "run", workers=1, retry=True)
    assert made.counts["done"] == 1
    assert made.verdict.endswith("nats apart")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kv_lens = [64]", "kv_lens = [32]", "base.npz has 64 tokens and 2 columns"),
        ("dims = 2", "dims = 1", "w.npz has 2 columns, the space 1"),
        ('"0-15"', '"15-0"', "'15-0' is no token or range"),
        ('"w.npz"', '"base.npz"', "holds 2 arrays"),
        ('"base.npz"', '"w.npz"', "w.npz: holds W"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_any_work(
    files: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(SpecError) as found:
        _ = plan(TEXT.replace(old, new)).cases
    assert message in str(found.value)
    assert json.dumps(str(found.value)).startswith('"edits.toml:')
