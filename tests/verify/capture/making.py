"""Captures made by hand: a record of any kernel, with arrays that a test gives or that the emulator computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specs import load_platform, load_spec
from verify.capture.format import Capture, array_infos, write_capture
from verify.capture.inputs import info_of, make, recipe
from verify.capture.judge import predicted
from verify.capture.kernels import KERNELS
from verify.capture.manifest import ARRAYS, MANIFEST, Recipe
from verify.case import Case

Array = np.ndarray[Any, Any]
H200 = {"gpu": "NVIDIA H200", "sm_count": 132, "compute_capability": 90, "driver": "580.65", "cuda": "13.0"}
MACHINE: dict[str, Any] = {
    "system": "Linux",
    "python": "3.11",
    "cpu": "AuthenticAMD",
    "cpu_class": "amd_avx512",
}
SMALL = recipe("random", 40, q_heads=4, kv_heads=2, head_dim=64)


def predict(
    kernel: str, r: Recipe, context: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Array]:
    """What the emulator gives for every array of a kernel: the stand-in of the real library."""
    case = Case("x", make(r), scale=float(r.head_dim) ** -0.5)
    run = replace(case, context=dict(context)).start(
        load_spec(KERNELS[kernel].spec), load_platform("h200"), backend="oracle", options=options
    )
    return {s.array: predicted(run, s) for s in KERNELS[kernel].sites if s.site in run.program.sites}


def write(
    folder: Path,
    kernel: str,
    arrays: Mapping[str, Array],
    *,
    r: Recipe = SMALL,
    library: tuple[str, str] | None = None,
    context: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] = H200,
    probes: Mapping[str, Any] | None = None,
    more: Mapping[str, Array] | None = None,
    repeatable: bool = True,
) -> Capture:
    """A capture with one record, or with none where ``kernel`` is empty."""
    inputs = make(r)
    stored = dict(more or {})
    fields: dict[str, Any] = {
        "made": "2026-01-01T00:00:00+00:00",
        "tool": "a test",
        "quick": True,
        "machine": {**MACHINE, **machine},
        "libraries": {},
        "inputs": {},
        "records": {},
        "probes": dict(probes or {}),
    }
    if kernel:
        k = KERNELS[kernel]
        low = ".".join(str(n) for n in k.releases.low)
        name, version = library or (k.releases.library, low)
        info = info_of(inputs, float(r.head_dim) ** -0.5, False, recipe=r.model_dump(mode="json"))
        stored |= {f"records/one/{n}": a for n, a in arrays.items()}
        fields["libraries"] = {kernel: {"name": name, "version": version}}
        fields["inputs"] = {"i": info.model_dump(mode="json")}
        fields["records"] = {
            "one": {
                "kernel": kernel,
                "input": "i",
                "context": dict(context or {}),
                "options": dict(options or {}),
                "repeatable": repeatable,
                "arrays": array_infos(arrays),
            }
        }
    return write_capture(folder, fields, stored)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], *, seal: bool = False) -> Path:
    """Change the manifest as a hostile hand would; ``seal``: state the size and hash that the file of arrays has."""
    file = folder / MANIFEST
    manifest = json.loads(file.read_text())
    change(manifest)
    if seal:
        data = (folder / ARRAYS).read_bytes()
        manifest["file"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file.write_text(json.dumps(manifest))
    return folder


def flip(array: Array, at: tuple[int, ...], bit: int = 0) -> Array:
    """A copy with one bit of one element flipped."""
    out = array.copy()
    words = out.view(f"u{out.dtype.itemsize}")
    words[at] ^= words.dtype.type(1 << bit)
    return out
