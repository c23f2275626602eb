"""The array walker: evaluates a typed program whole, in JAX, inside one jitted function.

Sites of the token section live in *natural* order, ``[tile of 16 tokens, kv_head, row, token of the tile]``:
scores do not depend on the partition. Everything else lives in the layout of the plan, one axis per level. Sites that do not
depend on `prev` are evaluated whole; the states of one scope and section are one scan over their levels, inside
which those level axes are *cut*: no value in the body has them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from specs.formats import Format
from specs.names import SCALARS
from specs.nodes import At, Cast, Cmp, Last, Logic, Name, Node, Num, Op, Owns, Pos, Prev, Reduce, Select
from specs.program import CONSTANTS, DEPTH, DIM, TOKEN, Program, Site, State
from verify.engine.folds import FoldSites, fold_sites, outside_uses
from verify.engine.gathers import Gathers
from verify.engine.inputs import Arrays
from verify.engine.positions import Positions, kind_of
from verify.engine.primitives import Carrier
from verify.engine.reduce import Reducer
from verify.engine.special import FUNCTIONS as SPECIAL
from verify.engine.support import factor_format
from verify.engine.values import HEAD, LANE, LANES, ROW_AXIS, STEP, Axes, Val
from verify.integers import COMPARE
from verify.numerics.rounding import decode, round_fraction

Array = jax.Array
_FUNCTIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
#: Carried values of a loop: ``(state, "")``, and by level the line of those one step back along it.
Carry = dict[tuple[str, str], Array]


@dataclass
class Frame:
    """The body of a fold: the position along each cut level, the carried values, and what was computed so far.

    ``delayed`` has the values of states one step back along one level only.
    """

    cut: Mapping[str, Array]
    carried: Mapping[str, Val]
    delayed: Mapping[tuple[str, str], Val]
    dynamic: frozenset[str]
    memo: dict[str, Val] = field(default_factory=dict[str, Val])


@dataclass
class Fold:
    """One loop, and what it gave: the final states, and by step the sites that others read."""

    sites: FoldSites
    finals: dict[str, Val] = field(default_factory=dict[str, Val])
    stacks: dict[str, Val] = field(default_factory=dict[str, Val])


class Evaluator:
    """Evaluates sites of one program on one set of arrays.

    Args:
        program: a program that `check_supported` has passed.
        carrier: the arithmetic.
        arrays: inputs, plan tables and feeds (all traced).
        wanted: sites that the caller will ask for.
    """

    def __init__(self, program: Program, carrier: Carrier, arrays: Arrays, wanted: frozenset[str]) -> None:
        self.program = program
        self.ops = carrier
        self.arrays = arrays
        self.axes = Axes(program.level_names, program.views, arrays.sizes)
        self.positions = Positions(self)
        self.gathers = Gathers(self)
        self.reduce = Reducer(self)
        self._it: list[Val] = []
        self._bound: dict[str, Val] = {}
        self._natural: dict[str, Array] = {}
        self._whole: dict[str, Val] = {}
        loops = fold_sites(program)
        self._folds = [Fold(sites) for sites in loops]
        self._collect = outside_uses(program, loops) | wanted

    # -- sites --------------------------------------------------------------------------------------------

    def site(self, name: str) -> Val:
        """The value of a site, whole."""
        if name not in self._whole:
            site = self.program.sites[name]
            fold = self._fold_of(name)
            if fold is not None:
                self._run(fold)
                self._whole[name] = fold.stacks[name]
            elif name in self.arrays.feed or self._is_natural(site):
                self._whole[name] = self.gather(self.natural_site(name))
            else:
                self._whole[name] = self.value(site.expr, None)
        return self._whole[name]

    def _fold_of(self, name: str) -> Fold | None:
        return next((f for f in self._folds if name in f.sites.dynamic), None)

    def _is_natural(self, site: Site) -> bool:
        within = site.section == TOKEN and site.type.axes <= {*self.program.level_names, TOKEN}
        return within and site.type.kind == "float" and self._unparted(site.expr)

    def _unparted(self, n: Node) -> bool:
        """Whether an expression of the token section reads nothing that depends on the partition."""
        for node in n.walk():
            if isinstance(node, Pos | Owns | At | Prev | Last):
                return False
            if isinstance(node, Name) and node.id in self.program.sites:
                site = self.program.sites[node.id]
                if site.section == TOKEN and not self._unparted(site.expr):
                    return False
        return True

    def natural_site(self, name: str) -> Array:
        """A site of the token section as ``[capacity / 16, kv_head, row, 16]`` (dimensions may be 1)."""
        if name not in self._natural:
            if name in self.arrays.feed:
                self._natural[name] = self.arrays.feed[name]
            else:
                self._natural[name] = self.natural(self.program.sites[name].expr)
        return self._natural[name]

    def gather(self, natural: Array) -> Val:
        """A value in natural order, laid out as the plan visits its tokens (padding holds other tokens' values)."""
        tokens = self.arrays.tokens
        axes = (*self.program.level_names, STEP, HEAD, ROW_AXIS, LANE)
        tiles, heads, rows, _ = natural.shape
        if self.arrays.aligned:
            return Val(jnp.take(natural, jnp.maximum(tokens[..., 0], 0) // LANES, axis=0, mode="clip"), axes)
        by_token = natural.transpose(0, 3, 1, 2).reshape(tiles * LANES, heads, rows)
        picked = jnp.take(by_token, jnp.maximum(tokens, 0), axis=0, mode="clip")
        return Val(jnp.moveaxis(picked, -3, -1), axes)

    # -- natural order ------------------------------------------------------------------------------------

    def natural(self, n: Node) -> Array:
        """An expression of the token section, in natural order."""
        ops = self.ops
        match n:
            case Num():
                return self._literal(n).reshape(1, 1, 1, 1)
            case Name(id=name) if name in self.arrays.per_row:
                return self.arrays.per_row[name][None, :, :, None]
            case Name(id="visible"):
                return self.arrays.visible
            case Name(id=name) if name in self.program.sites and self.program.sites[name].section == TOKEN:
                return self.natural_site(name)
            case Name(id=name):
                return self._scalar(name).reshape(1, 1, 1, 1)
            case Reduce():
                return self.reduce.scores(n)
            case Cast(format=fmt, arg=arg) if self._is_integer(arg):
                return self._from_integer(self.positions.natural(arg), fmt)
            case Cast(format=fmt, arg=arg):
                return ops.cast(self.natural(arg), fmt)
            case Select(cond=c, a=a, b=b):
                return ops.select(self.natural(c), self.natural(a), self.natural(b))
            case Cmp(op=op, left=left, right=right) if self._integers(left, right):
                return COMPARE[op](self.positions.natural(left), self.positions.natural(right))
            case Cmp(op=op, left=left, right=right):
                return ops.compare(op, self.natural(left), self.natural(right))  # type: ignore[arg-type]
            case Logic(op=op, args=args):
                return _logic(op, [self.natural(a) for a in args])
            case Op(op=op, args=args):
                return self._apply(n, op, [self.natural(a) for a in args])
            case _:
                raise AssertionError(f"check_supported let {type(n).__name__} through")

    # -- plan order ---------------------------------------------------------------------------------------

    def value(self, n: Node, frame: Frame | None) -> Val:
        """An expression in plan order; inside a fold when ``frame`` is given."""
        ops = self.ops
        match n:
            case Num():
                return Val(self._literal(n))
            case Name(id="it"):
                return self._it[-1]
            case Name(id=name) if name in self._bound:
                return self._bound[name]
            case Name(id=name) if name in self.arrays.per_row:
                return Val(self.arrays.per_row[name], (HEAD, ROW_AXIS))
            case Name(id="visible"):
                return self.cut(self.gather(self.arrays.visible), frame)
            case Name(id="q"):
                assert self.arrays.q is not None
                return Val(self.arrays.q, (HEAD, ROW_AXIS, DEPTH))
            case Name(id=name) if (
                name in self.program.sites and self.program.sites[name].section != CONSTANTS
            ):
                return self._named(name, frame)
            case Name(id=name):
                return Val(self._scalar(name))
            case Cast(format=fmt, arg=arg) if self._is_integer(arg):
                whole = self.positions.integer(arg, frame)
                return Val(self._from_integer(whole.data, fmt), whole.axes)
            case Cast(format=fmt, arg=arg):
                inner = self.value(arg, frame)
                return Val(ops.cast(inner.data, fmt), inner.axes)
            case Select(cond=c, a=a, b=b):
                axes, data = self.axes.together(*(self.value(x, frame) for x in (c, a, b)))
                return Val(ops.select(*data), axes)
            case Cmp(left=left, right=right) if self._integers(left, right):
                decided = self.positions.condition(n, frame)
                return Val(jnp.asarray(decided.data), decided.axes)
            case Cmp(op=op, left=left, right=right):
                axes, data = self.axes.together(self.value(left, frame), self.value(right, frame))
                return Val(ops.compare(op, *data), axes)  # type: ignore[arg-type]
            case Logic(op=op, args=args):
                axes, data = self.axes.together(*(self.value(a, frame) for a in args))
                return Val(_logic(op, data), axes)
            case Prev(state=state, level=level):
                assert frame is not None
                return frame.carried[state] if level is None else frame.delayed[state, level]
            case At(arg=arg):
                return self.gathers.at(n, self.value(arg, frame), frame)
            case Owns(level=level):
                return self.gathers.owns(level, frame)
            case Op() if kind_of(self.program, n) == "int":
                whole = self.positions.integer(n, frame)
                return Val(self._from_integer(whole.data, self.program.compute), whole.axes)
            case Last(state=state):
                return self.cut(self._last(state), frame)
            case Reduce():
                return self.reduce.reduction(n, frame)
            case Op(op=op, args=args):
                axes, data = self.axes.together(*(self.value(a, frame) for a in args))
                return Val(self._apply(n, op, data), axes)
            case _:
                raise AssertionError(f"check_supported let {type(n).__name__} through")

    def _named(self, name: str, frame: Frame | None) -> Val:
        if frame is not None and name in frame.dynamic:
            if name not in frame.memo:
                frame.memo[name] = self.value(self.program.sites[name].expr, frame)
            return frame.memo[name]
        return self.cut(self.site(name), frame)

    def cut(self, val: Val, frame: Frame | None) -> Val:
        """``val`` at the position of ``frame``: without the axes that are cut."""
        if frame is None:
            return val
        data = val.data
        for axis in reversed(val.axes):
            if axis in frame.cut:
                where = val.axes.index(axis)
                data = jax.lax.dynamic_index_in_dim(data, frame.cut[axis], where, keepdims=False)
        return Val(data, tuple(a for a in val.axes if a not in frame.cut))

    def format_of(self, n: Node) -> Format:
        """The format of the values of a float expression."""
        return factor_format(self.program, n)

    def elementwise(self, n: Node, name: str, data: Array) -> Array:
        """An expression of the input ``name`` and scalars, on an array of any shape."""
        if isinstance(n, Name):
            return data
        self._bound[name] = Val(data.reshape(-1), (DIM,))
        try:
            found = self.value(n, None)
        finally:
            del self._bound[name]
        return jnp.broadcast_to(self.axes.align(found, (DIM,)), (data.size,)).reshape(data.shape)

    @contextmanager
    def naming(self, it: Val) -> Generator[None]:
        """Inside, ``it`` is this value: the first term of a sum."""
        self._it.append(it)
        try:
            yield
        finally:
            self._it.pop()

    def _is_integer(self, n: Node) -> bool:
        """Whether ``n`` is an integer that is no bare literal."""
        return not isinstance(n, Num) and kind_of(self.program, n) == "int"

    def _integers(self, *nodes: Node) -> bool:
        return all(kind_of(self.program, n) == "int" for n in nodes)

    def _from_integer(self, data: Any, fmt: Format) -> Array:
        """Integers below 2**24 as floats, rounded once to ``fmt``."""
        return self.ops.cast(jnp.asarray(data).astype(self.ops.dtype), fmt)

    def _literal(self, n: Num) -> Array:
        if n.text in ("true", "false"):
            return jnp.asarray(n.text == "true")
        return self.ops.constant(literal(n, self.program.compute))

    def _scalar(self, name: str) -> Array:
        if name in ("inf", "nan"):
            return self.ops.constant(float(name))
        assert name in SCALARS or name in self.program.sites, name
        return self.arrays.scalars[name]

    def _apply(self, n: Op, op: str, data: list[Array]) -> Array:
        ops = self.ops
        match op:
            case "neg":
                return ops.neg(data[0])
            case "abs":
                return ops.abs(data[0])
            case "isnan":
                return ops.isnan(data[0])
            case "max" | "min":
                join = ops.maximum if op == "max" else ops.minimum
                result = data[0]
                for other in data[1:]:
                    result = join(result, other)
                return result
            case _ if op in SPECIAL:
                return self._special(op, data, self.program.types[n].format)
            case _:
                function = getattr(ops, _FUNCTIONS.get(op, op))
                return function(*data, self.program.types[n].format)

    def _special(self, op: str, data: list[Array], fmt: Format | None) -> Array:
        """A special function in a function of its own: else XLA computes it again wherever its result is broadcast."""
        ops = self.ops

        def inside(*args: Array) -> tuple[Array, Array]:
            with ops.scope():
                return ops.special(op, *args, fmt=fmt), ops.take_risk()

        with set_xla_metadata(inlineable="false"):
            value, risk = jax.jit(inside)(*data)
        ops.note(risk)
        return value

    # -- folds --------------------------------------------------------------------------------------------

    def _last(self, state: str) -> Val:
        fold = next(f for f in self._folds if any(s.name == state for s in f.sites.states))
        self._run(fold)
        return fold.finals[state]

    def _run(self, fold: Fold) -> None:
        """Evaluate a fold once: one scan over its flattened levels."""
        if fold.finals:
            return
        for name in sorted(fold.sites.dynamic):
            self._hoist(self.program.sites[name].expr, fold.sites.dynamic)
        levels = fold.sites.levels
        sizes = [self.axes.sizes[level] for level in levels]
        scope = self.program.levels_to(fold.sites.section)[: -len(levels)]
        exists = self.arrays.exists[levels[-1]]
        collect = sorted(self._collect & fold.sites.dynamic)
        start = {s.name: self._start(s, scope) for s in fold.sites.states}
        axes = {name: val.axes for name, val in start.items()}

        delays = {
            (n.state, n.level): math.prod(sizes[levels.index(n.level) + 1 :])
            for name in fold.sites.dynamic
            for n in self.program.sites[name].expr.walk()
            if isinstance(n, Prev) and n.level is not None
        }
        names = {s.name: (s.name, "") for s in fold.sites.states}

        def body(carry: Carry, step: Array) -> tuple[Carry, dict[str, Array]]:
            cut: dict[str, Array] = {}
            rest = step
            for level, size in zip(reversed(levels), reversed(sizes), strict=True):
                cut[level] = rest % size
                rest = rest // size
            delayed: dict[tuple[str, str], Val] = {}
            for (name, level), inner in delays.items():
                before = jax.lax.dynamic_index_in_dim(carry[name, level], step % inner, 0, keepdims=False)
                delayed[name, level] = Val(jnp.where(cut[level] == 0, start[name].data, before), axes[name])
            carried = {name: Val(carry[key], axes[name]) for name, key in names.items()}
            frame = Frame(cut, carried, delayed, fold.sites.dynamic)
            live = self.cut(exists, frame)
            new: Carry = {}
            for name, key in names.items():
                value = self._named(name, frame)
                data = jnp.broadcast_to(self.axes.align(value, axes[name]), carry[key].shape)
                new[key] = jnp.where(self.axes.align(live, axes[name]), data, carry[key])
            for (name, level), inner in delays.items():
                line = carry[name, level]
                new[name, level] = jax.lax.dynamic_update_index_in_dim(line, new[name, ""], step % inner, 0)
            stacked = {
                name: self.axes.full(self._named(name, frame), self._inner_axes(name, levels)).data
                for name in collect
            }
            return new, stacked

        begin: Carry = {key: start[name].data for name, key in names.items()}
        for (name, level), inner in delays.items():
            begin[name, level] = jnp.broadcast_to(start[name].data, (inner, *start[name].data.shape))
        steps = jnp.arange(math.prod(sizes), dtype=jnp.int32)
        finals, stacks = self.ops.scan(body, begin, steps)
        fold.finals = {name: Val(finals[key], axes[name]) for name, key in names.items()}
        for name, data in stacks.items():
            inner = self._inner_axes(name, levels)
            own = self.axes.union(inner, levels)
            data = data.reshape(*sizes, *data.shape[1:])
            source = {a: i for i, a in enumerate((*levels, *inner))}
            fold.stacks[name] = Val(jnp.transpose(data, [source[a] for a in own]), own)

    def _inner_axes(self, name: str, levels: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of a site inside the fold over ``levels``."""
        kinds = self.program.sites[name].type.axes - frozenset(levels)
        return self.axes.union(self.axes.physical(kinds), (HEAD, ROW_AXIS))

    def _start(self, state: State, scope: tuple[str, ...]) -> Val:
        extras = self.program.sites[state.name].type.axes - frozenset((*self.program.level_names, TOKEN))
        axes = self.axes.union(scope, self.axes.physical(extras), (HEAD, ROW_AXIS))
        return self.axes.full(self.value(state.start, None), axes)

    def _hoist(self, n: Node, dynamic: frozenset[str]) -> None:
        """Evaluate, outside the loop, every whole site and final state that the body will refer to."""
        for node in n.walk():
            if isinstance(node, Name) and node.id in self.program.sites and node.id not in dynamic:
                site = self.program.sites[node.id]
                if site.section != CONSTANTS and site.type.kind != "int":
                    self.site(node.id)
            elif isinstance(node, Last):
                self._last(node.state)


def literal(n: Num, compute: Format) -> float:
    """The value of a literal: its decimal text rounded once to the compute format, or the value of its bits."""
    if n.bits is not None:
        word = {64: np.uint64, 32: np.uint32, 16: np.uint16, 8: np.uint8}[compute.bits]
        return float(decode(np.array([n.bits]).astype(word), compute)[0])
    if n.text in ("inf", "nan"):
        return float(n.text)
    return round_fraction(Fraction(n.text), compute)


def _logic(op: str, data: list[Array]) -> Array:
    if op == "not":
        return jnp.logical_not(data[0])
    join = jnp.logical_and if op == "and" else jnp.logical_or
    result = data[0]
    for other in data[1:]:
        result = join(result, other)
    return result


__all__ = ["Evaluator", "Fold", "Frame", "literal"]
