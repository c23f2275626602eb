"""The emulators against a capture: record by record, site by site, bit by bit.

Sites are compared in the order in which the kernel computes them, so that the first difference is the earliest
cause that the capture shows. NaN equals NaN whatever its payload; everything else is compared as bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec, load_platform, load_spec
from specs.discover import every
from specs.errors import InputError, SpecError, UnsupportedError, did_you_mean
from verify.capture.format import Capture
from verify.capture.hints import hint
from verify.capture.inputs import load
from verify.capture.kernels import KERNELS, Kernel, Site, listed_kernels
from verify.capture.machine import number
from verify.capture.manifest import Machine, Record
from verify.capture.probing import ProbeResult, judge_probes
from verify.capture.producers.base import Progress
from verify.case import Case
from verify.emulator import Run
from verify.explain import bit_text, decimal
from verify.numerics.ulp import format_of

ANY = "h200"
"""The platform that stands for all of them, where the machine changes no bit."""


@dataclass(frozen=True)
class Mismatch:
    """The first element of a site that differs: where, and both values with their bits."""

    record: str
    array: str
    site: str
    index: dict[str, int]
    captured: str
    captured_bits: str
    predicted: str
    predicted_bits: str

    def place(self) -> str:
        """In words: site, head, row, and the axes of the site."""
        where = ", ".join(f"{axis} {i}" for axis, i in self.index.items())
        return f"site {self.site}, {where}" if where else f"site {self.site}"

    def __str__(self) -> str:
        return (
            f"{self.place()}: captured {self.captured} ({self.captured_bits}), "
            f"predicted {self.predicted} ({self.predicted_bits})"
        )


@dataclass(frozen=True)
class SiteResult:
    """One array of one record: how many elements, how many differ, the first, and what the pattern looks like."""

    array: str
    site: str
    elements: int
    differing: int
    first: Mismatch | None = None
    hint: str = ""


@dataclass(frozen=True)
class RecordResult:
    """One record. ``refused``: why the spec does not describe it; ``backend``: which walker predicted; ``unmatched``:
    arrays that the spec has no site for in this shape, which are not compared.
    """

    name: str
    kernel: str
    backend: str
    sites: tuple[SiteResult, ...] = ()
    refused: str = ""
    repeatable: bool = True
    unmatched: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether every array has the predicted bits."""
        return not self.refused and self.repeatable and all(s.differing == 0 for s in self.sites)

    @property
    def first(self) -> Mismatch | None:
        """The first difference, in the order of the kernel's own computation."""
        return next((s.first for s in self.sites if s.first is not None), None)


@dataclass(frozen=True)
class KernelResult:
    """All records of one kernel against one spec on one platform."""

    kernel: str
    spec: str
    spec_hash: str
    platform: str
    version: str
    records: tuple[RecordResult, ...]
    warnings: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[RecordResult, ...]:
        """Records that the spec describes."""
        return tuple(r for r in self.records if not r.refused)

    @property
    def exact(self) -> bool:
        """Whether everything that was compared has the predicted bits."""
        return bool(self.compared) and all(r.exact for r in self.compared)

    def verdict(self) -> str:
        """One sentence, or two."""
        name = f"{self.spec} on {self.platform}"
        refused = len(self.records) - len(self.compared)
        rest = f"; {_cases(refused)} not described by the spec" if refused else ""
        if not self.compared:
            return f"not compared with {name}: {self.records[0].refused if self.records else 'no records'}"
        if self.exact:
            arrays = sum(len(r.sites) for r in self.compared)
            numbers = sum(s.elements for r in self.compared for s in r.sites)
            return f"bit-exact with {name}: {_cases(len(self.compared))}, {arrays} arrays, {numbers:,} numbers{rest}"
        wrong = [r for r in self.compared if not r.exact]
        share = f"{len(wrong)} of {_cases(len(self.compared))}"
        first = wrong[0]
        if not first.repeatable:
            return (
                f"not repeatable: the kernel gave other bytes for {first.name} when it ran again, which no spec "
                f"predicts (a race?); {share} differ from {name}{rest}"
            )
        said = next((s.hint for s in first.sites if s.hint), "")
        return f"unexplained from {first.name}, {first.first}; {share} differ from {name}{rest}" + (
            f"\n  {said}" if said else ""
        )


