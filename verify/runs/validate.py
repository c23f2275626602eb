"""Everything that can be wrong with a run folder, in one go; and what is true of its values though nothing is wrong.

`verify.runs.folder.inspect_run` checks what reading needs: manifest, hashes, names, shapes, positions, token ids. Here the
values themselves are looked at, in blocks: NaN and infinities, probabilities that sum to more than 1, a log-sum-exp below
its largest value, values with more decimals than the manifest says, logits that are said to be log-probabilities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.runs.counts import COUNTS, LOGPROBS, add
from verify.runs.folder import inspect_run, is_run
from verify.runs.layercheck import check_lse
from verify.runs.manifest import MANIFEST
from verify.runs.problems import Problems
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Full, Sequence
from verify.runs.tensors import blocks

#: Rows of full logits whose probabilities are summed; all rows are looked at for NaN and infinities.
SAMPLED = 64
#: How far a sum of probabilities may be from 1, as |ln sum|: the largest that 16-bit storage makes of a sum.
SLACK = 0.05
#: How far above 1 the sum of a few probabilities printed in float32 may be.
ABOVE = 1e-3
Progress = Callable[[str, int, int], None]
_EXTRA = {
    "chosen_not_top1": "rows whose chosen token is not the most likely one, under greedy decoding",
    "sums_above_one": "rows whose listed probabilities sum to more than 1",
    "finite_values": "values that are finite",
}


@dataclass
class Validation:
    """What was found in one folder."""

    path: str
    run: Run | None
    problems: Problems
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems.count

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON."""
        run = self.run
        return {
            "path": self.path,
            "ok": self.ok,
            "run_id": None if run is None else run.manifest.run_id,
            "coordinate": None if run is None else run.manifest.coordinate.model_dump(mode="json"),
            "sequences": 0 if run is None else len(run.sequences),
            "rows": 0 if run is None else sum(s.rows for s in run.sequences),
            "sha256": None if run is None else run.sha256,
            "errors": [p.to_json() for p in self.problems.errors],
            "errors_not_shown": self.problems.more,
            "warnings": [p.to_json() for p in self.problems.warnings],
            "counts": {k: {"count": n, "meaning": meaning(k)} for k, n in sorted(self.counts.items())},
        }


def meaning(name: str) -> str:
    """What a count is of, in words."""
    return COUNTS.get(name) or _EXTRA.get(name, name)


def validate(path: str | Path, progress: Progress | None = None) -> list[Validation]:
    """Check a run folder, or every run folder in a folder.

    Raises:
        InputError: there is no such folder, or no run in it.
    """
    place = Path(path)
    if (place / MANIFEST).is_file() or place.name == MANIFEST:
        return [_validated(place, progress)]
    if not place.is_dir():
        raise InputError(
            "is no folder" if place.exists() else "no such folder",
            place=str(path)[:200],
            remedy="give a folder that holds manifest.json",
        )
    inner = sorted(p for p in place.iterdir() if p.is_dir() and (is_run(p) or (p / MANIFEST).is_file()))
    if not inner:
        raise InputError("holds no manifest.json", place=str(place), remedy="give a run folder")
    return [_validated(p, progress) for p in inner]


def value_problems(run: Run) -> Problems:
    """What is wrong with the values of a run that was read, without going through all of its full logits.

    For commands that take runs: sampled rows tell whether logits are log-probabilities, an lse is that of its row, and
    printed values have no more decimals than the manifest says.
    """
    problems = Problems()
    for sequence in run.sequences:
        _Values(run, sequence, problems).all(scan=False)
    return problems


def _validated(folder: Path, progress: Progress | None) -> Validation:
    found = inspect_run(folder)
    out = Validation(str(folder), found.run, found.problems)
    if found.run is None:
        return out
    _strays(folder if folder.is_dir() else folder.parent, found.run, found.problems)
    total = len(found.run.sequences)
    for index, sequence in enumerate(found.run.sequences):
        if progress is not None and _large(sequence):
            progress("checking sequences", index, total)
        check = _Values(found.run, sequence, found.problems)
        out.counts = add(out.counts, add(sequence.counts, check.all()))
    return out


def _large(sequence: Sequence) -> bool:
    """Whether its values take a while."""
    full = sequence.full
    return full is not None and full.rows * full.vocab > 1 << 26


