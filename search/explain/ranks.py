"""The lines whose roundings can move the output most, to first order: a second opinion on an attribution.

`search.sensitivity` differentiates the output by every rounding of a spec on small instances, and continues the counts to
the sizes of the partition. What one line can do is at most its count of roundings that a token passes times the unit
roundoff, relative to the weighted mean of |v|. It is a bound of what can happen, the attribution is what did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from search.explain.parts import Part, line_atom
from search.sensitivity import grown, sensitivities
from search.sides import Side
from specs.errors import UlpscopeError
from verify.emulator import Run


@dataclass(frozen=True)
class Rank:
    """One line of one side.

    Attributes:
        line: its name. format: where it rounds to.
        roundings: how many of them one token passes, at most.
        bound: their first-order effect, relative to the weighted mean of |v|; of logits, per unit of their size.
        part: the part of the difference that the line belongs to; empty where both sides have the same line.
    """

    line: str
    format: str
    roundings: int
    bound: Fraction
    part: str


@dataclass(frozen=True)
class Ranking:
    """The lines of one side, the most sensitive first.

    Attributes:
        ranks: by line and format.
        proved: whether SymPy confirms the coefficients of the small instance; None: not asked, or no rational functions.
        reason: why there is no ranking; empty if there is one.
    """

    ranks: tuple[Rank, ...]
    proved: bool | None
    reason: str = ""


def rank(run: Run, parts: Sequence[Part]) -> Ranking:
    """The ranking of one side.

    Args:
        run: the bound side.
        parts: of the difference.
    """
    side = Side(run.spec, run.platform, run.options)
    context = {n: v for n, v in run.plan.context.items() if n not in run.platform.context}
    try:
        found, _ = grown(side, context)
    except UlpscopeError as error:
        return Ranking((), None, error.cause)
    try:
        proved = sensitivities(side, context).proved
    except UlpscopeError:
        proved = None
    sums: dict[tuple[str, str], tuple[int, Fraction]] = {}
    for one in found:
        key = (one.site, str(one.format))
        count = one.counts.direct + one.counts.through
        roundings, bound = sums.get(key, (0, Fraction(0)))
        sums[key] = (roundings + count, bound + count * one.unit_roundoff)
    ranks = [
        Rank(line, fmt, count, bound, part_of(line, parts))
        for (line, fmt), (count, bound) in sums.items()
        if count
    ]
    return Ranking(tuple(sorted(ranks, key=lambda r: (-r.bound, r.line))), proved)


def part_of(line: str, parts: Sequence[Part]) -> str:
    """The part that a line belongs to; empty if none."""
    for part in parts:
        if line_atom(line) in part.atoms or any(c.name == line for c in part.changes):
            return part.name
    return ""
