"""Runs of logits against predicted runs."""

import ml_dtypes
import numpy as np
import pytest

from specs.errors import InputError
from verify.identify.logits import identify_logits, repeats_share
from verify.runs.manifest import Coordinate, Manifest, Recording
from verify.runs.run import Run
from verify.runs.sequence import Full, Sequence, Top

BF16 = ml_dtypes.bfloat16
N, V = 40, 12


def full(data: np.ndarray) -> Full:
    return Full(len(data), data.shape[1], data.dtype, lambda a, b: data[a:b])


def run(name: str, *sequences: Sequence, kind: str = "raw_logits", **more: object) -> Run:
    capture = Recording.model_validate({"value_kind": kind, "teacher_forced": True, **more})
    manifest = Manifest(schema=1, kind="run", run_id=name, coordinate=Coordinate(), capture=capture, files=())
    return Run(name, manifest, sequences, name, "0" * 64)


def rows(data: np.ndarray, repeat: int = 0, first: int = 0, tokens: np.ndarray | None = None) -> Sequence:
    n = len(data)
    ids = np.arange(first, first + n) % V if tokens is None else tokens
    return Sequence("c", repeat, np.arange(first, first + n), ids, full=full(data))


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((N, V)).astype(BF16)


def nudged(data: np.ndarray, *at: int) -> np.ndarray:
    out = data.copy()
    words = out.view(np.uint16)
    words[list(at), 3] += 1
    return out


def test_the_exact_prediction_comes_first_and_is_only_consistent(logits):
    other = nudged(logits, *range(0, N, 2))
    found = identify_logits(run("cap", rows(logits)), [run("b", rows(other)), run("a", rows(logits))])
    assert found.kind == "consistent"
    assert found.verdict.startswith("consistent with a: 40 of 40 positions")
    assert [r.names for r in found.ranking] == [("a",), ("b",)]
    assert found.ranking[1].exact_positions == N // 2
    assert found.ranking[1].exact_share == pytest.approx(1 - (N // 2) / (N * V))
    assert found.ranking[1].largest == 1
    first = found.ranking[1].first
    assert first is not None
    assert first.index == {"position": 0, "token": 3}
    assert found.confusion[0].share == 0.5
    assert found.confusion[0].needed == 7


def test_predictions_that_agree_are_ambiguous_and_a_few_positions_prove_nothing(logits):
    cap = run("cap", rows(logits))
    assert identify_logits(cap, [run("a", rows(logits)), run("b", rows(logits.copy()))]).ambiguous == (1,)
    wrong = nudged(logits, *range(N))
    assert identify_logits(cap, [run("b", rows(wrong))]).kind == "none"


def test_only_common_positions_before_a_fork_count(logits):
    tokens = np.arange(N) % V
    tokens[30:] = (tokens[30:] + 1) % V
    late = rows(logits[10:], first=10)
    forked = rows(nudged(logits, 35), tokens=tokens)
    found = identify_logits(run("cap", rows(logits)), [run("a", late), run("b", forked)])
    assert found.ranking[0].positions == 21  # 10..30: the row at the fork still has the same text before it
    assert {r.exact_share for r in found.ranking} == {1.0}


def test_top_k_is_compared_at_the_captured_ids_and_printed_values_by_their_digits(logits):
    wide = logits.astype(np.float64)
    ids = np.argsort(-wide, axis=1, kind="stable")[:, :4]
    values = np.round(np.take_along_axis(wide, ids, axis=1), 3)
    top = Sequence("c", 0, np.arange(N), np.arange(N) % V, top=Top(ids, values))
    found = identify_logits(run("cap", top, decimals=3), [run("a", rows(logits))])
    assert found.ranking[0].exact_share == 1.0
    values = values.copy()
    values[0, 0] += 0.002
    top = Sequence("c", 0, np.arange(N), np.arange(N) % V, top=Top(ids, values))
    found = identify_logits(run("cap", top, decimals=3), [run("a", rows(logits))])
    assert found.ranking[0].largest == 2


def test_captured_log_probabilities_are_compared_with_predicted_logits(logits):
    """Printed to three decimals, against NumPy's; a prediction with another logit is told."""
    wide = logits.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    ids = np.argsort(-wide, axis=1, kind="stable")[:, :4]
    top = Top(ids, np.round(np.take_along_axis(logs, ids, axis=1), 3))
    cap = run(
        "cap", Sequence("c", 0, np.arange(N), np.arange(N) % V, top=top), kind="raw_logprobs", decimals=3
    )
    off = wide.astype(np.float32)
    off[:, 0] += 4.0
    found = identify_logits(cap, [run("a", rows(logits)), run("b", rows(off))])
    assert [r.names for r in found.ranking] == [("a",), ("b",)]
    assert found.ranking[0].exact_share == 1.0
    assert found.ranking[1].exact_share < 1.0


def test_f32_that_holds_bf16_is_compared_as_bf16(logits):
    found = identify_logits(run("cap", rows(logits.astype(np.float32))), [run("a", rows(logits))])
    assert found.ranking[0].exact_share == 1.0


def test_the_disturbed_share_comes_from_repeats(logits):
    cap = run("cap", rows(logits), rows(nudged(logits, 1, 2, 3, 4), repeat=1))
    assert repeats_share(cap) == pytest.approx(4 / N)
    assert identify_logits(cap, [run("a", rows(logits))]).e == pytest.approx(4 / N)
    assert repeats_share(run("one", rows(logits))) is None


def test_bad_runs_are_refused(logits):
    cap = run("cap", rows(logits))
    with pytest.raises(InputError, match="raw_logprobs, the capture raw_logits"):
        identify_logits(cap, [run("a", rows(logits), kind="raw_logprobs")])
    with pytest.raises(InputError, match="no position"):
        identify_logits(cap, [run("a", rows(logits, first=100))])
    with pytest.raises(InputError, match="no values like those"):
        identify_logits(cap, [run("a", rows(logits[:, :5]))])
    bare = Sequence("c", 0, np.arange(N), np.arange(N) % V)
    with pytest.raises(InputError, match="neither full logits"):
        identify_logits(run("cap", bare), [run("a", rows(logits))])
