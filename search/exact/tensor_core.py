"""Chains of tensor-core instructions in exact integers, from the description that a platform gives of them.

`specs.dot_products.DotProduct` says what the parameters mean; its source is arXiv:2511.10909v2, algorithm 7. One
block: the products of at most ``fused_length`` pairs and the accumulator are each cut toward zero to a multiple of
one unit, ``fraction_bits`` below the largest exponent among them, then added exactly and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.exact.dyadic import INF, NAN, NEG_INF, ZERO, Number, exponent, is_finite, rounder
from search.exact.operations import add, multiply
from specs.dot_products import DotProduct
from specs.formats import BASES, Format

Pair = tuple[Number, Number]
#: An exact number, and the exponent by which the unit aligns it.
_Term = tuple[Number, int]


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
    exact = [multiply(x, y) for x, y in pairs]
    beyond = [t for t in (*exact, acc) if not is_finite(t)]
    if beyond:
        return beyond[0] if beyond[0] != NAN and set(beyond) == {beyond[0]} else NAN
    terms: list[_Term] = [
        (product, _binade(x, formats[0]) + _binade(y, formats[1]))
        for product, (x, y) in zip(exact, pairs, strict=True)
        if product[0]
    ]
    if acc[0]:
        terms.append((acc, _binade(acc, output)))
    unit = max([dot.exponent_floor, *(e for _, e in terms)]) - dot.fraction_bits
    return _rounded(sum(_cut(t, unit) for t, _ in terms), unit, dot, output)


def _binade(x: Number, fmt: Format) -> int:
    return max(exponent(x), fmt.emin)


def _cut(x: Number, unit: int) -> int:
    """How many whole ``2**unit`` are in ``x``, toward zero."""
    m, shift = abs(x[0]), x[1] - unit
    whole = m << shift if shift >= 0 else m >> -shift
    return -whole if x[0] < 0 else whole


def _rounded(total: int, unit: int, dot: DotProduct, output: Format) -> Number:
    """The sum, rounded to the output. Past the largest number it is an infinity, toward zero as well."""
    if not total:
        return ZERO
    kept = replace(output, p=14 if dot.rounding == "rz13" else output.p, rz=dot.rounding != "rne")
    if exponent((total, unit)) > output.emax:
        return NEG_INF if total < 0 else INF
    found = rounder(kept)((total, unit))
    return found if found[0] or not is_finite(found) else ZERO
