"""The page: self-contained, a function of the report, and safe whatever a spec or a file is called."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from reports import contract as c
from reports.html import StudyView, plotly_js, render, script_json
from tests.reports import synthetic

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


class Outline(HTMLParser):
    """Elements, attributes and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.inside: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.anchors.append(str(found.get("href")))
        self.inside = found if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.scripts.append((self.inside, data))
            self.inside = None


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


@pytest.fixture(scope="module")
def page() -> str:
    return render(synthetic.report())


def test_it_is_a_pure_function_of_the_json(page: str) -> None:
    report = synthetic.report()
    assert render(c.from_json(c.to_json(report))) == page


def test_it_is_small_enough(page: str) -> None:
    assert len(page.encode()) < 6_000_000


def test_it_names_nothing_outside_of_itself(page: str) -> None:
    found = outline(page.replace(plotly_js(), ""))
    for name, value in found.attributes:
        assert name not in ("src", "srcset", "action", "data", "poster"), (name, value)
        assert not name.startswith("on"), name
        if name == "href":
            assert str(value).startswith(("#", "data:,")), value
    assert "@import" not in page.replace(plotly_js(), "")


def test_the_policy_admits_its_own_scripts_and_nothing_else(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    text = policy[1].replace("&#39;", "'")
    assert text.startswith("default-src 'none'")
    assert "connect-src" not in text
    code = [
        body for attributes, body in outline(page).scripts if attributes.get("type") != "application/json"
    ]
    for body in code:
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in text
    assert len(code) == text.count("sha256-") == 2


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))
    assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)


def test_the_verdict_comes_first_and_the_values_are_there(page: str) -> None:
    body = page[page.index("<main") :]
    report = synthetic.report()
    assert body.index(report.verdict.headline) < body.index("<table")
    for text in (
        "0x1.52fc5ap+0",
        "0x3fa97e2d",
        "1.3203125",
        "0x3fa9",
        "21,697",
        "275,951.65",
        "not measured",
    ):
        assert text in body


def test_figures_have_a_text_for_who_does_not_see_them(page: str) -> None:
    for element in re.findall(r'<svg class="(?:flow|plane|strip)[^>]*>|<div class="plot"[^>]*>', page):
        assert 'role="img"' in element
        assert re.search(r'aria-label="[^"]{10,}"', element)


def hostile_report() -> c.Report:
    report = synthetic.report()
    study = report.studies[0]
    names = {old.name: f"{old.name} {HOSTILE}" for old in study.cells}
    cells = tuple(
        x.model_copy(update={"name": names[x.name], "backend": HOSTILE, "spec": HOSTILE}) for x in study.cells
    )
    spec = report.specs[0]
    flow = spec.flow
    nodes = tuple(n.model_copy(update={"text": HOSTILE, "rounds": (HOSTILE,)}) for n in flow.nodes)
    sections = tuple(s.model_copy(update={"rule": HOSTILE}) for s in flow.sections)
    bad = spec.model_copy(
        update={
            "name": HOSTILE,
            "summary": HOSTILE,
            "text": HOSTILE,
            "flow": flow.model_copy(update={"nodes": nodes, "sections": sections}),
        }
    )
    points = tuple(tuple(names[n] for n in p) for p in study.geometry[0].points)
    triangles = tuple(t.model_copy(update={"platform": HOSTILE}) for t in study.geometry[0].triangles)
    geometry = study.geometry[0].model_copy(
        update={"points": points, "triangles": triangles, "metric": HOSTILE}
    )
    histogram = study.histograms[0].model_copy(
        update={"series": tuple(s.model_copy(update={"name": HOSTILE}) for s in study.histograms[0].series)}
    )
    distances = study.distances[0].model_copy(update={"cells": tuple(names.values())})
    ownership = tuple(o.model_copy(update={"cell": names[o.cell], "rule": HOSTILE}) for o in study.ownership)
    about = study.input.model_copy(update={"title": HOSTILE, "description": HOSTILE, "origin": HOSTILE})
    worse = study.model_copy(
        update={
            "cells": cells,
            "geometry": (geometry,),
            "histograms": (histogram,),
            "distances": (distances,),
            "ownership": ownership,
            "input": about,
        }
    )
    line = c.DiffLine(kind="changed", section=HOSTILE, site=HOSTILE, left=HOSTILE, right=HOSTILE)
    return report.model_copy(
        update={
            "title": HOSTILE,
            "verdict": c.Verdict(headline=HOSTILE, diverges=True, points=(HOSTILE,)),
            "studies": (worse,),
            "specs": (bad, *report.specs[1:]),
            "diffs": (c.SpecDiff(left=HOSTILE, right="other", lines=(line,)),),
            "notes": (c.Note(kind="warning", text=HOSTILE),),
        }
    )


def test_hostile_names_stay_text(page: str) -> None:
    bad = render(hostile_report())
    found, good = outline(bad), outline(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == good.tags.count("script")
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert "49" not in re.findall(r"\{\{7\*7\}\}|&#39;&amp;49", bad)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in bad
    for attributes, body in found.scripts:
        if attributes.get("type") == "application/json":
            assert "<" not in body


def test_json_in_a_script_cannot_end_it() -> None:
    assert "<" not in script_json({"a": "</script><!--"})
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


def test_parts_that_are_missing_leave_no_hole() -> None:
    report = synthetic.report(depth=None, splits=None, traffic=None, diffs=(), notes=())
    page = render(report)
    for anchor in ("#depth", "#splits", "#traffic", "#diffs"):
        assert f'href="{anchor}"' not in page


def test_cells_that_could_not_be_computed_say_why() -> None:
    study = synthetic.study()
    gone = c.Cell(
        name="FlashInfer · A100",
        backend="FlashInfer",
        platform="A100",
        spec="walkthrough.xqa",
        status="unsupported",
        reason="no spec describes it",
    )
    page = render(synthetic.report(studies=(study.model_copy(update={"cells": (*study.cells, gone)}),)))
    assert "no spec describes it" in page


def heat(maximum: tuple[tuple[int, ...], ...], special: int = 0) -> c.Distances:
    n = len(maximum)
    some = tuple(tuple(float(x > 0) for x in row) for row in maximum)
    return c.Distances(
        site="output",
        format="bf16",
        cells=tuple("abc"[:n]),
        outputs=1,
        maximum=maximum,
        mean=some,
        changed=some,
        special=((special,) * n,) * n,
    )


def test_heat_runs_from_the_smallest_distance_to_the_largest() -> None:
    d = heat(((0, 1000, 10_000), (1000, 0, 100_000), (10_000, 100_000, 0)))
    assert StudyView.shade(d, 0, 1) == pytest.approx(0.06)
    assert StudyView.shade(d, 0, 2) == pytest.approx(0.53)
    assert StudyView.shade(d, 1, 2) == pytest.approx(1.0)


def test_equal_distances_are_not_hot() -> None:
    d = heat(((0, 1), (1, 0)))
    assert StudyView.shade(d, 0, 1) < 0.5
    assert StudyView.shade(heat(((0, 0), (0, 0)), special=1), 0, 1) == 1.0
    assert StudyView.shade(heat(((0, 0), (0, 0))), 0, 1) == 0.06


def test_the_depth_table_says_positions_and_outputs_apart(page: str) -> None:
    assert "Each entry: 1 position × 256 outputs." in page
    assert "token 122,873: 99% ≤ 1, max 4</span>" in page
