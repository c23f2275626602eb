"""Certificates: what several backends make of one input, established without the emulator.

Outputs, and the values before their last rounding, are replayed in exact integers (`search.exact`) over a partition of
its own, then compared with each other and with the exact answer. Nothing of the array engine takes part; the typed
program and the generic walker of `verify.definition` do. A counted number is a rational, kept as ``"num/den"``, a value
is its bit pattern in hexadecimal, and a real number is an interval of decimals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, TypeAdapter, ValidationError

from search.exact.arithmetic import ExactArithmetic
from search.exact.dyadic import Number, from_bits, index, is_finite, place, to_bits, to_fraction
from search.exact.enclosure import Answer, Attention
from search.exact.inputs import row_of
from search.exact.margins import Margins, Survives, margins
from search.exact.replay import Replay, Row, replay
from search.exact.text import CLOSED, Hex, Interval, Rational, Words, outward, rational
from search.sides import Side
from specs.errors import InputError
from specs.formats import Format, parse_format

#: Counts up when the meaning of a field changes.
SCHEMA = 1


@dataclass(frozen=True)
class SideCertificate:
    """What one backend computes.

    Attributes:
        label: as `Side.label`.
        spec, platform: names. spec_hash: content hash of the spec, changed lines included.
        method: ``exact``: every operation is exact arithmetic and one rounding by integers. ``oracle``: the functions
            ``borrowed``, which no formula of real numbers defines, come from the scalar definition; all else is exact.
        format: of the output. before_format: of what the last rounding takes in, which is the line ``site``.
        output, before: by column, bit patterns.
        index: by column, where ``before`` stands among the values of ``format``; None for infinities and NaN.
        error_output, error_before: by column, the place of ``output`` or ``before`` less that of the exact answer,
            in ULPs; None for infinities and NaN.
        groups: pieces of the outermost level that are visited.
        margins: how near narrow roundings are to going the other way.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    label: Words
    spec: Words
    spec_hash: Words
    platform: Words
    method: Literal["exact", "oracle"]
    borrowed: tuple[Words, ...]
    format: Words
    site: Words
    before_format: Words
    output: tuple[Hex, ...]
    before: tuple[Hex, ...]
    index: tuple[Rational | None, ...]
    error_output: tuple[Interval | None, ...]
    error_before: tuple[Interval | None, ...]
    groups: int
    margins: Margins


@dataclass(frozen=True)
class Distance:
    """How far two sides are apart, by column.

    Attributes:
        a, b: numbers of the sides.
        integer_ulp: values between the stored outputs; None where an infinity or NaN meets something else, or the
            formats differ.
        real_ulp: the same before the last rounding, as "num/den".
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    a: int
    b: int
    integer_ulp: tuple[int | None, ...]
    real_ulp: tuple[Rational | None, ...]

    @property
    def real(self) -> float:
        """The largest distance before rounding; 0 where there is none."""
        return max((float(Fraction(x)) for x in self.real_ulp if x is not None), default=0.0)

    @property
    def integer(self) -> int:
        """The largest distance of stored outputs; 0 where there is none."""
        return max((x for x in self.integer_ulp if x is not None), default=0)


@dataclass(frozen=True)
class Box:
    """A bound on magnitudes.

    Attributes:
        bound: as "num/den". largest: the largest magnitude in the input (of scores: of tokens that are not masked).
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    bound: Rational
    largest: Rational

    @property
    def holds(self) -> bool:
        """Whether nothing is beyond the bound."""
        return Fraction(self.largest) <= Fraction(self.bound)


