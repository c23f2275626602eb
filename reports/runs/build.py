"""From what `verify.metrics` found to the contract of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import PurePath
from time import perf_counter
from typing import Any

from reports.contract_base import Note
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.distance import MEASURES, PREFERRED, Measure, distance, largest, measure
from reports.runs.predicting import Given, Progress, predict_section
from reports.runs.regions import gross, regions
from reports.runs.wording import verdict, with_prediction
from reports.versions import versions as installed
from verify.metrics.bootstrap import DRAWS, FEWEST, SEED
from verify.metrics.compare import RunsComparison, compare_runs
from verify.metrics.jsonable import to_json
from verify.metrics.pairs import PairComparison
from verify.runs.load import unique
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Recorded
from verify.words import plural

#: Pairs that keep their depth, ranges and values by conversation; of more, the farthest.
DETAILED = 200


def compare(
    runs: Sequence[Run],
    *,
    command: str = "",
    reference: str | None = None,
    metric: str | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
    predicted: Sequence[Given] = (),
    candidates: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> tuple[c.DivergenceReport, RunsComparison]:
    """Compare runs and report it.

    Args:
        runs: one or more, with distinct names.
        command: what the user typed.
        reference: compare each run with this one only.
        metric: a name of `MEASURES`, for the geometry; None takes what all pairs have.
        draws: bootstrap resamples; ``seed`` of them.
        predicted, candidates, progress: of the prediction section, see `reports.runs.predicting.predict_section`.

    Raises:
        InputError: no run, an unknown reference or metric; or as `predict_section`.
    """
    began, started = perf_counter(), datetime.now(UTC)
    asked = None if metric is None else measure(metric)
    found = compare_runs(runs, reference=reference, draws=draws, seed=seed)
    report = build(found, asked)
    if predicted or candidates is not None:
        section = predict_section(runs, predicted, candidates, draws=draws, seed=seed, progress=progress)
        report = with_prediction(report, section)
    provenance = c.Provenance(
        command=command,
        started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        seconds=perf_counter() - began,
        versions=versions(),
        settings={**to_json(found.settings), "metric": metric},
    )
    return report.model_copy(update={"provenance": provenance}), found


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    return installed(("ulpscope", "numpy", "ml_dtypes"))


def build(found: RunsComparison, asked: Measure | None = None) -> c.DivergenceReport:
    """The report of a comparison, without provenance."""
    kept = [p for p in found.pairs if p.coverage.rows or p.coverage.refused]
    order = sorted(kept, key=lambda p: -(largest(p) or 0.0))
    detailed = {(p.first, p.second) for p in order[:DETAILED]}
    pairs = tuple(_pair(p, (p.first, p.second) in detailed) for p in kept)
    coordinates = [c.Coordinate.model_validate(to_json(run)) for run in found.runs]
    repeats = tuple(
        c.RepeatedRun(run=name, conversations=m.take_all(m.Repeated, one)) for name, one in found.repeats
    )
    identity = tuple(_identity(found))
    shapes, notes = regions(found, asked)
    findings = m.take_all(m.Finding, found.findings)
    health = m.take_all(m.RunHealth, found.health)
    unrelated = len(found.pairs) - len(kept)
    return c.DivergenceReport(
        title=f"Divergence of {len(coordinates)} runs"
        if len(coordinates) > 1
        else f"Run {coordinates[0].name}",
        verdict=verdict(coordinates, identity, pairs, repeats, findings, health, unrelated),
        provenance=c.Provenance(command="", started="", seconds=0.0, versions={}, settings={}),
        coordinates=tuple(coordinates),
        health=health,
        identity=identity,
        repeats=repeats,
        matrices=tuple(_matrices(found, asked)),
        pairs=pairs,
        unrelated=unrelated,
        geometry=shapes,
        findings=findings,
        notes=tuple(_notes(found, kept, notes)),
    )


def _part(model: type[m.M], result: Any) -> m.M | None:
    return None if result is None else m.take(model, result)


def _pair(p: PairComparison, detailed: bool) -> c.Pair:
    part = p.values or p.chosen
    return c.Pair(
        first=p.first,
        second=p.second,
        kind=p.kind,
        identical=p.identical,
        whole=p.whole,
        max_abs=to_json(largest(p)),
        exact=None if part is None else part.exact,
        equal_in=p.equal_in,
        coverage=m.take(m.Coverage, p.coverage),
        first_difference=_part(m.FirstDifference, p.first_difference),
        values=_part(m.Values, p.values),
        chosen=_part(m.Values, p.chosen),
        distribution=_part(m.Distribution, p.distribution),
        lists=_part(m.Lists, p.lists),
        likelihood=_part(m.Likelihood, p.likelihood),
        decisions=m.take(m.Decisions, p.decisions),
        texts=m.take(m.Texts, p.divergence),
        intervals={name: m.take(m.Interval, one) for name, one in p.intervals.items()},
        depth=m.take_all(m.Bin, p.depth) if detailed else None,
        position=m.take_all(m.Bin, p.position) if detailed else None,
        ranges=m.take_all(m.Bin, p.ranges) if detailed else None,
        attention=tuple((name, m.take(m.Tensor, one)) for name, one in p.attention),
        findings=m.take_all(m.Finding, p.findings),
    )


def _identity(found: RunsComparison) -> Iterator[c.IdentityClass]:
    by_pair = {frozenset((p.first, p.second)): p for p in found.pairs}
    printed = {run.name: run.capture.get("decimals") for run in found.runs}
    for members in found.identity.classes:
        inside = [by_pair[frozenset(two)] for two in combinations(members, 2) if frozenset(two) in by_pair]
        yield c.IdentityClass(
            runs=members,
            exactness=_exactness(inside),
            decimals=fewest({printed[name] for name in members}),
            partial=members in found.identity.partial,
            rows=min((p.coverage.rows for p in inside), default=0),
        )


def fewest(decimals: Set[int | None]) -> int | None:
    """The fewest of unequal numbers of decimals, None being all of them; None where they are equal."""
    return min(d for d in decimals if d is not None) if len(decimals) > 1 else None


def _exactness(inside: Sequence[PairComparison]) -> Any:
    """The weakest sense in which the pairs of a class are equal; a run alone is equal to itself."""
    kinds = {part.exactness for p in inside for part in (p.values, p.chosen) if part is not None}
    if "printed digits" in kinds:
        return "printed digits"
    quantised = any(f.code == "quantised" for p in inside for f in p.findings)
    loose = "values" in kinds or quantised or any(p.lists is not None for p in inside)
    return "values" if loose or (inside and not kinds) else "bits"


def _matrices(found: RunsComparison, asked: Measure | None) -> Iterator[c.Matrix]:
    """The largest difference, and each distance of those preferred (or asked for) that any pair has."""
    wanted = [MEASURES["max_abs"], *(MEASURES[name] for name in PREFERRED)]
    if asked is not None and asked not in wanted:
        wanted.append(asked)
    names = [run.name for run in found.runs]
    at = {name: i for i, name in enumerate(names)}
    for one in wanted:
        values: list[list[Any]] = [[0.0 if i == j else None for j in at.values()] for i in at.values()]
        some = False
        for p in found.pairs:
            value = to_json(largest(p) if not one.source else distance(p, one))
            some |= value is not None
            i, j = at[p.first], at[p.second]
            values[i][j] = values[j][i] = value
        if some:
            yield c.Matrix(
                metric=one.name, title=one.title, names=tuple(names), values=tuple(tuple(r) for r in values)
            )


def _notes(found: RunsComparison, kept: Sequence[PairComparison], more: Sequence[str]) -> Iterator[Note]:
    compared = [p for p in kept if p.coverage.rows]
    few = [p for p in compared if p.coverage.conversations < FEWEST]
    if few:
        yield Note(
            kind="limit",
            text=f"{len(few)} of {plural(len(compared), 'pair')} {'has' if len(few) == 1 else 'have'} fewer than "
            f"{FEWEST} conversations: no intervals, but the "
            "values of each conversation and their range.",
        )
    if len(kept) > DETAILED:
        yield Note(
            kind="limit",
            text=f"Depth and ranges are kept for the {DETAILED} pairs that are farthest apart, of {len(kept)}.",
        )
    off = [p for p in compared if gross(p)]
    if off and len(found.runs) > 2:
        yield Note(
            kind="limit",
            text="Pairs that are not numerics are left out of the geometry, and so of every centre.",
        )
    yield from (Note(kind="limit", text=text + ".") for text in more)


def named(groups: Sequence[tuple[str, Sequence[Run]]]) -> tuple[Run, ...]:
    """Runs with distinct names.

    Args:
        groups: (argument, its runs). Where there are several arguments, the name of one that holds more runs goes before
            theirs. Where two runs still have one name, those that an argument holds alone are called by the last part of
            its path, if that tells them apart.
    """
    if len(groups) > 1:
        groups = [(a, _prefixed(PurePath(a).stem, held) if len(held) > 1 else held) for a, held in groups]
    runs = [run for _, held in groups for run in held]
    if len({run.name for run in runs}) < len(runs):
        tails = [PurePath(argument).name for argument, held in groups if len(held) == 1]
        if len(set(tails)) == len(tails) and all(tails):
            runs = [
                replace(run, name=PurePath(argument).name) if len(held) == 1 else run
                for argument, held in groups
                for run in held
            ]
    return unique([replace(run, sequences=tuple(map(_encodable, run.sequences))) for run in runs])


def _encodable(sequence: Recorded) -> Recorded:
    """A sequence whose names can be written: JSON may hold halves of characters, which no encoding has."""

    def mended(text: str) -> str:
        return text.encode("utf-8", "replace").decode("utf-8")

    ranges = None if sequence.ranges is None else tuple(map(mended, sequence.ranges))
    return replace(sequence, conversation=mended(sequence.conversation), ranges=ranges)


def _prefixed(name: str, runs: Sequence[Run]) -> list[Run]:
    return [replace(run, name=f"{name}: {run.name}") for run in runs]
