"""``ulpscope identify``: which program made a capture, and which inputs would tell what remains ambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.cli import options_of
from verify.console import Answer, Progress, answering
from verify.words import plural

if TYPE_CHECKING:
    from search.probes import Probe
    from verify.identify.observations import Observation
    from verify.identify.ranking import Identification
    from verify.runs.run import Run

#: Decode steps of each layer that are tried, unless told otherwise.
POSITIONS = 64
#: Places of the ranking that are printed.
SHOWN = 12
#: Rows of the confusion matrix that are printed; chances of a wrong first place that are.
LETTERS, CONFUSED = 8, 0.001


def identify(
    capture: Annotated[
        str,
        typer.Argument(metavar="CAPTURE", help="A run folder, a capture of kernels, or a file of an engine."),
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate",
            "-c",
            metavar="SPEC[@PLATFORM]",
            help="A candidate; repeat it. Default: every spec of a real kernel on every platform.",
        ),
    ] = None,
    predicted: Annotated[
        list[str] | None,
        typer.Option(
            "--predicted", metavar="RUN", help="A run of predicted logits (`ulpscope predict`); repeat it."
        ),
    ] = None,
    walkthrough: Annotated[bool, typer.Option("--walkthrough", help="The teaching specs, too.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A value that formulas see, such as a version."),
    ] = None,
    positions: Annotated[
        int, typer.Option("--positions", min=1, help="Decode steps of each layer that are tried at most.")
    ] = POSITIONS,
    disturbed: Annotated[
        float | None,
        typer.Option("--disturbed", metavar="SHARE", help="Share of positions that something may disturb."),
    ] = None,
    probe_folder: Annotated[
        Path | None,
        typer.Option(
            "--probes", metavar="FOLDER", help="Search inputs that tell ambiguous candidates apart."
        ),
    ] = None,
    evaluations: Annotated[
        int, typer.Option("--evaluations", min=1, help="Candidates evaluated for each probe.")
    ] = 2_000,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Rank the programs that may have made a capture; "none of the candidates" is one of them."""
    with answering(output is OutputFormat.json) as answer:
        from specs.errors import InputError
        from verify.capture.format import is_capture, read_capture
        from verify.identify.candidates import candidates
        from verify.identify.identify import identify as rank_attention
        from verify.identify.logits import identify_logits, repeats_share
        from verify.identify.observations import of_kernels, of_run
        from verify.runs.folder import is_run

        seen: list[Observation] = []
        e = disturbed
        if not is_run(capture) and is_capture(capture):
            if predicted:
                raise InputError(
                    "a capture of kernels holds no logits",
                    place="--predicted",
                    remedy="name --candidate instead",
                )
            seen = of_kernels(read_capture(capture))
        else:
            run = _run(capture)
            if predicted:
                found = identify_logits(run, [_run(p) for p in predicted], e=e)
                _say(answer, found, [])
                return
            seen = of_run(run, most=positions)
            e = repeats_share(run) if e is None else e
        progress = Progress()
        given = candidates(names or (), walkthrough=walkthrough, context=options_of(settings))
        found = rank_attention(seen, given, e=e, progress=progress)
        made = _probes(found, seen, probe_folder, evaluations)
        progress.clear()
        _say(answer, found, made)


def _run(place: str) -> Run:
    """The one run in ``place``."""
    from specs.errors import InputError
    from verify.runs.load import load_runs
    from verify.runs.validate import value_problems

    runs = load_runs(place)
    if len(runs) != 1:
        raise InputError(
            f"holds {len(runs)} runs: {', '.join(r.name for r in runs[:5])}",
            place=place,
            remedy="import it with `ulpscope capture import`, and name one of the folders",
        )
    value_problems(runs[0]).stop(place)
    return runs[0]


def _probes(
    found: Identification, seen: Sequence[Observation], folder: Path | None, evaluations: int
) -> list[Probe]:
    from search.probes import probes, searched

    named = probes(found, seen)
    return named if folder is None else [searched(p, seen, folder, evaluations) for p in named]


