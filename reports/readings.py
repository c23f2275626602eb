"""From arrays of the arithmetic to the contract: numbers with their bits, distances, histograms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.contract import Distances, Histogram, HistogramSeries, Number, Reading
from specs.formats import Format
from specs.nodes import Cast, Name
from specs.program import Program
from verify.exact import Enclosure, error_in_ulps
from verify.numerics.rounding import word_dtype
from verify.numerics.ulp import ulp_summary

Errors = NDArray[np.float64]

#: Upper ends of the buckets of a histogram, in ULP; a correctly rounded result is at most 0.5 away.
EDGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0)


def number(value: Any, fmt: Format) -> Number:
    """One stored value of ``fmt`` with its shortest decimal text, its hexadecimal float and its bits."""
    array = np.asarray(value)
    bits = (
        int(array.view(word_dtype(fmt))[()]) if array.ndim == 0 else int(array.view(word_dtype(fmt)).flat[0])
    )
    x = float(array.reshape(-1)[0])
    text = str(np.float32(x)) if fmt.base == "f32" else repr(x)
    return Number(text=text, hexfloat=hexfloat(x), bits=f"0x{bits:0{fmt.bits // 4}x}", format=fmt.name)


def hexfloat(x: float) -> str:
    """``x`` as C prints it, without zeros at the end of the fraction: ``0x1.52fc5ap+0``."""
    return re.sub(r"\.?0*p", "p", x.hex(), count=1)


def wide_site(program: Program) -> str | None:
    """The site that the output rounds: what the result is before its last rounding; None if nothing does."""
    expr = program.sites["output"].expr
    if isinstance(expr, Cast) and isinstance(expr.arg, Name) and expr.arg.id in program.sites:
        return expr.arg.id
    return None


def reading(site: str, values: NDArray[Any], fmt: Format, exact: Enclosure) -> tuple[Reading, Errors]:
    """The reading of one site over all outputs, and the error of each finite output in ULP."""
    flat = values.reshape(-1)
    errors = error_in_ulps(flat.astype(np.float64), exact, fmt)
    finite = errors[np.isfinite(errors)]
    summary = Reading(
        site=site,
        format=fmt.name,
        sample=number(flat[0], fmt),
        ulp_max=float(finite.max(initial=0.0)),
        ulp_mean=float(finite.mean()) if finite.size else 0.0,
        off_share=float((finite > 0.5).mean()) if finite.size else 0.0,
        special=int(errors.size - finite.size),
    )
    return summary, finite


def distances(site: str, fmt: Format, names: Sequence[str], values: Sequence[NDArray[Any]]) -> Distances:
    """Pairwise distances of ``values``, one array of equal shape for each of ``names``."""
    n = len(names)
    maximum = np.zeros((n, n), dtype=np.int64)
    mean, changed = np.zeros((n, n)), np.zeros((n, n))
    special = np.zeros((n, n), dtype=np.int64)
    for i in range(n):
        for j in range(i):
            s = ulp_summary(values[i], values[j])
            different = s.n - s.equal + s.zero_sign
            for table, x in (
                (maximum, s.max or 0),
                (mean, s.mean or 0.0),
                (changed, different / max(1, s.n)),
            ):
                table[i, j] = table[j, i] = x
            special[i, j] = special[j, i] = s.nan_mismatch + s.inf_mismatch
    return Distances(
        site=site,
        format=fmt.name,
        cells=tuple(names),
        outputs=int(values[0].size) if n else 0,
        maximum=_rows(maximum),
        mean=_rows(mean),
        changed=_rows(changed),
        special=_rows(special),
    )


def _rows(table: NDArray[Any]) -> Any:
    return tuple(tuple(row) for row in table.tolist())


def histogram(title: str, fmt: Format, names: Sequence[str], errors: Sequence[Errors]) -> Histogram:
    """Outputs of each cell in each bucket of distance; buckets above the largest are left out."""
    top = max((float(e.max(initial=0.0)) for e in errors), default=0.0)
    last = next((i for i, edge in enumerate(EDGES) if top <= edge), len(EDGES))
    edges = EDGES[: last + 1]
    labels = ["≤ 0.5", *(f"{a:g}–{b:g}" for a, b in pairwise(edges))]
    if last == len(EDGES):
        labels.append(f"> {EDGES[-1]:g}")
    series = [
        HistogramSeries(
            name=name,
            counts=tuple(np.bincount(np.searchsorted(edges, e), minlength=len(labels)).tolist()),
        )
        for name, e in zip(names, errors, strict=True)
    ]
    return Histogram(title=title, format=fmt.name, buckets=tuple(labels), series=tuple(series))
