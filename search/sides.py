"""What is compared: a spec on a platform, with lines and options that a user may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specs.errors import InputError, SpecError, did_you_mean
from specs.formats import Format
from specs.loader import Spec, load_spec, parse_spec
from specs.nodes import Cast, Name
from specs.platforms import Platform, load_platform
from specs.program import ROW, Program, Site
from specs.writer import to_toml

if TYPE_CHECKING:
    from verify.partition import Plan

#: The site that `before_rounding` adds where the last rounding takes in an expression without a name.
BEFORE = "before_rounding"


@dataclass(frozen=True)
class Side:
    """One of the backends of a search.

    Attributes:
        spec: the spec, changed lines included.
        platform: the platform it runs on.
        options: values for the spec's ``[options]``.
        context: integers and words of this side alone, such as ``sm_count`` is of its platform.
        changed: the lines that were changed, by name.
    """

    spec: Spec
    platform: Platform
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def label(self) -> str:
        """Such as ``walkthrough.flash_attention_2[split=tiles(20)]@h200``."""
        changes = [f"{name}={text}" for name, text in self.changed.items()]
        changes += [f"{name}={value}" for name, value in {**self.options, **self.context}.items()]
        inside = f"[{', '.join(changes)}]" if changes else ""
        return f"{self.spec.name}{inside}@{self.platform.name}"

    def program(self, context: Mapping[str, Any]) -> Program:
        """The typed program in ``context`` (see `specs.context.make_context`), platform and own context added.

        Raises:
            SpecError, InputError, UnsupportedError: as `specs.bind.bind`.
        """
        from specs.bind import bind
        from specs.context import make_context

        full = make_context({**self.platform.context, **context, **self.context}, place=self.label)
        return bind(self.spec, full, self.options, dot_products=self.platform.dot_products)

    def plan(self, context: Mapping[str, Any]) -> Plan:
        """The partition in ``context``.

        Raises:
            as `program`.
        """
        from verify.partition import plan

        return plan(self.spec, self.platform, options=self.options, **{**context, **self.context})


def load_side(cell: str, settings: Mapping[str, str] | None = None) -> Side:
    """The side of ``SPEC@PLATFORM``.

    Args:
        cell: a name or path of a spec, ``@``, a name or path of a platform.
        settings: by name: a level, a line of ``[let]`` or a site (its new text; empty: dropped), one of the spec's
            options, or else a context value.

    Raises:
        InputError: the cell or a value is malformed. SpecError: no such spec or platform, or a new line is wrong.
    """
    name, sign, platform = cell.rpartition("@")
    if not sign or not name or not platform:
        raise InputError(
            f"'{cell}' is not SPEC@PLATFORM", place="argument", remedy="write walkthrough.xqa@h200"
        )
    spec = load_spec(name)
    lines: dict[str, str] = {}
    options: dict[str, Any] = {}
    context: dict[str, Any] = {}
    for key, text in (settings or {}).items():
        if _section(spec, key) is not None:
            lines[key] = text
        elif key in spec.file.options:
            options[key] = _value(text)
        else:
            context[key] = _value(text)
    _check_context(spec, context)
    side = Side(with_lines(spec, lines), load_platform(platform), options, context, lines)
    return side


def with_lines(spec: Spec, lines: Mapping[str, str]) -> Spec:
    """``spec`` with the text of some lines replaced.

    Args:
        spec: a loaded spec.
        lines: by name of a level, a line of ``[let]`` or a site: its new text; an empty text drops the line.

    Raises:
        InputError: no such line, or a variant of the spec writes it, too. SpecError: the new text is wrong.
    """
    if not lines:
        return spec
    file = spec.file
    for name, text in lines.items():
        section = _section(spec, name)
        if section is None:
            raise InputError(
                f"{spec.name} has no line '{name}'", place="--set", remedy=did_you_mean(name, _names(spec))
            )
        for number, variant in enumerate(file.variants):
            if any(name in table for table in (variant.levels, variant.let, *variant.sections.values())):
                raise InputError(
                    f"variant {number + 1} of {spec.name} (when {variant.when}) writes '{name}', too",
                    place="--set",
                    remedy="copy the spec with `ulpscope spec show --toml` and change it there",
                )
        if section in ("levels", "let"):
            file = file.model_copy(update={section: _replaced(getattr(file, section), name, text)})
        else:
            table = _replaced(file.sections[section], name, text)
            file = file.model_copy(update={"sections": {**file.sections, section: table}})
    try:
        return parse_spec(to_toml(file), spec.origin)
    except SpecError as error:
        changed = ", ".join(f"{name} = {text!r}" for name, text in lines.items())
        raise SpecError(f"with {changed}: {error.cause}", place="--set", remedy=error.remedy) from None


def before_rounding(program: Program) -> tuple[Program, str, Format]:
    """The value that the last rounding of the output takes in.

    Returns:
        the program (with a site more, where the value has no name yet), the name of that site, and the format of
        the output. An output that is no cast is its own value before rounding.
    """
    output = program.sites["output"]
    fmt = output.type.format or program.compute
    match output.expr:
        case Cast(arg=Name(id=name)) if name in program.sites:
            return program, name, fmt
        case Cast(arg=arg) if arg in program.types and program.types[arg].kind == "float":
            site = Site(BEFORE, ROW, arg, program.types[arg], output.place)
            return replace(program, sites={**program.sites, BEFORE: site}), BEFORE, fmt
        case _:
            return program, "output", fmt


def _replaced(table: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    if not text.strip():
        return {n: t for n, t in table.items() if n != name}
    return {**table, name: text}


def _section(spec: Spec, name: str) -> str | None:
    """Where the line stands: ``levels``, ``let`` or a section."""
    if name in spec.levels:
        return "levels"
    if name in spec.file.let:
        return "let"
    return next((section for section, table in spec.sections.items() if name in table), None)


def _names(spec: Spec) -> list[str]:
    return [*spec.levels, *spec.file.let, *(n for table in spec.sections.values() for n in table)]


def _value(text: str) -> Any:
    words: dict[str, Any] = {"true": True, "false": False}
    if text in words:
        return words[text]
    return int(text) if text.strip().lstrip("-").isdecimal() else text.strip()


def _check_context(spec: Spec, context: Mapping[str, Any]) -> None:
    from specs.context import CONTEXT, refuse_platform

    refuse_platform(context, place="--set")
    for name in context:
        if name not in CONTEXT:
            known = [*_names(spec), *spec.file.options, *CONTEXT]
            raise InputError(
                f"'{name}' is no line of {spec.name}, no option and nothing that formulas see",
                place="--set",
                remedy=did_you_mean(name, known),
            )
