"""The arithmetic over arrays against the scalar definition, element by element."""

import numpy as np
import pytest

from search.seeds.batch import BatchArithmetic, chained, ex2, rounder
from specs import load_platform
from specs.dot_products import find
from specs.formats import BASES, parse_format
from verify.numerics import special, tensor_core
from verify.numerics.rounding import round_array

F32, FTZ = BASES["f32"], parse_format("f32.ftz")
EDGES = [0.0, -0.0, 1.0, -126.0, -127.5, 127.9375, 128.0, 200.0, -200.0, 1e-30, -1e-30, np.inf, -np.inf]


def singles(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
    x = np.concatenate([rng.normal(size=count) * spread, -rng.uniform(0, 140, count), EDGES])
    return x.astype(np.float32).astype(np.float64)


def test_exponentials_are_those_of_the_unit() -> None:
    x = singles(np.random.default_rng(0), 200, 20.0)
    assert ex2(x).tolist() == [special.mufu_ex2(v, FTZ) for v in x]
    assert np.isnan(ex2(np.array([np.nan]))).all()
    arithmetic = BatchArithmetic({})
    for op, fmt, function in (
        ("mufu.ex2", F32, special.mufu_ex2),
        ("triton.exp", F32, special.fast_expf),
        ("triton.exp", FTZ, special.fast_expf),
    ):
        with np.errstate(over="ignore"):
            found = arithmetic.operation(op, [fmt], fmt)(x)
        assert found.tolist() == [function(v, fmt) for v in x], op


@pytest.mark.parametrize("name", ["mufu.rcp", "mufu.lg2", "div.full"])
def test_other_functions_are_called_one_by_one(name: str) -> None:
    x = np.random.default_rng(1).uniform(0.5, 100.0, 40).astype(np.float32).astype(np.float64)
    args = [x, x[::-1]] if name == "div.full" else [x]
    found = BatchArithmetic({}).operation(name, [FTZ] * len(args), FTZ)(*args)
    assert found.tolist() == [special.SPECIAL[name](*a, FTZ) for a in zip(*args, strict=True)]


@pytest.mark.parametrize("platform", ["a100", "h200"])
@pytest.mark.parametrize("base", ["bf16", "f16"])
def test_tensor_cores(platform: str, base: str) -> None:
    rng = np.random.default_rng(2)
    fmt = BASES[base]
    dot = find(load_platform(platform).dot_products, "mma", fmt, fmt, F32, 16)
    a = round_array(rng.normal(size=(40, 30)) * 10.0 ** rng.uniform(-3, 3, (40, 30)), fmt)
    b = round_array(rng.normal(size=(40, 30)), fmt)
    a[rng.random(a.shape) < 0.2] = 0.0
    start = (rng.normal(size=30) * 100).astype(np.float32).astype(np.float64)
    found = chained(dot, 16, list(zip(a, b, strict=True)), start, fmt, fmt)
    wanted = [tensor_core.chained(dot, 16, a[:, j], b[:, j], float(start[j]), fmt, fmt) for j in range(30)]
    assert found.tolist() == wanted


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3fn", "f32", "f32.ftz"])
def test_rounding(name: str) -> None:
    rng = np.random.default_rng(3)
    fmt = parse_format(name)
    x = rng.normal(size=2000) * 10.0 ** rng.uniform(-4, 4, 2000)
    x[:500] = round_array(x[:500], fmt) * (1 + 2.0**-fmt.p)  # midpoints
    for values in (x, x[(np.abs(x) > 0.1) & (np.abs(x) < 100)]):
        np.testing.assert_array_equal(rounder(fmt)(values), round_array(values, fmt))
