"""Inputs and projections from files: what is read, and what is refused with the file as its place."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from search.files import digest, read_base, read_projection, token_numbers
from specs.errors import InputError


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


def test_an_input_with_or_without_columns(tmp_path: Path) -> None:
    one = read_base(saved(tmp_path, scores=np.zeros((1, 3)), values=np.ones(3)))
    assert (one.scores.shape, one.values.shape) == ((1, 3), (1, 3, 1))
    half = np.array([[1.5, -2.0]] * 3, ml_dtypes.bfloat16).view(np.uint16)
    two = read_base(saved(tmp_path, scores=np.zeros(3), values=half, dtype="bfloat16"))
    assert two.values.tolist() == [[[1.5, -2.0]] * 3]


def test_a_projection_under_any_name(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    w = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert read_projection(saved(tmp_path, W=w)).tolist() == w.tolist()
    save_file({"lm_head.weight": w.astype(np.float32)}, tmp_path / "x.safetensors")
    assert read_projection(tmp_path / "x.safetensors").tolist() == w.tolist()


def test_the_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert digest(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(InputError, match="no such file"):
        digest(tmp_path / "y")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": np.zeros(64), "values": np.zeros((63, 2))}, "scores of shape [64] and values of shape [63, 2]"),
        ({"scores": np.zeros((2, 3, 64)), "values": np.zeros((2, 64))}, "scores of shape [2, 3, 64]"),
        ({"scores": np.array(["a"] * 3), "values": np.zeros(3)}, "dtype <U1"),
        ({"scores": np.array([0.0, np.nan]), "values": np.ones(2)}, "a score is NaN or +inf"),
        ({"scores": np.array([0.0, np.inf]), "values": np.ones(2)}, "a score is NaN or +inf"),
        ({"scores": np.zeros(2), "values": np.array([1.0, -np.inf])}, "a value is not finite"),
        ({"scores": np.zeros(2)}, "holds scores"),
        ({"scores": np.zeros(0), "values": np.zeros(0)}, "scores of shape [0]"),
    ],
)  # fmt: skip
def test_what_is_no_input(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        read_base(saved(tmp_path, **arrays))
    assert message in str(found.value)
    assert "x.npz" in str(found.value.place)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.eye(2), "b": np.eye(2)}, "holds 2 arrays: a, b"),
        ({"W": np.zeros(3)}, "an array of shape [3]"),
        ({"W": np.zeros((1, 3))}, "an array of shape [1, 3]"),
        ({"W": np.array([[1.0], [np.nan]])}, "not finite"),
        ({"W": np.array([["a"], ["b"]])}, "dtype <U1"),
    ],
)
def test_what_is_no_projection(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        read_projection(saved(tmp_path, **arrays))
    assert message in str(found.value)


def test_numbers_and_ranges() -> None:
    assert token_numbers("0-3, 7,") == {0, 1, 2, 3, 7}
    assert token_numbers(None) == set()
    for wrong in ("3-1", "a", "1-", "-1", "1-2-3", "99999999", "0-9999999"):
        with pytest.raises(InputError, match="no token or range"):
            token_numbers(wrong)
