"""The rigorous bound of two sides, or of one against the exact answer: from walks of their real plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from search.bound import LEAST, Bound, Terms, farthest, stored
from search.lines import upstream
from search.prove.forward import Forward, forward
from search.shared import shared_lines
from search.sides import BEFORE, Side, before_rounding
from specs.formats import Format

_ONE, _NONE = Fraction(1), Fraction(0)
#: The exact answer as a side: nothing is rounded.
EXACT = Terms(
    "the exact answer",
    (),
    up=_ONE,
    down=_ONE,
    normal_up=_ONE,
    normal_down=_ONE,
    direct=_NONE,
    through=_NONE,
    wide_direct=_NONE,
    wide_through=_NONE,
    roundings=0,
    factors=True,
    rounded=False,
)
HOW = (
    "every operation of the plan walked, each rounding and truncation a factor of terms of the numerator or the normaliser, "
    f"products of them included; what underflows is counted for outputs of at least 2^{LEAST}"
)


def walked_bound(
    a: Side, b: Side | None, context: Mapping[str, Any], cancellation: Fraction, box: float, fmt: Format
) -> Bound:
    """The largest distance, proved.

    Args:
        a, b: the sides; b None: the exact answer.
        context: the shape, with ``kv_len``.
        cancellation: c, above 0.
        box: bound on the magnitude of scores, scaled.
        fmt: of the outputs.

    Raises:
        UnsupportedError: what a line does is not bounded, and which line.
    """
    alike, kept = frozenset[str](), cancellation
    if b is not None:
        p, q = (before_rounding(side.program(context))[0] for side in (a, b))
        alike = shared_lines(a, b, p, q, context) & upstream(p).keys()
    if alike and b is not None:
        # What both compute alike parts nothing; c is a little less of the masses after it.
        others = frozenset(a.program(context).sites) - alike | {BEFORE}
        kept = _kept(forward(a, context, box, others), cancellation)
        if kept <= 0:
            alike, kept = frozenset[str](), cancellation
    sides = [_terms(side, context, box, alike) if side is not None else EXACT for side in (a, b)]
    real = farthest(*sides, cancellation=kept, fmt=fmt)
    reason = HOW + ("; what both sides compute alike parts nothing" if alike else "")
    found = Bound(real, None, real, real, real, "rigorous", reason, cancellation, fmt, *sides)
    return replace(found, integer=stored(real, *sides))


def _kept(common: Forward, c: Fraction) -> Fraction:
    if c >= 1:
        return c
    most = (1 + c) / (1 - c) * (common.down / common.up)
    return (most - 1) / (most + 1)


def _terms(side: Side, context: Mapping[str, Any], box: float, alike: frozenset[str]) -> Terms:
    f = forward(side, context, box, alike)
    _, output, _ = before_rounding(side.program(context))
    return replace(
        EXACT,
        label=side.label,
        up=f.up,
        down=f.down,
        normal_up=f.normal_up,
        normal_down=f.normal_down,
        wide_direct=f.lost * (1 << -LEAST),
        rounded=output != "output",
    )
