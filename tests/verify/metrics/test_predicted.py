"""Predicted differences against real ones, with every number computed again by plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from tests.verify.metrics import made
from verify.metrics import predicted as p
from verify.metrics.predicted_view import (
    Kernel,
    candidates_by_coordinate,
    equal_in_lists,
    kernel_of,
    platform_of,
    renamed,
    seen_as,
)
from verify.runs.manifest import Coordinate
from verify.runs.run import Run
from verify.runs.sequence import Full

ROWS, VOCAB = 6, 50
QUAD = p.Quad(0, 1, 2, 3)


def four(conversations: int, noise: float, part: float = 1.0, seed: int = 0) -> list[list[np.ndarray]]:
    """Values [4][conversation][rows, vocab] f32 of A, B, a, b: b - a is of RMS 1, B - A is ``part`` of it and ``noise``."""
    rng = np.random.default_rng(seed)
    out: list[list[np.ndarray]] = [[], [], [], []]
    for _ in range(conversations):
        base, other, step, rest = rng.standard_normal((4, ROWS, VOCAB))
        values = base * 5, base * 5 + part * step + noise * rest, other * 5, other * 5 + step
        for held, v in zip(out, values, strict=True):
            held.append(v.astype(np.float32))
    return out


def runs(values: list[list[np.ndarray]], **more: Any) -> list[Run]:
    return [
        made.run(name, *(made.sequence(f"c{i}", values=v) for i, v in enumerate(held)), **more)
        for name, held in zip("ABab", values, strict=True)
    ]


def steps(values: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the real difference as vectors, in float64."""
    whole = [np.concatenate(held).astype(np.float64).ravel() for held in values]
    return whole[3] - whole[2], whole[1] - whole[0]


@pytest.mark.parametrize("conversations", [12, 3])
def test_numbers_are_numpys(conversations: int) -> None:
    values = four(conversations, 0.5)
    (found,) = p.differences(runs(values), [QUAD])
    pred, real = steps(values)
    assert (found.rows, found.elements) == (conversations * ROWS, pred.size)
    assert found.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-6)
    assert found.slope.value == pytest.approx(np.polyfit(pred, real, 1)[0], abs=1e-6)
    assert found.cosine.value == pytest.approx(
        pred @ real / np.linalg.norm(pred) / np.linalg.norm(real), abs=1e-6
    )
    assert found.signs.value == pytest.approx(np.mean(np.sign(pred) == np.sign(real)), abs=1e-9)
    assert found.rms_ratio.value == pytest.approx(np.linalg.norm(pred) / np.linalg.norm(real), abs=1e-6)
    assert found.real_rms == pytest.approx(np.sqrt(np.mean(real**2)), rel=1e-6)
    assert found.outcome == "direction and size"
    low, high = found.correlation.low, found.correlation.high
    assert low is not None
    assert high is not None
    assert low < found.correlation.value < high
    if conversations == 12:
        assert found.correlation.kind == "bootstrap"
        # The spread of correlations of 300 numbers each, by the standard error of Fisher's z.
        assert 0.2 < (high - low) / (2 * 1.96 * (1 - found.correlation.value**2) / np.sqrt(pred.size)) < 3
    else:
        one = [steps([[held[i]] for held in values]) for i in range(3)]
        want = [np.corrcoef(*x)[0, 1] for x in one]
        assert [v for _, v in found.correlation.each] == pytest.approx(want, abs=1e-6)
        assert (found.correlation.kind, found.correlation.low) == (
            "few conversations",
            pytest.approx(min(want)),
        )


