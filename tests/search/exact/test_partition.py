"""Partitions by slices: the language's words by hand, the emulator's plans, and a plan with a token moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.exact.partition import difference, partition, pieces
from specs.errors import Place, SpecError
from specs.grammar import parse_level
from specs.nodes import LevelRule
from tests.verify.small import planned
from verify.partition import Plan


def rule(text: str) -> LevelRule:
    return parse_level(text, Place("test"))


@pytest.mark.parametrize(
    ("text", "n", "want"),
    [
        ("tiles(4)", 10, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ("tiles(4, desc)", 10, [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]),
        ("pieces(3, unit=2)", 9, [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        ("pieces(4, unit=2)", 9, [[0, 1, 2, 3], [4, 5, 6, 7], [8], []]),
        ("pieces(2, unit=2, of=12)", 7, [[0, 1, 2, 3, 4, 5], [6]]),
        ("pieces(2, unit=2, skip=1)", 9, [[0, 1, 2, 3, 4, 5], [6, 7, 8]]),
        ("deal(2, unit=2)", 9, [[0, 1, 4, 5, 8], [2, 3, 6, 7]]),
        ("deal(3, unit=2, skip=1)", 9, [[2, 3, 8], [4, 5], [0, 1, 6, 7]]),
        ("deal(3, unit=4)", 5, [[0, 1, 2, 3], [4], []]),
    ],
)
def test_the_rules_by_hand(text: str, n: int, want: list[list[int]]) -> None:
    assert [list(p) for p in pieces(rule(text), range(n))] == want


def plan_of(levels: str, n: int) -> Plan:
    lines = "\n".join(f'l{i} = "{text}"' for i, text in enumerate(levels.split("; ")))
    return planned(f'[levels]\n{lines}\n[token]\nx = "v"\n[row]\noutput = "sum(x, exact())"\n', n)


RULES = st.one_of(
    st.builds("tiles({})".format, st.integers(1, 9)),
    st.builds("tiles({}, desc)".format, st.integers(1, 9)),
    st.builds(
        "pieces({}, unit={}, skip={}{})".format,
        st.integers(1, 7),
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from(["", ", empty=keep"]),
    ),
    st.builds(
        "deal({}, unit={}, skip={}{})".format,
        st.integers(1, 7),
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from(["", ", empty=keep"]),
    ),
    st.builds("pieces({}, unit=3, of=60)".format, st.integers(1, 7)),
)


@given(st.lists(RULES, min_size=1, max_size=3), st.integers(0, 60))
def test_nested_levels_are_what_the_emulator_plans(levels: list[str], n: int) -> None:
    other = plan_of("; ".join(levels), n)
    assert difference(partition(other.program, other.context), other) == ""


@pytest.mark.parametrize("change", ["swap", "drop", "visit", "shape"])
def test_another_plan_is_told_apart(change: str) -> None:
    other = plan_of("deal(3, unit=4); tiles(2)", 40)
    mine = partition(other.program, other.context)
    tokens: Any = other.tokens.copy()
    if change == "swap":
        tokens[0, 0, 0], tokens[0, 0, 1] = tokens[0, 0, 1], tokens[0, 0, 0]
        want = "token 0 against 1 at (0, 0, 0)"
    elif change == "drop":
        tokens[1, 2, 1] = -1
        want = "token 17 against -1 at (1, 2, 1)"
    elif change == "shape":
        tokens, want = tokens[:2], "a table of (3, 8, 2) against (2, 8, 2)"
    else:
        want = "other pieces of 'l1' are visited"
    exists = dict(other.exists)
    if change == "visit":
        exists["l1"] = np.zeros_like(exists["l1"])
    assert difference(mine, replace(other, tokens=tokens, exists=exists)) == want


def test_tokens_without_an_owner_are_refused() -> None:
    other = plan_of("pieces(2, unit=2, of=8)", 8)
    context = {**other.context, "kv_len": 11}
    with pytest.raises(SpecError, match="no piece owns"):
        partition(other.program, context)
