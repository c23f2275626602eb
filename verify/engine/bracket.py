"""Sums that are more than one sequence: trees, views (``by=``), ``first=`` and sums over lanes and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from specs.formats import Format
from specs.nodes import Name, Node, Reduce, Tree
from specs.program import DEPTH, DIM, TOKEN
from verify.engine.exactsum import ExactSum
from verify.engine.primitives import F32, F64, exact_product
from verify.engine.support import by_key, factor_format, reads, sum_factors
from verify.engine.trees import Folder, Terms
from verify.engine.values import HEAD, LANE, LANES, ROW_AXIS, STEP, Val

if TYPE_CHECKING:
    from verify.engine.evaluate import Evaluator, Frame

Array = jax.Array


@dataclass(frozen=True)
class Leaves:
    """The terms of a reduction along a leading axis.

    Attributes:
        parts: the factors, ``[n, *axes]`` each with its own axes after the leading one.
        alive: which terms are there, likewise.
    """

    parts: tuple[Val, ...]
    alive: Val


class Brackets:
    """Evaluates reductions of one `Evaluator` whose bracketing is a tree, a colouring or both."""

    def __init__(self, walker: Evaluator) -> None:
        self.walker = walker
        self.ops = walker.ops
        self.axes = walker.axes

    # -- terms --------------------------------------------------------------------------------------------

    def factors(self, n: Reduce) -> tuple[Node, ...]:
        """The value, or the two factors, of each term. A product in ``sum`` is a value where it can be."""
        if n.kind == "dot":
            return n.args
        pair = sum_factors(n)
        return pair if pair is not None and any(reads(x, "v") for x in pair) else n.args

    def leaves(
        self,
        n: Reduce,
        factors: tuple[Node, ...],
        over: tuple[str, ...],
        live: Val,
        frame: Frame | None,
        *,
        stored: bool = False,
    ) -> Leaves:
        """The terms of ``n`` in visiting order; where ``by`` colours them, the slots of each colour.

        ``v`` comes as values of the carrier, or as it is ``stored``.
        """
        parts = [self._part(x, over, frame, stored) for x in factors]
        alive = self.axes.front(live, over)
        if n.by is not None:
            table = self.walker.positions.colours(self.walker.program.views[n.by], over)
            spot, there = jnp.asarray(table.clip(0)), jnp.asarray(table >= 0)
            parts = [self._coloured(p, spot, n.by) for p in parts]
            alive = self._coloured(alive, spot, n.by)
            there = there.reshape(there.shape[0], *(there.shape[1] if a == n.by else 1 for a in alive.axes))
            alive = Val(alive.data & there, alive.axes)
        return self._compacted(n, parts, alive)

    def _part(self, x: Node, over: tuple[str, ...], frame: Frame | None, stored: bool) -> Val:
        if reads(x, "v"):
            words = self.values(over, frame)
            if stored and isinstance(x, Name):
                return words
            values = self.walker.elementwise(x, "v", self.walker.reduce.decode(words.data))
            return Val(values, words.axes)
        value = self.walker.value(x, frame)
        return self.axes.front(value, over)

    def values(self, over: tuple[str, ...], frame: Frame | None) -> Val:
        """The stored rows of V that the terms read: ``[n, *levels, kv_head, dim]``."""
        walker, arrays = self.walker, self.walker.arrays
        tokens = walker.cut(Val(arrays.tokens, (*walker.program.level_names, STEP, LANE)), frame)
        where = self.axes.front(tokens, over)
        picked = jnp.take(arrays.v, jnp.maximum(where.data, 0), axis=0, mode="clip")
        picked = picked.reshape(*picked.shape[:-2], -1)[..., : self.axes.sizes[DIM]]
        return Val(picked, (*where.axes, HEAD, DIM))

    def _compacted(self, n: Reduce, parts: list[Val], alive: Val) -> Leaves:
        """Terms that are there before those that are not, where padding may lie between them."""
        if not self._gaps(n):
            return Leaves(tuple(parts), alive)
        order = jnp.argsort(~alive.data, axis=0, stable=True)

        def move(val: Val) -> Val:
            axes = self.axes.union(val.axes, alive.axes)
            count = val.data.shape[0]
            own = self.spread(val, axes)
            spot = self.spread(Val(order, alive.axes), axes)
            shape = jnp.broadcast_shapes(own.shape, spot.shape)
            moved = jnp.take_along_axis(jnp.broadcast_to(own, shape), jnp.broadcast_to(spot, shape), axis=0)
            return Val(moved.reshape(count, *shape[1:]), axes)

        packed = Val(jnp.take_along_axis(alive.data, order, axis=0), alive.axes)
        return Leaves(tuple(move(p) for p in parts), packed)

    def _gaps(self, n: Reduce) -> bool:
        """Whether terms that are absent may stand before others, where the bracketing counts terms.

        Tokens of one piece close up, and so do pieces that are kept when they are empty. A plain sequence skips.
        """
        assert n.tree is not None
        if n.tree.kind in ("seq", "exact") and "swap" not in n.tree.flags and n.first is None:
            return False
        levels = {level.name: level for level in self.walker.program.levels}
        nested = [a for a in n.over or () if a == TOKEN or a in levels]
        return len(nested) > 1 or any(a != TOKEN and not levels[a].rule.keep_empty for a in nested)

    def spread(self, val: Val, axes: tuple[str, ...]) -> Array:
        """The data of ``val`` (a leading axis, then its own) with a dimension for each of ``axes``."""
        own = dict(zip(val.axes, val.data.shape[1:], strict=True))
        return val.data.reshape(val.data.shape[0], *(own.get(a, 1) for a in axes))

    def _coloured(self, val: Val, spot: Array, view: str) -> Val:
        """``[n, *axes]`` as ``[slot, *axes with the view]``."""
        picked = jnp.take(val.data, spot, axis=0)  # [slot, colour, *axes]
        axes = self.axes.union(val.axes, (view,))
        return Val(jnp.moveaxis(picked, 1, 1 + axes.index(view)), axes)

    # -- reductions ---------------------------------------------------------------------------------------

    def reduction(self, n: Reduce, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        """The value of ``n``."""
        walker = self.walker
        assert n.tree is not None
        factors = self.factors(n)
        leaves = self.leaves(n, factors, over, live, frame)
        start = None if n.start is None else walker.value(n.start, frame)
        groups = [p.axes for p in leaves.parts] + [leaves.alive.axes]
        first: Val | None = None
        if n.first is not None:
            zero = self.ops.constant(0.0)
            here, mask = (
                self.spread(x, self.axes.union(*groups))[0] for x in (leaves.parts[0], leaves.alive)
            )
            it = Val(jnp.where(mask, here, zero), self.axes.union(*groups))
            with walker.naming(it):
                first = walker.value(n.first, frame)
            groups.append(first.axes)
        if start is not None:
            groups.append(start.axes)
        axes = self.axes.union(*groups)
        terms = Terms(tuple(self.spread(p, axes) for p in leaves.parts), self.spread(leaves.alive, axes))
        shape = self.axes.shape(axes)
        begin = None if start is None else self.axes.align(start, axes)
        if first is not None:
            head = self.axes.align(first, axes)
            if n.tree.kind == "seq":
                terms, begin = terms.pick(slice(1, None)), head
            else:
                terms = self._headed(terms, head)
        if n.tree.kind == "exact":
            return Val(self._exact(n, factors, terms, begin, shape), axes)
        folder = self._folder(n, factors)
        return Val(folder.fold(n.tree, terms, begin, shape), axes)

    def _headed(self, terms: Terms, head: Array) -> Terms:
        """``terms`` with the first one, there or not, replaced by ``head``."""
        assert len(terms.parts) == 1
        assert terms.alive is not None
        part, alive = terms.parts[0], terms.alive
        shape = jnp.broadcast_shapes(part.shape[1:], head.shape)
        rest = jnp.broadcast_to(part[1:], (part.shape[0] - 1, *shape))
        there = jnp.concatenate([jnp.ones_like(alive[:1]), alive[1:]])
        return Terms((jnp.concatenate([jnp.broadcast_to(head, shape)[None], rest]),), there)

    def _exact(
        self,
        n: Reduce,
        factors: tuple[Node, ...],
        terms: Terms,
        start: Array | None,
        shape: tuple[int, ...],
    ) -> Array:
        """The exact total, rounded once: of products in a dot product; a sum has rounded each of them before."""
        if n.kind == "sum" and len(terms.parts) == 2:
            terms = Terms((self._folder(n, factors).products(terms),), terms.alive)
        return ExactSum(self.ops, self._format(n)).total(terms, start, shape)

    def _format(self, n: Reduce) -> Format:
        return n.format or self.walker.program.compute

    def _folder(self, n: Reduce, factors: tuple[Node, ...]) -> Folder:
        compute = self.walker.program.compute
        formats = [factor_format(self.walker.program, f) for f in factors]
        exact = len(formats) == 2 and exact_product(formats[0], formats[1], self.ops.fmt)
        check = isinstance(self.ops, F32 | F64)

        def mma(tree: Tree, terms: Terms, start: Array | None) -> Array:
            assert len(factors) == 2
            return self.walker.reduce.dots.inner(n, (factors[0], factors[1]), tree, terms, start)

        return Folder(self.ops, self._format(n), compute, exact, check, mma)

    # -- dot products of q and k --------------------------------------------------------------------------

    def scores(self, n: Reduce) -> Array:
        """A sum over head_dim by any tree, in natural order: ``[tile, kv_head, row, 16]``."""
        walker, arrays = self.walker, self.walker.arrays
        query, key = by_key(n)
        assert n.tree is not None
        assert arrays.k is not None
        q = self.axes.full(walker.value(query, None), (HEAD, ROW_AXIS, DEPTH)).data
        keys = arrays.k
        blocks, _, tiles, heads, _, _ = keys.shape
        shape = (blocks * tiles, heads, q.shape[1], LANES)
        depth = q.shape[2]
        by_depth = jnp.moveaxis(keys, (1, 4), (0, 1)).reshape(-1, blocks * tiles, heads, 1, LANES)[:depth]
        a = jnp.moveaxis(q, 2, 0)[:, None, :, :, None]
        terms = Terms((a, walker.elementwise(key, "k", walker.reduce.decode(by_depth))))
        if n.tree.kind == "exact":
            return self._exact(n, (query, key), terms, None, shape)
        return self._folder(n, (query, key)).fold(n.tree, terms, None, shape)
