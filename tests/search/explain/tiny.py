"""Tiny specs and inputs whose results a test can compute by hand."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import numpy as np

from specs import load_platform, parse_spec
from specs.loader import Spec
from verify.case import Case

#: Scores are all 0, so that every weight is 1 and the output is a mean of values.
MEAN = """
schema = 1
name = "test.{name}"
status = "walkthrough"
summary = "a mean in two steps"
[numbers]
compute = "f32"
inputs = {{ q = "bf16", k = "bf16", v = "bf16" }}
[levels]
group = "{level}"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[group]
top = "max(score)"
weight = "exp(score - top)"
norm = "sum(weight, seq())"
value = "sum(weight * v, seq())"
partial = "{partial}"
[row]
most = "max(top)"
w = "{w}"
total = "sum(w, {tree})"
exact = "sum(w * partial, {tree}) / total"
output = "{output}"
"""
PLAIN = {
    "level": "pieces(2, unit=1)",
    "partial": "value / norm",
    "w": "norm * exp(top - most)",
    "tree": "seq()",
    "output": "bf16(exact)",
}


def mean(name: str, **lines: str) -> Spec:
    """The spec of a mean, with some of its lines changed."""
    return parse_spec(MEAN.format(name=name, **{**PLAIN, **lines}))


def of_values(*values: float, scores: tuple[float, ...] | None = None) -> Case:
    """One row, one column."""
    given = scores or (0.0,) * len(values)
    return Case(
        "tiny",
        {"scores": np.array([given], np.float32), "values": np.array([[v] for v in values], np.float32)},
    )


def h200() -> Any:
    """A platform."""
    return load_platform("h200")


def f32(x: Fraction) -> Fraction:
    """``x`` rounded to the nearest f32 number: by the machine, which rounds a double once, where x is a double."""
    return Fraction(struct.unpack("<f", struct.pack("<f", float(x)))[0])


def bf16(x: Fraction) -> Fraction:
    """``x`` (between 0.5 and 4) rounded to 8 significant bits, ties to even, in rationals."""
    scale = 0
    while x * 2**scale < 128:
        scale += 1
    while x / Fraction(2) ** -scale >= 256:
        scale -= 1
    return Fraction(round(x * Fraction(2) ** scale)) / Fraction(2) ** scale


def index(x: Fraction) -> Fraction:
    """The ordered pattern of a positive f32 number over 65536."""
    assert Fraction(float(x)) == x
    return Fraction(struct.unpack("<I", struct.pack("<f", float(x)))[0], 65536)
