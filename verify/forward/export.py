"""A model written in the Hugging Face format, for engines that read nothing else: the same weights, dequantised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, UnsupportedError
from verify.capture.format import check_empty
from verify.forward.architecture import Architecture
from verify.forward.weights import Model

Array = NDArray[Any]

#: Formats that weights may be stored in.
DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def write_folder(model: Model, folder: str | Path, dtype: str = "bfloat16") -> Path:
    """Write ``config.json``, ``model.safetensors`` and, where a GPT-2 tokenizer is known, ``tokenizer.json``.

    Args:
        model: the weights, f32.
        folder: new or empty.
        dtype: of `DTYPES`; each weight is rounded once to it, to nearest even, as a forward in that format does.

    Raises:
        InputError: the folder holds something, or the dtype is not known.
    """
    from safetensors.numpy import save_file

    if dtype not in DTYPES:
        raise InputError(f"unknown dtype '{dtype}'", place="dtype", remedy=f"one of {', '.join(DTYPES)}")
    folder = Path(folder)
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    a = model.architecture
    found: dict[str, Array] = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    if not a.tied:
        found["lm_head.weight"] = model.head
    for name, stacked in model.layers.items():
        for i in range(a.layers):
            found[f"model.layers.{i}.{_NAMES[name]}.weight"] = _halves(stacked[i], name, a)
    stored = {name: np.ascontiguousarray(x.astype(DTYPES[dtype])) for name, x in found.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(a, dtype), indent=1), encoding="utf-8")
    if model.tokenizer.get("model") == "gpt2":
        _write_tokenizer(model, folder)
    return folder


def _halves(matrix: Array, name: str, a: Architecture) -> Array:
    """A matrix whose rows are in the order of Hugging Face: pairs that are rotated together lie half a head apart."""
    if a.pairs == "halves" or name not in ("q", "k"):
        return matrix
    heads = a.q_heads if name == "q" else a.kv_heads
    return matrix.reshape(heads, a.head_dim // 2, 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def _config(a: Architecture, dtype: str) -> dict[str, Any]:
    if a.scaling is not None:
        raise UnsupportedError("rescaled rotary frequencies", place="config", remedy="plain ones are written")
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[a.family]],
        "model_type": a.family,
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.q_heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "vocab_size": a.vocab,
        "rms_norm_eps": a.eps,
        "rope_theta": a.theta,
        "max_position_embeddings": a.context or 2048,
        "tie_word_embeddings": a.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": dtype,
    }


def _write_tokenizer(model: Model, folder: Path) -> None:
    """GPT-2's byte-pair merging in the format of the package tokenizers; digits stand alone where they do in the model."""
    said = model.tokenizer
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps: list[dict[str, Any]] = [level]
    if said.get("pre") == "smollm":
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(said["tokens"])},
            "merges": [pair.split(" ") for pair in said["merges"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.architecture.context or 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")
