"""Exact rounding to every format, as a scalar definition and as a vectorised twin.

Values of all formats travel in float64, which holds every value of every format exactly. The scalar form
(`round_fraction`) works on exact rationals with Python integers; the vectorised form (`round_array`) works on
the bits of float64 arrays. Both round once, so float64 goes to bf16 without a stop at float32:
``1 + 2**-8 + 2**-40`` becomes 1.0078125.

The rules, in the order they are applied:

1. NaN stays NaN (one canonical quiet NaN). Zero keeps its sign, and so does a result that rounds to zero.
2. The value is rounded to ``p`` bits, or to a multiple of ``2**quantum`` below ``2**emin``: to nearest, ties
   to even, or toward zero with ``.rz``.
3. Beyond ``largest``: infinity, or NaN where the format has no infinity. With ``.sat`` or ``.rz`` a finite
   value gives the largest finite value instead. An infinite operand gives ``largest`` with ``.sat``, else as
   above.
   (IEEE 754-2019 section 7.4; OCP 8-bit floating point 1.0 section 5.2.1.)
4. ``.ftz``: a result that is subnormal after rounding becomes zero of the same sign.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from specs.formats import Format

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

_SIGN = np.uint64(1 << 63)
_INFINITY = np.uint64(0x7FF << 52)
_HIDDEN = np.uint64(1 << 52)
_FRACTION = np.uint64((1 << 52) - 1)
_ONE = np.uint64(1)


def require_storable(fmt: Format) -> None:
    """Check that ``fmt`` can be rounded to.

    Raises:
        InputError: ``fmt`` is ``real``, the number line on which nothing is rounded.
    """
    if fmt.is_real:
        raise InputError(
            "'real' has no bits, so nothing can be rounded to it or stored in it",
            place="argument fmt",
            remedy="round to a stored format such as f64, or evaluate with exact reals",
        )


# -- scalar form ------------------------------------------------------------------------------------------


def round_fraction(x: Fraction, fmt: Format, negative_zero: bool = False) -> float:
    """The value of ``fmt`` that the exact rational ``x`` rounds to.

    Args:
        x: the exact value.
        fmt: any format but ``real``.
        negative_zero: the sign of the result where ``x`` is exactly zero, which a rational cannot carry.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    require_storable(fmt)
    if not x:
        return -0.0 if negative_zero else 0.0
    magnitude = _round_magnitude(abs(x), fmt)
    return -magnitude if x < 0 else magnitude


def round_float(x: float, fmt: Format) -> float:
    """The value of ``fmt`` that the double ``x`` rounds to; NaN, infinities and signed zeros included.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    require_storable(fmt)
    if math.isnan(x):
        return math.nan
    if math.isinf(x):
        return math.copysign(fmt.largest if fmt.sat else _overflow(fmt), x)
    return round_fraction(Fraction(x), fmt, math.copysign(1.0, x) < 0)


def _overflow(fmt: Format) -> float:
    return math.inf if fmt.inf else math.nan


def _round_magnitude(x: Fraction, fmt: Format) -> float:
    """Round a positive rational; the result is never negative."""
    exponent = max(_floor_log2(x) - fmt.p + 1, fmt.quantum)
    numerator = x.numerator << max(-exponent, 0)
    denominator = x.denominator << max(exponent, 0)
    significand, rest = divmod(numerator, denominator)
    if not fmt.rz and (2 * rest > denominator or (2 * rest == denominator and significand & 1)):
        significand += 1
    if (exponent, significand) > (fmt.emax - fmt.p + 1, _largest_significand(fmt)):
        return fmt.largest if fmt.sat or fmt.rz else _overflow(fmt)
    value = math.ldexp(significand, exponent)
    return 0.0 if fmt.ftz and value < math.ldexp(1.0, fmt.emin) else value


def _largest_significand(fmt: Format) -> int:
    return int(math.ldexp(fmt.largest, fmt.p - 1 - fmt.emax))


def _floor_log2(x: Fraction) -> int:
    """The integer e with 2**e <= x < 2**(e+1), for positive x."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    low = x.numerator < x.denominator << e if e >= 0 else x.numerator << -e < x.denominator
    return e - 1 if low else e


# -- vectorised form --------------------------------------------------------------------------------------


def _carrier(x: Floats) -> Floats:
    if x.dtype != np.float64:
        raise InputError(
            f"an array of {x.dtype} where float64 is needed",
            remedy="convert with .astype(np.float64), which is exact for every format here",
        )
    return x


