"""Counts, and gross differences with the cause that was planted."""

import numpy as np
import pytest

from tests.verify.metrics.made import BF16, logits, noisy, run, sequence, top
from verify.metrics.attention import tensor_distance
from verify.metrics.compare import compare_runs
from verify.metrics.health import chosen_cause, find_permutation, run_health

ROWS, VOCAB = 24, 400


def codes(a, b, **more):
    found = compare_runs([run("a", a, **more), run("b", b, **more)], draws=10).pairs[0].findings
    return {f.code: f.text for f in found}


def pair(x, y, tokens=None):
    tokens = np.arange(len(x)) if tokens is None else tokens
    parts = {"tokens": tokens, "prompt": [1]}
    return sequence(values=x, **parts), sequence(values=y, **parts)


def test_rounding_is_no_gross_difference():
    x = logits(ROWS, VOCAB)
    assert codes(*pair(x.astype(BF16), noisy(x, 1, 0.1).astype(BF16))) == {}


def test_other_weights():
    """ "Different device logits" with other best tokens were a missing checkpoint shard (known fault)."""
    found = codes(*pair(logits(ROWS, VOCAB), logits(ROWS, VOCAB, seed=1)))
    assert "not numerics" in found["gross"]
    assert "check weights" in found["weights"]


def test_a_later_text():
    x = logits(ROWS, VOCAB)
    y = np.concatenate([x[:4], logits(ROWS - 4, VOCAB, seed=1)])
    found = codes(*pair(x, y))
    assert "first positions agree" in found["text"]


@pytest.mark.parametrize("order", [np.roll(np.arange(ROWS), 1), np.random.default_rng(0).permutation(ROWS)])
def test_permuted_rows(order):
    """A wrong layout is told as a permutation, not as a distance of 3.1 (known fault)."""
    x = logits(ROWS, VOCAB)
    found = codes(*pair(x, noisy(x, 1)[order]))
    assert ("shifted by" if (np.diff(order) == 1).sum() > ROWS / 2 else "permuted") in found["permuted"]


def test_permuted_columns():
    x = logits(ROWS, VOCAB)
    order = np.random.default_rng(0).permutation(VOCAB)
    assert "other columns" in codes(*pair(x, noisy(x, 1, 0.001)[:, order]))["vocabulary"]


@pytest.mark.parametrize(
    ("factor", "cause"), [(np.log(2), "base 2"), (1 / np.log(2), "base 2"), (0.8, "temperature")]
)
def test_a_factor(factor, cause):
    x = logits(ROWS, VOCAB)
    assert cause in codes(*pair(x, (x * factor).astype(np.float32)))["scale"]


def test_logits_against_logprobs():
    x = logits(ROWS, VOCAB)
    y = (x - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))).astype(np.float32)
    assert "log-probabilities" in codes(*pair(x, y))["offset"]


def test_gross_values_of_the_tokens_alone():
    rng = np.random.default_rng(0)
    a = -rng.exponential(2, 60)
    assert chosen_cause(a, a + rng.normal(0, 0.01, 60), True) is None
    assert chosen_cause(a, a / np.log(2), True).code == "scale"
    assert chosen_cause(a, rng.permutation(a), True).code == "permuted"
    assert chosen_cause(a, -rng.exponential(2, 60), True).code == "gross"
    assert chosen_cause(a[:4], -a[:4], True) is None


def test_tokens_that_are_nearly_certain_scatter_less_than_rounding():
    """Greedy text has values near 0 that do not correlate: that is no sign of other weights."""
    rng = np.random.default_rng(0)
    a, b = -rng.exponential(1e-3, (2, 60))
    assert np.corrcoef(a, b)[0, 1] < 0.5
    assert chosen_cause(a, b, True) is None
    assert chosen_cause(1000 * a, 1000 * b, True).code == "gross"
    logit = 25 + rng.normal(0, 0.05, (2, 60))
    assert chosen_cause(*logit, False) is None
    assert chosen_cause(*(25 + rng.normal(0, 3, (2, 60))), False).code == "gross"


def test_permutations():
    x = logits(10, 8).astype(float)
    assert find_permutation(x, x) is None
    assert find_permutation(x, noisy(x, 1)) is None
    assert find_permutation(np.ones((5, 3)), np.ones((5, 3))) is None  # equal rows are no permutation
    swapped = x[[1, 0, *range(2, 10)]]
    assert find_permutation(x, swapped).match == (1, 0, *range(2, 10))
    rolled = find_permutation(x, np.roll(x, 1, axis=0))
    assert rolled.match == (*range(1, 10), 0)
    assert rolled.shift == 1  # nine of ten rows


def test_counts_of_lists():
    lists = top([[1, 2], [1, 2], [1, 2]], np.log([[0.75, 0.5], [0.5, 0.25], [0.5, 0.25]]))
    values = [np.log(0.25), 0.6997, np.nan]
    s = sequence(tokens=[2, 1, 1], chosen=values, top=lists, positions=[0, 1, 5], counts={"null_values": 1})
    found = run_health(run("r", s, kind="raw_logprobs", greedy=True))
    assert found.counts == {
        "null_values": 1,
        "positive_logprobs": 1,
        "sum_above_one": 1,
        "chosen_not_best": 1,
        "missing_positions": 3,
    }
    assert {f.code: f.severity for f in found.findings}["positive_logprobs"] == "error"


def test_counts_of_full_rows():
    x = logits(3, 50)
    x[0, 3], x[1, 4], x[1, 5], x[2, 7] = np.nan, np.inf, -np.inf, -9999
    x[2, 8] = 1e-40
    s = sequence(values=x, tokens=[1, 2, 7])
    found = compare_runs([run("r", s, clamp_floor=-9999.0, greedy=True)]).health[0].counts
    assert found["nan"] == found["positive_infinity"] == found["negative_infinity"] == found["subnormal"] == 1
    assert found["clamped"] == 1
    assert found["chosen_not_best"] == int((x[0] > x[0, 1]).any()) + 1 + 1


def test_printed_probabilities_may_sum_to_a_little_more():
    lists = top([[1, 2, 3]], np.round(np.log([[0.6, 0.3, 0.1]]) + 0.004, 2))
    s = sequence(n=1, top=lists)
    assert "sum_above_one" not in run_health(run("r", s, kind="raw_logprobs", decimals=2)).counts


def test_log_sum_exps_of_queries_without_keys():
    """-infinity, and FlashAttention-2's +infinity, is an empty query and no difference (known fault)."""
    a = np.array([[-np.inf, 1.5], [2.0, 3.0]], np.float32)
    b = np.array([[np.inf, 1.5], [2.0, 3.25]], np.float32)
    found = tensor_distance(0, "lse", a, b)
    assert (found.empty, found.inf_mismatch, found.n, found.max_abs) == (1, 0, 3, 0.25)


def test_permuted_and_base_two_log_sum_exps():
    a = logits(40, 6).astype(np.float32) + 10
    swapped = np.ascontiguousarray(a.T.reshape(40, 6))
    assert tensor_distance(0, "lse", a, swapped).finding.code == "permuted"
    assert tensor_distance(0, "lse", a, a[:, ::-1]).finding.code == "permuted"
    assert "base 2" in tensor_distance(0, "lse", a, (a / np.log(2)).astype(np.float32)).finding.text
    assert tensor_distance(0, "lse", a, noisy(a, 1)).finding is None
    assert tensor_distance(0, "out", a, a[:, :3]).finding.code == "shape"
    nan = a.copy()
    nan[0, 0] = np.nan
    assert tensor_distance(0, "out", a, nan).nan_mismatch == 1
