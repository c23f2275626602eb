"""The dataflow of a spec as an inline SVG figure.

Columns run from the inputs over the token and the levels to the row. An edge has the colour of its width, so
a place where a 32-bit number becomes a 16-bit one is where the colour changes, under a diamond; a carried
state has a loop. Colours are CSS variables of the page, so the figure follows its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.contract import Flow, FlowEdge, FlowNode
from reports.layering import Layers, arrange

NODE_WIDTH, NODE_HEIGHT = 96.0, 42.0
COLUMN, ROW = 132.0, 62.0
MARGIN, HEADER, FOOTER = 16.0, 58.0, 20.0
PORT = 7.0

Point = tuple[float, float]
Cubic = tuple[Point, Point, Point, Point]


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Pixels of a layout."""

    layers: Layers

    @property
    def width(self) -> float:
        return 2 * MARGIN + (self.layers.ranks - 1) * COLUMN + NODE_WIDTH + 12

    @property
    def height(self) -> float:
        low, high = self.layers.span
        return HEADER + (high - low) * ROW + NODE_HEIGHT + FOOTER + MARGIN

    def x(self, rank: int) -> float:
        """The left side of the nodes of a rank."""
        return MARGIN + 6 + rank * COLUMN

    def y(self, height: float) -> float:
        """The middle of a node at this height."""
        return HEADER + NODE_HEIGHT / 2 + 4 + (height - self.layers.span[0]) * ROW


def draw(flow: Flow, title: str) -> Markup:
    """The figure of ``flow`` as SVG; ``title`` names it for a reader who does not see it."""
    canvas = _Canvas(arrange(flow))
    parts = [*_bands(flow, canvas), *_edges(flow, canvas), *_nodes(flow, canvas)]
    size = f"{canvas.width:.0f} {canvas.height:.0f}"
    head = (
        f'<svg class="flow" viewBox="0 0 {size}" style="min-width:{canvas.width * 0.68:.0f}px;'
        f'max-width:{canvas.width:.0f}px" role="img" aria-label="{escape(title)}">'
    )
    return Markup(head + "".join(parts) + "</svg>")


