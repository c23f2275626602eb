"""``at(x, AXIS=index)`` and ``owns(LEVEL)``: values taken from another position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from specs.errors import SpecError, UnsupportedError
from specs.nodes import At
from specs.program import TOKEN
from verify.engine.values import LANE, STEP, Val

if TYPE_CHECKING:
    from verify.engine.evaluate import Evaluator, Frame


class Gathers:
    """Evaluates the gathers of one `Evaluator`."""

    def __init__(self, walker: Evaluator) -> None:
        self.walker = walker
        self.axes = walker.axes

    def at(self, n: At, value: Val, frame: Frame | None) -> Val:
        """``value`` with each axis of ``n.moves`` replaced by the position that its index names."""
        for axis, index in n.moves:
            if axis == TOKEN or (frame is not None and axis in frame.cut):
                raise UnsupportedError(
                    f"at({axis}=...) along an axis that the loop walks",
                    place=self.walker.program.spec,
                    remedy='the scalar oracle may have it (backend="oracle")',
                )
            spot = self.walker.positions.integer(index, frame)
            self._check(axis, spot)
            value = self._take(value, axis, spot)
        return value

    def _check(self, axis: str, spot: Val) -> None:
        """Refuse positions that no axis has; levels are padded here, so what they have is not known."""
        if axis in self.walker.program.level_names or not isinstance(spot.data, np.ndarray):
            return
        size, where = self.axes.sizes[axis], np.asarray(spot.data)
        wrong = where[(where < 0) | (where >= size)]
        if wrong.size:
            raise SpecError(
                f"at({axis}={int(wrong[0])}) reads where no value stands",
                place=self.walker.program.spec,
                remedy=f"{axis} has the positions 0 to {size - 1}",
            )

    def _take(self, value: Val, axis: str, index: Val) -> Val:
        if axis not in value.axes:  # the same everywhere along it
            return value
        others = tuple(a for a in value.axes if a != axis)
        size = value.data.shape[value.axes.index(axis)]
        where: Any = jnp.clip(jnp.asarray(index.data), 0, size - 1)
        if not set(index.axes) & set(others):
            moved = jnp.moveaxis(value.data, value.axes.index(axis), 0)
            picked = jnp.take(moved, where, axis=0)
            return self._ordered(picked, (*index.axes, *others))
        axes = self.axes.union(index.axes, others)
        last = jnp.moveaxis(value.data, value.axes.index(axis), -1)
        own = dict(zip(others, last.shape, strict=False))
        last = last.reshape(*(own.get(a, 1) for a in axes), size)
        spot = self.axes.align(Val(where, index.axes), axes)[..., None]
        shape = [max(a, b) for a, b in zip(last.shape[:-1], spot.shape[:-1], strict=True)]
        last = jnp.broadcast_to(last, (*shape, size))
        spot = jnp.broadcast_to(spot, (*shape, 1))
        return Val(jnp.take_along_axis(last, spot, axis=-1)[..., 0], axes)

    def _ordered(self, data: Any, axes: tuple[str, ...]) -> Val:
        wanted = self.axes.union(axes)
        return Val(jnp.transpose(data, [axes.index(a) for a in wanted]), wanted)

    def owns(self, level: str, frame: Frame | None) -> Val:
        """Whether each piece of ``level`` holds any token."""
        arrays, names = self.walker.arrays, self.walker.program.level_names
        around = names[: names.index(level) + 1]
        inner = tuple(i for i, a in enumerate((*names, STEP, LANE)) if a not in around)
        return self.walker.cut(Val(jnp.any(arrays.tokens >= 0, axis=inner), around), frame)
