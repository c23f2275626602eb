"""The tree of the spec language that a reduction has, composed of what threads, lanes and warps do."""

from __future__ import annotations

from dataclasses import dataclass

from verify.lower.layout import Spread
from verify.lower.trees import Found, named


@dataclass(frozen=True)
class _Stage:
    """Joins the places whose numbers differ in ``strides``."""

    strides: tuple[int, ...]
    tree: str


def compose(found: Found, where: Spread) -> tuple[str | None, str]:
    """(the tree, why there is none): ``chunks(8, chunks(2, seq(), butterfly(2, 1)), butterfly())`` and the like."""
    if found.unread or found.warps is None:
        return None, found.unread
    inner = named(found.tree, found.terms)
    if inner is None:
        return None, "these brackets in a thread have no name in the spec language"
    stages: list[_Stage] = []
    if found.terms > 1:
        stages.append(_Stage(tuple(sorted(s for s in where.registers if s)), inner))
    lanes = along(found.lanes, where.lanes)
    warps = along(found.warps, where.warps)
    if lanes is None or warps is None:
        return None, "a shuffle joins places that the layout does not hold apart"
    stages += [_Stage(s, butterfly(s, spelled=s is lanes)) for s in (lanes, warps) if s]
    if not stages:
        return "", ""
    for parts in (stages, _merged(stages)):
        tree = _nest(parts)
        if tree is not None:
            return tree, ""
    return (
        None,
        "these brackets have no name in the spec language: places of threads, lanes and warps interleave",
    )


def along(masks: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides along the axis of lane masks or warp strides; None where one joins equal places."""
    out: list[int] = []
    for mask in masks:
        apart = 0
        for bit, stride in enumerate(strides):
            apart ^= stride if mask >> bit & 1 else 0
        if mask <= 0 or mask >> len(strides) or apart.bit_count() != 1:
            return None
        out.append(apart)
    return tuple(out)


def _merged(stages: list[_Stage]) -> list[_Stage]:
    """Lanes and warps as one butterfly."""
    rest = [s for s in stages if not s.tree.startswith("butterfly")]
    strides = tuple(x for s in stages if s.tree.startswith("butterfly") for x in s.strides)
    return [*rest, _Stage(strides, butterfly(strides))] if strides else rest


def butterfly(strides: tuple[int, ...], *, spelled: bool = False) -> str:
    """``butterfly`` over a stage, numbered without gaps; without strides, but ``spelled``, where they are n/2, ..., 1."""
    order = sorted(strides)
    compact = [1 << order.index(s) for s in strides]
    usual = compact == sorted(compact, reverse=True)
    return "butterfly()" if usual and not spelled else f"butterfly({', '.join(map(str, compact))})"


def _nest(stages: list[_Stage]) -> str | None:
    tree, done = stages[0].tree, stages[0].strides
    for stage in stages[1:]:
        if max(done) < min(stage.strides):
            tree = f"chunks({1 << len(done)}, {tree}, {stage.tree})"
        elif min(done) > max(stage.strides):
            tree = f"lanes({1 << len(stage.strides)}, {tree}, {stage.tree})"
        else:
            return None
        done = (*done, *stage.strides)
    return tree
