"""Host side of the array engine: plans padded to buckets, inputs laid out for the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import UlpscopeError
from specs.formats import Format
from verify.engine import contract
from verify.engine.values import LANES
from verify.partition import Plan

_SMALL = 1024
_SAMPLES = 16
_EMPTY = (1 << 20, -(1 << 20))


def bucket(kv_len: int) -> int:
    """The capacity that a length is compiled for: a power of two, at least one block of keys."""
    return max(contract.BLOCK, 1 << max(0, kv_len - 1).bit_length())


@dataclass(frozen=True)
class Tables:
    """A plan as the compiled function reads it.

    Attributes:
        tokens: int32 ``[*levels, step, 16]``, -1 pads.
        exists: bool tables by level.
        aligned, consecutive: see `verify.engine.inputs.Arrays`.
    """

    tokens: NDArray[np.int32]
    exists: Mapping[str, NDArray[np.bool_]]
    aligned: bool
    consecutive: bool


def shape_of(plan: Plan) -> tuple[int, ...]:
    """The unpadded table shape of a plan: levels, and steps of 16 tokens."""
    return (*plan.tokens.shape[:-1], -(-plan.tokens.shape[-1] // LANES))


def tables(plan: Plan, shape: tuple[int, ...]) -> Tables:
    """The tables of ``plan``, padded to ``shape`` (at least `shape_of`)."""
    inner = plan.tokens.shape[-1]
    tokens = np.full((*shape, LANES), -1, np.int32)
    flat = tokens.reshape(*shape[:-1], shape[-1] * LANES)
    flat[(*(slice(n) for n in plan.tokens.shape[:-1]), slice(inner))] = plan.tokens
    first, live = tokens[..., :1], tokens >= 0
    consecutive = bool(np.all(~live | (tokens == first + np.arange(LANES, dtype=np.int32))))
    consecutive = consecutive and bool(np.all(live[..., :-1] >= live[..., 1:]))
    aligned = consecutive and bool(np.all((first[..., 0] < 0) | (first[..., 0] % LANES == 0)))
    exists: dict[str, NDArray[np.bool_]] = {}
    for i, level in enumerate(plan.levels):
        padded = np.zeros(shape[: i + 1], np.bool_)
        own = plan.exists[level]
        padded[tuple(slice(n) for n in own.shape)] = own
        exists[level] = padded
    return Tables(tokens, exists, aligned, consecutive)


class Buckets:
    """Padded table shapes by bucket, so that one compilation serves every length of a bucket.

    The shape of a bucket is the largest of a sample of its lengths; a plan that still exceeds it makes it grow.
    """

    def __init__(self) -> None:
        self._shapes: dict[Any, tuple[int, ...]] = {}

    def shape(self, key: Any, plan: Plan, plan_at: Callable[[int], Plan]) -> tuple[int, ...]:
        """A padded shape for ``plan``.

        Args:
            key: everything that decides plans but their length.
            plan: the plan to fit.
            plan_at: the plan of another length; errors there are skipped.
        """
        capacity = bucket(plan.kv_len)
        own = shape_of(plan)
        key = (key, capacity, plan.levels)
        known = self._shapes.get(key)
        if known is None:
            known = tuple(_round_up(n) for n in own) if capacity <= _SMALL else self._sampled(own, capacity, plan_at)
        if any(n > m for n, m in zip(own, known, strict=True)):
            known = tuple(max(_round_up(n), m) for n, m in zip(own, known, strict=True))
        self._shapes[key] = known
        return known

    def _sampled(self, own: tuple[int, ...], capacity: int, plan_at: Callable[[int], Plan]) -> tuple[int, ...]:
        best = own
        for i in range(_SAMPLES + 1):
            length = capacity // 2 + 1 + i * (capacity // 2 - 1) // _SAMPLES
            try:
                other = shape_of(plan_at(length))
            except UlpscopeError:
                continue
            if len(other) == len(best):
                best = tuple(max(a, b) for a, b in zip(best, other, strict=True))
        return best


def _round_up(n: int) -> int:
    return 1 << max(0, n - 1).bit_length() if n <= 16 else -(-n // 16) * 16


def exponents(words: NDArray[Any], fmt: Format) -> tuple[np.int32, np.int32]:
    """Smallest and largest exponent of the nonzero values of a stored array (subnormals by their own exponent)."""
    bits = words.reshape(-1).view(f"u{fmt.bits // 8}")
    magnitude = bits & bits.dtype.type((1 << (fmt.bits - 1)) - 1)
    nonzero = magnitude[magnitude != 0] if (magnitude == 0).any() else magnitude
    if nonzero.size == 0:
        return np.int32(_EMPTY[0]), np.int32(_EMPTY[1])
    ends: list[np.int32] = []
    for word in (int(nonzero.min()), int(nonzero.max())):
        field = word >> (fmt.p - 1)
        exponent = field - 1 + fmt.emin if field else word.bit_length() - 1 + fmt.quantum
        ends.append(np.int32(exponent))
    return ends[0], ends[1]


@dataclass(frozen=True)
class KV:
    """K and V laid out once for the kernels, for every partition and platform and any shorter length.

    Attributes:
        k, v: as `contract.prepare_keys` and `contract.prepare_values` make them; ``k`` is None for ready scores.
        formats: formats of the values.
        ranges: exponent ranges of the values.
        dim: columns of V.
        capacity: tokens there is room for.
    """

    k: Any
    v: Any
    formats: Mapping[str, Format]
    ranges: Mapping[str, tuple[np.int32, np.int32]]
    dim: int
    capacity: int


def prepare(k: NDArray[Any] | None, v: NDArray[Any], formats: Mapping[str, Format], capacity: int | None = None) -> KV:
    """Lay K ``[token, kv_head, depth]`` and V ``[token, kv_head, dim]`` out; see `KV`."""
    import jax

    capacity = bucket(v.shape[0]) if capacity is None else capacity
    ranges = {"v": exponents(v, formats["v"])}
    keys = None
    if k is not None:
        ranges["k"] = exponents(k, formats["k"])
        keys = jax.device_put(contract.prepare_keys(k, capacity))
    return KV(
        k=keys,
        v=jax.device_put(contract.prepare_values(v, capacity)),
        formats={n: formats[n] for n in ("k", "v") if n in formats},
        ranges=ranges,
        dim=v.shape[2],
        capacity=capacity,
    )
