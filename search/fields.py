"""What the JSON of a witness says of sides, spaces and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.certificate import Certificate
from search.evaluate import Outputs
from search.objective import cancellation, integer_distances
from search.record import SpaceOf, StatisticsOf, finite
from search.sides import Side
from search.space import Inputs, Space
from specs.formats import Format
from verify.numerics.rounding import storage_dtype, store
from verify.numerics.ulp import MISMATCH


def words(values: NDArray[Any], fmt: Format) -> list[str]:
    """Values, float64 or as stored, as bit patterns of ``fmt``."""
    stored = store(values, fmt) if values.dtype == np.float64 else np.ascontiguousarray(values)
    kind = storage_dtype(fmt)
    bits = stored.view(f"u{kind.itemsize}")
    return [f"0x{int(word):0{kind.itemsize * 2}X}" for word in bits.ravel()]


def distances(outputs: Sequence[Outputs]) -> list[dict[str, Any]]:
    """The fields of `search.record.DistanceOf` of each pair of sides."""
    integers = integer_distances(outputs)
    found: list[dict[str, Any]] = []
    for a, b in combinations(range(len(outputs)), 2):
        apart = int(integers[a, b][0])
        with np.errstate(invalid="ignore"):
            real = float(np.abs(outputs[a].index - outputs[b].index).max())
        found.append({"a": a, "b": b, "integer": None if apart == MISMATCH else apart, "real": finite(real)})
    return found


def ratios(inputs: Inputs, certificate: Certificate | None, first: int = 0) -> list[dict[str, float | None]]:
    """The fields of `search.record.RatiosOf` of each column: of the exact answer, or in double precision."""
    if certificate is not None:
        return [
            {
                "over_mean": None if a.over_magnitude is None else float(a.over_magnitude),
                "over_largest": None if a.over_largest is None else float(a.over_largest),
            }
            for a in certificate.answers
        ]
    inputs = Inputs(inputs.scores[:, first:], inputs.values[:, first:])  # what a window shows
    out, mass = cancellation(inputs)
    largest = np.abs(inputs.values[0]).max(axis=0)
    return [
        {
            "over_mean": float(out[0, d] / mass[0, d]) if mass[0, d] else None,
            "over_largest": float(out[0, d] / largest[d]) if largest[d] else None,
        }
        for d in range(inputs.dims)
    ]


def side_record(side: Side, program: Any, site: str, fmt: Format, out: Outputs) -> dict[str, Any]:
    """The fields of `search.record.SideOf`."""
    held = program.sites[site].type.format or program.compute
    return {
        "label": side.label,
        "spec": side.spec.to_toml(),
        "spec_sha256": side.spec.content_hash,
        "platform": side.platform.model_dump(mode="json", by_alias=True),
        "options": dict(side.options),
        "context": dict(side.context),
        "changed": dict(side.changed),
        "format": fmt.name,
        "site": site,
        "before_format": held.name,
        "output": words(out.stored[0], fmt),
        "before": words(out.before[0], held),
    }


def space_record(space: Space) -> dict[str, Any]:
    """The fields of `search.record.SpaceOf`."""
    fields = SpaceOf(
        kind=space.kind,
        kv_len=space.kv_len,
        context=dict(space.context),
        dims=space.dims,
        score_box=space.score_box,
        value_box=space.value_box,
        cancellation=space.cancellation,
        masks=space.masks,
        fixed=tuple(sorted(space.fixed)),
        base=space.base is not None,
        edits=space.edits,
        carry=space.carry,
        statistics=None
        if space.statistics is None
        else StatisticsOf(
            score_std=space.statistics.score_std,
            value_std=space.statistics.value_std,
            value_mean=space.statistics.value_mean,
        ),
    )
    return fields.model_dump(mode="json")
