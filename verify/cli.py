"""``ulpscope plan | emulate | compare | traffic | doctor``: thin commands; everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Answer, answering
from verify.words import plural

if TYPE_CHECKING:
    from specs import Platform, Spec
    from verify.case import Case
    from verify.emulator import Result


#: What a package further out does before inputs are looked up by name, such as adding its own.
before_inputs: list[Callable[[], None]] = []


class Walker(StrEnum):
    """Which walker computes."""

    engine = "engine"
    oracle = "oracle"


CellArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC[@PLATFORM]",
        help="A name of `spec list`, or the path of a .toml file; and where it runs.",
    ),
]
PlatformOption = Annotated[
    str | None,
    typer.Option(
        "--platform", "-p", help="Where it runs: a name of `spec list` (h200, b200, sm120, ...) or a path."
    ),
]
InputOption = Annotated[
    str | None,
    typer.Option(
        "--input", "-i", metavar="FILE", help="An .npz or .safetensors file, or: teaching, smollm2."
    ),
]
TeachingOption = Annotated[bool, typer.Option("--teaching", help="The 27,525-token teaching input.")]
RandomOption = Annotated[
    int | None, typer.Option("--random", metavar="SEED", help="Normal q, k, v; needs --kv-len.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Take the heads of a model: qwen, smollm2_135m or a path.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other integer or word that formulas see, such as num_splits=8 or fork=vllm.",
    ),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="A value for one of the spec's [options]."),
]
WalkerOption = Annotated[
    Walker, typer.Option("--backend", help="The fast engine, or the slow scalar oracle.")
]
KvLen = Annotated[int | None, typer.Option("--kv-len", help="Tokens of the sequence.")]
QLen = Annotated[int | None, typer.Option("--q-len", help="Query tokens.")]
QHeads = Annotated[int | None, typer.Option("--q-heads", help="Query heads.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads.")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", help="Elements of a head.")]
Batch = Annotated[int | None, typer.Option("--batch", help="Sequences in the batch.")]
Capacity = Annotated[int | None, typer.Option("--kv-capacity", help="Tokens the page table has room for.")]


def shape_of(model: str | None, extra: list[str] | None, **given: int | None) -> dict[str, Any]:
    """The context that the options of a command say: a model's heads, then --set, then single options.

    Raises:
        InputError: --set without a value, or of what the platform fixes.
    """
    from specs import load_model
    from specs.context import refuse_platform
    from specs.errors import InputError

    context: dict[str, Any] = {}
    if model is not None:
        shape = load_model(model)
        context |= {"q_heads": shape.q_heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    for pair in extra or []:
        name, sign, value = pair.partition("=")
        if not sign:
            raise InputError(f"'{pair}' has no '='", place="--set", remedy="write --set NAME=VALUE")
        context[name.strip()] = int(value) if value.strip().lstrip("-").isdecimal() else value.strip()
    refuse_platform(context, place="--set")
    return context | {name: value for name, value in given.items() if value is not None}


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """Values of ``--option NAME=VALUE``: true, false or a number."""
    from specs.errors import InputError

    out: dict[str, Any] = {}
    for pair in pairs or []:
        name, sign, text = pair.partition("=")
        words: dict[str, Any] = {"true": True, "false": False}
        try:
            value: Any = words[text] if text in words else float(text) if "." in text else int(text)
        except ValueError:
            sign = ""
            value = None
        if not sign:
            raise InputError(
                f"'{pair}' is not NAME=VALUE", place="--option", remedy="give true, false or a number"
            )
        out[name.strip()] = value
    return out


def get_case(file: str | None, teaching: bool, seed: int | None, context: dict[str, Any]) -> Case:
    """The input that a command names, with the context of its options.

    Raises:
        InputError: none or more than one is named, it cannot be read, or it states what the platform fixes.
    """
    from specs.context import refuse_platform
    from specs.errors import InputError
    from verify.case import NAMED, random_case

    for prepare in before_inputs:
        prepare()
    if (file is not None) + teaching + (seed is not None) != 1:
        raise InputError(
            "no input, or more than one",
            place="options",
            remedy="give one of --input FILE, --teaching, --random SEED",
        )
    if seed is not None:
        if "kv_len" not in context:
            raise InputError("a random input has no length", place="--random", remedy="add --kv-len N")
        sizes = {n: int(context.pop(n)) for n in ("q_heads", "kv_heads", "head_dim") if n in context}
        return random_case(seed, int(context.pop("kv_len")), **sizes).with_context(context)
    name = "teaching" if teaching else str(file)
    if name in NAMED and not Path(name).exists():
        return NAMED[name]().with_context(context)
    from verify.files import load_case

    case = load_case(name)
    refuse_platform(case.context, place=name)
    return case.with_context(context)


def plan(
    spec: CellArgument,
    kv_len: Annotated[int, typer.Option("--kv-len", help="Tokens of the sequence.")],
    platform: PlatformOption = None,
    q_len: QLen = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    kv_capacity: Capacity = None,
    model: ModelOption = None,
    more: SetOption = None,
    options: OptionOption = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Show who owns which tokens, and in what order they are visited."""
    with answering(output is OutputFormat.json) as answer:
        from verify import plan as make_plan
        from verify.planview import plan_json, plan_text

        context = shape_of(
            model,
            more,
            kv_len=kv_len,
            q_len=q_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            batch=batch,
            kv_capacity=kv_capacity,
        )
        loaded, where = spec_and_platform(*_cell(spec, platform), context)
        found = make_plan(loaded, where, options=options_of(options), **context)
        answer.data(plan_json(found, loaded, where))
        for line in plan_text(found):
            answer.text(line)
        answer.close(
            f"{loaded.name} on {where.name}: {_groups(found.count)}, {found.span} tokens in the largest"
        )


