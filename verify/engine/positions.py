"""Integers of a program: positions along axes and what is computed from them.

Almost all of them are known when the program is compiled; they stay NumPy arrays, so that views and gathers become
tables. Only the numbers of keys and of queries are traced.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from specs.nodes import At, Cmp, Logic, Name, Node, Num, Op, Pos, Select
from specs.program import TOKEN, Program, View
from verify.engine.values import LANE, LANES, ROW_AXIS, STEP, Val
from verify.integers import COMPARE, INTEGER

if TYPE_CHECKING:
    from verify.engine.evaluate import Evaluator, Frame

Array = jax.Array


def kind_of(program: Program, n: Node) -> str:
    """``float``, ``int`` or ``bool``; a bare whole number is an int until it stands beside a float."""
    if isinstance(n, Num):
        if n.text in ("true", "false"):
            return "bool"
        return "int" if n.bits is None and n.text.isdigit() else "float"
    if isinstance(n, Name) and n.id in program.sites:
        return program.sites[n.id].type.kind
    return program.types[n].kind


class Positions:
    """Evaluates the integer expressions of one `Evaluator`."""

    def __init__(self, walker: Evaluator) -> None:
        self.walker = walker
        self.axes = walker.axes
        self.program = walker.program

    def integer(self, n: Node, frame: Frame | None) -> Val:
        """An integer expression; ``data`` is a NumPy array where it is known at compile time."""
        match n:
            case Num(text=text):
                return _known(np.array(int(text), np.int32))
            case Pos(axis=axis):
                return self.walker.cut(self._position(axis), frame)
            case Name(id="key_index"):
                tokens = Val(self.walker.arrays.tokens, (*self.program.level_names, STEP, LANE))
                return self.walker.cut(tokens, frame)
            case Name(id="query_index"):
                return Val(self.walker.arrays.queries, (ROW_AXIS,))
            case Name(id=name):
                return self.integer(self.program.sites[name].expr, frame)
            case Op(op=op, args=args):
                axes, data = self.axes.together(*(self.integer(a, frame) for a in args))
                return Val(_apply(op, data), axes)
            case Select(cond=c, a=a, b=b):
                vals = (self.condition(c, frame), self.integer(a, frame), self.integer(b, frame))
                axes, data = self.axes.together(*vals)
                return Val(_where(*data), axes)
            case At():
                return self.walker.gathers.at(n, self.integer(n.arg, frame), frame)
            case _:
                raise AssertionError(f"check_supported let an integer {type(n).__name__} through")

    def condition(self, n: Node, frame: Frame | None) -> Val:
        """A condition; known at compile time if it only compares such integers."""
        match n:
            case Cmp(op=op, left=left, right=right) if (
                kind_of(self.program, left) == kind_of(self.program, right) == "int"
            ):
                axes, data = self.axes.together(self.integer(left, frame), self.integer(right, frame))
                return Val(COMPARE[op](*data), axes)
            case Logic(op=op, args=args):
                axes, data = self.axes.together(*(self.condition(a, frame) for a in args))
                if op == "not":
                    return Val(~data[0], axes)
                join = operator.and_ if op == "and" else operator.or_
                result = data[0]
                for other in data[1:]:
                    result = join(result, other)
                return Val(result, axes)
            case _:
                return self.walker.value(n, frame)

    def natural(self, n: Node) -> Array:
        """An integer expression without partition, in natural order: broadcasts to ``[tile, kv_head, row, 16]``."""
        match n:
            case Num(text=text):
                return jnp.full((1, 1, 1, 1), int(text), jnp.int32)
            case Name(id="key_index"):
                return self.walker.arrays.position
            case Name(id="query_index"):
                return self.walker.arrays.queries.reshape(1, 1, -1, 1)
            case Name(id=name):
                return self.natural(self.program.sites[name].expr)
            case Op(op=op, args=args):
                return _apply(op, [self.natural(a) for a in args])
            case Select(cond=c, a=a, b=b):
                return jnp.where(self.walker.natural(c), self.natural(a), self.natural(b))
            case _:
                raise AssertionError(f"check_supported let an integer {type(n).__name__} through")

    def _position(self, axis: str) -> Val:
        if axis == TOKEN:
            steps = self.axes.sizes[STEP]
            return _known(np.arange(steps * LANES, dtype=np.int32).reshape(steps, LANES), (STEP, LANE))
        return _known(np.arange(self.axes.sizes[axis], dtype=np.int32), (axis,))

    def colours(self, view: View, over: tuple[str, ...]) -> NDArray[np.int32]:
        """Positions along the flattened physical axes ``over`` by colour: ``[slot, colour]``, -1 where there is none."""
        index = self.integer(view.index, None)
        sizes = self.axes.shape(over)
        flat = np.broadcast_to(self.axes.align(index, over), sizes).reshape(-1)
        lists = [np.flatnonzero(flat == colour) for colour in range(view.size)]
        table = np.full((max(1, *(len(x) for x in lists)), view.size), -1, np.int32)
        for colour, found in enumerate(lists):
            table[: len(found), colour] = found
        return table


def _known(data: NDArray[np.int32], axes: tuple[str, ...] = ()) -> Val:
    """Integers that the compiler knows."""
    return Val(cast(Array, data), axes)


def _apply(op: str, data: list[Any]) -> Any:
    if op in ("max", "min"):
        plain = all(isinstance(x, np.ndarray) for x in data)
        join = (np if plain else jnp).maximum if op == "max" else (np if plain else jnp).minimum
        result = data[0]
        for other in data[1:]:
            result = join(result, other)
        return result
    result = INTEGER[op](*data)
    return np.asarray(result) if isinstance(result, np.generic) else result


def _where(condition: Any, a: Any, b: Any) -> Any:
    plain = all(isinstance(x, np.ndarray | np.bool_) for x in (condition, a, b))
    return (np if plain else jnp).where(condition, a, b)
