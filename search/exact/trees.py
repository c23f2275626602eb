"""Reduction trees of the language, from their definition in ``docs/language.md``: terms and a start value to one number.

None is an absent value: a place that no term fills. Absent and x is x, without an operation. Only ``pairwise`` and
``butterfly`` of no terms are absent; an accumulator starts at +0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from search.exact.dyadic import ZERO, Number, Unary
from search.exact.operations import add as exact_add
from search.exact.operations import multiply as exact_multiply
from specs.errors import SpecError, UnsupportedError
from specs.nodes import Num, Tree

Terms = Sequence[Any]
Fold = Callable[[Terms, Number | None], Number | None]


@dataclass(frozen=True)
class Steps:
    """The rounded operations of a fold.

    Attributes:
        add, mul, fma: rounded once.
        last: the rounding itself, for the exact sum.
        mma: the fold of a chain of tensor-core instructions.
    """

    add: Callable[[Number, Number], Number]
    mul: Callable[[Number, Number], Number]
    fma: Callable[[Number, Number, Number], Number]
    last: Unary
    mma: Callable[[Tree], Fold]


def fold(tree: Tree, steps: Steps, products: bool) -> Callable[[Terms, Number | None], Number]:
    """The function from terms (pairs of factors where ``products``) and a start, or None, to the total.

    Raises:
        UnsupportedError: an ``any()`` tree. SpecError: a fused tree over terms that are no products.
    """
    inner = _fold(tree, steps, products)

    def total(terms: Terms, start: Number | None) -> Number:
        found = inner(terms, start)
        return ZERO if found is None else found

    return total


def _fold(tree: Tree, steps: Steps, products: bool) -> Fold:
    if ("fma" in tree.flags or tree.kind == "mma") and not products:
        raise SpecError(
            f"{tree.kind} fuses products, and these terms are none", remedy="write dot(a, b, tree)"
        )
    match tree.kind:
        case "seq":
            return _sequence(tree, steps, products)
        case "pairwise":
            return _after(lambda terms: _halved(_leaves(tree, steps, products, terms), steps), steps)
        case "butterfly":
            strides = [size(k) for k in tree.ints]
            return _after(
                lambda terms: _butterfly(strides, _leaves(tree, steps, products, terms), steps), steps
            )
        case "exact":
            return lambda terms, start: _exact(terms, start, steps, products)
        case "lanes" | "chunks":
            inner, outer = _fold(tree.inner[0], steps, products), _fold(tree.inner[1], steps, False)
            cut = _cutter(tree)
            return lambda terms, start: outer([inner(part, None) for part in cut(terms)], start)
        case "whole":
            return _whole(tree, steps, products)
        case "mma":
            return steps.mma(tree)
        case _:
            raise UnsupportedError(
                f"{tree.kind}() stands for a set of results, of which none is exact",
                remedy="name an order: seq(), pairwise(), butterfly(), lanes(), chunks()",
            )


def size(node: object) -> int:
    """The value of a literal."""
    assert isinstance(node, Num), node
    return int(node.text)


def _sequence(tree: Tree, steps: Steps, products: bool) -> Fold:
    add, mul, fma = steps.add, steps.mul, steps.fma
    backwards, fused, swapped = ("desc" in tree.flags), ("fma" in tree.flags), ("swap" in tree.flags)

    def sequence(terms: Terms, start: Number | None) -> Number:
        given = list(terms)
        if swapped and len(given) > 1:
            a, b = given.pop(1)
            start = mul(a, b) if start is None else fma(a, b, start)
        elif backwards:
            given.reverse()
        total = ZERO if start is None else start
        if fused:
            for a, b in given:
                total = fma(a, b, total)
        elif products:
            for a, b in given:
                total = add(total, mul(a, b))
        else:
            for x in given:
                if x is not None:
                    total = add(total, x)
        return total

    return sequence


def _leaves(tree: Tree, steps: Steps, products: bool, terms: Terms) -> list[Number | None]:
    """What the lowest level of a tree adds: terms, rounded products, or fused pairs of products."""
    if "fma" in tree.flags:
        odd = [steps.mul(a, b) for a, b in terms[-1:]] if len(terms) % 2 else []
        pairs = zip(terms[0::2], terms[1::2], strict=False)
        return [*(steps.fma(a, b, steps.mul(*second)) for (a, b), second in pairs), *odd]
    return [steps.mul(a, b) for a, b in terms] if products else list(terms)


def _join(x: Number | None, y: Number | None, steps: Steps) -> Number | None:
    if x is None or y is None:
        return y if x is None else x
    return steps.add(x, y)


def _after(total: Callable[[Terms], Number | None], steps: Steps) -> Fold:
    return lambda terms, start: _join(start, total(terms), steps)


def _halved(values: list[Number | None], steps: Steps) -> Number | None:
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else []
        values = [_join(x, y, steps) for x, y in zip(values[0::2], values[1::2], strict=False)] + odd
    return values[0] if values else None


def _butterfly(strides: list[int], values: list[Number | None], steps: Steps) -> Number | None:
    """Lane 0 after the last stride: before stride k it needs lane 0 and lane k, and so on down to the terms."""
    if not strides:
        k = 1
        while k < len(values):
            strides = [k, *strides]
            k *= 2
    reached = {0}
    for k in strides:
        reached |= {lane ^ k for lane in reached}
    lost = set(range(len(values))) - reached
    if lost:
        raise SpecError(
            f"these strides never bring term {min(lost)} to lane 0", remedy="give a stride for each bit"
        )

    def lane(i: int, step: int) -> Number | None:
        if not step:
            return values[i] if i < len(values) else None
        return _join(lane(i, step - 1), lane(i ^ strides[step - 1], step - 1), steps)

    return lane(0, len(strides))


def _exact(terms: Terms, start: Number | None, steps: Steps, products: bool) -> Number:
    total = ZERO if start is None else start
    for term in terms:
        if term is not None:
            total = exact_add(total, exact_multiply(*term) if products else term)
    return steps.last(total) if total[0] or total[1] > 1 else ZERO


def _cutter(tree: Tree) -> Callable[[Terms], list[Terms]]:
    """The parts of the terms that the inner tree of ``lanes`` or ``chunks`` folds one by one."""
    sizes = [size(n) for n in tree.ints]
    if min(sizes) < 1:
        raise SpecError(f"{tree.kind}({min(sizes)}) has no place for a term", remedy="give 1 or more")
    if tree.kind == "lanes":
        return lambda terms: [terms[lane :: sizes[0]] for lane in range(sizes[0])]

    def chunks(terms: Terms) -> list[Terms]:
        parts: list[Terms] = []
        rest = terms
        while len(rest):
            turn = len(parts) % len(sizes) if "cycle" in tree.flags else min(len(parts), len(sizes) - 1)
            parts.append(rest[: sizes[turn]])
            rest = rest[sizes[turn] :]
        return parts

    return chunks


def _whole(tree: Tree, steps: Steps, products: bool) -> Fold:
    blocks, rest = (_fold(t, steps, products) for t in tree.inner)
    n = size(tree.ints[0])

    def whole(terms: Terms, start: Number | None) -> Number | None:
        end = len(terms) // n * n
        total = blocks(terms[:end], start) if end else start
        return rest(terms[end:], total) if end < len(terms) else total

    return whole
