"""The answer of `ulpscope compare CAPTURE`: a verdict first, then where, then tables; or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from verify.capture.format import Capture
from verify.capture.judge import KernelResult, RecordResult
from verify.capture.probing import ProbeResult

SHOWN = 12
"""Records that differ, listed by name."""


def verdicts(results: Sequence[KernelResult], probes: Sequence[ProbeResult]) -> list[str]:
    """One sentence for each kernel and each probe."""
    return [*(r.verdict() for r in results), *(p.verdict() for p in probes)]


def all_exact(results: Sequence[KernelResult], probes: Sequence[ProbeResult]) -> bool:
    """Whether something was compared, and all of it has the predicted bits."""
    return bool(results or probes) and all(r.exact for r in results) and all(p.exact for p in probes)


def capture_text(
    capture: Capture, results: Sequence[KernelResult], probes: Sequence[ProbeResult]
) -> Iterator[str]:
    """Lines for people."""
    yield from verdicts(results, probes)
    for result in results:
        for warning in result.warnings:
            yield f"  note: {warning}"
        yield ""
        yield f"{result.kernel}: {result.version}, {result.spec} (sha256 {result.spec_hash[:12]})"
        yield from _sites(result)
        wrong = [r for r in result.compared if not r.exact]
        for record in wrong[:SHOWN]:
            yield f"  differs  {record.name}: {_what(record)}"
        if len(wrong) > SHOWN:
            yield f"  ... and {len(wrong) - SHOWN} more"
        refused: dict[str, int] = {}
        for record in result.records:
            if record.refused:
                refused[record.refused] = refused.get(record.refused, 0) + 1
        for reason, count in refused.items():
            yield f"  not described, {count}: {reason}"
    machine = capture.manifest.machine
    where = machine.gpu or f"{machine.cpu}, class {machine.cpu_class}"
    yield ""
    yield f"captured {capture.manifest.made} on {where}; arrays sha256 {capture.manifest.file.sha256[:12]}"
    for name, reason in capture.manifest.skipped.items():
        yield f"  not captured  {name}: {reason}"


def _what(record: RecordResult) -> str:
    if not record.repeatable:
        return "the kernel's two runs differ"
    return str(record.first)


def _sites(result: KernelResult) -> Iterator[str]:
    names = list(dict.fromkeys(s.array for r in result.compared for s in r.sites))
    for name in names:
        found = [s for r in result.compared for s in r.sites if s.array == name]
        wrong = sum(s.differing for s in found)
        total = sum(s.elements for s in found)
        yield f"  {name:<12} is {found[0].site:<8} {wrong:>9,} of {total:,} differ, in {len(found)} cases"

    alone = [name for r in result.compared for name in r.unmatched]
    for name in dict.fromkeys(alone):
        yield f"  {name:<12} not compared in {alone.count(name)} cases: the spec has no such site there"


def capture_json(
    capture: Capture, results: Sequence[KernelResult], probes: Sequence[ProbeResult]
) -> dict[str, Any]:
    """The answer as JSON, schema 1."""
    manifest = capture.manifest
    return {
        "schema": 1,
        "capture": {
            "path": str(capture.path),
            "made": manifest.made,
            "tool": manifest.tool,
            "sha256": manifest.file.sha256,
            "machine": manifest.machine.model_dump(mode="json"),
            "skipped": dict(manifest.skipped),
        },
        "exact": all_exact(results, probes),
        "verdicts": verdicts(results, probes),
        "kernels": [
            {
                "kernel": r.kernel,
                "spec": r.spec,
                "spec_sha256": r.spec_hash,
                "platform": r.platform,
                "version": r.version,
                "exact": r.exact,
                "verdict": r.verdict(),
                "warnings": list(r.warnings),
                "records": [{**asdict(record), "exact": record.exact} for record in r.records],
            }
            for r in results
        ],
        "probes": [{**asdict(p), "exact": p.exact, "verdict": p.verdict()} for p in probes],
    }
