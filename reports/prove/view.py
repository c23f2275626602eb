"""What the page and the Markdown show of proofs: claims in the order in which they are read, with numbered assumptions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.prove import contract as c
from search.prove.answer import WEAKEST, Kind, Status, rounded_up, words

#: What is read first: what breaks, then what is open, then what holds.
ORDER: tuple[Status, ...] = (*WEAKEST, "refused")
#: What holds for everything in its claim; nothing else may look as if it did.
SETTLED = ("proved", "exhaustive")
MEANING: Mapping[Status, str] = {
    "proved": "for every case in the claim, under the assumptions that are listed",
    "exhaustive": "every case of a finite grid was computed; the grid is named",
    "refuted": "a case is shown that breaks the claim; what computed it again is named",
    "tested": "some cases were computed: no proof",
    "not decided": "the method has no answer: the line and the reason are named",
    "unknown": "a solver, or the time, gave out",
    "refused": "the kernel does not take any such shape or platform",
}
#: By what means a kind of question is answered: a name, and how.
METHODS: Mapping[Kind, tuple[str, str]] = {
    "partition": (
        "ownership, by Z3",
        "One lemma for each kind of level, over all integers; Z3 then shows that the formulas of the spec meet what "
        "the lemmas need. A model of Z3 counts only where the code that makes plans fails on it, too.",
    ),
    "difference": (
        "partitions compared",
        "The arguments of all levels at every length, as integers. Where they differ, whole plans are compared, token "
        "by token.",
    ),
    "values": ("a rule, evaluated", "The rule of the spec at every value of one name."),
    "equal": (
        "structure of two programs",
        "The same levels, the same lines, and machines that compute alike what these lines use. What that does not "
        "settle is tried on inputs: one that parts the sides refutes; inputs that agree prove nothing.",
    ),
    "dot": (
        "parameters of tensor cores",
        "The parameters of two instructions, which are all that their arithmetic has; where they differ, dot products "
        "are computed until two results do.",
    ),
    "small": (
        "a few tokens, bit by bit",
        "Every rounding of a small instance given to a solver, scores and values unknown.",
    ),
    "algebra": (
        "algebra without roundings",
        "All roundings removed; tokens and values are free symbols. Sums add like terms, one more step keeps the form "
        "of a state, merges and the division cancel all that was subtracted.",
    ),
    "bound": (
        "a bound of a search",
        "The largest distance over all scores and values at a bound on cancellation, from the roundings of every line.",
    ),
    "input": (
        "an enclosure of the exact answer",
        "The answer in real numbers between two bounds, by ball arithmetic, and how far each output is from it.",
    ),
}
#: Words of an assumption that has itself no proof (`search.prove.partition`).
TESTED = "only tested"
_PAIRED = ("bits", "results")
_SAID = ("text", "replay")
_MOST, _LONG = 64, 1200


@dataclass(frozen=True)
class Assumption:
    """An assumption: ``number`` where several claims share it, else 0. ``tested``: it has itself no proof."""

    text: str
    number: int
    claims: int

    @property
    def tested(self) -> bool:
        """Whether it was only tested."""
        return TESTED in self.text


@dataclass(frozen=True)
class Shown:
    """A claim as it is shown; ``number`` counts from 1 in the order of the file, and names its place on the page.

    ``fit`` and ``remarks``: what a report says of it besides (`reports.prove.section`).
    """

    number: int
    proof: c.Proof
    assumptions: tuple[Assumption, ...]
    fit: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The name of its method."""
        return METHODS[self.proof.kind][0]

    @property
    def leans(self) -> bool:
        """Whether it holds, but rests on something that was only tested."""
        return self.proof.status in SETTLED and any(a.tested for a in self.assumptions)

    @property
    def figures(self) -> list[tuple[str, str]]:
        """Its figures as text."""
        return list(_figures(self.proof))

    @property
    def bound(self) -> str:
        """The bound in ULP that is proved, rounded up; empty where the claim is none."""
        found = self.proof.details.get("real_ulp")
        if self.proof.status != "proved" or not isinstance(found, float | int) or abs(found) > 1e12:
            return ""
        return rounded_up(float(found))

    @property
    def replay(self) -> str:
        """The command that computes a witness again, or nothing."""
        found = self.proof.details.get("replay", "")
        return found if isinstance(found, str) and found.startswith("ulpscope ") else ""

    @property
    def subject(self) -> str:
        """What groups are called: the specs that it is about."""
        names = dict.fromkeys(side.spec for side in self.proof.about if side.spec)
        return " and ".join(names) or "tensor cores"


