"""Repeats of one request in one run: are they identical, at which level, and in which order do they differ?

Identity is judged at three levels: the text, the token ids, the bytes of the values. The order is kept as a pattern of
runs: "A b*49" says that the first request differs and the 49 after it are one, which is a finding of its own (a cold
start, a prompt cache) and no run-to-run randomness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

from verify.metrics.align import align_sequences
from verify.metrics.decisions import Modal, modal
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Full
from verify.runs.sequence import Sequence as Recorded

Class = Literal["identical", "first request differs", "distinct", "race or bug", "text only"]

#: Repeats whose log-probabilities of one token differ by more (nats), or whose logits do, are far apart.
FAR = 1.0
_BLOCK = 1 << 22
_CLASSES = 20


@dataclass(frozen=True)
class Level:
    """Repeats at one level.

    Attributes:
        name: "text", "ids" or "values".
        classes: the class of each repeat in order; classes are numbered as they first occur.
        pattern: the order as runs: "A b*49".
        modal: number of classes and share of the most frequent.
    """

    name: str
    classes: tuple[int, ...]
    pattern: str
    modal: Modal

    @property
    def distinct(self) -> int:
        """Number of classes."""
        return self.modal.distinct

    @property
    def first_differs(self) -> bool:
        """Whether the first is alone and all others (two or more) are one class."""
        return len(self.classes) >= 3 and self.distinct == 2 and self.classes.count(0) == 1


@dataclass(frozen=True)
class Repeats:
    """All repeats of one conversation.

    Attributes:
        conversation: which.
        n: number of repeats.
        levels: those levels that were recorded.
        finding: "identical" at every level; "first request differs"; "distinct"; "race or bug" where repeats that are not
            identical are far apart; "text only" where values are not known but texts or ids differ.
        max_difference: largest difference of a value between the most frequent class and any other, on rows with the same
            text before; None where values are identical or not known.
        rows: number of rows that this was taken from.
        first_fork: fewest tokens that any other class shares with the most frequent one before they part, or None.
    """

    conversation: str
    n: int
    levels: tuple[Level, ...]
    finding: Class
    max_difference: float | None
    rows: int
    first_fork: int | None

    def level(self, name: str) -> Level | None:
        """The level of that name, if it was recorded."""
        return next((level for level in self.levels if level.name == name), None)


def pattern(classes: Sequence[int]) -> str:
    """Run lengths of classes, as text: the first class is A, further ones b, c, ..., then (27), (28), ..."""

    def letter(c: int) -> str:
        return "A" if c == 0 else chr(ord("a") + c) if c < 26 else f"({c + 1})"

    runs = ((c, sum(1 for _ in group)) for c, group in groupby(classes))
    return " ".join(letter(c) + (f"*{n}" if n > 1 else "") for c, n in runs)


def level(name: str, keys: Sequence[Hashable]) -> Level:
    """The classes of equal ``keys``, one key a repeat, in order."""
    numbers: dict[Hashable, int] = {}
    classes = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
    found = modal(classes)
    assert found is not None
    return Level(name, classes, pattern(classes), found)


def full_digest(full: Full) -> bytes:
    """SHA-256 of all values of a sequence, read in blocks."""
    digest = hashlib.sha256(f"{full.dtype}:{full.vocab}:".encode())
    step = max(1, _BLOCK // max(1, full.vocab * full.dtype.itemsize))
    for low in range(0, full.rows, step):
        digest.update(np.ascontiguousarray(full.read(low, min(full.rows, low + step))).view(np.uint8).data)
    return digest.digest()


def value_key(sequence: Recorded) -> bytes | None:
    """A digest of everything that was recorded as values, None where nothing was."""
    digest = hashlib.sha256(sequence.positions.tobytes())
    some = False
    parts: list[Any] = [sequence.chosen]
    if sequence.top is not None:
        parts += [sequence.top.ids, sequence.top.values, sequence.top.lse]
    for attention in sequence.attention:
        parts += [attention.q, attention.k, attention.v, attention.out, attention.lse]
    for part in parts:
        if part is not None:
            some = True
            digest.update(f"{part.dtype}:{part.shape}:".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(b";")
    if sequence.full is not None:
        some = True
        digest.update(full_digest(sequence.full))
    return digest.digest() if some else None


def text_key(sequence: Recorded) -> Hashable | None:
    """What the text is known by: the texts of its tokens, or a recorded hash."""
    if sequence.texts is not None:
        return "".join(sequence.texts)
    return sequence.labels.get("text_sha256")


def id_key(sequence: Recorded) -> bytes | None:
    """The token ids; None where one is not known (that of the last row need not be)."""
    return None if (sequence.tokens[:-1] == UNKNOWN).any() or not sequence.rows else sequence.tokens.tobytes()


def compare_repeats(sequences: Sequence[Recorded], far: float = FAR) -> Repeats:
    """Compare the repeats of one conversation, in the order of ``repeat``.

    Args:
        sequences: two or more.
        far: differences beyond are far apart, in the unit of the values.
    """
    ordered = sorted(sequences, key=lambda s: s.repeat)
    levels: list[Level] = []
    for name, key in (("text", text_key), ("ids", id_key), ("values", value_key)):
        keys = [key(s) for s in ordered]
        if all(k is not None for k in keys):
            levels.append(level(name, keys))
    values = next((x for x in levels if x.name == "values"), None)
    most, rows, fork = (None, 0, None) if values is None else _distance(ordered, values)
    return Repeats(
        conversation=ordered[0].conversation,
        n=len(ordered),
        levels=tuple(levels),
        finding=_finding(levels, values, most, far),
        max_difference=most,
        rows=rows,
        first_fork=fork,
    )


def _finding(levels: list[Level], values: Level | None, most: float | None, far: float) -> Class:
    if all(x.distinct == 1 for x in levels):
        return "identical"
    if values is None:
        return "text only"
    if most is not None and most > far:
        return "race or bug"
    return "first request differs" if values.first_differs else "distinct"


def _distance(ordered: list[Recorded], values: Level) -> tuple[float | None, int, int | None]:
    """Largest difference between the most frequent class and the others, its rows, and the earliest fork."""
    if values.distinct == 1:
        return None, 0, None
    first = {c: values.classes.index(c) for c in sorted(set(values.classes))}
    main = max(first, key=values.classes.count)
    most: float | None = None
    rows = 0
    fork: int | None = None
    for c in list(first)[:_CLASSES]:
        if c == main:
            continue
        a, b = ordered[first[main]], ordered[first[c]]
        aligned = align_sequences(a, b)
        if aligned.fork is not None and (fork is None or aligned.fork < fork):
            fork = aligned.fork
        use = aligned.comparable
        found, n = largest_difference(a, b, aligned.rows_a[use], aligned.rows_b[use], aligned.same_token[use])
        rows += n
        if found is not None:
            most = found if most is None else max(most, found)
    return most, rows, fork


def largest_difference(
    a: Recorded, b: Recorded, rows_a: Any, rows_b: Any, same: Any
) -> tuple[float | None, int]:
    """Largest |a - b| over finite values of paired rows (whole rows, else of the tokens that followed), and the rows."""
    if a.full is not None and b.full is not None:
        vocab = min(a.full.vocab, b.full.vocab)
        most = 0.0
        for i, j in zip(rows_a.tolist(), rows_b.tolist(), strict=True):
            x, y = (
                full.read(r, r + 1)[0, :vocab].astype(np.float64) for full, r in ((a.full, i), (b.full, j))
            )
            with np.errstate(invalid="ignore", over="ignore"):
                d = np.abs(x - y)
            most = max(most, float(d[np.isfinite(d)].max(initial=0.0)))
        return most, len(rows_a)
    if a.chosen is None or b.chosen is None:
        return None, 0
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.abs(a.chosen[rows_a] - b.chosen[rows_b])
    d = d[np.isfinite(d) & (same != 0)]
    return (float(d.max()) if d.size else None), int(d.size)


def repeats_of(run: Run, far: float = FAR) -> tuple[Repeats, ...]:
    """Every conversation of a run that was asked more than once."""
    groups: dict[str, list[Recorded]] = {}
    for sequence in run.sequences:
        groups.setdefault(sequence.conversation, []).append(sequence)
    return tuple(compare_repeats(group, far) for group in groups.values() if len(group) > 1)
