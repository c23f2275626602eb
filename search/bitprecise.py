"""Tiny instances bit by bit: values of v and scores both unknown, every rounding as it is.

The program is walked over terms of a solver. Scores take one of a few levels, so whatever depends on scores alone
(maxima, exponentials, normalisers, logarithms) is computed by the scalar oracle, once for each choice of levels, and
enters as a table; only what depends on v is left to the theory of floating point. A model is checked by the oracle;
``unsat`` is a proof for these levels and for values on the grid. It takes minutes from six tokens on: a cross-check
of the other methods, none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from search.sides import Side
from search.solvers import Term, TermSolver, field_bits, make_solver
from specs.dot_products import DotProduct
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.names import HEAD_SCALARS, SCALARS
from specs.nodes import Tree
from specs.program import Program
from verify.definition.arithmetic import Fold
from verify.definition.inputs import RowInputs
from verify.definition.scalar import ScalarArithmetic
from verify.definition.trees import Operations, build
from verify.definition.walker import Walker, evaluate
from verify.numerics.rounding import encode
from verify.numerics.ulp import ulp_distance
from verify.partition import Plan

MAX_TOKENS = 6
#: Choices of levels that are tabulated.
MAX_CHOICES = 4096
RLIMIT = 400_000_000
#: Levels of scores that are tried if none are given: weights of 1, just above 1/2, and just above a midpoint of two bf16
#: numbers near 1/4. Relative to the second level, the third one is no longer above a midpoint.
LEVELS = (0.0, -0.692903069732418, -1.382151609876706)


@dataclass(frozen=True)
class Finding:
    """The answer of a solver.

    Attributes:
        status: ``sat``, ``unsat`` or ``unknown`` (out of resources, or of time).
        solver: which one.
        scores, values: of a model, float32 ``[token]``.
        distance: integer distance of the outputs that the scalar oracle computes from them.
        cut: whether wall time ended the query: another run may have another answer.
        units: Z3's resource units that it took.
    """

    status: Literal["sat", "unsat", "unknown"]
    solver: str
    scores: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    distance: int | None = None
    cut: bool = False
    units: int = 0


def find(
    a: Side,
    b: Side,
    k: int,
    *,
    tokens: int,
    levels: Sequence[float] = LEVELS,
    scores: Sequence[float] | None = None,
    context: Mapping[str, Any] | None = None,
    signed: bool = False,
    solver: str = "z3",
    rlimit: int = RLIMIT,
    seconds: float | None = None,
) -> Finding:
    """Scores and values whose outputs on both sides are at least ``k`` apart.

    Args:
        a, b: the sides.
        k: integer distance of the stored outputs.
        tokens: at most `MAX_TOKENS`.
        levels: values that each score may take.
        scores: fixed scores instead, one for each token.
        context: as for `Side.program`, without ``kv_len``.
        signed: whether values may be negative; without, there is no cancellation (c = 1).
        solver: ``z3`` or ``bitwuzla``.
        rlimit, seconds: see `search.solvers.make_solver`.

    Raises:
        InputError: too many tokens or levels, or the outputs differ in format.
        UnsupportedError: a construct has no encoding, or the solver is not installed.
    """
    choices = _choices(tokens, levels, scores)
    sides = [_Instance(side, tokens, dict(context or {})) for side in (a, b)]
    formats = {x.program.sites["output"].type.format for x in sides}
    if len(formats) != 1 or {x.program.inputs["v"] for x in sides} != {sides[0].program.inputs["v"]}:
        raise InputError(
            "the sides store outputs, or take values, in different formats",
            place="bitprecise",
            remedy="compare sides of one format",
        )
    fmt = formats.pop() or sides[0].program.compute
    s = make_solver(solver, rlimit=rlimit, seconds=seconds)
    state = _State(s, choices, sides[0].program.inputs["v"], tokens, signed)
    words: list[Term] = []
    for i, x in enumerate(sides):
        out = state.term(x.output(state), fmt)
        word = s.word(f"out{i}", fmt.bits)
        s.require(s.equal(s.number(word, fmt), out))
        # Both signs of v are alike: outputs are normal numbers above 0.
        s.require(s.at_most(s.constant(1 << (fmt.p - 1), fmt.bits), word))
        s.require(s.at_most(word, s.constant((1 << (fmt.bits - 1)) - 1, fmt.bits)))
        words.append(word)
    far = s.constant(k, fmt.bits)
    s.require(s.logic("or", [s.at_most(s.plus(x, far), y) for x, y in (words, words[::-1])]))
    status = s.check()
    if status != "sat":
        return Finding("unsat" if status == "unsat" else "unknown", solver, cut=s.cut, units=s.units)
    row, values = state.model()
    stored = [x.evaluate(row, values) for x in sides]
    distance = int(ulp_distance(np.array([stored[0]]), np.array([stored[1]]), fmt)[0])
    if distance < k:
        raise AssertionError(f"a model of {solver} is {distance} apart by the oracle, not {k}: report it")
    return Finding("sat", solver, row.astype(np.float32), values.astype(np.float32), distance, units=s.units)


def _choices(tokens: int, levels: Sequence[float], scores: Sequence[float] | None) -> NDArray[np.float64]:
    """Every choice of scores: ``[choice, token]``."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"{tokens} tokens", place="tokens", remedy=f"1 to {MAX_TOKENS} are encoded")
    if scores is not None:
        if len(scores) != tokens:
            raise InputError(
                f"{len(scores)} scores for {tokens} tokens", place="scores", remedy="give one for each token"
            )
        return np.array([scores], np.float32).astype(np.float64)
    if not levels or len(levels) ** tokens > MAX_CHOICES:
        raise InputError(
            f"{len(levels)} levels of {tokens} tokens",
            place="levels",
            remedy=f"at most {MAX_CHOICES} choices in all",
        )
    exact = np.array(levels, np.float32).astype(np.float64)
    return np.array(list(product(exact, repeat=tokens)))


