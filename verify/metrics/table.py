"""The rows of a pair, side by side: what every summary by conversation, depth or stratum is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import Aligned, RunAlignment
from verify.metrics.health import LOGPROBS
from verify.metrics.plan import FullRows, Pair, Slot, ceiling_of
from verify.metrics.sweep import SideRows
from verify.metrics.topk import TOP_FIELDS, TopRows, compare_tops, keys_of
from verify.runs.manifest import Recording
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Floats, Ints, Top
from verify.runs.sequence import Sequence as Recorded

Groups = Sequence[dict[Slot, Recorded]]


@dataclass
class Table:
    """Comparable rows of a pair, ``[rows]`` each, NaN where something is not known.

    Attributes:
        names: conversations; ``groups`` the number of each row's.
        positions, depths, ranges: of each row; ``ranges`` "" where there is none.
        same_token: as in `Aligned`.
        logprob_a, logprob_b: natural log-probability of the token that followed.
        value_a, value_b: its value as recorded.
        odd: whether either of these is clamped, or a log-probability above 0: such rows have no distance.
        margin_a, margin_b: best value less the second.
        best_a, best_b: ``[rows, k]`` best tokens, negative where not known.
        ranks: larger rank of one run's best token in the other.
        tied: whether one run gives both best tokens one value.
        full: rows of the axis for rows that are full in both runs, else -1.
        lists: comparison of the most likely tokens, of ``list_rows``; None where there is none.
    """

    names: tuple[str, ...]
    groups: Ints
    positions: Ints
    depths: Ints
    ranges: NDArray[np.str_]
    same_token: NDArray[np.int8]
    logprob_a: Floats
    logprob_b: Floats
    value_a: Floats
    value_b: Floats
    odd: NDArray[np.bool_]
    margin_a: Floats
    margin_b: Floats
    best_a: Ints
    best_b: Ints
    ranks: Floats
    tied: NDArray[np.bool_]
    full: Ints
    lists: TopRows | None
    list_rows: Ints

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.groups)


@dataclass
class _Piece:
    table: dict[str, NDArray[Any]]
    lists: TopRows | None


def as_top(sequence: Recorded, side: SideRows | None, rows: Ints) -> Top | None:
    """The most likely tokens of a sequence: as recorded, or from its full rows (at ``rows`` of the axis)."""
    if sequence.top is not None or side is None or sequence.full is None:
        return sequence.top
    return Top(side.best[rows], side.best_values[rows], side.fields["lse"][rows])


def followed(
    sequence: Recorded, recording: Recording, side: SideRows | None, rows: Ints
) -> tuple[Floats, Floats]:
    """Value and natural log-probability of the tokens that followed, ``[rows of the sequence]``; NaN where not known.

    Args:
        sequence: the sequence.
        recording: of its run.
        side: what a pass kept of its full rows, or None.
        rows: its rows on the axis.
    """
    nothing = np.full(sequence.rows, np.nan)
    kind = recording.value_kind
    if sequence.full is not None and side is not None:
        value, lse = side.fields["chosen"][rows], side.fields["lse"][rows]
    else:
        value = sequence.chosen if sequence.chosen is not None else _listed(sequence)
        lse = None if sequence.top is None else sequence.top.lse
    if value is None:
        return nothing, nothing
    if lse is None:
        if kind not in LOGPROBS or (kind == "processed" and bool((value > 0).any())):
            return value, nothing
        lse = np.zeros(len(value))
    with np.errstate(invalid="ignore"):
        return value, np.where(_odd(value, recording), np.nan, value) - lse


def _odd(value: Floats, recording: Recording) -> NDArray[np.bool_]:
    """Which values are clamped, or above what they can be."""
    odd = np.zeros(value.shape, bool)
    ceiling = ceiling_of(recording)
    with np.errstate(invalid="ignore"):
        if recording.clamp_floor is not None:
            odd |= value <= recording.clamp_floor
        if ceiling is not None:
            odd |= value > ceiling
    return odd


def _listed(sequence: Recorded) -> Floats | None:
    """Values of the tokens that followed, from the lists of most likely ones."""
    top = sequence.top
    if top is None or not top.values.shape[1]:
        return None
    hit = (top.ids == sequence.tokens[:, None]) & (sequence.tokens != UNKNOWN)[:, None]
    at = hit.argmax(axis=1)
    found = np.take_along_axis(top.values, at[:, None], axis=1)[:, 0]
    return np.where(hit.any(axis=1), found, np.nan)


def make_table(
    runs: tuple[Run, Run], pair: Pair, alignment: RunAlignment, full: FullRows, groups: Groups
) -> Table:
    """The comparable rows of a pair, conversation by conversation."""
    names: dict[str, int] = {}
    pieces: list[_Piece] = []
    for aligned in alignment.sequences:
        if aligned.refused is None and aligned.comparable.any():
            number = names.setdefault(aligned.conversation, len(names))
            pieces.append(_piece(runs, pair, aligned, full, groups, number))
    width = max((p.table[key].shape[1] for p in pieces for key in ("best_a", "best_b")), default=1)
    for piece in pieces:
        for key in ("best_a", "best_b"):
            short = width - piece.table[key].shape[1]
            piece.table[key] = np.pad(piece.table[key], ((0, 0), (0, short)), constant_values=UNKNOWN)
    joined = (
        {key: np.concatenate([p.table[key] for p in pieces]) for key in pieces[0].table}
        if pieces
        else _empty()
    )
    starts = np.cumsum([0, *(len(p.table["groups"]) for p in pieces)])
    lists = [(p.lists, s) for p, s in zip(pieces, starts, strict=False) if p.lists is not None]
    merged: TopRows | None = None
    if lists:
        fields = {f: np.concatenate([x.fields[f] for x, _ in lists]) for f in TOP_FIELDS}
        merged = TopRows(fields, np.concatenate([x.differences for x, _ in lists]))
    at = [s + np.arange(len(x.fields["shared"])) for x, s in lists]
    return Table(
        tuple(names), lists=merged, list_rows=np.concatenate(at) if at else np.zeros(0, np.int64), **joined
    )  # type: ignore[arg-type]


def _empty() -> dict[str, NDArray[Any]]:
    ints, floats = np.zeros(0, np.int64), np.zeros(0)
    table: dict[str, NDArray[Any]] = dict.fromkeys(("groups", "positions", "depths", "full"), ints)
    table |= {f"{k}_{s}": floats for k in ("logprob", "value", "margin") for s in "ab"}
    table |= {f"best_{s}": np.zeros((0, 1), np.int64) for s in "ab"}
    return table | {
        "ranges": np.zeros(0, np.str_),
        "same_token": np.zeros(0, np.int8),
        "ranks": floats,
        "odd": np.zeros(0, bool),
        "tied": np.zeros(0, bool),
    }


def _piece(
    runs: tuple[Run, Run], pair: Pair, aligned: Aligned, full: FullRows, groups: Groups, number: int
) -> _Piece:
    use = aligned.comparable
    slot = aligned.conversation, aligned.ordinal
    a, b = groups[pair[0]][slot], groups[pair[1]][slot]
    n = int(use.sum())
    axis = full.axis.of(aligned)[use]
    both = pair in full.pairs and a.full is not None and b.full is not None
    sides = full.pair_sides[pair] if both else (full.sides.get(pair[0]), full.sides.get(pair[1]))
    picked = aligned.rows_a[use], aligned.rows_b[use]
    table: dict[str, NDArray[Any]] = {
        "groups": np.full(n, number, np.int64),
        "positions": aligned.positions[use],
        "depths": aligned.positions[use] if a.depths is None else a.depths[picked[0]],
        "ranges": np.array([""] * n if a.ranges is None else [a.ranges[i] for i in picked[0]], np.str_),
        "same_token": aligned.same_token[use],
        "full": axis if both else np.full(n, -1, np.int64),
        "odd": np.zeros(n, bool),
    }
    tops: list[Top | None] = []
    for letter, sequence, run, side, rows in zip("ab", (a, b), runs, sides, picked, strict=True):
        where = full.axis.at(slot, sequence.positions)
        value, log = followed(sequence, run.manifest.capture, side, where)
        table[f"value_{letter}"], table[f"logprob_{letter}"] = value[rows], log[rows]
        table["odd"] |= _odd(value[rows], run.manifest.capture)
        top = as_top(sequence, side, where)
        table[f"margin_{letter}"] = _margin(top)[rows] if top is not None else np.full(n, np.nan)
        tops.append(top)
    lists: TopRows | None = None
    table |= {f"best_{s}": np.full((n, 1), UNKNOWN, np.int64) for s in "ab"}
    table |= {"ranks": np.full(n, np.nan), "tied": np.zeros(n, bool)}
    if both:
        fields = full.pairs[pair].fields
        table["best_a"], table["best_b"] = (s.best[axis] for s in sides if s is not None)
        x, y = fields["a_best_in_b"][axis], fields["b_best_in_a"][axis]
        table["ranks"], table["tied"] = np.fmax(x, y), (x == 0) | (y == 0)
    elif tops[0] is not None and tops[1] is not None:
        lists = _lists(runs, (tops[0], tops[1]), picked, table)
        if lists is not None and a.full is None and b.full is None:
            _log_sums(runs, (tops[0], tops[1]), picked, lists)
    return _Piece(table, lists)


def _margin(top: Top) -> Floats:
    """Best value less the second of each row; NaN where there are fewer than two."""
    values = np.where(np.isnan(top.values), -np.inf, top.values)
    if values.shape[1] < 2:
        return np.full(len(values), np.nan)
    two = -np.partition(-values, 1, axis=1)[:, :2]
    with np.errstate(invalid="ignore"):
        margin = two[:, 0] - two[:, 1]
    return np.where(np.isfinite(margin), margin, np.nan)


def _log_sums(runs: tuple[Run, Run], tops: tuple[Top, Top], rows: tuple[Ints, Ints], lists: TopRows) -> None:
    """Put log-sum-exps in the fields of lists, where both runs recorded them of one kind of value."""
    captures = [run.manifest.capture for run in runs]
    if tops[0].lse is None or tops[1].lse is None or captures[0].value_kind != captures[1].value_kind:
        return
    a, b = tops[0].lse[rows[0]], tops[1].lse[rows[1]]
    if captures[0].lse_base != captures[1].lse_base:  # one was converted, which rounds
        with np.errstate(invalid="ignore"):
            b = np.where(np.abs(a - b) <= 1e-6 * np.maximum(1.0, np.abs(a)), a, b)
    lists.fields["lse_a"], lists.fields["lse_b"] = a, b


def _lists(
    runs: tuple[Run, Run],
    tops: tuple[Top, Top],
    rows: tuple[Ints, Ints],
    table: dict[str, NDArray[Any]],
) -> TopRows | None:
    """Compare two lists, and put what they say of best tokens in the table."""
    keys = keys_of(tops, rows)
    if keys is None:
        return None
    kinds = [run.manifest.capture.value_kind for run in runs]
    lse: list[Floats | None] = [
        top.lse[at] if top.lse is not None else np.zeros(len(at)) if kind in LOGPROBS else None
        for top, at, kind in zip(tops, rows, kinds, strict=True)
    ]
    values = tops[0].values[rows[0]], tops[1].values[rows[1]]
    logs = (lse[0], lse[1]) if lse[0] is not None and lse[1] is not None else None
    floors = runs[0].manifest.capture.clamp_floor, runs[1].manifest.capture.clamp_floor
    if (
        logs is not None and ("raw_logits" in kinds) and len(set(kinds)) > 1
    ):  # logits against log-probabilities
        with np.errstate(invalid="ignore"):
            values = values[0] - logs[0][:, None], values[1] - logs[1][:, None]
        logs = np.zeros(len(rows[0])), np.zeros(len(rows[1]))
    ceilings = ceiling_of(runs[0].manifest.capture), ceiling_of(runs[1].manifest.capture)
    found = compare_tops(keys, values, logs, floors, ceilings)
    for letter, key, value in zip("ab", keys, values, strict=True):
        order = np.argsort(-np.where(np.isnan(value), -np.inf, value), axis=1, kind="stable")
        table[f"best_{letter}"] = np.take_along_axis(key, order, axis=1)
    x, y = found.fields["a_best_in_b"], found.fields["b_best_in_a"]
    table["ranks"], table["tied"] = np.fmax(x, y), (x == 0) | (y == 0)
    return found
