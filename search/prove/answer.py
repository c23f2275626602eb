"""What a proof says: a claim, what became of it, how, and what it takes for granted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

#: ``proved``: for every case in the claim. ``exhaustive``: every case of a finite grid was computed. ``tested``: some
#: cases were. ``refuted``: a case is shown that breaks the claim. ``not decided``: the method has no answer.
#: ``unknown``: a solver gave none within its limit.
Status = Literal["proved", "exhaustive", "tested", "refuted", "not decided", "unknown", "refused"]
#: From the weakest to the strongest.
_ORDER: tuple[Status, ...] = (
    "refuted",
    "unknown",
    "not decided",
    "tested",
    "exhaustive",
    "proved",
)


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
    """

    subject: str
    claim: str
    status: Status
    reason: str
    assumptions: tuple[str, ...] = ()
    rechecked: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        found = asdict(self)
        return found | {"assumptions": list(self.assumptions), "seconds": round(self.seconds, 3)}

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
    for status in _ORDER:
        if status in found:
            return status
    return "refused"


def to_json(proofs: Iterable[Proof], **more: Any) -> dict[str, Any]:
    """What ``--format json`` prints: ``schema``, what is given, and the proofs."""
    return {"schema": 1, **more, "proofs": [p.to_json() for p in proofs]}
