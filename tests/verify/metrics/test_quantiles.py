import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from verify.metrics.quantiles import RadixHistogram, log_bins

WANTED = (0.0, 0.001, 0.5, 0.9, 0.999, 1.0)


def filled(parts: list[np.ndarray], dtype: type, keep: int = 1 << 20) -> RadixHistogram:
    histogram = RadixHistogram(dtype, keep)
    for part in parts:
        histogram.add(part)
    for _ in range(4):
        missing = histogram.unresolved(WANTED)
        if not missing:
            break
        for part in parts:
            histogram.refine(part, missing)
    return histogram


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keep", [1 << 20, 0], ids=["kept", "refined"])
@settings(max_examples=20)
@given(data=st.data())
def test_quantiles_are_numpys(dtype, keep, data):
    width = 32 if dtype is np.float32 else 64
    numbers = st.floats(0, width=width, allow_nan=False, allow_infinity=False)
    parts = data.draw(st.lists(arrays(dtype, st.integers(1, 20), elements=numbers), min_size=1, max_size=4))
    histogram = filled([np.abs(p) for p in parts], dtype, keep)
    ordered = np.sort(np.abs(np.concatenate(parts)).astype(np.float64))
    for q, found in zip(WANTED, histogram.quantiles(WANTED), strict=True):
        place = q * (len(ordered) - 1)
        low, high = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
        with np.errstate(over="ignore", invalid="ignore"):
            assert found == low + (high - low) * (place - np.floor(place))


def test_subnormal_numbers_are_told_apart():
    steps = np.arange(1001, dtype=np.uint32).view(np.float32)
    for keep in (1 << 20, 0):
        assert filled([steps], np.float32, keep).quantiles([0.5])[0] == 500 * 2.0**-149


def test_many_numbers_refined():
    x = np.abs(np.random.default_rng(1).standard_normal(50_000)).astype(np.float32)
    histogram = filled(np.array_split(x, 7), np.float32, keep=100)
    assert histogram.quantiles(WANTED) == pytest.approx(np.quantile(x.astype(np.float64), WANTED), rel=1e-15)


def test_a_pass_that_is_missing_is_an_error():
    histogram = RadixHistogram(np.float32, keep=0)
    histogram.add(np.array([0.1, 0.2], np.float32))
    with pytest.raises(ValueError, match="further pass"):
        histogram.quantiles([0.5])


def test_nothing_counted_and_zeros():
    histogram = RadixHistogram()
    assert histogram.quantiles([0.5]) == (None,)
    histogram.add_zeros(3)
    histogram.add(np.array([1.5], np.float32))
    assert histogram.quantiles([0.5, 1.0]) == (0.0, 1.5)


def test_bins_double():
    counts = np.zeros(20, np.int64)
    counts[[0, 1, 2, 3, 4, 5, 9]] = [7, 6, 5, 4, 3, 2, 1]
    assert log_bins(counts) == [(0, 0, 7), (1, 1, 6), (2, 2, 5), (3, 4, 7), (5, 8, 2), (9, 16, 1)]
