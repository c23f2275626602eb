"""Matrix products as chains of tensor-core instructions, at the speed of the engine's kernels.

``y[m, n] = sum over k of x[m, k] * w[n, k]``: for every element a chain of ``mma(k)`` instructions over ascending k from
+0, the accumulator in f32, with the arithmetic of `verify.engine.tensor_core` (oracle: `verify.numerics.tensor_core`).
Split-K cuts the chain into slices of whole units; each starts at +0, and the slices are added afterwards.

**Layout.** A matrix ``w [n, k]`` is cut into panels of 16 terms and `Matrices.width` output columns, ``[step, window, 16,
width]``, all matrices of a model in one flat array, so that one compiled program serves them all: which panels and which
steps is said at run time. A call works on one window and a block of rows at a time; the accumulator ``[rows, width]``
stays in the cache for the whole chain.

**Why it is fast.** A panel is decoded once and serves all rows of the block. Factors are signed: their product is an
integer p with its sign s = p >> 31 (0 or -1), and ``(p + s) >> d`` is, less one where p is negative, the product cut
toward zero; how many are negative is a population count of two words of signs (zeros masked out) a block. So a product
costs eight vector operations and four loads, whatever the width of a vector register.

Bits in and bits out, subnormals kept. Operands must be finite; results may be infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine import tensor_core
from verify.engine import tensor_core_kernels as kernels
from verify.engine.contract import COMPILER_OPTIONS
from verify.engine.tensor_core import NOTHING, Product

TERMS = 16
"""Terms of one step: one instruction, or several shorter ones."""

_MOST_ROWS = 160


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices laid out in one flat array.

    Attributes:
        panels: uint16 words ``[count, 16 (term), width]``.
        marks: uint32 ``[count, width]``: bit u: term u is negative; bit 16 + u: it is not zero.
        first: number of the first panel of each matrix, by name.
        shape: ``(n, k)`` of each, by name.
        width: output columns of a panel.
    """

    panels: Array
    marks: Array
    first: Mapping[str, int]
    shape: Mapping[str, tuple[int, int]]
    width: int

    @property
    def most_steps(self) -> int:
        """The most steps of 16 terms."""
        return max(-(-k // TERMS) for _, k in self.shape.values())

    def windows(self, name: str) -> int:
        """Panels side by side of one matrix."""
        return -(-self.shape[name][0] // self.width)


def width_for(sizes: Sequence[int]) -> int:
    """Columns of a panel: of 64 to 256, what pads matrices of so many output columns least; of several, the nearest 192."""

    def cost(width: int) -> tuple[int, int]:
        return sum(-(-n // width) * width for n in sizes), abs(width - 192)

    return min(range(64, 257, 16), key=cost)


def lay_out(matrices: Mapping[str, NDArray[np.uint16]]) -> Matrices:
    """Lay bf16 or f16 words ``[n, k]`` out, by name.

    Raises:
        UnsupportedError: words of another width.
    """
    width = width_for([w.shape[0] for w in matrices.values()])
    first: dict[str, int] = {}
    count = 0
    for name, w in matrices.items():
        if w.dtype != np.uint16:
            raise UnsupportedError(f"matrices of {w.dtype}", remedy="products of bf16 and f16 are modelled")
        first[name] = count
        count += -(-w.shape[0] // width) * -(-w.shape[1] // TERMS)
    panels = np.zeros((count, TERMS, width), np.uint16)
    marks = np.zeros((count, width), np.uint32)
    for name, w in matrices.items():
        n, k = w.shape
        windows, steps = -(-n // width), -(-k // TERMS)
        padded = np.zeros((windows * width, steps * TERMS), np.uint16)
        padded[:n, :k] = w
        own = padded.reshape(windows, width, steps, TERMS).transpose(2, 0, 3, 1).reshape(-1, TERMS, width)
        where = slice(first[name], first[name] + len(own))
        panels[where] = own
        for u in range(TERMS):
            marks[where] |= (own[:, u] >> np.uint16(15)).astype(np.uint32) << np.uint32(u)
            marks[where] |= ((own[:, u] & 0x7FFF) != 0).astype(np.uint32) << np.uint32(TERMS + u)
    shapes = {name: (int(w.shape[0]), int(w.shape[1])) for name, w in matrices.items()}
    return Matrices(jnp.asarray(panels), jnp.asarray(marks), first, shapes, width)


def rows_of(count: int) -> int:
    """Rows of a block: the largest divisor of ``count`` up to 160."""
    return max(d for d in range(1, min(count, _MOST_ROWS) + 1) if count % d == 0)


def check_instruction(dot: DotProduct, k: int) -> None:
    """Refuse an instruction that the program does not run.

    Raises:
        UnsupportedError: its length is another than 4, 8 or 16, or its accumulator is not f32.
    """
    if k not in (4, 8, 16) or dot.output != "f32" or dot.addition == "late" or dot.converted:
        raise UnsupportedError(
            f"matrix products by instructions of {k} terms to {dot.output}",
            remedy="instructions of 4, 8 or 16 terms of bf16 or f16 with f32 accumulators are run",
        )


@lru_cache(maxsize=32)
def program(dot: DotProduct, k: int, fmt: Format, rows: int, blocks: int, windows: int, width: int) -> Any:
    """The compiled product ``f(words, panels, marks, place) -> bits``.

    Args:
        dot: the arithmetic.
        k: terms of one instruction.
        fmt: format of both sides.
        rows: rows of a block; ``blocks`` of them are ``x``.
        windows: room for output windows of ``width`` columns.
        width: see `Matrices`.

    ``words`` are ``[rows * blocks, steps * 16]`` of ``fmt``; ``place`` is int32 ``[first panel of the matrix, its windows,
    window to begin with, window to end before, first step, end step]``. The result is uint32 ``[rows * blocks, windows *
    width]``, of which the columns of those windows count.
    """

    def run(words: Array, panels: Array, marks: Array, place: Array) -> Array:
        first, count, low, high, begin, end = (place[i] for i in range(6))
        left = lax.optimization_barrier(_left(words, fmt, dot, (blocks, rows)))

        def work(i: Array, out: Array) -> Array:
            block, at = i % np.int32(blocks), i // np.int32(blocks)

            def deepen(s: Array, acc: Array) -> Array:
                panel = first + s * count + low + at
                own = _Left(*(_slice(x, (block, s), (1, 1)).reshape(x.shape[2:]) for x in left))
                right = _right(_slice(panels, (panel,), (1,))[0], _slice(marks, (panel,), (1,))[0], fmt, dot)
                return _step(dot, k, fmt, own, right, acc)

            acc = lax.fori_loop(begin, end, deepen, jnp.zeros((rows, width), jnp.uint32))
            return lax.dynamic_update_slice(out, acc, (block * np.int32(rows), at * np.int32(width)))

        out = jnp.zeros((blocks * rows, windows * width), jnp.uint32)
        return lax.fori_loop(np.int32(0), (high - low) * np.int32(blocks), work, out)

    return jax.jit(run, compiler_options=COMPILER_OPTIONS)


class _Left(NamedTuple):
    """Rows, ``[block, step, 16, rows]`` (signed significand scaled to the fraction bits, biased exponent) and marks."""

    significand: Array
    exponent: Array
    marks: Array


class _Right(NamedTuple):
    """A panel, ``[16, width]``, and its marks ``[width]``."""

    significand: Array
    exponent: Array
    marks: Array


def _left(words: Array, fmt: Format, dot: DotProduct, blocks: tuple[int, int]) -> _Left:
    """The rows decoded, once for all windows."""
    shaped = words.reshape(*blocks, words.shape[1] // TERMS, TERMS).transpose(0, 2, 3, 1)
    part = kernels.split(shaped, fmt, dot)
    lift = np.int32(1 << (_fraction(fmt, dot) - 2 * kernels.fraction_of(fmt, dot)))
    shift = np.int32(_bias(dot) - 2 * kernels.exponent_bias(fmt, dot))
    exponent = jnp.where(part.exponent == np.int32(NOTHING), part.exponent, part.exponent + shift)
    places = (np.uint32(1) << np.arange(TERMS, dtype=np.uint32)).reshape(TERMS, 1)
    signs = jnp.sum(jnp.where(part.sign < 0, places, np.uint32(0)), axis=2, dtype=jnp.uint32)
    there = jnp.sum(jnp.where(part.magnitude != 0, places, np.uint32(0)), axis=2, dtype=jnp.uint32)
    marks = signs | (there << np.uint32(TERMS))
    return _Left(((part.magnitude ^ part.sign) - part.sign) * lift, exponent, marks)


def _right(words: Array, marks: Array, fmt: Format, dot: DotProduct) -> _Right:
    """A panel decoded, kept apart from what follows so that it is not decoded for every row."""
    part = kernels.split(words, fmt, dot)
    signed = (part.magnitude ^ part.sign) - part.sign
    return _Right(*lax.optimization_barrier((signed, part.exponent, marks)))


def _fraction(fmt: Format, dot: DotProduct) -> int:
    return max(dot.fraction_bits, 2 * kernels.fraction_of(fmt, dot))


def _bias(dot: DotProduct) -> int:
    """The bias of exponents inside the program: that of the output's field."""
    return 1 - BASES[dot.output].emin


def _step(dot: DotProduct, k: int, fmt: Format, left: _Left, right: _Right, acc: Array) -> Array:
    """Sixteen terms further: ``acc [rows, width]``."""
    odd = left.marks[:, None] ^ right.marks[None]
    both = left.marks[:, None] & right.marks[None]
    negative = odd & (both >> np.uint32(TERMS))
    for first in range(0, TERMS, k):
        for terms in dot.blocks(k):
            at = [first + i for i in terms]
            products: list[Product] = []
            for u in at:
                p = left.significand[u][:, None] * right.significand[u][None]
                e = left.exponent[u][:, None] + right.exponent[u][None]
                sign = lax.shift_right_arithmetic(p, np.int32(31))
                products.append(Product(p + sign, e, np.int32(0)))  # pyright: ignore[reportArgumentType]
            own = negative & np.uint32(sum(1 << u for u in at))
            count = lax.population_count(own).astype(jnp.int32)
            acc = tensor_core.block(
                dot, products, acc, fraction=_fraction(fmt, dot), bias=_bias(dot), negatives=count
            )
    return acc


def _slice(x: Array, start: Sequence[Array], sizes: Sequence[int]) -> Array:
    """One place of the leading axes, all of the others."""
    rest = x.shape[len(start) :]
    at = [jnp.asarray(i, jnp.int32) for i in start] + [jnp.int32(0)] * len(rest)
    return lax.dynamic_slice(x, at, (*sizes, *rest), allow_negative_indices=False)


@jax.jit
def _add(x: Array, y: Array) -> Array:
    return tensor_core.add(x, y, BASES["f32"])


def merged(parts: Sequence[Array], merge: str) -> Array:
    """Partial products (bits of f32) added in f32: ``seq`` in order, or ``pairwise``; each sum rounds to nearest even."""
    if merge == "seq":
        total = parts[0]
        for part in parts[1:]:
            total = _add(total, part)
        return total
    level = list(parts)
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [_add(*p) if len(p) == 2 else p[0] for p in pairs]
    return level[0]


@dataclass(frozen=True, eq=False)
class Products:
    """The products of one model by one instruction.

    Attributes:
        matrices: the weights.
        dot: the arithmetic; ``k``: terms of one instruction; ``fmt``: format of both sides.
        unit: terms that a cut never parts; ``merge``: see `merged`.
        windows: room for output windows of one call; wider ranges are worked through in several.
    """

    matrices: Matrices
    dot: DotProduct
    k: int
    fmt: Format
    unit: int
    merge: str
    windows: int

    def slices(self, name: str, splits: int) -> list[tuple[int, int]]:
        """The steps of 16 terms of each slice of the chain of matrix ``name``, empty ones left out."""
        depth = self.matrices.shape[name][1]
        units = -(-depth // self.unit)
        each = -(-units // max(1, splits)) * (self.unit // TERMS)
        steps = -(-depth // TERMS)
        return [(s, min(s + each, steps)) for s in range(0, steps, each)]

    def __call__(
        self, words: Array, name: str, splits: int = 1, windows: tuple[int, int] | None = None
    ) -> Array:
        """``words @ w.T`` for matrix ``name``.

        Args:
            words: of ``fmt``, ``[rows, terms]``: terms past those of the matrix do not count.
            name: of the matrix.
            splits: slices of the chain.
            windows: only the output columns of these windows.

        Returns:
            bits of f32, ``[rows, columns]``; columns past those asked for mean nothing.

        Raises:
            ValueError: more windows than there is room for.
        """
        m = self.matrices
        depth = m.shape[name][1]
        low, high = windows or (0, m.windows(name))
        if high - low > self.windows:
            raise ValueError(f"{high - low} windows; room for {self.windows}")
        wide = m.most_steps * TERMS
        if words.shape[1] != wide:
            words = jnp.pad(words[:, :depth], ((0, 0), (0, wide - min(depth, words.shape[1]))))
        rows = rows_of(words.shape[0])
        dot: Any = self.dot  # frozen, so it has a hash, which its base class hides from type checkers
        run = program(dot, self.k, self.fmt, rows, words.shape[0] // rows, self.windows, m.width)
        parts: list[Array] = []
        for begin, end in self.slices(name, splits):
            place = np.array([m.first[name], m.windows(name), low, high, begin, end], np.int32)
            parts.append(run(words, m.panels, m.marks, place))
        return merged(parts, self.merge)
