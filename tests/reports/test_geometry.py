"""Geometry against triangles and tetrahedra whose answers are known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reports.geometry import Centre, Geometry, hull, layout, smallest_ball, triangle
from specs.errors import InputError


def matrix(n: int, **sides: float) -> NDArray[np.float64]:
    d = np.zeros((n, n))
    for pair, value in sides.items():
        i, j = (ord(c) - ord("a") for c in pair)
        d[i, j] = d[j, i] = value
    return d


def centre(g: Geometry, kind: str) -> Centre:
    return next(c for c in g.centres if c.kind == kind)


RIGHT = matrix(3, ab=3.0, ac=4.0, bc=5.0)


def test_right_triangle() -> None:
    g = layout("abc", RIGHT)
    assert g.euclidean
    assert g.shown_2d == pytest.approx(1.0, abs=1e-12)
    # Gram matrix of the centred corners (0,0), (3,0), (0,4): trace = mean of squared sides = 50 / 3,
    # determinant of the 2 x 2 scatter matrix [[6, -4], [-4, 32/3]] = 48.
    assert sum(g.eigenvalues) == pytest.approx(50 / 3, rel=1e-12)
    assert g.eigenvalues[0] * g.eigenvalues[1] == pytest.approx(48.0, rel=1e-12)
    ball = centre(g, "ball")
    assert ball.radius == pytest.approx(2.5, rel=1e-12)
    assert ball.closest == (0, 1, 2)  # a right angle: all corners lie on the circle
    assert ball.margin is None
    # Centroid (1, 4/3): squared distances 25/9, 52/9, 73/9.
    mid = centre(g, "centroid")
    assert [p.points for p in mid.ranking] == [(0,), (1,), (2,)]
    assert mid.ranking[0].distance == pytest.approx(5 / 3, rel=1e-15)
    assert mid.margin == pytest.approx((math.sqrt(52) - 5) / 3, rel=1e-12)
    medoid = centre(g, "medoid")
    assert medoid.closest == (0,)
    assert medoid.ranking[0].distance == 3.5
    assert medoid.margin == 0.5  # mean distances 3.5, 4, 4.5


def test_equilateral_triangle_is_a_tie_everywhere() -> None:
    g = layout("abc", matrix(3, ab=2.0, ac=2.0, bc=2.0))
    assert [c.closest for c in g.centres] == [(0, 1, 2)] * 3
    assert [c.margin for c in g.centres] == [None] * 3
    assert centre(g, "ball").radius == pytest.approx(2 / math.sqrt(3), rel=1e-12)


def test_collinear_points() -> None:
    g = layout("abc", matrix(3, ab=1.0, bc=9.0, ac=10.0))
    assert g.euclidean
    assert sum(v > 0 for v in g.eigenvalues) == 1
    assert np.ptp(g.coordinates[:, 0]) == pytest.approx(10.0, rel=1e-12)
    assert not g.coordinates[:, 1:].any()
    assert centre(g, "centroid").closest == (1,)  # 1 is nearer to 11/3 than 0
    assert centre(g, "medoid").closest == (1,)
    assert centre(g, "ball").ranking[0].points == (1,)
    assert centre(g, "ball").margin == pytest.approx(1.0, rel=1e-9)  # 4 against 5 from the middle
    assert g.hull == ()


def test_identical_points_count_once() -> None:
    # a = b at 0, c at 4, d at 6. Counted twice, a and b would make c and a tie; collapsed, c is the middle.
    d = matrix(4, ac=4.0, bc=4.0, ad=6.0, bd=6.0, cd=2.0)
    g = layout("abcd", d)
    assert g.classes == (("a", "b"), ("c",), ("d",))
    assert centre(g, "centroid").closest == (1,)
    assert centre(g, "medoid").closest == (1,)


def test_all_identical() -> None:
    g = layout("abc", np.zeros((3, 3)))
    assert g.classes == (("a", "b", "c"),)
    assert centre(g, "centroid").closest == (0,)
    assert centre(g, "ball").radius == 0.0


def test_two_points_tie() -> None:
    g = layout("ab", matrix(2, ab=7.0))
    assert [c.closest for c in g.centres] == [(0, 1)] * 3
    assert centre(g, "ball").radius == pytest.approx(3.5, rel=1e-12)


def test_non_euclidean_metric_is_flagged() -> None:
    # The star: three leaves at 1 from a hub and 2 from each other. In a Euclidean space the hub would have
    # to be the middle of every pair. Gram eigenvalues by hand: 2, 2, 0 and -1/4.
    d = matrix(4, ab=1.0, ac=1.0, ad=1.0, bc=2.0, bd=2.0, cd=2.0)
    g = layout("abcd", d)
    assert not g.euclidean
    assert sorted(g.eigenvalues) == pytest.approx([-0.25, 0.0, 2.0, 2.0], abs=1e-12)
    assert g.negative_share == pytest.approx(0.25 / 4.25, rel=1e-12)
    assert centre(g, "medoid").closest == (0,)
    assert centre(g, "medoid").margin == pytest.approx(2 / 3, rel=1e-15)


def test_regular_tetrahedron_has_four_faces() -> None:
    g = layout("abcd", np.ones((4, 4)) - np.eye(4))
    assert g.shown_2d == pytest.approx(2 / 3, rel=1e-12)
    assert g.shown_3d == pytest.approx(1.0, rel=1e-12)
    assert len(g.hull) == 4
    assert centre(g, "ball").radius == pytest.approx(math.sqrt(3 / 8), rel=1e-12)


def test_hull_leaves_out_an_inner_point() -> None:
    points = np.array([[0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 4], [1, 1, 1]], dtype=np.float64)
    assert {i for face in hull(points) for i in face} == {0, 1, 2, 3}


def test_triangles() -> None:
    right = triangle(3.0, 4.0, 5.0)
    assert right.kind == "proper"
    assert right.area == pytest.approx(6.0, rel=1e-15)
    assert right.angles is not None
    assert right.angles[2] == pytest.approx(90.0, rel=1e-15)
    assert right.angles[0] == pytest.approx(math.degrees(math.atan2(3, 4)), rel=1e-12)
    assert triangle(1.0, 2.0, 3.0).kind == "degenerate"
    assert triangle(0.0, 2.0, 2.0).kind == "degenerate"
    assert triangle(1.0, 2.0, 4.0).kind == "impossible"


@given(st.lists(st.tuples(*[st.integers(-50, 50)] * 3), min_size=2, max_size=9, unique=True))
@settings(max_examples=60, deadline=None)
def test_points_of_a_space_come_back_from_their_distances(raw: list[tuple[int, int, int]]) -> None:
    points = np.array(raw, dtype=np.float64)
    d = np.linalg.norm(points[:, None] - points[None], axis=-1)
    g = layout([str(i) for i in range(len(raw))], d)
    again = np.linalg.norm(g.coordinates[:, None] - g.coordinates[None], axis=-1)
    assert again == pytest.approx(d, abs=1e-5)
    middle = np.linalg.norm(points - points.mean(axis=0), axis=1)
    first = centre(g, "centroid").ranking[0]
    assert first.distance == pytest.approx(middle.min(), abs=1e-6)


@given(st.lists(st.tuples(*[st.integers(-20, 20)] * 3), min_size=1, max_size=10, unique=True))
@settings(max_examples=60, deadline=None)
def test_the_ball_holds_every_point_and_none_smaller_does(raw: list[tuple[int, int, int]]) -> None:
    points = np.array(raw, dtype=np.float64)
    middle, radius = smallest_ball(points)
    away = np.linalg.norm(points - middle, axis=1)
    assert away.max() <= radius + 1e-6
    # Optimality: in every direction from the centre some boundary point lies on the other side or level.
    boundary = points[away >= radius - 1e-6] - middle
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((64, 3))
    assert (boundary @ directions.T).min(axis=0).max() <= 1e-5


@pytest.mark.parametrize(
    ("d", "match"),
    [
        (np.zeros((2, 2)), "shape"),
        (np.full((3, 3), np.nan), "not finite"),
        (matrix(3, ab=-1.0), "negative"),
        (np.triu(np.ones((3, 3)), 1), "symmetric"),
    ],
)
def test_bad_matrices_are_explained(d: NDArray[np.float64], match: str) -> None:
    with pytest.raises(InputError, match=match):
        layout("abc", d)
