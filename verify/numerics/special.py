"""The special functions of kernels, scalar: each the sequence of operations that the hardware or library runs.

Every function takes Python floats that are values of f32 and the format of the operation: ``f32``, or
``f32.ftz`` for the flushing form of each instruction. The names are those of `specs.functions.FUNCTIONS`.

The unit itself flushes. What the forms without .ftz do around it, and the steps of ``div.full``, were read from the
code that ptxas 13.0 makes for sm_75, sm_80, sm_90, sm_100 and sm_120; ``cuda.expf`` and ``cuda.logf`` from libdevice
of CUDA 13.0 (``__nv_expf``, ``__nv_logf``), and the code made of it; ``fa4.exp2`` from
github.com/Dao-AILab/flash-attention, commit 009739ff, flash_attn/cute/utils.py (``ex2_emulation``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.numerics import libm, mufu
from verify.numerics import libm_tables as tables
from verify.numerics.operations import add, flush, fma, mul, sub
from verify.numerics.rounding import round_fraction

F32 = BASES["f32"]
FTZ = replace(F32, ftz=True)
LOG2_E = mufu.from_word(0x3FB8AA3B)
"""log2(e) rounded to f32."""


def require_single(name: str, fmt: Format) -> None:
    """Check that ``fmt`` is ``f32`` or ``f32.ftz``; functions of the CPU do not flush.

    Raises:
        UnsupportedError: another format.
    """
    if fmt.ftz and name.startswith(("torch.", "glibc.")):
        raise UnsupportedError(f"{name} in {fmt.name}: the function does not flush", remedy="compute in f32")
    if fmt.base != "f32" or fmt.rz or fmt.sat:
        raise UnsupportedError(
            f"{name} in {fmt.name}: the function exists in f32 and f32.ftz",
            remedy="compute in f32 or f32.ftz",
        )


# -- the special-function unit ------------------------------------------------------------------------------


def mufu_ex2(x: float, fmt: Format) -> float:
    """``ex2.approx``. Without .ftz: below -126 the argument is halved and the result squared."""
    if fmt.ftz or not x < -126.0:
        return _unit(mufu.ex2, x)
    root = _unit(mufu.ex2, mul(x, 0.5, fmt))
    return mul(root, root, fmt)


def mufu_rcp(x: float, fmt: Format) -> float:
    """``rcp.approx``. Without .ftz: an extreme operand is scaled, and so is the result."""
    if fmt.ftz:
        return _unit(mufu.rcp, x)
    scale = _extreme(x)
    return mul(_unit(mufu.rcp, mul(x, scale, fmt)), scale, fmt)


def mufu_rsq(x: float, fmt: Format) -> float:
    """``rsqrt.approx``. Without .ftz: a subnormal operand is scaled by 2**24, the result by 2**12.

    Raises:
        UnsupportedError: -0 or a negative number.
    """
    if fmt.ftz or not abs(x) < 2.0**-126:
        return _unit(mufu.rsq, x)
    return mul(_unit(mufu.rsq, mul(x, 2.0**24, fmt)), 2.0**12, fmt)


def mufu_lg2(x: float, fmt: Format) -> float:
    """``lg2.approx``. Without .ftz: a subnormal operand is scaled by 2**24, and 24 subtracted from the result.

    Raises:
        UnsupportedError: -0 or a negative number.
    """
    if fmt.ftz or not abs(x) < 2.0**-126:
        return _unit(mufu.lg2, x)
    return add(_unit(mufu.lg2, mul(x, 2.0**24, fmt)), -24.0, fmt)


def _unit(function: Callable[[int], int], x: float) -> float:
    return mufu.from_word(function(mufu.to_word(x)))


def _extreme(x: float) -> float:
    """The power of two that keeps the reciprocal of ``x`` in the range of normal numbers."""
    return 0.25 if abs(x) > 2.0**126 else 2.0**24 if abs(x) < 2.0**-126 else 1.0


# -- built on it --------------------------------------------------------------------------------------------


def div_full(a: float, b: float, fmt: Format) -> float:
    """``div.full.f32``: both operands scaled where ``b`` is extreme, then the reciprocal and one product."""
    scale = _extreme(flush(b, fmt))
    return mul(mul(a, scale, fmt), _unit(mufu.rcp, mul(b, scale, fmt)), fmt)


def fast_expf(x: float, fmt: Format) -> float:
    """CUDA's ``__expf``, and Triton's ``tl.exp``: ``ex2.approx`` of the rounded product with log2(e)."""
    return mufu_ex2(mul(x, LOG2_E, fmt), fmt)


def expf(x: float, fmt: Format) -> float:
    """CUDA's ``expf``: ``ex2`` of what a multiple of log(2) leaves, times a power of two."""
    share = fma(x, mufu.from_word(tables.EXPF_STEPS), 0.5, fmt)
    share = min(max(share, 0.0), 1.0) if share == share else 0.0
    n = math.floor(share * 252.0) - 126
    rest = fma(x, LOG2_E, -float(n), fmt)
    rest = fma(x, mufu.from_word(tables.EXPF_TAIL), rest, fmt)
    return mul(_unit(mufu.ex2, rest), 2.0**n, fmt)