@dataclass(frozen=True)
class Certificate:
    """What is established about one input.

    Attributes:
        schema: version of this record.
        kind: ``scores`` or ``qkv``.
        kv_len, dims: tokens and columns.
        cancellation: c.
        sides: one for each backend.
        distances: one for each pair of sides.
        answers: one for each column.
        score_box, value_box: the bounds on the input.
        survives_exp_error_ulps: by how many ulps every exponential of every side may be off without any narrow
            rounding changing; ``any``, or ``unknown`` (see `Margins`).
        errors: what does not agree with the emulator; empty: nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    schema: Literal[1]
    kind: Literal["scores", "qkv"]
    kv_len: int
    dims: int
    cancellation: Rational
    sides: tuple[SideCertificate, ...]
    distances: tuple[Distance, ...]
    answers: tuple[Answer, ...]
    score_box: Box
    value_box: Box
    survives_exp_error_ulps: Survives
    errors: tuple[Words, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing disagrees and every constraint is known to hold."""
        within = self.score_box.holds and self.value_box.holds
        return not self.errors and within and all(a.status == "holds" for a in self.answers)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: objects, lists, strings, whole numbers, booleans and null."""
        return _adapter().dump_python(self, mode="json")

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Certificate:
        """The certificate of `to_json`.

        Raises:
            InputError: the data is something else.
        """
        try:
            return _adapter().validate_json(json.dumps(data))
        except (ValidationError, TypeError, ValueError) as error:
            first = (
                error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
            )
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"no certificate: {first['msg']}",
                place=where or "certificate",
                remedy="certify the input again",
            ) from None


@cache
def _adapter() -> TypeAdapter[Certificate]:
    return TypeAdapter(Certificate)


def certify(
    sides: Sequence[Side],
    context: Mapping[str, Any],
    *,
    scores: ArrayLike | None = None,
    values: ArrayLike | None = None,
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    scale: float | None = None,
    row: int = 0,
    cancellation: Fraction | float = 0.5,
    score_box: Fraction | float = 20.0,
    value_box: Fraction | float = 8.0,
    outputs: Sequence[ArrayLike] | None = None,
) -> Certificate:
    """Replay one input through every side, and compare.

    Args:
        sides: one backend or more.
        context: what formulas see besides the platform; ``kv_len`` may be left to the arrays.
        scores, values, q, k, v, scale, row: one row, as `search.exact.inputs.row_of` takes it.
        cancellation: c, as the decimal that was meant: 0.1 is a tenth.
        score_box, value_box: bounds on the magnitudes of scores and values.
        outputs: by side, what the emulator stored, ``[dim]`` in the output's dtype; None: it is not compared.

    Raises:
        UnsupportedError: a spec has a construct without a scalar definition, or cannot take ready scores.
        InputError: an array or a number is wrong. SpecError: a spec fails for this shape.
    """
    if not sides:
        raise InputError("no side", place="sides", remedy="give one backend or more")
    c = _decimal("cancellation", cancellation)
    boxes = _decimal("score_box", score_box), _decimal("value_box", value_box)
    given = row_of(context, scores, values, q, k, v, scale, row)
    full = {**context, "kv_len": given.kv_len}
    arithmetic = ExactArithmetic()
    replays = [replay(side, full, given, arithmetic) for side in sides]
    attention = Attention(given.scores)
    answers = tuple(attention.column(column, c) for column in given.values)
    certified = tuple(_side(found, given, answers) for found in replays)
    errors = [f"{r.side.label}: {r.partition_difference}" for r in replays if r.partition_difference]
    if outputs is not None:
        errors += _compared(replays, outputs)
    seen = [abs(to_fraction(s)) for s in set(given.scores) if is_finite(s)]
    held = [abs(to_fraction(x)) for x in set().union(*map(set, given.values))]
    return Certificate(
        schema=SCHEMA,
        kind="scores" if given.q is None else "qkv",
        kv_len=given.kv_len,
        dims=len(given.values),
        cancellation=rational(c),
        sides=certified,
        distances=tuple(_distance(certified, a, b) for a, b in combinations(range(len(sides)), 2)),
        answers=answers,
        score_box=Box(rational(boxes[0]), rational(max(seen, default=Fraction(0)))),
        value_box=Box(rational(boxes[1]), rational(max(held, default=Fraction(0)))),
        survives_exp_error_ulps=_least([s.margins.survives for s in certified]),
        errors=tuple(errors),
    )


def _decimal(name: str, x: Fraction | float) -> Fraction:
    try:
        found = x if isinstance(x, Fraction) else Fraction(repr(float(x)))
    except ValueError:
        found = Fraction(-1)
    if found < 0:
        raise InputError(f"{name} = {x}", place=name, remedy="give a finite number of at least 0")
    return found


def _side(found: Replay, row: Row, answers: Sequence[Answer]) -> SideCertificate:
    fmt = found.format
    return SideCertificate(
        label=found.side.label,
        spec=found.side.spec.name,
        spec_hash=found.side.spec.content_hash,
        platform=found.side.platform.name,
        method="oracle" if found.borrowed else "exact",
        borrowed=found.borrowed,
        format=fmt.name,
        site=found.site,
        before_format=found.before_format.name,
        output=tuple(_hex(x, fmt) for x in found.output),
        before=tuple(_hex(x, found.before_format) for x in found.before),
        index=tuple(rational(index(to_fraction(x), fmt)) if is_finite(x) else None for x in found.before),
        error_output=tuple(_error(x, a, fmt) for x, a in zip(found.output, answers, strict=True)),
        error_before=tuple(_error(x, a, fmt) for x, a in zip(found.before, answers, strict=True)),
        groups=found.plan.count,
        margins=margins(found, row),
    )


def _hex(x: Number, fmt: Format) -> str:
    return f"0x{to_bits(x, fmt):0{fmt.bits // 4}X}"


def _error(x: Number, answer: Answer, fmt: Format) -> Interval | None:
    if not is_finite(x):
        return None
    low, high = answer.exact.bounds
    at = index(to_fraction(x), fmt)
    return outward(at - index(high, fmt), at - index(low, fmt))


def _distance(sides: Sequence[SideCertificate], a: int, b: int) -> Distance:
    left, right = sides[a], sides[b]
    fmt = parse_format(left.format)
    same = fmt.base == parse_format(right.format).base
    integer: list[int | None] = []
    real: list[str | None] = []
    for x, y, p, r in zip(left.output, right.output, left.index, right.index, strict=True):
        integer.append(_integer(int(x, 16), int(y, 16), fmt) if same else None)
        if same and p is not None and r is not None:
            real.append(rational(abs(Fraction(p) - Fraction(r))))
        else:
            real.append(None)
    return Distance(a, b, tuple(integer), tuple(real))


def _integer(x: int, y: int, fmt: Format) -> int | None:
    p, r = place(x, fmt), place(y, fmt)
    if p == r:
        return 0
    if p is None or r is None or not (is_finite(from_bits(x, fmt)) and is_finite(from_bits(y, fmt))):
        return None
    return abs(p - r)


def _least(found: Sequence[Survives]) -> Survives:
    if "unknown" in found:
        return "unknown"
    bounds = [x for x in found if isinstance(x, int)]
    return min(bounds) if bounds else "any"


def _compared(replays: Sequence[Replay], outputs: Sequence[ArrayLike]) -> list[str]:
    """Where stored outputs of the emulator have other bits."""
    if len(outputs) != len(replays):
        raise InputError(
            f"{len(outputs)} outputs of {len(replays)} sides",
            place="outputs",
            remedy="give one for each side",
        )
    errors: list[str] = []
    for found, output in zip(replays, outputs, strict=True):
        stored = np.ascontiguousarray(output).ravel()
        if stored.size != len(found.output) or stored.dtype.itemsize * 8 != found.format.bits:
            raise InputError(
                f"outputs of {stored.dtype}, {stored.size} of them",
                place="outputs",
                remedy=f"give {len(found.output)} of {found.format}, as the emulator stores them",
            )
        words: list[int] = stored.view(f"u{stored.dtype.itemsize}").tolist()
        for column, (word, x) in enumerate(zip(words, found.output, strict=True)):
            if word != to_bits(x, found.format) and place(word, found.format) is not None:
                errors.append(
                    f"{found.side.label}: the emulator has 0x{word:X} in column {column}, "
                    f"the replay {_hex(x, found.format)}"
                )
            elif place(word, found.format) is None and is_finite(x):
                errors.append(f"{found.side.label}: the emulator has NaN in column {column}")
    return errors
