"""``ulpscope lower``: compile a Triton kernel without a GPU and read its arithmetic. Imports are inside."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Progress, answering

if TYPE_CHECKING:
    from verify.lower.stages import Lowering

EXAMPLE = "attention"


def lower(
    kernel_file: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL.py",
            help="A file with Triton kernels, which is EXECUTED; `attention`, the example of the package; or a kept "
            "lowering, as attention@3.8.0 or FILE.lower.gz, which is only read.",
        ),
    ],
    arch: Annotated[
        str | None,
        typer.Option("--arch", metavar="A,B", help="Architectures [default: sm_90,sm_100,sm_120]."),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", "-k", help="Only this kernel of the file.")
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option("--signature", metavar="TYPES", help='Types in order, as "*bf16:16,*fp32:16,i32".'),
    ] = None,
    constexpr: Annotated[
        list[str] | None, typer.Option("--constexpr", metavar="NAME=VALUE", help="A constant; repeat it.")
    ] = None,
    how: Annotated[
        Path | None, typer.Option("--how", metavar="FILE.toml", help="Types and constants of each kernel.")
    ] = None,
    num_warps: Annotated[
        int | None, typer.Option("--num-warps", help="Warps of a block [default: 4].")
    ] = None,
    num_stages: Annotated[
        int | None, typer.Option("--num-stages", help="Pipeline stages [default: 3].")
    ] = None,
    fp_fusion: Annotated[
        bool, typer.Option("--fp-fusion/--no-fp-fusion", help="Whether products and sums may be fused.")
    ] = True,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FILE.lower.gz", help="Keep the text of every stage.")
    ] = None,
    fragments: Annotated[
        Path | None, typer.Option("--fragments", metavar="FOLDER", help="Write what was read as specs.")
    ] = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Compile a Triton kernel for several GPUs, without a GPU, and read where they part and how they sum.

    Compiling executes KERNEL.py as you, in a process of its own: only lower files that you trust. A kept lowering is
    text, and needs no Triton. Exit code 3 if Triton is needed and not installed.
    """
    with answering(output is OutputFormat.json) as answer:
        from verify.lower.converge import converge
        from verify.lower.fragment import fragment
        from verify.lower.read import read
        from verify.lower.stages import write
        from verify.lower.view import lowering_json, lowering_text, verdict

        given = (signature, constexpr, how, num_warps, num_stages, None if fp_fusion else "--no-fp-fusion")
        lowering = _kept(kernel_file, arch, kernel, any(g is not None for g in given)) or _compiled(
            kernel_file, arch, kernel, signature, constexpr, how, num_warps, num_stages, fp_fusion
        )
        compared = [converge(k) for k in lowering.kernels]
        readings = [read(k, a) for k in lowering.kernels for a in lowering.archs]
        answer.data(lowering_json(lowering, compared, readings))
        for line in lowering_text(lowering, compared, readings):
            answer.text(line)
        if keep is not None:
            with _writing(keep):
                write(lowering, keep)
            answer.text(f"\nkept: {keep}")
        if fragments is not None:
            stem = Path(lowering.file).stem
            answer.text()
            for one in lowering.archs:
                mine = [r for r in readings if r.arch == one]
                path = fragments / f"{stem}.{one}.toml"
                with _writing(path):
                    fragments.mkdir(parents=True, exist_ok=True)
                    text = fragment(mine, stem, lowering.coordinate(), lowering.file)
                    path.write_text(text, encoding="utf-8")
                answer.text(f"spec: {path}")
        answer.close(f"{lowering.coordinate()}: {verdict(lowering, compared, readings)}")


@contextmanager
def _writing(path: Path) -> Generator[None]:
    from specs.errors import InputError

    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", place=str(path), remedy="name a file in a folder of yours"
        ) from None


def _kept(name: str, arch: str | None, kernel: str | None, compiles: bool) -> Lowering | None:
    """A lowering that is kept, with the kernels and architectures asked for; None where ``name`` is to be compiled."""
    from specs.errors import InputError, did_you_mean
    from verify.lower.request import architectures
    from verify.lower.stages import ENDING, bundled, bundled_names, load

    if name.endswith(ENDING):
        found = load(name)
    elif "@" in name and not Path(name).exists():
        found = bundled(name)
        if found is None:
            raise InputError(
                f"no lowering '{name}'", place="argument", remedy=did_you_mean(name, bundled_names())
            )
    else:
        return None
    if compiles:
        raise InputError(
            "a kept lowering is compiled already",
            place=name,
            remedy="leave out --signature, --constexpr, --how, --num-warps, --num-stages and --no-fp-fusion",
        )
    archs = list(found.archs) if arch is None else architectures(arch)
    for one in archs:
        if one not in found.archs:
            raise InputError(f"has no {one}", place=name, remedy=f"it has {', '.join(found.archs)}")
    kernels = [k for k in found.kernels if kernel in (None, k.name)]
    if not kernels:
        raise InputError(
            f"has no kernel '{kernel}'",
            place=name,
            remedy=did_you_mean(str(kernel), [k.name for k in found.kernels]),
        )
    small = tuple(k.model_copy(update={"stages": {a: k.stages[a] for a in archs}}) for k in kernels)
    return found.model_copy(update={"kernels": small})


def _compiled(
    name: str,
    arch: str | None,
    kernel: str | None,
    signature: str | None,
    constexpr: list[str] | None,
    how: Path | None,
    num_warps: int | None,
    num_stages: int | None,
    fp_fusion: bool,
) -> Lowering:
    from verify.lower.compile import compiled, need_triton
    from verify.lower.request import architectures, wanted

    path = Path(__file__).parent / "examples" / f"{EXAMPLE}.py" if name == EXAMPLE else Path(name)
    archs = architectures(arch or "sm_90,sm_100,sm_120")
    kernels = wanted(
        path,
        kernel=kernel,
        signature=signature,
        constexprs=constexpr or (),
        how=how,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    need_triton()
    progress = Progress()
    progress(f"compiling {len(kernels)} kernel(s) for {len(archs)} architecture(s)", 0, 0)
    try:
        return compiled(path, kernels, archs, fp_fusion=fp_fusion)
    finally:
        progress.clear()
