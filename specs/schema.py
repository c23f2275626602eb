"""The shape of a spec file: frozen pydantic models in which every unknown key is an error.

Nothing is evaluated here: formulas are strings of bounded length. Section tables have names that the file
itself declares (its levels), so a pre-validator moves every table that is not a known key into ``sections``.
"""

from __future__ import annotations

import keyword
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from specs.errors import SpecError
from specs.formats import Format, parse_format

MAX_EXPRESSION = 2_000
MAX_SITES = 500
MAX_LEVELS = 12
MAX_VARIANTS = 64

#: Axes and inputs that the language itself names; a spec cannot use them for anything of its own.
RESERVED = frozenset(
    {
        "token",
        "row",
        "dim",
        "depth",
        "it",
        "visible",
        "scale",
        "inf",
        "nan",
        "q",
        "k",
        "v",
        "true",
        "false",
        "drop",
        "when",
    }
)
#: Top-level keys that are not sections.
TOP_KEYS = (
    "schema",
    "name",
    "status",
    "summary",
    "extends",
    "drop",
    "source",
    "require",
    "assumed",
    "faults",
    "numbers",
    "options",
    "let",
    "constants",
    "levels",
    "state",
    "variant",
)
VARIANT_KEYS = ("when", "drop", "let", "constants", "levels", "state")


class RefusalError(ValueError):
    """What a validator raises: a cause and a remedy, to which the reader of the file adds the place."""

    def __init__(self, cause: str, remedy: str) -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(f"{cause}; {remedy}")


def _check_name(name: str) -> str:
    if keyword.iskeyword(name):
        raise RefusalError(f"'{name}' is a word of the language", "choose another name")
    if name in RESERVED:
        raise RefusalError(f"'{name}' already means something in every spec", "choose another name")
    return name


def _check_format(name: str) -> str:
    try:
        parse_format(name)
    except SpecError as error:
        raise RefusalError(error.cause, error.remedy) from None
    return name


def _check_option(value: Any) -> bool | int | float:
    if not isinstance(value, bool | int | float):
        raise RefusalError(
            "an option is true, false, an integer or a float", "formulas belong in [let] or [constants]"
        )
    if value != value:
        raise RefusalError("an option cannot be NaN", "give a number, true or false")
    if not isinstance(value, bool | float) and abs(value) > 1 << 40:
        raise RefusalError("an integer option is bounded by 2**40", "give a smaller integer")
    return value


Identifier = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,47}$"), AfterValidator(_check_name)
]
Axis = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,47}$")]
Expression = Annotated[str, StringConstraints(min_length=1, max_length=MAX_EXPRESSION)]
FormatName = Annotated[str, AfterValidator(_check_format)]
Formats = Annotated[tuple[FormatName, ...], Field(strict=False, max_length=8)]
SpecName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$", max_length=80)]
Option = Annotated[
    bool | int | float,
    BeforeValidator(_check_option),
    WithJsonSchema({"type": ["boolean", "integer", "number"]}),
]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=400)]
Table = dict[Identifier, Expression]


class Frozen(BaseModel):
    """Base of every file model: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)


class Source(Frozen):
    """Where the arithmetic was read: a repository at a commit, and the file in it."""

    repository: Line
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,40}$")]
    path: Line
    note: Line = ""


class Require(Frozen):
    """What the kernel needs: a formula that must hold for the shape, the platform and the inputs, and what to say if not."""

    that: Expression
    message: Line


class Assumed(Frozen):
    """Lines that nobody outside knows: what stands there is one possibility, and every result through them says so."""

    lines: Annotated[tuple[Identifier, ...], Field(strict=False, min_length=1, max_length=MAX_SITES)]
    why: Line


class Inputs(Frozen):
    """Formats to which inputs are rounded on entry; ``scores`` defaults to compute, ``values`` to v's."""

    q: FormatName
    k: FormatName
    v: FormatName
    scores: FormatName | None = None
    values: FormatName | None = None


class Accepts(Frozen):
    """Formats that the kernel takes as they come, for each input."""

    q: Formats = ()
    k: Formats = ()
    v: Formats = ()


