"""``ulpscope spec``: list, show, check, new, schema, diff.

Text for people or, with ``--format json``, JSON alone on standard output; all else goes to standard error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.errors import SpecError, UlpscopeError

if TYPE_CHECKING:
    from specs.loader import Spec
    from specs.requested import Requested

app = typer.Typer(
    name="spec",
    help="Specs of attention backends: list, show, check, compare and start new ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


class OutputFormat(StrEnum):
    """How a command answers."""

    text = "text"
    json = "json"


FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="Text for people, or JSON alone on stdout.")
]
SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A name of `spec list`, or the path of a .toml file.")
]


@contextmanager
def _reporting() -> Generator[None]:
    """Turn a user's mistake into a message on stderr and exit code 2, never a traceback."""
    try:
        yield
    except UlpscopeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _load(name: str) -> Spec:
    """The spec of a name or path.

    Raises:
        SpecError: there is none; for the name of a backend with what to do instead.
    """
    from specs.discover import every, is_path
    from specs.loader import load_spec
    from specs.requested import ENGINE, load_requested

    backend = not is_path(name) and name.removeprefix(ENGINE) in load_requested()
    if backend and name not in {found.name for found in every()}:
        raise SpecError(
            f"'{name}' is a backend, not a spec: its platform and shape decide which spec it is",
            remedy=f"`ulpscope plan {name} -p PLATFORM --kv-len TOKENS` says which",
        )
    return load_spec(name)


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


@app.command("list")
def list_command(output: FormatOption = OutputFormat.text) -> None:
    """List every spec, platform, model and workload that a name reaches."""
    with _reporting():
        from specs.discover import every
        from specs.loader import load_spec
        from specs.models import load_model
        from specs.platforms import load_platform
        from specs.requested import load_requested
        from specs.workloads import load_workload

        specs: list[dict[str, Any]] = []
        for found in every():
            entry: dict[str, Any] = {"name": found.name, "kind": found.kind, "path": str(found.path)}
            try:
                file = load_spec(found.path).file
                entry |= {"status": file.status, "summary": file.summary, "error": None}
            except SpecError as error:
                entry |= {"status": "broken", "summary": error.cause, "error": str(error)}
            specs.append({**entry, "shadows": [str(p) for p in found.shadows]})
            _warn((found.warning,) if found.warning else ())
        platforms = [load_platform(f.name) for f in every("platform")]
        models = [load_model(f.name) for f in every("model")]
        workloads = [load_workload(f.name) for f in every("workload")]
        requested = load_requested()
    if output is OutputFormat.json:
        _print_json(
            {
                "schema": 1,
                "specs": specs,
                "platforms": [p.model_dump(mode="json", by_alias=True) for p in platforms],
                "models": [m.model_dump(mode="json", by_alias=True) for m in models],
                "workloads": [
                    {"name": w.name, "title": w.title, "ranges": len(w.ranges), "tokens": w.tokens}
                    for w in workloads
                ],
                "requested": {n: r.model_dump(mode="json") for n, r in requested.items()},
            }
        )
        return
    groups = [
        ("specs", [(s["name"], f"{s['status']:<11}  {s['summary']}") for s in specs]),
        (
            "platforms",
            [
                (
                    p.name,
                    f"{p.sm_count:3} SMs, {p.capability}, {p.title}" if p.kind == "gpu" else p.title,
                )
                for p in platforms
            ],
        ),
        (
            "models",
            [
                (m.name, f"{m.q_heads} query heads, {m.kv_heads} KV heads, head_dim {m.head_dim}")
                for m in models
            ],
        ),
        ("workloads", [(w.name, f"{len(w.ranges)} ranges, {w.tokens} tokens") for w in workloads]),
        (
            "backends to ask for",
            [(n, _means(r)) for n, r in requested.items()],
        ),
    ]
    width = max(len(name) for _, items in groups for name, _ in items)
    for title, items in groups:
        typer.echo(f"{title}:")
        for name, text in items:
            typer.echo(f"  {name:<{width}}  {text}")


def _means(asked: Requested) -> str:
    """What a name to ask for stands for, on one line."""
    defined = [asked.any] if asked.any else list(dict.fromkeys(asked.by_capability.values()))
    kernels = dict.fromkeys(c.spec or c.ask for c in asked.kernels if c.refuse is None)
    parts = [", ".join(str(x) for x in names) for names in (defined, kernels) if names]
    return "; kernels: ".join(parts) if defined else f"kernels: {''.join(parts) or 'none described'}"


