"""What the page of a divergence report shows: which pairs, which rows, which cells; a function of the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log

from reports.formatting import percent, short
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.figures import Curve, Focus, finite, positive
from reports.runs.marks import short_labels
from reports.runs.text import real
from reports.runs.wording import equality, far, foreign, not_numerics

#: Pairs that figures show: the farthest, and of the others the closest.
FARTHEST, CLOSEST = 5, 2
#: Coordinates up to which a matrix is a table, and up to which that table stands open.
TABLE, OPEN = 32, 12
#: What a depth curve shows, the first that is there.
DEPTH = {
    "abs_logprob": "mean |Δ ln p|, nats",
    "mean_abs": "mean |Δ|",
    "max_abs": "mean over rows of the largest |Δ|",
}
BY = {"nll": "whose token costs", "margin": "with a margin of"}


@dataclass(frozen=True)
class Tile:
    """One key figure of the verdict; ``tone`` "", "good", "warn" or "bad"."""

    value: str
    label: str
    tone: str = ""


def tiles(report: c.DivergenceReport) -> list[Tile]:
    """The key figures."""
    found = [p for p in report.pairs if p.coverage.rows and not foreign(p)]
    out = [Tile(f"{len(report.coordinates):,}", "run" if len(report.coordinates) == 1 else "runs")]
    if found:
        same = sum(p.identical for p in found)
        out.append(Tile(f"{same:,} of {len(found):,}", "pairs without a difference", "good" if same else ""))
        near = [p for p in found if not not_numerics(p)]
        known = [float(p.max_abs) for p in near if p.max_abs is not None]
        if known:
            out.append(Tile(real(max(known)), "largest difference of a value"))
        rates = [p.decisions.flips / p.decisions.n for p in near if p.decisions.n]
        if rates:
            tone = "warn" if max(rates) else "good"
            out.append(Tile(percent(max(rates)), "best tokens changed, at most", tone))
    off = len(report.verdict.not_numerics)
    if off:
        out.append(Tile(f"{off:,}", "pair not numerics" if off == 1 else "pairs not numerics", "bad"))
    repeats = [r for group in report.repeats for r in group.conversations]
    if repeats:
        equal = sum(r.finding == "identical" for r in repeats)
        tone = "good" if equal == len(repeats) else "warn"
        out.append(Tile(f"{equal:,} of {len(repeats):,}", "repeated requests give the same bytes", tone))
    return out if len(out) > 1 else []


def ordered(report: c.DivergenceReport) -> list[c.Pair]:
    """Pairs, farthest first; those of different models last."""
    return sorted(report.pairs, key=lambda p: (foreign(p), -far(p)))


def focus(report: c.DivergenceReport) -> tuple[Focus, ...]:
    """The pairs that figures show: farthest and closest of those that differ by rounding, each as two runs only once."""
    found = [p for p in ordered(report) if p.coverage.rows and not p.identical and not not_numerics(p)]
    # Of runs that are equal, one stands for all.
    same = {name: k.runs[0] for k in report.identity for name in k.runs}
    once: dict[frozenset[str], c.Pair] = {}
    for p in found:
        once.setdefault(frozenset((same.get(p.first, p.first), same.get(p.second, p.second))), p)
    kept = list(once.values())
    shown = kept if len(kept) <= FARTHEST + CLOSEST else [*kept[:FARTHEST], *kept[-CLOSEST:]]
    return tuple(Focus(i, p) for i, p in enumerate(shown))


@dataclass(frozen=True)
class HeatCell:
    """One cell: its text, a second line, heat 0 to 1, and "self", "same", "none", "off" or ""."""

    text: str
    under: str
    heat: float
    kind: str


@dataclass(frozen=True)
class Heat:
    """A matrix as a table, or where it is too large as a figure."""

    metric: str
    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[HeatCell, ...], ...]
    open: bool


def heat(report: c.DivergenceReport, matrix: c.Matrix) -> Heat:
    """A matrix of at most `TABLE` names as cells."""
    pairs = {frozenset((p.first, p.second)): p for p in report.pairs}
    # What is not numerics would leave no heat for the others.
    near = [
        v
        for i, row in enumerate(matrix.values)
        for j, x in enumerate(row)
        if (v := positive(x)) is not None
        and ((p := pairs.get(frozenset((matrix.names[i], matrix.names[j])))) is None or not not_numerics(p))
    ]
    low, high = (min(near), max(near)) if near else (1.0, 1.0)

    def shade(x: m.Real) -> float:
        v = positive(x)
        if v is None:
            return 1.0 if not isfinite(float(x)) else 0.06
        return 0.3 if low == high else min(1.0, max(0.06, 0.06 + 0.94 * log(v / low) / log(high / low)))

    def cell(i: int, j: int) -> HeatCell:
        x = matrix.values[i][j]
        if i == j:
            return HeatCell("·", "", 0.0, "self")
        pair = pairs.get(frozenset((matrix.names[i], matrix.names[j])))
        if x is None:
            return HeatCell("–", "", 0.0, "none")
        if pair is not None and pair.identical:
            word = next(
                (k.exactness for k in report.identity if {pair.first, pair.second} <= set(k.runs)), ""
            )
            return HeatCell(
                "0",
                {"bits": "identical", "values": "equal", "printed digits": "as printed"}.get(word, ""),
                0,
                "same",
            )
        if pair is not None and not_numerics(pair):
            return HeatCell(real(x), "other model" if foreign(pair) else "not numerics", 0.0, "off")
        return HeatCell(real(x), "", shade(x), "")

    # Runs that have no such distance at all would only be dashes.
    n = [i for i, row in enumerate(matrix.values) if sum(x is not None for x in row) > 1]
    return Heat(
        metric=matrix.metric,
        title=matrix.title,
        names=tuple(matrix.names[i] for i in n),
        rows=tuple(tuple(cell(i, j) for j in n) for i in n),
        open=len(n) <= OPEN,
    )


def reference_values(matrix: c.Matrix) -> tuple[str, list[tuple[str, float]]] | None:
    """Where a matrix is one row, as each run was compared with one only: that run and the distances of the others."""
    known = [sum(v is not None for v in row) for row in matrix.values]
    n = len(known)
    best = max(range(n), key=lambda i: known[i], default=0)
    if n <= TABLE or sum(known) - n > 4 * max(known):
        return None
    values = [
        (matrix.names[j], v)
        for j in range(n)
        if j != best and (v := finite(matrix.values[best][j])) is not None
    ]
    return matrix.names[best], values


def values_of(pair: c.Pair) -> m.Values | m.Lists | None:
    """The values that were compared: full rows, else lists, else the tokens that followed."""
    return pair.values or pair.lists or pair.chosen


def quantiles_of(pair: c.Pair) -> list[tuple[float, m.Real | None]]:
    """Quantiles of |d| with the maximum at 1."""
    part = values_of(pair)
    return [] if part is None else [*part.quantiles, (1.0, part.max_abs)]


def kl_of(pair: c.Pair) -> m.Spread | None:
    """KL divergence by rows; of lists its lower bound."""
    if pair.distribution is not None:
        return pair.distribution.kl
    return None if pair.lists is None else pair.lists.kl_low


def distributions_of(pair: c.Pair) -> list[tuple[str, m.Spread]]:
    """The distances of distributions that a pair has, with their names."""
    d, one = pair.distribution, pair.lists
    if d is not None:
        return [
            ("KL(first ‖ second), nats", d.kl),
            ("KL(second ‖ first), nats", d.kl_reverse),
            ("Jensen–Shannon, nats", d.js),
            ("total variation", d.tv),
        ]
    if one is not None:
        return [
            ("KL at least, nats", one.kl_low),
            ("Jensen–Shannon at least, nats", one.js_low),
            ("Jensen–Shannon at most, nats", one.js_high),
            ("total variation at least", one.tv_low),
            ("total variation at most", one.tv_high),
        ]
    return []


def percentile(spread: m.Spread, q: float) -> m.Real | None:
    """A percentile of a spread, if it is there."""
    return next((v for k, v in spread.percentiles if k == q), None)


def depth_metric(pairs: Sequence[c.Pair]) -> str:
    """The metric of depth curves: the first of `DEPTH` that some pair has."""
    names = {n for p in pairs for b in (p.depth or ()) for n in b.metrics}
    return next((n for n in DEPTH if n in names), "")


Stratified = tuple[str, float, float | None]


def stratum_of(pairs: Sequence[c.Pair], metric: str) -> Stratified | None:
    """The stratum that covers the most depths: what stays alike in it does not depend on the text."""
    found: Counter[Stratified] = Counter()
    for p in pairs:
        for b in p.depth or ():
            found.update((s.by, s.low, s.high) for s in b.strata if _n(s.metrics, metric) > 1)
    usual: Stratified = ("nll", 0.1, 1.0)
    most = max(found.values(), default=0)
    if found[usual] >= 0.8 * most > 0:
        return usual
    return max(found, key=lambda k: (found[k], k[0] == "nll"), default=None)


def stratum_text(stratum: Stratified) -> str:
    """``rows whose token costs 0.1 to 1 nats``."""
    by, low, high = stratum
    unit = " nats" if by == "nll" else ""
    reach = f"{short(low)} or more" if high is None else f"{short(low)} to {short(high)}"
    return f"rows {BY.get(by, by)} {reach}{unit}"


def _n(metrics: dict[str, m.Cell], metric: str) -> int:
    return metrics[metric].n if metric in metrics else 0


def curves(
    shown: Sequence[Focus], metric: str, stratum: Stratified | None, field: str = "depth"
) -> Iterator[Curve]:
    """The depth curve of each pair, of all rows or of one stratum; bins without rows are left out."""
    for one in shown:
        bins: Sequence[m.Bin] = getattr(one.pair, field) or ()
        cells: list[tuple[str, m.Cell]] = []
        for b in bins:
            metrics = b.metrics
            if stratum is not None:
                metrics = next((s.metrics for s in b.strata if (s.by, s.low, s.high) == stratum), {})
            if _n(metrics, metric):
                cells.append((b.name, metrics[metric]))
        if len(cells) > 1:
            yield Curve(
                one,
                tuple(n for n, _ in cells),
                tuple(finite(x.mean) for _, x in cells),
                tuple(finite(x.error) for _, x in cells),
                tuple(finite(x.maximum) for _, x in cells),
                tuple(x.n for _, x in cells),
            )


@dataclass(frozen=True)
class Equal:
    """Runs without a difference, and what that is said of."""

    word: str
    kind: str
    names: tuple[str, ...]
    rows: int
    partial: bool


def equals(report: c.DivergenceReport) -> list[Equal]:
    """The classes of more than one run, the largest first."""
    found = [
        Equal(equality(k), k.exactness, k.runs, k.rows, k.partial) for k in report.identity if len(k.runs) > 1
    ]
    return sorted(found, key=lambda k: -len(k.names))


@dataclass(frozen=True)
class Step:
    """A stretch of equal repeats: its letter, its length, its share of all and its class."""

    letter: str
    n: int
    share: float
    number: int


def steps(level: m.Level) -> list[Step]:
    """The order of repeats as stretches, at most 60."""
    out: list[Step] = []
    total = len(level.classes) or 1
    words = level.pattern.split(" ")
    at = 0
    for word in words:
        n = int(word.rsplit("*", 1)[1]) if "*" in word and word.rsplit("*", 1)[1].isdigit() else 1
        number = level.classes[at] if at < len(level.classes) else 0
        out.append(Step(word.split("*", 1)[0], n, n / total, number))
        at += n
    return out[:60]


def labels(region: c.Region) -> dict[str, str]:
    """What tables beside the drawings of a region call its runs: without the words that all names share."""
    names = [name for point in region.points for name in point]
    return dict(zip(names, short_labels(names, 40), strict=True))


def corner(region: c.Region, point: int, most: int = 3) -> str:
    """A point by the labels of its runs; of many the first ones."""
    called = labels(region)
    names = region.points[point]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " = ".join(called[n] for n in names[:most]) + more


def ranked(region: c.Region, centre: c.Centre) -> list[tuple[int, str, float, bool, str]]:
    """A centre's ranking: place, who, distance, whether a tie, chance to be first."""
    out: list[tuple[int, str, float, bool, str]] = []
    place = 1
    for one in centre.ranking:
        chance = ""
        if centre.chances is not None:
            chance = " / ".join(percent(centre.chances[p][0]) for p in one.points if p < len(centre.chances))
        names = "; ".join(corner(region, p) for p in one.points)
        out.append((place, names, one.distance, len(one.points) > 1, chance))
        place += len(one.points)
    return out
