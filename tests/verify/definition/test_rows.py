"""``over=row``: rows of one KV head that are evaluated together."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specs import load_platform, parse_spec
from tests.verify.small import HEADER, planned
from verify import emulate
from verify.definition import RowInputs, ScalarArithmetic, evaluate, evaluate_rows
from verify.definition.balls import enclose

OUTPUT = 'output = "sum(v, seq())"\n'


def rows_of(scores: NDArray[np.float64]) -> list[RowInputs]:
    v = np.zeros((scores.shape[1], 1))
    return [RowInputs(v=v, feed={"s": row}) for row in scores]


def together(text: str, scores: Any, sites: list[str], wanted: list[int] | None = None) -> list[Any]:
    array = np.asarray(scores, dtype=np.float64)
    plan = planned(text, array.shape[1])
    found = evaluate_rows(plan.program, plan, rows_of(array), sites, ScalarArithmetic(), [], wanted=wanted)
    return [[row[name].tolist() for name in sites] for row in found]


def test_any_max_and_sum_over_rows_alone_keep_the_token() -> None:
    text = (
        '[token]\ns = "sum(q * k, seq())"\nbig = "any(s > 2, over=row)"\ntop = "max(s, over=row)"\n'
        'all = "bf16.sum(s, seq(), over=row)"\n[row]\n' + OUTPUT
    )
    # Third token in bf16: (256 + 1) + 1 = 256, but (1 + 1) + 256 = 258: the order of the rows shows.
    rows = together(text, [[1, 2, 256], [3, 1, 1], [2, 0, 1]], ["big", "top", "all"])
    assert rows == [[[True, False, True], [3.0, 2.0, 256.0], [6.0, 3.0, 256.0]]] * 3
    rows = together(text, [[1, 2, 1], [3, 1, 1], [2, 0, 256]], ["all"], wanted=[2])
    assert rows == [[[6.0, 3.0, 258.0]]]


def test_over_row_and_token_takes_row_after_row() -> None:
    text = '[token]\ns = "sum(q * k, seq())"\n[row]\nall = "bf16.sum(s, seq(), over=(row, token))"\n' + OUTPUT
    # In bf16: ((1 + 256) + 1) + 1 = 256, each 257 a tie to even; token after token, ((1 + 1) + 256) + 1 = 260.
    assert together(text, [[1, 256], [1, 1]], ["all"]) == [[256.0]] * 2
    assert together(text, [[1, 1], [256, 1]], ["all"]) == [[260.0]] * 2


def test_a_row_alone_is_its_own_block() -> None:
    text = '[token]\ns = "sum(q * k, seq())"\n[row]\nmost = "max(s, over=(row, token))"\n' + OUTPUT
    plan = planned(text, 2)
    inputs = RowInputs(v=np.zeros((2, 1)), feed={"s": np.array([1.0, 5.0])})
    assert evaluate(plan.program, plan, inputs, ["most"], ScalarArithmetic())["most"].item() == 5.0
    assert enclose(plan.program, plan, inputs, ["most"])["most"].item() == 5


HINTS = """
[levels]
outer = "tiles(4)"
x     = "tiles(2)"
[state.row]
M    = "-100"
hint = "-100"
[token]
s = "sum(q * k, seq())"
[x]
top  = "max(prev(hint, outer), max(s))"
M    = "max(prev(M), top)"
hint = "select(any(top > prev(M), over=row), M, prev(hint, outer))"
[row]
most = "last(M)"
"""


def by_hand(scores: NDArray[np.float64]) -> tuple[list[list[float]], list[list[float]]]:
    """Tops and hints of each row by step: all rows take a step together; slot x remembers its own hint."""
    rows, tokens = scores.shape
    running, slots = [-100.0] * rows, [[-100.0] * 2 for _ in range(rows)]
    tops: list[list[float]] = [[] for _ in range(rows)]
    hints: list[list[float]] = [[] for _ in range(rows)]
    for step, at in enumerate(range(0, tokens, 2)):
        now = [max(slots[r][step % 2], *scores[r, at : at + 2].tolist()) for r in range(rows)]
        raised = any(now[r] > running[r] for r in range(rows))
        for r in range(rows):
            running[r] = max(running[r], now[r])
            if raised:
                slots[r][step % 2] = running[r]
            tops[r].append(now[r])
            hints[r].append(slots[r][step % 2])
    return tops, hints


@given(st.integers(1, 4), st.integers(1, 21), st.integers(0, 2**32 - 1))
def test_a_vote_of_the_rows_is_what_a_loop_over_them_gives(rows: int, tokens: int, seed: int) -> None:
    scores = np.round(np.random.default_rng(seed).normal(0, 3, (rows, tokens)))
    plan = planned(HINTS + OUTPUT, tokens)
    wanted = list(range(rows))[::-1]  # the last row first: which one is asked first does not matter
    found = evaluate_rows(
        plan.program, plan, rows_of(scores), ["hint", "top"], ScalarArithmetic(), [], wanted=wanted
    )
    tops, hints = by_hand(scores)
    for row, result in zip(wanted, found, strict=True):
        assert result["top"].compressed().tolist() == tops[row]
        assert result["hint"].compressed().tolist() == hints[row]


def test_thousands_of_steps_need_no_deep_recursion() -> None:
    scores = np.random.default_rng(1).normal(0, 3, (2, 6000)).round()
    plan = planned(HINTS + OUTPUT, 6000)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(600)
    try:
        found = evaluate_rows(plan.program, plan, rows_of(scores), ["most", "hint"], ScalarArithmetic(), [])
    finally:
        sys.setrecursionlimit(limit)
    _, hints = by_hand(scores)
    for row in range(2):
        assert found[row]["most"].item() == scores[row].max()
        assert found[row]["hint"].compressed().tolist() == hints[row]


@pytest.mark.parametrize("heads", [1, 2])
def test_the_oracle_gives_each_head_its_own_rows(heads: int) -> None:
    text = '[token]\ns = "dot(q, k, seq(fma))"\n[row]\nmost = "max(s, over=(row, token))"\n'
    spec = parse_spec(HEADER + text + 'output = "sum(v, seq()) + most"\n')
    q = np.array([[1.0], [2.0], [3.0], [5.0]], np.float32)
    k = np.array([[[1.0], [10.0]], [[0.5], [20.0]]], np.float32)[:, :heads]
    result = emulate(spec, load_platform("h200"), q=q, k=k, v=np.zeros_like(k), backend="oracle")
    want = [5.0] * 4 if heads == 1 else [2.0, 2.0, 100.0, 100.0]
    assert result.output[:, 0].tolist() == want
