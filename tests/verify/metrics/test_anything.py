"""Odd runs of every kind compare without an exception, and their result is JSON."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.metrics.made import BF16, run, sequence, top
from verify.metrics.compare import compare_runs

ODD = st.sampled_from([0.0, -0.0, 1.0, -1.5, 1e-41, 3e38, np.nan, np.inf, -np.inf, -9999.0, -100.0, 0.7])
DTYPES = st.sampled_from([BF16, np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)])


@st.composite
def sequences(draw):
    n = draw(st.integers(0, 4))
    parts = {
        "tokens": draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)),
        "positions": draw(st.lists(st.integers(0, 6), min_size=n, max_size=n, unique=True).map(sorted)),
        "prompt": draw(st.none() | st.lists(st.integers(0, 1), max_size=2)),
        "chosen": draw(st.none() | st.lists(ODD, min_size=n, max_size=n)),
        "texts": draw(st.none() | st.lists(st.sampled_from("ab"), min_size=n, max_size=n).map(tuple)),
        "ranges": draw(st.none() | st.just(("r",) * n)),
    }
    what = draw(st.sampled_from(["full", "top", "chosen"]))
    if what == "full":
        vocab = draw(st.integers(1, 3))
        values = np.array(draw(st.lists(ODD, min_size=n * vocab, max_size=n * vocab))).reshape(n, vocab)
        with np.errstate(over="ignore"):
            parts["values"] = values.astype(draw(DTYPES))
    if what == "top":
        k = draw(st.integers(0, 3))
        ids = np.array(draw(st.lists(st.integers(-1, 3), min_size=n * k, max_size=n * k)), np.int64).reshape(
            n, k
        )
        values = np.array(draw(st.lists(ODD, min_size=n * k, max_size=n * k))).reshape(n, k)
        lse = draw(st.none() | st.lists(ODD, min_size=n, max_size=n))
        parts["top"] = top(ids, values, lse)
    name, repeat = draw(st.sampled_from("xy")), draw(st.integers(0, 2))
    return sequence(name, repeat, n=n, **parts)


@st.composite
def runs(draw, name):
    recording = {
        "kind": draw(st.sampled_from(["raw_logits", "raw_logprobs", "processed", "scores", "logits_slice"])),
        "greedy": draw(st.none() | st.booleans()),
        "decimals": draw(st.none() | st.integers(0, 4)),
        "clamp_floor": draw(st.none() | st.sampled_from([-9999.0, -100.0])),
        "teacher_forced": draw(st.none() | st.booleans()),
    }
    return run(name, *draw(st.lists(sequences(), max_size=3)), **recording)


@settings(max_examples=40)
@given(a=runs("a"), b=runs("b"))
def test_odd_runs(a, b):
    found = compare_runs([a, b], draws=5, threads=1)
    json.dumps(found.to_json(), allow_nan=False)
    pair = found.pairs[0]
    if pair.distribution is not None and pair.distribution.kl.minimum is not None:
        assert pair.distribution.kl.minimum >= 0
    same = compare_runs(
        [a, run("other", *a.sequences, **{"kind": a.manifest.capture.value_kind})], draws=5, threads=1
    )
    assert same.pairs[0].first_difference is None