@pytest.mark.parametrize("conversations", [12, 3])
@pytest.mark.parametrize(
    ("noise", "part", "outcome", "words"),
    [
        (0.0, 1.0, "bit-exact", "every difference is as predicted: "),
        (0.3, 1.0, "direction and size", "slope 1.0"),
        (1.0, 0.0, "unexplained", "not told from zero"),
        (0.3, -1.0, "unexplained", "not told from zero"),
        (0.3, 4.0, "unexplained", "the direction is predicted, the size is not (slope 4"),
        (0.02, 0.2, "unexplained", "the size is not (slope 0.2)"),
    ],
)
def test_outcomes(conversations: int, noise: float, part: float, outcome: str, words: str) -> None:
    values = four(conversations, noise, part)
    if noise == 0:  # equal steps in f32: small whole numbers
        rng = np.random.default_rng(3)
        values = [[np.zeros_like(v) for v in held] for held in values]
        for i in range(conversations):
            base, other, step = rng.integers(-50, 50, (3, ROWS, VOCAB)).astype(np.float32)
            values[0][i], values[1][i], values[2][i], values[3][i] = base, base + step, other, other + step
    (found,) = p.differences(runs(values), [QUAD])
    assert (found.outcome, words in found.reason) == (outcome, True), found.reason


def test_weak_correlations_explain_nothing() -> None:
    """One part in 200 of the variance over 60,000 elements is far from zero by chance, and still no explanation."""
    rng = np.random.default_rng(1)
    values: list[list[np.ndarray]] = [[], [], [], []]
    for _ in range(12):
        base, step, rest = rng.standard_normal((3, 100, VOCAB)).astype(np.float32)
        for held, v in zip(values, (base, base + step + 14 * rest, base, base + step), strict=True):
            held.append(v)
    (found,) = p.differences(runs(values), [QUAD])
    assert found.correlation.low is not None
    assert found.correlation.low > 0
    assert (found.outcome, "below 0.1" in found.reason) == ("unexplained", True)


def test_equal_predictions_and_equal_runs() -> None:
    a, b = made.logits(4, 9, 1), made.logits(4, 9, 2)
    cases = {
        "no difference, as predicted: 36 elements": [a, a, b, b],
        "the predictions are equal, the coordinates are not": [a, b, a, a],
        "the predictions differ, the coordinates do not": [a, a, a, b],
    }
    for reason, values in cases.items():
        (found,) = p.differences(runs([[v] for v in values]), [QUAD])
        assert found.reason == reason


def test_flips_by_hand() -> None:
    """Rows of three tokens; the best ones are chosen row by row."""
    best = [  # real first, real second, predicted first, predicted second
        (0, 0, 0, 0),
        (0, 1, 0, 1),  # happened, the same tokens
        (0, 1, 1, 2),  # happened, other tokens
        (0, 2, 0, 0),  # missed
        (1, 1, 0, 2),  # idle
        (2, 2, 1, 1),
    ]
    values = [[np.zeros((6, 3), np.float32)] for _ in range(4)]
    for row, tokens in enumerate(best):
        for held, token in zip(values, tokens, strict=True):
            held[0][row, token] = 1
    (found,) = p.differences(runs(values), [QUAD])
    assert found.flips == p.Flips(rows=6, real=3, predicted=3, both=2, same_tokens=1, missed=1, idle=1)
    assert (found.found.value, found.right.value) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert [(f.position, f.kind, f.real, f.predicted) for f in found.positions] == [
        (1, "predicted and happened", (0, 1), (0, 1)),
        (2, "predicted and happened", (0, 1), (1, 2)),
        (3, "missed", (0, 2), (0, 0)),
        (4, "predicted, did not happen", (1, 1), (0, 2)),
    ]
    assert found.left_out == 0


def test_what_is_no_number_is_left_out() -> None:
    values = four(2, 0.5)
    values[0][0][1, 3], values[1][0][2, 4], values[2][1][0, 0] = np.nan, np.inf, -np.inf
    values[1][1][3, 7] = -9999.0
    (found,) = p.differences(runs(values, clamp_floor=-9999.0), [QUAD])
    keep = np.ones((2, ROWS, VOCAB), bool)
    keep[0, 1, 3] = keep[0, 2, 4] = keep[1, 0, 0] = keep[1, 3, 7] = False
    with np.errstate(invalid="ignore"):
        pred, real = (x[keep.ravel()] for x in steps(values))
    assert found.elements == pred.size == 2 * ROWS * VOCAB - 4
    assert found.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-6)


