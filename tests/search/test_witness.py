"""Witness files: the same bytes again, and what files from elsewhere get."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import search.witness as witness_module
from search.fields import words
from search.record import json_schema
from search.witness import from_bytes, read, to_bytes, write
from specs.errors import InputError
from specs.formats import parse_format
from tests.search.witnesses import CORPUS, SMALL, changed, files, member, of_q_and_k

NAMES = sorted(p.stem for p in CORPUS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_bytes_come_out_again(name):
    found = to_bytes(member(name), name)
    assert found == {f: (CORPUS / f).read_bytes() for f in (f"{name}.json", f"{name}.safetensors")}


def test_it_holds_all_that_was_asked_for():
    witness = member()
    record, space = witness.record, witness.space
    assert [s.label for s in record.sides] == [
        "walkthrough.flash_attention_2[split=tiles(20), block=tiles(64)]@h200",
        "walkthrough.flash_attention_2[split=tiles(12), block=tiles(64)]@h200",
    ]
    assert [s.platform.sm_count for s in record.sides] == [132, 132]
    assert (space.kv_len, space.cancellation, space.score_box, space.value_box) == (64, 1.0, 20.0, 8.0)
    assert witness.inputs.scores.shape == (1, 64)
    assert witness.arrays["values"].dtype == ml_dtypes.bfloat16
    # Neighbours in bf16 have neighbouring words: the distance is that of the words.
    a, b = (int(s.output[0], 16) for s in record.sides)
    assert abs(a - b) == record.distances[0].integer == 2
    assert 1.98 <= (record.distances[0].real or 0) <= 1.986
    assert record.certificate is not None
    assert record.certificate.holds
    assert [s.output for s in record.certificate.sides] == [s.output for s in record.sides]
    assert record.bound is not None
    assert record.bound.integer == 2
    assert {"ulpscope", "jax", "numpy", "z3-solver", "python"} <= record.versions.keys()


def test_words_are_bit_patterns():
    assert words(np.array([1.0, -2.0, 0.0]), parse_format("bf16")) == ["0x3F80", "0xC000", "0x0000"]
    assert words(np.array([1.0]), parse_format("f32")) == ["0x3F800000"]
    assert words(np.array([0.5], ml_dtypes.bfloat16), parse_format("bf16")) == ["0x3F00"]


def test_q_and_k_are_in_the_file_where_they_are_searched():
    witness = from_bytes(to_bytes(of_q_and_k(), "w"), "w")
    q, k = (witness.arrays[n].astype(np.float64) for n in ("q", "k"))
    assert (k @ q / 4 == witness.arrays["scores"]).all()
    assert q.shape == (16,)
    assert witness.arrays["values"].shape == (16, 2)


def test_the_schema_is_json_and_closed():
    schema = json.loads(json.dumps(json_schema()))
    assert schema["additionalProperties"] is False
    assert {"sides", "space", "objective", "certificate", "arrays"} <= set(schema["required"])


# -- writing ----------------------------------------------------------------------------------------------------------


def test_written_and_read_from_any_of_its_names(tmp_path):
    paths = write(member(), tmp_path / "new", "a.b-c_1")
    assert [p.name for p in paths] == ["a.b-c_1.json", "a.b-c_1.safetensors"]
    for given in (*paths, tmp_path / "new" / "a.b-c_1"):
        assert read(given).record == member().record
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [p.name for p in paths]


def test_another_witness_is_not_overwritten_unasked(tmp_path):
    other = member("xqa_triton_64")
    write(member(), tmp_path, "w")
    write(member(), tmp_path, "w")  # the same one: nothing to do
    with pytest.raises(InputError, match="another witness has this name"):
        write(other, tmp_path, "w")
    assert read(tmp_path / "w").record == member().record
    write(other, tmp_path, "w", overwrite=True)
    assert read(tmp_path / "w").record == other.record


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a\nb", "a" * 81, "a."])
def test_a_name_cannot_lead_elsewhere(tmp_path, name):
    with pytest.raises(InputError, match="may not be called"):
        write(member(), tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", ["fsync", "link"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, function):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write(member(), tmp_path, "w")
    assert not list(tmp_path.iterdir())


def test_arrays_without_their_json_are_taken_away_again(tmp_path, monkeypatch):
    real = os.fsync
    calls: list[int] = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write(member(), tmp_path, "w")
    assert not list(tmp_path.iterdir())


# -- hostile files ----------------------------------------------------------------------------------------------------


def _set(*path: Any, to: Any) -> Any:
    def change(record: Any) -> None:
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = to

    return change


def _spec(old: str, new: str, *, rehash: bool = True) -> Any:
    import hashlib

    def change(record: Any) -> None:
        text = record["sides"][0]["spec"].replace(old, new, 1)
        assert text != record["sides"][0]["spec"]
        record["sides"][0]["spec"] = text
        if rehash:
            record["sides"][0]["spec_sha256"] = hashlib.sha256(text.encode()).hexdigest()

    return change


WRONG = {
    "schema": (_set("schema", to=2), "schema"),
    "kind": (_set("kind", to="capture"), "kind"),
    "unknown key": (_set("run", to="rm -rf /"), "run"),
    "unknown key of a side": (_set("sides", 0, "path", to="/etc/passwd"), "sides.0.path"),
    "one side": (lambda r: r["sides"].pop(), "sides"),
    "a word": (_set("sides", 0, "output", to=["0xZZ"]), "sides.0.output.0"),
    "columns": (_set("sides", 1, "output", to=["0x0000"] * 2), "sides.1"),
    "a platform": (_set("sides", 0, "platform", "sm_count", to=0), "sides.0.platform"),
    "a length": (_set("space", "kv_len", to=-1), "space.kv_len"),
    "a huge length": (_set("space", "kv_len", to=1 << 40), "space.kv_len"),
    "another length": (_set("space", "kv_len", to=63), "w.safetensors"),
    "a box": (_set("space", "score_box", to=float("nan")), "space.score_box"),
    "c": (_set("space", "cancellation", to=2.0), "space.cancellation"),
    "a context": (_set("space", "context", "head_dim", to="__import__('os')"), "w.json"),
    "a context of a side": (_set("sides", 0, "context", to={"sm_count": "x"}), "w.json"),
    "an option": (_set("sides", 0, "options", to={"no_such": 1}), "w.json"),
    "an objective": (_set("objective", "metric", to="flips"), "w.json"),
    "a pair": (_set("distances", 0, "b", to=2), "distances"),
    "ratios": (_set("ratios", to=[{"over_mean": 1.0, "over_largest": 1.0}] * 3), "ratios"),
    "a certificate": (_set("certificate", "kv_len", to="64"), "certificate.kv_len"),
    "a size": (_set("arrays", "bytes", to=1), "w.safetensors"),
    "a hash": (_set("arrays", "sha256", to="0" * 64), "w.safetensors"),
    "hash of the spec": (_spec("tiles(20)", "tiles(21)", rehash=False), "sides.0.spec"),
    "no canonical spec": (_spec("[row]", "# a comment\n[row]"), "sides.0.spec"),
    "a spec that is no TOML": (_spec("[row]", "[row"), "sides.0.spec"),
    "a spec that calls": (_spec("bf16(exact)", "system(exact)"), "sides.0.spec"),
    "a spec that extends": (
        _spec('summary = "', 'extends = "/etc/passwd"\nsummary = "'),
        "sides.0.spec",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_with_its_place(case):
    change, place = WRONG[case]
    with pytest.raises(InputError) as error:
        from_bytes(changed(change), "w")
    assert place in str(error.value.place)
    assert error.value.remedy
    assert error.value.exit_code == 2


def test_a_spec_that_extends_is_never_looked_for(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a path in a witness was followed")

    monkeypatch.setattr("specs.loader.resolve", refuse)
    change, _ = WRONG["a spec that extends"]
    with pytest.raises(InputError, match="extends"):
        from_bytes(changed(change), "w")


S, V = np.zeros(64, np.float32), np.ones((64, 1), ml_dtypes.bfloat16)
ARRAYS = {
    "another dtype of scores": {"scores": S.astype(np.float64), "values": V},
    "integers": {"scores": S, "values": V.view(np.uint16)},
    "another format of values": {"scores": S, "values": V.astype(np.float16)},
    "another shape": {"scores": S[:63], "values": V},
    "a missing column": {"scores": S, "values": V[:, :0]},
    "no values": {"scores": S},
    "another array": {"scores": S, "values": V, "code": S},
    "NaN": {"scores": np.where(np.arange(64) == 3, np.nan, S).astype(np.float32), "values": V},
    "an infinite score": {"scores": np.full(64, np.inf, np.float32), "values": V},
    "an infinite value": {"scores": S, "values": np.full((64, 1), np.inf, ml_dtypes.bfloat16)},
    "far too much": {"scores": np.zeros(1 << 20, np.float32), "values": V},
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(case):
    with pytest.raises(InputError) as error:
        from_bytes(changed(arrays=ARRAYS[case]), "w")
    assert "w.safetensors" in str(error.value.place)
    assert error.value.remedy


def test_good_arrays_of_that_shape_are_read():
    assert from_bytes(changed(arrays={"scores": S, "values": V}), "w").inputs.values.sum() == 64


def _header(data: bytes) -> Any:
    import hashlib

    return lambda r: r.update(arrays={"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        b"\x02" + bytes(7) + b"{}",
        (1 << 62).to_bytes(8, "little") + b"{}",
        b"PK\x03\x04" * 9,
    ],
)
def test_what_is_no_safetensors_file_is_refused(data):
    found = changed(_header(data)) | {"w.safetensors": data}
    with pytest.raises(InputError) as error:
        from_bytes(found, "w")
    assert "w.safetensors" in str(error.value.place)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_truncated_files_are_refused(cut):
    for name in ("w.json", "w.safetensors"):
        found = files()
        found[name] = found[name].rstrip()[:cut]
        with pytest.raises(InputError):
            from_bytes(found, "w")


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{}", b"null", b"\xff\xfe", b'{"schema": NaN}', b"1e999"])
def test_json_that_is_something_else_is_refused(text):
    with pytest.raises(InputError) as error:
        from_bytes(files() | {"w.json": text}, "w")
    assert "w.json" in str(error.value.place)


def test_a_key_that_stands_twice_is_refused():
    """One reader would see the one value, another reader the other."""
    found = files()
    text = found["w.json"].decode().replace('"score": ', '"score": 99.0,\n "score": ', 1)
    with pytest.raises(InputError, match="the key 'score' stands twice"):
        from_bytes({**found, "w.json": text.encode()}, "w")


@pytest.mark.parametrize(("limit", "name"), [("MAX_JSON", "w.json"), ("MAX_ARRAYS", "w.safetensors")])
def test_large_files_are_refused_before_they_are_read(tmp_path, monkeypatch, limit, name):
    write(member(), tmp_path, "w")
    known = files()
    monkeypatch.setattr(witness_module, limit, 100)
    monkeypatch.setattr(
        Path, "read_bytes", lambda p: pytest.fail("read") if p.name == name else known[p.name]
    )
    with pytest.raises(InputError, match="at most 100 are read") as error:
        read(tmp_path / "w.json")
    assert name in str(error.value.place)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "nothing.json")
    write(member(), tmp_path, "w")
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(InputError) as error:
        read(tmp_path / "w.json")
    assert "w.safetensors" in str(error.value.place)
    with pytest.raises(InputError):
        read("a\0b")
    with pytest.raises(InputError):
        read(tmp_path)


def test_the_name_of_the_corpus_is_no_part_of_a_witness(tmp_path):
    for suffix in (".json", ".safetensors"):
        (tmp_path / f"other{suffix}").write_bytes((CORPUS / f"{SMALL}{suffix}").read_bytes())
    assert read(tmp_path / "other.json").record == member().record
