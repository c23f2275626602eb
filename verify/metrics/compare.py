"""Compare runs: all pairs, or each with one reference. The entry of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specs.errors import InputError, did_you_mean
from verify.metrics.align import RunAlignment, align_runs, place, refuse
from verify.metrics.bootstrap import DRAWS, SEED
from verify.metrics.health import Finding, RunHealth, run_health
from verify.metrics.identity import Identity, classes
from verify.metrics.jsonable import to_json
from verify.metrics.pair_findings import different_vocabularies
from verify.metrics.pairs import PairComparison, compare_pair
from verify.metrics.plan import Pair, grouped, pass_over, vocabulary
from verify.metrics.repeats import Repeats, repeats_of
from verify.metrics.values import FLOOR
from verify.runs.run import Run

#: Above so many runs only pairs with the reference (or the first run) are compared.
ALL_PAIRS = 64


@dataclass(frozen=True)
class RunSummary:
    """One run, for tables: its coordinate and how it was recorded, as in its manifest."""

    name: str
    label: str
    place: str
    sha256: str
    coordinate: dict[str, Any]
    capture: dict[str, Any]
    model: str | None
    sequences: int
    conversations: int
    rows: int
    vocab: int | None
    dtype: str | None


@dataclass(frozen=True)
class Settings:
    """What a comparison was asked for: enough to run it again."""

    reference: str | None
    best: int
    floor: float
    draws: int
    seed: int


@dataclass(frozen=True)
class RunsComparison:
    """The comparison of N runs.

    Attributes:
        runs: in the order given.
        settings: what was asked for.
        health: of each run.
        repeats: (run, its conversations that were asked more than once).
        identity: classes of bit-identical coordinates.
        pairs: comparisons, (0, 1), (0, 2), ..., (1, 2), ...; with a reference, those that it is in.
        findings: what concerns more than one pair, or a pair that was not compared.
    """

    runs: tuple[RunSummary, ...]
    settings: Settings
    health: tuple[RunHealth, ...]
    repeats: tuple[tuple[str, tuple[Repeats, ...]], ...]
    identity: Identity
    pairs: tuple[PairComparison, ...]
    findings: tuple[Finding, ...]

    def pair(self, first: str, second: str) -> PairComparison:
        """The comparison of two runs by name, in either order.

        Raises:
            InputError: there is none.
        """
        for found in self.pairs:
            if {found.first, found.second} == {first, second}:
                return found
        names = [run.name for run in self.runs]
        wrong = next((n for n in (first, second) if n not in names), None)
        remedy = (
            "it was not among the pairs that were compared" if wrong is None else did_you_mean(wrong, names)
        )
        raise InputError(f"there is no comparison of '{first}' and '{second}'", remedy=remedy)

    def matrix(self, metric: str) -> tuple[tuple[float | None, ...], ...]:
        """Values of one of `PairComparison.intervals`, or ``rms`` or ``max_abs`` of values, for all pairs of runs.

        The diagonal is 0; pairs that have no value are None.
        """
        index = {run.name: i for i, run in enumerate(self.runs)}
        n = len(index)
        out: list[list[float | None]] = [[0.0 if i == j else None for j in range(n)] for i in range(n)]
        for p in self.pairs:
            found = p.intervals.get(metric)
            value = None if found is None else found.value
            values = p.values or p.chosen or p.lists
            if metric in ("rms", "max_abs") and values is not None:
                value = getattr(values, metric)
            i, j = index[p.first], index[p.second]
            out[i][j] = out[j][i] = value
        return tuple(tuple(row) for row in out)

    def to_json(self) -> dict[str, Any]:
        """The whole comparison as JSON values, without arrays of rows."""
        return to_json(self)


def compare_runs(
    runs: Sequence[Run],
    *,
    reference: str | None = None,
    best: int = 10,
    floor: float = FLOOR,
    draws: int = DRAWS,
    seed: int = SEED,
    threads: int | None = None,
) -> RunsComparison:
    """Compare runs in one pass over their rows (more where they are many, or quantiles need it).

    Args:
        runs: one or more, with distinct names. One run gives its health and repeats.
        reference: compare each run with this one only; above `ALL_PAIRS` runs the first is taken if none is given.
        best: best tokens kept of full rows, for the overlap.
        floor: of the relative difference, in the unit of the values.
        draws: bootstrap resamples.
        seed: of the resampling.
        threads: of the pass; as many as there are cores by default. Results do not depend on it.

    Raises:
        InputError: no runs, two of one name, or an unknown reference.
    """
    runs = place(runs)
    names = [run.name for run in runs]
    if not runs:
        raise InputError("there is no run to compare", remedy="name one or more run folders or files")
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise InputError(f"two runs are called '{twice[0]}'", remedy="give them distinct names")
    if reference is not None and reference not in names:
        raise InputError(
            f"no run is called '{reference}'", place="reference", remedy=did_you_mean(reference, names)
        )
    findings: list[Finding] = []
    if reference is None and len(runs) > ALL_PAIRS:
        reference = names[0]
        text = f"more than {ALL_PAIRS} runs: each is compared with '{reference}' only"
        findings.append(Finding("reference", "note", text))
    alignments: dict[Pair, RunAlignment] = {}
    for i in range(len(runs)):
        for j in range(i + 1, len(runs)):
            if reference is None or reference in (names[i], names[j]):
                alignments[i, j] = align_runs(runs[i], runs[j])
                refusal = different_vocabularies((runs[i], runs[j]))
                if refusal is not None:
                    findings.append(refusal)
                    alignments[i, j] = refuse(alignments[i, j], "vocabularies differ")
    full = pass_over(runs, alignments, best=best, floor=floor, threads=threads)
    groups = grouped(runs)
    pairs = tuple(
        compare_pair((runs[i], runs[j]), (i, j), alignment, full, groups, floor=floor, draws=draws, seed=seed)
        for (i, j), alignment in alignments.items()
    )
    numbers = list(alignments)
    alike = {n: p.identical and not p.divergence.forked for n, p in zip(numbers, pairs, strict=True)}
    findings += no_effect(runs, alike)
    identity = classes(
        names,
        {n: p.identical for n, p in zip(numbers, pairs, strict=True)},
        {n: p.whole for n, p in zip(numbers, pairs, strict=True)},
        [run.manifest.capture.decimals for run in runs],
    )
    for name, others in identity.between:
        text = f"{name} was printed with fewer decimals than others, and as far as these go is equal to "
        text += f"{' and to '.join(others[:4])}, which differ: it stands alone"
        findings.append(Finding("coarse", "note", text, (name, *others)))
    return RunsComparison(
        runs=tuple(summary(run) for run in runs),
        settings=Settings(reference, best, floor, draws, seed),
        health=tuple(
            run_health(run, full.sides[i].fields if i in full.sides else None) for i, run in enumerate(runs)
        ),
        repeats=tuple((run.name, found) for run in runs if (found := repeats_of(run))),
        identity=identity,
        pairs=pairs,
        findings=tuple(findings),
    )


#: Fields that say where a run was, not what was asked for.
PLACES = frozenset({"gpu", "platform", "sm_count", "provider", "cuda", "driver", "flags.file"})


def no_effect(runs: Sequence[Run], identical: Mapping[Pair, bool]) -> list[Finding]:
    """Fields of the coordinate that change nothing: all pairs of runs that differ in that field alone are identical.

    A switch without effect is often one that was not obeyed; runs with the same files are no exception, as equal values
    make equal files.
    """
    seen: dict[str, list[tuple[Pair, str]]] = {}
    for i, j in identical:
        flat = [_flat(runs[k]) for k in (i, j)]
        differ = [k for k in sorted(flat[0].keys() | flat[1].keys()) if flat[0].get(k) != flat[1].get(k)]
        if len(differ) == 1:
            shown = " and ".join(
                "none given" if (v := side.get(differ[0])) is None else f"{v}" for side in flat
            )
            seen.setdefault(differ[0], []).append(((i, j), shown))
    found: list[Finding] = []
    for name, pairs in seen.items():
        if all(identical[pair] for pair, _ in pairs):
            where = tuple(dict.fromkeys(runs[k].name for pair, _ in pairs for k in pair))
            text = f"{name} has no effect: {pairs[0][1]} give identical values"
            asked = name not in PLACES
            found.append(
                Finding(
                    "no_effect",
                    "warning" if asked else "note",
                    text + ("; was it obeyed?" if asked else ""),
                    where,
                    len(pairs),
                )
            )
    return found


def _flat(run: Run) -> dict[str, Any]:
    """The coordinate with its flags, one level deep."""
    fields = run.manifest.coordinate.model_dump(mode="json")
    flags = fields.pop("flags", {})
    return fields | {f"flags.{k}": v for k, v in flags.items()}


def summary(run: Run) -> RunSummary:
    """One run, for tables."""
    manifest = run.manifest
    dtypes = sorted({str(s.full.dtype) for s in run.sequences if s.full is not None})
    return RunSummary(
        name=run.name,
        label=manifest.coordinate.label(),
        place=run.place,
        sha256=run.sha256,
        coordinate={
            k: v for k, v in manifest.coordinate.model_dump(mode="json").items() if v not in (None, {})
        },
        capture={k: v for k, v in manifest.capture.model_dump(mode="json").items() if v is not None},
        model=manifest.model,
        sequences=len(run.sequences),
        conversations=len({s.conversation for s in run.sequences}),
        rows=int(np.sum([s.rows for s in run.sequences])),
        vocab=vocabulary(run),
        dtype=", ".join(dtypes) or None,
    )
