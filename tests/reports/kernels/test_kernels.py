"""``ulpscope report`` on a capture of kernels: bit-exact, one flipped bit, and what does not go with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.contract_base import to_json
from reports.kernels import contract as c
from reports.kernels.build import kernels_report
from reports.kernels.contract import from_text
from reports.kernels.page import render, render_markdown
from tests.reports.test_html import HOSTILE, outline
from tests.verify.capture.test_cli import SAMPLE, damaged


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def exact() -> c.KernelsReport:
    return kernels_report(SAMPLE)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory) -> c.KernelsReport:
    """One bit of one output is another."""
    return kernels_report(damaged(tmp_path_factory.mktemp("capture") / "c"))


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code == code, (done.output, done.stderr, done.exception)
    return done.stdout, done.stderr


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page[page.index("<main") :]))


def test_the_packaged_capture(folder):
    stdout, stderr = run(SAMPLE, "--fail-on-divergence")
    said = "Bit-exact with torch_cpu.sdpa_flash on amd_avx512: 7 cases, 14 arrays, 1,820 numbers."
    assert stdout.splitlines()[0] == said
    assert said in stderr
    (made,) = (folder / "runs").iterdir()
    assert sorted(p.name for p in made.iterdir()) == ["report.html", "report.json", "report.md"]
    page = (made / "report.html").read_text()
    text = text_of(page)
    assert "lse lse 7 28 0 bit-exact" in text
    assert "output output 7 1,792 0 bit-exact" in text
    assert "plotly" not in page
    assert f"**{said.replace('_', chr(92) + '_')}**" in (made / "report.md").read_text()


def test_one_flipped_bit(flipped):
    assert not flipped.exact
    assert flipped.headline.startswith("Unexplained from one, site output, row 1, head 0, dim 33: captured ")
    (kernel,) = flipped.kernels
    (record,) = kernel.records
    assert [(s.array, s.differing) for s in record.sites] == [("lse", 0), ("output", 1)]
    text = text_of(render(flipped))
    assert "Where they part" in text
    assert re.search(r"one output 1 [\d,]+ site output, row 1, head 0, dim 33: captured", text)
    assert "- differs, one: site output, row 1" in render_markdown(flipped)


def test_exit_codes(folder):
    path = damaged(folder / "c")
    run(path, "-o", "x")
    run(path, "-o", "x", "--fail-on-divergence", code=1)
    data = json.loads(run(path, "-o", "x", "--format", "json")[0])
    assert data["report"]["exact"] is False
    assert data["report"] == json.loads((folder / "x" / "report.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--teaching",), "--teaching: does not go with a capture of kernels"),
        (("--reference", "a"), "--reference: does not go with a capture of kernels"),
        (("--spec", "a", "--spec", "b"), "--spec: is given more than once"),
        (("--spec", "no_such_spec"), "no_such_spec"),
        (("--platform", "no_such_platform"), "no_such_platform"),
        (("other",), "is a capture of kernels, which has no runs"),
    ],
)
def test_mistakes(folder, arguments, cause):
    stdout, stderr = run(SAMPLE, *arguments, code=2)
    assert cause in stderr
    assert stdout == ""
    assert not (folder / "runs").exists()


def test_the_page_is_a_function_of_the_json_and_loads_nothing(exact, flipped):
    for report in (exact, flipped):
        page = render(report)
        assert render(from_text(to_json(report))) == page
        assert len(page) < 60_000
        found = outline(page)
        assert len(found.ids) == len(set(found.ids))
        assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)
        assert not [v for n, v in found.attributes if n == "href" and not str(v).startswith(("#", "data:,"))]
        assert not re.search(r"url\(|https?://", page)


def test_what_the_spec_does_not_describe_and_probes(exact):
    (kernel,) = exact.kernels
    gone = kernel.records[0].model_copy(update={"refused": "head_dim 96", "sites": (), "exact": False})
    probe = c.Probe(
        name="mufu.ex2", platform="h200", exact=False, compared=4096, differing=3, unknown=0,
        first="0x3f800000", note="", refused="", verdict="mufu.ex2 unexplained",
    )  # fmt: skip
    kernel = kernel.model_copy(update={"records": (gone, *kernel.records[1:])})
    text = text_of(render(exact.model_copy(update={"kernels": (kernel,), "probes": (probe,)})))
    assert "calls have the predicted bits 6 of 6" in text
    assert "Not described by the spec 1 head_dim 96" in text
    assert "mufu.ex2 h200 differs 4,096 3 0 0x3f800000" in text


def test_hostile_names_stay_text(flipped):
    evil = HOSTILE + "\u202e"
    (kernel,) = flipped.kernels
    (record,) = kernel.records
    site = record.sites[1].model_copy(update={"array": evil, "site": evil, "first": evil, "hint": evil})
    record = record.model_copy(update={"name": evil, "sites": (site,)})
    kernel = kernel.model_copy(update={"name": evil, "spec": evil, "version": evil, "records": (record,)})
    capture = flipped.capture.model_copy(
        update={"machine": {"gpu": evil, evil: {evil: evil}}, "skipped": {evil: evil}}
    )
    bad = flipped.model_copy(
        update={"headline": evil, "points": (evil,), "kernels": (kernel,), "capture": capture, "title": evil}
    )
    page = render(bad)
    found = outline(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == 1
    assert "\u202e" not in page
    # Between backquotes it is text as it stands.
    assert "<script>" not in re.sub(r"`[^`\n]*`", "", render_markdown(bad))