@app.command()
def show(spec: SpecArgument, output: FormatOption = OutputFormat.text) -> None:
    """Print a spec after everything that it extends is resolved."""
    with _reporting():
        from specs.show import show_json, show_rich, show_text

        loaded = _load(spec)
        _warn(loaded.warnings)
    if output is OutputFormat.json:
        _print_json(show_json(loaded))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(show_rich(loaded), soft_wrap=True)
    else:
        typer.echo(show_text(loaded))


@app.command()
def check(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help="Names or paths; several are checked in order.")
    ],
    output: FormatOption = OutputFormat.text,
) -> None:
    """Check specs: syntax, names, axes, kinds and formats, on three GPU generations."""
    results = [_check_one(spec) for spec in specs]
    failed = [r for r in results if not r["ok"]]
    if output is OutputFormat.json:
        _print_json({"schema": 1, "ok": not failed, "results": results})
    for result in results:
        if not result["ok"]:
            typer.echo(f"error: {result['message']}", err=True)
        elif output is OutputFormat.text:
            typer.echo(
                f"ok: {result['name']}, {result['sites']} sites, {result['levels']} "
                f"level{'' if result['levels'] == 1 else 's'}, "
                f"sha256 {result['hash'][:12]}"
            )
    if failed:
        raise typer.Exit(2)


def _check_one(spec: str) -> dict[str, Any]:
    """Load ``spec`` and type it for Hopper, B200, SM120 and a CPU, with four heads a group and 4,097 tokens.

    A kernel need not run on all of them, but on one at least.
    """
    from specs.bind import bind
    from specs.context import make_context
    from specs.errors import UnsupportedError
    from specs.platforms import load_platform

    try:
        loaded = _load(spec)
        _warn(loaded.warnings)
        refused: list[UnsupportedError] = []
        generations = [load_platform(name).context for name in ("h200", "b200", "sm120", "amd_avx512")]
        for generation in generations:
            shape = {"kv_len": 4097, "q_heads": 16, "kv_heads": 4, "head_dim": 128}
            try:
                bind(loaded, make_context({**shape, **generation}))
            except UnsupportedError as error:
                refused.append(error)
        if len(refused) == len(generations):
            raise refused[0]
    except UlpscopeError as error:
        return {
            "ok": False,
            "spec": spec,
            "place": str(error.place or ""),
            "cause": error.cause,
            "message": str(error),
        }
    return {
        "ok": True,
        "spec": spec,
        "name": loaded.name,
        "origin": loaded.origin,
        "sites": sum(len(s) for s in loaded.sections.values()),
        "levels": len(loaded.levels),
        "hash": loaded.content_hash,
    }


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(help="Name of the spec: lower-case words with dots, as in acme.decode.")
    ],
    path: Annotated[
        Path | None, typer.Option("--path", help="File to write (default: specs.d/NAME.toml).")
    ] = None,
) -> None:
    """Write a commented spec to start from. An existing file is never overwritten."""
    with _reporting():
        from specs.template import template

        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", name) or len(name) > 80:
            raise SpecError(
                f"'{name}' cannot name a spec",
                remedy="use lower-case letters, digits, '_' and dots, as in acme.decode",
            )
        target = path or Path("specs.d") / f"{name}.toml"
        if target.exists():
            raise SpecError("exists already", place=str(target), remedy="choose another name, or --path")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                file.write(template(name, str(target)))
        except OSError as error:
            raise SpecError(
                f"cannot be written: {error.strerror}", place=str(target), remedy="choose another --path"
            ) from None
    typer.echo(str(target))
    typer.echo(f"next: edit it, then  ulpscope spec check {target}", err=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of spec files, for editors."""
    from specs.schema import spec_json_schema

    _print_json(spec_json_schema())


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="SPEC_A", help="A name or a path.")],
    b: Annotated[str, typer.Argument(metavar="SPEC_B", help="A name or a path.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Print the lines that are the same, too.")
    ] = False,
    fail: Annotated[
        bool, typer.Option("--fail-on-difference", help="Exit with 1 if any line differs.")
    ] = False,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Compare two specs line by line: the explanation of why their results part."""
    with _reporting():
        from specs.diff import diff as compare

        first, second = _load(a), _load(b)
        _warn((*first.warnings, *second.warnings))
        found = compare(first, second)
    if output is OutputFormat.json:
        _print_json(found.to_json())
    else:
        typer.echo(found.to_text(unchanged=everything))
    if fail and not found.same:
        raise typer.Exit(1)
