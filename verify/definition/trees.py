"""Reduction trees over any rounded operations: which partial sums are formed, and in which order.

The terms come in visiting order. For ``sum`` a term is a value, for ``dot`` a pair of factors whose product
is rounded unless the tree fuses it. The rules:

* ``seq()``: an accumulator that starts at +0 (or at ``start``): ``0 + x0``, then ``+ x1``, ...
  With ``desc`` the last term comes first.
* ``seq(fma)``: the accumulator becomes ``fma(a, b, acc)``. With ``swap`` the second pair goes before the
  first and, without ``start``, its product is rounded alone: ``fma(a0, b0, a1 * b1)``, then the third pair.
* ``pairwise()``: neighbours are added, again and again; an odd one out moves up. ``pairwise(fma)``: in the
  first round ``fma(a0, b0, a1 * b1)``.
* ``butterfly(k, ...)``: term i sits on lane i; in the step of k every lane adds lane ``i ^ k``; lane 0 is the
  result. Without strides: n/2, ..., 2, 1 with n the next power of two.
* ``lanes(n, inner, outer)``: lane j folds terms j, j + n, ... by ``inner``; ``outer`` folds the n lanes.
* ``chunks(n, inner, outer)``: ``inner`` folds each n neighbours; ``outer`` folds the chunks. With several sizes
  the chunks have these sizes in turn; then the last size repeats, or, with ``cycle``, all of them again.
* ``whole(n, tree, rest)``: ``tree`` folds the terms of all whole blocks of n; ``rest`` folds the fewer than n
  terms that are left, and starts where ``tree`` ended.
* ``mma(k)``: a chain of tensor-core instructions of k products each, ascending, whose numerics are the
  platform's; the accumulator starts at +0 (or at ``start``). It never rounds a product by itself.
* ``exact()``: the exact sum of exact products, rounded once; an exact zero is +0.

A place of a tree that no term fills takes no part: ``x`` and nothing is ``x``, without an operation (the
same bits as padding with -0). ``start`` is where an outermost ``seq()`` begins, an exact summand of
``exact()``, the first accumulator of ``mma()``, and ``start + total`` for the other trees; in ``lanes`` and
``chunks`` it goes to the outer tree, in ``whole`` to the first. A sum of no terms is +0, or ``start``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from specs.errors import SpecError, UnsupportedError
from specs.nodes import Num, Tree
from verify.definition.arithmetic import Fold

SUPPORTED = "seq, pairwise, butterfly, lanes, chunks, whole, mma and exact"


def _no_mma(tree: Tree) -> Fold:
    raise UnsupportedError("mma() has no meaning here", remedy="evaluate with ScalarArithmetic")


@dataclass(frozen=True)
class Operations:
    """Addition, multiplication and fused multiply-add that round once, and the exact sum rounded once.

    ``exact(terms, pairs, start)`` takes values, or pairs of factors where ``pairs``. ``mma(tree)`` is the fold of
    a tensor-core chain over pairs.
    """

    add: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    fma: Callable[[Any, Any, Any], Any]
    exact: Callable[[Sequence[Any], bool, Any], Any]
    zero: Any
    mma: Callable[[Tree], Fold] = _no_mma


def build(tree: Tree, operations: Operations, *, pairs: bool) -> Fold:
    """The fold of ``tree``, as a function of the terms and the start value (None: none).

    Args:
        tree: a bound tree: its integers are literals.
        operations: what rounds.
        pairs: whether the terms are pairs of factors.

    Raises:
        UnsupportedError: ``any``, or a tensor core that the platform does not have.
        SpecError: a fused tree or ``mma`` over terms that are no products, or lanes that butterfly strides do not join.
    """
    inner = _build(tree, operations, pairs)

    def fold(terms: Sequence[Any], start: Any) -> Any:
        total = inner(terms, start)
        return operations.zero if total is None else total

    return fold


def _build(tree: Tree, o: Operations, pairs: bool) -> Fold:
    """As `build`, but the fold of nothing may be None: absent."""
    if "fma" in tree.flags and not pairs:
        raise SpecError(
            f"{tree.kind}(fma) over terms that are no products", remedy="use dot(a, b, tree), or drop fma"
        )
    match tree.kind:
        case "seq":
            if "swap" in tree.flags:
                return _swapped(o)
            fold = _sequential(o, "fma" if "fma" in tree.flags else "mul" if pairs else "")
            return (lambda terms, start: fold(terms[::-1], start)) if "desc" in tree.flags else fold
        case "mma":
            if not pairs:
                raise SpecError("mma() over terms that are no products", remedy="write dot(x, 1, mma(k))")
            return o.mma(tree)
        case "exact":
            return lambda terms, start: o.exact(terms, pairs, start)
        case "pairwise":
            return _started(_pairwise(o, pairs, "fma" in tree.flags), o)
        case "butterfly":
            return _started(_butterfly([integer(k) for k in tree.ints], o, pairs), o)
        case "lanes" | "chunks" | "whole":
            return _nested(tree, o, pairs)
        case _:
            raise UnsupportedError(
                f"{tree.kind}() is not evaluated yet", remedy=f"supported trees: {SUPPORTED}"
            )


def _nested(tree: Tree, o: Operations, pairs: bool) -> Fold:
    sizes = [integer(size) for size in tree.ints]
    if min(sizes) < 1:
        raise SpecError(f"{tree.kind}({min(sizes)}, ...) has no place for a term", remedy="use 1 or more")
    first, second = tree.inner
    inner = _build(first, o, pairs)
    if tree.kind == "whole":
        rest = _build(second, o, pairs)

        def whole(terms: Sequence[Any], start: Any) -> Any:
            end = len(terms) - len(terms) % sizes[0]
            total = inner(terms[:end], start) if end else start
            return rest(terms[end:], total) if end < len(terms) else total

        return whole
    outer = _build(second, o, False)
    if tree.kind == "lanes":
        return lambda terms, start: outer([inner(part, None) for part in _lanes(terms, sizes[0])], start)
    cut = _cycled if "cycle" in tree.flags else _sized
    return lambda terms, start: outer([inner(part, None) for part in cut(terms, sizes)], start)


def integer(node: object) -> int:
    """The value of a literal."""
    assert isinstance(node, Num), node
    return int(node.text)


def _lanes(terms: Sequence[Any], n: int) -> list[Sequence[Any]]:
    return [terms[j::n] for j in range(n)]


def _chunks(terms: Sequence[Any], n: int) -> list[Sequence[Any]]:
    return [terms[i : i + n] for i in range(0, len(terms), n)]


def _sized(terms: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Chunks of these sizes in turn; the last size repeats."""
    parts: list[Sequence[Any]] = []
    at = 0
    while at < len(terms):
        size = sizes[min(len(parts), len(sizes) - 1)]
        parts.append(terms[at : at + size])
        at += size
    return parts


