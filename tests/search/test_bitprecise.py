"""The bit-precise encoding against enumeration and against what other encodings found."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest

from search.bitprecise import LEVELS, find
from search.evaluate import Evaluator
from search.sides import Side, load_side
from search.space import Inputs, Space
from specs.errors import InputError, UnsupportedError

LEVEL = {"triton": "segment", "xqa": "group", "flash_attention_2": "split", "trtllm_gen": "tile"}
#: A token of weight 1/4 next to pilots of 1/2 and 1: rounded up in one grouping, down in the other.
ATTACK = (LEVELS[2], LEVELS[1], LEVELS[0])

#: A weight just above the midpoint of two bf16 numbers next to a token of weight 1, for two tokens.
PAIR = (-0.6890044293167606, 0.0)


def side(name: str, size: int, **lines: str) -> Side:
    return load_side(f"walkthrough.{name}@h200", {LEVEL[name]: f"tiles({size})", **lines})


def reached(a: Side, b: Side, scores: tuple[float, ...]) -> int:
    """The largest integer distance over every value of two tokens, by evaluation."""
    grid = [0.0, *(np.arange(128, 256) / 128)]
    values = np.array([v for v in product(grid, repeat=len(scores)) if any(v)], np.float32)[:, :, None]
    rows = np.broadcast_to(np.array(scores, np.float32), values.shape[:2])
    space = Space(kv_len=len(scores))
    p, q = (
        Evaluator(x, space).run(Inputs(rows.copy(), values)).stored.view(np.uint16).astype(int)
        for x in (a, b)
    )
    return int(np.abs(p - q).max())


@pytest.mark.parametrize(
    "name", ["triton", *(pytest.param(n, marks=pytest.mark.slow) for n in ("xqa", "flash_attention_2"))]
)
def test_two_tokens_reach_what_enumeration_reaches(name: str) -> None:
    pytest.importorskip("bitwuzla")
    a, b, scores = side(name, 2), side(name, 1), PAIR
    most = reached(a, b, scores)
    assert most >= 1
    found = find(a, b, most, tokens=2, scores=scores, solver="bitwuzla")
    assert found.status == "sat"
    assert found.distance is not None
    assert found.distance >= most
    assert find(a, b, most + 1, tokens=2, scores=scores, solver="bitwuzla").status == "unsat"


def test_scores_are_found_too() -> None:
    """Two ULP with three tokens in groups of three against two: possible, by a choice of levels."""
    pytest.importorskip("bitwuzla")
    found = find(side("triton", 3), side("triton", 2), 2, tokens=3, solver="bitwuzla")
    assert found.status == "sat"
    assert found.distance == 2
    assert found.scores is not None
    assert set(found.scores.tolist()) <= set(np.float32(LEVELS).tolist())
    assert found.values is not None
    assert all(v == 0 or 1 <= v < 2 for v in found.values.tolist())


@pytest.mark.slow
def test_three_ulp_are_impossible_with_three_tokens() -> None:
    pytest.importorskip("bitwuzla")
    a, b = side("triton", 3), side("triton", 2)
    patient = {"tokens": 3, "solver": "bitwuzla", "seconds": 1200.0}  # a busy machine must not decide
    assert find(a, b, 2, scores=ATTACK, **patient).status == "sat"
    assert find(a, b, 3, scores=ATTACK, **patient).status == "unsat"
    assert find(side("xqa", 3), b, 2, **patient).status == "sat"
    assert find(side("trtllm_gen", 3), b, 2, scores=ATTACK, **patient).status == "sat"


def test_z3_needs_no_extra() -> None:
    a, b = side("triton", 2), side("triton", 1)
    found = find(a, b, 1, tokens=2, scores=PAIR)
    assert (found.status, found.solver) == ("sat", "z3")
    assert find(a, b, 1, tokens=2, rlimit=1000).status == "unknown"


def test_signed_values_reach_further() -> None:
    """With cancellation one rounding is worth many places."""
    pytest.importorskip("bitwuzla")
    found = find(
        side("triton", 2),
        side("triton", 1),
        8,
        tokens=2,
        scores=PAIR,
        signed=True,
        solver="bitwuzla",
    )
    assert found.status == "sat"
    assert found.values is not None
    assert min(found.values) < 0 < max(found.values)


def test_without_bitwuzla_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitwuzla", None)
    with pytest.raises(UnsupportedError, match="not installed"):
        find(side("triton", 2), side("triton", 1), 1, tokens=2, solver="bitwuzla")


def test_what_has_no_encoding_is_refused() -> None:
    a = side("triton", 2)
    with pytest.raises(UnsupportedError, match="no solver"):
        find(a, a, 1, tokens=2, solver="cvc5")
    with pytest.raises(InputError, match="are encoded"):
        find(a, a, 1, tokens=7)
    with pytest.raises(InputError, match="levels of 6 tokens"):
        find(a, a, 1, tokens=6, levels=(0.0, 1.0, 2.0, 3.0, 4.0))
    with pytest.raises(InputError, match="different formats"):
        find(a, load_side("walkthrough.dense@h200"), 1, tokens=2)
    exact = side("triton", 2, value="sum(bf16(weight) * v, exact())")
    with pytest.raises(UnsupportedError, match="exact"):
        find(a, exact, 1, tokens=2, levels=(0.0, -1.0))