class _Instance:
    """One side at a few tokens."""

    def __init__(self, side: Side, tokens: int, context: dict[str, Any]) -> None:
        full = {**context, "kv_len": tokens}
        self.program: Program = side.program(full)
        self.plan: Plan = side.plan(full)
        self.fed = self.program.score_site()
        if not self.fed:
            raise UnsupportedError(
                f"{self.program.spec} has no site called score",
                place="bitprecise",
                remedy="name the scaled and masked score of a token 'score'",
            )
        self.scalars = dict.fromkeys(SCALARS, 1.0) | {"softcap": 0.0}
        self.scalars |= {n: float("-inf") if n == "sink" else 0.0 for n in HEAD_SCALARS}

    def output(self, state: _State) -> Any:
        """The output over terms."""
        n = state.tokens
        feed = np.empty(n, dtype=object)
        feed[:] = [state.choices[:, t] for t in range(n)]
        names = np.array([1.0 + t / 64 for t in range(n)])[:, None]  # values of every format, as names
        row = RowInputs(v=names, scalars=self.scalars, feed={self.fed: feed})
        walker = Walker(self.program, self.plan, row, _TermArithmetic(state))
        return walker.value("output", dict.fromkeys(self.program.sites["output"].type.axes, 0))

    def evaluate(self, scores: NDArray[np.float64], values: NDArray[np.float64]) -> float:
        """The output by the scalar oracle."""
        row = RowInputs(v=values[:, None], scalars=self.scalars, feed={self.fed: scores})
        found = evaluate(self.program, self.plan, row, ["output"], ScalarArithmetic())["output"]
        return float(found.reshape(-1)[0])


