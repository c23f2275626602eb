"""Relative geometry of backends: a matrix of distances, drawn as points, and who is closest to the middle.

"Closest to the centre" depends on what the centre is, so three are computed and each is named: the centroid,
the medoid, and the centre of the smallest enclosing ball. Points at distance 0 from each other count once
(three bit-identical backends would otherwise pull the centre towards themselves), and they are listed. Ties
are called ties. A distance that no Euclidean space can hold (classical MDS gives negative eigenvalues) is
flagged: the picture then leaves something out, and the centroid's distances are formal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError

FloatArray = NDArray[np.float64]
CentreKind = Literal["centroid", "medoid", "ball"]

# Coordinates come from an eigenvalue decomposition in f64: differences below this share of the largest
# distance are rounding. Centroid and medoid are compared exactly, as fractions, and do not use it.
SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Rank:
    """One place in a ranking: the classes that share it and their distance to the centre, in the metric."""

    points: tuple[int, ...]
    distance: float


@dataclass(frozen=True, slots=True)
class Centre:
    """A centre and who is closest to it.

    ``ranking`` runs from closest to farthest; more than one point in a place is a tie. ``margin`` is the
    distance of the runner-up's place less the first's, None if every point ties. For the medoid the distance
    of a point is the mean of its distances to the other points. ``at`` are the coordinates of the centre in
    the embedding.
    """

    kind: CentreKind
    ranking: tuple[Rank, ...]
    at: tuple[float, ...]
    radius: float | None = None

    @property
    def closest(self) -> tuple[int, ...]:
        """The points in the first place."""
        return self.ranking[0].points

    @property
    def margin(self) -> float | None:
        """Distance from the first place to the second; None if all points tie."""
        return None if len(self.ranking) < 2 else self.ranking[1].distance - self.ranking[0].distance


@dataclass(frozen=True, slots=True)
class Geometry:
    """What `layout` finds.

    ``classes`` are the bit-identical groups of names, in the order of their first member; all other indices
    are into it. ``coordinates``: [classes, 3], zeros where there are fewer dimensions. ``eigenvalues`` of
    the doubly centred matrix, largest first. ``negative_share``: sum of |negative| over sum of |all|;
    ``shown_2d`` and ``shown_3d``: share of the positive eigenvalues in the first two and three axes.
    ``hull``: triangles of the convex hull in three dimensions, or a fan over a flat region.
    """

    classes: tuple[tuple[str, ...], ...]
    coordinates: FloatArray
    eigenvalues: tuple[float, ...]
    negative_share: float
    shown_2d: float
    shown_3d: float
    centres: tuple[Centre, ...]
    hull: tuple[tuple[int, int, int], ...]

    @property
    def euclidean(self) -> bool:
        """Whether a Euclidean space holds all distances, up to rounding."""
        return self.negative_share <= SLACK


@dataclass(frozen=True, slots=True)
class Triangle:
    """Three points: ``sides`` opposite to each, ``angles`` in degrees, ``area`` in the metric squared.

    ``kind`` is "proper", "degenerate" (the corners lie on a line, or two coincide) or "impossible" (one side
    is longer than the other two together); angles and area are None unless it is proper.
    """

    sides: tuple[float, float, float]
    kind: Literal["proper", "degenerate", "impossible"]
    angles: tuple[float, float, float] | None
    area: float | None


def layout(names: Sequence[str], distances: FloatArray) -> Geometry:
    """The geometry of ``distances``, a symmetric matrix [n, n] with a zero diagonal, between ``names``.

    Raises:
        InputError: the matrix has another shape, is not symmetric, or holds a negative or non-finite number.
    """
    d = _checked(names, distances)
    classes = _collapse(d)
    first = [members[0] for members in classes]
    d = d[np.ix_(first, first)]
    values, axes = _embed(d)
    size = float(np.abs(values).sum())
    positive = values.clip(min=0.0)
    total = float(positive.sum())
    full = axes[:, : max(1, int((positive > 0).sum()))]
    shown = [1.0 if total == 0 else float(positive[:k].sum()) / total for k in (2, 3)]
    return Geometry(
        classes=tuple(tuple(names[i] for i in members) for members in classes),
        coordinates=_pad(full)[:, :3],
        eigenvalues=tuple(float(x) for x in values),
        negative_share=0.0 if size == 0 else float(-values.clip(max=0.0).sum()) / size,
        shown_2d=shown[0],
        shown_3d=shown[1],
        centres=(_centroid(d, full), _medoid(d, full), _ball(full, float(d.max(initial=0.0)))),
        hull=hull(_pad(full)[:, :3]),
    )


def triangle(a: float, b: float, c: float) -> Triangle:
    """The triangle with sides ``a``, ``b``, ``c``; angles are opposite to them, by the law of cosines."""
    sides = (a, b, c)
    short, middle, long = sorted(Fraction(x) for x in sides)
    if long > short + middle:
        return Triangle(sides, "impossible", None, None)
    if long == short + middle:
        return Triangle(sides, "degenerate", None, None)
    angles = tuple(_angle(sides[i], sides[(i + 1) % 3], sides[(i + 2) % 3]) for i in range(3))
    half = (short + middle + long) / 2
    area = math.sqrt(half * (half - short) * (half - middle) * (half - long))
    return Triangle(sides, "proper", (angles[0], angles[1], angles[2]), area)


def _angle(opposite: float, b: float, c: float) -> float:
    a2, b2, c2 = (Fraction(x) ** 2 for x in (opposite, b, c))
    cosine = float(b2 + c2 - a2) / (2.0 * b * c)
    return math.degrees(math.acos(min(1.0, max(-1.0, cosine))))


def _checked(names: Sequence[str], distances: FloatArray) -> FloatArray:
    d = np.asarray(distances, dtype=np.float64)
    n = len(names)
    place = "distances"
    if n == 0 or d.shape != (n, n):
        raise InputError(
            f"a matrix of shape {d.shape} for {n} names",
            place=place,
            remedy="give one row and one column per name, and at least one name",
        )
    if not np.isfinite(d).all() or (d < 0).any():
        raise InputError(
            "a distance is negative or not finite",
            place=place,
            remedy="count NaN and infinity mismatches apart, and leave the pair out",
        )
    if (d != d.T).any() or np.diagonal(d).any():
        raise InputError(
            "the matrix is not symmetric with a zero diagonal",
            place=place,
            remedy="a distance from a to b is the distance from b to a, and 0 to itself",
        )
    return d


def _collapse(d: FloatArray) -> list[list[int]]:
    """Indices in classes: a point joins the first class to all of whose members it is at distance 0."""
    classes: list[list[int]] = []
    for i in range(len(d)):
        home = next((c for c in classes if not d[i, c].any()), None)
        if home is None:
            classes.append([i])
        else:
            home.append(i)
    return classes


def _embed(d: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Classical MDS: eigenvalues [n], largest first, and coordinates [n, n] (0 on negative axes)."""
    n = len(d)
    if not d.any():
        return np.zeros(n), np.zeros((n, n))
    centring = np.eye(n) - 1.0 / n
    gram = -0.5 * centring @ (d * d) @ centring
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    order = np.argsort(-values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    values = np.where(np.abs(values) <= 1e-12 * float(np.abs(values).max()), 0.0, values)
    # An eigenvector's sign is arbitrary: the largest component points up, so that a page is reproducible.
    peaks = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[peaks, np.arange(n)] < 0, -1.0, 1.0)
    return values, vectors * np.sqrt(values.clip(min=0.0))


