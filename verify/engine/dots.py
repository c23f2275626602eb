"""``mma`` trees of the array walker: chains of fused dot products, with the arithmetic of the platform."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from specs.dot_products import DotProduct
from specs.formats import Format
from specs.nodes import At, Name, Node, Reduce, Tree
from specs.program import DEPTH, DIM
from verify.engine import bits, tensor_core
from verify.engine import tensor_core_kernels as kernels
from verify.engine.primitives import F32, Carrier
from verify.engine.support import by_key, dot_product, integer, reads, sum_factors
from verify.engine.tensor_core import Operand
from verify.engine.trees import Terms
from verify.engine.values import HEAD, LANE, LANES, ROW_AXIS, STEP, Val

if TYPE_CHECKING:
    from verify.engine.evaluate import Evaluator, Frame

Array = jax.Array
_KERNEL_LENGTHS = (4, 8, 16, 32)  # K of the instructions that the kernels know


class Dots:
    """Evaluates the ``mma`` reductions of one `Evaluator`."""

    def __init__(self, walker: Evaluator) -> None:
        self.walker = walker
        self.ops: Carrier = walker.ops
        self.axes = walker.axes

    def _model(
        self, n: Reduce, factors: tuple[Node, Node], tree: Tree | None = None
    ) -> tuple[DotProduct, Format, Format, Format]:
        tree = tree or n.tree
        assert tree is not None
        return dot_product(self.walker.program, n, factors, tree)

    # -- words --------------------------------------------------------------------------------------------

    def words(self, x: Array, fmt: Format) -> Array:
        """Stored words of values that ``fmt`` holds."""
        return self.ops.encode(x, fmt)

    def stored(self, words: Array, fmt: Format) -> Array:
        """Words of ``fmt`` of prepared K or V, which lie as bf16 or f32."""
        if words.dtype == jnp.uint16 and fmt.base == "bf16":
            return words
        return bits.encode(self.walker.reduce.decode(words), fmt)

    def _coded(self, x: Node, name: str, stored: Array, fmt: Format) -> Array:
        """Words of a factor that is the input ``name``, or made of it element by element."""
        if isinstance(x, At):  # the keys of a fragment in another order
            ((axis, index),) = x.moves
            assert axis == DEPTH
            return self._reordered(self._coded(x.arg, name, stored, fmt), index)
        if isinstance(x, Name):
            self._watch(self._finite_input(name))
            return self.stored(stored, fmt)
        values = self.walker.elementwise(x, name, self.walker.reduce.decode(stored))
        self._watch(jnp.all(jnp.isfinite(values)))
        return self.words(values, fmt)

    def _reordered(self, keys: Array, index: Node) -> Array:
        """Prepared keys with another order of the elements of head_dim."""
        order = self.walker.positions.integer(index, None)
        assert order.axes == (DEPTH,)
        by_depth = jnp.moveaxis(keys, (1, 4), (0, 1))
        flat = by_depth.reshape(-1, *by_depth.shape[2:])
        spot = jnp.concatenate([jnp.asarray(order.data), jnp.arange(len(order.data), len(flat))])
        return jnp.moveaxis(flat[spot].reshape(by_depth.shape), (0, 1), (1, 4))

    def _result(self, words: Array, out: Format) -> Array:
        return self.ops.decode(words, out)

    def _watch(self, *finite: Array) -> None:
        """The fast blocks take finite operands; anything else is left to the exact carrier."""
        if isinstance(self.ops, F32):
            for x in finite:
                self.ops.note(~x)

    @property
    def _fast(self) -> bool:
        return isinstance(self.ops, F32)

    def _finite_input(self, name: str) -> Array:
        fmt = self.walker.arrays.formats[name]
        return self.walker.arrays.ranges[name].high <= fmt.emax

    # -- dot products of q and k --------------------------------------------------------------------------

    def scores(self, n: Reduce) -> Array:
        """The dot products of queries and keys, in natural order: ``[tile, kv_head, row, 16]``."""
        walker, arrays = self.walker, self.walker.arrays
        query, key = by_key(n)
        assert n.tree is not None
        assert arrays.k is not None
        dot, fmt_q, fmt_k, out = self._model(n, (query, key))
        values = self.axes.full(walker.value(query, None), (HEAD, ROW_AXIS, DEPTH)).data
        self._watch(jnp.all(jnp.isfinite(values)))
        q = self.words(values, fmt_q)
        keys = self._coded(key, "k", arrays.k, fmt_k)
        k = integer(n.tree.ints[0])
        if self._fast and k in _KERNEL_LENGTHS:
            return self._result(kernels.qk(dot, k, q, fmt_q, keys, fmt_k, arrays.kv_len), out)
        blocks, deep, tiles, heads, _, _ = keys.shape
        depth = deep * LANES
        q = jnp.pad(q, ((0, 0), (0, 0), (0, depth - q.shape[2])))
        by_depth = jnp.moveaxis(keys, (1, 4), (0, 1)).reshape(depth, blocks * tiles, heads, 1, LANES)
        start = jnp.zeros((blocks * tiles, heads, q.shape[1], LANES), _word(out))
        a = jnp.moveaxis(q, 2, 0)[:, None, :, :, None]
        acc = self._chain(dot, n.tree, a, by_depth, start, fmt_q, fmt_k)
        return self._result(acc, out)

    # -- everything else ----------------------------------------------------------------------------------

    def reduction(self, n: Reduce, over: tuple[str, ...], live: Val, frame: Frame | None) -> Val:
        """A dot product over tokens or levels, in visiting order."""
        walker, brackets = self.walker, self.walker.reduce.brackets
        pair = sum_factors(n)
        assert pair is not None
        assert n.tree is not None
        dot, *formats, out = self._model(n, pair)
        if self._fast and reads(pair[1], "v") and over == (STEP, LANE):
            return self._values(n, pair, dot, (formats[0], formats[1], out), live, frame)
        leaves = brackets.leaves(n, pair, over, live, frame, stored=True)
        start = None if n.start is None else walker.value(n.start, frame)
        groups = [p.axes for p in leaves.parts] + [leaves.alive.axes] + ([start.axes] if start else [])
        axes = self.axes.union(*groups)
        alive = brackets.spread(leaves.alive, axes)
        words: list[Array] = []
        for factor, part, fmt in zip(pair, leaves.parts, formats, strict=True):
            data = brackets.spread(part, axes)
            if isinstance(factor, Name) and factor.id == "v":
                self._watch(self._finite_input("v"))
                coded = self.stored(data, fmt)
            else:
                self._watch(jnp.all(jnp.isfinite(data) | ~alive))
                coded = self.words(data, fmt)
            if coded is not data or not self._fast:  # V as stored is finite, and 0 * v is 0
                coded = jnp.where(alive, coded, jnp.zeros((), coded.dtype))
            words.append(coded)
        begin = self.ops.constant(0.0) if start is None else self.axes.align(start, axes)
        acc = jnp.broadcast_to(self.words(begin, out), self.axes.shape(axes))
        acc = self._chain(dot, n.tree, words[0], words[1], acc, formats[0], formats[1])
        return Val(self._result(acc, out), axes)

    def _values(
        self,
        n: Reduce,
        pair: tuple[Node, Node],
        dot: DotProduct,
        formats: tuple[Format, Format, Format],
        live: Val,
        frame: Frame | None,
    ) -> Val:
        """Weights times V over the tokens of each innermost piece, by the kernel for it."""
        walker, arrays, axes = self.walker, self.walker.arrays, self.axes
        assert n.tree is not None
        fmt_w, fmt_v, out = formats
        levels = tuple(a for a in walker.program.level_names if frame is None or a not in frame.cut)
        tokens = walker.cut(Val(arrays.tokens, (*walker.program.level_names, STEP, LANE)), frame)
        groups = math.prod(axes.shape(levels))
        where = axes.full(tokens, (*levels, STEP, LANE)).data.reshape(groups, -1)
        full = (*levels, STEP, HEAD, ROW_AXIS, LANE)
        there, w = (axes.full(x, full).data for x in (live, walker.value(pair[0], frame)))
        self._watch(jnp.all(jnp.isfinite(w) | ~there))
        if isinstance(pair[1], Name):
            self._watch(self._finite_input("v"))
        words = jnp.where(there, self.words(w, fmt_w), jnp.zeros((), _word(fmt_w)))
        steps, heads, rows, _ = words.shape[-4:]
        words = words.reshape(groups, steps, heads, rows, LANES)
        words = words.transpose(0, 2, 3, 1, 4).reshape(groups, heads, rows, steps * LANES)
        if n.by is not None:
            table = walker.positions.colours(walker.program.views[n.by], (STEP, LANE)).T  # [colour, slot]
            spot, found = jnp.asarray(table.clip(0)), jnp.asarray(table >= 0)
            where = jnp.where(found, where[:, spot], -1).reshape(groups * len(table), -1)
            words = jnp.where(found, words[..., spot], 0).transpose(0, 3, 1, 2, 4)
            words = words.reshape(groups * len(table), heads, rows, -1)
        k, count = integer(n.tree.ints[0]), words.shape[-1]
        size = k if k > LANES else LANES
        extra = -count % size
        words = jnp.pad(words, [(0, 0)] * 3 + [(0, extra)])
        where = jnp.pad(where, [(0, 0), (0, extra)], constant_values=-1)
        start = self.ops.constant(0.0) if n.start is None else walker.value(n.start, frame)
        begin = start if isinstance(start, Val) else Val(start)
        colour = () if n.by is None else (n.by,)
        shaped = axes.union(levels, (HEAD, ROW_AXIS), colour, (DIM,))
        acc = self.words(axes.full(begin, shaped).data, out)
        kernel = (*levels, *colour, HEAD, ROW_AXIS, DIM)
        acc = jnp.transpose(acc, [shaped.index(a) for a in kernel])
        depth, dim = arrays.v.shape[2], axes.sizes[DIM]
        acc = acc.reshape(len(words), heads, rows, dim)
        acc = jnp.pad(acc, [(0, 0)] * 3 + [(0, depth * LANES - dim)])
        acc = acc.reshape(len(words), heads, rows, depth, LANES).transpose(0, 1, 3, 2, 4)

        def step(i: Array, acc: Array) -> Array:
            part = jax.lax.dynamic_slice_in_dim(words, i * size, size, axis=3)
            at = jax.lax.dynamic_slice_in_dim(where, i * size, size, axis=1)
            read = jax.lax.optimization_barrier(jnp.take(arrays.v, jnp.maximum(at, 0), axis=0, mode="clip"))
            return kernels.values_step(dot, k, acc, part, fmt_w, self._row_words(pair[1], read, fmt_v), fmt_v)

        acc = self.ops.fori_loop(jnp.int32(0), jnp.int32(words.shape[-1] // size), step, acc)
        acc = acc.transpose(0, 1, 3, 2, 4).reshape(len(words), heads, rows, depth * LANES)[..., :dim]
        acc = acc.reshape([axes.sizes[a] for a in kernel])
        return Val(self._result(jnp.transpose(acc, [kernel.index(a) for a in shaped]), out), shaped)

    def _row_words(self, x: Node, stored: Array, fmt: Format) -> Array:
        """Words of rows of V, or of what is made of it."""
        if isinstance(x, Name):
            return self.stored(stored, fmt)
        values = self.walker.elementwise(x, "v", self.walker.reduce.decode(stored))
        self._watch(jnp.all(jnp.isfinite(values)))
        return self.words(values, fmt)

    # -- chains -------------------------------------------------------------------------------------------

    def inner(
        self, n: Reduce, factors: tuple[Node, Node], tree: Tree, terms: Terms, start: Array | None
    ) -> Array:
        """An ``mma`` tree inside another one: values in, values out."""
        dot, *formats, out = self._model(n, factors, tree)
        words: list[Array] = []
        for part, fmt in zip(terms.parts, formats, strict=True):
            coded = self.words(part, fmt)
            if terms.alive is None:
                self._watch(jnp.all(jnp.isfinite(part)))
            else:
                self._watch(jnp.all(jnp.isfinite(part) | ~terms.alive))
                coded = jnp.where(terms.alive, coded, jnp.zeros((), coded.dtype))
            words.append(coded)
        shape = jnp.broadcast_shapes(*(w.shape[1:] for w in words))
        begin = self.words(self.ops.constant(0.0) if start is None else start, out)
        acc = jnp.broadcast_to(begin, jnp.broadcast_shapes(shape, begin.shape))
        return self._result(self._chain(dot, tree, words[0], words[1], acc, formats[0], formats[1]), out)

    def _chain(
        self, dot: DotProduct, tree: Tree, a: Array, b: Array, acc: Array, fmt_a: Format, fmt_b: Format
    ) -> Array:
        """Instructions of k terms along the leading axis of ``a`` and ``b``; words in, words out."""
        k = integer(tree.ints[0])
        count = max(1, -(-a.shape[0] // k))
        widen = [(0, count * k - a.shape[0])]
        a, b = (jnp.pad(x, widen + [(0, 0)] * (x.ndim - 1)) for x in (a, b))
        a, b = (x.reshape(count, k, *x.shape[1:]) for x in (a, b))

        def step(acc: Array, xs: tuple[Array, Array]) -> tuple[Array, None]:
            x, y = xs
            if not self._fast:
                return tensor_core.instruction_any(dot, list(x), list(y), acc, fmt_a, fmt_b), None
            left, right = tensor_core.decode(x, fmt_a, dot), tensor_core.decode(y, fmt_b, dot)
            pick = [Operand(left.significand[i], left.exponent[i]) for i in range(k)]
            other = [Operand(right.significand[i], right.exponent[i]) for i in range(k)]
            return tensor_core.instruction(dot, pick, other, acc), None

        return jax.lax.scan(step, acc, (a, b))[0]


def _word(fmt: Format) -> jnp.dtype:
    return jnp.dtype(f"uint{fmt.bits}")
