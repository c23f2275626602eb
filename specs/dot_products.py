"""Tensor-core dot products as data: the parameters of a truncated fused dot-product-add, by instruction and format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from specs.errors import UnsupportedError
from specs.formats import Format
from specs.schema import Frozen

Instruction = Literal["mma", "wgmma", "tcgen05"]
Base = Literal["bf16", "f16", "tf32", "e4m3fn", "e5m2"]


class DotProduct(Frozen):
    """The numerics of one tensor-core instruction for some input formats.

    ``fused_length`` products and the accumulator are aligned to the largest exponent, but at least to
    ``exponent_floor``; each is truncated to ``fraction_bits`` fraction bits; the exact sum is rounded once. Longer
    dot products chain. Source of the model: arXiv:2511.10909v2, algorithm 7.

    Attributes:
        instruction: ``mma`` (mma.sync), ``wgmma`` or ``tcgen05``.
        inputs: formats of both factors that this entry describes.
        output: format of accumulator and result.
        rounding: ``rz`` toward zero; ``rne`` to nearest even; ``rz13`` toward zero to 14 significant bits.
        addition: ``early``: the accumulator takes part in the alignment; ``late``: the dot product starts at zero and
            the accumulator is added by one f32 addition to nearest even.
        evidence: ``replayed`` (bit-identical to recorded words of the hardware) or ``paper``.
    """

    instruction: Instruction
    inputs: Annotated[tuple[Base, ...], Field(strict=False, min_length=1, max_length=8)]
    output: Literal["f32", "f16"]
    fused_length: Annotated[int, Field(ge=1, le=64)]
    fraction_bits: Annotated[int, Field(ge=10, le=64)]
    exponent_floor: Annotated[int, Field(ge=-400, le=0)]
    rounding: Literal["rz", "rne", "rz13"]
    addition: Literal["early", "late"] = "early"
    evidence: Literal["replayed", "paper"]


def find(
    dots: Iterable[DotProduct], instruction: str, a: Format, b: Format, output: Format, *, place: str = ""
) -> DotProduct:
    """The entry for ``instruction`` on factors of formats ``a`` and ``b`` with an ``output`` accumulator.

    Modifiers of formats (``.ftz``) do not matter: tensor cores keep subnormals.

    Raises:
        UnsupportedError: the platform does not have it, or nothing is known of its arithmetic.
    """
    known = tuple(dots)
    for dot in known:
        if dot.instruction == instruction and dot.output == output.base and a.base == b.base in dot.inputs:
            return dot
    have = ", ".join(f"{d.instruction} of {'/'.join(d.inputs)} to {d.output}" for d in known) or "none"
    raise UnsupportedError(
        f"no dot product {instruction} of {a.base} and {b.base} to {output.base} on this platform",
        place=place,
        remedy=f"described: {have}",
    )
