"""Many hybrids by the scalar definition, each value once.

The definition remembers the value of every line at every index. Hybrids have most of their lines in common, so their
walkers share what they remember: a line of two hybrids is one line if everything that it depends on is the same, lines,
formats, partition, inputs and tensor cores. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.explain.flat import reads
from search.explain.hybrid import Hybrid
from specs.program import Program
from verify.arguments import Problem
from verify.definition import RowInputs, ScalarArithmetic, Walker
from verify.definition.layout import Index, Layout, Read, getter
from verify.definition.walker import Block
from verify.judge import row_inputs

Key = Any
Row = tuple[int, int]
#: Values of a score site by its key: ``[row, token]`` of one KV head, float64.
Fed = Mapping[Key, NDArray[np.float64]]


def keys(hybrid: Hybrid) -> dict[str, Key]:
    """What identifies the values of each line, within one input."""
    if "keys" not in hybrid.memory:
        hybrid.memory["keys"] = _keys(hybrid)
    return hybrid.memory["keys"]


def _keys(hybrid: Hybrid) -> dict[str, Key]:
    program = hybrid.program
    refs = {name: reads(program, name) for name in program.sites}
    frame = (
        program.compute,
        tuple(program.inputs.items()),
        program.levels,
        tuple((v.name, v.size, v.axis, v.index) for v in program.views.values()),
        hybrid.plan.tokens.tobytes(),
        program.dot_products,
    )
    shared = hash(frame), frame
    return {name: (shared, _lines(program, refs, name)) for name in program.sites}


def score_key(hybrid: Hybrid) -> Key:
    """What identifies the values of the score: its lines, the inputs and the tensor cores, not the partition."""
    if "score" not in hybrid.memory:
        hybrid.memory["score"] = _score_key(hybrid)
    return hybrid.memory["score"]


def _score_key(hybrid: Hybrid) -> Key:
    program = hybrid.program
    site = program.score_site()
    if not site:
        return None
    refs = {name: reads(program, name) for name in program.sites}
    return (
        program.compute,
        tuple(program.inputs.items()),
        program.dot_products,
        _lines(program, refs, site),
    )


def _lines(program: Program, refs: Mapping[str, Sequence[str]], name: str) -> frozenset[Any]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += refs[current]
    found: list[Any] = [name]
    for one in seen:
        site, state = program.sites[one], program.states.get(one)
        start = None if state is None else (state.scope, state.start, state.levels)
        found.append((one, site.section, site.expr, site.type.format, start))
    return frozenset(found)


class _SharedWalker(Walker):
    """A walker whose memory is shared with other walkers of the same row."""

    def __init__(
        self,
        hybrid: Hybrid,
        inputs: RowInputs,
        arithmetic: ScalarArithmetic,
        block: Block,
        known: dict[Key, Any],
    ) -> None:
        # As `Walker.__init__`, but for the check of every element of q, k and v, which all hybrids share.
        self.block = block
        self.block.walkers.append(self)
        self.program = hybrid.program
        self.inputs = inputs
        self.arithmetic = arithmetic
        self.layout = Layout(hybrid.program, hybrid.plan, inputs.depth, inputs.dim)
        self.it = len(self.layout.axes)
        self._reads: dict[str, Read] = {}
        self._known: dict[str, dict[Any, Any]] = {}
        self._keys: dict[str, Any] = {}
        self._identity = keys(hybrid)
        self._pool = known

    def read(self, site: str) -> Read:
        """The memoised reader of ``site``, over shared memory."""
        if site not in self._reads and site not in self.inputs.feed:
            identity = self._identity[site]
            if identity in self._pool:
                self._reads[site] = self._over(site, self._pool[identity])
            else:
                found = super().read(site)
                self._pool[identity] = self._known[site]
                return found
        return super().read(site)

    def _over(self, site: str, known: dict[Any, Any]) -> Read:
        """A reader of what another walker knows, which compiles its line when that is not enough."""
        axes = self.program.sites[site].type.axes
        key = getter(self.layout.slots(axes))
        self._known[site], self._keys[site] = known, key
        make: list[Read] = []

        def read(index: Index) -> Any:
            k = key(index)
            if k in known:
                return known[k]
            if not make:
                from verify.definition.expressions import Line

                found = self.program.sites[site]
                make.append(Line(self, found.section, found.place).compile(found))
            known[k] = value = make[0](index)
            return value

        return read


class Pool:
    """Evaluates hybrids of one input.

    Args:
        arithmetic: what numbers are.
        fed: by KV head, scores that are known; others are computed from q and k.
    """

    def __init__(self, arithmetic: ScalarArithmetic, fed: Mapping[int, Fed] | None = None) -> None:
        self.arithmetic = arithmetic
        self.fed = {} if fed is None else fed
        self._known: dict[tuple[int, int], dict[Key, Any]] = {}
        self._inputs: dict[Any, RowInputs] = {}
        self._arrays: dict[tuple[int, int], tuple[Any, Any]] = {}

    def values(
        self, hybrid: Hybrid, row: Row, dims: Sequence[int], sites: Sequence[str] = ()
    ) -> dict[str, list[float]]:
        """What the last rounding takes in and the output of one row, by column: doubles that hold values of formats.

        Args:
            hybrid: a legal hybrid.
            row: KV head, and row of that head.
            dims: columns.
            sites: names of lines with columns or without; None: the value before rounding, and the output.
        """
        head, number = row
        wanted = list(sites) or list(dict.fromkeys((hybrid.site, "output")))
        rows = range(hybrid.problem.rows) if hybrid.program.couples_rows else [number]
        block = Block()
        walkers = {
            r: _SharedWalker(
                hybrid,
                self._row(hybrid, head, r),
                self.arithmetic,
                block,
                self._known.setdefault((head, r), {}),
            )
            for r in rows
        }
        walker = walkers[number]
        found: dict[str, list[float]] = {}
        for name in wanted:
            has = "dim" in hybrid.program.sites[name].type.axes
            found[name] = [walker.value(name, {"dim": d} if has else {}) for d in dims]
        return found

    def _row(self, hybrid: Hybrid, head: int, number: int) -> RowInputs:
        problem, site = hybrid.problem, hybrid.program.score_site()
        fed = self.fed.get(head, {})
        key = score_key(hybrid) if fed else None
        scores = fed.get(key) if key is not None else None
        name = (id(problem), site, head, number, key if scores is not None else None)
        if name not in self._inputs:
            inputs = row_inputs(hybrid.program, problem, hybrid.scalars, head, number)
            shared = self._arrays.setdefault((id(problem), head), (inputs.k, inputs.v))
            inputs = replace(inputs, k=shared[0], v=shared[1])
            if scores is not None and problem.scores is None:
                inputs = replace(inputs, feed={site: scores[number]})
            self._inputs[name] = inputs
        return self._inputs[name]


def part_of(problem: Problem, head: int) -> Problem:
    """One KV head of a problem that has q, k and v."""
    assert problem.q is not None
    assert problem.k is not None
    group = problem.rows // problem.queries
    shape = (group,) if len(problem.shape) == 1 else (problem.queries, group)
    return replace(
        problem,
        heads=1,
        shape=shape,
        q=problem.q[head : head + 1],
        k=np.ascontiguousarray(problem.k[:, head : head + 1]),
        v=np.ascontiguousarray(problem.v[:, head : head + 1]),
        per_row={n: x[head : head + 1] for n, x in problem.per_row.items()},
    )
