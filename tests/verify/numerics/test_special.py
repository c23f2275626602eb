"""The special functions, scalar: against glibc itself, float32 arithmetic of NumPy, and what they approximate."""

import ctypes
import math
import platform
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import UnsupportedError
from specs.formats import BASES, parse_format
from specs.functions import FUNCTIONS
from verify.numerics import libm_tables as tables
from verify.numerics import mufu
from verify.numerics.special import REFUSED, SPECIAL

F32, FTZ = BASES["f32"], parse_format("f32.ftz")
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
CUDA = [n for n in SPECIAL if not n.startswith(("torch.", "glibc."))]


def glibc():
    """The C library, or a reason to skip: glibc 2.28 to 2.40 on x86-64 with FMA."""
    flags = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists() or " fma " not in flags.read_text():
        pytest.skip(f"needs x86-64 with FMA, found {platform.machine()}")
    name, version = platform.libc_ver()
    if name != "glibc" or not (2, 28) <= tuple(map(int, version.split(".")[:2])) < (2, 41):
        pytest.skip(f"needs glibc 2.28 to 2.40, found {name} {version}")
    return ctypes.CDLL("libm.so.6")


def library(name):
    function = getattr(glibc(), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return function


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


# -- glibc ------------------------------------------------------------------------------------------------

CORNERS = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, -1.0, 2.0**-149, 2.0**-126, 3.4028234663852886e38]
ENDS = [88.72283, 88.72284, -87.33655, -103.27893, -103.2789306640625, -103.5, -103.97208, -103.98, -104.0]


@pytest.mark.parametrize("name", ["expf", "logf"])
def test_glibc(name):
    function, ours = library(name), SPECIAL[f"glibc.{name}"]
    rng = np.random.default_rng(5)
    xs = [*CORNERS, *ENDS, *rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)]
    xs += [*rng.uniform(-106, 90, 4000), *np.exp(rng.uniform(-3, 3, 2000))]
    for x in map(float, np.array(xs, np.float32)):
        assert same(ours(x, F32), function(x)), x.hex()


def test_the_table_of_expf_is_the_powers_of_two_rounded():
    import flint

    with flint.ctx.workprec(200):
        for i, word in enumerate(tables.EXP_TABLE):
            power = float((flint.arb(2) ** (flint.arb(i) / 32)).mid())
            assert int(np.float64(power).view(np.uint64)) - (i << 47) == word


# -- the unit and what is built on it ---------------------------------------------------------------------


@given(st.sampled_from(["mufu.rcp", "mufu.ex2"]), SINGLES)
def test_both_forms_of_the_unit_agree_on_normal_numbers(name, x):
    plain, flushing = SPECIAL[name](x, F32), SPECIAL[name](x, FTZ)
    if abs(x) >= 2.0**-126 and abs(plain) >= 2.0**-126:
        assert same(plain, flushing)


@pytest.mark.parametrize(
    ("name", "x", "result"),
    [
        ("mufu.ex2", -128.0, 2.0**-128),
        ("mufu.ex2", -149.0, 2.0**-149),
        ("mufu.ex2", -150.0, 0.0),  # a tie, to even
        ("mufu.ex2", -math.inf, 0.0),
        ("mufu.rcp", 2.0**-149, math.inf),
        ("mufu.rcp", 2.0**-127, 2.0**127),
        ("mufu.rcp", -(2.0**127), -(2.0**-127)),
        ("mufu.rcp", math.inf, 0.0),
        ("mufu.rcp", -0.0, -math.inf),
        ("mufu.rsq", 2.0**-148, 2.0**74),
        ("mufu.rsq", 0.0, math.inf),
        ("mufu.lg2", 0.0, -math.inf),
    ],
)
def test_forms_without_ftz_keep_subnormal_numbers(name, x, result):
    assert same(SPECIAL[name](x, F32), result)


def test_the_flushing_forms_flush():
    assert SPECIAL["mufu.ex2"](-127.0, FTZ) == 0.0
    assert SPECIAL["mufu.rcp"](2.0**-127, FTZ) == math.inf
    assert SPECIAL["mufu.rcp"](2.0**127, FTZ) == 0.0
    assert SPECIAL["mufu.rsq"](2.0**-148, FTZ) == math.inf


def test_lg2_of_a_subnormal_number_is_a_difference():
    x = float.fromhex("0x1.8p-140")
    assert SPECIAL["mufu.lg2"](x, F32) == np.float32(
        np.float32(mufu.from_word(mufu.lg2(mufu.to_word(x * 2.0**24)))) - np.float32(24)
    )


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (1.0, 0.0, math.inf),
        (-1.0, 0.0, -math.inf),
        (0.0, 0.0, math.nan),
        (1.0, math.inf, 0.0),
        (math.inf, math.inf, math.nan),
        (2.0**127, 2.0**127, 1.0),  # scaled by a quarter
        (2.0**-149, 2.0**-149, 1.0),  # scaled by 2**24
        (3.0, 2.0, 1.5),
    ],
)
def test_division(a, b, result):
    assert same(SPECIAL["div.full"](a, b, F32), result)


