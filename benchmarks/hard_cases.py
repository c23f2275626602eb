"""Find the float32 inputs whose exp, exp2 or log lies closest to a midpoint between two float32 values.

    python benchmarks/hard_cases.py            sweep every input, print the counts (about two minutes)
    python benchmarks/hard_cases.py --write    also rewrite verify/numerics/hard_cases.py

Every float32 input with a non-trivial result is evaluated in float64. Results within `WINDOW` float64 ulps of
a midpoint are candidates: python-flint decides them at 256 bits, against which plain rounding of the float64
result and the library's array function are both counted. Outside the window any float64 function with an
error below `WINDOW` ulps rounds right. Subnormal results get a wider window, since few inputs reach them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import flint
import numpy as np
from numpy.typing import NDArray

from verify.numerics.elementary import exp2_f32, exp_f32, log_f32, near_midpoint

WINDOW = 64
"""Float64 ulps around a midpoint within which an input is a candidate."""

TINY_WINDOW = 1e-5
"""For subnormal results: the distance to a midpoint in units of the float32 quantum, 2**-149."""

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]

CHUNK = 1 << 22
KEEP = 50
KEEP_TINY = 16


@dataclass(frozen=True)
class Function:
    """A function, its two evaluations, and the ranges (first, last) of input bits to sweep."""

    name: str
    wide: Callable[[Doubles], Doubles]
    array: Callable[[Singles], Singles]
    ball: Callable[[flint.arb], flint.arb]
    ranges: tuple[tuple[int, int], ...]


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


# |x| < 2**-26 gives 1 in exp and exp2; the other ends round to zero or infinity. exp2(-150) is an exact tie.
FUNCTIONS = {
    "exp": Function(
        "exp",
        np.exp,
        exp_f32,
        lambda x: x.exp(),
        ((_bits(2.0**-26), _bits(88.75)), (_bits(-(2.0**-26)), _bits(-104.0))),
    ),
    "exp2": Function(
        "exp2",
        np.exp2,
        exp2_f32,
        lambda x: flint.arb(2) ** x,
        ((_bits(2.0**-26), _bits(128.0)), (_bits(-(2.0**-26)), _bits(-150.0) - 1)),
    ),
    "log": Function("log", np.log, log_f32, lambda x: x.log(), ((1, _bits(np.finfo(np.float32).max)),)),
}


@dataclass(frozen=True, order=True)
class Candidate:
    """An input near a midpoint: the distance (f64 ulps; quanta if subnormal), both bits."""

    distance: float
    x: int
    expected: int


@dataclass
class Sweep:
    """What a sweep found."""

    inputs: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    tiny: list[Candidate] = field(default_factory=list)
    plain_wrong: list[int] = field(default_factory=list)
    array_wrong: list[int] = field(default_factory=list)
    worst_wide: float = 0.0


def judge(function: Function, x: np.float32) -> tuple[int, float, float]:
    """The correctly rounded bits of one input, its distance to the nearest midpoint, the float64 error.

    The nearest midpoint is found among the neighbours of the float64 result and compared with an enclosure
    of 256 bits, so nothing here shares code with the library's rounding.
    """
    with flint.ctx.workprec(256):
        value = function.ball(flint.arb(float(x)))
        with np.errstate(over="ignore", under="ignore"):
            wide = float(function.wide(np.float64(x)))
            near = np.float32(wide)
            around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
        ends = [min(float(v), 2.0**128) for v in around]  # 2**128 continues the grid past the largest value
        midpoints = [(ends[0] + ends[1]) / 2, (ends[1] + ends[2]) / 2]
        if value < midpoints[0]:
            expected = around[0]
        elif value < midpoints[1]:
            expected = around[1]
        else:
            assert value > midpoints[1]
            expected = around[2]
        unit = 2.0**-149 if abs(wide) < 2.0**-126 else float(np.spacing(abs(wide)))
        distance = min(abs(float((value - m) / unit)) for m in midpoints)
        error = abs(float((value - wide) / float(np.spacing(abs(wide)))))
    return int(expected.view(np.uint32)), distance, error


def chunks(function: Function) -> Iterator[NDArray[np.float32]]:
    """All inputs of the function, in pieces."""
    for first, last in function.ranges:
        for start in range(first, last + 1, CHUNK):
            yield np.arange(start, min(start + CHUNK, last + 1), dtype=np.uint32).view(np.float32)


def sweep(function: Function) -> Sweep:
    """Evaluate every input and decide the candidates."""
    found = Sweep()
    for x in chunks(function):
        found.inputs += x.size
        with np.errstate(over="ignore", under="ignore"):
            wide = function.wide(x.astype(np.float64))
        tiny = np.abs(wide) < 2.0**-126
        near = near_midpoint(wide, WINDOW)
        if tiny.any():
            steps = np.where(tiny, np.ldexp(wide, 149), 0.0)
            near |= np.abs(steps - np.floor(steps) - 0.5) < TINY_WINDOW
        places = np.flatnonzero(near)
        if not places.size:
            continue
        array = function.array(x[places]).view(np.uint32)
        with np.errstate(over="ignore", under="ignore"):
            plain = wide[places].astype(np.float32).view(np.uint32)
        for place, by_array, by_plain in zip(places, array, plain, strict=True):
            expected, distance, error = judge(function, x[place])
            case = Candidate(distance, int(x[place].view(np.uint32)), expected)
            (found.tiny if tiny[place] else found.candidates).append(case)
            found.worst_wide = max(found.worst_wide, error)
            if by_plain != expected:
                found.plain_wrong.append(case.x)
            if by_array != expected:
                found.array_wrong.append(case.x)
    found.candidates.sort()
    found.tiny.sort()
    return found


def report(function: Function, found: Sweep, seconds: float) -> str:
    """The counts of one sweep, a line each."""
    wrong = ", ".join(f"0x{b:08X}" for b in found.plain_wrong) or "none"
    lines = (
        f"{function.name}: {found.inputs:,} inputs in {seconds:.0f} s",
        f"candidates: {len(found.candidates)} within {WINDOW} f64 ulps of a midpoint, and "
        f"{len(found.tiny)} with a subnormal result within {TINY_WINDOW:g} quanta of one",
        f"closest to a midpoint {found.candidates[0].distance:.2e} f64 ulp; "
        f"largest f64 error {found.worst_wide:.2f} ulp",
        f"wrong: {len(found.plain_wrong)} by plain rounding of f64 ({wrong}), "
        f"{len(found.array_wrong)} by the array function",
    )
    return "\n  ".join(lines)


HEADER = '''"""The float32 inputs of exp, exp2 and log that are hardest to round, with the right results.