def round_array(x: Floats, fmt: Format) -> Floats:
    """Each element of ``x`` rounded once to ``fmt``, in float64: the vectorised twin of `round_float`.

    Args:
        x: float64 array of any shape.
        fmt: any format but ``real``.

    Raises:
        InputError: ``x`` is not float64, or ``fmt`` is ``real``.
    """
    require_storable(fmt)
    words = np.atleast_1d(_carrier(x)).view(np.uint64)
    sign = words & _SIGN
    magnitude = words ^ sign
    rounded = _round_normal(magnitude, fmt)
    if fmt.p < 53:
        tiny = np.flatnonzero(magnitude < _word(2.0**fmt.emin))
        if tiny.size:
            rounded.flat[tiny] = _round_tiny(magnitude.ravel()[tiny], fmt)
    special = magnitude >= _INFINITY
    over = rounded > _word(fmt.largest)
    beyond = _word(_overflow(fmt))
    rounded[over] = _word(fmt.largest) if fmt.sat or fmt.rz else beyond
    rounded[special] = _word(fmt.largest) if fmt.sat else beyond
    if fmt.ftz:
        rounded[rounded < _word(2.0**fmt.emin)] = 0
    rounded |= sign
    rounded[magnitude > _INFINITY] = _word(math.nan)
    return rounded.view(np.float64).reshape(x.shape)


def _word(x: float) -> np.uint64:
    return np.float64(x).view(np.uint64)


def _round_normal(magnitude: Words, fmt: Format) -> Words:
    """Round the significands of positive float64 words to ``fmt.p`` bits; a carry moves into the exponent."""
    drop = 53 - fmt.p
    if drop == 0:
        return magnitude.copy()
    shift = np.uint64(drop)
    keep = ~np.uint64((1 << drop) - 1)
    if fmt.rz:
        return magnitude & keep
    odd = (magnitude >> shift) & _ONE
    return (magnitude + odd + np.uint64((1 << (drop - 1)) - 1)) & keep


def _round_tiny(magnitude: Words, fmt: Format) -> Words:
    """Round positive float64 words below ``2**fmt.emin`` to multiples of ``2**fmt.quantum``."""
    field = magnitude >> np.uint64(52)
    significand = (magnitude & _FRACTION) | np.where(field > 0, _HIDDEN, np.uint64(0))
    lost = fmt.quantum + 1075 - np.maximum(field, _ONE).astype(np.int64)
    # 54 bits or more: the significand is below half a quantum, whatever the exact count.
    shift = np.minimum(lost, 54).astype(np.uint64)
    quotient = significand >> shift
    if not fmt.rz:
        rest = significand - (quotient << shift)
        half = _ONE << (shift - _ONE)
        quotient += (rest > half) | ((rest == half) & ((quotient & _ONE) == 1))
    return np.ldexp(quotient.astype(np.float64), fmt.quantum).view(np.uint64)


# -- storage ----------------------------------------------------------------------------------------------


