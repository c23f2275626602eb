"""Tokens from files and texts."""

import json

import numpy as np
import pytest

from specs.errors import InputError, UnsupportedError
from tests.verify.forward.making import TINY, tensors_of, write_model
from verify.forward.load import load_model
from verify.forward.tokens import encode, read_tokens
from verify.forward.weights import Model


def test_files(tmp_path):
    for name, text in [("a.json", "[3, 4]"), ("b.json", '{"input_ids": [3, 4]}'), ("c.txt", "3 4\n")]:
        (tmp_path / name).write_text(text)
        assert read_tokens(tmp_path / name) == [(name[0], [3, 4])]
    (tmp_path / "d.json").write_text("[[1], [2, 3]]")
    assert read_tokens(tmp_path / "d.json") == [("d-0", [1]), ("d-1", [2, 3])]
    np.savez(tmp_path / "e.npz", input_ids=np.array([5, 6], np.int32), other=np.zeros(2))
    np.save(tmp_path / "f.npy", np.array([[1, 2], [3, 4]]))
    assert read_tokens(tmp_path / "e.npz") == [("e", [5, 6])]
    assert read_tokens(tmp_path / "f.npy") == [("f-0", [1, 2]), ("f-1", [3, 4])]


@pytest.mark.parametrize(
    "text", ["", "[]", "[1.5]", "[true]", '["1"]', "1 x", "[[1], 2]", "{}", "[1e400]", "[" * 9]
)
def test_files_that_hold_no_tokens(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError):
        read_tokens(tmp_path / "x.json")


def test_damaged_arrays_and_objects(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04")
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    for name in ("x.npz", "o.npy", "missing.json"):
        with pytest.raises(InputError):
            read_tokens(tmp_path / name)


def model_with(tokenizer: dict) -> Model:
    return Model(None, None, None, None, {}, "m", "", tokenizer)  # type: ignore[arg-type]


def test_merges_by_rank_and_bytes_by_their_letters():
    """Of GPT-2: a space is written Ġ, merges apply lowest rank first, and never across pieces."""
    tokens = ["a", "b", "Ġ", "ab", "Ġa", "1", "9", "Ã", "¤", "Ġab"]
    merges = ["a b", "Ġ a", "Ġ ab"]
    model = model_with({"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": merges})
    assert encode("ab ab", model) == [3, 9]
    assert encode("a b", model_with({**model.tokenizer, "merges": ["Ġ a"]})) == [0, 2, 1]
    assert encode("19", model) == [5, 6]  # digits stand alone
    assert encode("ä", model) == [7, 8]
    with pytest.raises(InputError, match="the vocabulary has no"):
        encode("z", model)
    with pytest.raises(UnsupportedError, match="'llama-bpe'"):
        encode("a", model_with({"model": "gpt2", "pre": "llama-bpe", "tokens": [], "merges": []}))


def test_tokenizer_of_a_folder(tmp_path):
    folder = write_model(tmp_path / "m", TINY, tensors_of(TINY))
    model = load_model(folder)
    with pytest.raises(InputError, match="without a tokenizer"):
        encode("a", model, folder)
    pytest.importorskip("tokenizers")
    words = {"type": "WordLevel", "vocab": {"a": 7, "b": 9}, "unk_token": "a"}
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words}
        )
    )
    assert encode("b a b", model, folder) == [9, 7, 9]
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        encode("a", model, folder)
