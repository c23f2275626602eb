"""f32 arithmetic of a GPU in NumPy, for recurrences that tests write out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.numerics import mufu

F32 = np.float32
LOG2E = F32(1.4426950408889634)


def flushed(x: Any) -> Any:
    """Subnormals become zero of the same sign."""
    return np.where(np.abs(x) < F32(2.0**-126), np.copysign(F32(0), x), x).astype(F32)


def _special(function: Any, x: Any) -> Any:
    words = [mufu.from_word(function(mufu.to_word(float(v)))) for v in np.ravel(x)]
    return flushed(np.array(words, F32).reshape(np.shape(x)))


def ex2(x: Any) -> Any:
    """MUFU.EX2.FTZ; the model behind it is tested elsewhere."""
    return _special(mufu.ex2, x)


def lg2(x: Any) -> Any:
    """MUFU.LG2.FTZ."""
    return _special(mufu.lg2, x)


def rcp(x: Any) -> Any:
    """MUFU.RCP.FTZ."""
    return _special(mufu.rcp, x)


def mul(a: Any, b: Any) -> Any:
    """FMUL.FTZ."""
    with np.errstate(over="ignore", invalid="ignore"):
        return flushed(np.multiply(a, b, dtype=F32))


def add(a: Any, b: Any) -> Any:
    """FADD.FTZ."""
    with np.errstate(over="ignore", invalid="ignore"):
        return flushed(np.add(a, b, dtype=F32))


def fma(a: Any, b: Any, c: Any) -> Any:
    """FFMA without flushing.

    The product of two f32 values is exact in f64; the sum is rounded to odd there, so that rounding it to f32 is the
    only rounding.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.float64(a) * np.float64(b)
        total = product + np.float64(c)
        back = total - product
        error = (product - (total - back)) + (np.float64(c) - back)
        odd = np.where((error != 0) & (total.view(np.int64) % 2 == 0), np.where(error * total > 0, 1, -1), 0)
        odd = np.where(np.isfinite(total), odd, 0)
        return (total.view(np.int64) + odd).view(np.float64).astype(F32)
