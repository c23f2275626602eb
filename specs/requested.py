"""What a user asks for by name, and the spec of what runs for it.

A name of ``requested.toml`` may stand for a defined arithmetic (``any``, ``by_capability``) and for the kernels of a
serving engine (``kernel``): there the first choice whose formula holds for the platform, the shape and the versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from specs.context import INPUT_FORMATS, LENGTHS, batch_lengths, make_context
from specs.document import read_document, validate
from specs.errors import Place, SpecError, UnsupportedError, did_you_mean
from specs.grammar import parse_expr
from specs.integers import Value, evaluate
from specs.platforms import Platform
from specs.schema import Expression, Frozen, Line, RefusalError, SpecName

REQUESTED = Path(__file__).parent / "requested.toml"
#: ``vllm:flashinfer``: the kernel that vLLM runs where its attention backend is FlashInfer.
ENGINE = "vllm:"
MAX_HANDED_ON = 8


class Choice(Frozen):
    """One kernel: the ``spec`` that describes it, another name to ``ask``, or why none does (``refuse``)."""

    when: Expression = "true"
    spec: SpecName | None = None
    ask: Line | None = None
    refuse: Line | None = None

    @model_validator(mode="after")
    def _one(self) -> Choice:
        if sum(x is not None for x in (self.spec, self.ask, self.refuse)) != 1:
            raise RefusalError("a choice has one of spec, ask and refuse", "leave the others out")
        return self


class Requested(Frozen):
    """What runs where a user asks for one name.

    Attributes:
        any, by_capability: the defined arithmetic, everywhere or by compute capability.
        kernels: what the engine runs; the first choice that holds.
    """

    title: Line
    any: SpecName | None = None
    by_capability: dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{2,3}$")], SpecName] = Field({})
    note: Line = ""
    kernels: Annotated[tuple[Choice, ...], Field(alias="kernel", strict=False, max_length=32)] = ()


class RequestedFile(Frozen):
    """The table ``requested.toml``."""

    schema_version: Annotated[int, Field(alias="schema", ge=1, le=1)]
    requested: dict[str, Requested]


def load_requested() -> dict[str, Requested]:
    """What users ask for, by name: ``flashinfer``, ``triton``, ..."""
    return validate(RequestedFile, read_document(REQUESTED)).requested


def _asked(name: str) -> Requested:
    table = load_requested()
    if name not in table:
        raise SpecError(f"unknown backend '{name}'", remedy=did_you_mean(name, table))
    return table[name]


def resolve_requested(name: str, platform: Platform, context: Mapping[str, Any] | None = None) -> str:
    """The name of the spec that runs where a user asks for ``name`` on ``platform``.

    Args:
        name: of ``requested.toml``; ``vllm:NAME`` asks for the engine's kernel where NAME has a defined arithmetic, too.
        context: what decides between kernels: the shape, versions, and ``k_format`` and the like.

    Raises:
        SpecError: nothing of that name can be asked for.
        UnsupportedError: it runs on this platform with a kernel that no spec describes.
    """
    asked = _asked(name.removeprefix(ENGINE))
    if name.startswith(ENGINE) or (asked.kernels and asked.any is None and not asked.by_capability):
        return resolve_kernel(name.removeprefix(ENGINE), platform, context or {})
    spec = asked.by_capability.get(str(platform.compute_capability), asked.any)
    if spec is None:
        major = ", ".join(f"{int(c) // 10}.{int(c) % 10}" for c in asked.by_capability)
        raise UnsupportedError(
            f"{asked.title} on {platform.name} (compute capability {platform.capability}) has no spec",
            place=f"requested backend '{name}'",
            remedy=f"it is described for compute capability {major}; {asked.note}".rstrip("; "),
        )
    return spec


def resolve_kernel(name: str, platform: Platform, context: Mapping[str, Any]) -> str:
    """The name of the spec of the kernel that the engine runs for ``name``.

    Args:
        context: names of `specs.context.CONTEXT` and of ``INPUT_FORMATS``; what is not given has its default, and
            ``kv_len`` is 1.

    Raises:
        SpecError: nothing of that name can be asked for, or it has no kernels.
        UnsupportedError: no spec describes the kernel that runs.
    """
    known = _known(platform, context)
    handed: list[str] = []
    while True:
        asked = _asked(name)
        place = f"requested backend '{' -> '.join([*handed, name])}' on {platform.name}"
        chosen = next((c for c in asked.kernels if _holds(c.when, known)), None)
        if chosen is None:
            raise UnsupportedError(
                f"{asked.title}: no kernel is described for this platform, shape and version",
                place=place,
                remedy=asked.note or "see specs/requested.toml",
            )
        if chosen.refuse is not None:
            raise UnsupportedError(f"{asked.title}: {chosen.refuse}", place=place, remedy=asked.note)
        if chosen.spec is not None:
            return chosen.spec
        handed.append(name)
        name = str(chosen.ask)
        if len(handed) > MAX_HANDED_ON:
            raise SpecError(
                f"'{handed[0]}' is handed on and on", place=str(REQUESTED), remedy="break the cycle"
            )


def _known(platform: Platform, context: Mapping[str, Any]) -> dict[str, Value]:
    words = {name: str(context.get(name, "bf16")) for name in INPUT_FORMATS}
    shape = {name: value for name, value in context.items() if name not in INPUT_FORMATS}
    full = make_context({"kv_len": 1, **platform.context, **shape}, place=f"kernel on {platform.name}")
    return {**full, LENGTHS: batch_lengths(full), **words}


def _holds(formula: str, known: Mapping[str, Value]) -> bool:
    place = Place(str(REQUESTED))
    return formula == "true" or bool(evaluate(parse_expr(formula, place), known, place))
