"""XQA, FlashInfer's native decode and FlashAttention-3 by the scalar oracle: merges written out by hand from what the
groups hand over, guards, and what a kernel does at its own floor."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import load_platform, load_spec
from tests.verify.bits32 import F32, LOG2E, add, ex2, fma, lg2, mul, rcp
from verify import emulate
from verify.emulator import Result
from verify.resultview import faults, result_text

BF16 = ml_dtypes.bfloat16
XQA, FP8, FA2, FA3 = "xqa.decode", "xqa.decode_fp8_sm90", "flashinfer.fa2_decode", "flash_attn3.decode"


def scored(
    name: str, scores: Any, platform: str = "h200", dims: int = 2, sinks: Any = None, **context: Any
) -> Result:
    """A kernel on ready scores ``[rows, tokens]`` and random values: no dot product over the head."""
    scores = np.atleast_2d(np.asarray(scores, F32))
    rng = np.random.default_rng(scores.shape[1])
    values = rng.standard_normal((scores.shape[1], dims), dtype=F32)
    shape = {"q_heads": len(scores), "head_dim": 128, **context}
    return emulate(
        load_spec(name),
        load_platform(platform),
        scores=scores,
        values=values,
        context=shape,
        sinks=sinks,
        backend="oracle",
    )


def random_scores(seed: int, rows: int, tokens: int, spread: float = 3.0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, tokens), dtype=F32) * F32(spread)


def words(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint16)


# -- XQA --------------------------------------------------------------------------------------------------


def test_a_hint_is_stored_unless_the_tile_is_at_the_maximum_in_every_row() -> None:
    """Four X tiles a CTA tile, two CTA tiles; maxima by hand. Head_dim 256: one warp group, all warps get hints."""
    scores = np.zeros((1, 512), F32)
    scores[0, 0] = 5
    for tile, most in enumerate((5, 1, 5, 2, 1, 1, 1, 1)):
        scores[0, 64 * tile + 7] = most
    top = scored(XQA, scores, head_dim=256, sm_count=1).trace["top"].reshape(2, 4)
    assert top[0].tolist() == [5, 1, 5, 2], "the first round starts from -1e5"
    # tile 0 raised the maximum, tiles 1 and 3 lay below it: the next round starts them at 5; tile 2 lay at it: not stored
    assert top[1].tolist() == [5, 5, 1, 5]
    both = np.stack([scores[0], scores[0]])
    both[1, 128 + 7] = 4  # in a second row tile 2 lies below 5: now the hint is stored for both
    again = scored(XQA, both, head_dim=256, sm_count=1).trace["top"].reshape(2, 2, 4)
    assert again[0, 1].tolist() == [5, 5, 5, 5]


def test_hints_reach_warps_0_and_3_alone_where_two_groups_deal_tiles() -> None:
    scores = np.zeros((1, 512), F32)
    scores[0, ::64] = [9, 8, 7, 6, 1, 1, 1, 1]
    run = scored(XQA, scores, head_dim=128, sm_count=1)
    top = {(g, r, x): run.trace["top"][0, 0, g, r, x] for g in range(2) for r in range(2) for x in range(2)}
    # group 0 has tiles 0 and 2, group 1 has 1 and 3; warp = 2 x + group
    assert [top[0, 1, 0], top[1, 1, 0], top[0, 1, 1], top[1, 1, 1]] == [9, 1, 1, 8]


@pytest.mark.parametrize(
    ("head_dim", "platform"), [(64, "h200"), (128, "h200"), (128, "sm120"), (256, "h200")]
)
def test_room_in_the_page_table_changes_no_bit(head_dim: int, platform: str) -> None:
    """Sub-sequences without a tile hand over zeros, and zero is what they add."""
    scores = random_scores(2, 2, 600)
    few = scored(XQA, scores, platform, head_dim=head_dim, sm_count=3)
    many = scored(XQA, scores, platform, head_dim=head_dim, sm_count=11, kv_capacity=5_000)
    assert (few.plan.count, many.plan.count) == (3, 11)
    assert words(few.output).tolist() == words(many.output).tolist()
    assert (many.trace["partial"][:, 3:] == 0).all()
    assert (many.trace["best"][:, 3:] == F32(-1e5)).all()


def test_xqa_merges_by_hand() -> None:
    """The last CTA: group g takes sub-sequences g, g + 2, ...; FFMA into 16-bit sums."""
    run = scored(XQA, random_scores(3, 2, 256 * 5), head_dim=128, sm_count=5, dims=3)
    for row in range(2):
        best, s0, partial = (run.trace[n][row] for n in ("best", "s0", "partial"))
        w = mul(s0, ex2(mul(add(best, -best.max()), LOG2E)))
        sums, parts = [], []
        for group in range(2):
            total, num = F32(0), np.zeros(3, F32)
            for n in range(group, 5, 2):
                total, num = add(total, w[n]), fma(partial[n].astype(F32), w[n], num)
            sums.append(total)
            parts.append(num)
        inverse = F32(1) / add(sums[0], sums[1])  # correctly rounded
        halves = [mul(num, inverse).astype(BF16) for num in parts]
        want = (halves[0].astype(F32) + halves[1].astype(F32)).astype(BF16)
        assert words(run.output[row]).tolist() == words(want).tolist()


def test_four_groups_join_in_turn() -> None:
    """Head_dim 64 on Hopper: group 0's sum, joined with those of groups 1, 2 and 3, each fused on its own side."""
    run = scored(XQA, random_scores(4, 1, 256 * 3, 30.0), head_dim=64, sm_count=1)
    tops, norms = run.trace["top"][0, 0], run.trace["norm"][0, 0]
    state = []
    for g in range(4):
        m, s = F32(-1e5), F32(0)
        for top, norm in zip(tops[g].ravel(), norms[g].ravel(), strict=True):
            new = max(m, top)
            a, b = (ex2(mul(add(x, -new), LOG2E)) for x in (m, top))
            m, s = new, add(mul(s, a), mul(norm, b))
        state.append((m, s))
    m, s = state[0]
    for other in (1, 2, 3):
        new = max(m, state[other][0])
        e, f = (ex2(mul(add(x, -new), LOG2E)) for x in (m, state[other][0]))
        m, s = new, fma(e, s, mul(state[other][1], f))
    assert run.trace["joined"][0, 0, 0] == s


