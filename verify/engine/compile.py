"""From a typed program to a compiled function, once for each structure and each bucket of shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from specs.formats import Format
from specs.program import DEPTH, DIM, Program
from verify.engine import contract
from verify.engine.evaluate import Evaluator
from verify.engine.inputs import Arrays
from verify.engine.primitives import F32, F64, Carrier, F32Exact
from verify.engine.ranges import Range
from verify.engine.values import HEAD, LANE, LANES, ROW_AXIS, STEP, Val

Array = jax.Array
CARRIERS: dict[str, type[Carrier]] = {"f32": F32, "f32_exact": F32Exact, "f64": F64}


@dataclass(frozen=True)
class Recipe:
    """Everything static about a compiled function. Two equal recipes share one compilation cache.

    ``key`` stands for the program's structure (sites, states, formats, level names; not the partition).
    """

    key: tuple[Any, ...]
    program: Program = field(compare=False, repr=False)
    carrier: str
    wanted: tuple[str, ...]
    heads: int
    rows: int
    formats: tuple[tuple[str, Format], ...]
    dim: int
    aligned: bool
    consecutive: bool
    outputs: tuple[tuple[str, Format], ...]


def structure(program: Program) -> tuple[Any, ...]:
    """A hashable summary of what the array walker reads of a program."""
    sites = tuple((s.name, s.section, s.expr, s.type) for s in program.sites.values())
    states = tuple((s.name, s.scope, s.start, s.section, s.levels) for s in program.states.values())
    views = tuple(program.views.items())
    inputs = tuple(program.inputs.items())
    levels = tuple((level.name, level.rule.keep_empty) for level in program.levels)
    return (program.compute, inputs, levels, views, sites, states, program.dot_products)


@lru_cache(maxsize=256)
def compiled(recipe: Recipe) -> Callable[..., Any]:
    """The jitted function of a recipe: ``f(zero, dynamic) -> (sites, risk)``.

    ``dynamic`` is a dict of arrays: ``q k v tokens exists low high queries per_row kv_len scalars feed ranges``.
    Sites come back as stored words of their format (conditions as bool), with all their axes and those of head and
    row.
    """
    program = recipe.program

    def run(zero: Array, dynamic: Mapping[str, Any]) -> tuple[dict[str, Array], Array]:
        ops = CARRIERS[recipe.carrier](zero)
        arrays = _arrays(recipe, ops, zero, dynamic)
        walker = Evaluator(program, ops, arrays, frozenset(recipe.wanted))
        formats = dict(recipe.outputs)
        results: dict[str, Array] = {}
        for name in recipe.wanted:
            axes = walker.axes.union(walker.axes.physical(program.sites[name].type.axes), (HEAD, ROW_AXIS))
            data = walker.axes.full(walker.site(name), axes).data
            results[name] = ops.encode(data, formats[name]) if name in formats else data
        return results, ops.risk()

    return jax.jit(run, compiler_options=contract.COMPILER_OPTIONS)


def _arrays(recipe: Recipe, ops: Carrier, zero: Array, dynamic: Mapping[str, Any]) -> Arrays:
    program = recipe.program
    formats = dict(recipe.formats)
    tokens = dynamic["tokens"]
    levels = program.level_names
    q, k, v = dynamic.get("q"), dynamic.get("k"), dynamic["v"]
    sizes = dict(zip((*levels, STEP, LANE), tokens.shape, strict=True))
    sizes |= {DIM: recipe.dim, HEAD: recipe.heads, ROW_AXIS: recipe.rows}
    sizes |= {name: view.size for name, view in program.views.items()}
    if q is not None:
        sizes[DEPTH] = q.shape[-1]
    tiles = (v.shape[0] - LANES) // LANES
    position = jnp.arange(tiles * LANES, dtype=jnp.int32).reshape(tiles, 1, 1, LANES)
    low, high = dynamic["low"][:, None], dynamic["high"][:, None]
    visible = (position >= low) & (position < high)
    feed: dict[str, Array] = {}
    for name, words in dynamic.get("feed", {}).items():
        feed[name] = jnp.where(visible, ops.decode(words, formats[name]), -jnp.inf)
    return Arrays(
        heads=recipe.heads,
        rows=recipe.rows,
        sizes=sizes,
        q=None if q is None else ops.decode(q, formats["q"]),
        k=k,
        v=v,
        formats=formats,
        ranges={name: Range(*pair) for name, pair in dynamic["ranges"].items()},
        kv_len=dynamic["kv_len"],
        visible=visible,
        position=position,
        queries=dynamic["queries"],
        per_row={n: ops.decode(x, program.compute) for n, x in dynamic["per_row"].items()},
        tokens=tokens,
        aligned=recipe.aligned,
        consecutive=recipe.consecutive,
        zero=zero,
        live=Val(tokens >= 0, (*levels, STEP, LANE)),
        exists={level: Val(dynamic["exists"][level], levels[: i + 1]) for i, level in enumerate(levels)},
        feed=feed,
        scalars={name: ops.decode(word, formats[name]) for name, word in dynamic["scalars"].items()},
    )