def _cases(n: int) -> str:
    return f"{n} case" if n == 1 else f"{n} cases"


def judge(
    capture: Capture,
    *,
    spec: str | None = None,
    platform: str | None = None,
    kernels: str | None = None,
    progress: Progress | None = None,
    probes: bool = False,
) -> list[KernelResult]:
    """Compare every record of a capture with what the specs predict.

    Args:
        capture: read by `verify.capture.format.read_capture`.
        spec: another spec than the one that describes the kernel; a name or a path.
        platform: a name or a path; by default the one in the library that is the machine of the capture.
        kernels: names, separated by commas; all by default.
        progress: told the kernel and how many of its records are done.
        probes: whether ``kernels`` may name probes, too, which `probes_of` compares.

    Raises:
        InputError: the capture comes from a kernel version that the spec does not describe, from a machine that no
            platform describes, or its arrays are not those of the kernel.
        SpecError: a spec or a platform that cannot be loaded.
    """
    groups = _groups(capture, kernels, probes)
    given = None if spec is None else load_spec(spec)
    if given is not None and len(groups) > 1:
        named = {k: rs for k, rs in groups.items() if given.name == KERNELS[k].spec}
        if not named:
            raise InputError(
                f"the capture holds {', '.join(groups)}, and {given.name} describes none of them",
                place="--spec",
                remedy="say which kernel the spec describes: --kernels NAME",
            )
        groups = named
    out: list[KernelResult] = []
    for name, records in groups.items():
        kernel = KERNELS[name]
        chosen = load_spec(kernel.spec) if given is None else given
        where, warnings = (
            (load_platform(platform or ANY), ())
            if kernel.anywhere
            else find_platform(capture.manifest.machine, platform, gpu=kernel.gpu)
        )
        title = where.name if platform or not kernel.anywhere else "any platform"
        version = _check_version(capture, name, kernel)
        if chosen.assumption:
            warnings = (*warnings, chosen.assumption)
        results: list[RecordResult] = []
        for done, (key, record) in enumerate(records.items(), 1):
            results.append(_record(capture, key, record, chosen, where))
            if progress is not None:
                progress(name, done, len(records))
        out.append(
            KernelResult(name, chosen.name, chosen.content_hash, title, version, tuple(results), warnings)
        )
    return out


def probes_of(capture: Capture, platform: str | None, kernels: str | None) -> list[ProbeResult]:
    """Every probe of a capture against the models of its platform.

    Raises:
        InputError: no platform is the machine of the capture, or arrays are not what they should be.
    """
    wanted = None if kernels is None else set(listed_kernels(kernels))
    held = {p.kernel for p in capture.manifest.probes.values()}
    if not held or (wanted is not None and not held & wanted):
        return []
    where, _ = find_platform(capture.manifest.machine, platform, gpu=True)
    return list(judge_probes(capture, where, wanted))


def _groups(capture: Capture, kernels: str | None, probes: bool) -> dict[str, dict[str, Record]]:
    groups: dict[str, dict[str, Record]] = {}
    for key, record in capture.manifest.records.items():
        if record.kernel not in KERNELS:
            raise InputError(
                f"kernel '{record.kernel}' is not known",
                place=f"{capture.path}: record '{key}'",
                remedy=did_you_mean(record.kernel, KERNELS),
            )
        groups.setdefault(record.kernel, {})[key] = record
    if kernels is None:
        return groups
    wanted = listed_kernels(kernels)
    held = {p.kernel for p in capture.manifest.probes.values()} if probes else set[str]()
    for name in wanted:
        if name not in groups and name not in held:
            raise InputError(
                f"the capture holds no '{name}'",
                place="--kernels",
                remedy=f"it holds {', '.join([*groups, *sorted(held)]) or 'no kernels'}",
            )
    return {name: groups[name] for name in wanted if name in groups}


