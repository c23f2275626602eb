"""The page of proofs in a real Chromium: nothing fetched, no error, folded and unfolded, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.prove.page import render
from tests.reports.browser import Tab, chromium, find_chromium
from tests.reports.prove import made

pytestmark = pytest.mark.browser
#: Each status in words with its contrast, by the formula of WCAG 2.
CONTRAST = """[...document.querySelectorAll('#terms .status')].map(badge => {
    const rgb = c => c.match(/[\\d.]+/g).map(Number);
    const behind = e => {
        const c = rgb(getComputedStyle(e).backgroundColor);
        return c.length === 4 && c[3] === 0 ? behind(e.parentElement) : c;
    };
    const linear = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const [x, y] = [light(rgb(getComputedStyle(badge).color)), light(behind(badge))];
    return [badge.textContent, (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05)];
})"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with chromium(path) as found:
        yield found


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("page")
    found: dict[str, str] = {}
    for name, report in (("all", made.proofs()), ("library", made.library(40))):
        path = folder / f"{name}.html"
        path.write_text(render(report), encoding="utf-8")
        found[name] = path.as_uri()
    return found


def opened(tab: Tab, url: str, width: int = 1280, *, dark: bool = False) -> None:
    tab.errors.clear()
    tab.requests.clear()
    tab.view(width, 900, dark=dark)
    tab.open(url)


@pytest.mark.parametrize("name", ["all", "library"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_it_opens_fits_and_fetches_nothing(
    tab: Tab, urls: dict[str, str], name: str, width: int, dark: bool
) -> None:
    opened(tab, urls[name], width, dark=dark)
    tab.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.js(
        "[...document.querySelectorAll('details.claim')].every(d => d.getBoundingClientRect().right <= innerWidth)"
    )
    assert tab.errors == []
    assert set(tab.requests) == {urls[name]}


def test_a_library_is_folded_and_a_link_unfolds_its_claim(tab: Tab, urls: dict[str, str]) -> None:
    opened(tab, urls["library"])
    seen = "[...document.querySelectorAll('details.claim')].filter(d => d.checkVisibility()).length"
    assert tab.js(seen) == 2  # what is not proved; 240 proofs are folded by spec
    tab.js("document.querySelector('table.proofs a[href=\"#claim-100\"]').click()")
    tab.wait("document.getElementById('claim-100').open")
    assert tab.js("document.getElementById('claim-100').checkVisibility()")
    top = "document.getElementById('claim-100').getBoundingClientRect().top"
    tab.wait(f"{top} > -1 && {top} < 900")
    tab.wait(f"{seen} === 8")  # with the five others of its spec
    tab.js("document.querySelector('#claim-100 a.ref').click()")
    tab.wait("location.hash === '#assumption-1'")


@pytest.mark.parametrize("dark", [False, True])
def test_statuses_differ_without_colour(tab: Tab, urls: dict[str, str], dark: bool) -> None:
    """By what is computed: no two have the same word, the same mark, or the same kind of outline and ground at once."""
    opened(tab, urls["all"], dark=dark)
    looks = tab.js(
        """[...new Map([...document.querySelectorAll('#terms .status')].map(b => {
            const style = getComputedStyle(b);
            return [b.textContent, [b.textContent, b.querySelector('path').getAttribute('d'), style.borderTopStyle]];
        })).values()]"""
    )
    assert len(looks) == len({x[0] for x in looks}) == len({x[1] for x in looks}) == 7
    outline = {word: style for word, _, style in looks}
    assert (outline["tested"], outline["not decided"]) == ("dashed", "dotted")
    assert outline["proved"] == "solid"


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read(tab: Tab, urls: dict[str, str], dark: bool) -> None:
    """The contrast of every status with what is behind it: at least 4.5 to 1, as WCAG asks of small text."""
    opened(tab, urls["all"], dark=dark)
    ratios = tab.js(CONTRAST)
    assert len(ratios) >= 7
    assert not [(word, round(ratio, 2)) for word, ratio in ratios if ratio < 4.5]
