"""Many lengths of one sequence: decode steps as a conversation grows, with K and V laid out once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec
from specs.errors import InputError
from verify.arguments import Problem, from_qkv, query_rows, softmax_scale
from verify.emulator import Run
from verify.engine.contract import capacity_of
from verify.engine.layout import KV, prepare
from verify.partition import Plan


@dataclass(frozen=True)
class Step:
    """One decode step at ``kv_len`` tokens: ``output [q_heads, dim]``, ``lse [q_heads]`` or None, and the plan."""

    kv_len: int
    output: NDArray[Any]
    lse: NDArray[Any] | None
    plan: Plan


class KVCache:
    """K and V of one sequence: checked, rounded to a spec's formats and laid out once, for all lengths.

    Args:
        spec: whose input formats K and V are rounded to (any spec with the same formats can use the cache).
        k, v: ``[tokens, kv_heads, head_dim]``.

    Raises:
        InputError: wrong shape, dtype or value.
    """

    def __init__(self, spec: Spec, k: Any, v: Any) -> None:
        self._compute = spec.numbers.compute_format
        self.inputs = {n: spec.numbers.input_format(n) for n in ("q", "k", "v")}
        blank = np.zeros(np.shape(k)[1:] if np.ndim(k) == 3 else (1, 1), np.float32)
        self._problem = from_qkv(blank, k, v, self.inputs, 1.0, False, 0)
        self._kv: KV = prepare(self._problem.k, self._problem.v, self._problem.formats)

    def exactly(self) -> KV:
        """K and V laid out for this length alone, with no room for more."""
        p = self._problem
        return prepare(p.k, p.v, p.formats, capacity_of(p.kv_len))

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return self._problem.kv_len

    def at(self, q: Any, length: int, scale: float | None = None) -> Problem:
        """The decode step of ``q [q_heads, head_dim]`` over the first ``length`` tokens.

        Raises:
            InputError: the length is out of range, or ``q`` does not fit.
        """
        if not 0 <= length <= self.tokens:
            raise InputError(
                f"length {length} is not in 0..{self.tokens}",
                place="argument lengths",
                remedy="the cache holds no more tokens",
            )
        rows, fmt, shape = query_rows(q, self._problem, self.inputs["q"])
        count = rows.shape[1]
        assert self._problem.k is not None
        return replace(
            self._problem,
            q=rows,
            rows=count,
            shape=shape,
            k=self._problem.k[:length],
            v=self._problem.v[:length],
            formats={**self._problem.formats, "q": fmt},
            low=np.zeros(count, np.int32),
            high=np.full(count, length, np.int32),
            scale=softmax_scale(scale, rows.shape[2], self._compute),
        )

    def run(
        self,
        spec: Spec,
        platform: Platform,
        q: Any,
        length: int,
        *,
        scale: float | None = None,
        context: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        more: bool = True,
    ) -> Run:
        """The bound run of one step; ``context`` as in `verify.emulate`; ``more``: other lengths follow."""
        problem = self.at(q, length, scale)
        return Run.start(
            spec, platform, problem, dict(context or {}), options or {}, "engine", kv=self._kv, more=more
        )


def sweep(
    spec: Spec,
    platform: Platform,
    cache: KVCache,
    queries: Any,
    lengths: Sequence[int],
    *,
    scale: float | None = None,
    context: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Step]:
    """Decode steps over the first ``length`` tokens of ``cache`` for each of ``lengths``, one by one as they finish.

    Args:
        queries: ``[q_heads, head_dim]`` for all steps, or ``[steps, q_heads, head_dim]``.
        scale, context, options: as in `verify.emulate`.

    Raises:
        InputError: a length is out of range, or as `verify.emulate`.
    """
    q = np.asarray(queries)
    if q.ndim == 3 and len(q) != len(lengths):
        raise InputError(
            f"{len(q)} queries for {len(lengths)} lengths",
            place="argument queries",
            remedy="give one query for each length",
        )
    for i, length in enumerate(lengths):
        run = cache.run(
            spec, platform, q[i] if q.ndim == 3 else q, length, scale=scale, context=context, options=options
        )
        result = run.result()
        yield Step(length, result.output, result.lse, result.plan)
