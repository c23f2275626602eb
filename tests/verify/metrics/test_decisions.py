from math import sqrt

import numpy as np
import pytest

from tests.verify.metrics.made import ints, sequence
from verify.metrics.align import align_sequences
from verify.metrics.decisions import decide, diverge, modal, wilson


def test_flips_are_split():
    best_a = ints([[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]])
    best_b = ints([[1, 2], [2, 1], [2, 1], [2, 1], [2, 1]])
    margin_a = np.array([1.0, 0.0, 0.2, 3.0, np.nan])
    margin_b = np.array([1.0, 0.1, 0.1, 0.1, 0.1])
    found = decide(best_a, best_b, margin_a, margin_b, distance=0.25)
    assert (found.n, found.flips, found.ties, found.within, found.real, found.unsplit) == (5, 4, 1, 1, 1, 1)
    assert found.same_best.value == pytest.approx(0.2)
    assert found.same_best.error == pytest.approx(sqrt(0.2 * 0.8 / 4))  # llama.cpp: sqrt(p (1 - p) / (n - 1))
    assert sum(b.rows for b in found.margins) == 5
    assert sum(b.flips for b in found.margins) == 4


def test_a_tie_between_the_two_tokens():
    found = decide(
        ints([[1]]), ints([[2]]), np.array([2.0]), np.array([2.0]), distance=0.1, tied=np.array([True])
    )
    assert (found.ties, found.real) == (1, 0)


def test_without_a_distance_nothing_is_called_real():
    found = decide(ints([[1]]), ints([[2]]), np.array([2.0]), np.array([2.0]), distance=None)
    assert (found.flips, found.real, found.within, found.unsplit) == (1, 0, 0, 1)


def test_overlap_and_ranks():
    best_a, best_b = ints([[1, 2, 3, -1], [1, 2, 3, 4]]), ints([[3, 1, 9, 8], [5, 6, 7, 4]])
    ranks = np.array([2.0, 150.0])
    found = decide(best_a, best_b, np.ones(2), np.ones(2), distance=1, ranks=ranks)
    assert found.overlap == pytest.approx((2 / 3 + 1 / 4) / 2)
    assert found.rank_max == 150
    assert dict(found.ranks) == {"0": 0, "1": 0, "2": 1, "3-9": 0, "10-99": 0, "100+": 1}


def test_unknown_best_tokens_say_nothing():
    found = decide(ints([[-1]]), ints([[-1]]), np.array([1.0]), np.array([1.0]), distance=1)
    assert (found.n, found.same_best, found.flips, found.overlap) == (0, None, 0, None)


def test_where_texts_part():
    pairs = [([1, 2, 3], [1, 2, 4]), ([1, 2], [1, 2, 3, 4]), ([1], [2]), ([1, 5, 5], [1, 6, 6])]
    found = diverge(align_sequences(sequence(tokens=x), sequence(tokens=y)) for x, y in pairs)
    assert found.first == (2, None, 0, 1)
    assert (found.pairs, found.forked, found.mean_first) == (4, 3, 1.0)
    assert found.prefix_cdf == ((0, 0.25), (1, 0.5), (2, 0.75))
    assert found.length_differences == (0, 2, 0, 0)


def test_wilson_against_scipy():
    from scipy.stats import binomtest

    for k, n in ((1, 1), (0, 5), (18, 1000), (49, 50)):
        expected = binomtest(k, n).proportion_ci(method="wilson")
        assert wilson(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_unique_completions():
    """18 of 1000 completions were unique in the public report on batch invariance; here by hand."""
    found = modal(["a", "b", "a", "a"])
    assert (found.n, found.distinct, found.share) == (4, 2, 0.75)
    assert (found.low, found.high) == wilson(3, 4)
    assert modal([]) is None
