"""The second programs' own arithmetic, judged by fractions, recorded model outputs and plain attention."""

from __future__ import annotations

import csv
import hashlib
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.references import (
    flash_attn2,
    flash_attn3,
    flashinfer_fa2,
    mufu,
    triton_attention,
    xqa,
    xqa_fp8,
)
from tests.verify.references.dots import AMPERE, HOPPER, HOPPER_FP8, Core, fused, fused_by_integers
from tests.verify.references.floats import F32, GPU, IEEE, Unit, round_to, to_e4m3

DATA = Path(__file__).parents[2] / "data"
ORACLE = Path(__file__).parents[4] / "shared" / "oracle"

words = (
    st.integers(0, 2**32 - 1).map(lambda w: struct.unpack("<f", struct.pack("<I", w))[0]).filter(np.isfinite)
)
close = st.sampled_from(
    [1.0, -1.0, 2.0**-126, 2.0**-149, 3.0, 2.0**127, 1 + 2.0**-23, 2.0**-63, -(2.0**-64), 0.0, -0.0]
)
numbers = st.one_of(words, close)


def nearest(x: Fraction) -> np.float32:
    """One rounding of a rational to binary32."""
    if x == 0:
        return F32(0)
    unit = Fraction(2) ** -149
    while abs(x) / unit >= 2**24:
        unit *= 2
    scaled = abs(x) / unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    value = whole * unit * (1 if x > 0 else -1)
    return F32(np.inf if x > 0 else -np.inf) if abs(value) >= 2**128 else F32(float(value))


@pytest.mark.parametrize("unit", [GPU, IEEE])
@given(a=numbers, b=numbers, c=numbers)
def test_operations_round_once(unit: Unit, a: float, b: float, c: float) -> None:
    def taken(x: float) -> Fraction:
        return Fraction(0) if unit.ftz and abs(x) < 2.0**-126 else Fraction(x)

    def given_back(x: Fraction) -> np.float32:
        y = nearest(x)
        return F32(0) if unit.ftz and abs(y) < 2.0**-126 else y

    assert unit.mul(F32(a), F32(b)) == given_back(taken(a) * taken(b))
    assert unit.add(F32(a), F32(b)) == given_back(taken(a) + taken(b))
    assert unit.fma(F32(a), F32(b), F32(c)) == given_back(taken(a) * taken(b) + taken(c))


def test_e4m3_is_the_nearest_code() -> None:
    assert to_e4m3([448.0, 463.9, 1e9, -1e9, 2.0**-10, 2.0**-9, 1.0625, 1.1875, -0.0]).tolist() == [
        *(448.0, 448.0, 448.0, -448.0, 0.0, 2.0**-9, 1.0, 1.25, -0.0)
    ]


operands = st.sampled_from(
    [0.0, 1.0, -1.0, 1.9921875, -1.9921875, 2.0**-133, 2.0**-126, 2.0**60, -(2.0**60), 3.0, 2.0**-9]
)
accumulators = st.one_of(
    words, st.sampled_from([0.0, -0.0, 2.0**24, 2.0**-149, 1.9999998807907104, -(2.0**120)])
)


@pytest.mark.parametrize("core", [AMPERE, HOPPER, HOPPER_FP8])
@settings(max_examples=30)
@given(data=st.data())
def test_fused_blocks_agree_with_integers(core: Core, data: Any) -> None:
    fmt = "bf16"
    a = data.draw(st.lists(operands, min_size=core.length, max_size=core.length))
    b = data.draw(st.lists(operands, min_size=core.length, max_size=core.length))
    c = data.draw(accumulators)
    expected = fused_by_integers(core, fmt, a, b, c)
    got = fused(core, fmt, np.array(a, F32), np.array(b, F32), np.array(c, F32))
    assert got.view(np.uint32) == F32(expected).view(np.uint32)


def test_a_mufu_table_reproduces_its_published_hash() -> None:
    """All 2^23 significands of ex2 on [1, 2)."""
    x = (np.uint32(0x3F800000) + np.arange(1 << 23, dtype=np.uint32)).view(F32)
    got = np.concatenate([mufu.ex2(part) for part in np.split(x, 32)])
    assert hashlib.sha256(got.tobytes()).hexdigest().startswith("cce5df10202dbfcde720ca547d147edb")


@pytest.mark.skipif(not ORACLE.exists(), reason="the folder of expected values is not beside this checkout")
def test_mufu_equals_the_model_outputs() -> None:
    with np.load(ORACLE / "mufu_model.npz") as model:
        for name in ("ex2", "rcp", "lg2"):
            got = getattr(mufu, name)(model[f"{name}_in"].view(F32))
            assert (got.view(np.uint32) == model[f"{name}_out"]).all()


def test_hosts_count_as_recorded() -> None:
    with (DATA / "fa2_num_splits_small.csv").open() as file:
        for row in csv.DictReader(file):
            got = flash_attn2.num_splits_heuristic(
                int(row["batch_nheads_mblocks"]), int(row["num_SMs_arg"]), int(row["num_n_blocks"])
            )
            assert got == int(row["num_splits"])


def test_programs_are_attention() -> None:
    """Not a test of bits: each program computes softmax(q k^T) v, to the precision of its formats."""
    rng = np.random.default_rng(5)
    d, n = 128, 333
    q, k, v = (round_to("bf16", rng.standard_normal(shape).astype(F32)) for shape in ((3, d), (n, d), (n, d)))
    scale = d**-0.5
    p = flash_attn2.Problem(q, k, v, scale, HOPPER)
    exact = flash_attn2.reals(p)
    outs = [flash_attn2.splitkv(p, s).out for s in (1, 3)]
    outs += [flash_attn2.prefill(p).out, flash_attn3.decode(p, 128, 2)[0]]
    for v_tile in (64, 32):
        outs += [
            xqa.decode(xqa.Problem(q, k, v, xqa.host_scale(scale, d), HOPPER, v_tile), c)[0] for c in (1, 2)
        ]
    fa2 = flashinfer_fa2.Problem(q, k, v, scale, HOPPER, 128)
    outs += [flashinfer_fa2.decode(fa2, chunk)[0] for chunk in (None, 128)]
    triton = triton_attention.Problem(q, k, v, scale, HOPPER)
    outs += [triton_attention.decode_3d(triton, "3.8.0", sm)[0] for sm in (90, 100)]
    for out in outs:
        np.testing.assert_allclose(out, exact, atol=4e-3)
    small = [to_e4m3(x) for x in (q, k, v)]
    p8 = xqa_fp8.Problem(small[0], small[1], small[2], xqa.host_scale(scale, d, quantized=True))
    exact8 = flash_attn2.reals(flash_attn2.Problem(small[0], small[1], small[2], scale, HOPPER))
    np.testing.assert_allclose(xqa_fp8.decode(p8, 3)[0], exact8, atol=3e-2)
