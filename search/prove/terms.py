"""Integer formulas as terms of Z3, with bounds from interval arithmetic.

``a // b`` becomes a fresh q with ``a == q * b + r`` and ``0 <= r < b``, which leaves nothing but products; every product and
quotient also gets the bounds that interval arithmetic finds for it, so that nonlinear queries stay easy. A rule (a
loop) becomes a fresh integer that obeys its contract (`search.prove.contracts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from search.prove.contracts import CONTRACTS
from search.prove.domain import RANGES
from search.prove.formulas import value_of
from specs.context import MAX_INT
from specs.errors import UnsupportedError
from specs.nodes import Cmp, Logic, Name, Node, Num, Op, Pos, Select
from specs.rules import rule_names

#: Bounds of an integer.
Range = tuple[int, int]


@dataclass(frozen=True)
class Term:
    """A term of Z3 and, for integers, what it lies between."""

    z3: Any
    range: Range


class Terms:
    """Translates the formulas of one case.

    Args:
        let: undecided lines of ``[let]``, by name.
        ranges: of the unknown integers.
        position: what ``pos(...)`` stands for, in the index of a view.

    Attributes:
        facts: what holds of the fresh integers: definitions, bounds and contracts.
        needs: what must hold for the formulas to have a value, each with words for it.
        rules: rules whose contracts were used.
    """

    def __init__(
        self,
        let: Mapping[str, Node],
        ranges: Mapping[str, Range] = RANGES,
        position: Term | None = None,
    ) -> None:
        import z3

        self.z3 = z3
        self.let, self.ranges, self.position = dict(let), dict(ranges), position
        self.facts: list[Any] = []
        self.needs: list[tuple[str, Any]] = []
        self.rules: set[str] = set()
        self.unknowns: dict[str, Any] = {}
        self._words: dict[str, int] = {}
        self._known: dict[Node, tuple[Any, list[tuple[str, Any]]]] = {}
        self._group: Term | None = None
        self._fresh = 0

    def integer(self, n: Node) -> Term:
        """An integer formula; a condition counts as 1 or 0.

        Raises:
            UnsupportedError: a construct has no encoding.
        """
        found = self.translate(n)
        if isinstance(found, Term):
            return found
        return Term(self.z3.If(found, 1, 0), (0, 1))

    def condition(self, n: Node) -> Any:
        """A condition as a Bool of Z3."""
        found = self.translate(n)
        return found.z3 != 0 if isinstance(found, Term) else found

    def unknown(self, name: str) -> Term:
        """An unknown integer of the context.

        Raises:
            UnsupportedError: it has no range.
        """
        if name not in self.ranges:
            raise UnsupportedError(
                f"'{name}' has no range here", place="formula", remedy=f"fix it: --set {name}=1"
            )
        if name not in self.unknowns:
            self.unknowns[name] = self.z3.Int(name)
            low, high = self.ranges[name]
            self.facts += [self.unknowns[name] >= low, self.unknowns[name] <= high]
        return Term(self.unknowns[name], self.ranges[name])

    def group(self) -> Term:
        """``q_heads // kv_heads``: every KV head serves as many query heads."""
        q, kv = self.unknown("q_heads"), self.unknown("kv_heads")
        if self._group is None:
            self._group = self._new("group", (1, q.range[1]))
            self.facts.append(q.z3 == self._group.z3 * kv.z3)
        return self._group

    def at(self, position: Term) -> Terms:
        """The same unknowns, for the index of a view: ``pos(...)`` is ``position``. What it finds is not shared."""
        other = Terms(self.let, self.ranges, position)
        other.unknowns, other._group, other._known = self.unknowns, self._group, dict(self._known)
        other._fresh = self._fresh + (1 + len(self.facts)) * 10_000
        return other

    def translate(self, n: Node) -> Any:
        """A `Term`, or a Bool of Z3 for a condition."""
        if n not in self._known:
            before = len(self.needs)
            made = self._make(n)
            self._known[n] = made, self.needs[before:]
            return made
        made, needs = self._known[n]  # what it needs, it needs here as well
        self.needs += needs
        return made

    def _make(self, n: Node) -> Any:
        z3 = self.z3
        value = value_of(n)
        if isinstance(value, bool):
            return z3.BoolVal(value)
        if isinstance(value, str):
            code = self._words.setdefault(value, len(self._words))
            return Term(z3.IntVal(code), (code, code))
        if isinstance(value, int):
            return Term(z3.IntVal(value), (value, value))
        match n:
            case Name(id=name) if name in self.let:
                return self.translate(self.let[name])
            case Name(id=name):
                return self.unknown(name)
            case Pos() if self.position is not None:
                return self.position
            case Select(cond=c, a=a, b=b):
                where = self.condition(c)
                x, y = self._guarded(where, a), self._guarded(z3.Not(where), b)
                if not isinstance(x, Term) and not isinstance(y, Term):
                    return z3.If(where, x, y)
                x, y = self._number(x), self._number(y)
                return Term(z3.If(where, x.z3, y.z3), _hull(x.range, y.range))
            case Cmp(op=op, left=left, right=right):
                a, b = self.integer(left).z3, self.integer(right).z3
                return {
                    "==": a == b,
                    "!=": a != b,
                    "<": a < b,
                    "<=": a <= b,
                    ">": a > b,
                    ">=": a >= b,
                }[op]
            case Logic(op="not", args=(a,)):
                return z3.Not(self.condition(a))
            case Logic(op=op, args=args):
                return (z3.And if op == "and" else z3.Or)([self.condition(a) for a in args])
            case Op(op="//", args=(Name(id="q_heads"), Name(id="kv_heads"))):
                return self.group()
            case Op(op=op, args=args) if op in rule_names():
                return self._rule(op, args)
            case Op(op=op, args=args, format=None):
                return self._operation(op, [self.integer(a) for a in args])
            case Num() | _:
                raise UnsupportedError(
                    f"{type(n).__name__.lower()} has no encoding here",
                    place="formula",
                    remedy="test it instead",
                )

    def _number(self, x: Any) -> Term:
        return x if isinstance(x, Term) else Term(self.z3.If(x, 1, 0), (0, 1))

    def _guarded(self, where: Any, n: Node) -> Any:
        """A branch: what it needs, it needs only where it is taken."""
        before = len(self.needs)
        found = self.translate(n)
        self.needs[before:] = [(text, self.z3.Implies(where, need)) for text, need in self.needs[before:]]
        return found

    def _operation(self, op: str, v: list[Term]) -> Term:
        z3 = self.z3
        a = v[0]
        b = v[1] if len(v) > 1 else v[0]
        match op:
            case "+":
                return Term(a.z3 + b.z3, (a.range[0] + b.range[0], a.range[1] + b.range[1]))
            case "-":
                return Term(a.z3 - b.z3, (a.range[0] - b.range[1], a.range[1] - b.range[0]))
            case "neg":
                return Term(-a.z3, (-a.range[1], -a.range[0]))
            case "*":
                return self._product(a, b)
            case "min" | "max":
                pick = min if op == "min" else max
                total = a
                for x in v[1:]:
                    first = total.z3 <= x.z3 if op == "min" else total.z3 >= x.z3
                    ends = (pick(total.range[0], x.range[0]), pick(total.range[1], x.range[1]))
                    total = Term(z3.If(first, total.z3, x.z3), ends)
                return total
            case "abs":
                most = max(abs(a.range[0]), abs(a.range[1]))
                return Term(z3.If(a.z3 >= 0, a.z3, -a.z3), (0, most))
            case "//" | "%" | "ceildiv":
                return self._divided(op, a, b)
            case "ceilpow2" if a.range[1] <= MAX_INT:
                found, size = z3.IntVal(1), 1
                while size < max(1, a.range[1]):
                    found, size = z3.If(a.z3 > size, 2 * size, found), 2 * size
                return Term(found, (1, size))
            case _:
                raise UnsupportedError(
                    f"'{op}' has no encoding here", place="formula", remedy="test it instead"
                )

    def _product(self, a: Term, b: Term) -> Term:
        corners = [x * y for x in a.range for y in b.range]
        ends = min(corners), max(corners)
        self.needs.append(("a value past 2**40", self._inside(a.z3 * b.z3, ends)))
        found = Term(a.z3 * b.z3, ends)
        if a.range[0] != a.range[1] and b.range[0] != b.range[1]:
            self.facts += [found.z3 >= ends[0], found.z3 <= ends[1]]
            if a.range[0] >= 0 and b.range[0] >= 1:  # a factor of at least 1 makes nothing smaller
                self.facts.append(found.z3 >= a.z3)
            if b.range[0] >= 0 and a.range[0] >= 1:
                self.facts.append(found.z3 >= b.z3)
        return found

    def _inside(self, x: Any, ends: Range) -> Any:
        if ends[0] >= -MAX_INT and ends[1] <= MAX_INT:
            return self.z3.BoolVal(True)
        return self.z3.And(x <= MAX_INT, x >= -MAX_INT)

    def _divided(self, op: str, a: Term, b: Term) -> Term:
        z3 = self.z3
        if b.range[0] < 1:
            self.needs.append((f"a division by zero in {op}", b.z3 > 0))
        low, high = max(1, b.range[0]), max(1, b.range[1])
        if op == "ceildiv":
            top = a.range[1] + high - 1
            numerator = Term(a.z3 + b.z3 - 1, (a.range[0] + low - 1, top))
            tight = max(-(-x // y) for x in a.range for y in (low, high))
        else:
            numerator, tight = a, max(x // y for x in a.range for y in (low, high))
        least = min(x // y for x in numerator.range for y in (low, high))
        q = self._new("q", (least, max(tight, least)))
        r = self._new("r", (0, high - 1))
        # Where the divisor is not positive the formula has no value, which `needs` refuses.
        self.facts.append(z3.Implies(b.z3 > 0, z3.And(numerator.z3 == q.z3 * b.z3 + r.z3, r.z3 < b.z3)))
        return r if op == "%" else q

    def _new(self, name: str, ends: Range) -> Term:
        self._fresh += 1
        x = self.z3.Int(f"{name}!{self._fresh}")
        self.facts += [x >= ends[0], x <= ends[1]]
        return Term(x, ends)

    def _rule(self, op: str, args: tuple[Node, ...]) -> Term:
        contract = CONTRACTS.get(op)
        if contract is None:
            raise UnsupportedError(
                f"nothing is known of the rule {op}", place="formula", remedy="its results were not checked"
            )
        self.rules.add(op)
        given = [None if isinstance(a, Name) and a.id == "kv_lens" else self.integer(a) for a in args]
        if any(isinstance(a, Name) and a.id == "kv_lens" for a in args):
            self.unknown("kv_len")
        numbers: list[Any] = [None if g is None else g.z3 for g in given]
        upper = contract.most([None if g is None else g.range[1] for g in given])
        found = self._new(op, (contract.least, upper))
        self.facts += contract.facts(found.z3, numbers)
        for place in contract.from_one:
            one = given[place]
            if one is not None and one.range[0] < 1:
                self.needs.append((f"{op}() without an answer", one.z3 >= 1))
        return found


def _hull(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def model_of(solver: Any, terms: Terms) -> dict[str, int]:
    """The unknown integers in a model of Z3; those that it does not mention are at their least."""
    model = solver.model()
    read: Callable[[Any], int] = lambda x: int(model.eval(x, model_completion=True).as_long())  # noqa: E731
    return {name: read(x) for name, x in terms.unknowns.items()}
