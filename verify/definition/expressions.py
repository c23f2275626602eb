"""Expressions to closures: one function of the index for every node of a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

from specs.errors import InputError, Place, SpecError, UlpscopeError, UnsupportedError
from specs.formats import BASES, Format
from specs.names import HEAD_SCALARS, INDICES, SCALARS, constant
from specs.nodes import At, Cast, Cmp, Last, Logic, Name, Node, Num, Op, Owns, Pos, Prev, Reduce, Select
from specs.program import CONSTANTS, DEPTH, DIM, TOKEN, Site
from verify.definition import folds, reductions
from verify.definition.arithmetic import COMPARISONS
from verify.definition.layout import Index, Read, tuple_getter
from verify.numerics.rounding import round_fraction

if TYPE_CHECKING:
    from verify.definition.walker import Walker

#: A float expression: its closure, and a format that holds all of its values.
Float = tuple[Read, Format]

_INTEGER: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "^": lambda a, b: a ^ b,
    "neg": lambda a: -a,
    "min": min,
    "max": max,
    "abs": lambda a: a if a >= 0 else -a,
    "ceildiv": lambda a, b: -(-a // b),
    "ceilpow2": lambda a: 1 if a <= 1 else 1 << (a - 1).bit_length(),
}


class Line:
    """Turns the expression of one line into closures."""

    def __init__(self, walker: Walker, section: str, place: Place) -> None:
        self.walker, self.layout, self.program = walker, walker.layout, walker.program
        self.arithmetic = walker.arithmetic
        self.section, self.place = section, place
        self.format = BASES["f64"] if section == CONSTANTS else self.program.compute
        self.it: Format = self.format

    def compile(self, site: Site) -> Read:
        """The reader of the line of ``site``, not memoised."""
        match site.type.kind:
            case "bool":
                return self.condition(site.expr)
            case "int":
                return self.integer(site.expr)
            case _:
                return self.number(site.expr)[0]

    def elsewhere(self, section: str, place: Place) -> Line:
        """A line of another section."""
        return Line(self.walker, section, place)

    # -- errors -------------------------------------------------------------------------------------------

    def located(self, n: Node, error: UlpscopeError) -> UlpscopeError:
        """``error`` with the place of ``n``, unless it has one."""
        column = self.place.column + getattr(n, "at", 0) if self.place.column else 0
        place = Place(self.place.file, self.place.line, column)
        return error if error.place else type(error)(error.cause, place=place, remedy=error.remedy)

    def refuse(self, n: Node, cause: str, remedy: str) -> NoReturn:
        """Raise an `UnsupportedError` at ``n``."""
        raise self.located(n, UnsupportedError(cause, remedy=remedy))

    def ask(self, n: Node, method: Callable[..., Any], *args: Any) -> Any:
        """Ask the arithmetic; its refusal gets the place of ``n``."""
        try:
            return method(*args)
        except (UnsupportedError, SpecError) as error:
            raise self.located(n, error) from None

    # -- kinds --------------------------------------------------------------------------------------------

    def kind(self, n: Node) -> str:
        """``float``, ``int`` or ``bool``, as inference found it."""
        if isinstance(n, Num):
            return (
                "bool"
                if n.text in ("true", "false")
                else "int"
                if n.bits is None and n.text.isdigit()
                else "float"
            )
        if isinstance(n, Name) and n.id in self.program.sites:
            return self.program.sites[n.id].type.kind
        if isinstance(n, Name) and n.id in INDICES:
            return "int"
        return self.program.types[n].kind

    # -- integers and conditions --------------------------------------------------------------------------

    def integer(self, n: Node) -> Read:
        """An integer expression."""
        match n:
            case Num(text=text):
                literal = int(text)
                return lambda index: literal
            case Name(id="query_index"):
                query = self.walker.inputs.query
                return lambda index: query
            case Name(id="key_index"):
                return self._key_index()
            case Name(id=name):
                return self.walker.read(name)
            case Pos(axis=axis):
                return itemgetter(self.layout.slot[axis])
            case Op(op=op, args=args):
                apply, parts = _INTEGER[op], [self.integer(a) for a in args]
                return lambda index: apply(*(p(index) for p in parts))
            case Select(cond=c, a=a, b=b):
                return self._select(c, self.integer(a), self.integer(b))
            case At():
                return self._gather(n, self.integer(n.arg))
            case _:
                self.refuse(
                    n,
                    f"{type(n).__name__.lower()} of integers is not evaluated",
                    "use + - * // % ^ and select",
                )

    def condition(self, n: Node) -> Read:
        """A condition: a Python bool, or what the arithmetic cannot decide."""
        match n:
            case Num(text=text):
                literal = text == "true"
                return lambda index: literal
            case Name(id="visible"):
                return self._visible()
            case Name(id=name):
                return self.walker.read(name)
            case Owns(level=level):
                owns = self.layout.owns
                return lambda index: owns(level, index)
            case Cmp(op=op, left=left, right=right):
                if self.kind(left) == self.kind(right) == "int":
                    compare, a, b = COMPARISONS[op], self.integer(left), self.integer(right)
                else:
                    compare, a, b = self.arithmetic.compare(op), self.number(left)[0], self.number(right)[0]
                return lambda index: self.ask(n, compare, a(index), b(index))
            case Op(op="isnan", args=(arg,)):
                x, is_nan = self.number(arg)[0], self.arithmetic.is_nan
                return lambda index: is_nan(x(index))
            case Logic(op=op, args=args):
                return self._logic(op, [self.condition(a) for a in args])
            case Select(cond=c, a=a, b=b):
                return self._select(c, self.condition(a), self.condition(b))
            case At():
                return self._gather(n, self.condition(n.arg))
            case Reduce(kind="any"):
                return reductions.any_(self, n)
            case _:
                self.refuse(n, f"{type(n).__name__.lower()} is no condition", "use comparisons, and, or, not")

    def _visible(self) -> Read:
        see = self.walker.inputs.visible
        if see is None:
            return lambda index: True
        tokens, nest = self.layout.tokens, tuple_getter(self.layout.slots(self.layout.around(TOKEN)))
        return lambda index: bool(see(tokens.item(*nest(index))))

    def _key_index(self) -> Read:
        tokens, nest = self.layout.tokens, tuple_getter(self.layout.slots(self.layout.around(TOKEN)))
        return lambda index: tokens.item(*nest(index))

    def _logic(self, op: str, parts: list[Read]) -> Read:
        logic = self.arithmetic.logic
        if op == "not":
            inner = parts[0]

            def negate(index: Index) -> Any:
                c = inner(index)
                return not c if isinstance(c, bool) else logic("not", [c])

            return negate
        decisive = op == "or"

        def join(index: Index) -> Any:
            open_: list[Any] = []
            for part in parts:
                c = part(index)
                if not isinstance(c, bool):
                    open_.append(c)
                elif c is decisive:
                    return decisive
            return logic(op, open_) if open_ else not decisive

        return join

    def _select(self, cond: Node, a: Read, b: Read) -> Read:
        condition, choose = self.condition(cond), self.arithmetic.choose

        def select(index: Index) -> Any:
            c = condition(index)
            if isinstance(c, bool):
                return a(index) if c else b(index)
            return choose(c, a(index), b(index))

        return select

    # -- numbers ------------------------------------------------------------------------------------------

    def number(self, n: Node) -> Float:
        """A float expression and a format that holds its values."""
        match n:
            case Num():
                return self._literal(n)
            case Name():
                return self._name(n)
            case Op(op=op, args=args, format=fmt):
                if self.kind(n) == "int":
                    whole = self.integer(n)
                    return lambda index: self.arithmetic.number(
                        Fraction(whole(index)), self.format
                    ), self.format
                return self._operation(n, op, [self.number(a) for a in args], fmt or self.format)
            case Cast(format=fmt, arg=arg) if self.kind(arg) == "int" and not constant(arg):
                whole, number = self.integer(arg), self.arithmetic.number
                return lambda index: self.ask(n, number, Fraction(whole(index)), fmt), fmt
            case Cast(format=fmt, arg=arg):
                x, source = self.number(arg)
                cast = self.ask(n, self.arithmetic.cast, source, fmt)
                return lambda index: cast(x(index)), fmt
            case Select(cond=c, a=a, b=b):
                (x, f), (y, g) = self.number(a), self.number(b)
                return self._select(c, x, y), self.join(f, g)
            case Prev():
                return folds.prev(self, n)
            case Last():
                return folds.last(self, n)
            case At():
                x, fmt = self.number(n.arg)
                return self._gather(n, x), fmt
            case Reduce(kind="max"):
                return reductions.maximum(self, n)
            case Reduce():
                return reductions.total(self, n)
            case _:
                self.refuse(
                    n, f"{type(n).__name__.lower()} is no number", "see the grammar in docs/language.md"
                )

    def join(self, *formats: Format) -> Format:
        """One of ``formats``, or f64, that holds the values of all."""
        return next((f for f in formats if all(f.holds(g) for g in formats)), BASES["f64"])

    def format_of(self, n: Node) -> Format:
        """The format that inference found for a float expression."""
        if isinstance(n, Name) and n.id in self.program.sites:
            return self.program.sites[n.id].type.format or self.format
        return self.program.types[n].format or self.format

    def literal(self, n: Node, fmt: Format) -> Float:
        """A literal as a value of ``fmt``, which must hold it.

        Raises:
            SpecError: ``fmt`` does not hold it.
        """
        exact, sign = n, 1
        while isinstance(exact, Op):
            exact, sign = exact.args[0], -sign
        if not isinstance(exact, Num) or exact.bits is not None:
            self.refuse(n, "a bit pattern where a tensor core reads a number", "write a decimal number")
        value = sign * Fraction(exact.text)
        if round_fraction(value, fmt) != value:
            raise self.located(n, SpecError(f"{exact.text} is no value of {fmt}", remedy="name it as a site"))
        return self._constant(self.ask(n, self.arithmetic.number, value, fmt), fmt)

    def _constant(self, value: Any, fmt: Format) -> Float:
        return lambda index: value, fmt

    def _literal(self, n: Num) -> Float:
        if n.bits is not None:
            return self._constant(
                self.ask(n, self.arithmetic.pattern, n.bits, self.program.compute), self.program.compute
            )
        return self._constant(self.ask(n, self.arithmetic.number, Fraction(n.text), self.format), self.format)

    def _name(self, n: Name) -> Float:
        name, inputs = n.id, self.walker.inputs
        if name == "it":
            return itemgetter(self.walker.it), self.it
        if name in self.program.sites:
            return self._site(n)
        if name in ("inf", "nan"):
            return self._constant(self.ask(n, self.arithmetic.special, float(name), self.format), self.format)
        if name in SCALARS or name in HEAD_SCALARS:
            if name not in inputs.scalars:
                raise self.located(
                    n, InputError(f"the scalar '{name}' is not given", remedy="add it to RowInputs.scalars")
                )
            given = inputs.scalars[name]
            if math.isinf(given):
                return self._constant(self.ask(n, self.arithmetic.special, given, self.format), self.format)
            return self._constant(
                self.ask(n, self.arithmetic.number, Fraction(given), self.format), self.format
            )
        array = {"q": inputs.q, "k": inputs.k, "v": inputs.v}[name]
        if array is None:
            raise self.located(
                n,
                InputError(
                    f"the input '{name}' is not given", remedy=f"give {name}, or feed the site that reads it"
                ),
            )
        item, lift, tokens = array.item, self.arithmetic.lift, self.layout.tokens
        element = self.layout.slot[DIM if name == "v" else DEPTH]
        fmt = self.program.inputs[name]
        if name == "q":
            return lambda index: lift(item(index[element])), fmt
        nest = tuple_getter(self.layout.slots(self.layout.around(TOKEN)))
        return lambda index: lift(item(tokens.item(*nest(index)), index[element])), fmt

    def _site(self, n: Name) -> Float:
        site = self.program.sites[n.id]
        read, fmt = self.walker.read(n.id), site.type.format or self.format
        if site.type.kind != "float":
            self.refuse(n, f"'{n.id}' is no number", "compare it, or select by it")
        if site.section == CONSTANTS and self.section != CONSTANTS and not self.format.holds(fmt):
            # A constant of f64 is rounded where it enters the arithmetic of the kernel.
            cast, constant = self.ask(n, self.arithmetic.cast, fmt, self.format), read
            return lambda index: cast(constant(index)), self.format
        return read, fmt

    def _operation(self, n: Op, op: str, parts: list[Float], fmt: Format) -> Float:
        formats = [f for _, f in parts]
        apply = self.ask(n, self.arithmetic.operation, op, formats, fmt)
        if op in ("neg", "abs", "min", "max"):
            fmt = self.join(*formats)
        match [read for read, _ in parts]:
            case [x]:
                return lambda index: apply(x(index)), fmt
            case [x, y]:
                return lambda index: apply(x(index), y(index)), fmt
            case reads:
                return lambda index: apply(*[r(index) for r in reads]), fmt

    def _gather(self, n: At, arg: Read) -> Read:
        moves = [(self.layout.slot[axis], self.integer(i)) for axis, i in n.moves]
        axes, exists = self.program.types[n.arg].axes, self.layout.exists

        def gather(index: Index) -> Any:
            there = index.copy()
            for slot, i in moves:
                there[slot] = i(index)
            if not exists(axes, there):
                where = ", ".join(f"{axis}={there[self.layout.slot[axis]]}" for axis, _ in n.moves)
                raise self.located(
                    n,
                    SpecError(
                        f"at({where}) reads where no value stands",
                        remedy="keep empty pieces (empty=keep), or guard the index",
                    ),
                )
            return arg(there)

        return gather
