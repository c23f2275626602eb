"""A partition cut down to the tokens that matter.

Where every reduction is in sequence, a token of weight zero changes no partial sum: a search over a handful of tokens
of a long sequence may leave the others out and put them back at the end. What is found so is evaluated whole before
it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from specs.nodes import At, Name, Owns, Pos, Reduce
from specs.program import Program
from verify.partition import Plan

_IN_SEQUENCE = ("seq", "exact", "any")
_POSITIONS = ("key_index", "query_index")


def compactable(program: Program) -> bool:
    """Whether leaving tokens of weight zero out keeps every sum: no tree, view or line depends on positions."""
    if program.views:
        return False
    for site in program.sites.values():
        for node in site.expr.walk():
            if isinstance(node, At | Pos | Owns) or (isinstance(node, Name) and node.id in _POSITIONS):
                return False
            if isinstance(node, Reduce) and node.tree is not None and node.tree.kind not in _IN_SEQUENCE:
                return False
    return True


def compact(plan: Plan, support: NDArray[np.int64]) -> Plan:
    """``plan`` with the tokens of ``support`` alone, numbered anew in ascending order; empty pieces are left out.

    Args:
        plan: a partition.
        support: int64, ascending token numbers, at least one.
    """
    if not plan.levels:
        tokens = np.arange(len(support), dtype=np.int32)
        return Plan(plan.program, {**plan.context, "kv_len": len(support)}, (), tokens, {})
    number = np.full(plan.kv_len + 1, -1, dtype=np.int32)
    number[support] = np.arange(len(support), dtype=np.int32)
    tokens = number[plan.tokens]  # -1, the padding, reads the last entry, which is -1
    for axis in range(tokens.ndim - 1):
        others = tuple(i for i in range(tokens.ndim) if i != axis)
        tokens = np.compress((tokens >= 0).any(axis=others), tokens, axis=axis)
    live = tokens >= 0
    # Stable: live tokens first, in the order of their visit; pieces that stand first keep their places.
    order = np.argsort(~live, axis=-1, kind="stable")
    tokens = np.take_along_axis(tokens, order, axis=-1)
    for axis in range(tokens.ndim - 2, 0, -1):
        empty = ~(tokens >= 0).any(axis=tuple(range(axis + 1, tokens.ndim)))
        order = np.argsort(empty, axis=-1, kind="stable")
        tokens = np.take_along_axis(
            tokens, order.reshape(*order.shape, *[1] * (tokens.ndim - axis - 1)), axis=axis
        )
    longest = int((tokens >= 0).sum(axis=-1).max())
    tokens = np.ascontiguousarray(tokens[..., :longest])
    exists = {
        level: np.asarray((tokens >= 0).any(axis=tuple(range(i + 1, tokens.ndim))))
        for i, level in enumerate(plan.levels)
    }
    return Plan(plan.program, {**plan.context, "kv_len": len(support)}, plan.levels, tokens, exists)


@dataclass(frozen=True, eq=False)
class Geometry:
    """Which piece of its outermost level each side gives a token to, and when it visits it.

    Attributes:
        piece, rank: int32 ``[side, token]``. The piece of a token before the window is `UNSEEN`.
    """

    UNSEEN: ClassVar[int] = -1

    piece: NDArray[np.int32]
    rank: NDArray[np.int32]

    @staticmethod
    def of(plans: Sequence[Plan]) -> Geometry:
        """The geometry of some plans of one length."""
        count = plans[0].kv_len
        piece = np.zeros((len(plans), count), np.int32)
        rank = np.zeros((len(plans), count), np.int32)
        for side, plan in enumerate(plans):
            flat = plan.tokens.reshape(plan.tokens.shape[0] if plan.levels else 1, -1)
            where, at = np.nonzero(flat >= 0)
            piece[side, flat[where, at]] = where
            rank[side, flat[where, at]] = at
        return Geometry(piece, rank)
