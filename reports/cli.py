"""``ulpscope``: the command line. Every package's commands are mounted here; heavy imports live inside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reports.explain.cli
import reports.prove.cli
import reports.runs.cli
import search.cli
import verify.cli
from specs.cli import FormatOption, OutputFormat
from specs.cli import app as spec_app
from verify.cli import InputOption, KvLen, ModelOption, RandomOption, SetOption, TeachingOption
from verify.console import Progress, answering, command_line

if TYPE_CHECKING:
    from reports.contract import Report
    from verify.console import Answer

app = typer.Typer(
    name="ulpscope",
    help="Attention backends as declared arithmetic: bit-exact emulation and divergence reports.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(spec_app, name="spec")
verify.cli.register(app)
app.command()(reports.runs.cli.compare)
app.command()(reports.explain.cli.explain)
search.cli.register(app)
app.add_typer(reports.prove.cli.app, name="prove")

BackendsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spec", "-s", help="A backend to ask for (triton, flashinfer, ...), a spec or a path; repeat it."
    ),
]
PlatformsOption = Annotated[
    list[str] | None,
    typer.Option("--platform", "-p", help="A platform; repeat it. Default: h200, b200, sm120."),
]
FolderOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder to write to (default: runs/ID).")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is random.")]
CampaignOption = Annotated[
    Path | None,
    typer.Option("--campaign", help="Report a campaign instead: its folder, also while it runs."),
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Attention backends as declared arithmetic: bit-exact emulation and divergence reports."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("ulpscope"))
        raise typer.Exit


@app.command()
def report(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN ... | CAPTURE | diff OLD NEW]",
            help="Runs of a model: folders or engines' files; a capture of kernels; two reports of runs.",
            show_default=False,
        ),
    ] = None,
    file: InputOption = None,
    teaching: TeachingOption = False,
    random_seed: RandomOption = None,
    backends: BackendsOption = None,
    platforms: PlatformsOption = None,
    folder: FolderOption = None,
    seed: SeedOption = 0,
    kv_len: KvLen = None,
    model: ModelOption = None,
    more: SetOption = None,
    campaign: CampaignOption = None,
    policy: reports.runs.cli.PolicyOption = None,
    junit: reports.runs.cli.JunitOption = None,
    reference: reports.runs.cli.ReferenceOption = None,
    metric: reports.runs.cli.MetricOption = None,
    mapping: reports.runs.cli.MappingOption = None,
    predicted: reports.runs.cli.PredictedOption = None,
    candidates: reports.runs.cli.CandidateOption = None,
    proofs: Annotated[
        list[str] | None,
        typer.Option(
            "--proofs", metavar="FILE", help="Show what ulpscope prove --format json wrote; repeat it."
        ),
    ] = None,
    fail: Annotated[
        bool,
        typer.Option(
            "--fail-on-divergence", help="Exit with 1 if anything differs; with diff, if anything got worse."
        ),
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a report and stop.")
    ] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Run the main job: every backend on every platform, as HTML, Markdown and JSON. Or report runs of a model.

    Without an input it runs the bundled ones: the teaching input and a real attention layer. With --campaign it
    reports the searches of a campaign, into its folder. Of runs it says who is bit-identical, how far the others are,
    where they part and whether it changes tokens; of a capture of kernels, whether it has the bits that their specs
    predict; of two reports of runs, what changed.
    """
    as_json = output is OutputFormat.json
    of_runs: dict[str, Any] = {
        "policy": policy,
        "junit": junit,
        "reference": reference,
        "metric": metric,
        "mapping": mapping,
        "predicted": predicted,
        "candidate": candidates,
    }
    of_job: dict[str, Any] = {
        "input": file,
        "teaching": teaching or None,
        "random": random_seed,
        "spec": backends,
        "platform": platforms,
        "seed": seed or None,
        "kv_len": kv_len,
        "model": model,
        "set": more,
        "campaign": campaign,
        "schema": schema or None,
    }
    if sides:
        with answering(as_json) as answer:
            from reports.runs.command import DIFF, holds_kernels, report_diff, report_kernels, report_runs

            if sides[0] == DIFF:
                _refused("does not go with diff", "leave it out", **of_job, **of_runs, proofs=proofs)
                report_diff(answer, sides[1:], out=folder, fail=fail)
            elif len(sides) == 1 and holds_kernels(sides[0]):
                one = {name: of_job.pop(name) for name in ("spec", "platform")}
                _refused("does not go with a capture of kernels", "leave it out", **of_job, **of_runs)
                own = {name: _single(name, values) for name, values in one.items()}
                report_kernels(answer, sides[0], out=folder, fail=fail, proofs=proofs, **own)
            else:
                _refused("does not go with runs", "leave it out", **of_job)
                report_runs(answer, sides, out=folder, fail=fail, proofs=proofs, **of_runs)
        return
    with answering(as_json or schema) as answer:
        from reports import build
        from reports.campaign import campaign_folder
        from reports.contract import json_schema
        from reports.folder import reserved
        from reports.prove.reading import read_proofs

        if schema:
            answer.data(json_schema())
            return
        _refused("only goes with runs", "name run folders or files of an engine", **of_runs)
        progress = Progress()
        if campaign is not None:
            others = {name: value for name, value in of_job.items() if name != "campaign"}
            _refused("does not go with --campaign", "leave one of both out", **others, proofs=proofs)
            _report_campaign(answer, campaign, folder or campaign_folder(campaign), progress, fail)
            return
        common: dict[str, Any] = {
            "seed": seed,
            "backends": backends or build.BACKENDS,
            "platforms": platforms or build.PLATFORMS,
            "command": command_line(),
            "progress": progress,
            "proofs": read_proofs(proofs or []),
        }
        with reserved(folder or Path("runs")):
            if file is None and not teaching and random_seed is None:
                _only_with_an_input(kv_len=kv_len, model=model, set=more)
                made = build.main_report(**common)
            else:
                context = verify.cli.shape_of(model, more, kv_len=kv_len)
                made = build.case_report(verify.cli.get_case(file, teaching, random_seed, context), **common)
            progress.clear()
            paths = build.write(made, folder or Path("runs") / made.run.id)
        _answer(answer, made, paths, fail)


