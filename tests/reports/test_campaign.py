"""Campaigns in reports: values of the database and of the witness, and what has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reports.campaign import campaign_report, text_of
from reports.cli import app
from reports.contract import Report, from_json, to_json
from reports.html import render
from reports.markdown import render_markdown
from search.campaign.case import Case
from search.campaign.database import Database
from search.campaign.plan import Campaign, parse_campaign
from search.campaign.work import Outcome
from specs.errors import InputError
from tests.reports import synthetic
from tests.reports.browser import chromium, find_chromium

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> | [x](javascript:alert(1)) `b"
CORPUS = Path(__file__).parents[1] / "data" / "witnesses"
WITNESS = {f"witness{s}": (CORPUS / f"xqa_triton_64{s}").read_bytes() for s in (".json", ".safetensors")}
#: What the JSON of that witness holds.
REAL, INTEGER, BOUND = 6.1504058837890625, 6, 6.901974773668975

FILE = f"""schema = 1
name = "small"
title = "Groups"
kv_lens = [64]
cancellation = [0.5, 0.1]
methods = ["search", "random"]
seeds = [0, 1, 2]
[[pair]]
sides = ["walkthrough.xqa@h200", "walkthrough.triton@h200"]
set = {{ "a.group" = {json.dumps("tiles(20)")}, "b.segment" = {json.dumps("tiles(12)")} }}
"""


def make(folder: Path, outcomes: Mapping[tuple[str, float, int], dict[str, Any]], text: str = FILE) -> Path:
    """A campaign whose cases ended so, by method, c and seed; the others are pending."""
    plan: Campaign = parse_campaign(text, "small.toml")
    folder.mkdir()
    database = Database.create(folder, plan.file.name, plan.file.title, plan.text, "none:none")
    database.list_cases(plan.cases)
    database.begin_run("loky", 2, {"python": "3.11"})
    for case in plan.cases:
        given = outcomes.get((case.method, case.cancellation, case.seed))
        if given is None:
            continue
        fields = dict(given)
        status, message = fields.pop("status", "done"), fields.pop("message", "")
        files = fields.pop("files", {})
        outcome = Outcome(**fields) if status == "done" else None
        database.record(case.id, status, status, seconds=1.5, message=message, outcome=outcome, files=files)
    database.end_run("finished")
    database.close()
    return folder


def hit(best: float, bound: float | None = None, **more: Any) -> dict[str, Any]:
    details = {
        "bound_rigor": None if bound is None else "rigorous",
        "no_bound": "" if bound else "it is no kernel",
    }
    return {
        "found": "witness",
        "best_ulp": best,
        "integer_ulp": int(best),
        "bound_ulp": bound,
        "evaluations": 1000,
        "details": details,
        **more,
    }


def nothing(reason: str = "all broke c") -> dict[str, Any]:
    return {"found": "nothing", "evaluations": 900, "details": {"reason": reason}}


OUTCOMES: dict[tuple[str, float, int], dict[str, Any]] = {
    ("search", 0.5, 0): hit(REAL, BOUND, integer_ulp=INTEGER, witness="witness.json", files=WITNESS),
    ("search", 0.5, 1): hit(5.0, BOUND),
    ("search", 0.5, 2): hit(4.0, BOUND, cut_by_wall_time=True),
    ("random", 0.5, 0): hit(0.125),
    ("random", 0.5, 1): nothing(),
    ("random", 0.5, 2): nothing(),
    ("search", 0.1, 0): {"found": "infeasible", "details": {"reason": "no weight is left"}},
    ("search", 0.1, 1): {"status": "failed", "message": "ValueError: no luck"},
    ("search", 0.1, 2): {"status": "crashed", "message": "killed 3 workers"},
    ("random", 0.1, 0): {"status": "timeout", "message": "stopped after 3 s"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("campaign") / "small", OUTCOMES)


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return campaign_report(folder, folder, "ulpscope report --campaign small")


def find(report: Report, method: str, seed: int, group: int = 0) -> Any:
    assert report.campaign is not None
    return next(m for m in report.campaign.cases if (m.method, m.seed, m.group) == (method, seed, group))


def test_values_are_those_of_database_and_witness(report: Report) -> None:
    case = find(report, "search", 0)
    stored = json.loads(WITNESS["witness.json"])
    (ratios,) = stored["ratios"]
    assert (case.best_ulp, case.integer_ulp, case.bound_ulp, case.evaluations) == (REAL, INTEGER, BOUND, 1000)
    assert case.share == pytest.approx(0.89111, abs=5e-6)  # 6.1504 / 6.9020
    assert (case.over_mean, case.over_largest) == (ratios["over_mean"], ratios["over_largest"])
    assert case.survives == stored["certificate"]["survives_exp_error_ulps"]
    assert case.certified is True
    assert re.fullmatch(r"\./witnesses/[0-9a-f]{16}/witness\.json", case.witness)
    assert report.campaign is not None
    assert not report.campaign.notes


def test_what_is_missing_says_why(report: Report) -> None:
    bare, pending = find(report, "random", 0), find(report, "random", 2, group=1)
    assert bare.missing["witness"] == "the database names no witness file"
    assert bare.missing["bound_ulp"] == "it is no kernel"
    assert pending.status == "pending"
    assert set(pending.missing.values()) == {"the case has not run yet"}


def test_the_verdict_counts_and_names_the_largest(report: Report) -> None:
    text = "\n".join([report.verdict.headline, *report.verdict.points])
    assert report.verdict.headline == "small: up to 6.15 real ULP apart"
    assert "8 of 12" not in text
    assert "7 of 12 cases done, 1 failed, 1 crashed, 2 pending, 1 timed out, 1 of the done cut" in text
    assert "89.1% of a rigorous bound of 6.902 ULP" in text
    assert "1 of 4 witnesses are certified" in text
    assert "1 of 2 combinations have no witness" in text
    assert report.verdict.diverges


def test_methods_meet_on_the_same_case(report: Report) -> None:
    assert report.campaign is not None
    search, random = report.campaign.groups[0].methods
    assert (search.median, search.best, search.found, search.cut) == (5.0, REAL, 3, 1)
    # Two of three seeds found nothing, so that the median found nothing.
    assert (random.median, random.best, random.found, random.finished) == (None, 0.125, 1, 3)


def test_page_and_markdown_say_what_was_not_found(report: Report) -> None:
    page, text = render(report), render_markdown(report)
    for said in (
        "no weight is left",
        "ValueError: no luck",
        "killed 3 workers",
        "stopped after 3 s",
        "all broke c",
    ):
        assert said in page
        assert said in text
    for heading in (
        "Nothing within the budget",
        "Proved infeasible",
        "Failed",
        "Crashed",
        "Cut by wall time",
    ):
        assert heading in page
        assert f"**{heading}**" in text
    assert 'href="#campaign-not"' in page
    assert "fig-campaign-1" in page
    assert from_json(to_json(report)) == report


def test_a_report_without_a_campaign_has_no_trace_of_it() -> None:
    plain = synthetic.report()
    assert "campaign" not in json.loads(to_json(plain))
    assert from_json(to_json(plain)) == plain
    assert 'href="#campaign' not in render(plain)
    assert "What was not found" not in render_markdown(plain)


def test_witnesses_that_are_damaged_or_differ_are_named(tmp_path: Path) -> None:
    key: tuple[str, float, int] = ("search", 0.5, 0)
    broken = WITNESS | {"witness.json": b"{}"}
    outcomes: dict[tuple[str, float, int], dict[str, Any]] = {
        key: hit(REAL, witness="witness.json", files=broken)
    }
    found = campaign_report(make(tmp_path / "a", outcomes), tmp_path, "x")
    assert find(found, key[0], key[2]).missing["witness"].startswith("the witness cannot be read: ")
    outcomes = {key: hit(7.5, 5.0, witness="witness.json", files=WITNESS)}
    found = campaign_report(make(tmp_path / "b", outcomes), tmp_path, "x")
    assert found.campaign is not None
    said = " ".join(note.text for note in found.campaign.notes)
    assert "objective is 7.5 in the database and 6.1504058837890625 in the witness" in said
    assert "lies above a rigorous bound" in said
    assert find(found, key[0], key[2]).witness.startswith("./b/witnesses/")


@pytest.mark.parametrize("outcomes", [{}, {("random", 0.5, 0): nothing()}])
def test_a_campaign_without_witnesses_has_a_report(tmp_path: Path, outcomes: Any) -> None:
    report = campaign_report(make(tmp_path / "a", outcomes), tmp_path, "x")
    assert report.verdict.headline == "small: no witness yet"
    assert not report.verdict.diverges
    assert "Not run yet" in render(report)
    assert "Not run yet" in render_markdown(report)


def test_a_campaign_without_cases_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Database.create(tmp_path / "a", "none", "", "", "none:none").close()
    report = campaign_report(tmp_path / "a", tmp_path, "x")
    assert report.verdict.headline == "none: no cases"
    assert "has no cases" in render(report)
    assert "has no cases" in render_markdown(report)


def test_text_that_cannot_be_encoded_or_is_none() -> None:
    assert text_of("a\ud800") == "a?"
    assert text_of(["x"]) == ""
    assert text_of("abc", 2) == "ab…"


class Tags(HTMLParser):
    """Tags that a browser would see, and attributes that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.running: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.running += [
            f"{n}={v}" for n, v in attrs if n.startswith("on") or "javascript:" in (v or "")[:12]
        ]


