"""What a decoder is: its sizes, and the few choices in which Llama and Qwen3 differ. Built from a file's own words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specs.errors import InputError, UnsupportedError, did_you_mean

Pairs = Literal["halves", "interleaved"]

#: Names of ``model_type`` in config.json and of ``general.architecture`` in GGUF that are known here.
KNOWN = ("llama", "qwen3")
#: Those whose layers are not all softmax attention.
LINEAR = ("qwen3_next", "qwen3next", "qwen3_5", "qwen35", "qwen3_5_text", "qwen3_5_moe", "qwen35moe")
_MOST = 1 << 22  # of any one size


@dataclass(frozen=True)
class Scaling:
    """Llama 3's rescaled rotary frequencies: ``rope_scaling`` of type ``llama3`` in config.json.

    Source: ``_compute_llama3_parameters`` in transformers' modeling_rope_utils.py.
    """

    factor: float
    low: float
    high: float
    original: int

    def apply(self, frequency: float) -> float:
        """The frequency that is used in place of ``frequency`` (radians per token)."""
        wave = 2 * math.pi / frequency
        if wave < self.original / self.high:
            return frequency
        if wave > self.original / self.low:
            return frequency / self.factor
        smooth = (self.original / wave - self.low) / (self.high - self.low)
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True)
class Architecture:
    """A dense decoder: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    Attributes:
        family: ``llama`` or ``qwen3`` (which normalises each head of q and k).
        layers, hidden, intermediate, vocab: sizes.
        q_heads, kv_heads, head_dim: of attention; ``q_heads`` is a multiple of ``kv_heads``.
        theta: base of the rotary frequencies.
        pairs: which elements of a head are rotated together: ``halves`` (i and i + head_dim / 2; Hugging Face) or
            ``interleaved`` (2i and 2i + 1; llama.cpp's row order for Llama).
        eps: of RMSNorm.
        tied: the head is the embedding.
        scaling: of the rotary frequencies, or None.
        context: tokens that the model was made for.
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    q_heads: int
    kv_heads: int
    head_dim: int
    theta: float
    pairs: Pairs
    eps: float
    tied: bool
    scaling: Scaling | None = None
    context: int = 0

    @property
    def qk_norm(self) -> bool:
        """Whether each head of q and k is normalised before it is rotated."""
        return self.family == "qwen3"

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    def frequencies(self) -> list[float]:
        """``head_dim / 2`` rotary frequencies in radians per token, as doubles."""
        plain = [self.theta ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return plain if self.scaling is None else [self.scaling.apply(f) for f in plain]

    def context_of_spec(self) -> dict[str, int]:
        """What formulas of an attention spec know of the model."""
        return {"q_heads": self.q_heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}


def family_of(name: object, place: str) -> str:
    """The family of ``model_type`` or ``general.architecture``.

    Raises:
        UnsupportedError: a model of another kind; linear attention is said to be so.
    """
    word = str(name)
    if word in LINEAR:
        raise UnsupportedError(
            f"unsupported: linear attention layers ({word})",
            place=place,
            remedy="this generation mixes softmax attention with gated linear attention, whose kernels are not described; "
            "its softmax layers can be compared one by one: capture q, k, v and use `ulpscope compare`",
        )
    if word not in KNOWN:
        raise UnsupportedError(
            f"unknown architecture '{word}'", place=place, remedy=did_you_mean(word, KNOWN)
        )
    return word


def from_config(config: Mapping[str, Any], place: str) -> Architecture:
    """The architecture of a Hugging Face ``config.json``.

    Raises:
        InputError: a key is missing or out of range. UnsupportedError: another architecture, or a part of one that is
            not modelled.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "model_type" in inner and "num_hidden_layers" not in config:
        config = {**inner, "tie_word_embeddings": config.get("tie_word_embeddings", False)}
    word = config.get("model_type")
    kinds = config.get("layer_types") or ()
    if isinstance(kinds, list | tuple) and any("linear" in str(k) for k in kinds):
        family_of("qwen3_next" if word not in LINEAR else word, place)
    family = family_of(word, place)
    _refuse_parts(config, kinds, place)
    heads = _size(config, "num_attention_heads", place)
    hidden = _size(config, "hidden_size", place)
    head_dim = config.get("head_dim") or hidden // heads
    theta, scaling = _rope(config, place)
    return _checked(
        Architecture(
            family=family,
            layers=_size(config, "num_hidden_layers", place),
            hidden=hidden,
            intermediate=_size(config, "intermediate_size", place),
            vocab=_size(config, "vocab_size", place),
            q_heads=heads,
            kv_heads=_size(config, "num_key_value_heads", place, heads),
            head_dim=_size({"head_dim": head_dim}, "head_dim", place),
            theta=theta,
            pairs="halves",
            eps=_number(config, "rms_norm_eps", place, 1e-6),
            tied=bool(config.get("tie_word_embeddings", False)),
            scaling=scaling,
            context=_size(config, "max_position_embeddings", place, 0, low=0),
        ),
        place,
    )


def _refuse_parts(config: Mapping[str, Any], kinds: object, place: str) -> None:
    """Refuse what dense Llama and Qwen3 checkpoints may have and this forward has not."""
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedError(f"hidden_act {config['hidden_act']!r}", place=place, remedy="silu is modelled")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UnsupportedError(
                f"{key} is true", place=place, remedy="projections without bias are modelled"
            )
    windowed = config.get("use_sliding_window") or (
        isinstance(kinds, list | tuple) and any(k != "full_attention" for k in kinds)
    )
    if windowed:
        raise UnsupportedError(
            "layers with sliding windows",
            place=place,
            remedy="models with full attention in every layer are modelled",
        )


def _rope(config: Mapping[str, Any], place: str) -> tuple[float, Scaling | None]:
    """Base and scaling: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters`` of newer files."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise InputError("rope_scaling is no table", place=place, remedy="see config.json of the model")
    theta = _number(
        {**config, **{k: v for k, v in given.items() if k == "rope_theta"}}, "rope_theta", place, 1e4
    )
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedError(
            f"rotary scaling of type {kind!r}",
            place=place,
            remedy="plain frequencies and llama3's are modelled",
        )
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (_number(given, n, place) for n in names)
    if not (factor > 0 and 0 < low < high and original >= 1):
        raise InputError("rope_scaling is out of range", place=place, remedy="factor > 0, low < high")
    return theta, Scaling(factor, low, high, int(original))


def from_gguf(fields: Mapping[str, Any], tied: bool, vocab: int, place: str) -> Architecture:
    """The architecture of a GGUF file's metadata.

    Args:
        fields: key to value.
        tied: whether there is no ``output.weight``.
        vocab: rows of the embedding.

    Raises:
        InputError, UnsupportedError: as `from_config`.
    """
    family = family_of(fields.get("general.architecture"), place)

    def key(name: str) -> str:
        return f"{family}.{name}"

    heads = _size(fields, key("attention.head_count"), place)
    hidden = _size(fields, key("embedding_length"), place)
    head_dim = _size(fields, key("attention.key_length"), place, hidden // max(1, heads))
    if fields.get(key("rope.dimension_count"), head_dim) != head_dim:
        raise UnsupportedError(
            "a part of each head is rotated", place=place, remedy="whole heads are modelled"
        )
    kind = fields.get(key("rope.scaling.type"), "none")
    if kind not in ("none", ""):
        raise UnsupportedError(
            f"rotary scaling '{kind}'", place=place, remedy="plain frequencies are modelled in GGUF"
        )
    if _size(fields, key("expert_count"), place, 0, low=0):
        raise UnsupportedError("a mixture of experts", place=place, remedy="dense models are modelled")
    return _checked(
        Architecture(
            family=family,
            layers=_size(fields, key("block_count"), place),
            hidden=hidden,
            intermediate=_size(fields, key("feed_forward_length"), place),
            vocab=vocab,
            q_heads=heads,
            kv_heads=_size(fields, key("attention.head_count_kv"), place, heads),
            head_dim=head_dim,
            theta=_number(fields, key("rope.freq_base"), place, 1e4),
            pairs="interleaved" if family == "llama" else "halves",
            eps=_number(fields, key("attention.layer_norm_rms_epsilon"), place, 1e-5),
            tied=tied,
            context=_size(fields, key("context_length"), place, 0, low=0),
        ),
        place,
    )


def _checked(a: Architecture, place: str) -> Architecture:
    if a.q_heads % a.kv_heads:
        raise InputError(
            f"{a.q_heads} query heads are not a multiple of {a.kv_heads} KV heads",
            place=place,
            remedy="every KV head serves the same number of query heads",
        )
    if a.head_dim % 2:
        raise InputError(f"head_dim {a.head_dim} is odd", place=place, remedy="rotation takes pairs")
    if a.layers > 1000 or a.hidden * a.vocab > 1 << 34 or a.hidden * a.intermediate > 1 << 34:
        raise InputError("sizes past every known model", place=place, remedy="check the file")
    return a


def _size(table: Mapping[str, Any], key: str, place: str, default: int | None = None, *, low: int = 1) -> int:
    value = table.get(key, default)
    if value is None:
        raise InputError(f"'{key}' is missing", place=place, remedy="the model's own file has it")
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST:
        raise InputError(
            f"{key} = {str(value)[:40]}", place=place, remedy=f"a whole number from {low} to {_MOST:,}"
        )
    return value


def _number(table: Mapping[str, Any], key: str, place: str, default: float | None = None) -> float:
    value = table.get(key, default)
    if value is None:
        raise InputError(f"'{key}' is missing", place=place, remedy="the model's own file has it")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise InputError(f"{key} = {str(value)[:40]}", place=place, remedy="a positive number")
    return float(value)