def test_logits_below_the_floor_make_nan() -> None:
    """The running maximum starts at -1e5, not at -inf: every weight underflows, and 0 / 0 follows. The kernel's fault."""
    low = np.full((1, 300), -1.5e5, F32)
    for platform in ("h200", "sm120"):
        for sms in (1, 2):
            assert np.isnan(scored(XQA, low, platform, sm_count=sms).output.astype(F32)).all()
    fault = faults(scored(XQA, low, sm_count=2), load_spec(XQA))
    assert len(fault) == 1
    assert "below about -1e5" in fault[0]
    low[0, 299] = -9e4
    assert np.isfinite(scored(XQA, low, sm_count=1).output.astype(F32)).all()
    poisoned = scored(XQA, low, sm_count=2)  # one sub-sequence below the floor is enough: NaN times weight 0
    assert poisoned.trace["w"][0].tolist()[0] == 0
    assert np.isnan(poisoned.output.astype(F32)).all()
    assert len(faults(poisoned, load_spec(XQA))) == 1
    fp8 = scored(FP8, np.full((1, 256), -1.5e5, F32), sm_count=2)
    assert np.isnan(fp8.output.astype(F32)).all()
    assert any(
        line.startswith("the kernel's own fault: every logit") for line in result_text(fp8, load_spec(FP8))
    )
    assert faults(scored(XQA, random_scores(1, 1, 300)), load_spec(XQA)) == []


def test_an_empty_sequence_is_zero_in_one_block_and_nan_in_several() -> None:
    """One CTA guards its division, the merge does not."""
    q, none = np.ones((1, 64), F32), np.ones((0, 1, 64), F32)
    for sms, want in ((1, 0.0), (4, np.nan)):
        run = emulate(
            load_spec(XQA),
            load_platform("h200"),
            q=q,
            k=none,
            v=none,
            kv_capacity=1_000,
            context={"sm_count": sms},
            backend="oracle",
        )
        np.testing.assert_array_equal(run.output.astype(F32), np.full((1, 64), want, F32))


