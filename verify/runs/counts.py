"""Names of what readers count in a sequence, and how they count it: nothing is changed silently.

Values are kept as they were recorded: a clamped value stays -9999, an infinity stays one; a null becomes NaN and is
counted. Only rows that cannot be kept (a second row at one position) leave, counted too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.runs.manifest import Recording
from verify.runs.sequence import UNKNOWN, Sequence

#: What every count means.
COUNTS = {
    "null_values": "values that were null",
    "nan_values": "values that are NaN",
    "neg_inf_values": "values that are -infinity",
    "pos_inf_values": "values that are +infinity",
    "clamped_values": "values at or below the clamp floor: they stand for anything lower",
    "positive_logprobs": "log-probabilities above 0",
    "exact_zero_logprobs": "log-probabilities that are exactly 0: rounded, or the only token that was allowed",
    "duplicate_positions": "rows at a position that was there already: left out",
    "unsorted_positions": "rows that stood behind a later position: sorted",
    "missing_positions": "positions between the first and the last, in one range, that have no row",
    "duplicate_top_ids": "top entries whose token id is in their row already",
    "text_only_rows": "rows whose token is known by its text alone: texts of two tokens may be equal",
    "text_collisions": "top entries whose text is in their row already, so that two tokens are taken for one",
    "unknown_tokens": "rows, but the last, whose token is not known at all",
    "length_mismatches": "values or tokens that have no partner, as the lists have different lengths: left out",
    "padded_columns": "columns of the logits behind the vocabulary",
    "quantised_values": "values that were stored with 16 bits between the least and the largest of their row",
    "ignored_records": "records of the file that the adapter does not read",
}

#: Counted again from the data whenever they are read; the others are kept with a run.
RECOUNTED = (
    "nan_values",
    "neg_inf_values",
    "pos_inf_values",
    "clamped_values",
    "positive_logprobs",
    "exact_zero_logprobs",
    "missing_positions",
    "duplicate_top_ids",
    "text_only_rows",
    "text_collisions",
    "unknown_tokens",
    "padded_columns",
)

#: Counts that every sequence of a run has alike: of a run the largest, not their sum.
WIDTHS = ("padded_columns",)

#: What APIs print for "less likely than is told": vLLM -9999, mlx and OpenAI -100.
CLAMPS = (-9999.0, -100.0)

LOGPROBS = ("raw_logprobs", "processed")

#: Rows of full logits of a run, about, that are looked at for values that stand for anything lower.
_SAMPLED = 64


def likely_floor(sequences: Collection[Sequence], kind: str) -> float | None:
    """The value that stands for "less likely than is told", where the recording does not say so and its values do.

    Of log-probabilities, as far as -9999 or below (no model gives those), or the least value where that is one that APIs
    print so; of logits -9999 itself, as the least value. Of full logits some rows are looked at.

    Args:
        sequences: of one run.
        kind: its ``value_kind``.
    """
    if kind not in ("raw_logits", *LOGPROBS):
        return None
    deep = CLAMPS[0]
    least = np.inf
    for one in sequences:
        for values in (one.chosen, None if one.top is None else one.top.values):
            if values is not None:
                least = min(least, _least(values))
    wholes = [one.full for one in sequences if one.full is not None and one.full.rows]
    for full in wholes[:: max(1, len(wholes) // _SAMPLED)]:
        most = max(1, _SAMPLED // len(wholes))
        for row in np.unique(np.linspace(0, full.rows - 1, min(most, full.rows)).astype(int)):
            with np.errstate(invalid="ignore"):  # a signalling NaN
                found = _least(full.read(int(row), int(row) + 1).astype(np.float64))
            least = min(least, deep if found == stored(deep, full.dtype) else found)
    if kind == "raw_logits":
        return deep if least == deep else None
    return deep if least <= deep else least if least in CLAMPS else None


def floor_of(sequences: Collection[Sequence], recording: Recording) -> float | None:
    """The clamp floor of a run: as told, or else as its values show, and as its full logits store it."""
    floor = recording.clamp_floor
    if floor is None:
        floor = likely_floor(sequences, recording.value_kind)
    if floor is None:
        return None
    return max([floor, *(stored(floor, s.full.dtype) for s in sequences if s.full is not None)])


def _least(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.min(initial=np.inf))


def stored(floor: float, dtype: np.dtype[Any]) -> float:
    """A clamp floor as a stored dtype has it: bfloat16 makes -9984 of -9999."""
    with np.errstate(over="ignore"):  # float16 makes -infinity of a floor that it does not have
        return max(floor, float(np.asarray(floor).astype(dtype)))


def are_logs(values: NDArray[Any], kind: str) -> bool:
    """Whether values are log-probabilities: processed ones may be logits, and are where most of them are above 0."""
    if kind != "processed":
        return kind in LOGPROBS
    with np.errstate(invalid="ignore"):
        return 2 * int((values > 0).sum()) <= int(np.isfinite(values).sum())


def tally(values: NDArray[Any], recording: Recording) -> dict[str, int]:
    """Counts of special values in an array of any float dtype. Zero counts are left out."""
    wide = values if values.dtype.kind == "f" else values.astype(np.float32)
    out: dict[str, int] = {}
    finite = np.isfinite(wide)
    if not finite.all():
        out["nan_values"] = int(np.isnan(wide).sum())
        out["neg_inf_values"] = int(np.isneginf(wide).sum())
        out["pos_inf_values"] = int(np.isposinf(wide).sum())
    with np.errstate(invalid="ignore"):
        if recording.clamp_floor is not None:
            out["clamped_values"] = int((finite & (wide <= recording.clamp_floor)).sum())
        if are_logs(wide, recording.value_kind):
            out["positive_logprobs"] = int((wide > 0).sum())
            out["exact_zero_logprobs"] = int((wide == 0).sum())
    return {name: n for name, n in out.items() if n}


def add(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Two dictionaries of counts together: sums, of `WIDTHS` the larger."""
    out = dict(left)
    for name, n in right.items():
        if n:
            out[name] = max(out.get(name, 0), n) if name in WIDTHS else out.get(name, 0) + n
    return out


