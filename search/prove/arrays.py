"""Integer formulas over arrays: the same formula for many values of one name at once.

Only for questions: where two partitions differ, or a rule gives some count. Every answer is computed again by the code
that makes plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.prove.domain import Case, cases
from search.prove.formulas import Scalar, value_of
from specs.context import MAX_BATCH, make_context
from specs.errors import SpecError, UnsupportedError
from specs.loader import Spec
from specs.nodes import Cmp, Logic, Name, Node, Op, Select
from specs.platforms import Platform
from specs.rules import call_rule, rule_names

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_KINDS = ("pieces", "deal", "tiles")
DEAL = 1 + _KINDS.index("deal")
#: Numbers that describe one level: kind, count, unit, whole (-1: none), skip, last first, empty pieces kept.
WIDTH = 7


@dataclass(frozen=True, eq=False)
class Cuts:
    """The arguments of the levels of a spec for many values of one name.

    Attributes:
        levels: int64 ``[value, level, WIDTH]``; levels that a value does not have are 0.
        taken: bool ``[value]``: whether the spec's requirements on lengths, heads and SM counts hold.
    """

    levels: Ints
    taken: Bools

    @property
    def count(self) -> Ints:
        """The argument of the outermost level: int64 ``[value]``; 1 where there is no level."""
        if not self.levels.shape[1]:
            return np.ones(len(self.taken), np.int64)
        return np.maximum(1, self.levels[:, 0, 1])


@lru_cache(maxsize=32)
def _cases(spec: Spec, platform: Platform, fixed: tuple[tuple[str, type, Scalar], ...]) -> tuple[Case, ...]:
    """The cases of a spec, which many blocks of values share."""
    return tuple(cases(spec, {platform.name: platform}, {n: v for n, _, v in fixed}))


def cuts(
    spec: Spec,
    platform: Platform,
    options: Mapping[str, Any],
    context: Mapping[str, Any],
    free: str,
    values: Ints,
) -> Cuts:
    """The levels of ``spec`` on ``platform`` for each of ``values`` of the name ``free``.

    Args:
        options: values for the spec's ``[options]``.
        context: the other names, with ``kv_len`` if it is not ``free``; defaults as `specs.context.make_context`.

    Raises:
        UnsupportedError: a formula has no meaning over arrays.
    """
    known = _context(spec, platform, options, context, free)
    dependent = {n for n in ("kv_len", "max_kv_len", "kv_capacity") if n not in context}
    names: dict[str, Ints] = {free: values}
    fixed: dict[str, Scalar] = {n: v for n, v in known.items() if n != free}
    if free == "kv_len":
        for n in dependent - {free}:
            names[n] = values
            del fixed[n]
    every = _cases(spec, platform, tuple((n, type(v), v) for n, v in sorted(fixed.items())))  # pyright: ignore[reportArgumentType]: frozen, so it has a hash
    most = max((len(_nesting(c)) for c in every), default=0)
    levels = np.zeros((len(values), most, WIDTH), np.int64)
    taken = np.zeros(len(values), np.bool_)
    for case in every:
        formulas = _Formulas(case, names, fixed, len(values))
        held = np.ones(len(values), np.bool_)
        for n in case.assumed:
            held &= formulas.condition(n)
        where = np.flatnonzero(held & ~taken)
        if not where.size:
            continue
        part = _Formulas(case, {n: v[where] for n, v in names.items()}, fixed, len(where))
        for i, rule in enumerate(_nesting(case)):
            row = levels[where, i]
            row[:, 0] = 1 + _KINDS.index(rule.kind)
            row[:, 1] = part.integer(rule.args[0])
            row[:, 2] = 1 if rule.unit is None else part.integer(rule.unit)
            row[:, 3] = -1 if rule.of is None else part.integer(rule.of)
            row[:, 4] = 0 if rule.skip is None else part.integer(rule.skip)
            row[:, 5], row[:, 6] = rule.desc, rule.keep_empty
            levels[where, i] = row
        taken[where] = True
    return Cuts(levels, taken)


def _context(
    spec: Spec, platform: Platform, options: Mapping[str, Any], context: Mapping[str, Any], free: str
) -> dict[str, Any]:
    given = {**platform.context, "kv_len": 1, **context}
    given.pop(free, None)
    least: dict[str, Any] = {"kv_len": 1, "sm_count": 1}
    known: dict[str, Any] = make_context({**given, **({free: least[free]} if free in least else {})})
    known.pop("cpu", None)
    known.pop("compute_capability", None)
    formats = {f"{x}_format": spec.numbers.input_format(x).base for x in "qkv"}
    return {**known, **formats, **spec.file.options, **options}


def _nesting(case: Case) -> list[Any]:
    return [rule for _, rule in case.levels if rule.kind != "view"]


class _Formulas:
    """The formulas of one case over arrays ``[value]``."""

    def __init__(self, case: Case, names: Mapping[str, Ints], fixed: Mapping[str, Any], size: int) -> None:
        self.case, self.names, self.fixed, self.size = case, names, fixed, size
        self._done: dict[str, Any] = {}

    def integer(self, n: Node) -> Ints:
        return np.broadcast_to(np.asarray(self.value(n)).astype(np.int64), (self.size,))

    def condition(self, n: Node) -> Bools:
        return np.broadcast_to(np.asarray(self.value(n)).astype(np.bool_), (self.size,))

    def value(self, n: Node) -> Any:
        known = value_of(n)
        if known is not None:
            return known
        match n:
            case Name(id=name) if name in self.case.let:
                if name not in self._done:
                    self._done[name] = self.value(self.case.let[name])
                return self._done[name]
            case Name(id=name) if name in self.names:
                return self.names[name]
            case Name(id=name) if name in self.fixed:
                return self.fixed[name]
            case Select(cond=c, a=a, b=b):
                return np.where(self.condition(c), self.value(a), self.value(b))
            case Cmp(op=op, left=a, right=b):
                return _COMPARE[op](self.value(a), self.value(b))
            case Logic(op="not", args=(a,)):
                return ~self.condition(a)
            case Logic(op=op, args=args):
                parts = [self.condition(a) for a in args]
                return (np.logical_and if op == "and" else np.logical_or).reduce(parts)
            case Op(op=op, args=args) if op in rule_names():
                return self._rule(op, args)
            case Op(op=op, args=args, format=None) if op in _ARITHMETIC:
                return _ARITHMETIC[op](*(self.integer(a) for a in args))
            case _:
                raise UnsupportedError(
                    f"{n} has no meaning over arrays", place="formula", remedy="use ulpscope plan"
                )

    def _rule(self, op: str, args: Sequence[Node]) -> Ints:
        """The rule itself, once for each set of arguments."""
        lists = [isinstance(a, Name) and a.id == "kv_lens" for a in args]
        kv_len, batch = self.value(Name("kv_len")), self.value(Name("batch"))
        columns = [
            np.broadcast_to(np.asarray(kv_len if is_list else self.value(a)).astype(np.int64), (self.size,))
            for a, is_list in zip(args, lists, strict=True)
        ]
        if any(lists):
            columns.append(np.broadcast_to(np.asarray(batch, np.int64), (self.size,)))
        table, back = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        results = np.empty(len(table), np.int64)
        for i, row in enumerate(table.tolist()):
            given = tuple(
                (x,) * min(row[-1], MAX_BATCH) if is_list else x
                for x, is_list in zip(row, lists, strict=False)
            )
            try:
                results[i] = call_rule(op, given)
            except SpecError:
                results[i] = 0
        return results[back.reshape(-1)]


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: np.asarray(a == b),
    "!=": lambda a, b: np.asarray(a != b),
    "<": lambda a, b: np.asarray(a < b),
    "<=": lambda a, b: np.asarray(a <= b),
    ">": lambda a, b: np.asarray(a > b),
    ">=": lambda a, b: np.asarray(a >= b),
}


def _over(a: Ints, b: Ints) -> Ints:
    return np.where(b != 0, a // np.where(b == 0, 1, b), 0)


def _ceilpow2(a: Ints) -> Ints:
    out = np.ones_like(a)
    while (out < a).any():
        out = np.where(out < a, 2 * out, out)
    return out


_ARITHMETIC: dict[str, Callable[..., Ints]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _over,
    "%": lambda a, b: a - b * _over(a, b),
    "ceildiv": lambda a, b: -_over(-a, b),
    "^": lambda a, b: a ^ b,
    "neg": lambda a: -a,
    "abs": lambda a: np.abs(a),
    "min": lambda *v: np.minimum.reduce(v),
    "max": lambda *v: np.maximum.reduce(v),
    "ceilpow2": _ceilpow2,
}
