"""What a reader of a pair's numbers has to know first: one capture twice, nothing comparable, no numerics at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import RunAlignment
from verify.metrics.health import (
    LOGPROBS,
    Finding,
    chosen_cause,
    diagnose_rows,
    gross_cause,
    lse_cause,
    slice_cause,
)
from verify.metrics.plan import FullRows, Pair, Slot
from verify.metrics.summaries import DistributionSummary
from verify.metrics.table import Table
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Recorded
from verify.words import plural

Floats = NDArray[np.float64]
_ROWS, _COLUMNS = 512, 256


def pair_findings(
    runs: tuple[Run, Run],
    pair: Pair,
    alignment: RunAlignment,
    full: FullRows,
    groups: Sequence[Mapping[Slot, Recorded]],
    table: Table,
    fields: Mapping[str, Floats] | None,
    distribution: DistributionSummary | None,
) -> tuple[Finding, ...]:
    """All findings of a pair. ``fields`` are those of its full rows, in the order of ``table``."""
    names = runs[0].name, runs[1].name
    found: list[Finding] = []
    if alignment.same_capture:
        text = f"same capture? {alignment.same_capture}: that they agree says nothing"
        found.append(Finding("same_capture", "warning", text))
    if alignment.refused:
        reasons = sorted({reason for _, reason in alignment.refused})
        n = len(alignment.refused)
        text = f"{plural(n, 'conversation')} {'is' if n == 1 else 'are'} not compared: {', '.join(reasons)}"
        where = tuple(name for name, _ in alignment.refused)
        found.append(Finding("refused", "error", text, where, len(where)))
    if not table.rows:
        found.append(Finding("nothing_compared", "error", "no row of the two runs can be compared"))
    kinds = [run.manifest.capture.value_kind for run in runs]
    if kinds[0] != kinds[1]:
        text = f"value kinds differ: {kinds[0]} and {kinds[1]}: values are not of one kind, distributions are"
        found.append(Finding("value_kind", "warning", text))
    found += _vocabulary(runs)
    if pair in full.vocab:
        widths = [max(s.full.vocab for s in run.sequences if s.full is not None) for run in runs]
        width = full.vocab[pair]
        if widths[0] != widths[1]:
            text = f"rows have {widths[0]} and {widths[1]} columns: the first {width} are compared, "
            text += f"{max(widths) - width} are padding or unknown"
            found.append(Finding("padding", "warning", text, count=max(widths) - width))
    if any(a.by == "texts" for a in alignment.sequences):
        text = "tokens are compared by their texts, as ids are not known: collisions are possible"
        found.append(Finding("text_only", "note", text))
    loose = sum(not a.verified and a.refused is None for a in alignment.sequences)
    if loose:
        text = f"the text before the rows is not known to be the same in {plural(loose, 'conversation')}"
        found.append(Finding("unverified", "note", text, count=loose))
    if distribution is not None and distribution.quantisation is not None:
        text = "log-probabilities were stored with 16 bits a row and clamped 16 nats below the best: KL is known to "
        text += f"about {distribution.quantisation:.2g} nats only, and values below that are not exact"
        found.append(Finding("quantised", "warning", text))
    found += _gross(runs, pair, alignment, full, groups, table, fields)
    return tuple(replace(f, where=f.where or names) for f in found)


def _vocabulary(runs: tuple[Run, Run]) -> list[Finding]:
    """Hashes and sizes in the manifests that differ."""
    a, b = runs[0].manifest, runs[1].manifest
    found: list[Finding] = []
    for code, what, x, y in (
        ("model_name", "models", a.model, b.model),
        ("model", "the models' hashes", a.model_sha256, b.model_sha256),
        ("tokenizer", "the tokenizers' hashes", a.tokenizer_sha256, b.tokenizer_sha256),
        ("vocab_size", "vocabulary sizes", a.vocab_size, b.vocab_size),
    ):
        if x is not None and y is not None and x != y:
            shown = f": {x} and {y}" if code in ("vocab_size", "model_name") else ""
            found.append(Finding(code, "warning", f"{what} differ{shown}"))
    return found


def different_vocabularies(runs: tuple[Run, Run]) -> Finding | None:
    """Why log-probabilities over different vocabularies are not compared: without log-sum-exp nothing tells what a padded
    vocabulary took from the others.
    """
    if not any(run.manifest.capture.value_kind in LOGPROBS for run in runs):
        return None
    sizes: list[int | None] = []
    for run in runs:
        widths = [s.full.vocab for s in run.sequences if s.full is not None]
        told = any(s.top is not None and s.top.lse is not None for s in run.sequences)
        sizes.append(max(widths) if widths else None if told else run.manifest.vocab_size)
    if sizes[0] is None or sizes[1] is None or sizes[0] == sizes[1]:
        return None
    text = f"log-probabilities over vocabularies of {sizes[0]} and {sizes[1]} are not comparable without the log-sum-exp"
    return Finding("vocabulary", "error", text, (runs[0].name, runs[1].name))


def _gross(
    runs: tuple[Run, Run],
    pair: Pair,
    alignment: RunAlignment,
    full: FullRows,
    groups: Sequence[Mapping[Slot, Recorded]],
    table: Table,
    fields: Mapping[str, Floats] | None,
) -> list[Finding]:
    if fields is None or np.isnan(fields["n"]).all() or float(np.nanmax(fields["n"])) < 8:
        x, y = table.logprob_a, table.logprob_b
        logs = bool((np.isfinite(x) & np.isfinite(y)).any())
        if not logs:
            x, y = table.value_a, table.value_b
        if table.lists is not None:
            found = lse_cause(table.lists.fields["lse_a"], table.lists.fields["lse_b"])
            if found is not None:
                return [found]
        use = np.isfinite(x) & np.isfinite(y) & (table.same_token != 0)
        finding = chosen_cause(x[use], y[use], logs)
        if finding is None and fields is not None:
            finding = slice_cause(fields)
        return [] if finding is None else [finding]
    finding, off = diagnose_rows(fields, 0)
    if finding is None or finding.code != "gross":
        return [] if finding is None else [finding]
    rows, whole = _sample(pair, alignment, full, groups, off)
    code, cause = gross_cause(*runs, rows, whole, bool(off[0]))
    return [replace(finding, text=f"{finding.text}; {cause}"), Finding(code, "error", cause)]


def _sample(
    pair: Pair,
    alignment: RunAlignment,
    full: FullRows,
    groups: Sequence[Mapping[Slot, Recorded]],
    off: NDArray[np.bool_],
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats] | None]:
    """Some columns of the first rows of a pair, and one whole row that is off, with what is not finite as zero."""
    width = full.vocab[pair]
    columns = np.unique(np.linspace(0, width - 1, min(width, _COLUMNS)).astype(np.int64))
    parts: tuple[list[Floats], list[Floats]] = [], []
    whole: tuple[Floats, Floats] | None = None
    at = 0
    for aligned in alignment.sequences:
        a, b = (groups[p][aligned.conversation, aligned.ordinal] for p in pair)
        if aligned.refused is not None or a.full is None or b.full is None:
            continue
        for i in np.flatnonzero(aligned.comparable):
            if at >= min(_ROWS, len(off)):
                break
            both = [
                np.nan_to_num(
                    s.full.read(int(r), int(r) + 1)[0, :width].astype(np.float64), posinf=0.0, neginf=0.0
                )
                for s, r in ((a, aligned.rows_a[i]), (b, aligned.rows_b[i]))
                if s.full is not None
            ]
            parts[0].append(both[0][columns])
            parts[1].append(both[1][columns])
            if off[at] and whole is None:
                whole = both[0], both[1]
            at += 1
    return (np.array(parts[0]), np.array(parts[1])), whole
