"""Partition rules against tables from the originals, and rules as a registry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import Place, SpecError
from specs.grammar import parse_expr
from specs.integers import evaluate
from specs.rules import (
    call_rule,
    fa2_num_splits,
    fa3_block_m,
    fa3_block_n,
    fa3_num_splits,
    fa3_overlaps,
    fa3_pv_from_registers,
    fa3_varlen_splits,
    flashinfer_kv_chunk,
    flashinfer_kv_tile,
    flashinfer_query_tile,
    partition_rule,
    rule_names,
)
from tests.tables import Row, Table


def numbers(row: Row, *keys: str) -> list[int]:
    return [int(row[key]) for key in keys]


def check_fa2(row: Row) -> None:
    args = numbers(row, "batch_nheads_mblocks", "num_SMs_arg", "num_n_blocks", "max_splits")
    splits, width, last, empty = numbers(
        row, "num_splits", "blocks_per_split", "last_split_blocks", "empty_splits"
    )
    assert fa2_num_splits(*args) == splits
    check_cut(args[2], splits, width, last, empty)


def check_cut(blocks: int, splits: int, width: int, last: int, empty: int) -> None:
    assert -(-blocks // splits) == width
    used = -(-blocks // width)
    assert splits - used == empty
    assert blocks - (used - 1) * width == last


def check_fa3(row: Row) -> None:
    keys = ("total_mblocks", "num_SMs", "num_n_blocks", "num_m_blocks", "size_one_kv_head")
    args = numbers(row, *keys, "is_causal_or_local", "max_splits")
    splits, width, last, empty = numbers(
        row, "num_splits", "blocks_per_split", "last_split_blocks", "empty_splits"
    )
    assert fa3_num_splits(*args) == splits
    check_cut(args[2], splits, width, last, empty)


def check_fa3_tile(row: Row) -> None:
    keys = ("headdim", "headdim_v", "causal", "local", "elem", "v_colmajor", "paged_non_tma", "softcap")
    args = (*numbers(row, *keys, "one_mma_wg"), int(row["fork"] == "vllm"))
    rules = (fa3_block_m, fa3_block_n, fa3_pv_from_registers, fa3_overlaps)
    wanted = numbers(row, "kBlockM", "kBlockN", "MmaPV_is_RS", "IntraWGOverlap")
    assert [rule(*args) for rule in rules] == wanted


def check_kv_tile(row: Row) -> None:
    for arch in row["arch"].removeprefix("sm").split("/"):
        args = numbers(row, "head_dim", "kv_bytes", "cta_tile_q")
        assert flashinfer_kv_tile(*args, int(arch)) == int(row["cta_tile_kv_tokens"])


def check_plan(row: Row) -> None:
    keys = ("sm_count", "batch", "kv_heads", "seq_len", "page_size", "cuda_graph")
    sms, batch, heads, length, page, graph = numbers(row, *keys)
    most = 2 * sms // heads
    assert most == int(row["max_batch_if_split"])
    chunk = flashinfer_kv_chunk((length,) * batch, 1, page, 0, most)
    pages = -(-length // page)
    split, tokens, chunks = numbers(row, "split_kv", "kv_chunk_tokens", "chunks_per_request")
    assert (chunk, -(-pages * page // chunk)) == (tokens, chunks)
    assert int(bool(graph) or chunk < pages * page) == split


TABLES = [
    Table("fa2_num_splits_small.csv", "fa2_num_splits.csv", 200, 4_000, check_fa2),
    Table("fa3_num_splits_small.csv", "fa3_num_splits.csv", 150, 3_000, check_fa3),
    Table("fa3_tile_size_sm90_small.csv", "fa3_tile_size_sm90.csv", 120, 400, check_fa3_tile),
    Table("flashinfer_kv_tile.csv", "flashinfer_kv_tile.csv", 45, 45, check_kv_tile),
    Table("flashinfer_decode_plan_small.csv", "flashinfer_decode_plan.csv", 200, 3_000, check_plan),
]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rules_give_what_the_originals_gave(table: Table) -> None:
    table.replay_small()


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rules_on_the_whole_tables(table: Table) -> None:
    table.replay_whole()


def test_the_varlen_scheduler_counts_the_whole_batch() -> None:
    """By hand from hopper/flash_prepare_scheduler.cu: blocks * 1.1 * heads / SMs, rounded up, are the share of an SM."""

    def splits(lengths: tuple[int, ...], own: int, bound: int = 100) -> int:
        return fa3_varlen_splits(lengths, own, 4, 1, 128, 132, bound)

    # 64 blocks * 1.1 * 4 / 132 = 2.13: three blocks an SM
    assert splits((8_192,), 8_192) == 22
    # 64 + 8 = 72 blocks: 2.4, the same share
    assert splits((8_192, 1_000), 8_192) == 22
    assert splits((8_192, 1_000), 1_000) == 3
    # four more of 64 blocks: 336 * 1.1 * 4 / 132 = 11.2, twelve blocks an SM
    assert splits((8_192,) * 5 + (2_048,), 8_192) == 6
    assert splits((8_192,) * 5 + (2_048,), 2_048) == 2
    assert splits((8_192,), 8_192, bound=7) == 7
    assert splits((8_192,), 8_192, bound=1) == 1
    assert splits((8_192,) * 993, 8_192) == 1, "more than one thread block of the scheduler: no splits"
    assert splits((0, 0), 0) == 1


def test_chunks_of_a_ragged_batch() -> None:
    """By hand: 66 work items fit (132 SMs, four heads); pages of 16 tokens, chunks of eight pages at least."""
    # 2,048 and 64 pages: 33 pages a chunk give 63 + 2 = 65 items, 32 pages give 64 + 2 = 66
    assert flashinfer_kv_chunk((32_768, 1_024), 1, 16, 0, 66) == 32 * 16
    # one more of 64 pages: 33 give 63 + 2 + 2 = 67, 34 give 61 + 2 + 2 = 65
    assert flashinfer_kv_chunk((32_768, 1_024, 1_024), 1, 16, 0, 66) == 34 * 16
    # a window of 20 pages: 20 + 20 + 20 pages at eight pages a chunk are nine items
    assert flashinfer_kv_chunk((32_768, 1_024, 1_024), 1, 16, 20, 66) == 128
    assert flashinfer_kv_chunk((32_768,), 1, 16, 0, 0) == 32_768, "where nothing fits, one chunk"
    assert flashinfer_kv_chunk((0,), 1, 16, 0, 66) == 128, "an empty sequence has a page"
    assert flashinfer_kv_chunk((1_000,), 1, 256, 0, 66) == 256


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=40), st.integers(1, 64), st.integers(1, 200))
def test_the_chunk_is_the_smallest_that_fits(lengths: list[int], page: int, most: int) -> None:
    chunk = flashinfer_kv_chunk(tuple(lengths), 1, page, 0, most)
    assert chunk % page == 0

    def items(tokens: int) -> int:
        return sum(-(-max(1, -(-n // page)) // (tokens // page)) for n in lengths)

    longest = max(1, -(-max(lengths) // page)) * page
    if items(longest) <= most:
        assert items(chunk) <= most
    if chunk > max(128 // page, 1) * page and items(longest) <= most:
        assert items(chunk - page) > most, "a page less would not fit"


def test_query_tiles() -> None:
    rows = (1, 16, 17, 64, 65)
    assert [flashinfer_query_tile(n, 128, 2, 90) for n in rows] == [16, 16, 64, 64, 128]
    assert [flashinfer_query_tile(n, 256, 2, 90) for n in rows] == [16, 16, 64, 64, 64]
    assert flashinfer_query_tile(6, 256, 2, 120) == 16, "8 KiB of queries and 64 KiB of K and V fit 99 KiB"


@given(st.integers(1, 300), st.integers(1, 1024), st.integers(0, 3000), st.integers(1, 256))
def test_the_heuristic_stays_within_its_limits(workers: int, slots: int, blocks: int, most: int) -> None:
    splits = fa2_num_splits(workers, slots, blocks, most)
    assert 1 <= splits <= max(1, min(most, slots, blocks))
    if splits > 1:  # it never takes a count that cuts like the one below
        assert -(-blocks // splits) < -(-blocks // (splits - 1))


@pytest.mark.parametrize(
    ("args", "cause"),
    [
        ((0, 264, 10, 128), "at least 1"),
        ((1, 0, 10, 128), "at least 1"),
        ((-5, 264, 10, 128), "at least 1"),
        ((1, 2**40, 2**40, 2**40), "split counts to try"),
    ],
)
def test_a_rule_without_an_answer_says_so_at_its_place(args: tuple[int, ...], cause: str) -> None:
    text = f"1 + fa2_num_splits({', '.join(map(str, args))})"
    with pytest.raises(SpecError, match=rf"^my\.toml:3:9: fa2_num_splits\(.*{cause}\n  guard") as caught:
        evaluate(parse_expr(text), {}, Place("my.toml", 3, 5))
    assert caught.value.__cause__ is None


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(SpecError, match="takes 4 arguments, got 1"):
        call_rule("fa2_num_splits", (1,))
    with pytest.raises(SpecError, match="unknown partition rule 'none'"):
        call_rule("none", (1,))


DEGENERATE: list[tuple[str, tuple[int | tuple[int, ...], ...]]] = [
    ("fa3_num_splits", (1, 0, 10, 1, 1, 0, 128)),
    ("fa3_num_splits", (0, 132, 10, 1, 1, 0, 128)),
    ("fa3_num_splits", (1, 132, -1, 1, 1, 0, 128)),
    ("fa3_varlen_splits", ((), 1, 4, 1, 128, 132, 8)),
    ("fa3_varlen_splits", ((1,), 1, 4, 1, 128, 0, 8)),
    ("fa3_block_n", (512, 512, 0, 0, 2, 0, 0, 0, 0, 0)),
    ("fa3_block_n", (0, 128, 0, 0, 2, 0, 0, 0, 0, 0)),
    ("flashinfer_kv_chunk", ((), 1, 16, 0, 66)),
    ("flashinfer_kv_chunk", ((1,), 1, 0, 0, 66)),
    ("flashinfer_kv_chunk", ((1,), 0, 16, 0, 66)),
    ("flashinfer_kv_tile", (128, 2, 16, 75)),
    ("flashinfer_kv_tile", (128, 4, 16, 90)),
    ("flashinfer_kv_tile", (100, 2, 16, 90)),
    ("flashinfer_query_tile", (0, 128, 2, 90)),
]


@pytest.mark.parametrize(("name", "args"), DEGENERATE)
def test_degenerate_arguments_are_refused(name: str, args: tuple[int | tuple[int, ...], ...]) -> None:
    with pytest.raises(SpecError, match=rf"{name}\(.*\) has no answer: .+\n  guard its arguments"):
        call_rule(name, args)


@given(st.sampled_from(sorted(rule_names())), st.data())
def test_rules_answer_or_refuse(name: str, data: st.DataObject) -> None:
    """Whatever the integers, a rule gives an integer or a SpecError."""
    rule: list[int | tuple[int, ...]] = []
    for count in range(12):
        try:
            answer = call_rule(name, tuple(rule))
        except SpecError as error:
            if "argument" in error.cause and "is the lengths" in error.cause:
                rule[int(error.cause.split()[1]) - 1] = data.draw(st.just((7, 300)))
                continue
            if "takes" not in error.cause:
                return
            rule.append(data.draw(st.integers(-2, 300)))
            assert count < 11
            continue
        assert isinstance(answer, int)
        return


def test_lists_go_to_rules_only() -> None:
    lookup = {"kv_lens": (100, 200), "n": 3}

    def value(text: str) -> object:
        return evaluate(parse_expr(text), lookup, Place("my.toml", 3, 5))

    assert value("flashinfer_kv_chunk(kv_lens, 1, 16, 0, 66)") == 128
    for text, cause in (
        ("kv_lens + 1", "3:5: kv_lens is a list"),
        ("kv_lens", "3:5: kv_lens is a list"),
        ("kv_lens == 3", "3:5: kv_lens is a list"),
        ("max(n, kv_lens)", "3:12: kv_lens is a list"),
        ("flashinfer_kv_chunk(n, 1, 16, 0, 66)", "argument 1 of .* is the lengths of the batch, kv_lens"),
        ("flashinfer_kv_chunk(kv_lens, 1, kv_lens, 0, 66)", "argument 3 of .* is an integer"),
    ):
        with pytest.raises(SpecError, match=cause):
            value(text)


def test_a_name_is_taken_once() -> None:
    assert partition_rule(fa2_num_splits) is fa2_num_splits, "the same function again is no conflict"
    assert "fa2_num_splits" in rule_names()

    def other(n: int) -> int:
        return n

    other.__name__ = "fa2_num_splits"
    with pytest.raises(ValueError, match="exists already"):
        partition_rule(other)
