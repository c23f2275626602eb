"""Predicted logits against captured ones, position by position: runs as candidates.

A predicted run comes from the forward of a whole model (`verify.forward`) with one choice of kernels. What it leaves out
(an engine's own fusions, a sampler) may matter, so a fit is "consistent with" a prediction and names nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.explain import bit_text, decimal
from verify.identify.likelihood import BEYOND, Distances, disturbed_share
from verify.identify.predict import distance, largest, narrowed
from verify.identify.ranking import First, Identification, Judged, Refused, check_share, rank
from verify.metrics.align import align_runs, by_conversation
from verify.metrics.predicted_view import seen_as
from verify.numerics.ulp import format_of
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Rows

#: Rows that are compared at once.
BLOCK = 64


@dataclass(frozen=True, eq=False)
class _Common:
    """Rows of one conversation that the capture and every prediction have: ``rows[0]`` of the capture."""

    sequences: tuple[Rows, ...]
    rows: tuple[NDArray[np.int64], ...]
    positions: NDArray[np.int64]


def identify_logits(captured: Run, predicted: Sequence[Run], *, e: float | None = None) -> Identification:
    """Rank predicted runs against a captured one.

    The first repeat of each conversation is compared, at the positions that the capture and every prediction have, up to
    the first fork of either's text. Full rows are compared in the stored format, top-k rows at the captured ids; printed
    values in units of the last printed digit; captured log-probabilities with those of predicted logits, rounded to f32.

    Args:
        captured: the capture.
        predicted: at least one run, of the same value kind, or of logits where the capture has log-probabilities.
        e: share of positions that something may disturb; None: from the capture's own repeats, if it has any.

    Raises:
        InputError: another value kind, no common position, or nothing to compare in the rows.
    """
    check_share(e)
    refused: list[Refused] = []
    kept: list[Run] = []
    for given in predicted:
        kinds = given.manifest.capture.value_kind, captured.manifest.capture.value_kind
        run = seen_as(given, captured) if kinds == ("raw_logits", "raw_logprobs") else given
        if run.manifest.capture.value_kind != captured.manifest.capture.value_kind:
            refused.append(Refused(run.name, f"holds {kinds[0]}, the capture {kinds[1]}"))
        else:
            kept.append(run)
    common = list(_common(captured, kept)) if kept else []
    if kept and not sum(len(c.positions) for c in common):
        raise InputError(
            "no position that the capture and every prediction have, with the same text before it",
            place=captured.name,
            remedy="predict the conversations and the tokens of the capture",
        )
    decimals = captured.manifest.capture.decimals
    judged, apart = _judged(captured, kept, common, decimals)
    return rank(
        judged,
        lambda i, j: apart[min(i, j), max(i, j)],
        e=repeats_share(captured) if e is None else e,
        refused=refused,
        consistent=True,
    )


def repeats_share(run: Run) -> float | None:
    """The share of positions at which repeats of one conversation hold other numbers; None without repeats."""
    differing = positions = 0
    for group in by_conversation(run.sequences).values():
        for other in group[1:]:
            shared = min(group[0].rows, other.rows)
            for start in range(0, shared, BLOCK):
                rows = np.arange(start, min(start + BLOCK, shared))
                pair = [_values(s, rows, None) for s in (group[0], other)]
                if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
                    continue
                positions += len(rows)
                differing += int((largest(distance(pair[0], pair[1])) != 0).sum())
    return disturbed_share(differing, positions) if positions else None


def _common(captured: Run, predicted: Sequence[Run]) -> Iterator[_Common]:
    firsts = {name: group[0] for name, group in by_conversation(captured.sequences).items()}
    found: dict[str, list[tuple[Rows, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]] = {}
    for run in predicted:
        others = {name: group[0] for name, group in by_conversation(run.sequences).items()}
        for a in align_runs(captured, run).sequences:
            if a.repeat_a == firsts[a.conversation].repeat:
                at = a.comparable
                parts = (others[a.conversation], a.positions[at], a.rows_a[at], a.rows_b[at])
                found.setdefault(a.conversation, []).append(parts)
    for name, parts in found.items():
        if len(parts) < len(predicted):
            continue
        positions = parts[0][1]
        for part in parts[1:]:
            positions = np.intersect1d(positions, part[1])
        rows = [p[3][np.searchsorted(p[1], positions)] for p in parts]
        mine = parts[0][2][np.searchsorted(parts[0][1], positions)]
        yield _Common((firsts[name], *(p[0] for p in parts)), (mine, *rows), positions)


def _judged(
    captured: Run, predicted: Sequence[Run], common: Sequence[_Common], decimals: int | None
) -> tuple[list[Judged], dict[tuple[int, int], NDArray[np.bool_]]]:
    n = len(predicted)
    distances: list[list[Distances]] = [[] for _ in range(n)]
    elements, exact = [0] * n, [0] * n
    first: list[First | None] = [None] * n
    apart: dict[tuple[int, int], list[NDArray[np.bool_]]] = {
        (i, j): [] for i in range(n) for j in range(i + 1, n)
    }
    for c in common:
        for start in range(0, len(c.positions), BLOCK):
            part = slice(start, start + BLOCK)
            ids = (
                c.sequences[0].top.ids[c.rows[0][part]]
                if c.sequences[0].full is None and c.sequences[0].top
                else None
            )
            want = _values(c.sequences[0], c.rows[0][part], None)
            if want is None:
                raise InputError(
                    "holds neither full logits nor the most likely tokens with their ids",
                    place=f"{captured.name}: {c.sequences[0].conversation}",
                    remedy="record full logits or top-k ids and values",
                )
            made = [_values(s, r[part], ids) for s, r in zip(c.sequences[1:], c.rows[1:], strict=True)]
            for i, got in enumerate(made):
                if got is None or got.shape != want.shape:
                    raise InputError(
                        f"has no values like those of the capture ({want.shape[1]} a position)",
                        place=f"{predicted[i].name}: {c.sequences[0].conversation}",
                        remedy="predict full logits of the model that was captured",
                    )
                d = _apart(want, got, decimals)
                elements[i] += d.size
                exact[i] += int((d == 0).sum())
                distances[i].append(largest(d))
                if first[i] is None and d.any():
                    first[i] = _first(c, c.positions[part], want, got, d, ids)
            for (i, j), found in apart.items():
                found.append(largest(_apart(_some(made[i]), _some(made[j]), None)) != 0)
    judged = [
        Judged((run.name,), elements[i], exact[i], np.concatenate(distances[i]), first[i])
        for i, run in enumerate(predicted)
    ]
    return judged, {pair: np.concatenate(found) for pair, found in apart.items()}


def _some(x: NDArray[Any] | None) -> NDArray[Any]:
    assert x is not None
    return x


def _values(s: Rows, rows: NDArray[np.int64], ids: NDArray[np.int64] | None) -> NDArray[Any] | None:
    """Values ``[rows, n]``: the whole vocabulary, or the tokens ``ids [rows, k]``; None where they are not there."""
    if s.full is not None:
        low, high = int(rows[0]), int(rows[-1]) + 1
        block = s.full.read(low, high)[rows - low]
        if ids is None:
            return block
        if int(ids.max(initial=0)) >= s.full.vocab or int(ids.min(initial=0)) < 0:
            return None
        return np.take_along_axis(block, ids, axis=1)
    if s.top is None:
        return None
    mine, values = s.top.ids[rows], s.top.values[rows]
    if ids is None:
        return values.astype(np.float32) if bool((values.astype(np.float32) == values).all()) else values
    hit = mine[:, None, :] == ids[:, :, None]
    return np.where(hit.any(axis=2), np.take_along_axis(values, hit.argmax(axis=2), axis=1), np.nan)


def _apart(want: NDArray[Any], got: NDArray[Any], decimals: int | None) -> NDArray[np.int64]:
    """Distances of elements: ULP in the narrower format that holds both, or units of the last printed digit."""
    if decimals is not None:
        step = 10.0**-decimals
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(np.asarray(want, np.float64) - np.asarray(got, np.float64)) / step
        there = np.isfinite(off)
        units = np.where(off <= 0.5 * (1 + 1e-9), 0, np.ceil(off - 0.5)).astype(np.float64)
        whole = np.where(there, np.minimum(np.nan_to_num(units), 2.0**62), 0).astype(np.int64)
        both = (np.isnan(want) & np.isnan(got)) | (np.asarray(want) == np.asarray(got))
        return np.where(there, whole, np.where(both, 0, BEYOND))
    if want.dtype == got.dtype:
        return distance(want, got)
    low, high = (want, got) if want.dtype.itemsize < got.dtype.itemsize else (got, want)
    exact = narrowed(high, low.dtype)
    if exact is not None:
        return distance(low, exact)
    return distance(low.astype(high.dtype), high)


def _first(
    c: _Common,
    positions: NDArray[np.int64],
    want: NDArray[Any],
    got: NDArray[Any],
    d: NDArray[np.int64],
    ids: NDArray[np.int64] | None,
) -> First:
    row, column = (int(i) for i in np.argwhere(d != 0)[0])
    token = column if ids is None else int(ids[row, column])
    captured, predicted = (
        f"{decimal(x[row, column], format_of(x.dtype))} ({bit_text(x[row, column], format_of(x.dtype))})"
        for x in (want, got)
    )
    index = {"position": int(positions[row]), "token": token}
    return First(c.sequences[0].conversation, "logits", index, captured, predicted)
