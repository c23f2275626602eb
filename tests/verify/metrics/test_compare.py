"""Whole comparisons of runs made in memory."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from specs.errors import InputError
from tests.verify.metrics.made import BF16, divergences, full, logits, noisy, run, sequence, top
from verify.metrics.compare import compare_runs
from verify.metrics.jsonable import to_json
from verify.runs.manifest import Coordinate

VOCAB = 300


def conversations(n, noise, seed=0, rows=12, dtype=BF16):
    """Teacher-forced conversations: the same text, logits with noise of their own."""
    out = []
    for c in range(n):
        x = logits(rows, VOCAB, seed=c)
        tokens = np.argmax(x, axis=1)
        values = (noisy(x, 1000 * seed + c, noise) if noise else x).astype(dtype)
        out.append(sequence(f"c{c}", values=values, tokens=tokens, prompt=[1, 2]))
    return out


def test_everything_of_a_pair():
    a, b = conversations(12, 0), conversations(12, 0.3, seed=1)
    found = compare_runs([run("a", *a), run("b", *b)], draws=200)
    pair = found.pair("b", "a")
    x, y = (np.concatenate([s.full.read(0, s.rows) for s in z]).astype(np.float64) for z in (a, b))
    d = x - y
    assert (pair.kind, pair.whole, pair.identical, pair.coverage.rows) == ("full", True, False, 144)
    v = pair.values
    assert (v.n, v.different, v.exactness) == (d.size, np.count_nonzero(d), "bits")
    assert v.exact == pytest.approx(1 - np.count_nonzero(d) / d.size)
    assert v.rms == pytest.approx(np.sqrt(np.mean(d * d)), rel=1e-6)
    assert v.mean == pytest.approx(d.mean(), abs=1e-8)
    assert dict(v.quantiles) == pytest.approx(
        {q: np.quantile(np.abs(d), q) for q in (0.5, 0.9, 0.95, 0.99, 0.999)}
    )
    cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
    assert (v.cosine, v.distance_cosine) == pytest.approx((cosine, 1 - cosine), rel=1e-6)
    assert v.sqnr == pytest.approx(10 * np.log10((x * x).sum() / (d * d).sum()), rel=1e-6)
    assert v.l2_normalised == pytest.approx(np.linalg.norm(d) / np.linalg.norm(x), rel=1e-6)
    kl = divergences(x, y)["kl"]
    assert pair.distribution.kl.mean.value == pytest.approx(kl.mean(), rel=1e-5)
    assert dict(pair.distribution.kl.percentiles)[99.0] == pytest.approx(np.percentile(kl, 99), rel=1e-5)
    tokens = np.concatenate([s.tokens for s in a])
    la, lb = (log_softmax(z, axis=1)[np.arange(144), tokens] for z in (x, y))
    assert pair.likelihood.ln_ratio.value == pytest.approx((la - lb).mean(), rel=1e-5)
    best = x.argmax(axis=1) != y.argmax(axis=1)
    assert pair.decisions.flips == best.sum() > 0
    assert pair.decisions.ties + pair.decisions.within + pair.decisions.real == best.sum()
    assert pair.decisions.distance == pytest.approx(2 * np.quantile(np.abs(d), 0.999))
    interval = pair.intervals["kl"]
    assert (interval.kind, interval.value) == ("bootstrap", pytest.approx(kl.mean(), rel=1e-5))
    assert interval.low < interval.value < interval.high
    assert pair.intervals["flip"].value == pytest.approx(best.mean())
    assert pair.intervals["mean_abs"].value == pytest.approx(np.abs(d).mean(), rel=1e-6)
    assert sum(b.rows for b in pair.depth) == 144
    assert {b.conversations for b in pair.depth} == {12}
    first = pair.first_difference
    row = np.flatnonzero((d != 0).any(axis=1))[0]
    assert (first.conversation, first.position) == (f"c{row // 12}", row % 12)
    assert first.element == np.flatnonzero(d[row])[0]
    assert (first.a, first.b) == (x[row, first.element], y[row, first.element])
    assert found.matrix("rms")[0][1] == found.matrix("rms")[1][0] == v.rms


def test_identical_coordinates_are_classes():
    runs = [run(n, *conversations(3, 0)) for n in "abc"] + [run("d", *conversations(3, 0.1))]
    found = compare_runs(runs)
    assert found.identity.classes == (("a", "b", "c"), ("d",))
    assert found.identity.partial == ()
    pair = found.pair("a", "b")
    assert (pair.identical, pair.first_difference, pair.values.sqnr, pair.values.identical) == (
        True,
        None,
        None,
        True,
    )
    assert pair.distribution.kl.maximum == 0
    assert pair.intervals["kl"].kind == "few conversations"


def test_results_are_json():
    found = compare_runs([run("a", *conversations(2, 0)), run("b", *conversations(2, 0.1))])
    text = json.dumps(found.to_json(), allow_nan=False)
    again = json.loads(text)
    assert again["pairs"][0]["values"]["n"] == 2 * 12 * VOCAB
    assert "sums" not in again["pairs"][0]
    assert again["settings"]["draws"] == 2000


def test_threads_do_not_matter():
    runs = [run("a", *conversations(3, 0)), run("b", *conversations(3, 0.1))]
    assert compare_runs(runs, threads=1).to_json() == compare_runs(runs, threads=3).to_json()


def test_free_runs_after_a_fork_are_not_compared():
    x = logits(6, VOCAB)
    y = np.concatenate([x[:3], logits(3, VOCAB, seed=9)])
    a = sequence(values=x, tokens=[1, 2, 3, 4, 5, 6], prompt=[0])
    b = sequence(values=y, tokens=[1, 2, 7, 8, 9, 10], prompt=[0])
    pair = compare_runs([run("a", a), run("b", b)]).pairs[0]
    assert (pair.coverage.rows, pair.coverage.after_fork, pair.values.different) == (3, 3, 0)
    assert (pair.identical, pair.whole) == (True, False)
    assert (pair.divergence.first, pair.divergence.forked) == ((2,), 1)
    assert pair.likelihood.n == 2  # at the fork other tokens follow
    assert [f.code for f in pair.findings] == []


def test_padded_vocabularies():
    """Logits of 50,304 columns for 50,257 tokens: the common ones are compared, padding is told (known fault)."""
    x = logits(4, 64)
    wide = np.concatenate([x, np.full((4, 16), -1e4, np.float32)], axis=1)
    a, b = sequence(values=x, tokens=[1, 2, 3, 4]), sequence(values=wide, tokens=[1, 2, 3, 4])
    pair = compare_runs([run("a", a), run("b", b)]).pairs[0]
    assert (pair.values.n, pair.values.different, pair.coverage.columns) == (256, 0, (64, 64, 80))
    assert pair.distribution.kl.maximum == 0
    assert {f.code: f.count for f in pair.findings}["padding"] == 16


def test_logprobs_over_other_vocabularies_are_refused():
    x = log_softmax(logits(4, 80), axis=1).astype(np.float32)
    y = log_softmax(logits(4, 80)[:, :64], axis=1).astype(np.float32)
    runs = [
        run("a", sequence(values=x), kind="raw_logprobs"),
        run("b", sequence(values=y), kind="raw_logprobs"),
    ]
    found = compare_runs(runs)
    assert [f.code for f in found.findings] == ["vocabulary"]
    pair = found.pairs[0]
    assert (pair.kind, pair.coverage.rows, pair.values) == ("none", 0, None)
    assert pair.coverage.refused == (("c", "vocabularies differ"),)
    lists = [
        run(n, sequence(n=1, top=top([[1, 2]], [[-0.5, -1.0]])), kind="raw_logprobs", vocab_size=v)
        for n, v in (("a", 80), ("b", 64))
    ]
    assert compare_runs(lists).pairs[0].kind == "none"


def test_lists_against_full_rows():
    x = logits(5, VOCAB)
    y = noisy(x, 1, 0.2)
    tokens = x.argmax(axis=1)
    ids = np.argsort(-y, axis=1)[:, :10]
    lse = np.log(np.exp(y.astype(np.float64)).sum(axis=1))
    lists = top(ids, np.take_along_axis(y, ids, axis=1), lse)
    a, b = sequence(values=x, tokens=tokens), sequence(tokens=tokens, top=lists)
    pair = compare_runs([run("a", a), run("b", b)], best=10).pairs[0]
    true = divergences(x, y)
    assert pair.kind == "top"
    assert pair.lists.kl_low.mean.value <= true["kl"].mean()
    assert pair.lists.tv_low.mean.value <= true["tv"].mean() <= pair.lists.tv_high.mean.value
    assert pair.decisions.flips == (x.argmax(axis=1) != y.argmax(axis=1)).sum()
    la, lb = (log_softmax(z.astype(np.float64), axis=1)[np.arange(5), tokens] for z in (x, y))
    listed = (ids == tokens[:, None]).any(axis=1)
    assert pair.likelihood.n == listed.sum()
    assert pair.likelihood.difference.mean.value == pytest.approx((lb - la)[listed].mean(), rel=1e-5)


def test_printed_values_are_equal_to_their_digits():
    a, b = ([-0.1234, -2.5], [-0.12344, -2.51])
    runs = [
        run("a", sequence(tokens=[1, 2], chosen=a), kind="raw_logprobs", decimals=4),
        run("b", sequence(tokens=[1, 2], chosen=b), kind="raw_logprobs", decimals=5),
    ]
    v = compare_runs(runs).pairs[0].chosen
    assert (v.exactness, v.decimals, v.n, v.different, v.ulp, v.agree) == (
        "printed digits",
        4,
        2,
        1,
        None,
        (),
    )
    full_runs = [
        run(n, sequence(values=np.array([[0.123, 1.0]]) + e), kind="logits_slice", decimals=3)
        for n, e in (("a", 0), ("b", 1e-4))
    ]
    pair = compare_runs(full_runs).pairs[0]
    assert (pair.values.exactness, pair.values.different, pair.distribution) == ("printed digits", 0, None)


def test_scores_are_no_distributions():
    a, b = np.linspace(0, 1, 50), np.linspace(0, 1, 50)
    b[7] += 2**-50
    runs = [
        run(n, sequence("test", tokens=np.arange(50) % 3, chosen=x), kind="scores")
        for n, x in (("a", a), ("b", b))
    ]
    pair = compare_runs(runs).pairs[0]
    assert (pair.kind, pair.chosen.n, pair.chosen.different) == ("chosen", 50, 1)
    assert (pair.likelihood, pair.distribution) == (None, None)
    assert (pair.first_difference.position, pair.first_difference.element) == (7, None)


def test_quantised_bases_are_never_exact():
    """A .kld base has 16 bits a row: KL below about 2.4e-4 nats is not known (known fault: -0.000241 was printed)."""
    a, b = (
        [
            replace(s, full=full(log_softmax(s.full.read(0, s.rows), axis=1)))
            for s in conversations(2, noise, dtype=np.float32)
        ]
        for noise in (0, 0.01)
    )
    a = [replace(s, counts={"quantised_values": s.rows * VOCAB}) for s in a]
    pair = compare_runs([run("a", *a, kind="raw_logprobs"), run("b", *b, kind="raw_logprobs")]).pairs[0]
    assert pair.distribution.quantisation == pytest.approx(2.44e-4, rel=1e-3)
    assert pair.distribution.kl.minimum >= 0
    assert "quantised" in [f.code for f in pair.findings]


def impossible(x):
    """Two log-probabilities a row and a first one above 0 (known fault: a first "logprob" of +0.6997)."""
    return sequence(
        tokens=[1, 2, 3],
        chosen=[x, -1.0, -2.0],
        top=top([[1, 9], [2, 9], [3, 9]], [[x, -3.0], [-1.0, -1.5], [-2.0, -0.5]]),
    )


def test_log_probabilities_above_zero_have_no_distance():
    runs = [
        run(n, impossible(x), kind="raw_logprobs") for n, x in (("a", 0.6997), ("b", -0.25), ("c", 0.6997))
    ]
    found = compare_runs(runs, draws=2)
    pair = found.pair("a", "b")
    assert (pair.identical, pair.first_difference.position, pair.first_difference.a) == (False, 0, 0.6997)
    assert (pair.chosen.n, pair.chosen.max_abs, pair.chosen.impossible) == (2, 0, 1)
    assert (pair.lists.shared, pair.lists.max_abs, pair.lists.impossible) == (5, 0, 1)
    assert (pair.likelihood.n, pair.likelihood.left_out) == (2, 1)
    assert pair.intervals["abs_logprob"].value == pair.intervals["max_abs"].value == 0
    assert pair.lists.tv_low.n == 2  # the first row is no distribution
    same = found.pair("a", "c")
    assert (same.identical, same.chosen.impossible, same.chosen.impossible_mismatch) == (True, 1, 0)
    assert [h.counts.get("positive_logprobs") for h in found.health] == [2, None, 2]


@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float64])
def test_full_log_probabilities_above_zero_have_no_distance(dtype):
    x = log_softmax(logits(4, 700), axis=1).astype(dtype)
    y = x.copy()
    y[1, 5], y[2, 6], y[2, 7] = 0.6997, 2.0, np.inf
    found = compare_runs([run(n, sequence(values=v), kind="raw_logprobs") for n, v in (("a", x), ("b", y))])
    (pair,) = found.pairs
    v = pair.values
    assert (v.n, v.max_abs, v.impossible, v.impossible_mismatch, v.inf_mismatch) == (2797, 0, 2, 2, 1)
    assert (pair.identical, pair.first_difference.position, pair.first_difference.element) == (False, 1, 5)
    assert (pair.distribution.rows, pair.distribution.without) == (2, 2)
    assert found.health[1].counts["positive_logprobs"] == 2


def test_processed_logits_are_no_log_probabilities():
    """Hugging Face's scores are logits after the processors: above 0, and no error."""
    scores = logits(4, 60)
    scores[:, 50:] = -np.inf
    (health,) = compare_runs([run("a", sequence(values=scores), kind="processed")]).health
    assert health.counts == {"negative_infinity": 40}