def test_rows_are_those_that_all_four_have_with_one_text() -> None:
    """A starts at position 1, b has no position 3, and the text of B parts after position 4."""
    values = four(1, 0.2)
    tokens = np.array([10, 11, 12, 13, 14, 15])
    parted = tokens.copy()
    parted[4] = 99
    keep = {"A": slice(1, 6), "B": slice(0, 6), "a": slice(0, 6), "b": [0, 1, 2, 4, 5]}
    found_runs = [
        made.run(
            name,
            made.sequence(
                "c",
                values=held[0][keep[name]],
                positions=np.arange(6)[keep[name]],
                tokens=(parted if name == "B" else tokens)[keep[name]],
            ),
        )
        for name, held in zip("ABab", values, strict=True)
    ]
    (found,) = p.differences(found_runs, [QUAD])
    assert found.rows == 3
    at = [1, 2, 4]
    pred, real = steps([[held[0][at]] for held in values])
    assert found.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-6)


def test_rows_are_streamed_and_read_once() -> None:
    """A row of 524,288 columns is a block of its own; two quads that share runs read each row once."""
    vocab, reads = 1 << 19, []
    rng = np.random.default_rng(0)

    def run(name: str) -> Run:
        values = rng.standard_normal((3, vocab)).astype(np.float32)

        def read(start: int, stop: int) -> np.ndarray:
            reads.append((name, stop - start))
            return values[start:stop]

        full = Full(3, vocab, values.dtype, read)
        return made.run(name, replace(made.sequence(n=3), full=full))

    p.differences([run(n) for n in "ABCabc"], [p.Quad(0, 1, 3, 4), p.Quad(0, 2, 3, 5)], threads=1)
    assert max(n for _, n in reads) == 1
    assert sorted(reads) == sorted((n, 1) for n in "ABCabc" for _ in range(3))


def test_lists_of_log_probabilities() -> None:
    """A capture of the five likeliest tokens; the predictions are logits, in another format."""
    values = four(2, 0.4)
    logs = [[log_softmax(v.astype(np.float64), axis=1) for v in held] for held in values]
    reals: list[Run] = []
    for name, held in zip("AB", logs[:2], strict=True):
        ids = [np.argsort(-v, axis=1)[:, :5] for v in held]
        parts = [
            made.sequence(f"c{i}", n=ROWS, top=made.top(k, np.take_along_axis(v, k, axis=1)))
            for i, (k, v) in enumerate(zip(ids, held, strict=True))
        ]
        reals.append(made.run(name, *parts, kind="raw_logprobs"))
    predicted = runs(values)[2:]
    views = [seen_as(one, real) for one, real in zip(predicted, reals, strict=True)]
    for view, real, want in zip(views, reals, logs[2:], strict=True):
        for s, r, w in zip(view.sequences, real.sequences, want, strict=True):
            assert s.top is not None
            assert r.top is not None
            np.testing.assert_allclose(s.top.values, np.take_along_axis(w, r.top.ids, axis=1), atol=2e-6)
    (found,) = p.differences([*reals, *views], [QUAD])
    pred, real = [], []
    for i in range(2):
        for row in range(ROWS):
            tops = [set(np.argsort(-logs[side][i][row])[:5].tolist()) for side in (0, 1)]
            for token in sorted(tops[0] & tops[1]):
                pred.append(logs[3][i][row, token] - logs[2][i][row, token])
                real.append(logs[1][i][row, token] - logs[0][i][row, token])
    assert found.elements == len(pred)
    assert found.correlation.value == pytest.approx(np.corrcoef(pred, real)[0, 1], abs=1e-5)
    assert equal_in_lists(reals[0], views[0])[0] == 2 * ROWS * 5
    own = runs([logs[0], logs[1], logs[0], logs[1]], kind="raw_logprobs")[2]
    assert equal_in_lists(reals[0], seen_as(own, reals[0])) == (60, 60)


