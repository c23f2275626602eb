"""Correctly rounded exp, exp2, log, log2 and reciprocal: a scalar oracle for every format, arrays for f32.

The scalar functions enclose the exact value in balls of growing precision (python-flint) until both ends of
the ball round to the same value (Ziv's strategy). It ends because every result that could be a midpoint or a
value of the format is rational and handled exactly: exp(x) and log(x) are transcendental for rational x but
exp(0) = 1 and log(1) = 0, exp2(x) is rational only for integers, log2(x) only for powers of two.

The array functions evaluate in float64 and round once to float32. A float64 result within `MARGIN` float64
ulps of a midpoint between two float32 values is decided by the scalar oracle instead, so the result is right
on every machine whose float64 functions err by less than `MARGIN` ulps, whatever inputs its library misses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import flint
import numpy as np
from numpy.typing import NDArray

from specs.formats import BASES, Format
from verify.numerics.operations import div, flush
from verify.numerics.rounding import round_float, round_fraction

MARGIN = 16
"""Assumed bound on the error of NumPy's float64 exp, exp2 and log, in float64 ulps; they meet 1 or 2."""

Singles = NDArray[np.float32]
Oracle = Callable[[float, Format], float]
_F32 = BASES["f32"]


# -- scalar oracle ----------------------------------------------------------------------------------------


def exp(x: float, fmt: Format) -> float:
    """The exponential of x, rounded once to ``fmt``: 0 at -inf, infinity at inf."""
    x = flush(x, fmt)
    if math.isnan(x) or x == math.inf:
        return round_float(x, fmt)
    # 0.7 > ln 2: beyond these limits the result is certainly past the ends of the format.
    if x > 0.7 * (fmt.emax + 2):
        return _beyond(fmt)
    if x < 0.7 * (fmt.quantum - 2):
        return _vanishing(fmt)
    if x == 0.0:
        return round_float(1.0, fmt)
    return _ziv(lambda ball: ball.exp(), x, fmt)


def exp2(x: float, fmt: Format) -> float:
    """Two to the power x, rounded once to ``fmt``: 0 at -inf, infinity at inf."""
    x = flush(x, fmt)
    if math.isnan(x) or x == math.inf:
        return round_float(x, fmt)
    if x > fmt.emax + 2:
        return _beyond(fmt)
    if x < fmt.quantum - 2:
        return _vanishing(fmt)
    if x == math.floor(x):
        return round_fraction(Fraction(2) ** int(x), fmt)
    return _ziv(lambda ball: flint.arb(2) ** ball, x, fmt)


def log(x: float, fmt: Format) -> float:
    """The natural logarithm of x rounded once to ``fmt``; -inf at either zero, NaN below, +0 at 1."""
    x = flush(x, fmt)
    if x == 0.0 or x < 0.0 or not math.isfinite(x):
        return _log_special(x, fmt)
    if x == 1.0:
        return 0.0
    return _ziv(lambda ball: ball.log(), x, fmt)


def log2(x: float, fmt: Format) -> float:
    """The binary logarithm of x rounded once to ``fmt``; special values as in `log`."""
    x = flush(x, fmt)
    if x == 0.0 or x < 0.0 or not math.isfinite(x):
        return _log_special(x, fmt)
    significand, exponent = math.frexp(x)
    if significand == 0.5:
        return round_fraction(Fraction(exponent - 1), fmt)
    return _ziv(lambda ball: ball.log() / flint.arb.const_log2(), x, fmt)


def rcp(x: float, fmt: Format) -> float:
    """The reciprocal of x rounded once to ``fmt``; a signed infinity at a signed zero."""
    return div(1.0, x, fmt)


def _log_special(x: float, fmt: Format) -> float:
    return round_float(-math.inf if x == 0.0 else x if x == math.inf else math.nan, fmt)


def _beyond(fmt: Format) -> float:
    return round_fraction(Fraction(2) ** (fmt.emax + 2), fmt)


def _vanishing(fmt: Format) -> float:
    return round_fraction(Fraction(2) ** (fmt.quantum - 2), fmt)


def _ziv(function: Callable[[flint.arb], flint.arb], x: float, fmt: Format) -> float:
    """Evaluate at growing precision until both ends of the enclosure round to one value of ``fmt``."""
    point = flint.arb(x)
    bits = 64
    while True:
        with flint.ctx.workprec(bits):
            ball = function(point)
            ends = [_exact(end) for end in (ball.lower(), ball.upper())]
        low, high = (round_fraction(end, fmt) for end in ends)
        overflows = math.isnan(low) and math.isnan(high)  # past the end of a format without infinities
        if overflows or (low == high and (ends[0] > 0) == (ends[1] > 0)):
            return low
        bits *= 2


def _exact(end: flint.arb) -> Fraction:
    mantissa, exponent = end.man_exp()
    m, e = int(mantissa), int(exponent)
    return Fraction(m << e) if e >= 0 else Fraction(m, 1 << -e)


# -- float32 arrays ---------------------------------------------------------------------------------------


def exp_f32(x: Singles) -> Singles:
    """e**x of a float32 array of any shape, correctly rounded to float32, subnormal results included."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _round_guarded(x, np.exp(x.astype(np.float64)), exp)


def exp2_f32(x: Singles) -> Singles:
    """2**x of a float32 array of any shape, correctly rounded to float32, subnormal results included."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _round_guarded(x, np.exp2(x.astype(np.float64)), exp2)


def log_f32(x: Singles) -> Singles:
    """The natural logarithm of a float32 array of any shape, correctly rounded to float32.

    Subnormal operands are taken at their value; zeros give -inf and negative numbers NaN, silently.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return _round_guarded(x, np.log(x.astype(np.float64)), log)


def _round_guarded(x: Singles, wide: NDArray[np.float64], oracle: Oracle) -> Singles:
    result = np.asarray(wide.astype(np.float32))
    for i in np.flatnonzero(near_midpoint(wide, MARGIN)):
        result.flat[i] = oracle(float(x.flat[i]), _F32)
    return result


def near_midpoint(wide: NDArray[np.float64], margin: int) -> NDArray[np.bool_]:
    """Where float64 values lie within ``margin`` float64 ulps of a midpoint between float32 values.

    Args:
        wide: float64 array of any shape; NaN and infinities are never near.
        margin: float64 ulps, below 2**28.

    Returns:
        bool array of the same shape. Values of normal float32 size are judged by their low 29 bits; smaller
        ones by their distance to an odd multiple of 2**-150, half the float32 quantum.
    """
    words = np.atleast_1d(wide).view(np.uint64)
    half = 1 << 28
    near = ((words - np.uint64(half - margin)) & np.uint64(2 * half - 1)) <= np.uint64(2 * margin)
    magnitude = np.abs(wide).reshape(words.shape)
    small = np.flatnonzero(magnitude < 2.0**-126)
    if small.size:
        steps = np.ldexp(magnitude.ravel()[small], 149)
        distance = np.abs(steps - np.floor(steps) - 0.5)
        near.flat[small] = distance <= margin * np.spacing(steps)
    return near.reshape(wide.shape)
