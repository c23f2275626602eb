"""Distances to likelihoods: bins, pooling, ranks, and how many positions are needed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify.identify.likelihood import (
    BEYOND,
    DISTURBED,
    bin_of,
    disturbed_share,
    log_likelihood,
    log_likelihood_of_none,
    pooled,
    positions_needed,
    posteriors,
    widths,
)


def test_bins_end_at_powers_of_two_and_mismatches_have_their_own():
    d = np.array([0, 1, 2, 3, 4, 5, 8, 9, 1 << 40, (1 << 40) + 1, BEYOND])
    assert bin_of(d).tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 41, 42, 65]


@given(st.lists(st.integers(0, 1 << 62), min_size=1, max_size=50))
def test_every_distance_lies_in_a_bin_of_its_width(distances):
    bins = bin_of(np.array(distances, np.int64))
    for d, b in zip(distances, bins.tolist(), strict=True):
        low, high = (b, b) if b < 2 else (2 ** (b - 2) + 1, 2 ** (b - 1))
        assert low <= d <= high
        assert widths()[b] == high - low + 1


def test_pooled_is_a_distribution_over_distances():
    h = pooled([np.array([0, 0, 3, 4]), np.array([1, BEYOND])])
    assert float((h * widths()).sum()) == pytest.approx(1.0)
    counted = 0.5 * len(h) + 6
    assert h[0] == pytest.approx(2.5 / counted)
    assert h[3] == pytest.approx(2.5 / counted / 2)


def test_likelihood_by_hand():
    h = np.full(66, 0.25)
    d = np.array([0, 0, 7])
    want = 2 * math.log(0.999 + 0.001 * 0.25) + math.log(0.001 * 0.25)
    assert log_likelihood(d, h, 1e-3) == pytest.approx(want, rel=1e-12)
    assert log_likelihood_of_none(d, h) == pytest.approx(3 * math.log(0.25))


def test_posteriors_add_up_and_survive_large_numbers():
    assert posteriors([-1e6, -1e6 - math.log(3)]) == pytest.approx([0.75, 0.25])
    assert posteriors([]) == []


@pytest.mark.parametrize(
    ("share", "needed"), [(0.5, 7), (0.1, 44), (0.001, 4603), (1.0, 1), (0.0, None), (0.995, 1)]
)
def test_positions_needed(share, needed):
    assert positions_needed(share) == needed
    if needed is not None and 0 < share < 1:
        assert (1 - share) ** needed <= 0.01 < (1 - share) ** (needed - 1)


def test_disturbed_share_keeps_within_reason():
    assert disturbed_share(0, 0) == disturbed_share(0, 1000) == DISTURBED
    assert disturbed_share(30, 100) == pytest.approx(0.3)
    assert disturbed_share(99, 100) == 0.5
