"""A divergence report as one self-contained HTML page: a pure function of the contract that loads nothing from outside.

The page stays below `LIMIT` bytes whatever the report holds: tables are cut, and cut further where names are long; the JSON
beside it has everything. Escaping and the content security policy are those of `reports.html`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

from reports.figures import Figure, proportional
from reports.html import plotly_js, policy, script_json
from reports.plane import legend_marker
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.runs import contract as c
from reports.runs import figures, text, views
from reports.runs import measured as m
from reports.runs.marks import Group, RunMarks, brief, groups, marks, view
from reports.runs.plane import draw
from reports.runs.wording import capital, cut, foreign, not_numerics, plain, repeat_text, split
from reports.templating import asset, environment

LIMIT = 6_000_000
#: Rows of a table, then those that are shown before it is unfolded. The next lines are tried where a page is too large.
_ROWS = (1000, 300, 100, 30, 8, 2)
FIRST = 12
#: Whole groups of runs that have a view in space; parts of a region that have a plane.
SPACES, PLANES = 3, 24
_TEXT = 300


@dataclass(frozen=True)
class Placed:
    """A region with its drawings; ``figure`` is the id of its view in space."""

    region: c.Region
    groups: tuple[Group, ...]
    marks: RunMarks
    plane: Markup
    figure: str
    proportional: bool

    @staticmethod
    def marker(symbol: str) -> Markup:
        """A marker for the legend."""
        return legend_marker(symbol)


def render(report: c.DivergenceReport) -> str:
    """The page of ``report``, under 6 MB, of which 4.8 MB are plotly.js where it has a figure."""
    drawn: dict[str, Figure] = {}
    context = _context(report, drawn)
    page = ""
    for rows in _ROWS:
        page = _page(context, drawn, rows)
        if len(page.encode()) < LIMIT:
            break
    return page


def _page(context: Mapping[str, Any], drawn: Mapping[str, Figure], rows: int) -> str:
    plotly, script = (plotly_js() if drawn else ""), asset("page.js")
    return (
        _environment()
        .get_template("runs.html.j2")
        .render(
            **context,
            rows=rows,
            most=min(rows, 300),
            first=min(FIRST, rows),
            figures={name: script_json(figure) for name, figure in drawn.items()},
            css=Markup(asset("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            policy=policy(*([plotly] if drawn else []), script),
        )
    )


def _context(report: c.DivergenceReport, drawn: dict[str, Figure]) -> dict[str, Any]:
    shown = views.focus(report)
    runs = {one.name: one for one in report.coordinates}
    pairs = views.ordered(report)
    compared = [p for p in pairs if p.coverage.rows and not foreign(p)]
    return {
        "report": report,
        "notes": [{"kind": n.kind, "text": cut(n.text)} for n in report.notes],
        "tiles": views.tiles(report),
        "health": {h.run: h for h in report.health},
        "run_findings": [(h.run, f) for h in report.health for f in h.findings],
        "equals": views.equals(report),
        "repeats": [(group.run, r) for group in report.repeats for r in group.conversations],
        "pairs": pairs,
        "compared": compared,
        "pair_findings": [(p, f) for p in pairs if not foreign(p) for f in p.findings],
        "focus": shown,
        "heats": list(_matrices(report, drawn)),
        "distributions": _distributions(shown, drawn),
        "decided": [p for p in compared if p.decisions.n],
        "forked": [p for p in compared if p.texts.forked],
        "depth": _depth(shown, drawn),
        "ranges": _ranges(shown),
        "attention": [p for p in pairs if p.attention],
        "places": _places(report, runs, drawn),
        "parts_of_report": [g for g in report.geometry if g.subset != "all"],
        "small": _small(report, runs),
        "proofs": SectionView.of(report.proofs),
        **_decisions(shown, drawn),
    }


def _matrices(report: c.DivergenceReport, drawn: dict[str, Figure]) -> Any:
    """Each matrix of more than one pair: a table, a heat map, or distances to the one run that all were compared with."""
    for i, matrix in enumerate(report.matrices):
        if len(matrix.names) < 3:
            continue
        if len(matrix.names) <= views.TABLE:
            yield {"kind": "table", "heat": views.heat(report, matrix), "matrix": matrix}
            continue
        name = f"fig-matrix-{i}"
        single = views.reference_values(matrix)
        if single is not None:
            drawn[name] = figures.ladder(single[1])
            zero = sum(v == 0 for _, v in single[1])
            found = {"reference": single[0], "known": len(single[1]), "zero": zero}
            yield {"kind": "ladder", "figure": name, "matrix": matrix, **found}
        else:
            drawn[name] = figures.heatmap(matrix)
            yield {"kind": "map", "figure": name, "matrix": matrix}


def _distributions(shown: Sequence[figures.Focus], drawn: dict[str, Figure]) -> dict[str, Any]:
    valued = [one for one in shown if views.quantiles_of(one.pair)]
    if any(v for one in valued for _, v in views.quantiles_of(one.pair)):
        drawn["fig-quantiles"] = figures.quantiles(valued, views.quantiles_of)
    counted = [one for one in shown if one.pair.values is not None and one.pair.values.ulp is not None]
    if counted:
        drawn["fig-ulp"] = figures.ulps(counted)
    spread = [one for one in shown if views.kl_of(one.pair) is not None]
    bound = any(one.pair.distribution is None for one in spread)
    if any((s := views.kl_of(one.pair)) and figures.positive(s.maximum) for one in spread):
        title = "KL divergence, nats" + (", lower bounds" if bound else "")
        drawn["fig-kl"] = figures.spreads(spread, views.kl_of, title)
    return {
        "values": valued,
        "ulps": counted,
        "spreads": [one for one in shown if views.distributions_of(one.pair)],
        "likelihood": [one for one in shown if one.pair.likelihood is not None and one.pair.likelihood.n],
    }


def _decisions(shown: Sequence[figures.Focus], drawn: dict[str, Figure]) -> dict[str, Any]:
    flipping = [
        one for one in shown if one.pair.decisions.flips and any(b.flips for b in one.pair.decisions.margins)
    ]
    if flipping:
        drawn["fig-margins"] = figures.margins(flipping)
    parting = [one for one in shown if len(one.pair.texts.prefix_cdf) > 1]
    if parting:
        drawn["fig-prefixes"] = figures.prefixes(parting)
    return {"flipping": flipping, "parting": parting}


def _depth(shown: Sequence[figures.Focus], drawn: dict[str, Figure]) -> dict[str, Any] | None:
    metric = views.depth_metric([one.pair for one in shown])
    if not metric:
        return None
    title = views.DEPTH[metric]
    stratum = views.stratum_of([one.pair for one in shown], metric)
    found: dict[str, list[figures.Curve]] = {"fig-depth": list(views.curves(shown, metric, None))}
    if stratum is not None:
        found["fig-depth-like"] = list(views.curves(shown, metric, stratum))
    found["fig-position"] = list(views.curves(shown, metric, None, "position"))
    for name, curves in found.items():
        if curves:
            axis = "position, tokens" if name == "fig-position" else "depth, tokens"
            drawn[name] = figures.depth(curves, axis, title)
    if not any(found.values()):
        return None
    return {
        "metric": metric,
        "title": title,
        "curves": found["fig-depth"],
        "stratum": None if stratum is None else views.stratum_text(stratum),
        "like": found.get("fig-depth-like", []),
        "positions": found["fig-position"],
    }


def _ranges(shown: Sequence[figures.Focus]) -> dict[str, Any] | None:
    some = [one for one in shown if len(one.pair.ranges or ()) > 1]
    if not some:
        return None
    names = list(dict.fromkeys(b.name for one in some for b in one.pair.ranges or ()))
    metric = next(
        (n for n in views.DEPTH if any(n in b.metrics for one in some for b in one.pair.ranges or ())), ""
    )
    table = {one.number: {b.name: b for b in one.pair.ranges or ()} for one in some}
    first = {n: next((table[one.number][n] for one in some if n in table[one.number]), None) for n in names}
    return {
        "names": names,
        "focus": some,
        "table": table,
        "first": first,
        "metric": metric,
        "title": views.DEPTH.get(metric, ""),
    }


def _places(
    report: c.DivergenceReport, runs: Mapping[str, c.Coordinate], drawn: dict[str, Figure]
) -> list[Placed]:
    """The whole groups of runs, the largest first."""
    out: list[Placed] = []
    whole = sorted((g for g in report.geometry if g.subset == "all"), key=lambda g: -len(g.points))
    for i, region in enumerate(whole):
        placed = _placed(region, runs, "")
        if i < SPACES and len(region.points) > 3:
            name = f"fig-region-{i}"
            drawn[name] = figures.region(region, placed.groups, placed.marks)
            placed = _placed(region, runs, name)
        out.append(placed)
    return out


def _placed(region: c.Region, runs: Mapping[str, c.Coordinate], figure: str) -> Placed:
    own = marks(region.points, runs)
    families = tuple(groups(region))
    return Placed(
        region=region,
        groups=families,
        marks=own,
        plane=draw(region, families, own),
        figure=figure,
        proportional=proportional(view(region, region.title)),
    )


def _small(report: c.DivergenceReport, runs: Mapping[str, c.Coordinate]) -> list[Placed]:
    """Planes of parts: every n-th where there are many, so that shallow and deep are both seen."""
    parts = [g for g in report.geometry if g.subset != "all"]
    step = -(-len(parts) // PLANES) if parts else 1
    return [_placed(g, runs, "") for g in parts[::step]]


def _named(name: object, most: int = 44) -> Markup:
    """A name, shortened where it is long; the whole one as a hint."""
    whole = plain(str(name))
    short = brief(whole, most)
    if short == whole:
        return escape(short)
    return Markup('<span title="{}">{}</span>').format(whole[:_TEXT], short)


def clip(value: object, most: int = _TEXT) -> str:
    """Any text, cut."""
    said = plain(str(value))
    return said if len(said) <= most else said[: most - 1] + "…"


def real(x: m.Real | None) -> str:
    """A number, or a dash."""
    return "–" if x is None else text.real(x)


def clean(value: Any) -> Any:
    """Text of a report without characters that turn the direction of writing; markup is left as it is."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _headline(said: str) -> tuple[str, list[str]]:
    """A long headline as its first statement and the others."""
    parts = said.rstrip(".").split("; ")
    if len(said) <= 120 or len(parts) < 2:
        return said, []
    return parts[0] + ".", [capital(part) + "." for part in parts[1:]]


@cache
def _environment() -> jinja2.Environment:
    filters: dict[str, Callable[..., Any]] = {
        **PROOF_FILTERS,
        "real": real,
        "estimate": text.estimate,
        "exact": text.exact,
        "centre": text.centre_text,
        "where": text.where,
        "repeat": repeat_text,
        "split": split,
        "name": _named,
        "brief": brief,
        "clip": clip,
        "headline": _headline,
        "steps": views.steps,
        "values_of": views.values_of,
        "quantiles_of": views.quantiles_of,
        "quantile_name": figures.quantile_name,
        "distributions_of": views.distributions_of,
        "percentile": views.percentile,
        "swatch": figures.swatch,
        "reach": text.reach,
        "share_reach": text.share_reach,
        "margin_name": figures.margin_name,
        "ranked": views.ranked,
        "corner": views.corner,
        "foreign": foreign,
        "not_numerics": not_numerics,
    }
    return environment(html=True, filters=filters, finalize=clean)
