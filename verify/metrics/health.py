"""What is wrong with a capture, counted; and differences that no rounding makes, with their likely cause.

Two runs that compute the same thing in different order give rows of logits that are almost parallel. Where the
correlation of a row falls below `GROSS`, or the first row is off already, something else was computed: other weights,
another template or text, another vocabulary, rows in another order, a log-sum-exp to another base. The causes are looked
for one by one and named only where the numbers show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verify.metrics.topk import masses
from verify.runs.counts import COUNTS, WIDTHS, are_logs
from verify.runs.layercheck import check_out
from verify.runs.manifest import Recording
from verify.runs.run import Run
from verify.runs.sequence import Sequence
from verify.words import plural

Floats = NDArray[np.float64]
Severity = Literal["error", "warning", "note"]

GROSS = 0.9
#: Correlation from which two rows count as parallel.
PARALLEL = 0.999
#: Nats: differences of log-probabilities below it, in the root mean square, can be rounding in bf16. Logits of `TYPICAL`
#: size have the same.
ROUNDING, TYPICAL = 0.1, 10.0
#: Layers of a run whose output is computed again.
LAYERS = 64
LOGPROBS = ("raw_logprobs", "processed")
LN2 = log(2.0)


@dataclass(frozen=True)
class Finding:
    """One thing to know. ``code`` is for programs; ``where`` names runs or conversations."""

    code: str
    severity: Severity
    text: str
    where: tuple[str, ...] = ()
    count: int | None = None


@dataclass(frozen=True)
class RunHealth:
    """One run: sequences, rows, and counts by name (only those that are not zero)."""

    run: str
    sequences: int
    rows: int
    counts: dict[str, int]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Permutation:
    """Rows in another order: row ``match[i]`` of the second belongs to row i of the first; ``shift`` if all by as much."""

    match: tuple[int, ...]
    shift: int | None


_TEXTS: dict[str, tuple[Severity, str]] = {
    "nan": ("error", "values are NaN"),
    "positive_infinity": ("error", "values are +infinity"),
    "negative_infinity": ("note", "values are -infinity"),
    "subnormal": ("note", "values are subnormal"),
    "clamped": ("warning", "values are clamped: they stand for anything lower, and are left out of means"),
    "null_values": ("note", "values were null"),
    "positive_logprobs": (
        "error",
        "log-probabilities are above 0: their rows are invalid, and left out of distances",
    ),
    "sum_above_one": ("error", "rows have probabilities that sum to more than 1"),
    "chosen_not_best": ("warning", "chosen tokens are not the most likely one, though decoding was greedy"),
    "duplicate_positions": ("warning", "rows stood at a position that was there already, and were left out"),
    "missing_positions": ("warning", "positions between the first and the last have no row"),
    "length_mismatches": ("warning", "values or tokens had no partner, as lists have different lengths"),
    "text_only_rows": ("note", "rows know their token by its text only: collisions are possible"),
    "quantised_values": ("note", "values were stored with 16 bits a row: they are never exact"),
}


def sequence_counts(sequence: Sequence, recording: Recording) -> dict[str, int]:
    """Counts of one sequence: those of its reader, and what its lists and chosen values show."""
    counts = dict(sequence.counts)
    floor = recording.clamp_floor
    logs = recording.value_kind in LOGPROBS
    places = [
        x for x in (sequence.chosen, None if sequence.top is None else sequence.top.values) if x is not None
    ]
    with np.errstate(invalid="ignore"):
        if logs:
            true = [x for x in places if are_logs(x, recording.value_kind)]
            counts["positive_logprobs"] = sum(int((x > 0).sum()) for x in true)
        if floor is not None:
            counts["clamped_values"] = sum(int((np.isfinite(x) & (x <= floor)).sum()) for x in places)
        counts["pos_inf_values"] = sum(int((x == np.inf).sum()) for x in places)
        if sequence.top is not None:
            top = sequence.top
            counts["neg_inf_values"] = int((top.values == -np.inf).sum())
            if top.values.size and (logs or top.lse is not None):
                lse = np.zeros(len(top.values)) if top.lse is None else top.lse
                slack = 1e-3 + (
                    0 if recording.decimals is None else top.values.shape[1] * 10.0**-recording.decimals
                )
                counts["sum_above_one"] = int((masses(top.values, lse) > 1 + slack).sum())
            if recording.greedy and sequence.chosen is not None and top.values.shape[1]:
                counts["chosen_not_best"] = int(
                    (sequence.chosen < np.nanmax(_filled(top.values), axis=1)).sum()
                )
    steps = np.diff(np.unique(sequence.positions))
    if recording.value_kind != "scores" and sequence.ranges is None:
        counts["missing_positions"] = int((steps - 1).sum())
    repeated = sequence.rows - len(np.unique(sequence.positions))
    if repeated:
        counts["duplicate_positions"] = counts.get("duplicate_positions", 0) + repeated
    return {name: n for name, n in counts.items() if n}


_ONE = (
    ("values are clamped: they stand for anything lower, and are", "value is clamped: it stands for anything lower, and is"),
    ("values are", "value is"),
    ("values were", "value was"),
    ("log-probabilities are above 0: their rows are", "log-probability is above 0: its row is"),
    ("rows have probabilities that sum", "row has probabilities that sum"),
    ("rows stood at a position that was there already, and were", "row stood at a position that was there already, and was"),
    ("rows know their token by its text only", "row knows its token by its text only"),
    ("chosen tokens are", "chosen token is"),
    ("positions between the first and the last have", "position between the first and the last has"),
    ("values or tokens had no partner", "value or token had no partner"),
)  # fmt: skip


def _of(n: int, text: str) -> str:
    """``text`` in the singular where ``n`` is 1."""
    if n == 1:
        for many, one in _ONE:
            if text.startswith(many):
                return one + text.removeprefix(many)
    return text


def _filled(values: Floats) -> Floats:
    """Lists in which an empty row is -infinity."""
    return np.where(np.isnan(values), -np.inf, values)


_SIDE_COUNTS = {
    "nan": "nan",
    "positive_infinity": "positive_infinity",
    "negative_infinity": "negative_infinity",
    "subnormal": "subnormal",
    "clamped": "clamped",
}
_READER_NAMES = {
    "nan_values": "nan",
    "pos_inf_values": "positive_infinity",
    "neg_inf_values": "negative_infinity",
    "clamped_values": "clamped",
}


#: Every name that counts of a run may have.
HEALTH_NAMES = tuple(dict.fromkeys((*_TEXTS, *(_READER_NAMES.get(name, name) for name in COUNTS))))


def run_health(run: Run, side: Mapping[str, Floats] | None = None) -> RunHealth:
    """Counts of one run.

    Args:
        run: the run.
        side: `verify.metrics.side.SIDE_FIELDS` of its full rows, ``[rows]``, NaN where it has none; or None.
    """
    recording = run.manifest.capture
    counts: dict[str, int] = {}
    for sequence in run.sequences:
        for name, n in sequence_counts(sequence, recording).items():
            name = _READER_NAMES.get(name, name)
            counts[name] = max(counts.get(name, 0), n) if name in WIDTHS else counts.get(name, 0) + n
    if side is not None:
        for name, field in _SIDE_COUNTS.items():
            counts[name] = counts.get(name, 0) + int(np.nansum(side[field]))
        with np.errstate(invalid="ignore"):
            if recording.value_kind in LOGPROBS and not _processed_logits(recording, side["lse"]):
                counts["sum_above_one"] = counts.get("sum_above_one", 0) + int((side["lse"] > 1e-3).sum())
                counts["positive_logprobs"] = counts.get("positive_logprobs", 0) + int(
                    (side["top"] > 0).sum()
                )
            if recording.greedy:
                below = int((side["chosen_rank"] > 0).sum())
                counts["chosen_not_best"] = counts.get("chosen_not_best", 0) + below
    counts = {name: n for name, n in counts.items() if n}
    findings = [
        Finding(name, severity, f"{counts[name]} {_of(counts[name], text)}", (run.name,), counts[name])
        for name, (severity, text) in _TEXTS.items()
        if name in counts
    ]
    if recording.lse_base is None and any(s.top is not None and s.top.lse is not None for s in run.sequences):
        findings.append(Finding("lse_base", "note", "the base of the log-sum-exp is not told", (run.name,)))
    findings += _outputs(run)
    rows = sum(s.rows for s in run.sequences)
    return RunHealth(run.name, len(run.sequences), rows, counts, tuple(findings))


def _processed_logits(recording: Recording, lse: Floats) -> bool:
    """Whether processed rows are logits, as of Hugging Face's scores: their probabilities do not sum to 1."""
    known = lse[np.isfinite(lse)]
    return recording.value_kind == "processed" and bool(known.size) and float(np.median(known)) > 0.1


