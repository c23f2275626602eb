"""Capture scripts: one Python file for a machine with a GPU, which needs an engine and nothing of this project.

The file holds the prompts, forces the same tokens through each attention backend and writes one run folder for each.
Templates are in ``verify/runs/scripts``; every value goes in as a Python literal.
"""

from __future__ import annotations

import ast
import re
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

from specs.errors import InputError, did_you_mean
from verify.runs.prompts import Prompt, packed

ENGINES = ("vllm", "sglang", "transformers")
MODES = ("decode", "prefill")
_BACKEND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,119}")


def capture_script(
    engine: str,
    backends: list[str],
    prompts: tuple[Prompt, ...],
    *,
    model: str | None = None,
    mode: str | None = None,
) -> str:
    """The text of the script.

    Args:
        engine: one of `ENGINES`.
        backends: what the engine calls its attention backends, one or more.
        prompts: the conversations and the ranges that are recorded.
        model: the default of the script's ``--model``.
        mode: ``decode`` (tokens one at a time, as they are generated) or ``prefill``; the default of ``--mode``.

    Raises:
        InputError: an unknown engine, mode or a backend's name that is none.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    if engine not in ENGINES:
        raise InputError(
            f"unknown engine '{engine[:40]}'", place="--engine", remedy=did_you_mean(engine, ENGINES)
        )
    if mode is not None and mode not in MODES:
        raise InputError(f"unknown mode '{mode[:40]}'", place="--mode", remedy=did_you_mean(mode, MODES))
    if not backends:
        raise InputError("none", place="--backends", remedy="as in --backends sdpa,eager")
    for name in backends:
        if not _BACKEND.fullmatch(name):
            raise InputError(
                f"'{name[:80]}' is no name", place="--backends", remedy="letters, digits, _ . - : / @"
            )
    if engine == "vllm" and mode is None:
        mode = "decode"
    home = Path(str(files("verify.runs"))) / "scripts"
    environment = Environment(
        loader=FunctionLoader(lambda name: (home / name).read_text(encoding="utf-8")),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["py"] = _literal
    data = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed(prompts), 96))
    text = environment.get_template(f"{engine}.py.j2").render(
        engine=engine,
        backends=list(dict.fromkeys(backends)),
        model=model,
        mode="prefill" if engine == "sglang" else mode or "decode",
        prompts=data,
        conversations=len(prompts),
    )
    ast.parse(text)
    return text


def _literal(value: Any) -> str:
    return repr(value)
