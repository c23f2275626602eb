"""The main job from end to end on the bundled inputs: the nine published cells, and a page that opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports import build
from reports.contract import Report, from_json
from tests.reports import synthetic
from tests.reports.browser import chromium, find_chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("main")
    build.write(build.main_report(seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def report(written: Path) -> Report:
    return from_json((written / "report.json").read_text(encoding="utf-8"))


def test_the_nine_published_cells(report: Report) -> None:
    study = report.studies[0]
    found = [
        (c.platform, c.spec, c.groups, c.readings[0].sample.hexfloat, float(c.readings[1].sample.text))
        for c in study.cells
    ]
    assert found == [
        (platform, spec, n, wide, narrow) for _, platform, spec, n, wide, narrow in synthetic.CELLS
    ]
    assert study.exact.sample.startswith("1.325056137247")  # 1.325056137248 rounded


def test_the_real_layer_tells_every_platform_of_flash_attention_apart(report: Report) -> None:
    layer = report.studies[1]
    groups = {(c.backend, c.platform): c.groups for c in layer.cells}
    assert [groups["FlashAttention 2", p] for p in ("H200", "B200", "SM120")] == [18, 23, 30]
    assert [groups["FlashInfer", p] for p in ("H200", "B200", "SM120")] == [11, 45, 15]
    assert {c.outputs for c in layer.cells} == {576}
    assert len({c.content_hash for c in layer.cells}) == 7


def test_every_section_is_there(report: Report, written: Path) -> None:
    assert report.depth is not None
    assert report.splits is not None
    assert report.traffic is not None
    assert {p.range for s in report.depth.series for p in s.points} == {r.name for r in report.depth.ranges}
    assert len(report.depth.ranges) == 22
    assert (report.depth.sampled, report.depth.positions) == (44, 9060)
    assert report.splits.inputs == 192
    assert len(report.specs) == 6
    assert len(report.diffs) == 15
    assert (written / "report.html").stat().st_size < 6_000_000
    assert json.loads((written / "report.json").read_text())["schema_id"] == "ulpscope.report/1"


@pytest.mark.browser
def test_the_page_opens(written: Path) -> None:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with chromium(path) as tab:
        tab.view(1400, 900)
        tab.open((written / "report.html").as_uri())
        for holder in tab.js("[...document.querySelectorAll('.plot')].map(p => p.id)"):
            tab.js(f"document.getElementById('{holder}').scrollIntoView({{behavior: 'instant'}})")
            tab.wait(f"!!document.getElementById('{holder}')._fullLayout")
        assert tab.errors == []
        assert len(tab.requests) == 1