class Numbers(Frozen):
    """The format that every operation rounds to unless it says otherwise, and those of the inputs.

    An array in a format of ``accepts`` is used as it is; f64 and f32 are rounded to ``inputs`` on entry; others are
    refused. Without ``accepts`` every array is rounded, but for q and k in another 16-bit format.
    """

    compute: FormatName
    inputs: Inputs
    accepts: Accepts = Accepts()

    @property
    def compute_format(self) -> Format:
        """The format of every unmarked operation."""
        return parse_format(self.compute)

    def input_format(self, name: str) -> Format:
        """The format of input ``name``: q, k, v, scores or values."""
        default = {"scores": self.compute, "values": self.inputs.v}.get(name, self.compute)
        return parse_format(getattr(self.inputs, name, None) or default)


def _split(data: Any, known: tuple[str, ...]) -> Any:
    """Move every table that is not a ``known`` key into ``sections``; gather ``drop`` lists out of them."""
    if not isinstance(data, dict):
        return data
    table: dict[str, Any] = dict(data)
    out = {k: v for k, v in table.items() if k in known or not isinstance(v, dict)}
    drop = out.get("drop", [])
    sections: dict[str, Any] = {}
    for name, section in table.items():
        if name == "sections" and not isinstance(section, dict):
            sections[name] = out.pop(name)  # the field's own name is no key of the file
        if name in out or name in sections:
            continue
        inner = dict(section)
        if isinstance(inner.get("drop"), list) and isinstance(drop, list):
            drop = [*drop, *inner.pop("drop")]
        sections[name] = inner
    if drop != []:
        out["drop"] = drop
    out["sections"] = sections
    return out


class Lines(Frozen):
    """The tables that a spec has, and that a variant or a child of ``extends`` may replace or add to.

    All are ordered as in the file. ``drop`` names sites, states, constants, levels or ``[let]`` integers of
    the base that disappear. ``sections`` is keyed by ``token``, ``row`` or a level.
    """

    drop: Annotated[tuple[Axis, ...], Field(strict=False, max_length=MAX_SITES)] = ()
    let: Table = {}
    constants: Table = {}
    levels: Annotated[Table, Field(max_length=MAX_LEVELS)] = {}
    state: dict[Axis, Table] = {}
    sections: dict[Axis, Table] = {}

    @field_validator("sections")
    @classmethod
    def _bounded(cls, sections: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        count = sum(len(s) for s in sections.values())
        if count > MAX_SITES:
            raise RefusalError(f"{count} sites; the limit is {MAX_SITES}", "split the spec")
        return sections


class Variant(Lines):
    """Lines that replace, add to or drop from the spec where the formula ``when`` is true."""

    when: Expression

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, data: Any) -> Any:
        return _split(data, VARIANT_KEYS)


class SpecFile(Lines):
    """One spec file. After `extends` is resolved it is the whole spec and ``extends`` is None."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: SpecName
    status: Literal["walkthrough", "read", "replayed", "hardware"]
    summary: Line
    extends: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    sources: Annotated[tuple[Source, ...], Field(alias="source", strict=False, max_length=32)] = ()
    requires: Annotated[tuple[Require, ...], Field(alias="require", strict=False, max_length=32)] = ()
    assumed: Assumed | None = None
    faults: dict[Identifier, Line] = {}
    numbers: Numbers | None = None
    options: dict[Identifier, Option] = {}
    variants: Annotated[
        tuple[Variant, ...], Field(alias="variant", strict=False, max_length=MAX_VARIANTS)
    ] = ()

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, data: Any) -> Any:
        return _split(data, TOP_KEYS)


def spec_json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec file as it stands in TOML: sections are tables beside the others."""
    schema = SpecFile.model_json_schema(by_alias=True)
    section = {
        "type": "object",
        "properties": {"drop": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_EXPRESSION},
        "description": "sites: name = expression",
    }
    for model in (schema, schema["$defs"]["Variant"]):
        properties: dict[str, Any] = model["properties"]
        properties.pop("sections")
        properties["token"] = {**section, "description": "sites with one value per token: name = expression"}
        properties["row"] = {**section, "description": "sites of one query row, the merge: name = expression"}
        model["additionalProperties"] = {**section, "description": "sites of one level, named as in [levels]"}
        model["required"] = [k for k in model.get("required", []) if k != "sections"]
    schema["title"] = "ulpscope spec, schema 1"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
