"""Short listings written for a purpose: what the data flow makes of single instructions."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tests.verify.lower.test_trees import ARCHS, kernel
from verify.lower.read import read
from verify.lower.sass import Machine, follow
from verify.lower.trees import reductions, text
from verify.lower.words import integer


def listing(*lines: str) -> str:
    return (
        "\n".join(f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(lines))
        + "\n"
    )


def machine_after(*lines: str) -> Machine:
    """Registers after integer instructions of 128 threads; R0 holds the thread's number, R1 one million."""
    from verify.lower.flow import Flow
    from verify.lower.sass import instructions

    made = Machine(128, Flow("test"))
    made.ints |= {"R0": made.thread, "R1": made.zero + 1_000_000, "R2": made.zero + 3, "R3": made.zero + 5}
    for guard, op, parts in instructions(listing(*lines)):
        integer(made, guard, op, parts)
    return made


T = np.arange(128)
BIG = 1_000_000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("IMAD R9, R0, 0x4, R1", 4 * T + BIG),
        ("IMAD.SHL.U32 R9, R0, 0x80, RZ", 128 * T),
        ("IADD3 R9, R0, -R2, R1", T - 3 + BIG),
        ("IADD3 R9, PT, PT, R0, R1, RZ", T + BIG),
        ("VIADD R9, R0, 0xfffffff0", (T - 16) % 2**32),
        ("LEA R9, R0, R1, 0x2", 4 * T + BIG),
        ("LOP3.LUT R9, R0, 0x1f, RZ, 0xc0, !PT", T & 31),
        ("LOP3.LUT R9, R0, 0x10, R1, 0x78, !PT", T ^ (16 & BIG)),
        ("LOP3.LUT R9, R0, 0x40, RZ, 0xfc, !PT", T | 64),
        ("SHF.R.U32.HI R9, RZ, 0x5, R0", T >> 5),
        ("SHF.L.U32 R9, R0, 0x3, RZ", T << 3),
        ("SGXT.U32 R9, R0, 0x2", T & 3),
        ("SGXT R9, R0, 0x3", ((T & 7) ^ 4) - 4),
        ("SHF.R.S32.HI R9, RZ, 0x1f, R0", 0 * T),
        ("HFMA2 R9, -RZ, RZ, 0, 2", 0 * T + 0x4000),
        ("LEA.HI R9, R0, R1, RZ, 0x1e", (T >> 2) + BIG),
        ("IABS R9, R0", T),
        ("MOV R9, 0x10", 0 * T + 16),
        ("SEL R9, R0, RZ, PT", T),
    ],
)
def test_integer_instructions(line: str, expected: np.ndarray) -> None:
    """Each against NumPy, modulo 2**32."""
    found = machine_after(line).ints["R9"]
    assert found is not None
    assert np.array_equal(found, expected % 2**32)


def test_wide_products_and_carries() -> None:
    made = machine_after("IMAD.WIDE R8, R0, -0x2, R2")
    assert np.array_equal(made.wide("R8"), -2 * T + 3 + (5 << 32))
    made = machine_after("LEA R8, P0, R1, 0xffffff00, 0x2", "LEA.HI.X.SX32 R9, R1, R3, 0x2, P0")
    assert np.array_equal(made.wide("R8"), 0 * T + 4 * BIG + 0xFFFFFF00 + (5 << 32))
    made = machine_after("IADD3 R8, P1, R2, -0x1, RZ", "IADD3.X R9, R3, RZ, RZ, P1, !PT")
    assert np.array_equal(made.wide("R8"), 0 * T + (5 << 32) + 2 + (1 << 32))
    assert machine_after("QUUX R9, R0, R1").ints["R9"] is None
    assert machine_after("@P3 IADD3 R0, R0, R1, RZ").ints["R0"] is None


def test_a_block_after_a_jump_goes_on_with_the_registers_of_the_jump() -> None:
    """R4 is 1 where the jump was taken; the other way, which ends in an unconditional jump, makes it a product."""
    lines = listing("LDG.E R4, desc[UR4][R2.64]", "@!P0 BRA `(.L_x_0)", "FMUL R4, R4, R4", "BRA `(.L_x_1)")
    lines += ".L_x_0:\n" + listing("SHFL.BFLY PT, R5, R4, 0x1, 0x1f", "FADD R6, R4, R5")
    (found,) = reductions(follow(lines, 32))
    assert found.products == "none"
    assert found.root is not None
    assert found.root.args[0].op == "load"


def test_terms_of_wgmma_are_its_columns() -> None:
    """D of m64nNk16: a thread's registers 0, 1, 4, 5 are columns 0, 1, 8, 9 of its first row; 2, 3 belong to another."""
    lines = listing(
        "HGMMA.64x16x16.F32.BF16 R8, gdesc[UR4], RZ, !UPT",
        "HGMMA.64x16x16.F32.BF16 R8, gdesc[UR8], R8, gsb0",
        "FADD R20, R12, R8",
        "FADD R21, R9, R13",
        "FADD R22, R21, R20",
        "SHFL.BFLY PT, R23, R22, 0x2, 0x1f",
        "FADD R24, R22, R23",
    )
    (found,) = reductions(follow(lines, 128))
    assert (found.terms, text(found.tree), found.lanes) == (4, "((t0 + t2) + (t1 + t3))", (2,))


def test_two_results_of_unknown_place_have_no_order() -> None:
    """Two HMMA whose factors came from somewhere unknown."""
    lines = listing(
        "HMMA.16816.F32.BF16 R8, R40, R44, RZ",
        "HMMA.16816.F32.BF16 R12, R40, R46, RZ",
        "FADD R20, R8, R12",
        "SHFL.BFLY PT, R23, R20, 0x2, 0x1f",
        "FADD R24, R20, R23",
    )
    (found,) = reductions(follow(lines, 128))
    assert found.unread == "the order of terms in a thread: they come from several tensor-core results"


def test_a_very_long_chain_is_refused_in_words() -> None:
    lines = ["LDG.E R4, desc[UR4][R2.64]", *["FADD R4, R4, R9"] * 3000]
    lines += ["SHFL.BFLY PT, R5, R4, 0x1, 0x1f", "FADD R6, R4, R5"]
    (found,) = reductions(follow(listing(*lines), 32))
    assert "more than some hundred sums" in found.unread


def test_damaged_listings_are_read_or_refused_but_never_crash() -> None:
    """Lines dropped, cut and with operands of others."""
    chance = random.Random(3)
    whole = kernel("3.8.0", "merge")
    for round_ in range(24):
        arch = ARCHS[round_ % 3]
        stages = whole.stages[arch]
        name = ("sass", "ptx", "ttgir")[round_ % 3 - round_ // 12]
        lines = getattr(stages, name).splitlines()
        words = [w for line in lines for w in re.findall(r"[^\s,]+", line)]
        for _ in range(8):
            i = chance.randrange(len(lines))
            parts = re.split(r"([\s,]+)", lines[i])
            parts[chance.randrange(len(parts))] = chance.choice(words)
            lines[i] = "".join(parts)[: chance.randrange(20, 200)]
        more = {"sass": ""} if name == "ptx" else {}
        stages = stages.model_copy(update={name: "\n".join(lines), **more})
        read(whole.model_copy(update={"stages": {arch: stages}}), arch)