def _outputs(run: Run) -> list[Finding]:
    """Layers whose stored output is not that of their stored q, k and v: the worst is told; or how near the output is."""
    layers = [layer for s in run.sequences if s.repeat == 0 for layer in s.attention][:LAYERS]
    checked = [(layer, found) for layer in layers if (found := check_out(layer)) is not None]
    wrong = [x for x in checked if not x[1].computed_from_them]
    if not checked:
        return []
    layer, worst = max(wrong or checked, key=lambda x: x[1].distance / x[1].possible)
    others = len(wrong) - 1
    more = f"; {plural(others, 'more layer')} likewise" if others > 0 else ""
    severity: Severity = "warning" if wrong else "note"
    return [Finding("attention_output", severity, worst.text(layer) + more, (run.name,), len(wrong) or None)]


def find_permutation(a: Floats, b: Floats) -> Permutation | None:
    """Whether the rows of ``b`` are those of ``a`` in another order.

    Args:
        a: ``[rows, columns]``, finite; a sample of the columns will do.
        b: the same of the other run.

    Returns:
        None where the order is the same, or where another order is not much closer: each row's match must be its own
        (nine in ten distinct), and the typical distance at most a tenth of that in the given order.
    """
    n = len(a)
    if n < 2:
        return None
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * a @ b.T
    match = squares.argmin(axis=1)
    own = np.sqrt(((a - b) ** 2).sum(axis=1))
    found = np.sqrt(((a - b[match]) ** 2).sum(axis=1))
    match = np.where(own <= found, np.arange(n), match)
    moved = match != np.arange(n)
    if moved.sum() < 2 or len(np.unique(match)) < 0.9 * n:
        return None
    if np.median(found[moved]) >= np.median(own[moved]) / 10:
        return None
    steps = match - np.arange(n)
    values, counts = np.unique(steps, return_counts=True)
    common = int(values[counts.argmax()])
    shift = common if counts.max() >= 0.9 * n and common != 0 else None
    return Permutation(tuple(int(m) for m in match), shift)


