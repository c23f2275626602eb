"""Fused tensor-core dot products a second: the kernels, a straightforward jitted version, and MMA-Sim, in one process.

    python benchmarks/bench_dots.py [--runs N] [--tokens N]

One dot is 16 products and an accumulator of a chain over K = 256, bf16, as mma.sync m16n8k16 computes them (on Ampere
in two blocks of 8). Every side gives the same bits, which is checked on a part of them. MMA-Sim 2.1.1 runs its batched
path on one torch thread and 100,000 chains' blocks (pip install mmasim==2.1.1 torch); without it that line is left out.

Sides are interleaved. Wall time is what a user waits; on a shared machine CPU time says more: dots a second of two
cores are twice the dots a CPU second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.formats import BASES
from verify.engine import tensor_core, tensor_core_kernels
from verify.engine.contract import BLOCK, COMPILER_OPTIONS, prepare_keys

HEADS, ROWS, DIM, K = 4, 6, 256, 16
BF16 = BASES["bf16"]
PLATFORMS = {"Hopper": "h200", "Ampere": "a100"}
CHAINS = 24 * BLOCK  # of the straightforward version
MMASIM_N = 100_000


def straightforward(dot: DotProduct, a: tensor_core.Operand, b: tensor_core.Operand) -> Any:
    """Chains over the leading axis of decoded operands [steps, n, terms]: what one writes down first."""

    def block(acc: Any, operands: Any) -> Any:
        x, y = operands
        exponent = x.exponent + y.exponent
        product = x.significand * y.significand * np.int32(1 << (dot.fraction_bits - 2 * tensor_core.SCALE))
        field = (acc >> 23) & 255
        c = jnp.where(field > 0, (acc & 0x7FFFFF) | 0x800000, acc & 0x7FFFFF).astype(jnp.int32)
        c_exponent = jnp.where(c == 0, -8192, jnp.maximum(field.astype(jnp.int32), 1) - 127)
        top = jnp.maximum(jnp.maximum(jnp.max(exponent, axis=1), c_exponent), dot.exponent_floor)
        sign = product >> 31
        term = ((product + sign) >> jnp.minimum(top[:, None] - exponent, 31)) - sign
        total = jnp.sum(term, axis=1, dtype=jnp.int32)
        c = c << (dot.fraction_bits - 23) >> jnp.minimum(top - c_exponent, 31)
        c = jnp.where(acc >> 31 == 1, -c, c)
        magnitude, negative = tensor_core._sum(total, c)
        return tensor_core._signed(tensor_core._round(magnitude, top, dot, 0), negative, acc, dot), None

    return lax.scan(block, jnp.zeros(a.exponent.shape[1], jnp.uint32), (a, b))[0]


def decoded(dot: DotProduct, words: np.ndarray) -> tensor_core.Operand:
    """Words [n, K] as int32 operands [steps, n, terms]."""
    operand = tensor_core.decode(jnp.asarray(words), BF16)
    shape = (len(words), -1, dot.fused_length)
    return tensor_core.Operand(*(jnp.moveaxis(x.astype(jnp.int32).reshape(shape), 1, 0) for x in operand))


def mmasim(arch: str) -> Callable[[], Any] | None:
    """One call of MMA-Sim's batched path on 100,000 dots of 16 terms, or None."""
    try:
        import torch
        from mmasim import nv_ptx
    except ImportError as error:
        print(f"MMA-Sim is left out: {error} (pip install mmasim==2.1.1 torch)")
        return None
    torch.set_num_threads(1)
    op = nv_ptx.MMA(arch, "m16n8k16.f32.bf16.bf16.f32")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(MMASIM_N, 16, generator=generator).to(torch.bfloat16) for _ in range(2))
    c = torch.randn(MMASIM_N, generator=generator)
    return partial(op.dpa, a, b, c)


class Side:
    """A timed call and the dots it computes."""

    def __init__(self, name: str, dots: int, call: Callable[[], Any]) -> None:
        self.name, self.dots, self.call = name, dots, call
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def run(self) -> None:
        """Time one call."""
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.call())
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def line(self, cores: int) -> str:
        """Best and median."""
        best, median = min(self.wall), float(np.median(self.wall))
        cpu = min(self.cpu)
        return (
            f"{self.name:44} {self.dots / best:9.2e} {self.dots / median:9.2e} {cores * self.dots / cpu:12.2e} "
            f"{best * 1e3:9.1f} {cpu * 1e3:9.1f}"
        )