class _State:
    """The unknowns: a level for each token, and its value; tables over levels as terms."""

    def __init__(
        self, solver: TermSolver, choices: NDArray[np.float64], fmt: Format, tokens: int, signed: bool
    ) -> None:
        self.solver, self.choices, self.tokens, self.format = solver, choices, tokens, fmt
        s, bits = solver, fmt.bits
        self.distinct = [sorted(set(choices[:, t].tolist())) for t in range(tokens)]
        self.width = max(1, max(len(d) for d in self.distinct).bit_length())
        self.levels = [s.word(f"level{t}", self.width) for t in range(tokens)]
        for level, known in zip(self.levels, self.distinct, strict=True):
            s.require(s.at_most(level, s.constant(len(known) - 1, self.width)))
        self.words = [s.word(f"v{t}", bits) for t in range(tokens)]
        one = int(encode(np.array([1.0]), fmt)[0])
        last = one + (1 << (fmt.p - 1)) - 1
        for word in self.words:
            zero = s.equal(word, s.constant(0, bits))
            ranges = [one] + ([one | 1 << (bits - 1)] if signed else [])
            inside = [
                s.logic(
                    "and",
                    [
                        s.at_most(s.constant(low, bits), word),
                        s.at_most(word, s.constant(low + last - one, bits)),
                    ],
                )
                for low in ranges
            ]
            s.require(s.logic("or", [zero, *inside]))
        self.values = [s.number(word, fmt) for word in self.words]
        self._terms: dict[tuple[int, Format], tuple[Any, Term]] = {}

    def term(self, x: Any, fmt: Format) -> Term:
        """A value as a float term of ``fmt``, which holds it."""
        if isinstance(x, _Number):
            return x.term if x.format == fmt else self.solver.cast(x.term, fmt)
        key = id(x), fmt
        if key not in self._terms:  # the array is kept, so that its id stays its own
            self._terms[key] = x, self._table(x, fmt)
        return self._terms[key][1]

    def _table(self, x: NDArray[np.float64], fmt: Format) -> Term:
        s = self.solver
        codes = encode(x, fmt).astype(np.int64)
        cases = self._cases(codes)
        found = s.number(s.constant(cases[0][0], fmt.bits), fmt)
        for code, where in cases[1:]:
            found = s.choose(where, s.number(s.constant(code, fmt.bits), fmt), found)
        return found

    def condition(self, x: NDArray[np.bool_]) -> Term:
        """A table of truths as a term."""
        cases = self._cases(x.astype(np.int64))
        return (
            next(where for code, where in cases if code)
            if cases[0][0] == 0
            else self.solver.logic("not", [next(where for code, where in cases if not code)])
        )

    def _cases(self, codes: NDArray[np.int64]) -> list[tuple[int, Term]]:
        """The distinct codes, each with the levels that give it; the first one stands for all others."""
        sizes = [len(d) for d in self.distinct]
        cube = np.broadcast_to(codes, len(self.choices)).reshape(sizes)
        axes = [i for i in range(len(sizes)) if not np.array_equal(cube, np.roll(cube, 1, axis=i))]
        cube = cube[tuple(slice(None) if i in axes else 0 for i in range(len(sizes)))]
        kinds = sorted(set(cube.reshape(-1).tolist()))
        result: list[tuple[int, Term]] = [(int(kinds[0]), None)]
        for kind in kinds[1:]:
            points = [
                self.solver.logic(
                    "and",
                    [self._level(axis, int(p)) for axis, p in zip(axes, point, strict=True)],
                )
                for point in np.argwhere(cube == kind)
            ]
            result.append((int(kind), self.solver.logic("or", points)))
        return result

    def _level(self, token: int, level: int) -> Term:
        # `product` counts levels in the order given, `distinct` in rising order.
        order = list(dict.fromkeys(self.choices[:, token].tolist()))
        where = self.distinct[token].index(order[level])
        return self.solver.equal(self.levels[token], self.solver.constant(where, self.width))

    def model(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores and values of the model."""
        from verify.numerics.rounding import decode, word_dtype

        scores = [d[self.solver.found(x)] for d, x in zip(self.distinct, self.levels, strict=True)]
        words = np.array([self.solver.found(w) for w in self.words], word_dtype(self.format))
        return np.array(scores), decode(words, self.format).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Number:
    """A float term and its format."""

    term: Term
    format: Format


class _TermArithmetic:
    """Arrays over all choices of levels where v plays no part, terms elsewhere."""

    def __init__(self, state: _State) -> None:
        self.state, self.solver, self.scalar = state, state.solver, ScalarArithmetic()

    def number(self, x: Fraction, fmt: Format) -> Any:
        return np.array([self.scalar.number(x, fmt)])

    def special(self, x: float, fmt: Format) -> Any:
        return np.array([self.scalar.special(x, fmt)])

    def pattern(self, bits: int, fmt: Format) -> Any:
        return np.array([self.scalar.pattern(bits, fmt)])

    def lift(self, x: float) -> Any:
        return _Number(self.state.values[round((x - 1.0) * 64)], self.state.format)

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., Any]:
        short = {"add": "+", "sub": "-", "mul": "*", "div": "/"}.get(op, op)
        scalar = self.scalar.operation(op, operands, fmt)

        def apply(*args: Any) -> Any:
            if not any(isinstance(a, _Number) for a in args):
                columns = np.broadcast_arrays(*args)
                return np.array([scalar(*row) for row in zip(*(c.tolist() for c in columns), strict=True)])
            if short not in ("+", "-", "*", "/", "fma", "neg", "abs"):
                raise UnsupportedError(
                    f"{op}() of a value of v has no encoding", remedy="use + - * / fma on values of v"
                )
            if short in ("neg", "abs"):
                return _Number(self.solver.arithmetic(short, [args[0].term]), args[0].format)
            if not all(fmt.holds(f) for f in operands):
                raise UnsupportedError(
                    f"{op} takes {', '.join(map(str, operands))} and rounds to {fmt}",
                    remedy="write a cast of its own",
                )
            terms = [self.state.term(a, fmt) for a in args]
            return _Number(self.solver.arithmetic(short, terms), fmt)

        return apply

    def cast(self, source: Format, target: Format) -> Callable[[Any], Any]:
        scalar = self.scalar.cast(source, target)

        def cast(x: Any) -> Any:
            if isinstance(x, _Number):
                field_bits(target)
                return _Number(self.solver.cast(x.term, target), target)
            return np.array([scalar(y) for y in x.tolist()])

        return cast

    def compare(self, op: str) -> Callable[[Any, Any], Any]:
        scalar = self.scalar.compare(op)

        def compare(a: Any, b: Any) -> Any:
            if isinstance(a, _Number) or isinstance(b, _Number):
                fmt = a.format if isinstance(a, _Number) else b.format
                return self.solver.compare(op, self.state.term(a, fmt), self.state.term(b, fmt))
            x, y = np.broadcast_arrays(a, b)
            return _decided(
                np.array([bool(scalar(p, q)) for p, q in zip(x.tolist(), y.tolist(), strict=True)])
            )

        return compare

    def is_nan(self, x: Any) -> Any:
        return self.solver.is_nan(x.term) if isinstance(x, _Number) else _decided(np.isnan(x))

    def choose(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, np.ndarray) and not (isinstance(a, _Number) or isinstance(b, _Number)):
            return np.where(condition, a, b)
        fmt = a.format if isinstance(a, _Number) else b.format if isinstance(b, _Number) else None
        if fmt is None:
            raise UnsupportedError("a choice by v between scores has no encoding", remedy="choose by scores")
        if isinstance(condition, np.ndarray):
            condition = self.state.condition(condition)
        return _Number(self.solver.choose(condition, self.state.term(a, fmt), self.state.term(b, fmt)), fmt)

    def logic(self, op: str, conditions: Sequence[Any]) -> Any:
        if all(isinstance(c, np.ndarray) for c in conditions):
            tables = np.broadcast_arrays(*conditions)
            if op == "not":
                return _decided(~tables[0])
            return _decided((np.logical_and if op == "and" else np.logical_or).reduce(tables))
        terms = [self.state.condition(c) if isinstance(c, np.ndarray) else c for c in conditions]
        return self.solver.logic(op, terms)

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        formats = (*operands, fmt)

        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> Any:
            raise UnsupportedError("exact() has no encoding here", remedy="use another tree")

        def mma(node: Tree) -> Fold:
            raise UnsupportedError("mma() has no encoding here", remedy="use another tree")

        steps = Operations(
            add=self.operation("+", formats, fmt),
            mul=self.operation("*", formats, fmt),
            fma=self.operation("fma", formats, fmt),
            exact=exact,
            zero=np.array([0.0]),
            mma=mma,
        )
        return build(tree, steps, pairs=kind == "dot")


def _decided(table: NDArray[np.bool_]) -> Any:
    """A bool where all choices agree."""
    return bool(table[0]) if (table == table[0]).all() else table
