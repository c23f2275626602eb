"""One input through every backend and platform: the cells of a report and what follows from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.contract import (
    ArrayInfo,
    Cell,
    Exact,
    InputInfo,
    Note,
    Ownership,
    Study,
    TokenRun,
)
from reports.parallel import by_spec
from reports.readings import Errors, distances, histogram, number, reading, wide_site
from reports.shape import geometry
from reports.target import Target
from reports.wording import study_verdict
from specs import Spec
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from verify.answer import exact_answer, score_error
from verify.arguments import Problem
from verify.case import Case, finish
from verify.emulator import Run
from verify.exact import Enclosure
from verify.partition import Plan
from verify.together import at_one_shape


@dataclass(frozen=True, slots=True)
class About:
    """What a reader should know of an input."""

    id: str
    title: str
    description: str
    origin: str
    licence: str


@dataclass(frozen=True)
class Computed:
    """The arrays of one cell: ``sites`` from the widest to the output."""

    target: Target
    plan: Plan
    sites: tuple[tuple[str, Format, NDArray[Any]], ...]
    lse: NDArray[Any] | None
    dead_rows: int


def compute(case: Case, targets: Sequence[Target]) -> list[Computed | UnsupportedError]:
    """Emulate cells of one spec, compiled once for all of them. A cell that cannot be emulated gives its error.

    Raises:
        UlpscopeError: every other error of `verify.emulate`.
    """
    started: list[Run | UnsupportedError] = []
    for target in targets:
        try:
            started.append(case.start(target.spec, target.platform))
        except UnsupportedError as error:
            started.append(error)
    runs = iter(at_one_shape([run for run in started if not isinstance(run, UnsupportedError)]))
    return [
        start if isinstance(start, UnsupportedError) else _computed(target, next(runs))
        for target, start in zip(targets, started, strict=True)
    ]


def _computed(target: Target, run: Run) -> Computed:
    wide = wide_site(run.program)
    result = finish(run, [wide] if wide else [])
    sites = [
        (name, _format(run.program.sites[name].type.format), result.trace[name])
        for name in (wide, "output")
        if name is not None
    ]
    return Computed(target, result.plan, tuple(sites), result.lse, result.empty_rows)


def _format(fmt: Format | None) -> Format:
    assert fmt is not None, "an output is a float"
    return fmt


def entry_formats(spec: Spec) -> dict[str, Format]:
    """The formats in which ``spec`` takes ready scores, q, k and v."""
    numbers = spec.numbers
    return {"scores": numbers.compute_format, **{n: numbers.input_format(n) for n in ("q", "k", "v")}}


def study(case: Case, about: About, targets: Sequence[Target], notes: Sequence[Note] = ()) -> Study:
    """Run ``case`` through ``targets`` and gather everything that the report shows of it.

    A cell that cannot be emulated says why; it does not stop the others.
    """
    problem = case.problem(targets[0].spec)
    exact = exact_answer(problem)
    done: list[Computed] = []
    cells: list[Cell] = []
    errors: dict[str, list[Errors]] = {}
    for target, computed in zip(targets, by_spec(targets, lambda group: compute(case, group)), strict=True):
        if isinstance(computed, UnsupportedError):
            cells.append(_absent(target, computed))
            continue
        cell, found = _cell(computed, exact)
        done.append(computed)
        cells.append(cell)
        for (site, _, _), e in zip(computed.sites, found, strict=True):
            errors.setdefault(site, []).append(e)
    if not done:
        raise InputError(
            "no cell could be computed", place=case.name, remedy="see `ulpscope emulate` for the reason"
        )
    names = [c.target.name for c in done]
    where = {c.target.name: (c.target.backend, c.target.platform_title) for c in done}
    tables = [
        distances(site, fmt, names, [c.sites[n][2] for c in done])
        for n, (site, fmt, _) in enumerate(done[0].sites)
        if all(len(c.sites) > n and c.sites[n][1] == fmt for c in done)
    ]
    words = {
        d.site: ("mean" if d.outputs > 1 else "maximum") + f" {d.format} ULP at {d.site}" for d in tables
    }
    views = [view for d in tables if (view := geometry(words[d.site], d, where)) is not None]
    return Study(
        id=about.id,
        input=_info(case, about),
        verdict=study_verdict(cells, tables),
        exact=_exact(exact, problem),
        cells=tuple(cells),
        distances=tuple(tables),
        geometry=tuple(views[:1]) if tables and tables[0].outputs == 1 else tuple(views),
        histograms=tuple(
            histogram(f"{fmt.name} distance from the exact answer, at {site}", fmt, names, errors[site])
            for site, fmt, values in done[0].sites
            if values.size > 1 and len(errors[site]) == len(names)
        ),
        ownership=tuple(_ownership(c) for c in done),
        notes=(*notes, *_other_inputs(targets[0].spec, [c.target for c in done], case), *_limits(done)),
    )


def _absent(target: Target, error: UnsupportedError) -> Cell:
    return Cell(
        name=target.name,
        backend=target.backend,
        platform=target.platform_title,
        spec=target.spec.name,
        requested=target.requested,
        status="unsupported",
        reason=error.cause,
    )


def _cell(computed: Computed, exact: Enclosure) -> tuple[Cell, list[Errors]]:
    target = computed.target
    read = [reading(site, values, fmt, exact) for site, fmt, values in computed.sites]
    sizes = [group.tokens.size for group in computed.plan.groups] or [0]
    content = hashlib.sha256()
    for site, _, values in computed.sites:
        content.update(site.encode() + b"\0" + np.ascontiguousarray(values).tobytes())
    lse = computed.lse
    form = computed.plan.program.sites["lse"].type.format if lse is not None else None
    cell = Cell(
        name=target.name,
        backend=target.backend,
        platform=target.platform_title,
        spec=target.spec.name,
        requested=target.requested,
        status="computed",
        content_hash=content.hexdigest(),
        groups=computed.plan.count,
        span=(min(sizes), max(sizes)),
        outputs=computed.sites[-1][2].size,
        readings=tuple(r for r, _ in read),
        lse=None if lse is None or form is None else number(lse.reshape(-1)[0], form),
        dead_rows=computed.dead_rows,
    )
    return cell, [e for _, e in read]


def _ownership(computed: Computed) -> Ownership:
    program = computed.plan.program
    rules = computed.target.spec.levels
    return Ownership(
        cell=computed.target.name,
        kv_len=computed.plan.kv_len,
        rule=", ".join(f"{name} = {rules.get(name, '')}" for name in program.level_names),
        groups=tuple(token_runs(group.tokens) for group in computed.plan.groups),
    )


def token_runs(tokens: NDArray[np.int64]) -> tuple[TokenRun, ...]:
    """Tokens in visiting order as runs of consecutive ones."""
    if not tokens.size:
        return ()
    cuts = np.flatnonzero(np.diff(tokens) != 1) + 1
    return tuple(TokenRun(start=int(part[0]), count=len(part)) for part in np.split(tokens, cuts))


def _limits(done: Sequence[Computed]) -> list[Note]:
    """Where this length is too short to tell the platforms of a backend apart."""
    notes: list[Note] = []
    for backend in dict.fromkeys(c.target.backend for c in done):
        mine = [
            c for c in done if c.target.backend == backend and c.target.spec.name == _first(done, backend)
        ]
        same = len({(c.plan.tokens.shape, c.plan.tokens.tobytes()) for c in mine}) == 1
        if len(mine) > 1 and same:
            platforms = ", ".join(c.target.platform_title for c in mine)
            notes.append(
                Note(
                    kind="limit",
                    text=f"{backend} divides these {mine[0].plan.kv_len:,} tokens alike on {platforms}: "
                    "this input cannot tell those platforms apart.",
                )
            )
    return notes


def _first(done: Sequence[Computed], backend: str) -> str:
    return next(c.target.spec.name for c in done if c.target.backend == backend)


def _info(case: Case, about: About) -> InputInfo:
    hashes = case.hashes()
    return InputInfo(
        name=case.name,
        title=about.title,
        description=about.description,
        origin=about.origin,
        licence=about.licence,
        arrays=tuple(
            ArrayInfo(name=n, shape=a.shape, dtype=str(a.dtype), sha256=hashes[n])
            for n, a in case.arrays.items()
        ),
        context={k: int(v) for k, v in case.shape().items()},
    )


def _used(case: Case) -> tuple[str, ...]:
    return ("scores", "v") if "scores" in case.arrays else ("q", "k", "v")


def _other_inputs(reference: Spec, targets: Sequence[Target], case: Case) -> list[Note]:
    """A note on specs whose inputs are rounded otherwise than those of the exact answer, by ``reference``."""
    first = entry_formats(reference)
    other = [
        spec.name
        for spec in {t.spec.name: t.spec for t in targets}.values()
        if any(entry_formats(spec)[n] != first[n] for n in _used(case))
    ]
    if not other:
        return []
    return [
        Note(
            kind="limit",
            text=f"The exact answer is that for inputs as {reference.name} takes them. "
            f"{', '.join(other)} rounds them to other formats, which is part of its distance.",
        )
    ]


def _exact(exact: Enclosure, problem: Problem) -> Exact:
    first = exact.balls[0]
    names = ("scores", "v") if problem.scores is not None else ("q", "k", "v")
    taken = ", ".join(f"{'values' if n == 'v' else n} in {problem.formats[n].name}" for n in names)
    sums = ""
    if problem.q is not None:
        bound = score_error(problem.q.shape[-1])
        sums = f"; scores are q · k summed in float64, with an error below {bound:.0e} of the largest product"
    return Exact(
        sample=first.mid().str(16, radius=False),
        method=f"softmax attention in ball arithmetic at 128 bits, on inputs as the backend takes them ({taken}){sums}",
        width=f"{2 * float(exact.radius.max()):.1e}",
    )