def emulate(
    spec: CellArgument,
    platform: PlatformOption = None,
    file: InputOption = None,
    teaching: TeachingOption = False,
    seed: RandomOption = None,
    explain_tokens: Annotated[
        int,
        typer.Option(
            "--explain-tokens", metavar="N", min=0, help="Trace N tokens and the first groups, with bits."
        ),
    ] = 0,
    walker: WalkerOption = Walker.engine,
    kv_len: KvLen = None,
    q_heads: QHeads = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    batch: Batch = None,
    kv_capacity: Capacity = None,
    model: ModelOption = None,
    more: SetOption = None,
    options: OptionOption = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Run one spec on one input, bit for bit."""
    with answering(output is OutputFormat.json) as answer:
        from verify.explain import as_json, as_text, explain, site_names
        from verify.resultview import result_json, result_text

        context = shape_of(
            model,
            more,
            kv_len=kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            batch=batch,
            kv_capacity=kv_capacity,
        )
        case = get_case(file, teaching, seed, context)
        loaded, where = spec_and_platform(*_cell(spec, platform), case.kernel_context())
        names = site_names(loaded) if explain_tokens else ()
        result = case.emulate(loaded, where, sites=names, backend=walker.value, options=options_of(options))
        steps = explain(result, loaded, explain_tokens) if explain_tokens else []
        answer.data({**result_json(result, case, loaded), "steps": as_json(steps)})
        for line in (*as_text(steps), *result_text(result, loaded)):
            answer.text(line)
        answer.close(f"{loaded.name} on {where.name}: {case.kv_len:,} tokens in {_groups(result.plan.count)}")


def compare(
    left: str,
    right: str | None,
    *,
    file: str | None,
    teaching: bool,
    seed: int | None,
    fail: bool,
    walker: Walker,
    kv_len: int | None,
    q_heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    batch: int | None,
    kv_capacity: int | None,
    model: str | None,
    more: list[str] | None,
    spec: str | None,
    platform: str | None,
    kernels: str | None,
    output: OutputFormat,
) -> None:
    """Compare two results bit by bit: how far apart, and where they part first.

    Two specs or platforms on one input; or a capture of real kernels with what the specs predict for it. The options are
    those of the command, `reports.runs.cli.compare`, which compares runs, too.
    """
    if _compares_capture(left, right):
        from verify.capture.cli import compare_capture

        compare_capture(
            left,
            spec=spec,
            platform=platform,
            names=kernels,
            fail=fail,
            as_json=output is OutputFormat.json,
        )
        return
    with answering(output is OutputFormat.json) as answer:
        from verify.compare import compare as judge
        from verify.resultview import comparison_text

        context = shape_of(
            model,
            more,
            kv_len=kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            batch=batch,
            kv_capacity=kv_capacity,
        )
        for name, value in (("--spec", spec), ("--platform", platform), ("--kernels", kernels)):
            _only_with_captures(name, value)
        sides = _cell(left), _cell(right or "")
        case = get_case(file, teaching, seed, context)
        known = case.kernel_context()
        (spec_a, platform_a), (spec_b, platform_b) = (spec_and_platform(*side, known) for side in sides)
        a = _all_sites(case, spec_a, platform_a, walker)
        b = _all_sites(case, spec_b, platform_b, walker)
        found = judge(a, b)
        names = (f"{spec_a.name} on {platform_a.name}", f"{spec_b.name} on {platform_b.name}")
        verdict = found.verdict(*names)
        answer.data({"schema": 1, "left": names[0], "right": names[1], "verdict": verdict, **found.to_json()})
        for line in comparison_text(found, verdict):
            answer.text(line)
        answer.close(verdict, diverged=fail and not found.identical)


def spec_and_platform(
    name: str, platform: str, context: Mapping[str, Any] | None = None
) -> tuple[Spec, Platform]:
    """A spec, by its name, its path or what users ask for (``flashinfer``), and the platform that it runs on."""
    from specs import load_platform
    from verify.backends import load_backend

    where = load_platform(platform)
    spec = load_backend(name, where, context)
    if spec.assumption:
        typer.echo(f"warning: {spec.assumption}", err=True)
    return spec, where


def _compares_capture(left: str, right: str | None) -> bool:
    """Whether ``left`` alone names a capture; a spec by its path has ``@PLATFORM`` behind it."""
    if right is not None:
        return False
    from verify.capture.format import is_capture

    return is_capture(left) or "@" not in left


def _only_with_captures(name: str, value: str | None) -> None:
    from specs.errors import InputError

    if value is not None:
        raise InputError(
            "only goes with a capture",
            place=name,
            remedy="write both sides as SPEC@PLATFORM, as in walkthrough.xqa@h200",
        )


def _groups(count: int) -> str:
    return plural(count, "group")


def _cell(text: str, option: str | None = None) -> tuple[str, str]:
    """The names of a spec and a platform, the latter from ``--platform`` or behind the spec."""
    from specs.errors import InputError

    if option is not None and ("@" not in text or Path(text).exists()):
        return text, option
    name, sign, platform = text.rpartition("@")
    if not sign or not name or not platform:
        raise InputError(
            f"'{text}' names no platform",
            place="argument",
            remedy="write SPEC@PLATFORM, as in walkthrough.xqa@h200",
        )
    if option is not None and option != platform:
        raise InputError(
            f"'{text}' names a platform, and --platform another one, {option}",
            place="--platform",
            remedy="name the platform once",
        )
    return name, platform


def _all_sites(case: Case, spec: Spec, platform: Platform, walker: Walker) -> Result:
    from verify.explain import site_names

    return case.emulate(spec, platform, sites=site_names(spec), backend=walker.value)


def traffic(
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", help="Sequence lengths; repeat it for several.")
    ] = None,
    heads: Annotated[int, typer.Option("--heads", help="Query heads.")] = 32,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="KV heads (default: the query heads).")
    ] = None,
    head_dim: Annotated[int, typer.Option("--head-dim", help="Elements of a head.")] = 128,
    element_bytes: Annotated[int, typer.Option("--element-bytes", help="Bytes of an element.")] = 2,
    block: Annotated[int, typer.Option("--block", help="Rows and columns of a tile.")] = 128,
    causal: Annotated[bool, typer.Option("--causal/--full", help="Skip tiles above the diagonal.")] = True,
    platform: Annotated[
        list[str] | None,
        typer.Option("--platform", "-p", help="Time at this bandwidth; repeat it for several."),
    ] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", help="Add split-KV decode with this spec's groups and partials.")
    ] = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Count logical memory accesses of dense, tiled and split-KV attention. Counted, not measured."""
    with answering(output is OutputFormat.json) as answer:
        from specs import load_platform
        from verify.backends import load_backend
        from verify.traffic import Layer
        from verify.trafficview import traffic_json, traffic_text

        layers = [
            Layer(
                n,
                q_heads=heads,
                kv_heads=heads if kv_heads is None else kv_heads,
                head_dim=head_dim,
                element_bytes=element_bytes,
                q_block=block,
                kv_block=block,
                causal=causal,
            )
            for n in tokens or (1024, 4096, 16384, 32768)
        ]
        platforms = [load_platform(p) for p in platform or ("h200", "b200", "sm120")]
        shape = {"q_heads": layers[0].q_heads, "kv_heads": layers[0].kv_heads, "head_dim": head_dim}
        cells = [] if spec is None else [(load_backend(spec, p, shape), p) for p in platforms]
        table = traffic_json(layers, platforms, cells)
        answer.data(table)
        for line in traffic_text(table):
            answer.text(line)
        answer.close("logical accesses, counted from the algorithms; not measured traffic")


def doctor(
    full: Annotated[
        bool, typer.Option("--full", help="Every probe on its own as well; takes longer.")
    ] = False,
    device: Annotated[str | None, typer.Option("--device", help="A platform of JAX (default: cpu).")] = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Check whether this machine, with this jaxlib, emulates faithfully. Exit code 3 if it does not."""
    with answering(output is OutputFormat.json) as answer:
        from dataclasses import asdict

        from specs.errors import FidelityError
        from verify.preflight import preflight

        report = preflight(device, quick=not full)
        answer.data({"schema": 1, "ok": report.ok, **asdict(report)})
        _doctor_text(answer, report)
        bad = [p.name for p in report.probes if not p.ok]
        if bad:
            raise FidelityError(
                f"{len(bad)} of {len(report.probes)} probes fail: {', '.join(bad)}",
                place=f"{report.device}, {report.versions}",
                remedy=next(p.remedy for p in report.probes if not p.ok),
            )
        answer.close(f"faithful: all {len(report.probes)} probes hold on {report.device}, {report.versions}")


def _doctor_text(answer: Answer, report: Any) -> None:
    width = max(len(p.name) for p in report.probes)
    for p in report.probes:
        answer.text(f"{'ok  ' if p.ok else 'FAIL'}  {p.name:<{width}}  {p.detail}")


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    from verify.capture.cli import app as capture
    from verify.forward.cli import register as register_predict
    from verify.lower.cli import lower
    from verify.runs.cli import register as register_runs

    for command in (plan, emulate, traffic, doctor, lower):
        app.command()(command)
    register_runs(capture)
    register_predict(app)
    app.add_typer(capture, name="capture")
