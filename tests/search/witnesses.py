"""Witnesses for tests: those of the corpus, changed ones, and one whose q and K are searched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from search.objective import Objective
from search.record import SearchOf
from search.sides import Side, load_side
from search.space import Inputs, Space
from search.target import Target
from search.witness import Witness, certified, from_bytes, make, read

CORPUS = Path(__file__).parents[1] / "data" / "witnesses"
#: FlashAttention-2 in groups of 20 against groups of 12, 64 tokens, c = 1.
SMALL = "fa2_20_12_c1"
BY_HAND = SearchOf(method="by hand", seed=0, budget=None, steps=(), evaluations=0, cut=False, command=())


@cache
def member(name: str = SMALL) -> Witness:
    return read(CORPUS / f"{name}.json")


def files(name: str = SMALL) -> dict[str, bytes]:
    return {f"w{s}": (CORPUS / f"{name}{s}").read_bytes() for s in (".json", ".safetensors")}


def changed(
    change: Callable[[Any], None] = lambda _: None,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    name: str = SMALL,
) -> dict[str, bytes]:
    """The files of a member with other JSON, or other arrays whose hash is stated as it should be."""
    found = files(name)
    record = json.loads(found["w.json"])
    if arrays is not None:
        data = save({n: np.ascontiguousarray(a) for n, a in sorted(arrays.items())})
        record["arrays"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        found["w.safetensors"] = data
    change(record)
    found["w.json"] = json.dumps(record).encode()
    return found


def altered(change: Callable[[Any], None], name: str = SMALL) -> Witness:
    return from_bytes(changed(change, name=name), "w")


def two() -> list[Side]:
    """One program on two partitions of one shape: halves, and even and odd tokens. One function serves both."""
    return [
        load_side("walkthrough.triton@h200", {"segment": rule}) for rule in ("tiles(8)", "deal(2, unit=1)")
    ]


@cache
def of_q_and_k() -> Witness:
    """Sixteen tokens of a head of 16, with q and K searched."""
    sides = two()
    space = Space(kv_len=16, kind="qkv", context={"head_dim": 16, "q_heads": 2, "kv_heads": 1}, dims=2)
    rng = np.random.default_rng(7)
    scores = rng.normal(size=16).astype(np.float32)
    values = (rng.integers(1, 256, (16, 2)) / 64).astype(np.float32)
    inputs = Inputs.one(scores, values)
    measured = Target(sides, space).measure(inputs)
    certificate, why = certified(sides, space, inputs, measured.outputs)
    return make(
        sides,
        space,
        Objective(),
        inputs,
        measured.outputs,
        certificate=certificate,
        search=BY_HAND,
        no_certificate=why,
    )
