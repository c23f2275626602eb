"""A real model against logits and attention that were computed before, by other code, from the same weights."""

from pathlib import Path

import numpy as np
import pytest

from verify.forward import smollm2
from verify.forward.config import load_arithmetic
from verify.forward.predict import Predictor
from verify.forward.tokens import encode

DATA = Path(__file__).parents[4] / "shared" / "data" / "smollm2"


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gguf", reason="the package gguf is an extra")
    file = smollm2.cached()
    if file is None:
        pytest.skip("SmolLM2 is not in the cache: `ulpscope predict smollm2 --text a` fetches it")
    return smollm2.load()


def stored(name: str) -> dict[str, np.ndarray]:
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"{file.name} is not at hand")
    with np.load(file) as found:
        return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [320, 96])
def test_f32_logits(model, tokens):
    """Half a minute: 135 million weights are read."""
    want = stored(f"smollm2_T320_top50_T{tokens}run.npz")
    found = Predictor(model, load_arithmetic("f32"))(want["input_ids"]).logits().astype(np.float64)
    top = np.take_along_axis(found, want["topk_ids"].astype(np.int64), 1)
    assert np.abs(top - want["topk_logits"]).max() <= 2e-4
    most = found.max(axis=1, keepdims=True)
    lse = most[:, 0] + np.log(np.exp(found - most).sum(axis=1))
    assert np.abs(lse - want["lse"]).max() <= 2e-4


@pytest.mark.slow
def test_attention_of_a_layer(model):
    """As above; q, k and v are stored in f16: half of its last place, and the difference of two f32 runs."""
    want = stored("smollm2_T320_attn_fp16in.npz")
    sites = Predictor(model, load_arithmetic("f32"))(want["input_ids"], layers=[15]).sites[15]
    for name in ("q", "k", "v"):
        other = want[f"layer15.{name}"].astype(np.float32).swapaxes(0, 1)
        step = np.spacing(np.abs(other).astype(np.float16)).astype(np.float32)
        assert (np.abs(sites[name] - other) <= step / 2 + 1e-4).all()
    assert np.abs(sites["out"] - want["layer15.out"].swapaxes(0, 1)).max() <= 2e-4
    assert np.abs(sites["lse"] - want["layer15.lse"].T).max() <= 2e-4


@pytest.mark.slow
def test_text_is_read_as_before(model):
    """The stored run's text begins with these words; its tokens are the vocabulary's own."""
    want = stored("smollm2_T320_top50_T96run.npz")["input_ids"]
    letters = {"Ġ": " ", "Ċ": "\n"}
    text = "".join(model.tokenizer["tokens"][i] for i in want)
    for letter, meaning in letters.items():
        text = text.replace(letter, meaning)
    assert text.isascii()
    assert encode(text, model) == want.tolist()
