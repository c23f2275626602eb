import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verify.metrics.made import divergences, ints, logits, noisy, run, sequence, top
from verify.metrics.compare import compare_runs
from verify.metrics.topk import compare_tops, keys_of, masses


def listed(x, k):
    """Lists of the k largest, and the log-sum-exp over all."""
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    lse = np.log(np.exp(x.astype(np.float64)).sum(axis=1))
    return ints(ids), np.take_along_axis(x, ids, axis=1).astype(np.float64), lse


@given(seed=st.integers(0, 10**6), k=st.integers(1, 30), noise=st.sampled_from([0.01, 0.3, 3.0]))
def test_bounds_hold_the_whole_distributions(seed, k, noise):
    a = logits(4, 30, seed, 2.0)
    b = noisy(a, seed + 1, noise)
    (ka, va, la), (kb, vb, lb) = listed(a, k), listed(b, k)
    f = compare_tops((ka, kb), (va, vb), (la, lb)).fields
    true = divergences(a, b)
    slack = 1e-12
    assert (f["kl_low"] <= true["kl"] + slack).all()
    assert (f["kl_reverse_low"] <= true["kl_reverse"] + slack).all()
    assert (f["js_low"] <= true["js"] + slack).all()
    assert (f["js_high"] >= true["js"] - slack).all()
    assert (f["tv_low"] <= true["tv"] + slack).all()
    assert (f["tv_high"] >= true["tv"] - slack).all()
    if k == 30:  # nothing is censored: bounds meet
        assert f["kl_low"] == pytest.approx(true["kl"], abs=1e-12)
        assert f["tv_high"] == pytest.approx(f["tv_low"], abs=1e-12)
        assert f["mass_a"] == pytest.approx(np.zeros(4), abs=1e-12)


def test_by_hand():
    keys = ints([[3, 1, 7]]), ints([[1, 3, 9]])
    p, q = np.array([[0.5, 0.3, 0.1]]), np.array([[0.45, 0.4, 0.1]])
    f = compare_tops(keys, (np.log(p), np.log(q)), (np.zeros(1), np.zeros(1))).fields
    assert (f["shared"][0], f["listed_a"][0], f["best_same"][0]) == (2, 3, 0)
    assert (f["a_best_in_b"][0], f["b_best_in_a"][0]) == (1, 1)
    assert f["max_abs"][0] == pytest.approx(np.log(0.45 / 0.3))
    assert (f["mass_a"][0], f["mass_b"][0]) == pytest.approx((0.1, 0.05))
    expected = 0.5 * np.log(0.5 / 0.4) + 0.3 * np.log(0.3 / 0.45) + 0.2 * np.log(0.2 / 0.15)
    assert f["kl_low"][0] == pytest.approx(expected)
    assert f["tv_low"][0] == pytest.approx((0.1 + 0.15 + 0.05) / 2)
    assert f["tv_high"][0] == pytest.approx((0.1 + 0.15 + 0.2 + 0.15) / 2)


def test_clamped_values_are_left_out_and_counted():
    """-9999.0 against -20.3: censored, not a difference of ten thousand nats (known fault)."""
    keys = ints([[1, 2]]), ints([[1, 2]])
    values = np.array([[-0.1, -9999.0]]), np.array([[-0.125, -20.3]])
    found = compare_tops(keys, values, (np.zeros(1), np.zeros(1)), (-9999.0, None))
    assert (found.fields["clamped"][0], found.fields["shared"][0]) == (1, 1)
    assert found.differences.tolist() == pytest.approx([0.025])


def test_double_and_empty_entries():
    keys = ints([[4, 4, 5, -1], [-1, -1, -1, -1]]), ints([[5, 4, -1, -1], [1, -1, -1, -1]])
    nan = np.nan
    values = (
        np.array([[-1.0, -3.0, -2.0, nan], [nan] * 4]),
        np.array([[-2.0, -1.5, nan, nan], [-1, nan, nan, nan]]),
    )
    f = compare_tops(keys, values, None).fields
    assert f["shared"].tolist() == [2, 0]
    assert f["sum_abs"].tolist() == [0.5, 0]
    assert np.isnan(f["best_same"]).tolist() == [False, True]
    assert np.isnan(f["kl_low"]).all()


def test_texts_stand_in_for_ids():
    a = top([[-1, -1]], [[-0.1, -3.0]], texts=(("the", " a"),))
    b = top([[-1, -1]], [[-0.2, -2.0]], texts=((" a", "the"),))
    x, y = keys_of((a, b), (ints([0]), ints([0])))
    assert x.tolist() == [[0, 1]]
    assert y.tolist() == [[1, 0]]
    none = top([[-1, -1]], [[-0.1, -3.0]])
    assert keys_of((a, none), (ints([0]), ints([0]))) is None


def test_mass_above_one():
    assert masses(np.log([[0.75, 0.5]]), np.zeros(1))[0] == pytest.approx(1.25)


def test_lists_of_two_lengths_are_compared_as_far_as_both_go():
    """One run recorded three entries a row and the other two: nothing differs. A token that is missing in one row does."""
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(9)[:3] for _ in range(4)])
    values = np.sort(rng.standard_normal((4, 3)))[:, ::-1] - 1
    three = sequence(tokens=[1, 2, 3, 4], top=top(ids, values))
    two = sequence(tokens=[1, 2, 3, 4], top=top(ids[:, :2], values[:, :2]))
    found = compare_runs([run("a", three, kind="raw_logprobs"), run("b", two, kind="raw_logprobs")]).pairs[0]
    assert found.identical
    assert not found.whole
    assert found.first_difference is None
    holes = ids.copy()
    holes[2, 2] = -1
    gap = sequence(tokens=[1, 2, 3, 4], top=top(holes, values))
    found = compare_runs([run("a", three, kind="raw_logprobs"), run("b", gap, kind="raw_logprobs")]).pairs[0]
    assert not found.identical
    assert found.first_difference is not None
    assert (found.first_difference.position, found.first_difference.element) == (2, ids[2, 2])