def _report_campaign(answer: Answer, campaign: Path, folder: Path, progress: Progress, fail: bool) -> None:
    from reports import build
    from reports.campaign import campaign_report
    from reports.folder import reserved

    # Read first: where there is no campaign, no folder is made for its report.
    made = campaign_report(campaign, folder, command_line(), progress)
    progress.clear()
    with reserved(folder):
        paths = build.write(made, folder)
    _answer(answer, made, paths, fail)


def _answer(answer: Answer, made: Report, paths: list[Path], fail: bool) -> None:
    answer.data({"schema": 1, "files": [str(p) for p in paths], "report": made.model_dump(mode="json")})
    answer.text(made.verdict.headline)
    for point in made.verdict.points:
        answer.text(f"  {point}")
    for path in paths:
        answer.text(str(path))
    answer.close(made.verdict.headline, diverged=fail and made.verdict.diverges)


def _single(name: str, values: list[str] | None) -> str | None:
    """The one value of an option that may be repeated elsewhere."""
    from specs.errors import InputError

    if values and len(values) > 1:
        raise InputError(
            "is given more than once", place=f"--{name}", remedy="a capture is compared with one at a time"
        )
    return values[0] if values else None


def _only_with_an_input(**options: object) -> None:
    """Refuse options that say more of an input where none is named."""
    _refused(
        "only goes with an input", "add --teaching, --input smollm2, --input FILE or --random SEED", **options
    )


def _refused(cause: str, remedy: str, **options: object) -> None:
    """Refuse options that were given.

    Raises:
        InputError: the first that was given.
    """
    from specs.errors import InputError

    for name, value in options.items():
        if value is not None:
            raise InputError(
                cause,
                place=f"--{name.replace('_', '-')}",
                remedy=remedy,
            )


@app.command()
def sweep(
    workload: Annotated[
        str, typer.Option("--workload", help="A workload of `spec list`, or a path.")
    ] = "agent_session",
    backends: BackendsOption = None,
    platforms: PlatformsOption = None,
    stride: Annotated[int, typer.Option("--stride", min=1, help="Every n-th position only.")] = 1,
    seed: SeedOption = 0,
    folder: FolderOption = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Measure divergence at every position of a workload. Interrupted, it goes on where it stopped (same -o)."""
    with answering(output is OutputFormat.json) as answer:
        from reports import build
        from reports.folder import reserved
        from reports.sweep import sweep as run
        from specs import load_workload

        loaded = load_workload(workload)
        file = (folder or Path("runs") / f"sweep-{loaded.name}-{seed}") / "sweep.jsonl"
        progress = Progress()
        shape = build.model_context()
        targets = build.make_targets(backends or build.BACKENDS, platforms or build.PLATFORMS, [shape])
        try:
            with reserved(file.parent):
                tallies = run(
                    loaded,
                    targets,
                    seed,
                    shape,
                    file,
                    stride=stride,
                    progress=lambda done, total: progress("positions", done, total),
                )
        except KeyboardInterrupt:
            progress.clear()
            typer.echo(f"saved in {file}; the same command goes on from there", err=True)
            raise
        progress.clear()
        answer.data({"schema": 1, "file": str(file), "pairs": [t.to_json() for t in tallies]})
        for t in tallies:
            share = t.changed / t.outputs if t.outputs else 0.0
            answer.text(
                f"{t.left} / {t.right}: part at {t.parting} of {t.positions} positions, "
                f"{100 * share:.2f}% of outputs, at most {t.ulp_max} ULP"
            )
        answer.text(str(file))
        parting = sum(1 for t in tallies if t.parting)
        answer.close(f"{parting} of {len(tallies)} pairs part somewhere")


def _register_inputs() -> None:
    from reports.build import named_case
    from verify.case import NAMED

    for name in ("teaching", "smollm2"):
        NAMED[name] = partial(named_case, name)


# Known to `emulate` and `compare`, too, and not read before one of them is asked for.
verify.cli.before_inputs.append(_register_inputs)
