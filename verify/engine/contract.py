"""Order-exact contractions: sums whose order is part of the result, as fast as XLA on a CPU allows.

Every sum here is the sequence ``acc = fl(acc + fl(a * b))`` in f32 from +0, in a stated order. XLA's own
``dot`` and ``reduce`` choose their order; these kernels do not leave it to them. Three kernels, all pure
functions to be traced inside a larger ``jax.jit``:

* `ordered_scores`: ``sum over d ascending of q[h, r, d] * k[t, h, d]``, by token in natural order, so that
  one preparation of K serves every partition of the tokens;
* `ordered_values`: ``sum over the tokens of a group, in visiting order, of w * v[t, h, :]``;
* `ordered_sums`: the same for plain weights.

**Axes.** H kv heads, R query rows that share a kv head, D head_dim, C token capacity, G groups of a
partition, S steps of a group. A *step* is at most `LANES` consecutive ascending tokens of one group; `Steps`
lists them as run-time integer tables (from `steps_from_plan`), so one executable serves every length and
partition that fits its static shapes.

**Layouts.** *Tiles*: ``[C / 16, H, R, 16]``, tokens in natural order (`ordered_scores`, `natural`).
*Plan*: ``[G, S, H, R, 16]``, tokens in visiting order (`to_plan`); lanes past ``steps.length`` are padding.
Weights of padding must be +0 and V finite: the accumulator starts at +0, can never become -0, and so adding
+-0 to it changes no bit.

**Why it is fast.** The innermost two loops are ``rows x 16 lanes``. LLVM turns the lanes into one vector and
hoists the decoded operands of 16 steps into registers, which leaves one FMA with a broadcast operand per
16 products. bf16 stays 16 bits wide in memory and becomes f32 by a shift; `prepare_keys` lays K out so that
memory is read in sequence.

**Exact products.** With ``exact=True`` both factors have significands of p_a + p_b <= 24 bits, so the f32
product is exact and it does not matter that XLA contracts it into an FMA. Otherwise pass ``zero``, a uint32
zero that is a *run-time argument* of the jitted function: XOR-ing the product's bits with it keeps the
product's own rounding.

**Compiler options.** `COMPILER_OPTIONS` on the enclosing ``jax.jit`` (512-bit vectors; results do not depend
on it). Small shapes run as one compiled function instead of one thunk per step; XLA takes the hint from
frontend attributes and computes the same bits where it ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.experimental.xla_metadata import set_xla_metadata

LANES = 16
"""Width of the vector axis, and tokens (or head_dim entries) per step."""

BLOCK = 512
"""Tokens of one block of prepared keys; capacities are multiples of it."""

COMPILER_OPTIONS: dict[str, Any] = {"xla_cpu_prefer_vector_width": 512}
"""Options for the enclosing ``jax.jit``: speed only."""

_PARALLEL_ROWS = 16  # H * R from which scoring one chunk is worth a dispatch to all cores
_PARALLEL_WORK = 1 << 15  # H * R * D from which one step of values is
_CHUNK_BLOCKS = 8  # blocks of keys that one parallel dispatch works through

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Steps:
    """A partition as tables: group ``g`` visits, in order, the tokens ``start[g, s] .. + length[g, s]``.

    Attributes:
        start: int32 [G, S], first token of each step (0 in padding).
        length: int32 [G, S], tokens in the step, at most `LANES`; 0 in padding.
        count: int32 [G], steps of the group; padding groups have 0.
        groups: int32 scalar, number of groups that exist.
        aligned: every step starts at a multiple of `LANES` (static: it selects a cheaper `to_plan`).
    """

    start: Any
    length: Any
    count: Any
    groups: Any
    aligned: bool = False

    def live(self) -> jax.Array:
        """Bool [G, S, 16]: True where a lane holds a token."""
        return jnp.arange(LANES, dtype=jnp.int32) < jnp.asarray(self.length)[..., None]


jax.tree_util.register_dataclass(
    Steps, data_fields=["start", "length", "count", "groups"], meta_fields=["aligned"]
)


def steps_from_plan(
    tokens: Sequence[np.ndarray], *, groups: int | None = None, steps: int | None = None
) -> Steps:
    """Turn the visiting order of each group into `Steps` (NumPy arrays).

    Args:
        tokens: one integer array a group, token indices in visiting order. Any order is right; ascending
            runs are fast.
        groups: static number of groups to pad to (default: as many as there are, at least 1).
        steps: static number of steps to pad to (default: as many as the longest group needs, at least 1).

    Raises:
        ValueError: if the padded sizes are too small.
    """
    sizes = np.array([len(t) for t in tokens], np.int64)
    flat = np.concatenate([np.asarray(t, np.int64) for t in tokens]) if len(tokens) else np.zeros(0, np.int64)
    first = np.zeros(flat.size, bool)
    first[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    if flat.size:
        first[1:] |= flat[1:] != flat[:-1] + 1
    run_start = np.flatnonzero(first)
    run_length = np.diff(np.append(run_start, flat.size))
    pieces = -(-run_length // LANES)
    within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    at = np.repeat(run_start, pieces) + within * LANES  # position in `flat` of each step's first token
    length = np.minimum(LANES, np.repeat(run_length, pieces) - within * LANES)
    owner = np.searchsorted(np.cumsum(sizes), at, side="right")
    count = np.bincount(owner, minlength=len(tokens)) if flat.size else np.zeros(len(tokens), np.int64)
    have = (len(tokens), int(count.max(initial=0)))
    want = (max(1, have[0]) if groups is None else groups, max(1, have[1]) if steps is None else steps)
    if want[0] < have[0] or want[1] < have[1]:
        raise ValueError(f"the plan has {have[0]} groups of up to {have[1]} steps; room for {want}")
    slot = np.arange(at.size) - np.repeat(np.cumsum(count) - count, count)
    table = np.zeros((2, *want), np.int32)
    table[0][owner, slot], table[1][owner, slot] = flat[at], length
    counts = np.zeros(want[0], np.int32)
    counts[: have[0]] = count
    aligned = bool(np.all(table[0] % LANES == 0))
    return Steps(table[0], table[1], counts, np.int32(have[0]), aligned)


def capacity_of(tokens: int) -> int:
    """The smallest capacity, a multiple of `BLOCK`, that holds ``tokens``."""
    return max(1, -(-tokens // BLOCK)) * BLOCK


def _storage(x: np.ndarray) -> np.ndarray:
    """bf16 as its uint16 bits, f64 as it is, every other format as f32."""
    if x.dtype == np.uint16 or x.dtype == np.float64:
        return x
    if x.dtype.name == "bfloat16":
        return x.view(np.uint16)
    return np.asarray(x, np.float32)


def prepare_keys(k: np.ndarray, capacity: int) -> np.ndarray:
    """Lay K out for `ordered_scores`; once a tensor, for all partitions.

    Args:
        k: [tokens, H, D] in bf16 (or its bits as uint16), f16 or f32.
        capacity: static number of tokens, a multiple of `BLOCK`.

    Returns:
        uint16 or f32 [C / 512, D / 16, 32, H, 16 (d), 16 (token)], zeros in padding.
    """
    source = _storage(k)
    tokens, heads, dim = source.shape
    depth = -(-dim // LANES)
    out = np.zeros((capacity // BLOCK, depth, BLOCK // LANES, heads, LANES, LANES), source.dtype)
    for block in range(-(-tokens // BLOCK)):
        part = np.zeros((BLOCK, heads, depth * LANES), source.dtype)
        rows = source[block * BLOCK : (block + 1) * BLOCK]
        part[: len(rows), :, :dim] = rows
        shaped = part.reshape(BLOCK // LANES, LANES, heads, depth, LANES)
        out[block] = shaped.transpose(3, 0, 2, 4, 1)
    return out


def prepare_values(v: np.ndarray, capacity: int) -> np.ndarray:
    """Pad V for `ordered_values`; once a tensor, for all partitions.

    Args:
        v: [tokens, H, D] in bf16 (or its bits as uint16), f16 or f32; finite.
        capacity: static number of tokens.

    Returns:
        uint16 or f32 [C + 16, H, D / 16, 16], zeros in padding (so that a step may overhang the end).
    """
    source = _storage(v)
    tokens, heads, dim = source.shape
    depth = -(-dim // LANES)
    out = np.zeros((capacity + LANES, heads, depth * LANES), source.dtype)
    out[:tokens, :, :dim] = source
    return out.reshape(capacity + LANES, heads, depth, LANES)


def _decode(x: jax.Array, turn: int) -> jax.Array:
    """f32 of prepared storage. XLA inlines a constant only up to 15 times a kernel, so the spelling turns."""
    if x.dtype != jnp.uint16:
        return x
    if turn % 3 == 0:
        bits = x.astype(jnp.uint32) * np.uint32(1 << 16)
    elif turn % 3 == 1:
        bits = lax.shift_left(x.astype(jnp.uint32), np.uint32(16))
    else:
        bits = x.astype(jnp.int32) * np.int32(1 << 16)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _product(a: jax.Array, b: jax.Array, zero: jax.Array | None) -> jax.Array:
    """``a * b``, rounded on its own if ``zero`` is given."""
    product = a * b
    if zero is None:
        return product
    return lax.bitcast_convert_type(lax.bitcast_convert_type(product, jnp.uint32) ^ zero, jnp.float32)


def _slice(x: jax.Array, start: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
    at = [jnp.asarray(i, jnp.int32) for i in start]  # under x64, a plain 0 would be int64
    return lax.dynamic_slice(x, at, sizes, allow_negative_indices=False)


def _put(x: jax.Array, part: jax.Array, start: Sequence[Any]) -> jax.Array:
    return lax.dynamic_update_slice(x, part, [jnp.asarray(i, jnp.int32) for i in start])


def _one_function(body: Callable[..., _Result], *args: Any) -> _Result:
    """Call ``body`` so that XLA compiles it, loops included, into one function without thunk dispatch.

    The barrier keeps literals out of the function: XLA aborts the process on a large one inside. A batch axis
    runs one by one, because batched slices become scatters, which such a function may not hold.
    """

    def call(*args: Any) -> _Result:
        with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
            return jax.jit(body)(*lax.optimization_barrier(args))

    return sequential_vmap(call)(*args)


def _loop(count: Any, body: Callable[[jax.Array, jax.Array], jax.Array], start: jax.Array) -> jax.Array:
    """``fori_loop`` from 0 with an int32 counter, whether or not 64-bit types are enabled."""
    return lax.fori_loop(np.int32(0), jnp.asarray(count, jnp.int32), body, start)


def _check_exact(exact: bool, zero: jax.Array | None) -> jax.Array | None:
    if exact:
        return None
    if zero is None:
        raise ValueError("exact=False needs `zero`, a uint32 zero that is a run-time argument")
    return zero


def ordered_scores(
    q: jax.Array,
    keys: jax.Array,
    tokens: jax.Array,
    *,
    exact: bool = True,
    zero: jax.Array | None = None,
    parallel: bool | None = None,
) -> jax.Array:
    """Score every token: the f32 sum over d ascending of ``q[h, r, d] * k[t, h, d]``.

    Args:
        q: f32 [H, R, D].
        keys: from `prepare_keys`.
        tokens: int32 scalar, live tokens; whole blocks past them are not computed and hold 0.
        exact: the f32 products are exact (bf16 x bf16, f16 x f16).
        zero: uint32 zero, a run-time argument; needed if not ``exact``.
        parallel: use all cores; None chooses by size. The bits are the same.

    Returns:
        f32 tiles [C / 16, H, R, 16].
    """
    zero = _check_exact(exact, zero)
    blocks, depth, tiles, heads, _, _ = keys.shape
    rows, dim = q.shape[1], q.shape[2]
    q = jnp.pad(q, ((0, 0), (0, 0), (0, depth * LANES - dim)))
    if parallel is None:
        parallel = heads * rows >= _PARALLEL_ROWS
    chunk = min(blocks, _CHUNK_BLOCKS) if parallel else 1

    def score(q: jax.Array, keys: jax.Array, tokens: jax.Array, zero: jax.Array | None) -> jax.Array:
        def work(i: jax.Array, out: jax.Array) -> jax.Array:
            first = jnp.minimum(i * chunk, blocks - chunk)  # the last chunk may repeat a few blocks

            def deepen(s: jax.Array, acc: jax.Array) -> jax.Array:
                for u in range(LANES):
                    k = _slice(keys, (first, s, 0, 0, u, 0), (chunk, 1, tiles, heads, 1, LANES))
                    factor = _slice(q, (0, 0, s * LANES + u), (heads, rows, 1))
                    term = _decode(k.reshape(chunk * tiles, heads, 1, LANES), u)
                    acc = acc + _product(factor, term, zero)
                return acc

            # A loop of one trip is inlined, and 0 + x with a known 0 dropped: -0 would not become +0.
            start = lax.bitcast_convert_type(jnp.minimum(tokens, 0).astype(jnp.uint32), jnp.float32)
            acc = _loop(depth, deepen, jnp.broadcast_to(start, (chunk * tiles, heads, rows, LANES)))
            return _put(out, acc, (first * tiles, 0, 0, 0))

        size = chunk * BLOCK
        out = jnp.zeros((blocks * tiles, heads, rows, LANES), jnp.float32)
        return _loop((tokens + (size - 1)) // size, work, out)

    if parallel:
        return score(q, keys, tokens, zero)
    return _one_function(score, q, keys, tokens, zero)


def natural(tiles: jax.Array) -> jax.Array:
    """Tiles [C / 16, H, R, 16] as [H, R, C]."""
    count, heads, rows, _ = tiles.shape
    return tiles.transpose(1, 2, 0, 3).reshape(heads, rows, count * LANES)


def to_plan(tiles: jax.Array, steps: Steps) -> jax.Array:
    """Tiles in natural order to plan layout [G, S, H, R, 16]; padding lanes hold other tokens' numbers."""
    count, heads, rows, _ = tiles.shape
    start = jnp.asarray(steps.start)
    if steps.aligned:
        return jnp.take(tiles, start // LANES, axis=0, mode="clip")
    tokens = jnp.minimum(start[..., None] + jnp.arange(LANES, dtype=jnp.int32), count * LANES - 1)
    by_token = tiles.transpose(0, 3, 1, 2).reshape(count * LANES, heads, rows)
    return jnp.moveaxis(jnp.take(by_token, tokens, axis=0, mode="clip"), 2, 4)


def ordered_values(
    weights: jax.Array,
    values: jax.Array,
    steps: Steps,
    *,
    exact: bool = True,
    zero: jax.Array | None = None,
    parallel: bool | None = None,
) -> jax.Array:
    """Sum ``w[token] * v[token, h, :]`` over each group's tokens in visiting order.

    Args:
        weights: f32 plan [G, S, H, R, 16], +0 in padding lanes.
        values: from `prepare_values`.
        steps: the partition, run-time tables.
        exact: the f32 products are exact (a bf16 weight times a bf16 value).
        zero: uint32 zero, a run-time argument; needed if not ``exact``.
        parallel: use all cores; None chooses by size. The bits are the same.

    Returns:
        f32 [G, H, D / 16, R, 16]; `join_values` makes it [G, H, R, D]. Groups past ``steps.groups`` hold 0.
    """
    zero = _check_exact(exact, zero)
    groups, _, heads, rows, _ = weights.shape
    depth = values.shape[2]

    def add_up(
        weights: jax.Array, values: jax.Array, start: jax.Array, count: jax.Array, n: jax.Array, zero: Any
    ) -> jax.Array:
        def group(g: jax.Array, out: jax.Array) -> jax.Array:
            def step(s: jax.Array, acc: jax.Array) -> jax.Array:
                token = _slice(start, (g, s), (1, 1))[0, 0]
                for u in range(LANES):
                    w = _slice(weights, (g, s, 0, 0, u), (1, 1, heads, rows, 1)).reshape(heads, 1, rows, 1)
                    v = _slice(values, (token + u, 0, 0, 0), (1, heads, depth, LANES))
                    acc = acc + _product(w, _decode(v.reshape(heads, depth, 1, LANES), u), zero)
                return acc

            acc = jnp.zeros((heads, depth, rows, LANES), jnp.float32)
            acc = _loop(_slice(count, (g,), (1,))[0], step, acc)
            return _put(out, acc[None], (g, 0, 0, 0, 0))

        return _loop(n, group, jnp.zeros((groups, heads, depth, rows, LANES), jnp.float32))

    if parallel is None:
        parallel = heads * rows * depth * LANES >= _PARALLEL_WORK
    tables = jnp.asarray(steps.start), jnp.asarray(steps.count), jnp.asarray(steps.groups)
    if parallel:
        return add_up(weights, values, *tables, zero)
    return _one_function(add_up, weights, values, *tables, zero)


def join_values(sums: jax.Array, dim: int) -> jax.Array:
    """Result of `ordered_values` as [G, H, R, D]."""
    groups, heads, depth, rows, _ = sums.shape
    return sums.transpose(0, 1, 3, 2, 4).reshape(groups, heads, rows, depth * LANES)[..., :dim]


def ordered_sums(weights: jax.Array, steps: Steps) -> jax.Array:
    """Sum each group's weights in visiting order.

    Args:
        weights: f32 plan [G, S, H, R, 16], +0 in padding lanes.
        steps: the partition, run-time tables.

    Returns:
        f32 [G, H, R]; groups past ``steps.groups`` hold 0.
    """
    groups, _, heads, rows, _ = weights.shape

    def add_up(weights: jax.Array, count: jax.Array, n: jax.Array) -> jax.Array:
        def group(g: jax.Array, out: jax.Array) -> jax.Array:
            def step(s: jax.Array, acc: jax.Array) -> jax.Array:
                for u in range(LANES):
                    acc = acc + _slice(weights, (g, s, 0, 0, u), (1, 1, heads, rows, 1)).reshape(heads, rows)
                return acc

            acc = jnp.zeros((heads, rows), jnp.float32)
            acc = _loop(_slice(count, (g,), (1,))[0], step, acc)
            return _put(out, acc[None], (g, 0, 0))

        return _loop(n, group, jnp.zeros((groups, heads, rows), jnp.float32))

    return _one_function(add_up, weights, jnp.asarray(steps.count), jnp.asarray(steps.groups))
