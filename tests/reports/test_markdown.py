"""Markdown: whole tables, and nothing in a name is markup."""

from __future__ import annotations

import re

import pytest

from reports.markdown import code, escape, render_markdown
from tests.reports import synthetic
from tests.reports.test_html import HOSTILE, hostile_report


@pytest.fixture(scope="module")
def text() -> str:
    return render_markdown(synthetic.report())


def columns(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row))


def test_every_table_is_whole(text: str) -> None:
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if re.fullmatch(r"\|(:?-+:?\|)+", line)]
    assert len(rules) >= 7
    for i in rules:
        width = columns(lines[i])
        assert columns(lines[i - 1]) == width
        row = i + 1
        while row < len(lines) and lines[row].startswith("|"):
            assert columns(lines[row]) == width, lines[row]
            row += 1
        assert row > i + 1, f"no row under line {i}"


def test_it_says_what_the_page_says(text: str) -> None:
    for expected in (
        "0x3fa97e2d",
        "1.3203125",
        "21,697",
        "275,951.65",
        "not measured traffic",
        "ulpscope report",
    ):
        assert expected in text


def test_hostile_names_stay_text() -> None:
    bad = render_markdown(hostile_report())
    plain = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", bad)
    assert not re.search(r"(?<!\\)<", plain)


def test_escaping() -> None:
    assert escape("a|b *c* <d>\n# e") == r"a\|b \*c\* \<d\> \# e"
    assert code("a`b|c") == "``a`b\\|c``"
    assert code("") == ""
    assert "\n" not in escape(HOSTILE)


def test_it_names_what_only_the_page_has_and_keeps_the_rest_as_text(text: str) -> None:
    assert "Only in the HTML page: the dataflow of each spec, the lines of each spec difference" in text
    assert "| Triton · H200, Triton · B200, Triton · SM120 | 16 |" in text
    assert text.count("last block first") >= 1
    assert re.search(r"\| `walkthrough\.\w+` \| `walkthrough\.\w+` \| \d+ \| \d+ \|", text)


def test_values_of_the_first_output_are_said_to_be_that(text: str) -> None:
    said = "Values and bits in the table are those of the first output"
    assert said not in text
    study = synthetic.study()
    cells = tuple(x.model_copy(update={"outputs": 576}) for x in study.cells)
    many = synthetic.report(studies=(study.model_copy(update={"cells": cells}),))
    assert said in render_markdown(many)


def test_depth_says_positions_and_outputs_apart(text: str) -> None:
    assert "Each entry: 1 position × 256 outputs." in text
    assert "25% at 122,873 (99% ≤ 1, max 4) |" in text
