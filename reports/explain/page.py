"""An explanation as one self-contained HTML page, and as Markdown: pure functions of the contract."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from reports.explain import contract as c
from reports.explain.build import figure, signed
from reports.explain.text import percent_signed
from reports.figures import Figure, escaped, plain_axis, plain_layout
from reports.html import plotly_js, policy, script_json
from reports.markdown import code, escape
from reports.templating import asset, environment


def render(found: c.Explanation) -> str:
    """The page; under 6 MB, of which 4.8 MB are plotly.js where it has a figure."""
    drawn: dict[str, Figure] = {}
    if found.attribution is not None:
        for i, element in enumerate(found.attribution.elements):
            drawn[f"fig-waterfall-{i}"] = waterfall(element, found.attribution)
    if found.ensemble is not None:
        drawn["fig-shares"] = shares(found.ensemble)
    if found.travel is not None and found.travel.first is not None:
        drawn["fig-travel"] = travel(found.travel)
    plotly, script = (plotly_js() if drawn else ""), asset("page.js")
    return (
        _environment(True)
        .get_template("explain.html.j2")
        .render(
            report=found,
            figures={name: script_json(figure) for name, figure in drawn.items()},
            css=Markup(asset("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            policy=policy(*([plotly] if drawn else []), script),
        )
    )


def render_markdown(found: c.Explanation) -> str:
    """The Markdown."""
    return _environment(False).get_template("explain.md.j2").render(report=found)


def waterfall(one: c.ElementInfo, found: c.AttributionInfo) -> Figure:
    """From 0 by each part to the distance before the last rounding, then by the final rounding to the stored distance."""
    names = [*(x.part for x in one.contributions), "before rounding", "final rounding", "stored"]
    values = [*(x.ulp for x in one.contributions), one.total, one.rounding, float(one.ulp)]
    measures = [*("relative" for _ in one.contributions), "total", "relative", "total"]
    trace: dict[str, Any] = {
        "type": "waterfall",
        "orientation": "v",
        "x": [escaped(name) for name in names],
        "y": values,
        "measure": measures,
        "text": [signed(value) for value in values],
        "textposition": "outside",
        "cliponaxis": False,
        "connector": {"line": {"color": "@line", "width": 1}},
        "increasing": {"marker": {"color": "@c0"}},
        "decreasing": {"marker": {"color": "@c1"}},
        "totals": {"marker": {"color": "@c7"}},
        "hovertemplate": "%{x}: %{y:.4f} ULP<extra></extra>",
    }
    layout = plain_layout(
        380,
        showlegend=False,
        xaxis=plain_axis("", type="category"),
        yaxis=plain_axis(f"{escaped(found.format)} ULP from the first side"),
    )
    return {"data": [trace], "layout": layout}


def travel(found: c.Travel) -> Figure:
    """The share of values that differ at each site, in the order of the dataflow."""
    shown = [s for s in found.stations if s.compared]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [escaped(s.name) for s in shown],
        "y": [100 * s.differing / s.compared for s in shown],
        "line": {"color": "@c0", "width": 1.6, "shape": "hv"},
        "marker": {"size": 7},
        "hovertemplate": "%{x}: %{y:.2f}% differ<extra></extra>",
    }
    layout = plain_layout(
        300,
        showlegend=False,
        xaxis=plain_axis("", type="category"),
        yaxis=plain_axis("values that differ, %", rangemode="tozero"),
    )
    return {"data": [trace], "layout": layout}


def shares(found: c.EnsembleInfo) -> Figure:
    """What each part explains of the outputs that change, with intervals."""
    every = [*found.shares, found.changed]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": [escaped(s.part or "all that differ") for s in every],
        "x": [100 * s.share for s in every],
        "marker": {"color": [*("@c0" for _ in found.shares), "@c7"]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [100 * max(0.0, s.high - s.share) for s in every],
            "arrayminus": [100 * max(0.0, s.share - s.low) for s in every],
            "color": "@ink2",
        },
        "hovertemplate": "%{y}: %{x:.2f}%<extra></extra>",
    }
    layout = plain_layout(
        120 + 36 * len(every),
        showlegend=False,
        xaxis=plain_axis("sampled outputs, %"),
        yaxis=plain_axis("", type="category", autorange="reversed"),
    )
    return {"data": [trace], "layout": layout}


def where(at: dict[str, int]) -> str:
    """``head 7, dim 30``."""
    return ", ".join(f"{axis} {i}" for axis, i in at.items())


@cache
def _environment(html: bool) -> jinja2.Environment:
    own = {"signed": figure, "part_of": percent_signed, "where": where, "sci": "{:.1e}".format}
    return environment(html=html, filters={**own, "md": escape, "code": code})
