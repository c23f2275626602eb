"""Bind a spec to a context: apply its variants, evaluate its integers, fold what is known, infer the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from specs.bounds import check_bounds
from specs.context import INPUT_FORMATS, LENGTHS, batch_lengths
from specs.dot_products import DotProduct
from specs.errors import Place, SpecError, UnsupportedError, did_you_mean
from specs.formats import Format
from specs.grammar import parse_expr, parse_level
from specs.infer import infer
from specs.integers import Scalar, Value, evaluate
from specs.nodes import Cmp, LevelRule, Logic, Name, Node, Num, Op, Select
from specs.program import CONSTANTS, ROW, TOKEN, Level, Program, View
from specs.states import Line

if TYPE_CHECKING:
    from specs.loader import Spec

TRUE, FALSE = Num("true"), Num("false")
MAX_VIEW = 4096
_FOLDED = frozenset({"+", "-", "*", "//", "%", "^", "min", "max", "ceildiv", "ceilpow2", "neg"})
_ANY = LevelRule("tiles", (Num("1"),))


def bind(
    spec: Spec,
    context: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    formats: Mapping[str, Format] | None = None,
    dot_products: tuple[DotProduct, ...] = (),
) -> Program:
    """The typed program of ``spec`` in ``context``.

    Args:
        spec: a loaded spec.
        context: every name of `specs.context.CONTEXT` with its value (`make_context`).
        options: values for names of the spec's ``[options]``.
        formats: formats in which inputs come, where they differ from those that the spec declares.
        dot_products: the platform's, for ``mma`` trees.

    Raises:
        SpecError: with file:line:column where a line of the spec is at fault.
        UnsupportedError: the kernel does not take this shape, platform or input (``[[require]]``).
    """
    try:
        program = _bind(spec, context, options, formats or {})
        return replace(program, dot_products=dot_products)
    except RecursionError:
        raise SpecError(
            f"lines of {spec.name} refer to each other too deeply",
            place=spec.origin,
            remedy="write a line after the lines that it uses, and shorten the chain",
        ) from None


def integers(
    spec: Spec, context: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Scalar]:
    """The values of ``[let]`` in ``context``, after variants and requirements; no line is typed.

    Raises:
        as `bind`.
    """
    applied, known = _applied(spec, context, _options(spec, options or {}), {})
    return {name: known.let(name) for name in applied.file.let}


def applied(
    spec: Spec,
    context: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    formats: Mapping[str, Format] | None = None,
) -> tuple[Spec, dict[str, Scalar]]:
    """``spec`` with the variants that hold in ``context`` laid over it, and the values of its ``[let]``.

    Raises:
        as `bind`, whose arguments these are.
    """
    laid, known = _applied(spec, context, _options(spec, options or {}), formats or {})
    return laid, {name: known.let(name) for name in laid.file.let}


def _applied(
    spec: Spec, context: Mapping[str, Any], options: Mapping[str, Any], formats: Mapping[str, Format]
) -> tuple[Spec, _Integers]:
    """The spec with its variants laid over it, and its integers."""
    numbers = spec.file.numbers
    if numbers is None:
        raise SpecError(
            f"{spec.name} has no [numbers]",
            place=spec.place("numbers", ""),
            remedy="say compute = and inputs =",
        )
    words = {word: formats.get(word[0], numbers.input_format(word[0])).base for word in INPUT_FORMATS}
    known = {**context, LENGTHS: batch_lengths(context), **words, **options}
    found = _Integers(known, spec)
    _require(spec, found, of_let=False)
    for number, variant in enumerate(spec.file.variants):
        if _condition(found, variant.when, spec.place(f"variant.{number}", "when")):
            spec = spec.with_variant(number)
            if variant.let or variant.drop:
                found = _Integers(known, spec)
    _require(spec, found, of_let=True)
    return spec, found


def _bind(
    spec: Spec,
    context: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    formats: Mapping[str, Format],
) -> Program:
    options = _options(spec, options or {})
    spec, integers = _applied(spec, context, options, formats)
    numbers = spec.numbers
    inputs = {name: numbers.input_format(name) for name in ("q", "k", "v")} | dict(formats)
    resolver = _Resolver(integers, options, set(spec.file.constants))
    levels: list[Level] = []
    views: dict[str, View] = {}
    for name, text in spec.levels.items():
        place = spec.place("levels", name)
        rule = parse_level(text, place)
        if rule.kind == "view":
            views[name] = resolver.view(name, rule, place)
        else:
            levels.append(Level(name, resolver.level(rule, place)))

    def resolved(section: str, table: str, entries: Mapping[str, str]) -> list[Line]:
        places = {name: spec.place(table, name) for name in entries}
        return [(section, n, resolver.expression(text, places[n]), places[n]) for n, text in entries.items()]

    sections = (TOKEN, *(level.name for level in reversed(levels)), ROW)
    lines = resolved(CONSTANTS, CONSTANTS, spec.file.constants)
    for section in sections:
        lines += resolved(section, section, spec.sections.get(section, {}))
    for section, table in spec.sections.items():
        if section not in sections and table:
            place = spec.place(section, next(iter(table)))
            raise SpecError(
                f"section [{section}] is neither token, row nor a level",
                place=Place(place.file, place.line),
                remedy=did_you_mean(section, sections),
            )
    starts = [x for scope, table in spec.file.state.items() for x in resolved(scope, f"state.{scope}", table)]
    typed = _typed(
        spec.name,
        numbers.compute_format,
        tuple(inputs.items()),
        tuple(levels if views else (Level(level.name, _ANY) for level in levels)),
        tuple(views.items()),
        tuple(lines),
        tuple(starts),
    )
    _check_faults(spec, typed)
    shown = {**options, **{n: integers.let(n) for n in spec.file.let}}
    return replace(typed, levels=tuple(levels), integers=shown)


def _require(spec: Spec, integers: _Integers, *, of_let: bool) -> None:
    """Refuse a shape, platform or input that the kernel does not take.

    Requirements of integers in ``[let]`` come after the others: there a formula may have no value for a shape that the
    others refuse, and variants change it.
    """
    for n, require in enumerate(spec.file.requires):
        place = spec.place(f"require.{n}", "that")
        names = dict.fromkeys(x.id for x in parse_expr(require.that, place).walk() if isinstance(x, Name))
        if any(name in spec.file.let for name in names) != of_let:
            continue
        if _condition(integers, require.that, place):
            continue
        found = ", ".join(f"{name} = {integers[name]}" for name in names if name in integers)
        raise UnsupportedError(f"{spec.name} does not take {found}", place=place, remedy=require.message)


def _condition(integers: _Integers, text: str, place: Place) -> bool:
    """The value of a condition of the shape; a number or a word is none."""
    value = integers.evaluate(text, place)
    if not isinstance(value, bool):
        raise SpecError(
            f"{value!r} where a condition is needed", place=place, remedy="compare it, as in kv_len > 0"
        )
    return value


def _check_faults(spec: Spec, typed: Program) -> None:
    for name in spec.file.faults:
        site = typed.sites.get(name)
        if site is not None and site.type.kind != "bool":
            raise SpecError(
                f"faults: line '{name}' is no condition but a {site.type.kind}",
                place=spec.place("faults", name),
                remedy="name a line that compares something, as in l == 0",
            )


@lru_cache(maxsize=512)
def _typed(
    name: str,
    compute: Format,
    inputs: tuple[tuple[str, Format], ...],
    levels: tuple[Level, ...],
    views: tuple[tuple[str, View], ...],
    lines: tuple[Line, ...],
    starts: tuple[Line, ...],
) -> Program:
    """Types do not depend on the sizes of levels, so lengths share them."""
    blank = Program(name, compute, dict(inputs), levels, dict(views), states={}, sites={})
    return infer(blank, list(lines), list(starts))


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


class _Integers(Mapping[str, Value]):
    """Values of the context and, lazily and in any order, of ``[let]``."""

    def __init__(self, known: Mapping[str, Value], spec: Spec) -> None:
        self._known = dict(known)
        self._spec = spec
        self._let = spec.file.let
        self._busy: set[str] = set()
        self._done: dict[str, Scalar] = {}

    def evaluate(self, text: str, place: Place) -> Scalar:
        return evaluate(parse_expr(text, place), self, place)

    def let(self, name: str) -> Scalar:
        """The value of a line of ``[let]``."""
        if name in self._done:
            return self._done[name]
        place = self._spec.place("let", name)
        if name in self._busy:
            raise SpecError(f"'{name}' depends on itself", place=place, remedy="break the cycle in [let]")
        self._busy.add(name)
        try:
            self._done[name] = self.evaluate(self._let[name], place)
            return self._done[name]
        finally:
            self._busy.discard(name)

    def __getitem__(self, name: str) -> Value:
        return self.let(name) if name in self._let else self._known[name]

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
            bound = self._fold(parse_expr(text, place))
            check_bounds(bound, place)
            return bound
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
        whole = {"of": number(rule.of, 0), "skip": number(rule.skip, 0)}
        return replace(rule, args=(count,), unit=number(rule.unit, 1), **whole)

    def view(self, name: str, rule: LevelRule, place: Place) -> View:
        from specs.nodes import Pos

        size = evaluate(rule.args[0], self.integers, place)
        index = self._fold(rule.args[1])
        check_bounds(index, place)
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
        if size < (0 if self.integers["kv_len"] == 0 else 1):
            raise SpecError(
                f"view '{name}' has {size} colours; at least 1 is needed",
                place=place,
                remedy="guard the formula, as in max(1, ...)",
            )
        return View(name, max(1, int(size)), axes.pop(), index, place)

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
            if isinstance(value, tuple):
                raise SpecError(
                    f"{n.id} is a list, not a value", remedy="give it to a partition rule in [let]"
                )
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
            case Op(op=op, args=args, format=None) if op in _FOLDED and all(_whole(a) for a in args):
                value = int(evaluate(n, {}, Place("")))
                number = Num(str(abs(value)), at=n.at)
                return number if value >= 0 else Op("neg", (number,), at=n.at)
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
