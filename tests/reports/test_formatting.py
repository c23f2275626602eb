"""Figures for people."""

from __future__ import annotations

import pytest

from reports.formatting import mb, percent, short, span
from reports.wording import plural, spelled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (1.5, "1.5"),
        (12431.2, "12,431"),
        (2.0e8, "2.00e+08"),
        (99.96, "100"),
        (3e-9, "3.00e-09"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (1, "100%"), (0.5, "50%"), (0.0001, "<0.1%"), (0.9999, ">99.9%"), (0.123, "12.3%")],
)
def test_percent_never_claims_all_or_nothing_falsely(share: float, text: str) -> None:
    assert percent(share) == text


def test_the_rest() -> None:
    assert mb(301989888) == "301.99"
    assert span((5, 5)) == "5"
    assert span((5, 1320)) == "5–1,320"
    assert span(None) == "–"
    assert plural(1, "cell") == "one cell"
    assert plural(9, "cell") == "nine cells"
    assert spelled(9060) == "9,060"
