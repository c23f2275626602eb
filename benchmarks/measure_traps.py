"""What JAX does to plain floating-point programs on this machine: the table of docs/numerics.md.

Each line compares a jitted function with the same operations in NumPy, each rounded once, on a million
elements, and prints how many results have other bits. Run:  python benchmarks/measure_traps.py
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

N = 1_000_000
F32 = np.float32
C1, C2 = F32(1.1), F32(2.3)


def rounded(function: Callable[[float], float], x: NDArray[Any]) -> NDArray[Any]:
    """A function of doubles, rounded once to f32: right but for a handful of f32 inputs."""
    return np.array([function(v) for v in x.tolist()]).astype(F32)


def two_sum(a: Any, b: Any) -> Any:
    """What an addition loses, if each step rounds."""
    return b - ((a + b) - a)


def main() -> None:
    """Measure and print."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(N).astype(F32) for _ in range(3))
    wide = a.reshape(1000, 1000)
    row = np.abs(b[:1000]) + F32(0.5)
    tiny = (rng.random(N).astype(F32) + F32(0.01)) * F32(2.0**-127)
    below = (-20 * rng.random(100_000)).astype(F32)
    above = (1 + 9999 * rng.random(100_000)).astype(F32)
    halves = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    order = np.float32(0)
    for x in a[:10_000]:
        order = order + x
    double = a.astype(np.float64) + b.astype(np.float64) * 2.0**-20
    lines: list[tuple[str, Callable[..., Any], tuple[Any, ...], NDArray[Any]]] = [
        ("a * b + c", lambda a, b, c: a * b + c, (a, b, c), a * b + c),
        ("x / row[:, None]", lambda x, r: x / r[:, None], (wide, row), wide / row[:, None]),
        ("a / 3", lambda a: a / 3, (a,), a / F32(3)),
        ("a / b / c", lambda a, b, c: a / b / c, (a, b, c), a / b / c),
        ("(a * 1.1) * 2.3", lambda a: (a * C1) * C2, (a,), (a * C1) * C2),
        ("(a + 1.1) + 2.3", lambda a: (a + C1) + C2, (a,), (a + C1) + C2),
        ("a * s + b * s", lambda a, b, s: a * s + b * s, (a, b, c[0]), a * c[0] + b * c[0]),
        ("-0 + 0", lambda x: x + F32(0), (np.full(N, F32(-0.0)),), np.zeros(N, F32)),
        ("subnormal + 0 * a", lambda t, a: t + 0 * a, (tiny, np.abs(a)), tiny),
        ("bf16 b - ((a + b) - a)", two_sum, halves, two_sum(*halves)),
        ("sum of 10,000", lambda a: a.sum(), (a[:10_000],), np.asarray(order)),
        ("exp on [-20, 0]", jnp.exp, (below,), rounded(math.exp, below)),
        ("exp2 on [-20, 0]", jnp.exp2, (below,), rounded(math.exp2, below)),
        ("log on [1, 10000]", jnp.log, (above,), rounded(math.log, above)),
    ]
    print(f"jax {jax.__version__}, numpy {np.__version__}, {platform.machine()}")
    with jax.default_device(jax.devices("cpu")[0]):
        for name, function, inputs, right in lines:
            got = np.asarray(jax.jit(function)(*inputs))
            word = f"u{right.dtype.itemsize}"
            wrong = np.mean(np.atleast_1d(got).view(word) != np.atleast_1d(right).view(word))
            print(f"{name:<22} {wrong:7.2%}")
    print(f"{'numpy exp f32':<22} {np.mean(np.exp(below) != rounded(math.exp, below)):7.2%}")
    got = double.astype(ml_dtypes.bfloat16).astype(np.float64)
    once = np.array([_bf16(v) for v in double.tolist()])
    print(f"{'f64 to bf16, ml_dtypes':<22} {np.mean(got != once):7.4%}")
    twice = np.float64(1 + 2**-8 + 2**-40).astype(ml_dtypes.bfloat16)
    print(f"ml_dtypes: 1 + 2**-8 + 2**-40 to bf16 is {twice}, right is 1.0078125")
    print(
        f"ml_dtypes: 500 to e4m3fn is {np.float32(500).astype(ml_dtypes.float8_e4m3fn)}, saturated it is 448"
    )


def _bf16(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 256), exponent - 8)


if __name__ == "__main__":
    main()