def test_text_of_strangers_stays_text(tmp_path: Path, report: Report) -> None:
    text = FILE.replace('title = "Groups"', f"title = {json.dumps(HOSTILE)}")
    bad = hit(1.0, details={"bound_rigor": HOSTILE, "no_bound": HOSTILE}, bound_ulp=2.0)
    outcomes = {
        ("search", 0.5, 0): bad,
        ("random", 0.5, 0): nothing(HOSTILE),
        ("random", 0.5, 1): {"status": "failed", "message": HOSTILE},
    }
    made = make(tmp_path / "a", outcomes, text)
    case = parse_campaign(text, "small.toml").cases[0].to_json()
    case["sides"][0]["cell"] = HOSTILE
    case["seed"] = 77
    database = Database(made)
    database.list_cases([Case.from_json(case)])
    database.close()
    found = campaign_report(made, tmp_path, HOSTILE)
    page, seen, good = render(found), Tags(), Tags()
    page.encode()
    seen.feed(page)
    good.feed(render(report))
    assert "img" not in seen.tags
    assert seen.tags.count("script") <= good.tags.count("script")
    assert not seen.running
    markdown = render_markdown(found)
    cleaned = re.sub(r"(`+).*?\1", "", markdown)
    assert not re.search(r"(?<!\\)<(?!\./)", cleaned)
    assert not re.search(r"(?<!\\)\]\(javascript", cleaned)


