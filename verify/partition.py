"""Who owns which token, in what order: integers only, shared by both walkers.

A plan is one padded index array. Its axes are the levels, outermost first, and then the tokens of the innermost
level, all in visiting order; -1 pads. Everything is vectorised over tokens: a plan of 27,525 tokens takes
well under a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specs.bind import bind
from specs.context import Value, make_context
from specs.errors import InputError, SpecError, UnsupportedError
from specs.nodes import LevelRule, Num
from specs.program import Program

if TYPE_CHECKING:
    from specs import Platform, Spec

MAX_PADDED = 1 << 27


@dataclass(frozen=True)
class Group:
    """One piece of the outermost level: its number and its tokens in visiting order (int64)."""

    index: int
    tokens: NDArray[np.int64]

    @property
    def span(self) -> tuple[int, int]:
        """The smallest token and one past the largest; (0, 0) when the group owns none."""
        return (int(self.tokens.min()), int(self.tokens.max()) + 1) if self.tokens.size else (0, 0)


@dataclass(frozen=True)
class Plan:
    """The partition of one sequence.

    Attributes:
        program: the typed program that the partition belongs to.
        context: every integer (and word) that formulas could see.
        levels: names of the levels, outermost first.
        tokens: int32 ``[*levels, inner]``, token numbers in visiting order, -1 where there is none.
        exists: for each level, bool ``[*levels up to it]``: whether that piece is visited at all.
    """

    program: Program
    context: Mapping[str, Value]
    levels: tuple[str, ...]
    tokens: NDArray[np.int32]
    exists: Mapping[str, NDArray[np.bool_]]

    @property
    def kv_len(self) -> int:
        """Tokens of the sequence."""
        return int(self.context["kv_len"])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The pieces of the outermost level that are visited; the whole sequence if there is no level."""
        if not self.levels:
            return (Group(0, np.arange(self.kv_len)),) if self.kv_len else ()
        outer = self.exists[self.levels[0]]
        flat = self.tokens.reshape(self.tokens.shape[0], -1)
        return tuple(Group(int(i), flat[i][flat[i] >= 0].astype(np.int64)) for i in np.flatnonzero(outer))

    @property
    def count(self) -> int:
        """How many groups are visited (empty ones only where the spec keeps them)."""
        if not self.levels:
            return int(self.kv_len > 0)
        return int(self.exists[self.levels[0]].sum())

    @property
    def span(self) -> int:
        """Tokens of the largest group."""
        flat = self.tokens.reshape(self.tokens.shape[0] if self.levels else 1, -1)
        return int((flat >= 0).sum(axis=-1).max(initial=0))

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return self.count


def plan(spec: Spec, platform: Platform, *, options: Mapping[str, Any] | None = None, **context: Any) -> Plan:
    """The partition that ``spec`` makes of one sequence on ``platform``.

    Args:
        spec: a loaded spec.
        platform: a loaded platform.
        options: values for the spec's ``[options]``.
        **context: integers of the shape, at least ``kv_len``; see `specs.context.CONTEXT`.

    Raises:
        InputError: a name is unknown, missing or out of range.
        SpecError: a formula of the spec fails for this shape.
    """
    given = {**platform.context, **context}
    values = make_context(given, place=f"{spec.name} on {platform.name}")
    program = bind(spec, values, options, dot_products=platform.dot_products)
    return plan_program(program, values)


def plan_ragged(
    spec: Spec,
    platform: Platform,
    *,
    kv_lens: Sequence[int],
    options: Mapping[str, Any] | None = None,
    **context: Any,
) -> tuple[Plan, ...]:
    """One plan for each sequence of a ragged batch; formulas see the batch, its lengths and the largest of them.

    Raises:
        InputError: ``kv_lens`` is empty, or as `plan`.
    """
    if len(kv_lens) == 0:
        raise InputError(
            "no sequence in the batch", place="kv_lens", remedy="give one length for each sequence"
        )
    shared = {"max_kv_len": max(kv_lens), "kv_capacity": max(kv_lens), **context}
    if "batch" not in shared:  # a larger batch has lengths that are not known
        shared["kv_lens"] = kv_lens
    return tuple(plan(spec, platform, options=options, **{**shared, "kv_len": n}) for n in kv_lens)


