"""From what `verify.capture` found to the contract of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from reports.kernels import contract as c
from reports.prove.contract import Proofs
from reports.prove.section import ProofFile, Subject, proof_section
from reports.runs.build import versions
from specs.platforms import load_platform
from verify.capture.format import read_capture
from verify.capture.judge import KernelResult, RecordResult, judge, probes_of
from verify.capture.probing import ProbeResult
from verify.capture.producers.base import Progress


def kernels_report(
    name: str,
    *,
    spec: str | None = None,
    platform: str | None = None,
    command: str = "",
    progress: Progress | None = None,
    proofs: Sequence[tuple[ProofFile, Proofs]] = (),
) -> c.KernelsReport:
    """The report on a capture.

    Args:
        name: a folder, a manifest, or the name of a capture that comes with the package.
        spec: another spec than the one that describes the kernel; ``platform``: another than the capture's machine.
        command: what the user typed.
        progress: told the kernel and how many of its records are done.
        proofs: files whose claims about these specs are shown.

    Raises:
        InputError: the capture is damaged, or of a version or machine that nothing describes.
        SpecError: a spec or platform that cannot be loaded.
    """
    began, started = perf_counter(), datetime.now(UTC)
    capture = read_capture(name)
    probes = probes_of(capture, platform, None) if spec is None else []
    results = judge(capture, spec=spec, platform=platform, progress=progress, probes=bool(probes))
    manifest = capture.manifest
    exact = bool(results or probes) and all(x.exact for x in (*results, *probes))
    section = proof_section(proofs, _subject(results, platform)) if proofs else None
    return c.KernelsReport(
        title=f"Capture {Path(name).name}",
        headline=_headline(results, probes),
        points=(*_points(results, probes), *([section.point] if section else [])),
        exact=exact,
        provenance=c.Provenance(
            command=command,
            started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
            seconds=perf_counter() - began,
            versions=versions(),
        ),
        capture=c.Capture(
            place=str(capture.path),
            made=manifest.made,
            tool=manifest.tool,
            sha256=manifest.file.sha256,
            machine=manifest.machine.model_dump(mode="json"),
            skipped=dict(manifest.skipped),
        ),
        kernels=tuple(map(_kernel, results)),
        probes=tuple(map(_probe, probes)),
        proofs=section,
    )


def _subject(results: Sequence[KernelResult], platform: str | None) -> Subject:
    """The specs that calls were compared with, as they were then, and their platforms."""
    names = {r.platform for r in results}
    return Subject(
        {r.spec: r.spec_hash for r in results},
        {name: load_platform(platform or name).content_hash for name in names},
        frozenset((r.spec, r.platform) for r in results),
    )


def _headline(results: Sequence[KernelResult], probes: Sequence[ProbeResult]) -> str:
    parts = [r.verdict().splitlines()[0] for r in results] + [p.verdict() for p in probes]
    if not parts:
        return "Nothing was captured."
    if len(parts) == 1:
        return parts[0][:1].upper() + parts[0][1:] + "."
    wrong = [p for p, x in zip(parts, (*results, *probes), strict=True) if not x.exact]
    if not wrong:
        return f"All {len(parts)} kernels and instructions have the predicted bits."
    return (
        f"{len(wrong)} of {len(parts)} kernels and instructions do not have the predicted bits: {wrong[0]}."
    )


def _points(results: Sequence[KernelResult], probes: Sequence[ProbeResult]) -> Iterator[str]:
    if len(results) + len(probes) > 1:
        yield from (f"{r.kernel}: {r.verdict()}." for r in results)
        yield from (f"{p.verdict()}." for p in probes)
    for r in results:
        yield from (f"{r.kernel}: {warning}." for warning in r.warnings)


def _kernel(r: KernelResult) -> c.Kernel:
    return c.Kernel(
        name=r.kernel,
        spec=r.spec,
        spec_sha256=r.spec_hash,
        platform=r.platform,
        version=r.version,
        exact=r.exact,
        verdict=r.verdict(),
        warnings=r.warnings,
        records=tuple(map(_record, r.records)),
    )


def _record(r: RecordResult) -> c.Record:
    return c.Record(
        name=r.name,
        backend=r.backend,
        exact=r.exact,
        repeatable=r.repeatable,
        refused=r.refused,
        sites=tuple(
            c.Site(
                array=s.array,
                site=s.site,
                elements=s.elements,
                differing=s.differing,
                first="" if s.first is None else str(s.first),
                hint=s.hint,
            )
            for s in r.sites
        ),
        unmatched=r.unmatched,
    )


def _probe(p: ProbeResult) -> c.Probe:
    return c.Probe(
        name=p.name,
        platform=p.platform,
        exact=p.exact,
        compared=p.compared,
        differing=p.differing,
        unknown=p.unknown,
        first=p.first,
        note=p.note,
        refused=p.refused,
        verdict=p.verdict(),
    )
