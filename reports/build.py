"""The main job: gather every part of a report, and write it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from reports import contract as c
from reports.accesses import traffic_view
from reports.dataflow import flow_of
from reports.depth import depth
from reports.folder import run_id, unwritable, write_files
from reports.prove.contract import Proofs
from reports.prove.section import ProofFile, Subject, proof_section
from reports.splits import splits
from reports.study import About, study
from reports.target import Target
from reports.versions import versions as installed
from reports.wording import report_verdict
from specs import Platform, Spec, load_model, load_platform, load_requested, load_spec, load_workload
from specs.diff import diff
from specs.errors import InputError
from verify.backends import load_backend
from verify.case import Case

BACKENDS = ("triton", "flash_attention_2", "flashinfer")
PLATFORMS = ("h200", "b200", "sm120")
WORKLOAD = "agent_session"
MODEL = "qwen"
#: Positions of each range of the workload; a sweep computes all.
POSITIONS = 2
#: Specs that the page shows beside those of its cells.
REFERENCE = ("walkthrough.tiled", "walkthrough.dense")

Progress = Callable[[str, int, int], None]
_KINDS: dict[str, Literal["same", "changed", "left", "right"]] = {
    "same": "same",
    "changed": "changed",
    "only_a": "left",
    "only_b": "right",
}


def _quiet(stage: str, done: int, total: int) -> None:
    """No progress."""


def make_targets(
    backends: Sequence[str] = BACKENDS,
    platforms: Sequence[str] = PLATFORMS,
    contexts: Sequence[Mapping[str, Any]] = ({},),
) -> list[Target]:
    """Every backend on every platform. A backend is one that users ask for, the name of a spec, or a path.

    Args:
        backends: names or paths.
        platforms: names or paths.
        contexts: what decides which kernel runs (`Case.kernel_context`), of each input; a cell is one kernel.

    Raises:
        SpecError: an unknown name.
        InputError: nothing to compute, or a backend that is one kernel for one input and another for the next.
        UnsupportedError: a backend that runs on one of the platforms as a kernel without a spec.
    """
    requested = load_requested()
    out: list[Target] = []
    loaded = [load_platform(p) for p in platforms]
    for backend in backends:
        for platform in loaded:
            found = {spec.name: spec for spec in (load_backend(backend, platform, c) for c in contexts)}
            if len(found) > 1:
                raise InputError(
                    f"'{backend}' on {platform.name} is {' for one input and '.join(found)} for another",
                    place="report",
                    remedy="name one of these specs, or give one input",
                )
            (spec,) = found.values()
            asked = backend if backend in requested else None
            title = requested[backend].title if asked else spec.name
            out.append(Target(title, spec, platform, platform.name.upper(), asked))
    if not out:
        raise InputError("no backend or no platform", place="report", remedy="name at least one of each")
    return out


def main_report(
    *,
    seed: int = 0,
    backends: Sequence[str] = BACKENDS,
    platforms: Sequence[str] = PLATFORMS,
    command: str = "ulpscope report",
    progress: Progress = _quiet,
    proofs: Sequence[tuple[ProofFile, Proofs]] = (),
) -> c.Report:
    """The report on the bundled inputs: the teaching row and a real attention layer.

    ``proofs``: files whose claims about these specs are shown.
    """
    began = time.perf_counter()
    cases = bundled()
    shape = model_context()
    targets = make_targets(backends, platforms, [shape, *(case.kernel_context() for case, _ in cases)])
    studies: list[c.Study] = []
    for n, (case, about) in enumerate(cases):
        progress(about.title, n, len(cases))
        studies.append(study(case, about, targets))
    workload = load_workload(WORKLOAD)
    progress("depth", 0, 0)
    by_depth = depth(
        workload, targets, seed, shape, each=POSITIONS, progress=lambda i, n: progress("depth", i, n)
    )
    progress("split count", 0, 0)
    by_split = splits(targets[0].platform, seed, progress=lambda i, n: progress("split count", i, n))
    table = traffic_view(targets, _platforms(targets), 27_525, shape)
    parts: dict[str, Any] = {"depth": by_depth, "splits": by_split, "traffic": table}
    return _assemble(began, seed, command, targets, studies, proofs, **parts)


def case_report(
    case: Case,
    *,
    seed: int = 0,
    backends: Sequence[str] = BACKENDS,
    platforms: Sequence[str] = PLATFORMS,
    command: str = "ulpscope report",
    progress: Progress = _quiet,
    proofs: Sequence[tuple[ProofFile, Proofs]] = (),
) -> c.Report:
    """The report on one input of the user's, through every backend and platform; ``proofs`` as in `main_report`."""
    began = time.perf_counter()
    targets = make_targets(backends, platforms, [case.kernel_context()])
    about = About(
        "input", case.name, f"{case.kv_len:,} tokens, as given.", "Given by the user.", "not stated"
    )
    progress(about.title, 0, 1)
    one = study(case, about, targets)
    context = {k: v for k, v in case.shape().items() if k in ("batch", "q_heads", "kv_heads", "head_dim")}
    table = traffic_view(targets, _platforms(targets), max(1, case.kv_len), context)
    return _assemble(began, seed, command, targets, [one], proofs, traffic=table)