def test_clamped_values_are_in_no_row_metric():
    """-9999 against -20.3 is censored: neither the mean of a bin of depths nor its largest difference has it."""
    runs = [
        run(n, sequence(tokens=[1, 2], chosen=[-1.0, x]), kind="raw_logprobs", clamp_floor=-9999.0)
        for n, x in (("a", -9999.0), ("b", -20.3))
    ]
    (pair,) = compare_runs(runs, draws=2).pairs
    assert [b.metrics["max_abs"].n for b in pair.depth] == [1, 0]
    assert pair.intervals["max_abs"].value == 0


def test_clamped_logits():
    """-9999.0 against -20.3 is censored and left out of the mean, and counted (known fault)."""
    x = logits(3, 40)
    y = x.copy()
    x[1, 5], y[1, 5] = -9999.0, -20.3
    runs = [run(n, sequence(values=z), clamp_floor=-9999.0) for n, z in (("a", x), ("b", y))]
    pair = compare_runs(runs).pairs[0]
    assert (pair.values.clamped, pair.values.max_abs, pair.values.n) == (1, 0, 119)
    assert 0 < pair.distribution.lost < 1e-8


def test_flags_are_part_of_the_coordinate():
    """Two runs that differ in a switch alone stay two coordinates (known faults: contraction; asking for logprobs)."""
    found = compare_runs([run("fma", *conversations(1, 0)), run("no fma", *conversations(1, 0.01))])
    assert [r.name for r in found.runs] == ["fma", "no fma"]
    assert found.identity.classes == (("fma",), ("no fma",))


