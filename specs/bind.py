"""Bind a spec to a context: apply its variants, evaluate its integers, fold what is known, infer the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from specs.errors import Place, SpecError, did_you_mean
from specs.formats import Format
from specs.grammar import parse_expr, parse_level
from specs.infer import infer
from specs.integers import Value, evaluate
from specs.nodes import Cmp, LevelRule, Logic, Name, Node, Num, Op, Select, Tree
from specs.program import CONSTANTS, ROW, TOKEN, Level, Program, View

if TYPE_CHECKING:
    from specs.loader import Spec

TRUE, FALSE = Num("true"), Num("false")
Line = tuple[str, Place]
MAX_VIEW = 4096
TypedLine = tuple[str, str, Node, Place]
_ANY = LevelRule("tiles", (Num("1"),))


@dataclass
class _Draft:
    """The lines of a spec after its variants, still as text."""

    let: dict[str, Line] = field(default_factory=dict[str, Line])
    constants: dict[str, Line] = field(default_factory=dict[str, Line])
    levels: dict[str, Line] = field(default_factory=dict[str, Line])
    state: dict[str, dict[str, Line]] = field(default_factory=dict[str, dict[str, Line]])
    sections: dict[str, dict[str, Line]] = field(default_factory=dict[str, dict[str, Line]])


def bind(
    spec: Spec,
    context: Mapping[str, int | str],
    options: Mapping[str, Any] | None = None,
    formats: Mapping[str, Format] | None = None,
) -> Program:
    """The typed program of ``spec`` in ``context``.

    Args:
        spec: a loaded spec.
        context: every name of `specs.context.CONTEXT` with its value (`make_context`).
        options: values for names of the spec's ``[options]``.
        formats: formats in which inputs come, where they differ from those that the spec declares.

    Raises:
        SpecError: with file:line:column where a line of the spec is at fault.
    """
    try:
        return _bind(spec, context, options, formats or {})
    except RecursionError:
        raise SpecError(
            f"lines of {spec.name} refer to each other too deeply",
            place=spec.origin,
            remedy="write a line after the lines that it uses, and shorten the chain",
        ) from None


def _bind(
    spec: Spec,
    context: Mapping[str, int | str],
    options: Mapping[str, Any] | None,
    formats: Mapping[str, Format],
) -> Program:
    options = _options(spec, options or {})
    draft = _Draft(
        let=_lines(spec, "let", spec.file.let),
        constants=_lines(spec, "constants", spec.file.constants),
        levels=_lines(spec, "levels", spec.file.levels),
        state={s: _lines(spec, f"state.{s}", t) for s, t in spec.file.state.items()},
        sections={s: _lines(spec, s, t) for s, t in spec.file.sections.items()},
    )
    for number, variant in enumerate(spec.file.variants):
        integers = _Integers({**context, **options}, draft.let)
        place = spec.place(f"variant.{number}", "when")
        if integers.evaluate(variant.when, place):
            _apply(spec, draft, number, variant)
    integers = _Integers({**context, **options}, draft.let)
    resolver = _Resolver(integers, options, set(draft.constants))
    levels: list[Level] = []
    views: dict[str, View] = {}
    for name, (text, place) in draft.levels.items():
        rule = parse_level(text, place)
        if rule.kind == "view":
            views[name] = resolver.view(name, rule, place)
        else:
            levels.append(Level(name, resolver.level(rule, place)))
    numbers = spec.file.numbers
    if numbers is None:
        raise SpecError(
            f"{spec.name} has no [numbers]",
            place=spec.place("numbers", ""),
            remedy="say compute = and inputs =",
        )
    inputs = {name: numbers.input_format(name) for name in ("q", "k", "v")} | dict(formats)
    lines: list[tuple[str, str, Node, Place]] = []
    for name, (text, place) in draft.constants.items():
        lines.append((CONSTANTS, name, resolver.expression(text, place), place))
    names = [level.name for level in levels]
    for section in (TOKEN, *reversed(names), ROW):
        for name, (text, place) in draft.sections.get(section, {}).items():
            lines.append((section, name, resolver.expression(text, place), place))
    for section, table in draft.sections.items():
        if section not in (TOKEN, ROW, *names) and table:
            _, place = next(iter(table.values()))
            raise SpecError(
                f"section [{section}] is neither token, row nor a level",
                place=Place(place.file, place.line),
                remedy=did_you_mean(section, (TOKEN, ROW, *names)),
            )
    starts = [
        (scope, name, resolver.expression(text, place), place)
        for scope, table in draft.state.items()
        for name, (text, place) in table.items()
    ]
    typed = _typed(
        spec.name,
        numbers.compute_format,
        tuple(inputs.items()),
        tuple(levels if views else (Level(level.name, _ANY) for level in levels)),
        tuple(views.items()),
        tuple(lines),
        tuple(starts),
    )
    known = {**options, **{n: integers[n] for n in draft.let}}
    return replace(typed, levels=tuple(levels), integers=known)


@lru_cache(maxsize=512)
def _typed(
    name: str,
    compute: Format,
    inputs: tuple[tuple[str, Format], ...],
    levels: tuple[Level, ...],
    views: tuple[tuple[str, View], ...],
    lines: tuple[TypedLine, ...],
    starts: tuple[TypedLine, ...],
) -> Program:
    """Types do not depend on the sizes of levels, so lengths share them."""
    blank = Program(name, compute, dict(inputs), levels, dict(views), states={}, sites={})
    return infer(blank, list(lines), list(starts))


def _lines(spec: Spec, table: str, entries: Mapping[str, Any]) -> dict[str, Line]:
    return {name: (str(text), spec.place(table, name)) for name, text in entries.items()}


def _options(spec: Spec, given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = dict(spec.file.options)
    for name, value in given.items():
        if name not in values:
            raise SpecError(f"{spec.name} has no option '{name}'", remedy=did_you_mean(name, values))
        if type(value) is not type(values[name]):
            kind = type(values[name]).__name__
            raise SpecError(
                f"option {name} = {value!r} is not a {kind}", remedy=f"its default is {values[name]!r}"
            )
        values[name] = value
    return values


def _apply(spec: Spec, draft: _Draft, number: int, variant: Any) -> None:
    """Replace, add and drop the lines that a variant names."""

    def lines(table: str, entries: Mapping[str, Any]) -> dict[str, Line]:
        return _lines(spec, f"variant.{number}.{table}", entries)

    draft.let.update(lines("let", variant.let))
    draft.constants.update(lines("constants", variant.constants))
    draft.levels.update(lines("levels", variant.levels))
    for scope, entries in variant.state.items():
        draft.state.setdefault(scope, {}).update(lines(f"state.{scope}", entries))
    for section, entries in variant.sections.items():
        draft.sections.setdefault(section, {}).update(lines(section, entries))
    dropped: set[str] = set()
    tables = (draft.let, draft.constants, draft.levels, *draft.state.values(), *draft.sections.values())
    for table in tables:
        for name in variant.drop:
            if table.pop(name, None) is not None:
                dropped.add(name)
    missing = sorted(set(variant.drop) - dropped)
    if missing:
        place = spec.place(f"variant.{number}", "drop")
        known = {n for t in draft.sections.values() for n in t}
        raise SpecError(
            f"drop names '{missing[0]}', which is no line",
            place=place,
            remedy=did_you_mean(missing[0], known),
        )


class _Integers(Mapping[str, Value]):
    """Values of the context and, lazily and in any order, of ``[let]``."""

    def __init__(self, known: Mapping[str, Value], let: Mapping[str, Line]) -> None:
        self._known = dict(known)
        self._let = let
        self._busy: set[str] = set()
        self._done: dict[str, Value] = {}

    def evaluate(self, text: str, place: Place) -> Value:
        return evaluate(parse_expr(text, place), self, place)

    def __getitem__(self, name: str) -> Value:
        if name in self._done:
            return self._done[name]
        if name in self._let:
            text, place = self._let[name]
            if name in self._busy:
                raise SpecError(f"'{name}' depends on itself", place=place, remedy="break the cycle in [let]")
            self._busy.add(name)
            try:
                self._done[name] = self.evaluate(text, place)
                return self._done[name]
            finally:
                self._busy.discard(name)
        return self._known[name]

    def __iter__(self):
        return iter({**self._known, **self._let})

    def __len__(self) -> int:
        return len({**self._known, **self._let})


@dataclass(frozen=True)
class _Resolver:
    """Puts values in place of integer names and options, and folds what that decides."""

    integers: _Integers
    options: Mapping[str, Any]
    constants: set[str]

    def expression(self, text: str, place: Place) -> Node:
        try:
            return self._fold(parse_expr(text, place))
        except SpecError as error:
            if str(error.place):
                raise
            raise SpecError(error.cause, place=place, remedy=error.remedy) from None

    def level(self, rule: LevelRule, place: Place) -> LevelRule:
        def number(node: Node | None, low: int) -> Node | None:
            if node is None:
                return None
            value = evaluate(node, self.integers, place)
            if isinstance(value, str | float) or value < low:
                column = place.column + getattr(node, "at", 0) if place.column else 0
                raise SpecError(
                    f"{rule.kind}() with {value}; at least {low} is needed",
                    place=Place(place.file, place.line, column),
                    remedy="guard the formula, as in max(1, ...)",
                )
            return Num(str(int(value)), at=getattr(node, "at", 0))

        count = number(rule.args[0], 0 if self.integers["kv_len"] == 0 else 1)
        assert count is not None
        return replace(rule, args=(count,), unit=number(rule.unit, 1), of=number(rule.of, 0))

    def view(self, name: str, rule: LevelRule, place: Place) -> View:
        from specs.nodes import Pos

        size = evaluate(rule.args[0], self.integers, place)
        index = self._fold(rule.args[1])
        axes = {n.axis for n in index.walk() if isinstance(n, Pos)}
        if len(axes) != 1:
            raise SpecError(
                f"view '{name}' must colour one axis, got {sorted(axes)}",
                place=place,
                remedy="use one pos(AXIS) in its index",
            )
        if isinstance(size, str | float) or size > MAX_VIEW:
            raise SpecError(
                f"view '{name}' has {size} colours; the limit is {MAX_VIEW}",
                place=place,
                remedy="use a level instead",
            )
        return View(name, max(1, int(size)), axes.pop(), index)

    def _fold(self, n: Node) -> Node:
        if isinstance(n, Name) and n.id not in self.constants:
            if n.id in self.options and isinstance(self.options[n.id], bool):
                return TRUE if self.options[n.id] else FALSE
            if n.id in self.options:
                return Num(repr(self.options[n.id]), at=n.at)
            try:
                value = self.integers[n.id]
            except KeyError:
                return n
            return Num(f"'{value}'" if isinstance(value, str) else str(int(value)), at=n.at)
        n = self._rebuild(n)
        match n:
            case Select(cond=c, a=a, b=b) if c in (TRUE, FALSE):
                return a if c == TRUE else b
            case Logic(op="not", args=(a,)) if a in (TRUE, FALSE):
                return FALSE if a == TRUE else TRUE
            case Logic(op=op, args=args) if op in ("and", "or"):
                decisive, neutral = (FALSE, TRUE) if op == "and" else (TRUE, FALSE)
                if decisive in args:
                    return decisive
                left = tuple(a for a in args if a != neutral)
                return neutral if not left else left[0] if len(left) == 1 else replace(n, args=left)
            case Cmp(left=Num(bits=None), right=Num(bits=None)) if _whole(n.left) and _whole(n.right):
                return TRUE if evaluate(n, {}, Place("")) else FALSE
            case Op(op=op, args=args, format=None) if all(_whole(a) for a in args) and op not in (
                "/",
                "exp",
                "log",
            ):
                if op in ("+", "-", "*", "//", "%", "^", "min", "max", "ceildiv", "ceilpow2", "neg"):
                    value = evaluate(n, {}, Place(""))
                    return (
                        Num(str(value), at=n.at)
                        if int(value) >= 0
                        else Op("neg", (Num(str(-int(value)), at=n.at),), at=n.at)
                    )  # type: ignore[arg-type]
                return n
            case _:
                return n

    def _rebuild(self, n: Node) -> Node:
        from dataclasses import fields

        changes: dict[str, Any] = {}
        for f in fields(n):
            value: Any = getattr(n, f.name)
            if isinstance(value, Node):
                new: Any = self._fold(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                new = tuple(self._fold(x) for x in value)  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
                new = tuple((axis, self._fold(x)) for axis, x in value)  # pyright: ignore[reportUnknownVariableType]
            else:
                continue
            if new != value:
                changes[f.name] = new
        return replace(n, **changes) if changes else n


def _whole(n: Node) -> bool:
    if isinstance(n, Op) and n.op == "neg":
        return _whole(n.args[0])
    return isinstance(n, Num) and n.bits is None and (n.text.isdigit() or n.text.startswith("'"))


__all__ = ["FALSE", "TRUE", "Tree", "bind"]
