"""A model written in the Hugging Face format is the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.errors import InputError
from tests.verify.forward.making import config_of, forward64, tensors_of, write_model
from verify.forward.config import load_arithmetic
from verify.forward.export import write_folder
from verify.forward.huggingface import load_folder
from verify.forward.predict import Predictor
from verify.forward.tokens import read_tokens


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_come_back(family: str, tmp_path: Path) -> None:
    config = config_of(model_type=family, tie_word_embeddings=family == "qwen3")
    model = load_folder(write_model(tmp_path / "a", config, tensors_of(config)))
    again = load_folder(write_folder(model, tmp_path / "b", "bfloat16"))  # the tensors are bf16 numbers
    assert again.architecture == model.architecture
    assert again.layers.keys() == model.layers.keys()
    for name, want in model.layers.items():
        np.testing.assert_array_equal(again.layers[name], want)
    np.testing.assert_array_equal(again.head, model.head)
    with pytest.raises(InputError):
        write_folder(model, tmp_path / "b")
    with pytest.raises(InputError, match="unknown dtype"):
        write_folder(model, tmp_path / "c", "int8")


def test_rows_of_llama_cpp_are_put_back(tmp_path: Path) -> None:
    """Interleaved pairs of a GGUF file become halves: the written folder gives the logits of the textbook."""
    config = config_of()
    tensors = tensors_of(config)
    model = load_folder(write_model(tmp_path / "a", config, tensors))
    ids = [3, 17, 79, 0]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    mixed = dict(model.layers)
    for name, n in heads.items():  # as llama.cpp's convert_hf_to_gguf.py permutes them
        w = model.layers[name]
        mixed[name] = w.reshape(len(w), n, 2, 8, -1).swapaxes(2, 3).reshape(w.shape)
    gguf = replace(model, architecture=replace(model.architecture, pairs="interleaved"), layers=mixed)
    again = load_folder(write_folder(gguf, tmp_path / "b", "float32"))
    found = Predictor(again, load_arithmetic("f32"))(ids).logits()
    np.testing.assert_allclose(found, forward64(config, tensors, ids), atol=2e-5)


def test_prompts_are_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"id": "a", "token_ids": [1, 2, 3]}\n{"id": "b", "text": "two words"}\n')
    assert read_tokens(file) == [("a", [1, 2, 3]), ("b", "two words")]