def word_dtype(fmt: Format) -> np.dtype[np.unsignedinteger]:
    """The unsigned integer dtype as wide as ``fmt`` is stored; tf32 is stored in 32 bits.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    require_storable(fmt)
    return np.dtype(f"u{fmt.bits // 8}")


def storage_dtype(fmt: Format) -> np.dtype[np.generic]:
    """The NumPy or ml_dtypes dtype that stores ``fmt``, modifiers aside; tf32 is stored in float32.

    Raises:
        InputError: ``fmt`` is ``real``.
    """
    import ml_dtypes

    require_storable(fmt)
    types: dict[str, type] = {
        "f64": np.float64,
        "f32": np.float32,
        "tf32": np.float32,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "e4m3fn": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
    }
    return np.dtype(types[fmt.base])


def ceiling_code(fmt: Format) -> int:
    """The first magnitude code past the largest finite value: infinity, or NaN where there is none."""
    return _largest_code(fmt) + 1


def encode(x: Floats, fmt: Format) -> NDArray[np.unsignedinteger]:
    """The bits of an array of values of ``fmt``. NaN becomes the positive quiet NaN.

    Args:
        x: float64 array whose every element is already a value of ``fmt`` (see `round_array`).
        fmt: any format but ``real``; modifiers do not matter.

    Returns:
        uint8, uint16, uint32 or uint64 array of the shape of ``x``; tf32 sits in the high bits of its word.

    Raises:
        InputError: an element is no value of ``fmt``, ``x`` is not float64, or ``fmt`` is ``real``.
    """
    dtype = word_dtype(fmt)
    shape, x = x.shape, np.atleast_1d(_carrier(x))
    magnitude = np.abs(x)
    words = magnitude.view(np.uint64)
    steps = np.uint64(53 - fmt.p)
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.where(magnitude < 2.0**fmt.emin, np.ldexp(magnitude, -fmt.quantum), 0.0).astype(np.uint64)
    large = (words >> steps) - np.uint64((1022 + fmt.emin) << (fmt.p - 1))
    code = np.where(magnitude < 2.0**fmt.emin, small, large)
    code = np.where(np.isinf(x), np.uint64(ceiling_code(fmt)), code)
    code = np.where(np.isnan(x), np.uint64(_nan_code(fmt)), code)
    code |= (np.signbit(x) & ~np.isnan(x)).astype(np.uint64) << np.uint64(_code_bits(fmt) - 1)
    result = (code << np.uint64(fmt.bits - _code_bits(fmt))).astype(dtype)
    _require_values(x, result, shape, fmt)
    return result.reshape(shape)


def decode(bits: NDArray[np.unsignedinteger], fmt: Format) -> Floats:
    """The float64 values of an array of bits of ``fmt``; every NaN becomes the one quiet NaN.

    Args:
        bits: array of the unsigned dtype that `word_dtype` names, of any shape.
        fmt: any format but ``real``; modifiers do not matter.

    Raises:
        InputError: the dtype is another, a tf32 word has any of its low 13 bits set, or ``fmt`` is ``real``.
    """
    if bits.dtype != word_dtype(fmt):
        raise InputError(
            f"bits of {fmt.base} come as {word_dtype(fmt)}, not as {bits.dtype}",
            place="argument bits",
            remedy=f"use .view(np.{word_dtype(fmt)}) on the stored array",
        )
    code = np.atleast_1d(bits).astype(np.uint64)
    spare = fmt.bits - _code_bits(fmt)
    if spare and np.any(code & np.uint64((1 << spare) - 1)):
        raise InputError(
            f"a word has bits set below the {_code_bits(fmt)} of {fmt.base}",
            place="argument bits",
            remedy="round the values to the format first",
        )
    code >>= np.uint64(spare)
    sign = (code >> np.uint64(_code_bits(fmt) - 1)) & _ONE
    code &= np.uint64((1 << (_code_bits(fmt) - 1)) - 1)
    field = (code >> np.uint64(fmt.p - 1)).astype(np.int64)
    fraction = (code & np.uint64((1 << (fmt.p - 1)) - 1)).astype(np.int64)
    significand = fraction + ((field > 0).astype(np.int64) << (fmt.p - 1))
    top = ceiling_code(fmt)
    finite = code < np.uint64(top)
    exponent = np.where(finite, np.maximum(field, 1) - 1 + fmt.quantum, 0)
    value = np.ldexp(significand.astype(np.float64), exponent)
    value = np.where(finite, value, np.where((code == np.uint64(top)) & fmt.inf, np.inf, np.nan))
    value = np.where(np.isnan(value), np.nan, np.where(sign == 1, -value, value))
    return value.reshape(bits.shape)


def store(x: Floats, fmt: Format) -> NDArray[np.generic]:
    """``x`` rounded once to ``fmt`` and stored in `storage_dtype`, with no intermediate format.

    Raises:
        InputError: ``x`` is not float64, or ``fmt`` is ``real``.
    """
    return encode(round_array(x, fmt), fmt).view(storage_dtype(fmt))


def _code_bits(fmt: Format) -> int:
    """Sign, exponent field and fraction: 19 for tf32, the storage width for the others."""
    return 19 if fmt.base == "tf32" else fmt.bits


def _largest_code(fmt: Format) -> int:
    field = fmt.emax - fmt.emin + 1
    return (field << (fmt.p - 1)) + _largest_significand(fmt) - (1 << (fmt.p - 1))


def _nan_code(fmt: Format) -> int:
    return ceiling_code(fmt) | (1 << (fmt.p - 2)) if fmt.inf else ceiling_code(fmt)


def _require_values(
    x: Floats, bits: NDArray[np.unsignedinteger], shape: tuple[int, ...], fmt: Format
) -> None:
    back = decode(bits, fmt)
    wrong = np.flatnonzero((back != x) & ~(np.isnan(x) & np.isnan(back)))
    if wrong.size:
        place = [int(i) for i in np.unravel_index(int(wrong[0]), shape)] if shape else ""
        raise InputError(
            f"{x.flat[wrong[0]]!s} is no value of {fmt.base} ({wrong.size} such elements)",
            place=f"element x{place}",
            remedy="round with round_array first, or use store, which rounds",
        )
