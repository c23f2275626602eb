"""A forward of SmolLM2-135M over 320 tokens: in declared arithmetic, against a plain jitted JAX forward, in one process.

    pip install gguf
    python benchmarks/bench_forward.py [--runs N] [--tokens N] [--layers N] [--spec SPEC@PLATFORM]

Sides, interleaved, after one call of each (compilation is told apart):

* plain: a jitted forward of a dozen lines, written here, f32, logits of every token;
* f32: `verify.forward.plain`, what ``ulpscope predict --config f32`` runs;
* f32 with a spec: attention through ``walkthrough.flash_attention_2@h200``, everything else f32;
* bf16: ``--config vllm_bf16``: tensor-core chains, declared norms, rotation, activation and attention.

Goals: f32 within 3 x plain; f32 with a spec within 3 x; bf16 within 20 x, target 8 x; matrix products at the rate of
fused dots of bench_dots.py, whose fast kernel is timed here on as many dots. Wall time is what a user waits; on a shared
machine CPU time says more, and ratios are of medians, with the range of the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from specs import load_platform
from specs.dot_products import find
from specs.formats import BASES
from verify.engine import tensor_core_kernels
from verify.engine.contract import COMPILER_OPTIONS, prepare_keys
from verify.forward import plain
from verify.forward.config import Arithmetic, load_arithmetic
from verify.forward.load import load_model
from verify.forward.predict import Predictor
from verify.forward.staged import RowSet, Staged
from verify.forward.weights import Model


def baseline(model: Model, ids: np.ndarray) -> Callable[[], Any]:
    """The plain forward: stacked weights, a scan over layers, no care for anything."""
    a, w = model.architecture, {n: jnp.asarray(x) for n, x in model.layers.items()}
    cos, sin = (jnp.asarray(t)[:, None] for t in plain.rotary.tables(a, len(ids)))
    mask = jnp.tril(jnp.ones((len(ids), len(ids)), bool))

    def norm(x: Any, g: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + a.eps) * g

    def turn(x: Any) -> Any:
        one, two = x[..., 0::2], x[..., 1::2]
        return jnp.stack([one * cos - two * sin, two * cos + one * sin], -1).reshape(x.shape)

    def layer(x: Any, w: Any) -> Any:
        h = norm(x, w["attn_norm"])
        q, k, v = ((h @ w[n].T).reshape(len(ids), -1, a.head_dim) for n in "qkv")
        q = turn(q).reshape(len(ids), a.kv_heads, a.group, a.head_dim)
        scores = jnp.einsum("qhgd,khd->hgqk", q, turn(k)) * a.head_dim**-0.5
        weight = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        x = x + jnp.einsum("hgqk,khd->qhgd", weight, v).reshape(len(ids), -1) @ w["o"].T
        h = norm(x, w["mlp_norm"])
        return x + (jax.nn.silu(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T, None

    embedding, head, last = (jnp.asarray(x) for x in (model.embedding, model.head, model.norm))
    run = jax.jit(lambda i, w, e, h, n: norm(lax.scan(layer, e[i], w)[0], n) @ h.T)
    return lambda: run(jnp.asarray(ids), w, embedding, head, last)


def logits_of(model: Model, arithmetic: Arithmetic, ids: np.ndarray) -> Callable[[], Any]:
    predict = Predictor(model, arithmetic)
    return lambda: predict(ids).logits()


def with_attention(arithmetic: Arithmetic, kernel: str) -> Arithmetic:
    return arithmetic.model_copy(
        update={"attention": arithmetic.attention.model_copy(update={"kernel": kernel})}
    )


def products(model: Model, arithmetic: Arithmetic, rows: int) -> tuple[int, Callable[[], Any]]:
    """The products of one layer, and how many fused dots they are."""
    staged = Staged(arithmetic, replace(model, layers=model.layers))
    assert staged.products is not None
    rng = np.random.default_rng(0)
    sets = [RowSet(0, rows, 1)]
    inputs, dots = [], 0
    for name in ("qkv.0", "o.0", "up.0", "down.0"):
        n, k = staged.products.matrices.shape[name]
        x = rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16).view(np.uint16)
        inputs.append((name, jnp.asarray(x)))
        dots += rows * n * (k // 16)
    return dots, lambda: [staged.product(x, name, sets) for name, x in inputs]


def scores_kernel(dots: int) -> tuple[int, Callable[[], Any]]:
    """The fast kernel of bench_dots.py: scores of bf16 queries, head_dim 256, of about as many dots."""
    bf16 = BASES["bf16"]
    dot = find(load_platform("h200").dot_products, "mma", bf16, bf16, BASES["f32"], 16)
    tokens = max(4096, dots // (24 * 16) // 4096 * 4096)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((4, 6, 256)).astype(ml_dtypes.bfloat16).view(np.uint16)
    k = rng.standard_normal((tokens, 4, 256)).astype(ml_dtypes.bfloat16).view(np.uint16)
    keys = jnp.asarray(prepare_keys(k, tokens))

    def score(q: Any, keys: Any, n: Any) -> Any:
        return tensor_core_kernels.qk(dot, 16, q, bf16, keys, bf16, n)

    run = jax.jit(score, compiler_options=COMPILER_OPTIONS)
    return tokens * 24 * 16, lambda: run(jnp.asarray(q), keys, np.int32(tokens))


class Side:
    """A timed call."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name, self.call = name, call
        self.wall: list[float] = []
        self.cpu: list[float] = []
        began = time.perf_counter()
        jax.block_until_ready(call())
        self.first = time.perf_counter() - began

    def run(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.call())
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)


