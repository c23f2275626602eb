"""Inputs that tell candidates apart which a capture leaves ambiguous: a search for each pair."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specs.errors import UlpscopeError
from verify.identify.ranking import Identification

if TYPE_CHECKING:
    from verify.identify.observations import Observation

#: Pairs for which probes are named or searched.
MOST = 6


@dataclass(frozen=True)
class Probe:
    """A pair of candidates, the command that searches an input on which they part, and what came of it.

    ``files`` are those of a witness; ``said`` is a sentence. Both are empty where nothing was searched.
    """

    left: str
    right: str
    command: str
    said: str = ""
    files: tuple[str, ...] = ()


def probes(found: Identification, observations: Sequence[Observation]) -> list[Probe]:
    """The pairs that stay ambiguous with the first, at the longest recorded length."""
    if not found.ambiguous:
        return []
    case = max((o.case for o in observations), key=lambda c: c.kv_len)
    shape = case.shape()
    first = found.ranking[0].names[0]
    out: list[Probe] = []
    for i in found.ambiguous[:MOST]:
        other = found.ranking[i].names[0]
        words = ["ulpscope", "search", first, other, "--space", "qkv", "--kv-len", str(case.kv_len)]
        for option, name in (
            ("--q-heads", "q_heads"),
            ("--kv-heads", "kv_heads"),
            ("--head-dim", "head_dim"),
        ):
            words += [option, str(shape[name])]
        out.append(Probe(first, other, shlex.join(words)))
    return out


def searched(probe: Probe, observations: Sequence[Observation], folder: Path, evaluations: int) -> Probe:
    """Run the search of a probe and file its witness under ``folder``.

    Where nothing is found, or the pair cannot be searched, ``said`` says so: that is no error of the capture.
    """
    from search.objective import Objective
    from search.run import Budget, search
    from search.sides import load_side
    from search.space import Space
    from search.witness import certified, witness_of, write

    case = max((o.case for o in observations), key=lambda c: c.kv_len)
    shape = {k: v for k, v in case.shape().items() if k in ("q_heads", "kv_heads", "head_dim", "batch")}
    name = f"{probe.left}-{probe.right}".replace("@", "_")
    try:
        space = Space(kv_len=case.kv_len, kind="qkv", context=shape)
        sides = [load_side(probe.left), load_side(probe.right)]
        outcome = search(sides, space, Objective(), budget=Budget(evaluations))
        if outcome.best is None:
            return Probe(probe.left, probe.right, probe.command, f"{outcome.status}: {outcome.reason}")
        hit = outcome.best
        certificate, why = certified(outcome.sides, hit.space, hit.inputs, hit.outputs)
        made = witness_of(
            outcome, hit, certificate, command=shlex.split(probe.command)[1:], no_certificate=why
        )
        files = tuple(str(p) for p in write(made, folder, name))
    except UlpscopeError as error:
        return Probe(probe.left, probe.right, probe.command, f"cannot be searched: {error.cause}")
    said = f"{hit.score:.3f} ULP before rounding, {hit.least_integer} ULP stored"
    return Probe(probe.left, probe.right, probe.command, said, files)
