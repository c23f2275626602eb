"""Runs of one spec at one shape, so that one compilation serves them all: lengths, platforms, split counts.

Padding changes no bit; what it costs is arithmetic on padding, which is little beside a compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from verify.emulator import Run
from verify.engine.layout import KV, prepare, shape_of
from verify.partition import Plan


def common_shape(plans: Iterable[Plan]) -> tuple[int, ...]:
    """The smallest table shape that holds every one of ``plans``, all of one spec."""
    return tuple(max(sizes) for sizes in zip(*(shape_of(plan) for plan in plans), strict=True))


def reshaped(run: Run, shape: tuple[int, ...], kv: KV) -> Run:
    """``run`` with a larger table shape, and with K and V laid out for more tokens of the same sequence."""
    return replace(run, padded=shape, kv=kv, known={})


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
        shape = common_shape(runs[i].plan for i in members)
        capacity = max(kv.capacity for i in members if (kv := runs[i].kv) is not None)
        for i in members:
            out[i] = reshaped(runs[i], shape, _with_room(runs[i], capacity))
    return out


def _with_room(run: Run, capacity: int) -> KV:
    if run.kv is not None and run.kv.capacity == capacity:
        return run.kv
    return prepare(run.problem.k, run.problem.v, run.problem.formats, capacity)