def _pad(axes: FloatArray) -> FloatArray:
    missing = max(0, 3 - axes.shape[1])
    return np.pad(axes, ((0, 0), (0, missing)))


def _ranked(scores: Sequence[Fraction], distance: Sequence[float]) -> tuple[Rank, ...]:
    """Places by exact ``scores``, equal scores sharing one; ``distance`` is what is reported."""
    places = sorted(set(scores))
    groups = [tuple(i for i, s in enumerate(scores) if s == place) for place in places]
    return tuple(Rank(g, distance[g[0]]) for g in groups)


def _centroid(d: FloatArray, axes: FloatArray) -> Centre:
    """Distances to the centroid from the matrix alone: mean_j d_ij^2 less half the mean of all d^2."""
    n = len(d)
    squares = [[Fraction(float(x)) ** 2 for x in row] for row in d]
    half = sum((sum(row) for row in squares), Fraction(0)) / (2 * n * n)
    scores = [Fraction(sum(row, Fraction(0)) / n - half) for row in squares]
    # A negative square happens in a non-Euclidean metric only; such a point is drawn at the centre.
    ranking = _ranked(scores, [math.sqrt(max(0.0, float(s))) for s in scores])
    return Centre("centroid", ranking, tuple(_pad(axes).mean(axis=0)[:3].tolist()))