def _check_version(capture: Capture, name: str, kernel: Kernel) -> str:
    """The version of the kernel's library, which must be one that the spec describes."""
    library = capture.manifest.libraries.get(name)
    place = f"{capture.path}: kernel '{name}'"
    if library is None:
        raise InputError(
            "the manifest does not say its version", place=place, remedy="make the capture again"
        )
    known = kernel.releases
    if library.name != known.library or not known.low <= number(library.version) <= known.high:
        span = " to ".join(dict.fromkeys(_dotted(v) for v in (known.low, known.high)))
        raise InputError(
            f"captured from {library.name} {library.version}, but {kernel.spec} describes {known.library} {span}",
            place=place,
            remedy=f"{known.note}; another version is another kernel, and needs a spec of its own",
        )
    return f"{library.name} {library.version}" + (f" ({library.commit[:12]})" if library.commit else "")


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(n) for n in numbers)


def find_platform(machine: Machine, asked: str | None, *, gpu: bool) -> tuple[Platform, tuple[str, ...]]:
    """The platform of a capture: the one asked for, else the one that is its machine.

    Returns:
        the platform, and warnings where another was asked for than the machine is.

    Raises:
        InputError: no platform is this machine.
    """
    if asked is not None:
        where = load_platform(asked)
        if _is_machine(where, machine, gpu=gpu):
            return where, ()
        return where, (f"captured on {_machine_text(machine, gpu=gpu)}, compared as {where.name}",)
    known = [load_platform(found.name) for found in every("platform")]
    fits = [p for p in known if _is_machine(p, machine, gpu=gpu)]
    if len(fits) > 1:
        words = {w.lower() for w in (machine.gpu or "").replace("-", " ").split()}
        fits = [p for p in fits if p.name.split("_")[0] in words] or fits
    if not fits:
        raise InputError(
            f"captured on {_machine_text(machine, gpu=gpu)}, which no platform describes",
            place="platform",
            remedy="write a platform file and give it with --platform, or name the platform to compare it as",
        )
    if len(fits) > 1:
        names = " and ".join(p.name for p in fits)
        return fits[0], (
            f"{names} both describe {_machine_text(machine, gpu=gpu)}; compared as {fits[0].name}",
        )
    return fits[0], ()


def _is_machine(platform: Platform, machine: Machine, *, gpu: bool) -> bool:
    if not gpu:
        return platform.kind == "cpu" and platform.cpu_class == machine.cpu_class
    context = platform.context
    return (
        platform.kind == "gpu"
        and context["sm_count"] == machine.sm_count
        and context["compute_capability"] == machine.compute_capability
    )


def _machine_text(machine: Machine, *, gpu: bool) -> str:
    if not gpu:
        return f"a CPU of class {machine.cpu_class} ({machine.cpu})"
    return f"{machine.gpu} ({machine.sm_count} SMs, compute capability {machine.compute_capability})"


def _record(capture: Capture, key: str, record: Record, spec: Spec, platform: Platform) -> RecordResult:
    kernel = KERNELS[record.kernel]
    case = load(capture, record.input)
    arrays = {name: capture.array(f"records/{key}/{name}") for name in record.arrays}
    known = {s.array for s in kernel.sites}
    for name in arrays:
        if name not in known:
            raise InputError(
                f"array '{name}' is none of this kernel's",
                place=f"{capture.path}: record '{key}'",
                remedy=did_you_mean(name, known),
            )
    if "output" not in arrays:
        raise InputError(
            "holds no output", place=f"{capture.path}: record '{key}'", remedy="make the capture again"
        )
    try:
        run = begin(case, record, spec, platform)
        sites = [s for s in kernel.sites if s.array in arrays and s.site in run.program.sites]
        results = tuple(compare_sites(key, sites, arrays, run))
    except UnsupportedError as error:
        return RecordResult(
            key,
            record.kernel,
            "none",
            refused=f"{error.cause}: {error.remedy}" if error.remedy else error.cause,
        )
    except (InputError, SpecError) as error:
        place = f"{capture.path}: record '{key}'" + (f": {error.place}" if error.place else "")
        raise type(error)(error.cause, place=place, remedy=error.remedy) from None
    unmatched = tuple(n for n in arrays if n not in {s.array for s in sites})
    return RecordResult(
        key, record.kernel, run.backend, results, repeatable=record.repeatable, unmatched=unmatched
    )


