"""The weights of a decoder under one set of names, whatever file they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.forward.architecture import Architecture

Array = NDArray[Any]

#: The most that the weights of one model may take in f32.
MAX_BYTES = 1 << 36
#: Matrices of a layer, ``[out, in]``, and the names of its norms.
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
NORMS = ("attn_norm", "mlp_norm")
QK_NORMS = ("q_norm", "k_norm")


@dataclass(frozen=True, eq=False)
class Model:
    """A model as it was read.

    Attributes:
        architecture: its sizes.
        embedding: f32 ``[vocab, hidden]``; ``head``: f32 ``[vocab, hidden]``, the same array where tied.
        norm: f32 ``[hidden]``: before the head.
        layers: by name (`MATRICES`, `NORMS`, `QK_NORMS`): f32, stacked, ``[layers, ...]``.
        name: what messages call it.
        sha256: of the file or files it was read from (of their hashes, where there are several).
        tokenizer: what the file says of its tokenizer, or empty.
    """

    architecture: Architecture
    embedding: Array
    head: Array
    norm: Array
    layers: Mapping[str, Array]
    name: str
    sha256: str
    tokenizer: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def parameters(self) -> int:
        """How many numbers the model has, a tied head counted once."""
        own = 0 if self.head is self.embedding else self.head.size
        return self.embedding.size + own + self.norm.size + sum(x.size for x in self.layers.values())


def shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """What a layer must hold, by name: shape."""
    q, kv = a.q_heads * a.head_dim, a.kv_heads * a.head_dim
    out: dict[str, tuple[int, ...]] = {
        "q": (q, a.hidden),
        "k": (kv, a.hidden),
        "v": (kv, a.hidden),
        "o": (a.hidden, q),
        "gate": (a.intermediate, a.hidden),
        "up": (a.intermediate, a.hidden),
        "down": (a.hidden, a.intermediate),
        "attn_norm": (a.hidden,),
        "mlp_norm": (a.hidden,),
    }
    if a.qk_norm:
        out |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    return out


def check_size(a: Architecture, place: str) -> None:
    """Refuse a model that would not fit, before anything is allocated.

    Raises:
        InputError: its weights take more than `MAX_BYTES` in f32.
    """
    layer = sum(int(np.prod(s, dtype=np.int64)) for s in shapes(a).values())
    total = 4 * (a.layers * layer + (1 if a.tied else 2) * a.vocab * a.hidden)
    if total > MAX_BYTES:
        raise InputError(
            f"the weights take {total:,} bytes in f32",
            place=place,
            remedy=f"at most {MAX_BYTES:,} are read: a model of this size is not predicted on a CPU",
        )


def check_shape(found: tuple[int, ...], shape: tuple[int, ...], name: str, place: str) -> None:
    """Refuse a tensor whose shape is another than the sizes of the model ask for.

    Raises:
        InputError: it is.
    """
    if tuple(found) != shape:
        raise InputError(
            f"shape {tuple(found)}, the sizes of the model say {shape}",
            place=f"{place}: tensor '{name}'",
            remedy="weights and config must belong together",
        )


def check_finite(array: Array, name: str, place: str) -> Array:
    """``array``, all of whose numbers must be finite.

    Raises:
        InputError: one is not.
    """
    if not np.isfinite(array).all():
        raise InputError(
            "a weight is NaN or infinite", place=f"{place}: tensor '{name}'", remedy="the file is damaged"
        )
    return array
