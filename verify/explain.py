"""A step-by-step trace for authors of specs: a few tokens and the first groups, every site with its bits.

It follows the first row (head) and the first column of the output, through the spec's own sites in the order
in which the dataflow needs them: tokens, then each level, then the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Spec
from specs.errors import InputError
from specs.formats import Format
from specs.program import CONSTANTS, DIM, ROW, TOKEN, Site
from verify.emulator import Result
from verify.numerics.rounding import word_dtype


@dataclass(frozen=True)
class Line:
    """One value: the site, its text in the spec, the value in decimal and its bits (empty for conditions)."""

    site: str
    text: str
    value: str
    bits: str
    format: str


@dataclass(frozen=True)
class Step:
    """One token, one piece of a level, or the row: ``title`` says which."""

    title: str
    lines: tuple[Line, ...]


def site_names(spec: Spec) -> list[str]:
    """Every site that an explanation shows: give them to `Case.emulate` to evaluate them at once."""
    return [name for lines in spec.sections.values() for name in lines]


def explain(result: Result, spec: Spec, tokens: int, groups: int = 3) -> list[Step]:
    """The first ``tokens`` tokens in visiting order of the first group, its first ``groups`` groups, and the row.

    Raises:
        InputError: ``tokens`` or ``groups`` is negative.
    """
    if tokens < 0 or groups < 0:
        raise InputError(
            f"{min(tokens, groups)} is negative", place="--explain-tokens", remedy="give 0 or more"
        )
    return list(_steps(result, spec, tokens, groups))


def as_json(steps: list[Step]) -> list[dict[str, Any]]:
    """The explanation as JSON."""
    return [asdict(step) for step in steps]


def as_text(steps: list[Step]) -> Iterator[str]:
    """The explanation as lines of text, in columns."""
    every = [line for step in steps for line in step.lines]
    site = max((len(line.site) for line in every), default=0)
    value = max((len(line.value) for line in every), default=0)
    bits = max((len(line.bits) for line in every), default=0)
    for step in steps:
        yield step.title
        for line in step.lines:
            row = f"  {line.site:<{site}}  {line.value:>{value}}  {line.bits:<{bits}}  {line.format:<6} {line.text}"
            yield row.rstrip()


def _steps(result: Result, spec: Spec, tokens: int, groups: int) -> Iterator[Step]:
    plan = result.plan
    program = plan.program
    order = [s for s in program.sites.values() if s.type.kind in ("float", "bool") and s.name in result.trace]
    cells = np.argwhere(plan.tokens >= 0)[:tokens]
    constants = [s for s in order if s.section == CONSTANTS]
    if constants:
        yield Step("constants", tuple(_line(result, spec, s, {}) for s in constants))
    for cell in cells:
        where = dict(zip((*plan.levels, TOKEN), cell.tolist(), strict=True))
        lines = [
            _line(result, spec, s, where)
            for s in order
            if TOKEN in s.type.axes and s.type.axes <= _axes(where)
        ]
        yield Step(f"token {int(plan.tokens[tuple(cell)])} ({_place(where)})", tuple(lines))
    for depth in range(len(plan.levels), 0, -1):
        level = plan.levels[depth - 1]
        mine = [s for s in order if s.section == level and TOKEN not in s.type.axes]
        if not mine:
            continue
        for piece in np.argwhere(plan.exists[level])[:groups]:
            where = dict(zip(plan.levels[:depth], piece.tolist(), strict=True))
            owned = plan.tokens[tuple(piece)]
            owned = owned[owned >= 0]
            title = f"{_place(where)}: {owned.size} tokens{_owned(owned)}"
            yield Step(
                title, tuple(_line(result, spec, s, where) for s in mine if s.type.axes <= _axes(where))
            )
    row = [s for s in order if s.section == ROW and s.type.axes <= {DIM}]
    yield Step(f"row: {plan.count} groups merged", tuple(_line(result, spec, s, {}) for s in row))


def _axes(where: dict[str, int]) -> frozenset[str]:
    return frozenset({*where, DIM})


def _place(where: dict[str, int]) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in where.items())


def _owned(tokens: NDArray[Any]) -> str:
    return "" if not tokens.size else f", the first {int(tokens[0])}, the last {int(tokens[-1])}"


def _line(result: Result, spec: Spec, site: Site, where: dict[str, int]) -> Line:
    array = result.trace[site.name]
    axes = result.trace.axes(site.name)
    lead = array.ndim - len(axes)
    value = array[(*([0] * lead), *(where.get(axis, 0) for axis in axes))]
    text = next((lines[site.name] for lines in spec.sections.values() if site.name in lines), "")
    if site.type.kind == "bool":
        return Line(site.name, text, str(bool(value)).lower(), "", "bool")
    fmt = site.type.format
    assert fmt is not None
    return Line(site.name, text, decimal(value, fmt), bit_text(value, fmt), fmt.name)


def decimal(value: Any, fmt: Format) -> str:
    """The shortest decimal that reads back as ``value`` in f32 or f64; narrower formats in full."""
    return str(np.float32(value)) if fmt.base == "f32" else repr(float(value))


def bit_text(value: Any, fmt: Format) -> str:
    """The bits of one stored value in hexadecimal: ``0x3fa9``."""
    word = int(np.asarray(value).reshape(1).view(word_dtype(fmt))[0])
    return f"0x{word:0{fmt.bits // 4}x}"