def test_division_is_not_correctly_rounded():
    """7 / 11 by reciprocal and product: one unit from the quotient."""
    quotient = SPECIAL["div.full"](7.0, 11.0, F32)
    product = np.float32(mufu.from_word(mufu.rcp(mufu.to_word(11.0)))) * np.float32(7)
    assert quotient == float(product)
    wrong = sum(
        SPECIAL["div.full"](float(a), 11.0, F32) != float(np.float32(a) / np.float32(11))
        for a in range(1, 200)
    )
    assert 20 < wrong < 180


@given(st.floats(-150, 100, width=32))
def test_triton_exp_is_the_root_squared_below(x):
    """NumPy's f32 multiplication is IEEE: the steps of the compiled code, one by one."""
    with np.errstate(all="ignore"):
        t = np.float32(x) * np.uint32(0x3FB8AA3B).view(np.float32)
        low = t < -126
        unit = np.uint32(mufu.ex2(int(np.float32(t * np.float32(0.5) if low else t).view(np.uint32))))
        r = unit.view(np.float32)
        expected = float(r * r if low else r)
    assert SPECIAL["triton.exp"](x, F32) == SPECIAL["cuda.fast_expf"](x, F32) == expected


# -- nearness to what is approximated ---------------------------------------------------------------------

NEAR = {
    "cuda.expf": (math.exp, 2.0**-22, -87.0, 88.0),
    "glibc.expf": (math.exp, 2.0**-23.9, -87.0, 88.0),
    "fa4.exp2": (lambda x: 2.0**x, 2.0**-13, -126.0, 126.0),
    "torch.fexp_u20": (math.exp, 2.0**-13, -87.0, 88.0),
    "triton.exp": (math.exp, 2.0**-16, -80.0, 80.0),
    "cuda.logf": (math.log, 2.0**-22, 1e-30, 1e30),
    "glibc.logf": (math.log, 2.0**-23.9, 1e-30, 1e30),
}


@pytest.mark.parametrize("name", NEAR)
def test_functions_are_near_what_they_approximate(name):
    function, bound, low, high = NEAR[name]
    logarithm = low > 0
    rng = np.random.default_rng(7)
    xs = (
        np.exp(rng.uniform(math.log(low), math.log(high), 2000))
        if logarithm
        else rng.uniform(low, high, 2000)
    )
    for x in map(float, xs.astype(np.float32)):
        exact = function(x)
        assert abs(SPECIAL[name](x, F32) - exact) <= bound * abs(exact), x


@pytest.mark.parametrize(
    ("name", "x", "result"),
    [
        ("cuda.expf", math.nan, math.nan),
        ("cuda.expf", math.inf, math.inf),
        ("cuda.expf", -math.inf, 0.0),
        ("cuda.expf", 0.0, 1.0),
        ("cuda.logf", -0.0, -math.inf),
        ("cuda.logf", -1.0, math.nan),
        ("cuda.logf", 1.0, 0.0),
        ("cuda.logf", math.inf, math.inf),
        ("fa4.exp2", 0.0, 1.0),
        ("fa4.exp2", -127.0, 0.0),
        ("fa4.exp2", -math.inf, 0.0),
        ("fa4.exp2", math.nan, 0.0),  # the maximum with -127 drops it
        ("fa4.exp2", -(2.0**-140), 1.0),  # flushed before it is rounded down
        ("torch.fexp_u20", math.nan, -0.0),
        ("torch.fexp_u20", -math.inf, 0.0),
        ("torch.fexp_u20", -88.0, 0.0),
        ("torch.fexp_u20", 89.0, math.inf),
    ],
)
def test_edges(name, x, result):
    assert same(SPECIAL[name](x, F32), result), SPECIAL[name](x, F32).hex()


def test_fa4_adds_the_exponent_to_the_word():
    """Between -127 and -126 the exponent field is zero, and the number is not 2**x."""
    half = mufu.to_word(SPECIAL["fa4.exp2"](0.5, F32))
    assert mufu.to_word(SPECIAL["fa4.exp2"](-3.5, F32)) == half - (4 << 23)
    assert mufu.to_word(SPECIAL["fa4.exp2"](-126.5, F32)) == half - (127 << 23)
    assert SPECIAL["fa4.exp2"](-126.5, FTZ) < 0.6 * 2.0**-126.5


# -- refusals and data ------------------------------------------------------------------------------------


def test_every_function_is_of_the_language_and_says_its_evidence():
    for name in (*SPECIAL, *REFUSED):
        assert FUNCTIONS[name].evidence, name
    assert "hardware" not in FUNCTIONS["mufu.lg2"].evidence


@pytest.mark.parametrize("name", SPECIAL)
def test_other_formats_are_refused(name):
    arguments = [1.0] * FUNCTIONS[name].low
    for fmt in ("f64", "bf16", "f32.rz"):
        with pytest.raises(UnsupportedError, match=rf"{name} in {fmt}"):
            SPECIAL[name](*arguments, parse_format(fmt))
    if name not in CUDA:
        with pytest.raises(UnsupportedError, match="does not flush"):
            SPECIAL[name](*arguments, FTZ)
