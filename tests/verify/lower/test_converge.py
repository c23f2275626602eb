"""Stages made comparable: what may differ in equal programs, and what may not."""

from __future__ import annotations

import pytest

from tests.verify.lower.test_trees import kept, kernel
from verify.lower.canonical import distance
from verify.lower.converge import converge, operations

TTGIR = """#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#loc = loc("a.py":1:1)
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%x: !tt.ptr<f32> loc("x"(#loc)), %y: tensor<8xf32, #blocked> loc("y"(#loc))) {
    %0 = arith.addf %y, %y : tensor<8xf32, #blocked> loc(#loc)
    %1 = arith.mulf %y, %0 : tensor<8xf32, #blocked> loc(#loc2)
    %2 = math.exp %y : tensor<8xf32, #blocked> loc(#loc)
    %3 = arith.subf %1, %2 : tensor<8xf32, #blocked> loc(#loc)
    tt.store %x, %3 : tensor<8xf32, #blocked> loc(#loc)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""


def swapped(text: str, *lines: str) -> str:
    """The two lines that begin so change places."""
    rows = text.splitlines()
    i, j = (next(n for n, row in enumerate(rows) if row.strip().startswith(x)) for x in lines)
    rows[i], rows[j] = rows[j], rows[i]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (TTGIR, 0),
        (TTGIR.replace("cuda:90", "cuda:100").replace("1:1", "7:9"), 1),
        (TTGIR.replace("%0", "%first").replace("#blocked ", "#layout ").replace("#blocked>", "#layout>"), 2),
        (swapped(TTGIR, "%1", "%2"), 3),
        (TTGIR.replace("math.exp", "math.exp2"), None),
        (TTGIR.replace("arith.subf %1, %2", "arith.subf %2, %1"), None),
        (TTGIR.replace("arith.mulf %y, %0", "arith.mulf %y, %y"), None),
        (TTGIR.replace("#blocked>", "#blocked1>"), None),
    ],
)
def test_ttgir(other: str, expected: int | None) -> None:
    assert distance("ttgir", TTGIR, other) == expected


LLIR = """; ModuleID = 'a'
target triple = "nvptx64"
define void @f(ptr %0, float %1) !dbg !5 {
  %3 = fadd float %1, %1, !dbg !8
  %4 = fmul float %1, %1
  %5 = fsub float %3, %4
  store float %5, ptr %0, align 4
  store float %3, ptr %0, align 4
  ret void
}
"""


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (LLIR.replace("!8", "!9"), 1),
        (LLIR.replace("%5", "%9"), 2),
        (swapped(LLIR, "%3", "%4"), 3),
        (swapped(LLIR, "store float %5", "store float %3"), None),
        (LLIR.replace("fsub float %3", "fsub float %1"), None),
    ],
)
def test_llvm(other: str, expected: int | None) -> None:
    """The order of stores counts, that of sums does not."""
    assert distance("llir", LLIR, other) == expected


PTX = """.version 8.7
.target sm_90a
\tadd.f32 \t%r3, %r1, %r2;
\tmul.f32 \t%r4, %r1, %r2;
\tst.global.b32 \t[%rd1], %r3;
\tst.global.b32 \t[%rd1], %r4;
\tret;
"""


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PTX.replace("sm_90a", "sm_100a").replace("8.7", "8.8"), 1),
        (PTX.replace("%r3", "%r7"), 2),
        (swapped(PTX, "add", "mul"), 3),
        (PTX.replace("mul.f32", "mul.rn.f32"), None),
        (PTX.replace("st.global.b32 \t[%rd1], %r3", "st.global.b32 \t[%rd1], %r4"), None),
    ],
)
def test_ptx(other: str, expected: int | None) -> None:
    assert distance("ptx", PTX, other) == expected


def test_triton_3_7_1_parts_in_machine_code_alone() -> None:
    """Hand-checked with diff: TTIR the same bytes, LLVM IR the same but for !dbg, PTX but for .version and .target."""
    for name in ("attend", "merge"):
        found = converge(kernel("3.7.1", name))
        assert [s.equal for s in found.stages] == [True, True, True, True, False]
        assert (found.last_common, found.parted) == ("ptx", "sass")
        assert found.claim == "does not hold: layouts are the same, PTX is the same"
    by = {s.stage: s for s in converge(kernel("3.7.1", "merge")).stages}
    assert (by["ttir"].aside, by["llir"].aside, by["ptx"].aside) == (0, 0, 1)
    assert by["ttgir"].verdict() == "equal but for locations and target, names and order"


def test_triton_3_8_0_parts_in_llvm() -> None:
    """sm_100 and sm_120 share LLVM IR with <2 x float>; ptxas fuses again for sm_120 alone."""
    found = converge(kernel("3.8.0", "merge"))
    by = {s.stage: s for s in found.stages}
    assert (found.last_common, found.parted) == ("ttgir", "llir")
    assert by["llir"].groups == by["ptx"].groups == (("sm_90",), ("sm_100", "sm_120"))
    assert found.claim == "does not hold: LLVM IR already differs, layouts are the same"
    counts = {a: operations("sass", s.sass) for a, s in kernel("3.8.0", "merge").stages.items()}
    assert [counts[a]["FFMA"] for a in ("sm_90", "sm_100", "sm_120")] == [9, 1, 9]


def test_the_claim_holds_where_its_parts_do() -> None:
    """Made up from what is kept: other layouts, PTX and machine code of 3.8.0 over one TTIR and one LLVM IR."""
    whole = kernel("3.8.0", "merge")
    first, second = (whole.stages[a] for a in ("sm_90", "sm_100"))
    second = second.model_copy(
        update={
            "llir": first.llir,
            "ttgir": first.ttgir.replace("sizePerThread = [1, 4]", "sizePerThread = [1, 2]"),
        }
    )
    made = converge(whole.model_copy(update={"stages": {"sm_90": first, "sm_100": second}}))
    assert made.holds
    assert made.layouts_differ
    alone = converge(whole.model_copy(update={"stages": {"sm_90": first}}))
    assert alone.claim == "needs two architectures"


def test_coordinate() -> None:
    """ptxas as `ptxas --version` of the two wheels says it."""
    assert kept("3.7.1").coordinate() == "Triton 3.7.1, fp fusion on, ptxas 12.8.93 and 13.1.80"
    assert kept("3.8.0").coordinate() == "Triton 3.8.0, fp fusion on, ptxas 12.9.86 and 13.3.33"
