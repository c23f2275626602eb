"""Captures made by the scalar oracle, one element at a time, are traced to the program that made them."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import InputError
from verify.capture.format import packaged, read_capture
from verify.case import Case
from verify.identify.candidates import bound, candidates
from verify.identify.identify import exact_outputs, identify, judged_fits
from verify.identify.observations import Observation, of_kernels, of_run
from verify.identify.predict import narrowed
from verify.identify.ranking import Refused, confusion_matrix
from verify.runs.manifest import Coordinate, Manifest, Recording
from verify.runs.run import Run
from verify.runs.sequence import Attention, Sequence

BF16 = ml_dtypes.bfloat16
NAMES = ("walkthrough.flash_attention_2@h200", "walkthrough.triton@h200")
ROWS, KEYS = 8, 150


@cache
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"q": (ROWS, 4, 16), "k": (KEYS, 2, 16), "v": (KEYS, 2, 16)}
    return {n: rng.standard_normal(s).astype(BF16) for n, s in shapes.items()}


@cache
def captured(spec: str) -> np.ndarray:
    """Decode steps at the last positions, by the oracle."""
    t, first = tensors(), KEYS - ROWS
    steps = [
        Case("", {"q": t["q"][i], "k": t["k"][: first + i + 1], "v": t["v"][: first + i + 1]})
        for i in range(ROWS)
    ]
    name, _, platform = spec.partition("@")
    return np.stack(
        [s.emulate(load_spec(name), load_platform(platform), backend="oracle").output for s in steps]
    )


def run_of(out: np.ndarray, phase: str | None = "decode", **coordinate: object) -> Run:
    t = tensors()
    flags = {} if phase is None else {"phase": phase}
    where = Coordinate.model_validate({"gpu": "H200", "flags": flags, **coordinate})
    manifest = Manifest(
        schema=1,
        kind="run",
        run_id="r",
        coordinate=where,
        capture=Recording(value_kind="raw_logits"),
        files=(),
    )
    layer = Attention(3, t["q"], t["k"], t["v"], out)
    positions = np.arange(KEYS - ROWS, KEYS)
    sequence = Sequence("c", 0, positions, np.full(ROWS, -1), attention=(layer,))
    return Run("r", manifest, (sequence,), "folder", "0" * 64)


# By default the documentation's captures go through the engine.
@pytest.mark.parametrize("walker", [pytest.param("engine", marks=pytest.mark.slow), "oracle"])
def test_the_program_that_made_a_capture_is_named(walker, monkeypatch):
    from verify.identify import candidates as module

    monkeypatch.setattr(module, "ORACLE_UP_TO", 0 if walker == "engine" else 1 << 40)
    for truth in NAMES:
        found = identify(of_run(run_of(captured(truth))), candidates(NAMES))
        assert found.kind == "named", found.verdict
        assert found.ranking[0].names == (truth,)
        assert found.ranking[0].exact_share == 1.0
        assert found.ranking[0].first is None
        other = found.ranking[1]
        assert other.exact_share < 1.0
        assert other.first is not None
        share = float(
            (captured(NAMES[0]).view(np.uint16) != captured(NAMES[1]).view(np.uint16)).any(axis=(1, 2)).mean()
        )
        assert found.confusion[0].share == pytest.approx(share)


def test_numbers_that_no_candidate_makes_are_none_of_them():
    out = captured(NAMES[0]).astype(np.float32)
    nudged = (out * (1 + 2.0**-7)).astype(BF16)
    found = identify(of_run(run_of(nudged)), candidates(NAMES))
    assert found.kind == "none"
    assert found.verdict.startswith("none of the candidates")


def test_an_output_of_other_inputs_is_said_to_be_foreign():
    out = captured(NAMES[0]).astype(np.float32) + np.float32(0.5)
    found = identify(of_run(run_of(out.astype(BF16))), candidates(NAMES))
    assert found.kind == "none"
    assert "not computed from these numbers" in found.verdict


def test_foreign_numbers_are_foreign_in_a_format_that_no_candidate_writes():
    out = captured(NAMES[0]).astype(np.float32) + np.float32(0.3)
    found = identify(of_run(run_of(out)), candidates(NAMES[:1]))
    assert (found.kind, found.ranking) == ("none", ())
    assert "not computed from these numbers" in found.verdict
    assert found.refused[0].why.startswith("writes bfloat16")


def test_platforms_with_one_partition_are_one_candidate_by_proof():
    classes, refused = bound(
        candidates(("walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@h100")),
        of_run(run_of(captured(NAMES[0]))),
    )
    assert [[m.platform.name for m in c.members] for c in classes] == [["h200", "h100"]]
    assert not refused


def test_other_tensor_cores_are_another_candidate_where_they_are_used():
    """A100 and H200 sum tensor-core products otherwise; the teaching spec uses none."""
    seen = of_run(run_of(captured(NAMES[0])))
    for spec, apart in (("flash_attn2.splitkv_decode", 2), ("walkthrough.dense", 1)):
        classes, refused = bound(candidates((f"{spec}@a100", f"{spec}@h200")), seen)
        assert len(classes) == apart
        assert not refused


def test_a_row_that_overflowed_does_not_make_the_inputs_foreign():
    out = captured(NAMES[0]).copy()
    out[2, 1, 3] = np.inf
    out[3, 0, 0] = np.nan
    found = identify(of_run(run_of(out)), candidates(NAMES[:1]))
    assert not found.foreign
    assert found.ranking[0].exact_positions == ROWS - 2


def test_f32_that_holds_bf16_numbers_is_compared_as_bf16_and_wider_numbers_fit_none():
    wide = captured(NAMES[0]).astype(np.float32)
    narrow = narrowed(wide, np.dtype(BF16))
    assert narrow is not None
    assert narrow.view(np.uint16).tolist() == captured(NAMES[0]).view(np.uint16).tolist()
    wide[0, 0, 0] = np.nextafter(wide[0, 0, 0], np.float32(9))
    assert narrowed(wide, np.dtype(BF16)) is None
    found = identify(of_run(run_of(wide)), candidates(NAMES[:1]))
    assert (found.kind, found.ranking, found.none_posterior) == ("none", (), 1.0)
    assert found.verdict.startswith(
        f"none of the candidates: {NAMES[0]} writes bfloat16, and the float32 numbers"
    )


def test_candidates_that_take_no_such_shape_are_an_error_that_says_why():
    seen = of_run(run_of(captured(NAMES[0])))
    refused = [Refused(f"{name}@h200", why) for name, why in (("a", "no x"), ("b", "no x"), ("c", "no y"))]
    with pytest.raises(InputError) as error:
        judged_fits([], refused, seen)
    assert "no candidate can be tried; a@h200: no x; c@h200: no y" in str(error.value)
    assert "or none, so that all are tried" in error.value.remedy


def test_exact_outputs_against_sums_by_hand():
    q, k = np.array([[1.0, 0.0]]), np.array([[[0.0, 0.0]], [[2.0, 0.0]]])
    case = Case("", {"q": q, "k": k, "v": np.array([[[1.0, 3.0]], [[5.0, 7.0]]])}, scale=0.5)
    seen = Observation("", "decode", case, np.zeros((1, 1, 2)), None, np.array([1]), {})
    w = np.exp(1.0) / (1 + np.exp(1.0))
    assert exact_outputs(seen)[0, 0].tolist() == pytest.approx([1 + 4 * w, 3 + 4 * w], rel=1e-14)


def test_captures_of_kernels_are_observations():
    name, path = next((n, p) for n, p in packaged().items() if n.startswith("torch_cpu"))
    capture = read_capture(path)
    found = of_kernels(capture)
    assert len(found) == len(capture.manifest.records), name
    assert {o.phase for o in found} == {"decode", "prefill"}
    for o in found:
        error = np.abs(o.out.astype(np.float64) - exact_outputs(o)).max()
        assert error < 0.02 * np.abs(o.case.arrays["v"].astype(np.float64)).max()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"phase": "sideways"}, "phase 'sideways' is not known"),
        ({"rows": 3}, "have one row for each position"),
        ({"keys": 120}, "120 keys"),
        ({"layers": 0}, "no layer with q, k, v and out"),
    ],
)
def test_layers_that_cannot_be_taken_are_refused(change, cause):
    run = run_of(captured(NAMES[0]), change.get("phase", "decode"))
    layer = run.sequences[0].attention[0]
    out = layer.out[: change.get("rows", ROWS)]
    keys = change.get("keys", KEYS)
    changed = Attention(3, layer.q, layer.k[:keys], layer.v[:keys], out)
    s = run.sequences[0]
    layers = (changed,)[: change.get("layers", 1)]
    sequence = Sequence(s.conversation, 0, s.positions, s.tokens, attention=layers)
    with pytest.raises(InputError, match=cause):
        of_run(Run(run.name, run.manifest, (sequence,), run.place, run.sha256))


def test_queries_without_rows_are_those_of_the_last_keys():
    run = run_of(captured(NAMES[0]))
    s = run.sequences[0]
    sequence = Sequence("c", 0, np.arange(3), np.array([1, 2, 3]), attention=s.attention)
    found = of_run(Run(run.name, run.manifest, (sequence,), run.place, run.sha256))
    assert [int(o.positions[0]) for o in found] == list(range(KEYS - ROWS, KEYS))


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        identify([], candidates(NAMES), e=1.5)
    with pytest.raises(InputError, match="nothing to compare"):
        identify([], candidates(NAMES))


def test_the_confusion_matrix_by_hand():
    """Three candidates on four positions: B differs from A in one, C from both in all."""
    ab, far = np.array([True, False, False, False]), np.ones(4, bool)
    found = confusion_matrix(["A", "B", "C"], {(0, 1): ab, (0, 2): far, (1, 2): far}, 4)
    assert found.names == ("A", "B", "C")
    assert found.exact == ((1.0, 0.75, 0.0), (0.75, 1.0, 0.0), (0.0, 0.0, 1.0))
    # Four draws miss the one position with chance (3/4)^4; the two then share the first place.
    missed = 0.75**4 / 2
    for row, want in zip(
        found.ranked, ((1 - missed, missed, 0), (missed, 1 - missed, 0), (0, 0, 1)), strict=True
    ):
        assert row == pytest.approx(want, abs=0.03)
        assert sum(row) == pytest.approx(1.0)


def test_the_matrix_of_a_capture():
    """Shares of positions with the same bits, counted on the outputs of the oracle."""
    found = identify(of_run(run_of(captured(NAMES[0]))), candidates(NAMES))
    same = (captured(NAMES[0]).view(np.uint16) == captured(NAMES[1]).view(np.uint16)).all(axis=(1, 2))
    assert found.matrix.names == NAMES
    assert found.matrix.exact == ((1.0, same.mean()), (same.mean(), 1.0))