def correlations(fields: Mapping[str, Floats]) -> tuple[Floats, Floats, Floats]:
    """Of each row: Pearson correlation, cosine, and slope of b over a; from `VALUE_FIELDS`. NaN where undefined."""
    n = fields["n"]
    dot = (fields["a_squares"] + fields["b_squares"] - fields["sum_squares"]) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = dot / np.sqrt(fields["a_squares"] * fields["b_squares"])
        covariance = dot - fields["a_sum"] * fields["b_sum"] / n
        va = fields["a_squares"] - fields["a_sum"] ** 2 / n
        vb = fields["b_squares"] - fields["b_sum"] ** 2 / n
        tiny = 1e-12
        flat = (va <= tiny * fields["a_squares"]) | (vb <= tiny * fields["b_squares"])
        pearson = np.where(flat, np.nan, covariance / np.sqrt(va * vb))
        slope = np.where(flat, np.nan, covariance / va)
    return pearson, cosine, slope


def diagnose_rows(fields: Mapping[str, Floats], first: int) -> tuple[Finding | None, NDArray[np.bool_]]:
    """Whether full rows of a pair differ grossly.

    Args:
        fields: `VALUE_FIELDS`, ``[rows]``, NaN where not compared.
        first: index of the first compared row.

    Returns:
        A finding with code "gross" (its cause is still to be found), "scale" or "offset", or None; and which rows are off.
    """
    pearson, cosine, slope = correlations(fields)
    known = ~np.isnan(pearson)
    with np.errstate(invalid="ignore"):
        gross = known & ((pearson < GROSS) | (cosine < GROSS))
        if known.any():
            parallel = float((pearson[known] > PARALLEL).mean())
            typical = float(np.median(slope[known]))
            even = float(np.median(np.abs(slope[known] - typical))) < 0.1 * abs(typical - 1)
            wide = int(known.sum()) >= 4 and float(np.median(fields["n"][known])) >= 64
            if parallel > 0.9 and abs(typical - 1) > 0.02 and even and wide:
                text = f"the values of the second run are {typical:.4g} times those of the first: {scale_cause(typical)}"
                return Finding("scale", "error", f"not numerics: {text}", count=int(known.sum())), gross
        n = fields["n"]
        shift = fields["sum"] / n
        rest = np.sqrt(np.maximum(0.0, fields["sum_squares"] / n - shift**2))
        moved = known & (np.abs(shift) > 1) & (rest < 0.01 * np.abs(shift))
    if known.any() and moved.sum() > 0.9 * known.sum():
        text = f"every row is shifted as a whole (typically {float(np.median(shift[moved])):.4g}): "
        text += "one run may hold logits, the other log-probabilities"
        return Finding("offset", "warning", text, count=int(moved.sum())), gross
    if not gross.any():
        return None, gross
    share = float(gross.sum()) / max(1, int(known.sum()))
    if share < 0.5 and not (first >= 0 and gross[first]):
        n = int(gross.sum())
        text = f"{plural(n, 'row')} {'is' if n == 1 else 'are'} off (correlation below {GROSS}), though most agree"
        return Finding("gross_rows", "warning", text, count=int(gross.sum())), gross
    of = f"{int(gross.sum())} of {plural(int(known.sum()), 'row')}"
    text = f"not numerics: {of} with a correlation or cosine below {GROSS}"
    return Finding("gross", "error", text, count=int(gross.sum())), gross


