"""``ulpscope compare``: runs of a model here; two specs, or a capture of kernels, in `verify.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import verify.cli
from specs.cli import FormatOption, OutputFormat
from verify.cli import (
    Batch,
    Capacity,
    HeadDim,
    InputOption,
    KvHeads,
    KvLen,
    ModelOption,
    QHeads,
    RandomOption,
    SetOption,
    TeachingOption,
    Walker,
    WalkerOption,
)
from verify.console import Answer, Progress, answering, command_line

if TYPE_CHECKING:
    from reports.runs.contract import DivergenceReport
    from reports.runs.predicting import Given
    from verify.runs.run import Run

_RUNS = "With runs: "
PredictedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--predicted",
        metavar="RUN[=NAME]",
        help=_RUNS + "a run of `ulpscope predict`, and the run that it stands for; repeat it.",
    ),
]
CandidateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--candidate",
        "-c",
        metavar="SPEC[@PLATFORM]",
        help=_RUNS + "compute their attention tensors by this spec; repeat it.",
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", help=_RUNS + "a TOML file of rules; exit code 1 if one fails."),
]
JunitOption = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help=_RUNS + "what --policy says, as JUnit XML.")
]
ReferenceOption = Annotated[
    str | None,
    typer.Option("--reference", metavar="NAME", help=_RUNS + "compare each with this one only."),
]
MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help=_RUNS + "distance of the geometry: rms, js, flips, ..."),
]
MappingOption = Annotated[
    str | None,
    typer.Option("--mapping", help=_RUNS + "read files by this mapping, shipped or a .toml file."),
]


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN RUN ... | A@PLATFORM B@PLATFORM | CAPTURE",
            help="Run folders or engines' files; or two specs with platforms; or a capture of kernels.",
            show_default=False,
        ),
    ] = None,
    file: InputOption = None,
    teaching: TeachingOption = False,
    seed: RandomOption = None,
    fail: Annotated[
        bool, typer.Option("--fail-on-divergence", help="Exit with 1 if anything that was compared differs.")
    ] = False,
    walker: WalkerOption = Walker.engine,
    kv_len: KvLen = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    kv_capacity: Capacity = None,
    model: ModelOption = None,
    more: SetOption = None,
    spec: Annotated[
        str | None,
        typer.Option("--spec", help="With a capture: another spec than the one that describes its kernel."),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option("--platform", "-p", help="With a capture: another platform than its machine."),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option("--kernels", "-k", metavar="A,B", help="With a capture: only these kernels.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=_RUNS + "folder for report.html, report.md and report.json."),
    ] = None,
    policy: PolicyOption = None,
    junit: JunitOption = None,
    reference: ReferenceOption = None,
    metric: MetricOption = None,
    mapping: MappingOption = None,
    predicted: PredictedOption = None,
    candidates: CandidateOption = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the report of runs and stop.")
    ] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Compare runs of a model, two specs bit by bit, or a capture of real kernels with its spec.

    Runs: who is bit-identical, how far the others are, where it starts, whether it changes tokens, who is closest to the
    centre. Specs on one input: how far apart, and where they part first.
    """
    as_json = output is OutputFormat.json
    own: dict[str, Any] = {
        "--out": folder,
        "--policy": policy,
        "--junit": junit,
        "--reference": reference,
        "--metric": metric,
        "--mapping": mapping,
        "--predicted": predicted,
        "--candidate": candidates,
    }
    if schema:
        with answering(True) as answer:
            from reports.runs.contract import json_schema

            answer.data(json_schema())
        return
    names = sides or []
    if _are_runs(names):
        others: dict[str, Any] = {
            "--input": file,
            "--teaching": teaching or None,
            "--random": seed,
            "--kv-len": kv_len,
            "--q-heads": q_heads,
            "--kv-heads": kv_heads,
            "--head-dim": head_dim,
            "--batch": batch,
            "--kv-capacity": kv_capacity,
            "--model": model,
            "--set": more,
            "--spec": spec,
            "--platform": platform,
            "--kernels": kernels,
        }
        with answering(as_json) as answer:
            _refuse(others, "does not go with runs", "leave it out")
            compare_runs(answer, names, **{k.lstrip("-"): v for k, v in own.items()}, fail=fail)
        return
    with answering(as_json):
        _refuse(own, "only goes with runs", "name run folders or files of an engine")
        _few(names)
    verify.cli.compare(
        names[0],
        names[1] if len(names) > 1 else None,
        file=file,
        teaching=teaching,
        seed=seed,
        fail=fail,
        walker=walker,
        kv_len=kv_len,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        batch=batch,
        kv_capacity=kv_capacity,
        model=model,
        more=more,
        spec=spec,
        platform=platform,
        kernels=kernels,
        output=output,
    )


def _refuse(options: dict[str, Any], cause: str, remedy: str) -> None:
    from specs.errors import InputError

    for name, value in options.items():
        if value is not None:
            raise InputError(cause, place=name, remedy=remedy)


def _few(names: list[str]) -> None:
    from specs.errors import InputError

    if not 1 <= len(names) <= 2:
        raise InputError(
            f"{len(names)} arguments" if names else "nothing to compare",
            place="argument",
            remedy="name two or more runs, two of SPEC@PLATFORM, or one capture",
        )


