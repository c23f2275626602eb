"""The interpolation coefficients of NVIDIA's special-function unit, as data that both walkers read.

`mufu_coefficients.csv` holds a row ``function, segment, c0, c1, c2`` for each segment of the quadratic
interpolation: ``ex2`` 64, ``rcp`` 128, ``lg2`` 64, and ``rsq`` 128, of which rows 0-63 serve significands of even
exponents and rows 64-127 those of odd ones. They are figures of the hardware, first published by the envytools
project (github.com/envytools/envytools, commit f102b823, nvhw/sfu_tab.c).
"""

from __future__ import annotations

import csv
import functools
from importlib import resources

Row = tuple[int, int, int]

SEGMENTS: dict[str, int] = {"ex2": 64, "rcp": 128, "rsq": 128, "lg2": 64}
"""Function to the number of its segments."""


@functools.cache
def coefficients(function: str) -> tuple[Row, ...]:
    """The rows ``(c0, c1, c2)`` of ``ex2``, ``rcp``, ``rsq`` or ``lg2``, by segment."""
    source = resources.files("verify.numerics") / "mufu_coefficients.csv"
    lines = source.read_text(encoding="ascii").splitlines()
    found = [r for r in csv.DictReader(lines) if r["function"] == function]
    table = {int(r["segment"]): (int(r["c0"]), int(r["c1"]), int(r["c2"])) for r in found}
    return tuple(table[i] for i in range(SEGMENTS[function]))