def lse_cause(a: Floats, b: Floats) -> Finding | None:
    """Log-sum-exps to another base, or of other rows, where lists of likely tokens were recorded with them.

    Args:
        a: ``[rows]`` of the first run; NaN or infinite where it has none.
        b: of the second.
    """
    use = np.isfinite(a) & np.isfinite(b)
    a, b = a[use], b[use]
    spread = float(np.std(a)) if a.size else 0.0
    if a.size < 4 or spread == 0 or float(np.abs(a - b).max()) < 0.01 * spread:
        return None
    for factor, which in ((1 / LN2, "second"), (LN2, "first")):
        if np.allclose(a * factor, b, rtol=0.005, atol=0.01 * spread):
            text = f"not numerics: the log-sum-exp of the {which} run is to base 2"
            return Finding("scale", "error", text, count=int(a.size))
    if np.allclose(np.sort(a), np.sort(b), rtol=0, atol=0.01 * spread):
        moved = int((np.abs(a - b) > 0.01 * spread).sum())
        text = f"not numerics: log-sum-exps are permuted: {moved} of {a.size} stand at another row"
        return Finding("permuted", "error", text, count=moved)
    return None


def slice_cause(fields: Mapping[str, Floats]) -> Finding | None:
    """Gross differences of rows of few columns, which say little one by one: all of their values together.

    Args:
        fields: `VALUE_FIELDS`, ``[rows]``, NaN where not compared.
    """
    names = ("n", "a_sum", "b_sum", "a_squares", "b_squares", "sum_squares")
    whole = {name: np.array([np.nansum(fields[name])]) for name in names}
    n = float(whole["n"][0])
    if n < 16:
        return None
    pearson, apart = float(correlations(whole)[0][0]), float(np.sqrt(whole["sum_squares"][0] / n))
    spread = float(np.sqrt(max(0.0, whole["a_squares"][0] / n - (whole["a_sum"][0] / n) ** 2)))
    if not (pearson < GROSS and apart > max(0.5 * spread, ROUNDING)):
        return None
    text = f"not numerics: values correlate by {pearson:.3f} only: check weights, template and prompt"
    return Finding("gross", "error", text, count=int(n))