def shown(
    claims: Sequence[c.Proof], fits: Sequence[str] = (), remarks: Sequence[tuple[str, ...]] = ()
) -> list[Shown]:
    """Claims with their assumptions; those that several share are numbered, the most frequent first.

    Args:
        claims: in the order of the file.
        fits, remarks: what a report says of each.
    """
    counts = Counter(a for claim in claims for a in dict.fromkeys(claim.assumptions))
    shared = [text for text, n in counts.most_common() if n > 1]
    numbers = {text: i for i, text in enumerate(shared, 1)}
    known = {text: Assumption(text, numbers.get(text, 0), n) for text, n in counts.items()}
    found: list[Shown] = []
    for i, claim in enumerate(claims):
        own = tuple(known[a] for a in dict.fromkeys(claim.assumptions))
        fit, more = (fits[i] if fits else ""), (remarks[i] if remarks else ())
        found.append(Shown(i + 1, claim, own, fit, more))
    return found


def shared(claims: Iterable[Shown]) -> list[Assumption]:
    """The numbered assumptions of some claims, in the order of their numbers."""
    found = {a.number: a for claim in claims for a in claim.assumptions if a.number}
    return [found[n] for n in sorted(found)]


def by_status(claims: Sequence[Shown]) -> list[tuple[Status, list[Shown]]]:
    """Claims of each status that there is, in the order in which they are read."""
    return [(s, held) for s in ORDER if (held := [x for x in claims if x.proof.status == s])]


def by_subject(claims: Sequence[Shown]) -> list[tuple[str, list[Shown]]]:
    """Claims by what they are about, in the order in which that is first named."""
    found: dict[str, list[Shown]] = {}
    for claim in claims:
        found.setdefault(claim.subject, []).append(claim)
    return list(found.items())


def kinds(claims: Iterable[Shown]) -> list[Kind]:
    """The kinds of question that some claims answer."""
    used = {x.proof.kind for x in claims}
    return [kind for kind in METHODS if kind in used]


def headline(claims: Sequence[c.Proof]) -> str:
    """The verdict in a sentence: what is not proved first."""
    counts = Counter(claim.status for claim in claims)
    if not claims:
        return "Nothing was asked."
    total, proved = len(claims), counts["proved"]
    if proved == total:
        return "The claim is proved." if total == 1 else f"All {total:,} claims are proved."
    if total == 1:
        return f"The claim is {words(claims[0].status)}."
    bad = [f"{counts[s]:,} {words(s)}" for s in ORDER if counts[s] and s not in (*SETTLED, "refused")]
    rest = [f"{counts[s]:,} {words(s)}" for s in ("proved", "exhaustive", "refused") if counts[s]]
    if not bad:
        return f"Of {total:,} claims {', '.join(rest)}."
    first, *more = bad
    number, word = first.split(" ", 1)
    is_or_are = "is" if number == "1" else "are"
    told = f"{number} of {total:,} claims {is_or_are} {word}{''.join(f', {x}' for x in more)}"
    return f"{told}; {', '.join(rest)}." if rest else f"{told}; none is proved."


def _figures(proof: c.Proof) -> Iterable[tuple[str, str]]:
    for name, value in proof.details.items():
        title = name.replace("_", " ")
        if name in _SAID:
            continue
        if name in _PAIRED and isinstance(value, list) and len(value) == len(proof.about) == 2:
            yield from (
                (f"{title}, {side_name(s)}", text(x)) for s, x in zip(proof.about, value, strict=True)
            )
        elif isinstance(value, dict):
            yield from ((f"{title}: {inner.replace('_', ' ')}", text(x)) for inner, x in value.items())
        elif value not in ([], {}, "", None):
            yield title, text(value)


def side_name(side: c.Side) -> str:
    """``walkthrough.xqa@h200``, or a platform alone."""
    on = " or ".join(side.platforms)
    return f"{side.spec}@{on}" if side.spec else on


def text(value: Any) -> str:
    """A figure: lists in brackets, long ones cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, str):
        said = value
    elif isinstance(value, list) and all(not isinstance(x, list | dict) for x in value):
        many = len(value) - _MOST
        if all(isinstance(x, str) and " " in x for x in value):
            said = "; ".join(map(str, value))
        else:
            said = ", ".join(text(x) for x in value[:_MOST]) + (f", and {many:,} more" if many > 0 else "")
    else:
        said = json.dumps(value, ensure_ascii=False)
    return said if len(said) <= _LONG else f"{said[:_LONG]}…"
