"""`emulate`: one attention problem through one spec on one platform, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import InputError, UnsupportedError, did_you_mean
from specs.formats import Format
from specs.program import CONSTANTS, Program
from verify.admission import check_functions, check_views
from verify.arguments import Problem, floats, from_qkv, from_scores, whole_number
from verify.engine.inline import inlined
from verify.engine.layout import KV, Buckets, bucket, prepare, tables
from verify.engine.run import Rows, Work, evaluate_sites
from verify.engine.support import check_supported
from verify.features import NONE, Features, check_used, scalars, with_features
from verify.judge import constants, judge
from verify.numerics.rounding import storage_dtype, store
from verify.partition import Plan, plan_program
from verify.result import Result, Trace

BACKENDS = ("engine", "oracle")
_BUCKETS = Buckets()


def emulate(
    spec: Spec,
    platform: Platform,
    *,
    scores: Any = None,
    values: Any = None,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    scale: float | None = None,
    causal: bool = False,
    batch: int = 1,
    kv_capacity: int | None = None,
    kv_lens: Sequence[int] | None = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    softcap: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    context: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    backend: str = "engine",
) -> Any:
    """Emulate ``spec`` on ``platform``.

    Give either ready scores (``scores [rows, kv_len]``, already scaled, float32, -inf masks; ``values
    [kv_len, dim]``) or ``q [q_heads, head_dim]`` or ``[q_len, q_heads, head_dim]`` with ``k, v [kv_len, kv_heads,
    head_dim]``. Inputs are rounded once to the spec's input formats on entry; q and k that are already in a
    16-bit format are used as they are.

    Args:
        scale: softmax scale, by default ``head_dim ** -0.5``.
        causal: query i of n sees the tokens up to ``kv_len - n + i``.
        batch: sequences in the batch that this one is part of.
        kv_capacity: tokens the page table has room for, by default ``kv_len``.
        kv_lens: lengths of a ragged batch. ``q [batch, q_heads, head_dim]``, ``k, v [batch, longest, kv_heads,
            head_dim]``; a list of one `Result` for each sequence comes back.
        sinks, alibi_slopes, softcap, k_scale, v_scale: see `verify.features.Features`; refused where the spec has
            no line that uses them.
        context: what the partition needs and the arrays do not say (``q_heads``, ``kv_heads``, ``head_dim`` with
            ready scores; ``window``, ``num_splits``, versions, ...): see `specs.context.CONTEXT`.
        options: values for the spec's ``[options]``.
        backend: ``engine`` (fast) or ``oracle`` (the scalar definition, slow).

    Returns:
        a `Result`, or a list of them with ``kv_lens``.

    Raises:
        InputError: wrong name, shape, dtype or value. SpecError: the spec fails for this shape.
        UnsupportedError: a construct that the backend does not have. FidelityError: this machine or JAX cannot
            emulate faithfully.
    """
    if backend not in BACKENDS:
        raise InputError(
            f"unknown backend '{backend}'",
            place="argument backend",
            remedy=did_you_mean(str(backend), BACKENDS),
        )
    for name, given_map in (("context", context), ("options", options)):
        if given_map is not None and not isinstance(given_map, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "not a mapping", place=f"argument {name}", remedy="give a dict of names and values"
            )
    if not isinstance(causal, bool | np.bool_):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"{causal!r} is neither true nor false", place="argument causal", remedy="give a bool"
        )
    features = Features(sinks, alibi_slopes, softcap, k_scale, v_scale)
    if kv_lens is not None:
        rest = {"scale": scale, "causal": causal, "kv_capacity": kv_capacity, "context": context}
        rest |= {f.name: getattr(features, f.name) for f in fields(features)}
        return _ragged(spec, platform, q, k, v, kv_lens, {**rest, "options": options, "backend": backend})
    named = {"scores": scores, "values": values, "q": q, "k": k, "v": v}
    arrays = {name: array for name, array in named.items() if array is not None}
    given = {"batch": batch, "kv_capacity": kv_capacity, **(context or {})}
    return start_run(
        spec,
        platform,
        arrays,
        scale=scale,
        causal=causal,
        features=features,
        context=given,
        options=options,
        backend=backend,
    ).result()


def make_problem(
    spec: Spec,
    arrays: Mapping[str, Any],
    scale: Any,
    causal: bool,
    context: Mapping[str, Any],
    features: Features = NONE,
) -> Problem:
    """The problem of ``scores`` and ``values``, or of ``q``, ``k`` and ``v``, as ``spec`` takes them.

    A window or causality that the context names masks tokens, too: formulas and masks never disagree.

    Raises:
        InputError: wrong name, shape, dtype or value.
    """
    bare = _bare_problem(spec, arrays, scale, causal, context)
    return with_features(bare, features, spec.numbers.compute_format)


def _bare_problem(
    spec: Spec, arrays: Mapping[str, Any], scale: Any, causal: bool, context: Mapping[str, Any]
) -> Problem:
    numbers = spec.numbers
    inputs = {n: numbers.input_format(n) for n in ("q", "k", "v")}
    window = whole_number(context.get("window") or 0, "window")
    causal = causal or bool(context.get("causal"))
    if "scores" in arrays or "values" in arrays:
        if set(arrays) != {"scores", "values"}:
            raise InputError(
                "give scores and values, or q, k and v", place="arguments", remedy="not a mixture of the two"
            )
        return from_scores(arrays["scores"], arrays["values"], inputs, numbers.compute_format, causal, window)
    for name in ("q", "k", "v"):
        if name not in arrays:
            raise InputError(
                f"{name} is not given", place="arguments", remedy="give q, k and v, or scores and values"
            )
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    taken = numbers.accepts.model_dump()
    return from_qkv(q, k, v, inputs, scale, causal, window, numbers.compute_format, taken)


def start_run(
    spec: Spec,
    platform: Platform,
    arrays: Mapping[str, Any],
    *,
    scale: Any = None,
    causal: bool = False,
    features: Features = NONE,
    context: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    backend: str = "engine",
    kv: KV | None = None,
) -> Run:
    """Bind the problem of ``arrays`` to ``spec`` and ``platform``; nothing is computed yet.

    Args:
        arrays: by name, as the arguments of `emulate`. The others are as there, too.
        kv: K and V of this sequence laid out before, perhaps for more tokens.

    Raises:
        as `emulate`.
    """
    given = {**features.context(), **(context or {})}
    problem = make_problem(spec, arrays, scale, bool(causal), given, features)
    if causal:
        given["causal"] = 1
    return Run.start(spec, platform, problem, given, options or {}, backend, kv=kv)


def _shape(problem: Problem) -> dict[str, Any]:
    """What the arrays themselves say about the context."""
    shape: dict[str, Any] = {"kv_len": problem.kv_len}
    if problem.q is not None:
        shape |= {
            "q_heads": problem.heads * problem.rows // problem.queries,
            "kv_heads": problem.heads,
            "q_len": problem.queries,
            "head_dim": problem.q.shape[-1],
            "element_bytes": problem.v.dtype.itemsize,
        }
    return shape


def _ragged(
    spec: Spec, platform: Platform, q: Any, k: Any, v: Any, kv_lens: Sequence[int], rest: dict[str, Any]
) -> list[Result]:
    if not isinstance(kv_lens, Sequence | np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("not a sequence", place="argument kv_lens", remedy="give a list of integers")
    lengths = [whole_number(n, "kv_lens") for n in kv_lens]
    if q is None or k is None or v is None:
        raise InputError(
            "ragged batches take q, k and v",
            place="argument kv_lens",
            remedy="call emulate once a sequence for ready scores",
        )
    q, k, v = floats("q", q, (3, 4)), floats("k", k, (4,)), floats("v", v, (4,))
    if not lengths or not (len(q) == len(k) == len(v) == len(lengths)):
        raise InputError(
            f"{len(lengths)} lengths for batches of {len(q)}, {len(k)} and {len(v)}",
            place="argument kv_lens",
            remedy="give one length for each sequence",
        )
    longest = max(lengths)
    extra = dict(rest.pop("context") or {})
    capacity = rest.pop("kv_capacity") or longest
    context = {"max_kv_len": longest, **({} if "batch" in extra else {"kv_lens": lengths}), **extra}
    results: list[Result] = []
    for i, n in enumerate(lengths):
        if not 0 <= n <= len(k[i]):
            raise InputError(
                f"length {n} of sequence {i} is not in 0..{len(k[i])}",
                place="argument kv_lens",
                remedy="k and v hold the longest sequence",
            )
        results.append(
            emulate(
                spec,
                platform,
                q=q[i],
                k=k[i][:n],
                v=v[i][:n],
                batch=len(lengths),
                kv_capacity=capacity,
                context=context,
                **rest,
            )
        )
    return results


@dataclass
class Run:
    """One bound run, able to evaluate any of its sites; what `emulate` makes and `Trace` keeps.

    Attributes:
        spec, platform, problem: what was asked.
        program, plan: the typed program and the partition.
        scalars: values of `specs.infer.SCALARS`.
        backend, options: as in `emulate`.
        kv: K and V laid out (engine only); padded: the table shape of the plan.
        exact_path: see `Result`. known: sites evaluated so far, ``[kv_head, row, *axes]``.
    """

    spec: Spec
    platform: Platform
    problem: Problem
    program: Program
    plan: Plan
    scalars: Mapping[str, float]
    backend: str
    options: Mapping[str, Any]
    kv: KV | None = None
    padded: tuple[int, ...] = ()
    exact_path: bool = False
    known: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @classmethod
    def start(
        cls,
        spec: Spec,
        platform: Platform,
        problem: Problem,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        backend: str,
        kv: KV | None = None,
        more: bool = False,
    ) -> Run:
        """Bind ``spec`` to ``problem``.

        Args:
            given: context beyond the platform's and the arrays'.
            kv: K and V of ``problem``, laid out; made here if None.
            more: other lengths of the same order will follow, so compile for all of them.

        Raises:
            as `emulate`.
        """
        full = {
            **platform.context,
            **_shape(problem),
            **given,
        }
        context = make_context(full, place=f"{spec.name} on {platform.name}")
        _agree(context, problem)
        formats = {n: f for n, f in problem.formats.items() if n in ("q", "k", "v")}
        program = bind(spec, context, options, formats, platform.dot_products)
        check_used(program, problem)
        check_functions(program, platform)
        plan = plan_program(program, context)
        depth = problem.q.shape[-1] if problem.q is not None else int(context["head_dim"])
        check_views(program, plan, depth, problem.v.shape[-1])
        values = {
            "scale": problem.scale,
            "rsqrt_head_dim": float(depth) ** -0.5,
            "q_scale": problem.scale * float(depth) ** 0.5,
            **scalars(problem),
        }
        run = cls(spec, platform, problem, program, plan, values, backend, options, kv)
        if backend == "engine":
            check_supported(run.flat)
            _faithful(program.compute)
            run.scalars = {**values, **constants(program, plan, values)}

            def plan_at(length: int) -> Plan:
                other = make_context({**full, "kv_len": length}, place="bucket")
                return plan_program(bind(spec, other, options), other)

            fixed = tuple(sorted((n, str(x)) for n, x in full.items() if n != "kv_len" and x is not None))
            key = (tuple(sorted(options.items())), fixed)
            # What else tells compiled functions apart: a shape that no such function has saves no compilation.
            rows = (problem.heads, problem.rows, depth, problem.v.shape[-1], problem.q is None)
            structure = (spec.content_hash, rows, tuple(sorted(formats.items())))
            run.padded = _BUCKETS.shape(structure, key, plan, plan_at, more=more)
            if run.kv is None:
                run.kv = prepare(problem.k, problem.v, problem.formats)
            run.kv = run.kv.at(bucket(problem.kv_len))
        return run

    def result(self) -> Result:
        """Evaluate output and lse."""
        names = [n for n in ("output", "lse") if n in self.program.sites]
        self.evaluate(names)
        seen = (self.problem.high > self.problem.low) if self.problem.scores is None else None
        if seen is None:
            assert self.problem.scores is not None
            position = np.arange(self.problem.kv_len)
            visible = (position >= self.problem.low[:, None]) & (position < self.problem.high[:, None])
            live = (~np.isneginf(self.problem.scores[0].astype(np.float64)) & visible).any(axis=-1)
            empty = int((~live).sum())
        else:
            empty = int((~seen).sum()) * self.problem.heads
        return Result(
            output=self.outward("output"),
            lse=self.outward("lse") if "lse" in self.program.sites else None,
            trace=Trace(self),
            plan=self.plan,
            spec=self.spec.name,
            platform=self.platform.name,
            backend=self.backend,
            empty_rows=empty,
            exact_path=self.exact_path,
        )

    def site_names(self) -> tuple[str, ...]:
        """The sites that can be asked for: all but integers and, of the engine, lines with every element of K or V."""
        sites = self.flat.sites if self.backend == "engine" else self.program.sites
        return tuple(n for n, s in sites.items() if s.type.kind != "int")

    @cached_property
    def flat(self) -> Program:
        """The program as the array engine takes it."""
        return inlined(self.program)

    def format_of(self, name: str) -> Format:
        """The format of a site."""
        return self.program.sites[name].type.format or self.program.compute

    def evaluate(self, names: Sequence[str]) -> None:
        """Evaluate sites, together in one program, and keep them in ``known``.

        Raises:
            UnsupportedError: a construct that the backend does not have, or lines that refer to each other in
                a chain too long for it.
        """
        try:
            self._evaluate([n for n in names if n not in self.known])
        except RecursionError:
            raise UnsupportedError(
                "lines refer to each other in too long a chain",
                place=self.program.spec,
                remedy=f"the {self.backend} follows about a hundred; write longer expressions on fewer lines",
            ) from None

    def _evaluate(self, names: list[str]) -> None:
        if not names:
            return
        if self.backend == "oracle":
            self.known |= judge(self.program, self.plan, self.problem, self.scalars, names)
            return
        for name in [n for n in names if self.program.sites[n].section == CONSTANTS]:
            self.known[name] = self._constant(name)
            names.remove(name)
        if not names:
            return
        found, exact = evaluate_sites(self.work(), names)
        self.exact_path |= exact
        for name, data in found.items():
            self.known[name] = self._canonical(name, data)

    def _constant(self, name: str) -> NDArray[Any]:
        """A line of ``[constants]``, which the host has computed already, as every row sees it."""
        value = np.array(self.scalars[name])
        is_bool = self.program.sites[name].type.kind == "bool"
        word = value.astype(np.bool_) if is_bool else store(value, self.format_of(name))
        return np.broadcast_to(word, (self.problem.heads, self.problem.rows)).copy()

    def work(self) -> Work:
        """The run as the array engine takes it: rows, K and V, and a partition padded to a shape others share."""
        p = self.problem
        assert self.kv is not None
        formats = {n: f for n, f in p.formats.items() if n in ("q", "scores")}
        rows = Rows(p.q, p.scores, p.low, p.high, formats, p.query_index, p.per_row)
        return Work(self.flat, rows, self.kv, tables(self.plan, self.padded), p.kv_len, self.scalars)

    def _canonical(self, name: str, data: NDArray[Any]) -> NDArray[Any]:
        """Engine order to ``[kv_head, row, *axes]``, cut back to the plan and typed; holes become NaN or False."""
        kinds = self.program.sites[name].type.axes
        levels = [a for a in self.program.level_names if a in kinds]
        lead = len(levels)
        token = "token" in kinds
        if token:
            data = np.moveaxis(data, lead + 3, lead + 1)
            data = data.reshape(
                *data.shape[:lead], data.shape[lead] * data.shape[lead + 1], *data.shape[lead + 2 :]
            )
        inner = lead + int(token)
        data = np.moveaxis(data, (inner, inner + 1), (0, 1))
        sizes = dict(zip((*self.program.level_names, "token"), self.plan.tokens.shape, strict=True))
        cut = [slice(None), slice(None), *(slice(sizes[a]) for a in (*levels, *(["token"] if token else [])))]
        data = data[tuple(cut)]
        is_bool = self.program.sites[name].type.kind == "bool"
        if not is_bool:
            data = np.ascontiguousarray(data).view(storage_dtype(self.format_of(name)))
        hole = self._holes(levels, token)
        if hole is not None:
            shape = (1, 1, *hole.shape, *[1] * (data.ndim - 2 - hole.ndim))
            data = np.where(hole.reshape(shape), np.array(False if is_bool else np.nan, data.dtype), data)
        return data

    def _holes(self, levels: list[str], token: bool) -> NDArray[np.bool_] | None:
        """Where nothing stands; a position without some of the outer levels counts if it exists in any piece of them."""
        if token:
            hole = self.plan.tokens < 0
        elif levels:
            outer = self.program.levels_to(levels[-1])
            missing = tuple(i for i, name in enumerate(outer) if name not in levels)
            hole = np.asarray(~self.plan.exists[levels[-1]].any(axis=missing))
        else:
            return None
        return hole if hole.any() else None

    def outward(self, name: str) -> NDArray[Any]:
        """A site in the caller's shape: ``[*rows, *axes]``."""
        self.evaluate([name])
        return self.problem.outward(self.known[name])


def _agree(context: Mapping[str, Any], problem: Problem) -> None:
    """The context may say more than the arrays (which may hold some of the heads), never something else."""
    for name, value in _shape(problem).items():
        part = name in ("q_heads", "kv_heads") and context[name] > value
        if context[name] != value and name != "element_bytes" and not part:
            raise InputError(
                f"context says {name} = {context[name]}, the arrays say {value}",
                place="argument context",
                remedy=f"leave {name} out of the context",
            )


def _faithful(compute: Format) -> None:
    from verify.preflight import ensure_faithful

    ensure_faithful(compute.base)
