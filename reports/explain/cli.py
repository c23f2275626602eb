"""``ulpscope explain A@P B@Q``: where two specs part on one input, how far it travels, what accounts for it."""

from __future__ import annotations

import time
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
from verify.console import Progress, answering, command_line

if TYPE_CHECKING:
    from reports.explain.contract import Explanation
    from search.explain.explain import Cell
    from verify.case import Case


def explain(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A@PLATFORM B@PLATFORM", help="Two specs with their platforms.", show_default=False
        ),
    ] = None,
    file: InputOption = None,
    teaching: TeachingOption = False,
    random_seed: RandomOption = None,
    head: Annotated[int | None, typer.Option("--head", min=0, help="Attribute this query head.")] = None,
    dim: Annotated[int | None, typer.Option("--dim", min=0, help="Attribute this output column.")] = None,
    query: Annotated[int | None, typer.Option("--query", min=0, help="Attribute this query token.")] = None,
    row: Annotated[
        int | None, typer.Option("--row", min=0, help="Attribute this row of ready scores.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--elements", min=1, max=64, help="Attribute so many elements, the furthest apart first."
        ),
    ] = 1,
    attribution: Annotated[
        bool,
        typer.Option("--attribution/--no-attribution", help="Whether to attribute the difference to parts."),
    ] = True,
    lowering: Annotated[
        list[str] | None,
        typer.Option(
            "--lowering",
            metavar="LOWERING",
            help="Name the instructions behind the first site that parts: what `ulpscope lower` kept or printed as JSON, "
            "of both sides; given twice: of the first and of the second.",
        ),
    ] = None,
    fine: Annotated[
        bool, typer.Option("--lines", help="Attribute to single lines, as far as that is legal.")
    ] = False,
    many: Annotated[
        int | None,
        typer.Option(
            "--ensemble", metavar="N", min=1, help="Shares of changed outputs over N random inputs."
        ),
    ] = None,
    orders: Annotated[
        int,
        typer.Option("--orders", min=2, max=4096, help="Orders that are sampled with more than six parts."),
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is sampled.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for explain.html, explain.md and explain.json.")
    ] = None,
    walker: WalkerOption = Walker.engine,
    kv_len: KvLen = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    kv_capacity: Capacity = None,
    model: ModelOption = None,
    more: SetOption = None,
    fail: Annotated[
        bool, typer.Option("--fail-on-divergence", help="Exit with 1 if any stored output differs.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema and stop.")] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Explain a difference: the first site where bits part, how it travels, which parts account for how much.

    Parts are what can be exchanged between the two specs: partition, weights and sums, partial results with their merge, and
    so on. What each accounts for is its Shapley value over all hybrids, in ULP of one output element.
    """
    began = time.perf_counter()
    with answering(schema or output is OutputFormat.json) as answer:
        from reports.explain.contract import json_schema
        from reports.explain.text import lines

        if schema:
            answer.data(json_schema())
            return
        context = verify.cli.shape_of(
            model,
            more,
            kv_len=kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            batch=batch,
            kv_capacity=kv_capacity,
        )
        a, b = _cells(sides or [])
        at = {
            n: i for n, i in (("query", query), ("head", head), ("row", row), ("dim", dim)) if i is not None
        }
        progress = Progress()
        own: dict[str, Any] = {
            "fine": fine,
            "backend": walker.value,
            "seed": seed,
            "orders": orders,
            "progress": progress,
        }
        if many is None:
            case = verify.cli.get_case(file, teaching, random_seed, context)
            own["lowerings"] = _lowerings(lowering or [])
            made = _one(case, a, b, at, count, attribution, own, began)
        else:
            made = _many(many, file, teaching, random_seed, context, a, b, at, attribution, own, began)
        progress.clear()
        paths = [] if folder is None else _write(made, folder)
        answer.data(made.model_dump(mode="json"))
        for line in lines(made):
            answer.text(line)
        for path in paths:
            answer.text(str(path))
        answer.close(made.verdict.headline, diverged=fail and made.verdict.diverges)


def _cells(names: list[str]) -> tuple[tuple[str, str], tuple[str, str]]:
    from specs.errors import InputError

    if len(names) != 2:
        raise InputError(
            f"{len(names)} sides",
            place="argument",
            remedy="name two of SPEC@PLATFORM, as in walkthrough.xqa@h200 walkthrough.triton@h200",
        )
    cells: list[tuple[str, str]] = []
    for text in names:
        name, sign, platform = text.rpartition("@")
        if not sign or not name or not platform:
            raise InputError(
                f"'{text}' names no platform",
                place="argument",
                remedy="write SPEC@PLATFORM, as in walkthrough.xqa@h200",
            )
        cells.append((name, platform))
    return cells[0], cells[1]


def _lowerings(names: list[str]) -> tuple[str | None, str | None]:
    from specs.errors import InputError

    if len(names) > 2:
        raise InputError(
            f"given {len(names)} times", place="--lowering", remedy="give one for both sides, or one for each"
        )
    return (names[0], names[-1]) if names else (None, None)


def _loaded(case: Case, a: tuple[str, str], b: tuple[str, str]) -> tuple[Cell, Cell]:
    known = case.kernel_context()
    return verify.cli.spec_and_platform(*a, known), verify.cli.spec_and_platform(*b, known)


def _one(
    case: Case,
    a: tuple[str, str],
    b: tuple[str, str],
    at: dict[str, int],
    count: int,
    attribution: bool,
    own: dict[str, Any],
    began: float,
) -> Explanation:
    from reports.explain.build import build
    from search.explain.explain import explain as run

    first, second = _loaded(case, a, b)
    found = run(case, first, second, at=at, count=count, attributed=attribution, **own)
    return build(found, input_name=case.name, command=command_line(), seed=own["seed"], began=began)


def _many(
    count: int,
    file: str | None,
    teaching: bool,
    random_seed: int | None,
    context: dict[str, Any],
    a: tuple[str, str],
    b: tuple[str, str],
    at: dict[str, int],
    attribution: bool,
    own: dict[str, Any],
    began: float,
) -> Explanation:
    from reports.explain.build import build_ensemble
    from search.explain.explain import explain_many, start
    from specs.errors import InputError

    if random_seed is None or file is not None or teaching:
        raise InputError(
            "an ensemble is made of random inputs",
            place="--ensemble",
            remedy="add --random SEED --kv-len N: it takes SEED, SEED + 1, ...",
        )
    if at or not attribution:
        raise InputError(
            "does not go with an element or --no-attribution",
            place="--ensemble",
            remedy="leave --head, --dim, --query, --row and --no-attribution out: outputs are sampled",
        )
    first_seed = random_seed

    def case(i: int) -> Case:
        return verify.cli.get_case(None, False, first_seed + i, dict(context))

    first, second = _loaded(case(0), a, b)
    found = explain_many(case, count, first, second, **own)
    if found is None:
        raise InputError(
            f"{first[0].name} on {first[1].name} and {second[0].name} on {second[1].name} are the same program here",
            place="argument",
            remedy="nothing can differ: no line, partition or primitive that the output depends on does",
        )
    runs = start(case(0), first, second, backend=own["backend"])
    name = f"random normal q, k, v, seeds {first_seed} to {first_seed + count - 1}"
    return build_ensemble(found, runs, input_name=name, command=command_line(), seed=own["seed"], began=began)


def _write(made: Explanation, folder: Path) -> list[Path]:
    """Write the three files, each whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    from reports.contract_base import to_json
    from reports.explain.page import render, render_markdown
    from reports.folder import reserved, write_files

    texts = {"explain.html": render(made), "explain.md": render_markdown(made), "explain.json": to_json(made)}
    with reserved(folder):
        return write_files(folder, texts)
