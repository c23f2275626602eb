"""Exact operations on whole numbers and arrays of them, for what is computed about a program outside the definition.

The definition has tables of its own: it judges the array engine and shares no arithmetic with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

INTEGER: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.xor,
    "neg": operator.neg,
    "abs": abs,
    "ceildiv": lambda a, b: -(-a // b),
}
"""Operations of integer formulas by name, on anything with Python's operators; ``min`` and ``max`` are not here."""

COMPARE: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
