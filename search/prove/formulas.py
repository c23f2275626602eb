"""Integer formulas with some names known: folded to what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from specs.errors import Place, SpecError
from specs.grammar import parse_expr
from specs.integers import evaluate
from specs.nodes import Cmp, LevelRule, Logic, Name, Node, Num, Op, Select
from specs.rules import rule_names

Scalar = int | bool | str | float
TRUE, FALSE = Num("true"), Num("false")
_NOWHERE = Place("")
_ARITHMETIC = frozenset({"+", "-", "*", "//", "%", "^", "neg", "min", "max", "abs", "ceildiv", "ceilpow2"})


def literal(value: Scalar) -> Node:
    """A value as a node: ``true``, a word, or a whole number with its sign."""
    if isinstance(value, bool):
        return TRUE if value else FALSE
    if isinstance(value, str):
        return Num(f"'{value}'")
    if isinstance(value, float):
        return Num(repr(value))
    return Num(str(value)) if value >= 0 else Op("neg", (Num(str(-value)),))


def value_of(n: Node) -> Scalar | None:
    """The value of a literal; None if it is none."""
    if isinstance(n, Op) and n.op == "neg":
        inner = value_of(n.args[0])
        return -inner if isinstance(inner, int) and not isinstance(inner, bool) else None
    if not isinstance(n, Num) or n.bits is not None:
        return None
    if n.text in ("true", "false"):
        return n.text == "true"
    if n.text.startswith("'"):
        return n.text.strip("'")
    return int(n.text) if n.text.isdigit() else None


def names_of(text: str) -> set[str]:
    """The names in the text of a formula or of a level rule."""
    from specs.grammar import parse_level

    head = text.split("(", 1)[0].strip()
    node = parse_level(text) if head in ("pieces", "deal", "tiles", "view") else parse_expr(text)
    return {x.id for x in node.walk() if isinstance(x, Name)}


def fold(n: Node, known: Callable[[str], Node | None]) -> Node:
    """``n`` with every name that is known replaced, and what that decides folded away.

    Args:
        n: a formula, a line or a level rule.
        known: what stands for a name; None: it stays.

    A division by zero and a rule without an answer stay as they are: whoever evaluates them meets the error.
    """
    if isinstance(n, Name):
        found = known(n.id)
        return n if found is None else found
    n = _rebuilt(n, known)
    match n:
        case Select(cond=c, a=a, b=b) if value_of(c) is not None:
            return a if value_of(c) else b
        case Select(a=a, b=b) if a == b:
            return a
        case Logic(op="not", args=(a,)) if value_of(a) is not None:
            return literal(not value_of(a))
        case Logic(op=op, args=args) if op in ("and", "or"):
            decisive = op == "or"
            if any(value_of(a) is decisive for a in args):
                return literal(decisive)
            left = tuple(a for a in args if value_of(a) is None)
            return literal(not decisive) if not left else left[0] if len(left) == 1 else replace(n, args=left)
        case Cmp(left=a, right=b) if value_of(a) is not None and value_of(b) is not None:
            return _computed(n)
        case Op(op=op, args=args, format=None) if op in _ARITHMETIC or op in rule_names():
            return _computed(n) if all(value_of(a) is not None for a in args) else n
        case _:
            return n


def _computed(n: Node) -> Node:
    if isinstance(n, Op) and n.op == "neg":
        return n
    try:
        return literal(evaluate(_whole(n), {}, _NOWHERE))
    except SpecError:
        return n


def _whole(n: Node) -> Node:
    """``true`` and ``false`` as 1 and 0, which is what formulas make of them."""
    return fold_literals(n, lambda x: Num("1" if x.text == "true" else "0") if x in (TRUE, FALSE) else x)


def fold_literals(n: Node, change: Callable[[Num], Node]) -> Node:
    """``n`` with its literals changed."""
    if isinstance(n, Num):
        return change(n)
    changes: dict[str, Any] = {}
    for f in fields(n):
        value: Any = getattr(n, f.name)
        if isinstance(value, Node):
            changes[f.name] = fold_literals(value, change)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            changes[f.name] = tuple(fold_literals(x, change) for x in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return replace(n, **changes) if changes else n


def _rebuilt(n: Node, known: Callable[[str], Node | None]) -> Node:
    changes: dict[str, Any] = {}
    for f in fields(n):
        value: Any = getattr(n, f.name)
        if isinstance(value, Node):
            new: Any = fold(value, known)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            new = tuple(fold(x, known) for x in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
            new = tuple((axis, fold(x, known)) for axis, x in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            continue
        if new != value:
            changes[f.name] = new
    return replace(n, **changes) if changes else n


class Lets:
    """The lines of ``[let]`` with some names known, folded when they are asked for.

    Args:
        let: the lines.
        known: values of names of the context and of options.
    """

    def __init__(self, let: Mapping[str, str], known: Mapping[str, Scalar]) -> None:
        self.texts, self.known = dict(let), dict(known)
        self._done: dict[str, Node] = {}
        self._busy: set[str] = set()

    def node(self, name: str) -> Node:
        """A line of ``[let]``, folded.

        Raises:
            SpecError: it depends on itself.
        """
        if name not in self._done:
            if name in self._busy:
                raise SpecError(f"'{name}' depends on itself", remedy="break the cycle in [let]")
            self._busy.add(name)
            self._done[name] = self.fold(parse_expr(self.texts[name]))
            self._busy.discard(name)
        return self._done[name]

    def fold(self, n: Node) -> Node:
        """A formula or level rule; names of ``[let]`` that are not decided stay."""
        return fold(n, self._stands_for)

    def level(self, rule: LevelRule) -> LevelRule:
        """A level rule, folded."""
        found = self.fold(rule)
        assert isinstance(found, LevelRule)
        return found

    def _stands_for(self, name: str) -> Node | None:
        if name in self.texts:
            found = self.node(name)
            return found if value_of(found) is not None else None
        return literal(self.known[name]) if name in self.known else None

    def reached(self, nodes: list[Node]) -> dict[str, Node]:
        """The undecided lines of ``[let]`` that some formulas need, by name."""
        out: dict[str, Node] = {}
        todo = [x.id for n in nodes for x in n.walk() if isinstance(x, Name)]
        while todo:
            name = todo.pop()
            if name in self.texts and name not in out:
                out[name] = self.node(name)
                todo += [x.id for x in out[name].walk() if isinstance(x, Name)]
        return out