def sides(arch: str, tokens: int) -> list[Side]:
    """The sides of one architecture, warmed up and checked against each other."""
    dot = find(load_platform(PLATFORMS[arch]).dot_products, "mma", BF16, BF16, BASES["f32"], K)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((HEADS, ROWS, DIM)).astype(ml_dtypes.bfloat16).view(np.uint16)
    k = rng.standard_normal((tokens, HEADS, DIM)).astype(ml_dtypes.bfloat16).view(np.uint16)
    keys = jnp.asarray(prepare_keys(k, tokens))
    qd = jnp.asarray(q)

    def score(q: Any, keys: Any, n: Any) -> Any:
        return tensor_core_kernels.qk(dot, K, q, BF16, keys, BF16, n)

    scores = jax.jit(score, compiler_options=COMPILER_OPTIONS)
    tiles = np.asarray(scores(qd, keys, np.int32(tokens)))
    scored = Side(
        f"{arch}: scores (qk)", tokens * HEADS * ROWS * DIM // K, partial(scores, qd, keys, np.int32(tokens))
    )

    part = min(CHAINS // ROWS // HEADS, tokens)
    a = np.broadcast_to(q, (part, *q.shape)).reshape(-1, DIM)
    b = np.broadcast_to(k[:part, :, None], (part, HEADS, ROWS, DIM)).reshape(-1, DIM)
    plain = jax.jit(partial(straightforward, dot), compiler_options=COMPILER_OPTIONS)
    ad, bd = decoded(dot, a), decoded(dot, b)
    words = np.asarray(plain(ad, bd)).reshape(part, HEADS, ROWS)
    same = tiles.transpose(0, 3, 1, 2).reshape(-1, HEADS, ROWS)[:part]
    assert np.array_equal(words, same), "the straightforward version gives other bits"
    simple = Side(f"{arch}: straightforward jit", len(a) * DIM // K, partial(plain, ad, bd))

    groups, steps = 54, max(1, tokens // (54 * 16))
    w = rng.random((steps, groups, HEADS, ROWS, 16)).astype(ml_dtypes.bfloat16).view(np.uint16)
    v = (
        rng.standard_normal((steps, groups, 16, HEADS, DIM // 16, 16))
        .astype(ml_dtypes.bfloat16)
        .view(np.uint16)
    )

    def weigh(w: Any, v: Any) -> Any:
        def step(i: Any, acc: Any) -> Any:
            own, value = (lax.dynamic_index_in_dim(x, i, 0, False) for x in (w, v))
            return tensor_core_kernels.values_step(dot, K, acc, own, BF16, value, BF16)

        start = jnp.zeros((groups, HEADS, DIM // 16, ROWS, 16), jnp.uint32)
        return lax.fori_loop(np.int32(0), np.int32(steps), step, start)

    values = jax.jit(weigh, compiler_options=COMPILER_OPTIONS)
    wd, vd = jnp.asarray(w), jnp.asarray(v)
    jax.block_until_ready(values(wd, vd))
    weighed = Side(
        f"{arch}: values (values_step)", steps * groups * HEADS * ROWS * DIM, partial(values, wd, vd)
    )
    return [scored, weighed, simple]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=54 * BLOCK)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(
        f"{cores} cores, load {os.getloadavg()[0]:.1f}, jax {jax.__version__}, {args.tokens} tokens, best of {args.runs}"
    )
    groups = {arch: sides(arch, args.tokens) for arch in PLATFORMS}
    for arch, own in groups.items():
        call = mmasim(arch)
        if call is not None:
            call()
            own.append(Side(f"{arch}: MMA-Sim, batched, one thread", MMASIM_N, call))
    for _ in range(args.runs):
        for own in groups.values():
            for side in own:
                side.run()
                time.sleep(0.02)
    print(f"{'':44} {'dots/s':>9} {'median':>9} {f'{cores} x CPU':>12} {'ms wall':>9} {'ms CPU':>9}")
    for arch, own in groups.items():
        for side in own:
            print(side.line(1 if "MMA-Sim" in side.name else cores))
        fast, simple = own[0], own[2]
        wall = (fast.dots / min(fast.wall)) / (simple.dots / min(simple.wall))
        cpu = (fast.dots / min(fast.cpu)) / (simple.dots / min(simple.cpu))
        print(f"{arch}: scores against the straightforward version: {wall:.1f} x wall, {cpu:.1f} x CPU")
        if len(own) > 3:
            other = own[3]
            ratio = (fast.dots / min(fast.wall)) / (other.dots / min(other.wall))
            print(f"{arch}: scores against MMA-Sim: {ratio:.0f} x wall")


if __name__ == "__main__":
    main()
