"""The contract: closed, frozen, versioned, and the same after a round trip through JSON."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from reports.contract import SCHEMA_ID, Number, Report, from_json, json_schema, to_json
from tests.reports import synthetic


@pytest.fixture(scope="module")
def report() -> Report:
    return synthetic.report()


def test_round_trip(report: Report) -> None:
    assert from_json(to_json(report)) == report


def test_the_version_is_in_the_file(report: Report) -> None:
    assert json.loads(to_json(report))["schema_id"] == "ulpscope.report/1" == SCHEMA_ID


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("extra",), 1),
        (("schema_id",), "ulpscope.report/2"),
        (("verdict", "diverges"), "perhaps"),
        (("studies", 0, "cells", 0, "content_hash"), "abc"),
        (("studies", 0, "cells", 0, "readings", 0, "sample", "bits"), "3fa9"),
        (("studies", 0, "cells", 0, "groups"), -1),
        (("studies", 0, "distances", 0, "changed", 0, 0), 1.5),
        (("studies", 0, "id"), "a b"),
        (("run", "seconds"), float("nan")),
    ],
)
def test_wrong_reports_are_refused(report: Report, path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(to_json(report))
    where = data
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    with pytest.raises(ValidationError):
        from_json(json.dumps(data))


def test_models_are_frozen(report: Report) -> None:
    with pytest.raises(ValidationError):
        report.title = "other"  # type: ignore[misc]


def test_special_numbers_survive() -> None:
    number = Number(text="nan", hexfloat="nan", bits="0x7fc00001", format="f32")
    assert Number.model_validate_json(number.model_dump_json()).bits == "0x7fc00001"


def test_the_schema_is_closed_and_names_what_is_required() -> None:
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert {"title", "verdict", "run", "platforms", "studies", "specs"} <= set(schema["required"])
    closed = [d.get("additionalProperties") is False for d in schema["$defs"].values()]
    assert all(closed)
    assert len(closed) > 25
