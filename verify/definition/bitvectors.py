"""One tensor-core block stated on Z3 bit-vectors: words in, a word out, every class of input.

What `verify.numerics.tensor_core.fused` computes for numbers is stated here for unknowns, so that a solver can prove
a law of the arithmetic for all inputs, or find inputs on which two architectures differ. Only bit-vector operations
are used: no integers, no floats, no uninterpreted functions. Source of the arithmetic: arXiv:2511.10909v2, algorithm 7
and sections 4.1 to 4.3.

Needs the package ``z3-solver``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from specs.dot_products import DotProduct
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES, Format

Bits = Any
"""A Z3 bit-vector term."""
Truth = Any
"""A Z3 boolean term."""

_EXPONENT = 16  # width of exponents: signed, with room for the sums of two


def solver() -> Any:
    """The module ``z3``, which takes long to load."""
    import z3

    return z3


class _Number(NamedTuple):
    """A word taken apart: significand (unsigned), exponent (signed, `_EXPONENT` bits) and class."""

    significand: Bits
    exponent: Bits
    negative: Truth
    zero: Truth
    infinite: Truth
    nan: Truth


def word(name: str, fmt: Format) -> Bits:
    """An unknown word of ``fmt``: 19 bits for tf32, whose other bits do not count."""
    return solver().BitVec(name, _width(fmt))


def block(
    dot: DotProduct, a: Sequence[Bits], b: Sequence[Bits], c: Bits, fmt_a: Format, fmt_b: Format
) -> Bits:
    """The word that one fused block gives.

    Args:
        dot: the arithmetic.
        a: at most ``dot.fused_length`` words of ``fmt_a`` (see `word`).
        b: as many of ``fmt_b``.
        c: the accumulator, a word of ``dot.output``.
        fmt_a: format of ``a``.
        fmt_b: format of ``b``.

    Returns:
        A bit-vector of the width of ``dot.output``.

    Raises:
        InputError: no terms, too many, or as many on one side as not on the other.
        UnsupportedError: Z3 is not installed, or the instruction converts its factors first.
    """
    z3 = solver()
    if not 0 < len(a) == len(b) <= dot.fused_length:
        raise InputError(
            f"a block of {len(a)} and {len(b)} words",
            remedy=f"1 to {dot.fused_length}, as many on both sides",
        )
    if dot.converted:
        raise UnsupportedError(
            f"factors that are converted to {dot.converted} first are not stated on bit-vectors",
            remedy=f"state the block on words of {dot.converted}",
        )
    out = BASES[dot.output]
    pairs = [(_apart(x, fmt_a), _apart(y, fmt_b)) for x, y in zip(a, b, strict=True)]
    acc = _apart(c, out)

    # Exponents: the largest of the terms that are not zero, and the floor.
    floor = z3.BitVecVal(dot.exponent_floor, _EXPONENT)
    terms: list[tuple[Bits, Bits, Truth, Truth, int]] = []
    for x, y in pairs:
        bits = fmt_a.p + fmt_b.p
        product = z3.ZeroExt(fmt_b.p, x.significand) * z3.ZeroExt(fmt_a.p, y.significand)
        assert product.size() == bits
        sign = z3.Xor(x.negative, y.negative)
        terms.append((product, x.exponent + y.exponent, sign, z3.Or(x.zero, y.zero), bits - 2))
    terms.append((acc.significand, acc.exponent, acc.negative, acc.zero, out.p - 1))
    top = floor
    for _, exponent, _, zero, _ in terms:
        top = z3.If(z3.And(z3.Not(zero), exponent > top), exponent, top)

    # Each term cut toward zero below 2**(top - fraction_bits), and the exact sum.
    width = max(dot.fraction_bits + 2 + len(terms).bit_length() + 1, out.p + 3, _EXPONENT)
    total = z3.BitVecVal(0, width)
    for magnitude, exponent, sign, zero, scale in terms:
        room = max(magnitude.size() + dot.fraction_bits, width)
        shifted = z3.ZeroExt(room - magnitude.size(), magnitude) << dot.fraction_bits
        distance = z3.If(zero, z3.BitVecVal(0, _EXPONENT), top - exponent + scale)
        cut = z3.Extract(width - 1, 0, z3.LShR(shifted, z3.ZeroExt(room - _EXPONENT, distance)))
        total = total + z3.If(sign, -cut, cut)

    negative = total < 0
    rounded = _rounded(z3.If(negative, -total, total), top, dot)
    result = z3.If(rounded == 0, rounded, rounded | _sign(negative, out))
    return _special(result, pairs, acc, out)


def _width(fmt: Format) -> int:
    return 19 if fmt.base == "tf32" else fmt.bits


def _apart(bits: Bits, fmt: Format) -> _Number:
    z3 = solver()
    n, p = _width(fmt), fmt.p
    if bits.size() != n:
        raise InputError(
            f"a word of {bits.size()} bits where {fmt.base} has {n}", remedy="use bitvectors.word"
        )
    field, fraction = z3.Extract(n - 2, p - 1, bits), z3.Extract(p - 2, 0, bits)
    below = field == 0
    significand = z3.Concat(z3.If(below, z3.BitVecVal(0, 1), z3.BitVecVal(1, 1)), fraction)
    wide = z3.ZeroExt(_EXPONENT - field.size(), field)
    exponent = z3.If(below, z3.BitVecVal(1, _EXPONENT), wide) + (fmt.emin - 1)
    magnitude = z3.Extract(n - 2, 0, bits)
    if fmt.inf:
        largest = z3.BitVecVal((fmt.emax - fmt.emin + 2) << (p - 1), n - 1)
        infinite, nan = magnitude == largest, z3.UGT(magnitude, largest)
    else:
        infinite, nan = z3.BoolVal(False), magnitude == z3.BitVecVal(-1, n - 1)
    return _Number(significand, exponent, z3.Extract(n - 1, n - 1, bits) == 1, magnitude == 0, infinite, nan)


def _rounded(magnitude: Bits, top: Bits, dot: DotProduct) -> Bits:
    """The word, sign aside, of ``magnitude * 2**(top - fraction_bits)``."""
    z3, out = solver(), BASES[dot.output]
    width, p = magnitude.size(), 14 if dot.rounding == "rz13" else out.p
    # Bring the leading bit to the top, by powers of two.
    left, exponent = magnitude, top + (width - 1 - dot.fraction_bits)
    step = 1 << (width - 1).bit_length() - 1
    while step:
        high = z3.Extract(width - 1, width - step, left) == 0
        left = z3.If(high, left << step, left)
        exponent = z3.If(high, exponent - step, exponent)
        step >>= 1
    # Below the normal range the last place stays where it is.
    lack = z3.BitVecVal(out.emin, _EXPONENT) - exponent
    lack = z3.If(
        lack > 0, z3.If(lack > p + 2, z3.BitVecVal(p + 2, _EXPONENT), lack), z3.BitVecVal(0, _EXPONENT)
    )
    wide = z3.ZeroExt(p + 2, left)  # nothing is lost on the right: the cut bits are looked at
    drop = z3.ZeroExt(wide.size() - _EXPONENT, lack) + (width - p)
    kept = z3.LShR(wide, drop)
    if dot.rounding == "rne":
        rest, half = wide - (kept << drop), z3.LShR(z3.BitVecVal(1, wide.size()) << drop, 1)
        odd = z3.Extract(0, 0, kept) == 1
        up = z3.Or(z3.UGT(rest, half), z3.And(rest == half, odd))
        kept = kept + z3.If(up, z3.BitVecVal(1, wide.size()), z3.BitVecVal(0, wide.size()))
    # The hidden bit adds one to the field; rounding up may carry into it.
    base = z3.If(exponent > out.emin, exponent - out.emin, z3.BitVecVal(0, _EXPONENT))
    code = (z3.ZeroExt(64 - _EXPONENT, base) << (p - 1)) + z3.Extract(63, 0, z3.ZeroExt(64, kept))
    code = code << (out.p - p)
    infinity = z3.BitVecVal((out.emax - out.emin + 2) << (out.p - 1), 64)
    code = z3.If(z3.Or(exponent > out.emax, z3.UGE(code, infinity)), infinity, code)
    return z3.Extract(out.bits - 1, 0, z3.If(magnitude == 0, z3.BitVecVal(0, 64), code))


def _sign(negative: Truth, out: Format) -> Bits:
    z3 = solver()
    return z3.If(negative, z3.BitVecVal(1 << (out.bits - 1), out.bits), z3.BitVecVal(0, out.bits))


def _special(result: Bits, pairs: Sequence[tuple[_Number, _Number]], acc: _Number, out: Format) -> Bits:
    """NaN and infinities among the terms decide over the sum."""
    z3 = solver()
    nan: list[Truth] = [acc.nan]
    plus: list[Truth] = [z3.And(acc.infinite, z3.Not(acc.negative))]
    minus: list[Truth] = [z3.And(acc.infinite, acc.negative)]
    for x, y in pairs:
        infinite, negative = z3.Or(x.infinite, y.infinite), z3.Xor(x.negative, y.negative)
        nan += [x.nan, y.nan, z3.And(x.infinite, y.zero), z3.And(x.zero, y.infinite)]
        plus.append(z3.And(infinite, z3.Not(negative)))
        minus.append(z3.And(infinite, negative))
    up, down = z3.Or(plus), z3.Or(minus)
    infinity = z3.BitVecVal((out.emax - out.emin + 2) << (out.p - 1), out.bits)
    word = z3.If(up, infinity, z3.If(down, infinity | (1 << (out.bits - 1)), result))
    nothing = z3.BitVecVal((1 << (out.bits - 1)) - 1, out.bits)
    return z3.If(z3.Or(*nan, z3.And(up, down)), nothing, word)
