"""Matrix products as chains of tensor-core instructions, at the speed of the engine's kernels.

``y[m, n] = sum over k of x[m, k] * w[n, k]``: for every element a chain of ``mma(k)`` instructions over ascending k from
+0, the accumulator in f32, with the arithmetic of `verify.engine.tensor_core` (oracle: `verify.numerics.tensor_core`).
Split-K cuts the chain into slices of whole units; each starts at +0, and the slices are added afterwards.

**Layout.** A matrix ``w [n, k]`` is cut into tiles of 16 rows and 16 terms, transposed, ``[step, tile, term, lane]``, in
one flat array of tiles, so that one compiled program serves every matrix of a model: it takes the place of the first
tile, the number of tiles a step and the range of steps at run time. A call works on windows of `TILES` tiles and
a block of rows; windows past the end of a matrix repeat tiles before it.

Bits in and bits out, subnormals kept. Operands must be finite; results may be infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine import tensor_core, tensor_core_kernels
from verify.engine.contract import COMPILER_OPTIONS, LANES
from verify.engine.tensor_core_kernels import Side, Split

_MOST_ROWS = 160
_I32 = jnp.int32


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices laid out in one flat array.

    Attributes:
        tiles: uint16 ``[count, 16 (term), 16 (lane)]``.
        first: place of the first tile of each matrix, by name.
        shape: ``(n, k)`` of each, by name.
        window: tiles that one step works on.
    """

    tiles: Array
    first: Mapping[str, int]
    shape: Mapping[str, tuple[int, int]]
    window: int

    @property
    def most_rows(self) -> int:
        """The largest n."""
        return max(n for n, _ in self.shape.values())

    @property
    def most_steps(self) -> int:
        """The most steps of 16 terms."""
        return max(-(-k // LANES) for _, k in self.shape.values())


def window_for(sizes: Sequence[int]) -> int:
    """Tiles of a window: of 8 to 32, what wastes least on matrices of so many output columns each."""

    def computed(window: int) -> tuple[int, int]:
        tiles = [-(-n // LANES) for n in sizes]
        return sum(max(t, -(-t // window) * window) for t in tiles), -window

    return min(range(8, 33), key=computed)


def lay_out(matrices: Mapping[str, NDArray[np.uint16]]) -> Matrices:
    """Lay bf16 (or f16) words ``[n, k]`` out, by name.

    Raises:
        UnsupportedError: words of another width.
    """
    first: dict[str, int] = {}
    count = 0
    window = window_for([w.shape[0] for w in matrices.values()])
    for name, w in matrices.items():
        if w.dtype != np.uint16:
            raise UnsupportedError(f"matrices of {w.dtype}", remedy="products of bf16 and f16 are modelled")
        first[name] = count
        count += -(-w.shape[0] // LANES) * -(-w.shape[1] // LANES)
    flat = np.zeros((count + window, LANES, LANES), np.uint16)
    for name, w in matrices.items():
        n, k = w.shape
        tiles, steps = -(-n // LANES), -(-k // LANES)
        padded = w
        if (tiles * LANES, steps * LANES) != w.shape:
            padded = np.zeros((tiles * LANES, steps * LANES), np.uint16)
            padded[:n, :k] = w
        shaped = padded.reshape(tiles, LANES, steps, LANES).transpose(2, 0, 3, 1)
        flat[first[name] : first[name] + tiles * steps] = shaped.reshape(-1, LANES, LANES)
    shapes = {name: (int(w.shape[0]), int(w.shape[1])) for name, w in matrices.items()}
    return Matrices(jnp.asarray(flat), first, shapes, window)


def rows_of(count: int) -> int:
    """Rows of a block: the largest divisor of ``count`` up to 160."""
    return max(d for d in range(1, min(count, _MOST_ROWS) + 1) if count % d == 0)


def check_instruction(dot: DotProduct, k: int) -> None:
    """Refuse an instruction that the program does not run.

    Raises:
        UnsupportedError: its length is another than 4, 8 or 16, or its accumulator is not f32.
    """
    if k not in (4, 8, 16) or dot.output != "f32":
        raise UnsupportedError(
            f"matrix products by instructions of {k} terms to {dot.output}",
            remedy="instructions of 4, 8 or 16 terms with f32 accumulators are run",
        )


@lru_cache(maxsize=32)
def program(dot: DotProduct, k: int, fmt: Format, rows: int, blocks: int, columns: int, window: int) -> Any:
    """The compiled product ``f(words, tiles, place) -> bits``.

    Args:
        dot: the arithmetic.
        k: terms of one instruction.
        fmt: format of both sides.
        rows: rows of a block; ``blocks`` of them are ``x``.
        columns: room for output columns.
        window: see `Matrices`.

    ``words`` are ``[rows * blocks, steps * 16]`` of ``fmt``; ``place`` is int32 ``[first tile of the matrix, its tiles,
    tile to begin with, tile to end before, first step, end step]``. The result is uint32 ``[rows * blocks, columns]``,
    of which the columns of those tiles count.
    """
    fraction = max(
        dot.fraction_bits,
        2 * tensor_core_kernels.fraction_of(fmt, dot),
    )
    room = -(-columns // (LANES * window)) + 1

    def run(words: Array, tiles: Array, place: Array) -> Array:
        steps = words.shape[1] // LANES
        first, count, low, high, begin, end = (place[i] for i in range(6))
        shaped = words.reshape(blocks, rows, steps, LANES).transpose(0, 2, 1, 3)
        side = Side(*lax.optimization_barrier(tensor_core_kernels.broadcast_side(shaped, fmt, fmt, dot)))

        def work(i: Array, out: Array) -> Array:
            block, at = i % np.int32(blocks), i // np.int32(blocks)
            # The last window ends with the range; where the range is smaller, it reads past its end.
            tile = jnp.maximum(jnp.minimum(low + at * np.int32(window), high - np.int32(window)), low)

            def deepen(s: Array, acc: Array) -> Array:
                return _step(dot, k, fmt, fraction, side, tiles, (block, s), first + s * count + tile, acc)

            acc = lax.fori_loop(begin, end, deepen, jnp.zeros((window, rows, LANES), jnp.uint32))
            part = acc.transpose(1, 0, 2).reshape(rows, window * LANES)
            spot = (block * np.int32(rows), (tile - low) * np.int32(LANES))
            return lax.dynamic_update_slice(out, part, spot)

        windows = (high - low + np.int32(window - 1)) // np.int32(window)
        out = jnp.zeros((blocks * rows, room * window * LANES), jnp.uint32)
        out = lax.fori_loop(np.int32(0), windows * np.int32(blocks), work, out)
        return out[:, :columns]

    return jax.jit(run, compiler_options=COMPILER_OPTIONS)


def _step(
    dot: DotProduct,
    k: int,
    fmt: Format,
    fraction: int,
    side: Side,
    tiles: Array,
    where: tuple[Array, Array],
    tile: Array,
    acc: Array,
) -> Array:
    """Sixteen terms further: ``acc [window, rows, 16]``."""
    window, rows, _ = acc.shape
    block, s = where
    left: list[Split] = []
    right: list[Split] = []
    signs: Any = 0
    for u in range(LANES):
        at = (block, s, np.int32(0), np.int32(u))
        left.append(Split(*(_slice(x, at, (1, 1, rows, 1)).reshape(rows, 1) for x in side[:3])))
        words = _slice(tiles, (tile, np.int32(u), np.int32(0)), (window, 1, LANES))
        right.append(tensor_core_kernels.split(words, fmt, dot, u))
        signs = signs | (right[-1].sign & np.uint32(1 << u).astype(np.int32))
    own = _slice(side.signs, (block, s, np.int32(0)), (1, 1, rows)).reshape(rows, 1)
    return tensor_core_kernels.chain(dot, k, left, right, own, signs, acc, fraction)


def _slice(x: Array, start: Sequence[Any], sizes: Sequence[int]) -> Array:
    return lax.dynamic_slice(x, [jnp.asarray(i, _I32) for i in start], sizes, allow_negative_indices=False)



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
        columns: room for output columns of one call; wider ranges are worked through in several.
    """

    matrices: Matrices
    dot: DotProduct
    k: int
    fmt: Format
    unit: int
    merge: str
    columns: int

    def slices(self, name: str, splits: int) -> list[tuple[int, int]]:
        """The steps of 16 terms of each slice of the chain of matrix ``name``, empty ones left out."""
        depth = self.matrices.shape[name][1]
        units = -(-depth // self.unit)
        each = -(-units // max(1, splits)) * (self.unit // LANES)
        steps = -(-depth // LANES)
        return [(s, min(s + each, steps)) for s in range(0, steps, each)]

    def __call__(
        self, words: Array, name: str, splits: int = 1, tiles: tuple[int, int] | None = None
    ) -> Array:
        """``words @ w.T`` for matrix ``name``.

        Args:
            words: of ``fmt``, ``[rows, terms]``: at least as many terms as the matrix has, zeros past them.
            name: of the matrix.
            splits: slices of the chain.
            tiles: only the output columns of these tiles of 16.

        Returns:
            bits of f32, ``[rows, columns]``; columns past those asked for mean nothing.

        Raises:
            ValueError: the range has more columns than there is room for.
        """
        n, depth = self.matrices.shape[name]
        count = -(-n // LANES)
        low, high = tiles or (0, count)
        if (high - low) * LANES > -(-self.columns // LANES) * LANES:
            raise ValueError(f"{(high - low) * LANES} columns; room for {self.columns}")
        width = self.matrices.most_steps * LANES
        if words.shape[1] != width:
            words = jnp.pad(words[:, :depth], ((0, 0), (0, width - min(depth, words.shape[1]))))
        rows = rows_of(words.shape[0])
        run = program(
            self.dot, self.k, self.fmt, rows, words.shape[0] // rows, self.columns, self.matrices.window
        )
        parts: list[Array] = []
        for begin, end in self.slices(name, splits):
            place = np.array([self.matrices.first[name], count, low, high, begin, end], np.int32)
            parts.append(run(words, self.matrices.tiles, place))
        return merged(parts, self.merge)