def _strays(folder: Path, run: Run, problems: Problems) -> None:
    """Files beside those of the manifest, and files that are the same."""
    named = {Path(entry.path) for entry in run.manifest.files} | {Path(MANIFEST)}
    for path in sorted(folder.rglob("*"))[:10_000]:
        if path.is_file() and path.relative_to(folder) not in named:
            problems.warn(str(path.relative_to(folder)), "is not in the manifest and is not read")
    same = Counter(entry.sha256 for entry in run.manifest.files)
    for digest, n in same.items():
        if n > 1:
            paths = [e.path for e in run.manifest.files if e.sha256 == digest]
            problems.warn(paths[0], f"has the same bytes as {', '.join(paths[1:4])}: is it one capture?")


class _Values:
    """The values of one sequence."""

    def __init__(self, run: Run, sequence: Sequence, problems: Problems) -> None:
        self.capture = run.manifest.capture
        self.sequence, self.problems = sequence, problems
        self.place = f"conversation '{sequence.conversation[:80]}', repeat {sequence.repeat}"
        self.logprobs = self.capture.value_kind in LOGPROBS

    def all(self, *, scan: bool = True) -> dict[str, int]:
        """Every check; what is counted. ``scan``: go through all full logits, for what is not finite in them."""
        counts = self.full(scan)
        for check in (self.top, self.chosen):
            counts = add(counts, check())
        self.rows()
        self.layers()
        return counts

    def layers(self) -> None:
        """Whether each layer's lse is that of its q and k."""
        for layer in self.sequence.attention:
            found = check_lse(layer)
            if found is None:
                continue
            name = f"attn.L{layer.layer}.lse"
            if found.sure:
                remedy = "check its base and its layout where it was recorded"
                self.problems.add(self.place, found.cause, name, found.row, remedy=remedy)
            else:
                self.problems.warn(self.place, found.cause, name, found.row)

    def rows(self) -> None:
        one = self.sequence
        if one.full is None and one.top is None and one.chosen is None and not one.attention:
            self.problems.warn(self.place, "holds tokens alone: only they can be compared")
        if one.depths is not None:
            for row in np.nonzero(one.depths < 0)[0][:20]:
                self.problems.add(self.place, f"is {one.depths[row]}", "depths", int(row))
        kind = self.capture.value_kind
        if kind == "raw_logits" and one.top is not None and one.top.lse is None and one.full is None:
            self.problems.warn(self.place, "top logits without lse: their probabilities are not known", "lse")

    def full(self, scan: bool) -> dict[str, int]:
        full = self.sequence.full
        if full is None:
            return {}
        counts: dict[str, int] = {}
        logs = self.logprobs
        if self.capture.value_kind == "processed" and full.rows:  # of logits, or of log-probabilities
            logs = logsumexp(full.read(0, 1).astype(np.float64)) <= SLACK
        for start, stop in blocks(full.rows if scan else 0, full.vocab * full.dtype.itemsize):
            counts = add(counts, special(full.read(start, stop), logs, self.capture.clamp_floor))
        self.decimals(full)
        if self.capture.value_kind in ("raw_logits", "raw_logprobs"):
            self.sums(full)
        return counts

    def sums(self, full: Full) -> None:
        """Whether sampled rows are log-probabilities, as the manifest says or does not say."""
        rows = np.unique(np.linspace(0, full.rows - 1, min(SAMPLED, full.rows)).astype(int))
        normal = 0
        for row in rows:
            total = logsumexp(full.read(int(row), int(row) + 1).astype(np.float64))
            near = abs(total) <= SLACK
            normal += near
            if self.capture.value_kind == "raw_logprobs" and not near:
                self.problems.add(
                    self.place,
                    f"value_kind is raw_logprobs, and the probabilities of the row sum to exp({total:.4g})",
                    "capture.value_kind",
                    int(row),
                    remedy="say raw_logits if these are logits, logits_slice if columns are missing",
                )
                return
        if self.capture.value_kind == "raw_logits" and len(rows) > 1 and normal == len(rows):
            self.problems.warn(
                self.place, "value_kind is raw_logits, and every row looked at sums to 1: log-probabilities?"
            )

    def top(self) -> dict[str, int]:
        top = self.sequence.top
        if top is None or top.values.size == 0:
            return {}
        counts: dict[str, int] = {}
        with np.errstate(invalid="ignore", over="ignore"):
            if top.lse is not None:
                largest = np.nanmax(np.where(np.isnan(top.values), -np.inf, top.values), axis=1)
                gap = largest - top.lse
                for row in np.nonzero(gap > ABOVE)[0][:20]:
                    self.problems.add(
                        self.place,
                        f"is {top.lse[row]:.6g}, below the largest value {largest[row]:.6g} of its row",
                        "lse",
                        int(row),
                        remedy="check capture.lse_base and the order of the rows",
                    )
            base = top.lse[:, None] if top.lse is not None else 0.0
            if self.logprobs or top.lse is not None:
                sums = np.nansum(np.exp(top.values - base), axis=1)
                counts["sums_above_one"] = int((sums > 1 + ABOVE).sum())
        self.digits(top.values, "topk_values")
        chosen = self.sequence.chosen
        if self.capture.greedy and (self.sequence.tokens != UNKNOWN).any():
            best = top.ids[np.arange(len(top.ids)), np.argmax(np.nan_to_num(top.values, nan=-np.inf), axis=1)]
            known = (best != UNKNOWN) & (self.sequence.tokens != UNKNOWN)
            counts["chosen_not_top1"] = int((known & (best != self.sequence.tokens)).sum())
        elif self.capture.greedy and chosen is not None:
            with np.errstate(invalid="ignore"):
                largest = np.nanmax(np.where(np.isnan(top.values), -np.inf, top.values), axis=1)
                counts["chosen_not_top1"] = int((chosen < largest).sum())
        return counts

    def chosen(self) -> dict[str, int]:
        chosen = self.sequence.chosen
        if chosen is not None:
            self.digits(chosen, "chosen")
        return {}

    def decimals(self, full: Full) -> None:
        if self.capture.decimals is not None and full.rows:
            self.digits(full.read(0, min(8, full.rows)).astype(np.float64), "logits")

    def digits(self, values: NDArray[np.float64], name: str) -> None:
        """Values that were printed with d decimals have no more; where none are said and few are seen, say so."""
        finite = values[np.isfinite(values)]
        wanted = self.capture.decimals
        if wanted is not None:
            off = ~_printed(values, wanted) & np.isfinite(values)
            for row in np.argwhere(off)[:1]:
                self.problems.add(
                    self.place,
                    f"is {values[tuple(row)]!r}, with more than the {wanted} decimals of the manifest",
                    f"capture.decimals of {name}",
                    int(row[0]),
                )
        elif finite.size >= 32 and np.any(finite != np.round(finite)) and _printed(finite, 5).all():
            self.problems.warn(
                self.place, "no value has more than 5 decimals: were they printed? Say capture.decimals", name
            )


