"""Inputs that reach the branches of attention kernels: maxima that rise or never change, weights that vanish, infinities."""

from __future__ import annotations

import numpy as np

from .floats import F32, Array, round_to

KINDS = (
    "normal",
    "rising",
    "falling",
    "steps",
    "deep",
    "peaked",
    "equal",
    "floor",
    "overflow",
    "tiny",
    "faint",
)


def attention(
    kind: str,
    rng: np.random.Generator,
    n: int,
    q_heads: int,
    kv_heads: int,
    d: int,
    *,
    fmt: str = "bf16",
    q_len: int = 0,
) -> tuple[Array, Array, Array]:
    """q [q_heads, d] (or [q_len, q_heads, d]), k and v [n, kv_heads, d] of `fmt`; scores are for scale d**-0.5.

    rising, falling: scores climb or fall by 20 over the tokens; steps: they change every 64 tokens, up and down;
    deep: all but a few are 80 to 100 below the maximum; peaked: standard deviation 8; equal: one key;
    floor: all near -2e5; overflow: some dots are infinite in f32; tiny: values and dots near the smallest numbers;
    faint: one key; values of half the tokens are so small that sums are subnormal in f32 (in bf16).
    """
    shape = (q_heads, d) if not q_len else (q_len, q_heads, d)
    q, k, v = (rng.standard_normal(s) for s in (shape, (n, kv_heads, d), (n, kv_heads, d)))
    t = np.arange(n) / max(n - 1, 1)
    ramp = None
    match kind:
        case "rising":
            ramp = 20 * t
        case "falling":
            ramp = -20 * t
        case "steps":
            ramp = rng.permutation(np.arange(n // 64 + 1))[np.arange(n) // 64] * 1.5
        case "deep":
            ramp = -rng.uniform(80, 100, n) * (rng.random(n) > 2 / max(n, 1))
        case "floor":
            ramp = np.full(n, -2e5) + 50 * t
        case "peaked":
            q *= 8
        case "equal":
            k[:] = k[:1]
        case "overflow":
            big = 2.0**64 if fmt == "bf16" else 2.0**15
            k[rng.random(n) < 0.02, :, 0] = big
            q[..., 0] = np.where(rng.random(q.shape[:-1]) < 0.5, big, -big)
        case "tiny":
            small = 2.0**-70 if fmt == "bf16" else 2.0**-12
            q, k, v = q * small, k * small, v * small**1.8
        case "faint":
            k[:] = k[:1]
            small, large = (-133, -124) if fmt == "bf16" else (-24, -14)
            size = np.where(np.arange(n) % 128 < 64, 2.0**small, 2.0**large)
            v = np.abs(v) * size[:, None, None]
        case _:
            pass
    if ramp is not None:
        q *= 0.1
        k *= 0.1
        q[..., 0] = 8
        k[:, :, 0] = (ramp * d**0.5 / 8)[:, None]
    if kind not in ("overflow", "tiny", "faint"):
        v *= np.exp2(rng.integers(-6, 6, n))[:, None, None]
    most = 3e38 if fmt == "bf16" else 6e4
    return tuple(round_to(fmt, np.clip(x, -most, most).astype(F32)) for x in (q, k, v))  # type: ignore[return-value]


def heads(q: Array, k: Array, v: Array, kv_head: int) -> tuple[Array, Array, Array]:
    """The rows, keys and values of one KV head; q [q_heads, d]."""
    group = q.shape[0] // k.shape[1]
    return q[kv_head * group : (kv_head + 1) * group], k[:, kv_head], v[:, kv_head]
