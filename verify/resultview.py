"""Results of `emulate` and `compare` for people and as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Spec
from verify.case import Case
from verify.compare import Comparison
from verify.emulator import Result
from verify.explain import bit_text, decimal
from verify.numerics.ulp import UlpSummary, format_of

SHOWN = 8
LISTED = 4096


def array_json(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, format, sha256 of the bytes, and every value with its bits where there are not too many."""
    fmt = format_of(array.dtype)
    flat = array.reshape(-1)
    data: dict[str, Any] = {
        "shape": list(array.shape),
        "format": fmt.name,
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
    }
    if flat.size <= LISTED:
        data["bits"] = [bit_text(x, fmt) for x in flat]
        data["values"] = [decimal(x, fmt) for x in flat]
    return data


def result_json(result: Result, case: Case, spec: Spec) -> dict[str, Any]:
    """A result as JSON."""
    return {
        "schema": 1,
        "spec": spec.name,
        "spec_sha256": spec.content_hash,
        "platform": result.platform,
        "assumed": spec.assumption or None,
        "backend": result.backend,
        "input": {"name": case.name, "sha256": case.hashes()},
        "context": dict(result.plan.context),
        "groups": result.plan.count,
        "empty_rows": result.empty_rows,
        "exact_path": result.exact_path,
        "output": array_json(result.output),
        "lse": None if result.lse is None else array_json(result.lse),
        "faults": faults(result, spec),
    }


def faults(result: Result, spec: Spec) -> list[str]:
    """What the kernel itself does wrong here: the declared faults whose condition is true.

    They are looked for only where an output is NaN or a row is zero, because that may cost a compilation.
    """
    output = result.output.astype(np.float32)
    if not spec.file.faults or not (np.isnan(output).any() or (output == 0).all(axis=-1).any()):
        return []
    known = result.trace
    return [why for name, why in spec.file.faults.items() if name in known and bool(known[name].any())]


def result_text(result: Result, spec: Spec | None = None) -> Iterator[str]:
    """A result in a few lines."""
    for name, array in (("output", result.output), ("lse", result.lse)):
        if array is None:
            continue
        fmt = format_of(array.dtype)
        flat = array.reshape(-1)
        shape = " x ".join(str(n) for n in array.shape) or "1"
        values = ", ".join(f"{decimal(x, fmt)} ({bit_text(x, fmt)})" for x in flat[:SHOWN])
        yield f"{name:<6}  {fmt.name} {shape}: {values}{', ...' if flat.size > SHOWN else ''}"
    if result.empty_rows:
        yield f"{result.empty_rows} rows have no live token: output 0, lse -inf"
    for why in () if spec is None else faults(result, spec):
        yield f"the kernel's own fault: {why}"


def comparison_text(found: Comparison, verdict: str) -> Iterator[str]:
    """A comparison: the verdict, where the two part, then the figures."""
    yield verdict
    if found.first is not None:
        yield f"first difference: {found.first}"
    left, right = found.groups
    alike = "the same tokens in the same order" if found.same_partition else "different tokens"
    yield f"groups: {left} and {right}, {alike}"
    for name, summary in (("output", found.output), ("lse", found.lse)):
        if summary is not None:
            yield from _figures(name, summary)
    agreeing = [name for name, same in found.sites.items() if same]
    parting = [name for name, same in found.sites.items() if not same]
    if agreeing:
        yield f"sites that agree: {', '.join(agreeing)}"
    if parting:
        yield f"sites that differ: {', '.join(parting)}"


def _figures(name: str, s: UlpSummary) -> Iterator[str]:
    mean = "-" if s.mean is None else f"{s.mean:.4g}"
    most = "-" if s.max is None else f"{s.max:,}"
    yield f"{name}: {s.equal:,} of {s.n:,} equal; ULP mean {mean}, maximum {most}"
    bins = ", ".join(
        f"{b.low}: {b.count}" if b.low == b.high else f"{b.low}-{b.high}: {b.count}"
        for b in s.histogram
        if b.count
    )
    if bins:
        yield f"  ULP histogram: {bins}"
    if s.nan_mismatch or s.inf_mismatch or s.zero_sign:
        yield f"  NaN on one side {s.nan_mismatch}, infinity {s.inf_mismatch}, sign of zero {s.zero_sign}"
