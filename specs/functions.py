"""The functions of the language, as a table: what may be called, with how many arguments, and what it means.

``real`` is the real-number meaning of a function (what a proof replaces it by); ``exact`` marks functions that
never round. A function is known to the language even where an arithmetic does not implement it yet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A callable of the language: its arity, its real meaning, and whether it never rounds."""

    name: str
    low: int
    high: int
    real: str
    exact: bool = False


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("fma", 3, 3, "a * b + c"),
        Function("exp", 1, 1, "exp(a)"),
        Function("exp2", 1, 1, "2 ^ a"),
        Function("log", 1, 1, "log(a)"),
        Function("log2", 1, 1, "log(a) / log(2)"),
        Function("rcp", 1, 1, "1 / a"),
        Function("sqrt", 1, 1, "sqrt(a)"),
        Function("add", 2, 2, "a + b"),
        Function("sub", 2, 2, "a - b"),
        Function("mul", 2, 2, "a * b"),
        Function("div", 2, 2, "a / b"),
        Function("min", 2, 8, "min", exact=True),
        Function("max", 2, 8, "max", exact=True),
        Function("abs", 1, 1, "abs(a)", exact=True),
        Function("isnan", 1, 1, "false", exact=True),
        Function("mufu.ex2", 1, 1, "2 ^ a"),
        Function("mufu.rcp", 1, 1, "1 / a"),
        Function("mufu.rsq", 1, 1, "1 / sqrt(a)"),
        Function("mufu.lg2", 1, 1, "log(a) / log(2)"),
        Function("div.full", 2, 2, "a / b"),
        Function("triton.exp", 1, 1, "exp(a)"),
        Function("cuda.expf", 1, 1, "exp(a)"),
        Function("cuda.logf", 1, 1, "log(a)"),
        Function("cuda.fast_expf", 1, 1, "exp(a)"),
        Function("ceildiv", 2, 2, "ceil(a / b)", exact=True),
        Function("ceilpow2", 1, 1, "smallest power of two >= a", exact=True),
    )
}

#: Functions that only integer formulas may call.
INTEGER_ONLY = frozenset({"ceildiv", "ceilpow2"})

#: ``FORMAT.op(...)``: operations that may name the format of their one rounding.
FORMAT_OPS: dict[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "fma": "fma",
    "exp": "exp",
    "exp2": "exp2",
    "log": "log",
    "rcp": "rcp",
    "sqrt": "sqrt",
}

#: Trees: name -> (fewest, most integer arguments, number of inner trees, flags allowed).
TREES: dict[str, tuple[int, int, int, frozenset[str]]] = {
    "seq": (0, 0, 0, frozenset({"fma", "swap"})),
    "pairwise": (0, 0, 0, frozenset({"fma"})),
    "butterfly": (0, 8, 0, frozenset()),
    "lanes": (1, 1, 2, frozenset()),
    "chunks": (1, 1, 2, frozenset()),
    "mma": (1, 1, 0, frozenset()),
    "exact": (0, 0, 0, frozenset()),
    "any": (0, 0, 0, frozenset()),
}

#: Level rules: name -> keywords and flags allowed.
LEVELS: dict[str, frozenset[str]] = {
    "pieces": frozenset({"unit", "of", "empty"}),
    "deal": frozenset({"unit", "empty"}),
    "tiles": frozenset({"desc"}),
    "view": frozenset(),
}
