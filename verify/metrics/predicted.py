"""Predicted differences against real ones: does what is computed for two coordinates say where they part, and by how much?

Real coordinates A and B were recorded, predictions a and b were computed (`verify.forward`). Over all elements that the
four have, the predicted difference p = b - a stands against the real one r = B - A. Rows are streamed in blocks; of each
row only the sums of `FIELDS` are kept, so that memory is bounded by rows, never by rows times the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import align_runs
from verify.metrics.bootstrap import DRAWS, SEED, Interval
from verify.metrics.plan import Axis, Slot, grouped, make_axis
from verify.metrics.predicted_sums import (
    ALIKE,
    BOTH,
    FIELDS,
    PP,
    PR,
    RR,
    N,
    P,
    R,
    correlation,
    cosine,
    interval_of,
    rms_ratio,
    signs,
    slope,
)
from verify.metrics.side import Scratch, count_rows, decode, total
from verify.metrics.sweep import release
from verify.metrics.values import COLUMNS
from verify.runs.run import Run
from verify.runs.sequence import Ints
from verify.runs.sequence import Sequence as Recorded

Array = NDArray[Any]
Floats = NDArray[np.float64]
Outcome = Literal["bit-exact", "direction and size", "unexplained"]

#: Below this correlation a prediction accounts for less than 1 % of the variance of the real difference: it may be
#: told from zero over millions of elements, and still explains nothing.
CORRELATED = 0.1
#: A predicted difference has the size of the real one where a step of 1 in it meets one of 1/2 to 2 (the slope). The ratio
#: of RMS is shown and does not decide: what a prediction leaves out adds to the real difference, not to the slope.
SLOPES = (0.5, 2.0)
#: Where conversations are too few for an interval, rows whose own correlation is positive must outnumber the others by this
#: many standard errors, sqrt(rows). Four, not two, as neighbouring rows share their text and are not independent.
ERRORS = 4.0
#: Flips that are listed one by one.
LISTED = 200

_UNKNOWN = -1


@dataclass(frozen=True)
class Flips:
    """Rows on which best tokens differ between the two coordinates.

    Attributes:
        rows: on which all four best tokens are known.
        real, predicted: on which it differs really, and in the prediction; ``both`` in both.
        same_tokens: of ``both``, those from and to the predicted tokens.
        missed: real ones that were not predicted; ``idle``: predicted ones that did not happen.
    """

    rows: int
    real: int
    predicted: int
    both: int
    same_tokens: int
    missed: int
    idle: int


@dataclass(frozen=True)
class FlipRow:
    """One position at which a best token differs: ``real`` and ``predicted`` are the best tokens (of first, of second)."""

    conversation: str
    repeat: int
    position: int
    kind: Literal["predicted and happened", "missed", "predicted, did not happen"]
    real: tuple[int, int]
    predicted: tuple[int, int]


@dataclass(frozen=True)
class Differences:
    """Two real coordinates with their predictions.

    Attributes:
        first, second: names of the real runs; ``predicted_first``, ``predicted_second`` of the predicted ones.
        outcome: "bit-exact": p equals r in every element; ``reason``: in words.
        conversations, rows, elements: compared.
        correlation: Pearson's, of p with r. slope: of r on p. cosine: of p and r.
        signs: share of elements with the sign of p in r, of those in which neither is 0.
        rms_ratio: RMS of p over that of r.
        real_rms, predicted_rms: in the unit of the values.
        rows_alike: rows whose own correlation is positive, of ``rows_told`` that have one.
        flips: counts; ``found``: share of real flips that were predicted; ``right``: of predicted flips that happened.
        positions: flips one by one, at most `LISTED`; ``left_out`` more.
    """

    first: str
    second: str
    predicted_first: str
    predicted_second: str
    outcome: Outcome
    reason: str
    conversations: int
    rows: int
    elements: int
    correlation: Interval
    slope: Interval
    cosine: Interval
    signs: Interval
    rms_ratio: Interval
    real_rms: float | None
    predicted_rms: float | None
    rows_alike: int
    rows_told: int
    flips: Flips
    found: Interval
    right: Interval
    positions: tuple[FlipRow, ...]
    left_out: int


@dataclass(frozen=True)
class Quad:
    """Four numbers of runs: real first and second, predicted for the first and for the second."""

    first: int
    second: int
    predicted_first: int
    predicted_second: int

    @property
    def members(self) -> tuple[int, int, int, int]:
        """In the order A, B, a, b."""
        return self.first, self.second, self.predicted_first, self.predicted_second


class _Kept:
    """What the pass keeps of one quad: ``sums [fields, rows]``, best tokens ``[4, rows]``, largest |p - r| a row."""

    def __init__(self, quad: Quad, mask: NDArray[np.bool_]) -> None:
        self.quad, self.mask = quad, mask
        self.sums = np.zeros((len(FIELDS), len(mask)))
        self.best = np.full((4, len(mask)), _UNKNOWN, np.int64)
        self.unequal = np.zeros(len(mask))


def differences(
    runs: Sequence[Run],
    quads: Sequence[Quad],
    *,
    draws: int = DRAWS,
    seed: int = SEED,
    threads: int | None = None,
) -> tuple[Differences, ...]:
    """Compare predicted differences with real ones, for each quad of numbers into ``runs``; one pass over the rows.

    Predicted runs hold the values that the real ones do: see `verify.metrics.predicted_view.seen_as`. The rows of a quad
    are those that all four have, with one text before them.

    Args:
        runs: real and predicted.
        quads: which four.
        draws: bootstrap resamples; ``seed`` of them.
        threads: of the pass; results do not depend on it.
    """
    groups = grouped(runs)
    axis = make_axis(groups)
    kept = [_Kept(q, _common(axis, runs, q)) for q in quads]
    floors = [run.manifest.capture.clamp_floor for run in runs]
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        work = partial(_block, groups=groups, floors=floors, kept=kept)
        for _ in pool.map(work, _blocks(axis, groups)):
            pass
    return tuple(_judged(runs, k, axis, draws, seed) for k in kept)


def _common(axis: Axis, runs: Sequence[Run], quad: Quad) -> NDArray[np.bool_]:
    """The rows of the axis that all four have, with the same text before."""
    mask = np.ones(axis.rows, bool)
    first, second, a, b = quad.members
    for i, j in ((first, second), (first, a), (second, b)):
        own = np.zeros(axis.rows, bool)
        for aligned in align_runs(runs[i], runs[j]).sequences:
            own[axis.of(aligned)[aligned.comparable]] = True
        mask &= own
    return mask


def _blocks(axis: Axis, groups: Sequence[Mapping[Slot, Recorded]]) -> Iterator[tuple[Slot, int, Ints]]:
    """Blocks of rows: (slot, first row of the axis, positions)."""
    for slot, (start, positions) in axis.slots.items():
        widths = [s.full.vocab for g in groups if (s := g.get(slot)) is not None and s.full is not None]
        step = max(1, COLUMNS // max(widths, default=COLUMNS // 64))
        for low in range(0, len(positions), step):
            yield slot, start + low, positions[low : low + step]


def _block(
    block: tuple[Slot, int, Ints],
    *,
    groups: Sequence[Mapping[Slot, Recorded]],
    floors: Sequence[float | None],
    kept: Sequence[_Kept],
) -> None:
    """All quads in one block of rows. Each run is read once."""
    slot, start, positions = block
    read: dict[int, tuple[int, Array]] = {}
    for k in kept:
        use = np.flatnonzero(k.mask[start : start + len(positions)])
        if not use.size:
            continue
        sequences = [groups[m][slot] for m in k.quad.members]
        rows = [np.searchsorted(s.positions, positions[use]) for s in sequences]
        at = start + use
        if all(s.full is not None for s in sequences):
            for m, s in zip(k.quad.members, sequences, strict=True):
                if m not in read:
                    read[m] = _read(s, positions)
            values, best = _full([read[m] for m in k.quad.members], rows)
        else:
            values, best = _listed(sequences, rows)
        _add(k, at, values, [floors[m] for m in k.quad.members])
        k.best[:, at] = best


def _read(sequence: Recorded, positions: Ints) -> tuple[int, Array]:
    """The first row within ascending ``positions`` and the values from there on, ``[rows, vocab]``."""
    assert sequence.full is not None
    low, high = np.searchsorted(sequence.positions, (positions[0], positions[-1] + 1))
    raw = sequence.full.read(int(low), int(high))
    values = decode(raw, Scratch(), "")
    if values is not raw:
        release(raw)
    return int(low), values


def _full(read: Sequence[tuple[int, Array]], rows: Sequence[Ints]) -> tuple[list[Array], Array]:
    """Values ``[rows, columns]`` of four runs over the columns that all have, and their best tokens ``[4, rows]``."""
    width = min(v.shape[1] for _, v in read)
    values = [
        v[:, :width] if len(r) == len(v) else v[r - low, :width]
        for (low, v), r in zip(read, rows, strict=True)
    ]
    best = np.stack([np.argmax(np.where(np.isnan(v), -np.inf, v), axis=1) for v in values])
    return values, best


def _listed(sequences: Sequence[Recorded], rows: Sequence[Ints]) -> tuple[list[Array], Array]:
    """The same of lists of likely tokens, at the tokens of the first; of one value a row where there are no lists.

    Values that a list does not have are NaN, best tokens that are not known -1.
    """
    first = sequences[0]
    ids = first.tokens[rows[0]][:, None] if first.top is None else first.top.ids[rows[0]]
    values: list[Array] = []
    best = np.full((4, len(rows[0])), _UNKNOWN, np.int64)
    for i, (s, r) in enumerate(zip(sequences, rows, strict=True)):
        if s.top is not None:
            mine, held = s.top.ids[r], s.top.values[r]
            hit = (mine[:, None, :] == ids[:, :, None]) & (ids >= 0)[:, :, None]
            found = np.take_along_axis(held, hit.argmax(axis=2), axis=1)
            values.append(np.where(hit.any(axis=2), found, np.nan))
            top = np.where(np.isnan(held), -np.inf, held).argmax(axis=1)[:, None]
            best[i] = np.take_along_axis(mine, top, axis=1)[:, 0]
        elif s.chosen is not None:
            values.append(np.where(s.tokens[r][:, None] == ids, s.chosen[r][:, None], np.nan))
        else:
            values.append(np.full(ids.shape, np.nan))
    return values, best


def _add(k: _Kept, at: Ints, values: Sequence[Array], floors: Sequence[float | None]) -> None:
    """Add the elements of some rows: those in which no value is NaN, infinite or clamped."""
    real_first, real_second, first, second = values
    with np.errstate(invalid="ignore", over="ignore"):
        p, r = second - first, real_second - real_first
        n = np.full(len(at), float(p.shape[1]))
        if not (np.isfinite(p).all() and np.isfinite(r).all()) or any(f is not None for f in floors):
            use = np.isfinite(p) & np.isfinite(r)
            for v, floor in zip(values, floors, strict=True):
                use &= True if floor is None else v > floor
            p, r = np.where(use, p, 0), np.where(use, r, 0)
            n = count_rows(use)
        sums = k.sums
        sums[N, at], sums[P, at], sums[R, at] = n, total(p), total(r)
        sums[PP, at], sums[RR, at] = total(p * p), total(r * r)
        product = p * r
        sums[PR, at] = total(product)
        sums[ALIKE, at], sums[BOTH, at] = count_rows(product > 0), count_rows(product != 0)
        k.unequal[at] = np.abs(p - r).max(axis=1, initial=0)


def _judged(runs: Sequence[Run], k: _Kept, axis: Axis, draws: int, seed: int) -> Differences:
    use = k.mask & (k.sums[N] > 0)
    names: dict[str, int] = {}
    group = np.full(axis.rows, -1, np.int64)
    for slot, (start, positions) in axis.slots.items():
        at = slice(start, start + len(positions))
        if use[at].any():
            group[at] = names.setdefault(slot[0], len(names))
    sums = np.zeros((len(names), len(FIELDS)))
    np.add.at(sums, group[use], k.sums[:, use].T)
    rows = k.sums[:, use].T
    own = correlation(rows)
    told = np.isfinite(own)
    whole = sums.sum(axis=0)
    of = partial(interval_of, sums, tuple(names), draws=draws, seed=seed)
    found = of(correlation)
    steps = of(slope)
    alike, rows_told = int((own[told] > 0).sum()), int(told.sum())
    equal = bool(whole[N] > 0 and not k.unequal[use].any())
    outcome, reason = judge(whole, found, steps, alike, rows_told, equal=equal)
    known = k.mask & (k.best >= 0).all(axis=0)
    counts = _flip_sums(k.best[:, known], group[known], len(names))
    share = partial(interval_of, counts, tuple(names), draws=draws, seed=seed)
    listed, left_out = _flip_rows(k, known, axis)
    return Differences(
        *(runs[m].name for m in k.quad.members),
        outcome=outcome,
        reason=reason,
        conversations=len(names),
        rows=int(use.sum()),
        elements=int(whole[N]),
        correlation=found,
        slope=steps,
        cosine=of(cosine),
        signs=of(signs),
        rms_ratio=of(rms_ratio),
        real_rms=float(np.sqrt(whole[RR] / whole[N])) if whole[N] else None,
        predicted_rms=float(np.sqrt(whole[PP] / whole[N])) if whole[N] else None,
        rows_alike=alike,
        rows_told=rows_told,
        flips=_flips(k.best[:, known]),
        found=share(lambda s: _over(s, 2, 0)),
        right=share(lambda s: _over(s, 2, 1)),
        positions=listed,
        left_out=left_out,
    )


def judge(
    sums: Floats, found: Interval, steps: Interval, alike: int, told: int, *, equal: bool
) -> tuple[Outcome, str]:
    """What a predicted difference is worth, and why.

    Args:
        sums: over all elements, of `FIELDS`.
        found: the correlation; ``steps`` the slope.
        alike: rows whose own correlation is positive, of ``told``.
        equal: whether p equals r in every element.
    """
    if not sums[N]:
        return "unexplained", "no element of the four can be compared"
    if equal:
        same = "no difference, as predicted" if not sums[RR] else "every difference is as predicted"
        return "bit-exact", f"{same}: {int(sums[N]):,} elements"
    if not sums[PP]:
        return "unexplained", "the predictions are equal, the coordinates are not"
    if not sums[RR]:
        return "unexplained", "the predictions differ, the coordinates do not"
    if found.value is None or found.conversations == 0:
        return "unexplained", "a difference does not vary: no correlation"
    value = found.value
    if found.kind == "few conversations":
        lead = (2 * alike - told) / np.sqrt(told) if told else 0.0
        sure = bool(found.low is not None and found.low > 0 and lead >= ERRORS)
        ground = f"positive in {alike:,} of {told:,} rows"
    else:
        sure = found.kind == "all equal" or bool(found.low is not None and found.low > 0)
        ground = "" if found.low is None else f"95% interval {found.low:.3f} to {found.high:.3f}"
    said = f"correlation {value:.3f}" + (f", {ground}" if ground else "")
    if not sure or value <= 0:
        return "unexplained", f"{said}: not told from zero"
    if value < CORRELATED:
        return "unexplained", f"{said}: above zero, but below {CORRELATED}: under 1% of the variance"
    size = steps.value
    if size is None or not SLOPES[0] <= size <= SLOPES[1]:
        told_size = "unknown" if size is None else f"{size:.3g}"
        return "unexplained", f"{said}: the direction is predicted, the size is not (slope {told_size})"
    return "direction and size", f"{said}; slope {size:.2f}"


def _kinds(best: Array) -> tuple[Array, Array, Array]:
    """Of best tokens ``[4, rows]``: whether it flips really, in the prediction, and with the same tokens."""
    real, predicted = best[0] != best[1], best[2] != best[3]
    return real, predicted, real & predicted & (best[0] == best[2]) & (best[1] == best[3])


def _flips(best: Array) -> Flips:
    real, predicted, same = _kinds(best)
    both = int((real & predicted).sum())
    r, p = int(real.sum()), int(predicted.sum())
    return Flips(best.shape[1], r, p, both, int(same.sum()), r - both, p - both)


def _flip_sums(best: Array, group: Ints, count: int) -> Floats:
    """``[conversations, 3]``: flips that are real, predicted, and both."""
    real, predicted, _ = _kinds(best)
    ok = group >= 0
    out = np.zeros((count, 3))
    for column, x in enumerate((real, predicted, real & predicted)):
        out[:, column] = np.bincount(group[ok], x[ok].astype(np.float64), minlength=count)
    return out


def _over(s: Floats, above: int, below: int) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(s[..., below] > 0, s[..., above] / s[..., below], np.nan)


def _flip_rows(k: _Kept, known: NDArray[np.bool_], axis: Axis) -> tuple[tuple[FlipRow, ...], int]:
    """The flips one by one, in the order of the rows, and how many more there are."""
    real, predicted, _ = _kinds(k.best)
    at = np.flatnonzero(known & (real | predicted))
    found: list[FlipRow] = []
    for slot, (start, positions) in axis.slots.items():
        for i in at[(at >= start) & (at < start + len(positions))][: LISTED - len(found)]:
            kind = (
                "predicted and happened"
                if real[i] and predicted[i]
                else "missed"
                if real[i]
                else "predicted, did not happen"
            )
            b = [int(x) for x in k.best[:, i]]
            found.append(
                FlipRow(slot[0], slot[1], int(positions[i - start]), kind, (b[0], b[1]), (b[2], b[3]))
            )
    return tuple(found), len(at) - len(found)