def _say(answer: Answer, found: Identification, made: Sequence[Probe]) -> None:
    data: dict[str, Any] = {"schema": 1, **found.to_json(), "probes": [asdict(p) for p in made]}
    answer.data(data)
    answer.text(found.verdict)
    if found.ranking:
        _say_ranking(answer, found)
    for probe in made:
        answer.text(f"to tell {probe.left} from {probe.right}: {probe.said or probe.command}")
        for file in probe.files:
            answer.text(f"  {file}")
    if found.refused:
        answer.text(f"{plural(len(found.refused), 'candidate')} could not be tried:")
        for why in dict.fromkeys(r.why for r in found.refused):
            which = [r.name for r in found.refused if r.why == why]
            answer.text(f"  {', '.join(which[:3])}{' ...' if len(which) > 3 else ''}: {why}")
    answer.close(found.verdict)


def _say_ranking(answer: Answer, found: Identification) -> None:
    """The table, and what leads to it."""
    answer.text()
    answer.text(f"{'exact numbers':>14}{'exact positions':>20}{'ln likelihood':>16}{'chance':>8}  candidate")
    for i, r in enumerate(found.ranking[:SHOWN]):
        name = " = ".join(r.names[:2]) + (f" = ... ({len(r.names)} by proof)" if len(r.names) > 2 else "")
        of = f"{r.exact_positions:,} of {r.positions:,}"
        mark = "*" if i in found.ambiguous else " "
        answer.text(
            f"{r.exact_share:>13.4%} {of:>20}{r.log_likelihood:>16.1f}{r.posterior:>8.3f} {mark}{name}"
        )
    answer.text(
        f"{'':>34}{found.none_log_likelihood:>16.1f}{found.none_posterior:>8.3f}  none of the candidates"
    )
    if len(found.ranking) > SHOWN:
        answer.text(f"{len(found.ranking) - SHOWN} more")
    first = found.ranking[0].first
    if first is not None:
        answer.text(f"first difference: {first}")
    _say_apart(answer, found)
    _say_matrix(answer, found)
    answer.text(f"positions that may be disturbed: {found.e:.3g} ({found.e_source})")


def _say_apart(answer: Answer, found: Identification) -> None:
    """The confusion of the leading candidates."""
    for pair in found.confusion:
        if pair.left == 0 and pair.right < SHOWN:
            name = found.ranking[pair.right].names[0]
            needed = "never, on inputs like these" if pair.needed is None else f"{pair.needed:,} positions"
            answer.text(
                f"predictions differ from {name} in {pair.share:.1%} of positions; to tell them apart: {needed}"
            )


def _say_matrix(answer: Answer, found: Identification) -> None:
    """The confusion matrix: rows are the truth, columns the candidates in the order of the ranking."""
    size = min(len(found.matrix.names), LETTERS)
    if size < 2:
        return
    marks = [chr(ord("A") + i) for i in range(size)]
    answer.text("confusion matrix: were the row the truth, the share of positions at which each is exact")
    answer.text(f"{'':4}" + "".join(f"{m:>8}" for m in marks) + "  truth")
    for i, mark in enumerate(marks):
        cells = "".join(f"{share:>8.1%}" for share in found.matrix.exact[i][:size])
        answer.text(f"  {mark} {cells}  {found.matrix.names[i]}")
    wrong = [
        (found.matrix.ranked[i][j], marks[i], marks[j])
        for i in range(size)
        for j in range(size)
        if i != j and found.matrix.ranked[i][j] >= CONFUSED
    ]
    n = found.ranking[0].positions
    if not wrong:
        answer.text(f"on {n:,} positions like these no other is ranked first")
    for chance, truth, other in sorted(wrong, reverse=True)[:LETTERS]:
        answer.text(f"on {n:,} positions like these {truth} is taken for {other} with chance {chance:.3f}")
