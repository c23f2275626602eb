"""Run a bound program on prepared inputs: choose the carrier, call the compiled function, fall back when at risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from specs.errors import UnsupportedError
from specs.formats import Format
from specs.names import SCALARS
from specs.nodes import Name
from specs.program import CONSTANTS, Program
from verify.engine.compile import Recipe, compiled, structure
from verify.engine.layout import KV, Tables
from verify.engine.primitives import ZERO, x64
from verify.engine.room import make_room
from verify.engine.values import LANES
from verify.numerics.rounding import encode, round_array

MAX_SCORES = 1 << 24


@dataclass(frozen=True)
class Rows:
    """The query rows of one call: ``q [kv_head, row, depth]`` or ``scores [kv_head, row, token]``, and what each sees.

    ``queries`` are the positions of the rows in the sequence, ``per_row`` values that differ by query head,
    ``[kv_head, row]`` float64.
    """

    q: NDArray[Any] | None
    scores: NDArray[Any] | None
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    formats: Mapping[str, Format]
    queries: NDArray[np.int32]
    per_row: Mapping[str, NDArray[np.float64]] = field(default_factory=dict[str, NDArray[np.float64]])


@dataclass(frozen=True)
class Work:
    """What one evaluation needs.

    Attributes:
        program: a program that `check_supported` passes.
        rows: query rows.
        kv: prepared K and V.
        tables: the partition, padded.
        kv_len: tokens of the sequence.
        scalars: values of the scalars and constants of the spec.
    """

    program: Program
    rows: Rows
    kv: KV
    tables: Tables
    kv_len: int
    scalars: Mapping[str, float]


def evaluate_sites(work: Work, wanted: Sequence[str]) -> tuple[dict[str, NDArray[Any]], bool]:
    """The ``wanted`` sites of a program, all rows of a chunk at once.

    Returns:
        by site, stored words of its format (conditions as bool), axes in the engine's physical order; and whether
        the exact path was taken because a subnormal number was possible.
    """
    rows = work.rows
    chunk = max(1, MAX_SCORES // (work.kv.v.shape[0] * _heads(rows)))
    count = len(rows.low)
    if count <= chunk or work.program.couples_rows:
        return _call(work, wanted)
    parts: list[dict[str, NDArray[Any]]] = []
    exact = False
    for start in range(0, count, chunk):
        part, slow = _call(replace(work, rows=_slice(rows, start, chunk)), wanted)
        live = min(chunk, count - start)
        parts.append({n: _take_rows(work.program, n, x, live) for n, x in part.items()})
        exact |= slow
    joined = {n: np.concatenate([p[n] for p in parts], axis=row_axis(work.program, n)) for n in wanted}
    return joined, exact


def _heads(rows: Rows) -> int:
    array = rows.q if rows.q is not None else rows.scores
    assert array is not None
    return int(array.shape[0])


def _slice(rows: Rows, start: int, count: int) -> Rows:
    """``count`` rows from ``start``; rows past the end repeat the last one, so that shapes stay the same."""
    pick = np.minimum(np.arange(start, start + count), len(rows.low) - 1)
    return Rows(
        None if rows.q is None else rows.q[:, pick],
        None if rows.scores is None else rows.scores[:, pick],
        rows.low[pick],
        rows.high[pick],
        rows.formats,
        rows.queries[pick],
        {name: x[:, pick] for name, x in rows.per_row.items()},
    )


def row_axis(program: Program, site: str) -> int:
    """Where the row axis stands in the result of a site: after the levels and steps it has, and the KV head."""
    kinds = program.sites[site].type.axes
    return sum(level in kinds for level in program.level_names) + ("token" in kinds) + 1


def _take_rows(program: Program, site: str, data: NDArray[Any], count: int) -> NDArray[Any]:
    return np.take(data, np.arange(count), axis=row_axis(program, site))


def _call(work: Work, wanted: Sequence[str]) -> tuple[dict[str, NDArray[Any]], bool]:
    program = work.program
    carriers = ("f64",) if program.compute.base == "f64" else ("f32", "f32_exact")
    recipe, dynamic = dispatch(work, wanted)
    make_room()
    for carrier in carriers:
        with x64(), jax.default_device(jax.devices("cpu")[0]):
            results, risk = compiled(replace(recipe, carrier=carrier))(ZERO, dynamic)
            if not bool(risk):
                return {n: np.asarray(x) for n, x in results.items()}, carrier == "f32_exact"
    if carriers[-1] == "f32_exact":
        raise UnsupportedError(
            f"{program.spec} meets operands for which the array engine has no certain answer",
            place="inputs",
            remedy="a function of the hardware is not known for them, or an exact sum is too wide; "
            'backend="oracle" says which, if it matters to the result',
        )
    raise UnsupportedError(
        f"{program.spec} meets a subnormal f64", place="inputs", remedy="scale the inputs away from 1e-308"
    )


def dispatch(work: Work, wanted: Sequence[str]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of the compiled function to call (first carrier), and its run-time arguments."""
    program, rows, kv = work.program, work.rows, work.kv
    compute = program.compute
    formats: dict[str, Format] = {**kv.formats, **rows.formats}
    words: dict[str, NDArray[Any]] = {}
    used = _names(program)
    for name in _used_scalars(program):
        own = _scalar_format(program, name)
        formats[name] = own
        words[name] = encode(round_array(np.array([work.scalars[name]], np.float64), own), own)[0]
    dynamic: dict[str, Any] = {
        "v": kv.v,
        "tokens": work.tables.tokens,
        "exists": dict(work.tables.exists),
        "low": rows.low,
        "high": rows.high,
        "queries": rows.queries,
        "per_row": {
            name: encode(round_array(x, compute), compute) for name, x in rows.per_row.items() if name in used
        },
        "kv_len": np.int32(work.kv_len),
        "scalars": words,
        "ranges": dict(kv.ranges),
    }
    if rows.q is not None:
        dynamic |= {"q": _words(rows.q, formats["q"]), "k": kv.k}
    else:
        site = program.score_site()
        if not site:
            raise UnsupportedError(
                f"{program.spec} has no site called score",
                place="argument scores",
                remedy="give q, k and v instead",
            )
        assert rows.scores is not None
        formats[site] = formats.pop("scores")
        dynamic["feed"] = {site: _tiles(_words(rows.scores, formats[site]), kv.v.shape[0] // LANES - 1)}
    outputs = tuple(
        (n, program.sites[n].type.format or compute) for n in wanted if program.sites[n].type.kind == "float"
    )
    recipe = Recipe(
        key=structure(program),
        program=program,
        carrier="f64" if compute.base == "f64" else "f32",
        wanted=tuple(wanted),
        heads=_heads(rows),
        rows=len(rows.low),
        formats=tuple(sorted(formats.items())),
        dim=kv.dim,
        aligned=work.tables.aligned,
        consecutive=work.tables.consecutive,
        outputs=outputs,
    )
    return recipe, dynamic


def _names(program: Program) -> set[str]:
    """The names that the lines of a program read, [constants] aside."""
    lines = [site.expr for site in program.sites.values() if site.section != CONSTANTS]
    lines += [state.start for state in program.states.values()]
    return {n.id for line in lines for n in line.walk() if isinstance(n, Name)}


def _used_scalars(program: Program) -> tuple[str, ...]:
    constants = {s.name for s in program.sites.values() if s.section == CONSTANTS}
    return tuple(sorted(_names(program) & (constants | set(SCALARS))))


def _scalar_format(program: Program, name: str) -> Format:
    own = program.sites[name].type.format if name in program.sites else None
    return own if own is not None and program.compute.holds(own) else program.compute


def _words(array: NDArray[Any], fmt: Format) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(f"u{fmt.bits // 8}")


def _tiles(words: NDArray[Any], tiles: int) -> NDArray[Any]:
    """``[kv_head, row, token]`` as ``[tile, kv_head, row, 16]``, zeros past the end."""
    heads, rows, count = words.shape
    out = np.zeros((heads, rows, tiles * LANES), words.dtype)
    out[..., :count] = words
    return np.ascontiguousarray(np.moveaxis(out.reshape(heads, rows, tiles, LANES), 2, 0))