def scale_cause(factor: float) -> str:
    """What a constant factor between the values of two runs points to."""
    for value, cause in ((LN2, "ln 2"), (1 / LN2, "1 / ln 2")):
        if abs(factor / value - 1) < 0.005:
            return f"that is {cause}, so one is to base 2"
    return "another temperature or scale"


def gross_cause(
    a: Run, b: Run, rows: tuple[Floats, Floats], whole: tuple[Floats, Floats] | None, gross_first: bool
) -> tuple[str, str]:
    """The likely cause of gross differences: (code, sentence).

    Args:
        a: first run.
        b: second run.
        rows: ``[rows, columns]`` a sample of columns of the same rows of both.
        whole: one row of each that is off, all columns; or None.
        gross_first: whether the first compared row is off.
    """
    permutation = find_permutation(*rows)
    if permutation is not None:
        if permutation.shift is not None:
            return (
                "permuted",
                f"rows are shifted by {permutation.shift}: row i of one is row i{permutation.shift:+d} of the other",
            )
        moved = sum(i != m for i, m in enumerate(permutation.match))
        return "permuted", f"rows are permuted: {moved} of {len(permutation.match)} stand at another place"
    if whole is not None:
        x, y = np.sort(whole[0]), np.sort(whole[1])
        spread = float(np.std(x))
        if spread > 0 and float(np.sqrt(np.mean((x - y) ** 2))) < 0.02 * spread:
            return (
                "vocabulary",
                "the same values stand in other columns: another vocabulary or order of tokens",
            )
    ma, mb = a.manifest, b.manifest
    if ma.tokenizer_sha256 and mb.tokenizer_sha256 and ma.tokenizer_sha256 != mb.tokenizer_sha256:
        return "vocabulary", "the tokenizers differ"
    if ma.model and mb.model and ma.model != mb.model:
        return "weights", f"the models differ: {ma.model} and {mb.model}"
    if ma.model_sha256 and mb.model_sha256 and ma.model_sha256 != mb.model_sha256:
        return "weights", "the models' hashes differ"
    if ma.vocab_size and mb.vocab_size and ma.vocab_size != mb.vocab_size:
        return "vocabulary", f"vocabularies have {ma.vocab_size} and {mb.vocab_size} tokens"
    if gross_first:
        return (
            "weights",
            "off from the first position on: check weights (a missing shard), then template and prompt",
        )
    return (
        "text",
        "the first positions agree: check the text (template, truncation) and state between positions",
    )


def chosen_cause(a: Floats, b: Floats, logs: bool) -> Finding | None:
    """Gross differences where one value a row was recorded.

    A constant factor or another order of the values is named; else only a correlation below `GROSS` together with
    differences above half the spread of the values counts, and not below what rounding makes anyhow: values of tokens
    that are nearly certain scatter less than that.

    Args:
        a: ``[rows]`` values of the first run, finite.
        b: of the second.
        logs: whether they are log-probabilities, which have no factor.
    """
    if a.size < 8:
        return None
    x, y = a - a.mean(), b - b.mean()
    va, vb = float(x @ x), float(y @ y)
    if va == 0 or vb == 0:
        return None
    pearson = float(x @ y) / np.sqrt(va * vb)
    spread = float(np.sqrt(va / a.size))
    if pearson > PARALLEL:
        factor = float(a @ b) / float(a @ a)
        if logs and abs(factor - 1) > 0.02:
            text = f"not numerics: log-probabilities are {factor:.4g} times those of the first run: {scale_cause(factor)}"
            return Finding("scale", "error", text, count=int(a.size))
        return None
    apart = float(np.sqrt(np.mean((a - b) ** 2)))
    least = ROUNDING if logs else ROUNDING * float(np.sqrt(np.mean(a * a))) / TYPICAL
    if pearson < GROSS and apart > max(0.5 * spread, least):
        if np.allclose(np.sort(a), np.sort(b), rtol=0, atol=0.02 * spread):
            return Finding(
                "permuted", "error", "not numerics: the same values in another order: rows are permuted"
            )
        text = f"not numerics: values correlate by {pearson:.3f} only: check weights, template and prompt"
        return Finding("gross", "error", text, count=int(a.size))
    return None
