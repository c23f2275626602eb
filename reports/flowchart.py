"""The dataflow of a spec as an inline SVG figure.

Bands run down from the inputs over the token and the levels to the row. An edge has the colour of its width,
so a place where a 32-bit number becomes a 16-bit one is where the colour changes, at a diamond; a carried
state has a loop. Colours are CSS variables of the page, so the figure follows its light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.contract import Flow, FlowEdge, FlowNode
from reports.layering import Layers, arrange

NODE_WIDTH, NODE_HEIGHT = 122.0, 40.0
ACROSS, DOWN = 140.0, 68.0
MARGIN, BAND_HEAD, BAND_FOOT, GUTTER = 14.0, 26.0, 14.0, 22.0
PORT = 9.0
RULE_LETTER = 5.9

Point = tuple[float, float]
Cubic = tuple[Point, Point, Point, Point]


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Pixels of a layout. A band begins with a heading, so ranks below it are pushed down."""

    layers: Layers
    order: tuple[str, ...]

    @property
    def width(self) -> float:
        low, high = self.layers.span
        return 2 * (MARGIN + GUTTER) + (high - low) * ACROSS + NODE_WIDTH

    @property
    def height(self) -> float:
        return self.bottom(self.order[-1]) + MARGIN if self.order else 2 * MARGIN

    def x(self, place: float) -> float:
        """The middle of a node at this place."""
        return MARGIN + GUTTER + NODE_WIDTH / 2 + (place - self.layers.span[0]) * ACROSS

    def y(self, rank: int) -> float:
        """The middle of the nodes of a rank."""
        above = sum(1 for name in self.order if self.layers.bands[name][0] <= rank)
        return MARGIN + above * BAND_HEAD + (above - 1) * (BAND_FOOT - 8) + NODE_HEIGHT / 2 + rank * DOWN + 6

    def top(self, band: str) -> float:
        """The upper side of a band."""
        return self.y(self.layers.bands[band][0]) - NODE_HEIGHT / 2 - BAND_HEAD - 6

    def bottom(self, band: str) -> float:
        """The lower side of a band."""
        return self.y(self.layers.bands[band][1]) + NODE_HEIGHT / 2 + BAND_FOOT


def draw(flow: Flow, title: str) -> Markup:
    """The figure of ``flow`` as SVG; ``title`` names it for a reader who does not see it."""
    canvas = _Canvas(arrange(flow), tuple(s.name for s in flow.sections))
    parts = [*_bands(flow, canvas), *_edges(flow, canvas), *_rules(flow, canvas), *_nodes(flow, canvas)]
    head = (
        f'<svg class="flow" viewBox="0 0 {canvas.width:.0f} {canvas.height:.0f}" '
        f'style="min-width:{min(canvas.width, 420.0):.0f}px;max-width:{canvas.width:.0f}px" '
        f'role="img" aria-label="{escape(title)}">'
    )
    return Markup(head + "".join(parts) + "</svg>")


