"""What the tests of both walkers share: one problem evaluated by each, and sites compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec, load_platform
from verify.arguments import Problem, from_qkv, from_scores
from verify.emulator import Run
from verify.engine.layout import prepare, shape_of
from verify.judge import judge

BF16 = ml_dtypes.bfloat16
INF = float("inf")
Array = NDArray[Any]


def gpu(sms: int) -> Platform:
    """A GPU with so many SMs."""
    return load_platform("h200").model_copy(update={"sm_count": sms})


def problem(spec: Spec, **arrays: Any) -> Problem:
    """The problem of ``scores`` and ``values``, or of ``q``, ``k``, ``v`` with ``scale`` and ``causal``."""
    numbers = spec.numbers
    inputs = {n: numbers.input_format(n) for n in ("q", "k", "v")}
    causal = bool(arrays.get("causal", False))
    if "scores" in arrays:
        return from_scores(arrays["scores"], arrays["values"], inputs, numbers.compute_format, causal, 0)
    return from_qkv(arrays["q"], arrays["k"], arrays["v"], inputs, arrays.get("scale"), causal, 0)


def engine(spec: Spec, platform: Platform, given: Problem, **context: Any) -> Run:
    """A run of the array engine."""
    return Run.start(spec, platform, given, context, {}, "engine")


def roomy(run: Run, capacity: int, table: Sequence[int]) -> Run:
    """The run with room for ``capacity`` tokens and tables of at least the shape ``table``: one compilation for all."""
    given = run.problem
    run.kv = prepare(given.k, given.v, given.formats, capacity)
    run.padded = tuple(max(a, b) for a, b in zip(table, shape_of(run.plan), strict=True))
    return run


def bits(x: Array) -> Array:
    """The bits of an array, one pattern for every NaN."""
    if x.dtype == np.bool_:
        return x
    words = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").copy()
    words[np.isnan(x.astype(np.float64))] = np.iinfo(words.dtype).max
    return words


def assert_same_bits(got: Array, want: Array, what: str) -> None:
    """Equal dtype, shape and bits, NaN payloads aside."""
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    wrong = np.argwhere(bits(got) != bits(want))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise AssertionError(f"{what} at {at} ({len(wrong)} of {got.size}): {got[at]!r} is not {want[at]!r}")


def assert_engine_is_oracle(
    run: Run, pairs: Sequence[tuple[int, int]], dims: Sequence[int] | None = None
) -> None:
    """Every site of ``run``, evaluated together, has the oracle's bits in the (head, row) ``pairs``.

    ``dims`` are the output columns to compare; None: all.
    """
    names = run.site_names()
    run.evaluate(names)
    want: Mapping[str, Array] = judge(run.program, run.plan, run.problem, run.scalars, names, pairs, dims)
    for name in names:
        got = run.known[name][tuple(np.array(pairs).T)]
        if dims is not None and "dim" in run.program.sites[name].type.axes:
            got = got[..., list(dims)]
        assert_same_bits(got, want[name], f"{run.spec.name} {name}, {run.problem.kv_len} tokens")


# -- numbers ----------------------------------------------------------------------------------------------


def some_scores(kind: str, rng: np.random.Generator, n: int, wide: bool) -> Array:
    """``[n]`` scores of a kind; float32 values, of any magnitude where not ``wide``."""
    normal = rng.normal(0, 1, n)
    match kind:
        case "near":
            s = 0.1 * normal
        case "usual":
            s = 2 * normal
        case "far":
            s = 30 * normal
        case "ties":
            s = np.round(4 * normal) / 8
        case "zeros":
            s = np.where(normal > 0, 0.0, -0.0)
        case "deep":  # exp is subnormal in f32 between 87.3 and 103.97 below the maximum
            s = -rng.uniform(86, 105, n)
            s[rng.random(n) < 2 / max(1, n)] = 0
        case "tiny":
            s = normal * 1e-42
        case "huge":
            s = normal * (1e30 if wide else 2e38)
        case "holes":
            s = np.where(rng.random(n) < 0.6, -INF, 2 * normal)
        case "groups":
            s = np.where((np.arange(n) // 64) % 3 == rng.integers(0, 3), -INF, 2 * normal)
        case "nothing":
            s = np.full(n, -INF)
        case _:
            raise AssertionError(kind)
    with np.errstate(over="ignore", under="ignore"):
        s = s.astype(np.float32)
    s = np.where(np.isposinf(s), np.float32(3.4e38), s)
    return s.astype(np.float64) if wide else s


SCORES = ("near", "usual", "far", "ties", "zeros", "deep", "tiny", "huge", "holes", "groups", "nothing")


def some_numbers(kind: str, rng: np.random.Generator, shape: tuple[int, ...], wide: bool) -> Array:
    """Values, queries or keys of a kind, as float64; where ``wide``, without what makes f64 subnormal."""
    normal = rng.normal(0, 1, shape)
    match kind:
        case "usual":
            x = normal
        case "large":
            x = normal * 1e5
        case "whole":
            x = np.round(3 * normal)
        case "signed zeros":
            x = np.where(rng.random(shape) < 0.5, np.copysign(0.0, normal), normal)
        case "tiny":
            x = normal * (1e-30 if wide else 1e-39)
        case "huge":
            x = np.clip(normal, -3, 3) * (1e30 if wide else 1e38)
        case "spread":
            x = normal * 2.0 ** rng.integers(-60, 60, shape)
        case _:
            raise AssertionError(kind)
    return x


NUMBERS = ("usual", "large", "whole", "signed zeros", "tiny", "huge", "spread")
