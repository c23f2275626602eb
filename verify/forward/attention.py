"""Attention of a whole sequence through a spec: every token in a call of its own, or all in one causal call.

In steps, token p is answered by a call with ``kv_len = p + 1``, whose partition is that of its own length. Calls whose
partitions are the same but for tokens that are not there yet are computed together: what a row must not see is masked,
and with the partition held fixed a masked token changes no bit (a law of every spec of the library, see
docs/numerics.md). The groups hang on lengths alone, so they are found once and serve every layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec, load_platform, load_spec, parse_spec
from specs.bind import bind
from specs.errors import InputError, SpecError, did_you_mean
from specs.program import Program
from specs.writer import quote, table
from verify.emulator import Run, make_problem, start_run
from verify.engine.compile import structure
from verify.engine.layout import KV, bucket, prepare, tables
from verify.engine.run import Rows, Work, evaluate_sites
from verify.forward.architecture import Architecture
from verify.forward.config import Attention
from verify.numerics.rounding import storage_dtype
from verify.partition import Plan, plan_program
from verify.together import common_shape

_LARGEST = 64  # queries of one call
_SMALLEST = 16

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Group:
    """Queries that one partition serves: ``first <= position < last``; ``run`` is bound at their largest length."""

    first: int
    last: int
    run: Run


@dataclass(frozen=True, eq=False)
class Backend:
    """A spec on a platform, bound to the lengths of one sequence.

    Attributes:
        spec, platform: what computes. context: what formulas see beyond the shape. options: of the spec.
        groups: of the queries, ascending.
        rows: queries of one call; the last call of a group repeats its last query.
        padded: the table shape that all partitions are padded to.
    """

    spec: Spec
    platform: Platform
    context: Mapping[str, Any]
    groups: tuple[Group, ...]
    rows: int
    padded: tuple[int, ...]

    def attend(self, q: Array, k: Array, v: Array) -> tuple[Array, Array | None]:
        """The output ``[queries, q_heads, head_dim]`` in the spec's format and the lse ``[queries, q_heads]`` or None.

        Args:
            q: ``[queries, q_heads, head_dim]``: queries of the positions of the groups, in order.
            k: ``[tokens, kv_heads, head_dim]``, at least as many tokens as the last position has; v: likewise.

        Raises:
            InputError, UnsupportedError: as `verify.emulate`.
        """
        tokens = self.groups[-1].last
        problem = make_problem(
            self.spec, {"q": q, "k": k[:tokens], "v": v[:tokens]}, None, False, dict(self.context)
        )
        assert problem.q is not None
        assert problem.k is not None
        capacity = bucket(max(len(k), tokens))
        kv = prepare(problem.k, problem.v, problem.formats, capacity)
        heads = problem.heads
        each = problem.rows // problem.queries
        by_query = problem.q.reshape(heads, len(q), each, -1)
        sites = [n for n in ("output", "lse") if n in self.groups[0].run.program.sites]
        found: dict[str, list[Array]] = {n: [] for n in sites}
        base = self.groups[0].first
        for group in self.groups:
            step = self.rows if not group.run.program.couples_rows else group.last - group.first
            for start in range(group.first, group.last, step):
                positions = np.minimum(np.arange(start, start + step), group.last - 1)
                rows = by_query[:, positions - base].reshape(heads, step * each, -1)
                work = self._work(group.run, kv, rows, np.repeat(positions, each), problem.formats["q"])
                results, _ = evaluate_sites(work, sites)
                live = min(start + step, group.last) - start
                for name in sites:
                    found[name].append(self._natural(group.run, name, results[name], step)[:live])
        joined = {n: np.concatenate(parts) for n, parts in found.items()}
        return joined["output"], joined.get("lse")

    def _work(self, run: Run, kv: KV, rows: Array, positions: Array, fmt: Any) -> Work:
        seen = positions.astype(np.int32)
        window = int(self.context.get("window") or 0)
        low = np.maximum(seen + 1 - window, 0) if window else np.zeros_like(seen)
        made = Rows(rows, None, low.astype(np.int32), seen + np.int32(1), {"q": fmt}, seen)
        return Work(run.flat, made, kv, tables(run.plan, self.padded), run.problem.kv_len, run.scalars)

    def _natural(self, run: Run, name: str, data: Array, queries: int) -> Array:
        """``[kv_head, row, ...]`` words as ``[query, q_head, ...]`` in the dtype of the site."""
        typed = np.ascontiguousarray(data).view(storage_dtype(run.format_of(name)))
        heads, rows, *rest = typed.shape
        shaped = typed.reshape(heads, queries, rows // queries, *rest)
        return np.moveaxis(shaped, 0, 1).reshape(queries, heads * (rows // queries), *rest)


def load_cell(cell: str, lines: Mapping[str, Mapping[str, str]]) -> tuple[Spec, Platform]:
    """The spec and the platform of SPEC@PLATFORM, some lines of the spec replaced.

    Raises:
        SpecError: no such spec or platform, or a new line is wrong.
    """
    name, _, where = cell.rpartition("@")
    spec = load_spec(name)
    if lines:
        _check_lines(spec, lines)
        text = f"schema = 1\nname = {quote(spec.name + '.changed')}\nextends = {quote(name)}\n"
        text += f'status = {quote(spec.file.status)}\nsummary = "lines changed by model.toml"\n\n'
        text += "\n".join(table(f"[{section}]", dict(items)) for section, items in lines.items())
        try:
            spec = parse_spec(text, f"{spec.name} with attention.lines")
        except SpecError as error:
            raise SpecError(error.cause, place="attention.lines", remedy=error.remedy) from None
    return spec, load_platform(where)


def _check_lines(spec: Spec, lines: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a line that the spec does not have: it would be a new one, which nothing reads."""
    for section, items in lines.items():
        known = spec.sections.get(section)
        if known is None:
            raise InputError(
                f"{spec.name} has no section [{section}]",
                place="attention.lines",
                remedy=did_you_mean(section, spec.sections),
            )
        for name in items:
            if name not in known:
                raise InputError(
                    f"[{section}] of {spec.name} has no line '{name}'",
                    place="attention.lines",
                    remedy=did_you_mean(name, known),
                )