def test_logits_without_a_distribution_become_nan() -> None:
    logits = np.array([[0, np.inf, 1], [0, -np.inf, 0], [np.nan, 0, 0]], np.float32)
    real = made.run("A", made.sequence("c", values=logits), kind="raw_logprobs")
    (one,) = seen_as(made.run("a", made.sequence("c", values=logits)), real).sequences
    assert one.full is not None
    found = one.full.read(0, 3)
    assert np.isnan(found[[0, 2]]).any(axis=1).all()
    np.testing.assert_array_equal(found[1], np.array([-np.log(2), -np.inf, -np.log(2)], np.float32))


@pytest.mark.parametrize(
    ("coordinate", "kernel"),
    [
        (
            {
                "gpu": "NVIDIA H200",
                "engine": "vllm",
                "engine_version": "0.33.0",
                "requested_backend": "FLASH_ATTN",
            },
            Kernel("flash_attn3.decode", "h200"),
        ),
        (
            {"gpu": "H200", "engine": "vllm", "engine_version": "0.33.0", "requested_backend": "FLASHINFER"},
            Kernel("xqa.decode", "h200"),
        ),
        ({"gpu": "RTX PRO 6000", "attention_backend": "xqa.decode"}, Kernel("xqa.decode", "sm120")),
        ({"platform": "b200", "attention_backend": "plain"}, Kernel(None, "b200")),
        ({"gpu": "H200", "engine": "sglang", "attention_backend": "triton"}, Kernel(None, "h200")),
        (
            {"gpu": "B200", "engine": "vllm", "engine_version": "0.33.0", "requested_backend": "FLASH_ATTN"},
            Kernel(None, "b200"),
        ),
        (
            {"gpu": "H200", "engine": "vllm", "requested_backend": "FLASHINFER", "flags": {"head_dim": -5}},
            Kernel(None, "h200"),
        ),
        ({"gpu": "H100"}, Kernel(None, "h100")),
        ({"gpu": "MI300X", "attention_backend": "xqa.decode"}, Kernel(None, None)),
        ({"attention_backend": "xqa.decode"}, Kernel(None, None)),
    ],
)
def test_kernel_of_a_coordinate(coordinate: dict[str, Any], kernel: Kernel) -> None:
    run = made.run("x", made.sequence(n=1))
    place = Coordinate.model_validate(coordinate)
    run = replace(run, manifest=run.manifest.model_copy(update={"coordinate": place}))
    assert kernel_of(run) == kernel
    own = replace(
        run,
        manifest=run.manifest.model_copy(
            update={"coordinate": Coordinate(platform="h200", attention_backend="xqa.decode")}
        ),
    )
    assert candidates_by_coordinate(run, [own]) == ((0,) if kernel == Kernel("xqa.decode", "h200") else ())


def test_a_gpu_by_its_multiprocessors() -> None:
    found = platform_of(Coordinate(gpu="NVIDIA H100 80GB HBM3", sm_count=132))
    assert found is not None
    assert found.name == "h100"


def test_conversations_are_found_by_their_text() -> None:
    def run(name: str, conversation: str, tokens: list[int]) -> Run:
        return made.run(name, made.sequence(conversation, tokens=tokens, prompt=[7], n=3))

    reals = [run("A", "q1", [1, 2, 3])]
    assert renamed(run("a", "text", [1, 2, -1]), reals).sequences[0].conversation == "q1"
    assert renamed(run("a", "text", [1, 5, -1]), reals).sequences[0].conversation == "text"
    assert renamed(run("a", "q1", [1, 5, -1]), reals).sequences[0].conversation == "q1"
