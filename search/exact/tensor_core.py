"""Chains of tensor-core instructions in exact integers, from the description that a platform gives of them.

`specs.dot_products.DotProduct` says what the parameters mean; its source is arXiv:2511.10909v2, algorithm 7. One
block: the products of at most ``fused_length`` pairs and the accumulator are each cut toward zero to a multiple of
one unit, ``fraction_bits`` below the largest exponent among them, then added exactly and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from search.exact.dyadic import INF, NAN, NEG_INF, ZERO, Number, Unary, exponent, is_finite, rounder
from search.exact.operations import add, multiply
from specs.dot_products import DotProduct
from specs.formats import BASES, Format

Pair = tuple[Number, Number]


def chain(
    dot: DotProduct, length: int, pairs: Sequence[Pair], start: Number, formats: tuple[Format, Format]
) -> Number:
    """The products of ``pairs`` added to ``start``, by instructions of ``length`` pairs each.

    Args:
        dot: the arithmetic.
        length: K of one instruction.
        pairs: factors, values of ``formats``.
        start: the accumulator, a value of the output format.
        formats: of the left and the right factors.
    """
    if dot.converted:
        formats = (BASES[dot.converted], BASES[dot.converted])
    output = BASES[dot.output]
    last = rounder(output)
    total = start
    for at in range(0, len(pairs), length):
        instruction = pairs[at : at + length]
        part = ZERO if dot.addition == "late" else total
        for block in dot.blocks(length):
            taken = [instruction[i] for i in block if i < len(instruction)]
            if taken:
                part = _block(dot, taken, part, formats, output)
        total = last(add(part, total)) if dot.addition == "late" else part
    return total


def _block(
    dot: DotProduct, pairs: Sequence[Pair], acc: Number, formats: tuple[Format, Format], output: Format
) -> Number:
    low, other = formats[0].emin, formats[1].emin
    top = dot.exponent_floor
    terms: list[Number] = []
    finite = is_finite(acc)
    for (m, e), (n, f) in pairs:
        if m and n:
            terms.append((m * n, e + f))
            binade = max(m.bit_length() + e - 1, low) + max(n.bit_length() + f - 1, other)
            if binade > top:
                top = binade
        elif e > 1 or f > 1:  # a number other than zero may stand beside an infinity or a zero
            finite = finite and is_finite((m, e)) and is_finite((n, f))
    if not finite:
        beyond = {t for t in (acc, *(multiply(x, y) for x, y in pairs)) if not is_finite(t)}
        return NAN if len(beyond) > 1 else beyond.pop()
    if acc[0]:
        terms.append(acc)
        top = max(top, exponent(acc), output.emin)
    unit = top - dot.fraction_bits
    total = 0
    for m, e in terms:
        # Each term is cut toward zero to a multiple of 2**unit.
        shift = e - unit
        if shift >= 0:
            total += m << shift
        else:
            total += m >> -shift if m > 0 else -(-m >> -shift)
    return _rounded((total, unit), dot.rounding, output)


def _rounded(total: Number, rounding: str, output: Format) -> Number:
    """The sum, rounded to the output. Past the largest number it is an infinity, toward zero as well."""
    if not total[0]:
        return ZERO
    if exponent(total) > output.emax:
        return NEG_INF if total[0] < 0 else INF
    found = _last(rounding, output)(total)
    return found if found[0] or not is_finite(found) else ZERO


@cache
def _last(rounding: str, output: Format) -> Unary:
    return rounder(replace(output, p=14 if rounding == "rz13" else output.p, rz=rounding != "rne"))
