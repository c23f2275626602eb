"""The scalar oracle behind ``emulate(..., backend="oracle")``: the definition, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.names import SCALARS
from specs.program import CONSTANTS, Program
from verify.arguments import Problem
from verify.definition import RowInputs, ScalarArithmetic, evaluate, evaluate_rows
from verify.numerics.rounding import store
from verify.partition import Plan


def judge(
    program: Program,
    plan: Plan,
    problem: Problem,
    scalars: Mapping[str, float],
    names: Sequence[str],
    rows: Sequence[tuple[int, int]] | None = None,
    dims: Sequence[int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Sites by the scalar definition.

    Args:
        program, plan, problem, scalars: one bound problem.
        names: sites.
        rows: (KV head, row) pairs to evaluate; None: all.
        dims: output columns to evaluate; None: all.

    Returns:
        by site ``[kv_head, row, *axes]`` (``[pair, *axes]`` where ``rows`` is given) in the storage dtype of the
        site's format or bool, NaN or False where nothing stands.
    """
    pairs = (
        [(h, r) for h in range(problem.heads) for r in range(problem.rows)] if rows is None else list(rows)
    )
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for values in _rows(program, plan, problem, scalars, names, pairs, dims):
        for name in names:
            found[name].append(_stored(program, name, values[name]))
    result: dict[str, NDArray[Any]] = {}
    for name, parts in found.items():
        data = np.stack(parts)
        result[name] = (
            data if rows is not None else data.reshape(problem.heads, problem.rows, *data.shape[1:])
        )
    return result


def _rows(
    program: Program,
    plan: Plan,
    problem: Problem,
    scalars: Mapping[str, float],
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    dims: Sequence[int] | None,
) -> Iterator[dict[str, np.ma.MaskedArray[Any, Any]]]:
    """The values of each of ``pairs``: row by row, or all rows of a head together where the spec couples them."""
    arithmetic = ScalarArithmetic()
    if not program.couples_rows:
        for head, row in pairs:
            yield evaluate(
                program, plan, row_inputs(program, problem, scalars, head, row), names, arithmetic, dims
            )
        return
    found: dict[tuple[int, int], dict[str, np.ma.MaskedArray[Any, Any]]] = {}
    for head in dict.fromkeys(h for h, _ in pairs):
        inputs = [row_inputs(program, problem, scalars, head, r) for r in range(problem.rows)]
        wanted = list(dict.fromkeys(r for h, r in pairs if h == head))
        results = evaluate_rows(program, plan, inputs, names, arithmetic, dims, wanted)
        found |= {(head, row): result for row, result in zip(wanted, results, strict=True)}
    yield from (found[pair] for pair in pairs)


def constants(program: Program, plan: Plan, scalars: Mapping[str, float]) -> dict[str, float]:
    """The values of the spec's ``[constants]``, which the host computes in f64 unless a line says otherwise."""
    names = [s.name for s in program.sites.values() if s.section == CONSTANTS]
    if not names:
        return {}
    values = evaluate(program, plan, RowInputs(scalars=scalars), names, ScalarArithmetic())
    return {name: float(values[name].item()) for name in names}


def row_inputs(
    program: Program, problem: Problem, scalars: Mapping[str, float], head: int, row: int
) -> RowInputs:
    """One row of ``problem``, as the definition takes it: float64 values of the input formats.

    ``scalars`` may hold constants of the spec, which the definition computes by itself.
    """
    low, high = int(problem.low[row]), int(problem.high[row])
    feed: dict[str, NDArray[Any]] = {}
    if problem.scores is not None:
        position = np.arange(problem.kv_len)
        seen = (position >= low) & (position < high)
        feed[program.score_site()] = np.where(seen, problem.scores[head, row].astype(np.float64), -np.inf)
    return RowInputs(
        q=None if problem.q is None else problem.q[head, row].astype(np.float64),
        k=None if problem.k is None else problem.k[:, head].astype(np.float64),
        v=problem.v[:, head].astype(np.float64),
        visible=lambda token: low <= token < high,
        scalars={**{n: x for n, x in scalars.items() if n in SCALARS}, **problem.head_scalars(head, row)},
        query=int(problem.query_index[row]),
        feed=feed,
    )


def _stored(program: Program, name: str, value: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    site = program.sites[name]
    if site.type.kind == "bool":
        return np.asarray(value.filled(False))
    return store(np.asarray(value.filled(np.nan), dtype=np.float64), site.type.format or program.compute)
