"""The prediction section: predicted runs of a tiny model, of made runs, and attention tensors against candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.formatting import FILTERS
from reports.runs import text
from reports.runs.build import compare
from reports.runs.contract import from_text
from reports.runs.markdown import render_markdown
from reports.runs.page import render
from reports.runs.predicting import Given, predict_section
from reports.runs.prediction import Prediction
from reports.runs.text import lines
from specs.errors import InputError
from tests.reports.runs import making
from tests.verify.forward.making import TINY, tensors_of, write_model
from tests.verify.identify.test_identify import NAMES, captured, run_of
from tests.verify.metrics import made
from verify.runs.folder import read_run, write_run
from verify.runs.run import Run
from verify.runs.sequence import Full

ROWS, VOCAB = 5, 40


def run(name: str, values: np.ndarray, **coordinate: Any) -> Run:
    """A run of 12 conversations; ``values`` f32 ``[12, rows, vocab]``."""
    parts = (made.sequence(f"c{i}", values=v) for i, v in enumerate(values))
    return making.at(made.run(name, *parts), **{"gpu": None, **coordinate})


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    """Real A and B, C which is as c predicts, D which is only noise; a, b, c, d: their predictions."""
    rng = np.random.default_rng(7)
    base, step, other, rest, wild = rng.standard_normal((5, 12, ROWS, VOCAB)).astype(np.float32)
    a, b = base * 5, base * 5 + step
    return {
        "a": a,
        "b": b,
        "c": base * 5 - step,
        "d": base * 5 + other,
        "A": a + np.float32(0.05) * rest,
        "B": b + np.float32(0.05) * rest[::-1],
        "C": base * 5 - step,
        "D": base * 5 + 3 * wild,
    }


def outcomes(section: Prediction) -> dict[str, tuple[str, str | None, str]]:
    return {x.run: (x.outcome, x.predicted, x.how) for x in section.coordinates}


def test_each_coordinate_has_one_outcome(values: dict[str, np.ndarray]) -> None:
    reals = [run(n, values[n]) for n in "ABCD"]
    given = [Given(run(n, values[n]), n.upper()) for n in "abcd"]
    report, _ = compare(reals, predicted=given)
    section = report.prediction
    assert section is not None
    assert outcomes(section) == {
        "A": ("direction and size", "a", "named"),
        "B": ("direction and size", "b", "named"),
        "C": ("bit-exact", "c", "named"),
        "D": ("unexplained", "d", "named"),
    }
    exact = next(x for x in section.coordinates if x.run == "C").fits[0]
    assert (exact.elements, exact.equal, exact.rows, exact.exactness) == (
        12 * ROWS * VOCAB,
        12 * ROWS * VOCAB,
        60,
        "bits",
    )
    by_pair = {(d.first, d.second): d for d in section.differences}
    for pair in (("A", "B"), ("A", "C"), ("B", "C")):
        assert by_pair[pair].outcome == "direction and size"
    one = by_pair["A", "B"]
    pred, real = ((values[y] - values[x]).astype(np.float64).ravel() for x, y in ("ab", "AB"))
    assert one.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-6)
    best = {n: values[n].argmax(axis=2) for n in "abAB"}
    really, told = best["A"] != best["B"], best["a"] != best["b"]
    assert (one.flips.real, one.flips.predicted) == (int(really.sum()), int(told.sum()))
    assert one.flips.both == int((really & told).sum())
    headline = "of 4 coordinates: 1 predicted bit-exactly, 2 predicted in direction and size, 1 unexplained"
    assert section.headline == headline
    assert report.verdict.points[0] == f"Prediction: {headline}."
    shown = "\n".join(lines(report))
    assert "C: bit-identical with c: 2,400 values on 60 rows" in shown
    markdown = render_markdown(report)
    assert "## Prediction" in markdown
    assert "| C | bit-exact | c (as named) | all 2,400 |" in markdown
    assert from_text(report.model_dump_json()) == report
    assert "bit-exact" in page(report)
    whole = render(report)
    assert '<section class="part" id="prediction">' in whole
    assert "Of 4 coordinates: 1 predicted bit-exactly" in whole


def page(report: Any) -> str:
    """The partial alone, with the filters that it needs."""
    folder = Path(__file__).parents[3] / "reports" / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    clip = {"brief": text.brief, "clip": lambda x, n=200: str(x)[:n], "real": text.real}
    environment.filters.update({**FILTERS, **clip})
    return environment.get_template("runs_prediction.html.j2").render(report=report)


def test_a_prediction_is_found_by_its_coordinate_or_as_the_nearest(values: dict[str, np.ndarray]) -> None:
    vllm = {"engine": "vllm", "engine_version": "0.33.0"}
    reals = [
        run("A", values["A"], gpu="NVIDIA H200", requested_backend="FLASH_ATTN", **vllm),
        run("B", values["B"], gpu="H200", requested_backend="TRITON_ATTN", **vllm),
        run("C", values["C"], gpu="MI300X"),
    ]
    given = [
        Given(run("b", values["b"], platform="h200", attention_backend="vllm_triton.decode_3d")),
        Given(run("a", values["a"], platform="h200", attention_backend="flash_attn3.decode")),
        Given(run("c", values["c"], attention_backend="plain")),
    ]
    found = outcomes(predict_section(reals, given))
    assert {k: v[1:] for k, v in found.items()} == {
        "A": ("a", "coordinate"),
        "B": ("b", "coordinate"),
        "C": ("c", "best"),
    }
    alone = predict_section(reals[:1], given[1:2])
    assert alone.coordinates[0].outcome == "unexplained"
    assert "no other coordinate with a prediction" in alone.coordinates[0].reason


def test_what_cannot_be_told(values: dict[str, np.ndarray]) -> None:
    """One prediction for two coordinates, none for one, a prediction of other conversations, the capture itself."""
    a, b = run("A", values["A"]), run("B", values["B"])
    both = predict_section([a, b], [Given(run("a", values["a"]))])
    assert [d.reason for d in both.differences] == ["one predicted run stands for both coordinates"]
    assert [n.text for n in both.notes] == ["a does not say that it was predicted."]
    none = predict_section([a, b], [Given(run("a", values["a"]), "A")])
    assert outcomes(none)["B"] == ("unexplained", None, "none")
    other = made.run("x", made.sequence("elsewhere", values=values["a"][0]))
    assert predict_section([a], [Given(other)]).coordinates[0].reason == (
        "no row of a prediction has the same text before it"
    )
    processed = made.run("p", made.sequence("c0", values=values["a"][0]), kind="processed")
    unlike = predict_section([processed], [Given(run("a", values["a"]))]).coordinates[0]
    assert unlike.reason == "a holds raw_logits, the capture processed"
    same = replace(run("a", values["A"]), sha256=a.sha256)
    itself = predict_section([a], [Given(same)]).coordinates[0]
    assert (itself.outcome, "this very capture" in itself.reason) == ("unexplained", True)
    with pytest.raises(InputError, match="did you mean 'A'"):
        predict_section([a], [Given(run("a", values["a"]), "AA")])


def test_printed_log_probabilities_are_equal_to_their_digits() -> None:
    """Lists of three tokens in four decimals, of a run that is as its prediction."""
    logits = made.logits(4, 20, 3)
    exact = logits.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    ids = np.argsort(-logs, axis=1)[:, :3]
    shown = np.round(np.take_along_axis(logs, ids, axis=1), 4)
    real = made.run("A", made.sequence("c", n=4, top=made.top(ids, shown)), kind="raw_logprobs", decimals=4)
    predicted = made.run("a", made.sequence("c", values=logits))
    (found,) = predict_section([real], [Given(predicted)]).coordinates
    assert (found.outcome, found.fits[0].exactness, found.fits[0].elements) == (
        "bit-exact",
        "printed digits",
        12,
    )
    assert found.reason == "equal to the printed digits with a: 12 values on 4 rows"


def test_attention_tensors_against_candidates() -> None:
    """A layer whose output the oracle of one spec made; the first element of the other spec is found by hand."""
    real = run_of(captured(NAMES[0]))
    report, _ = compare([real], candidates=NAMES)
    assert report.prediction is not None
    (found,) = report.prediction.attention
    assert (found.outcome, found.layers) == ("bit-exact", (3,))
    exact, other = found.fits
    assert exact.names == (NAMES[0],)
    assert (exact.elements, exact.exact, exact.first) == (8 * 4 * 16, 8 * 4 * 16, None)
    mine, theirs = (captured(n).view(np.uint16) for n in NAMES)
    row, head, dim = (int(i) for i in np.argwhere(mine != theirs)[0])
    assert other.exact == int((mine == theirs).sum())
    assert sum(b.count for b in other.histogram) == other.elements
    assert other.first is not None
    where = (other.first.site, other.first.layer, other.first.position, other.first.head, other.first.dim)
    assert where == ("output", 3, 142 + row, head, dim)
    assert f"{int(mine[row, head, dim]):#06x}" in other.first.captured
    assert f"{int(theirs[row, head, dim]):#06x}" in other.first.predicted
    assert [(p.layer, p.site, p.exact) for p in other.parts] == [(3, "output", other.exact)]
    bare = made.run("A", made.sequence("c", values=made.logits(2, 9)))
    with pytest.raises(InputError, match="no run holds q, k, v and out"):
        predict_section([bare], (), NAMES)
    shown = "\n".join(lines(report))
    assert f"attention of r, 1 layer: bit-exact with {NAMES[0]}" in shown
    assert f"layer 3, position {142 + row}, head {head}, dim {dim}" in shown
    assert "all 512" in page(report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions of a tiny model, with and without rounding to bf16, and "real" runs: one as predicted, one with noise."""
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder / "tiny", TINY, tensors_of(TINY))
    rng = np.random.default_rng(1)
    rows = [{"id": f"c{i}", "token_ids": rng.integers(0, 80, 6).tolist()} for i in range(3)]
    (folder / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    config = 'schema = 1\nname = "rounded"\n[numbers]\nactivations = "bf16"\nlogits = "f32"\n'
    (folder / "rounded.toml").write_text(config)
    for name, arithmetic in (("f32", "f32"), ("rounded", str(folder / "rounded.toml"))):
        words = [
            *("predict", str(folder / "tiny"), "--tokens", str(folder / "p.jsonl")),
            *("-c", arithmetic, "-o", str(folder / "predicted" / name)),
        ]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        predicted = read_run(folder / "predicted" / name)
        noise = 0.0 if name == "f32" else 1e-3
        parts = [replace(s, full=_noisy(s.full, noise, i)) for i, s in enumerate(predicted.sequences)]
        manifest = making.at(predicted, engine="torch", flags={}).manifest
        manifest = manifest.model_copy(update={"files": (), "run_id": f"real-{name}"})
        write_run(folder / "real" / name, manifest, parts)
    return folder


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def _noisy(full: Full | None, noise: float, seed: int) -> Full:
    assert full is not None
    values = full.read(0, full.rows).astype(np.float32)
    values = values + np.float32(noise) * np.random.default_rng(seed).standard_normal(values.shape)
    return made.full(values.astype(np.float32))


def test_predictions_of_a_tiny_model(tiny: Path) -> None:
    words = ["compare", "real/f32", "real/rounded", "--format", "json"]
    words += ["--predicted", "predicted/f32=real-f32", "--predicted", "predicted/rounded=real-rounded"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    section = from_text(done.stdout).prediction
    assert section is not None
    assert [x.outcome for x in section.coordinates] == ["bit-exact", "direction and size"]
    assert [p.arithmetic for p in section.predicted] == ["f32", "rounded"]
    assert section.coordinates[0].fits[0].elements == 3 * 6 * 80
    (found,) = section.differences
    whole = {
        kind: np.concatenate(
            [
                s.full.read(0, s.rows).ravel().astype(np.float64)
                for s in sorted(read_run(tiny / kind).sequences, key=lambda s: s.conversation)
                if s.full is not None
            ]
        )
        for kind in ("real/f32", "real/rounded", "predicted/f32", "predicted/rounded")
    }
    pred = whole["predicted/rounded"] - whole["predicted/f32"]
    real = whole["real/rounded"] - whole["real/f32"]
    assert found.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-5)
    assert found.correlation.kind == "few conversations"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--predicted", "predicted/f32=nobody"], "no run is called 'nobody'"),
        (["--predicted", "predicted=real-f32"], "holds 2 runs, which one name cannot stand for"),
        (["--predicted", "nowhere"], "nowhere"),
        (["--candidate", "xqa.decode@h200"], "no run holds q, k, v and out of a layer"),
    ],
)
def test_mistakes(words: list[str], message: str, tiny: Path) -> None:
    done = CliRunner().invoke(app, ["compare", "real/f32", "real/rounded", *words])
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stdout == ""
