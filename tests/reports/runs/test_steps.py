"""Steps in depth: found where a kernel changes at a length, and not where only the text does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reports.runs import measured as m
from reports.runs.build import compare
from reports.runs.steps import sentences, step
from tests.reports.runs import making
from tests.verify.metrics import made
from verify.metrics.depth import by_depth

ROWS = 16 * 512
DEPTH = np.tile(np.arange(512), 16)
GROUPS = np.repeat(np.arange(16), 512)


def pair(distance: Any, nll: Any = None, first: str = "a") -> Any:
    strata = {} if nll is None else {"nll": nll}
    bins = by_depth(DEPTH, GROUPS, {"mean_abs": np.asarray(distance, float)}, strata)
    return SimpleNamespace(first=first, second="z", depth=m.take_all(m.Bin, bins), position=None)


def noise(seed: int = 0) -> Any:
    return np.random.default_rng(seed).exponential(1.0, ROWS)


@pytest.mark.parametrize("edge", [64, 128, 256])
@pytest.mark.parametrize("factor", [0.1, 4.0])
def test_a_kernel_that_changes_at_a_length(edge, factor):
    """Another block size from 256 tokens on (known fault), and its kind."""
    found = step(pair(noise() * np.where(edge <= DEPTH, factor, 1.0), nll=np.full(ROWS, 0.3)))
    assert found is not None
    assert (found.axis, found.at) == ("depth", edge)
    assert found.after / found.before == pytest.approx(factor, rel=0.2)


def test_nothing_differs_before():
    found = list(sentences([pair(np.where((DEPTH >= 256) & (DEPTH % 50 == 0), 2.0, 0.0))]))
    assert len(found) == 1
    assert found[0].startswith("a and z agree in all 4,096 rows below depth 256 and differ from there on")


def test_few_rows_differ_and_none_from_a_length_on():
    """2% of the positions below 256 differ, as of a kernel whose block shrinks there (known fault)."""
    few = noise() * ((DEPTH < 256) & (np.random.default_rng(1).random(ROWS) < 0.02))
    found = step(pair(few, nll=np.full(ROWS, 0.3)))
    assert found is not None
    assert (found.at, found.after) == (256, 0)
    assert step(pair(few * (DEPTH < 16))) is None  # too few rows to know


def test_the_text_is_no_step():
    """Rows fall into loops that everybody predicts: each stratum is flat though the raw curve falls."""
    loop = DEPTH >= 128
    loop &= GROUPS >= 2
    distance = noise() * np.where(loop, 0.001, 1.0)
    assert step(pair(distance, nll=np.where(loop, 1e-4, 0.3))) is None
    assert step(pair(distance)) is not None  # without what tokens cost, nobody could know


def test_noise_growth_and_peaks_are_no_steps():
    assert step(pair(noise())) is None
    assert step(pair(noise() * (1 + DEPTH / 400))) is None
    inside = (DEPTH >= 128) & (DEPTH < 256)
    assert step(pair(noise() * np.where(inside, 5.0, 1.0))) is None


def test_pairs_are_told_together():
    jump = np.where(DEPTH < 256, 1.0, 3.0)
    found = list(sentences([pair(noise(i) * jump * (1 + i), first=f"r{i}") for i in range(3)]))
    assert len(found) == 1
    assert "step at depth 256" in found[0]
    assert "as do 2 more pairs" in found[0]


def test_a_report_says_so():
    rows = 512
    values = making.base(rows)
    other = values + np.where(np.arange(rows) < 256, 0.0, 1.0)[:, None].astype(np.float32) * making.pattern(1)
    runs = [made.run(n, made.sequence(values=x)) for n, x in (("a", values), ("b", other))]
    points = compare(runs, draws=2)[0].verdict.points
    assert any("agree in all 256 rows below depth 256" in p for p in points), points
