"""One row of a side, replayed: the exact arithmetic, the independent partition and the generic walker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.exact.arithmetic import ExactArithmetic
from search.exact.dyadic import Number, is_finite, order, rounder, to_float
from search.exact.partition import difference, partition
from search.sides import Side, before_rounding
from specs.context import make_context
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.names import SCALARS
from specs.program import DIM, Program
from verify.admission import check_functions
from verify.definition import Block, RowInputs, Walker
from verify.partition import Plan


@dataclass(frozen=True, eq=False)
class Row:
    """What one query row is computed from, exactly.

    Attributes:
        scores: ``[token]``, scaled, NEG_INF where masked; where ``q`` is given, what they are exactly.
        values: ``[dim][token]``.
        v: the same, float64 ``[token, dim]``.
        q, k: float64 ``[depth]`` and ``[token, depth]``; None where ready scores are given.
        mates: ``q`` of every row of the KV head in order, this one included, for specs that compute them together.
        scale: the softmax scale, 1 for ready scores.
        low, high: the row sees the tokens from ``low`` to before ``high``.
        query: the number of its own token.
    """

    scores: Sequence[Number]
    values: Sequence[Sequence[Number]]
    v: NDArray[np.float64]
    q: NDArray[np.float64] | None
    k: NDArray[np.float64] | None
    mates: tuple[NDArray[np.float64], ...]
    scale: float
    low: int
    high: int
    query: int

    @property
    def kv_len(self) -> int:
        """Tokens."""
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Replay:
    """What one side computes for a row.

    Attributes:
        side: the backend.
        program: typed, with the site that holds what the last rounding takes in.
        site: its name.
        format: of the output. before_format: of that site.
        plan: the partition of `search.exact.partition`.
        partition_difference: where the emulator's plan differs; empty where it does not.
        walker: for the value of any other site.
        before, output: one number for each column.
        borrowed: functions taken from the scalar definition.
    """

    side: Side
    program: Program
    site: str
    format: Format
    before_format: Format
    plan: Plan
    partition_difference: str
    walker: Walker
    before: tuple[Number, ...]
    output: tuple[Number, ...]
    borrowed: tuple[str, ...]


def replay(side: Side, context: Mapping[str, Any], row: Row, arithmetic: ExactArithmetic) -> Replay:
    """The output of ``side`` for ``row``, and the value before its last rounding.

    Args:
        side: the backend.
        context: what formulas see, ``kv_len`` included.
        row: the input.
        arithmetic: may be shared between sides, which then share what it remembers.

    Raises:
        UnsupportedError: a construct without a scalar definition, or ready scores for a spec that cannot take them.
        InputError, SpecError: the input does not fit, or the spec fails for this shape.
    """
    full = make_context({**side.platform.context, **context, **side.context}, place=side.label)
    program, site, fmt = before_rounding(side.program(context))
    check_functions(program, side.platform)
    plan = partition(program, full)
    unequal = difference(plan, side.plan(context))
    borrowed, arithmetic.borrowed = arithmetic.borrowed, set()
    walker = _walker(program, plan, row, arithmetic)
    try:
        before, output = columns(walker, site, row), columns(walker, "output", row)
    except RecursionError:
        raise UnsupportedError(
            "lines refer to each other in too long a chain",
            place=program.spec,
            remedy="write longer expressions on fewer lines",
        ) from None
    own, arithmetic.borrowed = arithmetic.borrowed, borrowed | arithmetic.borrowed
    held = program.sites[site].type.format or program.compute
    return Replay(side, program, site, fmt, held, plan, unequal, walker, before, output, tuple(sorted(own)))


def columns(walker: Walker, site: str, row: Row) -> tuple[Number, ...]:
    """A site of the row, one number for each column of v; repeated where it has no columns."""
    if DIM not in walker.site(site).type.axes:
        return (walker.value(site),) * len(row.values)
    return tuple(walker.value(site, {DIM: column}) for column in range(len(row.values)))


def _walker(program: Program, plan: Plan, row: Row, arithmetic: ExactArithmetic) -> Walker:
    """The walker of the row; where the spec couples rows, in one block with all rows of its KV head."""
    inputs = _inputs(program, row)
    if not program.couples_rows or row.q is None:
        return Walker(program, plan, inputs, arithmetic)
    block = Block()
    walkers = [Walker(program, plan, replace(inputs, q=q), arithmetic, block) for q in row.mates]
    return next(w for w, q in zip(walkers, row.mates, strict=True) if q is row.q)


def _inputs(program: Program, row: Row) -> RowInputs:
    """The row as the walker takes it."""
    feed: dict[str, NDArray[Any]] = {}
    depth = 1 if row.q is None else len(row.q)
    if row.q is None:
        _check_scores(program)
        feed[program.score_site()] = _objects(_values_of(row.scores, program.compute, "scores"))
    root = float(depth) ** -0.5
    scalars = {
        "scale": row.scale,
        "rsqrt_head_dim": root,
        "q_scale": row.scale * float(depth) ** 0.5,
        "softcap": 0.0,
        "k_scale": 1.0,
        "v_scale": 1.0,
    }
    low, high = row.low, row.high
    return RowInputs(
        q=row.q,
        k=row.k,
        v=row.v,
        visible=None if low == 0 and high == row.kv_len else lambda token: low <= token < high,
        scalars={name: x for name, x in scalars.items() if name in SCALARS},
        query=row.query,
        feed=feed,
    )


def _check_scores(program: Program) -> None:
    """Ready scores are scaled; a spec that scales them later takes something else by that name."""
    score = program.score_site()
    scaling = set(SCALARS) - {"softcap", "k_scale", "v_scale"}
    for name, line in program.sites.items():
        if name != score and scaling & {getattr(n, "id", "") for n in line.expr.walk()}:
            raise UnsupportedError(
                f"line '{name}' of {program.spec} scales the scores",
                place="scores",
                remedy="give q, k and v",
            )
    if not score:
        raise UnsupportedError(
            f"{program.spec} has no site called score", place="scores", remedy="give q, k and v"
        )


def _values_of(numbers: Sequence[Number], fmt: Format, place: str) -> Sequence[Number]:
    """``numbers``, each of which is a value of ``fmt``."""
    last = rounder(replace(fmt, ftz=False))  # operations flush, inputs need not
    for token, x in enumerate(numbers):
        if is_finite(x) and order(last(x), x) != 0:
            raise InputError(
                f"{to_float(x)!r} of token {token} is no value of {fmt}",
                place=place,
                remedy="round it to the format first",
            )
    return numbers


def _objects(numbers: Sequence[Number]) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(len(numbers), dtype=np.object_)
    array[:] = numbers
    return array
