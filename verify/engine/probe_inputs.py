"""Inputs of the preflight's probes: numbers on which each trap shows. Every maker takes a generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.numerics.hard_cases import hard_cases

Inputs = dict[str, NDArray[Any]]

COUNT = 20011
"""Elements of an elementwise probe: odd, so that vector loops have a remainder."""
STEPS = 48
"""Rounds of the loops."""


def normals(*names: str) -> Callable[[np.random.Generator], Inputs]:
    """Standard normal f32 arrays; a name in capitals is a table [rows, 128]."""

    def make(rng: np.random.Generator) -> Inputs:
        shapes = {n: (COUNT // 128, 128) if n.isupper() else (COUNT,) for n in names}
        return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}

    return make


def divisors(rng: np.random.Generator) -> Inputs:
    """Tables to divide by a row, a scalar, a constant and one another."""
    made = normals("A", "B", "C")(rng)
    return {
        **made,
        "row": rng.uniform(1, 3, (COUNT // 128, 1)).astype(np.float32),
        "one": np.array(1.7, np.float32),
    }


def zeros(rng: np.random.Generator) -> Inputs:
    """Zeros of both signs among other numbers."""
    del rng
    return {"x": np.tile(np.array([-0.0, 0.0, 1.0, -2.5], np.float32), 64)}


def steps(rng: np.random.Generator) -> Inputs:
    """Rows for a recurrence that stays near 1."""
    return {n: rng.uniform(0.5, 1.5, (STEPS, 193)).astype(np.float32) for n in "abd"}


def near_subnormal(rng: np.random.Generator) -> Inputs:
    """Words of f32 numbers around 2**-126, and pairs whose sums, products and quotients land there."""
    count = 3000
    fraction = rng.integers(0, 1 << 23, (4, count), dtype=np.uint32)
    sign = rng.integers(0, 2, (4, count), dtype=np.uint32) << np.uint32(31)
    field = np.stack(
        [
            rng.integers(0, 4, count, dtype=np.uint32),
            rng.integers(0, 4, count, dtype=np.uint32),
            rng.integers(50, 77, count, dtype=np.uint32),
            rng.integers(50, 77, count, dtype=np.uint32),
        ]
    )
    words = fraction | (field << np.uint32(23)) | sign
    edge = np.array([0, 1, 0x7FFFFF, 0x800000, 0x800001, 0x80000000, 0x80000001, 0x80800000], np.uint32)
    words[0, : edge.size] = edge
    words[1, : edge.size] = edge[::-1]
    score = -rng.uniform(80, 110, count).astype(np.float32)
    return {"p": words[0], "q": words[1], "r": words[2], "s": words[3], "score": score.view(np.uint32)}


def casts(rng: np.random.Generator) -> Inputs:
    """Values around every boundary of the narrow formats: ties, subnormal targets, overflow."""
    size = 2.0 ** rng.uniform(-30, 20, COUNT)
    coarse = np.ldexp(rng.integers(-64, 65, COUNT), rng.integers(-24, 12, COUNT))
    x = np.where(rng.random(COUNT) < 0.5, size * rng.choice([-1, 1], COUNT), coarse).astype(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 480, 500, 65504, 65519, 65520, 57344, 61440]
    x[: len(special)] = special
    return {"x": x}


def functions(rng: np.random.Generator) -> Inputs:
    """The hard cases of exp, exp2 and log with normal operands and results, and random arguments."""
    random = {
        "exp": -rng.uniform(0, 80, 3000),
        "exp2": -rng.uniform(0, 120, 3000),
        "log": rng.uniform(0, 1e4, 3000),
    }
    made: Inputs = {}
    for name, points in random.items():
        hard = hard_cases(name)
        normal = np.abs(hard[0]) >= 2.0**-126
        normal &= np.abs(hard[1]) >= 2.0**-126
        made[name] = np.concatenate([hard[0][normal], points.astype(np.float32)])
    return made


def sums(rng: np.random.Generator) -> Inputs:
    """Columns whose sum depends on the order."""
    x = rng.standard_normal((2048, 5)) * 2.0 ** rng.uniform(-6, 6, (2048, 5))
    return {"x": x.astype(np.float32)}


def fused(rng: np.random.Generator) -> Inputs:
    """Addends that cancel most of a product, addends that absorb it, and sums a hair from a midpoint of f32.

    The last show a float64 evaluation rounded twice: (1 + i u) (1 - i u) 2**-24 is just below 2**-24, half of
    the last place of a number in [1, 2).
    """
    a, b = rng.standard_normal((2, 1000)).astype(np.float32)
    near = -(a * b) * np.where(rng.random(1000) < 0.5, 1, np.float32(2.0**20))
    i = rng.integers(1, 64, 500) * 2.0**-23
    odd = 1 + (2 * rng.integers(0, 1 << 21, 500) + 1) * 2.0**-23
    columns = ((a, 2.0**-12 * (1 + i)), (b, 2.0**-12 * (1 - i)), (near, odd))
    return {n: np.concatenate(c).astype(np.float32) for n, c in zip("abc", columns, strict=True)}


def doubles(rng: np.random.Generator) -> Inputs:
    """Standard normal f64 arrays."""
    return {n: rng.standard_normal(COUNT) for n in "abc"}


def double_functions(rng: np.random.Generator) -> Inputs:
    """Ordinary and delicate arguments of f64 exp and log."""
    near_one = 1 + rng.standard_normal(150) * 10.0 ** rng.uniform(-16, -2, 150)
    return {
        "exp": np.concatenate(
            [rng.uniform(-700, 700, 150), rng.standard_normal(150) * 1e-12, [0.0, 2.0**-53]]
        ),
        "log": np.concatenate([np.exp(rng.uniform(-600, 600, 150)), near_one, [1.0, 2.0]]),
    }