def _medoid(d: FloatArray, axes: FloatArray) -> Centre:
    n = len(d)
    scores = [sum((Fraction(float(x)) for x in row), Fraction(0)) / max(1, n - 1) for row in d]
    ranking = _ranked(scores, [float(s) for s in scores])
    return Centre("medoid", ranking, tuple(_pad(axes)[ranking[0].points[0], :3].tolist()))


def _ball(axes: FloatArray, scale: float) -> Centre:
    centre, radius = smallest_ball(axes)
    away = np.linalg.norm(axes - centre, axis=1)
    order = sorted(range(len(axes)), key=lambda i: (float(away[i]), i))
    places: list[list[int]] = []
    for i in order:
        if places and away[i] - away[places[-1][0]] <= SLACK * scale:
            places[-1].append(i)
        else:
            places.append([i])
    ranking = tuple(Rank(tuple(sorted(p)), float(away[p[0]])) for p in places)
    return Centre("ball", ranking, tuple(_pad(centre[None])[0, :3].tolist()), radius)


def smallest_ball(points: FloatArray) -> tuple[FloatArray, float]:
    """Centre [dim] and radius of the smallest ball that holds ``points`` [n, dim], by Welzl's algorithm.

    The boundary is found exactly (a set of at most dim + 1 points); its sphere is computed in f64.
    """
    slack = SLACK * (1.0 + float(np.abs(points).max(initial=0.0)))

    def ball(count: int, boundary: tuple[int, ...]) -> tuple[FloatArray, float]:
        centre, radius = _sphere(points[list(boundary)]) if boundary else (points[0], -1.0)
        if len(boundary) == points.shape[1] + 1:
            return centre, radius
        for i in range(count):
            if float(np.linalg.norm(points[i] - centre)) > radius + slack:
                centre, radius = ball(i, (*boundary, i))
        return centre, radius

    centre, radius = ball(len(points), ())
    return centre, max(0.0, radius)


def _sphere(points: FloatArray) -> tuple[FloatArray, float]:
    """The smallest sphere through all ``points``: its centre lies in their affine hull."""
    edges = points[1:] - points[0]
    if not len(edges):
        return points[0], 0.0
    gram = edges @ edges.T
    weights = np.linalg.lstsq(gram, np.diagonal(gram) / 2.0, rcond=None)[0]
    offset = weights @ edges
    return points[0] + offset, float(np.linalg.norm(offset))


def hull(points: FloatArray) -> tuple[tuple[int, int, int], ...]:
    """Triangles [i, j, k] of the convex hull of ``points`` [n, 3]; a fan if they are flat, none on a line."""
    n = len(points)
    size = float(np.abs(points).max(initial=0.0))
    faces: list[tuple[int, int, int]] = []
    flat: list[tuple[int, int, int]] = []
    for i, j, k in combinations(range(n), 3):
        normal = np.cross(points[j] - points[i], points[k] - points[i])
        area = float(np.linalg.norm(normal))
        if area <= SLACK * size * size:
            continue
        heights = (points - points[i]) @ normal / area
        above, below = (heights > SLACK * size).any(), (heights < -SLACK * size).any()
        if not above and not below:
            flat.append((i, j, k))
        elif not (above and below):
            faces.append((i, j, k))
    return tuple(faces or flat)
