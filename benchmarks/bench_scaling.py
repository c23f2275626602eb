"""How one spec scales: peak memory and time by length, compilations and cost of a sweep over the workload.

    python benchmarks/bench_scaling.py memory [--spec NAME] [--tokens N]
    python benchmarks/bench_scaling.py linear [--spec NAME]
    python benchmarks/bench_scaling.py sweep  [--spec NAME] [--platform NAME] [--every N]

``memory`` prints the peak resident size above the bf16 K and V tensors themselves, of a process that does nothing
else. ``linear`` prints time per token at growing lengths. ``sweep`` runs decode steps over the 22 ranges of the
workload with one query head, counts compilations, and compares a step of the shared program with the program
compiled for exactly that length.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from typing import Any

import jax
import ml_dtypes
import numpy as np

from specs import Platform, Spec, load_platform, load_spec, load_workload
from verify.engine.compile import compiled
from verify.engine.layout import shape_of, tables
from verify.engine.primitives import ZERO, x64
from verify.engine.run import dispatch
from verify.sweep import KVCache

SCALE = 2.0**-4


def kv(tokens: int, heads: int, dim: int) -> tuple[Any, Any]:
    """bf16 K and V of normal numbers, drawn in blocks so that drawing needs no memory of its own."""
    rng = np.random.default_rng(0)
    made: list[Any] = []
    for _ in range(2):
        x = np.empty((tokens, heads, dim), ml_dtypes.bfloat16)
        for start in range(0, tokens, 4096):
            part = x[start : start + 4096]
            part[...] = rng.standard_normal(part.shape, np.float32).astype(ml_dtypes.bfloat16)
        made.append(x)
    return made[0], made[1]


def peak_mb() -> float:
    """Peak resident size of this process in MB (10^6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def memory(spec: Spec, tokens: int) -> None:
    """Peak memory of one emulation with 24 query heads, 4 KV heads, head_dim 256."""
    from verify import emulate

    k, v = kv(tokens, 4, 256)
    q = np.random.default_rng(1).standard_normal((24, 256)).astype(ml_dtypes.bfloat16)
    platform = load_platform("b200" if "trtllm" in spec.name else "h200")
    own = (k.nbytes + v.nbytes) / 1e6
    before = peak_mb()
    emulate(spec, platform, q=q, k=k, v=v, scale=SCALE)
    print(
        f"{spec.name}, {tokens} tokens: K and V {own:.0f} MB, before the run {before:.0f} MB, peak {peak_mb():.0f} MB: "
        f"{peak_mb() - own:.0f} MB above K and V"
    )


def steps(
    cache: KVCache, spec: Spec, platform: Platform, q: Any, length: int, runs: int, static: bool
) -> list[tuple[float, float]]:
    """Wall and CPU ms of the compiled step at one length; with ``static`` in tables of exactly its own size."""
    run = cache.run(spec, platform, q, length, scale=SCALE, context={"q_heads": 24, "kv_heads": 4})
    work = run.work()
    if static:
        exactly = KVCache(spec, run.problem.k, run.problem.v).exactly()
        work = replace(work, tables=tables(run.plan, shape_of(run.plan)), kv=exactly)
    recipe, dynamic = dispatch(work, ["output", "lse"])
    with x64():
        dynamic = jax.device_put(dynamic)
        function = compiled(recipe)
        jax.block_until_ready(function(ZERO, dynamic))
        times: list[tuple[float, float]] = []
        for _ in range(runs):
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(function(ZERO, dynamic))
            times.append(((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3))
    return times


def linear(spec: Spec) -> None:
    """Time per token of 24 query heads at growing lengths."""
    k, v = kv(122_863, 4, 256)
    q = np.random.default_rng(1).standard_normal((24, 256)).astype(ml_dtypes.bfloat16)
    platform = load_platform("b200" if "trtllm" in spec.name else "h200")
    cache = KVCache(spec, k, v)
    del k, v
    base = 0.0
    for length in (13_319, 27_525, 61_000, 94_962, 122_863):
        times = np.array(steps(cache, spec, platform, q, length, 9, static=False))
        wall, cpu = np.median(times, axis=0)
        base = base or cpu / length
        print(
            f"{length:7d} tokens: wall {wall:7.1f} ms, CPU {cpu:7.1f} ms, CPU per token / at 13,319: {cpu / length / base:.2f}"
        )


def sweep(spec: Spec, platform: Platform, every: int) -> None:
    """Decode steps over the workload with one query head: compilations, and cost against the static program."""
    ranges = load_workload("agent_session").ranges
    longest = max(r.depth + r.tokens for r in ranges)
    k, v = kv(longest, 1, 256)
    q = np.random.default_rng(1).standard_normal((1, 256)).astype(ml_dtypes.bfloat16)
    cache = KVCache(spec, k, v)
    compiled.cache_clear()
    shapes: set[Any] = set()
    lengths = [n for r in ranges for n in range(r.depth, r.depth + r.tokens, every)]
    started, cpu = time.perf_counter(), time.process_time()
    for length in lengths:
        run = cache.run(spec, platform, q, length, scale=SCALE, context={"q_heads": 24, "kv_heads": 4})
        run.result()
        work = run.work()
        shapes.add((run.padded, work.kv.capacity, work.tables.aligned))
    wall = time.perf_counter() - started
    cpu = time.process_time() - cpu
    print(
        f"{spec.name} on {platform.name}: {len(lengths)} positions in {wall:.1f} s (CPU {cpu:.1f} s), {len(shapes)} compilations"
    )
    ratios: list[float] = []
    for length in (6_335, 13_319, 19_873, 27_525, 42_192, 61_000, 94_146, 122_863):
        shared = np.array(steps(cache, spec, platform, q, length, 15, static=False))[:, 1]
        static = np.array(steps(cache, spec, platform, q, length, 15, static=True))[:, 1]
        ratio = float(np.median(shared) / np.median(static))
        ratios.append(ratio)
        print(
            f"{length:7d} tokens: shared {np.median(shared):6.2f} ms CPU, static {np.median(static):6.2f} ms, ratio {ratio:.2f}"
        )
    print(f"ratio shared / static: median {np.median(ratios):.2f}, worst {max(ratios):.2f}")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("memory", "linear", "sweep"))
    parser.add_argument("--spec", default="walkthrough.flash_attention_2")
    parser.add_argument("--platform", default="h200")
    parser.add_argument("--tokens", type=int, default=122_863)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    spec = load_spec(options.spec)
    if options.part == "memory":
        memory(spec, options.tokens)
    elif options.part == "linear":
        linear(spec)
    else:
        sweep(spec, load_platform(options.platform), options.every)


if __name__ == "__main__":
    main()