Written by benchmarks/hard_cases.py from a sweep over every float32 input, each entry decided at 256 bits. A
table holds pairs (input bits, result bits): first the inputs closest to a midpoint, hardest first, on which a
float64 evaluation or a one-ulp error shows; then the hardest of those with a subnormal result, on which
flushing shows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

'''

FOOTER = '''TABLES: dict[str, tuple[tuple[int, int], ...]] = {"exp": EXP, "exp2": EXP2, "log": LOG}


def hard_cases(name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Inputs and correctly rounded results of ``exp``, ``exp2`` or ``log``: two float32 arrays [n]."""
    pairs = np.array(TABLES[name], dtype=np.uint32).view(np.float32)
    return pairs[:, 0].copy(), pairs[:, 1].copy()
'''


def module_text(found: dict[str, Sweep]) -> str:
    """The source of verify/numerics/hard_cases.py."""
    parts = [HEADER]
    for name, result in found.items():
        cases = result.candidates[:KEEP] + result.tiny[:KEEP_TINY]
        rows = "".join(f"    (0x{c.x:08X}, 0x{c.expected:08X}),\n" for c in cases)
        parts.append(f"{name.upper()}: tuple[tuple[int, int], ...] = (\n{rows})\n\n")
    parts.append(FOOTER)
    return "".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sweep every float32 input of exp, exp2 and log.")
    parser.add_argument("--write", action="store_true", help="rewrite verify/numerics/hard_cases.py")
    options = parser.parse_args()
    found: dict[str, Sweep] = {}
    for name, function in FUNCTIONS.items():
        started = time.perf_counter()
        found[name] = sweep(function)
        print(report(function, found[name], time.perf_counter() - started), file=sys.stderr, flush=True)
    if options.write:
        target = Path(__file__).resolve().parents[1] / "verify" / "numerics" / "hard_cases.py"
        target.write_text(module_text(found))
    return int(any(result.array_wrong for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
