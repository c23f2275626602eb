"""Which rows of two runs can be compared: conversations, repeats, positions, and whether the text before is the same.

A row of one run meets the row of the other at the same position. What a model says there depends on all tokens before:
once two texts have parted, later rows are not comparable. The row at which they part still is: its text is the same, and
only what follows differs. Prompts that differ are never compared. Scores of examples have no text before them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Ints, Sequence

Bools = NDArray[np.bool_]
By = Literal["ids", "texts", "positions"]

#: Labels in which two sequences that answer one request agree.
REQUEST_LABELS = ("request_sha256", "prompt_sha256")
#: Label of readers where positions count from the first answered token, as the prompt's length is not known.
POSITIONS, RELATIVE = "positions", "from the first answered token"
#: Label of readers: the row that predicts the first answered token; rows before belong to the prompt.
ANSWER_ROW = "answer_row"


@dataclass(frozen=True)
class Aligned:
    """Two sequences, row by row.

    Attributes:
        conversation, repeat_a, repeat_b: which.
        positions: ``[rows]`` where both have a row.
        rows_a, rows_b: ``[rows]`` the row of each.
        comparable: ``[rows]`` whether the text before is the same.
        same_token: ``[rows]`` 1 where the same token follows, 0 where another does, -1 where that is not known.
        fork: index into ``positions`` of the first row after which the texts differ, or None.
        refused: why no row is comparable, or None.
        by: what tokens were compared by; "texts": ids are not known, and two tokens may have one text.
        verified: whether the whole text before the comparable rows is known to be the same.
        alone: positions that only the first, and only the second has.
        duplicates: rows left out of each, at a position that was there already.
        ordinal: which of the repeats of the conversation, from 0 in their order.
    """

    conversation: str
    repeat_a: int
    repeat_b: int
    positions: Ints
    rows_a: Ints
    rows_b: Ints
    comparable: Bools
    same_token: NDArray[np.int8]
    fork: int | None
    refused: str | None
    by: By
    verified: bool
    alone: tuple[int, int]
    duplicates: tuple[int, int]
    ordinal: int = 0

    @property
    def prefix(self) -> int:
        """Number of leading common rows after which the same token follows (or an unknown one)."""
        return len(self.positions) if self.fork is None else self.fork

    @property
    def after_fork(self) -> int:
        """Number of common rows that are not comparable."""
        return int(len(self.positions) - self.comparable.sum())


@dataclass(frozen=True)
class RunAlignment:
    """Two runs.

    Attributes:
        first, second: names of the runs.
        sequences: pairs of sequences that were matched.
        only_first, only_second: conversations that only one has.
        unmatched_repeats: repeats of common conversations without a partner: of the first, of the second.
        same_capture: why the two are taken for one capture, or None.
    """

    first: str
    second: str
    sequences: tuple[Aligned, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    unmatched_repeats: tuple[int, int]
    same_capture: str | None

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """Conversations that are not compared, with the reason."""
        found = ((s.conversation, s.refused) for s in self.sequences if s.refused is not None)
        return tuple(dict.fromkeys(found))


def align_sequences(a: Sequence, b: Sequence, *, independent: bool = False, forced: bool = False) -> Aligned:
    """Match the rows of two sequences.

    Args:
        a: one sequence.
        b: the other.
        independent: rows are examples of their own: no text comes before.
        forced: both texts were given to the model. Rows whose text before is not known then count as comparable; of free
            runs, too, but ``verified`` says that it was not checked.
    """
    at_a, rows_a = np.unique(a.positions, return_index=True)
    at_b, rows_b = np.unique(b.positions, return_index=True)
    positions, in_a, in_b = np.intersect1d(at_a, at_b, assume_unique=True, return_indices=True)
    rows_a, rows_b = rows_a[in_a].astype(np.int64), rows_b[in_b].astype(np.int64)
    same, by = same_tokens(a, b, rows_a, rows_b)
    refused, known = (None, True) if independent else _prompts(a, b)
    fork: int | None = None
    comparable = np.ones(len(positions), bool)
    verified = True
    if not independent:
        different = np.flatnonzero(same == 0)
        if different.size:
            fork = int(different[0])
            comparable[fork + 1 :] = False
        answered = _answer_row(a, b, rows_a, rows_b)
        if refused is None and fork is not None and fork < answered:
            refused = "prompts differ"
        end = len(positions) if fork is None else fork
        gaps = bool((np.diff(positions[: end + 1]) > 1).any())
        verified = forced or (known and not gaps and not (same[: max(0, end - 1)] == -1).any())
    if refused is not None:
        comparable[:] = False
    return Aligned(
        conversation=a.conversation,
        repeat_a=a.repeat,
        repeat_b=b.repeat,
        positions=positions,
        rows_a=rows_a,
        rows_b=rows_b,
        comparable=comparable,
        same_token=same,
        fork=fork,
        refused=refused,
        by=by,
        verified=verified,
        alone=(len(at_a) - len(positions), len(at_b) - len(positions)),
        duplicates=(a.rows - len(at_a), b.rows - len(at_b)),
    )


def same_tokens(a: Sequence, b: Sequence, rows_a: Ints, rows_b: Ints) -> tuple[NDArray[np.int8], By]:
    """Whether the same token follows in paired rows: 1, 0, or -1 where not known; and by what that was told."""
    x, y = a.tokens[rows_a], b.tokens[rows_b]
    ids = (x != UNKNOWN) & (y != UNKNOWN)
    same = np.where(ids, x == y, -1).astype(np.int8)
    by: By = "ids" if ids.any() else "positions"
    if not ids.all() and a.texts is not None and b.texts is not None:
        rest = np.flatnonzero(~ids)
        for i in rest:
            same[i] = a.texts[rows_a[i]] == b.texts[rows_b[i]]
        by = "texts"
    return same, by


def _answer_row(a: Sequence, b: Sequence, rows_a: Ints, rows_b: Ints) -> int:
    """Number of common rows that belong to the prompt of either."""
    found = 0
    for sequence, rows in ((a, rows_a), (b, rows_b)):
        told = sequence.labels.get(ANSWER_ROW, "0")
        if told.isdigit():
            found = max(found, int(np.count_nonzero(rows < int(told))))
    return found


def _prompts(a: Sequence, b: Sequence) -> tuple[str | None, bool]:
    """Why two prompts must not be compared, or None; and whether they are known to be the same."""
    for label in REQUEST_LABELS:
        x, y = a.labels.get(label), b.labels.get(label)
        if x is not None and y is not None and x != y:
            return f"requests differ ({label})", False
    if (a.labels.get(POSITIONS) == RELATIVE) != (b.labels.get(POSITIONS) == RELATIVE):
        return "the length of one prompt is not known", False
    if a.prompt is None or b.prompt is None or not a.rows or not b.rows:
        return None, False
    early, late = (a, b) if a.positions[0] <= b.positions[0] else (b, a)
    assert early.prompt is not None
    assert late.prompt is not None
    between = early.positions < late.positions[0]
    whole = np.concatenate([early.prompt, early.tokens[between]])
    shared = min(len(whole), len(late.prompt))
    left, right = whole[:shared], late.prompt[:shared]
    if ((left != right) & (left != UNKNOWN) & (right != UNKNOWN)).any():
        return "prompts differ", False
    if len(early.prompt) != len(late.prompt) and not between.any():
        return "prompts differ", False
    return None, len(whole) == len(late.prompt) and not (left == UNKNOWN).any()


def place(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs whose positions count from the same token.

    A reader that knows no prompt counts from the first answered token. Where other sequences of the conversation tell
    where the answer starts, and agree, such positions are moved there. What cannot be moved is not compared with them.
    """
    runs = tuple(runs)
    starts: dict[str, set[int]] = {}
    for run in runs:
        for s in run.sequences:
            told = s.labels.get(ANSWER_ROW, "")
            if s.labels.get(POSITIONS) != RELATIVE and told.isdigit() and int(told) < s.rows:
                starts.setdefault(s.conversation, set()).add(int(s.positions[int(told)]))

    def moved(s: Sequence) -> Sequence:
        start = starts.get(s.conversation, set())
        if s.labels.get(POSITIONS) != RELATIVE or len(start) != 1 or not s.rows:
            return s
        positions = s.positions + (next(iter(start)) - int(s.positions[0]))
        return replace(
            s, positions=positions, labels={**s.labels, POSITIONS: "from where other runs have the answer"}
        )

    return tuple(replace(run, sequences=tuple(moved(s) for s in run.sequences)) for run in runs)