def test_the_command_writes_beside_the_database(tmp_path: Path) -> None:
    made = make(tmp_path / "a", {("search", 0.5, 0): hit(3.0)})
    result = CliRunner().invoke(app, ["report", "--campaign", str(made), "--format", "json"])
    assert result.exit_code == 0, result.output
    assert [Path(p).parent for p in json.loads(result.stdout)["files"]] == [made] * 3
    assert from_json((made / "report.json").read_text()).campaign is not None
    wrong = CliRunner().invoke(app, ["report", "--campaign", str(made), "--teaching"])
    assert wrong.exit_code == 2
    assert "--teaching" in wrong.output


def test_no_campaign_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        campaign_report(tmp_path / "none", tmp_path, "x")
    assert CliRunner().invoke(app, ["report", "--campaign", str(tmp_path / "none")]).exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
def test_the_page_opens_in_a_browser(tmp_path: Path, report: Report) -> None:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    file = tmp_path / "report.html"
    file.write_text(render(report), encoding="utf-8")
    with chromium(path) as tab:
        for width in (1400, 420):
            tab.view(width, 1000)
            tab.open(file.as_uri())
            tab.js("document.getElementById('fig-campaign-1').scrollIntoView()")
            tab.wait("!!document.getElementById('fig-campaign-1')._fullLayout")
            assert tab.js("document.documentElement.scrollWidth") <= width
        assert tab.errors == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in tab.requests)
