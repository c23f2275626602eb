"""The FlashAttention-2 split heuristic against the compiled original, and rules as a registry."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import Place, SpecError
from specs.grammar import parse_expr
from specs.integers import evaluate
from specs.rules import call_rule, fa2_num_splits, partition_rule, rule_names

SMALL = Path(__file__).parents[1] / "data" / "fa2_num_splits_small.csv"
WHOLE = Path(__file__).parents[3] / "shared" / "oracle" / "fa2_num_splits.csv"


def check(path: Path) -> int:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        workers, slots, blocks, most, splits, width, last, empty = (
            int(row[key])
            for key in (
                "batch_nheads_mblocks",
                "num_SMs_arg",
                "num_n_blocks",
                "max_splits",
                "num_splits",
                "blocks_per_split",
                "last_split_blocks",
                "empty_splits",
            )
        )
        assert fa2_num_splits(workers, slots, blocks, most) == splits, row
        assert -(-blocks // splits) == width, row
        used = -(-blocks // width)
        assert splits - used == empty, row
        assert blocks - (used - 1) * width == last, row
    return len(rows)


def test_the_heuristic_is_that_of_the_compiled_original() -> None:
    assert check(SMALL) == 200


@pytest.mark.skipif(not WHOLE.exists(), reason="the whole table is not here: ../shared/oracle")
def test_the_heuristic_on_the_whole_table() -> None:
    assert check(WHOLE) == 4000


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


def test_a_name_is_taken_once() -> None:
    assert partition_rule(fa2_num_splits) is fa2_num_splits, "the same function again is no conflict"
    assert "fa2_num_splits" in rule_names()

    def other(n: int) -> int:
        return n

    other.__name__ = "fa2_num_splits"
    with pytest.raises(ValueError, match="exists already"):
        partition_rule(other)
