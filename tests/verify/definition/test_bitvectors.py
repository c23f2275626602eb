"""One block on bit-vectors: the same words as the scalar definition, and laws proved for all inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES, Format
from tests.verify.dots import Case, scalar_words
from tests.verify.engine.test_tensor_core import AMPERE, BF16, F16, F32, HOPPER, KINDS, draw
from verify.definition import bitvectors

z3 = bitvectors.solver()
E4M3, E5M2, TF32 = BASES["e4m3fn"], BASES["e5m2"], BASES["tf32"]
H200 = load_platform("h200").dot_products
THIRTEEN = find(H200, "wgmma", E5M2, E5M2, F32, 32)
HALF = find(H200, "mma", F16, F16, F16, 16)


def unknowns(n: int, fmt: Format) -> tuple[list[Any], list[Any]]:
    return tuple([bitvectors.word(f"{x}{i}", fmt) for i in range(n)] for x in "ab")  # type: ignore[return-value]


def proved(claim: Any, seconds: int = 120) -> None:
    """Fail unless the claim holds for all values of its unknowns."""
    s = z3.Solver()
    s.set("timeout", seconds * 1000)
    s.add(z3.Not(claim))
    found = s.check()
    assert found == z3.unsat, s.model() if found == z3.sat else s.reason_unknown()


@pytest.mark.parametrize(
    ("dot", "fmt"),
    [
        (HOPPER, BF16),
        (AMPERE, BF16),
        (HALF, F16),
        (find(H200, "mma", TF32, TF32, F32, 8), TF32),
        (find(H200, "wgmma", E4M3, E4M3, F32, 32), E4M3),
        (find(H200, "wgmma", E5M2, E5M2, F16, 32), E5M2),
    ],
)
def test_known_inputs_give_the_words_of_the_scalar_definition(dot: DotProduct, fmt: Format) -> None:
    n, spare = 3, 13 if fmt.base == "tf32" else 0
    a, b = unknowns(n, fmt)
    c = bitvectors.word("c", BASES[dot.output])
    stated = bitvectors.block(dot, a, b, c, fmt, fmt)
    for seed, kind in enumerate(KINDS):
        case = draw(kind, seed, dot, fmt, n, 8)
        for left, right, start, word in zip(case.a, case.b, case.c, scalar_words(case), strict=True):
            known = [*zip(a, left >> spare, strict=True), *zip(b, right >> spare, strict=True), (c, start)]
            values = [(x, z3.BitVecVal(int(v), x.size())) for x, v in known]
            assert z3.simplify(z3.substitute(stated, *values)).as_long() == int(word), kind


def test_one_product_is_that_of_z3s_own_floats() -> None:
    # Every pair of e5m2 words: the product fits f32, so a block of one term must give it exactly.
    (a,), (b,) = unknowns(1, E5M2)
    single = z3.FPSort(8, 24)
    left, right = (z3.fpFPToFP(z3.RNE(), z3.fpBVToFP(x, z3.FPSort(5, 3)), single) for x in (a, b))
    product = z3.fpMul(z3.RNE(), left, right)
    found = bitvectors.block(THIRTEEN, [a], [b], z3.BitVecVal(0, 32), E5M2, E5M2)
    special = z3.If(z3.fpIsNaN(product), found == 0x7FFFFFFF, found == 0)
    here = z3.Or(z3.fpIsNaN(product), z3.fpIsZero(product))
    proved(z3.If(here, special, z3.fpBVToFP(found, single) == product))


def test_a_zero_product_leaves_the_accumulator_alone() -> None:
    _, (b,) = unknowns(1, BF16)
    c = bitvectors.word("c", F32)
    zero = z3.BitVecVal(0, 16)
    ordinary = z3.And(z3.ULT(b & 0x7FFF, 0x7F80), z3.ULE(c & 0x7FFFFFFF, 0x7F800000), c != 0x80000000)
    for dot in (HOPPER, AMPERE):
        proved(z3.Implies(ordinary, bitvectors.block(dot, [zero], [b], c, BF16, BF16) == c))


def test_thirteen_bits_cut_the_accumulator_too() -> None:
    c = bitvectors.word("c", F32)
    zero = z3.BitVecVal(0, 8)
    cut = c & 0xFFFFFC00
    found = bitvectors.block(THIRTEEN, [zero], [zero], c, E5M2, E5M2)
    number = z3.ULE(c & 0x7FFFFFFF, 0x7F800000)
    proved(z3.Implies(number, found == z3.If(cut == 0x80000000, z3.BitVecVal(0, 32), cut)))


def test_the_solver_finds_where_hopper_and_ampere_differ() -> None:
    (a, d), _ = unknowns(2, BF16)
    c = bitvectors.word("c", F32)
    one = z3.BitVecVal(0x3F80, 16)
    words = [bitvectors.block(dot, [a, d], [one, one], c, BF16, BF16) for dot in (HOPPER, AMPERE)]
    s = z3.Solver()
    s.add(words[0] != words[1], a & 0xFF80 == 0x3F80, d & 0x7F80 == 0x3380, c & 0xFF800000 == 0x33000000)
    assert s.check() == z3.sat
    model = s.model()
    factors = np.array([[model.eval(x, True).as_long() for x in (a, d)]], np.uint16)
    start = np.array([model.eval(c, True).as_long()], np.uint32)
    ones = np.full((1, 2), 0x3F80, np.uint16)
    found = [
        int(scalar_words(Case("", dot, 2, BF16, factors, ones, start, start))[0]) for dot in (HOPPER, AMPERE)
    ]
    assert found == [model.eval(w, True).as_long() for w in words]
    assert found[0] != found[1]


@pytest.mark.slow
def test_truncation_is_symmetric() -> None:
    (a,), (b,) = unknowns(1, E5M2)
    c = bitvectors.word("c", F32)
    plain = bitvectors.block(THIRTEEN, [a], [b], c, E5M2, E5M2)
    turned = bitvectors.block(
        THIRTEEN, [a ^ z3.BitVecVal(0x80, 8)], [b], c ^ z3.BitVecVal(1 << 31, 32), E5M2, E5M2
    )
    same = z3.Or(plain == 0x7FFFFFFF, plain == 0)
    proved(z3.If(same, turned == plain, turned == plain ^ z3.BitVecVal(1 << 31, 32)))


@pytest.mark.slow
def test_one_product_of_bf16_is_the_same_on_hopper_and_ampere() -> None:
    (a,), (b,) = unknowns(1, BF16)
    zero = z3.BitVecVal(0, 32)
    hopper, ampere = (bitvectors.block(dot, [a], [b], zero, BF16, BF16) for dot in (HOPPER, AMPERE))
    proved(hopper == ampere, 300)


def test_what_is_not_stated_is_refused() -> None:
    (a,), (b,) = unknowns(1, E4M3)
    c = bitvectors.word("c", F32)
    compiled = find(H200, "mma", E4M3, E4M3, F32, 32)
    with pytest.raises(UnsupportedError, match="converted to f16 first"):
        bitvectors.block(compiled, [a], [b], c, E4M3, E4M3)
    with pytest.raises(InputError, match="a block of 17 and 17 words"):
        bitvectors.block(HOPPER, [a] * 17, [b] * 17, c, E4M3, E4M3)
    with pytest.raises(InputError, match="a word of 8 bits where bf16 has 16"):
        bitvectors.block(HOPPER, [a], [b], c, BF16, BF16)
