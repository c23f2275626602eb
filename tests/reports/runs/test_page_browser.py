"""The page of a divergence report in a real Chromium: no error, nothing fetched, all drawn, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reports.runs.page import render
from tests.reports.browser import Tab, chromium, find_chromium
from tests.reports.runs import showcase
from tests.reports.runs.test_page import hostile
from tests.reports.runs.test_real import report

pytestmark = pytest.mark.browser
OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
HOLDERS = "[...document.querySelectorAll('.plot')].map(p => p.id)"
# Views in space take seconds without a GPU: drawn once is enough.
FLAT = "[...document.querySelectorAll('.plot:not([data-scene])')].map(p => p.id)"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with chromium(path) as found:
        yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(showcase.report()), encoding="utf-8")
    return path.as_uri()


def show_all(tab: Tab, which: str = FLAT) -> list[str]:
    holders = tab.js(which)
    for holder in holders:
        tab.js(
            f"document.getElementById('{holder}').scrollIntoView({{behavior: 'instant', block: 'center'}})"
        )
        tab.wait(f"!!document.getElementById('{holder}')._fullLayout")
    return holders


def test_it_opens_draws_and_fetches_nothing(tab, url):
    tab.view(390, 800)
    tab.open(url)
    tab.js(OPEN_ALL)
    assert tab.js("document.documentElement.scrollWidth") <= 390
    assert show_all(tab)[:2] == ["fig-quantiles", "fig-ulp"]
    tab.js("document.querySelector('.pick button[data-platform=\"B200\"]').click()")
    assert tab.js("document.querySelectorAll('.geometry svg.plane .tri.on').length") == 1
    light = tab.js("document.getElementById('fig-depth')._fullLayout.font.color")
    tab.view(390, 800, dark=True)
    tab.wait(f"document.getElementById('fig-depth')._fullLayout.font.color !== '{light}'")
    assert tab.errors == []
    assert tab.requests == [url]


@pytest.mark.slow
def test_the_view_in_space(tab, url):
    """Also what is picked in the plane is picked here; on a wide window."""
    tab.view(1280, 900)
    tab.open(url)
    show_all(tab, HOLDERS)
    tab.wait("[...document.querySelectorAll('.plot')].every(p => p._fullLayout.width > 200)")
    scene = "fig-region-0"
    tab.wait(f"!!document.querySelector('#{scene} canvas')")
    tab.js("document.querySelector('.pick button[data-platform=\"B200\"]').click()")
    faded = f"document.getElementById('{scene}').data.filter(t => t.meta && t.opacity < 1).map(t => t.meta)"
    tab.wait(f"{faded}.length === 4")
    assert "B200" not in tab.js(faded)
    assert tab.errors == []


@pytest.mark.slow
def test_a_thousand_coordinates_open(tab, tmp_path):
    path = tmp_path / "many.html"
    path.write_text(render(showcase.many(1000)), encoding="utf-8")
    tab.view(1280, 900)
    tab.open(path.as_uri())
    assert tab.js("document.querySelectorAll('#health tbody tr').length") > 300
    tab.js(OPEN_ALL)
    show_all(tab)
    assert tab.errors == []


@pytest.mark.slow
def test_hostile_names_run_nothing(tab, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(render(hostile()), encoding="utf-8")
    tab.view(390, 800)
    tab.open(path.as_uri())
    tab.js("window.alert = () => { throw new Error('ran'); }")
    tab.js(OPEN_ALL)
    show_all(tab)
    assert tab.js("document.images.length") == 0
    assert tab.js("document.documentElement.scrollWidth") <= 390
    assert tab.errors == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["real/ollama/rtx4090_repeats.jsonl", "real/ollama/metal_repeats.jsonl"],
        ["real/tgi/replicas.jsonl"],
        ["real/transformers/llama2_7b_logits_by_device.json"],
        [f"real/conformal/scores_{n}.npz" for n in ("A_desktop_cpu", "B_desktop_gpu", "C_laptop_cpu")],
        [f"smollm2/smollm2_T320_top50_T{n}run.npz" for n in (320, 96)],
    ],
    ids=lambda names: names[0].split("/")[-2],
)
def test_pages_of_real_captures_open(tab, tmp_path, names):
    path = tmp_path / "real.html"
    path.write_text(render(report(*names)), encoding="utf-8")
    tab.view(390, 800)
    tab.open(path.as_uri())
    tab.js(OPEN_ALL)
    show_all(tab)
    assert tab.js("document.documentElement.scrollWidth") <= 390
    assert tab.errors == []
