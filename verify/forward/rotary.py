"""Rotary tables: cosines and sines of every position, and which elements of a head they turn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verify.forward.architecture import Architecture, Pairs

Angles = Literal["f32", "f64"]


def tables(a: Architecture, positions: int, angles: Angles = "f64") -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosines and sines ``[positions, head_dim / 2]``, float32, each rounded once from float64.

    Args:
        a: the model.
        positions: how many, from 0.
        angles: ``f64``: position times frequency in double precision; ``f32``: frequency and product each rounded to
            f32 first, as PyTorch code does that keeps ``inv_freq`` in f32 (transformers, vLLM).
    """
    frequency = np.array(a.frequencies(), np.float64)
    where = np.arange(positions, dtype=np.float64)
    if angles == "f32":
        angle = (where.astype(np.float32)[:, None] * frequency.astype(np.float32)).astype(np.float64)
    else:
        angle = where[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def split(x: Any, pairs: Pairs) -> tuple[Any, Any]:
    """The first and the second element of each pair of the last axis: two arrays half as long."""
    if pairs == "halves":
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def joined(first: Any, second: Any, pairs: Pairs) -> Any:
    """The inverse of `split`, on JAX arrays."""
    import jax.numpy as jnp

    if pairs == "halves":
        return jnp.concatenate([first, second], axis=-1)
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])
