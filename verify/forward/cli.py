"""``ulpscope predict``. Imports are inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.cli import FormatOption, OutputFormat
from verify.console import Progress, answering

if TYPE_CHECKING:
    from verify.forward.config import Arithmetic


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A Hugging Face folder, a .gguf file, or: smollm2.")
    ],
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens", metavar="FILE", help="Token ids: JSON, npz, npy, numbers, or prompts (.jsonl)."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="A text, through the model's tokenizer.")] = None,
    config: Annotated[
        str, typer.Option("--config", "-c", help="A model.toml, or a name: f32, vllm_bf16.")
    ] = "f32",
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            metavar="SPEC@PLATFORM",
            help="Another attention kernel than the config's; tensor-core products move to its platform.",
        ),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option("--layer", min=0, help="Keep q, k, v, out and lse of a layer; repeat it."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder to write, new or empty (default: runs/ID).")
    ] = None,
    output: FormatOption = OutputFormat.text,
) -> None:
    """Predict the logits of a model in a declared arithmetic, and write them as a run folder."""
    with answering(output is OutputFormat.json) as answer:
        from verify.forward.load import load_model
        from verify.forward.predict import Predictor, write_predictions

        arithmetic = arithmetic_of(config, attention)
        given = _given(tokens, text)
        place = folder or _new_folder()
        _check_folder(place)
        loaded = load_model(model)
        sequences = [
            (name, _encoded(said, loaded, Path(model)) if isinstance(said, str) else said)
            for name, said in given
        ]
        progress = Progress()
        try:
            run = write_predictions(
                place, Predictor(loaded, arithmetic), sequences, layers=layers or (), progress=progress
            )
        finally:
            progress.clear()
        rows = sum(s.rows for s in run.sequences)
        answer.data({"schema": 1, "path": str(place), "rows": rows, "manifest": run.manifest.to_json()})
        answer.text(str(place))
        answer.text(f"  {loaded.name}, {loaded.parameters:,} parameters")
        answer.text(f"  {run.manifest.coordinate.label()}, arithmetic {arithmetic.name}")
        answer.close(f"predicted {rows:,} rows of {loaded.architecture.vocab:,} logits")


def arithmetic_of(config: str, attention: str | None) -> Arithmetic:
    """The arithmetic that the options name.

    Raises:
        SpecError: unknown, or malformed. InputError: --attention is no kernel.
    """
    from specs.errors import InputError
    from verify.forward.config import Arithmetic, load_arithmetic

    found = load_arithmetic(config)
    if attention is None:
        return found
    if not all(part for part in attention.rpartition("@")):
        raise InputError(
            f"'{attention}' is not SPEC@PLATFORM", place="--attention", remedy="write xqa.decode@h200"
        )
    said = found.model_dump(mode="json", by_alias=True)
    kept = {k: said["attention"][k] for k in ("context", "calls")}
    gemm = said["gemm"]
    if gemm["kernel"] == "mma":
        gemm = {**gemm, "platform": attention.rpartition("@")[2]}
    return Arithmetic.model_validate({**said, "gemm": gemm, "attention": {**kept, "kernel": attention}})


def _given(tokens: Path | None, text: str | None) -> list[tuple[str, list[int] | str]]:
    from specs.errors import InputError

    if (tokens is None) == (text is None):
        raise InputError("give either --tokens or --text", place="arguments", remedy="one of both")
    if text is not None:
        return [("text", text)]
    assert tokens is not None
    from verify.forward.tokens import read_tokens

    return read_tokens(tokens)


def _encoded(text: str, model: Any, path: Path) -> list[int]:
    from verify.forward.tokens import encode

    return encode(text, model, path if path.is_dir() else None)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something before anything is computed."""
    from verify.capture.format import check_empty

    check_empty(folder)


def _new_folder() -> Path:
    from datetime import UTC, datetime

    return Path("runs") / f"predicted-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(predict)