def begin(case: Case, record: Record, spec: Spec, platform: Platform) -> Run:
    """The emulation of a record: by the engine; by the oracle where that is quicker, or the engine lacks something.

    Raises:
        UnsupportedError: the spec does not describe the record.
    """
    context: dict[str, Any] = dict(record.context)
    full = replace(case, context=context)
    q = case.arrays["q"]
    if q.size * case.kv_len <= KERNELS[record.kernel].oracle_up_to:
        return full.start(spec, platform, options=record.options, backend="oracle")
    try:
        return full.start(spec, platform, options=record.options)
    except UnsupportedError as refusal:
        try:
            return full.start(spec, platform, options=record.options, backend="oracle")
        except UnsupportedError:
            raise refusal from None


def compare_sites(
    key: str, sites: list[Site], arrays: Mapping[str, NDArray[Any]], run: Run
) -> Iterator[SiteResult]:
    """Each array of a record against its site.

    Raises:
        InputError: an array has another shape or format than the site.
    """
    names = list(dict.fromkeys(s.site for s in sites))
    run.evaluate(names)
    for site in sites:
        got = predicted(run, site)
        want = arrays[site.array]
        got = _unvisited(got, want.shape) if site.at == "last" else got
        if want.shape != got.shape or want.dtype != got.dtype:
            raise InputError(
                f"is {want.dtype} {list(want.shape)}, site {site.site} of {run.spec.name} is {got.dtype} {list(got.shape)}",
                place=f"array '{site.array}'",
                remedy="the capture was made with another shape or split than the spec computes for this platform",
            )
        yield _site(key, site, want, got, axes_of(run, site))


def _unvisited(data: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Pieces that a kernel has room for and the plan does not visit, after the others, as NaN."""
    more = shape[2] - data.shape[2] if len(shape) > 2 and data.ndim > 2 else 0
    if more <= 0:
        return data
    room = np.full((*data.shape[:2], more, *data.shape[3:]), np.nan, data.dtype)
    return np.concatenate([data, room], axis=2)


def axes_of(run: Run, site: Site) -> tuple[str, ...]:
    """Names of the axes of a captured array."""
    kinds = run.program.sites[site.site].type.axes
    axes = tuple(a for a in run.program.axes if a in kinds)
    if site.at == "last":
        levels = [a for a in axes if a in run.program.level_names]
        axes = tuple(a for a in axes if a != levels[-1])
    return ("row", "head", *axes)


def predicted(run: Run, site: Site) -> NDArray[Any]:
    """What the spec gives for a site, as ``[q_len, q_heads, *axes]``."""
    data = run.outward(site.site)
    if run.problem.q is not None and len(run.problem.shape) == 1:
        data = data[None]
    if site.at == "whole":
        return np.ascontiguousarray(data)
    axes = [a for a in run.program.axes if a in run.program.sites[site.site].type.axes]
    levels = [a for a in axes if a in run.program.level_names]
    inner = levels[-1]
    exists = run.plan.exists[inner]
    at = exists.shape[-1] - 1 - np.argmax(exists[..., ::-1], axis=-1)
    place = 2 + axes.index(inner)
    shape = [1] * data.ndim
    for i, size in enumerate(at.shape):
        shape[2 + i] = size
    last = np.take_along_axis(data, at.reshape(shape), axis=place).squeeze(place)
    nothing = ~exists.any(axis=-1)
    hole = nothing.reshape([1, 1, *nothing.shape, *[1] * (last.ndim - 2 - nothing.ndim)])
    return np.ascontiguousarray(np.where(hole, np.array(np.nan, last.dtype), last))


def _site(key: str, site: Site, want: NDArray[Any], got: NDArray[Any], axes: tuple[str, ...]) -> SiteResult:
    words = f"u{want.dtype.itemsize}"
    want, got = np.ascontiguousarray(want), np.ascontiguousarray(got)
    differs = (want.view(words) != got.view(words)) & ~((want != want) & (got != got))
    count = int(differs.sum())
    if not count:
        return SiteResult(site.array, site.site, want.size, 0)
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    fmt = format_of(want.dtype)
    first = Mismatch(
        record=key,
        array=site.array,
        site=site.site,
        index=dict(zip(axes, at, strict=True)),
        captured=decimal(want[at], fmt),
        captured_bits=bit_text(want[at], fmt),
        predicted=decimal(got[at], fmt),
        predicted_bits=bit_text(got[at], fmt),
    )
    return SiteResult(site.array, site.site, want.size, count, first, hint(want, got, site.array))
