"""Inputs that refute: random ones first, then a short search; and the command that computes them again."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from search.sides import Side
from specs.errors import UlpscopeError, UnsupportedError
from verify.case import Case, random_case
from verify.explain import bit_text, decimal
from verify.numerics.ulp import format_of

#: Random inputs that are tried, by seed.
SEEDS = (1, 2)
#: Tokens times query heads up to which the scalar definition answers sooner than the engine compiles.
SMALL = 600
#: Powers of two that cancel in q k, where the sides round it otherwise.
CARRIES = (10, 14, 20)
#: Candidates of the search.
EVALUATIONS = 1500
RLIMIT = 2_000_000


@dataclass(frozen=True)
class Tried:
    """What was tried.

    Attributes:
        words: what, in words.
        witness: an input whose bits differ: both patterns, where, and the command that shows it; None: none was found.
    """

    words: str
    witness: dict[str, Any] | None = None


def try_inputs(a: Side, b: Side, context: Mapping[str, Any], seconds: float) -> Tried:
    """Look for an input whose outputs differ.

    Raises:
        UlpscopeError: a side does not take the shape.
    """
    from search.bound import same_logits

    began = time.perf_counter()
    for seed in SEEDS:
        found = _random(a, b, context, seed)
        if found is not None:
            return Tried(f"random input, seed {seed}", found)
        if time.perf_counter() - began > seconds:
            return Tried(f"{seed} random inputs")
    if not same_logits(a, b, context):
        for carry in CARRIES:
            found = _random(a, b, context, SEEDS[0], carry)
            if found is not None:
                return Tried(
                    f"2^{carry} and -2^{carry} in every row of K, which cancel; the rest random", found
                )
            if time.perf_counter() - began > seconds:
                return Tried("random inputs")
    left = seconds - (time.perf_counter() - began)
    try:
        found = _searched(a, b, context, left)
    except UnsupportedError:
        return Tried(f"{len(SEEDS)} random inputs")
    words = f"{len(SEEDS)} random inputs and a search of {EVALUATIONS:,} candidates"
    return Tried("found by search" if found else words, found)


def _random(
    a: Side, b: Side, context: Mapping[str, Any], seed: int, carry: int | None = None
) -> dict[str, Any] | None:
    heads = {n: int(context[n]) for n in ("q_heads", "kv_heads", "head_dim") if n in context}
    kv_len = int(context["kv_len"])
    rest = {n: v for n, v in context.items() if n not in heads and n != "kv_len"}
    case = random_case(seed, kv_len, **heads)
    if carry is not None:
        case = _carrying(case, carry)
    small = kv_len * heads.get("q_heads", 24) <= SMALL
    outputs: list[Any] = []
    for side in (a, b):
        own = case.with_context({**rest, **side.context})
        backend = "oracle" if small else "engine"
        outputs.append(own.emulate(side.spec, side.platform, options=side.options, backend=backend).output)
    found = difference(*outputs)
    if found is None:
        return None
    if carry is not None:
        return found | {
            "seed": seed,
            "carry": carry,
            "replay": "the same command: these inputs are no random ones",
        }
    command = ["ulpscope", "compare", _cell(a), _cell(b), "--random", str(seed), *_shape(context)]
    return found | {"seed": seed, "replay": shlex.join(command)}


def _carrying(case: Case, carry: int) -> Case:
    """A large number and its negative in every row of K, where q is 1: what a tensor core loses meanwhile shows its bits."""
    arrays = {n: x.copy() for n, x in case.arrays.items()}
    arrays["q"][:, :2] = 1
    arrays["k"][..., 0], arrays["k"][..., 1] = 2.0**carry, -(2.0**carry)
    return replace(case, arrays=arrays)


def difference(left: Any, right: Any) -> dict[str, Any] | None:
    """The first output whose bits differ, with both patterns; None where all agree, NaN payloads aside."""
    if left.dtype != right.dtype:
        return {"text": f"outputs of other formats: {left.dtype.name} and {right.dtype.name}"}
    words = f"u{left.dtype.itemsize}"
    x, y = np.ascontiguousarray(left), np.ascontiguousarray(right)
    apart = (x.view(words) != y.view(words)) & ~((x != x) & (y != y))
    if not apart.any():
        return None
    at = [int(i) for i in np.argwhere(apart)[0]]
    fmt = format_of(x.dtype)
    shown = [(decimal(z[tuple(at)], fmt), bit_text(z[tuple(at)], fmt)) for z in (x, y)]
    where = f"head {at[-2]}, column {at[-1]}" if len(at) > 1 else f"column {at[-1]}"
    return {
        "text": f"{where}: {shown[0][0]} ({shown[0][1]}) against {shown[1][0]} ({shown[1][1]}), "
        f"{int(apart.sum()):,} of {apart.size:,} outputs differ",
        "index": at,
        "bits": [bits for _, bits in shown],
    }


def _searched(a: Side, b: Side, context: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
    from search.bound import same_logits
    from search.run import Budget, search_by
    from search.space import Space

    kv_len = int(context["kv_len"])
    rest = {n: v for n, v in context.items() if n != "kv_len"}
    if seconds <= 1:
        return None
    # Where the sides round q k otherwise, an input of q, k and v parts them before any score does.
    kind = "scores" if same_logits(a, b, context) else "qkv"
    space = Space(kv_len=kv_len, kind=kind, context=rest, cancellation=0.5)
    try:
        outcome = search_by("search", [a, b], space, seed=0, budget=Budget(EVALUATIONS, RLIMIT, seconds))
    except UnsupportedError:
        raise
    except UlpscopeError:
        return None
    if outcome.best is None:
        return None
    hit = outcome.best
    found = difference(*(o.stored[0] for o in hit.outputs))
    if found is None:
        return None
    command = ["ulpscope", "search", _cell(a), _cell(b), *_shape(context), "--evaluations", str(EVALUATIONS)]
    return found | {"replay": shlex.join([*command, "--rlimit", str(RLIMIT), "--space", kind])}


def _shape(context: Mapping[str, Any]) -> list[str]:
    """The options that say a shape."""
    named = ("kv_len", "q_heads", "kv_heads", "head_dim", "batch")
    out = [x for n, v in context.items() if n in named for x in (f"--{n.replace('_', '-')}", str(v))]
    return out + [x for n, v in context.items() if n not in named for x in ("--set", f"{n}={v}")]


def _cell(side: Side) -> str:
    """SPEC@PLATFORM as it was named: a path where the spec is no file of the library."""
    from specs.discover import PACKAGE

    origin = side.spec.origin
    inside = origin.startswith(str(PACKAGE))
    return f"{side.spec.name if inside else origin}@{side.platform.name}"
