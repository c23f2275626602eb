"""What a proof says: a claim, what became of it, how, and what it takes for granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

#: ``proved``: for every case in the claim. ``exhaustive``: every case of a finite grid was computed. ``tested``: some
#: cases were. ``refuted``: a case is shown that breaks the claim. ``not decided``: the method has no answer.
#: ``unknown``: a solver gave none within its limit.
Status = Literal["proved", "exhaustive", "tested", "refuted", "not decided", "unknown", "refused"]
#: From the weakest to the strongest.
WEAKEST: tuple[Status, ...] = (
    "refuted",
    "unknown",
    "not decided",
    "tested",
    "exhaustive",
    "proved",
)
#: As they are counted.
_TOLD: tuple[Status, ...] = (
    "proved",
    "exhaustive",
    "tested",
    "refuted",
    "not decided",
    "unknown",
    "refused",
)

#: What is asked: each kind has a method of its own.
Kind = Literal["partition", "difference", "values", "equal", "dot", "small", "algebra", "bound", "input"]


@dataclass(frozen=True)
class About:
    """A spec that a claim speaks of.

    Attributes:
        spec: its name; empty where the claim is about tensor cores alone.
        sha256: its content hash, changed lines included; empty where there is no spec.
        changes: options, values of this side alone, and changed lines, by name.
        platforms: the platforms that the claim covers, by name: the content hash of each.
    """

    spec: str
    sha256: str
    changes: Mapping[str, str]
    platforms: Mapping[str, str]


@dataclass(frozen=True)
class Proof:
    """One claim and what became of it.

    Attributes:
        subject: what it is about, such as ``walkthrough.xqa``.
        claim: in words.
        status: see `Status`.
        reason: why, or which step breaks.
        assumptions: what is taken for granted.
        rechecked: by which independent means, and how often; empty where there is none.
        details: figures for programs, such as a counterexample; JSON values.
        seconds: wall time that it took.
        kind: what was asked; None until whoever asked says it.
        about: the specs that it speaks of; of a pair in the order of the subject.
    """

    subject: str
    claim: str
    status: Status
    reason: str
    assumptions: tuple[str, ...] = ()
    rechecked: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    kind: Kind | None = None
    about: tuple[About, ...] = ()

    def lines(self) -> list[str]:
        """The proof for people: the verdict first."""
        out = [f"{self.subject}: {self.claim}: {words(self.status)}", f"  {self.reason}"]
        out += [f"  assumes: {a}" for a in self.assumptions]
        if self.rechecked:
            out.append(f"  re-checked: {self.rechecked}")
        return out


def words(status: Status) -> str:
    """A status as a verdict."""
    return "checked exhaustively" if status == "exhaustive" else status


def weakest(statuses: Iterable[Status]) -> Status:
    """The weakest of some statuses. What a kernel refuses weakens nothing; ``refused`` where there is nothing else."""
    found = set(statuses)
    for status in WEAKEST:
        if status in found:
            return status
    return "refused"


def tally(statuses: Iterable[Status]) -> str:
    """How many claims came to what: ``5 proved, 1 refuted``."""
    counts = Counter(statuses)
    return ", ".join(f"{counts[s]} {words(s)}" for s in _TOLD if counts[s]) or "nothing was asked"


def rounded_up(bound: float, places: int = 3) -> str:
    """A bound with so many decimals, never below it."""
    return f"{Decimal(bound).quantize(Decimal(1).scaleb(-places), ROUND_CEILING):,}"
