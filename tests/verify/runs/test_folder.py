"""Run folders: what is read is what was stored, bit by bit; what does not match its manifest is refused by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from specs.errors import InputError
from tests.verify.runs.making import arrays, lines, manifest, tensors
from tests.verify.runs.test_adapters import JUNK, places, put
from verify.runs.folder import inspect_run, is_run, no_files, read_run, write_run
from verify.runs.sequence import UNKNOWN, Attention, Full, Sequence, Top


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        read_run(folder)
    return str(error.value)


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16, np.float64])
def test_full_logits_keep_their_bits(tmp_path: Path, kind: Any) -> None:
    """All 2**16 bit patterns of the 16-bit formats, NaN payloads too; rows in any order and again."""
    kind = np.dtype(kind)
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    stored = bits.view(kind) if kind.itemsize == 2 else bits.astype(kind)
    found = {"input_ids": np.arange(256, dtype=np.int32), "logits": stored}
    (one,) = read_run(tensors(tmp_path / "r", found, vocab_size=256)).sequences
    assert one.full is not None
    assert (one.full.rows, one.full.vocab, one.full.dtype) == (256, 256, kind)
    for start, stop in ((100, 256), (0, 3), (7, 8), (250, 300), (5, 5), (0, 3)):
        block = one.full.read(start, stop)
        assert block.dtype == kind
        assert block.tobytes() == stored[start:stop].tobytes()
    np.testing.assert_array_equal(one.tokens, [*range(1, 256), UNKNOWN])
    np.testing.assert_array_equal(one.positions, np.arange(256))
    assert one.prompt is not None
    assert one.prompt.tolist() == [0]


def test_the_hash_of_a_run_is_of_its_files_hashes(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays())
    digest = hashlib.sha256((folder / "a.safetensors").read_bytes()).hexdigest()
    assert read_run(folder).sha256 == hashlib.sha256(digest.encode()).hexdigest()
    assert is_run(folder)
    assert not is_run(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_is_read_alike(tmp_path: Path, compressed: bool) -> None:
    found = arrays()
    bf16 = found["logits"].astype(ml_dtypes.bfloat16)
    save = np.savez_compressed if compressed else np.savez
    save(
        tmp_path / "a.npz",
        input_ids=found["input_ids"],
        positions=found["positions"],
        logits=bf16.view(np.uint16),
        logits_dtype=np.array("bfloat16"),
    )
    manifest(tmp_path, ["a.npz"], vocab_size=7)
    (one,) = read_run(tmp_path).sequences
    assert one.full is not None
    assert one.full.read(1, 4).tobytes() == bf16[1:4].tobytes()
    block = one.full.read(0, 5)
    base = block if isinstance(block, np.memmap) else block.base
    assert isinstance(base, np.memmap) is not compressed


def test_uint16_without_its_dtype_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 3), np.uint16), positions=np.arange(2))
    manifest(tmp_path, ["a.npz"])
    assert "logits_dtype" in refusal(tmp_path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.array([{}], object), allow_pickle=True)
    manifest(tmp_path, ["a.npz"])
    assert "pickle" in refusal(tmp_path)


def test_top_k_lse_chosen_ranges_and_depths(tmp_path: Path) -> None:
    found = {
        "positions": np.array([4, 5, 9], np.int32),
        "tokens": np.array([1, 2, 3], np.int32),
        "topk_ids": np.array([[1, 0], [2, 4], [0, 3]], np.int32),
        "topk_values": np.array([[2.5, -1], [1, 0.5], [8, 7]], np.float32),
        "lse": np.array([3.0, 2.0, 9.0], np.float32),
        "chosen": np.array([2.5, 1, 7], np.float32),
        "ranges": np.array([0, 0, 1], np.int32),
        "depths": np.array([5, 6, 10], np.int32),
        "prompt": np.array([5, 5, 5, 5, 6], np.int32),
    }
    texts = {"range_names": '["M001", "M002"]', "labels": '{"batch": "3"}'}
    save_file(found, tmp_path / "a.safetensors", texts)
    manifest(tmp_path, ["a.safetensors"], vocab_size=7, capture={"lse_base": "2"})
    (one,) = read_run(tmp_path).sequences
    assert one.top is not None
    assert one.top.lse is not None
    np.testing.assert_allclose(one.top.lse, np.array([3, 2, 9]) * np.log(2), rtol=1e-15)
    np.testing.assert_array_equal(one.top.values, found["topk_values"])
    assert one.ranges == ("M001", "M001", "M002")
    assert one.depths is not None
    assert one.depths.tolist() == [5, 6, 10]
    assert one.labels == {"batch": "3"}
    assert one.prompt is not None
    assert one.prompt.tolist() == [5, 5, 5, 5, 6]
    assert "missing_positions" not in one.counts  # 6 to 8 lie between two ranges


def test_attention_is_given_row_by_row_and_in_nats(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    shapes = {"q": (4, 3, 8), "k": (2, 6, 8), "v": (2, 6, 8), "out": (4, 3, 8)}
    found = {f"attn.L12.{n}": rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    found["attn.L12.lse"] = rng.standard_normal((4, 3)).astype(np.float32)
    found["input_ids"] = np.arange(3, dtype=np.int32)
    run = read_run(tensors(tmp_path / "r", found, capture={"lse_base": "2"}))
    (layer,) = run.sequences[0].attention
    assert layer.layer == 12
    assert layer.q is not None
    assert layer.k is not None
    assert layer.lse is not None
    np.testing.assert_array_equal(layer.q[2, 1], found["attn.L12.q"][1, 2])
    assert layer.k.shape == (6, 2, 8)
    back = (layer.lse / np.log(2)).astype(np.float32)
    assert back.tobytes() == np.ascontiguousarray(found["attn.L12.lse"].T).tobytes()
    assert "lse_base" in refusal(tensors(tmp_path / "s", found))


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "vocabulary": ({}, {"vocab_size": 8}, "field 'logits': has 7 columns, the manifest says vocab_size 8"),
    "position twice": ({"positions": np.array([0, 1, 1, 3, 4])}, {}, "'positions', row 2: position 1 again"),
    "positions back": (
        {"positions": np.array([0, 2, 1, 3, 4])},
        {},
        "'positions', row 2: position 1 behind 2",
    ),
    "position outside": ({"positions": np.array([0, 1, 2, 3, 5])}, {}, "position 5 in a text of 5 tokens"),
    "negative position": ({"positions": np.array([-1, 1, 2, 3, 4])}, {}, "'positions', row 0: position -1"),
    "rows": ({"positions": np.arange(4)}, {}, "field 'logits': has 5 along N, 'positions' has 4"),
    "token": ({"input_ids": np.array([0, 1, 2, 3, 7])}, {"vocab_size": 7}, "'input_ids', row 4: token id 7"),
    "other token": ({"tokens": np.array([0, 0, 0, 0, 0])}, {}, "input_ids has"),
    "float ids": ({"input_ids": np.zeros(5, np.float32)}, {}, "field 'input_ids': has dtype float32"),
    "integer logits": ({"logits": np.zeros((5, 7), np.int32)}, {}, "field 'logits': has dtype int32"),
    "shape": ({"logits": np.zeros((5, 7, 1), np.float32)}, {}, "its axes are [N, V]"),
    "ids alone": ({"topk_ids": np.zeros((5, 2), np.int32)}, {}, "field 'topk_values': is missing"),
    "name": ({"logit": np.zeros((5, 7), np.float32)}, {}, "did you mean 'logits'?"),
    "lse": (
        {
            "lse": np.zeros(5, np.float32),
            "topk_ids": np.zeros((5, 2), np.int32),
            "topk_values": np.zeros((5, 2), np.float32),
        },
        {},
        "capture.lse_base",
    ),
    "ranges": ({"ranges": np.zeros(5, np.int32)}, {}, "field 'range_names': is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    changed, fields, message = WRONG[name]
    assert message in refusal(tensors(tmp_path / "r", {**arrays(), **changed}, **fields))


def test_suffix_rows_need_positions(tmp_path: Path) -> None:
    """An engine that reuses its KV cache gives rows of the suffix alone."""
    found = {**arrays(), "input_ids": np.zeros(9, np.int32)}
    del found["positions"]
    assert "5 rows do not cover a text of 9 tokens" in refusal(tensors(tmp_path / "r", found))
    found["positions"] = np.arange(4, 9, dtype=np.int32)
    (one,) = read_run(tensors(tmp_path / "s", found)).sequences
    assert one.positions.tolist() == [4, 5, 6, 7, 8]


def test_padded_columns_and_a_slice(tmp_path: Path) -> None:
    found = {**arrays(), "input_ids": np.zeros(5, np.int32)}
    (one,) = read_run(tensors(tmp_path / "r", found, vocab_size=5)).sequences
    assert one.counts["padded_columns"] == 2
    kind = {"value_kind": "logits_slice"}
    (one,) = read_run(tensors(tmp_path / "s", arrays(), vocab_size=9, capture=kind)).sequences
    assert one.full is not None
    assert one.full.vocab == 7


def test_every_problem_in_one_go(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", {**arrays(), "positions": np.array([0, 1, 1, 0, 9])})
    found = inspect_run(folder)
    assert found.run is None
    assert [(p.field, p.row) for p in found.problems] == [
        ("positions", 2),
        ("positions", 3),
        ("positions", 4),
    ]
    assert "and 2 more" in refusal(folder)


def edit(folder: Path, **fields: Any) -> Path:
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def test_the_manifest(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays())
    good = (folder / "manifest.json").read_text()
    entry = json.loads(good)["files"][0]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vocab": 7}, "manifest.json: field 'vocab'"),
        ({"schema": 2}, "field 'schema'"),
        ({"kind": "kernels"}, "field 'kind'"),
        ({"capture": {"value_kind": "logits"}}, "field 'capture.value_kind'"),
        ({"coordinate": {"gpu": 5}}, "field 'coordinate.gpu'"),
        ({"coordinate": {"batch_size": 0}}, "field 'coordinate.batch_size'"),
        ({"files": [{**entry, "sha256": "0" * 64}]}, "field 'files.sha256'"),
        ({"files": [{**entry, "path": "../r/a.safetensors"}]}, "field 'files.0.path'"),
        ({"files": [{**entry, "path": "x/../../r/a.safetensors"}]}, "leads out of the folder"),
        ({"files": [{**entry, "path": "b.safetensors"}]}, "no such file"),
        ({"files": [entry, entry]}, "names 'a.safetensors' 2 times"),
        ({"files": []}, "names no file"),
    ]
    for fields, message in cases:
        (folder / "manifest.json").write_text(good)
        assert message in refusal(edit(folder, **fields)), fields
    (folder / "manifest.json").write_text('{"schema": 1, "capture": {"clamp_floor": NaN}}')
    assert "manifest.json" in refusal(folder)
    (folder / "manifest.json").write_text("[" * 100_000)
    assert "manifest.json" in refusal(folder)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays())
    (folder / "a.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "a.safetensors").symlink_to(tmp_path / "outside.safetensors")
    assert "leads out of the folder" in refusal(folder)


def test_one_conversation_twice_in_one_repeat(tmp_path: Path) -> None:
    line = {"id": "c", "repeat": 0, "token_ids": [1], "logprobs": [-1.0]}
    assert "2 sequences are conversation 'c', repeat 0" in refusal(lines(tmp_path / "r", [line, line]))
    run = read_run(lines(tmp_path / "s", [line, {**line, "repeat": 1}]))
    assert [(s.conversation, s.repeat) for s in run.sequences] == [("c", 0), ("c", 1)]


def test_json_lines_keep_every_value(tmp_path: Path) -> None:
    line = {
        "id": "c",
        "prompt_token_ids": [7, 8, 9],
        "token_ids": [1, 2, None, 4, 5],
        "logprobs": [-0.1, None, "-inf", -9999.0, 0.7],
        "top": [[[1, -0.1], [2, -3.5]], None, [[3, "-inf"]], [[4, -9999.0], [4, -20.25]], []],
    }
    (one,) = read_run(lines(tmp_path / "r", [line], capture={"clamp_floor": -9999.0})).sequences
    assert one.positions.tolist() == [2, 3, 4, 5, 6]
    assert one.tokens.tolist() == [1, 2, UNKNOWN, 4, 5]
    assert one.chosen is not None
    assert one.top is not None
    np.testing.assert_array_equal(one.chosen, [-0.1, np.nan, -np.inf, -9999.0, 0.7])
    np.testing.assert_array_equal(one.top.ids[:, 0], [1, UNKNOWN, 3, 4, UNKNOWN])
    np.testing.assert_array_equal(one.top.values[3], [-9999.0, -20.25])
    assert one.counts == {
        "null_values": 1,
        "neg_inf_values": 2,
        "clamped_values": 2,
        "positive_logprobs": 1,
        "duplicate_top_ids": 1,
        "unknown_tokens": 1,
    }


def test_nan_in_json_is_not_a_null(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "a.jsonl").write_text(
        '{"id": "c", "token_ids": [1, 2, 3], "logprobs": [NaN, null, -Infinity]}\n'
    )
    manifest(folder, ["a.jsonl"], capture={"value_kind": "raw_logprobs"})
    (one,) = read_run(folder).sequences
    assert one.counts == {"null_values": 1, "nan_values": 1, "neg_inf_values": 1}


def test_json_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """17 MB of empty lists would become 0.7 GB: with a limit below that they are not parsed."""
    monkeypatch.setattr("verify.runs.jsonio.MAX_PARSED", 1 << 29)
    (tmp_path / "a.jsonl").write_bytes(b"[" + b"[]," * 5_700_000 + b"[]]")
    manifest(tmp_path, ["a.jsonl"])
    assert "bytes of memory" in refusal(tmp_path)


LINES: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": [-1.0, "x"]}, "field 'logprobs': entry 1 is 'x', no number"),
    ({"logprobs": [-1.0, True]}, "field 'logprobs': entry 1"),
    ({"token_ids": [1, 2.5]}, "field 'token_ids': entry 1 is 2.5"),
    ({"token_ids": [1, -3]}, "field 'token_ids': entry 1 is -3"),
    ({"token_ids": [1, 10**30]}, "field 'token_ids': entry 1"),
    ({"top": [[[1]], None]}, "field 'top': row 0, entry 0"),
    ({"logprob": []}, "did you mean 'logprobs'?"),
    ({"repeat": -1}, "field 'repeat'"),
    ({"positions": [3, 3]}, "position 3 again"),
]


@pytest.mark.parametrize("case", range(len(LINES)))
def test_what_is_wrong_with_a_line_is_named(tmp_path: Path, case: int) -> None:
    changed, message = LINES[case]
    good = {"id": "a", "token_ids": [1, 2], "logprobs": [-1.0, -2.0]}
    said = refusal(lines(tmp_path / "r", [good, {**good, "id": "b", **changed}]))
    assert message in said
    assert "line 2" in said


def test_lists_of_different_lengths_are_cut_and_counted(tmp_path: Path) -> None:
    line = {"id": "c", "token_ids": [1, 2, 3], "logprobs": [-1.0, -2.0]}
    (one,) = read_run(lines(tmp_path / "r", [line])).sequences
    assert one.rows == 2
    assert one.counts == {"length_mismatches": 1}


@settings(max_examples=40)
@given(st.binary(max_size=300), st.sampled_from([".safetensors", ".npz", ".jsonl"]))
def test_damaged_files_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("r")
    (folder / f"a{suffix}").write_bytes(data)
    manifest(folder, [f"a{suffix}"])
    with pytest.raises(InputError):
        read_run(folder)


@settings(max_examples=60)
@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_changed_byte_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    """The header of a safetensors or npz file, changed and hashed anew: read, or refused with a message."""
    folder = tmp_path_factory.mktemp("r")
    save_file(arrays(), folder / "a.safetensors")
    np.savez(folder / "b.npz", **arrays())
    for name in ("a.safetensors", "b.npz"):
        data = bytearray((folder / name).read_bytes())
        data[at % len(data)] = byte
        (folder / name).write_bytes(data)
        manifest(folder, [name])
        try:
            run = read_run(folder)
        except InputError:
            continue
        full = run.sequences[0].full
        if full is not None:
            with contextlib.suppress(InputError):
                full.read(0, full.rows)


def test_headers_that_lie(tmp_path: Path) -> None:
    def written(header: Any, data: bytes = b"\0" * 64) -> Path:
        text = json.dumps(header).encode()
        (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        manifest(tmp_path, ["a.safetensors"])
        return tmp_path

    good = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    assert read_run(written({"logits": good})).sequences[0].rows == 4
    for entry, message in (
        ({**good, "shape": [1 << 20, 1 << 20]}, "lies at 0 to 64"),
        ({**good, "data_offsets": [0, 128], "shape": [8, 4]}, "lies at 0 to 128 in 64 bytes"),
        ({**good, "data_offsets": [-8, 56]}, "shape or place"),
        ({**good, "shape": [True, 16]}, "shape or place"),
        ({**good, "dtype": "F4"}, "has dtype F4"),
        ({"dtype": "F32"}, "is damaged"),
    ):
        assert message in refusal(written({"logits": entry})), entry
    both = {"logits": good, "lse": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    assert "share bytes" in refusal(written(both))
    (tmp_path / "a.safetensors").write_bytes((1 << 60).to_bytes(8, "little"))
    manifest(tmp_path, ["a.safetensors"])
    assert "header claims" in refusal(tmp_path)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    rows = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    first = draw(st.integers(0, 3))
    positions = np.cumsum(rng.integers(1, 3, rows)) - 1 + first
    values = st.floats(allow_nan=False, allow_infinity=True, width=64) | st.just(np.nan)  # JSON has one NaN
    width = draw(st.integers(1, 3))
    cells = draw(st.lists(values, min_size=rows * width, max_size=rows * width))
    named = draw(st.sampled_from(["ids", "texts", "nothing"]))
    known = np.stack([rng.permutation(50)[:width] for _ in range(rows)]).astype(np.int64)
    grid = np.array(cells, np.float64).reshape(rows, width)
    if named == "nothing":  # what has neither id nor value is no entry
        grid = np.nan_to_num(grid, nan=-1.0)
    top = Top(
        known if named == "ids" else np.full((rows, width), UNKNOWN),
        grid,
        rng.standard_normal(rows) if draw(st.booleans()) else None,
        tuple(tuple("abc"[:width]) for _ in range(rows)) if named == "texts" else None,
    )
    heavy = draw(st.booleans())
    logits = rng.standard_normal((rows, 50)).astype(ml_dtypes.bfloat16)
    layer = Attention(3, rng.standard_normal((rows, 2, 4)).astype(np.float16))
    return Sequence(
        "c",
        draw(st.integers(0, 9)),
        positions.astype(np.int64),
        rng.integers(0, 50, rows),
        rng.integers(0, 50, int(positions[0]) + 1) if draw(st.booleans()) else None,
        tuple("ab\u2028\U0001f600"[i % 4] for i in range(rows)) if draw(st.booleans()) else None,
        np.array(draw(st.lists(values, min_size=rows, max_size=rows)), np.float64),
        Full(rows, 50, logits.dtype, lambda a, b: logits[a:b]) if heavy else None,
        top,
        (layer,) if heavy else (),
        tuple("xy"[i % 2] for i in range(rows)) if draw(st.booleans()) else None,
        positions.astype(np.int64) + 1 if draw(st.booleans()) else None,
        "length" if draw(st.booleans()) else None,
        {"duplicate_positions": 2} if draw(st.booleans()) else {},
        {"cell": "a"},
    )


def bits(array: Any) -> Any:
    return None if array is None else (array.dtype, array.shape, np.ascontiguousarray(array).tobytes())


@settings(max_examples=60)
@given(sequences(), st.sampled_from([None, "safetensors", "npz"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, one: Sequence, form: str | None
) -> None:
    """Every part of a sequence, NaN and infinities too, through each format."""
    folder = tmp_path_factory.mktemp("r") / "out"
    said = no_files(
        {"run_id": "r", "coordinate": {}, "capture": {"value_kind": "raw_logits"}, "vocab_size": 50}
    )
    run = write_run(folder, said, [one], form=form)
    (back,) = run.sequences
    for name in ("conversation", "repeat", "texts", "ranges", "finish", "labels"):
        assert getattr(back, name) == getattr(one, name), name
    for name in ("positions", "tokens", "chosen", "prompt", "depths"):
        assert bits(getattr(back, name)) == bits(getattr(one, name)), name
    assert one.top is not None
    assert back.top is not None
    assert bits(back.top.ids) == bits(one.top.ids)
    assert back.top.texts == one.top.texts
    np.testing.assert_array_equal(back.top.values, one.top.values)
    assert bits(back.top.lse) == bits(one.top.lse)
    assert back.counts.get("duplicate_positions", 0) == one.counts.get("duplicate_positions", 0)
    if one.full is not None:
        assert back.full is not None
        assert bits(back.full.read(0, one.rows)) == bits(one.full.read(0, one.rows))
        assert bits(back.attention[0].q) == bits(one.attention[0].q)
    assert run.manifest.capture.lse_base == ("e" if one.top.lse is not None else None)


def test_two_runs_of_equal_values_are_two_files(tmp_path: Path) -> None:
    """Bit-identical devices are no copies of one capture: run_id stands in every file."""
    (one,) = read_run(tensors(tmp_path / "r", arrays())).sequences
    hashes = set()
    for name in ("a", "b"):
        said = no_files({"run_id": name, "coordinate": {}, "capture": {"value_kind": "raw_logits"}})
        hashes.add(write_run(tmp_path / name, said, [one]).sha256)
    assert len(hashes) == 2


def test_an_occupied_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tensors(tmp_path / "r", arrays())
    run = read_run(folder)
    with pytest.raises(InputError, match="is not an empty folder"):
        write_run(folder, run.manifest, run.sequences)


def test_reading_takes_no_memory(tmp_path: Path) -> None:
    """A file of 128 MB is hashed and gone through in blocks with less than 48 MB more than before."""
    rows, vocab = 256, 1 << 18
    text = json.dumps(
        {
            "input_ids": {"dtype": "I32", "shape": [rows], "data_offsets": [0, 4 * rows]},
            "logits": {
                "dtype": "F16",
                "shape": [rows, vocab],
                "data_offsets": [4 * rows, 4 * rows + 2 * rows * vocab],
            },
        }
    ).encode()
    with (tmp_path / "a.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + 4 * rows + 2 * rows * vocab)
    with (tmp_path / "a.safetensors").open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    entry = {"path": "a.safetensors", "sha256": digest}
    whole = {
        "schema": 1,
        "kind": "run",
        "run_id": "r",
        "coordinate": {},
        "files": [entry],
        "vocab_size": vocab,
    }
    (tmp_path / "manifest.json").write_text(json.dumps({**whole, "capture": {"value_kind": "raw_logits"}}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (one,) = read_run(tmp_path).sequences
    assert one.full is not None
    total = sum(int(np.count_nonzero(one.full.read(i, i + 16))) for i in range(0, rows, 16))
    assert total == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48_000


WHOLE_LINE = {
    "id": "c",
    "run_id": "r",
    "repeat": 0,
    "prompt_token_ids": [7],
    "token_ids": [1, 2],
    "logprobs": [-0.5, -1.0],
    "top": [[[1, -0.5], [2, -1.5]], None],
    "positions": [0, 1],
    "lse": [0.0, 0.0],
    "texts": ["a", "b"],
    "top_texts": [["a", "b"], []],
    "ranges": ["x", "x"],
    "depths": [1, 2],
    "finish": "stop",
    "counts": {"duplicate_positions": 1},
    "labels": {"a": "b"},
}


@settings(max_examples=80)
@given(st.data())
def test_one_odd_value_in_a_line_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    line = put(WHOLE_LINE, data.draw(st.sampled_from(places(WHOLE_LINE))), data.draw(JUNK))
    folder = lines(tmp_path_factory.mktemp("r"), [line], capture={"lse_base": "e"})
    try:
        (one,) = read_run(folder).sequences
    except InputError:
        return
    assert one.rows == len(one.tokens)
    assert one.texts is None or len(one.texts) == one.rows
    assert one.ranges is None or len(one.ranges) == one.rows
    assert one.depths is None or len(one.depths) == one.rows


@settings(max_examples=60)
@given(
    st.sampled_from(["range_names", "counts", "labels", "texts", "top_texts", "finish"]),
    JUNK.map(json.dumps) | st.just("{") | st.just("[" * 2000),
)
def test_one_odd_text_beside_arrays_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    folder = tmp_path_factory.mktemp("r")
    found = {**arrays(), "ranges": np.zeros(5, np.int32)}
    save_file(found, folder / "a.safetensors", {"range_names": '["x"]', name: text})
    manifest(folder, ["a.safetensors"])
    try:
        (one,) = read_run(folder).sequences
    except InputError:
        return
    assert one.texts is None or len(one.texts) == one.rows


@pytest.mark.parametrize(
    "shape", ["(" * 50 + "1", "(-1,)", "(1, 2", "(1,) + (2,)", "\\x00", "('a',)", "(True, 1.5)", "lambda: 1"]
)
def test_headers_of_npy_members_that_are_no_tuples(tmp_path: Path, shape: str) -> None:
    """Whatever a stranger writes where the shape should be is refused with the array's name."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(
            "logits.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)
        )
    manifest(tmp_path, ["a.npz"])
    with pytest.raises(InputError) as error:
        read_run(tmp_path)
    assert "array 'logits'" in str(error.value)


def test_names_that_are_there_twice(tmp_path: Path) -> None:
    """A manifest, or the header of safetensors, that says two things of one name is refused."""
    place = tensors(tmp_path / "a", arrays())
    text = (place / "manifest.json").read_text()
    kind = '"value_kind": "raw_logits"'
    (place / "manifest.json").write_text(text.replace(kind, f'"value_kind": "raw_logprobs", {kind}'))
    with pytest.raises(InputError, match="the name 'value_kind' twice"):
        read_run(place)
    entry = '"logits": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}'
    head = f"{{{entry}, {entry}}}".encode()
    (place / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    manifest(place, ["a.safetensors"])
    with pytest.raises(InputError, match="the name 'logits' twice"):
        read_run(place)
