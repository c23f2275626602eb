"""Geometry of runs: triangles known by construction, centres, groups, parts, and how sure a ranking is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from reports.runs import regions
from reports.runs.build import compare
from reports.runs.chances import rank_chances
from reports.runs.distance import MEASURES
from reports.runs.regions import clustered
from tests.reports.runs import making
from tests.verify.metrics import made


def whole(report):
    (region,) = [g for g in report.geometry if g.subset == "all"]
    return region


def test_a_right_triangle():
    region = whole(compare(making.triangle(), draws=2)[0])
    assert region.metric == "rms"
    assert region.points == (("a", "d"), ("b",), ("c",))
    assert np.array(region.distances) == pytest.approx(np.array([[0, 3, 4], [3, 0, 5], [4, 5, 0]]))
    (t,) = region.triangles
    assert t.sides == pytest.approx((5, 4, 3))
    assert t.angles == pytest.approx((90, np.degrees(np.arctan(4 / 3)), np.degrees(np.arctan(3 / 4))))
    assert (t.kind, t.area, region.euclidean) == ("proper", pytest.approx(6), True)
    centres = {x.kind: x for x in region.centres}
    # The centroid is (1, 4/3) from the right angle; b and c lie at (3, 0) and (0, 4).
    assert [p.names for p in centres["centroid"].ranking] == [("a = d",), ("b",), ("c",)]
    assert [p.distance for p in centres["centroid"].ranking] == pytest.approx(
        [5 / 3, np.hypot(2, 4 / 3), np.hypot(1, 8 / 3)]
    )
    assert [p.distance for p in centres["medoid"].ranking] == pytest.approx([3.5, 4, 4.5])
    assert centres["medoid"].margin == pytest.approx(0.5)
    # The smallest ball has the hypotenuse as its diameter: all three lie on it.
    assert (centres["ball"].margin, centres["ball"].radius) == (None, pytest.approx(2.5))
    assert all(x.chances is None for x in region.centres), "one conversation: nothing to resample"


@pytest.mark.parametrize(
    ("metric", "sides"),
    [
        ("rms", (5, 4, 3)),
        ("mean_abs", (4, 4, 3)),  # |3 p - 4 q| is 1 or 7, each half of the time
        ("max_abs", (7, 4, 3)),
        ("row_max", (7, 4, 3)),
        ("different", (1, 1, 1)),
        ("flips", None),
    ],
)
def test_distances_of_other_kinds(metric, sides):
    report = compare(making.triangle(), metric=metric, draws=2)[0]
    region = whole(report)
    if sides is None:
        assert region.points == (("a", "b", "c", "d"),)
        assert region.triangles == ()
        return
    assert region.metric == metric
    assert region.triangles[0].sides == pytest.approx(sides)
    assert region.triangles[0].kind == ("degenerate" if metric in ("max_abs", "row_max") else "proper")
    table = next(m for m in report.matrices if m.metric == metric)
    assert table.values[1][2] == pytest.approx(sides[0])


def test_a_run_that_is_not_numerics_is_no_neighbour():
    broken = made.run("broken", made.sequence(values=making.base(4, seed=9)))
    report = compare((*making.triangle(), broken), draws=2)[0]
    assert whole(report).points == (("a", "d"), ("b",), ("c",))
    assert {name for pair in report.verdict.not_numerics for name in pair} == {"a", "b", "c", "d", "broken"}
    assert (
        "broken is off by more than rounding makes against 4 others: not numerics" in report.verdict.headline
    )
    assert any("left out of the geometry" in n.text for n in report.notes)


def test_parts_by_batch_size_depth_and_range():
    """Who is closest changes with the batch size and with the range, and each part says so."""

    def run(name, size, steps_early, steps_late):
        values = np.concatenate([making.moved(2, *steps_early), making.moved(2, *steps_late, seed=1)])
        one = made.sequence(values=values, depths=[1, 1, 300, 300], ranges=("short", "short", "long", "long"))
        return making.at(made.run(f"{name}{size}", one), gpu=name, batch_size=size)

    one = [run("a", 1, [], [(1, 8)]), run("b", 1, [(1, 2)], []), run("c", 1, [(2, 2)], [(2, 2)])]
    eight = [run("a", 8, [(1, 9)], [(1, 9)]), run("b", 8, [], []), run("c", 8, [(2, 1)], [(2, 30)])]
    report = compare([*one, *eight], metric="rms", draws=2)[0]
    parts = {(g.subset, g.name): g for g in report.geometry}
    assert set(parts) == {
        ("all", ""),
        ("batch size", "1"),
        ("batch size", "8"),
        ("range", "short"),
        ("range", "long"),
        ("depth", "1"),
        ("depth", "256-511"),
    }
    assert parts["batch size", "8"].points == (("a8",), ("b8",), ("c8",))
    assert np.array(parts["batch size", "8"].distances)[0, 1] == pytest.approx(9)
    short, late = parts["range", "short"], parts["range", "long"]
    assert short.rows == (2, 2)
    at = {names: i for i, names in enumerate(short.points)}
    assert at.keys() == {("a1", "b8"), ("b1",), ("c1",), ("a8",), ("c8",)}
    assert short.distances[at["b1",]][at["c1",]] == pytest.approx(np.sqrt(8))
    assert parts["depth", "256-511"].distances == late.distances
    medoid = [next(x for x in p.centres if x.kind == "medoid").ranking[0].names for p in (short, late)]
    # In the plane of the two patterns; equal points count once.
    early = {"a1 = b8": (0, 0), "b1": (2, 0), "c1": (0, 2), "a8": (9, 0), "c8": (0, 1)}
    after = {"a1": (8, 0), "b1 = b8": (0, 0), "c1": (0, 2), "a8": (9, 0), "c8": (0, 30)}
    for found, points in zip(medoid, (early, after), strict=True):
        total = {n: sum(np.hypot(x - u, y - v) for u, v in points.values()) for n, (x, y) in points.items()}
        assert found == (min(total, key=lambda n: total[n]),)
    assert medoid[0] != medoid[1]


def test_triangles_of_one_gpu_and_of_one_backend_are_linked():
    runs = []
    for i, (gpu, backend) in enumerate((g, b) for g in ("H200", "B200") for b in ("fa2", "xqa", "triton")):
        run = made.run(f"{gpu} {backend}", made.sequence(values=making.moved(2, (i + 1, 1 + i))))
        runs.append(making.at(run, gpu=gpu, attention_backend=backend))
    region = whole(compare(runs, draws=2)[0])
    assert len(region.triangles) == 20
    shared = [t.shared for t in region.triangles]
    assert shared[:2] == ["gpu H200", "gpu B200"]
    assert not any(shared[2:])
    assert [region.points[i][0][5:] for i, _ in region.links] == ["fa2", "xqa", "triton"]
    assert all(region.points[i][0][5:] == region.points[j][0][5:] for i, j in region.links)


def test_a_point_of_several_runs_stands_for_each_of_them():
    """Triton gives the same bits on both GPUs: the triangle of each GPU still has three corners."""
    sizes = {("H200", "fa2"): 1, ("H200", "xqa"): 2, ("B200", "fa2"): 3, ("B200", "xqa"): 4}
    sizes |= {("H200", "triton"): 5, ("B200", "triton"): 5}
    runs = [
        making.at(
            made.run(f"{g} {b}", made.sequence(values=making.moved(2, (n, n)))), gpu=g, attention_backend=b
        )
        for (g, b), n in sizes.items()
    ]
    region = whole(compare(runs, draws=2)[0])
    assert len(region.points) == 5
    linked = {t.shared: set(t.names) for t in region.triangles if t.shared}
    both = "H200 triton = B200 triton"
    assert linked == {"gpu H200": {"H200 fa2", "H200 xqa", both}, "gpu B200": {"B200 fa2", "B200 xqa", both}}
    assert len(region.links) == 2


def test_chances_of_places():
    """Conversations pull two ways; the shares are those of a plain resampling with another generator."""
    rng = np.random.default_rng(5)
    n, names = 20, [f"c{i}" for i in range(20)]
    sums = {(i, j): rng.uniform(0.5, 1.5, n) + 0.02 * (i + j) for i, j in combinations(range(3), 2)}
    pairs = {key: (names, x, np.ones(n)) for key, x in sums.items()}
    found = rank_chances(3, pairs, root=True, draws=4000, seed=1)
    assert found is not None
    first = {"centroid": np.zeros(3), "medoid": np.zeros(3)}
    other = np.random.default_rng(77)
    for _ in range(4000):
        pick = other.integers(0, n, n)
        d = np.zeros((3, 3))
        for (i, j), x in sums.items():
            d[i, j] = d[j, i] = np.sqrt(x[pick].mean())
        first["centroid"][(d**2).sum(axis=1).argmin()] += 1 / 4000
        first["medoid"][d.sum(axis=1).argmin()] += 1 / 4000
    for kind, shares in first.items():
        assert found[kind][:, 0] == pytest.approx(shares, abs=0.03)
        assert found[kind].sum(axis=0) == pytest.approx([1, 1, 1])
        assert 0.05 < shares.max() < 0.999


def test_points_that_tie_share_the_better_place():
    names = [f"c{i}" for i in range(12)]
    pairs = {key: (names, np.full(12, 2.0), np.ones(12)) for key in combinations(range(3), 2)}
    found = rank_chances(3, pairs, root=False, draws=50, seed=1)
    assert found is not None
    assert found["medoid"].tolist() == [[1, 0, 0]] * 3
    few = {key: (names[:9], x[:9], n[:9]) for key, (_, x, n) in pairs.items()}
    assert rank_chances(3, few, root=False, draws=50, seed=1) is None


def test_chances_in_a_report():
    """b is between a and c in each of twelve conversations, so it is always the closest."""
    runs = [
        made.run(name, *(made.sequence(f"c{i}", values=making.moved(1, *s, seed=i)) for i in range(12)))
        for name, s in (("a", []), ("b", [(1, 1)]), ("c", [(1, 2.5)]))
    ]
    region = whole(compare(runs, draws=100)[0])
    medoid = next(x for x in region.centres if x.kind == "medoid")
    assert medoid.ranking[0].names == ("b",)
    assert medoid.chances is not None
    assert medoid.chances[1] == (1, 0, 0)
    assert region.triangles[0].kind == "degenerate"


def test_clusters():
    """Points on a line: complete linkage joins the nearest; the head is the member closest to the others."""
    x = np.array([0.0, 10, 0.5, 11, 0.4, 30])
    d = np.abs(x[:, None] - x)
    assert clustered(d, 6) == ([[0], [1], [2], [3], [4], [5]], 0)
    found, width = clustered(d, 3)
    assert (found, width) == ([[4, 0, 2], [1, 3], [5]], 1)
    equal = np.abs(x[[0, 0, 1, 1], None] - x[[0, 0, 1, 1]])
    assert clustered(equal, 9) == ([[0, 1], [2, 3]], 0)


def test_many_runs_are_clustered(monkeypatch):
    monkeypatch.setattr(regions, "MOST", 3)
    steps = {"a": (1, 1.0), "b": (1, 1.25), "c": (1, 20.0), "d": (2, 30.0), "e": (2, 30.5)}
    runs = [made.run(n, made.sequence(values=making.moved(2, s))) for n, s in steps.items()]
    report = compare(runs, metric="rms", draws=2)[0]
    region = whole(report)
    assert region.points == (("a", "b"), ("c",), ("d", "e"))
    assert region.cluster_width == pytest.approx(0.5)
    assert np.array(region.distances)[0] == pytest.approx([0, 19, np.hypot(1, 30)])
    assert any("5 runs are drawn as 3 clusters" in n.text for n in report.notes)


def test_every_distance_has_a_name_that_the_sums_have():
    """The sources of distances are metrics of pairs, so that none is silently never found."""
    _, found = compare(making.triangle(), draws=2)
    known = set(found.pairs[0].sums.metrics)
    assert {m.source for m in MEASURES.values() if m.source} - {"abs_logprob"} <= known
