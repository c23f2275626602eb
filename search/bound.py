"""An upper bound on the distance of two sides, over all scores and values.

Each rounding to a narrow format moves a token's term by a factor of at most ``1 + r``, and a token passes so many of
them (`search.sensitivity`). All that is left of the input is then the mass P of ``p |v|`` on tokens of one sign and M
on the other, with ``|P - M| >= c (P + M)``. The continuous index is concave on positive numbers, the smallest of the
lines that continue its pieces, and everything scales: the largest distance is a linear program, solved exactly by
z3.Optimize over the rationals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from search.brackets import with_brackets
from search.branches import open_choice
from search.lines import upstream
from search.resources import answer
from search.sensitivity import Grown, grown
from search.shared import same_logits as same_logits
from search.shared import shared_lines
from search.sides import BEFORE, Side, before_rounding
from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.program import TOKEN

#: Formats of at most this many significand bits get factors of their own; the others are counted together.
NARROW = 16
#: Formats whose smallest normal number is above 2**this lose small weights altogether.
DEEP = -100
#: A rigorous bound is one for outputs of at least 2**LEAST in magnitude: what underflows in f32 or bf16 is far smaller.
LEAST = -60
#: Binades above the lower output in which the index is followed; beyond them its line goes on.
BINADES = 12
SCORE_BOX = 20.0
_FINE = 1 << 80


@dataclass(frozen=True)
class Terms:
    """What the roundings of one side may do to its output.

    Attributes:
        label: of the side.
        narrow: the roundings to narrow formats.
        up, down: the largest and the smallest factor on a term ``p v`` of the numerator, by narrow roundings.
        normal_up, normal_down: likewise on a term of the normaliser.
        direct, through: the same to first order: relative to ``sum p |v|``, and to the output.
        wide_direct, wide_through: what all other roundings add, relative to ``sum p |v|`` and to the output.
        roundings: how many others were counted, each half a unit in the last place of the compute format.
        factors: whether every rounding is a factor (see `search.sensitivity.Sensitivities`).
        rounded: whether the output is a rounding of the value whose distance is bounded.
        loses: formats that lose small weights.
        choice: a line that chooses by position or by data (`search.branches`), whose other branch may round otherwise.
    """

    label: str
    narrow: tuple[Grown, ...]
    up: Fraction
    down: Fraction
    normal_up: Fraction
    normal_down: Fraction
    direct: Fraction
    through: Fraction
    wide_direct: Fraction
    wide_through: Fraction
    roundings: int
    factors: bool
    rounded: bool = True
    loses: tuple[str, ...] = ()
    choice: str = ""


@dataclass(frozen=True)
class Bound:
    """The largest distance that two sides can have.

    Attributes:
        real: distance of the continuous index before the last rounding, at most; infinite where cancellation leaves
            the sign of an output open.
        integer: distance of the stored outputs, at most: ``floor(real) + 1``, as each may be rounded by half a place
            (an output that is no cast is not rounded once more); None where ``real`` is infinite or an estimate.
        first_order: the same distance with products of roundings left out.
        a_above, b_above: the first-order distance with the output of that side the larger one.
        rigor: whether ``real`` holds for the roundings as counted (`search.prove.bounds` walks the whole plan and
            proves), or is only a first-order estimate, equal to `first_order`.
        reason: why.
        cancellation: c.
        format: of the outputs.
        a, b: the roundings of both sides; None where the sides are the same.
    """

    real: float
    integer: int | None
    first_order: float
    a_above: float
    b_above: float
    rigor: Literal["rigorous", "first order"]
    reason: str
    cancellation: Fraction
    format: Format
    a: Terms | None = None
    b: Terms | None = None


def upper_bound(
    a: Side,
    b: Side,
    *,
    context: Mapping[str, Any],
    cancellation: Fraction,
    roundings: int | None = None,
    score_box: float = SCORE_BOX,
) -> Bound:
    """The largest distance of the outputs of ``a`` and ``b``, over all scores in the box and all values.

    Args:
        a, b: the sides; both must store their output in the same format.
        context: as for `Side.program`; at least ``kv_len``.
        cancellation: c > 0: the exact output is at least c times the weighted mean of \\|v\\|.
        roundings: how many roundings of the compute format to allow for on each side; None: as many as a token
            passes at most in the plan.
        score_box: bound on \\|s\\|: roundings of logits count with their size.

    Raises:
        InputError: the formats of the outputs differ, or c is not in (0, 1].
        UnsupportedError: the roundings of a spec are not understood.
    """
    if not 0 < cancellation <= 1:
        raise InputError(
            f"c = {cancellation}",
            place="cancellation",
            remedy="give 0 < c <= 1: without it there is no bound",
        )
    (pa, _, fa), (pb, _, fb) = (before_rounding(side.program(context)) for side in (a, b))
    if fa != fb:
        raise InputError(
            f"{a.label} stores {fa}, {b.label} stores {fb}",
            place="bound",
            remedy="compare outputs of one format",
        )
    alike = shared_lines(a, b, pa, pb, context)
    if "output" in alike:
        reason = "both sides are the same program on the same partition"
        return Bound(0.0, 0, 0.0, 0.0, 0.0, "rigorous", reason, cancellation, fa)
    if roundings is None and alike & upstream(pa).keys():
        found = _apart(a, b, alike, context, cancellation, score_box, fa)
        if found is not None:
            return found
    sides = [terms_of(side, context, roundings=roundings, score_box=score_box) for side in (a, b)]
    return bound_of(*sides, cancellation=cancellation, fmt=fa)


def _apart(
    a: Side,
    b: Side,
    alike: frozenset[str],
    context: Mapping[str, Any],
    cancellation: Fraction,
    score_box: float,
    fmt: Format,
) -> Bound | None:
    """The bound where the lines of ``alike`` are computed alike: the masses after their roundings are the same numbers.

    Only the other lines part the sides, and c is a little less of the rounded masses; None where nothing is known of it.
    """
    known = [grown(side, context) for side in (a, b)]
    sides = [
        terms_of(side, context, score_box=score_box, left_out=alike, known=of)
        for side, of in zip((a, b), known, strict=True)
    ]
    others = frozenset(a.program(context).sites) - alike | {BEFORE}
    common = terms_of(a, context, score_box=score_box, left_out=others, known=known[0])
    kept = cancellation
    if cancellation < 1:
        if common.loses or not common.factors or common.wide_direct >= 1:
            return None
        less = common.down / common.up * (1 - common.wide_direct) ** 2
        most = (1 + cancellation) / (1 - cancellation) * less
        kept = (most - 1) / (most + 1)
        if kept <= 0:
            return None
    found = bound_of(*sides, cancellation=kept, fmt=fmt)
    reason = f"{found.reason}; what both sides compute alike parts nothing"
    return replace(found, cancellation=cancellation, reason=reason)


def bound_of(a: Terms, b: Terms, *, cancellation: Fraction, fmt: Format) -> Bound:
    """As `upper_bound`, from what `terms_of` found: worth it where one side is compared often."""
    above = [_distance(_linear(high), _linear(low), cancellation, fmt) for high, low in ((a, b), (b, a))]
    first = real = max(above)
    rigor: Literal["rigorous", "first order"] = "first order"
    reason = _why_not([a, b])
    lost = next((f"{t.label} rounds to {t.loses[0]}" for t in (a, b) if t.loses), "")
    if lost:
        reason = f"{lost}, which loses small weights altogether: there is no bound"
        first = real = math.inf
        above = [math.inf, math.inf]
    elif not reason:
        real = farthest(a, b, cancellation=cancellation, fmt=fmt)
        rigor = "rigorous"
        reason = (
            "every rounding is a factor of terms of the numerator or the normaliser; for outputs of at least "
            f"2**{LEAST} in magnitude, so that what underflows is counted, too; how many there are is continued from small "
            "instances of the plan"
        )
    integer = stored(real, a, b) if rigor == "rigorous" else None
    return Bound(real, integer, first, above[0], above[1], rigor, reason, cancellation, fmt, a, b)


def farthest(a: Terms, b: Terms, *, cancellation: Fraction, fmt: Format) -> float:
    """The largest distance before the last rounding, products of roundings included; infinite where there is none."""
    pairs = ((a, b), (b, a))
    return max(_distance(_product(high), _product(low), cancellation, fmt) for high, low in pairs)


def stored(real: float, a: Terms, b: Terms) -> int | None:
    """The largest distance of stored outputs."""
    return None if math.isinf(real) else math.floor(Fraction(real) + Fraction(a.rounded + b.rounded, 2))


def _why_not(sides: list[Terms]) -> str:
    for t in sides:
        if not t.factors:
            return f"the roundings of {t.label} are not all factors: products of two are left out"
        if t.choice:
            return f"line '{t.choice}' of {t.label} chooses by position or by data: another branch may round otherwise"
    return ""


def terms_of(
    side: Side,
    context: Mapping[str, Any],
    *,
    roundings: int | None = None,
    score_box: float = SCORE_BOX,
    left_out: frozenset[str] = frozenset(),
    known: tuple[tuple[Grown, ...], bool] | None = None,
) -> Terms:
    """What the roundings of ``side``, without those of some lines, may do to its output: arguments as of `upper_bound`.

    Raises:
        as `upper_bound`.
    """
    plan = side.plan(context)
    found, factors = known or grown(side, context)
    sizes = dict(zip((*plan.levels, TOKEN), plan.tokens.shape, strict=True))
    found = with_brackets(found, side.program(context), sizes)
    found = tuple(g for g in found if g.site not in left_out)
    narrow = tuple(g for g in found if g.format.p <= NARROW and not g.logit)
    up = down = normal_up = normal_down = Fraction(1)
    direct = through = Fraction(0)
    for g in narrow:
        r, n = _relative(g), g.counts
        above, below = _factors(r, n.raised, n.lowered)
        up, down = up * above, down * below
        above, below = _factors(r, n.normal, n.divided)
        normal_up, normal_down = normal_up * above, normal_down * below
        up, normal_up = _raised(up), _raised(normal_up)
        down, normal_down = -_raised(-down), -_raised(-normal_down)
        direct += n.direct * r
        through += n.through * r
    program, output, _ = before_rounding(side.program(context))
    unit = Fraction(1, 1 << program.compute.p)
    wide = (
        _wide(found, side, context, score_box, unit) if roundings is None else (roundings * unit, Fraction(0))
    )
    return Terms(
        side.label,
        narrow,
        up,
        down,
        normal_up,
        normal_down,
        direct,
        through,
        wide[0],
        wide[1],
        round(sum(wide) / unit),
        factors,
        output != "output",
        tuple(dict.fromkeys(str(g.format) for g in narrow if g.format.emin > DEEP)),
        open_choice(program, {n: line for n, line in upstream(program).items() if n not in left_out}),
    )


def _wide(
    found: tuple[Grown, ...], side: Side, context: Mapping[str, Any], score_box: float, unit: Fraction
) -> tuple[Fraction, Fraction]:
    """What roundings to wide formats, and roundings of logits, add to numerator and normaliser."""
    tokens = side.plan(context).kv_len
    # A logit is a score or the logarithm of a sum of weights of at most 1; falling ones add up to a difference.
    size = math.ceil(score_box + math.log(max(2, tokens)))
    fall = math.ceil(2 * score_box + math.log(max(2, tokens)))
    direct = through = Fraction(0)
    falling = [Fraction(0), Fraction(0)]
    for g in found:
        if g.logit and g.falling:
            falling = [
                max(most, g.unit_roundoff * fall) if n else most
                for most, n in zip(falling, (g.counts.direct, g.counts.through), strict=True)
            ]
        elif g.logit or g.format.p > NARROW:
            each = g.unit_roundoff * (size if g.logit else 1)
            direct += each * g.counts.direct
            through += each * g.counts.through
    # What flushes or becomes subnormal is off by at most the smallest normal number of f32, each time.
    lost = Fraction(2 * len(found) * tokens, 1 << (126 + LEAST))
    return direct + falling[0] + lost, through + falling[1] + lost


def _factors(r: Fraction, times: int, over: int) -> tuple[Fraction, Fraction]:
    """The largest and smallest product of so many factors ``1 + delta``, of so many ``1 / (1 + delta)``, or both kinds."""
    if times and over:
        n = max(times, over)
        return 1 / (1 - r) ** n, (1 - r) ** n
    return (1 + r) ** times / (1 - r) ** over, (1 - r) ** times / (1 + r) ** over


def _relative(g: Grown) -> Fraction:
    """The largest relative error of one rounding, relative to what is rounded."""
    u = g.unit_roundoff
    return u if g.format.rz or g.ulps > 1 else u / (1 + u)


def _raised(x: Fraction) -> Fraction:
    """``x`` or a little above it, with few digits."""
    return Fraction(math.ceil(x * _FINE), _FINE)


@dataclass(frozen=True)
class _Reach:
    """The lowest and highest output of a side, as combinations of the masses P and M over a constant.

    ``high`` is at most ``(high_p P - high_m M) / low_normal``; ``low`` at least ``(low_p P - low_m M) / high_normal``.
    """

    high_p: Fraction
    high_m: Fraction
    low_p: Fraction
    low_m: Fraction
    low_normal: Fraction
    high_normal: Fraction


def _product(t: Terms) -> _Reach:
    """With every product of roundings."""

    def grows(x: Fraction) -> Fraction:  # (1 + u) ** n, from n * u
        return 1 / (1 - x) if x < 1 else Fraction(1 << 64)

    d, n = grows(t.wide_direct), grows(t.wide_through)
    return _Reach(t.up * d, t.down / d, t.down / d, t.up * d, t.normal_down / n, t.normal_up * n)


def _linear(t: Terms) -> _Reach:
    """To first order: ``P - M``, plus or minus ``d (P + M) + a (P - M)``."""
    d, a = t.direct + t.wide_direct, t.through + t.wide_through
    return _Reach(1 + d + a, 1 - d + a, 1 - d - a, 1 + d - a, Fraction(1), Fraction(1))


def _distance(upper: _Reach, lower: _Reach, c: Fraction, fmt: Format) -> float:
    """The largest index of ``upper`` minus that of ``lower``; infinite where the sign of an output is open."""
    if any(side.low_p * (1 + c) <= side.low_m * (1 - c) for side in (upper, lower)):
        return math.inf
    return _largest(upper, lower, c, fmt)


def _largest(upper: _Reach, lower: _Reach, c: Fraction, fmt: Format) -> float:
    """The largest index of ``upper`` minus that of ``lower``, whose output is in [1, 2]: all outputs scale alike."""
    import z3

    context = z3.Context()

    def q(x: Fraction) -> Any:
        return z3.Q(x.numerator, x.denominator, context)

    p, m, high, low, index = (z3.Real(name, context) for name in ("P", "M", "high", "low", "index"))
    places = 1 << (fmt.p - 1)
    solver: Any = z3.Optimize(ctx=context)
    solver.add(p >= 0, m >= 0, p - m >= q(c) * (p + m))
    solver.add(high * q(upper.low_normal) <= q(upper.high_p) * p - q(upper.high_m) * m)
    solver.add(low * q(lower.high_normal) >= q(lower.low_p) * p - q(lower.low_m) * m)
    solver.add(low >= 1, low <= 2)
    for e in range(BINADES):
        solver.add(index <= q(Fraction(places, 1 << e)) * high + places * e)
    distance = solver.maximize(index - low * places)
    status = answer(solver)
    if status != "sat":
        raise UnsupportedError(
            f"the linear program of the bound ended as {status}",
            place="bound",
            remedy="report the pair of specs",
        )
    found = solver.upper(distance)
    exact = Fraction(str(found))  # "num/den", or a whole number
    return math.nextafter(float(exact), math.inf) if exact else 0.0
