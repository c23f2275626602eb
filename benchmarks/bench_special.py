"""Special functions in the engine: elements a second, beside f64 exp rounded to f32 in the same run.

Run ``python benchmarks/bench_special.py [--runs N] [--count N] [--all]``. Every line is one jitted function of f32
numbers between -20 and 0 (1 to 1e4 for logarithms and divisors), fused whole, results read by nobody. Lines are timed in
turns, so that a load on the machine meets all of them; the CPU column counts the time of all threads, and the ratios
are to the first line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specs.formats import BASES, parse_format
from verify.engine.contract import COMPILER_OPTIONS
from verify.engine.primitives import F32, ZERO, x64

SINGLE = BASES["f32"]
TARGET = 2.5e8
"""Elements a second that ex2 must reach on two cores."""

LINES = (("mufu.ex2", "f32.ftz"), ("mufu.ex2", "f32"), ("mufu.rcp", "f32.ftz"), ("mufu.lg2", "f32.ftz"))
MORE = (
    ("mufu.rsq", "f32.ftz"),
    ("div.full", "f32"),
    ("triton.exp", "f32"),
    ("cuda.expf", "f32"),
    ("cuda.logf", "f32"),
    ("fa4.exp2", "f32"),
    ("torch.fexp_u20", "f32"),
    ("glibc.expf", "f32"),
    ("glibc.logf", "f32"),
)


def special(name: str, fmt: str) -> Callable[..., Any]:
    """The function on stored words, with its flag."""

    def run(zero: jax.Array, *words: jax.Array) -> tuple[jax.Array, jax.Array]:
        ops = F32(zero)
        operands = [ops.decode(w, SINGLE, check=False) for w in words]
        return ops.encode(ops.special(name, *operands, fmt=parse_format(fmt))), ops.risk()

    return jax.jit(run, compiler_options=COMPILER_OPTIONS)


@partial(jax.jit, compiler_options=COMPILER_OPTIONS)
def plain(zero: jax.Array, words: jax.Array) -> jax.Array:
    """XLA's own f64 exp of f32 numbers, rounded to f32."""
    x = jax.lax.bitcast_convert_type(words, jnp.float32).astype(jnp.float64)
    return jax.lax.bitcast_convert_type(jnp.exp(x).astype(jnp.float32), jnp.uint32)


@partial(jax.jit, compiler_options=COMPILER_OPTIONS)
def carrier(zero: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The engine's own correctly rounded exp."""
    ops = F32(zero)
    return ops.encode(ops.exp(ops.decode(words, SINGLE, check=False))), ops.risk()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--count", type=int, default=1 << 20)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.uniform(-20, 0, options.count).astype(np.float32).view(np.uint32))
    positive = jnp.asarray(rng.uniform(1, 1e4, options.count).astype(np.float32).view(np.uint32))
    calls: dict[str, Callable[[], Any]] = {
        "f64 exp rounded to f32": lambda: plain(ZERO, logits),
        "exp, correctly rounded": lambda: carrier(ZERO, logits),
    }
    for name, fmt in LINES + (MORE if options.all else ()):
        words = (positive,) if name.endswith(("rcp", "lg2", "rsq", "logf")) else (logits,)
        words = (logits, positive) if name == "div.full" else words
        function = special(name, fmt)
        calls[f"{name} in {fmt}"] = lambda f=function, w=words: f(ZERO, *w)
    wall = {name: np.zeros(options.runs) for name in calls}
    busy = {name: np.zeros(options.runs) for name in calls}
    with x64():
        for call in calls.values():
            jax.block_until_ready(call())
        for i in range(options.runs):
            for name, call in calls.items():
                started, cpu = time.perf_counter(), time.process_time()
                jax.block_until_ready(call())
                wall[name][i], busy[name][i] = time.perf_counter() - started, time.process_time() - cpu
    base, *_ = calls
    print(f"{options.count} elements, {options.runs} runs in turns, medians; rates in elements a second")
    for name in calls:
        seconds, cpu = np.median(wall[name]), np.median(busy[name])
        print(
            f"  {name:28s}{options.count / seconds:9.2e}  best {options.count / wall[name].min():8.2e}"
            f"  CPU {cpu / options.count * 1e9:6.2f} ns  wall x {seconds / np.median(wall[base]):5.2f}"
            f"  CPU x {cpu / np.median(busy[base]):5.2f}"
        )
    ex2 = "mufu.ex2 in f32.ftz"
    rate, core = options.count / wall[ex2].min(), options.count / np.median(busy[ex2])
    print(
        f"ex2: best {rate:.2e} a second, {rate / TARGET:.2f} of the target {TARGET:.1e}; a core, by CPU time: {core:.2e}"
    )


if __name__ == "__main__":
    main()
