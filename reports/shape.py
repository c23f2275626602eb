"""The relative geometry of cells as the contract shows it, from their pairwise distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reports.contract import CentreView, Distances, GeometryView, RankView, TriangleView
from reports.geometry import Centre, Geometry, layout, triangle


def geometry(metric: str, table: Distances, where: Mapping[str, tuple[str, str]]) -> GeometryView | None:
    """The geometry of the cells of ``table``.

    Args:
        metric: what the distance is, in words.
        table: pairwise distances; the mean is the metric where cells have many outputs, else the maximum.
        where: backend and platform of each cell.

    Returns:
        None where fewer than two cells have distances, or a NaN or infinity mismatch leaves one without.
    """
    if len(table.cells) < 2 or any(any(row) for row in table.special):
        return None
    d = np.array(table.mean if table.outputs > 1 else table.maximum, dtype=np.float64)
    found = layout(table.cells, d)
    place = {name: i for i, members in enumerate(found.classes) for name in members}
    return GeometryView(
        metric=metric,
        points=found.classes,
        coordinates=tuple((float(x), float(y), float(z)) for x, y, z in found.coordinates),
        eigenvalues=found.eigenvalues,
        euclidean=found.euclidean,
        negative_share=found.negative_share,
        shown_2d=found.shown_2d,
        shown_3d=found.shown_3d,
        centres=tuple(_centre(c, found) for c in found.centres),
        hull=found.hull,
        triangles=tuple(_triangles(table.cells, d, where, place)),
        links=tuple(_links(table.cells, where, place)),
    )


def _centre(c: Centre, found: Geometry) -> CentreView:
    x, y, z = c.at
    ranking = tuple(
        RankView(names=tuple(found.classes[i][0] for i in r.points), distance=r.distance) for r in c.ranking
    )
    return CentreView(kind=c.kind, ranking=ranking, margin=c.margin, at=(x, y, z), radius=c.radius)


def _triangles(
    cells: Sequence[str], d: np.ndarray, where: Mapping[str, tuple[str, str]], place: Mapping[str, int]
) -> list[TriangleView]:
    """One triangle for each platform that has three backends."""
    out: list[TriangleView] = []
    for platform in dict.fromkeys(where[name][1] for name in cells):
        at = [i for i, name in enumerate(cells) if where[name][1] == platform]
        if len(at) != 3:
            continue
        a, b, c = at
        shape = triangle(float(d[b, c]), float(d[a, c]), float(d[a, b]))
        out.append(
            TriangleView(
                platform=platform,
                corners=(place[cells[a]], place[cells[b]], place[cells[c]]),
                names=(cells[a], cells[b], cells[c]),
                sides=shape.sides,
                kind=shape.kind,
                angles=shape.angles,
                area=shape.area,
            )
        )
    return out


def _links(
    cells: Sequence[str], where: Mapping[str, tuple[str, str]], place: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Pairs of points that hold the same backend on two platforms."""
    pairs = {
        (min(place[a], place[b]), max(place[a], place[b]))
        for a in cells
        for b in cells
        if where[a][0] == where[b][0] and place[a] != place[b]
    }
    return sorted(pairs)
