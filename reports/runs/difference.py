"""What changed between two reports of runs, and what of it is worse.

Runs are matched by name, pairs by the names of both. Numbers that agree to twelve digits are the same: the order of a sum
may change with the version of a library. Worse is, and nothing else: a pair that was without a difference and has one, is
not numerics now, or is not compared any more; a number of a pair that grew (differences, divergences, flips, forks,
conversations refused); repeats that agreed and do not, or give more different results; more errors and warnings on a run; a
policy condition that held and does not; a prediction that explains less. A run that was added or is gone, other files, and
who is closest to a centre are changes, neither better nor worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isclose
from typing import Any, Literal

from reports.contract_base import Frozen
from reports.formatting import count, percent
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.numbers import NUMBERS
from reports.runs.text import where
from reports.runs.wording import not_numerics
from verify.words import plural

SCHEMA_ID = "ulpscope.divergence-diff/1"
Part = Literal[
    "runs", "identity", "pairs", "repeats", "health", "geometry", "policy", "prediction", "settings"
]
Tone = Literal["worse", "better", "changed"]
#: Numbers of a pair that are compared, each worse the larger it is.
LARGER_IS_WORSE = (
    "max_abs",
    "rms",
    "mean_abs",
    "p99",
    "max_ulp",
    "different",
    "kl_mean",
    "kl_max",
    "js_mean",
    "tv_mean",
    "logprob_mean",
    "top1_flips",
    "real_flips",
    "forks",
    "refused",
)
#: Those of them that are shares, and those that depend on which run of the two comes first.
SHARES, DIRECTED = ("different", "top1_flips", "real_flips", "forks"), ("kl_mean", "kl_max")
CLOSE = 1e-12
_RANK = {"bit-exact": 2, "direction and size": 1, "unexplained": 0}


class Change(Frozen):
    """One thing that changed. ``who`` names it; ``what`` is its number or property; ``old`` and ``new`` as text."""

    part: Part
    tone: Tone
    who: str
    what: str
    old: str
    new: str


class Side(Frozen):
    """One of the two reports."""

    place: str
    headline: str
    started: str
    runs: int
    pairs: int


class Difference(Frozen):
    """What changed from an old report to a new one; ``worse`` and ``better`` count the changes that are."""

    schema_id: Literal["ulpscope.divergence-diff/1"] = SCHEMA_ID
    verdict: str
    old: Side
    new: Side
    worse: int
    better: int
    changes: tuple[Change, ...]


def compare_reports(
    a: c.DivergenceReport, b: c.DivergenceReport, *, old: str = "old", new: str = "new"
) -> Difference:
    """What changed from ``a`` to ``b``, which lie at ``old`` and ``new``."""
    changes = [
        *_settings(a, b),
        *_runs(a, b),
        *_pairs(a, b),
        *_repeats(a, b),
        *_health(a, b),
        *_geometry(a, b),
        *_policy(a, b),
        *_prediction(a, b),
    ]
    order = {"worse": 0, "changed": 1, "better": 2}
    changes.sort(key=lambda x: order[x.tone])
    worse, better = (sum(x.tone == tone for x in changes) for tone in ("worse", "better"))
    return Difference(
        verdict=_verdict(a, b, changes, worse, better),
        old=_side(a, old),
        new=_side(b, new),
        worse=worse,
        better=better,
        changes=tuple(changes),
    )


def _side(report: c.DivergenceReport, place: str) -> Side:
    return Side(
        place=place,
        headline=report.verdict.headline,
        started=report.provenance.started,
        runs=len(report.coordinates),
        pairs=len(report.pairs),
    )


def _verdict(
    a: c.DivergenceReport, b: c.DivergenceReport, changes: list[Change], worse: int, better: int
) -> str:
    if not {r.name for r in a.coordinates} & {r.name for r in b.coordinates}:
        return "The reports have no run in common, by name: nothing can be compared."
    if not changes:
        return "Nothing changed."
    broken = [x for x in changes if x.part == "identity" and x.tone == "worse"]
    said = f"{plural(worse, 'change')} for the worse" if worse else "Nothing got worse"
    if len(broken) == 1:
        said += f", among them {broken[0].who}: {broken[0].new}"
    elif broken:
        said += f", among them {plural(len(broken), 'pair')} that stopped being without a difference"
    rest = len(changes) - worse - better
    return f"{said}; {count(better)} for the better, {plural(rest, 'other change')}."


def _settings(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    """Other settings and versions: numbers may differ for them alone."""
    pairs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        (a.provenance.settings, b.provenance.settings),
        (a.provenance.versions, b.provenance.versions),
    )
    for old, new in pairs:
        for name in dict.fromkeys((*old, *new)):
            if old.get(name) != new.get(name):
                yield _changed("settings", name, "", _said(old.get(name)), _said(new.get(name)))


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _changed(part: Part, who: str, what: str, old: str, new: str) -> Change:
    return Change(part=part, tone="changed", who=who, what=what, old=old, new=new)


def _runs(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    old, new = ({r.name: r for r in report.coordinates} for report in (a, b))
    gone = {r.sha256: name for name, r in old.items() if name not in new}
    for name, run in old.items():
        if name not in new:
            yield _changed("runs", name, "run", run.label, "gone")
        elif run.sha256 != new[name].sha256:
            yield _changed(
                "runs", name, "files", f"sha256 {run.sha256[:12]}", f"sha256 {new[name].sha256[:12]}"
            )
        if name in new and run.rows != new[name].rows:
            yield _changed("runs", name, "rows", count(run.rows), count(new[name].rows))
    for name, run in new.items():
        if name not in old:
            same = gone.get(run.sha256)
            yield _changed(
                "runs", name, "run", "" if same is None else f"the files of {same}", f"new: {run.label}"
            )


def _key(p: c.Pair) -> frozenset[str]:
    return frozenset((p.first, p.second))


def _pairs(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    names = {r.name for r in b.coordinates}
    new = {_key(p): p for p in b.pairs}
    for p in a.pairs:
        q = new.get(_key(p))
        who = f"{p.first} and {p.second}"
        if p.coverage.rows and _key(p) <= names and (q is None or not q.coverage.rows):
            yield Change(
                part="pairs",
                tone="worse",
                who=who,
                what="rows",
                old=count(p.coverage.rows),
                new="not compared",
            )
        elif q is not None and not p.coverage.rows and q.coverage.rows:
            yield _changed("pairs", who, "rows", "not compared", count(q.coverage.rows))
        elif q is not None and p.coverage.rows:
            yield from _pair(p, q, who, _kind(a, p), _kind(b, q))


def _kind(report: c.DivergenceReport, pair: c.Pair) -> str:
    """In which sense a pair has no difference."""
    word = next((k.exactness for k in report.identity if _key(pair) <= set(k.runs)), "bits")
    return {"bits": "bit-identical", "values": "equal in every recorded value"}.get(word, "equal as printed")


def _pair(p: c.Pair, q: c.Pair, who: str, before: str, after: str) -> Iterator[Change]:
    def change(part: Part, tone: Tone, what: str, old: str, new: str) -> Change:
        return Change(part=part, tone=tone, who=who, what=what, old=old, new=new)

    if p.identical and not q.identical:
        yield change("identity", "worse", "equality", before, f"not {before} any more")
    elif q.identical and not p.identical:
        yield change("identity", "better", "equality", "different", after)
    elif p.identical and before != after:
        yield change("identity", "changed", "equality", before, after)
    if not_numerics(p) != not_numerics(q):
        yield change("pairs", "worse" if not_numerics(q) else "better", "kind", *_numerics(p), *_numerics(q))
    if p.coverage.rows != q.coverage.rows:
        yield change("pairs", "changed", "rows", count(p.coverage.rows), count(q.coverage.rows))
    turned = p.first != q.first
    for name in LARGER_IS_WORSE:
        if turned and name in DIRECTED:
            continue
        x, y = (NUMBERS[name][1](pair) for pair in (p, q))
        if (x is None and y is None) or (x is not None and y is not None and isclose(x, y, rel_tol=CLOSE)):
            continue
        tone: Tone = "changed" if x is None or y is None else "worse" if y > x else "better"
        yield change("pairs", tone, name, _number(name, x), _number(name, y))


def _numerics(pair: c.Pair) -> tuple[str]:
    return ("not numerics" if not_numerics(pair) else "numerics",)


def _number(name: str, x: float | None) -> str:
    if x is None:
        return "not measured"
    if name in SHARES:
        return percent(x)
    return count(int(x)) if name in ("refused", "max_ulp") else f"{x:.6g}"


def _repeats(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    old, new = (
        {(group.run, r.conversation): r for group in report.repeats for r in group.conversations}
        for report in (a, b)
    )
    for key, r in old.items():
        s = new.get(key)
        if s is None or (_pattern(r) == _pattern(s) and r.finding == s.finding):
            continue
        more = _distinct(s) - _distinct(r)
        tone: Tone = "worse" if more > 0 else "better" if more < 0 else "changed"
        if (r.finding == "identical") != (s.finding == "identical"):
            tone = "better" if s.finding == "identical" else "worse"
        yield Change(
            part="repeats",
            tone=tone,
            who=f"{key[0]}, {key[1]}",
            what="repeats",
            old=f"{r.finding} ({_pattern(r)})",
            new=f"{s.finding} ({_pattern(s)})",
        )


def _pattern(r: m.Repeated) -> str:
    level = r.level("values") or (r.levels[-1] if r.levels else None)
    return "" if level is None else level.pattern


def _distinct(r: m.Repeated) -> int:
    return max((level.modal.distinct for level in r.levels), default=0)


def _health(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    new = {h.run: h for h in b.health}
    for h in a.health:
        other = new.get(h.run)
        if other is None:
            continue
        for name in dict.fromkeys((*h.counts, *other.counts)):
            x, y = h.counts.get(name, 0), other.counts.get(name, 0)
            if x != y:
                yield _changed("health", h.run, name, count(x), count(y))
        for severity in ("error", "warning"):
            x, y = (sum(f.severity == severity for f in side.findings) for side in (h, other))
            if x != y:
                tone: Tone = "worse" if y > x else "better"
                yield Change(
                    part="health", tone=tone, who=h.run, what=f"{severity}s", old=count(x), new=count(y)
                )


def _geometry(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    """Who is closest to each centre, of regions of the same distance and part that have a run in common."""
    for g in a.geometry:
        mine = {name for names in g.points for name in names}

        def common(h: c.Region, mine: set[str] = mine) -> int:
            return len(mine & {name for names in h.points for name in names})

        same = [h for h in b.geometry if (h.metric, h.subset, h.name) == (g.metric, g.subset, g.name)]
        other = max(same, key=common, default=None)
        if other is None or not common(other):
            continue
        for x, y in zip(g.centres, other.centres, strict=False):
            old, new = (_first(region, centre) for region, centre in ((g, x), (other, y)))
            if old != new and x.kind == y.kind:
                place = "" if g.subset == "all" else f" ({where(g)})"
                yield _changed("geometry", f"closest to the {x.kind} by {g.title}{place}", "", old, new)


def _first(region: c.Region, centre: c.Centre) -> str:
    return "; ".join(" = ".join(region.points[p]) for p in centre.ranking[0].points)


def _policy(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    if a.policy is None or b.policy is None:
        if a.policy is not b.policy:
            yield _changed("policy", "policy", "", _policy_text(a.policy), _policy_text(b.policy))
        return
    if a.policy.sha256 != b.policy.sha256:
        old, new = (f"{p.file}, sha256 {p.sha256[:12]}" for p in (a.policy, b.policy))
        yield _changed("policy", "policy", "file", old, new)

    def key(x: c.PolicyCase) -> tuple[frozenset[str], str, str, str]:
        return frozenset((x.first, x.second)), x.matched, x.rule, x.condition

    new_cases = {key(x): x for x in b.policy.cases}
    for x in a.policy.cases:
        y = new_cases.get(key(x))
        if y is not None and x.outcome != y.outcome:
            tone: Tone = (
                "worse" if x.outcome == "passed" else "better" if y.outcome == "passed" else "changed"
            )
            who = " and ".join(n for n in (x.first, x.second) if n)
            yield Change(
                part="policy",
                tone=tone,
                who=who,
                what=x.condition,
                old=f"{x.outcome}: {x.text}",
                new=f"{y.outcome}: {y.text}",
            )


def _policy_text(policy: c.PolicyResult | None) -> str:
    return "none" if policy is None else policy.file


def _prediction(a: c.DivergenceReport, b: c.DivergenceReport) -> Iterator[Change]:
    if a.prediction is None or b.prediction is None:
        return
    by_run: Callable[[Any], dict[str, str]] = lambda p: {x.run: x.outcome for x in p.coordinates}  # noqa: E731
    by_pair: Callable[[Any], dict[str, str]] = lambda p: {  # noqa: E731
        f"{x.first} and {x.second}": x.outcome for x in p.differences
    }
    for of in (by_run, by_pair):
        old, new = of(a.prediction), of(b.prediction)
        for who, x in old.items():
            y = new.get(who, x)
            if x != y:
                tone: Tone = "worse" if _RANK.get(y, 0) < _RANK.get(x, 0) else "better"
                yield Change(part="prediction", tone=tone, who=who, what="prediction", old=x, new=y)
