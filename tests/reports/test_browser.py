"""The page in a real Chromium: no error, nothing fetched, the 3-D view draws, in light and dark, wide and narrow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from reports.html import render
from tests.reports import synthetic
from tests.reports.browser import Tab, chromium, find_chromium

pytestmark = pytest.mark.browser
SCENE = "fig-teaching-region-0"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with chromium(path) as found:
        yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(synthetic.report()), encoding="utf-8")
    return path.as_uri()


def show(tab: Tab, holder: str) -> None:
    tab.js(f"document.getElementById('{holder}').scrollIntoView({{behavior: 'instant', block: 'center'}})")
    tab.wait(f"!!document.getElementById('{holder}')._fullLayout")


def colours(png: bytes) -> int:
    """How many different colours a PNG (8-bit RGB or RGBA) has, in every second pixel of every second row."""
    import struct
    import zlib

    stream = BytesIO(png[8:])
    width = height = channels = 0
    data = b""
    while chunk := stream.read(8):
        size, kind = struct.unpack(">I4s", chunk)
        body = stream.read(size + 4)[:-4]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
    raw, row = zlib.decompress(data), width * channels
    seen: set[bytes] = set()
    before = bytearray(row)
    for y in range(height):
        start = y * (row + 1)
        line = bytearray(raw[start + 1 : start + 1 + row])
        unfilter(raw[start], line, before, channels)
        if y % 2 == 0:
            seen.update(bytes(line[x : x + 3]) for x in range(0, row, 2 * channels))
        before = line
    return len(seen)


def unfilter(kind: int, line: bytearray, before: bytearray, step: int) -> None:
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        up = before[i]
        corner = before[i - step] if i >= step else 0
        if kind == 1:
            add = left
        elif kind == 2:
            add = up
        elif kind == 3:
            add = (left + up) // 2
        elif kind == 4:
            guess = left + up - corner
            add = min((left, up, corner), key=lambda v: abs(guess - v))
        else:
            add = 0
        line[i] = (line[i] + add) & 255


def test_it_opens_without_an_error_and_draws_everything(tab: Tab, url: str, tmp_path: Path) -> None:
    tab.view(1400, 900)
    tab.open(url)
    holders = tab.js("[...document.querySelectorAll('.plot')].map(p => p.id)")
    assert holders == [SCENE, "fig-teaching-histogram-0", "fig-depth", "fig-splits", "fig-traffic"]
    for holder in holders:
        show(tab, holder)
    tab.wait("[...document.querySelectorAll('.plot')].every(p => p._fullLayout && p._fullLayout.width > 200)")
    time.sleep(0.3)
    tab.screenshot(tmp_path / "page.png")
    assert tab.errors == []
    assert tab.requests == [url]


def test_the_3d_view_draws(tab: Tab, url: str, tmp_path: Path) -> None:
    tab.view(1400, 900)
    tab.open(url)
    show(tab, SCENE)
    tab.wait(f"!!document.querySelector('#{SCENE} canvas')")
    assert tab.js(
        f"document.getElementById('{SCENE}')._fullLayout.scene._scene.glplot.gl.getParameter(7938)"
    ).startswith("WebGL")
    time.sleep(0.6)
    box = tab.js(
        f"(() => {{ const r = document.querySelector('#{SCENE} canvas').getBoundingClientRect();"
        "return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; })()"
    )
    # A blank canvas has one colour; markers, triangles and a shaded region have many.
    assert colours(tab.screenshot(tmp_path / "scene.png", box)) > 50
    camera = f"JSON.stringify(document.getElementById('{SCENE}')._fullLayout.scene._scene.getCamera().eye)"
    before = tab.js(camera)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 - tab.js("scrollY")
    tab.call(
        "Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1
    )
    for step in range(1, 9):
        tab.call(
            "Input.dispatchMouseEvent",
            type="mouseMoved",
            x=x + 12 * step,
            y=y + 4 * step,
            button="left",
            buttons=1,
        )
        time.sleep(0.05)  # the scene looks at the mouse once a frame
    tab.call(
        "Input.dispatchMouseEvent", type="mouseReleased", x=x + 96, y=y + 32, button="left", clickCount=1
    )
    tab.wait(f"{camera} !== {json.dumps(before)}")  # the scene turns with the next frame
    assert tab.errors == []


def test_the_scheme_reaches_every_figure(tab: Tab, url: str) -> None:
    tab.view(1200, 900, dark=False)
    tab.open(url)
    show(tab, "fig-splits")
    ink = "document.getElementById('fig-splits')._fullLayout.font.color"
    light = tab.js(ink)
    paper = tab.js("getComputedStyle(document.body).backgroundColor")
    tab.view(1200, 900, dark=True)
    tab.wait(f"{ink} !== '{light}'")
    assert tab.js("getComputedStyle(document.body).backgroundColor") != paper
    assert tab.errors == []


def test_a_narrow_window_does_not_scroll_sideways(tab: Tab, url: str) -> None:
    tab.view(390, 800)
    tab.open(url)
    assert tab.js("document.documentElement.scrollWidth") <= 390


def test_any_two_specs_can_be_chosen(tab: Tab, url: str) -> None:
    tab.view(1200, 900)
    tab.open(url)
    visible = (
        "[...document.querySelectorAll('details.diff')].filter(d => !d.hidden).map(d => d.dataset.right)"
    )
    assert tab.js(visible) == ["walkthrough.xqa"]
    tab.js(
        "(() => { const s = document.querySelectorAll('.diff-chooser select')[1];"
        "s.value = 'walkthrough.triton'; s.dispatchEvent(new Event('change')); })()"
    )
    assert tab.js(visible) == ["walkthrough.triton"]


def test_a_platform_picked_in_the_plane_is_picked_in_space(tab: Tab, url: str) -> None:
    tab.view(1400, 900)
    tab.open(url)
    show(tab, SCENE)
    tab.js("document.querySelector('.pick button[data-platform=\"B200\"]').click()")
    assert tab.js("document.querySelectorAll('svg.plane .tri.on').length") == 1
    faded = f"document.getElementById('{SCENE}').data.filter(t => t.meta && t.opacity < 1).map(t => t.meta)"
    tab.wait(f"{faded}.length === 2")
    assert tab.js(faded) == ["H200", "SM120"]
    tab.js("document.querySelector('.pick button[data-platform=\"B200\"]').click()")
    tab.wait(f"{faded}.length === 0")
    assert tab.errors == []


def test_hostile_names_run_nothing(tab: Tab, tmp_path: Path) -> None:
    from tests.reports.test_html import hostile_report

    path = tmp_path / "hostile.html"
    path.write_text(render(hostile_report()), encoding="utf-8")
    tab.view(1400, 900)
    tab.js("window.stop()")
    tab.open(path.as_uri())
    tab.js("window.alert = () => { throw new Error('ran'); }")
    for holder in tab.js("[...document.querySelectorAll('.plot')].map(p => p.id)"):
        show(tab, holder)
    assert tab.js("document.images.length") == 0
    assert not [e for e in tab.errors if "ran" in e or "Refused" in e]
