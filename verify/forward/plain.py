"""The forward in plain f32: one jitted program, layers by `lax.scan`. XLA chooses the order of sums.

This is the arithmetic of nothing but this machine: the yardstick for speed, and for whether weights, rotation and masks
are read as they are meant. `verify.forward.staged` is the one whose arithmetic is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from verify.forward import rotary
from verify.forward.architecture import Architecture
from verify.forward.buckets import bucket
from verify.forward.weights import Model

_ROWS = 256  # query rows whose scores are held at once
_SITES = ("q", "k", "v", "out", "lse")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Weights as the program takes them: on the device, matrices as ``[in, out]``, q, k, v and gate, up side by side."""

    architecture: Architecture
    embedding: Array
    head: Array
    norm: Array
    layers: Mapping[str, Array]


def prepare(model: Model) -> Prepared:
    """Lay the weights of ``model`` out, once."""

    def columns(*names: str) -> Array:
        joined = np.concatenate([model.layers[n] for n in names], axis=1)
        return jnp.asarray(np.ascontiguousarray(joined.transpose(0, 2, 1)))

    layers = {
        "qkv": columns("q", "k", "v"),
        "o": columns("o"),
        "up": columns("gate", "up"),
        "down": columns("down"),
    }
    layers |= {n: jnp.asarray(x) for n, x in model.layers.items() if n.endswith("norm")}
    return Prepared(
        model.architecture,
        jnp.asarray(model.embedding),
        jnp.asarray(np.ascontiguousarray(model.head.T)),
        jnp.asarray(model.norm),
        layers,
    )


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axis, f32, in XLA's order."""
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Causal softmax attention in f32, in XLA's order.

    Args:
        q: ``[tokens, q_heads, head_dim]``.
        k: ``[tokens, kv_heads, head_dim]``; v: likewise.

    Returns:
        ``[tokens, q_heads, head_dim]`` and the log-sum-exp ``[tokens, q_heads]`` (natural).
    """
    tokens, heads, dim = q.shape
    kv = k.shape[1]
    rows = q.reshape(tokens, kv, heads // kv, dim) * np.float32(dim**-0.5)
    size = min(tokens, _ROWS)
    blocks = -(-tokens // size)
    rows = jnp.pad(rows, ((0, blocks * size - tokens), (0, 0), (0, 0), (0, 0)))

    def block(i: Array) -> tuple[Array, Array]:
        part = lax.dynamic_slice_in_dim(rows, i * size, size)
        scores = jnp.einsum("rhgd,thd->hgrt", part, k)
        seen = jnp.arange(tokens) <= (i * size + jnp.arange(size))[:, None]
        scores = jnp.where(seen, scores, -jnp.inf)
        top = jnp.max(scores, axis=-1, keepdims=True)
        weight = jnp.exp(scores - top)
        total = jnp.sum(weight, axis=-1, keepdims=True)
        out = jnp.einsum("hgrt,thd->rhgd", weight / total, v)
        return out, jnp.moveaxis((top + jnp.log(total))[..., 0], 2, 0)

    out, lse = lax.map(block, jnp.arange(blocks, dtype=jnp.int32))
    return out.reshape(-1, heads, dim)[:tokens], lse.reshape(-1, heads)[:tokens]


def _rotated(x: Array, cos: Array, sin: Array, a: Architecture) -> Array:
    first, second = rotary.split(x, a.pairs)
    cos, sin = cos[:, None], sin[:, None]
    return rotary.joined(first * cos - second * sin, second * cos + first * sin, a.pairs)


def _layer(a: Architecture, cos: Array, sin: Array, keep: bool, x: Array, w: Mapping[str, Array]) -> Any:
    h = rms_norm(x, w["attn_norm"], a.eps) @ w["qkv"]
    sizes = [a.q_heads * a.head_dim, (a.q_heads + a.kv_heads) * a.head_dim]
    q, k, v = (y.reshape(y.shape[0], -1, a.head_dim) for y in jnp.split(h, sizes, axis=-1))
    if a.qk_norm:
        q, k = rms_norm(q, w["q_norm"], a.eps), rms_norm(k, w["k_norm"], a.eps)
    q, k = _rotated(q, cos, sin, a), _rotated(k, cos, sin, a)
    out, lse = attention(q, k, v)
    x = x + out.reshape(out.shape[0], -1) @ w["o"]
    gate, up = jnp.split(rms_norm(x, w["mlp_norm"], a.eps) @ w["up"], 2, axis=-1)
    x = x + (gate * jax.nn.sigmoid(gate) * up) @ w["down"]
    return x, (dict(zip(_SITES, (q, k, v, out, lse), strict=True)) if keep else None)


@lru_cache(maxsize=8)
def _program(a: Architecture, keep: bool) -> Any:
    def run(p: Mapping[str, Any], ids: Array, cos: Array, sin: Array) -> tuple[Array, Any]:
        step = partial(_layer, a, cos, sin, keep)
        x, sites = lax.scan(step, p["embedding"][ids], p["layers"])
        return rms_norm(x, p["norm"], a.eps), sites

    return jax.jit(run)


@jax.jit
def _logits(x: Array, head: Array) -> Array:
    return x @ head


def hidden(
    p: Prepared, ids: NDArray[Any], *, keep: bool = False
) -> tuple[Array, dict[str, NDArray[np.float32]]]:
    """What the head takes, for every token of one sequence.

    Args:
        p: the weights.
        ids: token ids ``[tokens]``.
        keep: also q, k, v, out and lse of every layer, as ``[layers, tokens, ...]``.

    Returns:
        f32 ``[bucket, hidden]`` (rows past the tokens are padding), and the sites (empty unless ``keep``).
    """
    count, size = len(ids), bucket(len(ids))
    padded = np.zeros(size, np.int32)
    padded[:count] = ids
    cos, sin = rotary.tables(p.architecture, size)
    arguments = {"embedding": p.embedding, "norm": p.norm, "layers": p.layers}
    x, sites = _program(p.architecture, keep)(arguments, padded, cos, sin)
    return x, {n: np.asarray(s)[:, :count] for n, s in sites.items()} if keep else {}


def logits(p: Prepared, x: Array) -> NDArray[np.float32]:
    """The logits ``[rows, vocab]`` of rows of `hidden`."""
    return np.asarray(_logits(x, p.head))
