"""Whether tensor cores of two platforms are one function: the same parameters, or terms on which they differ."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import numpy as np

from search.prove.about import about_platforms, asked
from search.prove.answer import Proof
from specs.dot_products import DotProduct
from specs.errors import InputError
from specs.formats import parse_format
from specs.platforms import Platform
from verify.numerics.rounding import encode, round_array
from verify.numerics.tensor_core import chained

#: Terms of a dot product that is tried, and how many are.
TERMS, TRIES = 32, 400
#: Fields that say what is computed; the others say what the instruction is called and where it was read.
_NAMING = {"evidence", "instruction", "inputs", "lengths"}


def prove_dots(platforms: list[Platform], fmt: str) -> list[Proof]:
    """For each pair of platforms and of their instructions on factors of ``fmt`` that end in f32: one function or not.

    Raises:
        InputError: fewer than two platforms, or one of them has no such instruction.
    """
    if len(platforms) < 2:
        raise InputError("fewer than two platforms", place="--platforms", remedy="name two: h200,b200")
    return [
        p
        for a, b in combinations(platforms, 2)
        for p in asked("dot", about_platforms([a, b]), _pairs(a, b, fmt))
    ]


def _pairs(a: Platform, b: Platform, fmt: str) -> list[Proof]:
    mine, other = _entries(a, fmt), _entries(b, fmt)
    both = [(x, y) for x in mine for y in other if x.instruction == y.instruction]
    # An instruction that one of them alone has is set against the other's own: wgmma against tcgen05.
    alone = [x for x in mine if x.instruction not in {y.instruction for y in other}]
    theirs = [y for y in other if y.instruction not in {x.instruction for x in mine}]
    return [_compared(a, b, x, y, fmt) for x, y in [*both, *((x, y) for x in alone for y in theirs)]]


def _entries(platform: Platform, fmt: str) -> list[DotProduct]:
    found = [d for d in platform.dot_products if fmt in d.inputs and d.output == "f32"]
    if not found:
        raise InputError(
            f"{platform.name} has no dot product of {fmt} to f32",
            place="--dot",
            remedy="ulpscope spec show names the formats of a platform",
        )
    return found


def _compared(a: Platform, b: Platform, x: DotProduct, y: DotProduct, fmt: str) -> Proof:
    began = time.perf_counter()
    names = f"{x.instruction} on {a.name}", f"{y.instruction} on {b.name}"
    subject, claim = f"{names[0]} and {names[1]}", f"one function of {fmt} factors and an f32 accumulator"
    one, two = (d.model_dump(exclude=_NAMING) for d in (x, y))
    evidence = tuple(f"{n}: {_EVIDENCE[d.evidence]}" for n, d in zip(names, (x, y), strict=True))
    if one == two:
        reason = (
            f"both fuse {x.fused_length} products, keep {x.fraction_bits} bits below the largest term, cut exponents at "
            f"{x.exponent_floor} and round {x.rounding}: the parameters are all that the arithmetic has"
        )
        tried, wrong = _tried(x, y, fmt)
        again = f"{tried} random and adversarial dot products of {TERMS} terms"
        if wrong is not None:
            return Proof(subject, claim, "refuted", f"equal parameters, other bits: {wrong}", evidence)
        return Proof(subject, claim, "proved", reason, evidence, again, {}, time.perf_counter() - began)
    parts = ", ".join(f"{n} {one[n]} against {two[n]}" for n in one if one[n] != two[n])
    tried, witness = _tried(x, y, fmt)
    if witness is None:
        reason = f"other parameters ({parts}), but {tried} dot products agree"
        return Proof(subject, claim, "not decided", reason, evidence, "", {}, time.perf_counter() - began)
    reason = f"{parts}; {witness['text']}"
    return Proof(subject, claim, "refuted", reason, evidence, "", witness, time.perf_counter() - began)


_EVIDENCE = {
    "replayed": "equal to recorded words of the hardware",
    "derived": "its assembler turns it into instructions that equal recorded words",
    "paper": "as published; no recorded words are public",
}


def _tried(x: DotProduct, y: DotProduct, fmt: str) -> tuple[int, dict[str, Any] | None]:
    """Dot products until two results differ: how many, and the factors with both results."""
    rng, narrow, wide = np.random.default_rng(11), parse_format(fmt), parse_format("f32")
    for i in range(TRIES):
        spread = 6.0 * (i % 8)
        scale = np.exp2(np.round(rng.uniform(-spread, spread, TERMS)))
        a = round_array(rng.standard_normal(TERMS) * (scale if fmt != "e4m3fn" else 1.0), narrow)
        b = round_array(rng.standard_normal(TERMS), narrow)
        if i % 2:  # a pair that cancels
            a[1], b[1] = -a[0], b[0]
        c = float(round_array(np.array([rng.standard_normal()]), wide)[0])
        terms = a.tolist(), b.tolist()
        results = [chained(d, TERMS, *terms, c, narrow, narrow) for d in (x, y)]
        bits = [int(encode(np.array([r]), wide)[0]) for r in results]
        if bits[0] != bits[1]:
            shown = [f"{r!r} (0x{w:08x})" for r, w in zip(results, bits, strict=True)]
            return i + 1, {
                "a": a.tolist(),
                "b": b.tolist(),
                "c": c,
                "results": [f"0x{w:08x}" for w in bits],
                "text": f"a dot product of {TERMS} terms gives {shown[0]} and {shown[1]}",
            }
    return TRIES, None
