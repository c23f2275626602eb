"""``ulpscope prove``: thin commands; everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verify.cli import (
    Batch,
    HeadDim,
    KvHeads,
    KvLen,
    ModelOption,
    OptionOption,
    QHeads,
    options_of,
    shape_of,
)
from verify.console import answering

if TYPE_CHECKING:
    from reports.prove.contract import Question
    from reports.prove.telling import Telling
    from search.prove.answer import Proof
    from search.sides import Side

app = typer.Typer(
    help="Prove what can be proved: partitions, equal programs, algebra, bounds.", no_args_is_help=True
)
#: The heads of a question that names none.
MODEL = "qwen"


class ProofFormat(StrEnum):
    """How a question is answered."""

    text = "text"
    json = "json"
    html = "html"


FormatOption = Annotated[
    ProofFormat,
    typer.Option("--format", help="Text for people, JSON alone on stdout, or a page in a folder."),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Folder for proofs.html, proofs.md and proofs.json (with --format html: runs/ID)."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other value that formulas see, such as fork=vllm."),
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", min=0.1, max=1e6, help="The limit of one question; it is killed then.")
]


@app.callback(invoke_without_command=True)
def root(
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of what --format json prints and stop.")
    ] = False,
) -> None:
    """Prove what can be proved: partitions, equal programs, algebra, bounds."""
    if schema:
        with answering(True) as answer:
            from reports.prove.contract import json_schema

            answer.data(json_schema())
        raise typer.Exit


@app.command()
def partition(
    cells: Annotated[
        list[str],
        typer.Argument(metavar="SPEC | A@PLATFORM [B@PLATFORM]", help="One spec, or one or two sides."),
    ],
    kv_len: KvLen = None,
    find: Annotated[
        str | None,
        typer.Option("--find", metavar="NAME", help="Which values of sm_count, batch, kv_len, ... answer."),
    ] = None,
    splits: Annotated[
        int | None,
        typer.Option("--splits", min=1, help="With --find: for which the rule gives so many pieces."),
    ] = None,
    up_to: Annotated[int, typer.Option("--up-to", min=1, help="The largest kv_len of a comparison.")] = 1
    << 20,
    settings: SetOption = None,
    option: OptionOption = None,
    model: ModelOption = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    seconds: SecondsOption = 60.0,
    out: FolderOption = None,
    output: FormatOption = ProofFormat.text,
) -> None:
    """Each token has one owner; where two partitions differ first; which shapes give some count of groups."""
    with _asking("partition", out, output) as telling:
        from dataclasses import replace

        from search.prove.about import about_sides, asked
        from specs.errors import InputError

        heads = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "batch": batch}
        options = options_of(option)
        if len(cells) == 1 and find is None:
            from search.prove.processes import ask
            from search.prove.work import partition_job

            fixed = {**shape_of(model, settings, **heads, kv_len=kv_len), **options}
            if splits is not None:
                raise InputError("--splits without --find", place="arguments", remedy="add --find sm_count")
            telling.say(ask(partition_job(cells[0], fixed, seconds)))
            return
        sides = [replace(side, options=options) for side in _sides(cells)]
        named = model or (MODEL if q_heads is kv_heads is head_dim is None else None)
        context = shape_of(named, settings, **heads)
        if len(sides) > 2 or (find is not None and len(sides) > 1):
            raise InputError(
                f"{len(sides)} sides", place="arguments", remedy="give one spec, or one or two SPEC@PLATFORM"
            )
        if find is None:
            from search.prove.questions import first_difference

            if len(sides) == 1:
                raise InputError(
                    "one side alone", place="arguments", remedy="add --find, or a second SPEC@PLATFORM"
                )
            a, b = sides
            one = first_difference(a, b, context, min(up_to, kv_len or up_to), seconds)
            telling.say(asked("difference", about_sides(sides), [one]))
            return
        from search.prove.questions import find_values

        if kv_len is not None:
            context["kv_len"] = kv_len
        one = find_values(sides[0], context, find, splits)
        telling.say(asked("values", about_sides(sides), [one]))


@app.command()
def algebra(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC[@PLATFORM] ...", help="Names or paths of specs.")
    ],
    settings: SetOption = None,
    option: OptionOption = None,
    model: ModelOption = None,
    kv_len: KvLen = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    seconds: SecondsOption = 60.0,
    out: FolderOption = None,
    output: FormatOption = ProofFormat.text,
) -> None:
    """With all roundings removed a spec is softmax attention: proved by its structure, or the step that breaks."""
    with _asking("algebra", out, output) as telling:
        from search.prove.processes import ask
        from search.prove.work import algebra_job

        heads = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "kv_len": kv_len}
        context, options = shape_of(model, settings, **heads), options_of(option)
        telling.say([p for name in specs for p in ask(algebra_job(name, context, options, seconds))])


@app.command()
def library(
    specs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC ...]", help="Names or paths; the whole library by default."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Processes at a time.")] = 2,
    seconds: SecondsOption = 25.0,
    out: FolderOption = None,
    output: FormatOption = ProofFormat.text,
) -> None:
    """Everything above over the whole library, as a table with what the proofs assume."""
    with _asking("library", out, output) as telling:
        from search.prove.library import library_names, prove_library
        from verify.console import Progress

        progress = Progress()
        try:
            found = prove_library(specs or library_names(), workers, seconds, progress)
        finally:
            progress.clear()
        telling.say_library(found)


@app.command()
def bound(
    cells: Annotated[list[str], typer.Argument(metavar="A@PLATFORM [B@PLATFORM]", help="One or two sides.")],
    kv_len: KvLen = None,
    cancellation: Annotated[
        float,
        typer.Option(
            "--cancellation", "-c", help="The exact output is at least this part of the weighted mean of |v|."
        ),
    ] = 0.5,
    roundings: Annotated[
        int | None,
        typer.Option(
            "--roundings", min=0, help="f32 roundings to allow for on each side, instead of those counted."
        ),
    ] = None,
    score_box: Annotated[
        float | None,
        typer.Option(
            "--score-box", help="Scaled scores are within plus or minus this; 20, the most, if not given."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="One input, scores and values: certify each side's error."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="[a.|b.]NAME=TEXT", help="Change a line of one side, or what formulas see."
        ),
    ] = None,
    model: ModelOption = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    seconds: SecondsOption = 60.0,
    out: FolderOption = None,
    output: FormatOption = ProofFormat.text,
) -> None:
    """The largest distance of two sides, or of one from the exact answer; or the error on one input."""
    with _asking("bound", out, output) as telling:
        from fractions import Fraction

        from search.cli import sides_with
        from specs.errors import InputError

        sides, context = sides_with(cells, settings or [])
        heads = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "batch": batch}
        named = model or (MODEL if q_heads is kv_heads is head_dim is None else None)
        context = {**shape_of(named, None, **heads), **context}
        if file is not None:
            from search.prove.about import about_sides, asked
            from search.prove.bounds import certify_input

            proofs = certify_input(sides, file, context)
            each = [asked("input", about_sides([s]), [p]) for s, p in zip(sides, proofs, strict=True)]
            telling.say(p for one in each for p in one)
            return
        if len(sides) > 2 or kv_len is None:
            what = "no --kv-len" if kv_len is None else f"{len(sides)} sides"
            raise InputError(
                what,
                place="arguments",
                remedy="write ulpscope prove bound A@PLATFORM B@PLATFORM --kv-len 27525",
            )
        from search.prove.processes import ask
        from search.prove.work import bound_job

        if not 0 < cancellation <= 1:  # NaN included
            remedy = "give 0 < c <= 1: without it there is no bound"
            raise InputError(f"c = {cancellation!r}", place="--cancellation", remedy=remedy)
        part = Fraction(str(cancellation))
        telling.say(ask(bound_job(sides, {**context, "kv_len": kv_len}, part, roundings, seconds, score_box)))


@app.command()
def equal(
    cells: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SPEC | A@PLATFORM B@PLATFORM", help="One spec with --platforms, or two sides."
        ),
    ] = None,
    platforms: Annotated[
        str | None,
        typer.Option("--platforms", metavar="A,B", help="Platforms that a spec, or --dot, is set on."),
    ] = None,
    dot: Annotated[
        str | None,
        typer.Option(
            "--dot", metavar="FORMAT", help="The tensor cores of --platforms alone, on these factors."
        ),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", metavar="FORMAT", help="The format of q, k and v, such as bf16.")
    ] = None,
    kv_len: KvLen = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", min=1, max=6, help="A small instance, bit by bit, by a solver: proof or witness."
        ),
    ] = None,
    solver: Annotated[str, typer.Option("--solver", help="z3, or bitwuzla (an extra).")] = "z3",
    witness: Annotated[
        bool,
        typer.Option("--witness/--no-witness", help="Try inputs where the structure does not settle it."),
    ] = True,
    settings: SetOption = None,
    option: OptionOption = None,
    model: ModelOption = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    seconds: SecondsOption = 60.0,
    out: FolderOption = None,
    output: FormatOption = ProofFormat.text,
) -> None:
    """Whether two sides give the same bits: proved by structure, or refuted by an input."""
    with _asking("equal", out, output) as telling:
        from dataclasses import replace
        from itertools import combinations

        from search.prove.work import check_names
        from specs.errors import InputError
        from specs.platforms import load_platform

        names = [n for n in (platforms or "").split(",") if n]
        if dot is not None:
            from search.prove.dots import prove_dots

            telling.say(prove_dots([load_platform(n) for n in names], dot))
            return
        given = [f"{c}@{n}" for c in cells or [] for n in names] if names else list(cells or [])
        if len(given) < 2:
            raise InputError(
                "fewer than two sides",
                place="arguments",
                remedy="write SPEC --platforms h200,h100, or two SPEC@PLATFORM",
            )
        options = options_of(option)
        sides = [replace(side, options=options) for side in _sides(given)]
        heads = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "batch": batch}
        known = shape_of(model, settings, **heads)
        check_names(known)
        usual = MODEL if model is None and q_heads is kv_heads is head_dim is None else None
        context = {**shape_of(usual, None), **known}
        proofs: list[Proof] = []
        for a, b in combinations(sides, 2):
            if tokens is not None:
                from search.prove.processes import ask
                from search.prove.work import small_job

                proofs += ask(small_job(a, b, tokens, context, solver, seconds))
                continue
            from search.prove.about import about_sides, asked
            from search.prove.equal import prove_equal

            one = prove_equal(
                a, b, context, known=known, kv_len=kv_len, fmt=inputs, witness=witness, seconds=seconds
            )
            proofs += asked("equal", about_sides([a, b]), [one])
        telling.say(proofs)


@contextmanager
def _asking(question: Question, out: Path | None, output: ProofFormat) -> Generator[Telling]:
    """Run a question: mistakes as `verify.console.answering`; a folder that is to be written to is tried first."""
    with answering(output is ProofFormat.json) as answer:
        from reports.folder import reserved, run_id
        from reports.prove.telling import Telling

        folder = out or (Path("runs") / run_id() if output is ProofFormat.html else None)
        telling = Telling(answer, question, folder, brief=output is ProofFormat.html)
        with reserved(folder) if folder is not None else nullcontext():
            yield telling


def _sides(cells: list[str]) -> list[Side]:
    from search.sides import load_side

    return [load_side(cell) for cell in cells]
