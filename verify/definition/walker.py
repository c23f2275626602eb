"""The definition of a program: the value of any site at any index, element by element, over any arithmetic.

`Walker.value` is the whole semantics. A site is its expression at that index, memoised. ``prev`` is the
step before along the flattened levels of the fold, ``last`` the final step; steps are evaluated in order, so
that no chain of references is deeper than one step. A reduction lists its terms where they exist (pieces that
are visited, tokens that are owned), in visiting order, and folds its tree. ``select`` evaluates one branch.

Each node becomes one closure over the index, a list with a slot for every axis, when its site is first
evaluated: see `expressions`, `folds` and `reductions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, did_you_mean
from specs.program import DIM, TOKEN, Program, Site
from verify.definition.arithmetic import Arithmetic
from verify.definition.expressions import Line
from verify.definition.inputs import RowInputs, check_inputs
from verify.definition.layout import Index, Layout, Read, getter, tuple_getter
from verify.partition import Plan


class Block:
    """Rows of one KV head that are evaluated together: what ``over=row`` runs over.

    Attributes:
        walkers: one for each row, in order.
        terms: by section and reduction, the terms of all rows: see `reductions`.
    """

    def __init__(self) -> None:
        self.walkers: list[Walker] = []
        self.terms: dict[Any, Callable[[Index], list[Any]]] = {}

    def lines(self, line: Line) -> list[Line]:
        """The line of each row in the section of ``line``."""
        return [Line(walker, line.section, line.place) for walker in self.walkers]


class Walker:
    """The values of one query row.

    Args:
        program: a typed program.
        plan: the partition that belongs to it.
        inputs: the row's query, keys, values, scalars and fed sites.
        arithmetic: what numbers are; see `verify.definition.arithmetic`.
        block: the rows that this one is evaluated together with, which it joins; None: it is alone.

    Raises:
        InputError: the inputs do not fit the program or the plan.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        inputs: RowInputs,
        arithmetic: Arithmetic[Any],
        block: Block | None = None,
    ) -> None:
        check_inputs(program, plan, inputs)
        self.block = Block() if block is None else block
        self.block.walkers.append(self)
        self.program = program
        self.inputs = inputs
        self.arithmetic = arithmetic
        self.layout = Layout(program, plan, inputs.depth, inputs.dim)
        self.it = len(self.layout.axes)  # an extra slot of the index: the first term, inside first=
        self._reads: dict[str, Read] = {}
        self._known: dict[str, dict[Any, Any]] = {}
        self._keys: dict[str, Callable[[Index], Any]] = {}

    def value(self, site: str, index: Mapping[str, int] | None = None) -> Any:
        """The value of ``site`` where ``index`` says.

        Args:
            site: name of a site.
            index: a number for each axis of the site. Levels count pieces in visiting order, ``token`` counts
                within the innermost piece.

        Returns:
            what the arithmetic computes with; a bool or int for a condition or an integer.

        Raises:
            InputError: no such site, or nothing stands at the index.
            UnsupportedError: the value needs something that is not evaluated yet; the place says which line.
        """
        slots = self.index(index or {})
        if not self.layout.exists(self.site(site).type.axes, slots):
            raise InputError(
                f"nothing stands at {dict(index or {})}", place=f"site '{site}'", remedy="see Plan.exists"
            )
        return self.read(site)(slots)

    def site(self, name: str) -> Site:
        """The site of this name.

        Raises:
            InputError: there is none.
        """
        if name not in self.program.sites:
            raise InputError(
                f"no site '{name}'", place=self.program.spec, remedy=did_you_mean(name, self.program.sites)
            )
        return self.program.sites[name]

    def index(self, where: Mapping[str, int]) -> Index:
        """An index with the numbers of ``where`` in their slots.

        Raises:
            InputError: an axis is unknown.
        """
        slots: Index = [None] * (self.it + 1)
        for axis, i in where.items():
            if axis not in self.layout.slot:
                raise InputError(
                    f"unknown axis '{axis}'", place="index", remedy=did_you_mean(axis, self.layout.axes)
                )
            slots[self.layout.slot[axis]] = i
        return slots

    def read(self, site: str) -> Read:
        """The memoised reader of ``site``: a function of the index."""
        if site in self._reads:
            return self._reads[site]
        found = self.program.sites[site]
        known = self._known[site] = {}
        key = self._keys[site] = getter(self.layout.slots(found.type.axes))
        make = (
            self._fed(found)
            if site in self.inputs.feed
            else Line(self, found.section, found.place).compile(found)
        )

        def read(index: Index) -> Any:
            k = key(index)
            if k in known:
                return known[k]
            known[k] = value = make(index)
            return value

        self._reads[site] = read
        return read

    def _fed(self, site: Site) -> Read:
        """A reader of the array that feeds ``site``."""
        layout, array = self.layout, self.inputs.feed[site.name]
        lift = (lambda x: x) if array.dtype == object else self.arithmetic.lift
        around = layout.around(TOKEN) if TOKEN in site.type.axes else ()
        rest = tuple_getter(layout.slots(site.type.axes - set(around)))
        nest = tuple_getter(layout.slots(around))
        token = layout.tokens

        def read(index: Index) -> Any:
            where = rest(index)
            return lift(array.item(*((token.item(*nest(index)), *where) if around else where)))

        return read

    def memo(self, site: str) -> tuple[Callable[[Index], Any], dict[Any, Any]]:
        """The key of an index in the memo of ``site``, and the memo."""
        self.read(site)
        return self._keys[site], self._known[site]