def bind_steps(part: Attention, a: Architecture, cell: str, first: int, last: int, dtype: Any) -> Backend:
    """The backend that answers the positions ``first <= p < last`` one call each.

    Args:
        part: context, options and lines.
        a: the model.
        cell: SPEC@PLATFORM.
        first, last: positions.
        dtype: NumPy dtype of q, k and v.

    Raises:
        as `verify.emulate`.
    """
    return _steps(part.model_dump_json(), a, cell, (first, last), np.dtype(dtype))


@lru_cache(maxsize=16)
def _steps(text: str, a: Architecture, cell: str, positions: tuple[int, int], dtype: Any) -> Backend:
    part = Attention.model_validate_json(text)
    spec, platform = load_cell(cell, _own_lines(part, cell))
    groups: list[Group] = []
    first, stop = positions
    while stop > first:
        run = _bound(spec, platform, part, a, stop, 1, dtype)
        start = stop - 1
        while start > first and _serves(run, *_partition(run, part.context, start)):
            start -= 1
        groups.append(Group(start, stop, run))
        stop = start
    return _backend(spec, platform, part, groups[::-1])


def bind_whole(part: Attention, a: Architecture, cell: str, count: int, dtype: Any) -> Backend:
    """The backend that answers the first ``count`` positions in one causal call; arguments as `bind_steps`."""
    spec, platform = load_cell(cell, _own_lines(part, cell))
    run = _bound(spec, platform, part, a, count, count, dtype)
    return _backend(spec, platform, part, [Group(0, count, run)])


def _own_lines(part: Attention, cell: str) -> Mapping[str, Mapping[str, str]]:
    """Changed lines are those of ``kernel``, not of the prompt's."""
    return part.lines if cell == part.kernel else {}


def _backend(spec: Spec, platform: Platform, part: Attention, groups: Sequence[Group]) -> Backend:
    largest = max(g.last - g.first for g in groups)
    rows = max(_SMALLEST, min(_LARGEST, -(-largest // _SMALLEST) * _SMALLEST))
    padded = common_shape(g.run.plan for g in groups)
    return Backend(spec, platform, part.context, tuple(groups), rows, padded)


def _bound(
    spec: Spec, platform: Platform, part: Attention, a: Architecture, kv_len: int, q_len: int, dtype: Any
) -> Run:
    """The spec bound to one call of this shape; the arrays are zeros of no size of their own."""

    def zeros(*shape: int) -> Array:
        return np.broadcast_to(np.zeros((), dtype), shape)

    arrays = {
        "q": zeros(q_len, a.q_heads, a.head_dim),
        "k": zeros(kv_len, a.kv_heads, a.head_dim),
        "v": zeros(kv_len, a.kv_heads, a.head_dim),
    }
    return start_run(
        spec,
        platform,
        arrays,
        causal=q_len > 1,
        context=dict(part.context),
        options=dict(part.options),
        kv=_NO_KV,
    )


_NO_KV = KV(k=None, v=np.zeros(0), formats={}, ranges={}, dim=0, capacity=0)


def _partition(like: Run, given: Mapping[str, Any], kv_len: int) -> tuple[Program, Plan]:
    """The program and the partition of a call of another length; ``given``: what the context fixes."""
    context = {**like.plan.context, "kv_len": kv_len}
    context |= {n: kv_len for n in ("max_kv_len", "kv_capacity") if n not in given}
    formats = {n: f for n, f in like.problem.formats.items() if n in ("q", "k", "v")}
    program = bind(like.spec, context, like.options, formats, like.platform.dot_products)
    return program, plan_program(program, context)


def _serves(top: Run, program: Program, plan: Plan) -> bool:
    """Whether the partition of ``top``, tokens past the length of ``plan`` masked, is ``plan``."""
    return _same(top.plan, plan) and structure(top.program) == structure(program)


def _same(longer: Plan, shorter: Plan) -> bool:
    if longer.levels != shorter.levels:
        return False
    for level in longer.levels:
        if not _equal(longer.exists[level], shorter.exists[level], False):
            return False
    cut = np.where(longer.tokens < shorter.kv_len, longer.tokens, -1)
    return _equal(cut, shorter.tokens, -1)


def _equal(a: Array, b: Array, hole: Any) -> bool:
    """Equal, padding of either aside."""
    if a.ndim != b.ndim:
        return False
    shape = tuple(max(n, m) for n, m in zip(a.shape, b.shape, strict=True))
    wide = [np.full(shape, hole, a.dtype) for _ in range(2)]
    for target, source in zip(wide, (a, b), strict=True):
        target[tuple(slice(n) for n in source.shape)] = source
    return bool(np.array_equal(wide[0], wide[1]))
