"""Axis, kind and format inference. No spec declares an axis; what is found here is what both walkers trust.

Two rules carry the weight. A reduction in section L removes every axis inside L (and, where none is left, the
views), unless it says ``over=``. A state declared in scope S and updated in section U is folded over the
levels between them.
"""

from __future__ import annotations

from dataclasses import replace

from specs.errors import Place, SpecError, did_you_mean
from specs.formats import BASES, Format
from specs.functions import FUNCTIONS
from specs.names import (
    BUILTIN,
    HEAD_SCALARS,
    INDICES,
    SCALARS,
    TENSOR_FORMATS,
    constant,
    is_literal,
    is_mma,
    neutral,
)
from specs.nodes import At, Cast, Cmp, Last, Logic, Name, Node, Num, Op, Owns, Pos, Prev, Reduce, Select
from specs.program import CONSTANTS, DEPTH, DIM, ROW, TOKEN, Program, Site, Type, inside
from specs.states import Line, states_of

_INT_OPS = frozenset({"+", "-", "*", "//", "%", "^", "neg", "min", "max", "abs", "ceildiv", "ceilpow2"})
_NO_AXES: frozenset[str] = frozenset()


def infer(program: Program, lines: list[Line], starts: list[Line]) -> Program:
    """Type every line of ``program``.

    Args:
        program: with formats, levels and views in place, and neither states nor sites.
        lines: (section, name, expression, place) of every site, token section first.
        starts: (scope, name, start expression, place) of every state.

    Raises:
        SpecError: with file:line:column of the part at fault.
    """
    return _Inference(program, lines, starts).run()


