"""How far the values that a narrow rounding takes in are from where it would go the other way.

A witness whose weights sit next to the midpoints of bf16 may part two backends only as long as exp is the function
that the spec names: another exp moves each weight by some units in the last place. A rounding of x to p bits keeps
its result while x moves by less than its distance from the nearest midpoint (from the nearest value, where the
format rounds toward zero).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from search.exact import elementary
from search.exact.dyadic import ZERO, Number, order, to_fraction
from search.exact.narrow import Narrow, narrow_places
from search.exact.operations import WIDE, Operation
from search.exact.replay import Replay, Row
from search.exact.text import CLOSED, Rational, Words, rational
from specs.formats import Format
from specs.nodes import Cast, Op
from specs.program import DIM, TOKEN
from verify.definition import Walker
from verify.definition.layout import move, tuple_getter

#: A number of ulps, or ``any`` or ``unknown``.
Survives = int | Literal["any", "unknown"]
#: f32 ulps by which ex2.approx may be off.
_RISK: Number = (2, 0)
_BITS = 256


@dataclass(frozen=True)
class Margin:
    """The roundings of one place of a spec to a format narrower than its arithmetic.

    Attributes:
        site: the line.
        format: what it rounds to.
        of_exp: whether it rounds the result of an exponential whose argument no other exponential moves.
        shielded: whether every exponential that the value depends on is rounded by another such place first, so
            that the value moves only if a rounding there changes.
        count: roundings whose result is used; a weight that meets only values of 0 is not, nor is a weight of 0.
        distance: the smallest distance from where the rounding goes the other way, in units in the last place of
            the arithmetic's format at the value, as "num/den"; None where ``count`` is 0.
        token: where: the number of the token, None where the place has no tokens.
        value: there: what is rounded, as "num/den".
        at_risk: roundings with a distance of at most 2 units: those that an exponential of that error may turn.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    site: Words
    format: Words
    of_exp: bool
    shielded: bool
    count: int
    distance: Rational | None
    token: int | None
    value: Rational | None
    at_risk: int


@dataclass(frozen=True)
class Margins:
    """All narrow roundings before the last one.

    Attributes:
        places: those that were measured.
        unmeasured: lines with narrow roundings inside a sum or a borrowed function that an exponential moves.
        survives: the most ulps by which every exponential may be off without any narrow rounding changing; ``any``
            where none depends on an exponential; ``unknown`` where a place is unmeasured, or takes in exponentials
            unshielded.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    places: tuple[Margin, ...]
    unmeasured: tuple[Words, ...]
    survives: Survives


def margins(found: Replay, row: Row) -> Margins:
    """The margins of a replayed side."""
    places: list[Margin] = []
    unmeasured: list[str] = []
    for place in narrow_places(found.program, found.site):
        margin = _measured(found, row, place)
        if margin is not None:
            places.append(margin)
        elif not place.shielded:
            unmeasured.append(place.site.name)
    tolerated = [_tolerated(Fraction(m.distance)) for m in places if m.of_exp and m.distance is not None]
    open_ = any(m.count and not m.of_exp and not m.shielded for m in places)
    survives: Survives = "unknown" if unmeasured or open_ else min(tolerated) if tolerated else "any"
    return Margins(tuple(places), tuple(dict.fromkeys(unmeasured)), survives)


def _tolerated(distance: Fraction) -> int:
    """The largest whole number of ulps below ``distance``."""
    return max(0, -(-distance.numerator // distance.denominator) - 1)


def _measured(found: Replay, row: Row, place: Narrow) -> Margin | None:
    """The margin of one place; None where the exact value that it rounds is out of reach."""
    unrounded = _unrounded(place)
    if unrounded is None or not place.operands:
        return None
    walker, compute = found.walker, found.program.compute
    # The walker compiles a line when that is first read, so lines can be added.
    walker.program = replace(
        walker.program, sites={**walker.program.sites, **{s.name: s for s in place.operands}}
    )
    reads = [walker.read(s.name) for s in place.operands]
    axes = frozenset[str]().union(*(s.type.axes for s in place.operands))
    used = [any(values) for values in row.v.tolist()]
    smallest: tuple[Number, int | None, Number] | None = None
    count = at_risk = 0
    known: dict[Number, bool] = {}
    for token, index in _positions(walker, axes, len(row.values)):
        if place.only_with_v and token is not None and not used[token]:
            continue
        x = unrounded(*(read(index) for read in reads))
        if not x[0]:
            continue
        if x not in known:
            apart = _distance(x, place.format, compute)
            known[x] = order(apart, _RISK) != 1
            if smallest is None or order(apart, smallest[0]) == -1:
                smallest = apart, token, x
        count += 1
        at_risk += known[x]
    distance = token = value = None
    if smallest is not None:
        apart, token, x = smallest
        distance, value = rational(to_fraction(apart)), rational(to_fraction(x))
    return Margin(
        place.site.name,
        place.format.name,
        place.of_exp,
        place.shielded,
        count,
        distance,
        token,
        value,
        at_risk,
    )


def _unrounded(place: Narrow) -> Operation | None:
    """From the operands to what is rounded, exactly or to many bits; None where no such function is known."""
    match place.node:
        case Cast():
            return lambda x: x
        case Op(op=op) if op in WIDE:
            return WIDE[op](_BITS)
        case Op(op=op) if op in elementary.BALLS:
            return lambda x: elementary.wide(op, x, _BITS)
        case _:
            return None


def _positions(walker: Walker, axes: frozenset[str], dims: int) -> Iterator[tuple[int | None, list[Any]]]:
    """Every index at which a value with ``axes`` stands, and the number of its token."""
    layout = walker.layout
    others = [a for a in layout.axes if a in axes and a != DIM]
    slots = layout.slots(others)
    nest = tuple_getter(layout.slots(layout.around(TOKEN)))
    blank = walker.index({})
    for point in layout.points(others, frozenset(others), blank):
        index = blank.copy()
        move(index, slots, point)
        token = layout.tokens.item(*nest(index)) if TOKEN in axes else None
        for column in range(dims) if DIM in axes else (None,):
            if column is not None:
                index[layout.slot[DIM]] = column
            yield token, index


def _distance(x: Number, fmt: Format, compute: Format) -> Number:
    """From ``x`` to where its rounding to ``fmt`` changes, in ulps of ``compute`` at ``x``."""
    m, e = abs(x[0]), x[1]
    size = m.bit_length()
    binade = size + e - 1
    cut = max(binade, fmt.emin) - fmt.p + 1 - e  # the place of the last bit that is kept
    if cut < 2:
        m, e, cut, size = m << (2 - cut), e - 2 + cut, 2, size + 2 - cut
    rest, half = m & ((1 << cut) - 1), 1 << (cut - 1)
    if fmt.rz:
        apart = min(rest, 2 * half - rest)
    else:
        apart = abs(rest - half)
        if binade > fmt.emin:
            # Below a power of two the values of the format are twice as dense, and the midpoint is nearer.
            apart = min(apart, m - (1 << (size - 1)) + half // 2)
    return (apart, e - (max(binade, compute.emin) - compute.p + 1)) if apart else ZERO