def ratio(side: Side, base: Side, what: str) -> str:
    a, b = getattr(side, what), getattr(base, what)
    single = sorted(x / y for x, y in zip(a, b, strict=True))
    return f"{statistics.median(a) / statistics.median(b):6.2f} ({single[0]:.2f} to {single[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--layers", type=int, default=0, help="only the first of the model's layers")
    parser.add_argument("--spec", default="flash_attn2.splitkv_decode@h200")
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    if arguments.layers:
        a = replace(model.architecture, layers=arguments.layers)
        layers = {n: x[: arguments.layers] for n, x in model.layers.items()}
        model = replace(model, architecture=a, layers=layers)
    ids = np.random.default_rng(0).integers(0, model.architecture.vocab, arguments.tokens)
    f32, bf16 = load_arithmetic("f32"), with_attention(load_arithmetic("vllm_bf16"), arguments.spec)
    spec = with_attention(f32, "walkthrough.flash_attention_2@h200")
    base = Side("plain jitted JAX", baseline(model, ids))
    sides = [base]
    sides.append(Side("f32", logits_of(model, f32, ids)))
    sides.append(Side("f32, attention walkthrough.flash_attention_2", logits_of(model, spec, ids)))
    sides.append(Side(f"bf16, attention {arguments.spec}", logits_of(model, bf16, ids)))
    dots, call = products(model, bf16, arguments.tokens)
    ours = Side("products of one layer", call)
    other_dots, call = scores_kernel(dots)
    other = Side("scores kernel of bench_dots", call)
    for _ in range(arguments.runs):
        for side in [*sides, ours, other]:
            side.run()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, jax {jax.__version__}, {model.architecture.layers} layers, "
        f"{arguments.tokens} tokens, median of {arguments.runs}"
    )
    print(f"{'':52}{'s wall':>8}{'s CPU':>8}{'first':>8}   CPU / plain (range)      wall / plain (range)")
    for s in sides:
        wall, cpu = statistics.median(s.wall), statistics.median(s.cpu)
        print(
            f"{s.name:52}{wall:8.2f}{cpu:8.2f}{s.first:8.1f}   {ratio(s, base, 'cpu'):24} {ratio(s, base, 'wall')}"
        )
    for s, n in ((ours, dots), (other, other_dots)):
        wall, cpu = statistics.median(s.wall), statistics.median(s.cpu)
        cores = os.cpu_count() or 1
        print(f"{s.name:40} {n:.2e} dots: {n / wall:.2e} a second, {cores} x {n / cpu:.2e} a CPU second")
    for s, limit, target in zip(sides[1:], (3, 3, 20), (3, 3, 8), strict=True):
        found = statistics.median(s.cpu) / statistics.median(base.cpu)
        print(f"{s.name}: {found:.1f} x plain in CPU time (limit {limit}, target {target})")


if __name__ == "__main__":
    main()
