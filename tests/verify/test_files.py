"""Input files: what is read, and what bad files get."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from specs.errors import InputError
from verify.case import random_case
from verify.files import load_case


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "q": rng.standard_normal((2, 4)).astype(np.float32),
        "k": rng.standard_normal((5, 1, 4)).astype(np.float32),
        "v": rng.standard_normal((5, 1, 4)).astype(np.float32),
    }


def test_npz_with_scalars(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays(), scale=np.float64(0.25), causal=True, batch=3)
    case = load_case(path)
    assert (case.scale, case.causal, case.context, case.kv_len) == (0.25, True, {"batch": 3}, 5)
    assert all((case.arrays[n] == a).all() and case.arrays[n].dtype == a.dtype for n, a in arrays().items())


def test_npz_of_bfloat16_bits_and_fortran_order(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    given = {n: a.astype(ml_dtypes.bfloat16) for n, a in arrays().items()}
    stored: dict[str, Any] = {n: np.asfortranarray(a.view(np.uint16)) for n, a in given.items()}
    np.savez(path, **stored, dtype=np.array("bfloat16"))
    case = load_case(path)
    assert all((case.arrays[n] == a).all() for n, a in given.items())


def test_features_and_8_bit_caches(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    kv = {n: arrays()[n].astype(ml_dtypes.float8_e4m3fn) for n in ("k", "v")}
    q = arrays()["q"].astype(ml_dtypes.bfloat16)
    stored: dict[str, Any] = {"q": q.view(np.uint16), **{n: a.view(np.uint8) for n, a in kv.items()}}
    more: dict[str, Any] = {"sinks": np.array([0.5, -1.0]), "softcap": 30.0, "k_scale": 0.25, "v_scale": 2.5}
    np.savez(path, **stored, **more, dtype=np.array("bfloat16 float8_e4m3fn"))
    case = load_case(path)
    assert all(
        case.arrays[n].dtype == a.dtype and (case.arrays[n] == a).all() for n, a in {**kv, "q": q}.items()
    )
    features = case.features
    assert (features.softcap, features.k_scale, features.v_scale, features.alibi_slopes) == (
        30.0,
        0.25,
        2.5,
        None,
    )
    assert features.sinks.tolist() == [0.5, -1.0]
    assert set(case.hashes()) == {"q", "k", "v", "sinks"}
    path = tmp_path / "a.safetensors"
    save_file(
        {**arrays(), "alibi_slopes": np.ones(2, np.float32)}, path, metadata={"softcap": "0.5", "batch": "2"}
    )
    case = load_case(path)
    assert (case.features.softcap, case.features.k_scale, case.context) == (0.5, 1.0, {"batch": 2})
    assert case.features.alibi_slopes.tolist() == [1.0, 1.0]


def test_compressed_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, scores=np.zeros((1, 7), np.float32), values=np.ones((7, 2), np.float32))
    assert load_case(path).kv_len == 7


def test_safetensors_of_bfloat16_with_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    given = {n: a.astype(ml_dtypes.bfloat16) for n, a in arrays().items()}
    bits = {n: np.ascontiguousarray(a).view(np.uint16) for n, a in given.items()}
    save_file(bits, path, metadata={"dtype": "bfloat16", "scale": "0.5", "causal": "false", "note": "x"})
    case = load_case(path)
    assert case.scale == 0.5
    assert not case.causal
    assert all((case.arrays[n] == a).all() for n, a in given.items())


def test_safetensors_with_the_bf16_dtype(tmp_path: Path) -> None:
    header = (
        b'{"scores":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
        b'"values":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}'
    )
    header = header.ljust(-(-len(header) // 8) * 8)
    body = struct.pack("<ff", 0.0, 1.0) + struct.pack("<HH", 0x3F80, 0xC000)
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    case = load_case(path)
    assert case.arrays["values"].astype(np.float32).tolist() == [[1.0], [-2.0]]
    assert case.arrays["scores"].tolist() == [[0.0, 1.0]]


def member(data: bytes, name: str = "q.npy") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, data)
    return out.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def whole(**more: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **{**arrays(), **more})
    return out.getvalue()


def foreign(compression: int) -> bytes:
    """An npz whose one member says another compression, in its local header and in the directory."""
    data = bytearray(member(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(8))))
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", data, data.index(mark) + at, compression)
    return bytes(data)


BAD = {
    "missing.npz": (None, "no such file"),
    "a.txt": (b"", "not read"),
    "empty.npz": (b"", "truncated or damaged"),
    "text.npz": (b"hello world", "truncated or damaged"),
    "cut.npz": (whole()[:-200], "truncated or damaged"),
    "huge.npz": (
        member(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }")),
        "need 8000",
    ),
    "negative.npz": (
        member(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8))),
        "damaged",
    ),
    "long.npz": (
        member(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (16777217, 0, 2), }"), "k.npy"),
        "16,777,217 tokens",
    ),
    "rows.npz": (
        member(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (0, 16777217), }"), "scores.npy"),
        "16,777,217 tokens",
    ),
    "header.npz": (member(npy("__import__('os').system('true')")), "truncated or damaged"),
    "short.npz": (
        member(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8))),
        "8 bytes instead of 16",
    ),
    "object.npz": (
        member(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n")),
        "object",
    ),
    "compressed.npz": (foreign(97), "damaged: That compression method is not supported"),
    "unknown.npz": (whole(keys=np.zeros(3)), "unknown array 'keys'"),
    "words.npz": (whole(batch=np.array("many")), "dtype <U4"),
    "half.npz": (whole(batch=2.5), "not an integer"),
    "infinite.npz": (whole(scale=np.inf), "shape"),
    "mixture.npz": (whole(scores=np.zeros((1, 5))), "q, k, v"),
    "cap.npz": (whole(softcap=np.nan), "one finite number|dtype float64"),
    "eight.npz": (whole(k=np.zeros((5, 1, 4), np.uint8), dtype=np.array("bfloat16")), "uint8 without"),
    "two.npz": (
        whole(k=np.zeros((5, 1, 4), np.uint8), dtype=np.array("float8_e4m3fn float8_e5m2")),
        "uint8 without",
    ),
    "bits.npz": (whole(q=np.zeros((2, 4), np.uint16)), "uint16"),
    "cut.safetensors": (struct.pack("<Q", 100) + b"{}", "truncated or damaged"),
    "length.safetensors": (struct.pack("<Q", 2**62) + b"{}", "truncated or damaged"),
    "none.safetensors": (b"", "truncated or damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_explained(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        load_case(path)
    assert name in str(caught.value.place)
    assert caught.value.remedy


def claims(size: int, name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.file_size = size
    return info


def test_arrays_are_bounded_together_and_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(whole())
    members = [claims(1_600_000_000, f"{n}.npy") for n in "qkv"]
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda _: members)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("a member was opened"))
    with pytest.raises(InputError, match="4,800,000,000 bytes together") as caught:
        load_case(path)
    assert "4,294,967,296" in caught.value.remedy


def test_a_large_safetensors_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate((4 << 30) + 1)  # sparse: takes no room on the disk
    with pytest.raises(InputError, match="4,294,967,297 bytes together"):
        load_case(path)


def test_tokens_of_a_safetensors_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    save_file({"values": np.zeros(((1 << 24) + 1, 0), np.float32)}, path)
    with pytest.raises(InputError, match="16,777,217 tokens"):
        load_case(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(InputError, match="no such file"):
        load_case(tmp_path / "a.npz")


def test_random_cases_repeat_and_are_bounded() -> None:
    one, two = (random_case(7, 33, q_heads=2, kv_heads=1, head_dim=8) for _ in range(2))
    assert one.hashes() == two.hashes()
    assert one.hashes() != random_case(8, 33, q_heads=2, kv_heads=1, head_dim=8).hashes()
    assert one.shape() == {"kv_len": 33, "q_len": 1, "q_heads": 2, "kv_heads": 1, "head_dim": 8, "causal": 0}
    for sizes in ({"kv_len": 0}, {"kv_len": 1 << 24, "head_dim": 4096}):
        with pytest.raises(InputError, match=r"range|numbers"):
            random_case(0, **sizes)