def evaluate(
    program: Program,
    plan: Plan,
    inputs: RowInputs,
    sites: Sequence[str],
    arithmetic: Arithmetic[Any],
    dims: Sequence[int] | None = None,
) -> dict[str, np.ma.MaskedArray[Any, Any]]:
    """The values of some sites, wherever they stand.

    Args:
        program: a typed program.
        plan: its partition.
        inputs: one query row.
        sites: names of sites, such as ``output`` and ``lse``.
        arithmetic: what numbers are.
        dims: output columns to evaluate; None: all.

    Returns:
        for each site an array with its axes in the order of `Program.axes` (``dim`` has the columns of
        ``dims``, in that order), masked where nothing stands. float64 from `ScalarArithmetic` (NaN below the
        mask), bool and int64 for conditions and integers, objects from other arithmetics.

    Raises:
        InputError: the inputs do not fit, or there is no such site or column.
        UnsupportedError: a site needs something that is not evaluated yet; the place says which line.
    """
    return evaluate_rows(program, plan, [inputs], sites, arithmetic, dims)[0]


def evaluate_rows(
    program: Program,
    plan: Plan,
    rows: Sequence[RowInputs],
    sites: Sequence[str],
    arithmetic: Arithmetic[Any],
    dims: Sequence[int] | None = None,
    wanted: Sequence[int] | None = None,
) -> list[dict[str, np.ma.MaskedArray[Any, Any]]]:
    """As `evaluate`, for rows of one KV head that are evaluated together: ``over=row`` runs over all ``rows``.

    Args:
        wanted: numbers of the rows whose values are returned, in that order; None: all.
    """
    block = Block()
    walkers = [Walker(program, plan, inputs, arithmetic, block) for inputs in rows]
    found: list[dict[str, np.ma.MaskedArray[Any, Any]]] = []
    for row in range(len(rows)) if wanted is None else wanted:
        dim = rows[row].dim
        columns = list(range(dim)) if dims is None else list(dims)
        for column in columns:
            if not 0 <= column < dim:
                raise InputError(f"no column {column}", place="dims", remedy=f"v has {dim} columns")
        found.append({name: _gathered(walkers[row], name, columns) for name in sites})
    return found


def _gathered(walker: Walker, name: str, columns: list[int]) -> np.ma.MaskedArray[Any, Any]:
    site = walker.site(name)
    layout = walker.layout
    axes = [a for a in layout.axes if a in site.type.axes]
    others = [a for a in axes if a != DIM]
    picks = list(enumerate(columns)) if DIM in axes else [(0, None)]
    shape = [len(columns) if a == DIM else layout.size[a] for a in axes]
    values: dict[tuple[int, ...], Any] = {}
    read, index = walker.read(name), walker.index({})
    for point in layout.points(others, frozenset(others), index):
        for slot, i in zip(layout.slots(others), point, strict=True):
            index[slot] = i
        for j, column in picks:
            if column is not None:
                index[layout.slot[DIM]] = column
            values[(*point, j) if DIM in axes else point] = read(index)
    kinds = {"bool": (np.bool_, False), "int": (np.int64, 0), "float": (np.float64, np.nan)}
    dtype, fill = kinds[site.type.kind]
    if not all(isinstance(v, bool | int | float) for v in values.values()):
        dtype, fill = np.object_, None
    data: NDArray[Any] = np.full(shape, fill, dtype=dtype)
    mask = np.ones(shape, dtype=np.bool_)
    for where, value in values.items():
        data[where], mask[where] = value, False
    return np.ma.MaskedArray(data, mask)