class _Inference:
    def __init__(self, program: Program, lines: list[Line], starts: list[Line]) -> None:
        self.program = program
        self.lines: dict[str, Line] = {}
        for section, name, expr, place in lines:
            if name in self.lines:
                raise SpecError(
                    f"site '{name}' stands in [{self.lines[name][0]}] and in [{section}]",
                    place=place,
                    remedy="give one of them another name",
                )
            if name in BUILTIN or name in program.inputs:
                raise SpecError(
                    f"'{name}' is a name of the language", place=place, remedy="choose another name"
                )
            self.lines[name] = (section, name, expr, place)
        self.levels = program.level_names
        self.states = states_of(starts, self.lines, self.levels)
        self.extras: dict[str, frozenset[str]] = dict.fromkeys(self.states, _NO_AXES)
        self.formats: dict[str, Format] = {}
        self.sites: dict[str, Site] = {}
        self.types: dict[Node, Type] = {}
        self.busy: list[str] = []
        self.it: Type | None = None
        self.lenient = True

    # -- driving ------------------------------------------------------------------------------------------

    def run(self) -> Program:
        # Axes and formats of states are fixed points: grow the axes and narrow the formats leniently, then judge.
        while self._grow():
            pass
        self.lenient = False
        self._grow()
        self._check_output()
        return replace(self.program, states=self.states, sites=self.sites, types=self.types)

    def _grow(self) -> bool:
        """Type every line with what is known of the states so far; whether that changed."""
        self.sites, self.types = {}, {}
        for name in self.lines:
            self.site(name)
        changed = False
        levels = frozenset((*self.levels, TOKEN))
        for name, state in self.states.items():
            start, start_type = self._float(state.start, state.scope, state.place)
            own = (self.sites[name].type.axes | start_type.axes) - levels
            self.states[name] = replace(state, start=start)
            if not own <= self.extras[name]:
                self.extras[name] |= own
                changed = True
            held = [self.sites[name].type.format, None if neutral(start) else start_type.format]
            fmt = self._join(held, state.section)
            if fmt != self.formats.get(name, self.program.compute):
                self.formats[name] = fmt
                changed = True
        return changed

    def _check_output(self) -> None:
        for name, most in (("output", frozenset({DIM})), ("lse", _NO_AXES)):
            site = self.sites.get(name)
            if site is None:
                if name == "output":
                    raise SpecError(
                        f"{self.program.spec} has no site 'output'", remedy="add output = ... to [row]"
                    )
                continue
            extra = site.type.axes - most
            if extra or site.section != ROW:
                what = f"has the axes {sorted(extra)} left" if extra else f"stands in [{site.section}]"
                raise SpecError(
                    f"{name} {what}",
                    place=site.place,
                    remedy="reduce them: output is one value per column, lse one per row",
                )

    # -- sites --------------------------------------------------------------------------------------------

    def site(self, name: str) -> Site:
        if name in self.sites:
            return self.sites[name]
        section, _, expr, place = self.lines[name]
        if name in self.busy:
            loop = " -> ".join([*self.busy[self.busy.index(name) :], name])
            raise SpecError(
                f"'{name}' depends on itself ({loop})",
                place=place,
                remedy="refer to the step before with prev()",
            )
        self.busy.append(name)
        try:
            resolved, kind = self._walk(expr, section, place)
        finally:
            self.busy.pop()
        if kind.kind == "word":
            raise SpecError(
                f"'{name}' is a word, not a value", place=place, remedy="words belong in when = ..."
            )
        if kind.kind == "int" and isinstance(resolved, Num):
            kind = self._as_float(resolved, kind)
        if kind.kind == "float" and name in self.states:
            kind = replace(
                kind, axes=kind.axes | frozenset(self.program.levels_to(section)) | self.extras[name]
            )
        self.sites[name] = Site(name, section, resolved, kind, place)
        return self.sites[name]

    # -- expressions --------------------------------------------------------------------------------------

    def _fail(self, n: Node, place: Place, cause: str, remedy: str) -> SpecError:
        column = place.column + getattr(n, "at", 0) if place.column else 0
        return SpecError(cause, place=Place(place.file, place.line, column), remedy=remedy)

    def _compute(self, section: str) -> Format:
        return BASES["f64"] if section == CONSTANTS else self.program.compute

    def _walk(self, n: Node, section: str, place: Place) -> tuple[Node, Type]:
        """The node with its reductions resolved, and its type."""
        new, kind = self._visit(n, section, place)
        if section == CONSTANTS:  # the same text in a section of the kernel has the kernel's formats
            self.types.setdefault(new, kind)
        else:
            self.types[new] = kind
        return new, kind

    def _visit(self, n: Node, section: str, place: Place) -> tuple[Node, Type]:
        match n:
            case Num(text=text):
                return n, self._literal(n, text, section)
            case Name():
                return n, self._name(n, section, place)
            case Op():
                return self._op(n, section, place)
            case Cast(format=fmt):
                arg, kind = self._walk(n.arg, section, place)
                if kind.kind != "int" or constant(
                    arg
                ):  # an integer becomes a float by the cast's own rounding
                    kind = self._number(arg, kind, section, place)
                return replace(n, arg=arg), Type("float", kind.axes, fmt)
            case Cmp():
                left, a = self._walk(n.left, section, place)
                right, b = self._walk(n.right, section, place)
                if "bool" in (a.kind, b.kind) or "word" in (a.kind, b.kind):
                    raise self._fail(n, place, f"cannot compare {a.kind} with {b.kind}", "compare numbers")
                if a.kind != b.kind:
                    self._coerce(left, a, right, b, n, place)
                return replace(n, left=left, right=right), Type("bool", a.axes | b.axes)
            case Logic():
                parts = [self._bool(a, section, place) for a in n.args]
                axes = frozenset[str]().union(*(t.axes for _, t in parts))
                return replace(n, args=tuple(p for p, _ in parts)), Type("bool", axes)
            case Select():
                return self._select(n, section, place)
            case Prev() | Last():
                return n, self._carried(n, section, place)
            case At():
                return self._gather(n, section, place)
            case Pos(axis=axis):
                if axis not in self.program.axes:
                    raise self._fail(
                        n, place, f"unknown axis '{axis}'", did_you_mean(axis, self.program.axes)
                    )
                axes = frozenset((*self.levels, TOKEN)) if axis == TOKEN else frozenset({axis})
                return n, Type("int", axes)
            case Owns(level=level):
                if level not in self.levels:
                    raise self._fail(n, place, f"unknown level '{level}'", did_you_mean(level, self.levels))
                return n, Type("bool", frozenset(self.program.levels_to(level)))
            case Reduce():
                return self._reduce(n, section, place)
            case _:
                raise self._fail(
                    n,
                    place,
                    f"{type(n).__name__.lower()} is not a value",
                    "trees and levels have slots of their own",
                )

    def _literal(self, n: Num, text: str, section: str) -> Type:
        if text in ("true", "false"):
            return Type("bool", _NO_AXES)
        if text.startswith("'"):
            return Type("word", _NO_AXES)
        if n.bits is None and text.isdigit():
            return Type("int", _NO_AXES)
        return Type("float", _NO_AXES, self.program.compute if n.bits is not None else self._compute(section))

    def _as_float(self, n: Node, kind: Type) -> Type:
        return Type("float", kind.axes, self.types[n].format or self.program.compute)

    def _name(self, n: Name, section: str, place: Place) -> Type:
        name = n.id
        program = self.program
        if name in self.lines:
            site = self.site(name)
            if name in self.states and section not in (*self._within(site.section), TOKEN):
                raise self._fail(
                    n,
                    place,
                    f"state '{name}' is read outside the level that updates it",
                    f"write last({name})",
                )
            if site.section == CONSTANTS and site.type.kind == "float":
                fmt = site.type.format
                return replace(
                    site.type, format=fmt if fmt and program.compute.holds(fmt) else self._compute(section)
                )
            return site.type
        if name in program.inputs or name in ("q", "k", "v"):
            if name not in program.inputs:
                raise self._fail(n, place, f"input '{name}' has no format", f"add {name} to numbers.inputs")
            token = frozenset((*self.levels, TOKEN))
            axes = {"q": frozenset({DEPTH}), "k": token | {DEPTH}, "v": token | {DIM}}.get(name)
            if axes is None:
                raise self._fail(n, place, f"unknown input '{name}'", "inputs are q, k and v")
            return Type("float", axes, program.inputs[name])
        if name == "visible":
            return Type("bool", frozenset((*self.levels, TOKEN)))
        if name in ("inf", "nan"):
            return Type("float", _NO_AXES, self._compute(section))
        if section == CONSTANTS and name in (*HEAD_SCALARS, *INDICES):
            raise self._fail(
                n, place, f"{name} differs from row to row", "use it in [token], a level or [row]"
            )
        if name in SCALARS or name in HEAD_SCALARS:
            return Type("float", _NO_AXES, self._compute(section))
        if name in INDICES:
            return Type("int", frozenset((*self.levels, TOKEN)) if name == "key_index" else _NO_AXES)
        if name == "it":
            if self.it is None:
                raise self._fail(
                    n, place, "'it' has a meaning inside first= only", "it is the first leaf of the sum"
                )
            return self.it
        known = [*self.lines, *program.inputs, *BUILTIN, *program.integers]
        raise self._fail(n, place, f"unknown name '{name}'", did_you_mean(name, known))

    def _within(self, section: str) -> tuple[str, ...]:
        """The sections at or inside ``section``."""
        return self.levels[self.levels.index(section) :] if section in self.levels else (section,)

    def _float(self, n: Node, section: str, place: Place) -> tuple[Node, Type]:
        new, kind = self._walk(n, section, place)
        return new, self._number(new, kind, section, place)

    def _number(self, n: Node, kind: Type, section: str, place: Place) -> Type:
        """The type of a typed node that must be a float; a whole number without axes becomes one."""
        if kind.kind == "float":
            return kind
        if kind.kind == "int" and constant(n):
            kind = Type("float", _NO_AXES, self._compute(section))
            self.types[n] = kind
            return kind
        remedy = "cast it, as in f32(key_index)" if kind.kind == "int" else "select a number by it"
        raise self._fail(n, place, f"a {kind.kind} where a number is needed", remedy)

    def _bool(self, n: Node, section: str, place: Place) -> tuple[Node, Type]:
        new, kind = self._walk(n, section, place)
        if kind.kind != "bool":
            raise self._fail(
                n, place, f"a {kind.kind} where a condition is needed", "compare it with something"
            )
        return new, kind

    def _coerce(self, left: Node, a: Type, right: Node, b: Type, n: Node, place: Place) -> None:
        for node, kind in ((left, a), (right, b)):
            if kind.kind == "int":
                if not constant(node):
                    raise self._fail(
                        n, place, "an integer next to a float", "cast the integer, as in f32(key_index)"
                    )
                self.types[node] = Type("float", _NO_AXES, self.program.compute)

    def _op(self, n: Op, section: str, place: Place) -> tuple[Node, Type]:
        parts = [self._walk(a, section, place) for a in n.args]
        kinds = {t.kind for _, t in parts}
        axes = frozenset[str]().union(*(t.axes for _, t in parts))
        args = tuple(p for p, _ in parts)
        if kinds == {"int"} and n.op in _INT_OPS and n.format is None:
            return replace(n, args=args), Type("int", axes)
        if n.op in ("//", "%", "^", "ceildiv", "ceilpow2"):
            raise self._fail(n, place, f"'{n.op}' is for integers", "use it in [let], levels, pos() and at()")
        if n.op not in ("+", "-", "*", "/", "neg") and n.op not in FUNCTIONS:
            raise self._fail(n, place, f"rule {n.op}() returns an integer", "call it in [let]")
        formats = [self._number(p, t, section, place).format for p, t in parts]
        if n.op == "isnan":
            return replace(n, args=args), Type("bool", axes)
        if n.op in ("neg", "abs"):
            fmt = formats[0]
        elif n.op in ("min", "max"):
            fmt = self._join(formats, section)
        else:
            fmt = n.format or self._compute(section)
        return replace(n, args=args), Type("float", axes, fmt)

    def _join(self, formats: list[Format | None], section: str) -> Format:
        """The narrowest of the formats that holds all values, else the compute format."""
        known = [f for f in formats if f is not None]
        for f in known:
            if all(f.holds(g) for g in known):
                return f
        return self._compute(section)

    def _select(self, n: Select, section: str, place: Place) -> tuple[Node, Type]:
        cond, c = self._bool(n.cond, section, place)
        a, ta = self._walk(n.a, section, place)
        b, tb = self._walk(n.b, section, place)
        axes = c.axes | ta.axes | tb.axes
        new = replace(n, cond=cond, a=a, b=b)
        if {ta.kind, tb.kind} == {"bool"}:
            return new, Type("bool", axes)
        if {ta.kind, tb.kind} == {"int"} and not (constant(a) and constant(b)):
            return new, Type("int", axes)
        formats = [self._number(x, t, section, place).format for x, t in ((a, ta), (b, tb)) if not neutral(x)]
        for x, t in ((a, ta), (b, tb)):
            self._number(x, t, section, place)
        return new, Type("float", axes, self._join(list(formats), section))

    def _carried(self, n: Prev | Last, section: str, place: Place) -> Type:
        if n.state not in self.states:
            raise self._fail(n, place, f"'{n.state}' is no state", did_you_mean(n.state, self.states))
        state = self.states[n.state]
        fmt = self.formats.get(n.state, self.program.compute)
        if section == TOKEN:
            word = "last" if isinstance(n, Last) else "prev"
            raise self._fail(
                n,
                place,
                f"{word}({n.state}) in [token], which no state reaches",
                f"move the line to [{state.section}]",
            )
        if isinstance(n, Last):
            if section in self._within(state.section):
                raise self._fail(
                    n, place, f"last({n.state}) inside the fold of {n.state}", f"write prev({n.state})"
                )
            return Type("float", frozenset(self.program.levels_to(state.scope)) | self.extras[n.state], fmt)
        if section not in self._within(state.section):
            raise self._fail(
                n, place, f"prev({n.state}) outside the fold of {n.state}", f"write last({n.state})"
            )
        if n.level is not None and n.level not in state.levels:
            raise self._fail(
                n, place, f"{n.state} is not folded over '{n.level}'", did_you_mean(n.level, state.levels)
            )
        return Type("float", frozenset(self.program.levels_to(state.section)) | self.extras[n.state], fmt)

    def _gather(self, n: At, section: str, place: Place) -> tuple[Node, Type]:
        arg, kind = self._walk(n.arg, section, place)
        axes = kind.axes
        moves: list[tuple[str, Node]] = []
        for axis, index in n.moves:
            if axis not in self.program.axes:
                raise self._fail(n, place, f"unknown axis '{axis}'", did_you_mean(axis, self.program.axes))
            new, t = self._walk(index, section, place)
            if t.kind != "int":
                raise self._fail(index, place, f"the index of {axis} is a {t.kind}", "an index is an integer")
            if axis not in axes and not self.lenient:  # a state's axes may still grow
                raise self._fail(n, place, f"the value has no axis '{axis}'", f"its axes are {sorted(axes)}")
            axes = (axes - {axis}) | t.axes
            moves.append((axis, new))
        return replace(n, arg=arg, moves=tuple(moves)), replace(kind, axes=axes)

    def _reduce(self, n: Reduce, section: str, place: Place) -> tuple[Node, Type]:
        parts = [
            self._bool(a, section, place) if n.kind == "any" else self._float(a, section, place)
            for a in n.args
        ]
        args = tuple(p for p, _ in parts)
        axes = frozenset[str]().union(*(t.axes for _, t in parts))
        over = self._over(n, axes, section, place)
        left = axes - over
        if n.by is not None:
            view = self.program.views.get(n.by)
            if view is None:
                raise self._fail(n, place, f"unknown view '{n.by}'", did_you_mean(n.by, self.program.views))
            left |= {n.by}
        order = {axis: i for i, axis in enumerate(self.program.axes)}
        new = replace(n, args=args, over=tuple(sorted(over, key=lambda a: order.get(a, -1))))
        if n.kind == "any":
            return new, Type("bool", left)
        if n.start is not None:
            start, t = self._float(n.start, section, place)
            left |= t.axes
            new = replace(new, start=start)
        if n.first is not None:
            self.it = Type("float", left, self._compute(section))
            try:
                first, t = self._float(n.first, section, place)
            finally:
                self.it = None
            left |= t.axes
            new = replace(new, first=first)
        if not self.lenient and n.tree is not None and any(is_mma(t) for t in n.tree.walk()):
            self._check_factors(parts, place)
        fmt = parts[0][1].format if n.kind == "max" else n.format or self._compute(section)
        return new, Type("float", left, fmt)

    def _check_factors(self, parts: list[tuple[Node, Type]], place: Place) -> None:
        """Tensor cores read narrow formats; a literal takes that of the other factor."""
        for factor, kind in parts:
            base = (kind.format or self.program.compute).base
            if base not in TENSOR_FORMATS and not is_literal(factor):
                raise self._fail(
                    factor, place, f"a tensor core does not read {base}", "cast the factor, as in bf16(x)"
                )

    def _over(self, n: Reduce, axes: frozenset[str], section: str, place: Place) -> frozenset[str]:
        if n.over is not None:
            known = (*self.program.axes, ROW)
            for axis in n.over:
                if axis not in known:
                    raise self._fail(n, place, f"unknown axis '{axis}' in over=", did_you_mean(axis, known))
            over = frozenset(n.over)
        else:
            over = axes & inside(self.levels, section)
            if not over:
                over = axes & frozenset(self.program.views)
            if not over and section == CONSTANTS:
                over = _NO_AXES
        if self.lenient:
            return over
        if not over:
            raise self._fail(
                n,
                place,
                f"nothing to reduce: the value has the axes {sorted(axes)} in [{section}]",
                "move the line to an outer section, or give over=",
            )
        kept = (axes - over) & inside(self.levels, section)
        if ROW in over and kept:
            raise self._fail(
                n,
                place,
                f"over=row leaves the axes {sorted(kept)}, which lie inside [{section}]",
                "move the line to an inner section, or name every axis, as in over=(row, token)",
            )
        if not over <= axes | {ROW} and n.by is None:
            missing = sorted(over - axes - {ROW})
            raise self._fail(
                n, place, f"the value has no axis '{missing[0]}'", f"its axes are {sorted(axes)}"
            )
        return over
