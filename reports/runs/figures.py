"""Plotly figures of a divergence report, as plain data; what they show is aggregated already.

Pairs have a colour, a marker and a dash of their own, the same in all figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Any

from markupsafe import Markup

from reports import figures
from reports.figures import Figure, escaped, plain_axis, plain_layout
from reports.formatting import count, percent, short
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.marks import Group, RunMarks, brief, view
from reports.runs.wording import plain

_DASHES = ("solid", "dash", "dot", "dashdot")
_MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")
#: Cells along a side of a heat map; more coordinates are shown as blocks.
BLOCKS = 64


@dataclass(frozen=True)
class Focus:
    """A pair that figures show: its number among them and what it is called."""

    number: int
    pair: c.Pair

    @property
    def label(self) -> str:
        """Both names, shortened."""
        return f"{brief(self.pair.first, 34)} / {brief(self.pair.second, 34)}"


_SHAPES = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
    "M-3-3H3V3H-3z",
    "M0-4.4L4.4 0L0 4.4L-4.4 0z",
    "M-1.3-4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3z",
    "M-4-2.4L-2.4-4L0-1.6L2.4-4L4-2.4L1.6 0L4 2.4L2.4 4L0 1.6L-2.4 4L-4 2.4L-1.6 0z",
    "M0-4L4 3H-4z",
    "M0-4.6L1.2-1.4L4.6-1.4L1.9.7L2.8 4L0 2.1L-2.8 4L-1.9.7L-4.6-1.4L-1.2-1.4z",
    "M-2-3.5H2L4 0L2 3.5H-2L-4 0z",
)
_STROKES = ("", "6 3", "2 2", "6 2 2 2")


def swatch(number: int) -> Markup:
    """The line and the marker of a pair, for a legend."""
    dash = f' stroke-dasharray="{_STROKES[number % 4]}"' if number % 4 else ""
    return Markup(
        f'<svg class="swatch k{number % 8}" viewBox="0 -6 30 12" aria-hidden="true"><path class="line" d="M0 0H30"{dash}/>'
        f'<path transform="translate(15 0)" d="{_SHAPES[number % 8]}"/></svg>'
    )


def finite(x: m.Real | None) -> float | None:
    """A number that a figure can show."""
    return float(x) if x is not None and isfinite(float(x)) else None


def positive(x: m.Real | None) -> float | None:
    """A number that a logarithmic axis can show."""
    found = finite(x)
    return found if found is not None and found > 0 else None


def _series(
    one: Focus, x: Sequence[Any], y: Sequence[float | None], hover: str, **more: Any
) -> dict[str, Any]:
    colour = f"@c{one.number % 8}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(one.label),
        "legendgroup": str(one.number),
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 1.8, "dash": _DASHES[one.number % 4]},
        "marker": {"size": 7, "color": colour, "symbol": _MARKERS[one.number % 8]},
        "hovertemplate": f"{escaped(one.label)}<br>{hover}<extra></extra>",
        **more,
    }


def _log(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis whose ticks are read as they are: 1, 2, 5 within two decades, else powers of ten."""
    known = [v for v in values if v]
    low, high = (min(known), max(known)) if known else (0.1, 1.0)
    first, last = floor(log10(low)), ceil(log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    stride = max(1, -(-(last - first) // 7))
    ticks = [k * 10.0**e for e in range(first, last + 1, stride) for k in steps]
    return _wide(title, type="log", tickvals=ticks, ticktext=[_tick(t) for t in ticks])


def _tick(x: float) -> str:
    return f"{x:.0e}".replace("e-0", "e-").replace("e+0", "e") if not 1e-4 <= x < 1e5 else f"{x:g}"


def _wide(title: str, **more: Any) -> dict[str, Any]:
    """An axis whose title keeps clear of long tick labels."""
    return {**plain_axis(title, **more), "title": {"text": title, "standoff": 10}}


def _layout(height: int, **more: Any) -> dict[str, Any]:
    """A layout without a legend: the page has one for all figures."""
    return plain_layout(height, margin={"l": 62, "r": 14, "t": 14, "b": 56}, showlegend=False, **more)


def _shown(traces: Iterable[dict[str, Any]]) -> Iterable[float | None]:
    return (y for t in traces for y in t["y"])


def quantiles(
    focus: Sequence[Focus], of: Callable[[c.Pair], Sequence[tuple[float, m.Real | None]]]
) -> Figure:
    """|d| by quantile on a logarithmic axis; a quantile that is 0 leaves a gap."""
    names = list(dict.fromkeys(quantile_name(q) for one in focus for q, _ in of(one.pair)))
    traces = [
        _series(
            one,
            [quantile_name(q) for q, _ in of(one.pair)],
            [positive(v) for _, v in of(one.pair)],
            "%{x}: at most %{y:.4g}",
        )
        for one in focus
    ]
    layout = _layout(
        330,
        xaxis=plain_axis("share of elements", type="category", categoryorder="array", categoryarray=names),
        yaxis=_log("|Δ| at most", _shown(traces)),
    )
    return {"data": traces, "layout": layout}


def quantile_name(q: float) -> str:
    """A quantile in percent; the last is the maximum."""
    return "max" if q >= 1 else f"{100 * q:.4g}%"


def ulps(focus: Sequence[Focus]) -> Figure:
    """Share of elements at each ULP distance, 0 left out."""
    bins = sorted({(b.low, b.high) for one in focus for b in _ulps(one) if b.low > 0})
    traces: list[dict[str, Any]] = []
    for one in focus:
        found = {(b.low, b.high): b.count for b in _ulps(one)}
        n = sum(found.values()) or 1
        traces.append(
            _series(
                one,
                [bin_name(*b) for b in bins],
                [100 * found.get(b, 0) / n for b in bins],
                "%{x} ULP: %{y:.3g}%, %{customdata} elements",
                customdata=[count(found.get(b, 0)) for b in bins],
            )
        )
    layout = _layout(
        330,
        xaxis=plain_axis("distance in ULP of the stored dtype", type="category", tickangle=-40),
        yaxis=plain_axis("elements, %", rangemode="tozero"),
    )
    layout["margin"]["b"] += 30
    return {"data": traces, "layout": layout}


def _ulps(one: Focus) -> Sequence[m.UlpBin]:
    part = one.pair.values
    return part.ulp.histogram if part is not None and part.ulp is not None else ()


def bin_name(low: float, high: float | None) -> str:
    """``1``, ``2–3``, ``≥ 8``."""
    if high is None:
        return f"≥ {short(low)}"
    return short(low) if low == high else f"{short(low)}–{short(high)}"


def spreads(focus: Sequence[Focus], of: Callable[[c.Pair], m.Spread | None], title: str) -> Figure:
    """A distance of distributions by percentile of rows, from the median up, on a logarithmic axis."""
    traces: list[dict[str, Any]] = []
    for one in focus:
        spread = of(one.pair)
        if spread is None:
            continue
        rows = [(q, v) for q, v in sorted(spread.percentiles) if q >= 50]
        names = [f"{q:.4g}%" for q, _ in rows] + ["max"]
        values = [positive(v) for _, v in rows] + [positive(spread.maximum)]
        traces.append(_series(one, names, values, "%{x} of rows: at most %{y:.3g}"))
    layout = _layout(
        330, xaxis=plain_axis("share of rows", type="category"), yaxis=_log(title, _shown(traces))
    )
    return {"data": traces, "layout": layout}


@dataclass(frozen=True)
class Curve:
    """One pair by bins: their names, a metric with its standard error and maximum, and how many rows each has."""

    focus: Focus
    names: tuple[str, ...]
    mean: tuple[float | None, ...]
    error: tuple[float | None, ...]
    maximum: tuple[float | None, ...]
    rows: tuple[int, ...]


def depth(curves: Sequence[Curve], axis: str, title: str) -> Figure:
    """Means by bin above, with their standard errors; below how many rows each bin has."""
    traces: list[dict[str, Any]] = []
    for one in curves:
        error = {
            "type": "data",
            "array": [e or 0 for e in one.error],
            "color": f"@c{one.focus.number % 8}",
            "thickness": 1,
            "width": 2,
        }
        data = [
            [count(n), "–" if x is None else short(x)] for n, x in zip(one.rows, one.maximum, strict=True)
        ]
        hover = "%{x}: mean %{y:.3g}, largest %{customdata[1]}, %{customdata[0]} rows"
        traces.append(
            _series(one.focus, one.names, one.mean, hover, error_y=error, customdata=data, yaxis="y")
        )
    first = curves[0]
    traces.append(
        {
            "type": "bar",
            "name": "rows",
            "showlegend": False,
            "x": list(first.names),
            "y": list(first.rows),
            "yaxis": "y2",
            "marker": {"color": "@ink3", "opacity": 0.55},
            "hovertemplate": "%{x}: %{y:,} rows<extra></extra>",
        }
    )
    order = sorted({name for one in curves for name in one.names}, key=_low)
    ticks = order[:: -(-len(order) // 12)]
    layout = _layout(
        430,
        xaxis=plain_axis(
            axis,
            type="category",
            anchor="y2",
            categoryorder="array",
            categoryarray=order,
            tickvals=ticks,
            ticktext=[escaped(lower(name)) for name in ticks],
        ),
        yaxis=_wide(title, domain=[0.34, 1.0], rangemode="tozero", exponentformat="e"),
        yaxis2=_wide("rows", domain=[0.0, 0.24], rangemode="tozero", nticks=3),
    )
    return {"data": traces, "layout": layout}


def _low(name: str) -> tuple[int, str]:
    low = name.split("-", 1)[0]
    return (int(low) if low.isdigit() else -1, name)


def lower(name: str) -> str:
    """A bin by its lower end: ``64``, ``128k``; another name as it is."""
    low = name.split("-", 1)[0]
    if not low.isdigit():
        return brief(name, 16)
    n = int(low)
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else low


def margins(focus: Sequence[Focus]) -> Figure:
    """Share of rows that flip by the margin between the two best tokens."""
    traces: list[dict[str, Any]] = []
    for one in focus:
        found = [b for b in one.pair.decisions.margins if b.rows]
        data = [[count(b.flips), count(b.rows)] for b in found]
        traces.append(
            _series(
                one,
                [margin_name(b) for b in found],
                [100 * b.flips / b.rows for b in found],
                "margin %{x}: %{y:.3g}%, %{customdata[0]} of %{customdata[1]} rows",
                customdata=data,
            )
        )
    order = list(dict.fromkeys(margin_name(b) for one in focus for b in one.pair.decisions.margins))
    layout = _layout(
        330,
        xaxis=plain_axis(
            "margin of the best token", type="category", categoryorder="array", categoryarray=order
        ),
        yaxis=plain_axis("rows that flip, %", rangemode="tozero"),
    )
    return {"data": traces, "layout": layout}


def margin_name(b: m.MarginBin) -> str:
    """``tie``, ``0–0.001``, ``> 8``."""
    if b.low == b.high:
        return "tie"
    return f"> {short(b.low)}" if b.high is None else f"{short(b.low)}–{short(b.high)}"


def prefixes(focus: Sequence[Focus]) -> Figure:
    """Share of pairs of answers that have parted, by the number of tokens that they have in common."""
    traces = [
        _series(
            one,
            [n for n, _ in one.pair.texts.prefix_cdf],
            [100 * share for _, share in one.pair.texts.prefix_cdf],
            "at most %{x} tokens in common: %{y:.1f}%",
            mode="lines",
        )
        for one in focus
    ]
    layout = _layout(
        330,
        xaxis=plain_axis("tokens in common", rangemode="tozero"),
        yaxis=plain_axis("answers that have parted, %", range=[0, 102]),
    )
    return {"data": traces, "layout": layout}


def heatmap(matrix: c.Matrix) -> Figure:
    """Distances of many coordinates as a heat map; above `BLOCKS` they are joined in blocks that show their largest."""
    n = len(matrix.names)
    size = -(-n // BLOCKS)
    blocks = [range(i, min(i + size, n)) for i in range(0, n, size)]
    names = [
        f"{i + 1}: {brief(matrix.names[b[0]], 30)}"
        + (f" … {brief(matrix.names[b[-1]], 30)}" if len(b) > 1 else "")
        for i, b in enumerate(blocks)
    ]
    z: list[list[float | None]] = []
    for a in blocks:
        row: list[float | None] = []
        for b in blocks:
            known = [v for i in a for j in b if (v := positive(matrix.values[i][j])) is not None]
            row.append(round(log10(max(known)), 3) if known else None)
        z.append(row)
    trace = {
        "type": "heatmap",
        "z": z,
        "x": [escaped(x) for x in names],
        "y": [escaped(x) for x in names],
        "colorscale": [[0, "@heat0"], [1, "@heat"]],
        "hoverongaps": False,
        "colorbar": {
            "title": {"text": "log₁₀"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickfont": {"size": 11},
        },
        "hovertemplate": "%{y}<br>%{x}<br>10^%{z:.2f}<extra></extra>",
    }
    layout = plain_layout(
        520,
        margin={"l": 16, "r": 16, "t": 14, "b": 16},
        xaxis=plain_axis("", showticklabels=False, ticks="", showgrid=False),
        yaxis=plain_axis("", showticklabels=False, ticks="", showgrid=False, autorange="reversed"),
    )
    return {"data": [trace], "layout": layout}


def ladder(values: Sequence[tuple[str, float]]) -> Figure:
    """Distances to one reference, sorted; of many points every n-th with the largest of those that it stands for."""
    ordered = sorted(values, key=lambda x: x[1])
    step = -(-len(ordered) // 200)
    shown = ordered[step - 1 :: step] if step > 1 else ordered
    if ordered and shown[-1] != ordered[-1]:
        shown = [*shown, ordered[-1]]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [min(len(ordered), (i + 1) * step) for i in range(len(shown))],
        "y": [v if v > 0 else None for _, v in shown],
        "text": [escaped(brief(name, 30)) for name, _ in shown],
        "line": {"color": "@c0", "width": 1.5},
        "marker": {"size": 5, "color": "@c0"},
        "hovertemplate": "%{text}<br>%{y:.4g}<extra></extra>",
    }
    layout = plain_layout(
        320,
        showlegend=False,
        xaxis=plain_axis("runs, closest first", rangemode="tozero"),
        yaxis=_log("distance", _shown([trace])),
        margin={"l": 62, "r": 14, "t": 14, "b": 56},
    )
    return {"data": [trace], "layout": layout}


def region(data: c.Region, groups: Sequence[Group], marks: RunMarks) -> Figure:
    """The rotatable 3-D region, with the backends of one GPU and one backend on all GPUs joined by lines."""
    figure = figures.region(view(data, data.title), marks)
    xyz = data.coordinates
    gpus = [g for g in groups if g.kind == "gpu"]
    lines: list[dict[str, Any]] = []
    for group in groups:
        path: list[list[float | None]] = [[], [], []]
        for i, a in enumerate(group.corners):
            for b in group.corners[i + 1 :]:
                for k in range(3):
                    path[k] += [xyz[a][k], xyz[b][k], None]
        own = f"@p{gpus.index(group) % 6}" if group in gpus else f"@c{marks.colour(group.name)}"
        dash, width = ("solid", 5) if group in gpus else ("dash", 3)
        lines.append(
            figures.line_3d(path, escaped(brief(group.name)), own, dash, width, group=plain(group.name))
        )
    points = next(i for i, t in enumerate(figure["data"]) if t["type"] == "scatter3d")
    figure["data"][points:points] = lines
    return figure


def share_of(n: int, total: int) -> str:
    """A share in percent, of nothing a dash."""
    return percent(n / total) if total else "–"
