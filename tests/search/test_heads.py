"""The recorded comparison of methods, and what docs/search.md says of it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from search.baselines import METHODS

ROOT = Path(__file__).parents[2]
RUNS: list[dict[str, Any]] = json.loads(
    (ROOT / "benchmarks" / "results" / "search_heads.json").read_text(encoding="utf-8")
)["heads"]
PAIRS = list(dict.fromkeys(run["pair"] for run in RUNS))
BOUNDS = (1.0, 0.5, 0.1)


def of(pair: str, c: float, method: str) -> list[dict[str, Any]]:
    return [r for r in RUNS if (r["pair"], r["c"], r["method"]) == (pair, c, method) and "real" in r]


def test_every_method_ran_five_seeds_within_the_same_limits() -> None:
    for run in RUNS:
        if "real" in run:
            assert run["evaluations"] <= 100_000
            assert run["seconds"] < 90 if run["cut_by_wall_time"] else run["seconds"] <= 61
    for method in ("search", *(m for m in METHODS if m != "smt")):
        for pair in PAIRS[:3]:
            for c in BOUNDS:
                assert sorted(r["seed"] for r in of(pair, c, method)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["search", *(m for m in METHODS if m != "smt")])
def test_the_table_of_the_docs_is_what_was_recorded(method: str) -> None:
    cells: list[str] = []
    for pair in PAIRS[:3]:
        cut = any(r["cut_by_wall_time"] for c in BOUNDS for r in of(pair, c, method))
        medians = [f"{median(r['real'] for r in of(pair, c, method)):.2f}" for c in BOUNDS]
        cells.append(" / ".join(medians) + (" *" if cut else ""))
    docs = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    assert f"| `{method}` | {' | '.join(cells)} |" in docs


def test_the_worst_search_is_better_than_the_best_of_the_others() -> None:
    for pair in PAIRS[:3]:
        for c in BOUNDS:
            worst = min(r["real"] for r in of(pair, c, "search"))
            others = [r["real"] for m in METHODS for r in of(pair, c, m)]
            assert worst > max(others)
