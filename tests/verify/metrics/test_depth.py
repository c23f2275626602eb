import numpy as np
import pytest

from verify.metrics.depth import by_depth, by_name, depth_edges


def test_edges_are_powers_of_two():
    assert depth_edges(300) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    depths = np.arange(600)
    bins = by_depth(depths, np.zeros(600, np.int64), {"d": np.ones(600)})
    assert [b.name for b in bins] == [
        "0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-511", "512-1023",
    ]  # fmt: skip
    assert [b.rows for b in bins] == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 88]


def test_a_step_at_256_stands_at_an_edge():
    """A kernel that takes another block size from 256 tokens on (known fault)."""
    depths = np.arange(1024)
    d = np.where(depths < 256, 0.001, 0.02)
    bins = {b.name: b.metrics["d"].mean for b in by_depth(depths, np.zeros(1024, np.int64), {"d": d})}
    assert bins["128-255"] == pytest.approx(0.001)
    assert bins["256-511"] == pytest.approx(0.02)
    assert len([v for v in bins.values() if 0.0011 < v < 0.0199]) == 0


def test_a_curve_that_falls_only_since_the_text_changes():
    """Depth confounded by entropy: flat in each stratum of the token's cost, falling in the raw curve."""
    depths = np.tile(np.arange(256), 16)
    groups = np.repeat(np.arange(16), 256)
    loop = (depths >= 64) & (groups >= 2)
    nll = np.where(loop, 1e-4, 0.3)
    d = np.where(loop, 0.0, 0.0225)
    bins = by_depth(depths, groups, {"d": d}, {"nll": nll})
    raw = {b.name: b.metrics["d"].mean for b in bins}
    assert raw["128-255"] < raw["32-63"] / 5
    for b in bins:
        stratum = next(s for s in b.strata if s.low == 0.1)
        assert stratum.metrics["d"].mean == pytest.approx(0.0225)
        assert stratum.high == 1.0
    last = bins[-1]
    assert (last.rows, last.conversations) == (16 * 128, 16)
    assert next(s for s in last.strata if s.low == 0.1).metrics["d"].n == 2 * 128


def test_sequences_leave():
    depths = np.array([0, 1, 2, 3, 0, 1])
    bins = by_depth(depths, np.array([0, 0, 0, 0, 1, 1]), {"d": np.array([1, 2, np.nan, 4, 3, np.inf])})
    assert [(b.rows, b.conversations) for b in bins] == [(2, 2), (2, 2), (2, 1)]
    assert [b.metrics["d"].n for b in bins] == [2, 1, 1]
    assert [b.metrics["d"].mean for b in bins] == [2, 2, 4]
    assert bins[0].metrics["d"].error == pytest.approx(np.std([1, 3], ddof=1) / np.sqrt(2))


def test_ranges():
    names = np.array(["b", "a", "b", ""], np.str_)
    bins = by_name(names, np.arange(4), {"d": np.arange(4.0)})
    assert [(b.name, b.rows, b.metrics["d"].mean) for b in bins] == [("b", 2, 1.0), ("a", 1, 1.0)]


def test_nothing():
    assert by_depth(np.zeros(0, np.int64), np.zeros(0, np.int64), {}) == ()
