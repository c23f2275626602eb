"""Order-exact contractions beside plain f32 attention on the same cores: medians, spread, CPU time, ratios.

Run ``python benchmarks/bench_contract.py [--runs N] [--quick]``. Every side has its own best layout, prepared
once and reported apart. OpenBLAS threads spin for a moment after a call and slow whatever comes next, hence
the pause and the untimed call before each series.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from verify.engine import contract

Tokens = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one call: median wall time, quartiles, best, and median CPU time of all threads."""

    median: float
    low: float
    high: float
    best: float
    cpu: float


def measure(call: Callable[[], Any], runs: int) -> Timing:
    """Time ``call`` after a pause and an untimed call."""
    jax.block_until_ready(call())
    time.sleep(0.2)
    jax.block_until_ready(call())
    wall, cpu = np.zeros(runs), np.zeros(runs)
    for i in range(runs):
        started, busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(call())
        wall[i], cpu[i] = time.perf_counter() - started, time.process_time() - busy
    low, median, high = np.quantile(wall, [0.25, 0.5, 0.75]) * 1e3
    return Timing(median, low, high, wall.min() * 1e3, float(np.median(cpu)) * 1e3)


def show(label: str, t: Timing, base: Timing | None = None) -> None:
    ratio = "" if base is None else f"   wall x {t.median / base.median:5.2f}  CPU x {t.cpu / base.cpu:5.2f}"
    spread = f"[{t.low:.2f}-{t.high:.2f}, best {t.best:.2f}]"
    print(f"  {label:40s}{t.median:8.2f} ms {spread:32s} CPU {t.cpu:7.2f}{ratio}")


