import numpy as np
import pytest

from verify.metrics.bootstrap import by_group, interval, resample


def names(n):
    return tuple(f"c{i}" for i in range(n))


def test_against_resamples_drawn_one_by_one():
    """Another generator and a plain loop: the intervals agree to a tenth of their width."""
    rng = np.random.default_rng(5)
    x, n = rng.exponential(1.0, 30) * 10, rng.integers(5, 50, 30).astype(float)
    found = interval(x, n, names(30))
    assert found.value == x.sum() / n.sum()
    other = np.random.RandomState(9)
    ratios = []
    for _ in range(2000):
        pick = other.randint(0, 30, 30)
        ratios.append(x[pick].sum() / n[pick].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert interval(x, n, names(30)) == found  # seeded
    assert interval(x, n, names(30), seed=1) != found


def test_the_ratio_is_of_sums_not_a_mean_of_ratios():
    found = interval(np.array([1.0] * 9 + [100.0]), np.array([1.0] * 9 + [1000.0]), names(10))
    assert found.value == 109 / 1009


def test_few_conversations_have_a_range_and_no_interval():
    found = interval(np.array([1.0, 4.0, 0.0]), np.array([1.0, 2.0, 0.0]), ("a", "b", "empty"))
    assert (found.kind, found.value, found.conversations) == ("few conversations", 5 / 3, 2)
    assert (found.low, found.high, found.each) == (1, 2, (("a", 1.0), ("b", 2.0)))


def test_width_is_never_zero():
    equal = interval(np.full(12, 3.0), np.full(12, 2.0), names(12))
    assert (equal.kind, equal.low, equal.high, equal.value) == ("all equal", None, None, 1.5)
    rare = np.zeros(400)
    rare[7] = 1
    found = interval(rare, np.full(400, 100.0), names(400), draws=50)
    assert found.kind == "bootstrap"
    assert found.low < found.high
    assert found.low <= found.value <= found.high


def test_no_data():
    assert interval(np.zeros(3), np.zeros(3), names(3)).kind == "none"


def test_resamples_are_shared_between_metrics():
    sums = np.stack([np.arange(20.0), 2 * np.arange(20.0)], axis=1)
    found = resample(sums, 100)
    assert found[:, 1] == pytest.approx(2 * found[:, 0])
    assert found.shape == (100, 2)


def test_sums_by_group_leave_out_what_is_not_finite():
    total, count = by_group(np.array([1.0, np.nan, np.inf, 4.0]), np.array([0, 0, 1, 2]), 3)
    assert (total.tolist(), count.tolist()) == ([1, 0, 4], [1, 0, 1])