def align_runs(a: Run, b: Run) -> RunAlignment:
    """Match the sequences of two runs: conversation by conversation, the n-th repeat of one with the n-th of the other.

    Repeats without a partner are counted.
    """
    independent = "scores" in (a.manifest.capture.value_kind, b.manifest.capture.value_kind)
    forced = a.manifest.capture.teacher_forced is True and b.manifest.capture.teacher_forced is True
    left, right = by_conversation(a.sequences), by_conversation(b.sequences)
    found: list[Aligned] = []
    without = [0, 0]
    for name, mine in left.items():
        other = right.get(name)
        if other is None:
            continue
        pairs = list(zip(mine, other, strict=False))
        for ordinal, (x, y) in enumerate(pairs):
            one = align_sequences(x, y, independent=independent, forced=forced)
            found.append(replace(one, ordinal=ordinal))
        without[0] += len(mine) - len(pairs)
        without[1] += len(other) - len(pairs)
    return RunAlignment(
        first=a.name,
        second=b.name,
        sequences=tuple(found),
        only_first=tuple(name for name in left if name not in right),
        only_second=tuple(name for name in right if name not in left),
        unmatched_repeats=(without[0], without[1]),
        same_capture=same_capture(a, b),
    )


def refuse(alignment: RunAlignment, reason: str) -> RunAlignment:
    """The same two runs, with no row comparable."""
    sequences = tuple(
        replace(s, refused=s.refused or reason, comparable=np.zeros(len(s.positions), bool))
        for s in alignment.sequences
    )
    return replace(alignment, sequences=sequences)


def by_conversation(sequences: Iterable[Sequence]) -> dict[str, list[Sequence]]:
    """Sequences by conversation, in the order of ``repeat``; conversations as they first occur."""
    found: dict[str, list[Sequence]] = {}
    for sequence in sequences:
        found.setdefault(sequence.conversation, []).append(sequence)
    return {name: sorted(group, key=lambda s: s.repeat) for name, group in found.items()}


def same_capture(a: Run, b: Run) -> str | None:
    """Why two runs are one capture (equal hashes, or the same stored bytes), or None."""
    if a.sha256 and a.sha256 == b.sha256:
        return "the files have one hash"

    def keys(run: Run) -> list[Any]:
        return [s.full.key if s.full is not None else "" for s in run.sequences]

    mine = keys(a)
    if mine and all(mine) and mine == keys(b):
        return "the values lie in the same bytes of the same files"
    return None