def _cycled(terms: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Chunks of these sizes, again and again."""
    ends = list(accumulate(sizes))
    parts: list[Sequence[Any]] = []
    for at in range(0, len(terms), ends[-1]):
        parts += [terms[at + end - size : at + end] for end, size in zip(ends, sizes, strict=True)]
    return [part for part in parts if part]


def _started(fold: Callable[[Sequence[Any]], Any], o: Operations) -> Fold:
    def started(terms: Sequence[Any], start: Any) -> Any:
        total = fold(terms)
        return total if start is None else start if total is None else o.add(start, total)

    return started


def _sequential(o: Operations, product: str) -> Fold:
    add, mul, fma = o.add, o.mul, o.fma

    def values(terms: Sequence[Any], start: Any) -> Any:
        acc = o.zero if start is None else start
        for x in terms:
            if x is not None:
                acc = add(acc, x)
        return acc

    def products(terms: Sequence[Any], start: Any) -> Any:
        acc = o.zero if start is None else start
        for a, b in terms:
            acc = add(acc, mul(a, b))
        return acc

    def fused(terms: Sequence[Any], start: Any) -> Any:
        acc = o.zero if start is None else start
        for a, b in terms:
            acc = fma(a, b, acc)
        return acc

    return {"": values, "mul": products, "fma": fused}[product]


def _swapped(o: Operations) -> Fold:
    fused = _sequential(o, "fma")

    def swapped(terms: Sequence[Any], start: Any) -> Any:
        if len(terms) < 2:
            return fused(terms, start)
        first, second, *rest = terms
        acc = o.mul(*second) if start is None else o.fma(second[0], second[1], start)
        return fused([first, *rest], acc)

    return swapped


def _joined(o: Operations, a: Any, b: Any) -> Any:
    """The sum of two partial sums, either of which may be absent."""
    return b if a is None else a if b is None else o.add(a, b)


def _pairwise(o: Operations, pairs: bool, fuse: bool) -> Callable[[Sequence[Any]], Any]:
    def fold(terms: Sequence[Any]) -> Any:
        if fuse:
            cut = _chunks(terms, 2)
            values = [o.fma(c[0][0], c[0][1], o.mul(*c[1])) if len(c) == 2 else o.mul(*c[0]) for c in cut]
        else:
            values = [o.mul(*t) for t in terms] if pairs else list(terms)
        while len(values) > 1:
            values = [_joined(o, *c) if len(c) == 2 else c[0] for c in _chunks(values, 2)]
        return values[0] if values else None

    return fold


def _butterfly(strides: list[int], o: Operations, pairs: bool) -> Callable[[Sequence[Any]], Any]:
    def fold(terms: Sequence[Any]) -> Any:
        lanes: list[Any] = [o.mul(*t) for t in terms] if pairs else list(terms)
        width = 1 << max(0, len(lanes) - 1).bit_length()
        steps = strides or [width >> i for i in range(1, width.bit_length())]
        joined = {0}
        for k in steps:
            joined |= {lane ^ k for lane in joined}
        if not joined.issuperset(range(len(lanes))):
            missing = min(set(range(len(lanes))) - joined)
            raise SpecError(
                f"butterfly({', '.join(map(str, steps))}) never adds term {missing} of {len(lanes)}",
                remedy="give a stride for each bit of the term's number, or cut the terms with chunks()",
            )
        size = max(joined) + 1
        lanes += [None] * (size - len(lanes))
        for k in steps:
            other = [lanes[i ^ k] if i ^ k < size else None for i in range(size)]
            lanes = [_joined(o, x, y) for x, y in zip(lanes, other, strict=True)]
        return lanes[0]

    return fold
