"""The fifteen nodes of the language: what an expression may be, and nothing else.

Every node is frozen and hashable. ``at`` is the column offset in the text of the line (for messages); it
takes no part in equality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from specs.formats import Format


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all nodes."""

    def children(self) -> Iterator[Node]:
        """The nodes directly below this one, in the order of the text."""
        for name in _names(type(self)):
            value: Any = getattr(self, name)
            if isinstance(value, Node):
                yield value
            elif isinstance(value, tuple):
                for item in value:  # pyright: ignore[reportUnknownVariableType]
                    if isinstance(item, Node):
                        yield item
                    elif isinstance(item, tuple):
                        yield from (x for x in item if isinstance(x, Node))

    def walk(self) -> Iterator[Node]:
        """This node and every node below it, in the order of the text."""
        left: list[Node] = [self]
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(tuple(node.children())))


@cache
def _names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


_AT: Any = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Num(Node):
    """A literal. ``text`` is what was written; a decimal is rounded once to the format of its context.

    ``bits`` is set by ``bits(0x...)``: the pattern of a number in the compute format.
    """

    text: str
    bits: int | None = None
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A site, state, input, option, constant, integer of ``[let]``, shape or platform name."""

    id: str
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Op(Node):
    """One operation with one rounding: ``+ - * / neg`` or a named function (``fma``, ``exp``, ...).

    ``format`` is the format of the rounding where the text names one (``bf16.mul(a, b)``), else None:
    the spec's compute format. ``neg``, ``min``, ``max``, ``isnan`` never round. On integers ``+ - * // % ^``
    are exact.
    """

    op: str
    args: tuple[Node, ...]
    format: Format | None = None
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Cast(Node):
    """``bf16(x)``: its own rounding."""

    format: Format
    arg: Node
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Cmp(Node):
    """A comparison, ``== != < <= > >=``; IEEE on floats (NaN compares unequal to all)."""

    op: str
    left: Node
    right: Node
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """``and``, ``or`` (two or more arguments), ``not`` (one)."""

    op: str
    args: tuple[Node, ...]
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Select(Node):
    """``select(cond, a, b)``: no rounding; the branch not taken has no effect."""

    cond: Node
    a: Node
    b: Node
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Prev(Node):
    """``prev(state)`` or ``prev(state, LEVEL)``: the step before, the start value if there is none."""

    state: str
    level: str | None = None
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Last(Node):
    """``last(state)``: the state after the fold, the start value if there was no step."""

    state: str
    at: int = _AT


@dataclass(frozen=True, slots=True)
class At(Node):
    """``at(expr, AXIS=index)``: gather; ``shfl_xor`` and ``butterfly`` on lanes are sugar for it."""

    arg: Node
    moves: tuple[tuple[str, Node], ...]
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Pos(Node):
    """``pos(AXIS)``: the index along an axis; ``pos(token)`` is the token's number within its tile."""

    axis: str
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Owns(Node):
    """``owns(LEVEL)``: whether this piece of the level has any token."""

    level: str
    at: int = _AT


@dataclass(frozen=True, slots=True)
class Tree(Node):
    """How a reduction brackets: ``seq``, ``pairwise``, ``butterfly``, ``lanes``, ``chunks``, ``mma``, ``exact``, ``any``.

    ``ints`` are integer expressions (sizes, strides), ``flags`` words such as ``fma`` and ``swap``, ``inner``
    the trees inside.
    """

    kind: str
    ints: tuple[Node, ...] = ()
    flags: tuple[str, ...] = ()
    inner: tuple[Tree, ...] = ()
    at: int = _AT

    @property
    def instruction(self) -> str:
        """The tensor-core instruction of an ``mma`` tree: its flag, by default ``mma`` (mma.sync)."""
        return self.flags[0] if self.flags else "mma"


@dataclass(frozen=True, slots=True)
class Reduce(Node):
    """``sum``, ``dot``, ``max`` or ``any`` over every axis inside the section's level, or ``over``.

    ``args`` has one expression, or two for ``dot``. ``sum(a * b, tree)`` rounds each product; ``dot(a, b, tree)``
    leaves it to the tree which products are fused. ``format``: where each addition rounds (None: compute).
    """

    kind: str
    args: tuple[Node, ...]
    tree: Tree | None = None
    over: tuple[str, ...] | None = None
    by: str | None = None
    start: Node | None = None
    first: Node | None = None
    format: Format | None = None
    at: int = _AT


@dataclass(frozen=True, slots=True)
class LevelRule(Node):
    """``pieces(n, unit=, of=, skip=, empty=keep)``, ``deal(n, unit=, skip=, empty=keep)``, ``tiles(n, desc)`` or
    ``view(n, index)``.
    """

    kind: str
    args: tuple[Node, ...]
    unit: Node | None = None
    of: Node | None = None
    skip: Node | None = None
    keep_empty: bool = False
    desc: bool = False
    at: int = _AT