def test_a_switch_without_effect():
    """num_splits 0 and 1 that give equal bits on all shapes: the switch may not have been obeyed (known fault)."""
    a, b, c = (run(n, *conversations(2, noise)) for n, noise in (("a", 0), ("b", 0), ("c", 0.1)))

    def at(r, **coordinate):
        return replace(r, manifest=r.manifest.model_copy(update={"coordinate": Coordinate(**coordinate)}))

    same = compare_runs([at(a, gpu="x", num_splits=0), at(b, gpu="x", num_splits=1)])
    assert [(f.code, f.where) for f in same.findings] == [("no_effect", ("a", "b"))]
    assert "num_splits has no effect: 0 and 1" in same.findings[0].text
    other = compare_runs(
        [at(a, gpu="x", num_splits=0), at(b, gpu="x", num_splits=1), at(c, gpu="x", num_splits=2)]
    )
    assert other.findings == ()  # 2 splits do change something
    assert same.findings[0].severity == "warning"
    place = compare_runs([at(a, gpu="x"), at(b, gpu="x", provider="p")]).findings
    assert [(f.code, f.severity) for f in place] == [("no_effect", "note")]
    assert place[0].text == "provider has no effect: none given and p give identical values"
    copy = replace(at(b, gpu="x", num_splits=1), sha256=a.sha256)  # equal values make equal files
    assert "no_effect" in {f.code for f in compare_runs([at(a, gpu="x", num_splits=0), copy]).findings}
    two = compare_runs([at(a, gpu="x", num_splits=0), at(b, gpu="y", num_splits=1)])
    assert two.findings == ()  # two fields differ