def gaps(positions: NDArray[np.int64], ranges: tuple[str, ...] | None) -> int:
    """Positions that are missing between neighbours; where rows have ranges, only within one range."""
    steps = np.diff(positions) - 1
    if ranges is not None and len(ranges) == len(positions):
        same = np.array([a == b for a, b in pairwise(ranges)], bool)
        steps = steps[same]
    return int(steps[steps > 0].sum())


def repeated(ids: NDArray[np.int64]) -> int:
    """Entries of ``ids [rows, K]``, not negative, that are in their row already."""
    if ids.size == 0:
        return 0
    ordered = np.sort(ids, axis=1)
    return int(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum())


def repeated_texts(texts: tuple[tuple[str, ...], ...]) -> int:
    """Entries of rows of texts that are in their row already."""
    return sum(len(row) - len(set(row)) for row in texts)


def observe(sequence: Sequence, recording: Recording, vocab_size: int | None) -> Sequence:
    """``sequence`` with its counts: those that its reader made, and everything of `RECOUNTED`, counted from its rows."""
    kept = {k: n for k, n in sequence.counts.items() if k not in RECOUNTED}
    found: dict[str, int] = {}
    if recording.value_kind != "scores":
        found["missing_positions"] = gaps(sequence.positions, sequence.ranges)
        if sequence.texts is not None:
            found["text_only_rows"] = int((sequence.tokens == UNKNOWN).sum())
        else:  # nothing need follow the last row
            found["unknown_tokens"] = int((sequence.tokens[:-1] == UNKNOWN).sum())
    if sequence.chosen is not None:
        found = add(found, tally(sequence.chosen, recording))
    top = sequence.top
    if top is not None:
        filled = top.values[~np.isnan(top.values) | (top.ids != UNKNOWN)]
        found = add(found, tally(filled, recording))
        found = add(found, {"duplicate_top_ids": repeated(top.ids)})
        if top.texts is not None and (top.ids == UNKNOWN).all():
            found = add(found, {"text_collisions": repeated_texts(top.texts)})
    full = sequence.full
    if full is not None and vocab_size is not None and full.vocab > vocab_size:
        found["padded_columns"] = full.vocab - vocab_size
    if kept.get("null_values") and found.get("nan_values"):
        found["nan_values"] = max(0, found["nan_values"] - kept["null_values"])
    counts = {k: n for k, n in add(kept, found).items() if n}
    return sequence if counts == sequence.counts else replace(sequence, counts=counts)