def logf(x: float, fmt: Format) -> float:
    """CUDA's ``logf``: a polynomial of degree ten around 1, plus a multiple of log(2)."""
    x = flush(x, fmt)
    low = x < 2.0**-126
    m = mul(x, 2.0**23, fmt) if low else x
    if m == 0.0:
        return -math.inf
    if not 0.0 < m < math.inf:
        return m if m > 0.0 else math.nan
    word = mufu.to_word(m)
    offset = word - tables.LOGF_OFFSET
    exponent = (offset >> 23) - (23 if low else 0)
    t = sub(mufu.from_word(word - (offset & ~0x7FFFFF)), 1.0, fmt)
    p = mufu.from_word(tables.LOGF_POLYNOMIAL[0])
    for coefficient in tables.LOGF_POLYNOMIAL[1:]:
        p = fma(p, t, mufu.from_word(coefficient), fmt)
    p = fma(mul(t, p, fmt), t, t, fmt)
    return fma(float(exponent), mufu.from_word(tables.LOGF_LN2), p, fmt)


def fa4_exp2(x: float, fmt: Format) -> float:
    """FlashAttention-4's exponential on the FMA units: a cubic on [0, 1], and the floor added to its exponent.

    The exponent is added as an integer, so results below 2**-126 are not flushed, and wrong; NaN gives 0. The kernel
    assumes operands of at most 127.
    """
    x = flush(x, FTZ)
    x = max(x, tables.FA4_LOWEST) if x == x else tables.FA4_LOWEST
    if x == math.inf:
        return math.nan
    rounded = round_down(Fraction(x) + Fraction(tables.FA4_SHIFT))
    fraction = sub(x, sub(rounded, tables.FA4_SHIFT, fmt), fmt)
    p = mufu.from_word(tables.FA4_POLYNOMIAL[0])
    for coefficient in tables.FA4_POLYNOMIAL[1:]:
        p = fma(p, fraction, mufu.from_word(coefficient), fmt)
    return mufu.from_word(((mufu.to_word(rounded) << 23) + mufu.to_word(p)) % 2**32)


def round_down(x: Fraction) -> float:
    """A positive rational rounded down to f32."""
    return round_fraction(x, replace(F32, rz=True))


def _checked(name: str, function: Callable[..., float]) -> Callable[..., float]:
    def checked(*args: float | Format) -> float:
        fmt = args[-1]
        assert isinstance(fmt, Format)
        require_single(name, fmt)
        return function(*args)

    return checked


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "mufu.ex2": mufu_ex2,
    "mufu.rcp": mufu_rcp,
    "mufu.rsq": mufu_rsq,
    "mufu.lg2": mufu_lg2,
    "div.full": div_full,
    "triton.exp": fast_expf,
    "cuda.fast_expf": fast_expf,
    "cuda.expf": expf,
    "cuda.logf": logf,
    "fa4.exp2": fa4_exp2,
    "torch.fexp_u20": libm.fexp_u20,
    "glibc.expf": libm.expf,
    "glibc.logf": libm.logf,
}

SPECIAL: dict[str, Callable[..., float]] = {name: _checked(name, f) for name, f in _FUNCTIONS.items()}
"""Name to ``function(*operands, fmt)``, which raises UnsupportedError for a format that the function does not have."""

REFUSED: dict[str, str] = {
    "tanh.approx": "no table of the unit's tanh and no recorded sweep is public, only the bound of 2**-11"
}
"""Functions of the language whose bits are not known, and why."""
