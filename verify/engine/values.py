"""Arrays with named axes, in one canonical physical order.

The order is: levels, `STEP`, `HEAD`, `ROW`, `LANE`, views, depth, dim. The axis ``token`` of a program is two
physical axes, steps of 16 tokens and the 16 lanes of a step, so that a step of all rows is contiguous in
memory: the order in which the contraction kernels read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from specs.program import DEPTH, DIM, TOKEN

Array = jax.Array
STEP, HEAD, ROW_AXIS, LANE = "step", "head", "row", "lane16"
LANES = 16


@dataclass(frozen=True)
class Val:
    """``data`` has one dimension for each of ``axes``, in canonical order; a dimension may have size 1."""

    data: Array
    axes: tuple[str, ...] = ()


class Axes:
    """The canonical order and the sizes of all axes of one compiled program."""

    def __init__(self, levels: Sequence[str], views: Iterable[str], sizes: Mapping[str, int]) -> None:
        order = (*levels, STEP, HEAD, ROW_AXIS, LANE, *views, DEPTH, DIM)
        self.order = {axis: i for i, axis in enumerate(order)}
        self.sizes = dict(sizes)

    def physical(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Program axes as physical axes (``token`` is two of them), in canonical order."""
        found = {x for a in axes for x in ((STEP, LANE) if a == TOKEN else (a,))}
        return tuple(sorted(found, key=self.order.__getitem__))

    def union(self, *groups: Iterable[str]) -> tuple[str, ...]:
        """All axes of the groups, in canonical order."""
        return tuple(sorted({a for g in groups for a in g}, key=self.order.__getitem__))

    def align(self, val: Val, axes: Sequence[str]) -> Array:
        """The data of ``val`` with a dimension for each of ``axes`` (a superset of its own), 1 where it has none."""
        if val.axes == tuple(axes):
            return val.data
        own = dict(zip(val.axes, val.data.shape, strict=True))
        return val.data.reshape([own.get(a, 1) for a in axes])

    def together(self, *vals: Val) -> tuple[tuple[str, ...], list[Array]]:
        """The union of the axes of ``vals``, and their data aligned to it."""
        axes = self.union(*(v.axes for v in vals))
        return axes, [self.align(v, axes) for v in vals]

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        """The full sizes of ``axes``."""
        return tuple(self.sizes[a] for a in axes)

    def full(self, val: Val, axes: Sequence[str]) -> Val:
        """``val`` broadcast to the full size of ``axes``."""
        return Val(jnp.broadcast_to(self.align(val, axes), self.shape(axes)), tuple(axes))

    def front(self, val: Val, over: Sequence[str]) -> Val:
        """``over`` flattened, in order and at full size, as one leading dimension; ``axes`` names only the rest."""
        axes = self.union(val.axes, over)
        data = self.align(val, axes)
        shape = [self.sizes[a] if a in over else n for a, n in zip(axes, data.shape, strict=True)]
        data = jnp.broadcast_to(data, shape)
        first = [i for i, a in enumerate(axes) if a in over]
        others = [i for i in range(data.ndim) if i not in first]
        moved = jnp.transpose(data, (*first, *others))
        return Val(moved.reshape(-1, *moved.shape[len(first) :]), tuple(a for a in axes if a not in over))