def blocks_backwards(n: int, blocks: int) -> Tokens:
    """Contiguous groups of 64-token blocks, visited last block first."""
    count = -(-n // 64)
    tokens = [np.arange(b * 64, min(n, b * 64 + 64)) for b in range(count)]
    return [np.concatenate(tokens[g : g + blocks][::-1]) for g in range(0, count, blocks)]


def dealt(n: int, groups: int) -> Tokens:
    """256-token tiles dealt round-robin."""
    tiles = [np.arange(t, min(n, t + 256)) for t in range(0, n, 256)]
    return [np.concatenate(tiles[g::groups]) for g in range(min(groups, len(tiles)))]


def segments(n: int, size: int) -> Tokens:
    return [np.arange(t, min(n, t + size)) for t in range(0, n, size)]


PARTITIONS: dict[str, Callable[[int], Tokens]] = {
    "64-token blocks backwards": lambda n: blocks_backwards(n, max(1, -(-n // (64 * 54)))),
    "256-token tiles dealt to 33": lambda n: dealt(n, 33),
    "16 segments": lambda n: segments(n, -(-n // 256) * 16),
    "128 tokens each": lambda n: segments(n, 128),
}


def attention(runs: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Timing:
    """The fastest plain f32 attention of NumPy and three XLA layouts; q [H, R, D], k and v [T, H, D]."""
    heads_first = [np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (k, v)]
    by_depth = np.ascontiguousarray(heads_first[0].transpose(0, 2, 1))

    def rows(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.einsum("hrt,htd->hrd", jax.nn.softmax(jnp.einsum("hrd,htd->hrt", q, k) / 16), v)

    def columns(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.einsum("hrt,htd->hrd", jax.nn.softmax(jnp.einsum("hrd,hdt->hrt", q, k) / 16), v)

    def blas() -> np.ndarray:
        s = np.matmul(q, by_depth) / np.float32(16)
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.matmul(p / p.sum(-1, keepdims=True), heads_first[1])

    wide = contract.COMPILER_OPTIONS
    jq, jk, jv, jc = (jax.device_put(x) for x in (q, heads_first[0], heads_first[1], by_depth))
    plain, plain_wide, turned = jax.jit(rows), jax.jit(rows, compiler_options=wide), jax.jit(columns)
    sides: list[tuple[str, Callable[[], Any]]] = [
        ("XLA, K by token", lambda: plain(jq, jk, jv)),
        ("XLA, K by token, 512-bit", lambda: plain_wide(jq, jk, jv)),
        ("XLA, K by depth", lambda: turned(jq, jc, jv)),
        ("NumPy with BLAS", blas),
    ]
    timed = [(name, measure(call, runs)) for name, call in sides]
    for name, timing in timed:
        show(f"plain f32: {name}", timing)
    return min((t for _, t in timed), key=lambda t: t.median)


def shape(runs: int, heads: int, rows: int, dim: int, tokens: int, partitions: list[str]) -> None:
    """Time the three kernels at one shape, beside plain attention."""
    print(f"\n{heads} kv heads, {rows} rows each, head_dim {dim}, {tokens} tokens")
    rng = np.random.default_rng(0)
    q = rng.standard_normal((heads, rows, dim)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((tokens, heads, dim)).astype(ml_dtypes.bfloat16) for _ in range(2))
    base = attention(runs, *(x.astype(np.float32) for x in (q, k, v)))
    capacity = contract.capacity_of(tokens)
    started = time.perf_counter()
    keys = jax.device_put(contract.prepare_keys(k, capacity))
    middle = time.perf_counter()
    values = jax.device_put(contract.prepare_values(v, capacity))
    ended = time.perf_counter()
    spent = 1e3 * (middle - started), 1e3 * (ended - middle)
    print(f"  preparation, once a tensor: K {spent[0]:.0f} ms, V {spent[1]:.0f} ms")
    query, n, zero = jnp.asarray(q, jnp.float32), jnp.int32(tokens), jnp.uint32(0)
    wide = contract.COMPILER_OPTIONS
    score = jax.jit(contract.ordered_scores, compiler_options=wide)
    show("ordered_scores", measure(lambda: score(query, keys, n), runs), base)
    tiles = score(query, keys, n)

    @jax.jit
    def weigh(tiles: jax.Array, steps: contract.Steps) -> jax.Array:
        w = jax.lax.reduce_precision(jnp.abs(contract.to_plan(tiles, steps)), 8, 7)
        return jnp.where(steps.live()[:, :, None, None, :], w, 0)

    exact = jax.jit(contract.ordered_values, compiler_options=wide)
    guarded = jax.jit(
        lambda w, v, s, z: contract.ordered_values(w, v, s, exact=False, zero=z), compiler_options=wide
    )
    add = jax.jit(contract.ordered_sums, compiler_options=wide)
    for name in partitions:
        started = time.perf_counter()
        plan = PARTITIONS[name](tokens)
        listed = time.perf_counter()
        steps = jax.device_put(contract.steps_from_plan(plan))
        print(f"  {name}: {len(plan)} groups, tables in {1e3 * (time.perf_counter() - listed):.1f} ms")
        w = weigh(tiles, steps)
        show("to_plan, rounded and masked", measure(lambda w=w, s=steps: weigh(tiles, s), runs), base)
        show("ordered_values", measure(lambda w=w, s=steps: exact(w, values, s), runs), base)
        show("ordered_values, guarded", measure(lambda w=w, s=steps: guarded(w, values, s, zero), runs), base)
        show("ordered_sums", measure(lambda w=w, s=steps: add(w, s), runs), base)


def threads(runs: int, heads: int, rows: int, dim: int, tokens: int) -> None:
    """Scores, weights and values as one program a shard of kv heads, one shard a core."""
    shards = len(os.sched_getaffinity(0))
    if heads % shards:
        return
    print(f"\nscores, weights and values: {shards} shards of kv heads, one thread each")
    rng = np.random.default_rng(0)
    q = rng.standard_normal((heads, rows, dim)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((tokens, heads, dim)).astype(ml_dtypes.bfloat16) for _ in range(2))
    base = attention(runs, *(x.astype(np.float32) for x in (q, k, v)))
    n, capacity = jnp.int32(tokens), contract.capacity_of(tokens)
    steps = jax.device_put(contract.steps_from_plan(PARTITIONS["64-token blocks backwards"](tokens)))

    def program(parallel: bool) -> Any:
        def both(q: jax.Array, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
            scores = contract.to_plan(contract.ordered_scores(q, keys, n, parallel=parallel), steps)
            rounded = jax.lax.reduce_precision(jnp.abs(scores), 8, 7)
            w = jnp.where(steps.live()[:, :, None, None, :], rounded, 0)
            sums = contract.ordered_sums(w, steps)
            return contract.ordered_values(w, values, steps, parallel=False), sums

        return jax.jit(both, compiler_options=contract.COMPILER_OPTIONS)

    def prepared(part: slice) -> tuple[Any, ...]:
        arrays = contract.prepare_keys(k[:, part], capacity), contract.prepare_values(v[:, part], capacity)
        return tuple(jax.device_put(x) for x in (q[part].astype(np.float32), *arrays))

    whole, shard = program(True), program(False)
    everything, size = prepared(slice(None)), heads // shards
    cut = [prepared(slice(i * size, i * size + size)) for i in range(shards)]
    with ThreadPoolExecutor(shards) as pool:
        show("one call", measure(lambda: whole(*everything), runs), base)
        run = lambda x: jax.block_until_ready(shard(*x))  # noqa: E731
        show("one thread a shard", measure(lambda: list(pool.map(run, cut)), runs), base)


def sweep(runs: int) -> None:
    """One executable for many lengths against one compiled for exactly that length (1 head, 1 row)."""
    print("\none executable (capacity 122,880) against the static program, 1 head, 1 row, head_dim 256")
    rng = np.random.default_rng(1)
    q = jnp.asarray(rng.standard_normal((1, 1, 256)).astype(ml_dtypes.bfloat16), jnp.float32)
    k = rng.standard_normal((122_880, 1, 256)).astype(ml_dtypes.bfloat16)

    def program() -> Any:
        def both(q: Any, keys: Any, values: Any, n: Any, steps: contract.Steps) -> Any:
            scores = contract.to_plan(contract.ordered_scores(q, keys, n), steps)
            rounded = jax.lax.reduce_precision(jnp.abs(scores), 8, 7)
            weights = jnp.where(steps.live()[:, :, None, None, :], rounded, 0)
            return contract.ordered_values(weights, values, steps)

        return jax.jit(both, compiler_options=contract.COMPILER_OPTIONS)

    shared = program()
    keys = jax.device_put(contract.prepare_keys(k, 122_880))
    values = jax.device_put(contract.prepare_values(k, 122_880))
    for n in (6_335, 13_000, 27_525, 61_000, 122_863):
        plan = blocks_backwards(n, max(1, -(-n // (64 * 54))))
        own = program()
        size = contract.capacity_of(n)
        own_keys = jax.device_put(contract.prepare_keys(k[:n], size))
        own_values = jax.device_put(contract.prepare_values(k[:n], size))
        bare = jax.device_put(contract.steps_from_plan(plan))
        padded = jax.device_put(contract.steps_from_plan(plan, groups=64, steps=160))
        count = jnp.int32(n)
        base = measure(lambda: own(q, own_keys, own_values, count, bare), runs)  # noqa: B023
        many = measure(lambda: shared(q, keys, values, count, padded), runs)  # noqa: B023
        show(f"{n} tokens, static", base)
        show(f"{n} tokens, shared executable", many, base)
    print(f"  compilations of the shared program: {shared._cache_size()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21, help="timed calls a series")
    parser.add_argument("--quick", action="store_true", help="the main shape and two partitions only")
    options = parser.parse_args()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"jax {jax.__version__}, NumPy {np.__version__}, {cores} cores, load {load:.2f}")
    threads(options.runs, 4, 6, 256, 27_525)
    if options.quick:
        shape(options.runs, 4, 6, 256, 27_525, list(PARTITIONS)[:2])
        return
    shape(options.runs, 4, 6, 256, 27_525, list(PARTITIONS))
    shape(options.runs, 1, 1, 256, 27_525, list(PARTITIONS)[:2])
    shape(options.runs, 3, 3, 64, 27_525, list(PARTITIONS)[:2])
    shape(options.runs, 1, 1, 1, 27_525, list(PARTITIONS))
    shape(max(3, options.runs // 4), 4, 96, 256, 4_096, list(PARTITIONS)[:1])
    shape(max(3, options.runs // 4), 4, 6, 256, 122_863, list(PARTITIONS)[:1])
    sweep(options.runs)


if __name__ == "__main__":
    main()
