"""Tensor-core dot products in Python integers: the scalar definition of a truncated fused dot-product-add.

One *block* takes at most ``fused_length`` products and an accumulator:

1. An operand is ``m * 2**(e - (p - 1))`` with an integer significand m of at most p bits and
   ``e = max(floor(log2 |x|), emin)``: subnormals keep ``emin`` and a small m. Nothing is flushed.
2. A product is the integer ``m_a * m_b`` at exponent ``e_a + e_b``; it is not normalised where it reaches 2.
3. All terms are aligned to E, the largest exponent of a nonzero term, but at least ``exponent_floor``. With
   ``addition = "early"`` the accumulator is one of the terms.
4. Each term is truncated toward zero, by itself, to ``fraction_bits`` bits below ``2**E``, and the integers are
   added exactly: there is no sticky bit, and the order of the terms does not matter.
5. The sum is rounded once: ``rz`` toward zero to 24 bits, ``rz13`` toward zero to 14 bits (the low ten bits of
   the f32 word are zero), ``rne`` to the nearest f16, ties to even. A magnitude of ``2**(emax + 1)`` or more
   after rounding is an infinity, toward zero too. A zero result is always +0.
6. A NaN, infinity times zero, or infinities of both signs among the terms give NaN; any other infinite term
   gives that infinity. This holds for each block by itself: an infinity that one block rounds to is the
   accumulator of the next.

A longer dot product is a chain: each block has the result of the one before it as its accumulator, and takes the
terms that `DotProduct.blocks` says, ascending unless ``split = "pairs"``. ``addition = "late"``: the blocks of one
instruction start at +0, and the accumulator is added by one addition in the output format, to nearest even.
``converted``: the factors are first converted, exactly, to another format, whose ``emin`` then holds in step 1.

NaN here is Python's; the word that hardware writes is `NAN_WORDS`.

Sources: arXiv:2511.10909v2, algorithm 7 and sections 4.1 to 4.3 (and the code of its authors,
microsoft/MMA-Sim, release 2.1.1, mmasim/arithmetic/fdpa.py, for the exponent floor and the sign of zero);
arXiv:2512.07004v2, table II (alignment widths, early and late accumulators, products not normalised, subnormals
kept). Pairs, conversion and late addition are how NVIDIA's ptxas 13.0 compiles mma.sync of fp8 for sm_90 and sm_100
(F2FP.F16.E4M3.UNPACK_B of the low and the high halves of each register, two HMMA.16816 and an FADD). The parameters
are entries of `specs.dot_products`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from specs.dot_products import DotProduct
from specs.errors import InputError
from specs.formats import BASES, Format
from verify.numerics.operations import add

NAN_WORDS = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
"""The one NaN that a tensor core writes, by output format: no sign and no payload are kept."""


class _Term(NamedTuple):
    """The exact value ``significand * 2**(exponent - scale)``; ``exponent`` is what the alignment sees."""

    significand: int
    exponent: int
    scale: int


def chained(
    dot: DotProduct, k: int, a: Sequence[float], b: Sequence[float], c: float, fmt_a: Format, fmt_b: Format
) -> float:
    """The dot product of ``a`` and ``b`` added to ``c``, as a chain of instructions of ``k`` terms.

    Args:
        dot: the arithmetic of the instruction.
        k: terms of one instruction; its blocks have at most ``dot.fused_length`` of them. A last short
            instruction is one whose other terms are zeros.
        a: factors, values of ``fmt_a``; zeros of both signs, infinities and NaN included.
        b: as many factors, values of ``fmt_b``.
        c: the accumulator, a value of ``dot.output``.
        fmt_a: format of ``a``.
        fmt_b: format of ``b``.

    Returns:
        A value of ``dot.output``; without any term ``c`` itself.

    Raises:
        InputError: ``k`` is below 1, the lengths differ, or an operand is no value of its format.
    """
    if k < 1 or len(a) != len(b):
        raise InputError(
            f"a chain of instructions of {k} terms over {len(a)} and {len(b)} factors",
            remedy="pass as many factors on both sides, and an instruction of one term or more",
        )
    late = dot.addition == "late"
    output = BASES[dot.output]
    if dot.converted:
        fmt_a = fmt_b = BASES[dot.converted]
    for first in range(0, len(a), k):
        last = min(first + k, len(a))
        acc = 0.0 if late else c
        for block in dot.blocks(k):
            at = [first + i for i in block if first + i < last]
            if at:
                acc = fused(dot, [a[i] for i in at], [b[i] for i in at], acc, fmt_a, fmt_b)
        c = add(acc, c, output) if late else acc
    return c


def fused(
    dot: DotProduct, a: Sequence[float], b: Sequence[float], c: float, fmt_a: Format, fmt_b: Format
) -> float:
    """One block: the products of ``a`` and ``b`` and the accumulator ``c``, aligned, truncated and added.

    Raises:
        InputError: an operand is no value of its format.
    """
    special = _special(a, b, c)
    if special is not None:
        return special
    output = BASES[dot.output]
    terms = [_product(x, y, fmt_a, fmt_b) for x, y in zip(a, b, strict=True)]
    terms.append(_Term(*_decode(c, output), output.p - 1))
    largest = max([t.exponent for t in terms if t.significand], default=dot.exponent_floor)
    largest = max(largest, dot.exponent_floor)
    total = sum(
        _shift_to_zero(t.significand, dot.fraction_bits - t.scale + t.exponent - largest) for t in terms
    )
    return _round(total, largest - dot.fraction_bits, dot)


def _special(a: Sequence[float], b: Sequence[float], c: float) -> float | None:
    """NaN or the infinity that the terms give, None where all are finite."""
    terms = [c]
    for x, y in zip(a, b, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            terms.append(x * y)  # NaN for infinity times zero
        # A finite product never counts: it may be past the doubles only in the sum, which is exact.
    if any(math.isnan(t) for t in terms):
        return math.nan
    infinite = {t for t in terms if math.isinf(t)}
    if not infinite:
        return None
    return infinite.pop() if len(infinite) == 1 else math.nan


def _product(x: float, y: float, fmt_a: Format, fmt_b: Format) -> _Term:
    (m, e), (n, f) = _decode(x, fmt_a), _decode(y, fmt_b)
    return _Term(m * n, e + f, fmt_a.p + fmt_b.p - 2)


def _decode(x: float, fmt: Format) -> tuple[int, int]:
    """Significand and exponent of a finite value of ``fmt``: ``x == m * 2**(e - (p - 1))``."""
    exponent = max(math.frexp(x)[1] - 1, fmt.emin) if x else fmt.emin
    significand = math.ldexp(x, fmt.p - 1 - exponent)
    if significand != int(significand) or abs(x) > fmt.largest:
        raise InputError(f"{x!r} is no value of {fmt.base}", remedy="round the operands to the format first")
    return int(significand), exponent


def _shift_to_zero(m: int, by: int) -> int:
    """``m * 2**by`` truncated toward zero."""
    size = abs(m) << by if by >= 0 else abs(m) >> -by
    return -size if m < 0 else size


def _round(total: int, exponent: int, dot: DotProduct) -> float:
    """``total * 2**exponent`` rounded once to the output format."""
    output = BASES[dot.output]
    bits = 14 if dot.rounding == "rz13" else output.p
    if not total:
        return 0.0  # however large the exponent of terms that cancelled
    size = abs(total)
    last = max(size.bit_length() + exponent - bits, output.emin - (bits - 1))
    drop = last - exponent
    kept = _shift_to_zero(size, -drop)
    if dot.rounding == "rne" and drop > 0:
        rest, half = size - (kept << drop), 1 << (drop - 1)
        kept += rest > half or (rest == half and kept & 1 == 1)
    if kept.bit_length() + last > output.emax + 1:
        return -math.inf if total < 0 else math.inf
    return math.ldexp(-kept if total < 0 and kept else kept, last)