def _bands(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    for band in flow.sections:
        top, bottom = canvas.top(band.name), canvas.bottom(band.name)
        left, width = MARGIN / 2, canvas.width - MARGIN
        yield (
            f'<rect class="band" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" rx="9" '
            f'height="{bottom - top:.1f}"/>'
            f'<text class="band-name" x="{left + 11:.1f}" y="{top + 18:.1f}">{escape(band.name)}</text>'
        )


def _rules(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    for band in flow.sections:
        if band.rule:
            left, width = MARGIN / 2, canvas.width - MARGIN
            x = left + 22 + 7.6 * len(band.name)
            short = _clip(band.rule, int((left + width - 10 - x) / RULE_LETTER))
            yield (
                f'<text class="band-rule" x="{x:.1f}" y="{canvas.top(band.name) + 18:.1f}">{escape(short)}'
                f"<title>{escape(band.rule)}</title></text>"
            )


def _nodes(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    for node in flow.nodes:
        x, y = canvas.x(canvas.layers.place[node.id]), canvas.y(canvas.layers.rank[node.id])
        left, top = x - NODE_WIDTH / 2, y - NODE_HEIGHT / 2
        classes = f"node w{node.bits} {node.kind}" + (" state" if node.carried else "")
        yield f'<g class="{classes}"><title>{escape(_describe(node))}</title>'
        if node.carried:
            yield _loop(left + NODE_WIDTH, y, node.bits)
        yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="7"/>'
        detail = node.text
        name_y = y + 4 if not detail else y - 3
        yield (
            f'<text class="name" x="{left + 9:.1f}" y="{name_y:.1f}">{escape(_clip(node.id, 12))}</text>'
            f'<text class="form" x="{left + NODE_WIDTH - 7:.1f}" y="{name_y:.1f}">'
            f"{escape(node.format)}</text>"
        )
        if detail:
            yield f'<text class="text" x="{left + 9:.1f}" y="{y + 12:.1f}">{escape(_clip(detail, 19))}</text>'
        for mark in (*node.rounds, *node.inner)[:2]:
            yield _diamond((x, y + NODE_HEIGHT / 2), mark)
        yield "</g>"


def _describe(node: FlowNode) -> str:
    text = f"{node.id} = {node.text}" if node.text else f"input {node.id}"
    state = f", carried per {node.carried}" if node.carried else ""
    rounds = f", rounded to {', '.join((*node.rounds, *node.inner))}" if node.rounds or node.inner else ""
    return f"{text}  [{node.format}{state}{rounds}]"


def _loop(right: float, y: float, bits: int) -> str:
    """An arrow out of the right side of a state and back into it."""
    return (
        f'<path class="edge w{bits}" d="M{right:.1f} {y - 8:.1f}c17 -6 17 22 4 16.5"/>'
        f'<path class="tip w{bits}" d="M{right:.1f} {y + 7.5:.1f}l7.5 -2.5 l-1 6 z"/>'
    )


def _edges(flow: Flow, canvas: _Canvas) -> Iterator[str]:
    ports = _ports(flow, canvas)
    for i, edge in enumerate(flow.edges):
        if edge.when == "prev":
            if edge.source != edge.target:  # the loop on a state says that it uses itself
                yield _backward(edge, canvas)
        elif i in canvas.layers.routes:
            yield from _forward(edge, i, canvas, ports[i])


def _ports(flow: Flow, canvas: _Canvas) -> dict[int, float]:
    """Where on the upper side of its target each edge arrives, in the order of where it comes from."""
    arriving: dict[str, list[tuple[float, int]]] = {}
    places = canvas.layers.place
    for i, edge in enumerate(flow.edges):
        route = canvas.layers.routes.get(i)
        if route is not None:
            arriving.setdefault(edge.target, []).append((route[-1] if route else places[edge.source], i))
    ports: dict[int, float] = {}
    for group in arriving.values():
        group.sort()
        step = min(2.4 * PORT, (NODE_WIDTH - 30) / max(1, len(group) - 1))
        for k, (_, i) in enumerate(group):
            ports[i] = (k - (len(group) - 1) / 2) * step
    return ports


def _forward(edge: FlowEdge, index: int, canvas: _Canvas, port: float) -> Iterator[str]:
    layers = canvas.layers
    first = layers.rank[edge.source]
    start = (canvas.x(layers.place[edge.source]), canvas.y(first) + NODE_HEIGHT / 2)
    end = (
        canvas.x(layers.place[edge.target]) + port,
        canvas.y(layers.rank[edge.target]) - NODE_HEIGHT / 2 - 5,
    )
    path: list[str] = []
    here = start
    for k, place in enumerate(layers.routes[index]):
        x, y = canvas.x(place), canvas.y(first + 1 + k)
        path.append(_curve_text(_cubic(here, (x, y - NODE_HEIGHT / 2))) + f"V{y + NODE_HEIGHT / 2:.1f}")
        here = (x, y + NODE_HEIGHT / 2)
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
    yield _tip(end, edge.cast_bits or 0) + _diamond(before[3], edge.cast)


def _backward(edge: FlowEdge, canvas: _Canvas) -> str:
    """A value of the step before: dashed, out of the side of the source and into the side of the target."""
    layers = canvas.layers
    ax, ay = canvas.x(layers.place[edge.source]), canvas.y(layers.rank[edge.source]) + 5
    bx, by = canvas.x(layers.place[edge.target]), canvas.y(layers.rank[edge.target])
    side = 1.0 if bx >= ax else -1.0
    # Out of the side that faces the target; into its near side, or its far side where they stand in line.
    near = -side if abs(bx - ax) > NODE_WIDTH else side
    start = (ax + side * NODE_WIDTH / 2, ay)
    end = (bx + near * (NODE_WIDTH / 2 + 5), by)
    bend = 26.0 if near != side else 44.0
    curve = (start, (start[0] + side * bend, start[1]), (end[0] + near * bend, end[1]), end)
    tip = f"M{end[0] - near * 5:.1f} {end[1]:.1f}l{near * 7:.1f} -3.6 v7.2 z"
    return (
        f'<path class="edge prev w{edge.bits}" d="M{_xy(start)}{_curve_text(curve)}">'
        f'<title>{escape(_edge_title(edge))}</title></path><path class="tip w{edge.bits}" d="{tip}"/>'
    )


def _edge_title(edge: FlowEdge) -> str:
    when = {"now": "", "prev": " of the step before", "last": " after the last step"}[edge.when]
    cast = f", rounded to {edge.cast}" if edge.cast else ""
    return f"{edge.source}{when} ({edge.format}{cast}) used by {edge.target}"


def _cubic(a: Point, b: Point) -> Cubic:
    bend = max(9.0, (b[1] - a[1]) * 0.5)
    return a, (a[0], a[1] + bend), (b[0], b[1] - bend), b


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
    return f'<path class="tip w{bits}" d="M{end[0]:.1f} {end[1] + 5:.1f}l-3.6 -7 h7.2 z"/>'


def _diamond(at: Point, label: str) -> str:
    x, y = at
    return (
        f'<g class="round"><path d="M{x:.1f} {y - 6:.1f}l6 6 l-6 6 l-6 -6 z"/>'
        f'<text x="{x + 9:.1f}" y="{y + 4:.1f}">{escape(label)}</text></g>'
    )


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(1, length - 1)] + "…"
