"""Many inputs: which difference explains which share of the outputs that change.

Here ``v(S)`` of one output is 1 where the hybrid stores other bits than the first side, else 0. Averaged over sampled
outputs and over inputs, Shapley values add up to the share of outputs that change: exactly, in rationals. Inputs are
independent, outputs of one input are not: intervals resample inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from search.explain.attribution import Element, Evaluator, elements_of, output_axes
from search.explain.hybrid import Hybrid, Taken
from search.explain.legal import Legality
from search.explain.parts import Part
from search.explain.shapley import ORDERS, exact_values, sampled_values
from search.explain.stages import separated
from specs.errors import InputError
from verify.emulator import Run
from verify.metrics.bootstrap import FEWEST, resample
from verify.numerics.rounding import store, word_dtype

Progress = Callable[[str, int, int], None]
#: Sampled rows of one input, and columns of each.
ROWS, COLUMNS = 2, 8
LEVEL = 0.95


@dataclass(frozen=True)
class Share:
    """What a part explains: its share of sampled outputs, with an interval over inputs.

    Attributes:
        value: exact average. low, high: interval; of few inputs, the smallest and the largest value of one input.
        error: standard error of sampled orders, averaged over inputs; None where every set was evaluated.
    """

    value: Fraction
    low: float
    high: float
    error: float | None


@dataclass(frozen=True)
class Ensemble:
    """The shares of an ensemble.

    Attributes:
        parts: in the order of the dataflow. shares: one for each; their values add up to ``changed``.
        changed: share of sampled outputs whose stored bits differ, with its interval.
        inputs: how many. sampled: outputs of each. skipped: outputs that were NaN or infinite on some hybrid.
        whole: share of all outputs of all inputs that differ, by the emulator.
        kind: ``bootstrap``, or ``range`` where inputs are too few for intervals.
        hybrids, orders: as in `search.explain.attribution.Attribution`.
    """

    parts: tuple[Part, ...]
    shares: tuple[Share, ...]
    changed: Share
    inputs: int
    sampled: int
    skipped: int
    whole: Fraction
    kind: str
    hybrids: int
    orders: int
    joined: tuple[str, ...]


def ensemble(
    judged: Legality,
    pairs: Callable[[int], tuple[Run, Run]],
    count: int,
    *,
    seed: int,
    progress: Progress,
    orders: int = ORDERS,
    rows: int = ROWS,
    columns: int = COLUMNS,
) -> Ensemble:
    """Shares over ``count`` inputs of one shape.

    Args:
        judged: parts of the difference, of any of the inputs.
        pairs: both runs of input i, evaluated.
        count: inputs.
        seed: of the sampled outputs, of orders and of resampling.
        progress: told what is done.
        orders: sampled orders, where parts are many.
        rows, columns: sampled of each input.

    Raises:
        InputError: no input, or no finite output.
    """
    if count < 1:
        raise InputError(f"{count} inputs", place="--ensemble", remedy="give 1 or more")
    judged, drawn, sets = separated(judged, seed, orders, progress)
    parts = judged.maker.parts
    n = len(parts)
    hybrids = {s: judged.hybrid(s) for s in sets}
    table_of: list[dict[Taken, tuple[Fraction]]] = []
    skipped = changed = outputs = 0
    for i in range(count):
        progress("inputs", i, count)
        runs = pairs(i)
        words = [r.outward("output") for r in runs]
        pattern = f"u{words[0].dtype.itemsize}"
        changed += int((words[0].view(pattern) != words[1].view(pattern)).sum())
        outputs += words[0].size
        elements = _sample(runs[0], np.random.default_rng((seed, i)), rows, columns)
        table, lost = _table(judged, runs, hybrids, sets, elements)
        skipped += lost
        table_of.append(table)
    progress("inputs", count, count)
    values = [sampled_values(n, t, drawn) if drawn else exact_values(n, t) for t in table_of]
    per_input = [[row[0] for row in v.phi] + [v.total[0]] for v in values]
    means = [sum((row[k] for row in per_input), Fraction(0)) / count for k in range(n + 1)]
    if sum(means[:n], Fraction(0)) != means[n]:
        raise AssertionError("shares do not add up")
    lows, highs, kind = _intervals(np.array([[float(x) for x in row] for row in per_input]), seed)
    errors = [
        None if not drawn else float(np.mean([v.errors[k][0] for v in values if v.errors])) / np.sqrt(count)
        for k in range(n)
    ]
    shares = [Share(means[k], lows[k], highs[k], None if k == n else errors[k]) for k in range(n + 1)]
    return Ensemble(
        parts=parts,
        shares=tuple(shares[:n]),
        changed=shares[n],
        inputs=count,
        sampled=min(rows, _rows(judged)) * min(columns, judged.maker.runs[0].problem.v.shape[-1]),
        skipped=skipped,
        whole=Fraction(changed, outputs),
        kind=kind,
        hybrids=len(sets),
        orders=len(drawn),
        joined=tuple(judged.joined),
    )


def _rows(judged: Legality) -> int:
    problem = judged.maker.runs[0].problem
    return problem.heads * problem.rows


def _sample(run: Run, rng: np.random.Generator, rows: int, columns: int) -> list[Element]:
    """Some columns of some rows of the output."""
    axes = output_axes(run)
    shape = run.problem.shape
    every = int(np.prod(shape))
    dim = run.problem.v.shape[-1]
    found: list[dict[str, int]] = []
    for flat in sorted(rng.choice(every, size=min(rows, every), replace=False).tolist()):
        lead = dict(zip(axes, (int(x) for x in np.unravel_index(flat, shape)), strict=False))
        picked = sorted(rng.choice(dim, size=min(columns, dim), replace=False).tolist())
        found += [{**lead, "dim": int(d)} for d in picked]
    return elements_of(run, found)


def _table(
    judged: Legality,
    runs: tuple[Run, Run],
    hybrids: dict[Taken, Hybrid],
    sets: Sequence[Taken],
    elements: Sequence[Element],
) -> tuple[dict[Taken, tuple[Fraction]], int]:
    """Of one input: for each set the share of elements whose bits differ from the first side's."""
    maker = replace(judged.maker, runs=runs)
    mine = {s: replace(h, problem=maker.problem(s)) for s, h in hybrids.items()}
    everything = max(sets, key=len)
    evaluator = Evaluator(runs, (mine[frozenset()], mine[everything]))
    bits: dict[Taken, list[int | None]] = {}
    for s in sets:
        row: list[int | None] = []
        for element in elements:
            try:
                _, _, output = evaluator.values(mine[s], element)
            except InputError:
                row.append(None)
                continue
            fmt = mine[s].format
            row.append(int(store(np.array([output]), fmt).view(word_dtype(fmt))[0]))
        bits[s] = row
    kept = [i for i in range(len(elements)) if all(bits[s][i] is not None for s in sets)]
    if not kept:
        raise InputError(
            "every sampled output is NaN or infinite", place="--ensemble", remedy="choose other inputs"
        )
    base = bits[frozenset()]
    table = {s: (Fraction(sum(row[i] != base[i] for i in kept), len(kept)),) for s, row in bits.items()}
    return table, len(elements) - len(kept)


def _intervals(rows: np.ndarray, seed: int) -> tuple[list[float], list[float], str]:
    """Intervals of the mean of each column, over inputs."""
    if len(rows) < FEWEST:
        return rows.min(axis=0).tolist(), rows.max(axis=0).tolist(), "range"
    drawn = resample(rows, seed=seed) / len(rows)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0)
    return low.tolist(), high.tolist(), "bootstrap"
