"""How far outputs can be apart, or from the exact answer: the bound of a search, as a proof with its assumptions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from search.bound import LEAST, SCORE_BOX, Bound, bound_of, same_logits, terms_of, upper_bound
from search.prove.answer import Proof, Status
from search.prove.walked import EXACT, walked_bound
from search.sides import Side, before_rounding
from specs.errors import InputError, UnsupportedError

#: Sequences of up to so many tokens are also evaluated on random inputs, which must stay below the bound.
SHORT, TRIES = 512, 12
#: The largest box of scores: products of two weights stay normal numbers of f32.
MAX_BOX = 20.0


def prove_bound(
    a: Side,
    b: Side | None,
    context: Mapping[str, Any],
    cancellation: Fraction,
    roundings: int | None = None,
    score_box: float = SCORE_BOX,
) -> Proof:
    """The largest distance of two sides, or of one side from the exact answer, over all scores and values.

    Args:
        a, b: the sides; b None: the exact answer.
        context: the shape, with ``kv_len``.
        cancellation: c: the exact output is at least c times the weighted mean of \\|v\\|.
        roundings: f32 roundings to allow for on each side; None: those that the sides have at this length, found by
            walking their plans (`search.prove.forward`).
        score_box: bound on the magnitude of scores, scaled, as natural logarithms.

    Raises:
        InputError, UnsupportedError: as `search.bound.upper_bound`.
    """
    began = time.perf_counter()
    if not 0 < cancellation <= 1:
        remedy = "give 0 < c <= 1: without it there is no bound"
        raise InputError(f"c = {float(cancellation):g}", place="--cancellation", remedy=remedy)
    if not 0 < score_box <= MAX_BOX:
        remedy = f"give a number above 0, and at most {MAX_BOX:g}"
        raise InputError(f"scores within ±{score_box:g}", place="--score-box", remedy=remedy)
    found = _found(a, b, context, cancellation, roundings, score_box)
    subject = f"{a.label} and {'the exact answer' if b is None else b.label}"
    assumptions = _assumptions(a, b, context, found, roundings, score_box)
    again = _tried(a, b, context, found) if roundings is None else ""
    seconds = time.perf_counter() - began
    status: Status = "proved" if found.rigor == "rigorous" and math.isfinite(found.real) else "not decided"
    return Proof(
        subject,
        _claim(found, b, roundings),
        status,
        _reason(found, b),
        assumptions,
        again,
        _details(found),
        seconds,
    )


def _found(
    a: Side,
    b: Side | None,
    context: Mapping[str, Any],
    cancellation: Fraction,
    roundings: int | None,
    box: float,
) -> Bound:
    """Walked where it can be; else to first order, with the reason. The first order is counted in any case."""
    _, _, fmt = before_rounding(a.program(context))
    counted: Bound | UnsupportedError
    try:
        if b is None:
            terms = terms_of(a, context, roundings=roundings, score_box=box)
            counted = bound_of(terms, EXACT, cancellation=cancellation, fmt=fmt)
        else:
            counted = upper_bound(
                a, b, context=context, cancellation=cancellation, roundings=roundings, score_box=box
            )
    except UnsupportedError as error:
        counted = error
    if roundings is not None or (isinstance(counted, Bound) and not counted.real):
        if isinstance(counted, UnsupportedError):
            raise counted
        return counted
    try:
        walked = walked_bound(a, b, context, cancellation, box, fmt)
    except UnsupportedError as error:
        if isinstance(counted, UnsupportedError):
            raise counted from None
        reason = f"{error.cause}: no rigorous bound"
        return replace(counted, real=counted.first_order, integer=None, rigor="first order", reason=reason)
    if isinstance(counted, UnsupportedError):
        return walked
    return replace(counted, real=walked.real, integer=walked.integer, rigor="rigorous", reason=walked.reason)


def _claim(found: Bound, b: Side | None, roundings: int | None) -> str:
    of = f"at c = {float(found.cancellation):g}"
    if roundings is not None:
        of += f" with {roundings} f32 roundings on each side"
    if not math.isfinite(found.real):
        return f"no finite bound {of}"
    if found.rigor != "rigorous":
        return f"about {found.real:.4f} ULP of {found.format} before the last rounding {of}, an estimate"
    text = f"at most {found.real:.4f} ULP of {found.format} before the last rounding"
    if b is None:
        rounded = found.a is None or found.a.rounded
        return f"{text} and {found.real + 0.5 * rounded:.4f} as stored, {of}, for all scores and values"
    return f"{text}, {found.integer} as stored, {of}, for all scores and values"


def _reason(found: Bound, b: Side | None) -> str:
    parts = [found.reason]
    for side, above in ((found.a, found.a_above), (found.b, found.b_above)):
        if side is None or (b is None and side.label == EXACT.label):
            continue
        narrow = ", ".join(dict.fromkeys(f"{g.site} to {g.format}" for g in side.narrow)) or "none"
        first = f", {above:.4f} to first order with it above" if math.isfinite(above) else ""
        parts.append(f"{side.label}: narrow roundings {narrow}; n = {side.roundings} others{first}")
    return "; ".join(parts)


def _assumptions(
    a: Side, b: Side | None, context: Mapping[str, Any], found: Bound, roundings: int | None, box: float
) -> tuple[str, ...]:
    shape = ", ".join(f"{n} = {v}" for n, v in context.items())
    out = [
        f"the lines and the partition at {shape}",
        f"scores, scaled, within ±{box:g}, every token seen and no sink; outputs of at least 2^{LEAST}; nothing overflows",
        "a softmax scale between 2^-20 and 2^20; values that the kernel takes as they are",
    ]
    if roundings is not None:
        out.append(f"n = {roundings} f32 roundings on each side, as was asked, not as counted")
    if b is not None and not same_logits(a, b, context):
        out.append("both sides get the same scores: they round q k otherwise, which is not covered")
    elif b is None:
        out.append("the scores are given: roundings of q k are not covered")
    if found.rigor != "rigorous":
        out.append("products of two roundings are left out")
    return tuple(out)


def _details(found: Bound) -> dict[str, Any]:
    def finite(x: float) -> float | None:
        return x if math.isfinite(x) else None

    return {
        "real_ulp": finite(found.real),
        "integer_ulp": found.integer,
        "first_order_ulp": finite(found.first_order),
        "a_above": finite(found.a_above),
        "b_above": finite(found.b_above),
        "rigor": found.rigor,
        "n": [None if t is None else t.roundings for t in (found.a, found.b)],
    }


def _tried(a: Side, b: Side | None, context: Mapping[str, Any], found: Bound) -> str:
    """Random inputs without cancellation by the scalar oracle: none may be farther apart than a rigorous bound."""
    if int(context["kv_len"]) > SHORT or not math.isfinite(found.real) or found.rigor != "rigorous":
        return ""
    from search.evaluate import continuous_index
    from verify.exact import exact_attention

    rng, worst = np.random.default_rng(3), 0.0
    kv_len = int(context["kv_len"])
    for _ in range(TRIES):
        scores = rng.uniform(-4, 4, kv_len).astype(np.float32).astype(np.float64)
        values = 1 + rng.integers(0, 128, kv_len) / 128
        try:
            out = [_before(side, context, scores, values) for side in (a, b) if side is not None]
        except UnsupportedError:
            return ""
        if b is None:
            out.append(float(exact_attention(scores[None], values[:, None]).midpoint[0, 0]))
        index = continuous_index(np.array(out), found.format)
        worst = max(worst, abs(float(index[0] - index[1])))
    if worst > found.real:
        raise AssertionError(
            f"a random input is {worst} ULP apart, above the bound of {found.real}: report it"
        )
    return f"{TRIES} random inputs by the scalar oracle: at most {worst:.3f} ULP apart"


def _before(side: Side, context: Mapping[str, Any], scores: Any, values: Any) -> float:
    """What the last rounding takes in, by the scalar oracle."""
    from search.samples import row_inputs
    from verify.definition.scalar import ScalarArithmetic
    from verify.definition.walker import evaluate

    program, site, _ = before_rounding(side.program(context))
    row, _ = row_inputs(program, [0.0] * len(scores))
    feed = dict.fromkeys(row.feed, np.asarray(scores, np.float64))
    inputs = type(row)(v=np.asarray(values, np.float64)[:, None], scalars=row.scalars, feed=feed)
    return float(
        evaluate(program, side.plan(context), inputs, [site], ScalarArithmetic())[site].reshape(-1)[0]
    )


def certify_input(sides: Sequence[Side], file: str | Path, context: Mapping[str, Any]) -> list[Proof]:
    """The error of each side on one input, in ULP of its output's format, by an enclosure of the exact answer.

    Args:
        sides: the sides.
        file: ``scores`` [token] and ``values`` [token] or [token, dim] (`search.files.read_base`).
        context: the rest of the shape.

    Raises:
        InputError: the file holds something else, or a side does not take it.
    """
    from search.files import read_base
    from verify.case import Case
    from verify.exact import error_in_ulps, exact_attention
    from verify.numerics.rounding import round_array
    from verify.numerics.ulp import format_of

    given = read_base(file)
    scores, values = given.scores.astype(np.float32), given.values[0]
    small = scores.shape[1] * values.shape[1] <= SHORT
    proofs: list[Proof] = []
    for side in sides:
        began = time.perf_counter()
        rest = {n: v for n, v in {**context, **side.context}.items() if n != "kv_len"}
        arrays = {"scores": scores, "values": values}
        case = Case(str(file), arrays, context=rest)
        backend = "oracle" if small else "engine"
        result = case.emulate(side.spec, side.platform, options=side.options, backend=backend)
        taken = side.program({**rest, "kv_len": given.kv_len}).inputs["v"]
        stored = round_array(
            values.astype(np.float64), side.program({**rest, "kv_len": given.kv_len}).inputs["v"]
        )
        exact = exact_attention(scores.astype(np.float64), stored)
        fmt = format_of(result.output.dtype)
        errors = error_in_ulps(result.output.astype(np.float64), exact, fmt)
        most, width = float(np.max(errors)), float(np.max(exact.radius))
        claim = f"at most {most:.4f} ULP of {fmt} from the exact answer on this input"
        where = np.unravel_index(int(np.argmax(errors)), errors.shape)
        reason = (
            f"exact answer {exact.midpoint[where]:.15g} ± {width:.1e}, by balls of 128 bits; computed "
            f"{float(result.output[where]):.9g}"
        )
        assumed = (f"values are rounded to {taken}, as the kernel takes them",)
        details = {"errors": errors.ravel().tolist()[:64], "radius": width}
        seconds = time.perf_counter() - began
        proofs.append(Proof(side.label, claim, "proved", reason, assumed, "", details, seconds))
    return proofs
