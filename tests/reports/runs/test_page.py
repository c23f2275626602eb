"""The page of a divergence report: self-contained, a function of the report, bounded, safe whatever a run is called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reports.contract_base import to_json
from reports.html import plotly_js
from reports.runs import contract as c
from reports.runs import figures, views
from reports.runs.build import compare
from reports.runs.contract import from_text
from reports.runs.marks import Group, brief, groups, marks, short_labels
from reports.runs.page import LIMIT, render
from reports.runs.plane import hull
from reports.runs.predicting import Given
from tests.reports.runs import making, showcase
from tests.reports.test_html import HOSTILE, outline
from tests.verify.metrics import made


@pytest.fixture(scope="module")
def page() -> str:
    return render(showcase.report())


def body(page: str) -> str:
    """What a reader sees, as text with one space between words."""
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<svg.*?</svg>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def figure(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" data-figure="{name}">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def test_it_is_a_pure_function_of_the_json(page):
    report = showcase.report()
    assert render(from_text(to_json(report))) == page


def test_it_names_nothing_outside_of_itself_and_admits_only_its_own_scripts(page):
    rest = page.replace(plotly_js(), "")
    found = outline(rest)
    for name, value in found.attributes:
        assert name not in ("src", "srcset", "action", "data", "poster"), (name, value)
        assert not name.startswith("on"), name
        assert name != "href" or str(value).startswith(("#", "data:,")), value
    assert "@import" not in rest
    assert not re.search(r"url\(|https?://", rest)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert policy[1].count("sha256-") == 2
    assert "connect-src" not in policy[1]


def test_ids_are_unique_links_lead_somewhere_and_figures_have_a_text(page):
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))
    assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)
    drawn = re.findall(r'<svg class="plane[^>]*>|<div class="plot"[^>]*>', page)
    assert len(drawn) > 8
    for element in drawn:
        assert 'role="img"' in element
        assert re.search(r'aria-label="[^"]{10,}"', element)
    holders = re.findall(r'<div class="plot" id="([^"]+)"', page)
    assert holders == sorted(holders, key=holders.index)
    assert set(holders) == set(re.findall(r'data-figure="([^"]+)"', page))


def test_sections_are_in_order_and_the_verdict_is_first(page):
    order = [
        "health",
        "identity",
        "distances",
        "distributions",
        "decisions",
        "depth",
        "ranges",
        "geometry",
        "run",
    ]
    at = [page.index(f'<section class="part" id="{name}">') for name in order]
    assert at == sorted(at)
    report = showcase.report()
    text = body(page[page.index("<main") :])
    first, *others = report.verdict.headline.removesuffix(".").split("; ")
    assert text.index(first) < text.index("Runs and their health")
    for said in others:
        assert said[1:] in text
    assert "attribution" not in text.lower()
    assert 'id="prediction"' not in page


def test_the_numbers_of_the_report_are_on_the_page(page):
    """Counted from the runs by NumPy alone."""
    runs = {r.name: r for r in showcase.runs()}
    a, b = (
        np.stack([s.full.read(0, showcase.ROWS) for s in runs[name].sequences]).astype(np.float64)
        for name in ("H200 FLASH_ATTN", "B200 FLASH_ATTN")
    )
    d = np.abs(a - b)
    flips = int((a.argmax(axis=-1) != b.argmax(axis=-1)).sum())
    text = body(page)
    rows = showcase.CONVERSATIONS * showcase.ROWS
    share = f"{100 * (d == 0).mean():.1f}%".replace(".0%", "%")
    found = re.search(
        rf"H200 FLASH_ATTN B200 FLASH_ATTN {rows} {d.max():.3g} {np.sqrt((d**2).mean()):.3g} {share} ", text
    )
    assert found, (d.max(), share)
    told = text[found.end() : found.end() + 60]
    assert f" {flips} of {rows} " in told if flips else f" same on {rows}" in told
    assert "A b*3 first request differs" in text
    assert "H200 TRITON_ATTN B200 TRITON_ATTN" in text


def test_figures_show_what_the_report_says(page):
    report = showcase.report()
    one = views.focus(report)[0]
    assert one.pair.values is not None
    assert one.pair.values.ulp is not None
    trace = figure(page, "fig-quantiles")["data"][0]
    assert trace["y"] == [v for _, v in one.pair.values.quantiles] + [one.pair.values.max_abs]
    counted = figure(page, "fig-ulp")["data"][0]
    bins = [b for b in one.pair.values.ulp.histogram if b.low > 0]
    share = dict(zip(counted["x"], counted["y"], strict=True))
    for b in bins:
        assert share[figures.bin_name(b.low, b.high)] == pytest.approx(100 * b.count / one.pair.values.n)
    deep = figure(page, "fig-depth")["data"]
    assert one.pair.depth is not None
    assert deep[0]["x"] == [b.name for b in one.pair.depth]
    assert deep[-1]["y"] == [b.metrics["abs_logprob"].n for b in one.pair.depth]
    assert figure(page, "fig-region-0")["layout"]["scene"]


def test_who_is_closest_and_how_sure_that_is(page):
    region = showcase.report().geometry[0]
    text = body(page)
    for centre in region.centres:
        first = " = ".join(region.points[centre.ranking[0].points[0]])
        named = {"ball": "smallest enclosing ball distance"}.get(centre.kind, centre.kind)
        assert re.search(rf"{named}[^.]{{0,40}} 1 {re.escape(first)} ", text), centre.kind
    chances = region.centres[0].chances
    assert chances is not None
    p = region.centres[0].ranking[1].points[0]
    shares = " ".join(f"{100 * x:.1f}%".replace(".0%", "%") for x in chances[p])
    assert f"{' = '.join(region.points[p])} {shares}" in text


def test_linked_triangles():
    """Backends of one GPU, one backend on all GPUs; TRITON_ATTN is one point on two of them, and so no triangle."""
    region = showcase.report().geometry[0]
    found = groups(region)
    names = {g.name: {region.points[i][0] for i in g.corners} for g in found}
    shared, alone = "H200 TRITON_ATTN", "RTX PRO 6000 TRITON_ATTN"
    assert names == {
        "H200": {"H200 FLASH_ATTN", "H200 FLASHINFER", shared},
        "B200": {"B200 FLASH_ATTN", "B200 FLASHINFER", shared},
        "RTX PRO 6000": {"RTX PRO 6000 FLASH_ATTN", "RTX PRO 6000 FLASHINFER", alone},
        "FLASH_ATTN": {f"{gpu} FLASH_ATTN" for gpu in showcase.GPUS},
        "FLASHINFER": {f"{gpu} FLASHINFER" for gpu in showcase.GPUS},
    }
    assert [g.kind for g in found] == ["gpu"] * 3 + ["backend"] * 2
    page = render(showcase.report())
    plane = page[page.index('<svg class="plane"') :]
    plane = plane[: plane.index("</svg>")]
    assert len(re.findall(r'class="tri p\d"', plane)) == 3
    assert len(re.findall(r'class="tri backend c\d"', plane)) == 2
    # One backend on two GPUs, where it is no triangle: TRITON_ATTN.
    assert plane.count('class="link"') == 1


def test_marks_tell_backends_by_colour_and_gpus_by_marker():
    report = showcase.report()
    region = report.geometry[0]
    found = marks(region.points, {r.name: r for r in report.coordinates})
    assert (found.colour_title, found.symbol_title) == ("backend", "GPU")
    assert (
        found.colour("H200 FLASHINFER") == found.colour("B200 FLASHINFER") != found.colour("H200 FLASH_ATTN")
    )
    assert (
        found.symbol("H200 FLASHINFER") == found.symbol("H200 FLASH_ATTN") != found.symbol("B200 FLASHINFER")
    )


def test_names_are_shortened_and_stay_apart():
    assert short_labels(["bf16 / a / Llama", "bf16 / b / Llama"]) == ["a", "b"]
    assert short_labels(["one", "two"]) == ["one", "two"]
    long = [f"{'x' * 40} {end} {'y' * 40}" for end in "ab"]
    assert short_labels(long) == ["a", "b"]
    alike = ["x" * 30 + n + "y" * 30 for n in "ab"]
    assert len(set(short_labels(alike))) == 2
    assert brief("0b95693fb8b9640283a0fcf40ac4dd2ab15187eb") == "0b95693fb8b9"
    assert len(brief("z" * 200)) == 44


def test_hull():
    square = [(0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)]
    found = hull([*square, (1.0, 1.0), (1.0, 0.5)])
    assert sorted(found) == sorted(square)
    area = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(found, found[1:] + found[:1], strict=True)) / 2
    assert area == 4
    assert hull(square[:3]) == square[:3]
    assert hull([(0.0, 0.0)] * 4) == [(0.0, 0.0)]


def test_negative_eigenvalues_and_ties_are_told():
    report = showcase.report()
    region = report.geometry[0]
    bent = region.model_copy(
        update={"euclidean": False, "negative_share": 0.125, "eigenvalues": (*region.eigenvalues[:-1], -0.25)}
    )
    text = body(render(report.model_copy(update={"geometry": (bent,)})))
    assert "not Euclidean: 12.5% of the eigenvalue mass is negative" in text
    assert "-0.25 . Negative ones are marked." in text
    centre = region.centres[0]
    tie = c.Place(points=(0, 1), names=("a", "b"), distance=1.0)
    tied = centre.model_copy(update={"ranking": (tie,), "margin": None})
    text = body(
        render(report.model_copy(update={"geometry": (region.model_copy(update={"centres": (tied,)}),)}))
    )
    assert re.search(r"1 [^;]+; [^;]+ tie 1 ", text)
    assert "All tie." in text


@pytest.mark.parametrize("tail", ["", pytest.param("<&\">'" * 60, marks=pytest.mark.slow)])
def test_a_thousand_coordinates_fit(tail):
    page = render(showcase.many(1000, tail))
    assert len(page.encode()) < LIMIT
    assert "more runs</summary>" in page
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))


def test_many_pairs_are_a_heat_map_of_blocks():
    n = 200
    values = tuple(tuple(float(abs(i - j)) for j in range(n)) for i in range(n))
    matrix = c.Matrix(metric="rms", title="t", names=tuple(f"r{i}" for i in range(n)), values=values)
    trace = figures.heatmap(matrix)["data"][0]
    assert len(trace["z"]) == 50  # blocks of 4
    assert trace["z"][0][1] == pytest.approx(np.log10(7), abs=1e-3)  # rows 0 to 3 against 4 to 7
    assert views.reference_values(matrix) is None
    single = showcase.many(100).matrices[0]
    name, found = views.reference_values(single) or ("", [])
    assert (name, len(found), max(v for _, v in found)) == ("run 0000", 99, 0.99)


def test_heat():
    """The smallest difference is cold, the largest hot; what is equal, unknown or not numerics has no heat."""
    report = compare(making.triangle(), draws=2)[0]
    found = views.heat(report, next(m for m in report.matrices if m.metric == "rms"))
    cells = {
        (a, b): x for a, row in zip("abcd", found.rows, strict=True) for b, x in zip("abcd", row, strict=True)
    }
    assert [cells[k].kind for k in (("a", "a"), ("a", "d"), ("a", "b"))] == ["self", "same", ""]
    assert cells["a", "d"].under == "identical"
    assert (cells["a", "b"].text, cells["a", "c"].text, cells["b", "c"].text) == ("3", "4", "5")
    assert cells["a", "b"].heat == pytest.approx(0.06)
    assert cells["a", "c"].heat == pytest.approx(0.06 + 0.94 * np.log(4 / 3) / np.log(5 / 3))
    assert cells["b", "c"].heat == pytest.approx(1)


def test_one_run_leaves_no_hole_and_needs_no_plotly():
    page = render(compare([made.run("a", made.sequence(n=3))])[0])
    assert len(page) < 60_000
    assert re.findall(r'<section class="part" id="(\w+)">', page) == ["health", "run"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].count("sha256-") == 1


def test_what_is_not_numerics_is_marked_and_has_no_heat():
    wrong = made.run("wrong", made.sequence(values=made.logits(4, 64, seed=3, scale=900)))
    runs = [
        *(made.run(n, made.sequence(values=making.moved(4, *s))) for n, s in (("a", ()), ("b", ((1, 1.0),)))),
        wrong,
    ]
    report = compare(runs, draws=2)[0]
    page = render(report)
    assert '<div class="verdict off"' in page
    found = views.heat(report, report.matrices[0])
    assert [x.kind for x in found.rows[2]] == ["off", "off", "self"]
    assert {frozenset((one.pair.first, one.pair.second)) for one in views.focus(report)} == {frozenset("ab")}


def predicted(step: float) -> c.DivergenceReport:
    """a and b, of which a is predicted up to ``step``."""
    runs = [run("a"), run("b", (1, 1.0))]
    given = replace(run("p", *([(2, step)] if step else [])), sha256="p")
    return compare(runs, draws=2, predicted=[Given(given, "a")])[0]


def run(name, *steps):
    return made.run(name, made.sequence(values=making.moved(4, *steps)))


def test_the_prediction_is_a_section():
    page = render(predicted(0))
    assert '<li><a href="#prediction">Prediction</a></li>' in page
    section = body(page[page.index('<section class="part" id="prediction">') :])
    assert section.index("Prediction") < section.index("bit-exact") < section.index("Provenance")


def test_a_coordinate_whose_kernel_no_spec_describes_is_predicted_by_name():
    """vLLM runs FlashAttention-4 on a B200, which is not described: no reason to end the report."""
    a = making.at(run("a"), gpu="B200", engine="vllm", attention_backend="FLASH_ATTN")
    given = replace(a, name="p", sha256="p")
    found = compare([a, run("b", (1, 1.0))], draws=2, predicted=[Given(given, "a")])[0]
    assert found.prediction is not None
    assert next((x.run, x.outcome) for x in found.prediction.coordinates) == ("a", "bit-exact")


def hostile() -> c.DivergenceReport:
    """The showcase with hostile text wherever a stranger can put some."""
    text = to_json(showcase.report())
    for word in ("FLASH_ATTN", "H200", "prompt", "system", "vllm"):
        text = text.replace(word, json.dumps(word + HOSTILE + "\u202e")[1:-1])
    report = from_text(text)
    finding = report.findings[0].model_copy(update={"text": HOSTILE})
    note = report.notes[0].model_copy(update={"text": HOSTILE}) if report.notes else None
    provenance = report.provenance.model_copy(update={"command": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    verdict = report.verdict.model_copy(update={"headline": HOSTILE, "points": (HOSTILE,)})
    case = c.PolicyCase(
        first=HOSTILE,
        second="b",
        matched="b",
        rule=HOSTILE,
        condition=HOSTILE,
        outcome="failed",
        text=HOSTILE,
        measured={},
    )
    policy = c.PolicyResult(file=HOSTILE, sha256="0" * 64, passed=0, failed=1, errors=0, cases=(case,))
    return report.model_copy(
        update={
            "title": HOSTILE,
            "verdict": verdict,
            "findings": (finding,),
            "notes": (note,) if note else (),
            "provenance": provenance,
            "policy": policy,
        }
    )


def test_hostile_names_stay_text(page):
    bad = render(hostile())
    found, good = outline(bad), outline(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == good.tags.count("script")
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in bad
    assert "\u202e" not in bad.replace(plotly_js(), "")
    for attributes, text in found.scripts:
        if attributes.get("type") == "application/json":
            assert "<" not in text


def test_three_points_that_share_nothing_are_a_triangle():
    report = compare(making.triangle()[:3], draws=2)[0]
    region = next(g for g in report.geometry if g.subset == "all")
    bare = region.model_copy(
        update={"triangles": tuple(t.model_copy(update={"shared": ""}) for t in region.triangles)}
    )
    assert groups(bare) == [Group("gpu", "", (0, 1, 2))]
    assert render(report.model_copy(update={"geometry": (bare,)})).count('class="tri p0"') >= 1
