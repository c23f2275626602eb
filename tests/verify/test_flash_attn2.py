"""FlashAttention-2: who may split, how many splits and of which blocks, guards, formats, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specs import UnsupportedError, load_platform, load_spec
from verify import emulate
from verify.partition import Plan, plan, plan_ragged

DECODE, PREFILL = "flash_attn2.splitkv_decode", "flash_attn2.prefill"
QWEN: dict[str, Any] = {"kv_len": 27_525, "q_heads": 24, "kv_heads": 4, "head_dim": 256}


def made(gpu: str = "h200", spec: str = DECODE, options: Any = None, **context: Any) -> Plan:
    return plan(load_spec(spec), load_platform(gpu), options=options, **{**QWEN, **context})


def integer(p: Plan, name: str) -> int:
    return int(p.program.integers[name])


def blocks(p: Plan) -> list[int]:
    """Blocks of each split, those that are empty as 0."""
    n = integer(p, "N")
    return [-(-g.tokens.size // n) for g in p.groups]


# -- splits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "splits", "per_split", "last"), [("h200", 54, 8, 7), ("b200", 62, 7, 4), ("sm120", 87, 5, 1)]
)
def test_the_published_partition(gpu: str, splits: int, per_split: int, last: int) -> None:
    p = made(gpu)
    assert blocks(p) == [per_split] * (splits - 1) + [last]
    assert p.groups[-1].tokens[:5].tolist() == list(range(27_520, 27_525))  # the last block holds 5 keys


def test_batch_two_on_three_gpus() -> None:
    assert [integer(made(gpu, batch=2), "splits") for gpu in ("h200", "b200", "sm120")] == [27, 31, 40]


@pytest.mark.parametrize(
    ("capacity", "gpu", "splits", "per_split", "used"),
    [
        (32_768, "h200", 57, 8, 54),
        (32_768, "b200", 64, 7, 62),
        (32_768, "sm120", 74, 6, 72),
        (262_144, "h200", 57, 8, 54),
        (262_144, "b200", 63, 7, 62),
        (262_144, "sm120", 81, 6, 72),
    ],
)
def test_a_cuda_graph_freezes_the_count(
    capacity: int, gpu: str, splits: int, per_split: int, used: int
) -> None:
    """vLLM computes it from max_model_len at capture; its kernel then cuts the live length in so many splits."""
    p = made(gpu, fork="vllm", cuda_graph=1, kv_capacity=capacity)
    counts = blocks(p)
    assert (len(counts), counts[0], sum(c > 0 for c in counts)) == (splits, per_split, used)
    assert counts[used:] == [0] * (splits - used)
    assert blocks(made(gpu, fork="vllm", kv_capacity=capacity)) == blocks(made(gpu))


def test_the_forks_cut_a_short_sequence_differently() -> None:
    """num_splits comes from the longest; Dao's blocks are cut for it, too, vLLM's for the sequence's own length."""
    shape: dict[str, Any] = {"q_heads": 24, "kv_heads": 4, "head_dim": 128}
    spec, gpu = load_spec(DECODE), load_platform("h200")
    dao = plan_ragged(spec, gpu, kv_lens=[27_525, 1_000], fork="dao", **shape)[1]
    vllm = plan_ragged(spec, gpu, kv_lens=[27_525, 1_000], fork="vllm", **shape)[1]
    n = integer(dao, "splits")
    assert n == integer(vllm, "splits") > 8
    width = -(-216 // n)  # 27,525 tokens are 216 blocks of 128
    assert blocks(dao) == [min(width, max(0, 8 - i * width)) for i in range(n)]
    assert blocks(vllm) == [1] * 8 + [0] * (n - 8)


def test_the_tile_of_exactly_one_split() -> None:
    """128 keys of head_dim 128 with 0 or several splits, 64 with 1; 256 and 128 to head_dim 64; 64 above 128."""

    def tile(**context: Any) -> int:
        return integer(made(kv_len=500, **context), "N")

    for d, wide, one in ((32, 256, 128), (64, 256, 128), (80, 128, 64), (128, 128, 64), (192, 64, 64)):
        assert tile(head_dim=d, num_splits=1) == one
        assert tile(head_dim=d, num_splits=2) == wide
        assert tile(head_dim=d, window=100) == wide  # no split, as count 0
    assert tile(head_dim=128, batch=200) == 64  # the heuristic returns 1


@pytest.mark.parametrize(
    ("context", "splits"),
    [
        ({}, True),
        ({"window": 4096}, False),
        ({"has_alibi": 1}, False),
        ({"q_len": 2}, False),
        ({"q_heads": 4}, False),
        ({"window": 4096, "options": {"kvcache": True}}, True),
        ({"q_heads": 4, "options": {"kvcache": True}}, True),
    ],
)
def test_who_may_split(context: dict[str, Any], splits: bool) -> None:
    """The varlen call: one query token of grouped heads, no window, no ALiBi; the kvcache call always."""
    assert (integer(made(**context), "splits") > 1) == splits
    assert made(**context).count == max(1, integer(made(**context), "splits"))


def test_the_kvcache_call_counts_capacity_and_query_heads() -> None:
    p = made(options={"kvcache": True}, kv_capacity=40_000, q_heads=4, q_len=65)
    assert integer(p, "workers") == 4 * 2
    assert integer(p, "host_len") == integer(p, "cut_len") == 40_000
    assert integer(made(q_heads=256), "workers") == 4  # 64 rows of a group are one block
    assert integer(made(q_heads=260), "workers") == 8


@pytest.mark.parametrize(
    ("context", "what"),
    [
        ({"head_dim": 264}, "up to 256"),
        ({"head_dim": 100}, "in steps of 8"),
        ({"page_size": 8}, "multiple of 16"),
        ({"num_splits": 129}, "up to 128"),
        ({"num_splits": 2, "fork": "vllm"}, "num_splits = 0"),
        ({"num_splits": 2, "window": 5}, "num_splits = 0"),
        ({"has_softcap": 1}, "no softcap"),
        ({"compute_capability": 75}, "Ampere"),
    ],
)
def test_refusals(context: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        made(**context)


@pytest.mark.parametrize(
    ("head_dim", "splits", "lanes"),
    [
        (256, 2, 2),
        (256, 20, 32),
        (128, 128, 32),
        (64, 20, 16),
        (192, 9, 16),
        (96, 100, 8),
        (80, 5, 8),
        (32, 3, 4),
    ],
)
def test_lanes_of_the_combine(head_dim: int, splits: int, lanes: int) -> None:
    """128 threads on 4, 8 or 16 rows, by the padded head_dim; no more than the power of two above the splits."""
    assert integer(made(head_dim=head_dim, num_splits=splits), "T") == lanes


@pytest.mark.parametrize(
    ("head_dim", "gpu", "context", "tile"),
    [
        (32, "h200", {}, 128),
        (64, "l40s", {"causal": 1}, 128),
        (96, "l40s", {}, 64),
        (128, "h200", {}, 64),
        (128, "a100", {}, 64),
        (128, "l40s", {}, 32),
        (128, "l40s", {"causal": 1}, 64),
        (128, "l40s", {"causal": 1, "window": 50}, 32),  # local, not causal
        (128, "l40s", {"causal": 1, "q_len": 1}, 32),
        (104, "l40s", {}, 32),
        (192, "l40s", {}, 64),
        (256, "sm120", {"causal": 1}, 64),
    ],
)
def test_tiles_of_the_standard_kernel(head_dim: int, gpu: str, context: dict[str, Any], tile: int) -> None:
    shape: dict[str, Any] = {"kv_len": 300, "q_len": 70, "head_dim": head_dim, **context}
    p = plan(load_spec(PREFILL), load_platform(gpu), q_heads=24, kv_heads=4, **shape)
    assert integer(p, "N") == tile
    assert p.groups[0].tokens[0] == 300 // tile * tile, "the last block comes first"


# -- guards -----------------------------------------------------------------------------------------------


def run(scores: NDArray[Any], values: NDArray[Any], spec: str = DECODE, **more: Any) -> Any:
    context = {"head_dim": 256, "q_heads": 6, **more.pop("context", {})}
    return emulate(
        load_spec(spec),
        load_platform("h200"),
        scores=scores.astype(np.float32),
        values=values,
        context=context,
        backend="oracle",
        **more,
    )


def test_a_row_that_sees_nothing() -> None:
    """Output 0; the log-sum-exp is +inf, split or not, although each split stores -inf."""
    scores, values = np.full((2, 400), -np.inf), np.ones((400, 2))
    scores[1, 3] = 0
    for count in (1, 3):
        context = {"num_splits": count, "window": 1_000}
        r = run(scores, values, context=context, options={"kvcache": True})
        assert r.output.astype(float).tolist() == [[0, 0], [1, 1]]
        assert r.lse.tolist() == [np.inf, 0]
        assert (r.trace["level"][0] == -np.inf).all()
    r = run(scores, values, PREFILL, context={"window": 1_000})
    assert r.output.astype(float).tolist() == [[0, 0], [1, 1]]
    assert r.lse.tolist() == [np.inf, 0]


def test_an_empty_split_has_no_part() -> None:
    """Splits past the sequence: LSE -inf, weight 0; the result is that of the splits that hold tokens."""
    rng = np.random.default_rng(3)
    scores, values = rng.normal(0, 1, (2, 150)), rng.normal(0, 1, (150, 3))
    r = run(
        scores, values, context={"num_splits": 5, "kv_capacity": 640, "q_heads": 1}, options={"kvcache": True}
    )
    assert blocks(r.plan) == [2, 1, 0, 0, 0]
    assert (r.trace["level"][:, 2:] == -np.inf).all()
    assert (r.trace["w"][:, 2:] == 0).all()
    assert (r.trace["partial"][:, 2:] == 0).all()
    two = run(scores, values, context={"num_splits": 2})
    assert blocks(two.plan) == [2, 1]
    assert r.output.tobytes() == two.output.tobytes()


def test_scores_that_overflow_to_minus_infinity() -> None:
    """No Check_inf without a mask: a second block whose every product overflows makes NaN; under a window it is 0."""
    q, k = np.full((1, 64), 2.0**70), np.full((1_500, 1, 64), -(2.0**70))
    v = np.ones((1_500, 1, 8))
    gpu, base = load_platform("h200"), {"head_dim": 64}

    def out(n: int, **context: Any) -> float:
        r = emulate(
            load_spec(DECODE),
            gpu,
            q=q,
            k=k[:n],
            v=v[:n],
            scale=1.0,
            context={**base, "num_splits": 1, **context},
            backend="oracle",
        )
        return float(r.output.reshape(-1)[0])

    assert out(100) == 0
    assert np.isnan(out(200))
    assert out(200, window=2_000) == 0


def test_a_kernel_that_takes_f16_rounds_to_f16() -> None:
    """Weights and output: 1 + 2^-10 is a value of f16, not of bf16."""
    q, k = np.zeros((1, 64), np.float16), np.zeros((4, 1, 64), np.float16)
    v = np.full((4, 1, 64), 1 + 2.0**-10, np.float16)
    for spec in (DECODE, PREFILL):
        r = emulate(load_spec(spec), load_platform("h200"), q=q, k=k, v=v, scale=1.0, backend="oracle")
        assert r.output.dtype == np.float16
        assert (r.output == np.float16(1 + 2.0**-10)).all()
    with pytest.raises(UnsupportedError, match="all bf16 or all f16"):
        emulate(
            load_spec(DECODE),
            load_platform("h200"),
            q=q.astype(ml_dtypes.bfloat16),
            k=k,
            v=v,
            scale=1.0,
            backend="oracle",
        )


def test_alibi_is_added_before_the_scale() -> None:
    """slope / scale on the raw score: with q = 0, token t weighs 2^-(distance) for a slope of log 2."""
    n = 5
    q, k = np.zeros((1, 64)), np.zeros((n, 1, 64))
    v = np.zeros((n, 1, n))
    v[np.arange(n), 0, np.arange(n)] = 1
    slopes = np.array([np.log(2)], np.float32)
    want = 2.0 ** -np.arange(n)[::-1]
    want /= want.sum()
    for spec in (DECODE, PREFILL):
        for causal in (False, True):
            r = emulate(
                load_spec(spec),
                load_platform("h200"),
                q=q,
                k=k,
                v=v,
                scale=0.125,
                causal=causal,
                alibi_slopes=slopes,
                context={"head_dim": 64},
                backend="oracle",
            )
            np.testing.assert_allclose(r.output.astype(float).reshape(-1), want, rtol=2**-8)
