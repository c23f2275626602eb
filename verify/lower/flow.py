"""Floating-point data flow of one thread: what a register holds, as a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Node:
    """A value: ``op`` of ``args``; ``tag`` is a shuffle's mask, a component, a constant.

    ``stored`` is what was put into shared memory since the last barrier but one, ``before`` between the two before it.
    ``address`` is where each thread loads from or stores to, ``[thread]``, None where that could not be followed.
    ``line`` is that of its instruction in the listing, from 1; 0: it has none of its own, as a sign.
    """

    op: str
    args: tuple[Node, ...] = ()
    tag: str = ""
    number: int = 0
    address: Words | None = None
    stored: tuple[Store, ...] = ()
    before: tuple[Store, ...] = ()
    line: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    """One word that every thread puts into shared memory."""

    value: Node
    address: Words | None
    storing: NDArray[np.bool_] | None = None


@dataclass
class Flow:
    """What one pass over the instructions found. ``line`` is where it is in the listing."""

    source: str
    nodes: list[Node] = field(default_factory=lambda: [])
    stores: list[Store] = field(default_factory=lambda: [])
    counts: dict[str, int] = field(default_factory=lambda: {})
    unknown: list[str] = field(default_factory=lambda: [])
    line: int = 0

    def node(
        self, op: str, *args: Node, tag: str = "", number: int = 0, address: Words | None = None
    ) -> Node:
        """A new node, kept in the order of the program."""
        made = Node(op, args, tag, number, address, line=self.line)
        self.nodes.append(made)
        return made


def through(node: Node) -> Node:
    """The node below signs and predicates that only guard a load."""
    while node.op in ("neg", "abs"):
        node = node.args[0]
    return node


def origins(node: Node) -> Iterator[Node]:
    """Loads and tensor-core results that a value is made of, without what came from other threads or an earlier step."""
    seen: set[int] = set()
    left = [node]
    while left:
        now = left.pop()
        if id(now) in seen or now.op in ("shfl", "shared", "max", "const", "entry"):
            continue
        seen.add(id(now))
        if now.op in ("load", "mma"):
            yield now
        else:
            left.extend(now.args)
