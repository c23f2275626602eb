"""``ulpscope campaign run | resume | status``: thin commands; everything heavy is imported inside."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Answer, answering
from verify.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from search.campaign.coordinator import Progress
    from search.campaign.reading import Summary

app = typer.Typer(
    name="campaign",
    help="Many searches at once: resumable, on this machine or on a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Such as runs/NAME.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", metavar="ENGINE", help="local, dask://HOST:PORT, ray://HOST:PORT or ray://local."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Cases at once (default: as many as there are CPUs)."),
]
RetryOption = Annotated[
    bool, typer.Option("--retry", help="Run cases again that failed, crashed or ran out of time.")
]
KillOption = Annotated[
    float | None,
    typer.Option("--kill-after", metavar="SECONDS", help="Stop a case after this time, whatever its budget."),
]
FailOption = Annotated[
    bool, typer.Option("--fail-on-failure", help="Exit with 1 if a case failed, crashed or ran out of time.")
]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A campaign file (TOML).")],
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write to (default: runs/NAME).")
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    retry: RetryOption = False,
    kill_after: KillOption = None,
    fail: FailOption = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="List the cases and stop.")] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Run a campaign file. In a folder that has it already it goes on, and new cases are added."""
    with answering(output is OutputFormat.json) as answer:
        from search.campaign.plan import read_campaign
        from search.campaign.runner import RUNS, start

        campaign = read_campaign(file)
        if dry:
            answer.data(
                {"schema": 1, "cases": [{"id": case.id, **case.to_json()} for case in campaign.cases]}
            )
            for case in campaign.cases:
                answer.text(f"{case.id[:12]}  {case.label}")
            answer.close(f"{campaign.name}: {len(campaign.cases):,} cases")
            return
        where = RUNS / campaign.name if folder is None else folder
        line = _Line()
        options: dict[str, Any] = {
            "engine": engine,
            "workers": workers,
            "retry": retry,
            "kill_after": kill_after,
        }
        try:
            with redirect_stdout(sys.stderr):  # a cluster's library may print
                made = start(campaign, where, progress=line, notice=line.notice, **options)
        finally:
            line.clear()
        _close(answer, made, engine, workers, fail)


@app.command()
def resume(
    folder: FolderArgument,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    retry: RetryOption = False,
    kill_after: KillOption = None,
    fail: FailOption = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Go on with a campaign that was interrupted; what is done stays done."""
    with answering(output is OutputFormat.json) as answer:
        from search.campaign import runner

        line = _Line()
        options: dict[str, Any] = {
            "engine": engine,
            "workers": workers,
            "retry": retry,
            "kill_after": kill_after,
        }
        try:
            with redirect_stdout(sys.stderr):
                made = runner.resume(folder, progress=line, notice=line.notice, **options)
        finally:
            line.clear()
        _close(answer, made, engine, workers, fail)


@app.command()
def status(
    folder: FolderArgument,
    cases: Annotated[bool, typer.Option("--cases", help="One line for each case.")] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Say how far a campaign is, also while it runs."""
    with answering(output is OutputFormat.json) as answer:
        from search.campaign.case import UNITS
        from search.campaign.reading import load

        loaded = load(folder)
        rows = loaded.cases if cases else ()
        listed = [{**row.result(), "seconds": row.seconds, "message": row.message} for row in rows]
        answer.data({**loaded.summary.to_json(), **({"cases": listed} if cases else {})})
        for row in rows:
            best = "" if row.best_ulp is None else f"  {row.best_ulp:.4g} {UNITS[row.case.metric]}"
            cut = "  cut by wall time" if row.cut_by_wall_time else ""
            why = f"  {row.message.splitlines()[0]}" if row.message else ""
            answer.text(f"{row.status:<8}  {row.case.label}{best}{cut}{why}")
        answer.close(loaded.summary.verdict)


def _close(answer: Answer, made: Summary, engine: str, workers: int | None, fail: bool) -> None:
    from search.campaign.runner import resume_command

    answer.data(made.to_json())
    answer.text(str(made.folder))
    if made.best_case is not None:
        answer.text(f"best: {made.best_case}")
    if made.interrupted:
        again = resume_command(made.folder, engine, workers)
        typer.echo(f"interrupted, saved: {made.verdict}  resume: {again}", err=True)
        raise typer.Exit(INTERRUPTED)
    answer.close(made.verdict, diverged=fail and made.counts["done"] < made.total)


class _Line:
    """The progress line on stderr: written over on a terminal, else a line a minute."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self.last = time.monotonic() - (1.0 if self.shown else 0.0)

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.last >= (0.2 if self.shown else 60.0):
            self.last = now
            sys.stderr.write(f"\r\x1b[K{progress}" if self.shown else f"{progress}\n")
            sys.stderr.flush()

    def notice(self, text: str) -> None:
        """A whole line."""
        self.clear()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
