"""Plotly figures as plain data. Colours are names such as "@c0" or "@ink"; the page resolves them.

Text that comes from specs or files is escaped here, because plotly reads a small HTML dialect in labels.
"""

from __future__ import annotations

from typing import Any

from markupsafe import escape

from reports.contract import CampaignGroup, Depth, GeometryView, Histogram, Splits, TrafficView
from reports.palette import Marks, Palette

Figure = dict[str, Any]

_MARKS = {"centroid": "centroid", "medoid": "medoid", "ball": "centre of the smallest enclosing ball"}


def escaped(text: str) -> str:
    """Text that plotly shows as it is."""
    return str(escape(text))


def plain_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis in the colours of the page."""
    return {
        "title": {"text": title},
        "gridcolor": "@grid",
        "zerolinecolor": "@grid",
        "automargin": True,
        **more,
    }


def plain_layout(height: int, **more: Any) -> dict[str, Any]:
    """A layout in the colours of the page, ``height`` in pixels."""
    return {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "@font", "size": 12.5, "color": "@ink2"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@ink3", "activecolor": "@ink"},
        "hoverlabel": {
            "bgcolor": "@surface",
            "bordercolor": "@line",
            "font": {"color": "@ink", "size": 12.5},
        },
        **more,
    }


def histogram(data: Histogram, palette: Palette) -> Figure:
    """Grouped bars: how many outputs lie at each ULP distance."""
    traces = [
        {
            "type": "bar",
            "name": escaped(s.name),
            "x": list(data.buckets),
            "y": list(s.counts),
            "marker": {
                "color": f"@c{palette.colour(s.name)}",
                "pattern": {
                    "shape": _PATTERNS[palette.symbol(s.name)],
                    "fillmode": "overlay",
                    "fgcolor": "@surface",
                    "fgopacity": 0.75,
                    "size": 6,
                    "solidity": 0.3,
                },
            },
            "hovertemplate": f"{escaped(s.name)}<br>%{{x}} ULP: %{{y}} outputs<extra></extra>",
        }
        for s in data.series
    ]
    layout = plain_layout(
        340,
        barmode="group",
        bargap=0.24,
        bargroupgap=0.04,
        xaxis=plain_axis(f"distance in {escaped(data.format)} ULP", type="category"),
        yaxis=plain_axis("outputs"),
    )
    return {"data": traces, "layout": layout}


_PATTERNS = {"circle": "", "square": "/", "diamond": "x", "cross": "|", "x": "."}


def point_label(names: tuple[str, ...]) -> str:
    """The label of a collapsed point: its first name, and how many more there are."""
    more = len(names) - 1
    return f"{names[0]} +{more}" if more else names[0]


def depth(data: Depth) -> Figure:
    """Share of changed outputs and the largest distance against the position, one line per pair of cells."""
    traces: list[dict[str, Any]] = []
    for i, series in enumerate(data.series):
        name = escaped(f"{series.left} / {series.right}")
        for axis, values, shown in (
            ("", [p.changed * 100 for p in series.points], True),
            ("2", [p.ulp_max or None for p in series.points], False),
        ):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": shown,
                    "x": [p.position for p in series.points],
                    "y": values,
                    "xaxis": "x",
                    "yaxis": f"y{axis}",
                    "line": {
                        "color": f"@c{i % 8}",
                        "width": 1.6,
                        "dash": ("solid", "dot", "dash")[i // 8 % 3],
                    },
                    "marker": {"size": 5, "color": f"@c{i % 8}"},
                    "customdata": [
                        [escaped(p.range), p.n, p.ulp_max, p.ulp_p99, p.flips] for p in series.points
                    ],
                    "hovertemplate": f"{name}<br>%{{customdata[0]}}, token %{{x}}: %{{y:.3g}}"
                    "<br>1 position × %{customdata[1]} outputs: 99% within %{customdata[3]} ULP, "
                    "maximum %{customdata[2]}, %{customdata[4]} of other sign<extra></extra>",
                }
            )
    layout = plain_layout(
        520,
        xaxis=plain_axis("KV length (tokens)", anchor="y2"),
        yaxis=plain_axis("changed outputs, %", domain=[0.56, 1.0], rangemode="tozero"),
        yaxis2=plain_axis(
            f"largest distance, {escaped(data.format)} ULP",
            domain=[0.0, 0.44],
            type="log",
            dtick=1,
            exponentformat="none",
        ),
    )
    return {"data": traces, "layout": layout}


def splits(data: Splits) -> Figure:
    """Mean error against the exact answer by split count, with its 95% interval."""
    x = [p.splits for p in data.points]
    mean = [p.mean for p in data.points]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "mean error",
        "x": x,
        "y": mean,
        "line": {"color": "@c0", "width": 1.8},
        "marker": {"size": 6, "color": "@c0"},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [p.high - p.mean for p in data.points],
            "arrayminus": [p.mean - p.low for p in data.points],
            "color": "@c0",
            "thickness": 1.2,
            "width": 3,
        },
        "customdata": [[p.worst, 100 * p.best_share] for p in data.points],
        "hovertemplate": "%{x} splits: mean %{y:.4g} ULP<br>worst %{customdata[0]:.4g}, "
        "best on %{customdata[1]:.1f}% of the inputs<extra></extra>",
    }
    layout = plain_layout(
        320,
        showlegend=False,
        xaxis=plain_axis("splits", type="log", tickvals=x, ticktext=[str(v) for v in x]),
        yaxis=plain_axis("mean |error|, f32 ULP", rangemode="tozero"),
    )
    return {"data": [trace], "layout": layout}


def traffic(data: TrafficView) -> Figure:
    """Dense against tiled bytes by sequence length, on logarithmic axes."""
    rows = (("dense", "@c1", [r.dense for r in data.rows]), ("tiled", "@c0", [r.tiled for r in data.rows]))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [r.tokens for r in data.rows],
            "y": [v / 1e6 for v in values],
            "line": {"color": colour, "width": 2},
            "marker": {"size": 7, "color": colour},
            "hovertemplate": f"{name}, %{{x}} tokens: %{{y:,.2f}} MB<extra></extra>",
        }
        for name, colour, values in rows
    ]
    ticks = [r.tokens for r in data.rows]
    layout = plain_layout(
        320,
        xaxis=plain_axis("tokens", type="log", tickvals=ticks, ticktext=[f"{t:,}" for t in ticks]),
        yaxis=plain_axis("logical accesses, MB", type="log", exponentformat="none", dtick=1),
    )
    return {"data": traces, "layout": layout}


def region(data: GeometryView, palette: Marks) -> Figure:
    """The rotatable 3-D region: the hull, one triangle per platform, links between platforms, the centres."""
    xyz = data.coordinates
    traces: list[dict[str, Any]] = []
    if data.hull:
        traces.append(
            {
                "type": "mesh3d",
                **{a: [point[axis] for point in xyz] for axis, a in enumerate("xyz")},
                **{a: [face[corner] for face in data.hull] for corner, a in enumerate("ijk")},
                "color": "@hull",
                "opacity": 0.14,
                "flatshading": True,
                "hoverinfo": "skip",
                "name": "region",
            }
        )
    links: list[list[float | None]] = [[], [], []]
    for a, b in data.links:
        for axis in range(3):
            links[axis] += [xyz[a][axis], xyz[b][axis], None]
    if data.links:
        traces.append(line_3d(links, "same backend", "@ink3", "dot", 2.5))
    for n, t in enumerate(data.triangles):
        loop = (*t.corners, t.corners[0])
        path = [[xyz[c][axis] for c in loop] for axis in range(3)]
        traces.append(line_3d(path, escaped(t.platform), f"@p{n % 3}", "solid", 5, group=escaped(t.platform)))
    for index, names in enumerate(data.points):
        x, y, z = xyz[index]
        label = escaped(point_label(names))
        traces.append(
            {
                "type": "scatter3d",
                "mode": "markers",
                **{"x": [x], "y": [y], "z": [z]},
                "marker": {
                    "size": 6,
                    "color": f"@c{palette.colour(names[0])}",
                    "symbol": palette.symbol(names[0]),
                    "line": {"color": "@surface", "width": 1},
                },
                "hovertemplate": "<br>".join(escaped(n) for n in names) + "<extra></extra>",
                "name": label,
            }
        )
    for centre, symbol in zip(data.centres, ("cross", "x", "diamond-open"), strict=False):
        x, y, z = centre.at
        name = _MARKS[centre.kind]
        traces.append(
            {
                "type": "scatter3d",
                "mode": "markers",
                **{"x": [x], "y": [y], "z": [z]},
                "marker": {"size": 5, "color": "@ink", "symbol": symbol},
                "name": name,
                "hovertemplate": f"{name}<extra></extra>",
            }
        )
    axis = {
        "title": {"text": ""},
        "gridcolor": "@grid",
        "zerolinecolor": "@grid",
        "showbackground": False,
        "tickfont": {"size": 10, "color": "@ink3"},
        "showspikes": False,
        "nticks": 5,
    }
    scene = {
        **{f"{a}axis": axis for a in "xyz"},
        "aspectmode": "data" if proportional(data) else "cube",
        "camera": {"eye": {"x": 1.25, "y": -1.35, "z": 0.85}},
    }
    layout = plain_layout(430, scene=scene, showlegend=False, margin={"l": 0, "r": 0, "t": 0, "b": 0})
    return {"data": traces, "layout": layout}


def proportional(data: GeometryView) -> bool:
    """Whether the points are thick enough in every direction to be drawn at one scale."""
    extents = [max(c) - min(c) for c in zip(*data.coordinates, strict=True)]
    return min(extents) > 0.12 * max(extents)


def line_3d(
    path: list[list[float | None]] | list[list[float]],
    name: str,
    colour: str,
    dash: str,
    width: float,
    group: str = "",
) -> dict[str, Any]:
    """A line in space; ``group``: what the page can pick it by."""
    return {
        "type": "scatter3d",
        "mode": "lines",
        **dict(zip("xyz", path, strict=True)),
        "line": {"color": colour, "width": width, "dash": dash},
        "name": name,
        "hoverinfo": "skip",
        **({"meta": group} if group else {}),
    }


def campaign(group: CampaignGroup) -> Figure:
    """Best ULP by seed for each method, medians as bars, the bound as a line."""
    names = [escaped(m.method) for m in group.methods]
    x = [names[i] for i, m in enumerate(group.methods) for _ in m.points]
    y = [value for m in group.methods for _, value in m.points]
    seeds = [seed for m in group.methods for seed, _ in m.points]
    bars: dict[str, Any] = {
        "type": "bar",
        "name": "median",
        "x": names,
        "y": [m.median for m in group.methods],
        "width": 0.5,
        "marker": {"color": "@c0", "opacity": 0.35},
        "hovertemplate": "%{x}<br>median %{y:.4g} ULP<extra></extra>",
    }
    dots: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": "one seed",
        "x": x,
        "y": y,
        "customdata": seeds,
        "marker": {"color": "@c0", "size": 8, "line": {"color": "@surface", "width": 1}},
        "hovertemplate": "%{x}, seed %{customdata}<br>%{y:.4g} ULP<extra></extra>",
    }
    traces = [bars, dots]
    if group.bound_ulp is not None:
        kind = escaped(group.rigor or "bound")
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"bound ({kind})",
                "x": names,
                "y": [group.bound_ulp] * len(names),
                "line": {"color": "@c1", "width": 2, "dash": "dash"},
                "hovertemplate": "bound %{y:.4g} ULP<extra></extra>",
            }
        )
    layout = plain_layout(
        300, xaxis=plain_axis("", type="category"), yaxis=plain_axis("real ULP", rangemode="tozero")
    )
    return {"data": traces, "layout": layout}
