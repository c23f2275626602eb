"""Many candidates through one backend at once: each candidate is a KV head of the array engine.

The program, the plan and the compiled function are made once; a batch costs the evaluation and little more.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.compact import compact
from search.sides import Side, before_rounding
from search.space import Inputs, Space
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.names import SCALARS
from specs.program import Program
from verify.numerics.rounding import decode, round_array, storage_dtype, store, word_dtype

#: Slots of one call: candidates x tokens x (1 + dims).
MAX_SLOTS = 1 << 22
#: Places between two numbers that cancel: terms of one block of 16, of two blocks of 8.
CARRIED = 8
#: Elements of K and V of one call.
MAX_ELEMENTS = 1 << 25
#: Inputs of at most so many tokens are cheap: they are evaluated so many at a time, that one function serves all.
SMALL, SMALL_BATCH = 1024, 128


@dataclass(frozen=True, eq=False)
class Outputs:
    """What one side computes for a batch.

    Attributes:
        before: float64 ``[candidate, dim]``: what the last rounding takes in.
        stored: ``[candidate, dim]`` in the dtype of the output's format.
        format: format of the output.
    """

    before: NDArray[np.float64]
    stored: NDArray[Any]
    format: Format

    @property
    def index(self) -> NDArray[np.float64]:
        """The continuous index of ``before``: see `continuous_index`."""
        return continuous_index(self.before, self.format)


def continuous_index(x: NDArray[np.float64], fmt: Format) -> NDArray[np.float64]:
    """`verify.numerics.ulp.continuous_index` of each element."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        magnitude = np.abs(x)
        exponent = np.maximum(np.frexp(magnitude)[1] - 1, fmt.emin)
        within = np.ldexp(magnitude, fmt.p - 1 - exponent)
        place = np.copysign(within + (exponent - fmt.emin) * 2.0 ** (fmt.p - 1), x)
    return np.where(np.isfinite(x) & (x != 0), place, np.where(x == 0, 0.0, x))


