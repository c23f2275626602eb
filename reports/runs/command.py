"""``ulpscope report`` on runs, on a capture of kernels and on two reports: the bodies behind `reports.cli.report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.runs.cli import compare_runs
from verify.console import Answer

#: The word that makes `report` compare two reports; a run of that name is ``./diff``.
DIFF = "diff"
#: Endings of the files that are taken from a folder of engines' files, and how many at most.
ENGINES, MOST = (".json", ".jsonl", ".npz", ".kld"), 1000


def report_runs(answer: Answer, names: list[str], *, out: Path | None, fail: bool, **options: Any) -> None:
    """Report runs of a model as HTML, Markdown and JSON.

    Args:
        answer: where to say it.
        names: run folders, folders of them, files of engines, folders of those.
        out: folder to write to; None makes one of a new name in ``runs``.
        fail: whether any difference ends with exit code 1.
        options: as `compare_runs` takes them.

    Raises:
        InputError: a run, the policy or an option is wrong; a capture of kernels; a file cannot be written.
    """
    from reports.folder import reserved, run_id
    from specs.errors import InputError

    for name in names:
        if "\0" in name:
            raise InputError("holds a NUL character", place="argument", remedy="name a file or folder")
        if holds_kernels(name):
            raise InputError(
                "is a capture of kernels, which has no runs",
                place=name,
                remedy="report it alone, without runs",
            )
    sides = [file for name in names for file in _files(name)]
    folder = out or Path("runs") / run_id()
    with reserved(folder):
        compare_runs(answer, sides, out=folder, fail=fail, listed=True, **options)


def _files(name: str) -> list[str]:
    """What ``name`` stands for: of a folder without runs the files of engines in it, in the order of their names."""
    from verify.runs.folder import is_run

    path = Path(name)
    if not path.is_dir() or is_run(path) or any(is_run(p) for p in path.iterdir()):
        return [name]
    found = sorted(p for p in path.iterdir() if p.suffix in ENGINES and p.is_file())
    return [str(p) for p in found[:MOST]] or [name]


def holds_kernels(name: str) -> bool:
    """Whether ``name`` is a capture of kernels: a packaged one, or a folder or file of one."""
    from verify.capture.format import ARRAYS, MANIFEST, packaged
    from verify.runs.folder import is_run

    path = Path(name)
    if not path.exists():
        return name in packaged()
    if path.is_dir():
        return (path / MANIFEST).exists() and (path / ARRAYS).exists() and not is_run(path)
    return path.name in (MANIFEST, ARRAYS) and not is_run(path)


def report_kernels(
    answer: Answer,
    name: str,
    *,
    out: Path | None,
    fail: bool,
    spec: str | None,
    platform: str | None,
    proofs: list[str] | None = None,
) -> None:
    """Report a capture of kernels against the specs that describe them, as HTML, Markdown and JSON.

    Args:
        answer: where to say it.
        name: the capture; ``out``: folder to write to, None makes one of a new name in ``runs``.
        fail: whether any difference ends with exit code 1.
        spec: another spec than the one that describes the kernel; ``platform``: another than the capture's machine.
        proofs: files of ``ulpscope prove``, whose claims about the specs are shown.

    Raises:
        InputError: the capture is damaged, or of a version or machine that nothing describes; a file of proofs is; a file
            cannot be written.
        SpecError: a spec or platform that cannot be loaded.
    """
    from reports.contract_base import to_json
    from reports.folder import reserved, run_id, write_files
    from reports.kernels.build import kernels_report
    from reports.kernels.page import render, render_markdown
    from reports.prove.reading import read_proofs
    from verify.console import Progress, command_line

    given = read_proofs(proofs or [])
    folder = out or Path("runs") / run_id()
    progress = Progress()
    with reserved(folder):
        try:
            made = kernels_report(
                name, spec=spec, platform=platform, command=command_line(), progress=progress, proofs=given
            )
        finally:
            progress.clear()
        texts = {
            "report.json": to_json(made),
            "report.html": render(made),
            "report.md": render_markdown(made),
        }
        paths = [str(path) for path in write_files(folder, texts)]
    answer.data({"schema": 1, "files": paths, "report": made.model_dump(mode="json")})
    for line in (made.headline, *(f"  {point}" for point in made.points), *paths):
        answer.text(line)
    answer.close(made.headline, diverged=fail and not made.exact)


def report_diff(answer: Answer, names: list[str], *, out: Path | None, fail: bool) -> None:
    """Say what changed between two reports of runs.

    Args:
        answer: where to say it.
        names: the old and the new: a report.json, or a folder that holds one.
        out: folder for diff.md and diff.json.
        fail: whether anything that got worse ends with exit code 1.

    Raises:
        InputError: not two names; one is no report, or of a schema that is not known; a file cannot be written.
    """
    from reports.folder import reserved, write_files
    from reports.runs.difference import compare_reports
    from reports.runs.difftext import lines, markdown
    from reports.runs.reading import read_report
    from specs.errors import InputError

    if len(names) != 2:
        raise InputError(
            f"takes two reports, not {len(names)}",
            place="report diff",
            remedy="name the old report.json and the new one; a run that is called diff is ./diff",
        )
    found = compare_reports(read_report(names[0]), read_report(names[1]), old=names[0], new=names[1])
    if out is not None:
        with reserved(out):
            write_files(out, {"diff.md": markdown(found), "diff.json": found.model_dump_json()})
    answer.data(found.model_dump(mode="json"))
    for line in lines(found):
        answer.text(line)
    answer.close(found.verdict, diverged=fail and bool(found.worse))
