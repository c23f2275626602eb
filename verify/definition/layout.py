"""Where a value can stand: which pieces, tokens and colours exist, in visiting order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.program import DEPTH, DIM, TOKEN, Program, State
from verify.partition import Plan

#: One slot for each axis: its number there, or None. One slot more holds the first term inside ``first=``.
Index = list[Any]
Point = tuple[int, ...]
#: A compiled expression.
Read = Callable[[Index], Any]


class Layout:
    """The existing positions of a plan, addressed by slots of an index: one slot for each of `Program.axes`.

    Args:
        program: a typed program.
        plan: its partition.
        depth: elements of q and k.
        dim: output columns.
    """

    def __init__(self, program: Program, plan: Plan, depth: int, dim: int) -> None:
        self.program = program
        self.axes = program.axes
        self.slot = {axis: i for i, axis in enumerate(self.axes)}
        self.levels = program.level_names
        self.size = {DEPTH: depth, DIM: dim, TOKEN: plan.tokens.shape[-1]}
        self.size |= {name: plan.tokens.shape[i] for i, name in enumerate(self.levels)}
        self.size |= {name: view.size for name, view in program.views.items()}
        self.tokens = plan.tokens
        self._exists: dict[str, NDArray[np.bool_]] = {**plan.exists, TOKEN: plan.tokens >= 0}
        inner = tuple(range(len(self.levels), plan.tokens.ndim))
        self._owned: dict[str, NDArray[np.bool_]] = {}
        for i, name in enumerate(self.levels):
            self._owned[name] = np.asarray(
                self._exists[TOKEN].any(axis=(*range(i + 1, len(self.levels)), *inner))
            )

    def slots(self, axes: Sequence[str] | frozenset[str]) -> list[int]:
        """The slots of ``axes`` in canonical order."""
        return sorted(self.slot[axis] for axis in axes)

    def owns(self, level: str, index: Index) -> bool:
        """Whether the piece of ``level`` at ``index`` has any token."""
        return bool(self._owned[level][tuple(index[self.slot[a]] for a in self.around(level))])

    def deepest(self, axes: Sequence[str] | frozenset[str]) -> str | None:
        """The innermost of the nesting axes among ``axes``; tokens are inside all levels."""
        return next((a for a in (TOKEN, *reversed(self.levels)) if a in axes), None)

    def around(self, axis: str | None) -> tuple[str, ...]:
        """The nesting axes down to and with ``axis``, outermost first."""
        chain = (*self.levels, TOKEN)
        return () if axis is None else chain[: chain.index(axis) + 1]

    def exists(self, axes: frozenset[str], index: Index) -> bool:
        """Whether a value with these axes stands at ``index``."""
        for axis in axes:
            i = index[self.slot[axis]]
            if i is None or not 0 <= i < self.size[axis]:
                return False
        chain = self.around(self.deepest(axes))
        return not chain or bool(self._live(chain, index).any())

    def points(self, over: Sequence[str], axes: frozenset[str], index: Index) -> list[Point]:
        """Positions along ``over`` at which a value with ``axes`` exists, in visiting order.

        Args:
            over: the axes to run over, in canonical order.
            axes: the axes of the value; those not in ``over`` are fixed by ``index``.
            index: where the other axes stand. A level that stands nowhere may be anywhere: a position counts
                that exists in some piece of it.

        Returns:
            one tuple for each position, its numbers in the order of ``over``.
        """
        chain = self.around(self.deepest(axes | set(over)))
        nested: list[Point] = [()]
        if any(a in chain for a in over):
            there = index.copy()
            for axis in over:
                there[self.slot[axis]] = None
            live = self._live(chain, there)
            free = [a for a in chain if there[self.slot[a]] is None]
            live = live.any(axis=tuple(i for i, a in enumerate(free) if a not in over))
            nested = list(map(tuple, np.argwhere(live).tolist()))
        rest = [range(self.size[a]) for a in over if a not in chain]
        return [(*p, *q) for p, q in product(nested, product(*rest))] if rest else nested

    def steps(self, state: State, index: Index) -> list[Point]:
        """The steps of the fold of ``state`` in the scope that ``index`` is in, in order."""
        return self.points(state.levels, frozenset(self.program.levels_to(state.section)), index)

    def _live(self, chain: Sequence[str], index: Index) -> NDArray[np.bool_]:
        """What exists of the innermost of ``chain``, with an axis for each that ``index`` leaves open."""
        where = tuple(slice(None) if index[self.slot[a]] is None else index[self.slot[a]] for a in chain)
        return np.asarray(self._exists[chain[-1]][where])


def getter(slots: Sequence[int]) -> Callable[[Index], Any]:
    """What identifies an index: its number in the one slot, or the tuple of its numbers."""
    return itemgetter(*slots) if slots else lambda index: ()


def tuple_getter(slots: Sequence[int]) -> Callable[[Index], Point]:
    """The numbers of an index in ``slots``, always as a tuple."""
    if len(slots) == 1:
        slot = slots[0]
        return lambda index: (index[slot],)
    return getter(slots)


def move(index: Index, slots: Sequence[int], point: Point) -> None:
    """Put the numbers of ``point`` into ``slots``."""
    for slot, i in zip(slots, point, strict=True):
        index[slot] = i
