"""The f32 forward against a float64 one written apart, and against transformers where it is installed."""

import numpy as np
import pytest

from tests.verify.forward.making import config_of, forward64, tensors_of, write_model
from verify.forward.buckets import bucket
from verify.forward.config import load_arithmetic
from verify.forward.load import load_model
from verify.forward.predict import Predictor

IDS = [3, 17, 79, 0, 41, 3, 8, 8, 60, 22, 5]
CASES = {
    "llama": config_of(),
    "llama-tied": config_of(tie_word_embeddings=True, num_key_value_heads=1),
    "qwen3": config_of(model_type="qwen3", head_dim=8, rms_norm_eps=1e-6, rope_theta=1e6),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_a_float64_forward(name, tmp_path):
    config = CASES[name]
    tensors = tensors_of(config)
    model = load_model(write_model(tmp_path / "m", config, tensors))
    found = Predictor(model, load_arithmetic("f32"))(IDS).logits()
    want = forward64(config, tensors, IDS)
    assert found.dtype == np.float32
    assert found.shape == want.shape
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(found, want, atol=2e-5)


def test_a_longer_sequence_leaves_the_logits_before_it_alone(tmp_path):
    config = CASES["llama"]
    model = load_model(write_model(tmp_path / "m", config, tensors_of(config)))
    predict = Predictor(model, load_arithmetic("f32"))
    ids = np.random.default_rng(1).integers(0, 80, 70)
    assert (bucket(len(ids)), bucket(30)) == (128, 64)
    np.testing.assert_allclose(predict(ids).logits()[:30], predict(ids[:30]).logits(), atol=2e-5)


def test_sites_are_those_of_attention(tmp_path):
    config = CASES["qwen3"]
    model = load_model(write_model(tmp_path / "m", config, tensors_of(config)))
    sites = Predictor(model, load_arithmetic("f32"))(IDS, layers=[1]).sites
    assert set(sites) == {1}
    q, k, v, out, lse = (sites[1][n].astype(np.float64) for n in ("q", "k", "v", "out", "lse"))
    for head in range(4):
        for i in range(len(IDS)):
            scores = k[: i + 1, head // 2] @ q[i, head] / np.sqrt(8)
            weight = np.exp(scores)
            np.testing.assert_allclose(lse[i, head], np.log(weight.sum()), atol=1e-5)
            np.testing.assert_allclose(out[i, head], weight @ v[: i + 1, head // 2] / weight.sum(), atol=1e-5)


@pytest.mark.parametrize(
    ("length", "size"), [(1, 64), (64, 64), (65, 128), (320, 320), (321, 384), (513, 640), (9000, 10240)]
)
def test_buckets(length, size):
    assert bucket(length) == size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3", "llama3"])
def test_transformers_agrees(name, tmp_path):
    """A minute: importing transformers and torch, which are skipped where they are missing."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = CASES.get(name) or config_of(rope_scaling=scaling, rope_theta=500.0)
    folder = write_model(tmp_path / "m", {**config, "architectures": []}, tensors_of(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.random.default_rng(2).integers(0, 80, 100)
    with torch.no_grad():
        want = model(torch.tensor(ids)[None]).logits[0].numpy()
    found = Predictor(load_model(folder), load_arithmetic("f32"))(ids).logits()
    np.testing.assert_allclose(found, want, atol=1e-5 * np.abs(want).max())