class Evaluator:
    """One side of a search at one length.

    Args:
        side: spec and platform.
        space: the inputs.

    Raises:
        UnsupportedError: the array engine does not have a construct, or ready scores make no sense for the spec.
        SpecError, InputError: the spec fails for this shape.
    """

    def __init__(self, side: Side, space: Space) -> None:
        from specs.context import make_context
        from verify.admission import check_functions
        from verify.engine.inline import inlined
        from verify.engine.layout import shape_of, tables
        from verify.engine.support import check_supported
        from verify.judge import constants
        from verify.partition import plan_program

        self.side = side
        self.space = space
        context = space.full_context()
        program = side.program(context)
        check_functions(program, side.platform)
        program, self.site, self.format = before_rounding(program)
        self.program: Program = program
        self.plan = plan_program(
            program, make_context({**side.platform.context, **context, **side.context}, place=side.label)
        )
        self.flat = inlined(program)
        check_supported(self.flat)
        #: Whether the scalar definition computes, one candidate at a time, and not the array engine.
        self.scalar = False
        depth = int(context.get("head_dim", 1))
        values = {
            "scale": 1.0 if space.kind == "scores" else float(depth) ** -0.5,
            "rsqrt_head_dim": float(depth) ** -0.5,
            "q_scale": float(depth) ** 0.5,
            "softcap": 0.0,
            "k_scale": 1.0,
            "v_scale": 1.0,
        }
        values = {n: x for n, x in values.items() if n in SCALARS}
        self.scalars = {**values, **constants(program, self.plan, values)}
        self.kv_len = space.kv_len
        #: The first token that the side sees.
        self.first = space.first
        self.tables = tables(self.plan, shape_of(self.plan))
        self.columns = space.dims
        if space.kind == "scores":
            self._check_scores()
        else:
            self.columns = self._columns(depth)

    @cached_property
    def value_format(self) -> Format:
        """The format of V."""
        return self.program.inputs["v"]

    def _columns(self, depth: int) -> int:
        """How many columns V needs: those that are searched, or all of a head where a line depends on its column."""
        from verify.admission import check_views

        try:
            check_views(self.program, self.plan, depth, self.space.dims)
        except InputError:
            check_views(self.program, self.plan, depth, depth)
            return depth
        return self.space.dims

    def _check_scores(self) -> None:
        """Ready scores are scaled; a spec that scales them later takes something else by that name."""
        from search.lines import upstream

        scaled = set(SCALARS) - {"softcap", "k_scale", "v_scale"}
        score = self.program.score_site()
        for name, line in upstream(self.program).items():
            used = {getattr(n, "id", "") for n in line.walk()}
            if used & scaled:
                raise UnsupportedError(
                    f"line '{name}' of {self.side.spec.name} scales the scores",
                    place="space",
                    remedy="search its q, k and v: --space qkv",
                )
        if not score:
            raise UnsupportedError(
                f"{self.side.spec.name} has no site called score",
                place="space",
                remedy="search q, k and v: --space qkv",
            )

    def on(self, support: NDArray[np.int64]) -> Evaluator:
        """This side on the tokens of ``support`` alone, ascending: see `search.compact`."""
        from verify.engine.layout import shape_of, tables

        cut = copy.copy(self)
        cut.plan = compact(self.plan, support)
        cut.kv_len = len(support)
        cut.first = int(np.searchsorted(support, self.first))
        own = shape_of(cut.plan)
        least = (*([8] + [1] * (len(own) - 2) if len(own) > 1 else []), 2)
        shape = tuple(max(m, 1 << (n - 1).bit_length()) for n, m in zip(own, least, strict=True))
        cut.tables = tables(cut.plan, shape)
        return cut

    def batch(self, dims: int) -> int:
        """How many candidates one call takes."""
        if self.space.kind == "scores":
            return max(1, MAX_SLOTS // (self.kv_len * (1 + dims)))
        depth = int(self.space.context.get("head_dim", 1))
        return max(1, MAX_ELEMENTS // (self.kv_len * (depth + self.columns)))

    def run(self, inputs: Inputs) -> Outputs:
        """The outputs of a batch.

        Raises:
            InputError: the batch does not fit the space.
            UnsupportedError: the engine has no certain answer for an operand.
        """
        if inputs.kv_len != self.kv_len:
            raise InputError(
                f"{inputs.kv_len} tokens where {self.kv_len} are searched",
                place="inputs",
                remedy="make a space of that length",
            )
        size = self.batch(inputs.dims)
        parts = [self._run(inputs.pick(slice(i, i + size))) for i in range(0, inputs.count, size)]
        return Outputs(
            np.concatenate([p.before for p in parts]), np.concatenate([p.stored for p in parts]), self.format
        )

    def _run(self, inputs: Inputs) -> Outputs:
        if self.scalar:
            return self._walk(inputs)
        from verify.engine.layout import prepare
        from verify.engine.run import Rows, Work, evaluate_sites
        from verify.preflight import ensure_faithful

        ensure_faithful(self.program.compute.base)
        wanted = list(dict.fromkeys((self.site, "output")))
        real = inputs.count
        inputs = _padded(inputs, SMALL_BATCH if self.kv_len <= SMALL else 1)
        n, tokens = inputs.scores.shape
        compute = self.program.compute
        low, high, query = (np.full(1, x, np.int32) for x in (self.first, tokens, tokens - 1))
        values = np.zeros((tokens, n, self.columns))
        values[..., : inputs.dims] = inputs.values.transpose(1, 0, 2)
        stored = store(values, self.value_format)
        if self.space.kind == "scores":
            kv = prepare(None, stored, {"v": self.value_format})
            scores = self._seen(inputs.scores).astype(storage_dtype(compute))[:, None, :]
            rows = Rows(None, scores, low, high, {"scores": compute}, query)
        else:
            formats = self.program.inputs
            depth = int(self.space.context.get("head_dim", 1))
            q, k = realised(inputs.scores, depth, formats, self.space.carry)
            kv = prepare(
                np.ascontiguousarray(k.transpose(1, 0, 2)), stored, {"k": formats["k"], "v": formats["v"]}
            )
            rows = Rows(np.repeat(q[None, None], n, axis=0), None, low, high, {"q": formats["q"]}, query)
        found, _ = evaluate_sites(Work(self.flat, rows, kv, self.tables, tokens, self.scalars), wanted)
        taken: dict[str, NDArray[Any]] = {}
        for name in wanted:
            fmt = self.program.sites[name].type.format or compute
            words = np.ascontiguousarray(found[name]).view(storage_dtype(fmt))
            taken[name] = words.reshape(n, -1)[:real, : inputs.dims]
        return Outputs(taken[self.site].astype(np.float64), taken["output"], self.format)

    def _seen(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Ready scores, masked before the window."""
        return np.where(np.arange(scores.shape[1]) < self.first, np.float32(-np.inf), scores)

    def _walk(self, inputs: Inputs) -> Outputs:
        """As `_run`, by the scalar definition: nothing is compiled, which pays for a handful of candidates."""
        from verify.definition import RowInputs, ScalarArithmetic, Walker

        score = self.program.score_site()
        scalars = {n: x for n, x in self.scalars.items() if n not in self.program.sites}
        if self.space.kind == "scores":
            given: list[dict[str, Any]] = [
                {"feed": {score: s.astype(np.float64)}} for s in self._seen(inputs.scores)
            ]
        else:
            formats, depth = self.program.inputs, int(self.space.context.get("head_dim", 1))
            q, k = realised(inputs.scores, depth, formats, self.space.carry)
            q, k = (values_of(x, formats[n]) for x, n in ((q, "q"), (k, "k")))
            given = [{"q": q, "k": rows} for rows in k]
        visible = (lambda token: token >= self.first) if self.first else None
        found: dict[str, list[list[float]]] = {self.site: [], "output": []}
        for one, v in zip(given, inputs.values, strict=True):
            v = v.astype(np.float64)
            if v.shape[1] < self.columns:  # lines that depend on their column need all of a head
                v = np.pad(v, ((0, 0), (0, self.columns - v.shape[1])))
            row = RowInputs(v=v, scalars=scalars, query=self.kv_len - 1, visible=visible, **one)
            walker = Walker(self.program, self.plan, row, ScalarArithmetic())
            for name, rows in found.items():
                rows.append([walker.value(name, {"dim": d}) for d in range(inputs.dims)])
        stored = store(np.array(found["output"], dtype=np.float64), self.format)
        return Outputs(np.array(found[self.site], dtype=np.float64), stored, self.format)


def values_of(words: NDArray[Any], fmt: Format) -> NDArray[np.float64]:
    """Stored numbers as doubles."""
    return decode(np.ascontiguousarray(words).view(word_dtype(fmt)), fmt)


def _padded(inputs: Inputs, least: int) -> Inputs:
    """The batch, filled up to a power of two by its last candidate, so that few shapes are compiled."""
    size = max(least, 1 << max(0, inputs.count - 1).bit_length())
    if size == inputs.count:
        return inputs
    return inputs.pick(np.minimum(np.arange(size), inputs.count - 1))


def on_grid(values: NDArray[Any], fmt: Format) -> NDArray[np.float32]:
    """Values rounded to the format of V, in float32."""
    return round_array(values.astype(np.float64), fmt).astype(np.float32)


def realised(
    scores: NDArray[np.float32], depth: int, formats: Mapping[str, Format], carry: int | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Q and K whose scaled product is each score: exactly, where ``depth ** -0.5`` is a power of two.

    q is (1, ..., 1, 0, ...), and a row of K holds the score over the scale cut into numbers of its format: three
    bf16 numbers hold any f32 number.

    Args:
        scores: float32 ``[candidate, token]``, finite.
        depth: elements of a head.
        formats: of ``q`` and ``k``.
        carry: see `search.space.Space`; the two numbers stand `CARRIED` places apart.

    Returns:
        q ``[depth]`` and K ``[candidate, token, depth]`` in the dtypes of their formats.

    Raises:
        UnsupportedError: a head is too narrow to hold a score.
    """
    chunks = -(-25 // formats["k"].p)
    if chunks + (0 if carry is None else CARRIED + 1) > depth:
        raise UnsupportedError(
            f"a score takes {chunks} numbers of {formats['k']}, a head has {depth}",
            place="head_dim",
            remedy="give the context of a real model, such as head_dim = 64",
        )
    q = np.zeros(depth)
    q[:chunks] = 1.0
    k = np.zeros((*scores.shape, depth), storage_dtype(formats["k"]))
    rest = scores.astype(np.float64) * float(depth) ** 0.5
    rest = rest.astype(np.float32).astype(np.float64)
    for i in range(chunks):
        part = round_array(rest, formats["k"])
        k[..., i] = store(part, formats["k"])
        rest = rest - part
    if carry is not None:
        pair = [chunks, chunks + CARRIED]
        q[pair] = 1.0
        k[..., pair] = store(np.array([2.0**carry, -(2.0**carry)]), formats["k"])
    return store(q, formats["q"]), k
