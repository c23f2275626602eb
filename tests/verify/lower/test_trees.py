"""The example as two compilers lower it. Expected trees were read by hand from the disassembly, operand by operand."""

from __future__ import annotations

import re
from functools import cache

import pytest

from verify.lower.read import Reading, ReadReduction, read
from verify.lower.stages import Kernel, Lowering, bundled

VERSIONS = ("3.7.1", "3.8.0")
ARCHS = ("sm_90", "sm_100", "sm_120")

# merge, sm_90: R29 = FMUL w1, x1; FFMA w0, x0, R29; FFMA w2, x2, .; FFMA w3, x3, . (3.7.1)
#               R = FFMA w0, x0, (FMUL w1, x1); S = FFMA w2, x2, (FMUL w3, x3); FADD R, S (3.8.0)
#       sm_100: FMUL x 4; FADD2 (p0, p1), FADD2 (p2, p3), FADD2 of both (3.8.0)
NUMERATOR = {
    ("3.7.1", "sm_90"): "lanes(4, seq(fma, swap), butterfly())",
    ("3.7.1", "sm_100"): "lanes(4, seq(fma, swap), butterfly())",
    ("3.7.1", "sm_120"): "lanes(4, seq(fma, swap), butterfly())",
    ("3.8.0", "sm_90"): "lanes(4, pairwise(fma), butterfly())",
    ("3.8.0", "sm_100"): "lanes(4, pairwise(), butterfly())",
    ("3.8.0", "sm_120"): "lanes(4, pairwise(fma), butterfly())",
}
BRACKETS = {
    "lanes(4, seq(fma, swap), butterfly())": "fma(t3, fma(t2, fma(t0, t1)))",
    "lanes(4, pairwise(fma), butterfly())": "(fma(t0, t1) + fma(t2, t3))",
    "lanes(4, pairwise(), butterfly())": "((t0 + t1) + (t2 + t3))",
}


@cache
def kept(version: str) -> Lowering:
    found = bundled(f"attention@{version}")
    assert found is not None
    return found


def kernel(version: str, name: str) -> Kernel:
    return next(k for k in kept(version).kernels if k.name == name)


@cache
def reading(version: str, name: str, arch: str) -> Reading:
    return read(kernel(version, name), arch)


def only(found: Reading, role: str) -> ReadReduction:
    (one,) = (r for r in found.reductions if r.role == role)
    return one


@pytest.mark.parametrize(("version", "arch"), NUMERATOR)
def test_numerator(version: str, arch: str) -> None:
    one = only(reading(version, "merge", arch), "numerator")
    tree = NUMERATOR[version, arch]
    assert (one.tree, one.brackets) == (tree, BRACKETS[tree])
    assert one.warps == (2, 1)
    assert one.lanes == ()
    assert one.products == ("rounded" if "pairwise()" in tree else "fused")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("version", VERSIONS)
def test_denominator_and_maximum_over_splits(version: str, arch: str) -> None:
    """FMUL R6 = R26 * R5; SHFL.BFLY R7 = R6, 8; FFMA R7 = R26 * R5 + R7; then SHFL 4, 2, 1 with FADD. No warps."""
    found = reading(version, "merge", arch)
    one = only(found, "denominator")
    assert (one.lanes, one.along, one.warps, one.contracted) == ((8, 4, 2, 1), (8, 4, 2, 1), (), True)
    assert one.columns == (4, 8, 16, 32, 64)  # #blocked: four columns a thread, 32 lanes along them
    top = only(found, "merge_max")
    assert (top.kind, top.lanes, top.contracted) == ("max", (8, 4, 2, 1), False)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("version", VERSIONS)
def test_sum_of_the_weights_of_a_tile(version: str, arch: str) -> None:
    """FADD of the two columns of a thread, SHFL 2, SHFL 1, STS, LDS, SHFL 1 between two warps; FFMA into the sum."""
    one = only(reading(version, "attend", arch), "tile_sum")
    assert one.tree == "chunks(8, chunks(2, seq(), butterfly(2, 1)), butterfly())"
    assert (one.brackets, one.lanes, one.warps, one.joined) == ("(t0 + t1)", (2, 1), (1,), "fma")
    top = only(reading(version, "attend", arch), "score_max")
    assert (top.lanes, top.warps) == ((2, 1), (1,))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("version", VERSIONS)
