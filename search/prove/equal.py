"""Whether two sides give the same bits: proved by structure, refuted by an input, or not decided.

The structural proof has three parts: the same levels with the same arguments, the same lines, and machines that compute what
those lines use alike. Without a length it is about every shape. What it does not settle is tried on inputs; inputs that
agree prove nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from search.prove.answer import Proof
from search.prove.questions import first_difference
from search.prove.structure import Form, difference, entering, form
from search.shared import shared_lines
from search.sides import Side
from specs.context import INPUT_FORMATS

if TYPE_CHECKING:
    from search.prove.witness import Tried

#: What every structural proof of GPUs takes for granted.
UNIT = "all GPUs have one special-function unit, as their platforms declare: mufu"
#: A sequence of this length is tried where nothing says that another one would differ.
TRIED = 512


def prove_equal(
    a: Side,
    b: Side,
    context: Mapping[str, Any],
    *,
    known: Mapping[str, Any] | None = None,
    kv_len: int | None = None,
    fmt: str | None = None,
    witness: bool = True,
    seconds: float = 60.0,
) -> Proof:
    """Whether two sides give equal outputs and log-sum-exps, bit for bit.

    Args:
        a, b: the sides.
        context: the rest of the shape, for inputs that are tried.
        known: what of the shape a structural proof may take for granted, such as ``head_dim``; its claim says so.
        kv_len: the length that is asked about; None: all lengths, and all shapes.
        fmt: the format of q, k and v; None: all that the specs take.
        witness: whether inputs are tried where the structure does not settle it.
        seconds: wall time of what is tried.

    Raises:
        UlpscopeError: a side does not take the shape.
    """
    began = time.perf_counter()
    subject = f"{a.label} and {b.label}"
    fixed = {n: v for n, v in (known or {}).items() if n != "kv_len"}
    found = _everywhere(a, b, subject, fixed, fmt, began)
    if found is not None:
        return found
    shape = {n: v for n, v in context.items() if n != "kv_len"}
    formats = fixed if fmt is None else {**fixed, **dict.fromkeys(INPUT_FORMATS, fmt)}
    why = difference(form(a, formats), form(b, formats))
    if kv_len is not None:
        alike = _at_length(a, b, {**shape, "kv_len": kv_len})
        if alike:
            claim = f"equal bits at {_shown({**shape, 'kv_len': kv_len})}, for every input"
            return _proved(a, subject, claim, alike, began)
    parts_at = "" if kv_len is not None else _up_to(a, b, shape, seconds)
    if not witness:
        reason = f"{why}; no input was tried"
        return Proof(subject, "equal bits", "not decided", reason, seconds=time.perf_counter() - began)
    from search.prove.witness import try_inputs  # the engine: a structural proof does not wait for it

    at = kv_len if kv_len is not None else _length(a, b, shape, seconds)
    tried = try_inputs(a, b, {**shape, "kv_len": at}, seconds)
    return _tried(subject, why, parts_at, at, shape, tried, began)


def _everywhere(
    a: Side, b: Side, subject: str, fixed: Mapping[str, Any], fmt: str | None, began: float
) -> Proof | None:
    """The structural proof for every shape, of all formats that the specs take or of bf16 alone."""
    choices = [fmt] if fmt is not None else [None, "bf16"]
    for choice in choices:
        known = {**fixed, **({} if choice is None else dict.fromkeys(INPUT_FORMATS, choice))}
        one, two = form(a, known), form(b, known)
        if one.refuses or two.refuses:
            refused = a if one.refuses else b
            reason = f"{refused.label} takes no shape: {one.refuses or two.refuses}"
            return Proof(subject, "equal bits", "refused", reason, seconds=time.perf_counter() - began)
        if not difference(one, two):
            claim = "equal bits for every shape and input" + (f" in {choice}" if choice else "")
            claim += f" with {_shown(fixed)}" if fixed else ""
            return _proved(a, subject, claim, _because(a, b, one, known), began)
    return None


def _proved(a: Side, subject: str, claim: str, reason: str, began: float) -> Proof:
    assumptions = [UNIT] if a.platform.kind == "gpu" else []
    if a.spec.assumption:
        assumptions.append(a.spec.assumption)
    assumptions.append(f"the kernel is what {a.spec.name} declares: its status is '{a.spec.file.status}'")
    seconds = time.perf_counter() - began
    return Proof(subject, claim, "proved", reason, tuple(assumptions), seconds=seconds)


def _because(a: Side, b: Side, found: Form, known: Mapping[str, Any]) -> str:
    """The reason of a structural proof: what of the platform enters, and that it is alike."""
    mine, other = a.platform.context, b.platform.context
    enters = {**entering(a, known), **entering(b, known)}
    same = [f"{n} = {mine[n]}" for n in enters if mine[n] == other[n]]
    folded = [f"{n} ({mine[n]} and {other[n]})" for n in enters if mine[n] != other[n]]
    parts: list[str] = []
    if same:
        parts.append(f"of the platform only {' and '.join(same)} enter{'s' * (len(same) == 1)}, on both")
    elif not folded:
        parts.append("nothing of the platform enters its formulas")
    if folded:
        parts.append(
            f"{' and '.join(folded)} differ{'s' * (len(folded) == 1)}, but leaves every formula the same"
        )
    if found.dots:
        parts.append("the tensor cores that its lines use compute alike")
    what = "one spec" if a.spec == b.spec else "the same levels and lines"
    return f"{what}; {'; '.join(parts)}"


def _at_length(a: Side, b: Side, shape: Mapping[str, Any]) -> str:
    """Why the sides are one program at a shape, or nothing."""
    p, q = a.program(shape), b.program(shape)
    alike = shared_lines(a, b, p, q, shape)
    ends = [n for n in ("output", "lse") if n in p.sites or n in q.sites]
    if not all(n in alike for n in ends):
        return ""
    lines = f"the same lines up to {' and '.join(ends)}"
    return f"the same plan, token by token, and {lines}, on machines that compute them alike"


def _up_to(a: Side, b: Side, shape: Mapping[str, Any], seconds: float) -> str:
    found = first_difference(a, b, shape, seconds=seconds)
    return found.reason if found.status == "refuted" else ""


def _length(a: Side, b: Side, shape: Mapping[str, Any], seconds: float) -> int:
    """The length to try: the smallest at which the partitions differ."""
    found = first_difference(a, b, shape, seconds=seconds)
    return int(found.details["kv_len"]) if found.status == "refuted" else TRIED


def _tried(
    subject: str,
    why: str,
    parts_at: str,
    at: int,
    shape: Mapping[str, Any],
    tried: Tried,
    began: float,
) -> Proof:
    where = _shown({**shape, "kv_len": at})
    parts = f"{why}; {parts_at}" if parts_at else why
    seconds = time.perf_counter() - began
    if tried.witness is None:
        reason = f"{parts}; {tried.words} at {where} agree in every bit, which proves nothing"
        return Proof(subject, "equal bits", "not decided", reason, seconds=seconds)
    reason = f"{tried.witness['text']} ({tried.words}, at {where}); {parts}"
    again = f"replay: {tried.witness['replay']}"
    return Proof(subject, "equal bits", "refuted", reason, (), again, tried.witness, seconds)


def _shown(shape: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in shape.items())
