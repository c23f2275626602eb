"""``ulpscope capture kernels``, and ``ulpscope compare`` where its first argument is a capture. Imports are inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Answer, Progress, answering

app = typer.Typer(
    name="capture",
    help="Captures: the bits of shipped kernels, and runs of models on endpoints and devices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def root() -> None:
    """Captures: the bits of shipped kernels, and runs of models on endpoints and devices."""


@app.command()
def kernels(
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write to, new or empty (default: runs/ID).")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option("--kernels", "-k", metavar="A,B", help="Only these kernels; see --list."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few and small inputs.")] = False,
    embed: Annotated[
        bool, typer.Option("--embed", help="Store the inputs, not only how they are made.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="One more input: q, k, v of a model, or: smollm2."
        ),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Say which kernels can run here, and why others cannot.")
    ] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Run the shipped kernels that this machine has and keep their bits. Exit code 3 if none can run."""
    with answering(output is OutputFormat.json) as answer:
        from verify.capture.run import availability, chosen

        wanted = chosen(names)
        if listing:
            _list(answer, availability(wanted))
            return
        from verify.capture.run import capture_kernels

        progress = Progress()
        try:
            capture = capture_kernels(
                folder or _new_folder(),
                wanted,
                quick=quick,
                embed=embed,
                extra=None if file is None else _extra(file),
                progress=progress,
            )
        finally:
            progress.clear()
        manifest = capture.manifest
        answer.data({"path": str(capture.path), **manifest.to_json()})
        answer.text(str(capture.path))
        for name in manifest.libraries:
            count = sum(r.kernel == name for r in manifest.records.values())
            count += sum(p.kernel == name for p in manifest.probes.values())
            library = manifest.libraries[name]
            answer.text(f"  {name:<20} {count:>4} calls, {library.name} {library.version}")
        for name, reason in manifest.skipped.items():
            answer.text(f"  {name:<20} not captured: {reason}")
        answer.close(
            f"captured {len(manifest.records) + len(manifest.probes)} calls, {manifest.file.bytes:,} bytes, "
            f"sha256 {manifest.file.sha256[:12]}"
        )


def _list(answer: Answer, found: dict[str, str | None]) -> None:
    from verify.capture.kernels import KERNELS, PROBES

    titles = {name: k.title for name, k in KERNELS.items()} | PROBES
    rows = [{"kernel": n, "title": titles[n], "available": r is None, "reason": r} for n, r in found.items()]
    answer.data({"schema": 1, "kernels": rows})
    for name, reason in found.items():
        answer.text(f"{name:<20} {titles[name]}")
        answer.text(f"{'':<20} {'can run here' if reason is None else f'cannot run here: {reason}'}")
    runs = sum(reason is None for reason in found.values())
    answer.close(f"{runs} of {len(found)} kernels can run here")


def _new_folder() -> Path:
    from datetime import UTC, datetime

    return Path("runs") / f"capture-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"


def _extra(file: str) -> Any:
    from verify.cli import get_case

    return get_case(file, False, None, {})


def compare_capture(
    path: str,
    *,
    spec: str | None,
    platform: str | None,
    names: str | None,
    fail: bool,
    as_json: bool,
) -> None:
    """Set the emulators against a capture: the body of ``ulpscope compare CAPTURE``."""
    with answering(as_json) as answer:
        from verify.capture.format import read_capture
        from verify.capture.judge import judge, probes_of
        from verify.capture.view import all_exact, capture_json, capture_text, verdicts

        capture = read_capture(path)
        progress = Progress()
        try:
            probes = probes_of(capture, platform, names) if spec is None else []
            results = judge(
                capture, spec=spec, platform=platform, kernels=names, progress=progress, probes=bool(probes)
            )
        finally:
            progress.clear()
        answer.data(capture_json(capture, results, probes))
        for line in capture_text(capture, results, probes):
            answer.text(line)
        first, *rest = verdicts(results, probes) or ["nothing was captured"]
        more = f" (and {len(rest)} more verdicts)" if rest else ""
        answer.close(first.splitlines()[0] + more, diverged=fail and not all_exact(results, probes))
