"""Runs of one spec at one shape, so that one compilation serves them all: lengths, platforms, split counts.

Padding changes no bit; what it costs is arithmetic on padding, which is little beside a compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verify.emulator import Run
from verify.engine.layout import prepare, shape_of


def at_one_shape(runs: Sequence[Run]) -> list[Run]:
    """``runs``, of one spec with the engine, with the largest table shape and the largest capacity of them all.

    Runs of other specs, levels or backends are left as they are, each with those of its own kind.
    """
    kinds: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for i, run in enumerate(runs):
        kinds.setdefault((run.spec.content_hash, run.backend, run.plan.levels), []).append(i)
    out = list(runs)
    for (_, backend, _), members in kinds.items():
        if backend != "engine":
            continue
        shapes = [shape_of(runs[i].plan) for i in members]
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        capacity = max(kv.capacity for i in members if (kv := runs[i].kv) is not None)
        for i in members:
            out[i] = _reshaped(runs[i], shape, capacity)
    return out


def _reshaped(run: Run, shape: tuple[int, ...], capacity: int) -> Run:
    kv = run.kv
    if kv is not None and kv.capacity != capacity:
        kv = prepare(run.problem.k, run.problem.v, run.problem.formats, capacity)
    return replace(run, padded=shape, kv=kv, known={})
