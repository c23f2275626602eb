"""``ulpscope capture validate``, ``capture import`` and ``capture script``. Imports are inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Answer, Progress, answering
from verify.words import plural

if TYPE_CHECKING:
    from verify.runs.run import Run
    from verify.runs.validate import Validation

SHOWN = 50


def validate(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Run folders, or folders of run folders.")
    ],
    output: FormatOption = OutputFormat.text,
) -> None:
    """Check everything that can be wrong with run folders, and count what is odd in them. Exit code 2 if one is wrong."""
    with answering(output is OutputFormat.json) as answer:
        from specs.errors import InputError
        from verify.runs.validate import validate as check

        progress = Progress()
        try:
            found = [one for folder in folders for one in check(folder, progress)]
        finally:
            progress.clear()
        answer.data({"schema": 1, "ok": all(v.ok for v in found), "runs": [v.to_json() for v in found]})
        for one in found:
            _validation(answer, one)
        wrong = sum(v.problems.count for v in found)
        if wrong:
            raise InputError(
                f"{plural(wrong, 'problem')} in {sum(not v.ok for v in found)} of {len(found)} runs",
                place=str(folders[0]) if len(folders) == 1 else plural(len(folders), "folder"),
                remedy="correct what is named on standard output, or make the capture again",
            )
        rows = sum(s.rows for v in found if v.run is not None for s in v.run.sequences)
        odd = sum(len(v.problems.warnings) for v in found)
        answer.close(f"valid: {plural(len(found), 'run')}, {plural(rows, 'row')}, {plural(odd, 'warning')}")


def _told(run: Run) -> str:
    rows = sum(s.rows for s in run.sequences)
    label = run.manifest.coordinate.label()
    return f"{label}, {plural(len(run.sequences), 'sequence')}, {plural(rows, 'row')}"


def _validation(answer: Answer, one: Validation) -> None:
    run = one.run
    if run is None:
        answer.text(f"{one.path}: wrong")
    else:
        answer.text(f"{one.path}: {_told(run)}")
    for problem in one.problems.errors:
        answer.text(f"  error    {problem}")
    if one.problems.more:
        answer.text(f"  error    and {one.problems.more:,} more")
    for problem in one.problems.warnings[:SHOWN]:
        answer.text(f"  warning  {problem}")
    if len(one.problems.warnings) > SHOWN:
        answer.text(f"  warning  and {len(one.problems.warnings) - SHOWN} more")
    if one.counts:
        from verify.runs.validate import meaning

        for name, n in sorted(one.counts.items()):
            answer.text(f"  count    {n:>10,}  {name}: {meaning(name)}")


def import_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="In the format of an engine, or any other. Several are one run."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write to, new or empty.")] = None,
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", "-a", help="The engine's format; without it the content decides."),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option("--mapping", "-m", help="A mapping: the name of a shipped one, or a .toml file."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="gpu=H200, capture.temperature=0, flags.x=1, model=...; repeat it.",
        ),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", help="All answers of the file are repeats of this one conversation."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--as", metavar="FORM", help="safetensors, npz or jsonl; default: what fits."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the adapters and mappings.")] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Make run folders of a file: one, or one for each coordinate that the file has."""
    with answering(output is OutputFormat.json) as answer:
        from specs.errors import InputError, did_you_mean

        if listing:
            _list(answer)
            return
        if not files:
            raise InputError("is missing", place="FILE", remedy="give a file, or --list")
        if out is None:
            raise InputError("is missing", place="--out", remedy="give a folder that is new or empty")
        forms = ("safetensors", "npz", "jsonl")
        if form is not None and form not in forms:
            raise InputError(f"unknown form '{form[:40]}'", place="--as", remedy=did_you_mean(form, forms))
        from verify.capture.format import check_empty
        from verify.runs.adapters.base import Options
        from verify.runs.load import load_runs, parse_settings
        from verify.runs.several import load_files

        check_empty(out)
        said: dict[str, Any] = {
            "adapter": adapter,
            "mapping": mapping,
            "options": Options(conversation),
            "settings": parse_settings(settings or []),
        }
        runs = load_runs(files[0], **said) if len(files) == 1 else (load_files(files, **said),)
        written = _write(out, runs, form)
        answer.data({"schema": 1, "runs": [_about(run) for run in written]})
        for run in written:
            answer.text(f"{run.place}: {_told(run)}")
            for name, n in sorted(_counts(run).items()):
                answer.text(f"  count    {n:>10,}  {name}")
        source = str(files[0]) if len(files) == 1 else plural(len(files), "file")
        answer.close(f"imported {plural(len(written), 'run')} from {source}")