def _bands(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    for column in flow.sections:
        first, last = canvas.layers.bands[column.name]
        x = canvas.x(first) - 14
        width = canvas.x(last) + NODE_WIDTH + 14 - x
        yield (
            f'<rect class="band" x="{x:.1f}" y="4" width="{width:.1f}" rx="10" '
            f'height="{canvas.height - 8:.1f}"/>'
            f'<text class="band-name" x="{x + 12:.1f}" y="24">{escape(column.name)}</text>'
        )
        if column.rule:
            short = _clip(column.rule, int((width - 16) / 5.7))
            yield (
                f'<text class="band-rule" x="{x + 12:.1f}" y="39">{escape(short)}'
                f"<title>{escape(column.rule)}</title></text>"
            )


def _nodes(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    for node in flow.nodes:
        x, y = canvas.x(canvas.layers.rank[node.id]), canvas.y(canvas.layers.height[node.id])
        top = y - NODE_HEIGHT / 2
        classes = f"node w{node.bits} {node.kind}" + (" state" if node.carried else "")
        yield f'<g class="{classes}"><title>{escape(_describe(node))}</title>'
        if node.carried:
            yield _loop(x, top)
        yield f'<rect x="{x:.1f}" y="{top:.1f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="7"/>'
        detail = node.reduction or node.text
        name_y = y + 4 if not detail else y - 3
        yield (
            f'<text class="name" x="{x + 9:.1f}" y="{name_y:.1f}">{escape(_clip(node.id, 10))}</text>'
            f'<text class="form" x="{x + NODE_WIDTH - 7:.1f}" y="{name_y:.1f}">{escape(node.format)}</text>'
        )
        if detail:
            yield f'<text class="text" x="{x + 9:.1f}" y="{y + 12:.1f}">{escape(_clip(detail, 15))}</text>'
        for mark in (*node.rounds, *node.inner)[:2]:
            yield _diamond((x + NODE_WIDTH, y), mark, above=False)
        yield "</g>"


def _describe(node: FlowNode) -> str:
    text = f"{node.id} = {node.text}" if node.text else f"input {node.id}"
    state = f", carried per {node.carried}" if node.carried else ""
    rounds = f", rounded to {', '.join((*node.rounds, *node.inner))}" if node.rounds or node.inner else ""
    return f"{text}  [{node.format}{state}{rounds}]"


def _loop(x: float, top: float) -> str:
    """An arrow from the right shoulder of a state round to its left shoulder."""
    a, b = x + NODE_WIDTH - 16, x + 16
    return (
        f'<path class="loop" d="M{a:.1f} {top:.1f}C{a + 10:.1f} {top - 19:.1f} {b - 10:.1f} {top - 19:.1f} '
        f'{b:.1f} {top:.1f}"/><path class="tip" d="M{b:.1f} {top:.1f}l-6.5 -5 l6.5 -1.6 z"/>'
    )


def _edges(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    ports = _ports(flow, canvas)
    carried = {n.id for n in flow.nodes if n.carried}
    for i, edge in enumerate(flow.edges):
        if edge.when == "prev" and edge.source == edge.target:
            continue  # the loop on the state says it
        if i in canvas.layers.routes:
            yield from _forward(edge, i, canvas, ports[i])
        elif edge.source in carried or edge.when == "prev":
            yield _backward(edge, canvas)


def _ports(flow: Flow, canvas: _Canvas) -> dict[int, float]:
    """Where on the left side of its target each edge arrives, in the order of where it comes from."""
    arriving: dict[str, list[tuple[float, int]]] = {}
    heights = canvas.layers.height
    for i, edge in enumerate(flow.edges):
        route = canvas.layers.routes.get(i)
        if route is not None:
            arriving.setdefault(edge.target, []).append((route[-1] if route else heights[edge.source], i))
    ports: dict[int, float] = {}
    for group in arriving.values():
        group.sort()
        step = min(PORT, (NODE_HEIGHT - 14) / max(1, len(group) - 1))
        for k, (_, i) in enumerate(group):
            ports[i] = (k - (len(group) - 1) / 2) * step
    return ports


def _forward(edge: FlowEdge, index: int, canvas: _Canvas, port: float) -> Iterator[str]:
    layers = canvas.layers
    first = layers.rank[edge.source]
    start = (canvas.x(first) + NODE_WIDTH, canvas.y(layers.height[edge.source]))
    end = (canvas.x(layers.rank[edge.target]) - 5, canvas.y(layers.height[edge.target]) + port)
    path: list[str] = []
    here = start
    for k, height in enumerate(layers.routes[index]):
        x, y = canvas.x(first + 1 + k), canvas.y(height)
        path.append(_curve_text(_cubic(here, (x, y))) + f"H{x + NODE_WIDTH:.1f}")
        here = (x + NODE_WIDTH, y)
    tail = _cubic(here, end)
    label = escape(_edge_title(edge))
    kind = "edge last" if edge.when == "last" else "edge"
    if edge.cast is None:
        yield f'<path class="{kind} w{edge.bits}" d="M{_xy(start)}{"".join(path)}{_curve_text(tail)}">'
        yield f"<title>{label}</title></path>{_tip(end, edge.bits)}"
        return
    before, after = _split(tail, 0.5)
    yield f'<path class="{kind} w{edge.bits}" d="M{_xy(start)}{"".join(path)}{_curve_text(before)}">'
    yield f"<title>{label}</title></path>"
    yield f'<path class="{kind} w{edge.cast_bits}" d="M{_xy(after[0])}{_curve_text(after)}"/>'
    yield _tip(end, edge.cast_bits or 0) + _diamond(before[3], edge.cast, above=True)


def _backward(edge: FlowEdge, canvas: _Canvas) -> str:
    """A value of the step before: from below the source, dashed, to below the target."""
    layers = canvas.layers
    ax = canvas.x(layers.rank[edge.source]) + NODE_WIDTH * 0.6
    ay = canvas.y(layers.height[edge.source]) + NODE_HEIGHT / 2
    bx = canvas.x(layers.rank[edge.target]) + NODE_WIDTH * 0.4
    by = canvas.y(layers.height[edge.target]) + NODE_HEIGHT / 2
    low = max(ay, by) + 18
    return (
        f'<path class="edge prev w{edge.bits}" d="M{ax:.1f} {ay:.1f}C{ax:.1f} {low:.1f} {bx:.1f} {low:.1f} '
        f'{bx:.1f} {by + 5:.1f}"><title>{escape(_edge_title(edge))}</title></path>'
        f'<path class="tip w{edge.bits}" d="M{bx:.1f} {by:.1f}l-3.5 6.5 h7 z"/>'
    )


def _edge_title(edge: FlowEdge) -> str:
    when = {"now": "", "prev": " of the step before", "last": " after the last step"}[edge.when]
    cast = f", rounded to {edge.cast}" if edge.cast else ""
    return f"{edge.source}{when} ({edge.format}{cast}) used by {edge.target}"


def _cubic(a: Point, b: Point) -> Cubic:
    bend = max(14.0, (b[0] - a[0]) * 0.5)
    return a, (a[0] + bend, a[1]), (b[0] - bend, b[1]), b


def _split(curve: Cubic, t: float) -> tuple[Cubic, Cubic]:
    """De Casteljau: the curve up to ``t`` and from there."""

    def mix(a: Point, b: Point) -> Point:
        return a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t

    p0, p1, p2, p3 = curve
    q0, q1, q2 = mix(p0, p1), mix(p1, p2), mix(p2, p3)
    r0, r1 = mix(q0, q1), mix(q1, q2)
    s = mix(r0, r1)
    return (p0, q0, r0, s), (s, r1, q2, p3)


def _xy(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _curve_text(curve: Cubic) -> str:
    return f"C{_xy(curve[1])} {_xy(curve[2])} {_xy(curve[3])}"


def _tip(end: Point, bits: int) -> str:
    return f'<path class="tip w{bits}" d="M{end[0] + 5:.1f} {end[1]:.1f}l-7 -3.6 v7.2 z"/>'


def _diamond(at: Point, label: str, *, above: bool) -> str:
    x, y = at
    return (
        f'<g class="round"><path d="M{x:.1f} {y - 6:.1f}l6 6 l-6 6 l-6 -6 z"/>'
        f'<text x="{x:.1f}" y="{y - 9 if above else y + 17:.1f}">{escape(label)}</text></g>'
    )


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(1, length - 1)] + "…"
