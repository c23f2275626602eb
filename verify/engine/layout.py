"""Host side of the array engine: plans padded to buckets, inputs laid out for the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import UlpscopeError
from specs.formats import Format
from verify.engine import contract
from verify.engine.primitives import x64
from verify.engine.values import LANES
from verify.partition import Plan

_SMALL = 1024
_SAMPLES = 16
_WASTE = 2.5  # padded slots per slot in use, up to which a shape is used again
_EMPTY = (1 << 20, -(1 << 20))
_CHUNK = 1 << 22


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
    """Padded table shapes, so that few compilations serve every length and platform.

    The first plan of a bucket of lengths gets a shape of its own size; the next that does not fit gets the largest
    of a sample of the bucket's lengths, and so does the first where more are known to come. A shape that was made
    for another platform or length is used again where it fits without wasting too much.
    """

    def __init__(self) -> None:
        self._made: dict[Any, list[tuple[int, ...]]] = {}
        self._sampled: dict[Any, tuple[int, ...]] = {}

    def shape(
        self, structure: Any, key: Any, plan: Plan, plan_at: Callable[[int], Plan], *, more: bool
    ) -> tuple[int, ...]:
        """A padded shape for ``plan``.

        Args:
            structure: what compiled functions are shared by (the spec).
            key: everything else that decides plans but their length (platform, context, options).
            plan: the plan to fit.
            plan_at: the plan of another length; errors there are skipped.
            more: other lengths of the bucket are known to come.
        """
        capacity = bucket(plan.kv_len)
        made = self._made.setdefault((structure, capacity, plan.levels), [])
        own = shape_of(plan)
        fitting = [
            s
            for s in made
            if _fits(own, s) and math.prod(s) <= _WASTE * max(capacity // LANES, math.prod(own))
        ]
        if fitting:
            return min(fitting, key=math.prod)
        if not made and not more:
            made.append(own)
            return own
        sample = (structure, key, capacity, plan.levels)
        if sample not in self._sampled:
            self._sampled[sample] = self._sample(own, capacity // 2 + 1, capacity, plan_at)
        largest = self._sampled[sample]
        shape = tuple(_round_up(max(n, m)) for n, m in zip(own, largest, strict=True))
        made.append(shape)
        return shape

    def _sample(
        self, own: tuple[int, ...], first: int, last: int, plan_at: Callable[[int], Plan]
    ) -> tuple[int, ...]:
        best = own
        if last <= _SMALL:
            return best
        for i in range(_SAMPLES + 1):
            try:
                other = shape_of(plan_at(first + i * (last - first) // _SAMPLES))
            except UlpscopeError:
                continue
            if len(other) == len(best):
                best = tuple(max(a, b) for a, b in zip(best, other, strict=True))
        return best


def _fits(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(n <= m for n, m in zip(own, shape, strict=True))


def _round_up(n: int) -> int:
    """Up to 8 exactly, then in steps of an eighth of the power of two above."""
    step = max(1, (1 << max(0, n - 1).bit_length()) // 8)
    return -(-n // step) * step


def exponents(words: NDArray[Any], fmt: Format) -> tuple[np.int32, np.int32]:
    """Smallest and largest exponent of the nonzero values of a stored array (subnormals by their own exponent)."""
    bits = words.reshape(-1).view(f"u{fmt.bits // 8}")
    mask = bits.dtype.type((1 << (fmt.bits - 1)) - 1)
    smallest, largest = int(mask), 0
    for start in range(0, bits.size, _CHUNK):
        magnitude = bits[start : start + _CHUNK] & mask
        largest = max(largest, int(magnitude.max()))
        # zero wraps to the top, so that the minimum is that of the nonzero words
        smallest = min(smallest, int((magnitude - bits.dtype.type(1)).min()) + 1)
    if largest == 0:
        return np.int32(_EMPTY[0]), np.int32(_EMPTY[1])
    if not fmt.inf and largest == int(mask):  # the NaN of a format without infinities
        largest += 1
    ends: list[np.int32] = []
    for word in (smallest, largest):
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
    _cuts: dict[int, KV] = field(default_factory=dict[int, "KV"], repr=False, compare=False)

    def at(self, capacity: int) -> KV:
        """The first ``capacity`` tokens, cut once and kept: a shorter length does not pay for a longer one."""
        if capacity >= self.capacity:
            return self
        if capacity not in self._cuts:
            with x64():
                keys = None if self.k is None else self.k[: capacity // contract.BLOCK]
                values = self.v[: capacity + LANES]
            self._cuts[capacity] = replace(self, k=keys, v=values, capacity=capacity, _cuts={})
        return self._cuts[capacity]


def prepare(
    k: NDArray[Any] | None, v: NDArray[Any], formats: Mapping[str, Format], capacity: int | None = None
) -> KV:
    """Lay K ``[token, kv_head, depth]`` and V ``[token, kv_head, dim]`` out; see `KV`."""
    import jax

    capacity = bucket(v.shape[0]) if capacity is None else capacity
    ranges = {"v": exponents(v, formats["v"])}
    keys = None
    with x64():  # else f64 becomes f32 on the way
        if k is not None:
            ranges["k"] = exponents(k, formats["k"])
            keys = jax.device_put(contract.prepare_keys(k, capacity))
        values = jax.device_put(contract.prepare_values(v, capacity))
    return KV(
        k=keys,
        v=values,
        formats={n: formats[n] for n in ("k", "v") if n in formats},
        ranges=ranges,
        dim=v.shape[2],
        capacity=capacity,
    )