def _are_runs(names: list[str]) -> bool:
    """Whether arguments name runs: run folders, folders of them, files that are no capture of kernels, or several without
    a platform.
    """
    if len(names) > 1:
        return Path(names[0]).exists() or not any("@" in name for name in names)
    if not names or "\0" in names[0]:
        return False
    path = Path(names[0])
    from verify.capture.format import ARRAYS, MANIFEST
    from verify.runs.folder import is_run

    if path.is_dir():
        return is_run(path) or (not (path / MANIFEST).exists() and any(is_run(p) for p in path.iterdir()))
    return path.is_file() and (is_run(path) or path.name not in (MANIFEST, ARRAYS))


def compare_runs(
    answer: Answer,
    names: list[str],
    *,
    out: Path | None,
    policy: Path | None,
    junit: Path | None,
    reference: str | None,
    metric: str | None,
    mapping: str | None,
    fail: bool,
    predicted: list[str] | None = None,
    candidate: list[str] | None = None,
    proofs: list[str] | None = None,
    listed: bool = False,
) -> None:
    """The command's body for runs; ``listed``: the answer is short, and names the files that were written.

    Raises:
        InputError: a run, the policy or an option is wrong; a file cannot be written.
    """
    from reports.prove.reading import read_proofs
    from reports.prove.section import Subject, proof_section
    from reports.runs.build import compare as build
    from reports.runs.build import named
    from reports.runs.policy import judge, load_policy, rules_of
    from reports.runs.text import lines, summary
    from specs.errors import InputError

    if junit is not None and policy is None:
        raise InputError("needs a policy", place="--junit", remedy="add --policy FILE")
    if proofs and candidate is None:
        raise InputError(
            "runs alone name no specs that a claim could be about",
            place="--proofs",
            remedy="add --candidate SPEC@PLATFORM, or report specs: ulpscope report --proofs FILE",
        )
    rules, given = (None if policy is None else load_policy(policy)), read_proofs(proofs or [])
    progress = Progress()
    runs = named([(name, _load(name, mapping)) for name in names])
    progress("compare", 0, 0)
    report, _ = build(
        runs,
        command=command_line(),
        reference=reference,
        metric=metric,
        predicted=predictions(predicted),
        candidates=candidate,
        progress=progress,
    )
    progress.clear()
    if given:
        from verify.identify.candidates import candidates

        cells = [(one.spec, one.platform) for one in candidates(candidate or [])]
        section = proof_section(given, Subject.of(cells))
        told = report.verdict.model_copy(update={"points": (*report.verdict.points, section.point)})
        report = report.model_copy(update={"verdict": told, "proofs": section})
    if rules is not None:
        rules_of(report, rules)
        report = report.model_copy(update={"policy": judge(report, rules)})
    paths = [str(path) for path in _write(report, out, junit)]
    data = report.model_dump(mode="json")
    answer.data({"schema": 1, "files": paths, "report": data} if listed else data)
    for line in (*summary(report), *paths) if listed else lines(report):
        answer.text(line)
    bad = report.policy is not None and not report.policy.ok
    answer.close(report.verdict.headline, diverged=bad or (fail and report.verdict.diverges))


def predictions(words: list[str] | None) -> list[Given]:
    """The predicted runs of ``--predicted`` words: FOLDER, or FOLDER=NAME of the run that it stands for.

    Raises:
        InputError: a folder holds no run, or several where one name is given.
    """
    from reports.runs.build import named
    from reports.runs.predicting import Given
    from specs.errors import InputError

    found: list[tuple[str, str | None, tuple[Run, ...]]] = []
    for word in words or []:
        folder, mark, name = word.rpartition("=") if not Path(word).exists() else (word, "", "")
        folder = folder if mark else word
        runs = _load(folder, None)
        if mark and len(runs) != 1:
            raise InputError(
                f"holds {len(runs)} runs, which one name cannot stand for",
                place=f"--predicted {folder}",
                remedy="name the folder of one run",
            )
        found.append((folder, name if mark else None, runs))
    for runs in (runs for _, _, runs in found):
        _no_problems(runs)
    distinct = named([(folder, runs) for folder, _, runs in found])
    names = [name for _, name, runs in found for _ in runs]
    return [Given(run, name) for run, name in zip(distinct, names, strict=True)]


def _no_problems(runs: tuple[Run, ...]) -> None:
    from verify.runs.validate import value_problems

    for run in runs:
        value_problems(run).stop(run.place)


def _load(name: str, mapping: str | None) -> tuple[Run, ...]:
    from verify.runs.folder import is_run
    from verify.runs.load import load_runs

    path = Path(name)
    folder = path.is_dir() or is_run(path)
    return load_runs(path) if folder else load_runs(path, mapping=mapping)


def _write(report: DivergenceReport, out: Path | None, junit: Path | None) -> list[Path]:
    from reports.contract_base import to_json
    from reports.folder import replace_file, reserved
    from reports.runs.junit import junit as as_junit
    from reports.runs.markdown import render_markdown
    from reports.runs.page import render
    from specs.errors import InputError

    texts: dict[Path, str] = {}
    if out is not None:
        texts = {
            out / "report.json": to_json(report),
            out / "report.html": render(report),
            out / "report.md": render_markdown(report),
        }
    if junit is not None and report.policy is not None:
        texts[junit] = as_junit(report, report.policy)
    for path, text in texts.items():
        with reserved(path.parent):
            try:
                replace_file(path, text)
            except OSError as error:
                cause = error.strerror or str(error)
                raise InputError(
                    f"cannot be written: {cause}", place=str(path), remedy="choose another path"
                ) from None
    return list(texts)