def test_positions_beside_depths():
    x = logits(3, 20)
    a = sequence(values=x, positions=[10, 11, 12], depths=[100, 101, 300])
    pair = compare_runs([run("a", a), run("b", sequence(values=x, positions=[10, 11, 12]))]).pairs[0]
    assert [b.name for b in pair.depth] == ["64-127", "256-511"]
    assert [b.name for b in pair.position] == ["8-15"]


def test_many_runs_with_a_reference():
    runs = [run(f"r{i}", *conversations(1, 0.01 * i, seed=i, rows=2)) for i in range(17)]
    every = compare_runs(runs, draws=10)
    assert len(every.pairs) == 136
    one = compare_runs(runs, reference="r3", draws=10)
    assert len(one.pairs) == 16
    assert to_json(every.pair("r3", "r16")) == to_json(one.pair("r3", "r16"))


def test_errors():
    r = run("a", *conversations(1, 0))
    with pytest.raises(InputError, match="no run"):
        compare_runs([])
    with pytest.raises(InputError, match="called 'a'"):
        compare_runs([r, r])
    with pytest.raises(InputError, match="did you mean 'a'"):
        compare_runs([r], reference="aa")
    with pytest.raises(InputError, match="no comparison"):
        compare_runs([r]).pair("a", "b")


def test_nothing_in_common():
    a, b = run("a", sequence("x", tokens=[1])), run("b", sequence("y", tokens=[1]))
    pair = compare_runs([a, b]).pairs[0]
    assert (pair.kind, pair.coverage.only_first, pair.coverage.only_second) == ("none", ("x",), ("y",))
    assert [f.code for f in pair.findings] == ["nothing_compared"]
    assert pair.intervals == {}


def test_reading_is_bounded():
    """Rows are asked for in blocks: never more than a group of them at once."""
    asked = []
    x = logits(2000, 500).astype(BF16)

    def read(a, b):
        asked.append(b - a)
        return x[a:b]

    whole = replace(full(x), read=read)
    compare_runs([run("a", sequence(n=2000, full=whole)), run("b", sequence(values=x))], draws=10)
    assert max(asked) * 500 <= 1 << 19
    assert sum(asked) <= 2 * 2000