def plan_program(program: Program, context: Mapping[str, Value]) -> Plan:
    """The partition of a bound program: see `plan`."""
    kv_len = int(context["kv_len"])
    tokens = np.arange(kv_len, dtype=np.int32) if kv_len else np.full(1, -1, dtype=np.int32)
    lengths = np.array(kv_len, dtype=np.int64)
    exists: dict[str, NDArray[np.bool_]] = {}
    alive = np.array(True)
    for level in program.levels:
        _cover(f"{program.spec}: level '{level.name}'", level.rule, int(lengths.max(initial=0)))
        tokens, lengths, kept = _apply(level.rule, tokens, lengths)
        alive = np.broadcast_to(alive[..., None], lengths.shape)
        if not kept:
            alive = alive & (lengths > 0)
        exists[level.name] = np.ascontiguousarray(alive)
    return Plan(program, dict(context), program.level_names, tokens, exists)


def _cover(place: str, rule: LevelRule, longest: int) -> None:
    """Refuse ``pieces`` of a whole so short that tokens past it would have no owner."""
    if rule.kind != "pieces" or rule.of is None:
        return
    pieces, unit, whole = max(1, _int(rule.args[0])), _int(rule.unit), _int(rule.of)
    units = -(-whole // unit)
    skip = min(_skip(rule), units)
    covered = (skip + pieces * -(-(units - skip) // pieces)) * unit
    if covered < longest:
        raise SpecError(
            f"pieces(of={whole}) covers {covered} of {longest} tokens",
            place=place,
            remedy="cut a whole that is at least as long as the sequence, such as max_kv_len",
        )


def _int(node: object) -> int:
    assert isinstance(node, Num)
    return int(node.text)


def _skip(rule: LevelRule) -> int:
    return 0 if rule.skip is None else _int(rule.skip)


def _apply(
    rule: LevelRule, tokens: NDArray[np.int32], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], bool]:
    """Cut each sequence (last axis of ``tokens``, ``lengths`` live at its front) by one rule."""
    size = tokens.shape[-1]
    if rule.kind == "tiles":
        width = _int(rule.args[0])
        count = -(-size // width)
        _bound(count * width * lengths.size)
        of_piece = -(-lengths // width)
        visit = np.arange(count)
        tile = (
            np.where(visit < of_piece[..., None], of_piece[..., None] - 1 - visit, visit)
            if rule.desc
            else visit
        )
        where = np.asarray(tile)[..., None] * width + np.arange(width)
    elif rule.kind == "pieces":
        pieces, unit = max(1, _int(rule.args[0])), _int(rule.unit)
        whole = lengths if rule.of is None else np.full_like(lengths, _int(rule.of))
        units = -(-whole // unit)
        skip = np.minimum(_skip(rule), units)
        _bound(pieces * lengths.size)
        width = -(-(units - skip) // pieces) * unit
        edge = skip[..., None] * unit + np.arange(pieces + 1) * width[..., None]
        edge[..., 0] = 0
        widest = int(np.diff(edge).max(initial=0))
        _bound(pieces * max(1, widest) * lengths.size)
        where = edge[..., :-1, None] + np.arange(widest)
        where = np.where(where < edge[..., 1:, None], where, size)
    else:
        pieces, unit = max(1, _int(rule.args[0])), _int(rule.unit)
        units = -(-size // unit)
        rounds = -(-units // pieces)
        _bound(pieces * max(1, rounds) * unit * lengths.size)
        piece = (np.arange(pieces) + _skip(rule)) % pieces
        turn = np.arange(rounds)[None, :, None] * pieces + piece[:, None, None]
        where = (turn * unit + np.arange(unit)).reshape(pieces, rounds * unit)
    if where.shape[-1] == 0:
        where = np.full((*where.shape[:-1], 1), size)
    where = np.broadcast_to(where, (*lengths.shape, *where.shape[-2:]))
    live = where < lengths[..., None, None]
    picked = np.take_along_axis(tokens[..., None, :], np.minimum(where, size - 1), axis=-1)
    cut = np.where(live, picked, np.int32(-1))
    counts = live.sum(axis=-1)
    if not rule.keep_empty:
        most = int(max(1, ((counts > 0) * np.arange(1, counts.shape[-1] + 1)).max(initial=0)))
        cut, counts = cut[..., :most, :], counts[..., :most]
    longest = int(max(1, counts.max(initial=0)))
    return np.ascontiguousarray(cut[..., :longest]), counts, rule.keep_empty


def _bound(size: int) -> None:
    if size > MAX_PADDED:
        raise UnsupportedError(
            f"the partition needs {size} padded slots; the limit is {MAX_PADDED}",
            place="plan",
            remedy="use fewer or larger pieces, or a shorter sequence",
        )
