"""Hybrids: specs that take some parts from one side and the rest from the other.

A hybrid is written out as the text of a spec and read by the loader and the type checker like any spec. It is legal if it
loads and types, if its views fit its partition, and if it is the same function of real numbers as both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from search.explain.flat import Flat, FlatLine
from search.explain.parts import COMPUTE, CORES, INPUTS, PARTITION, Part, line_atom, needed, references
from search.sides import before_rounding
from specs.bind import bind
from specs.formats import Format
from specs.loader import Spec, parse_spec
from specs.names import SCALARS
from specs.platforms import Platform
from specs.program import Program
from specs.schema import Inputs, Numbers
from specs.writer import to_toml
from verify.admission import check_views
from verify.arguments import Problem
from verify.emulator import Run
from verify.partition import Plan, plan_program

#: Which parts come from the second side.
Taken = frozenset[int]
NAME = "explain.hybrid"


@dataclass(frozen=True)
class Hybrid:
    """A legal hybrid, bound.

    Attributes:
        taken: numbers of the parts that come from the second side.
        spec: as a spec of its own.
        program: typed, with a site for what the last rounding takes in; site: its name.
        format: of the output.
        plan: its partition.
        problem: the input, rounded as it takes it.
        platform: with the tensor cores that it runs on.
        scalars: values of `specs.names.SCALARS`.
        memory: what was worked out about the program; inputs that share it share this.
    """

    taken: Taken
    spec: Spec
    program: Program
    site: str
    format: Format
    plan: Plan
    problem: Problem
    platform: Platform
    scalars: dict[str, float]
    memory: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)


@dataclass(frozen=True)
class Maker:
    """Makes hybrids of two runs of one input."""

    flats: tuple[Flat, Flat]
    runs: tuple[Run, Run]
    parts: tuple[Part, ...]

    @cached_property
    def _where(self) -> dict[str, int]:
        return {atom: i for i, part in enumerate(self.parts) for atom in part.atoms}

    @cached_property
    def _of_first(self) -> set[str]:
        return needed(self.flats[0])

    def side(self, atom: str, taken: Taken) -> int:
        """0 or 1: where an atom comes from."""
        return int(self._where.get(atom, -1) in taken)

    def spec(self, taken: Taken) -> Spec:
        """The text of a hybrid, loaded.

        Raises:
            SpecError: it is no legal spec.
        """
        views: dict[str, str] = {}
        constants: dict[str, str] = {}
        lines: dict[str, FlatLine] = {}
        for name, flat in self._lines(taken).items():
            if name in flat.lines:
                lines[name] = flat.lines[name]
            elif name in flat.constants:
                constants[name] = flat.constants[name]
            else:
                views[name] = flat.views[name]
        levels = self.flats[self.side(PARTITION, taken)].levels
        return self.written(taken, levels, views, constants, lines)

    def written(
        self,
        taken: Taken,
        levels: Mapping[str, str],
        views: Mapping[str, str],
        constants: Mapping[str, str],
        lines: Mapping[str, FlatLine],
    ) -> Spec:
        """A spec of these tables, with the formats of the sides that they are taken from.

        Raises:
            SpecError: it is no legal spec.
        """
        flats = self.flats
        sections: dict[str, dict[str, str]] = {}
        states: dict[str, dict[str, str]] = {}
        for name, line in lines.items():
            sections.setdefault(line.section, {})[name] = line.text
            if line.state is not None:
                states.setdefault(line.state[0], {})[name] = line.state[1]
        inputs = flats[self.side(INPUTS, taken)].inputs
        update: dict[str, Any] = {
            "name": NAME,
            "status": "walkthrough",
            "summary": f"{flats[0].label} with lines of {flats[1].label}"[:400],
            "sources": (),
            "requires": (),
            "assumed": None,
            "faults": {},
            "numbers": Numbers(compute=flats[self.side(COMPUTE, taken)].compute, inputs=Inputs(**inputs)),
            "options": {},
            "let": {},
            "variants": (),
            "constants": dict(constants),
            "levels": {**levels, **views},
            "state": states,
            "sections": sections,
        }
        return parse_spec(to_toml(flats[0].spec.file.model_copy(update=update)), NAME)

    def _lines(self, taken: Taken) -> dict[str, Flat]:
        """Lines, constants and views that the output of a hybrid needs, each with the side that it comes from."""
        found: dict[str, Flat] = {}
        todo = ["output"]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            flat = self._flat_of(name, taken)
            found[name] = flat
            todo += references(flat, name)
        order = [*self.flats[0].names(), *self.flats[1].names()]
        first = {
            name: i
            for i, name in enumerate(dict.fromkeys((*self.flats[0].lines, *self.flats[1].lines, *order)))
        }
        return {name: found[name] for name in sorted(found, key=lambda n: first[n])}

    def _flat_of(self, name: str, taken: Taken) -> Flat:
        atom = line_atom(name)
        if atom in self._where:
            return self.flats[self.side(atom, taken)]
        return self.flats[0] if name in self._of_first else self.flats[1]

    def problem(self, taken: Taken) -> Problem:
        """The input as a hybrid takes it."""
        return self.runs[self.side(INPUTS, taken)].problem

    def make(self, taken: Taken) -> Hybrid:
        """The hybrid, bound to the input.

        Raises:
            SpecError, InputError, UnsupportedError: it is not legal.
        """
        spec = self.spec(taken)
        run = self.runs[self.side(INPUTS, taken)]
        platform = self.runs[0].platform
        cores = self.runs[self.side(CORES, taken)].platform.dot_products
        if cores != platform.dot_products:
            platform = platform.model_copy(update={"dot_products": cores})
        problem = run.problem
        formats = {n: f for n, f in problem.formats.items() if n in ("q", "k", "v")}
        context = self.runs[0].plan.context
        program = bind(spec, context, {}, formats, platform.dot_products)
        program, site, fmt = before_rounding(program)
        plan = plan_program(program, context)
        depth = problem.q.shape[-1] if problem.q is not None else int(context["head_dim"])
        check_views(program, plan, depth, problem.v.shape[-1])
        scalars = {n: x for n, x in run.scalars.items() if n in SCALARS}
        return Hybrid(taken, spec, program, site, fmt, plan, problem, platform, scalars)


def _joined(*names: str) -> str:
    """One name for several parts: ``partition + lines w, total``."""
    words = [word for name in names for word in name.split(" + ")]
    others = [word for word in words if not word.startswith("line")]
    lines = [x for word in words if word.startswith("line") for x in word.split(" ", 1)[1].split(", ")]
    several = f"lines {', '.join(lines)}" if len(lines) > 1 else f"line {lines[0]}" if lines else ""
    return " + ".join([*others, *([several] if several else [])])


def merged(parts: Sequence[Part], i: int, j: int) -> tuple[Part, ...]:
    """The parts with two of them joined, at the place of the first."""
    low, high = min(i, j), max(i, j)
    a, b = parts[low], parts[high]
    one = Part(_joined(a.name, b.name), (*a.atoms, *b.atoms), (*a.changes, *b.changes))
    return tuple(one if n == low else part for n, part in enumerate(parts) if n != high)
