"""Order-exact decode from the spec alone, against plain f32 attention, in one process.

    python benchmarks/bench_attention.py [--runs N] [--tokens N] [--specs a,b] [--oracle]

Both sides get their own best layout, prepared once and timed apart. Baselines: NumPy with BLAS, and jitted XLA
in two layouts; the fastest median counts. Rounds interleave the sides; ratios are taken round by round. Wall and
CPU time are printed side by side, because absolute times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from specs import load_platform, load_spec
from verify.engine.compile import compiled
from verify.engine.primitives import ZERO, x64
from verify.engine.run import dispatch
from verify.sweep import KVCache

SPECS = (
    "walkthrough.flash_attention_2",
    "walkthrough.triton",
    "walkthrough.xqa",
    "walkthrough.trtllm_gen",
    "flash_attn2.splitkv_decode",
    "vllm_triton.decode_3d",
    "xqa.decode",
)
PLATFORM = {"walkthrough.trtllm_gen": "b200"}
Q_HEADS, KV_HEADS, HEAD_DIM, SCALE = 24, 4, 256, 2.0**-4


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU milliseconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def baselines(q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Plain f32 attention: one query token, grouped heads."""
    group = Q_HEADS // KV_HEADS
    qf = q.astype(np.float32).reshape(KV_HEADS, group, HEAD_DIM)
    kf = np.ascontiguousarray(k.astype(np.float32).transpose(1, 2, 0))  # [h, d, t]
    vf = np.ascontiguousarray(v.astype(np.float32).transpose(1, 0, 2))  # [h, t, d]

    def numpy_blas() -> Any:
        s = np.matmul(qf, kf) * np.float32(SCALE)
        s -= s.max(axis=-1, keepdims=True)
        np.exp(s, out=s)
        return np.matmul(s, vf) / s.sum(axis=-1, keepdims=True)

    def attention(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("hgd,hdt->hgt", q, k) * jnp.float32(SCALE)
        w = jnp.exp(s - s.max(axis=-1, keepdims=True))
        return jnp.einsum("hgt,htd->hgd", w, v) / w.sum(axis=-1, keepdims=True)

    def attention_rows(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("hgd,htd->hgt", q, k) * jnp.float32(SCALE)
        w = jnp.exp(s - s.max(axis=-1, keepdims=True))
        return jnp.einsum("hgt,htd->hgd", w, v) / w.sum(axis=-1, keepdims=True)

    a, b = jax.jit(attention), jax.jit(attention_rows)
    args = jax.device_put((qf, kf, vf))
    rows = jax.device_put((qf, np.ascontiguousarray(k.astype(np.float32).transpose(1, 0, 2)), vf))
    return {
        "numpy+blas": numpy_blas,
        "xla k[h,d,t]": lambda: jax.block_until_ready(a(*args)),
        "xla k[h,t,d]": lambda: jax.block_until_ready(b(*rows)),
    }


def candidate(name: str, q: Any, k: Any, v: Any) -> tuple[Callable[[], Any], float, float, float]:
    """The compiled emulation of one spec; milliseconds to prepare K and V, to plan, and seconds to compile."""
    spec = load_spec(name)
    platform = load_platform(PLATFORM.get(name, "h200"))
    started = time.perf_counter()
    cache = KVCache(spec, k, v)
    prepared = time.perf_counter()
    run = cache.run(spec, platform, q, k.shape[0], scale=SCALE, more=False)
    planned = time.perf_counter()
    recipe, dynamic = dispatch(run.work(), [n for n in ("output", "lse") if n in run.program.sites])
    with x64():
        function = compiled(recipe)
        dynamic = jax.device_put(dynamic)
        compiling = time.perf_counter()
        _, risk = jax.block_until_ready(function(ZERO, dynamic))
        seconds = time.perf_counter() - compiling
    assert not bool(risk), "the fast path must apply"

    def call() -> Any:
        with x64():
            return jax.block_until_ready(function(ZERO, dynamic))

    return call, (prepared - started) * 1e3, (planned - prepared) * 1e3, seconds


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{np.median(values):7.2f}  [{min(values):.2f} .. {max(values):.2f}]"


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=27_525)
    parser.add_argument("--specs", default=",".join(SPECS))
    parser.add_argument(
        "--oracle", action="store_true", help="also time the scalar oracle per token and output element"
    )
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (options.tokens, KV_HEADS, HEAD_DIM)
    q = rng.standard_normal((Q_HEADS, HEAD_DIM)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for _ in range(2))
    sides = baselines(q, k, v)
    names = options.specs.split(",")
    calls: dict[str, Callable[[], Any]] = {}
    for name in names:
        calls[name], prepare_ms, plan_ms, compile_s = candidate(name, q, k, v)
        print(
            f"{name}: prepare K and V {prepare_ms:.0f} ms, bind and plan {plan_ms:.1f} ms, compile {compile_s:.1f} s"
        )
    times: dict[str, list[tuple[float, float]]] = {n: [] for n in (*sides, *calls)}
    for _ in range(options.runs):
        for name, run in {**sides, **calls}.items():
            time.sleep(0.02)  # BLAS threads spin for a while after a call
            run()
            times[name].append(timed(run))
    best = min(sides, key=lambda n: float(np.median([w for w, _ in times[n]])))
    print(
        f"\n{options.tokens} tokens, {Q_HEADS} query heads, {KV_HEADS} KV heads, head_dim {HEAD_DIM}; {options.runs} rounds"
    )
    print(
        f"{'':30s}wall ms (median, range)          CPU ms (median, range)           wall ratio to {best} (median, range)"
    )
    for name, pairs in times.items():
        ratios = [a[0] / b[0] for a, b in zip(pairs, times[best], strict=True)]
        print(
            f"{name:30s}{spread([w for w, _ in pairs]):32s} {spread([c for _, c in pairs]):32s} {spread(ratios)}"
        )
    if options.oracle:
        oracle(names, times)


def oracle(names: list[str], times: dict[str, list[tuple[float, float]]]) -> None:
    """Time per token and output element of the scalar oracle, on a small problem, against the engine's."""
    from verify import emulate

    rng = np.random.default_rng(1)
    tokens, dim = 512, 16
    k, v = (rng.standard_normal((tokens, 1, dim)).astype(ml_dtypes.bfloat16) for _ in range(2))
    q = rng.standard_normal((1, dim)).astype(ml_dtypes.bfloat16)
    for name in names:
        platform = load_platform(PLATFORM.get(name, "h200"))
        _, cpu = timed(lambda n=name, p=platform: emulate(load_spec(n), p, q=q, k=k, v=v, backend="oracle"))
        slow = cpu / (tokens * dim)
        fast = float(np.median([c for _, c in times[name]])) / (27_525 * Q_HEADS * HEAD_DIM)
        print(
            f"{name}: oracle {slow * 1e6:.0f} ns, engine {fast * 1e6:.3f} ns per token and output element: {slow / fast:,.0f} x"
        )


if __name__ == "__main__":
    main()
