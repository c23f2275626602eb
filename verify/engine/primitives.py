"""The guarded primitives of the array engine: the three carriers, and the context they run in.

A carrier is made inside a jitted function from a zero that is one of its arguments::

    @jax.jit
    def softmax_weight(score, top, zero):
        f = F32(zero)
        weight = f.exp(f.sub(score, top))
        return weight, f.risk()

    with x64():
        weight, risk = softmax_weight(score, top, ZERO)

`F32` is fast and raises `risk` where XLA may have flushed a subnormal number; the same program is then run
with `F32Exact`, which has the same methods. `F64` computes in f64.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
import numpy as np

from verify.engine.carriers import Carrier, exact_product
from verify.engine.narrow import F32
from verify.engine.wide import F64, F32Exact

__all__ = ["F32", "F64", "ZERO", "Carrier", "F32Exact", "exact_product", "x64"]

ZERO = np.uint32(0)
"""The argument to pass for ``zero``."""


def x64() -> AbstractContextManager[None]:
    """The context in which every function that uses a carrier is traced and called: 64-bit types on."""
    return jax.enable_x64(True)
