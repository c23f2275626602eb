"""A merge on partial results from outside: what the groups hand over is given, the lines after it are evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import InputError, UnsupportedError, did_you_mean
from specs.program import CONSTANTS, DIM, ROW, TOKEN, Program
from verify.arguments import floats
from verify.definition import RowInputs, ScalarArithmetic, evaluate
from verify.numerics.rounding import store
from verify.partition import plan_program


def merge(
    spec: Spec,
    platform: Platform,
    partials: Mapping[str, Any],
    *,
    scale: float,
    sinks: Sequence[float] | None = None,
    names: Sequence[str] = ("output",),
    context: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Evaluate the lines of ``spec`` that follow ``partials``, by the scalar oracle.

    Args:
        partials: values of sites of levels, ``[rows, *levels]`` or ``[rows, *levels, dim]``: float arrays whose
            values are those of the sites' formats. Lines that only they read are not evaluated.
        scale: the softmax scale.
        sinks: one logit a row.
        names: the sites to return.
        context: as `verify.partition.plan`; ``kv_len`` decides how many groups there are.
        options: values for the spec's ``[options]``.

    Returns:
        by site ``[rows, *axes]`` in the storage dtype of the site's format.

    Raises:
        InputError: no partial, an unknown site, or arrays that do not fit the partition.
        UnsupportedError: sinks that no line uses.
    """
    given = {"has_sinks": int(sinks is not None), **platform.context, **context}
    full = make_context(given, place=f"{spec.name} on {platform.name}")
    program = bind(spec, full, options, dot_products=platform.dot_products)
    plan = plan_program(program, full)
    if sinks is not None and "sink" not in program.names():
        raise UnsupportedError(
            f"{spec.name} has no line that uses sink",
            place="argument sinks",
            remedy="leave it out, or use a spec of a kernel that takes it",
        )
    arrays = {name: _partial(program, name, array) for name, array in partials.items()}
    if not arrays:
        raise InputError(
            "no partial", place="argument partials", remedy="give the sites that groups hand over"
        )
    rows = {len(array) for array in arrays.values()}
    if len(rows) != 1 or (sinks is not None and len(sinks) not in rows):
        raise InputError(
            f"{sorted(rows)} rows" + ("" if sinks is None else f" and {len(sinks)} sinks"),
            place="argument partials",
            remedy="the first axis of each array is the query row",
        )
    dims = {a.shape[-1] for n, a in arrays.items() if DIM in program.sites[n].type.axes}
    values = np.zeros((plan.kv_len, dims.pop() if len(dims) == 1 else 1))
    depth = float(full["head_dim"])
    scalars = {"scale": scale, "rsqrt_head_dim": depth**-0.5, "q_scale": scale * depth**0.5}
    scalars |= {"softcap": 0.0, "k_scale": 1.0, "v_scale": 1.0}
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for row in range(rows.pop()):
        sink = {} if sinks is None else {"sink": float(sinks[row])}
        feed = {name: array[row] for name, array in arrays.items()}
        inputs = RowInputs(v=values, scalars={**scalars, **sink}, feed=feed)
        for name, value in evaluate(program, plan, inputs, names, ScalarArithmetic()).items():
            fmt = program.sites[name].type.format or program.compute
            found[name].append(store(np.asarray(value.filled(np.nan), dtype=np.float64), fmt))
    return {name: np.stack(parts) for name, parts in found.items()}


def _partial(program: Program, name: str, array: Any) -> NDArray[np.float64]:
    place = f"partial '{name}'"
    if name not in program.sites or program.sites[name].section in (ROW, TOKEN, CONSTANTS):
        known = [n for n, s in program.sites.items() if s.section not in (ROW, TOKEN, CONSTANTS)]
        raise InputError("no such site of a level", place=place, remedy=did_you_mean(name, known))
    axes = program.sites[name].type.axes
    return floats(name, array, (1 + len(axes),)).astype(np.float64)
