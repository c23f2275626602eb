"""From predicted runs and candidates to the prediction section of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from reports.contract_base import Note
from reports.formatting import count, short
from reports.runs import measured as m
from reports.runs import prediction as c
from reports.runs.distance import largest
from reports.runs.wording import WORDS
from specs.errors import InputError, did_you_mean
from verify.metrics import predicted as numbers
from verify.metrics.align import RunAlignment, align_runs, place, refuse
from verify.metrics.bootstrap import DRAWS, SEED
from verify.metrics.jsonable import to_json
from verify.metrics.pair_findings import different_vocabularies
from verify.metrics.pairs import PairComparison, compare_pair
from verify.metrics.plan import Pair, grouped, pass_over
from verify.metrics.predicted_view import (
    candidates_by_coordinate,
    equal_in_lists,
    kernel_of,
    renamed,
    seen_as,
)
from verify.runs.run import Run
from verify.words import plural

Progress = Callable[[str, int, int], None]

#: Pairs of coordinates whose differences are set against predicted ones.
MOST = 200
#: A coordinate counts as predicted in direction and size where this share of its pairs is.
HALF = 0.5
#: Why a prediction has no row in common with a coordinate.
NO_ROW = "no row of a prediction has the same text before it"


@dataclass(frozen=True)
class Given:
    """A predicted run, and the name of the real run that the user says it stands for."""

    run: Run
    real: str | None = None


@dataclass(frozen=True)
class _Matched:
    """A real run with its candidates (numbers of predicted runs), and how they were found."""

    how: c.How
    candidates: tuple[int, ...]


def predict_section(
    reals: Sequence[Run],
    given: Sequence[Given] = (),
    candidates: Sequence[str] | None = None,
    *,
    draws: int = DRAWS,
    seed: int = SEED,
    progress: Progress | None = None,
) -> c.Prediction:
    """Set predicted runs, and candidates for attention, against real runs.

    Args:
        reals: what was recorded, with distinct names.
        given: predicted runs.
        candidates: SPEC, SPEC@PLATFORM or @PLATFORM, for runs that hold attention tensors; None: not asked for.
        draws: bootstrap resamples; ``seed`` of them.
        progress: told what is done.

    Raises:
        InputError: a prediction stands for a run that does not exist; no run has attention tensors, or no candidate fits.
    """
    coordinates, differences, notes = _logits(reals, given, draws, seed)
    attention: tuple[c.AttentionRun, ...] = ()
    if candidates is not None:
        from reports.runs.predicting_attention import attention_runs

        attention = attention_runs(reals, candidates, progress)
    return c.Prediction(
        headline=_headline(coordinates, attention),
        predicted=tuple(_predicted(g.run) for g in given),
        coordinates=coordinates,
        differences=differences,
        attention=attention,
        thresholds={
            "correlation": numbers.CORRELATED,
            "slope, least": numbers.SLOPES[0],
            "slope, most": numbers.SLOPES[1],
            "rows, standard errors": numbers.ERRORS,
            "share of pairs": HALF,
        },
        notes=notes,
    )


def _predicted(run: Run) -> c.PredictedRun:
    flags = run.manifest.coordinate.flags
    kernel = kernel_of(run)
    backend = run.manifest.coordinate.attention_backend or "not known"
    return c.PredictedRun(
        name=run.name,
        place=run.place,
        sha256=run.sha256,
        arithmetic=str(flags.get("arithmetic", "not known")),
        kernel=f"{backend}@{kernel.platform}" if kernel.platform else backend,
        declared=flags.get("predicted") is True,
    )


def _logits(
    reals: Sequence[Run], given: Sequence[Given], draws: int, seed: int
) -> tuple[tuple[c.CoordinatePrediction, ...], tuple[c.Difference, ...], tuple[Note, ...]]:
    if not given:
        return (), (), ()
    reals = place(reals)
    predicted = [renamed(g.run, reals) for g in given]
    matched = match(reals, predicted, [g.real for g in given])
    views: list[Run] = []
    cells: dict[Pair, int] = {}
    for i, one in enumerate(matched):
        for k in one.candidates:
            cells[i, k] = len(reals) + len(views)
            views.append(seen_as(predicted[k], reals[i]))
    runs = [*reals, *views]
    fits, refused = _fits(runs, cells, draws, seed)
    ranked = [
        sorted((k for k in one.candidates if fits[i, k].rows), key=lambda k, i=i: _nearness(fits[i, k]))
        for i, one in enumerate(matched)
    ]
    chosen = [ks[0] if ks else None for ks in ranked]
    pairs = [
        (i, j)
        for i, j in combinations(range(len(reals)), 2)
        if chosen[i] is not None and chosen[j] is not None
    ]
    quads = [numbers.Quad(i, j, _cell(cells, i, chosen), _cell(cells, j, chosen)) for i, j in pairs[:MOST]]
    found = [d for d in numbers.differences(runs, quads, draws=draws, seed=seed) if d.rows]
    one_for_both = {(reals[i].name, reals[j].name) for i, j in pairs if chosen[i] == chosen[j]}
    found = [
        replace(d, reason="one predicted run stands for both coordinates")
        if (d.first, d.second) in one_for_both and d.outcome == "unexplained"
        else d
        for d in found
    ]
    coordinates = tuple(
        _coordinate(
            reals[i].name,
            one,
            [fits[i, k] for k in ranked[i]],
            found,
            next((refused[i, k] for k in one.candidates if (i, k) in refused), NO_ROW),
        )
        for i, one in enumerate(matched)
    )
    notes = [
        Note(kind="warning", text=f"{g.run.name} does not say that it was predicted.")
        for g in given
        if g.run.manifest.coordinate.flags.get("predicted") is not True
    ]
    if len(pairs) > MOST:
        notes.append(
            Note(
                kind="limit",
                text=f"Differences of {MOST} pairs of coordinates were predicted, of {len(pairs)}.",
            )
        )
    return coordinates, m.take_all(c.Difference, found), tuple(notes)


def _cell(cells: dict[Pair, int], i: int, chosen: Sequence[int | None]) -> int:
    k = chosen[i]
    assert k is not None
    return cells[i, k]


def match(reals: Sequence[Run], predicted: Sequence[Run], named: Sequence[str | None]) -> list[_Matched]:
    """The predicted runs that may stand for each real one: those that are named, or else those whose kernel and platform
    are its own, or else all that are not named for another.

    Raises:
        InputError: an unknown name.
    """
    names = [run.name for run in reals]
    for name in named:
        if name is not None and name not in names:
            raise InputError(
                f"no run is called '{name}'", place="--predicted", remedy=did_you_mean(name, names)
            )
    free = [k for k, name in enumerate(named) if name is None]
    out: list[_Matched] = []
    for run in reals:
        told = tuple(k for k, name in enumerate(named) if name == run.name)
        if told:
            out.append(_Matched("named", told))
            continue
        own = tuple(free[i] for i in candidates_by_coordinate(run, [predicted[k] for k in free]))
        if own:
            out.append(_Matched("coordinate" if len(own) == 1 else "best", own))
        else:
            out.append(_Matched("best" if free else "none", tuple(free)))
    return out


def _fits(
    runs: Sequence[Run], cells: dict[Pair, int], draws: int, seed: int
) -> tuple[dict[Pair, c.Fit], dict[Pair, str]]:
    """Each real run of ``cells`` against the predicted one, as any pair of runs is compared; and why some are not."""
    alignments: dict[Pair, RunAlignment] = {}
    refused: dict[Pair, str] = {}
    for (i, k), at in cells.items():
        alignments[i, at] = align_runs(runs[i], runs[at])
        why = _unlike(runs[i], runs[at])
        if why:
            alignments[i, at] = refuse(alignments[i, at], why)
            refused[i, k] = why
    full = pass_over(runs, alignments)
    groups = grouped(runs)
    found: dict[Pair, c.Fit] = {}
    for (i, k), at in cells.items():
        two = runs[i], runs[at]
        pair = compare_pair(two, (i, at), alignments[i, at], full, groups, draws=draws, seed=seed)
        found[i, k] = _fit(*two, pair)
    return found, refused


def _unlike(real: Run, view: Run) -> str:
    """Why a prediction cannot be set against a real run at all, or nothing."""
    kinds = [run.manifest.capture.value_kind for run in (view, real)]
    if kinds[0] != kinds[1]:
        return f"{view.name} holds {kinds[0]}, the capture {kinds[1]}"
    found = different_vocabularies((real, view))
    return "" if found is None else found.text


def _fit(real: Run, view: Run, p: PairComparison) -> c.Fit:
    part = p.values or (None if p.lists is not None else p.chosen)
    exactness, elements, equal = "values", 0, 0
    if part is not None:
        exactness = part.exactness
        elements = part.n + part.nan_both + part.nan_mismatch + part.inf_both + part.inf_mismatch
        equal = part.n - part.different + part.nan_both + part.inf_both
    elif p.lists is not None:
        exactness = "values" if real.manifest.capture.decimals is None else "printed digits"
        elements, equal = equal_in_lists(real, view)
    distance = p.values or p.lists or p.chosen
    different = None if p.first_difference is None else m.take(m.FirstDifference, p.first_difference)
    return c.Fit.model_validate(
        {
            "predicted": view.name,
            "real": real.name,
            "identical": elements > 0 and equal == elements,
            "exactness": exactness,
            "conversations": p.coverage.conversations,
            "rows": p.coverage.rows,
            "elements": elements,
            "equal": equal,
            "max_abs": to_json(largest(p)),
            "rms": None if distance is None else to_json(distance.rms),
            "flips": p.decisions.flips,
            "decided": p.decisions.n,
            "first_difference": different,
            "same_capture": p.coverage.same_capture,
        }
    )


def _nearness(fit: c.Fit) -> tuple[float, float]:
    """For sorting: a smaller RMS first, then more equal elements."""
    rms = float("inf") if fit.rms is None else float(fit.rms)
    return rms, -fit.equal


def _coordinate(
    name: str,
    one: _Matched,
    fits: Sequence[c.Fit],
    differences: Sequence[numbers.Differences],
    nothing: str,
) -> c.CoordinatePrediction:
    """The outcome of one coordinate. ``fits``: nearest first; ``nothing``: why there may be none."""

    def said(outcome: c.Outcome, reason: str) -> c.CoordinatePrediction:
        how = one.how if fits else "none"
        who = fits[0].predicted if fits else None
        return c.CoordinatePrediction(
            run=name, outcome=outcome, reason=reason, predicted=who, how=how, fits=tuple(fits)
        )

    if not one.candidates:
        return said("unexplained", "there is no prediction for it")
    if not fits:
        return said("unexplained", nothing)
    best = fits[0]
    if best.same_capture:
        return said("unexplained", f"the predicted run is this very capture: {best.same_capture}")
    if best.identical:
        return said(
            "bit-exact",
            f"{WORDS[best.exactness]} with {best.predicted}: {count(best.elements)} values on {plural(best.rows, 'row')}",
        )
    own = [d for d in differences if name in (d.first, d.second) and d.elements]
    good = [d for d in own if d.outcome != "unexplained"]
    far = "" if best.rms is None else f"; {best.predicted} itself is off by {short(float(best.rms))} RMS"
    if not own:
        return said("unexplained", f"no other coordinate with a prediction to take a difference with{far}")
    held = len(good) >= HALF * len(own)
    if len(own) == 1:
        other = own[0].second if own[0].first == name else own[0].first
        why = f"difference with {other}: {own[0].reason}"
    elif held:
        why = (
            f"{len(good)} of {len(own)} differences with others {'is' if len(good) == 1 else 'are'} predicted"
        )
    else:
        reasons = Counter(d.reason for d in own if d.outcome == "unexplained")
        why = f"{len(own) - len(good)} of {len(own)} differences with others are not: {reasons.most_common(1)[0][0]}"
    return said("direction and size" if held else "unexplained", why + far)


def _headline(coordinates: Sequence[c.CoordinatePrediction], attention: Sequence[c.AttentionRun]) -> str:
    parts: list[str] = []
    kinds = Counter(x.outcome for x in coordinates)
    words = {
        "bit-exact": "predicted bit-exactly",
        "direction and size": "predicted in direction and size",
        "unexplained": "unexplained",
    }
    if coordinates:
        told = ", ".join(f"{kinds[k]} {w}" for k, w in words.items() if kinds[k])
        parts.append(f"of {plural(len(coordinates), 'coordinate')}: {told}")
    if attention:
        parts += [f"attention of {a.run}: {a.verdict}" for a in attention[:3]]
        parts += [f"{len(attention) - 3} more runs with attention"] if len(attention) > 3 else []
    return "; ".join(parts) or "nothing was predicted"
