"""The special functions of kernels, scalar: each the sequence of operations that the hardware or library runs.

Every function takes Python floats that are values of f32 and the format of the operation: ``f32``, or
``f32.ftz`` for the flushing form of each instruction. Where f32 and ``f32.ftz`` differ and the non-flushing form
is not known, the operand is refused. The names are those of `specs.functions.FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.numerics import mufu
from verify.numerics.operations import flush, mul

F32 = BASES["f32"]
LOG2_E = mufu.from_word(0x3FB8AA3B)
"""log2(e) rounded to f32."""


def require_single(name: str, fmt: Format) -> None:
    """Check that ``fmt`` is ``f32`` or ``f32.ftz``.

    Raises:
        UnsupportedError: another format.
    """
    if fmt.base != "f32" or fmt.rz or fmt.sat:
        raise UnsupportedError(
            f"{name} in {fmt.name}: the function exists in f32 and f32.ftz",
            remedy="compute in f32 or f32.ftz",
        )


# -- the special-function unit ------------------------------------------------------------------------------


def mufu_ex2(x: float, fmt: Format) -> float:
    """``ex2.approx``. Without .ftz: below -126 the argument is halved and the result squared.

    The sequence of the non-flushing form was read from code of ptxas for sm_90.
    """
    require_single("mufu.ex2", fmt)
    if fmt.ftz or not x < -126.0:
        return _unit(mufu.ex2, x)
    root = _unit(mufu.ex2, mul(x, 0.5, fmt))
    return mul(root, root, fmt)


def mufu_rcp(x: float, fmt: Format) -> float:
    """``rcp.approx``.

    Raises:
        UnsupportedError: without .ftz, the operand or the result is subnormal.
    """
    require_single("mufu.rcp", fmt)
    if not fmt.ftz and (_subnormal(x) or 2.0**126 < abs(x) < math.inf):
        raise _unknown("mufu.rcp", x)
    return _unit(mufu.rcp, x)


def mufu_rsq(x: float, fmt: Format) -> float:
    """``rsqrt.approx``.

    Raises:
        UnsupportedError: -0, a negative number, or without .ftz a subnormal number.
    """
    require_single("mufu.rsq", fmt)
    if not fmt.ftz and _subnormal(x):
        raise _unknown("mufu.rsq", x)
    return _unit(mufu.rsq, x)


def mufu_lg2(x: float, fmt: Format) -> float:
    """``lg2.approx``.

    Raises:
        UnsupportedError: -0, a negative number, or without .ftz a subnormal number.
    """
    require_single("mufu.lg2", fmt)
    if not fmt.ftz and _subnormal(x):
        raise _unknown("mufu.lg2", x)
    return _unit(mufu.lg2, x)


def _unit(function: Callable[[int], int], x: float) -> float:
    return mufu.from_word(function(mufu.to_word(x)))


def _subnormal(x: float) -> bool:
    return 0.0 < abs(x) < 2.0**F32.emin


def _unknown(name: str, x: float) -> UnsupportedError:
    return UnsupportedError(
        f"{name} of {x.hex()}: what the form without .ftz gives for subnormal numbers is not known",
        remedy="compute in f32.ftz, or scale the operand",
    )


# -- built on it --------------------------------------------------------------------------------------------


def div_full(a: float, b: float, fmt: Format) -> float:
    """``div.full.f32``: both operands scaled where ``b`` is extreme, then the reciprocal and one product.

    Scaled by 0.25 where ``|b| > 2**126`` and by 2**24 where ``|b| < 2**-126``, as in code of ptxas for sm_90.
    """
    require_single("div.full", fmt)
    a, b = flush(a, fmt), flush(b, fmt)
    scale = 0.25 if abs(b) > 2.0**126 else 2.0**24 if abs(b) < 2.0**-126 else 1.0
    return mul(mul(a, scale, fmt), _unit(mufu.rcp, mul(b, scale, fmt)), fmt)


def fast_expf(x: float, fmt: Format) -> float:
    """CUDA's ``__expf``, and Triton's ``tl.exp``: ``ex2.approx`` of the rounded product with log2(e)."""
    require_single("cuda.fast_expf", fmt)
    return mufu_ex2(mul(x, LOG2_E, fmt), fmt)


SPECIAL: dict[str, Callable[..., float]] = {
    "mufu.ex2": mufu_ex2,
    "mufu.rcp": mufu_rcp,
    "mufu.rsq": mufu_rsq,
    "mufu.lg2": mufu_lg2,
    "div.full": div_full,
    "triton.exp": fast_expf,
    "cuda.fast_expf": fast_expf,
}
"""Name to ``function(*operands, fmt)``."""

REFUSED: dict[str, str] = {
    "tanh.approx": "no table of the unit's tanh and no recorded sweep is public, only the bound of 2**-11"
}
"""Functions of the language whose bits are not known, and why."""
