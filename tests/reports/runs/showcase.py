"""Runs that make every section of the divergence page appear: three GPUs, three backends, made-up logits in fp16.

The triangles are linked: TRITON_ATTN gives the same bits on H200 and B200, and one provider's FLASH_ATTN is another's.
Errors grow with depth; the first answer of one conversation differs from its repeats; one free run parts from the others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from reports.contract_base import to_json
from reports.runs import contract as c
from reports.runs.build import compare
from reports.runs.contract import from_text
from tests.reports.runs import making
from tests.verify.metrics import made
from verify.runs.run import Run

GPUS = {"H200": 0.004, "B200": 0.012, "RTX PRO 6000": 0.03}
BACKENDS = {"FLASH_ATTN": 0.012, "FLASHINFER": 0.03, "TRITON_ATTN": 0.024}
CONVERSATIONS, ROWS, VOCAB = 12, 8, 64
DEPTHS = np.array([0, 1, 256, 257, 2048, 2049, 131072, 131073])
RANGES = ("system prompt", "tool call", "prose")


def runs() -> list[Run]:
    """Ten runs: three GPUs by three backends, and one more provider."""
    rng = np.random.default_rng(1)
    exact = rng.standard_normal((CONVERSATIONS, ROWS, VOCAB)) * 3
    tokens = rng.integers(0, VOCAB, (CONVERSATIONS, ROWS))
    growth = 1 + np.log2(1 + DEPTHS)[:, None] / 6

    def noise(size: float) -> Any:
        return rng.standard_normal(exact.shape) * size * growth

    by_gpu = {gpu: noise(size) for gpu, size in GPUS.items()}
    out: list[Run] = []
    for backend, size in BACKENDS.items():
        own = noise(size)
        for gpu, moved in by_gpu.items():
            same = backend == "TRITON_ATTN" and gpu != "RTX PRO 6000"
            values = (exact + own + (0 if same else moved + noise(size / 8))).astype(np.float16)
            out.append(one(f"{gpu} {backend}", gpu, backend, values, tokens))
            if (gpu, backend) == ("H200", "FLASH_ATTN"):
                again = one(f"{gpu} {backend} (other provider)", gpu, backend, values, tokens)
                out.append(making.at(again, provider="other"))
    return out


def one(name: str, gpu: str, backend: str, values: Any, tokens: Any) -> Run:
    """A run of logits ``[CONVERSATIONS, ROWS, VOCAB]``; one of them with repeats, of which the first differs."""
    sequences: list[Any] = []
    for n in range(CONVERSATIONS):
        ranges = tuple(RANGES[(n + i // 4) % 3] for i in range(ROWS))
        common = {"tokens": tokens[n], "positions": DEPTHS, "depths": DEPTHS, "ranges": ranges}
        sequences.append(made.sequence(f"prompt {n}", values=values[n], **common))
        if n == 0 and (gpu, backend) == ("B200", "FLASHINFER"):
            later = (values[n] + np.float16(0.25)).astype(np.float16)
            sequences += [made.sequence("prompt 0", i, values=later, **common) for i in (1, 2, 3)]
    run = made.run(name, *sequences, teacher_forced=True)
    return making.at(run, gpu=gpu, attention_backend=backend, engine="vllm")


@cache
def report() -> c.DivergenceReport:
    """The report of `runs`."""
    found = compare(runs(), draws=20, command="ulpscope report runs")[0]
    return from_text(to_json(found))


def many(n: int, tail: str = "") -> c.DivergenceReport:
    """A report of ``n`` coordinates, each compared with the first only, every table full; names end with ``tail``."""
    base = report()
    names = tuple(f"run {i:04d}{tail}" for i in range(n))
    pair = base.pairs[1]
    pairs = tuple(
        pair.model_copy(
            update={
                "first": names[0],
                "second": name,
                "max_abs": i / 100,
                "depth": pair.depth if i > n - 9 else None,
            }
        )
        for i, name in enumerate(names)
        if i
    )
    values = tuple(
        tuple(0.0 if i == j else (i + j) / 100 if 0 in (i, j) else None for j in range(n)) for i in range(n)
    )
    halves = [names[: n // 2], *zip(names[n // 2 :: 2], names[n // 2 + 1 :: 2], strict=False)]
    return base.model_copy(
        update={
            "coordinates": tuple(
                base.coordinates[0].model_copy(update={"name": x, "label": x}) for x in names
            ),
            "pairs": pairs,
            "matrices": tuple(x.model_copy(update={"names": names, "values": values}) for x in base.matrices),
            "health": tuple(
                base.health[0].model_copy(update={"run": x, "counts": {"nan": 3}}) for x in names
            ),
            "repeats": tuple(base.repeats[0].model_copy(update={"run": x}) for x in names),
            "identity": tuple(
                c.IdentityClass(runs=k, exactness="bits", partial=False, rows=9) for k in halves
            ),
        }
    )
