"""Tensor-core dot products as data: the parameters of a truncated fused dot-product-add, by instruction and format.

What a platform does not list is not known, and is refused by name: `find` never falls back to a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from specs.errors import UnsupportedError
from specs.formats import Format
from specs.schema import Frozen, RefusalError

Instruction = Literal["mma", "wgmma", "tcgen05"]
Base = Literal["bf16", "f16", "tf32", "e4m3fn", "e5m2"]
INSTRUCTIONS: tuple[Instruction, ...] = ("mma", "wgmma", "tcgen05")


def _ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    if list(values) != sorted(set(values)):
        raise RefusalError("lengths are not ascending", "list each K of the instruction once, smallest first")
    return values


Length = Annotated[int, Field(ge=1, le=256)]
Lengths = Annotated[tuple[Length, ...], Field(strict=False, max_length=4), AfterValidator(_ascending)]


class DotProduct(Frozen):
    """The numerics of one tensor-core instruction for some input formats.

    ``fused_length`` products and the accumulator are aligned to the largest exponent, but at least to
    ``exponent_floor``; each is truncated to ``fraction_bits`` fraction bits; the exact sum is rounded once. Longer
    dot products chain. Source of the model: arXiv:2511.10909v2, algorithm 7.

    Attributes:
        instruction: ``mma`` (mma.sync), ``wgmma`` or ``tcgen05``.
        inputs: formats of both factors that this entry describes.
        output: format of accumulator and result.
        lengths: the K of the instructions that this entry describes: 8 and 16 for m16n8k8 and m16n8k16. Empty: any.
        rounding: ``rz`` toward zero; ``rne`` to nearest even; ``rz13`` toward zero to 14 significant bits.
        addition: ``early``: the accumulator takes part in the alignment; ``late``: the dot product starts at zero and
            the accumulator is added by one addition in the output format, to nearest even.
        split: which terms of an instruction its blocks take. ``consecutive``: as they come; ``pairs``: the first half
            of the chain takes terms 0 and 1 of every four, the second half terms 2 and 3.
        converted: the format to which both factors are converted (exactly) before they are multiplied. It matters to
            subnormals, which keep the exponent of their format's smallest normal number.
        evidence: ``replayed``: bit-identical to recorded words of the hardware; ``derived``: the vendor's assembler
            turns the instruction into others that were replayed; ``paper``: published, no recorded words are public.
    """

    instruction: Instruction
    inputs: Annotated[tuple[Base, ...], Field(strict=False, min_length=1, max_length=8)]
    output: Literal["f32", "f16"]
    lengths: Lengths = ()
    fused_length: Annotated[int, Field(ge=1, le=64)]
    fraction_bits: Annotated[int, Field(ge=10, le=64)]
    exponent_floor: Annotated[int, Field(ge=-400, le=0)]
    rounding: Literal["rz", "rne", "rz13"]
    addition: Literal["early", "late"] = "early"
    split: Literal["consecutive", "pairs"] = "consecutive"
    converted: Literal["f16"] | None = None
    evidence: Literal["replayed", "derived", "paper"]

    @model_validator(mode="after")
    def _known_arithmetic(self) -> DotProduct:
        if (self.output == "f16") != (self.rounding == "rne"):
            raise RefusalError(
                f"rounding {self.rounding} to {self.output} is no known arithmetic",
                "f32 results are cut (rz, rz13), f16 results go to nearest even (rne)",
            )
        if self.split == "pairs" and any(k % 4 for k in self.lengths):
            raise RefusalError("pairs need lengths that are multiples of 4", "see `split`")
        if self.converted and not set(self.inputs) <= {"e4m3fn", "e5m2"}:
            raise RefusalError(f"not every input converts exactly to {self.converted}", "e4m3fn and e5m2 do")
        return self

    def blocks(self, k: int) -> tuple[tuple[int, ...], ...]:
        """The terms of each fused block of one instruction of ``k`` terms, in the order of the chain."""
        parts = [list(range(k))]
        if self.split == "pairs":
            parts = [[i for i in range(k) if i % 4 < 2], [i for i in range(k) if i % 4 >= 2]]
        size = self.fused_length
        return tuple(tuple(p[i : i + size]) for p in parts for i in range(0, len(p), size))


def find(
    dots: Iterable[DotProduct],
    instruction: str,
    a: Format,
    b: Format,
    output: Format,
    k: int | None = None,
    *,
    place: str = "",
) -> DotProduct:
    """The entry for ``instruction`` on factors of formats ``a`` and ``b`` with an ``output`` accumulator.

    Modifiers of formats (``.ftz``) do not matter: tensor cores keep subnormals.

    Args:
        dots: the entries of a platform.
        instruction: ``mma``, ``wgmma`` or ``tcgen05``.
        a: format of the left factors.
        b: format of the right factors; only equal formats are described.
        output: format of accumulator and result.
        k: K of the instruction; None takes the first entry whatever its lengths.
        place: where the dot product is asked for.

    Raises:
        UnsupportedError: the platform does not have it, or nothing is known of its arithmetic.
    """
    known = tuple(dots)
    for dot in known:
        if (
            dot.instruction == instruction
            and dot.output == output.base
            and a.base == b.base
            and a.base in dot.inputs
            and (k is None or not dot.lengths or k in dot.lengths)
        ):
            return dot
    have = ", ".join(
        f"{d.instruction}({' or '.join(map(str, d.lengths)) or 'k'}) of {'/'.join(d.inputs)} to {d.output}"
        for d in known
    )
    length = "" if k is None else f" in instructions of {k} terms"
    raise UnsupportedError(
        f"no dot product {instruction} of {a.base} and {b.base} to {output.base}{length} is described for this platform",
        place=place,
        remedy=f"described: {have or 'none'}",
    )