def test_dot_products_exponentials_and_division(version: str, arch: str) -> None:
    """64 elements of a head are 4 HMMA in a chain from 0, 16 keys one HMMA from acc * alpha; 2 for 16 columns a warp."""
    found = reading(version, "attend", arch)
    assert found.instructions == ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",)
    chains = {(d.count, d.length, d.start, d.ascending, d.scaled) for d in found.dots}
    assert chains == {(1, 4, "+0", True, "mul"), (2, 1, "product", True, "")}
    assert found.exponentials == {"triton.exp": 6}
    assert reading(version, "merge", arch).divisions == {"div.full.f32": 4}


@pytest.mark.parametrize(
    ("version", "arch", "expected"),
    [
        ("3.7.1", "sm_90", {"FFMA": 13, "FADD": 16}),
        ("3.8.0", "sm_90", {"FFMA": 9, "FADD": 20}),
        ("3.8.0", "sm_100", {"FFMA": 1, "FADD": 12, "FADD2": 8, "FMUL2": 2}),
    ],
)
def test_counts(version: str, arch: str, expected: dict[str, int]) -> None:
    """By an independent count of the opcodes in the listing."""
    found = reading(version, "merge", arch).counts
    listing = kernel(version, "merge").stages[arch].sass
    assert {n: found[n] for n in expected} == expected
    assert {n: len(re.findall(rf"\s{n} R", listing)) for n in expected} == expected


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["attend", "merge"])
@pytest.mark.parametrize("version", VERSIONS)
def test_ptx_says_the_same_but_for_what_ptxas_fuses(version: str, name: str, arch: str) -> None:
    """PTX is another text, with another reader. Only for sm_120 of 3.8.0 ptxas fuses what PTX has apart."""
    whole = kernel(version, name)
    bare = whole.stages[arch].model_copy(update={"sass": ""})
    found = read(whole.model_copy(update={"stages": {arch: bare}}), arch)
    assert found.source == "PTX"
    expected = {r.role: r.tree for r in reading(version, name, arch).reductions}
    if (version, name, arch) == ("3.8.0", "merge", "sm_120"):
        expected["numerator"] = "lanes(4, pairwise(), butterfly())"
    assert {r.role: r.tree for r in found.reductions} == expected
    assert found.exponentials == reading(version, name, arch).exponentials


def changed(version: str, name: str, arch: str, old: str, new: str) -> Reading:
    """The reading of a listing in which one thing was changed."""
    whole = kernel(version, name)
    listing = whole.stages[arch].sass
    assert old in listing
    stages = whole.stages[arch].model_copy(update={"sass": listing.replace(old, new)})
    return read(whole.model_copy(update={"stages": {arch: stages}}), arch)


def test_other_shuffles_are_seen_and_what_is_not_understood_is_said() -> None:
    """Masks 4 and 2 in the other order; a mask in a register; an address by an unknown instruction."""
    listing = kernel("3.7.1", "merge").stages["sm_90"].sass
    swapped = re.sub(
        r"(SHFL.BFLY PT, R\d+, R\d+), 0x([42]),", lambda m: f"{m[1]}, {6 - int(m[2]):#x},", listing
    )
    found = only(changed("3.7.1", "merge", "sm_90", listing, swapped), "denominator")
    assert found.lanes == (8, 2, 4, 1)
    assert found.tree == "butterfly(8, 2, 4, 1)"
    masked = listing.replace(", 0x8, 0x1f", ", R9, 0x1f")
    found = only(changed("3.7.1", "merge", "sm_90", listing, masked), "denominator")
    assert found.tree is None
    assert found.unread
    strange = re.sub(r"LEA R4, P0, R2", "QUUX R4, P0, R2", listing).replace(
        "LDG.E.128 R4,", "LDG.E.128 R4, ?,"
    )
    found = only(changed("3.7.1", "merge", "sm_90", listing, strange), "numerator")
    assert found.tree is None
    assert "origin" in found.unread


def test_a_sum_before_the_shuffle_is_no_contracted_step() -> None:
    """The first step of the denominator as FADD of two rounded products."""
    found = changed("3.7.1", "merge", "sm_90", "FFMA R7, R26, R5, R7", "FADD R7, R6, R7")
    one = only(found, "denominator")
    assert (one.contracted, one.products, one.tree) == (False, "rounded", "butterfly(8, 4, 2, 1)")


def test_a_maximum_is_shown_as_one():
    from verify.lower.trees import text

    assert text(("+", ("+", 0, 1), 2), "max") == "max(max(t0, t1), t2)"
    assert text(("+", ("fma", 0, 1), 2)) == "(fma(t0, t1) + t2)"
