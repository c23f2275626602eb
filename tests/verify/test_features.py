"""Sinks, ALiBi slopes, softcap and KV scales: what a spec makes of them, the exact answer, and refusals."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specs import Spec, load_platform, load_spec, parse_spec
from specs.errors import InputError, SpecError, UnsupportedError
from tests.verify.small import HEADER
from verify import emulate
from verify.answer import exact_answer
from verify.case import Case
from verify.features import Features

H200 = load_platform("h200")
BF16 = ml_dtypes.bfloat16
Floats = NDArray[np.float64]

FULL = """
[token]
raw   = "sum(q * k, seq()) * (scale * k_scale)"
bent  = "raw"
score = "select(visible, bent, -inf)"
[row]
most   = "max(score)"
weight = "0 * most"
top    = "max(most, floor)"
floor  = "-inf"
total  = "sum(exp(score - top), seq())"
extra  = "0"
exact  = "sum(exp(score - top) * v, seq()) * v_scale / (total + extra)"
output = "bf16(exact)"
lse    = "top + log(total + extra)"
[[variant]]
when = "has_alibi == 1"
[variant.token]
bent = "raw + slope * f32(key_index - query_index)"
[[variant]]
when = "has_softcap == 1"
[variant.token]
bent = "softcap - 2 * softcap / (exp(2 * raw / softcap) + 1)"
[[variant]]
when = "has_sinks == 1"
[variant.row]
floor = "sink"
extra = "exp(sink - top)"
"""


def spec(text: str = FULL) -> Spec:
    return parse_spec(HEADER + text)


def arrays(seed: int, queries: int, q_heads: int, heads: int, n: int, d: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "q": rng.normal(0, 1, (queries, q_heads, d)).astype(BF16),
        "k": rng.normal(0, 1, (n, heads, d)).astype(BF16),
        "v": rng.normal(0, 1, (n, heads, d)).astype(BF16),
    }


def by_hand(
    given: dict[str, Any],
    sinks: list[float] | None = None,
    slopes: list[float] | None = None,
    cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Floats, Floats]:
    """Causal attention in float64, query by query, head by head: outputs and log-sum-exps."""
    q, k, v = (given[name].astype(np.float64) for name in ("q", "k", "v"))
    queries, q_heads, d = q.shape
    n, heads, _ = k.shape
    out, lse = np.zeros((queries, q_heads, d)), np.zeros((queries, q_heads))
    for i in range(queries):
        mine = n - queries + i
        for h in range(q_heads):
            weights, values = [], []
            for j in range(mine + 1):
                s = float(q[i, h] @ k[j, h // (q_heads // heads)]) * d**-0.5 * k_scale
                s = cap * math.tanh(s / cap) if cap else s
                s += slopes[h] * (j - mine) if slopes is not None else 0.0
                weights.append(math.exp(s))
                values.append(v[j, h // (q_heads // heads)] * v_scale)
            total = sum(weights) + (math.exp(sinks[h]) if sinks is not None else 0.0)
            out[i, h] = sum(w * x for w, x in zip(weights, values, strict=True)) / total
            lse[i, h] = math.log(total)
    return out, lse


@pytest.mark.parametrize(
    ("features", "by"),
    [
        ({}, {}),
        ({"sinks": [0.5, -1.0, 2.0, -math.inf]}, {"sinks": [0.5, -1.0, 2.0, -math.inf]}),
        ({"alibi_slopes": [0.5, 0.25, 0.125, -0.0625]}, {"slopes": [0.5, 0.25, 0.125, -0.0625]}),
        ({"softcap": 1.5}, {"cap": 1.5}),
        ({"k_scale": 0.5, "v_scale": 3.0}, {"k_scale": 0.5, "v_scale": 3.0}),
        (
            {"softcap": 2.0, "sinks": [1.0] * 4, "v_scale": 0.5},
            {"cap": 2.0, "sinks": [1.0] * 4, "v_scale": 0.5},
        ),
    ],
)
def test_features_change_the_result_as_they_should(features: dict[str, Any], by: dict[str, Any]) -> None:
    given = arrays(3, 3, 4, 2, 7)
    wanted, wanted_lse = by_hand(given, **by)
    lists = {n: np.array(x, np.float32) if isinstance(x, list) else x for n, x in features.items()}
    result = emulate(spec(), H200, **given, causal=True, backend="oracle", **lists)
    np.testing.assert_allclose(result.output.astype(np.float64), wanted, rtol=2**-8, atol=2**-16)
    assert result.lse is not None
    np.testing.assert_allclose(result.lse.astype(np.float64), wanted_lse, rtol=0, atol=2e-6)
    case = Case("features", given, causal=True, features=Features(**lists))
    exact = exact_answer(case.problem(spec())).midpoint.reshape(wanted.shape)
    np.testing.assert_allclose(exact, wanted, rtol=1e-12, atol=1e-14)


def test_numbers_of_tokens_and_queries() -> None:
    text = (
        '[token]\nscore = "select(visible, f32(key_index) * 100 + f32(query_index), -inf)"\n'
        'near = "query_index - key_index < 2 and visible"\n[row]\noutput = "sum(v, seq()) + f32(-query_index)"\n'
    )
    given = arrays(0, 2, 2, 1, 4)
    result = emulate(spec(text), H200, **given, causal=True, backend="oracle")
    assert result.trace["score"][:, 0].tolist() == [[2, 102, 202, -math.inf], [3, 103, 203, 303]]
    assert result.trace["near"][:, 1].tolist() == [[False, True, True, False], [False, False, True, True]]
    total = given["v"].astype(np.float64).sum(axis=0)[0]
    np.testing.assert_allclose(result.output[:, 1], np.stack([total - 2, total - 3]), rtol=1e-6, atol=1e-6)


def test_an_integer_is_rounded_once_by_its_cast() -> None:
    text = '[levels]\nt = "tiles(2)"\n[token]\nx = "bf16(key_index)"\nscore = "x"\n[row]\noutput = "sum(v, seq())"\n'
    n = 260
    result = emulate(
        spec(text), H200, q=np.ones((1, 1)), k=np.ones((n, 1, 1)), v=np.ones((n, 1, 1)), backend="oracle"
    )
    assert result.trace["x"].astype(np.float64).reshape(-1)[[255, 256, 257, 258, 259]].tolist() == [
        255,
        256,
        256,
        258,
        260,
    ]


def test_ready_scores_take_a_sink_for_each_row() -> None:
    text = '[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "sum(v, seq()) * v_scale + sink"\n'
    result = emulate(
        spec(text),
        H200,
        scores=np.zeros((2, 3), np.float32),
        values=np.ones((3, 1), np.float32),
        sinks=np.array([1.0, -2.0]),
        v_scale=2.0,
        backend="oracle",
    )
    assert result.output.reshape(-1).tolist() == [7.0, 4.0]


def test_a_ragged_batch_shares_its_features() -> None:
    long, short = arrays(1, 1, 4, 2, 6), arrays(2, 1, 4, 2, 3)
    sinks = np.array([0.5, -1.0, 2.0, 0.0])
    batch = {
        "q": np.stack([long["q"][0], short["q"][0]]),
        **{n: np.stack([long[n], np.concatenate([short[n], np.zeros_like(short[n])])]) for n in ("k", "v")},
    }
    both = emulate(spec(), H200, **batch, kv_lens=[6, 3], sinks=sinks, k_scale=0.5, backend="oracle")
    for given, result in zip((long, short), both, strict=True):
        wanted, _ = by_hand(given, sinks=sinks.tolist(), k_scale=0.5)
        np.testing.assert_allclose(result.output.astype(np.float64), wanted[0], rtol=2**-8, atol=2**-16)


def test_slopes_and_sinks_are_rounded_to_the_compute_format() -> None:
    text = '[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "0 * sum(v, seq()) + sink"\n'
    sinks = np.array([0.1, -math.inf])
    result = emulate(spec(text), H200, **arrays(0, 1, 2, 1, 2), sinks=sinks, backend="oracle")
    assert result.output[0, :, 0].tolist() == [float(np.float32(0.1)), -math.inf]


PLAIN = '[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "sum(v, seq())"\n'


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"sinks": np.zeros(4)}, "no line that uses sink"),
        ({"alibi_slopes": np.zeros(4)}, "no line that uses slope"),
        ({"softcap": 3.0}, "no line that uses softcap"),
        ({"k_scale": 0.5}, "no line that uses k_scale"),
        ({"v_scale": 0.5}, "no line that uses v_scale"),
        ({"causal": True}, "masks no token"),
        ({"context": {"window": 2}}, "masks no token"),
    ],
)
def test_nothing_given_is_ignored(features: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        emulate(spec(PLAIN), H200, **arrays(0, 2, 4, 2, 5), **features)


def test_what_changes_nothing_is_taken() -> None:
    given = arrays(0, 1, 4, 2, 5)
    kept = emulate(
        spec(PLAIN), H200, **given, softcap=0.0, k_scale=1, v_scale=1.0, causal=True, backend="oracle"
    )
    assert kept.output.shape == (1, 4, 8)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"sinks": np.zeros(3)}, r"shape \(3,\) for 4 query heads"),
        ({"sinks": np.zeros((4, 1))}, "2 dimensions"),
        ({"sinks": np.arange(4)}, "not a floating-point dtype"),
        ({"sinks": np.array([0.0, math.nan, 0, 0])}, "nan at index 1"),
        ({"sinks": np.array([0.0, 0, math.inf, 0])}, "inf at index 2"),
        ({"sinks": np.array([1e300, 0, 0, 0])}, "past f32"),
        ({"alibi_slopes": np.array([0.0, -math.inf, 0, 0])}, "-inf at index 1"),
        ({"softcap": -1.0}, "softcap = -1"),
        ({"softcap": math.nan}, "softcap = nan"),
        ({"softcap": "big"}, "softcap = big"),
        ({"softcap": np.ones(2)}, r"softcap = \[1. 1.\]"),
        ({"softcap": []}, r"softcap = \[\]"),
        ({"k_scale": 0.0}, "k_scale = 0"),
        ({"v_scale": math.inf}, "v_scale = inf"),
        ({"v_scale": None}, "v_scale = None"),
    ],
)
def test_wrong_features(features: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        emulate(spec(), H200, **arrays(0, 1, 4, 2, 5), **features)


def test_a_spec_may_need_a_sink() -> None:
    text = PLAIN.replace("sum(v, seq())", "sum(v, seq()) + sink")
    with pytest.raises(InputError, match="needs a sink for each query head"):
        emulate(spec(text), H200, **arrays(0, 1, 4, 2, 5))
    scores = {"scores": np.zeros((1, 2), np.float32), "values": np.zeros((2, 1), np.float32)}
    with pytest.raises(InputError, match="capped and biased already"):
        emulate(load_spec("walkthrough.dense"), H200, **scores, softcap=2.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("key_index + score", "an? int where a number is needed"),
        ("query_index * 2.5", "an? int where a number is needed"),
        ("select(visible, query_index, 0.5)", "an? int where a number is needed"),
        ("f32(visible)", "an? bool where a number is needed"),
    ],
)
def test_integers_become_numbers_by_a_cast_alone(line: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        emulate(spec(PLAIN.replace("[row]", f'x = "{line}"\n[row]')), H200, **arrays(0, 1, 1, 1, 2))


@pytest.mark.parametrize("name", ["sink", "slope", "softcap", "k_scale", "key_index", "query_index"])
def test_names_of_the_language_are_taken(name: str) -> None:
    with pytest.raises(SpecError, match=f"'{name}'"):
        spec(PLAIN.replace("[row]", f'{name} = "score"\n[row]'))
    if name in ("sink", "slope", "key_index", "query_index"):
        with pytest.raises(SpecError, match="differs from row to row"):
            emulate(
                spec(
                    '[constants]\nc = "NAME * 1.0"\n'.replace("NAME", name)
                    + PLAIN.replace("sum(v", "c + sum(v")
                ),
                H200,
                **arrays(0, 1, 1, 1, 2),
            )
