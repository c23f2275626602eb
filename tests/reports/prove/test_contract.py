"""The contract of proofs: closed, versioned, the same after a round trip, and what a file from a stranger gets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reports.contract_base import to_json
from reports.prove import contract as c
from reports.prove.reading import read_proofs
from specs.errors import InputError
from tests.reports.prove import made


def parsed(value: Any) -> c.Proofs:
    return c.Proofs.model_validate_json(json.dumps(value))


def test_round_trip_and_keys() -> None:
    report = made.proofs()
    value = json.loads(to_json(report))
    assert c.Proofs.model_validate(value) == report
    assert list(value) == ["schema", "schema_id", "question", "verdict", "provenance", "proofs"]
    assert (value["schema"], value["schema_id"]) == (1, "ulpscope.proofs/1")
    assert set(value["proofs"][0]) == {
        *("subject", "claim", "status", "reason", "assumptions", "rechecked", "details", "seconds"),
        *("kind", "about"),
    }
    library = made.library(2)
    value = json.loads(to_json(library))
    assert c.Proofs.model_validate(value) == library
    assert {"platforms", "specs", "others"} <= set(value)
    assert "proofs" not in value
    assert len(library.claims) == 2 * 6 + 2


def test_what_the_schema_says_holds_for_what_is_written() -> None:
    schema = c.json_schema()
    assert schema["additionalProperties"] is False
    assert {"schema", "schema_id", "question"} <= set(schema["properties"])
    validator = pytest.importorskip("jsonschema")
    for report in (made.proofs(), made.library(1)):
        validator.validate(json.loads(to_json(report)), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("extra",), 1),
        (("schema",), 2),
        (("schema_id",), "ulpscope.proofs/2"),
        (("question",), "everything"),
        (("proofs", 0, "status"), "believed"),
        (("proofs", 0, "kind"), "oracle"),
        (("proofs", 0, "seconds"), -1),
        (("proofs", 0, "assumptions"), "none"),
        (("proofs", 0, "about", 0, "sha256"), "abc"),
        (("proofs", 0, "about", 0, "platforms", "h200"), "abc"),
        (("proofs", 0, "details"), {"deep": [[[[[[[[[1]]]]]]]]]}),
        (("proofs", 0, "extra"), 1),
        (("specs",), []),
        (("proofs",), None),
    ],
)
def test_what_is_none_is_refused(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(to_json(made.proofs()))
    where: Any = data
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    with pytest.raises(ValidationError):
        parsed(data)


def test_a_library_is_not_also_a_list() -> None:
    with pytest.raises(ValidationError, match="belong"):
        made.library(1).model_validate(json.loads(to_json(made.library(1))) | {"proofs": []})


Change = Callable[[str], str | bytes]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda t: t[: len(t) // 2], "is no JSON, or cut off"),
        (lambda _: "", "is empty"),
        (lambda _: '{"schema": 1, "proofs": []}', "is no file of proofs: it states no schema_id"),
        (lambda t: t.replace("proofs/1", "proofs/9"), "is a proof file of version ulpscope.proofs/9"),
        (lambda t: t.replace("proofs/1", "report/1"), "is a report of another kind, ulpscope.report/1"),
        (lambda t: t.replace('"verdict"', '"vredict"'), "is no proof file of version ulpscope.proofs/1"),
        (lambda t: t.replace('"proved"', '"true"', 1), "proofs.0.status should be one of proved"),
        (lambda t: t.replace('"seed":1', '"seed":1e999'), "holds a number that is not finite"),
        (lambda t: t.replace('"seed":1', '"seed":NaN'), "NaN is no JSON"),
        (lambda t: t.replace('"seed":1', '"seed":' + "9" * 5000), "is no JSON, or cut off"),
        (lambda t: t.replace('"seed":1', '"seed":' + "[" * 50 + "]" * 50), "is nested more than 8 deep"),
        (lambda t: t.replace('"seed":1', '"seed":' + "[" * 100_000), "is no JSON, or cut off"),
        (lambda t: t.replace('"seed":1', r'"seed":"\ud800"'), "holds half a character"),
        (lambda t: t.replace('"as made"', r'"\udfff"'), "holds half a character"),
        (lambda t: t.encode().replace(b"refuted", b"\xffefuted"), "is no UTF-8"),
    ],
)
def test_files_that_hold_no_proofs(tmp_path: Path, change: Change, cause: str) -> None:
    data = change(to_json(made.proofs()))
    path = tmp_path / "x.json"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(InputError, match=re.escape(cause)) as found:
        read_proofs([str(path)])
    assert found.value.place == str(path)
    assert "ulpscope prove" in str(found.value.remedy)


def test_a_file_its_folder_and_what_is_neither(tmp_path: Path) -> None:
    report = made.proofs()
    (tmp_path / "proofs.json").write_text(to_json(report))
    ((file, found),) = read_proofs([str(tmp_path)])
    assert found == report
    assert (file.name, file.claims, file.sha256) == ("proofs.json", 12, made.sha(to_json(report)))
    assert [f for _, f in read_proofs([str(tmp_path / "proofs.json"), str(tmp_path)])] == [report, report]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name, cause in (
        ("nope", "no such file or folder"),
        ("pipe", "is no regular file"),
        ("empty", "holds no proofs.json"),
    ):
        with pytest.raises(InputError, match=cause):
            read_proofs([str(tmp_path / name)])
