"""A witness computed again, here: by the array engine and by the exact arithmetic of certificates.

Every bit, distance, ratio and verdict is compared with what the witness says, and its bound must not claim more than
the one that is derived here. Another machine, or another version of this package, has to arrive at the same. How the
input was found (seed, budget, steps, command) is not checked: only another search could.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from search.certificate import Certificate
from search.evaluate import realised
from search.fields import distances, ratios, words
from search.objective import violation
from search.record import DistanceOf
from search.target import Target
from search.witness import Witness, certificate_of, depth, read
from specs.errors import SpecError, UnsupportedError

#: How far ratios in double precision may be off: libraries of other machines round exp otherwise.
DOUBLE = 1e-9
#: Differences that are listed; the others are counted.
MOST = 50

Constraint = Literal["holds", "violated", "unknown"]


@dataclass(frozen=True)
class Difference:
    """One thing that came out otherwise.

    Attributes:
        where: a path in the witness's JSON, such as ``sides.0.output.0``.
        stated: what the witness says. found: what came out.
    """

    where: str
    stated: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: the witness says {self.stated}, here it is {self.found}"


@dataclass(frozen=True)
class ReplayResult:
    """What came of a replay.

    Attributes:
        place: the witness.
        differences: in what it does not replay, at most `MOST` of them.
        more: how many differences are not listed.
        constraint: whether the input keeps its limits, by exact numbers; ``unknown`` where there is no certificate
            and double precision does not see a violation.
        integer, real: the smallest distance of any two sides that came out.
        certified: whether the exact arithmetic took part, too.
        versions: versions that differ: name, there, here. No difference by themselves.
    """

    place: str
    differences: tuple[Difference, ...]
    more: int
    constraint: Constraint
    integer: int | None
    real: float | None
    certified: bool
    versions: tuple[tuple[str, str, str], ...] = ()

    @property
    def replays(self) -> bool:
        """Whether all is as the witness says, and its limits hold."""
        return not self.differences and self.constraint != "violated"

    @property
    def verdict(self) -> str:
        """``replays``, or where it differs."""
        if self.differences:
            return f"differs at {self.differences[0].where}"
        return "violates its constraint" if self.constraint == "violated" else "replays"

    @property
    def exit_code(self) -> int:
        """0: it replays; 1: it does not."""
        return 0 if self.replays else 1

    def lines(self) -> list[str]:
        """The result in sentences."""
        real = "no real distance" if self.real is None else f"{self.real:.4f} ULP before rounding"
        integer = "no finite distance" if self.integer is None else f"{self.integer} ULP of stored outputs"
        out = [f"{self.place}: {self.verdict}", f"  {integer}, {real}; constraint: {self.constraint}"]
        if not self.certified:
            out.append("  by the array engine alone: there is no certificate")
        out += [f"  {difference}" for difference in self.differences]
        if self.more:
            out.append(f"  and {self.more} more")
        out += [f"  {name}: {there} there, {here} here" for name, there, here in self.versions]
        return out


def replay(witness: Witness, *, engine: bool = True) -> ReplayResult:
    """Compute a witness again and compare.

    Args:
        witness: what to compute.
        engine: by the array engine; else by the scalar definition, which compiles nothing and serves a few tokens.

    Raises:
        InputError: the witness contradicts itself (see `search.witness.read`).
        FidelityError: this machine cannot emulate faithfully.
    """
    record, space, inputs = witness.record, witness.space, witness.inputs
    target = Target(witness.sides, space, witness.objective)
    measured = (target if engine else target.by_definition()).measure(inputs)
    found: list[Difference] = []
    for i, (side, evaluator, out) in enumerate(
        zip(record.sides, target.evaluators, measured.outputs, strict=True)
    ):
        held = evaluator.program.sites[evaluator.site].type.format or evaluator.program.compute
        here = {
            "label": evaluator.side.label,
            "format": out.format.name,
            "site": evaluator.site,
            "before_format": held.name,
            "output": words(out.stored[0], out.format),
            "before": words(out.before[0], held),
        }
        stated = side.model_dump(mode="json", include=set(here))
        found += compare(stated, here, f"sides.{i}")
    apart = distances(measured.outputs)
    found += compare([d.model_dump(mode="json") for d in record.distances], apart, "distances")
    score = float(measured.score[0])
    found += compare(record.score, score if math.isfinite(score) else None, "score", DOUBLE)
    if space.kind == "qkv":
        found += _products(witness, target)
    certificate, wrong = _certificate(witness, measured.outputs)
    found += wrong
    found += compare(
        [r.model_dump(mode="json") for r in record.ratios],
        ratios(inputs, certificate, space.first),
        "ratios",
        DOUBLE,
    )
    found += _bound(witness)
    broken = bool(violation(inputs, space)[0] > 0)
    rows = [DistanceOf.model_validate(d) for d in apart]
    return ReplayResult(
        place=witness.place,
        differences=tuple(found[:MOST]),
        more=max(0, len(found) - MOST),
        constraint=_constraint(certificate, broken),
        integer=None if any(d.integer is None for d in rows) else min(d.integer or 0 for d in rows),
        real=None if any(d.real is None for d in rows) else min(d.real or 0.0 for d in rows),
        certified=certificate is not None,
        versions=_versions(record.versions),
    )


def replay_file(path: str | Path) -> ReplayResult:
    """`replay` of a file.

    Raises:
        InputError: it cannot be read.
    """
    return replay(read(path))


def compare(stated: Any, here: Any, where: str, tolerance: float = 0.0) -> list[Difference]:
    """Where two pieces of JSON differ; floats by at most ``tolerance``, relative."""
    return list(_compared(stated, here, where, tolerance))


def _compared(stated: Any, here: Any, where: str, tolerance: float) -> Iterator[Difference]:
    if isinstance(stated, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*stated, *here]):
            if key in stated and key in here:
                yield from _compared(stated[key], here[key], f"{where}.{key}", tolerance)
            else:
                yield Difference(f"{where}.{key}", *(_shown(x.get(key)) for x in (stated, here)))
    elif isinstance(stated, list | tuple) and isinstance(here, list | tuple) and len(stated) == len(here):
        for i, (x, y) in enumerate(zip(stated, here, strict=True)):
            yield from _compared(x, y, f"{where}.{i}", tolerance)
    elif isinstance(stated, float) and isinstance(here, float):
        if not math.isclose(stated, here, rel_tol=tolerance, abs_tol=0.0):
            yield Difference(where, repr(stated), repr(here))
    elif stated != here or isinstance(stated, bool) != isinstance(here, bool):
        yield Difference(where, _shown(stated), _shown(here))


def _shown(x: Any) -> str:
    text = "nothing" if x is None else str(x)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _bound(witness: Witness) -> list[Difference]:
    """Where the witness claims a smaller bound, or a surer one, than there is here; or lies above a rigorous one."""
    from search.run import bound_for

    stated, score = witness.record.bound, witness.record.score
    if stated is None:
        return []
    found: list[Difference] = []
    here, why = bound_for(witness.sides, witness.space, witness.objective)
    if here is None or not math.isfinite(here.real):
        if stated.real is not None or stated.integer is not None:
            found.append(Difference("bound", _shown(stated.real), f"none: {why or (here and here.reason)}"))
        return found
    if stated.rigor == "rigorous" and here.rigor != "rigorous":
        found.append(Difference("bound.rigor", stated.rigor, here.rigor))
    if stated.real is not None and stated.real < here.real * (1 - DOUBLE):
        found.append(Difference("bound.real", repr(stated.real), repr(here.real)))
    if stated.integer is not None and here.integer is not None and stated.integer < here.integer:
        found.append(Difference("bound.integer", str(stated.integer), str(here.integer)))
    if here.rigor == "rigorous" and score is not None and score > here.real * (1 + DOUBLE):
        found.append(Difference("score", repr(score), f"above the bound, {here.real!r}"))
    return found


def _products(witness: Witness, target: Target) -> list[Difference]:
    """Whether q and K are those that the scores are made of."""
    space, formats = witness.space, target.evaluators[0].program.inputs
    q, k = realised(witness.inputs.scores, depth(space), formats, space.carry)
    made = {"q": q, "k": k[0]}
    return [
        Difference(f"arrays.{name}", "other bits", "what the scores are made of")
        for name, array in made.items()
        if not np.array_equal(
            array.view(f"u{array.dtype.itemsize}"), witness.arrays[name].view(f"u{array.dtype.itemsize}")
        )
    ]


def _certificate(witness: Witness, outputs: Sequence[Any]) -> tuple[Certificate | None, list[Difference]]:
    stated = witness.record.certificate
    try:
        here = certificate_of(witness.sides, witness.space, witness.inputs, outputs)
    except UnsupportedError as error:
        cause = f"none: {error.cause}"
        return None, [] if stated is None else [Difference("certificate", "one that holds", cause)]
    except SpecError as error:
        return None, [Difference("certificate", "one" if stated else "none", f"none: {error.cause}")]
    if stated is None:
        return here, [Difference("certificate.errors", "nothing", e) for e in here.errors]
    return here, compare(stated.to_json(), here.to_json(), "certificate")


def _constraint(certificate: Certificate | None, broken: bool) -> Constraint:
    if certificate is None:
        return "violated" if broken else "unknown"
    within = certificate.score_box.holds and certificate.value_box.holds
    statuses = {a.status for a in certificate.answers}
    if not within or "violated" in statuses or (broken and statuses == {"holds"}):
        return "violated"
    return "unknown" if "undecided" in statuses else "holds"


def _versions(there: Any) -> tuple[tuple[str, str, str], ...]:
    from search.campaign.work import versions

    here = versions()
    names = dict.fromkeys([*there, *here])
    pairs = [(n, there.get(n, "not stated"), here.get(n, "not here")) for n in names]
    return tuple(p for p in pairs if p[1] != p[2])


__all__ = ["Difference", "ReplayResult", "compare", "replay", "replay_file"]
