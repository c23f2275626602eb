"""The relative geometry in two dimensions, as inline SVG: linked triangles in true proportion, with a scale.

One triangle per platform (its corners are the backends), dotted links between the same backend on two
platforms, and the three centres.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup, escape

from reports.contract import GeometryView
from reports.figures import point_label
from reports.palette import Marks

WIDTH, PAD = 540.0, 62.0
LOW, HIGH = 250.0, 460.0  # the height follows the data between these
LETTER = 6.1  # width of a letter of a label, in pixels

Box = tuple[float, float, float, float]


class Frame:
    """Metric to pixels, the same scale on both axes. ``height``: of the figure, in pixels."""

    def __init__(self, view: GeometryView) -> None:
        xs = [p[0] for p in view.coordinates] + [c.at[0] for c in view.centres]
        ys = [p[1] for p in view.coordinates] + [c.at[1] for c in view.centres]
        self.middle = ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2)
        width, height = max(xs) - min(xs), max(ys) - min(ys)
        room = [(WIDTH - 2 * PAD) / width] if width else []
        room += [(HIGH - 2 * PAD) / height] if height else []
        self.scale = min(room, default=1.0)
        self.flat = height < 0.05 * width
        self.height = min(HIGH, max(LOW, height * self.scale + 2 * PAD))

    def at(self, point: tuple[float, float, float]) -> tuple[float, float]:
        """Pixels of a point; y grows upwards in the metric."""
        x = WIDTH / 2 + (point[0] - self.middle[0]) * self.scale
        return x, self.height / 2 - (point[1] - self.middle[1]) * self.scale


def draw(view: GeometryView, palette: Marks) -> Markup:
    """The figure of ``view``."""
    frame = Frame(view)
    label = f"Backends in the plane by {view.metric}; the table beside it has the distances"
    parts = [
        *links(view, frame),
        *_triangles(view, frame),
        *points(view, frame, palette),
        *centres(view, frame),
        ruler(frame),
    ]
    return Markup(
        f'<svg class="plane" viewBox="0 0 {WIDTH:.0f} {frame.height:.0f}" role="img" '
        f'aria-label="{escape(label)}">' + "".join(parts) + "</svg>"
    )


def links(view: GeometryView, frame: Frame) -> Iterator[str]:
    """Dotted lines between the same backend on two platforms."""
    for a, b in view.links:
        (ax, ay), (bx, by) = frame.at(view.coordinates[a]), frame.at(view.coordinates[b])
        yield f'<path class="link" d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}"/>'


def _triangles(view: GeometryView, frame: Frame) -> Iterator[str]:
    for n, triangle in enumerate(view.triangles):
        corners = [frame.at(view.coordinates[c]) for c in triangle.corners]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
        yield (
            f'<path class="tri p{n % 3}" data-platform="{escape(triangle.platform)}" d="M{path}z">'
            f"<title>{escape(triangle.platform)}: {escape(', '.join(triangle.names))}</title></path>"
        )


def centres(view: GeometryView, frame: Frame) -> Iterator[str]:
    """The named centres, each with its own mark."""
    shapes = {
        "centroid": "M-5 0H5M0 -5V5",
        "medoid": "M-4 -4L4 4M-4 4L4 -4",
        "ball": "M0 -5.5L5.5 0L0 5.5L-5.5 0z",
    }
    for centre in view.centres:
        x, y = frame.at(centre.at)
        yield (
            f'<g class="centre" transform="translate({x:.1f} {y:.1f})"><path class="halo" '
            f'd="{shapes[centre.kind]}"/><path d="{shapes[centre.kind]}"><title>{centre.kind}</title></path></g>'
        )


_MARKERS = {
    "circle": "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0z",
    "square": "M-5 -5H5V5H-5z",
    "diamond": "M0 -6.8L6.8 0L0 6.8L-6.8 0z",
    "cross": "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2z",
    "x": "M0 -6L6 5H-6z",
}


def legend_marker(symbol: str) -> Markup:
    """A marker as a small picture of its own."""
    return Markup(f'<svg viewBox="-7 -7 14 14" aria-hidden="true"><path d="{_MARKERS[symbol]}"/></svg>')


def points(view: GeometryView, frame: Frame, palette: Marks) -> Iterator[str]:
    """Markers with labels that keep out of each other's way."""
    places = [frame.at(p) for p in view.coordinates]
    taken: list[Box] = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    for (x, y), names in zip(places, view.points, strict=True):
        text = point_label(names)
        lx, ly, anchor, box = _label(x, y, len(text) * LETTER, taken, frame)
        taken.append(box)
        leader = (
            f'<path class="leader" d="M{x:.1f} {y:.1f}L{lx:.1f} {ly - 4:.1f}"/>' if abs(ly - y) > 22 else ""
        )
        yield (
            f'{leader}<g class="point c{palette.colour(names[0])}"><path transform="translate({x:.1f} {y:.1f})" '
            f'd="{_MARKERS[palette.symbol(names[0])]}"/><text x="{lx:.1f}" y="{ly:.1f}" '
            f'text-anchor="{anchor}">{escape(text)}</text><title>{escape(", ".join(names))}</title></g>'
        )


_OFFSETS = [(11, 4), (-11, 4), (0, -12), (0, 21), (11, -9), (-11, -9), (11, 18), (-11, 18)]
_FAR = [(dx, dy) for dy in (-28, 36, -44, 52, -60, 68) for dx in (0, 11, -11)]


def _label(x: float, y: float, width: float, taken: list[Box], frame: Frame) -> tuple[float, float, str, Box]:
    """Where a label goes: the place around the point that overlaps least and stays inside, near ones first."""
    best: tuple[float, tuple[float, float, str, Box]] | None = None
    # Where all points lie on a line, a label beside one would lie on it, too.
    for n, (dx, dy) in enumerate((_OFFSETS[2:4] if frame.flat else _OFFSETS) + _FAR):
        anchor = "start" if dx > 0 else "end" if dx < 0 else "middle"
        left = x + dx - (0.0 if dx > 0 else width if dx < 0 else width / 2)
        box = (left, y + dy - 10, left + width, y + dy + 3)
        outside = max(0.0, 4 - box[0]) + max(0.0, box[2] - WIDTH + 4) + max(0.0, 4 - box[1])
        outside += max(0.0, box[3] - frame.height + 4)
        cost = 20 * outside + sum(_overlap(box, other) for other in taken) + 0.2 * n
        if best is None or cost < best[0] - 1e-9:
            best = (cost, (x + dx, y + dy, anchor, box))
    assert best is not None
    return best[1]


def _overlap(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def ruler(frame: Frame) -> str:
    """A bar of a round length in the metric, about a quarter of the width."""
    length = WIDTH / 4 / frame.scale
    decade = 10 ** math.floor(math.log10(length)) if length > 0 else 1.0
    nice = max((m * decade for m in (1, 2, 5) if m * decade <= length), default=decade)
    x, y, width = 18.0, frame.height - 14.0, nice * frame.scale
    return (
        f'<path class="ruler" d="M{x} {y - 4}v8m0 -4h{width:.1f}m0 -4v8"/>'
        f'<text class="ruler-text" x="{x + width + 8:.1f}" y="{y + 4}">{nice:,.12g}</text>'
    )
