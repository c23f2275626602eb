"""What one query row is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from specs.names import HEAD_SCALARS, SCALARS
from specs.program import DEPTH, DIM, TOKEN, Program, Site
from verify.numerics.rounding import round_array
from verify.partition import Plan

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowInputs:
    """One query row with the keys and values of its KV head, already rounded to the formats of the spec.

    Attributes:
        q: float64 ``[depth]``.
        k: float64 ``[token, depth]``.
        v: float64 ``[token, dim]``.
        visible: whether the row sees a token; None: it sees all.
        scalars: values of `specs.names.SCALARS` and ``HEAD_SCALARS``, exact doubles; a sink may be -inf.
        query: the number of the row's own token in the sequence.
        feed: values of sites from outside. The array has the axes of the site in canonical order, but one
            axis of token numbers in place of the levels and ``token`` where the site has a value for each
            token: a score is ``[token]``. float64 values of the site's format, or objects of the arithmetic.
    """

    q: Floats | None = None
    k: Floats | None = None
    v: Floats | None = None
    visible: Callable[[int], bool] | None = None
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    query: int = 0
    feed: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @property
    def depth(self) -> int:
        """Elements of q and k; 0 where neither is given."""
        return 0 if self.q is None else len(self.q)

    @property
    def dim(self) -> int:
        """Output columns; 0 where v is not given."""
        return 0 if self.v is None else self.v.shape[1]


def feed_axes(program: Program, site: Site) -> tuple[str, ...]:
    """The axes of an array that feeds ``site``."""
    around = {*program.level_names, TOKEN} if TOKEN in site.type.axes else set[str]()
    token = (TOKEN,) if around else ()
    rest = tuple(a for a in program.axes if a in site.type.axes - around)
    levels = tuple(a for a in rest if a in program.level_names)
    return (*token, *levels, *rest[len(levels) :])


def check_inputs(program: Program, plan: Plan, inputs: RowInputs) -> None:
    """Refuse inputs that do not fit the program or the plan.

    Raises:
        InputError: a shape, a name or a value is wrong; an element is no value of its format.
    """
    n = plan.kv_len
    shapes = {"q": (inputs.depth,), "k": (n, inputs.depth), "v": (n, inputs.dim)}
    for name, shape in shapes.items():
        array = getattr(inputs, name)
        if array is None:
            continue
        if array.shape != shape:
            raise InputError(
                f"shape {array.shape} where {shape} is needed",
                place=name,
                remedy="one row: q [depth], k [token, depth], v [token, dim]",
            )
        _check_values(array, program.inputs[name], name)
    for name in inputs.scalars:
        if name not in (*SCALARS, *HEAD_SCALARS):
            known = ", ".join((*SCALARS, *HEAD_SCALARS))
            raise InputError(f"unknown scalar '{name}'", place="scalars", remedy=f"known scalars: {known}")
    sizes = {
        TOKEN: n,
        DEPTH: inputs.depth,
        DIM: inputs.dim,
        **{v.name: v.size for v in program.views.values()},
    }
    sizes |= {name: plan.tokens.shape[i] for i, name in enumerate(plan.levels)}
    for name, array in inputs.feed.items():
        place = f"feed '{name}'"
        if name not in program.sites:
            raise InputError("no such site", place=place, remedy=f"sites: {', '.join(program.sites)}")
        site = program.sites[name]
        axes = feed_axes(program, site)
        shape = tuple(sizes[a] for a in axes)
        if array.shape != shape:
            raise InputError(
                f"shape {array.shape} where {shape} is needed",
                place=place,
                remedy=f"its axes are {list(axes)}",
            )
        if array.dtype != object and site.type.format is not None:
            _check_values(array, site.type.format, place)


def _check_values(array: NDArray[Any], fmt: Any, place: str) -> None:
    if array.dtype != np.float64:
        raise InputError(
            f"dtype {array.dtype} where float64 is needed",
            place=place,
            remedy="convert with .astype(np.float64)",
        )
    if fmt.is_real:
        return
    wrong = np.argwhere((round_array(array, fmt) != array) & ~np.isnan(array))
    if len(wrong):
        where = tuple(wrong[0].tolist())
        raise InputError(
            f"{float(array[where])!r} at {list(where)} is no value of {fmt}",
            place=place,
            remedy="round the array to the format first",
        )
