"""PyTorch 2.13's CPU flash attention in bf16 as a NumPy program of its own, one head at a time.

Read from aten/src/ATen/native/cpu/FlashAttentionKernel.cpp and the AVX-512 code of the wheel
(`_exp_reduce_sum_fusion_kernel`); the order of the two products is that of MKL 2024.2 on a CPU of AMD, as summands
that swallow others reveal it. `expf` and `logf` are the machine's own, as in the kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .floats import F32, Array, Unit

TILE, LANES, PANEL = 512, 16, 192
IEEE = Unit(ftz=False)


def _word(bits: int) -> Any:
    return np.array(bits, np.uint32).view(F32)[()]


@lru_cache(maxsize=2)
def _library(name: str) -> Callable[[float], float]:
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return function


def libm(name: str, x: Array) -> Array:
    """`expf` or `logf` of the C library, element by element."""
    function = _library(name)
    return np.array([function(float(e)) for e in x.ravel()], F32).reshape(x.shape)


def fexp_u20(x: Array) -> Array:
    """`Vectorized<float>::fexp_u20`: a cubic in the fraction, and the sum's bits truncated to those of the result."""
    src = x * _word(0x3FB8AA3B)
    with np.errstate(invalid="ignore"):
        part = src - np.floor(src)
    cubic = IEEE.fma(part, F32(-0.079204240219773236), F32(-0.22433836478672356))
    cubic = IEEE.fma(part, cubic, F32(0.30354260500649682))
    cubic = IEEE.fma(part, cubic, F32(0.00010703434948458272))
    with np.errstate(invalid="ignore"):
        scaled = IEEE.fma(F32(2.0**23), src - cubic, F32(2.0**23 * 127))
        bits = np.where(x < _word(0xC2AEAC50), 0, scaled).astype(np.int64)
    return bits.astype(np.uint32).view(F32)


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to nearest even (finite numbers)."""
    word = np.ascontiguousarray(x, F32).view(np.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F32)


def chain(a: Array, b: Array, start: Array | None = None) -> Array:
    """Sum of `a[i, m] * b[i, n]` over i, `[n, m]`, one after the other. Products of bf16 numbers are exact."""
    acc = np.zeros((b.shape[1], a.shape[1]), F32) if start is None else start.copy()
    for x, y in zip(a, b, strict=True):
        acc = acc + y[:, None] * x[None, :]
    return acc


def panels(a: Array, b: Array, start: Array | None = None) -> Array:
    """Chains of at most 192 summands; more than 192 but fewer than 384 are halved."""
    size = len(a) if len(a) <= PANEL else min(PANEL, len(a) // 2)
    acc = start
    for i in range(0, len(a), size):
        part = chain(a[i : i + size], b[i : i + size])
        acc = part if acc is None else acc + part
    return np.zeros((b.shape[1], a.shape[1]), F32) if acc is None else acc


def lanes(a: Array, b: Array, count: int) -> Array:
    """Summand i in chain i % count; the upper half of the chains is added to the lower, again and again."""
    parts = [chain(a[i::count], b[i::count]) for i in range(count)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [x + y for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def scores(keys: Array, queries: Array) -> Array:
    """`queries @ keys.T` of one tile, `[query, key]`."""
    a, b, count = keys.T, queries.T, len(keys)
    if len(queries) >= 4 and count >= 12:
        return panels(a, b)
    out = lanes(a, b, 4)
    left = count // 4 * 4
    if len(queries) > 1 and 1 < count != left:
        out[:, left:] = lanes(a[:, left:], b, 8)
    return out


def add_values(weights: Array, values: Array, acc: Array, before: int) -> Array:
    """`acc + weights @ values`; `before`: floats that lie before the accumulator, from a 16-byte boundary on."""
    queries, keys = weights.shape
    if queries >= 4:
        return panels(values, weights.T, acc)
    if queries == 1:
        out, left = acc.copy(), keys // 4 * 4
        product = weights[0][:, None] * values
        for i in range(0, left, 4):
            out[0] = out[0] + ((product[i] + product[i + 2]) + (product[i + 1] + product[i + 3]))
        for i in reversed(range(left, keys)):
            out[0] = out[0] + product[i]
        return out
    out, loose, left = chain(values, weights.T, acc), -before % 4, keys // 8 * 8
    first, v, w = acc[:, :loose], values[:, :loose], weights.T
    for i in range(0, left, 8):
        first = chain(v[i : i + 4], w[i : i + 4], first) + chain(v[i + 4 : i + 8], w[i + 4 : i + 8])
    out[:, :loose] = chain(v[left:], w[left:], first)
    return out


def row_sums(weights: Array) -> Array:
    """Two accumulators of 16 lanes in turn, added, halved to one lane; what is left over one by one."""
    keys = weights.shape[1]
    body = keys // LANES * LANES
    both = np.zeros((2, len(weights), LANES), F32)
    for i in range(0, body, LANES):
        both[i // LANES % 2] += weights[:, i : i + LANES]
    lane = both[0] + both[1]
    while lane.shape[1] > 1:
        lane = lane[:, : lane.shape[1] // 2] + lane[:, lane.shape[1] // 2 :]
    total = lane[:, 0]
    for i in range(body, keys):
        total = total + weights[:, i]
    return total


def flash(q: Array, k: Array, v: Array, scale: float, *, causal: bool = False) -> tuple[Array, Array]:
    """Output (f32 numbers of bf16) and lse of `q [n, d]`, `k, v [m, d]`, all f32 numbers of bf16, on one thread."""
    n, keys, factor = len(q), len(k), F32(scale)
    block = min(n, 256 if n >= 768 else 64 if n >= 192 else 32)
    output, lse = np.zeros(q.shape, F32), np.zeros(n, F32)
    for first in range(0, n, block):
        rows = q[first : first + block]
        top, total = np.full(len(rows), -np.inf, F32), np.zeros(len(rows), F32)
        acc = np.zeros(rows.shape, F32)
        for at in range(0, min(first + len(rows), keys) if causal else keys, TILE):
            tile = k[at : at + TILE]
            score = scores(tile, rows)
            if causal:
                hidden = np.arange(at, at + len(tile)) > (first + np.arange(len(rows)))[:, None]
                score = np.where(hidden, F32(-np.inf), score)
            score = score * factor
            new = np.maximum(top, score.max(axis=1))
            body = len(tile) // LANES * LANES
            shifted = score - new[:, None]
            tail = np.exp(shifted[:, body:].astype(np.float64)).astype(F32)
            weight = np.concatenate([fexp_u20(shifted[:, :body]), tail], axis=1)
            alpha = libm("expf", top - new)
            total = IEEE.fma(alpha, total, row_sums(weight))
            top = new
            before = block * (min(TILE, keys) + 2)
            acc = add_values(bf16(weight), v[at : at + TILE], acc * alpha[:, None], before)
        output[first : first + block] = bf16(acc * (F32(1) / total)[:, None])
        lse[first : first + block] = top + libm("logf", total)
    return output, lse