def _printed(values: NDArray[np.float64], decimals: int) -> NDArray[np.bool_]:
    """Which values are the nearest float64 to a number with so many decimals, or what float32 makes of one."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.round(values, decimals)
        return (near == values) | (near.astype(np.float32) == values)


def logsumexp(values: NDArray[np.float64]) -> float:
    """Natural log of the sum of exp over all of ``values``; NaN entries count as absent."""
    finite = values[~np.isnan(values)]
    top = float(finite.max(initial=-math.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.exp(finite - top).sum()))


def special(block: NDArray[Any], logprobs: bool, floor: float | None) -> dict[str, int]:
    """Counts of NaN, infinities, clamped and positive values in a block of any float dtype."""
    counts: dict[str, int] = {}
    if block.dtype.name == "bfloat16":
        bits = block.view(np.uint16)
        odd = (bits & 0x7F80) == 0x7F80
        if odd.any():
            found = bits[odd]
            counts["nan_values"] = int(((found & 0x7F) != 0).sum())
            counts["neg_inf_values"] = int((found == 0xFF80).sum())
            counts["pos_inf_values"] = int((found == 0x7F80).sum())
        # of the patterns up to +infinity all but +0 are above 0
        positive = int(((bits > 0) & (bits <= 0x7F80)).sum()) if logprobs else 0
        clamped = 0 if floor is None else int((block.astype(np.float32) <= floor).sum())
        clamped -= counts.get("neg_inf_values", 0) if floor is not None else 0
    else:
        finite = np.isfinite(block)
        if not finite.all():
            counts["nan_values"] = int(np.isnan(block).sum())
            counts["neg_inf_values"] = int(np.isneginf(block).sum())
            counts["pos_inf_values"] = int(np.isposinf(block).sum())
        with np.errstate(invalid="ignore"):
            positive = int((block > 0).sum()) if logprobs else 0
            clamped = 0 if floor is None else int((finite & (block <= floor)).sum())
    return {
        k: n for k, n in {**counts, "positive_logprobs": positive, "clamped_values": clamped}.items() if n
    }
