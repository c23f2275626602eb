"""Tiny models with random weights, in the Hugging Face format."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def config_of(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor, float32, rounded to bf16 so that any dtype holds it."""
    rng = np.random.default_rng(seed)
    h, m = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def normal(*shape: int) -> np.ndarray:
        x = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)

    def gain(n: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(n)).astype(ml_dtypes.bfloat16).astype(np.float32)

    out = {"model.embed_tokens.weight": normal(config["vocab_size"], h) * 4, "model.norm.weight": gain(h)}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = normal(config["vocab_size"], h)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out |= {
            p + "self_attn.q_proj.weight": normal(q, h) * 2,
            p + "self_attn.k_proj.weight": normal(kv, h) * 2,
            p + "self_attn.v_proj.weight": normal(kv, h),
            p + "self_attn.o_proj.weight": normal(h, q),
            p + "mlp.gate_proj.weight": normal(m, h),
            p + "mlp.up_proj.weight": normal(m, h),
            p + "mlp.down_proj.weight": normal(h, m),
            p + "input_layernorm.weight": gain(h),
            p + "post_attention_layernorm.weight": gain(h),
        }
        if config["model_type"] == "qwen3":
            out[p + "self_attn.q_norm.weight"] = gain(config["head_dim"])
            out[p + "self_attn.k_norm.weight"] = gain(config["head_dim"])
    return out


def write_model(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    dtype: Any = np.float32,
    shards: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {n: x.astype(dtype) for n, x in tensors.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors")
        return folder
    weight_map: dict[str, str] = {}
    for i in range(shards):
        part = dict(list(stored.items())[i::shards])
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def forward64(
    config: dict[str, Any], w: dict[str, np.ndarray], ids: Any, pairs: str = "halves"
) -> np.ndarray:
    """The logits in float64, one head and one token at a time: written from the papers, with no code of the package."""
    h, dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    eps = config["rms_norm_eps"]
    w = {n: x.astype(np.float64) for n, x in w.items()}

    def norm(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2) + eps) * g

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        y = x.copy()
        for i in range(dim // 2):
            a, b = (i, i + dim // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
            angle = position * config["rope_theta"] ** (-2 * i / dim)
            y[a] = x[a] * np.cos(angle) - x[b] * np.sin(angle)
            y[b] = x[b] * np.cos(angle) + x[a] * np.sin(angle)
        return y

    xs = [w["model.embed_tokens.weight"][i] for i in ids]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        keys, values = [], []
        for position in range(len(ids)):
            x = xs[position]
            y = norm(x, w[p + "input_layernorm.weight"])
            q = (w[p + "self_attn.q_proj.weight"] @ y).reshape(heads, dim)
            k = (w[p + "self_attn.k_proj.weight"] @ y).reshape(kv_heads, dim)
            values.append((w[p + "self_attn.v_proj.weight"] @ y).reshape(kv_heads, dim))
            if config["model_type"] == "qwen3":
                q = np.stack([norm(one, w[p + "self_attn.q_norm.weight"]) for one in q])
                k = np.stack([norm(one, w[p + "self_attn.k_norm.weight"]) for one in k])
            keys.append(np.stack([turn(one, position) for one in k]))
            out = np.zeros((heads, dim))
            for head in range(heads):
                own = head * kv_heads // heads
                query = turn(q[head], position)
                scores = np.array([query @ key[own] for key in keys]) / np.sqrt(dim)
                weight = np.exp(scores - scores.max())
                weight /= weight.sum()
                out[head] = sum(a * v[own] for a, v in zip(weight, values, strict=True))
            x = x + w[p + "self_attn.o_proj.weight"] @ out.reshape(-1)
            y = norm(x, w[p + "post_attention_layernorm.weight"])
            gate = w[p + "mlp.gate_proj.weight"] @ y
            x = x + w[p + "mlp.down_proj.weight"] @ (
                gate / (1 + np.exp(-gate)) * (w[p + "mlp.up_proj.weight"] @ y)
            )
            xs[position] = x
    head = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    assert h == len(xs[0])
    return np.stack([head @ norm(x, w["model.norm.weight"]) for x in xs])
