"""Is any split count more accurate in general? Error against the exact answer, by count, on many inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from reports.contract import SplitFamily, SplitPoint, Splits
from reports.formatting import percent
from specs import Platform, parse_spec
from specs.formats import BASES
from verify.case import Case, finish
from verify.exact import error_in_ulps, exact_attention
from verify.together import at_one_shape

BASE = "walkthrough.flash_attention_2"
COUNTS = (1, 2, 4, 8, 16, 32)
TOKENS, ROWS = 2048, 32

Floats = NDArray[np.float64]

#: The language's own way to force a count: the same spec with one integer taken from the caller.
FORCED = f"""
schema  = 1
name    = "experiment.forced_splits"
status  = "walkthrough"
summary = "{BASE} with the split count given by the caller"
extends = "{BASE}"

[let]
splits = "num_splits"
"""


def families(seed: int) -> list[tuple[str, Floats, Floats]]:
    """Kinds of inputs: name, f32 scores ``[ROWS, TOKENS]`` and values ``[TOKENS, 1]`` in bf16 precision.

    Values lie between 1 and 2, and so do all answers: one unit in the last place is the same for every input.
    """
    rng = np.random.default_rng(seed)
    ramp = np.linspace(-4.0, 4.0, TOKENS)

    def noise(spread: float) -> Floats:
        return rng.standard_normal((ROWS, TOKENS)) * spread

    kinds: list[tuple[str, Floats]] = [
        ("flat: normal scores, deviation 0.5", noise(0.5)),
        ("usual: normal scores, deviation 2", noise(2.0)),
        ("peaked: normal scores, deviation 6", noise(6.0)),
        ("rising: later tokens weigh more", ramp + noise(0.5)),
        ("falling: earlier tokens weigh more", ramp[::-1] + noise(0.5)),
        ("sink: the first token weighs most", np.where(np.arange(TOKENS) == 0, 9.0, noise(1.0))),
    ]
    return [
        (name, s.astype(np.float32).astype(np.float64), _bf16(rng.uniform(1.0, 2.0, (TOKENS, 1))))
        for name, s in kinds
    ]


def _bf16(x: Floats) -> Floats:
    import ml_dtypes

    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def splits(
    platform: Platform, seed: int, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Splits:
    """Run the experiment: six families of inputs, each through every count."""
    spec = parse_spec(FORCED, "reports.splits")
    f32 = BASES["f32"]
    errors: list[Floats] = []  # [family] of [count, input]
    kinds = families(seed)
    for done, (_, scores, values) in enumerate(kinds):
        exact = exact_attention(scores, values)
        arrays = {"scores": scores.astype(np.float32), "values": values.astype(np.float32)}
        cases = [Case("splits", arrays, context={"num_splits": n}) for n in COUNTS]
        runs = at_one_shape([case.start(spec, platform) for case in cases])
        found = [finish(run, ["exact"]).trace["exact"] for run in runs]
        errors.append(np.stack([error_in_ulps(got, exact, f32).reshape(-1) for got in found]))
        progress(done + 1, len(kinds))
    every = np.concatenate(errors, axis=1)
    points = _points(every)
    named = tuple(
        SplitFamily(name=name, inputs=e.shape[1], means=tuple(e.mean(axis=1).tolist()))
        for (name, _, _), e in zip(kinds, errors, strict=True)
    )
    return Splits(
        spec=BASE,
        kv_len=TOKENS,
        inputs=every.shape[1],
        seed=seed,
        method="Six families of scores, values between 1 and 2; the error is that of the f32 result before its "
        "last rounding, at most half a ULP where that is correctly rounded. "
        "Intervals are the mean ± 1.96 standard errors.",
        points=points,
        families=named,
        verdict=verdict(points, named),
    )


def _points(errors: Floats) -> tuple[SplitPoint, ...]:
    """``errors`` is [count, input]."""
    best = errors == errors.min(axis=0)
    share = (best / best.sum(axis=0)).mean(axis=1)
    mean = errors.mean(axis=1)
    half = 1.96 * errors.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
    return tuple(
        SplitPoint(
            splits=n,
            mean=float(mean[i]),
            low=float(max(0.0, mean[i] - half[i])),
            high=float(mean[i] + half[i]),
            worst=float(errors[i].max()),
            best_share=float(share[i]),
        )
        for i, n in enumerate(COUNTS)
    )


def verdict(points: Sequence[SplitPoint], named: Sequence[SplitFamily]) -> str:
    """What the figures say, in two or three sentences."""
    least = min(points, key=lambda p: p.mean)
    most = max(points, key=lambda p: p.best_share)
    winners = sorted({points[int(np.argmin(f.means))].splits for f in named})
    worse = [p.splits for p in points if p.low > least.high]
    if len(winners) > 1:
        head = (
            f"It depends on the input: {_list(winners)} splits each have the least mean error in some family."
        )
    else:
        head = f"{winners[0]} splits have the least mean error in every family of these inputs."
    if worse:
        pooled = (
            f"Pooled over these inputs {least.splits} splits err least, clearly less than {_list(worse)}."
        )
    else:
        pooled = "Pooled over these inputs the intervals of all counts overlap."
    return (
        f"{head} {pooled} But the most frequent winner, {most.splits}, is best on {percent(most.best_share)} of "
        f"inputs only (chance: {percent(1 / len(points))})."
    )


def _list(numbers: Sequence[int]) -> str:
    words = [str(n) for n in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
