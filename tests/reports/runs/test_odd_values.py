"""Differences without a size, clamps that nobody told of, narrow slices: what a report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reports.runs.build import compare
from tests.reports.runs import making
from tests.verify.metrics import made
from tests.verify.runs.making import arrays, tensors
from verify.runs.folder import read_run
from verify.runs.sequence import Attention


def report(*runs: Any) -> Any:
    return compare(runs, draws=2)[0]


def two(a: Any, b: Any, **more: Any) -> Any:
    kind = more.pop("kind", "raw_logits")
    runs = [made.run(n, made.sequence(values=x), kind=kind, **more) for n, x in (("a", a), ("b", b))]
    return report(*runs)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.inf, "1 value that is infinite in one alone"),
        (np.nan, "1 value that is NaN in one alone"),
        (-9999.0, "1 value that is clamped in one alone"),
    ],
)
def test_what_has_no_size_is_said_in_the_headline(value: float, words: str) -> None:
    a = making.base(3)
    b = a.copy()
    b[1, 2] = value
    found = two(a, b, clamp_floor=-9999.0)
    (pair,) = found.pairs
    assert not pair.identical
    assert found.verdict.headline.startswith(f"a and b differ by {words};")
    assert pair.first_difference is not None
    assert (pair.first_difference.position, pair.first_difference.element) == (1, 2)
    b[0, 0] += 1
    assert two(a, b, clamp_floor=-9999.0).verdict.headline.startswith("a and b differ by at most 1 (RMS ")


def test_clamped_in_both_or_infinite_below_the_floor_is_no_difference() -> None:
    a = making.base(3)
    b = a.copy()
    a[1, 2], b[1, 2] = -9999.0, -np.inf
    (pair,) = two(a, b, clamp_floor=-9999.0).pairs
    assert (pair.identical, pair.values.clamped, pair.values.clamp_mismatch) == (True, 1, 0)


@pytest.mark.parametrize(
    ("other", "clamped"), [(-9999.0, True), (-3.4028234663852886e38, True), (-1000.0, False)]
)
def test_lists_against_a_clamp_that_nobody_told_of(tmp_path: Any, other: float, clamped: bool) -> None:
    """-9999.0 against -20.3 is censored (known fault), also where the manifest has no clamp_floor."""
    runs = []
    for name, low in (("a", -20.3), ("b", other)):
        found = {
            "input_ids": np.array([1, 2, 3], np.int32),
            "positions": np.array([0, 1], np.int32),
            "chosen": np.array([-0.5, low]),
            "topk_ids": np.array([[2, 5], [9, 3]], np.int32),
            "topk_values": np.array([[-0.5, low], [-0.25, low]]),
        }
        place = tensors(tmp_path / name, found, run_id=name, capture={"value_kind": "raw_logprobs"})
        runs.append(read_run(place))
    (pair,) = report(*runs).pairs
    assert not pair.identical
    assert (runs[1].manifest.capture.clamp_floor, pair.chosen.clamped) == (
        (-9999.0, 1) if clamped else (None, 0)
    )
    assert pair.chosen.mean_abs == pytest.approx(0 if clamped else (1000 - 20.3) / 2)
    assert (pair.lists.shared, pair.lists.clamped) == ((2, 2) if clamped else (4, 0))
    assert pair.lists.max_abs == pytest.approx(0 if clamped else 1000 - 20.3)


def test_infinities_are_not_clamped() -> None:
    """-infinity against -3 is infinite in one alone, whatever the clamp floor; against the floor it says the same."""

    def one(name: str, x: float) -> Any:
        part = made.sequence(
            tokens=[1, 2], chosen=[-1.0, x], top=made.top([[1, 9], [2, 9]], [[-1.0, x], [-1.0, x]])
        )
        return made.run(name, part, kind="raw_logprobs", clamp_floor=-9999.0)

    found = report(one("a", -3.0), one("b", -np.inf))
    assert found.verdict.headline.startswith("a and b differ by 1 value that is infinite in one alone")
    assert (found.pairs[0].chosen.inf_mismatch, found.pairs[0].chosen.clamped) == (1, 0)


@pytest.mark.parametrize(("dtype", "as_stored"), [(np.float32, -9999.0), (made.BF16, -9984.0)])
def test_full_rows_with_a_clamp_that_nobody_told_of(tmp_path: Any, dtype: Any, as_stored: float) -> None:
    """bfloat16 makes -9984 of -9999."""
    found = arrays()
    found["logits"] = found["logits"].astype(dtype)
    found["logits"][:, 3] = np.asarray(-9999.0, dtype)
    run = read_run(tensors(tmp_path / "a", found))
    assert run.manifest.capture.clamp_floor == as_stored
    (health,) = report(run).health
    assert health.counts["clamped"] == len(found["logits"])


def test_rows_of_few_columns_that_are_something_else() -> None:
    """Five columns tell little of one row, and much of forty."""
    a, b = made.logits(40, 5), made.logits(40, 5, seed=1)
    found = two(a, b, kind="logits_slice")
    assert found.verdict.not_numerics == (("a", "b"),)
    assert "explain" not in found.verdict.headline
    assert two(a, made.noisy(a, 2), kind="logits_slice").verdict.not_numerics == ()


def test_a_switch_that_changes_the_text_has_an_effect() -> None:
    """Asking for logprobs changed the text (known fault); the values of the tokens before are the same."""
    runs = [
        made.run(n, made.sequence(tokens=t, chosen=[-0.5, -0.25, -0.125]), kind="raw_logprobs")
        for n, t in (("a", [5, 6, 7]), ("b", [5, 9, 7]))
    ]
    found = report(*runs)
    assert not any(f.code == "no_effect" for f in found.findings)
    assert "texts part" in found.verdict.headline


def test_tensors_alone_differ() -> None:
    values = making.base(3)
    lse = np.random.default_rng(0).standard_normal((3, 2))

    def one(name: str, x: Any) -> Any:
        layer = Attention(layer=0, q=None, k=None, v=None, out=None, lse=x)
        return made.run(name, made.sequence(values=values, attention=(layer,)))

    found = report(one("a", lse), one("b", lse + 1))
    assert found.verdict.headline.startswith("a and b differ by 1 attention tensor alone;")
    assert found.pairs[0].equal_in == ()
    found = report(one("a", lse), one("b", lse[:, :1]))
    assert not found.pairs[0].identical


def test_conversations_without_any_difference() -> None:
    """A conversation whose lists agree but not its chosen values is not called equal."""
    tops = made.top([[1, 2]], [[-0.5, -1.0]])
    kind = {"kind": "raw_logprobs"}

    def one(name: str, *chosen: float) -> Any:
        return made.run(
            name,
            *(made.sequence(c, tokens=[1], chosen=[x], top=tops) for c, x in zip("xy", chosen, strict=True)),
            **kind,
        )

    assert report(one("a", -0.5, -0.5), one("b", -0.75, -0.5)).pairs[0].equal_in == ("y",)


def test_scores_of_examples_have_no_depth() -> None:
    """Examples stand in some order, but none is deeper in a text than another."""
    x = np.random.default_rng(0).standard_normal(600)
    y = np.where(np.arange(600) < 256, x, x + 0.01)
    found = report(*(made.run(n, made.sequence(chosen=z), kind="scores") for n, z in (("a", x), ("b", y))))
    assert found.pairs[0].depth == ()
    assert not any("depth" in point for point in found.verdict.points)


def test_values_of_tokens_that_are_not_known_are_not_missing() -> None:
    """A text that ends here and goes on there: its last row has no token, so no value of one."""
    values = [[-0.25, -2.0], [-0.5, -1.5]]

    def one(name: str, tokens: list[int]) -> Any:
        return made.run(
            name, made.sequence(tokens=tokens, top=made.top([[4, 5], [6, 7]], values)), kind="raw_logprobs"
        )

    found = report(one("a", [4, 6]), one("b", [4, -1]))
    assert found.pairs[0].identical
    assert found.pairs[0].chosen.nan_mismatch == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x / np.log(2), "the log-sum-exp of the second run is to base 2"),
        (lambda x: x[::-1], "not numerics: log-sum-exps are permuted"),
        (lambda x: x + 1e-3, "a and b differ by their log-sum-exps, by at most 0.001;"),
    ],
)
def test_log_sum_exps_beside_lists(change: Any, words: str) -> None:
    x = np.random.default_rng(0).standard_normal((12, 50)) * 3
    ids = np.argsort(-x, axis=1)[:, :5]
    lse = np.log(np.exp(x).sum(axis=1))

    def one(name: str, told: Any) -> Any:
        tops = made.top(ids, np.take_along_axis(x, ids, axis=1), told)
        return made.run(name, made.sequence(tokens=ids[:, 0], top=tops), lse_base="e")

    found = report(one("a", lse), one("b", change(lse)))
    assert not found.pairs[0].identical
    assert words in " ".join((found.verdict.headline, *found.verdict.points))


def test_rows_of_nothing_but_nan_have_no_best_token() -> None:
    a = making.base(4)
    b = a.copy()
    b[2] = np.nan
    (pair,) = two(a, b).pairs
    assert (pair.decisions.n, pair.decisions.flips) == (3, 0)


def test_columns_that_one_run_alone_has_are_told_with_equal_bits() -> None:
    a = making.base(3)
    found = two(a, a[:, :-2])
    assert f"bit-identical in the first {a.shape[1] - 2} columns;" in found.verdict.headline
    assert any("2 are padding or unknown" in p for p in found.verdict.points)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_squares_of_single_precision_neither_vanish_nor_overflow(scale: float) -> None:
    x, y = (made.logits(3, 50, seed=s) * np.float32(scale) for s in (0, 1))
    d = x.astype(np.float64) - y.astype(np.float64)
    (pair,) = two(x, y, kind="logits_slice").pairs
    assert pair.values.rms == pytest.approx(np.sqrt(np.mean(d**2)), rel=1e-6)
    assert pair.values.l2_normalised == pytest.approx(
        np.linalg.norm(d) / np.linalg.norm(x.astype(np.float64)), rel=1e-6
    )


def test_runs_that_equal_a_reference_are_one_class() -> None:
    """Above a number of runs each is compared with one only: those that equal it in all rows equal each other."""
    a = making.base(3)
    runs = [
        made.run(n, made.sequence(values=x), sha256=n * 64)
        for n, x in (("a", a), ("b", a + 1), ("c", a), ("d", a), ("e", a[:2]))
    ]
    found = compare(runs, draws=2, reference="d")[0]
    assert found.identity[0].runs == ("a", "c", "d")
    assert (found.identity[0].partial, found.identity[0].rows) == (False, 3)
    assert found.verdict.headline.startswith("a, c and d are bit-identical;")


@pytest.mark.parametrize("other", [5, None])
def test_values_printed_to_unequal_decimals_are_equal_as_far_as_both_go(other: int | None) -> None:
    exact = np.array([-0.12345, -1.98765, -0.5004])

    def one(name: str, decimals: int | None, x: Any) -> Any:
        x = x if decimals is None else np.round(x, decimals)
        tops = made.top([[5], [6], [7]], x[:, None])
        part = made.sequence(tokens=[5, 6, 7], chosen=x, top=tops)
        return made.run(name, part, kind="raw_logprobs", decimals=decimals)

    found = report(one("a", 3, exact), one("b", other, exact))
    assert found.verdict.headline.startswith(
        "a and b are equal to the printed digits of the coarsest, 3 decimals;"
    )
    found = report(one("a", 3, exact), one("b", other, exact + np.array([0, 0.001, 0])))
    assert not found.pairs[0].identical
    assert found.pairs[0].chosen.different == 1
    full = made.logits(4, 9).astype(np.float64)
    runs = [
        made.run(n, made.sequence(values=x), decimals=d)
        for n, d, x in (("a", 3, np.round(full, 3)), ("b", 5, np.round(full, 5)))
    ]
    assert report(*runs).pairs[0].identical


def printed(name: str, decimals: int | None, x: Any) -> Any:
    x = x if decimals is None else np.round(x, decimals)
    return made.run(
        name, made.sequence(tokens=range(len(x)), chosen=x), kind="raw_logprobs", decimals=decimals
    )


def test_runs_that_are_equal_to_the_coarser_digits_are_one_point() -> None:
    """Four decimals against two: one number may be both, so that geometry has one place for them, the finer's."""
    exact = np.array([-0.12344, -1.98766, -0.50041])
    far = exact - np.array([0.25, 0.5, 0.125])
    found = report(printed("b", 2, exact), printed("a", 4, exact), printed("c", 4, far))
    assert [(k.runs, k.decimals) for k in found.identity] == [(("b", "a"), 2), (("c",), None)]
    (region, *_) = found.geometry
    assert set(map(frozenset, region.points)) == {frozenset("ab"), frozenset("c")}
    apart = np.abs(np.round(exact, 4) - np.round(far, 4)).mean()
    assert region.distances[0][1] == pytest.approx(apart, rel=1e-12)


def test_equal_to_the_coarser_digits_does_not_carry_over() -> None:
    """-1.23 may be -1.2346 and -1.2312, which are two numbers: it belongs to neither, and that is said."""
    fine = np.array([-1.2346, -0.5]), np.array([-1.2312, -0.5])
    found = report(printed("b", 2, fine[0]), printed("a", 4, fine[0]), printed("c", 4, fine[1]))
    assert [p.identical for p in found.pairs] == [True, True, False]
    assert [k.runs for k in found.identity] == [("b",), ("a",), ("c",)]
    (finding,) = [f for f in found.findings if f.code == "coarse"]
    assert finding.where == ("b", "a", "c")
    assert any("b was printed with fewer decimals than others" in point for point in found.verdict.points)
    two = report(*(printed(n, 2, fine[0]) for n in "bd"), printed("a", 4, fine[0]), printed("c", 4, fine[1]))
    assert [k.runs for k in two.identity] == [("b", "d"), ("a",), ("c",)]  # the same digits are one
