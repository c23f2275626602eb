"""Which coordinates are bit-identical, and where two that are not differ first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import RunAlignment
from verify.metrics.plan import FullRows, Pair, Slot
from verify.metrics.table import Table
from verify.metrics.topk import unequal
from verify.metrics.values import slack_of
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Recorded

#: Fields of full rows of which none is above 0 where two rows say the same.
_PARTED = ("different", "nan_mismatch", "inf_mismatch", "clamp_mismatch", "impossible_mismatch")


@dataclass(frozen=True)
class FirstDifference:
    """Where two runs differ first: by conversation in the order of the first run, then by position.

    Attributes:
        conversation, repeat, position: of the row (repeat of the first run).
        element: token id of the first value that differs, or None where only one value a row was compared.
        a, b: the two values.
    """

    conversation: str
    repeat: int
    position: int
    element: int | None
    a: float
    b: float


@dataclass(frozen=True)
class Identity:
    """Classes of coordinates.

    Attributes:
        classes: names of runs; those of one class are identical in everything that was compared between them, each with
            each. Largest first.
        partial: classes whose members have rows that were not compared (forks, positions that only one has, refusals).
        between: runs printed with fewer decimals than others, each with the first runs of several classes to which it is
            equal as far as its digits go, though they are not to each other: it is put in none of them.
    """

    classes: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, ...], ...]
    between: tuple[tuple[str, tuple[str, ...]], ...] = ()


def first_difference(
    runs: tuple[Run, Run],
    pair: Pair,
    alignment: RunAlignment,
    full: FullRows,
    groups: Sequence[Mapping[Slot, Recorded]],
    table: Table,
) -> FirstDifference | None:
    """The first row of a pair that differs, and the first value in it; None where none does."""
    unlike = unlike_rows(pair, full, table, scores=of_scores(runs), slack=slack_between(runs))
    at = 0
    for aligned in alignment.sequences:
        if aligned.refused is not None or not aligned.comparable.any():
            continue
        chunk = slice(at, at + int(aligned.comparable.sum()))
        at = chunk.stop
        hit = unlike[chunk]
        if not hit.any():
            continue
        i = int(np.flatnonzero(hit)[0])
        axis, x, y = table.full[chunk], table.value_a[chunk], table.value_b[chunk]
        sequences = [groups[p][aligned.conversation, aligned.ordinal] for p in pair]
        row = np.flatnonzero(aligned.comparable)[i]
        picked = int(aligned.rows_a[row]), int(aligned.rows_b[row])
        width = full.vocab[pair] if axis[i] >= 0 else None
        element, a, b = _first_element(sequences[0], sequences[1], picked, width, float(x[i]), float(y[i]))
        position = int(table.positions[chunk][i])
        return FirstDifference(aligned.conversation, aligned.repeat_a, position, element, a, b)
    return None


def slack_between(runs: tuple[Run, Run]) -> float:
    """`slack_of` the printed decimals of a pair."""
    a, b = (run.manifest.capture.decimals for run in runs)
    return slack_of(a, b)


def of_scores(runs: tuple[Run, Run]) -> bool:
    """Whether a pair is of scores of examples."""
    return any(run.manifest.capture.value_kind == "scores" for run in runs)


def unlike_rows(
    pair: Pair, full: FullRows, table: Table, *, scores: bool, slack: float = 0.0
) -> NDArray[np.bool_]:
    """``[rows]`` whether anything that was compared in a row differs: full logits, else lists and the chosen values.

    ``scores``: rows are examples, which have a value and no token. ``slack``: as in `verify.metrics.values.slack_of`.
    """
    x, y = table.value_a, table.value_b
    with np.errstate(invalid="ignore"):
        hit = (x != y) & ~(np.abs(x - y) <= slack) & ~(np.isnan(x) & np.isnan(y)) & (table.same_token != 0)
    if not scores:  # of a token that is not known no value is missing
        hit &= ~((np.isnan(x) ^ np.isnan(y)) & (table.same_token == -1))
    hit |= _unequal_lists(table, slack)
    rows = full.pairs.get(pair)
    if rows is not None:
        whole = np.flatnonzero(table.full >= 0)
        parted = ("printed_different" if slack else _PARTED[0], *_PARTED[1:])
        changed = [rows.fields[name][table.full[whole]] for name in parted]
        hit[whole] = np.sum(changed, axis=0) > 0
    return hit


def _unequal_lists(table: Table, slack: float) -> NDArray[np.bool_]:
    """``[rows]`` whether lists of likely tokens differ in a token or a value."""
    found = np.zeros(table.rows, bool)
    if table.lists is not None:
        found[table.list_rows] = unequal(table.lists.fields, slack)
    return found


def _first_element(
    a: Recorded, b: Recorded, rows: tuple[int, int], width: int | None, x: float, y: float
) -> tuple[int | None, float, float]:
    """The first value of two rows that differs: its token and both values; else ``x`` and ``y``, of no token."""
    if width is not None and a.full is not None and b.full is not None:
        wide = [
            f.read(r, r + 1)[0, :width].astype(np.float64)
            for f, r in zip((a.full, b.full), rows, strict=True)
        ]
        with np.errstate(invalid="ignore"):
            same = (wide[0] == wide[1]) & (np.signbit(wide[0]) == np.signbit(wide[1]))
        same |= np.isnan(wide[0]) & np.isnan(wide[1])
        element = int(np.flatnonzero(~same)[0])
        return element, float(wide[0][element]), float(wide[1][element])
    if a.top is not None and b.top is not None and (x == y or np.isnan(x) or np.isnan(y)):
        listed = [
            {int(k): float(v) for k, v in zip(t.ids[r], t.values[r], strict=True) if k >= 0}
            for t, r in zip((a.top, b.top), rows, strict=True)
        ]
        for token in sorted(listed[0].keys() | listed[1].keys()):
            values = [one.get(token, float("nan")) for one in listed]
            if values[0] != values[1]:
                return token, values[0], values[1]
    return None, x, y


def classes(
    names: Sequence[str],
    identical: Mapping[Pair, bool],
    whole: Mapping[Pair, bool],
    decimals: Sequence[int | None] | None = None,
) -> Identity:
    """Put runs in classes: a run joins the first class to all of whose members it is identical.

    Where only a reference was compared with each, identical to it in all rows is identical to each other. Equality to the
    printed digits does not carry over: two numbers that differ may both be the third with fewer decimals. So the runs
    with the most decimals come first, and one that would belong to several classes of such is put in none.

    Args:
        names: of the runs.
        identical: by pair of numbers, smaller first; pairs that were not compared are missing.
        whole: whether a pair compared all rows of both.
        decimals: with how many the values of each run were printed, None being all of them.
    """

    def key(i: int, j: int) -> Pair:
        return min(i, j), max(i, j)

    def belongs(i: int, group: list[int]) -> bool:
        known = [j for j in group if key(i, j) in identical]
        if not known or not all(identical[key(i, j)] for j in known):
            return False
        # with a reference others were not compared with each other: what equals it in all of its rows is equal
        return len(known) == len(group) or all(
            whole.get(key(known[0], j), True) for j in (i, *group) if j != known[0]
        )

    compared = Counter(i for pair in identical for i in pair)
    fineness = [inf if d is None else d for d in decimals or [None] * len(names)]
    between: list[tuple[str, tuple[str, ...]]] = []
    found: list[list[int]] = []
    for i in sorted(range(len(names)), key=lambda i: (-fineness[i], -compared[i])):
        homes = [group for group in found if belongs(i, group)]
        alike = [group for group in homes if fineness[group[0]] == fineness[i]]
        if alike or len(homes) == 1:
            (alike or homes)[0].append(i)
            continue
        found.append([i])
        if homes:
            between.append((names[i], tuple(names[min(group)] for group in homes)))
    found = sorted((sorted(group) for group in found), key=lambda group: group[0])
    found.sort(key=len, reverse=True)
    partial = [c for c in found if any(not whole.get((j, i), True) for i in c for j in c if j < i)]
    return Identity(
        tuple(tuple(names[i] for i in c) for c in found),
        tuple(tuple(names[i] for i in c) for c in partial),
        tuple(between),
    )
