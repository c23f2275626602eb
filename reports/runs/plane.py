"""The geometry of runs in the plane, as inline SVG: two families of linked triangles.

The backends of one GPU are the corners of a filled triangle; one backend on several GPUs is a dashed one, in the colour of
the backend. A corner of both links them. Where more than three points share a GPU or a backend, their hull is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from reports import plane
from reports.runs import contract as c
from reports.runs.marks import Group, RunMarks, brief, view
from reports.runs.wording import plain
from verify.words import plural

Point = tuple[float, float]


def draw(region: c.Region, groups: Sequence[Group], marks: RunMarks) -> Markup:
    """The figure of ``region``, in true proportion and with a scale."""
    shape = view(region, region.title)
    frame = plane.Frame(shape)
    label = f"{plural(len(region.points), 'point')} in the plane by {region.title}; the tables below have the distances"
    parts = [
        *_outlines(region, groups, marks, frame),
        *_links(region, groups, frame),
        *plane.points(shape, frame, marks),
        *plane.centres(shape, frame),
        plane.ruler(frame),
    ]
    return Markup(
        f'<svg class="plane" viewBox="0 0 {plane.WIDTH:.0f} {frame.height:.0f}" role="img" '
        f'aria-label="{escape(label)}">' + "".join(parts) + "</svg>"
    )


def _outlines(
    region: c.Region, groups: Sequence[Group], marks: RunMarks, frame: plane.Frame
) -> Iterator[str]:
    gpus = [g for g in groups if g.kind == "gpu"]
    for group in groups:
        corners = hull([frame.at(region.coordinates[i]) for i in group.corners])
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
        kind = f"p{gpus.index(group) % 6}" if group in gpus else f"backend c{marks.colour(group.name)}"
        names = ", ".join(" = ".join(map(brief, region.points[i])) for i in group.corners)
        yield (
            f'<path class="tri {kind}" data-platform="{escape(plain(group.name))}" d="M{path}z">'
            f"<title>{escape(brief(group.name))}: {escape(names)}</title></path>"
        )


def _links(region: c.Region, groups: Sequence[Group], frame: plane.Frame) -> Iterator[str]:
    """One backend on two GPUs, where no triangle of the backend shows it."""
    shown = [set(g.corners) for g in groups if g.kind == "backend"]
    for a, b in region.links:
        if not any({a, b} <= corners for corners in shown):
            (ax, ay), (bx, by) = frame.at(region.coordinates[a]), frame.at(region.coordinates[b])
            yield f'<path class="link" d="M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}"/>'


def hull(points: Sequence[Point]) -> list[Point]:
    """The corners of the convex hull in order (Andrew's monotone chain); three points are their own hull."""
    if len(points) <= 3:
        return list(points)

    def chain(ordered: Sequence[Point]) -> list[Point]:
        out: list[Point] = []
        for p in ordered:
            while len(out) > 1 and _turn(out[-2], out[-1], p) <= 0:
                out.pop()
            out.append(p)
        return out[:-1]

    ordered = sorted(set(points))
    found = chain(ordered) + chain(ordered[::-1])
    return found or ordered


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
