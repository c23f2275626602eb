"""Which adapter or mapping a file is for, by what stands in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from specs.errors import InputError
from verify.runs.adapters import ADAPTERS
from verify.runs.adapters.base import unwrap
from verify.runs.adapters.llama_cpp import MAGIC
from verify.runs.jsonio import records
from verify.runs.lines import KEYS as LINE_KEYS
from verify.runs.manifest import MANIFEST
from verify.runs.mapping import shipped_for
from verify.runs.tensors import open_tensors

#: What a line of a run folder has at least.
_LINE = {"id", "token_ids"}


def detect(file: Path) -> tuple[str | None, str | None]:
    """The adapter, or the shipped mapping, that reads ``file``.

    Raises:
        InputError: none does; the message lists them.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(8)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(file), remedy="check the path"
        ) from None
    if head == MAGIC:
        return "llama_cpp", None
    if file.suffix in (".npz", ".safetensors"):
        return _arrays(file)
    first = next(iter(records(file)), None)
    if first is None:
        raise InputError("is empty", place=str(file), remedy="give a file with answers")
    mapping = shipped_for(first.value)
    if mapping is not None:
        return None, mapping
    value: Any = first.value
    answer, _ = unwrap(value[0] if isinstance(value, list) and value else value)
    if isinstance(value, dict) and value.keys() >= _LINE and value.keys() <= LINE_KEYS.keys():
        _part(file)
    adapter = _answer(answer) if isinstance(answer, dict) else None
    return (adapter, None) if adapter else _none(file)


def _arrays(file: Path) -> tuple[str | None, str | None]:
    tensors = open_tensors(file)
    names = {*tensors.arrays, *tensors.texts}
    if "positions" in names and names & {"logits", "topk_values", "chosen"}:
        _part(file)
    if names & {"context_logits", "generation_logits"}:
        return "tensorrt_llm", None
    steps = any(n.startswith(("logits.", "scores.")) for n in names)
    if ("sequences" in names or "input_ids" in names) and (names & {"logits", "scores"} or steps):
        return "transformers", None
    mapping = shipped_for(dict.fromkeys(names))
    return (None, mapping) if mapping is not None else _none(file)


def _answer(answer: dict[str, Any]) -> str | None:
    if isinstance(answer.get("meta_info"), dict):
        return "sglang"
    if isinstance(answer.get("samples"), list):
        return "difr"
    details = answer.get("details")
    if isinstance(details, dict) and isinstance(details.get("tokens"), list):
        return "tgi"
    if isinstance(answer.get("outputs"), list):
        return "vllm"
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        fingerprint = str(answer.get("system_fingerprint") or "")
        own = ("prompt_logprobs", "prompt_token_ids", "token_ids", "stop_reason")
        vllm = fingerprint.startswith("vllm") or any(k in choices[0] or k in answer for k in own)
        return "vllm" if vllm else "openai"
    if any(isinstance(answer.get(k), list) for k in ("logprobs", "completion_probabilities")):
        return "openai"
    return None


def _part(file: Path) -> NoReturn:
    """A file of a run folder, by itself."""
    beside = (file.parent / MANIFEST).is_file()
    raise InputError(
        "is a file of a run folder, and is no run without its manifest.json",
        place=str(file),
        remedy=f"give the folder: {file.parent}"
        if beside
        else "put a manifest.json beside it (see docs/runs.md), and give the folder",
    )


def _none(file: Path) -> tuple[str | None, str | None]:
    names = ", ".join(ADAPTERS)
    raise InputError(
        "is in no format that is known",
        place=str(file),
        remedy=f"say --adapter ({names}), or write a mapping and say --mapping",
    )
