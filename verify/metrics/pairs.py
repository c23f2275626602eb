"""One pair of runs, whole: everything that a report says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verify.metrics.align import RunAlignment
from verify.metrics.attention import TensorDistance, compare_attention
from verify.metrics.bootstrap import DRAWS, SEED, Interval, by_group, interval
from verify.metrics.decisions import Decisions, Divergence, decide, diverge
from verify.metrics.depth import Bin, by_depth, by_name
from verify.metrics.health import Finding
from verify.metrics.identity import FirstDifference, first_difference, of_scores, slack_between, unlike_rows
from verify.metrics.likelihood import Likelihood, likelihood
from verify.metrics.pair_findings import pair_findings
from verify.metrics.plan import FullRows, Pair, Slot, ceiling_of
from verify.metrics.quantiles import RadixHistogram
from verify.metrics.side import Scratch
from verify.metrics.summaries import (
    DistributionSummary,
    TopSummary,
    ValueSummary,
    distribution_summary,
    top_summary,
    value_summary,
)
from verify.metrics.table import Table, make_table
from verify.metrics.topk import unequal
from verify.metrics.values import FLOOR, VALUE_FIELDS, Part, ValueState, add_values, clamps_apart, impossible
from verify.runs.run import Run
from verify.runs.sequence import Sequence as Recorded

Floats = NDArray[np.float64]
Kind = Literal["full", "top", "chosen", "none"]


@dataclass(frozen=True)
class Coverage:
    """What of two runs was compared.

    Attributes:
        conversations: with rows that were compared; ``rows`` how many.
        after_fork: common rows that are not comparable, as the texts parted before.
        refused: (conversation, reason) of those never compared.
        only_first, only_second: conversations that one run has.
        unmatched_repeats: repeats without a partner.
        alone: positions, in common conversations, that one run has.
        unverified: conversations compared though the text before is not known to be the same.
        by_text: conversations whose tokens are known by text only: collisions are possible.
        same_capture: why the two are one capture, or None.
        columns: columns compared of full rows, and of how many in each run; None without.
    """

    conversations: int
    rows: int
    after_fork: int
    refused: tuple[tuple[str, str], ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    unmatched_repeats: tuple[int, int]
    alone: tuple[int, int]
    unverified: int
    by_text: int
    same_capture: str | None
    columns: tuple[int, int, int] | None


@dataclass(frozen=True)
class ConversationSums:
    """Sums of metrics over each conversation, for resampling: ``metrics[name]`` is (numerators, denominators)."""

    names: tuple[str, ...]
    metrics: dict[str, tuple[Floats, Floats]]


@dataclass(frozen=True)
class PairComparison:
    """Two runs. ``kind`` is the most that was compared: full rows, lists of likely tokens, or one value a row.

    ``values`` are of full rows, ``chosen`` of one value a row (that of the token that followed, or an example's score) on
    rows that are not full, ``lists`` of lists of likely tokens; ``intervals`` by metric;
    ``position``: the same as ``depth`` by position in the text, where that is another number, else empty;
    ``equal_in``: the conversations in which nothing differs, where it does in others;
    ``identical`` is True where rows were compared and nothing differs; ``whole`` where all rows of both were compared.
    """

    first: str
    second: str
    kind: Kind
    coverage: Coverage
    identical: bool
    whole: bool
    equal_in: tuple[str, ...]
    first_difference: FirstDifference | None
    values: ValueSummary | None
    chosen: ValueSummary | None
    distribution: DistributionSummary | None
    lists: TopSummary | None
    likelihood: Likelihood | None
    decisions: Decisions
    divergence: Divergence
    intervals: dict[str, Interval]
    depth: tuple[Bin, ...]
    position: tuple[Bin, ...]
    ranges: tuple[Bin, ...]
    attention: tuple[tuple[str, TensorDistance], ...]
    findings: tuple[Finding, ...]
    sums: ConversationSums = field(metadata={"json": False})


def compare_pair(
    runs: tuple[Run, Run],
    pair: Pair,
    alignment: RunAlignment,
    full: FullRows,
    groups: Sequence[dict[Slot, Recorded]],
    *,
    floor: float = FLOOR,
    draws: int = DRAWS,
    seed: int = SEED,
) -> PairComparison:
    """Everything of one pair, after the passes over its full rows."""
    table = make_table(runs, pair, alignment, full, groups)
    at = table.full[table.full >= 0]
    rows = full.pairs.get(pair)
    fields = {name: v[at] for name, v in rows.fields.items()} if rows is not None and at.size else None
    kind = _kind(table, fields)
    values: ValueSummary | None = None
    distribution: DistributionSummary | None = None
    if fields is not None and rows is not None:
        values = value_summary(rows.state, fields, _dtypes(groups, pair), _exactness(rows.state))
        if not np.isnan(fields["tv"]).all() or np.isnan(fields["n"]).all():
            quantised = sum(any(s.counts.get("quantised_values") for s in run.sequences) for run in runs)
            distribution = distribution_summary(fields, rows.lost[at], quantised)
    chosen = chosen_values(runs, table, floor)
    lists = top_summary(table.lists) if table.lists is not None else None
    same = table.same_token != 0
    logs = table.logprob_a[same], table.logprob_b[same]
    ratio = likelihood(*logs) if (np.isfinite(logs[0]) & np.isfinite(logs[1])).any() else None
    decisions = decide(
        table.best_a,
        table.best_b,
        table.margin_a,
        table.margin_b,
        distance=_distance(values, lists),
        ranks=table.ranks,
        tied=table.tied,
    )
    metrics = row_metrics(table, fields)
    sums = ConversationSums(
        table.names, {k: _ratio(x, w, table) for k, (x, w) in metrics.items() if np.isfinite(x).any()}
    )
    intervals = {k: interval(*v, table.names, draws=draws, seed=seed) for k, v in sums.metrics.items()}
    with np.errstate(invalid="ignore", divide="ignore"):  # a row may have no finite element
        shown = {k: x / w if w is not None else x for k, (x, w) in metrics.items() if np.isfinite(x).any()}
    strata = {"nll": -table.logprob_a, "margin": table.margin_a}
    coverage = _coverage(runs, pair, alignment, full, table)
    slack = slack_between(runs)
    different = first_difference(runs, pair, alignment, full, groups, table)
    attention = _attention(pair, alignment, groups)
    whole = _whole(coverage, alignment) and _same_lengths(table)
    equal = _equal_in(table, unlike_rows(pair, full, table, scores=of_scores(runs), slack=slack), attention)
    identical = table.rows > 0 and different is None and _lists_equal(table, slack) and not _unlike(attention)
    identical = identical and (values is None or values.identical)
    return PairComparison(
        first=runs[0].name,
        second=runs[1].name,
        kind=kind,
        coverage=coverage,
        identical=identical,
        whole=whole,
        equal_in=() if identical else equal,
        first_difference=different,
        values=values,
        chosen=chosen,
        distribution=distribution,
        lists=lists,
        likelihood=ratio,
        decisions=decisions,
        divergence=diverge(alignment.sequences),
        intervals=intervals,
        depth=() if of_scores(runs) else by_depth(table.depths, table.groups, shown, strata),
        position=by_depth(table.positions, table.groups, shown, strata)
        if (table.positions != table.depths).any() and not of_scores(runs)
        else (),
        ranges=by_name(table.ranges, table.groups, shown, strata),
        attention=attention,
        findings=pair_findings(runs, pair, alignment, full, groups, table, fields, distribution),
        sums=sums,
    )


def _kind(table: Table, fields: Mapping[str, Floats] | None) -> Kind:
    if fields is not None:
        return "full"
    if table.lists is not None:
        return "top"
    return "chosen" if (np.isfinite(table.value_a) & np.isfinite(table.value_b)).any() else "none"


def _exactness(state: ValueState) -> str:
    return "printed digits" if state.decimals is not None else "bits" if state.width else "values"


def _dtypes(groups: Sequence[Mapping[Slot, Recorded]], pair: Pair) -> tuple[str, str]:
    found = [next((str(s.full.dtype) for s in groups[i].values() if s.full is not None), "") for i in pair]
    return found[0], found[1]


def chosen_values(runs: tuple[Run, Run], table: Table, floor: float) -> ValueSummary | None:
    """Distances of one value a row: that of the token that followed, or an example's score.

    The stored dtype is not known (values are carried in float64), so that exactness is that of values.
    """
    captures = [run.manifest.capture for run in runs]
    scores = of_scores(runs)
    use = (table.full < 0) & (scores | (table.same_token != 0))
    if not scores:
        use &= ~((np.isnan(table.value_a) ^ np.isnan(table.value_b)) & (table.same_token == -1))
    a, b = table.value_a[use], table.value_b[use]
    places = [c.decimals for c in captures if c.decimals is not None]
    state = ValueState(
        RadixHistogram(np.float64, a.size + 1), 0, floor, min(places) if places else None, slack_between(runs)
    )
    out = {name: np.zeros(1) for name in VALUE_FIELDS}
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    low = np.zeros(a.size, bool)
    for value, capture in ((a, captures[0]), (b, captures[1])):
        if capture.clamp_floor is not None:
            low |= (value <= capture.clamp_floor) & np.isfinite(value)
    infinite = (np.isinf(a) | np.isinf(b)) & ~low & ~nan_a & ~nan_b
    out["nan_both"] += np.count_nonzero(nan_a & nan_b)
    out["nan_mismatch"] += np.count_nonzero(nan_a ^ nan_b)
    out["inf_both"] += np.count_nonzero(infinite & (a == b))
    out["inf_mismatch"] += np.count_nonzero(infinite & (a != b))
    out["clamped"] += np.count_nonzero(low & ~nan_a & ~nan_b)
    floors = captures[0].clamp_floor, captures[1].clamp_floor
    out["clamp_mismatch"] += np.count_nonzero(clamps_apart(a, b, floors))
    high = impossible(a, b, (ceiling_of(captures[0]), ceiling_of(captures[1])))
    high &= ~(nan_a | nan_b | infinite | low)
    out["impossible"] += np.count_nonzero(high)
    out["impossible_mismatch"] += np.count_nonzero(high & (a != b))
    keep = ~(nan_a | nan_b | infinite | low | high)
    if not (np.isfinite(a) & np.isfinite(b)).any():
        return None
    x, y = np.ascontiguousarray(a[keep])[None], np.ascontiguousarray(b[keep])[None]
    if x.size:
        add_values(state, Part(x, y, np.abs(x), np.abs(y), None), out, Scratch())
        for letter, value in (("a", x), ("b", y)):
            out[f"{letter}_sum"] += value.sum()
            out[f"{letter}_squares"] += np.square(value).sum()
    summary = value_summary(state, out, ("float64", "float64"), "printed digits" if places else "values")
    return replace(summary, rows=int(keep.sum()))


def _distance(values: ValueSummary | None, lists: TopSummary | None) -> float | None:
    """What differences explain of a margin: twice the 99.9% quantile of |d|, as both values of a margin move."""
    quantiles = values.quantiles if values is not None else lists.quantiles if lists is not None else ()
    found = [v for q, v in quantiles if q == 0.999]
    return 2 * found[0] if found and found[0] is not None else None


def row_metrics(table: Table, fields: Mapping[str, Floats] | None) -> dict[str, tuple[Floats, Floats | None]]:
    """Metrics of each row that add over rows: (numerator, denominator), the latter None for 1."""
    found: dict[str, tuple[Floats, Floats | None]] = {}
    with np.errstate(invalid="ignore", over="ignore"):  # infinities
        d = np.where(table.same_token != 0, table.logprob_b - table.logprob_a, np.nan)
        found["abs_logprob"] = np.abs(d), None
        found["ln_ratio"] = -d, None
        found["delta_p"] = np.exp(d + table.logprob_a) - np.exp(table.logprob_a), None
    known = (table.best_a[:, 0] >= 0) & (table.best_b[:, 0] >= 0)
    found["flip"] = (
        np.where(known, (table.best_a[:, 0] != table.best_b[:, 0]).astype(np.float64), np.nan),
        None,
    )
    if fields is not None:
        whole = table.full >= 0

        def spread_out(name: str) -> Floats:
            out = np.full(table.rows, np.nan)
            out[whole] = fields[name]
            return out

        n = spread_out("n")
        for name, source in (
            ("mean_abs", "sum_abs"),
            ("mean_square", "sum_squares"),
            ("different", "different"),
        ):
            found[name] = spread_out(source), n
        found["max_abs"] = spread_out("max_abs"), None
        for name in ("kl", "kl_reverse", "js", "tv", "chi2"):
            found[name] = spread_out(name), None
    if table.lists is not None:
        for name in ("kl_low", "tv_low", "tv_high", "max_abs"):
            out = np.full(table.rows, np.nan)
            out[table.list_rows] = table.lists.fields[name]
            found.setdefault(name, (out, None))
    elif fields is None:
        with np.errstate(invalid="ignore", over="ignore"):
            value = np.where((table.same_token != 0) & ~table.odd, table.value_b - table.value_a, np.nan)
        found["max_abs"] = np.abs(value), None
    return found


def _ratio(x: Floats, weights: Floats | None, table: Table) -> tuple[Floats, Floats]:
    """Sums over conversations of a metric and of what it is divided by."""
    numerator, count = by_group(x, table.groups, len(table.names))
    if weights is None:
        return numerator, count
    return numerator, by_group(np.where(np.isfinite(x), weights, np.nan), table.groups, len(table.names))[0]


def _coverage(
    runs: tuple[Run, Run], pair: Pair, alignment: RunAlignment, full: FullRows, table: Table
) -> Coverage:
    compared = [s for s in alignment.sequences if s.refused is None and s.comparable.any()]
    widths = [max((s.full.vocab for s in run.sequences if s.full is not None), default=0) for run in runs]
    return Coverage(
        conversations=len(table.names),
        rows=table.rows,
        after_fork=sum(s.after_fork for s in alignment.sequences if s.refused is None),
        refused=alignment.refused,
        only_first=alignment.only_first,
        only_second=alignment.only_second,
        unmatched_repeats=alignment.unmatched_repeats,
        alone=(sum(s.alone[0] for s in alignment.sequences), sum(s.alone[1] for s in alignment.sequences)),
        unverified=sum(not s.verified for s in compared),
        by_text=sum(s.by == "texts" for s in compared),
        same_capture=alignment.same_capture,
        columns=(full.vocab[pair], widths[0], widths[1]) if pair in full.vocab else None,
    )


def _whole(coverage: Coverage, alignment: RunAlignment) -> bool:
    """Whether all rows of both runs were compared."""
    c = coverage
    missing = (
        c.after_fork or c.refused or c.only_first or c.only_second or any(c.unmatched_repeats) or any(c.alone)
    )
    return not missing and bool(alignment.sequences)


def _lists_equal(table: Table, slack: float) -> bool:
    """Whether lists of likely tokens hold the same tokens with the same values."""
    if table.lists is None:
        return True
    apart = unequal(table.lists.fields, slack) if table.lists.fields["shared"].size else np.zeros(0, bool)
    return not apart.any() and not (np.abs(table.lists.differences) > slack).any()


def _same_lengths(table: Table) -> bool:
    """Whether lists of likely tokens, if there are any, are of equal lengths."""
    f = None if table.lists is None else table.lists.fields
    return f is None or bool((f["listed_a"] == f["listed_b"]).all())


def _attention(
    pair: Pair, alignment: RunAlignment, groups: Sequence[Mapping[Slot, Recorded]]
) -> tuple[tuple[str, TensorDistance], ...]:
    found: list[tuple[str, TensorDistance]] = []
    for s in alignment.sequences:
        if s.refused is None:
            a, b = (groups[p][s.conversation, s.ordinal] for p in pair)
            use = s.comparable
            found += [(s.conversation, t) for t in compare_attention(a, b, s.rows_a[use], s.rows_b[use])]
    return tuple(found)


def _equal_in(
    table: Table, unlike: NDArray[np.bool_], attention: tuple[tuple[str, TensorDistance], ...]
) -> tuple[str, ...]:
    """Conversations with compared rows in which nothing differs: no row is ``unlike``, and no tensor."""
    off = {table.names[i] for i in np.unique(table.groups[unlike])}
    off |= {name for name, tensor in attention if _unlike(((name, tensor),))}
    return tuple(name for name in table.names if name not in off)


def _unlike(attention: tuple[tuple[str, TensorDistance], ...]) -> bool:
    """Whether any tensor differs."""
    return any(
        bool(t.max_abs)
        or t.nan_mismatch > 0
        or t.inf_mismatch > 0
        or (t.finding is not None and t.finding.code == "shape")
        for _, t in attention
    )


__all__ = ["ConversationSums", "Coverage", "PairComparison", "chosen_values", "compare_pair", "row_metrics"]
