"""`explain`: two specs, one input; where their bits part, how far that travels, which parts account for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from search.explain.attribution import (
    Attribution,
    Element,
    attribute,
    elements_of,
    legality,
    output_axes,
    parts_of,
    refuse_formats,
)
from search.explain.ensemble import Ensemble, ensemble
from search.explain.flat import Flat, flatten, paired
from search.explain.instructions import Realised, realised
from search.explain.legal import Legality
from search.explain.parts import Change
from search.explain.ranks import Ranking, rank
from search.explain.shapley import ORDERS
from search.explain.travel import Travel, sites, travel
from search.sides import before_rounding
from specs import Platform, Spec
from specs.errors import InputError, UlpscopeError, UnsupportedError
from verify.case import Case
from verify.emulator import Run
from verify.lower.behind import Behind, behind

Progress = Callable[[str, int, int], None]
Cell = tuple[Spec, Platform]


@dataclass(frozen=True)
class Explanation:
    """What was found.

    Attributes:
        labels: of both sides, as ``spec@platform``.
        runs: both, evaluated.
        travel: from the first difference to the stored output.
        same_program: whether no line, partition or primitive differs that the output depends on.
        changes: what differs, whether it was attributed or not.
        attribution: None where it was not asked for, or there is nothing to attribute: ``reason`` says which.
        rankings: of both sides; empty without an attribution.
        realised: instructions behind the first site where the sides part, and behind the first whose bits do; empty
            without a lowering.
    """

    labels: tuple[str, str]
    runs: tuple[Run, Run]
    travel: Travel
    same_program: bool
    changes: tuple[tuple[str, tuple[Change, ...]], ...]
    attribution: Attribution | None
    rankings: tuple[Ranking, ...]
    reason: str = ""
    realised: tuple[Realised, ...] = ()


def _quiet(what: str, done: int, total: int) -> None:
    pass


def start(case: Case, a: Cell, b: Cell, *, backend: str = "engine") -> tuple[Run, Run]:
    """Bind both sides to one input.

    Raises:
        UlpscopeError: as `verify.emulate`; UnsupportedError: the outputs have different formats.
    """
    first = case.start(*a, backend=backend)
    kv = first.kv
    same = case.problem(a[0]).formats == case.problem(b[0]).formats if kv is not None else False
    second = case.start(*b, backend=backend, kv=kv if same else None)
    refuse_formats((first, second))
    return first, second


def evaluate(runs: tuple[Run, Run]) -> None:
    """Evaluate what an explanation compares, both sides at a time."""
    wanted = sites(*runs)

    def one(run: Run) -> None:
        known = run.site_names()
        before = before_rounding(run.program)[1]
        run.evaluate([n for n in dict.fromkeys((*wanted, run.program.score_site(), before)) if n in known])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, runs))


def explain(
    case: Case,
    a: Cell,
    b: Cell,
    *,
    at: Mapping[str, int] | None = None,
    count: int = 1,
    attributed: bool = True,
    fine: bool = False,
    backend: str = "engine",
    seed: int = 0,
    orders: int = ORDERS,
    ranked: bool = True,
    lowerings: tuple[str | None, str | None] = (None, None),
    progress: Progress = _quiet,
) -> Explanation:
    """Explain the difference of two sides on one input.

    Args:
        case: the input.
        a, b: specs with their platforms.
        at: the output element to attribute, by axis; axes that are left out are chosen, where values before the last
            rounding differ most.
        count: how many elements are attributed, those that differ most first.
        attributed: whether to attribute at all.
        fine: each line that differs is a part of its own, as far as that is legal.
        backend: ``engine``, or ``oracle`` for inputs of a few tokens.
        seed: of sampled orders.
        orders: how many are sampled where parts are more than six.
        ranked: whether to rank lines by their first-order sensitivities, too.
        lowerings: what `verify.lower.behind.behind` takes, by side: of the kernel that its spec describes.
        progress: told what is done.

    Raises:
        UlpscopeError: as `start`. InputError: there is no such output element, or it is NaN.
    """
    progress("run", 0, 0)
    runs = start(case, a, b, backend=backend)
    behind = _lowerings(runs, lowerings)
    labels = tuple(f"{run.spec.name}@{run.platform.name}" for run in runs)
    flats = flat_pair(runs)
    evaluate(runs)
    progress("compare", 0, 0)
    found = travel(*runs, flats)
    parts = tuple(parts_of(flats, runs, fine=fine))
    judged, refused = _judged(flats, runs, fine) if attributed else (None, "")
    changes = tuple((p.name, p.changes) for p in parts)
    elements, reason = choose_elements(runs, at or {}, count) if attributed and parts else ([], "")
    attribution: Attribution | None = None
    rankings: tuple[Ranking, ...] = ()
    if judged is not None and elements:
        try:
            attribution = attribute(judged, elements, seed=seed, progress=progress, orders=orders)
        except UnsupportedError as error:
            reason = f"not attributed: {error.cause}"
    if attribution is not None:
        rankings = tuple(rank(run, attribution.parts) for run in runs) if ranked else ()
    return Explanation(
        labels=(labels[0], labels[1]),
        runs=runs,
        travel=found,
        same_program=not parts,
        changes=changes,
        attribution=attribution,
        rankings=rankings,
        reason=refused or reason,
        realised=_realised(found, runs, behind),
    )


def _lowerings(runs: tuple[Run, Run], names: tuple[str | None, str | None]) -> list[Behind | None]:
    return [
        None if name is None else behind(name, f"sm_{run.platform.context.get('compute_capability', 0)}")
        for run, name in zip(runs, names, strict=True)
    ]


def _realised(
    found: Travel, runs: tuple[Run, Run], lowerings: Sequence[Behind | None]
) -> tuple[Realised, ...]:
    """The instructions behind the sites where the sides part first, of either side that has a lowering."""
    sites = list(dict.fromkeys(s.name for s in (found.first, found.first_same) if s is not None))
    own = [
        None if low is None else flatten(run, run.spec.name) for run, low in zip(runs, lowerings, strict=True)
    ]
    return tuple(
        realised(side, site, flat, low)
        for site in sites
        for side, (flat, low) in enumerate(zip(own, lowerings, strict=True))
        if flat is not None and low is not None
    )


def _judged(flats: tuple[Flat, Flat], runs: tuple[Run, Run], fine: bool) -> tuple[Legality | None, str]:
    """The parts ready to be exchanged, or why a side cannot be taken apart."""
    try:
        return legality(flats, runs, fine=fine), ""
    except UlpscopeError as error:
        return None, f"not attributed, as a side cannot be taken apart: {error.cause}"


def explain_many(
    cases: Callable[[int], Case],
    count: int,
    a: Cell,
    b: Cell,
    *,
    fine: bool = False,
    backend: str = "engine",
    seed: int = 0,
    orders: int = ORDERS,
    progress: Progress = _quiet,
) -> Ensemble | None:
    """Shares of the outputs that change, over ``count`` inputs of one shape; None if the sides are one program.

    Args:
        cases: the input of each number.
        count: how many.
        a, b, fine, backend, seed, orders, progress: as `explain`.

    Raises:
        as `explain`.
    """
    first = start(cases(0), a, b, backend=backend)
    judged: Legality | None = legality(flat_pair(first), first, fine=fine)
    if judged is None:
        return None

    def pair(i: int) -> tuple[Run, Run]:
        runs = first if i == 0 else start(cases(i), a, b, backend=backend)
        for run in runs:
            known = run.site_names()
            run.evaluate([n for n in ("output", run.program.score_site()) if n in known])
        return runs

    return ensemble(judged, pair, count, seed=seed, progress=progress, orders=orders)


def flat_pair(runs: tuple[Run, Run]) -> tuple[Flat, Flat]:
    """Both sides as tables under shared names."""
    return paired(*(flatten(run, f"{run.spec.name} on {run.platform.name}") for run in runs))


def choose_elements(
    runs: tuple[Run, Run], at: Mapping[str, int], count: int = 1
) -> tuple[list[Element], str]:
    """The output elements to attribute, or why there are none.

    As asked, and for the rest those of which the values before the last rounding differ most.

    Raises:
        InputError: there is no such axis or element.
    """
    axes = output_axes(runs[0])
    for axis in at:
        if axis not in axes:
            raise InputError(
                f"the output has no axis '{axis}'", place=f"--{axis}", remedy=f"its axes: {', '.join(axes)}"
            )
    elements_of(runs[0], [at])
    stored = [run.outward("output").astype(np.float64) for run in runs]
    names = [before_rounding(run.program)[1] for run in runs]
    wide = [
        run.outward(name).astype(np.float64) if name in run.known else out
        for run, name, out in zip(runs, names, stored, strict=True)
    ]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1]) & np.isfinite(stored[0]) & np.isfinite(stored[1])
    with np.errstate(invalid="ignore"):
        gap = np.where(finite, np.abs(wide[1] - wide[0]), -1.0)
    here = tuple(slice(at[a], at[a] + 1) if a in at else slice(None) for a in axes)
    part = gap[here]
    if not (part >= 0).any():
        if at and len(at) == len(axes):
            return elements_of(runs[0], [at]), ""
        return [], "no output is finite on both sides: there is nothing to attribute"
    ranked = np.argsort(-part, axis=None, kind="stable")[:count]
    places = [np.unravel_index(int(flat), part.shape) for flat in ranked if part.flat[flat] >= 0]
    full = [{a: at.get(a, int(i)) for a, i in zip(axes, where, strict=True)} for where in places]
    return elements_of(runs[0], full), ""
