"""Small inputs on which the arithmetic of a spec shows: every rounding, order, guard and mask of it.

Each probe is made so that one kind of change cannot hide: sums that cancel to their own rounding errors, means
that are exact ties of bf16, a log-sum-exp near zero, weights that are subnormal, groups that are all masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec, load_platform
from tests.verify.mutation import answers

#: Tokens at which a spec has at least three groups with three steps each on `platform(2)`, cut symmetrically.
TOKENS = {
    "walkthrough.dense": 64,
    "walkthrough.flash_attention_2": 768,
    "walkthrough.tiled": 96,
    "walkthrough.triton": 512,
    "walkthrough.trtllm_gen": 512,
    "walkthrough.xqa": 1536,
    "vllm_triton.interpreter": 576,
    "vllm_triton.interpreter_2d": 192,
}
#: Tokens that no group shares.
UNITS = {
    "walkthrough.dense": 1,
    "walkthrough.flash_attention_2": 64,
    "walkthrough.tiled": 16,
    "walkthrough.triton": 16,
    "walkthrough.trtllm_gen": 128,
    "walkthrough.xqa": 256,
    "vllm_triton.interpreter": 16,
    "vllm_triton.interpreter_2d": 32,
}
Answers = Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class Probe:
    """Arguments of `emulate`, on a platform with so many SMs."""

    name: str
    sms: int
    arguments: dict[str, Any]


@lru_cache
def platform(sms: int) -> Platform:
    """A GPU with few SMs, so that short sequences have several groups of several blocks."""
    return load_platform("h200").model_copy(update={"sm_count": sms})


def answer(spec: Spec, probe: Probe) -> Answers:
    """The bits of output and lse by the oracle, with their dtypes, row by row."""
    return answers(spec, platform(probe.sms), probe.arguments, ("output", "lse"))


def probes(spec: Spec) -> list[Probe]:
    """The probes of a spec, cheap ones first."""
    n, unit = TOKENS[spec.name], UNITS[spec.name]
    wide = spec.numbers.compute == "f64"
    dtype = np.float64 if wide else np.float32
    rng = np.random.default_rng(7)
    found = [
        Probe("no token", 2, {"scores": np.zeros((1, 0), dtype), "values": np.zeros((0, 1))}),
        Probe("causal", 2, _causal(rng)),
        Probe("cancelling scores", 2, _cancelling(rng)),
        Probe("subnormal weights", 2, _deep(rng, n, dtype)),
        Probe("ties within a group", 2, _ties(28, 1, dtype)),
        Probe("ties across groups", 14, _ties(14, unit, dtype)),
        Probe("masked groups", 2, _masked(rng, n, dtype)),
        Probe("mirror", 2, _mirror(rng, n, dtype)),
        Probe("one unit, mirrored", 1, _mirror(rng, max(16, unit), dtype, shuffled=True)),
        Probe("one group, mirrored", 1, _mirror(rng, n, dtype)),
        Probe("many groups, mirrored", 16, _mirror(rng, n, dtype)),
        Probe("one ahead", 16, _one_ahead(rng, min(n, 1024), dtype)),
        Probe("rising groups", 14, _rising(rng, 14, max(2, unit), 14 * max(2, unit), dtype)),
        Probe("rising sums", 6, _sums(_rising(rng, 6, max(2, unit), 6 * max(2, unit), dtype, rows=12))),
    ]
    if spec.name == "vllm_triton.interpreter":  # five tiles in each segment
        found.append(Probe("rising tiles", 2, _rising(rng, 5, 16, 1040, dtype, rows=12)))
    for option, value in spec.file.options.items():
        found += [
            Probe(f"{p.name}, {option}", p.sms, {**p.arguments, "options": {option: not value}})
            for p in found
        ]
    return found


def _causal(rng: np.random.Generator) -> dict[str, Any]:
    q, k, v = (rng.normal(0, 1, s) for s in ((2, 2, 6), (21, 1, 6), (21, 1, 2)))
    return {"q": q, "k": k, "v": v, "scale": 0.3, "causal": True}


def _cancelling(rng: np.random.Generator) -> dict[str, Any]:
    """Scores that are nothing but the rounding errors of their own sums, scaled up to about 1."""
    size = 2.0 ** rng.integers(0, 15, 8)
    q, k = rng.normal(0, 1, 8) * size, rng.normal(0, 1, (6, 8))
    order = rng.permutation(8)
    q, k = np.concatenate([q, q[order]]), np.concatenate([k, -k[:, order]], axis=1)
    scale = 2.0**24 / float(np.abs(q * k).max())
    return {"q": q[None], "k": k[:, None], "v": rng.normal(0, 1, (6, 1, 2)), "scale": scale}


def _deep(rng: np.random.Generator, n: int, dtype: Any) -> dict[str, Any]:
    """Scores 86 to 103 below the maximum; the values make the small weights count, not the large one."""
    scores = -rng.uniform(86, 103, (2, n))
    v = np.abs(rng.normal(1, 0.3, (n, 2))) * 2.0**100
    for row, top in enumerate((5, n - 5)):
        scores[row, top], v[top] = 0, 0
    return {"scores": _f32(scores, dtype), "values": v}


def _ties(live: int, unit: int, dtype: Any) -> dict[str, Any]:
    """One token in each ``unit`` counts, all alike: the mean is a tie of bf16, which a reciprocal just misses.

    With 7 * 2**k tokens, ``S * (1 / n)`` in f32 falls beside the tie ``S / n`` and rounds another way.
    """
    n = live * unit
    scores = np.full((1, n), -np.inf, dtype)
    scores[0, ::unit] = 0
    low = np.array([1 + 44 / 128, 1 + 46 / 128, 1 + 45 / 128])
    values = np.where((np.arange(n) // unit)[:, None] % 2, low, low + 1 / 128)
    return {"scores": scores, "values": values}


def _masked(rng: np.random.Generator, n: int, dtype: Any) -> dict[str, Any]:
    scores = rng.normal(0, 1, (5, n))
    token = np.arange(n)
    scores -= np.array([[0], [0], [30], [0], [30]])
    scores[:, ::7] = -np.inf
    scores[0] = -np.inf
    scores[1, : n // 3] = -np.inf
    scores[2, -n // 3 :] = -np.inf
    scores[3, (token // (n // 6)) % 2 == 1] = -np.inf
    scores[4, (token >= n // 3) & (token < 2 * n // 3)] = -np.inf
    return {"scores": _f32(scores, dtype), "values": rng.normal(0, 1, (n, 1))}


def _mirror(rng: np.random.Generator, n: int, dtype: Any, *, shuffled: bool = False) -> dict[str, Any]:
    """The second half is the first with opposite values, backwards (or shuffled): what is left is rounding errors."""
    half, v = rng.normal(0, 2, (2, n // 2)), rng.normal(0, 1, (n // 2, 1))
    order = rng.permutation(n // 2) if shuffled else np.arange(n // 2)[::-1]
    scores = np.concatenate([half, half[:, order]], axis=1)
    values = np.concatenate([np.concatenate([v, -v[order]]), rng.normal(0, 1, (n, 1))], axis=1)
    return {"scores": _f32(scores, dtype), "values": values}


def _one_ahead(rng: np.random.Generator, n: int, dtype: Any) -> dict[str, Any]:
    """A first token far ahead: sums are 1 and a little, lse is near zero, and each last bit of a sum shows."""
    scores = rng.normal(-8, 1, (6, n))
    scores[:, 0] = 0
    return {"scores": _f32(scores, dtype), "values": np.zeros((n, 1))}


def _rising(
    rng: np.random.Generator, live: int, unit: int, n: int, dtype: Any, rows: int = 4
) -> dict[str, Any]:
    """Each unit has one token with a value, a little above that of the unit before, and one with none.

    Column j cancels in row j (of four). log(sum(exp(score))) is near zero, so that the last bits of sums show in lse.
    """
    first = np.sort(np.linspace(-2, 0, live) + rng.normal(0, 0.05, (rows, live)), axis=1)
    second = first - rng.uniform(0.3, 2, (rows, live))
    shift = np.log(np.exp(first).sum(axis=1) + np.exp(second).sum(axis=1))[:, None]
    first, second = _f32(first - shift, np.float64), _f32(second - shift, np.float64)
    scores = np.full((rows, n), -np.inf, dtype)
    scores[:, 1 : live * unit : unit] = second
    scores[:, : live * unit : unit] = first
    weights = np.exp(first)
    columns = _bf16(rng.normal(0, 1, (live, min(4, rows))))
    columns[-3:] = 0
    for token in (-1, -2, -3):
        columns[token] = _bf16(-np.diagonal(weights @ columns) / weights[:4, token])
    values = np.zeros((n, columns.shape[1]))
    values[: live * unit : unit] = columns
    return {"scores": scores, "values": values}


def _sums(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same scores with one column of zeros: only lse says anything."""
    return {**arguments, "values": arguments["values"][:, :1] * 0}


def _bf16(x: NDArray[Any]) -> NDArray[np.float64]:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _f32(scores: NDArray[Any], dtype: Any) -> NDArray[Any]:
    return scores.astype(np.float32).astype(dtype)
