"""Runs made in memory, and straightforward float64 answers to compare with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from verify.runs.manifest import Manifest
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Full, Sequence, Top

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = NDArray[Any]


def full(values: Array, key: str = "") -> Full:
    """Rows in memory, in their dtype."""
    return Full(values.shape[0], values.shape[1], values.dtype, lambda a, b: values[a:b], key)


def ints(x: Any) -> NDArray[np.int64]:
    return np.asarray(x, np.int64)


def sequence(conversation: str = "c", repeat: int = 0, *, n: int | None = None, **parts: Any) -> Sequence:
    """A sequence; positions count from 0 and tokens are unknown where not given; ``values`` are full rows."""
    values = parts.pop("values", None)
    if values is not None:
        parts["full"] = full(values)
        n = len(values)
    if n is None:
        known = next(parts[k] for k in ("tokens", "chosen", "texts", "positions") if k in parts)
        n = len(known)
    positions = ints(parts.pop("positions", np.arange(n)))
    tokens = ints(parts.pop("tokens", np.full(n, UNKNOWN)))
    for name in ("prompt", "depths"):
        if parts.get(name) is not None:
            parts[name] = ints(parts[name])
    if parts.get("chosen") is not None:
        parts["chosen"] = np.asarray(parts["chosen"], np.float64)
    return Sequence(conversation, repeat, positions, tokens, **parts)


def top(ids: Any, values: Any, lse: Any = None, texts: Any = None) -> Top:
    return Top(
        ints(ids), np.asarray(values, np.float64), None if lse is None else np.asarray(lse, np.float64), texts
    )


def run(
    name: str, *sequences: Sequence, sha256: str | None = None, kind: str = "raw_logits", **more: Any
) -> Run:
    """A run; ``more``: fields of the recording, or of the manifest where it has them."""
    outer = {k: more.pop(k) for k in ("model", "model_sha256", "tokenizer_sha256", "vocab_size") if k in more}
    manifest = Manifest.model_validate(
        {
            "schema": 1,
            "kind": "run",
            "run_id": name,
            "coordinate": {"gpu": name},
            "capture": {"value_kind": kind, **more},
            "files": (),
            **outer,
        }
    )
    return Run(name, manifest, tuple(sequences), name, sha256 or f"{name}")


def logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> Array:
    """Normal logits, float32."""
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


def noisy(x: Array, seed: int, noise: float = 0.02) -> Array:
    return (x + np.random.default_rng(seed).standard_normal(x.shape) * noise).astype(np.float32)


def divergences(a: Array, b: Array) -> dict[str, Array]:
    """Textbook f-divergences of each row, in float64 with SciPy's log-softmax."""
    la, lb = log_softmax(a.astype(np.float64), axis=1), log_softmax(b.astype(np.float64), axis=1)
    p, q = np.exp(la), np.exp(lb)
    m = np.log((p + q) / 2)
    return {
        "kl": (p * (la - lb)).sum(axis=1),
        "kl_reverse": (q * (lb - la)).sum(axis=1),
        "js": ((p * (la - m)) + (q * (lb - m))).sum(axis=1) / 2,
        "tv": np.abs(p - q).sum(axis=1) / 2,
        "chi2": ((p - q) ** 2 / q).sum(axis=1),
        "chi2_reverse": ((p - q) ** 2 / p).sum(axis=1),
    }
