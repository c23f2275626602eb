"""Real numbers, nearly: every operation in double precision and no rounding of the spec.

Two specs that mean the same attention agree here to about 1e-13; hybrids that mix, say, normalised partial results with a
merge of sums do not, and differ by far more than `CLOSE`. It is a check of samples, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from search.tape import EXP, EXP2, LOG, LOG2, QUOTIENT, RECIPROCAL
from specs.dot_products import DotProduct
from specs.errors import UnsupportedError
from specs.formats import Format
from specs.nodes import Tree
from verify.definition import ScalarArithmetic, trees
from verify.definition.arithmetic import Fold

#: Relative distance up to which two results are one real number.
CLOSE = 1e-7


def _total(f: Callable[..., float]) -> Callable[..., float]:
    """``f``, with infinities and NaN where it has no value."""

    def g(*args: float) -> float:
        try:
            return f(*args)
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return math.nan

    return g


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


_BY_NAME: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("+", "add"), lambda a, b: a + b),
    **dict.fromkeys(("-", "sub"), lambda a, b: a - b),
    **dict.fromkeys(("*", "mul"), lambda a, b: a * b),
    **dict.fromkeys(QUOTIENT, _divide),
    **dict.fromkeys(EXP, _total(math.exp)),
    **dict.fromkeys(EXP2, _total(lambda x: 2.0**x)),
    **dict.fromkeys(LOG, _total(_log)),
    **dict.fromkeys(LOG2, _total(lambda x: _log(x) / math.log(2.0))),
    **dict.fromkeys(RECIPROCAL, lambda x: _divide(1.0, x)),
    "fma": lambda a, b, c: a * b + c,
    "sqrt": _total(math.sqrt),
    "mufu.rsq": _total(lambda x: 1.0 / math.sqrt(x)),
}


class RealArithmetic(ScalarArithmetic):
    """Doubles without the roundings of a spec."""

    def number(self, x: Fraction, fmt: Format) -> float:
        """The rational as a double."""
        return float(x)

    def special(self, x: float, fmt: Format) -> float:
        """The infinity or NaN."""
        return x

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., float]:
        """The real meaning of an operation.

        Raises:
            UnsupportedError: it has none here.
        """
        if op in ("neg", "abs", "max", "min"):
            return super().operation(op, operands, fmt)
        if op not in _BY_NAME:
            raise UnsupportedError(
                f"{op}() has no real meaning here", remedy="write it with exp, log and rcp"
            )
        return _BY_NAME[op]

    def cast(self, source: Format, target: Format) -> Callable[[float], float]:
        """Nothing is rounded."""
        return lambda x: x

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        """The tree over additions of doubles; tensor cores add like everything else."""

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> float:
            values = [a * b for a, b in terms] if pairs else list(terms)
            return math.fsum([*values, 0.0 if start is None else start])

        def mma(node: Tree) -> Fold:
            return lambda pairs, start: exact(pairs, True, start)

        steps = trees.Operations(
            add=_BY_NAME["+"], mul=_BY_NAME["*"], fma=_BY_NAME["fma"], exact=exact, zero=0.0, mma=mma
        )
        return trees.build(tree, steps, pairs=kind == "dot")
