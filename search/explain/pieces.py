"""What a value stands for: a token, the tokens of a group, the tokens that a state has seen, or the row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.explain.flat import reads
from specs.program import TOKEN, Program
from verify.partition import Plan


@dataclass(frozen=True)
class Pieces:
    """The pieces of one site.

    Attributes:
        kind: ``token``, ``group`` or ``row``.
        levels: the nesting levels that it has, outermost first.
        shape: sizes of these levels, and of ``token`` where it is of tokens.
        rest: its other axes, in order.
        keys: by what a piece stands for, its number along the flattened ``shape``.
    """

    kind: str
    levels: tuple[str, ...]
    shape: tuple[int, ...]
    rest: tuple[str, ...]
    keys: dict[Any, int]

    def index(self, number: int) -> dict[str, int]:
        """By level (and ``token``) where a piece is."""
        axes = (*self.levels, TOKEN) if self.kind == TOKEN else self.levels
        return dict(zip(axes, (int(i) for i in np.unravel_index(number, self.shape)), strict=True))


def pieces_of(program: Program, plan: Plan, name: str) -> Pieces:
    """The pieces of a site in a partition; no keys where levels are left out in between."""
    axes = tuple(a for a in program.axes if a in program.sites[name].type.axes)
    levels = tuple(a for a in axes if a in program.level_names)
    kind = TOKEN if TOKEN in axes else "group" if levels else "row"
    nest = len(levels) + (TOKEN in axes)
    if kind == "row":
        return Pieces(kind, levels, (), axes, {(): 0})
    names = program.level_names
    if kind == TOKEN:
        whole = len(levels) == len(names)
        numbers = np.flatnonzero(plan.tokens.reshape(-1) >= 0) if whole else np.zeros(0, np.int64)
        tokens = plan.tokens.reshape(-1)[numbers]
        keys: dict[Any, int] = dict(zip(tokens.tolist(), numbers.tolist(), strict=True))
        return Pieces(kind, levels, plan.tokens.shape, axes[nest:], keys)
    shape = plan.exists[levels[-1]].shape
    whole = levels == names[: len(levels)]
    return Pieces(kind, levels, shape, axes[nest:], _groups(program, plan, name, levels[-1]) if whole else {})


def _groups(program: Program, plan: Plan, name: str, level: str) -> dict[Any, int]:
    exists = plan.exists[level]
    tokens = plan.tokens.reshape(*exists.shape, -1)
    folded = _folded_levels(program, name)
    found: dict[Any, int] = {}
    seen: dict[tuple[int, ...], NDArray[np.bool_]] = {}
    for number, index in enumerate(np.ndindex(*exists.shape)):
        if not exists[index]:
            continue
        own = tokens[index]
        mask = np.zeros(plan.kv_len, np.bool_)
        mask[own[own >= 0]] = True
        key: Any = _digest(mask)
        if folded is not None:
            scope = index[:folded]
            seen[scope] = seen.get(scope, np.zeros(plan.kv_len, np.bool_)) | mask
            key = (() if name in program.states else key, _digest(seen[scope]))
        found.setdefault(key, number)
    return found


def _digest(mask: NDArray[np.bool_]) -> bytes:
    return hashlib.blake2b(np.packbits(mask).tobytes(), digest_size=16).digest()


def _folded_levels(program: Program, name: str) -> int | None:
    """How many levels enclose the state that a line of a fold depends on; None: it depends on none."""
    around = program.levels_to(program.sites[name].section)
    depths = [
        len(program.levels_to(state.scope))
        for state_name, state in program.states.items()
        if state_name in needed_sites(program, name) and set(state.levels) & set(around)
    ]
    return min(depths) if depths else None


def needed_sites(program: Program, start: str = "output") -> set[str]:
    """The sites that ``start`` depends on, and itself."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found and name in program.sites:
            found.add(name)
            todo += reads(program, name)
    return found
