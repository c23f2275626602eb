"""Small rational inputs: a spec without roundings against attention, by balls and, where it has a formula, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from search.prove.forms import SINK
from search.prove.induction import shape_of
from search.prove.values import BreaksError, Value
from search.samples import instance
from specs.errors import UlpscopeError
from specs.names import HEAD_SCALARS, SCALARS
from specs.program import Program
from verify.definition.balls import BallArithmetic
from verify.definition.inputs import RowInputs
from verify.definition.walker import evaluate
from verify.partition import Plan

#: Ball arithmetic keeps the constants of a kernel as they are, such as an f32 log2(e): answers are this near.
NEAR = 1e-4
BITS = 128


@dataclass(frozen=True)
class Example:
    """What a small input shows.

    Attributes:
        differs: whether the spec's answer is another than attention's.
        words: the input and both answers.
        again: the independent means that says so.
        agrees: whether ball arithmetic agrees with attention on all inputs.
        details: the numbers, as text.
    """

    differs: bool
    words: str
    again: str = ""
    agrees: bool = False
    details: dict[str, Any] = field(default_factory=dict[str, Any])


def show(
    program: Program,
    plan: Plan,
    sink: bool,
    output: Value | None = None,
    maxima: Mapping[str, frozenset[Any]] | None = None,
    sure: bool = True,
) -> Example:
    """Evaluate a spec on a few rational inputs.

    A formula of the output may hold on one way through comparisons alone, which an input need not take: balls, which
    decide them for the input itself, have the last word.

    Args:
        program, plan: the spec in a context; an instance of it is evaluated.
        sink: whether a sink joins.
        output: the output as a formula, if there is one, to be evaluated exactly.
        maxima: what its symbols are the maxima of.
        sure: whether the formula holds for every input; otherwise it refutes nothing that balls do not.
    """
    try:
        shape = shape_of(program, plan)
    except UlpscopeError as error:
        return Example(False, error.cause)
    count = int(np.prod(shape.sizes))
    small = instance(program, shape.sizes, shape.places)
    checked, worst = 0, 0.0
    for weights in _weights(count):
        values = [Fraction((3 * t) % 4) for t in range(count)]
        sunk = Fraction(5, 3) if sink else Fraction(0)
        wanted = sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0)) / (
            sum(weights) + sunk
        )
        exact = None
        if output is not None:
            point = {f"E{t}": w for t, w in enumerate(weights)} | {f"v{t}": v for t, v in enumerate(values)}
            exact = _exactly(output, {**point, SINK: sunk, "scale": Fraction(1)}, maxima or {})
        ball = _by_balls(program, small, weights, values, sunk)
        if ball is not None:
            worst, checked = (
                max(worst, abs(ball - float(wanted)) / max(1e-9, abs(float(wanted)))),
                checked + 1,
            )
        given = f"e^s = {_list(weights)} and v = {_list(values)}" + (f", e^sink = {sunk}" if sink else "")
        numbers = {
            "exp_scores": [str(w) for w in weights],
            "values": [str(v) for v in values],
            "attention": str(wanted),
        }
        if exact is not None and exact != wanted and _confirmed(exact, ball, float(wanted), sure):
            again = "" if ball is None else f"ball arithmetic with real exponentials gives {ball:.9g}"
            words = f"for {given} it gives {exact}, attention {wanted}"
            return Example(True, words, again, details={**numbers, "spec": str(exact)})
        if ball is not None and abs(ball - float(wanted)) > 10 * NEAR * max(1.0, abs(float(wanted))):
            words = f"for {given} it gives {ball:.9g}, attention {wanted}"
            again = "ball arithmetic with real exponentials"
            return Example(True, words, again, details={**numbers, "spec": f"{ball:.12g}"})
    if not checked:
        return Example(False, "ball arithmetic leaves a comparison open")
    if output is None and worst > NEAR:
        return Example(False, f"ball arithmetic is {worst:.1e} away")
    return Example(
        False, f"ball arithmetic agrees on {checked} rational inputs to {worst:.0e}", agrees=worst <= NEAR
    )


def _confirmed(exact: Fraction, ball: float | None, wanted: float, sure: bool) -> bool:
    """Whether balls stand with the formula and not with attention; without an answer of theirs, whether it is sure."""
    return sure if ball is None else abs(ball - float(exact)) <= abs(ball - wanted) / 2


def _weights(count: int) -> list[list[Fraction]]:
    """Distinct positive weights: rising, falling, and mixed."""
    rising = [Fraction(2 * t + 2, 3) for t in range(count)]
    mixed = [Fraction((7 * t) % (2 * count + 1) + 1, 2) for t in range(count)]
    return [rising, rising[::-1], mixed]


def _list(xs: list[Fraction]) -> str:
    shown = [str(x) for x in xs[:8]]
    return "[" + ", ".join(shown) + (", ..." if len(xs) > 8 else "") + "]"


def _exactly(
    output: Value, point: dict[str, Fraction], maxima: Mapping[str, frozenset[Any]]
) -> Fraction | None:
    """The formula with every maximum as it is."""
    for name in sorted(maxima, key=lambda n: int(n[1:])):
        atoms = [a.at(point) for a in maxima[name] if isinstance(a, Value) and a.symbols() <= set(point)]
        if len(atoms) != len(maxima[name]):
            return None
        point[name] = max(atoms)
    try:
        return output.at(point) if output.symbols() <= set(point) else None
    except (ZeroDivisionError, BreaksError):
        return None


def _by_balls(
    program: Program, plan: Plan, weights: list[Fraction], values: list[Fraction], sunk: Fraction
) -> float | None:
    """The spec's answer by balls, without roundings; None where a comparison stays open."""
    scalars = dict.fromkeys(SCALARS, 1.0) | {"softcap": 0.0}
    scalars |= {n: float("-inf") if n == "sink" else 0.0 for n in HEAD_SCALARS}
    with flint.ctx.workprec(BITS):
        arithmetic = BallArithmetic()
        scores = np.empty(len(weights), dtype=object)
        scores[:] = [
            arithmetic.operation("log", (), program.compute)(arithmetic.number(w, program.compute))
            for w in weights
        ]
        if sunk:
            scalars["sink"] = float(flint.arb(flint.fmpq(sunk.numerator, sunk.denominator)).log().mid())
        v = np.array([float(x) for x in values])[:, None]
        row = RowInputs(v=v, scalars=scalars, feed={program.score_site(): scores})
        try:
            found = evaluate(program, plan, row, ["output"], arithmetic, [0])["output"]
            value = float(found.reshape(-1)[0].mid())
        except (UlpscopeError, ZeroDivisionError, AssertionError):
            return None
    return value if value == value and abs(value) != float("inf") else None
