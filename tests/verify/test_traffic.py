"""Traffic counts against the issue's table and against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from verify.traffic import (
    Layer,
    PartialField,
    Traffic,
    dense,
    dense_backward,
    floor_sum,
    partial_bytes,
    split_decode,
    tile_count,
    tiled,
    tiled_backward,
    visible_rows,
)

# The issue's part 3: MB of 10**6 bytes at 32 heads, head_dim 128, 2 bytes, 128 x 128 blocks.
TABLE = [
    (1024, "33.55", "268.44", "301.99", "92.27"),
    (4096, "134.22", "4294.97", "4429.19", "1174.41"),
    (16384, "536.87", "68719.48", "69256.35", "17582.52"),
    (32768, "1073.74", "274877.91", "275951.65", "69524.78"),
]


def mb(size: int) -> str:
    return f"{size / 1e6:.2f}"


@pytest.mark.parametrize(("tokens", "qkvo", "matrix", "total", "tiles"), TABLE)
def test_the_issues_table(tokens: int, qkvo: str, matrix: str, total: str, tiles: str) -> None:
    layer = Layer(tokens)
    count = dense(layer)
    assert mb(count.part("q, k, v, output")) == qkvo
    assert mb(count.part("matrix")) == matrix
    assert mb(count.total) == total
    assert mb(tiled(layer).total) == tiles


def test_materialised_elements_of_the_64_token_test() -> None:
    count = tile_count(Layer(64, q_heads=1, kv_heads=1, head_dim=16, q_block=16, kv_block=16))
    assert (count.dense_elements, count.tiled_elements) == (4160, 0)
    assert (count.tile_elements, count.tiles_visited) == (256, 10)


def test_a_ragged_last_block_reads_only_what_exists() -> None:
    # 300 tokens in blocks of 128: rows 128, 256, 300.
    assert visible_rows(Layer(300)) == 684
    assert visible_rows(Layer(300, causal=False)) == 900


def test_tiles_of_unequal_blocks() -> None:
    # 64 tokens, 32-row query blocks, 16-column tiles: 2 + 4.
    assert tile_count(Layer(64, q_block=32, kv_block=16)).tiles_visited == 6


F32_PARTIAL = (PartialField("partial", 32, True), PartialField("level", 32, False))
BF16_PARTIAL = (
    PartialField("partial", 16, True),
    PartialField("top", 32, False),
    PartialField("norm", 32, False),
)


def test_partials_have_the_widths_of_their_formats() -> None:
    assert partial_bytes(F32_PARTIAL, 256) == 1028
    assert partial_bytes(BF16_PARTIAL, 256) == 520


def test_split_decode_by_hand() -> None:
    layer = Layer(27525, q_heads=24, kv_heads=4, head_dim=256)
    count = split_decode(layer, 54, F32_PARTIAL)
    assert count.part("k, v once") == 27525 * 4 * 256 * 2 * 2 == 112742400
    assert count.part("partials written") == count.part("partials read back") == 54 * 24 * 1028
    assert count.part("q, output") == 2 * 24 * 256 * 2
    assert count.total == 112742400 + 2 * 1332288 + 24576
    # 4.8 TB/s
    assert count.seconds(4.8e12) == pytest.approx(115431552 / 4.8e12, rel=1e-15)


def test_one_group_writes_no_partial() -> None:
    count = split_decode(Layer(1000), 1, F32_PARTIAL)
    assert count.part("partials written") == 0


def test_backward_by_hand() -> None:
    # Two blocks of 128, one head of 16: the first KV block meets 256 queries, the second 128.
    layer = Layer(256, q_heads=1, kv_heads=1, head_dim=16)
    count = tiled_backward(layer)
    q = 256 * 16 * 2
    assert count.part("q, output gradient per KV block") == 384 * 2 * 16 * 2
    assert count.part("dq accumulator in f32, read and written") == 384 * 2 * 16 * 4
    assert count.part("lse, row sum per KV block") == 384 * 2 * 4
    assert count.part("k, v per query head") == 2 * q
    assert count.part("preprocess: output, its gradient, row sum") == 2 * q + 256 * 4
    assert count.part("dq converted") == 256 * 16 * 6
    assert dense_backward(layer).part("matrix") == 7 * 256 * 256 * 2


@given(blocks=st.integers(1, 64), block=st.sampled_from([16, 64, 128]))
def test_tiled_never_exceeds_dense_once_the_matrix_is_wide(blocks: int, block: int) -> None:
    layer = Layer(blocks * block, q_block=block, kv_block=block)
    # k and v are read per query block, tokens / block times at most.
    assert tiled(layer).total <= 2 * layer.q_bytes + blocks * layer.kv_bytes
    assert tiled(layer).total >= 2 * layer.q_bytes + layer.kv_bytes


@pytest.mark.parametrize(
    "bad", [{"tokens": 0}, {"tokens": 4, "head_dim": -1}, {"tokens": 4, "q_heads": 5, "kv_heads": 2}]
)
def test_bad_shapes_are_explained(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Layer(**bad)
    assert caught.value.remedy


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_bandwidth_must_be_positive(bandwidth: float) -> None:
    with pytest.raises(InputError, match="memory bandwidth"):
        Traffic("x", (("a", 1),)).seconds(bandwidth)
    with pytest.raises(InputError, match="0 groups"):
        split_decode(Layer(4), 0, F32_PARTIAL)


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 200), st.integers(0, 200))
def test_floor_sums_are_sums(count: int, divisor: int, step: int, offset: int) -> None:
    assert floor_sum(count, divisor, step, offset) == sum(
        (step * i + offset) // divisor for i in range(count)
    )


@given(st.integers(1, 200), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_closed_forms_are_the_loops_they_stand_for(n: int, q_block: int, kv_block: int, causal: bool) -> None:
    layer = Layer(n, q_heads=1, kv_heads=1, head_dim=1, q_block=q_block, kv_block=kv_block, causal=causal)
    ends = [min(n, start + q_block) if causal else n for start in range(0, n, q_block)]
    assert visible_rows(layer) == sum(ends)
    assert tile_count(layer).tiles_visited == sum(-(-end // kv_block) for end in ends)
    seen = sum(n - (start // q_block * q_block if causal else 0) for start in range(0, n, kv_block))
    assert tiled_backward(layer).part("lse, row sum per KV block") == seen * 2 * 4


@pytest.mark.parametrize("causal", [True, False])
def test_the_longest_sequence_in_the_smallest_blocks_is_counted_at_once(causal: bool) -> None:
    n = 1 << 24
    layer = Layer(n, q_block=1, kv_block=1, causal=causal)
    pairs = n * (n + 1) // 2 if causal else n * n
    assert (visible_rows(layer), tile_count(layer).tiles_visited) == (pairs, pairs)
    assert tiled_backward(layer).part("lse, row sum per KV block") == pairs * 32 * 2 * 4


def sizes_of(name: str) -> dict[str, Any]:
    return {name: 99999999999999999999999}


@pytest.mark.parametrize("causal", [True, False])
def test_sizes_have_an_upper_end(causal: bool) -> None:
    sizes = ("tokens", "q_heads", "kv_heads", "head_dim", "element_bytes", "batch", "q_block", "kv_block")
    for name in sizes:
        with pytest.raises(InputError, match="at most"):
            replace(Layer(1, causal=causal), **sizes_of(name))
