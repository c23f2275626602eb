"""Replays: the same here as there, and what is listed where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search.replay import compare, replay, replay_file
from search.witness import Witness, write
from specs.errors import FidelityError, InputError
from tests.search.witnesses import SMALL, altered, member, of_q_and_k


@pytest.fixture(scope="module")
def word() -> str:
    return member().record.sides[0].output[0]


def test_it_replays_from_the_file_alone(tmp_path):
    path, _ = write(member(), tmp_path, "w")
    result = replay_file(path)
    assert result.lines()[:2] == [
        f"{path}: replays",
        "  2 ULP of stored outputs, 1.9822 ULP before rounding; constraint: holds",
    ]
    assert (result.replays, result.exit_code, result.certified) == (True, 0, True)


def _bump(path: list[Any], to: Any) -> Any:
    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        assert record[path[-1]] != to
        record[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("path", "to", "where"),
    [
        (["sides", 0, "output", 0], "0x3E01", "sides.0.output.0"),
        (["sides", 1, "before", 0], "0x3DFE0000", "sides.1.before.0"),
        (["sides", 0, "label"], "a better kernel", "sides.0.label"),
        (["sides", 0, "site"], "output", "sides.0.site"),
        (["distances", 0, "integer"], 3, "distances.0.integer"),
        (["distances", 0, "real"], 1.98222351074218, "distances.0.real"),
        (["score"], 1.99, "score"),
        (["ratios", 0, "over_largest"], 0.5, "ratios.0.over_largest"),
        (["certificate", "sides", 0, "groups"], 5, "certificate.sides.0.groups"),
        (["certificate", "answers", 0, "status"], "undecided", "certificate.answers.0.status"),
        (["bound", "real"], 1.985, "bound.real"),
        (["bound", "integer"], 1, "bound.integer"),
    ],
)
def test_whatever_was_changed_is_listed(path, to, where):
    result = replay(altered(_bump(path, to)))
    assert [d.where for d in result.differences] == [where]
    assert result.verdict == f"differs at {where}"
    assert result.exit_code == 1
    assert any(where in line and str(to)[:15] in line for line in result.lines())


def test_a_weaker_claim_of_a_bound_is_no_difference():
    def weaker(record: Any) -> None:
        record["bound"] |= {"real": 100.0, "integer": 101, "rigor": "first order"}

    assert replay(altered(weaker)).replays
    assert replay(altered(lambda r: r.update(bound=None, no_bound="not asked for"))).replays


def test_another_input_gives_other_outputs():
    witness = member()
    arrays = dict(witness.arrays)
    scores = arrays["scores"].copy()
    live = int(np.flatnonzero(witness.arrays["values"].astype(np.float32)[:, 0])[0])
    scores[live] += np.float32(0.25)
    result = replay(Witness(witness.record, arrays | {"scores": scores}))
    assert {"sides.0.before.0", "certificate.sides.0.before.0"} <= {d.where for d in result.differences}


def test_a_violated_constraint_is_a_verdict_of_its_own():
    # Its exact output is a tenth of the weighted mean: not all of it.
    result = replay(altered(lambda r: r["space"].update(cancellation=1.0), "fa2_20_12_c01"))
    assert result.constraint == "violated"
    assert not replace(result, differences=()).replays
    assert replace(result, differences=()).verdict == "violates its constraint"
    assert replay(altered(lambda r: r["space"].update(value_box=0.25))).constraint == "violated"


def test_other_versions_are_told_and_no_difference():
    result = replay(altered(lambda r: r["versions"].update(jax="0.0.1")))
    assert result.replays
    assert [v[:2] for v in result.versions] == [("jax", "0.0.1")]
    assert "jax: 0.0.1 there" in result.lines()[-1]


def test_without_a_certificate_the_exact_arithmetic_looks_at_it_all_the_same():
    result = replay(altered(lambda r: r.update(certificate=None, no_certificate="not asked for")))
    assert result.replays
    assert result.certified
    assert result.constraint == "holds"


def test_q_and_k_are_replayed_and_must_be_those_of_the_scores():
    witness = of_q_and_k()
    result = replay(witness)
    assert (result.verdict, result.constraint) == ("replays", "holds")
    k = witness.arrays["k"].copy()
    k[3, 1] = 1
    result = replay(Witness(witness.record, {**witness.arrays, "k": k}))
    assert [d.where for d in result.differences] == ["arrays.k"]


def test_a_machine_that_cannot_emulate_says_so(monkeypatch):
    def broken(*_: Any) -> None:
        raise FidelityError("sums are off", place="preflight")

    monkeypatch.setattr("verify.preflight.ensure_faithful", broken)
    with pytest.raises(FidelityError):
        replay(member())


def test_json_is_compared_piece_by_piece():
    assert compare({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2.0}]}, "x") == []
    assert [d.where for d in compare({"a": 1, "b": 2}, {"a": 1, "c": 2}, "x")] == ["x.b", "x.c"]
    assert [d.where for d in compare([1, 2], [1, 2, 3], "x")] == ["x"]
    assert [d.where for d in compare([1, True], [True, True], "x")] == ["x.0"]
    assert compare(1.0, 1.0 + 1e-12, "x", 1e-9) == []
    assert len(compare(1.0, 1.0 + 1e-6, "x", 1e-9)) == 1
    assert str(compare(None, 3, "x")[0]) == "x: the witness says nothing, here it is 3"


def test_a_folder_is_no_witness(tmp_path):
    with pytest.raises(InputError):
        replay_file(tmp_path / SMALL)
