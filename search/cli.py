"""``ulpscope search | replay | campaign``: thin commands; everything heavy is imported inside."""

from __future__ import annotations

import math
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from search.campaign.cli import app as campaign_app
from search.identify import identify
from specs.cli import FormatOption, OutputFormat
from verify.cli import Batch, HeadDim, KvHeads, KvLen, ModelOption, QHeads, shape_of
from verify.console import Answer, answering
from verify.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from search.objective import Objective
    from search.run import Progress
    from search.sides import Side
    from search.space import Space

#: The heads of a search whose command names none.
MODEL = "qwen"
LETTERS = "abcdefgh"


class Kind(StrEnum):
    """What is searched."""

    scores = "scores"
    qkv = "qkv"


class Metric(StrEnum):
    """What is maximised."""

    ulp = "ulp"
    f32 = "f32"
    flips = "flips"
    kl = "kl"


class Language(StrEnum):
    """What a script for a real kernel is written in."""

    torch = "torch"
    triton = "triton"
    jax = "jax"


def search(
    cells: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A@PLATFORM B@PLATFORM ...", help="Two or more specs on platforms.", show_default=False
        ),
    ] = None,
    kv_len: KvLen = None,
    cancellation: Annotated[
        float,
        typer.Option(
            "--cancellation", "-c", help="The exact output is at least this part of the weighted mean of |v|."
        ),
    ] = 0.5,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[a.|b.]NAME=TEXT",
            help="Change a level, [let] line, site or option of one side (a.split='tiles(20)') or of all; "
            "or a value that formulas see.",
        ),
    ] = None,
    kind: Annotated[
        Kind, typer.Option("--space", help="Ready scores and values, or q, k and v.")
    ] = Kind.scores,
    metric: Annotated[Metric, typer.Option("--objective", help="What is maximised.")] = Metric.ulp,
    projection: Annotated[
        Path | None,
        typer.Option(
            "--projection",
            metavar="FILE",
            help="One array [vocabulary, dim] (.npz or .safetensors), for flips and kl.",
        ),
    ] = None,
    single: Annotated[
        str | None,
        typer.Option("--single", metavar="a|b|...", help="Single this side out: the others alike."),
    ] = None,
    score_box: Annotated[float, typer.Option("--score-box", help="Bound on |scores|.")] = 20.0,
    value_box: Annotated[float, typer.Option("--value-box", help="Bound on |values|.")] = 8.0,
    masks: Annotated[bool, typer.Option("--masks", help="Tokens may be masked.")] = False,
    dims: Annotated[int, typer.Option("--dims", min=1, help="Columns of V that are searched.")] = 1,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="FILE", help="Start from this input: `scores` and `values` in a file."
        ),
    ] = None,
    edits: Annotated[
        int | None, typer.Option("--edits", min=1, help="Change at most so many elements of the base.")
    ] = None,
    fixed: Annotated[
        str | None,
        typer.Option("--fixed", metavar="0-15,40", help="Tokens of the base that stay as they are."),
    ] = None,
    score_std: Annotated[
        float | None, typer.Option("--score-std", help="Largest standard deviation of the scores.")
    ] = None,
    value_std: Annotated[
        float | None, typer.Option("--value-std", help="Largest standard deviation of the values.")
    ] = None,
    method: Annotated[
        str,
        typer.Option("--method", help="search, or a baseline: random, bgrt, cma, condition, evolution, smt."),
    ] = "search",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is random.")] = 0,
    evaluations: Annotated[int, typer.Option("--evaluations", min=1, help="Candidates evaluated.")] = 50_000,
    rlimit: Annotated[int, typer.Option("--rlimit", min=1, help="Solver resources.")] = 20_000_000,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Wall time; a search that it ends says so.")
    ] = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    model: ModelOption = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the witness (default: runs/ID).")
    ] = None,
    minimise: Annotated[
        str | None,
        typer.Option("--minimise", metavar="WITNESS", help="Shrink a witness instead of searching."),
    ] = None,
    emit: Annotated[
        Language | None,
        typer.Option("--emit", help="Write a script that feeds the witness to a real kernel, too."),
    ] = None,
    bound: Annotated[bool, typer.Option("--bound", help="Say the upper bound and stop.")] = False,
    fail: Annotated[
        bool, typer.Option("--fail-on-divergence", help="Exit with 1 if any stored output differs.")
    ] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Find inputs on which backends part as far as possible; certify and file them."""
    with answering(output is OutputFormat.json) as answer:
        from search import filing
        from search.files import read_projection
        from search.objective import Objective
        from search.run import Budget, search_by
        from specs.errors import InputError

        if minimise is not None:
            if cells or kv_len is not None:
                raise InputError(
                    "--minimise takes no sides and no --kv-len",
                    place="arguments",
                    remedy="the witness names its own",
                )
            filing.minimise(answer, minimise, folder, evaluations, seed, emit and emit.value)
            return
        if not cells or len(cells) < 2 or kv_len is None:
            what = "no --kv-len" if cells and len(cells) > 1 else "fewer than two sides"
            raise InputError(
                what, place="arguments", remedy="write ulpscope search A@PLATFORM B@PLATFORM --kv-len 27525"
            )
        sides, context = sides_with(cells, settings or [])
        heads = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "batch": batch}
        named = model or (MODEL if q_heads is kv_heads is head_dim is None else None)
        context = {**shape_of(named, None, **heads), **context}
        space = _space(
            kv_len,
            kind.value,
            context,
            base,
            fixed,
            score_std,
            value_std,
            dims=dims,
            score_box=score_box,
            value_box=value_box,
            cancellation=cancellation,
            masks=masks,
            edits=edits,
        )
        matrix = None if projection is None else read_projection(projection)
        objective = Objective(metric.value, matrix, _letter(single, len(sides)))
        if bound:
            _say_bound(answer, sides, space, objective)
            return
        filing.check_folder(folder)
        line = _Line()
        try:
            outcome = search_by(
                method,
                sides,
                space,
                objective,
                seed=seed,
                budget=Budget(evaluations, rlimit, seconds),
                progress=line,
                keep=True,
            )
        finally:
            line.clear()
        filing.file_outcome(answer, outcome, folder, emit and emit.value, fail, method)
        if outcome.interrupted:
            kept = "what was found so far is filed" if outcome.best else "nothing was found so far"
            typer.echo(f"interrupted: {kept}", err=True)
            raise typer.Exit(INTERRUPTED)


def replay(
    witness: Annotated[
        str, typer.Argument(metavar="WITNESS", help="The .json of a witness, or a folder of them.")
    ],
    output: FormatOption = OutputFormat.text,
) -> None:
    """Compute a witness again, by the engine and by exact arithmetic, and compare every bit."""
    with answering(output is OutputFormat.json) as answer:
        from dataclasses import asdict

        from search.corpus import check, exit_code
        from search.replay import replay_file

        if Path(witness).is_dir():
            found = check(witness)
            answer.data({"schema": 1, "members": [asdict(m) for m in found]})
            for member in found:
                for text in member.lines():
                    answer.text(text)
            good = sum(m.replays for m in found)
            answer.close(f"{good} of {len(found)} witnesses replay")
            if code := exit_code(found):
                raise typer.Exit(code)
            return
        result = replay_file(witness)
        answer.data({"schema": 1, "verdict": result.verdict, **asdict(result)})
        for text in result.lines():
            answer.text(text)
        answer.close(result.verdict, diverged=not result.replays)


class _Line:
    """One line on stderr: the part of the search, candidates a second, the best so far and the bound."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        self.began = self.last = time.monotonic()
        self.part = ""

    def __call__(self, p: Progress) -> None:
        now = time.monotonic()
        if p.method == self.part and now - self.last < (0.2 if self.shown else 60.0):
            return
        self.last, self.part = now, p.method
        best = f"{p.best:.4f}" if math.isfinite(p.best) else "none"
        limit = "" if p.bound is None else f" of at most {p.bound:.4f}"
        rate = p.evaluations / max(1e-9, now - self.began)
        done = f"{p.evaluations:,} candidates, {rate:,.0f}/s" if p.evaluations else "compiling"
        text = f"{p.method}: best {best}{limit}, {done}"
        sys.stderr.write(f"\r\x1b[K{text}" if self.shown else f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def sides_with(cells: list[str], settings: list[str]) -> tuple[list[Side], dict[str, Any]]:
    """The sides with their settings, and what all of them see.

    Raises:
        InputError: too many sides, or a setting that says nothing.
    """
    from search.sides import load_side
    from specs.context import CONTEXT
    from specs.errors import InputError

    if len(cells) > len(LETTERS):
        raise InputError(
            f"{len(cells)} sides", place="arguments", remedy=f"give at most {len(LETTERS)} SPEC@PLATFORM"
        )
    letters = LETTERS[: len(cells)]
    own: dict[str, dict[str, str]] = {letter: {} for letter in letters}
    context: dict[str, Any] = {}
    for pair in settings:
        name, sign, text = pair.partition("=")
        head, dot, rest = name.strip().partition(".")
        if not sign or not name.strip():
            raise InputError(f"'{pair}' has no '='", place="--set", remedy="write --set a.split='tiles(20)'")
        if dot and head not in own:
            raise InputError(
                f"'{head}.' names no side", place="--set", remedy=f"sides are {', '.join(letters)}, in order"
            )
        if dot:
            own[head][rest] = text
        elif name.strip() == "kv_len":
            raise InputError("kv_len", place="--set", remedy="the length is --kv-len")
        elif name.strip() in CONTEXT:
            context |= shape_of(None, [pair])
        else:
            for letter in letters:
                own[letter][name.strip()] = text
    return [load_side(cell, own[letter]) for cell, letter in zip(cells, letters, strict=True)], context


def _space(
    kv_len: int,
    kind: Any,
    context: dict[str, Any],
    base: str | None,
    fixed: str | None,
    score_std: float | None,
    value_std: float | None,
    **rest: Any,
) -> Space:
    from search.files import read_base, token_numbers
    from search.space import Space, Statistics

    start = None if base is None else read_base(base)
    if start is not None:
        rest["dims"] = start.dims
    moments = None if score_std is value_std is None else Statistics(score_std, value_std)
    return Space(
        kv_len=kv_len,
        kind=kind,
        context=context,
        base=start,
        fixed=token_numbers(fixed),
        statistics=moments,
        **rest,
    )


def _letter(text: str | None, sides: int) -> int | None:
    from specs.errors import InputError

    if text is None:
        return None
    if text not in LETTERS[:sides] or len(text) != 1:
        raise InputError(
            f"'{text}' is no side",
            place="--single",
            remedy=f"sides are {', '.join(LETTERS[:sides])}, in order",
        )
    return LETTERS.index(text)


def _say_bound(answer: Answer, sides: list[Side], space: Space, objective: Objective) -> None:
    from search.run import bound_for

    found, why = bound_for(sides, space, objective)
    labels = [side.label for side in sides]
    finite = found is not None and math.isfinite(found.real)
    reason = why if found is None else found.reason
    answer.data(
        {
            "schema": 1,
            "sides": labels,
            "cancellation": space.cancellation,
            "real_ulp": found.real if found is not None and finite else None,
            "integer_ulp": None if found is None else found.integer,
            "first_order_ulp": found.first_order if found and math.isfinite(found.first_order) else None,
            "rigor": None if found is None else found.rigor,
            "reason": reason,
        }
    )
    words = "no finite bound"
    if found and finite:
        words = f"{'at most' if found.rigor == 'rigorous' else 'about'} {found.real:.4f} ULP before rounding"
    of = f"{found.rigor}: {reason}" if found else reason
    what = labels[0] + " and " + labels[1] if len(sides) == 2 else f"the two nearest of {', '.join(labels)}"
    answer.text(f"{what}: {words} at c = {space.cancellation:g} ({of})")
    answer.close(words)


def register(app: typer.Typer) -> None:
    """Mount the commands."""
    app.command()(search)
    app.command()(replay)
    app.command()(identify)
    app.add_typer(campaign_app, name="campaign")
