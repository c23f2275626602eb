"""The functions of the language, as a table: what may be called, with how many arguments, and what it means.

``real`` is the real-number meaning of a function (what a proof replaces it by); ``exact`` marks functions that
never round. A function is known to the language even where an arithmetic does not implement it yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A callable of the language.

    Attributes:
        name: how it is called.
        low, high: the least and the most arguments.
        real: its real-number meaning.
        exact: whether it never rounds.
        evidence: what its bits were held against, for functions of hardware and libraries; empty where the
            definition is the evidence (correct rounding).
        unit: ``gpu`` or ``cpu`` for instructions and library code that only such machines have; empty for all.
    """

    name: str
    low: int
    high: int
    real: str
    exact: bool = False
    evidence: str = ""
    unit: str = ""


_EX2 = "replayed: ten ex2.approx words of a GB200; data path of G80 (envytools)"
_RCP = (
    "replayed: error counts over all significands logged on A100, L40S and H100; data path of G80 (envytools)"
)
_LG2 = "model only: data path of G80 (envytools); no words of a later GPU"

_TORCH = "run: every f32 number with a result that is not trivial, through PyTorch 2.13.0 on AVX-512"
_GLIBC = "run: every f32 number with a result that is not trivial, through glibc 2.36 on x86-64 with FMA"


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
        Function("mufu.ex2", 1, 1, "2 ^ a", evidence=_EX2, unit="gpu"),
        Function("mufu.rcp", 1, 1, "1 / a", evidence=_RCP, unit="gpu"),
        Function("mufu.rsq", 1, 1, "1 / sqrt(a)", evidence=_RCP, unit="gpu"),
        Function("mufu.lg2", 1, 1, "log(a) / log(2)", evidence=_LG2, unit="gpu"),
        Function("div.full", 2, 2, "a / b", evidence=f"steps read from SASS; mufu.rcp: {_RCP}", unit="gpu"),
        Function(
            "triton.exp", 1, 1, "exp(a)", evidence=f"steps read from SASS; mufu.ex2: {_EX2}", unit="gpu"
        ),
        Function("cuda.expf", 1, 1, "exp(a)", evidence=f"steps read from SASS; mufu.ex2: {_EX2}", unit="gpu"),
        Function(
            "cuda.logf",
            1,
            1,
            "log(a)",
            evidence="steps read from libdevice and SASS; IEEE operations only",
            unit="gpu",
        ),
        Function(
            "cuda.fast_expf",
            1,
            1,
            "exp(a)",
            evidence=f"steps documented by CUDA and read from SASS; mufu.ex2: {_EX2}",
            unit="gpu",
        ),
        Function("fa4.exp2", 1, 1, "2 ^ a", evidence="model only: steps read from the source", unit="gpu"),
        Function("torch.fexp_u20", 1, 1, "exp(a)", evidence=_TORCH, unit="cpu"),
        Function("glibc.expf", 1, 1, "exp(a)", evidence=_GLIBC, unit="cpu"),
        Function("glibc.logf", 1, 1, "log(a)", evidence=_GLIBC, unit="cpu"),
        Function(
            "tanh.approx",
            1,
            1,
            "tanh(a)",
            evidence="none: its bits are not published, so it is refused",
            unit="gpu",
        ),
        Function("ceildiv", 2, 2, "ceil(a / b)", exact=True),
        Function("ceilpow2", 1, 1, "smallest power of two >= a", exact=True),
    )
}


def evidence(formulas: Iterable[str]) -> dict[str, str]:
    """What the functions called in ``formulas`` were held against, by name; without those that need no evidence."""
    called = {name for text in formulas for name in re.findall(r"[\w.]+(?=\()", text)}
    return {n: f.evidence for n, f in FUNCTIONS.items() if f.evidence and any(c.endswith(n) for c in called)}


#: Functions that only integer formulas may call.
INTEGER_ONLY = frozenset({"ceildiv", "ceilpow2"})

#: ``FORMAT.op(...)``: operations that may name the format of their one rounding.
FORMAT_OPS: dict[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/"} | {
    name: name
    for name, function in FUNCTIONS.items()
    if name in ("fma", "exp", "exp2", "log", "rcp", "sqrt")
    or (function.unit == "gpu" and name != "tanh.approx")
}

#: Trees: name -> (fewest, most integer arguments, number of inner trees, flags allowed).
TREES: dict[str, tuple[int, int, int, frozenset[str]]] = {
    "seq": (0, 0, 0, frozenset({"fma", "swap", "desc"})),
    "pairwise": (0, 0, 0, frozenset({"fma"})),
    "butterfly": (0, 8, 0, frozenset()),
    "lanes": (1, 1, 2, frozenset()),
    "chunks": (1, 8, 2, frozenset({"cycle"})),
    "whole": (1, 1, 2, frozenset()),
    "mma": (1, 1, 0, frozenset({"wgmma", "tcgen05"})),
    "exact": (0, 0, 0, frozenset()),
    "any": (0, 0, 0, frozenset()),
}

#: Level rules: name -> keywords and flags allowed.
LEVELS: dict[str, frozenset[str]] = {
    "pieces": frozenset({"unit", "of", "skip", "empty"}),
    "deal": frozenset({"unit", "skip", "empty"}),
    "tiles": frozenset({"desc"}),
    "view": frozenset(),
}