def test_a_sink_is_one_more_term_of_the_sum() -> None:
    scores = random_scores(5, 2, 400)
    for sms in (1, 2):
        plain = scored(XQA, scores, sm_count=sms, dims=4).output.astype(np.float64)
        sunk = scored(XQA, scores, sm_count=sms, dims=4, sinks=[1.5, -np.inf]).output.astype(np.float64)
        total = np.exp(scores[0].astype(np.float64)).sum()
        np.testing.assert_allclose(sunk[0], plain[0] * total / (total + np.exp(1.5)), atol=4e-3)
        assert sunk[1].tolist() == plain[1].tolist(), "a sink of -inf adds nothing"


def test_an_overflowing_logit_breaks_its_row_alone() -> None:
    q, k = np.full((2, 64), 1e-20, F32), np.ones((300, 1, 64), F32)
    q[0], k[100] = 1e25, 1e20
    v = np.random.default_rng(6).standard_normal((300, 1, 2), dtype=F32)
    run = emulate(
        load_spec(XQA), load_platform("h200"), q=q, k=k, v=v, context={"sm_count": 2}, backend="oracle"
    )
    assert run.trace["best"][0, 0] == np.inf
    assert np.isnan(run.output[0].astype(F32)).all()
    weight = np.where(np.arange(300) == 100, np.exp(8.0), 1.0)
    np.testing.assert_allclose(run.output[1].astype(F32), weight @ v[:, 0] / weight.sum(), atol=1e-2)


# -- XQA on Hopper with fp8 -------------------------------------------------------------------------------


def test_the_fp8_merge_is_a_running_recurrence() -> None:
    """Rising and falling maxima; approximate reciprocal at the end."""
    scores = random_scores(7, 1, 64 * 6, 4.0)
    run = scored(FP8, scores, sm_count=8, dims=3)
    assert run.plan.count == 6
    tops, sums, partial = (
        run.trace["M"][0].reshape(6, -1)[:, -1],
        run.trace["S"][0].reshape(6, -1)[:, -1],
        run.trace["partial"][0],
    )
    m, s, a = F32(-1e5), F32(0), np.zeros(3, F32)
    for n in range(6):
        o = partial[n].astype(F32)
        if tops[n] > m:
            e = ex2(mul(add(m, -tops[n]), LOG2E))
            m, s, a = tops[n], fma(s, e, sums[n]), fma(a, e, mul(o, sums[n]))
        else:
            w = mul(sums[n], ex2(mul(add(tops[n], -m), LOG2E)))
            s, a = add(w, s), fma(o, w, a)
    assert words(run.output[0]).tolist() == words(mul(a, rcp(s)).astype(BF16)).tolist()


def test_the_fp8_row_sum_has_its_own_tree() -> None:
    """A thread adds two rows, eight lanes meet by 4, 2, 1, then four warps in order; weights are not rounded."""
    scores = random_scores(8, 1, 64)
    run = scored(FP8, scores, sm_count=1)
    p = run.trace["weight"][0].ravel().reshape(4, 2, 8)
    total = F32(0)
    for warp in p:
        lanes = add(warp[0], warp[1])
        for stride in (4, 2, 1):
            lanes = add(lanes, lanes[np.arange(8) ^ stride])
        total = add(total, lanes[0])
    assert run.trace["S"][0].ravel()[0] == total


# -- FlashInfer's native decode ---------------------------------------------------------------------------


def test_a_maximum_that_stays_rescales_by_two_to_the_residue() -> None:
    scores = np.full((1, 256), 100.3, F32)  # d128 on SM120: tiles of 64, four warps of 16 tokens
    run = scored(FA2, scores, "sm120", batch_invariant=1)
    residue = ex2(fma(F32(100.3), LOG2E, -mul(F32(100.3), LOG2E)))
    assert residue != 1, "else the test says nothing"
    alpha = run.trace["alpha"][0].reshape(-1, 4)
    assert (alpha[0] == 0).all(), "the first tile kills d = 1"
    assert (alpha[1:] == residue).all()


