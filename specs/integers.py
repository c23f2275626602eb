"""Integer formulas: exact, bounded, and never Python's `eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specs.context import MAX_INT
from specs.errors import Place, SpecError, did_you_mean
from specs.functions import INTEGER_ONLY
from specs.nodes import Cmp, Logic, Name, Node, Num, Op, Select
from specs.rules import call_rule, rule_names

Scalar = int | str | bool | float
Value = Scalar | tuple[int, ...]
_COMPARE: dict[str, Callable[[Scalar, Scalar], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,  # pyright: ignore[reportOperatorIssue]
    "<=": lambda a, b: a <= b,  # pyright: ignore[reportOperatorIssue]
    ">": lambda a, b: a > b,  # pyright: ignore[reportOperatorIssue]
    ">=": lambda a, b: a >= b,  # pyright: ignore[reportOperatorIssue]
}


def evaluate(node: Node, lookup: Mapping[str, Value] | Callable[[str], Value], place: Place) -> Scalar:
    """The value of an integer formula.

    A list of lengths is no value of its own: only partition rules take it.

    Args:
        node: a parsed formula.
        lookup: values of names, as a mapping or a function that raises KeyError.
        place: where the formula's text begins.

    Raises:
        SpecError: unknown name, division by zero, a value past 2**40, or a construct that is not an integer's.
    """
    get = lookup if callable(lookup) else lookup.__getitem__

    def fail(n: Node, cause: str, remedy: str) -> SpecError:
        at = getattr(n, "at", 0)
        column = place.column + at if place.column else 0
        return SpecError(cause, place=Place(place.file, place.line, column), remedy=remedy)

    def integer(n: Node) -> int:
        value = go(n)
        if isinstance(value, str | float):
            raise fail(n, f"{value!r} is not an integer", "only == and != may compare words")
        return int(value)

    def named(n: Name) -> Value:
        try:
            return get(n.id)
        except KeyError:
            known = list(lookup) if isinstance(lookup, Mapping) else []
            raise fail(n, f"unknown name '{n.id}'", did_you_mean(n.id, known)) from None

    def argument(n: Node) -> int | tuple[int, ...]:
        value = named(n) if isinstance(n, Name) else None
        return value if isinstance(value, tuple) else integer(n)

    def go(n: Node) -> Scalar:
        match n:
            case Num(text="true" | "false"):
                return n.text == "true"
            case Num(text=text):
                if text.startswith("'"):
                    return text.strip("'")
                if n.bits is not None or not text.isdigit():
                    raise fail(n, f"{text} is not an integer", "integer formulas have whole numbers only")
                return bounded(n, int(text))
            case Name(id=name):
                value = named(n)
                if isinstance(value, tuple):
                    raise fail(n, f"{name} is a list, not an integer", "only partition rules take it")
                return value
            case Select(cond=c, a=a, b=b):
                return go(a) if go(c) else go(b)
            case Cmp(op=op, left=left, right=right):
                a, b = go(left), go(right)
                if isinstance(a, str) != isinstance(b, str) or (
                    isinstance(a, str) and op not in ("==", "!=")
                ):
                    raise fail(
                        n, f"cannot compare {a!r} {op} {b!r}", "compare numbers with numbers, words with =="
                    )
                return _COMPARE[op](a, b)
            case Logic(op="not", args=(a,)):
                return not go(a)
            case Logic(op=op, args=args):
                return all(go(a) for a in args) if op == "and" else any(go(a) for a in args)
            case Op(op=op, args=args, format=None) if op in rule_names():
                try:
                    return bounded(n, call_rule(op, tuple(argument(a) for a in args)))
                except SpecError as error:
                    raise fail(n, error.cause, error.remedy) from None
            case Op(op=op, args=args, format=None):
                return bounded(n, apply(n, op, [integer(a) for a in args]))
            case _:
                raise fail(
                    n,
                    f"{type(n).__name__.lower()} is not part of an integer formula",
                    "use + - * // % ^, comparisons, select, min, max, ceildiv and rules",
                )

    def apply(n: Node, op: str, v: list[int]) -> int:
        match op:
            case "+":
                return v[0] + v[1]
            case "-":
                return v[0] - v[1]
            case "*":
                return v[0] * v[1]
            case "//" | "%" | "ceildiv":
                if v[1] == 0:
                    raise fail(n, f"division by zero in {op}", "guard it: max(1, ...)")
                return v[0] // v[1] if op == "//" else v[0] % v[1] if op == "%" else -(-v[0] // v[1])
            case "^":
                return v[0] ^ v[1]
            case "neg":
                return -v[0]
            case "min":
                return min(v)
            case "max":
                return max(v)
            case "abs":
                return abs(v[0])
            case "ceilpow2":
                return 1 if v[0] <= 1 else 1 << (v[0] - 1).bit_length()
            case "/":
                raise fail(n, "'/' does not divide integers", "use // (rounded down) or ceildiv(a, b)")
            case _:
                raise fail(
                    n,
                    f"{op}() is not a function of integers",
                    f"use {', '.join(sorted(INTEGER_ONLY))}, min, max or a rule",
                )

    def bounded(n: Node, value: int) -> int:
        if abs(value) > MAX_INT:
            raise fail(n, f"integer of {value.bit_length()} bits", "values are bounded by 2**40")
        return value

    return go(node)