def bundled() -> list[tuple[Case, About]]:
    """The inputs that come with the package."""
    from reports.inputs import smollm2_layer, teaching_input

    scores, values = teaching_input()
    layer = smollm2_layer()
    return [
        (
            Case("teaching", {"scores": scores, "values": values}, context=model_context()),
            About(
                "teaching",
                "The teaching input",
                "27,525 tokens with one score and one value each: a period of twelve under a staircase. Nothing "
                "is random and nothing is close to a tie, and still the grouping of the tokens decides the last "
                "bit of the bf16 answer.",
                "Twelve scores, twelve values and a staircase of nine steps, all exact in bf16 or f32.",
                "Apache-2.0",
            ),
        ),
        (
            Case(
                "smollm2",
                {"q": layer.q[-1], "k": layer.k, "v": layer.v},
                scale=layer.scale,
                context={"batch": layer.context["batch"]},
            ),
            About(
                "smollm2",
                "A real attention layer",
                f"One decode step of {layer.name}: {layer.q.shape[1]} query heads over {layer.k.shape[0]:,} "
                "tokens of English prose.",
                layer.origin,
                "Apache-2.0 (weights), public domain (text)",
            ),
        ),
    ]


def named_case(name: str) -> Case:
    """The bundled input called ``name``: teaching or smollm2."""
    return {case.name: case for case, _ in bundled()}[name]


def model_context() -> dict[str, int]:
    """The heads that partitions of the main job are made for."""
    model = load_model(MODEL)
    return {"q_heads": model.q_heads, "kv_heads": model.kv_heads, "head_dim": model.head_dim}


def _platforms(targets: Iterable[Target]) -> list[Platform]:
    return list({t.platform.name: t.platform for t in targets}.values())


def _assemble(
    began: float,
    seed: int,
    command: str,
    targets: Sequence[Target],
    studies: Sequence[c.Study],
    proofs: Sequence[tuple[ProofFile, Proofs]],
    depth: c.Depth | None = None,
    splits: c.Splits | None = None,
    traffic: c.TrafficView | None = None,
) -> c.Report:
    shown = list({t.spec.name: t.spec for t in targets}.values())
    shown += [load_spec(name) for name in REFERENCE if name not in {s.name for s in shown}]
    context = {"kv_len": 27_525, **model_context()}
    cells, verdict = [(t.spec, t.platform) for t in targets], report_verdict(studies)
    section = proof_section(proofs, Subject.of(cells, shown)) if proofs else None
    if section is not None:
        verdict = verdict.model_copy(update={"points": (*verdict.points, section.point)})
    return c.Report(
        title="Divergence report",
        verdict=verdict,
        run=c.Run(
            id=run_id(),
            command=command,
            seed=seed,
            started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            seconds=time.perf_counter() - began,
            versions=versions(),
        ),
        platforms=tuple(
            c.Platform(
                name=p.name,
                title=p.title,
                sm_count=p.sm_count,
                capability=f"{p.compute_capability // 10}.{p.compute_capability % 10}",
                bandwidth=p.memory_bandwidth_gb_s * 1e9,
            )
            for p in _platforms(targets)
        ),
        studies=tuple(studies),
        specs=tuple(_view(spec, targets, context) for spec in shown),
        diffs=tuple(_diff(a, b) for a, b in combinations(shown, 2)),
        depth=depth,
        splits=splits,
        traffic=traffic,
        proofs=section,
    )


def _view(spec: Spec, targets: Sequence[Target], context: dict[str, int]) -> c.SpecView:
    platform = next((t.platform for t in targets if t.spec.name == spec.name), targets[0].platform)
    return c.SpecView(
        name=spec.name,
        status=spec.file.status,
        summary=spec.file.summary,
        text=spec.to_toml(),
        sha256=spec.content_hash,
        sources=tuple(
            c.Source(repository=s.repository, commit=s.commit, path=s.path) for s in spec.file.sources
        ),
        flow=flow_of(spec, platform, context),
    )


def _diff(a: Spec, b: Spec) -> c.SpecDiff:
    return c.SpecDiff(
        left=a.name,
        right=b.name,
        lines=tuple(
            c.DiffLine(
                kind=_KINDS[line.change],
                section=line.role,
                site=line.site,
                left=line.a or "",
                right=line.b or "",
            )
            for line in diff(a, b).lines
        ),
    )


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    return installed(("ulpscope", "numpy", "jax", "jaxlib", "ml_dtypes", "python-flint", "plotly"))


def write(report: c.Report, folder: Path) -> list[Path]:
    """Write report.json, report.html and report.md into ``folder``, each whole or not at all.

    Everything is rendered before the first byte is written; a file is written beside its place and renamed.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    from reports.html import render
    from reports.markdown import render_markdown

    texts = {
        "report.json": c.to_json(report),
        "report.html": render(report),
        "report.md": render_markdown(report),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return write_files(folder, texts)
