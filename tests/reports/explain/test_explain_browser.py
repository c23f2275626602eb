"""The page of an explanation in a real Chromium: no error, nothing fetched, all drawn, wide and narrow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from reports.explain.build import build
from reports.explain.page import render
from search.explain.explain import explain
from specs import load_platform, load_spec
from tests.reports.browser import Tab, chromium, find_chromium
from verify.case import Case

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with chromium(path) as found:
        yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(7)
    arrays = {
        "scores": rng.standard_normal((2, 300)).astype(np.float32),
        "values": rng.standard_normal((300, 3)).astype(np.float32),
    }
    h200 = load_platform("h200")
    sides = [(load_spec(f"walkthrough.{name}"), h200) for name in ("flash_attention_2", "xqa")]
    found = explain(Case("small", arrays), sides[0], sides[1], backend="oracle")
    made = build(found, input_name="small", command="ulpscope explain ...", seed=0, began=time.perf_counter())
    path: Path = tmp_path_factory.mktemp("page") / "explain.html"
    path.write_text(render(made), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1300, 390])
def test_it_opens_draws_and_fetches_nothing(tab: Tab, url: str, width: int) -> None:
    tab.view(width, 900)
    tab.open(url)
    assert tab.js("document.documentElement.scrollWidth") <= width
    holders = tab.js("[...document.querySelectorAll('.plot')].map(p => p.id)")
    assert holders == ["fig-travel", "fig-waterfall-0"]
    for holder in holders:
        tab.js(
            f"document.getElementById('{holder}').scrollIntoView({{behavior: 'instant', block: 'center'}})"
        )
        tab.wait(f"!!document.getElementById('{holder}')._fullLayout")
    assert tab.js("document.querySelectorAll('#fig-waterfall-0 .waterfalllayer .point').length") == 6
    assert tab.errors == []
    assert set(tab.requests) == {url}
