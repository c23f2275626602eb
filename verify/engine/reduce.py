"""Reductions of the array walker. A sum that the spec brackets in sequence is a loop over its leaves, in order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from specs.formats import BASES, Format
from specs.nodes import Name, Node, Reduce
from specs.program import DEPTH, DIM, TOKEN
from verify.engine import contract
from verify.engine.bracket import Brackets
from verify.engine.dots import Dots
from verify.engine.primitives import F32, F64, exact_product
from verify.engine.ranges import exponent_range, products_at_risk, sum_at_risk
from verify.engine.support import by_key, reads, sum_factors
from verify.engine.values import HEAD, LANE, LANES, ROW_AXIS, STEP, Val

if TYPE_CHECKING:
    from verify.engine.evaluate import Evaluator, Frame

Array = jax.Array
_UNROLL = 1
_WORDS = {"uint16": "bf16", "float32": "f32", "float64": "f64"}


class Reducer:
    """Evaluates the `Reduce` nodes of one `Evaluator`."""

    def __init__(self, walker: Evaluator) -> None:
        self.walker = walker
        self.ops = walker.ops
        self.axes = walker.axes
        self.arrays = walker.arrays
        self.dots = Dots(walker)
        self.brackets = Brackets(walker)

    def format(self, n: Reduce) -> Format:
        """Where each addition of ``n`` rounds."""
        return n.format or self.walker.program.compute

    def decode(self, stored: Array) -> Array:
        """Prepared storage (bf16 bits, f32 or f64) in the carrier, subnormals included."""
        fmt = BASES[_WORDS[stored.dtype.name]]
        if stored.dtype != jnp.uint16:
            stored = jax.lax.bitcast_convert_type(stored, jnp.dtype(f"uint{fmt.bits}"))
        return self.ops.decode(stored, fmt, check=False)

    # -- dot products of q and k --------------------------------------------------------------------------

    def scores(self, n: Reduce) -> Array:
        """The sum over head_dim of products with K, in natural order: ``[tile, kv_head, row, 16]``."""
        walker, ops, arrays = self.walker, self.ops, self.arrays
        query, key = by_key(n)
        keys = arrays.k
        assert keys is not None
        if n.tree is not None and n.tree.kind == "mma":
            return self.dots.scores(n)
        if n.tree is not None and (n.tree.kind != "seq" or {"swap", "desc"} & set(n.tree.flags)):
            return self.brackets.scores(n)
        if not isinstance(key, Name) or n.format is not None:
            return self.brackets.scores(n)
        compute = walker.program.compute
        q = self.axes.full(walker.value(query, None), (HEAD, ROW_AXIS, DEPTH)).data
        q_format, k_format = walker.format_of(query), arrays.formats["k"]
        exact = exact_product(q_format, k_format, ops.fmt)
        fused = n.tree is not None and "fma" in n.tree.flags
        if isinstance(ops, F32) and not compute.ftz:
            ops.note(products_at_risk(exponent_range(q), q_format, arrays.ranges["k"], k_format))
            if not fused or exact:
                zero = None if exact else arrays.zero
                return contract.ordered_scores(q, keys, arrays.kv_len, exact=exact, zero=zero)
        check = self._watch(n, "k")
        blocks, _, tiles, heads, _, _ = keys.shape
        start = jnp.broadcast_to(ops.constant(0.0), (blocks * tiles, heads, q.shape[1], LANES))

        def body(d: Array, total: Array) -> Array:
            words = jax.lax.dynamic_slice(
                keys, (0, d // LANES, 0, 0, d % LANES, 0), (blocks, 1, tiles, heads, 1, LANES)
            )
            k = self.decode(words.reshape(blocks * tiles, heads, 1, LANES))
            a = jax.lax.dynamic_index_in_dim(q, d, 2)
            if fused:
                return ops.fma(a, k, total, compute, check=check)
            return ops.add(total, ops.mul(a, k, compute, exact=exact, check=check), compute, check=check)

        return ops.fori_loop(0, q.shape[2], body, start)

    # -- everything else ----------------------------------------------------------------------------------

    def reduction(self, n: Reduce, frame: Frame | None) -> Val:
        """The value of a reduction in plan order."""
        walker = self.walker
        assert n.over is not None
        if DEPTH in n.over:
            return walker.cut(walker.gather(self.scores(n)), frame)
        over = self.axes.physical(n.over)
        live = self._live(n, frame)
        if n.kind == "max":
            return self._max(n, over, live, frame)
        if n.kind == "any":
            return self._any(n, over, live, frame)
        assert n.tree is not None
        if n.tree.kind == "mma":
            return self.dots.reduction(n, over, live, frame)
        if self._bracketed(n):
            return self.brackets.reduction(n, over, live, frame)
        pair = sum_factors(n)
        if pair is None:
            return self._sum(n, over, live, frame)
        for weight, other in (pair, pair[::-1]):
            if isinstance(other, Name) and other.id == "v":
                return self._values(n, weight, over, live, frame)
        return self._products(n, pair, over, live, frame)

    def _bracketed(self, n: Reduce) -> bool:
        """Whether ``n`` is more than one sequence over tokens and levels."""
        assert n.tree is not None
        assert n.over is not None
        nested = {*self.walker.program.level_names, TOKEN}
        plain = n.tree.kind == "seq" and not {"swap", "desc"} & set(n.tree.flags)
        factors = sum_factors(n)
        if factors is None:
            plain = plain and not any(reads(a, "v") for a in n.args)
        else:
            plain = plain and not any(reads(a, "v") and not isinstance(a, Name) for a in factors)
        return not plain or n.by is not None or n.first is not None or not set(n.over) <= nested

    def _live(self, n: Reduce, frame: Frame | None) -> Val:
        """Which leaves exist: tokens that are owned, pieces that are visited."""
        types = self.walker.program.types
        axes = frozenset(n.over or ()).union(*(types[a].axes for a in n.args))
        if TOKEN in axes:
            return self.walker.cut(self.arrays.live, frame)
        deepest = [level for level in self.walker.program.level_names if level in axes]
        if not deepest:
            return Val(jnp.ones((), bool))
        return self.walker.cut(self.arrays.exists[deepest[-1]], frame)

    def _any(self, n: Reduce, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        axes, (data, mask) = self.axes.together(self.walker.value(n.args[0], frame), live)
        where = tuple(i for i, a in enumerate(axes) if a in over)
        return Val(jnp.any(data & mask, axis=where), tuple(a for a in axes if a not in over))

    def _max(self, n: Reduce, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        axes, (data, mask) = self.axes.together(self.walker.value(n.args[0], frame), live)
        data = jnp.where(mask, data, -jnp.inf)
        where = tuple(i for i, a in enumerate(axes) if a in over)
        return Val(self.ops.max_over(data, axis=where), tuple(a for a in axes if a not in over))

    def _start(self, n: Reduce, frame: Frame | None, leaves: tuple[str, ...]) -> Val:
        """The accumulator before the first leaf, at the full size of the result's axes."""
        # The compiler must not know this zero: it would drop 0 + x, and with it the sign that turns -0 into +0.
        start = Val(self.ops.constant(0.0)) if n.start is None else self.walker.value(n.start, frame)
        return self.axes.full(start, self.axes.union(leaves, start.axes))

    def _plain(self, n: Reduce, frame: Frame | None) -> bool:
        """Whether the contraction kernels sum as ``n`` says: from +0, in f32, on a whole plan."""
        ftz = self.walker.program.compute.ftz
        return (
            frame is None and isinstance(self.ops, F32) and n.start is None and n.format is None and not ftz
        )

    def _groups(
        self, val: Val, over: tuple[str, ...]
    ) -> tuple[Array, tuple[str, ...], contract.Steps] | None:
        """``val`` as ``[group, step, kv_head, row, 16]`` where the tables of the plan fit, and the group axes."""
        levels = self.walker.program.level_names
        outer = tuple(a for a in levels if a not in over)
        if not self.arrays.consecutive or STEP not in over or levels[: len(outer)] != outer:
            return None
        groups = math.prod(self.axes.shape(outer))
        data = self.axes.full(val, (*levels, STEP, HEAD, ROW_AXIS, LANE)).data
        data = data.reshape(groups, -1, *data.shape[-3:])
        tokens = self.arrays.tokens.reshape(groups, -1, LANES)
        length = jnp.sum(tokens >= 0, axis=-1, dtype=jnp.int32)
        count = jnp.max(jnp.where(length > 0, jnp.arange(1, length.shape[1] + 1, dtype=jnp.int32), 0), axis=1)
        visited = jnp.max(jnp.where(count > 0, jnp.arange(1, groups + 1, dtype=jnp.int32), 0))
        start = jnp.maximum(tokens[..., 0], 0)
        return data, outer, contract.Steps(start, length, count, visited, self.arrays.aligned)

    def _sum(self, n: Reduce, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        walker, ops = self.walker, self.ops
        axes, (data, mask) = self.axes.together(walker.value(n.args[0], frame), live)
        if isinstance(ops, F32) and not walker.program.compute.ftz:
            ops.note(sum_at_risk(exponent_range(jnp.where(mask, data, 0.0)), walker.format_of(n.args[0])))
        if self._plain(n, frame) and DIM not in axes:
            grouped = self._groups(Val(jnp.where(mask, data, 0.0), axes), over)
            if grouped is not None:
                weights, outer, steps = grouped
                sums = contract.ordered_sums(weights, steps)
                return Val(sums.reshape(*self.axes.shape(outer), *sums.shape[1:]), (*outer, HEAD, ROW_AXIS))
        leaves = self.axes.front(Val(jnp.where(mask, data, -0.0), axes), over)
        start = self._start(n, frame, leaves.axes)
        check = self._watch(n)

        def body(total: Array, leaf: Array) -> tuple[Array, None]:
            return ops.add(
                total, self.axes.align(Val(leaf, leaves.axes), start.axes), self.format(n), check=check
            ), None

        return Val(ops.scan(body, start.data, leaves.data, unroll=_UNROLL)[0], start.axes)

    def _products(
        self, n: Reduce, pair: tuple[Node, Node], over: tuple[str, ...], live: Val, frame: Frame | None
    ) -> Val:
        walker = self.walker
        vals = [walker.value(x, frame) for x in pair]
        formats = (walker.format_of(pair[0]), walker.format_of(pair[1]))
        if isinstance(self.ops, F32) and not walker.program.compute.ftz:
            masked = [self._masked(v, live) for v in vals]
            low, high = (exponent_range(m.data) for m in masked)
            self.ops.note(products_at_risk(low, formats[0], high, formats[1]))
        a, b, mask = (self.axes.front(v, over) for v in (*vals, live))
        start = self._start(n, frame, self.axes.union(a.axes, b.axes, mask.axes))

        def leaf(xs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x, y, alive = (
                self.axes.align(Val(d, v.axes), start.axes) for d, v in zip(xs, (a, b, mask), strict=True)
            )
            return x, y, alive

        return self._fold(n, start, (a.data, b.data, mask.data), leaf, formats)

    def _watch(self, n: Reduce, stored: str = "") -> bool:
        """Whether each operation of a sum must look for subnormals itself.

        So it is in f64, where no range was checked before, and after ``start=``, which may be finer than the
        terms whose range was checked: their difference can be subnormal. The values of ``stored`` (k or v) are
        taken as they lie, so in f64 their own range is looked at here.
        """
        double = isinstance(self.ops, F64)
        if double and stored:
            self.ops.note(self.arrays.ranges[stored].low < F64.fmt.emin)
        fast = isinstance(self.ops, F32)
        return double or (fast and (n.start is not None or self.walker.program.compute.ftz))

    def _masked(self, val: Val, live: Val) -> Val:
        axes, (data, mask) = self.axes.together(val, live)
        return Val(jnp.where(mask, data, 0.0), axes)

    def _fold(
        self, n: Reduce, start: Val, leaves: object, leaf: object, formats: tuple[Format, Format]
    ) -> Val:
        """Fold products from ``start``: ``leaf`` makes the two factors and the mask out of one slice of ``leaves``."""
        ops, fmt, compute = self.ops, self.format(n), self.walker.program.compute
        fused = n.tree is not None and "fma" in n.tree.flags
        exact = exact_product(*formats, ops.fmt)
        check = self._watch(n)

        def body(total: Array, xs: object) -> tuple[Array, None]:
            a, b, alive = leaf(xs)  # type: ignore[operator]
            if check:  # what padding holds is no risk
                a = jnp.where(alive, a, 0.0)
            if fused:
                return jnp.where(alive, ops.fma(a, b, total, fmt, check=check), total), None
            product = jnp.where(alive, ops.mul(a, b, compute, check=check, exact=exact), -0.0)
            return ops.add(total, product, fmt, check=check), None

        return Val(ops.scan(body, start.data, leaves, unroll=1)[0], start.axes)

    # -- sums of weighted values --------------------------------------------------------------------------

    def _values(self, n: Reduce, weight: Node, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        """``sum(w * v, seq())``: V is never laid out anew, its rows are taken as the loop visits them."""
        walker, ops, arrays = self.walker, self.ops, self.arrays
        formats = (walker.format_of(weight), arrays.formats["v"])
        w = self._masked(walker.value(weight, frame), live)
        fused = n.tree is not None and "fma" in n.tree.flags
        exact = exact_product(*formats, ops.fmt)
        if isinstance(ops, F32) and not walker.program.compute.ftz:
            ops.note(products_at_risk(exponent_range(w.data), formats[0], arrays.ranges["v"], formats[1]))
            grouped = self._groups(w, over) if self._plain(n, frame) and (exact or not fused) else None
            if grouped is not None:
                data, outer, steps = grouped
                zero = None if exact else arrays.zero
                sums = contract.ordered_values(data, arrays.v, steps, exact=exact, zero=zero)
                joined = contract.join_values(sums, self.axes.sizes[DIM])
                return Val(
                    joined.reshape(*self.axes.shape(outer), *joined.shape[1:]), (*outer, HEAD, ROW_AXIS, DIM)
                )
        self._watch(n, "v")
        tokens = walker.cut(Val(arrays.tokens, (*walker.program.level_names, STEP, LANE)), frame)
        leaves, mask, where = (self.axes.front(v, over) for v in (w, live, tokens))
        start = self._start(n, frame, self.axes.union(leaves.axes, mask.axes, where.axes, (HEAD, DIM)))
        dim = self.axes.sizes[DIM]

        def leaf(xs: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            picked = jnp.take(arrays.v, jnp.maximum(xs[2], 0), axis=0, mode="clip")
            picked = picked.reshape(*picked.shape[:-2], -1)[..., :dim]
            v = Val(self.decode(picked), (*where.axes, HEAD, DIM))
            a = self.axes.align(Val(xs[0], leaves.axes), start.axes)
            return a, self.axes.align(v, start.axes), self.axes.align(Val(xs[1], mask.axes), start.axes)

        return self._fold(n, start, (leaves.data, mask.data, where.data), leaf, formats)
