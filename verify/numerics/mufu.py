"""NVIDIA's special-function unit (MUFU) in Python integers: words of f32 in, words of f32 out.

The unit interpolates quadratically, with a truncated square and coefficients of 26, 16 and 10 bits
(`verify.numerics.mufu_tables`). Data path and rounding constants: envytools, github.com/envytools/envytools,
commit f102b823, nvhw/sfu.c; the design is described by Oberman and Siu, "A high-performance area-efficient
multifunction interpolator", ARITH-17, 2005. The instructions flush: a subnormal operand counts as a zero of its
sign, and a result below 2**-126 is zero.

Not known, and refused: `rsq` and `lg2` of -0 and of negative numbers.
"""

from __future__ import annotations

import struct

from specs.errors import UnsupportedError
from verify.numerics.mufu_tables import coefficients

NAN = 0x7FFFFFFF
INFINITY = 0x7F800000
_SIGN = 0x80000000
_NORMAL = 0x00800000
"""The smallest normal number, and the hidden bit."""
_FRACTION = _NORMAL - 1


def to_word(x: float) -> int:
    """The f32 word of a Python float that is a value of f32; NaN becomes `NAN`.

    Raises:
        UnsupportedError: ``x`` is no value of f32.
    """
    if x != x:
        return NAN
    try:
        packed = struct.pack("<f", x)
    except OverflowError:
        packed = struct.pack("<f", 0.0)
    if struct.unpack("<f", packed)[0] != x:
        raise UnsupportedError(
            f"{x.hex()} is no value of f32, which the special functions take",
            remedy="cast the operand with f32() first",
        )
    return int.from_bytes(packed, "little")


def from_word(word: int) -> float:
    """The value of an f32 word."""
    return struct.unpack("<f", word.to_bytes(4, "little"))[0]


def square(r: int) -> int:
    """The truncated square of the 17-bit offset ``r`` inside a segment: the unit drops low partial products."""
    return sum(r >> (18 - i) for i in range(17) if r >> i & 1) >> 1


def ex2(word: int) -> int:
    """2**x: ``MUFU.EX2``."""
    magnitude = word & ~_SIGN
    if magnitude > INFINITY:
        return NAN
    fixed = _fixed(magnitude)
    if fixed >= 128 << 23:
        return 0 if word & _SIGN else INFINITY
    if word & _SIGN:
        # One's complement where there is a fraction: a little low.
        fixed = ~fixed if fixed & _FRACTION else -fixed
    whole, fraction = fixed >> 23, fixed & _FRACTION
    r = fraction & 0x1FFFF
    c0, c1, c2 = coefficients("ex2")[fraction >> 17]
    significand = ((c0 << 13) + c1 * r + c2 * square(r) + 0x77E2) >> 15
    result = ((whole + 126) << 23) + significand  # a significand of 2**24 carries into the exponent
    return 0 if result < _NORMAL else min(result, INFINITY)


def _fixed(magnitude: int) -> int:
    """The f32 word of a positive number as a multiple of 2**-23, truncated; at most 2**30 counts."""
    exponent = (magnitude >> 23) - 127
    significand = magnitude & _FRACTION | _NORMAL
    if exponent >= 7:
        return 128 << 23
    return significand << exponent if exponent >= 0 else significand >> -exponent


def rcp(word: int) -> int:
    """1 / x: ``MUFU.RCP``."""
    sign, magnitude = word & _SIGN, word & ~_SIGN
    if magnitude > INFINITY:
        return NAN
    if magnitude < _NORMAL:
        return sign | INFINITY
    if magnitude == INFINITY:
        return sign
    fraction = magnitude & _FRACTION
    r = fraction & 0xFFFF
    c0, c1, c2 = coefficients("rcp")[fraction >> 16]
    significand = ((c0 << 13) + c1 * r + c2 * square(r << 1) + 0x47E7) >> 15
    result = ((252 - (magnitude >> 23)) << 23) + significand
    return sign if result < _NORMAL else sign | result


def rsq(word: int) -> int:
    """1 / sqrt(x): ``MUFU.RSQ``.

    Raises:
        UnsupportedError: the operand is -0 or negative.
    """
    magnitude = _unsigned("mufu.rsq", word)
    if magnitude > INFINITY:
        return NAN
    if magnitude < _NORMAL:
        return INFINITY
    if magnitude == INFINITY:
        return 0
    half, odd = divmod((magnitude >> 23) - 127, 2)
    fraction = magnitude & _FRACTION
    if not (odd or fraction):
        return (127 - half) << 23
    r = fraction & 0x1FFFF
    c0, c1, c2 = coefficients("rsq")[64 * odd + (fraction >> 17)]
    significand = ((c0 << 14) + c1 * r + (c2 * square(r) << 2) + 0x7FFF) >> 16
    return ((125 - half) << 23) + significand


def lg2(word: int) -> int:
    """The binary logarithm: ``MUFU.LG2``.

    Raises:
        UnsupportedError: the operand is -0 or negative.
    """
    magnitude = _unsigned("mufu.lg2", word)
    if magnitude > INFINITY:
        return NAN
    if magnitude < _NORMAL:
        return _SIGN | INFINITY
    if magnitude == INFINITY:
        return INFINITY
    if magnitude == 127 << 23:
        return 0
    fraction = magnitude & _FRACTION
    r = fraction & 0x1FFFF
    c0, c1, c2 = coefficients("lg2")[fraction >> 17]
    part = ((c0 << 12) + c1 * r + (c2 * square(r) << 1) + 0x3345) >> 2
    total = part + (((magnitude >> 23) - 127) << 36)
    sign, size = (_SIGN, ~total) if total < 0 else (0, total)
    place = size.bit_length() - 24
    significand = size >> place if place >= 0 else size << -place
    return sign | ((place - 36 + 149) << 23) + significand


def _unsigned(name: str, word: int) -> int:
    """The word of an operand that must not be negative."""
    if word & _SIGN and word & ~_SIGN <= INFINITY:
        raise UnsupportedError(
            f"{name} of {from_word(word)!r}: what the hardware gives for -0 and negative numbers is not known",
            remedy="keep the operand positive, or guard it with select()",
        )
    return word & ~_SIGN
