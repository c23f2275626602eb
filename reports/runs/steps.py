"""Lengths from which two runs differ otherwise: where a kernel takes another block size, a step in the distance.

A curve over depth also moves because the text does. So a step is called one only if it is far outside the standard
errors, lasts, and most of what the tokens cost on both sides of it (the strata of `verify.metrics.depth`) moves with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.formatting import count, short
from reports.runs import contract as c
from reports.runs import measured as m

#: The metrics that are looked at, the first that a pair has.
METRICS = {
    "abs_logprob": "mean |d ln p|",
    "mean_abs": "mean |d|",
    "max_abs": "mean over rows of the largest |d|",
}
#: Rows that a bin needs, and a stratum of it.
ROWS, FEW = 32, 8
#: A mean has to change so many times, and by so many standard errors.
TIMES, ERRORS = 2.0, 6.0
#: Where nothing differs any more: rows that had to differ, so that none is no chance (exp(-8) is 1 in 3,000).
SURE = 8.0


@dataclass(frozen=True)
class Step:
    """A pair whose differences change at a length.

    Attributes:
        first, second: the runs.
        axis: "depth", tokens before the row; or "position" in the text.
        at: the first depth of the bin that is otherwise.
        metric: what changes, in words. before, after: its mean in the two bins.
        rows: compared rows before ``at``; only told where nothing differs before.
    """

    first: str
    second: str
    axis: str
    at: int
    metric: str
    before: float
    after: float
    rows: int

    @property
    def size(self) -> float:
        """How many times larger the greater mean is; infinite where one is 0."""
        low, high = sorted((self.before, self.after))
        return high / low if low else math.inf


def step(pair: c.Pair) -> Step | None:
    """The greatest step of a pair, by depth or else by position; None if there is none."""
    for axis, bins in (("depth", pair.depth), ("position", pair.position)):
        bins = [b for b in bins or () if b.low is not None]
        name = next((n for n in METRICS if bins and all(n in b.metrics for b in bins)), None)
        if name is None:
            continue
        found = [x for x in _steps(bins, name) if x is not None]
        if found:
            at, before, after, rows = max(found, key=lambda x: _times(x[1], x[2]))
            return Step(pair.first, pair.second, axis, at, METRICS[name], before, after, rows)
    return None


def _times(a: float, b: float) -> float:
    low, high = sorted((a, b))
    return high / low if low else (math.inf if high else 1.0)


def _steps(bins: Sequence[m.Bin], name: str) -> Iterator[tuple[int, float, float, int] | None]:
    for i in range(1, len(bins)):
        a, b = bins[i - 1].metrics[name], bins[i].metrics[name]
        if a.mean is None or b.mean is None or min(a.n, b.n) < ROWS:
            continue
        before, after = float(a.mean), float(b.mean)
        rows = sum(x.metrics[name].n for x in bins[:i])
        if not before and after and all(x.metrics[name].maximum in (0, None) for x in bins[:i]):
            if rows >= 2 * ROWS:
                yield bins[i].low or 0, before, after, rows
            continue
        later = bins[i:]
        if before and not after and all(x.metrics[name].maximum in (0, None) for x in later):
            below = sum(x.metrics[name].n for x in later)
            if below >= 2 * ROWS and _unlikely(bins[i - 1], bins[i], below, name):
                if _in_most_strata(bins[i - 1], bins[i], name, rises=False):
                    yield bins[i].low or 0, before, after, below
                continue
        error = math.hypot(float(a.error or 0), float(b.error or 0))
        if _times(before, after) < TIMES or abs(after - before) <= ERRORS * error:
            continue
        if _lasts(bins, i, name) and _in_most_strata(bins[i - 1], bins[i], name, after > before):
            yield bins[i].low or 0, before, after, rows


def _unlikely(a: m.Bin, b: m.Bin, below: int, name: str) -> bool:
    """Whether rows that differ as often as those of ``a`` would hardly all be missing among ``below`` rows.

    (mean / error)^2 is at most the number of rows that differ, so that the chance of none is below exp(-SURE).
    """
    cell = a.metrics[name]
    if not cell.error or 2 * b.conversations < a.conversations:
        return False
    differ = (float(cell.mean or 0) / float(cell.error)) ** 2
    return differ >= SURE and below * differ / cell.n >= SURE


def _lasts(bins: Sequence[m.Bin], i: int, name: str) -> bool:
    """Whether the bins beside the two are nearer to their own neighbour than to the other side."""

    def level(k: int) -> float | None:
        cell = bins[k].metrics[name] if 0 <= k < len(bins) else None
        return None if cell is None or cell.mean is None or cell.n < ROWS else float(cell.mean)

    middle = (float(bins[i - 1].metrics[name].mean or 0) + float(bins[i].metrics[name].mean or 0)) / 2
    rises = float(bins[i].metrics[name].mean or 0) > middle
    earlier, later = level(i - 2), level(i + 1)
    return (earlier is None or (earlier < middle) == rises) and (later is None or (later > middle) == rises)


def _in_most_strata(a: m.Bin, b: m.Bin, name: str, rises: bool) -> bool:
    """Whether rows of equal cost change alike: of the rows whose stratum both bins have, more than half."""
    there = {(s.by, s.low): s.metrics[name] for s in a.strata if name in s.metrics}
    with_it = against = 0
    for s in b.strata:
        old, new = there.get((s.by, s.low)), s.metrics.get(name)
        if old is None or new is None or min(old.n, new.n) < FEW or old.mean is None or new.mean is None:
            continue
        moved = _times(float(old.mean), float(new.mean)) >= math.sqrt(TIMES)
        if moved and (float(new.mean) > float(old.mean)) == rises:
            with_it += new.n
        else:
            against += new.n
    return with_it > against or (not with_it and not against)


def sentences(pairs: Sequence[c.Pair]) -> Iterator[str]:
    """One sentence for each length at which pairs step: the pair with the greatest step, and how many others do."""
    found: dict[tuple[str, int], list[Step]] = {}
    for one in filter(None, map(step, pairs)):
        found.setdefault((one.axis, one.at), []).append(one)
    for (axis, at), steps in sorted(found.items(), key=lambda x: -len(x[1]))[:2]:
        most = max(steps, key=lambda s: s.size)
        others = f", as do {len(steps) - 1} more pairs" if len(steps) > 1 else ""
        if not most.before:
            yield (
                f"{most.first} and {most.second} agree in all {count(most.rows)} rows below {axis} {count(at)} and differ "
                f"from there on ({most.metric} {short(most.after)}){others}: a kernel may take another "
                "shape from that length."
            )
            continue
        yield (
            f"{most.first} and {most.second} step at {axis} {count(at)}: {most.metric} {short(most.before)} before, "
            f"{short(most.after)} from there on{others}; tokens of equal cost do, too, so that it is not the text: a kernel "
            "may take another shape from that length."
        )
