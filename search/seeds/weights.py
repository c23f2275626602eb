"""What each token counts for in each output, as exact rationals: the program with its values left open.

The definition is walked over an arithmetic in which values are unknowns: what depends on scores alone is rounded as the
spec says, what depends on values is a linear form and is not rounded. For specs that round nothing but weights to a
narrow format this is the output, but for the float32 roundings of its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from search.seeds.values import Class
from search.space import Inputs
from search.target import Target
from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition import RowInputs, ScalarArithmetic, Walker
from verify.definition.arithmetic import Fold

MAX_CLASSES = 64


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of multiples of unknowns."""

    terms: dict[int, Fraction]

    def plus(self, other: Linear) -> Linear:
        """The sum."""
        terms = dict(self.terms)
        for unknown, factor in other.terms.items():
            terms[unknown] = terms.get(unknown, Fraction(0)) + factor
        return Linear(terms)

    def times(self, factor: Fraction) -> Linear:
        """A multiple."""
        return Linear({unknown: x * factor for unknown, x in self.terms.items()})


class LinearArithmetic(ScalarArithmetic):
    """Numbers are rounded as the spec says; linear forms are exact.

    Args:
        unknown: unknown number i is fed as ``(i + 1) * unknown``.

    Raises:
        UnsupportedError: from an operation that is not linear in the values.
    """

    def __init__(self, unknown: float) -> None:
        super().__init__()
        self.unknown = unknown

    def lift(self, x: float) -> Any:
        """An unknown, or the number."""
        return Linear({round(x / self.unknown) - 1: Fraction(1)}) if x >= self.unknown else x

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Any]:
        """Rounded on numbers; linear where the values are in it."""
        rounded: Callable[..., Any] = super().operation(op, operands, fmt)

        def apply(*args: Any) -> Any:
            if not any(isinstance(a, Linear) for a in args):
                return rounded(*args)
            return _linear(op, args)

        return apply

    def cast(self, source: Format, target: Format) -> Callable[[Any], Any]:
        """Rounded on numbers; a linear form stays as it is."""
        rounded: Callable[[Any], Any] = super().cast(source, target)
        return lambda x: x if isinstance(x, Linear) else rounded(x)

    def is_nan(self, x: Any) -> Any:
        """Never, for a linear form."""
        return not isinstance(x, Linear) and x != x

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree on numbers; the exact sum where the values are in it."""
        rounded = super().fold(tree, kind, operands, fmt, dots)

        def total(terms: Sequence[Any], start: Any) -> Any:
            flat = [x for t in terms for x in (t if isinstance(t, tuple) else (t,))]  # pyright: ignore[reportUnknownVariableType]
            if not any(isinstance(x, Linear) for x in (*flat, start)):
                return rounded(terms, start)
            acc: Any = Linear({}) if start is None else start
            for term in terms:
                acc = _linear("+", (acc, _linear("*", term) if kind == "dot" else term))
            return acc

        return total


def _linear(op: str, args: Sequence[Any]) -> Any:
    match op, args:
        case "+" | "add", (a, b):
            return _form(a).plus(_form(b))
        case "-" | "sub", (a, b):
            return _form(a).plus(_form(b).times(Fraction(-1)))
        case "*" | "mul", (a, b):
            return _form(a).times(_number(b)) if isinstance(a, Linear) else _form(b).times(_number(a))
        case "/" | "div" | "div.full", (a, b):
            return _form(a).times(1 / _number(b))
        case "fma", (a, b, c) if isinstance(a, Linear) or isinstance(b, Linear):
            return _linear("+", (_linear("*", (a, b)), c))
        case "fma", (a, b, c):
            return _form(c) if 0 in (a, b) else _linear("+", (a * b, c))
        case "neg", (a,):
            return _form(a).times(Fraction(-1))
        case _:
            raise UnsupportedError(
                f"{op}() of the values is not linear", place="weights", remedy="search without linear values"
            )


def _form(x: Any) -> Linear:
    if isinstance(x, Linear):
        return x
    if x == 0:
        return Linear({})
    raise UnsupportedError(
        "a number is added to values", place="weights", remedy="search without linear values"
    )


def _number(x: Any) -> Fraction:
    if isinstance(x, Linear) or x != x or x in (float("inf"), float("-inf")):
        raise UnsupportedError(
            "values are multiplied by values", place="weights", remedy="search without linear values"
        )
    return Fraction(x)


def classes_of(target: Target, inputs: Inputs, pair: tuple[int, int]) -> tuple[list[Class], list[list[int]]]:
    """Tokens that count alike on both sides, and what they count for.

    Args:
        target: two or more sides, cut to few tokens or whole.
        inputs: one candidate; its scores decide, and its tokens of value 0 stay at 0.
        pair: the numbers of two sides.

    Returns:
        the classes, and the tokens of each.

    Raises:
        UnsupportedError: an output is not linear in the values, or there are too many classes.
    """
    scores = inputs.scores[0].astype(np.float64)
    live = np.flatnonzero((inputs.values[0, :, 0] != 0) & np.isfinite(scores))
    groups: dict[tuple[Any, ...], list[int]] = {}
    pieces = [_pieces(target, side) for side in pair]
    for token in live.tolist():
        groups.setdefault((scores[token], *(p[token] for p in pieces)), []).append(token)
    members = list(groups.values())
    if len(members) > MAX_CLASSES:
        raise UnsupportedError(
            f"{len(members)} classes of tokens",
            place="weights",
            remedy=f"at most {MAX_CLASSES} are searched by linear arithmetic",
        )
    ordinals = np.zeros((len(scores), 1))
    for number, tokens in enumerate(members):
        ordinals[tokens, 0] = number + 1
    forms = [_walked(target, side, scores, ordinals) for side in pair]
    exact = _softmax(scores)
    classes = [
        Class(
            len(tokens),
            forms[0].get(number, Fraction(0)) / len(tokens),
            forms[1].get(number, Fraction(0)) / len(tokens),
            exact[tokens[0]],
        )
        for number, tokens in enumerate(members)
    ]
    return classes, members


def _pieces(target: Target, side: int) -> list[int]:
    plan = target.evaluators[side].plan
    out = [0] * plan.kv_len
    flat = plan.tokens.reshape(plan.tokens.shape[0] if plan.levels else 1, -1)
    for piece, row in enumerate(flat):
        for token in row[row >= 0].tolist():
            out[token] = piece
    return out


def _walked(target: Target, side: int, scores: Any, ordinals: Any) -> dict[int, Fraction]:
    evaluator = target.evaluators[side]
    program, fmt = evaluator.program, evaluator.value_format
    if ordinals.max() > 1 << fmt.p:
        raise UnsupportedError(
            f"{ordinals.max():.0f} unknowns where {fmt} counts to {1 << fmt.p}",
            place="weights",
            remedy="search without linear values",
        )
    unknown = 2.0 ** min(100, fmt.emax - fmt.p)  # far above what lines write into their text
    fed = np.empty(len(scores), dtype=object)
    fed[:] = scores.tolist()
    row = RowInputs(
        v=ordinals * unknown,
        scalars={n: x for n, x in evaluator.scalars.items() if n not in program.sites},
        query=len(scores) - 1,
        feed={program.score_site(): fed},
    )
    found = Walker(program, evaluator.plan, row, LinearArithmetic(unknown)).value(evaluator.site, {"dim": 0})
    return found.terms if isinstance(found, Linear) else {}


def _softmax(scores: Any) -> dict[int, Fraction]:
    with flint.ctx.workprec(160):
        top = float(scores.max())
        weights = {i: (flint.arb(float(s)) - top).exp() for i, s in enumerate(scores) if s > -np.inf}
        total = sum(weights.values(), flint.arb(0))
        return {i: _rational((w / total).mid()) for i, w in weights.items()}


def _rational(x: flint.arb) -> Fraction:
    mantissa, exponent = x.man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
