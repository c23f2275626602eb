"""The file of a capture: written and read back, and every way in which it can be wrong."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import InputError
from tests.verify.capture.making import SMALL, edit, write
from verify.capture.format import is_capture, packaged, read_capture
from verify.capture.inputs import load, make
from verify.capture.manifest import ARRAYS, MANIFEST

OUTPUT = np.arange(4 * 64, dtype=np.float32).reshape(1, 4, 64).astype(ml_dtypes.bfloat16)
LEVEL = np.array([[0.0, -0.0, np.nan, np.inf]], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "c", "flash_attn_prefill", {"output": OUTPUT, "lse": LEVEL}).path


def test_bits_come_back(folder: Path) -> None:
    capture = read_capture(folder)
    found = capture.arrays("records/one")
    assert found["output"].dtype == ml_dtypes.bfloat16
    assert found["output"].tobytes() == OUTPUT.tobytes()
    assert found["lse"].tobytes() == LEVEL.tobytes()
    assert read_capture(folder / MANIFEST).manifest == capture.manifest
    for name, array in make(SMALL).items():
        assert load(capture, "i").arrays[name].tobytes() == array.tobytes()


def test_a_used_folder_is_left_alone(folder: Path) -> None:
    before = (folder / MANIFEST).read_bytes()
    with pytest.raises(InputError, match="is not an empty folder"):
        write(folder, "flash_attn_prefill", {"output": OUTPUT})
    assert (folder / MANIFEST).read_bytes() == before


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        part: Any = manifest
        for name in parents:
            part = part[name]
        if value is _set:
            del part[last]
        else:
            part[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("schema", 2, "schema"),
        ("kind", "logits", "kind"),
        ("file.name", "../../secrets", "file.name"),
        ("file.bytes", -1, "file.bytes"),
        ("file.sha256", "00", "file.sha256"),
        ("records.one.arrays.output.shape", [1, -4, 64], "records.one.arrays.output.shape.1"),
        ("records.one.arrays.output.shape", "big", "records.one.arrays.output.shape"),
        ("records.one.arrays.output.dtype", "object", "records.one.arrays.output.dtype"),
        ("records.one.kernel", "../x", "records.one.kernel"),
        ("records.one.wanted", 1, "records.one.wanted"),
        ("records.one.context", {"kv_len": 1.5}, "records.one.context"),
        ("records", [], "records"),
        ("inputs.i.recipe.seed", -1, "inputs.i.recipe.seed"),
        ("inputs.i.recipe.kv_len", 1 << 60, "inputs.i.recipe.kv_len"),
        ("inputs.i.scale", float("nan"), ""),
        ("machine", _set, "machine"),
    ],
)
def test_a_wrong_manifest(folder: Path, path: str, value: Any, place: str) -> None:
    edit(folder, _set(path, value))
    with pytest.raises(InputError) as error:
        read_capture(folder)
    assert f"{MANIFEST}{': ' if place else ''}{place}" in str(error.value.place)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("text", "cause"),
    [(b"", "JSON"), (b"{", "JSON"), (b"\xff\xfe{}", "JSON"), (b"[" * 100_000, "JSON"), (b"null", "")],
)
def test_no_manifest_at_all(folder: Path, text: bytes, cause: str) -> None:
    (folder / MANIFEST).write_bytes(text)
    with pytest.raises(InputError) as error:
        read_capture(folder)
    assert cause in error.value.cause


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    (folder / ARRAYS).unlink()
    with pytest.raises(InputError, match="no such file"):
        read_capture(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(InputError, match="no such file"):
        read_capture(folder)
    for path in (tmp_path / "nothing", "", "a\0b"):
        with pytest.raises(InputError):
            read_capture(path)


def test_a_changed_byte_is_found_in_its_array(folder: Path) -> None:
    file = folder / ARRAYS
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"array 'records/one/\w+'"):
        read_capture(folder)


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_a_truncated_file(folder: Path, size: int) -> None:
    file = folder / ARRAYS
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(InputError, match="bytes, the manifest says"):
        read_capture(folder)
    edit(folder, lambda manifest: None, seal=True)
    with pytest.raises(InputError):
        read_capture(folder)


def test_a_huge_header_takes_no_memory(folder: Path) -> None:
    file = folder / ARRAYS
    file.write_bytes(struct.pack("<Q", 1 << 62) + file.read_bytes()[8:])
    edit(folder, lambda manifest: None, seal=True)
    with pytest.raises(InputError, match="its header claims"):
        read_capture(folder)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda h: h.pop("records/one/lse"), "lacks array 'records/one/lse'"),
        (lambda h: h.update(extra=h["records/one/lse"]), "holds array 'extra'"),
        (lambda h: h["records/one/lse"].update(dtype="F16"), "the manifest says F32"),
        (lambda h: h["records/one/lse"].update(shape=[4]), "the manifest says F32"),
        (lambda h: h["records/one/lse"].update(data_offsets=[0, 1 << 50]), "its place in the file"),
        (lambda h: h["records/one/lse"].update(data_offsets=[-16, 0]), "its place in the file"),
        (lambda h: h["records/one/lse"].update(data_offsets="x"), "damaged"),
        (lambda h: h.update({"records/one/lse": 7}), "damaged"),
    ],
)
def test_a_header_against_the_manifest(folder: Path, change: Callable[[Any], Any], cause: str) -> None:
    file = folder / ARRAYS
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    edit(folder, lambda manifest: None, seal=True)
    with pytest.raises(InputError, match=cause):
        read_capture(folder)


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_an_input_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = write(tmp_path_factory.mktemp("d") / "c", "flash_attn_prefill", {"output": OUTPUT}).path
    file = folder / data.draw(st.sampled_from([MANIFEST, ARRAYS]))
    text = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        text[at] ^= data.draw(st.integers(1, 255))
    else:
        text = text[:at]
    file.write_bytes(text)
    with contextlib.suppress(InputError):
        read_capture(folder)


def test_inputs_that_are_not_what_was_captured(folder: Path) -> None:
    edit(folder, _set("inputs.i.recipe.seed", 1))
    with pytest.raises(InputError, match="makes another q, k, v than was captured"):
        load(read_capture(folder), "i")
    edit(folder, _set("inputs.i.recipe", None))
    with pytest.raises(InputError, match="neither embedded nor made"):
        load(read_capture(folder), "i")
    with pytest.raises(InputError, match="not in the manifest"):
        load(read_capture(folder), "j")


def test_a_recipe_cannot_take_all_memory() -> None:
    with pytest.raises(InputError, match="numbers"):
        make(SMALL.model_copy(update={"kv_len": 1 << 24}))


@pytest.mark.parametrize("kind", ["random", "sharp", "spread", "cancel", "rising", "low", "tiny", "teaching"])
def test_inputs_are_the_same_each_time_and_finite(kind: Any) -> None:
    r = SMALL.model_copy(update={"kind": kind})
    first, second = make(r), make(r)
    for name in "qkv":
        assert first[name].tobytes() == second[name].tobytes()
        assert np.isfinite(first[name].astype(np.float32)).all()
    scores = np.einsum("qhd,nhd->hn", first["q"].astype(float)[:, ::2], first["k"].astype(float)) / 8
    assert (scores < -1e5).all() == (kind == "low")
    if kind == "teaching":
        assert scores[0, :3].tolist() == [0.5, 1.0, 0.75]
        assert scores[1, 12:15].tolist() == [0.5, 1.0, 0.75]


def test_what_a_capture_is_called(folder: Path) -> None:
    assert is_capture(str(folder))
    assert is_capture(str(folder / MANIFEST))
    assert all(is_capture(name) for name in packaged())
    for text in ("walkthrough.xqa@h200", "", "a\0b", "walkthrough.xqa"):
        assert not is_capture(text)
