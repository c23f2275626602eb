"""A spec on a platform as what is left of it for every shape: folded formulas and lines, and what the machine adds.

Two sides whose forms are equal run one program, whatever the shape and the input: the same levels with the same
arguments, the same lines, the same tensor cores and special functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from search.prove.formulas import Lets, Scalar, literal, value_of
from search.sides import Side
from search.tape import APPROXIMATE
from specs.context import INPUT_FORMATS
from specs.grammar import parse_expr, parse_level
from specs.names import TENSOR_FORMATS, is_mma
from specs.nodes import Cast, Name, Node, Op, Reduce, Tree
from specs.schema import Lines

#: What a line is called: where it stands and its name.
Key = tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """What is left of one side.

    Attributes:
        lines: every line, level, state, requirement and condition that can matter, folded, by where it stands.
        dots: the tensor-core arithmetic of the instructions and formats that it can use.
        functions: special functions of the hardware that its lines call.
        unit: the platform's model of them, where there are any.
        refuses: a requirement that no shape meets.
    """

    lines: Mapping[Key, Node]
    dots: tuple[str, ...]
    functions: frozenset[str]
    unit: str
    refuses: str = ""


def form(side: Side, known: Mapping[str, Scalar] | None = None, without: str = "") -> Form:
    """The form of a side.

    Args:
        side: spec, platform, options and what is set for it.
        known: names of the context that are known besides, such as ``q_format``.
        without: a name of the platform that is left open, to see where it enters.
    """
    file = side.spec.file
    values: dict[str, Scalar] = {
        **side.platform.context,
        **file.options,
        **side.options,
        **side.context,
        **(known or {}),
    }
    if without:
        values.pop(without, None)
    live: list[tuple[str, Lines, Node]] = []
    replaced: set[str] = (
        set()
    )  # lines of [let] that an earlier variant may have changed: they have no value of their own
    for number, variant in enumerate(file.variants):
        when = _Open(file.let, values, replaced).fold(parse_expr(variant.when))
        if value_of(when) is not False:
            live.append((f"variant {number + 1}", variant, when))
            replaced |= {*variant.let, *variant.drop}
    lets = _Open(file.let, values, replaced)
    lines: dict[Key, Node] = {("numbers",): literal(str(file.numbers))}
    refuses = ""
    for i, require in enumerate(file.requires):
        folded = lets.fold(parse_expr(require.that))
        if value_of(folded) is not True:
            lines["require", str(i)] = folded
        if value_of(folded) is False:
            refuses = refuses or require.message
    for where, table, when in [("", file, literal(True)), *live]:
        inner = _Open({**file.let, **table.let}, values, replaced) if where else lets
        if where:
            lines[where, "when"] = when
            lines[where, "drop"] = literal(" ".join(table.drop))
        for n, text in table.levels.items():
            lines[where, "level", n] = inner.level(parse_level(text))
        tables: dict[str, Mapping[str, str]] = {"constants": table.constants, **table.sections}
        tables |= {f"state.{scope}": entries for scope, entries in table.state.items()}
        for section, entries in tables.items():
            for n, text in entries.items():
                lines[where, section, n] = inner.fold(parse_expr(text))
        for n in table.let if where else ():
            lines[where, "let", n] = inner.node(n)
    nodes = list(lines.values())
    for n, node in lets.reached(nodes).items():
        lines["", "let", n] = node
    return _with_machine(side, values, lines, refuses)


class _Open(Lets):
    """Lines of ``[let]``, some of which stand for no value."""

    def __init__(self, let: Mapping[str, str], known: Mapping[str, Scalar], unsettled: set[str]) -> None:
        super().__init__(let, known)
        self.unsettled = unsettled

    def _stands_for(self, name: str) -> Node | None:
        return None if name in self.unsettled and name in self.texts else super()._stands_for(name)


def _with_machine(side: Side, values: Mapping[str, Any], lines: dict[Key, Node], refuses: str) -> Form:
    every = [x for n in lines.values() for x in n.walk()]
    instructions = {x.instruction for x in every if isinstance(x, Tree) and is_mma(x)}
    formats = {x.format.base for x in every if isinstance(x, Cast | Op | Reduce) and x.format is not None}
    for word in INPUT_FORMATS:
        letter = word[0]
        accepted = [side.spec.numbers.input_format(letter).base, *getattr(side.spec.numbers.accepts, letter)]
        formats |= {str(values[word])} if word in values else set(accepted)
    used = sorted(
        str(d.model_dump(exclude={"evidence"}))
        for d in side.platform.dot_products
        if d.instruction in instructions and formats & set(d.inputs) & set(TENSOR_FORMATS)
    )
    functions = frozenset(x.op for x in every if isinstance(x, Op) and x.op in APPROXIMATE)
    return Form(lines, tuple(used), functions, side.platform.special_functions if functions else "", refuses)


def difference(a: Form, b: Form) -> str:
    """What two forms do not share, in words; nothing if they are equal."""
    keys = [k for k in {**a.lines, **b.lines} if a.lines.get(k) != b.lines.get(k)]
    if keys:
        names = ", ".join(_place(k) for k in keys[:4]) + (
            f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        )
        return f"{names} differ{'s' if len(keys) == 1 else ''}"
    if a.dots != b.dots:
        return "the tensor cores that it uses compute otherwise"
    if a.unit != b.unit:
        return "the special functions are others"
    return ""


def _place(key: Key) -> str:
    return " ".join(part for part in key if part)


def entering(side: Side, known: Mapping[str, Scalar] | None = None) -> dict[str, list[str]]:
    """The names of the platform that enter a side's form, each with the lines where."""
    found: dict[str, list[str]] = {}
    for name in side.platform.context:
        opened = form(side, known, without=name)
        where = [_place(k) for k, n in opened.lines.items() if _mentions(n.walk(), name)]
        if where:
            found[name] = where
    return found


def _mentions(nodes: Iterable[Node], name: str) -> bool:
    return any(isinstance(x, Name) and x.id == name for x in nodes)
