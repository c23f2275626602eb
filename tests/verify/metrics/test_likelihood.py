"""Against the formulas of llama.cpp's tools/perplexity/perplexity.cpp, written out by hand, and textbook estimators."""

from math import exp, inf, log, nan, sqrt

import numpy as np
import pytest

from verify.metrics.likelihood import likelihood, spread


def drawn(n=500, seed=0):
    rng = np.random.default_rng(seed)
    a = -rng.exponential(1.5, n)
    return a, np.minimum(0, a + rng.normal(0, 0.05, n))


def mean_and_error(values):
    """llama.cpp: kld_mean = sum / n; error = sqrt((sum2 / n - mean^2) / (n - 1))."""
    n = len(values)
    mean = sum(values) / n
    return mean, sqrt((sum(v * v for v in values) / n - mean * mean) / (n - 1))


def test_perplexities_and_their_ratio():
    a, b = drawn()
    found = likelihood(a, b)
    nll_a, err_a = mean_and_error([-v for v in a])
    nll_b, err_b = mean_and_error([-v for v in b])
    assert (found.ppl_a.value, found.ppl_a.error) == pytest.approx((exp(nll_a), exp(nll_a) * err_a))
    # covariance(suma, sumb, sumab, count) = (sumab / count - suma / count * sumb / count) / (count - 1)
    n = len(a)
    covariance = (sum(x * y for x, y in zip(a, b, strict=True)) / n - nll_a * nll_b) / (n - 1)
    assert found.correlation == pytest.approx(covariance / (err_a * err_b))
    ratio_error = sqrt(err_a**2 + err_b**2 - 2 * covariance)
    assert (found.ln_ratio.value, found.ln_ratio.error) == pytest.approx((nll_b - nll_a, ratio_error))
    assert found.ratio.value == pytest.approx(exp(nll_b) / exp(nll_a))
    assert found.ratio.error == pytest.approx(found.ratio.value * ratio_error)


def test_changes_of_probability():
    a, b = drawn()
    found = likelihood(a, b).delta_p
    dp = [exp(y) - exp(x) for x, y in zip(a, b, strict=True)]
    mean, error = mean_and_error(dp)
    assert (found.mean.value, found.mean.error) == pytest.approx((mean, error))
    square, square_error = mean_and_error([v * v for v in dp])
    rms = sqrt(square)
    assert (found.rms.value, found.rms.error) == pytest.approx((rms, 0.5 / rms * square_error))
    percents = (99.9, 99, 95, 90, 75, 50, 25, 10, 5, 1, 0.1)
    assert dict(found.percentiles) == pytest.approx({p: np.percentile(dp, p) for p in percents})
    assert (found.minimum, found.maximum) == (min(dp), max(dp))


def test_estimators_of_ratios():
    a, b = np.log([0.5, 0.25, 0.2, 0.8]), np.log([0.25, 0.25, 0.21, 0.96])
    found = likelihood(a, b)
    ratio = [0.5, 1.0, 1.05, 1.2]
    assert found.k1.value == pytest.approx(-sum(map(log, ratio)) / 4)
    assert found.k3.value == pytest.approx(sum(r - 1 - log(r) for r in ratio) / 4)
    assert found.chi2 == pytest.approx(sum(r * r for r in ratio) / 4 - 1)
    assert found.ess == pytest.approx(sum(ratio) ** 2 / sum(r * r for r in ratio) / 4)
    assert (found.outside, found.high, found.low) == (0.5, 0.25, 0.25)
    assert (found.ratio_max, found.ratio_min) == pytest.approx((1.2, 0.5))
    assert found.pearson_p == pytest.approx(
        np.corrcoef([0.5, 0.25, 0.2, 0.8], [0.25, 0.25, 0.21, 0.96])[0, 1]
    )


def test_k3_is_the_divergence_where_tokens_are_drawn_from_the_base():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.35, 0.25])
    counts = np.array([500, 300, 200])  # exact shares
    found = likelihood(np.repeat(np.log(p), counts), np.repeat(np.log(q), counts))
    kl = float((p * np.log(p / q)).sum())
    assert (found.k1.value, found.k3.value) == pytest.approx((kl, kl))


def test_what_is_no_logprob_is_left_out_and_counted():
    """Null, infinite and positive values, as of the public report with +0.6997 (known fault)."""
    found = likelihood(np.array([-1.0, nan, -inf, 0.6997, -2.0]), np.array([-1.5, -1.0, -1.0, -1.0, -2.0]))
    assert (found.n, found.left_out) == (2, 3)
    assert found.difference.mean.value == -0.25


def test_one_token_has_no_error_and_nothing_has_nothing():
    assert likelihood(np.array([-1.0]), np.array([-1.5])).nll_a.error is None
    empty = likelihood(np.zeros(0), np.zeros(0))
    assert (empty.n, empty.ppl_a, empty.chi2, empty.difference.n) == (0, None, None, 0)
    assert likelihood(np.array([-1.0, -1.0]), np.array([-1.0, -2.0])).correlation is None


def test_spread_leaves_out_infinities():
    found = spread(np.array([1.0, inf, 3.0, nan]))
    assert (found.n, found.mean.value, found.maximum) == (2, 2.0, 3.0)


def test_ratios_that_overflow_are_infinite():
    found = likelihood(np.array([-1000.0, -1.0, -2.0]), np.array([-0.5, -1.5, -2.0]))
    assert found.ratio_max == np.inf
    assert found.difference.maximum == 999.5
    assert found.k3.value == np.inf
