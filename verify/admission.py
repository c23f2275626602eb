"""What is refused of a bound program before a run: functions of another machine, and colours outside their view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import Place, SpecError, UnsupportedError
from specs.functions import FUNCTIONS
from specs.nodes import Cmp, Logic, Node, Num, Op, Pos, Select
from specs.platforms import Platform
from specs.program import DEPTH, DIM, TOKEN, Program, View
from verify.integers import COMPARE, INTEGER
from verify.partition import Plan

_UNITS = {"gpu": "GPU", "cpu": "CPU"}
_FOLD: dict[str, Callable[..., Any]] = {
    **INTEGER,
    "min": lambda *v: np.minimum.reduce(np.broadcast_arrays(*v)),
    "max": lambda *v: np.maximum.reduce(np.broadcast_arrays(*v)),
}


def check_functions(program: Program, platform: Platform) -> None:
    """Refuse functions that are instructions or library code of a machine that ``platform`` is not.

    Raises:
        UnsupportedError: with the place of the call.
    """
    lines = [(s.expr, s.place) for s in program.sites.values()]
    lines += [(s.start, s.place) for s in program.states.values()]
    for expr, place in lines:
        for n in expr.walk():
            unit = FUNCTIONS[n.op].unit if isinstance(n, Op) and n.op in FUNCTIONS else ""
            if not unit or unit == platform.kind:
                continue
            assert isinstance(n, Op)
            column = place.column + n.at if place.column else 0
            has = sorted(name for name, f in FUNCTIONS.items() if f.unit == platform.kind)
            raise UnsupportedError(
                f"{n.op}() is a function of a {_UNITS[unit]}; {platform.name} is a {_UNITS[platform.kind]}",
                place=Place(place.file, place.line, column),
                remedy=f"choose another platform, or a function that it has: exp, log, {', '.join(has)}",
            )


def check_views(program: Program, plan: Plan, depth: int, dim: int) -> None:
    """Refuse views whose colours leave 0..n-1 at a position that exists: its terms would belong to no sum.

    Args:
        program: typed.
        plan: of this program; a tile has ``plan.tokens.shape[-1]`` tokens.
        depth, dim: elements of a key and of a value.

    Raises:
        SpecError: naming the view, the position, its colour and the range.
    """
    sizes = dict(zip((*program.level_names, TOKEN), plan.tokens.shape, strict=True))
    sizes |= {DEPTH: depth, DIM: dim, **{v.name: v.size for v in program.views.values()}}
    for view in program.views.values():
        _check_view(view, sizes[view.axis])


def _check_view(view: View, size: int) -> None:
    colours = np.broadcast_to(_integer(view.index, np.arange(size, dtype=np.int64), view.name), (size,))
    wrong = np.flatnonzero((colours < 0) | (colours >= view.size))
    if wrong.size:
        at = int(wrong[0])
        raise SpecError(
            f"view '{view.name}' gives position {at} of '{view.axis}' the colour {int(colours[at])}; "
            f"it has the colours 0 to {view.size - 1}",
            place=view.place or f"view '{view.name}'",
            remedy=f"give every position a colour of the view, as in pos({view.axis}) % {view.size}",
        )


def _integer(n: Node, positions: NDArray[np.int64], name: str) -> Any:
    match n:
        case Num(text="true"):
            return np.True_
        case Num(text="false"):
            return np.False_
        case Num(text=text, bits=None) if text.isdigit():
            return np.int64(int(text))
        case Pos():
            return positions
        case Op(op=op, args=args, format=None) if op in _FOLD:
            return _FOLD[op](*(_integer(a, positions, name) for a in args))
        case Select(cond=c, a=a, b=b):
            return np.where(*(_integer(x, positions, name) for x in (c, a, b)))
        case Cmp(op=op, left=left, right=right):
            return COMPARE[op](_integer(left, positions, name), _integer(right, positions, name))
        case Logic(op="not", args=(a,)):
            return np.logical_not(_integer(a, positions, name))
        case Logic(op=op, args=args):
            join = np.logical_and if op == "and" else np.logical_or
            return join.reduce(np.broadcast_arrays(*(_integer(a, positions, name) for a in args)))
        case _:
            raise SpecError(
                f"view '{name}' is coloured by {type(n).__name__.lower()}, which is no integer of a position",
                place=f"view '{name}'",
                remedy="use pos(AXIS), whole numbers, + - * // % ^, comparisons and select",
            )
