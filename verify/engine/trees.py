"""Trees over arrays: how the terms along a leading axis become one value, absent terms skipped.

The rules are those of the definition, written a second time: a term that is absent joins nothing, ``seq`` starts at
+0 (and so is never absent), ``butterfly`` gives lane 0, ``start`` enters where the outermost tree says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from specs.errors import SpecError, UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.engine.primitives import Carrier
from verify.engine.support import integer

Array = jax.Array
_UNROLL = {False: 16, True: 4}  # terms up to which a sequence is written out; fused steps are long


@dataclass(frozen=True)
class Terms:
    """Terms along the leading axis: one array of values, or two of factors.

    Attributes:
        parts: ``[n, ...]`` each; their other dimensions broadcast.
        alive: bool ``[n, ...]``, which terms are there; None: all.
    """

    parts: tuple[Array, ...]
    alive: Array | None = None

    @property
    def count(self) -> int:
        """How many terms there is room for."""
        return self.parts[0].shape[0]

    def pick(self, where: slice) -> Terms:
        """Some of the terms."""
        alive = None if self.alive is None else self.alive[where]
        return Terms(tuple(p[where] for p in self.parts), alive)

    def padded(self, count: int) -> Terms:
        """With absent terms at the end, ``count`` in all."""
        extra = count - self.count
        if extra == 0:
            return self
        alive = (
            jnp.ones((self.count, *([1] * (self.parts[0].ndim - 1))), bool)
            if self.alive is None
            else self.alive
        )
        widen = [(0, extra)]
        parts = tuple(jnp.pad(p, widen + [(0, 0)] * (p.ndim - 1)) for p in self.parts)
        return Terms(parts, jnp.pad(alive, widen + [(0, 0)] * (alive.ndim - 1)))

    def split(self, groups: int, size: int, *, lanes: bool) -> Terms:
        """``groups x size`` terms as ``[size, groups, ...]``: group g has the terms of chunk g, or g, g + groups, ..."""

        def cut(x: Array) -> Array:
            if lanes:
                return x.reshape(size, groups, *x.shape[1:])
            return jnp.moveaxis(x.reshape(groups, size, *x.shape[1:]), 0, 1)

        alive = None if self.alive is None else cut(self.alive)
        return Terms(tuple(cut(p) for p in self.parts), alive)


@dataclass(frozen=True)
class Sum:
    """A value, and where it is there; None: everywhere."""

    value: Array
    alive: Array | None = None


@dataclass(frozen=True)
class Folder:
    """Folds terms by trees, each operation rounded once to ``fmt``.

    Attributes:
        ops: the carrier.
        fmt: the format of each addition; ``product``: of products that stand alone.
        exact: products are exact, so that they need no guard.
        check: each operation looks for subnormals itself.
        mma: the total of terms as a chain of fused dot products.
    """

    ops: Carrier
    fmt: Format
    product: Format
    exact: bool
    check: bool
    mma: Callable[[Tree, Terms, Array | None], Array] | None = None

    def fold(self, tree: Tree, terms: Terms, start: Array | None, shape: tuple[int, ...]) -> Array:
        """The total, of ``shape``; +0 (or ``start``) where there is no term."""
        total = self._fold(tree, terms, start)
        value = total.value
        if total.alive is not None:
            value = jnp.where(total.alive, value, self.ops.constant(0.0))
        return jnp.broadcast_to(value, shape)

    def _fold(self, tree: Tree, terms: Terms, start: Array | None) -> Sum:
        pairs = len(terms.parts) == 2
        match tree.kind:
            case "seq":
                ordered = terms.pick(slice(None, None, -1)) if "desc" in tree.flags else terms
                return self._sequence(ordered, start, "fma" in tree.flags, "swap" in tree.flags)
            case "mma":
                assert self.mma is not None
                return Sum(self.mma(tree, terms, start))
            case "whole":
                return self._whole(tree, terms, start)
            case "pairwise":
                return self._started(self._pairwise(terms, pairs and "fma" in tree.flags), start)
            case "butterfly":
                return self._started(self._butterfly(terms, [integer(k) for k in tree.ints]), start)
            case "lanes":
                size = integer(tree.ints[0])
                each = max(1, -(-terms.count // size))
                cut = terms.padded(size * each).split(size, each, lanes=True)
                return self._fold(tree.inner[1], self._sums(tree.inner[0], cut, size, lanes=True), start)
            case "chunks":
                return self._fold(tree.inner[1], self._chunks(tree, terms), start)
            case _:
                raise UnsupportedError(f"the array engine does not evaluate the tree {tree.kind}()")

    def _sums(self, tree: Tree, cut: Terms, groups: int, *, lanes: bool) -> Terms:
        """The sums of ``groups`` parts of equal size, as terms; a chunk without terms is none, a lane is."""
        inner = self._fold(tree, cut, None)
        alive = inner.alive
        if not lanes and cut.alive is not None and alive is None:
            alive = jnp.any(cut.alive, axis=0)
        value = inner.value
        if value.ndim == 0 or value.shape[0] != groups:
            value = jnp.broadcast_to(value, (groups, *value.shape[1:]))
        return Terms((value,), alive)

    def _chunks(self, tree: Tree, terms: Terms) -> Terms:
        """The sums of the chunks of ``tree``: of one size, of several of which the last or the whole list repeats."""
        sizes = [integer(k) for k in tree.ints]
        inner = tree.inner[0]
        if "cycle" in tree.flags:
            whole = sum(sizes)
            rounds = max(1, -(-terms.count // whole))
            cut = terms.padded(rounds * whole).split(rounds, whole, lanes=False)  # [whole, rounds, ...]
            first, sums = 0, list[Terms]()
            for size in sizes:
                sums.append(self._sums(inner, cut.pick(slice(first, first + size)), rounds, lanes=False))
                first += size
            return _interleaved(sums)
        first, sums = 0, list[Terms]()
        while len(sums) < len(sizes) - 1 and first < terms.count:
            size = sizes[len(sums)]
            part = terms.pick(slice(first, first + size))
            one = part.split(1, part.count, lanes=False)
            sums.append(self._sums(inner, one, 1, lanes=False))
            first += size
        if first < terms.count or not sums:
            rest, size = terms.pick(slice(first, None)), sizes[-1]
            groups = max(1, -(-rest.count // size))
            cut = rest.padded(groups * size).split(groups, size, lanes=False)
            sums.append(self._sums(inner, cut, groups, lanes=False))
        return _joined(sums)

    def _whole(self, tree: Tree, terms: Terms, start: Array | None) -> Sum:
        """The terms of whole blocks by one tree, the fewer than a block that remain by another."""
        size = integer(tree.ints[0])
        count = terms.count
        rank = max(p.ndim for p in terms.parts)
        number = jnp.arange(count, dtype=jnp.int32).reshape(count, *([1] * (rank - 1)))
        alive = jnp.ones((count, *([1] * (rank - 1))), bool) if terms.alive is None else terms.alive
        there = jnp.sum(alive, axis=0, dtype=jnp.int32)
        edge = there - there % size
        body = self._fold(tree.inner[0], Terms(terms.parts, alive & (number < edge)), start)
        if body.alive is not None:  # no whole block, and no start
            zero = self.ops.constant(0.0) if start is None else start
            body = Sum(jnp.where(body.alive, body.value, zero))
        spot = edge[None] + jnp.arange(min(size - 1, count), dtype=jnp.int32).reshape(-1, *([1] * (rank - 1)))
        left = spot < there

        def take(x: Array) -> Array:
            shape = jnp.broadcast_shapes(x.shape[1:], spot.shape[1:])
            wide = jnp.broadcast_to(x, (count, *shape))
            at = jnp.broadcast_to(jnp.minimum(spot, count - 1), (spot.shape[0], *shape))
            return jnp.take_along_axis(wide, at, axis=0)

        if spot.shape[0] == 0:
            return body
        return self._fold(tree.inner[1], Terms(tuple(take(p) for p in terms.parts), left), body.value)

    # -- operations ---------------------------------------------------------------------------------------

    def _add(self, a: Array, b: Array) -> Array:
        return self.ops.add(a, b, self.fmt, check=self.check)

    def _fma(self, a: Array, b: Array, c: Array) -> Array:
        return self.ops.fma(a, b, c, self.fmt, check=self.check)

    def products(self, terms: Terms) -> Array:
        """The terms; each product of two parts rounded once."""
        if len(terms.parts) == 1:
            return terms.parts[0]
        a, b = terms.parts
        return self.ops.mul(a, b, self.product, check=self.check, exact=self.exact)

    def _join(self, a: Sum, b: Sum) -> Sum:
        both = self._add(a.value, b.value)
        mine, other = a.alive, b.alive
        if mine is None:
            return Sum(both if other is None else jnp.where(other, both, a.value))
        if other is None:
            return Sum(jnp.where(mine, both, b.value))
        return Sum(jnp.where(mine & other, both, jnp.where(mine, a.value, b.value)), mine | other)

    def _started(self, total: Sum, start: Array | None) -> Sum:
        return total if start is None else self._join(Sum(start), total)

    # -- trees --------------------------------------------------------------------------------------------

    def _sequence(self, terms: Terms, start: Array | None, fused: bool, swap: bool) -> Sum:
        first = self.ops.constant(0.0) if start is None else start
        if swap and terms.count > 1:
            second = terms.pick(slice(1, 2))
            alone = self.products(second)[0] if start is None else self._step(second, first, True)
            acc = alone if second.alive is None else jnp.where(second.alive[0], alone, first)
            acc = self._step(terms.pick(slice(0, 1)), acc, True)
            return self._chain(terms.pick(slice(2, None)), acc, True)
        return self._chain(terms, first, fused)

    def _step(self, term: Terms, acc: Array, fused: bool) -> Array:
        """``acc`` and one term (a leading axis of 1)."""
        parts = [p[0] for p in term.parts]
        new = (
            self._fma(parts[0], parts[1], acc)
            if fused and len(parts) == 2
            else self._add(acc, self.products(term)[0])
        )
        return new if term.alive is None else jnp.where(term.alive[0], new, acc)

    def _chain(self, terms: Terms, acc: Array, fused: bool) -> Sum:
        n = terms.count
        if n <= _UNROLL[fused]:
            for i in range(n):
                acc = self._step(terms.pick(slice(i, i + 1)), acc, fused)
            return Sum(acc)
        shapes = [p.shape[1:] for p in terms.parts] + [acc.shape]
        if terms.alive is not None:
            shapes.append(terms.alive.shape[1:])
        acc = jnp.broadcast_to(acc, jnp.broadcast_shapes(*shapes))

        def body(total: Array, xs: tuple[Array, ...]) -> tuple[Array, None]:
            parts = tuple(x[None] for x in xs[: len(terms.parts)])
            alive = None if terms.alive is None else xs[-1][None]
            return self._step(Terms(parts, alive), total, fused), None

        leaves = terms.parts if terms.alive is None else (*terms.parts, terms.alive)
        return Sum(self.ops.scan(body, acc, leaves)[0])

    def _pairwise(self, terms: Terms, fused: bool) -> Sum:
        if terms.count == 0:
            return Sum(self.ops.constant(0.0), jnp.zeros((), bool))
        if fused:
            sums: list[Sum] = []
            for i in range(0, terms.count, 2):
                one, two = terms.pick(slice(i, i + 1)), terms.pick(slice(i + 1, i + 2))
                if two.count == 0:
                    sums.append(self._lane(one, self.products(one), 0))
                    continue
                a, b = (p[0] for p in one.parts)
                right = self.products(two)[0]
                alone = self.products(one)[0]
                both = self._fma(a, b, right)
                if two.alive is None or one.alive is None:
                    sums.append(Sum(both))
                else:
                    value = jnp.where(two.alive[0], both, alone)
                    sums.append(Sum(value, one.alive[0]))
        else:
            values = self.products(terms)
            sums = [self._lane(terms, values, i) for i in range(terms.count)]
        while len(sums) > 1:
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
            sums = [self._join(*p) if len(p) == 2 else p[0] for p in pairs]
        return sums[0]

    def _lane(self, terms: Terms, values: Array, i: int) -> Sum:
        return Sum(values[i], None if terms.alive is None else terms.alive[i])

    def _butterfly(self, terms: Terms, strides: list[int]) -> Sum:
        values = self.products(terms)
        lanes = [self._lane(terms, values, i) for i in range(terms.count)]
        width = 1 << max(0, len(lanes) - 1).bit_length()
        steps = strides or [width >> i for i in range(1, width.bit_length())]
        joined = {0}
        for k in steps:
            joined |= {lane ^ k for lane in joined}
        left = [i for i in range(len(lanes)) if i not in joined]
        if left and terms.alive is None:
            raise SpecError(
                f"butterfly({', '.join(map(str, steps))}) never adds term {left[0]} of {len(lanes)}",
                remedy="give a stride for each bit of the term's number, or cut the terms with chunks()",
            )
        if (
            left and terms.alive is not None
        ):  # room for terms that are not there, or else no carrier has an answer
            self.ops.note(jnp.any(terms.alive[jnp.array(left)]))
        return self._lane_zero(dict(enumerate(lanes)), steps, 0)

    def _lane_zero(self, lanes: dict[int, Sum], steps: list[int], lane: int) -> Sum:
        """What ``lane`` holds after all steps: it and its partner after all steps but the last."""
        if not steps:
            absent = Sum(self.ops.constant(0.0), jnp.zeros((), bool))
            return lanes.get(lane, absent)
        *before, k = steps
        mine, other = (self._lane_zero(lanes, before, i) for i in (lane, lane ^ k))
        return self._join(mine, other)


def _flags(sums: Sequence[Terms]) -> list[Array] | None:
    """Which terms of each are there, or None where all of all are."""
    if all(s.alive is None for s in sums):
        return None
    return [jnp.ones((1,) * s.parts[0].ndim, bool) if s.alive is None else s.alive for s in sums]


def _joined(sums: Sequence[Terms]) -> Terms:
    """One after the other."""
    if len(sums) == 1:
        return sums[0]
    values, flags = [s.parts[0] for s in sums], _flags(sums)
    shape = jnp.broadcast_shapes(*(v.shape[1:] for v in values))
    joined = jnp.concatenate([jnp.broadcast_to(v, (v.shape[0], *shape)) for v in values])
    if flags is None:
        return Terms((joined,))
    shape = jnp.broadcast_shapes(*(f.shape[1:] for f in flags))
    pairs = zip(values, flags, strict=True)
    return Terms((joined,), jnp.concatenate([jnp.broadcast_to(f, (v.shape[0], *shape)) for v, f in pairs]))


def _interleaved(sums: Sequence[Terms]) -> Terms:
    """The first of each, the second of each, ..."""

    def weave(arrays: Sequence[Array], count: int) -> Array:
        shape = jnp.broadcast_shapes(*(x.shape[1:] for x in arrays))
        stacked = jnp.stack([jnp.broadcast_to(x, (count, *shape)) for x in arrays], axis=1)
        return stacked.reshape(count * len(arrays), *shape)

    values, flags = [s.parts[0] for s in sums], _flags(sums)
    count = values[0].shape[0]
    return Terms((weave(values, count),), None if flags is None else weave(flags, count))