def test_a_warp_without_tokens_rescales_all_the_same() -> None:
    scores = np.full((1, 64 + 16), 100.3, F32)
    run = scored(FA2, scores, "sm120", batch_invariant=1)
    d = run.trace["d"][0].reshape(-1, 4)
    residue = run.trace["alpha"][0].reshape(-1, 4)[1, 3]
    assert residue != 1
    assert d[1, 3] == mul(d[0, 3], residue)


def test_flashinfer_joins_warps_and_merges_chunks_by_hand() -> None:
    """Four warps of a block; then lanes of the merge kernel, in 16 bits in between."""
    run = scored(FA2, random_scores(9, 1, 128 * 11, 8.0), "sm120", sm_count=11, dims=2)
    assert run.plan.program.integers["parts"] == 11
    partial = run.trace["partial"][0].reshape(-1, 2)
    level = run.trace["level"][0].ravel()
    held = ~np.isnan(level)
    count = run.plan.tokens.shape[1]
    lanes = [
        [i for i in range(lane * count, (lane + 1) * count) if held[i]]
        for lane in range(run.plan.tokens.shape[0])
    ]
    assert [len(lane) for lane in lanes] == [2, 2, 2, 1, 1, 1, 1, 1]

    def merged(states: list[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
        m, d, o = F32(-np.inf), F32(1), np.zeros(2, F32)
        for v, s in states:
            new = max(m, s)
            f1, f2 = (ex2(add(x, -new)) if new > -np.inf else F32(0) for x in (m, s))
            m, d, o = new, fma(d, f1, f2), fma(o, f1, mul(v.astype(F32), f2))
        return m, d, o

    handed: list[tuple[Any, Any]] = []
    for lane in lanes:
        m, d, o = merged([(partial[i], level[i]) for i in lane])
        handed.append((mul(o, rcp(d)).astype(BF16), add(m, lg2(d))))
    m, d, o = merged(handed)
    assert words(run.output[0]).tolist() == words(mul(o, rcp(d)).astype(BF16)).tolist()
    assert run.trace["lse2"][0] == add(m, lg2(d))


# -- FlashAttention-3 -------------------------------------------------------------------------------------


def test_empty_splits_are_skipped() -> None:
    """Seven blocks of 128: six splits of two blocks leave two empty, and four splits cut alike."""
    scores = random_scores(10, 2, 128 * 6 + 50)
    six, four = (scored(FA3, scores, num_splits=n, dims=3) for n in (6, 4))
    assert (six.trace["level"][:, 4:] == -np.inf).all()
    assert words(six.output).tolist() == words(four.output).tolist()
    assert six.lse is not None
    assert four.lse is not None
    assert six.lse.tolist() == four.lse.tolist()


def test_flash_attention_3_combines_with_normalised_weights() -> None:
    run = scored(FA3, random_scores(11, 1, 128 * 8, 6.0), num_splits=8, dims=3)
    level, partial = run.trace["level"][0], run.trace["partial"][0]
    e = ex2(mul(add(level, -level.max()), LOG2E))
    lanes = np.zeros(32, F32)
    lanes[:8] = e
    for stride in (16, 8, 4, 2, 1):
        lanes = add(lanes, lanes[np.arange(32) ^ stride])
    w = mul(e, rcp(lanes[0]))
    o = np.zeros(3, F32)
    for n in range(8):
        o = fma(w[n], partial[n], o)
    assert words(run.output[0]).tolist() == words(o.astype(BF16)).tolist()


def test_a_row_of_minus_infinity_is_zero_in_flash_attention_3() -> None:
    run = scored(FA3, np.full((1, 300), -np.inf, F32), num_splits=3)
    assert run.output.astype(F32).tolist() == [[0, 0]]
    assert run.lse is not None
    assert run.lse.tolist() == [-np.inf]