def _list(answer: Answer) -> None:
    from verify.runs.adapters import ADAPTERS
    from verify.runs.mapping import load_mapping, shipped

    mappings = {name: load_mapping(name).file.title for name in shipped()}
    answer.data({"schema": 1, "adapters": {a.name: a.title for a in ADAPTERS.values()}, "mappings": mappings})
    for adapter in ADAPTERS.values():
        answer.text(f"adapter  {adapter.name:<20} {adapter.title}")
    for name, title in mappings.items():
        answer.text(f"mapping  {name:<20} {title}")
    answer.close(f"{plural(len(ADAPTERS), 'adapter')}, {plural(len(mappings), 'mapping')}")


def _write(out: Path, runs: tuple[Run, ...], form: str | None) -> list[Run]:
    """Run folders: ``out`` itself for one run, else one folder in it for each, called by what tells them apart."""
    import re

    from verify.runs.folder import write_run

    if len(runs) == 1:
        return [write_run(out, runs[0].manifest, runs[0].sequences, form=form)]
    out.mkdir(parents=True, exist_ok=True)
    written: list[Run] = []
    for index, run in enumerate(runs):
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", run.name)[:80].strip("_.") or "run"
        written.append(write_run(out / f"{index:03d}_{name}", run.manifest, run.sequences, form=form))
    return written


def _counts(run: Run) -> dict[str, int]:
    from verify.runs.counts import add

    total: dict[str, int] = {}
    for sequence in run.sequences:
        total = add(total, sequence.counts)
    return total


def _about(run: Run) -> dict[str, Any]:
    return {
        "path": run.place,
        "run_id": run.manifest.run_id,
        "coordinate": run.manifest.coordinate.model_dump(mode="json"),
        "sequences": len(run.sequences),
        "rows": sum(s.rows for s in run.sequences),
        "sha256": run.sha256,
        "counts": _counts(run),
    }


def script(
    engine: Annotated[str, typer.Option("--engine", "-e", help="vllm, sglang or transformers.")],
    backends: Annotated[
        str,
        typer.Option("--backends", "-b", metavar="A,B", help="Attention backends, as the engine calls them."),
    ],
    prompts: Annotated[
        Path, typer.Option("--prompts", help="Conversations and their ranges: a file of JSON lines.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Python file to write; it must be new.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Name or folder of the model; else the script asks for it.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="decode (one token at a time) or prefill; default: decode if it can."),
    ] = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Write a Python file that records a model under each attention backend, on a machine without ulpscope."""
    with answering(output is OutputFormat.json) as answer:
        from specs.errors import InputError
        from verify.runs.prompts import read_prompts
        from verify.runs.script import capture_script

        if out.exists():
            raise InputError("is there already", place=str(out), remedy="give another --out")
        found = read_prompts(prompts)
        names = [name.strip() for name in backends.split(",") if name.strip()]
        text = capture_script(engine, names, found, model=model, mode=mode)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", place=str(out), remedy="give another --out"
            ) from None
        spans = sum(len(p.spans) or 1 for p in found)
        about = {"engine": engine, "backends": names, "conversations": len(found), "ranges": spans}
        answer.data({"schema": 1, "path": str(out), **about})
        answer.text(str(out))
        answer.close(
            f"a script for {engine}: {plural(len(names), 'backend')}, {plural(len(found), 'conversation')}, "
            f"{plural(spans, 'range')}"
        )


def register(app: typer.Typer) -> None:
    """Add these commands to the group ``capture``."""
    app.command()(validate)
    app.command("import")(import_)
    app.command()(script)
