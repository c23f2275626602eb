"""The visible reducer of TRT-LLM-gen attention on given partials (the kernels that make them are closed).

Read in flashinfer-ai/flashinfer fb28d724, `csrc/fmhaReduction.cu` (fmhaReductionKernel). Contraction from SASS for
sm_100a (CUDA 13.0): S = fma(e0, S, S_c*e1) but O = fma(o_c, e1, O*e0), the latter packed and without flushing.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .floats import F32, GPU, IEEE, Array, f32, larger, round_to
from .mufu import ex2, rcp

LOWEST = F32(np.finfo(F32).min)


def reduce_partials(
    tops: Array,
    sums: Array,
    outs: Array,
    scale_log2: float,
    *,
    fmt: str = "bf16",
    sinks: Array | None = None,
    e4m3: bool = False,
) -> tuple[Array, Array, Array]:
    """tops, sums [ctas, rows] f32, outs [ctas, rows, d] of 16 bits: (out of `fmt`, maximum, sum)."""
    ctas, rows, d = outs.shape
    k = F32(scale_log2)
    top, total, acc = np.full(rows, LOWEST), np.zeros(rows, F32), np.zeros((rows, d), F32)
    for c in range(ctas):
        new = larger(top, tops[c])
        fall = ex2(GPU.mul(k, GPU.sub(top, new)))
        lag = ex2(GPU.mul(k, GPU.sub(tops[c], new)))
        top = new
        total = GPU.fma(total, fall, GPU.mul(sums[c], lag))
        acc = IEEE.fma(outs[c], lag[:, None], IEEE.mul(acc, fall[:, None]))
    if sinks is not None:
        # binary64: the product with M_LOG2E fused with the subtraction
        log2e = Fraction(1.4426950408889634074)
        for r in range(rows):
            low = float(GPU.mul(top[r], k))
            exact = Fraction(float(sinks[r])) * log2e - Fraction(low) if np.isfinite(low) else -low
            weight = ex2(f32(float(exact)))  # rounded to binary64, and then by exp2f's argument
            total[r] = GPU.add(total[r], GPU.mul(weight, F32(448)) if e4m3 else weight)
    norm = GPU.mul(F32(448), rcp(total)) if e4m3 else rcp(total)
    return round_to(fmt, IEEE.mul(acc, norm[:, None])), top, total
