"""From arrays to a study: numbers with their bits, distances, ownership, verdicts; a small run end to end."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reports import readings
from reports.contract import TokenRun
from reports.readings import distances, hexfloat, histogram, number, reading
from reports.shape import geometry
from reports.strips import strips, visiting
from reports.study import About, exact_answer, score_error, study, token_runs
from reports.target import Target
from reports.wording import classes, report_verdict
from specs import load_platform, load_spec, parse_spec
from specs.errors import InputError
from specs.formats import BASES
from tests.reports import synthetic
from verify.case import Case
from verify.exact import exact_attention

F32, BF16 = BASES["f32"], BASES["bf16"]
WIDE = """
schema = 1
name = "test.wide"
status = "walkthrough"
summary = "triton with values in f32"
extends = "walkthrough.triton"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "f32" }
"""
ABOUT = About("small", "Small", "A few tokens.", "Made here.", "Apache-2.0")


def test_numbers_keep_their_bits() -> None:
    assert number(np.float32(float.fromhex("0x1.52fc5ap+0")), F32).model_dump() == {
        "text": "1.3241631",
        "hexfloat": "0x1.52fc5ap+0",
        "bits": "0x3fa97e2d",
        "format": "f32",
    }
    assert number(np.array(1.3203125, ml_dtypes.bfloat16), BF16).bits == "0x3fa9"
    assert number(np.float32(-0.0), F32).bits == "0x80000000"
    assert number(np.float32("inf"), F32).text == "inf"
    assert number(np.array([7], np.uint32).view(np.float32)[0], F32).bits == "0x00000007"


@pytest.mark.parametrize(
    ("x", "text"),
    [(1.0, "0x1p+0"), (0.0, "0x0p+0"), (1.5, "0x1.8p+0"), (0.1, "0x1.999999999999ap-4"), (16.0, "0x1p+4")],
)
def test_hexfloats_are_short_and_read_back(x: float, text: str) -> None:
    assert hexfloat(x) == text
    assert float.fromhex(text) == x


def test_a_reading_is_the_distance_from_the_real_number() -> None:
    # Weights 1/2 and 1/2 of 1 and 2: exactly 1.5. One bf16 step there is 2^-7.
    exact = exact_attention(np.zeros((1, 2)), np.array([[1.0, 1.0], [2.0, 2.0]]))
    values = np.array([[1.5, 1.5 + 3 * 2**-7]], ml_dtypes.bfloat16)
    summary, errors = reading("output", values, BF16, replace(exact, balls=exact.balls.reshape(-1)))
    assert errors.tolist() == pytest.approx([0.0, 3.0], abs=1e-9)
    assert (summary.ulp_max, summary.off_share) == (pytest.approx(3.0), 0.5)
    assert summary.sample.bits == "0x3fc0"


def test_special_outputs_are_counted_apart() -> None:
    exact = exact_attention(np.zeros((1, 1)), np.array([[1.0, 1.0, 1.0]]))
    values = np.array([[np.nan, np.inf, 1.0]], np.float32)
    summary, errors = reading("exact", values, F32, replace(exact, balls=exact.balls.reshape(-1)))
    assert summary.special == 2
    assert errors.tolist() == [0.0]
    assert summary.ulp_max == 0.0


def test_distances_by_hand() -> None:
    one = np.array([1.0, 2.0, 3.0, 0.0], np.float32)
    two = np.array([np.nextafter(np.float32(1), np.float32(2)), 2.0, np.nan, -0.0], np.float32)
    table = distances("exact", F32, ["a", "b"], [one, two])
    assert table.maximum == ((0, 1), (1, 0))
    assert table.special == ((0, 1), (1, 0))
    # Four outputs: one moved, one became NaN, one changed the sign of its zero, which is a bit.
    assert table.changed[0][1] == 0.75


def test_histogram_buckets() -> None:
    found = histogram("t", F32, ["a", "b"], [np.array([0.1, 0.5, 0.6, 3.0]), np.array([0.0])])
    assert found.buckets == ("≤ 0.5", "0.5–1", "1–2", "2–4")
    assert found.series[0].counts == (2, 1, 0, 1)
    assert found.series[1].counts == (1, 0, 0, 0)
    far = histogram("t", F32, ["a"], [np.array([1e9])])
    assert far.buckets[-1] == f"> {readings.EDGES[-1]:g}"
    assert sum(far.series[0].counts) == far.series[0].counts[-1] == 1


def test_runs_and_visiting() -> None:
    assert token_runs(np.array([4, 5, 0, 1, 2])) == (TokenRun(start=4, count=2), TokenRun(start=0, count=3))
    assert token_runs(np.array([], dtype=np.int64)) == ()
    up, down, far = TokenRun(start=0, count=4), TokenRun(start=4, count=4), TokenRun(start=20, count=4)
    assert visiting(((up, down),)) == "contiguous, in order"
    assert visiting(((down, up),)) == "contiguous, last block first"
    assert visiting(((up, far),)) == "scattered over the sequence"


def test_partitions_that_agree_share_a_strip() -> None:
    found = strips(synthetic.ownership())
    assert next(s.cells for s in found) == ("Triton · H200", "Triton · B200", "Triton · SM120")
    assert [s.groups for s in found] == [16, 54, 62, 87, 33, 216, 47]
    assert [s.visiting for s in found][1] == "contiguous, last block first"
    assert [s.visiting for s in found][4] == "scattered over the sequence"


def exact(case: Case, spec: str = "walkthrough.triton") -> list[float]:
    return exact_answer(case.problem(load_spec(spec))).midpoint.tolist()


def test_exact_answer_rounds_values_on_entry_and_masks() -> None:
    scores, values = np.array([[0.0, 0.0, -np.inf]], np.float32), np.array([[1.0], [1 + 2**-9], [9.0]])
    assert exact(Case("m", {"scores": scores, "values": values})) == [1.0]
    two = {"scores": np.zeros((2, 2), np.float32), "values": np.array([[1.0], [3.0]])}
    assert exact(Case("c", two, causal=True)) == [1.0, 2.0]
    assert exact(Case("c", two, context={"causal": 1})) == [1.0, 2.0]
    qkv = {"q": np.ones((2, 1)), "k": np.zeros((2, 1, 1)), "v": np.array([[[2.0]], [[4.0]]])}
    assert exact(Case("q", qkv)) == [3.0, 3.0]


def test_exact_answer_sees_what_a_window_leaves() -> None:
    """The last four of a hundred tokens of weight 1: the mean of 96, 97, 98 and 99."""
    arrays = {"scores": np.zeros((1, 100), np.float32), "values": np.arange(100.0)[:, None]}
    assert exact(Case("w", arrays, context={"window": 4})) == [97.5]


def test_exact_answer_takes_f16_as_the_backends_do() -> None:
    """q = 1 + 2**-10 is an f16 and no bf16; log 2 apart, the weights are 2 to 1 up to that last bit of q."""
    q = np.array([[1 + 2**-10]], np.float16)
    k = np.array([[[1.0]], [[0.0]]], np.float16)
    v = np.array([[[1.0]], [[0.0]]], np.float16)
    (got,) = exact(Case("h", {"q": q, "k": k, "v": v}, scale=1.0))
    assert got == pytest.approx(1 / (1 + math.exp(-(1 + 2**-10))), rel=1e-15)
    assert abs(got - 1 / (1 + math.exp(-1.0))) > 1e-4


def test_exact_answer_runs_over_queries_before_heads() -> None:
    """Two queries of two heads, keys 0: query i sees i + 1 tokens; the order is that of the output."""
    v = np.array([[[1.0], [10.0]], [[3.0], [30.0]]])
    qkv = {"q": np.ones((2, 2, 1)), "k": np.zeros((2, 2, 1)), "v": v}
    assert exact(Case("o", qkv, causal=True)) == [1.0, 10.0, 2.0, 20.0]


def test_the_exact_answer_of_a_wider_spec_keeps_its_inputs() -> None:
    arrays = {"scores": np.zeros((1, 2), np.float32), "values": np.array([[1.0], [1 + 2**-40]])}
    assert exact(Case("w", arrays), "walkthrough.dense") == [1 + 2**-41]
    assert exact(Case("w", arrays)) == [1.0]


def test_specs_with_other_inputs_are_named() -> None:
    wide = parse_spec(WIDE, "test")
    case = Case("x", {"scores": np.zeros((1, 3), np.float32), "values": np.ones((3, 1), np.float32)})
    h200 = load_platform("h200")
    targets = [Target("T", load_spec("walkthrough.triton"), h200, "H200"), Target("W", wide, h200, "H200")]
    found = study(case, ABOUT, targets)
    assert any("test.wide rounds them to other formats" in n.text for n in found.notes)
    assert "values in bf16" in found.exact.method
    turned = study(case, ABOUT, targets[::-1])
    assert "values in f32" in turned.exact.method
    assert any("walkthrough.triton rounds them to other formats" in n.text for n in turned.notes)


def test_scores_in_float64_err_within_the_stated_bound() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 300, 64))
    largest = np.abs(q * k).max(axis=1)
    exact = [
        sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True)) for x, y in zip(q, k, strict=True)
    ]
    errors = [
        abs(Fraction(float(x @ y)) - e) / Fraction(m) for x, y, e, m in zip(q, k, exact, largest, strict=True)
    ]
    assert 0 < max(errors) < score_error(64) < 5e-13


def test_a_report_says_how_the_exact_answer_takes_its_inputs() -> None:
    targets = [Target("T", load_spec("walkthrough.triton"), load_platform("h200"), "H200")]
    rng = np.random.default_rng(1)
    shapes = {"q": (2, 4), "k": (9, 1, 4), "v": (9, 1, 4)}
    case = Case("q", {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
    said = study(case, ABOUT, targets).exact.method
    assert "(q in bf16, k in bf16, values in bf16)" in said
    assert "q · k summed in float64, with an error below" in said


def test_geometry_of_the_teaching_cells() -> None:
    table = synthetic.distances()
    where = {x.name: (x.backend, x.platform) for x in synthetic.cells()}
    view = geometry("maximum f32 ULP", table, where)
    assert view is not None
    assert view.euclidean
    assert view.points[0] == ("Triton · H200", "Triton · B200", "Triton · SM120")
    assert len(view.points) == 7
    # Single numbers lie on a line, so every triangle is degenerate; by the table of bits:
    # 190 + 9723 = 9913 on H200, and the medoid is the middle one of seven numbers.
    assert {t.kind for t in view.triangles} == {"degenerate"}
    assert view.triangles[0].sides == (9723.0, 9913.0, 190.0)
    medoid = next(c for c in view.centres if c.kind == "medoid")
    assert medoid.ranking[0].names == ("FlashAttention-2 · B200",)
    ball = next(c for c in view.centres if c.kind == "ball")
    assert ball.radius == pytest.approx(21697 / 2, rel=1e-9)


def test_a_nan_leaves_no_geometry() -> None:
    table = distances("x", F32, ["a", "b"], [np.array([1.0], np.float32), np.array([np.nan], np.float32)])
    assert geometry("m", table, {"a": ("A", "P"), "b": ("B", "P")}) is None


def test_classes_and_verdicts() -> None:
    table = synthetic.distances()
    assert [len(c) for c in classes(table)] == [3, 1, 1, 1, 1, 1, 1]
    same = table.model_copy(
        update={k: tuple((0,) * 9 for _ in range(9)) for k in ("maximum", "changed", "special")}
    )
    assert len(classes(same)) == 1
    quiet = synthetic.study().model_copy(
        update={"verdict": synthetic.study().verdict.model_copy(update={"diverges": False})}
    )
    assert not report_verdict([quiet]).diverges
    assert report_verdict([quiet]).headline.startswith("No divergence: nine cells")
    assert report_verdict([quiet, synthetic.study()]).headline == "The backends diverge on one of two inputs"


@pytest.fixture(scope="module")
def small() -> Case:
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((2, 300)).astype(np.float32)
    scores[1] = -np.inf
    return Case("small", {"scores": scores, "values": rng.standard_normal((300, 3)).astype(np.float32)})


def test_a_small_study_end_to_end(small: Case) -> None:
    h200, sm120 = load_platform("h200"), load_platform("sm120")
    triton, xqa = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    mma = load_spec("xqa.decode")
    targets = [
        Target("Triton", triton, h200, "H200"),
        Target("Triton", triton, sm120, "SM120"),
        Target("XQA", xqa, h200, "H200"),
        Target("real XQA", mma, h200, "H200"),
    ]
    found = study(small, ABOUT, targets)
    assert [x.status for x in found.cells] == ["computed", "computed", "computed", "unsupported"]
    assert found.cells[3].reason
    assert [x.groups for x in found.cells[:3]] == [10, 10, 2]
    assert all(x.dead_rows == 1 for x in found.cells[:3])
    assert found.cells[0].content_hash == found.cells[1].content_hash != found.cells[2].content_hash
    for cell, spec in zip(found.cells, (triton, triton, xqa), strict=False):
        judge = small.emulate(spec, h200, backend="oracle")
        assert cell.readings[-1].sample.bits == f"0x{int(judge.output.view(np.uint16)[0, 0]):04x}"
    assert [d.site for d in found.distances] == ["exact", "output"]
    assert found.distances[0].outputs == 6
    limits = [n.text for n in found.notes if n.kind == "limit"]
    assert limits == [
        "Triton divides these 300 tokens alike on H200, SM120: this input cannot tell those platforms apart."
    ]


def test_nothing_to_show_is_an_error(small: Case) -> None:
    target = Target("real XQA", load_spec("xqa.decode"), load_platform("h200"), "H200")
    with pytest.raises(InputError, match="no cell"):
        study(small, ABOUT, [target])
