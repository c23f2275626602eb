"""Which parts account for how much of a difference: Shapley values over hybrids, in rationals.

``v(S)`` of an output element is the continuous index of the hybrid that takes the parts S from the second side, less that
of the first side. The continuous index is where the value before the last rounding stands among the values of the
output's format (`search.exact.dyadic.index`): for bf16 and a value in f32 it is the ordered pattern over 65,536. The
final rounding is a line of its own: what it adds to the distance of the stored outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.exact.dyadic import index as place_of
from search.explain.flat import Flat
from search.explain.hybrid import Hybrid, Maker, Taken
from search.explain.legal import Legality
from search.explain.parts import Part, find_parts
from search.explain.pool import Pool, part_of, score_key
from search.explain.quick import QuickArithmetic
from search.explain.shapley import ORDERS, Values, exact_values, sampled_values
from search.explain.stages import separated
from search.sides import before_rounding
from specs.errors import FidelityError, InputError, UlpscopeError, UnsupportedError
from specs.formats import Format
from verify.emulator import Run
from verify.numerics.rounding import storage_dtype, store, word_dtype
from verify.numerics.ulp import ordered

Progress = Callable[[str, int, int], None]
#: Products of q and K of one row up to which the definition computes scores; above, the array engine does.
SMALL = 1 << 17


@dataclass(frozen=True)
class Element:
    """One output element: ``at`` by axis (``query``, ``head`` or ``row``, and ``dim``), and where its row is."""

    at: Mapping[str, int]
    head: int
    row: int
    dim: int


@dataclass(frozen=True)
class Attributed:
    """The explanation of one element.

    Attributes:
        element: which.
        before: of both sides, the value before the last rounding; stored: after it. bits: patterns of ``stored``.
        total: v(all). phi: by part; they add up to ``total``. errors: standard errors, or None.
        rounding: what the final rounding adds. ulp: distance of the stored outputs, signed: total + rounding.
        table: v of every evaluated set.
    """

    element: Element
    before: tuple[float, float]
    stored: tuple[float, float]
    bits: tuple[str, str]
    total: Fraction
    phi: tuple[Fraction, ...]
    errors: tuple[float, ...] | None
    rounding: Fraction
    ulp: int
    table: Mapping[Taken, Fraction]


@dataclass(frozen=True)
class Attribution:
    """The parts, and what they account for.

    Attributes:
        parts: in the order of the dataflow.
        joined: why parts were joined.
        same_function: whether both sides are one function of real numbers on a sample; unchecked: why that is not known.
        elements: one explanation each.
        hybrids: how many were evaluated. orders: sampled orders; 0: every set was evaluated.
        format: of the output.
    """

    parts: tuple[Part, ...]
    joined: tuple[str, ...]
    same_function: bool
    unchecked: str
    elements: tuple[Attributed, ...]
    hybrids: int
    orders: int
    format: Format


def legality(flats: tuple[Flat, Flat], runs: tuple[Run, Run], *, fine: bool = False) -> Legality | None:
    """The parts in which two runs differ, ready to be exchanged; None if they differ in nothing.

    Raises:
        UnsupportedError: the outputs have different formats.
    """
    refuse_formats(runs)
    parts = parts_of(flats, runs, fine=fine)
    return Legality(Maker(flats, runs, tuple(parts))) if parts else None


def parts_of(flats: tuple[Flat, Flat], runs: tuple[Run, Run], *, fine: bool = False) -> list[Part]:
    """The parts in which two runs differ, as far as the output depends on them."""
    inputs = [{n: f.base for n, f in run.problem.formats.items()} for run in runs]
    return find_parts(
        flats[0],
        flats[1],
        (runs[0].program, runs[1].program),
        (runs[0].platform, runs[1].platform),
        (inputs[0], inputs[1]),
        fine=fine,
    )


def refuse_formats(runs: tuple[Run, Run]) -> None:
    """Refuse two specs of different output formats.

    Raises:
        UnsupportedError: they are different.
    """
    formats = [before_rounding(run.program)[2] for run in runs]
    if formats[0].base != formats[1].base:
        raise UnsupportedError(
            f"{runs[0].program.spec} stores {formats[0].base}, {runs[1].program.spec} {formats[1].base}",
            place="explain",
            remedy="a difference of outputs is only measured within one format: compare specs that store the same",
        )


def elements_of(run: Run, where: Sequence[Mapping[str, int]]) -> list[Element]:
    """Output elements by their places in the output.

    Raises:
        InputError: there is no such element.
    """
    problem = run.problem
    axes = output_axes(run)
    shape = (*problem.shape, problem.v.shape[-1])
    group = problem.rows // problem.queries
    found: list[Element] = []
    for at in where:
        for axis, size in zip(axes, shape, strict=True):
            if not 0 <= at.get(axis, 0) < size:
                raise InputError(
                    f"{axis} {at[axis]} of {size}", place=f"--{axis}", remedy=f"numbers are 0 to {size - 1}"
                )
        full = {axis: at.get(axis, 0) for axis in axes}
        if problem.q is None:
            head, row = 0, full["row"]
        else:
            head, row = divmod(full["head"], group)
            row += full.get("query", 0) * group
        found.append(Element(full, head, row, full["dim"]))
    return found


def output_axes(run: Run) -> tuple[str, ...]:
    """The axes of the output."""
    lead = ("row",) if run.problem.q is None else ("query", "head")[-len(run.problem.shape) :]
    return (*lead, "dim")


class Evaluator:
    """Evaluates hybrids at output elements.

    Args:
        runs: both sides, which know their scores if they were evaluated.
        ends: hybrids that take nothing, and everything, from the second side: the sides themselves.
    """

    def __init__(self, runs: tuple[Run, Run], ends: tuple[Hybrid, Hybrid]) -> None:
        self.runs = runs
        self._scores: dict[int, dict[Any, NDArray[np.float64]]] = {}
        problem = runs[0].problem
        depth = 0 if problem.q is None else problem.q.shape[-1]
        self._feeds = problem.q is not None and problem.kv_len * depth > SMALL
        self._ends = ends
        self.pool = Pool(QuickArithmetic(), self._scores)

    def values(self, hybrid: Hybrid, element: Element) -> tuple[Fraction, float, float]:
        """The continuous index, the value before the last rounding and the output.

        Raises:
            InputError: the value is NaN or infinite.
        """
        if self._feeds:
            self._feed(hybrid, element.head)
        found = self.pool.values(hybrid, (element.head, element.row), [element.dim])
        before, output = found[hybrid.site][0], found["output"][0]
        if before - before != 0 or output - output != 0:
            raise InputError(
                f"the output at {at_text(element.at)} is {output}",
                place="explain",
                remedy="a NaN or infinity has no place among numbers: choose another element with --head and --dim",
            )
        return place_of(Fraction(before), hybrid.format), before, output

    def _feed(self, hybrid: Hybrid, head: int) -> None:
        """Make sure that the scores of one KV head are known, and forget those of others."""
        known = self._scores.setdefault(head, {})
        if not known:
            for run, end in zip(self.runs, self._ends, strict=True):
                key = score_key(end)
                site = end.program.score_site()
                if key is not None and site in run.known:
                    known[key] = _by_token(run, site)[head]
        key = score_key(hybrid)
        if key is None or key in known:
            return
        site = hybrid.program.score_site()
        try:
            run = Run.start(
                hybrid.spec,
                hybrid.platform,
                part_of(hybrid.problem, head),
                {n: v for n, v in hybrid.plan.context.items() if n not in hybrid.platform.context},
                {},
                "engine",
            )
            run.evaluate([site])
        except UlpscopeError:
            return  # the definition computes them
        known[key] = _by_token(run, site)[0]


def _by_token(run: Run, site: str) -> NDArray[np.float64]:
    """A site of tokens as ``[kv_head, row, token]``, float64."""
    data = run.known[site]
    flat = data.reshape(*data.shape[:2], -1)
    tokens = run.plan.tokens.reshape(-1)
    out = np.zeros((*data.shape[:2], run.plan.kv_len))
    out[..., tokens[tokens >= 0]] = flat[..., tokens >= 0].astype(np.float64)
    return out


def attribute(
    judged: Legality,
    elements: Sequence[Element],
    *,
    seed: int,
    progress: Progress,
    orders: int = ORDERS,
) -> Attribution:
    """Shapley values of the parts at each element.

    Raises:
        InputError: an output is NaN or infinite. UnsupportedError: that of a hybrid is. FidelityError: a hybrid that takes
            everything from one side is not that side, bit for bit.
    """
    judged, drawn, sets = separated(judged, seed, orders, progress)
    parts = judged.maker.parts
    everything = frozenset(range(len(parts)))
    ends = judged.hybrid(frozenset()), judged.hybrid(everything)
    evaluator = Evaluator(judged.maker.runs, ends)
    found: list[Attributed] = []
    for number, element in enumerate(elements):
        raw: dict[Taken, tuple[Fraction, float, float]] = {}
        for s in (frozenset[int](), everything):
            raw[s] = evaluator.values(judged.hybrid(s), element)
        for done, s in enumerate(sets):
            progress("hybrids", number * len(sets) + done, len(sets) * len(elements))
            if s not in raw:
                raw[s] = _of_hybrid(evaluator, judged.hybrid(s), element)
        base = raw[frozenset()]
        table = {s: (value[0] - base[0],) for s, value in raw.items()}
        values = _values(len(parts), table, drawn)
        sides = base, raw[everything]
        _confirm(judged.maker.runs, element, sides, ends)
        found.append(_attributed(element, sides, values, table, ends[0].format))
    return Attribution(
        parts,
        tuple(judged.joined),
        judged.same_function,
        judged.unchecked,
        tuple(found),
        len(sets),
        len(drawn),
        ends[0].format,
    )


def _of_hybrid(evaluator: Evaluator, hybrid: Hybrid, element: Element) -> tuple[Fraction, float, float]:
    try:
        return evaluator.values(hybrid, element)
    except InputError as error:
        raise UnsupportedError(
            f"of a hybrid {error.cause}, though both sides are finite there",
            place="explain",
            remedy="choose another element with --head and --dim",
        ) from None


def _values(n: int, table: Mapping[Taken, Sequence[Fraction]], drawn: Sequence[Sequence[int]]) -> Values:
    return sampled_values(n, table, drawn) if drawn else exact_values(n, table)


def _attributed(
    element: Element,
    sides: tuple[tuple[Fraction, float, float], ...],
    values: Values,
    table: Mapping[Taken, Sequence[Fraction]],
    fmt: Format,
) -> Attributed:
    (index_a, before_a, out_a), (index_b, before_b, out_b) = sides
    places = [int(p) for p in ordered(np.array([out_a, out_b]), replace(fmt, ftz=False, sat=False, rz=False))]
    ulp = places[1] - places[0]
    total = index_b - index_a
    assert total == values.total[0]
    stored = store(np.array([out_a, out_b]), fmt).view(word_dtype(fmt))
    bits = [f"0x{int(word):0{fmt.bits // 4}x}" for word in stored]
    return Attributed(
        element=element,
        before=(before_a, before_b),
        stored=(out_a, out_b),
        bits=(bits[0], bits[1]),
        total=total,
        phi=tuple(row[0] for row in values.phi),
        errors=None if values.errors is None else tuple(row[0] for row in values.errors),
        rounding=ulp - total,
        ulp=ulp,
        table={s: v[0] for s, v in table.items()},
    )


def _confirm(
    runs: tuple[Run, Run],
    element: Element,
    sides: tuple[tuple[Fraction, float, float], ...],
    ends: tuple[Hybrid, Hybrid],
) -> None:
    """The hybrids at both ends have the bits that the emulator stored for the sides."""
    for run, side, end in zip(runs, sides, ends, strict=True):
        if "output" not in run.known:
            continue
        kept = run.known["output"][element.head, element.row, element.dim]
        mine = store(np.array([side[2]]), end.format).view(word_dtype(end.format))[0]
        theirs = np.array([kept], storage_dtype(end.format)).view(word_dtype(end.format))[0]
        if int(mine) != int(theirs):
            raise FidelityError(
                f"the emulator gives 0x{int(theirs):x} at {at_text(element.at)}, the definition 0x{int(mine):x} "
                f"for {run.program.spec}, taken apart and put together again",
                remedy="this is a fault of ulpscope: please report it with this command",
            )


def at_text(at: Mapping[str, int]) -> str:
    """``head 7, dim 30``."""
    return ", ".join(f"{axis} {number}" for axis, number in at.items())
