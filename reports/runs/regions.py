"""The geometry of runs: who can be placed with whom, in which distance, and where each stands.

Only runs that were all compared with each other can be placed together; they form groups. A pair that is "not numerics"
is no neighbour: one broken run would otherwise decide who is closest to the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from reports.geometry import Geometry, layout, triangle
from reports.runs import contract as c
from reports.runs.chances import Sums, rank_chances
from reports.runs.distance import MEASURES, PREFERRED, Measure, distance, sums
from verify.metrics.compare import RunsComparison, RunSummary
from verify.metrics.depth import Bin
from verify.metrics.pairs import PairComparison

Floats = NDArray[np.float64]
Pairs = Mapping[frozenset[str], PairComparison]
#: More points than this are clustered: the smallest ball and the hull cost too much, and nobody reads them.
MOST = 16
TRIANGLES, TRIANGLES_OF_SUBSET = 220, 35


def regions(found: RunsComparison, asked: Measure | None) -> tuple[tuple[c.Region, ...], tuple[str, ...]]:
    """The geometry of each group of three or more runs, then of its subsets; and what could not be drawn.

    Args:
        found: the comparison.
        asked: the distance; None takes for each group the first of `PREFERRED` that all its pairs have.
    """
    pairs = {frozenset((p.first, p.second)): p for p in found.pairs if p.coverage.rows and not gross(p)}
    about = {run.name: run for run in found.runs}
    made: list[c.Region] = []
    notes: list[str] = []
    wanted = [asked] if asked else [MEASURES[name] for name in PREFERRED]
    for members in groups([run.name for run in found.runs], pairs, wanted):
        if len(members) < 3:
            continue
        one = next(x for x in wanted if all(distance(p, x) is not None for p in _of(members, pairs)))
        made += _group(members, one, pairs, about, found)
        wide = max((g.cluster_width for g in made), default=0.0)
        if len(members) > MOST and wide:
            notes.append(
                f"{len(members)} runs are drawn as {MOST} clusters, each at the place of the run closest to its others"
            )
        rows = {p.coverage.rows for p in _of(members, pairs)}
        if len(rows) > 1:
            notes.append(
                f"pairs of {', '.join(members[:3])}{' ...' * (len(members) > 3)} were compared on {min(rows):,} to "
                f"{max(rows):,} rows: their distances are not of one set of rows"
            )
    return tuple(made), tuple(notes)


def gross(pair: PairComparison) -> bool:
    """Whether a pair differs by more than rounding makes."""
    return any(f.severity == "error" and f.text.startswith("not numerics") for f in pair.findings)


def groups(names: Sequence[str], pairs: Pairs, wanted: Sequence[Measure]) -> list[list[str]]:
    """Runs in groups: a run joins the first group to all of whose members it has a distance."""

    def near(a: str, b: str) -> bool:
        pair = pairs.get(frozenset((a, b)))
        return pair is not None and any(distance(pair, x) is not None for x in wanted)

    def together(members: list[str]) -> bool:
        return any(all(distance(p, x) is not None for p in _of(members, pairs)) for x in wanted)

    out: list[list[str]] = []
    for name in names:
        home = next((g for g in out if all(near(name, m) for m in g) and together([*g, name])), None)
        if home is None:
            out.append([name])
        else:
            home.append(name)
    return out


def _of(members: Sequence[str], pairs: Pairs) -> Iterator[PairComparison]:
    for a, b in combinations(members, 2):
        yield pairs[frozenset((a, b))]


def _group(
    members: list[str], one: Measure, pairs: Pairs, about: Mapping[str, RunSummary], found: RunsComparison
) -> list[c.Region]:
    def whole(pair: PairComparison) -> float | None:
        return distance(pair, one)

    def place(names: list[str], subset: str, name: str, of: Callable[[PairComparison], float | None]) -> None:
        region = _region(names, one, pairs, about, of, (subset, name), found)
        if region is not None:
            made.append(region)

    made: list[c.Region] = []
    place(members, "all", "", whole)
    sizes = {m: about[m].coordinate.get("batch_size") for m in members}
    if len(set(sizes.values())) > 1:
        for size in sorted({s for s in sizes.values() if s is not None}):
            place([m for m in members if sizes[m] == size], "batch size", str(size), whole)
    first = next(_of(members, pairs))
    for subset, bins in (("range", first.ranges), ("depth", first.depth)):
        examples = subset == "depth" and about[members[0]].capture.get("value_kind") == "scores"
        if len(bins) > 1 and not examples:
            for b in bins:
                place(members, subset, b.name, lambda p, s=subset, n=b.name: _in_bin(p, one, s, n))
    return made


def _bin(pair: PairComparison, subset: str, name: str) -> Bin | None:
    return next((b for b in (pair.ranges if subset == "range" else pair.depth) if b.name == name), None)


def _in_bin(pair: PairComparison, one: Measure, subset: str, name: str) -> float | None:
    """The distance of a pair on the rows of one bin."""
    b = _bin(pair, subset, name)
    cell = None if b is None else b.metrics.get(one.source or "max_abs")
    if cell is None:
        return None
    return one.from_mean(cell.mean if one.source else cell.maximum)


def _region(
    names: list[str],
    one: Measure,
    pairs: Pairs,
    about: Mapping[str, RunSummary],
    of: Callable[[PairComparison], float | None],
    subset: tuple[str, str],
    found: RunsComparison,
) -> c.Region | None:
    n = len(names)
    if n < 3:
        return None
    names = sorted(
        names, key=lambda name: -_decimals(about[name])
    )  # of one point the finest tells where it is
    d = np.zeros((n, n))
    rows: list[int] = []
    for i, j in combinations(range(n), 2):
        pair = pairs[frozenset((names[i], names[j]))]
        value = of(pair)
        if value is None:
            return None
        d[i, j] = d[j, i] = value
        b = _bin(pair, *subset) if subset[0] in ("range", "depth") else None
        rows.append(_rows(pair, one) if b is None else b.rows)
    _as_one(d, [[names.index(x) for x in members if x in names] for members in found.identity.classes])
    clusters, width = clustered(d, MOST)
    if width:
        heads = [members[0] for members in clusters]
        shape = layout([names[i] for i in heads], d[np.ix_(heads, heads)])
        shape = replace(shape, classes=tuple(tuple(names[i] for i in members) for members in clusters))
    else:
        shape = layout(names, d)
    first = [names.index(members[0]) for members in shape.classes]
    d = d[np.ix_(first, first)]
    chances = None
    if subset[0] in ("all", "batch size") and one.source:
        between = _between([members[0] for members in shape.classes], pairs, one)
        chances = rank_chances(
            len(first), between, root=one.root, draws=found.settings.draws, seed=found.settings.seed
        )
    limit = TRIANGLES if subset[0] == "all" else TRIANGLES_OF_SUBSET
    triangles, left = _triangles(shape, d, about, limit)
    return c.Region(
        metric=one.name,
        title=one.title,
        subset=subset[0],  # pyright: ignore[reportArgumentType]
        name=subset[1],
        rows=(min(rows), max(rows)),
        points=shape.classes,
        cluster_width=width,
        distances=tuple(tuple(float(x) for x in row) for row in d),
        coordinates=tuple((float(x), float(y), float(z)) for x, y, z in shape.coordinates),
        eigenvalues=shape.eigenvalues,
        euclidean=shape.euclidean,
        negative_share=shape.negative_share,
        shown_2d=min(1.0, shape.shown_2d),
        shown_3d=min(1.0, shape.shown_3d),
        hull=shape.hull,
        centres=tuple(_centres(shape, chances)),
        triangles=triangles,
        left_out=left,
        links=_links(shape, about),
    )


def _decimals(run: RunSummary) -> float:
    found = run.capture.get("decimals")
    return inf if found is None else found


def _as_one(d: Floats, classes: Sequence[Sequence[int]]) -> None:
    """Put runs that are equal, to the printed digits of the coarsest, at the place of the first of them."""
    for members in classes:
        for i in sorted(members)[1:]:
            d[i, :] = d[min(members), :]
            d[:, i] = d[:, min(members)]


def _rows(pair: PairComparison, one: Measure) -> int:
    """Rows that a distance is taken from: full ones only, where it is of all values."""
    full = one.name in ("rms", "mean_abs", "different") and pair.values is not None
    return pair.values.rows if full and pair.values is not None else pair.coverage.rows


def clustered(d: Floats, most: int) -> tuple[list[list[int]], float]:
    """Points in at most ``most`` clusters, by complete linkage; those at distance 0 from each other always together.

    Args:
        d: ``[n, n]`` distances.
        most: number of clusters.

    Returns:
        Clusters in the order of their first members, in each first the one with the least sum of distances to the others;
        and the largest distance inside a cluster.
    """
    found = [[i] for i in range(len(d))]
    link = d.astype(np.float64).copy()
    np.fill_diagonal(link, np.inf)
    width = 0.0
    while len(found) > 1:
        i, j = sorted(divmod(int(link.argmin()), len(found)))
        if link[i, j] > 0 and len(found) <= most:
            break
        width = max(width, float(link[i, j]))
        found[i] += found.pop(j)
        link[i] = link[:, i] = np.maximum(link[i], link[j])
        link[i, i] = np.inf
        link = np.delete(np.delete(link, j, axis=0), j, axis=1)
    out: list[list[int]] = []
    for members in sorted(found, key=min):
        inside = sorted(members)
        head = min(inside, key=lambda i: (float(d[i, inside].sum()), i))
        out.append([head, *(i for i in inside if i != head)])
    return out, width


def _between(points: Sequence[str], pairs: Pairs, one: Measure) -> dict[tuple[int, int], Sums]:
    out: dict[tuple[int, int], Sums] = {}
    for i, j in combinations(range(len(points)), 2):
        pair = pairs[frozenset((points[i], points[j]))]
        both = sums(pair, one)
        if both is not None:
            out[i, j] = (pair.sums.names, *both)
    return out


def _centres(shape: Geometry, chances: dict[str, Floats] | None) -> Iterator[c.Centre]:
    for centre in shape.centres:
        table = None if chances is None else chances.get(centre.kind)
        x, y, z = centre.at
        yield c.Centre(
            kind=centre.kind,
            ranking=tuple(
                c.Place(
                    points=rank.points,
                    names=tuple(" = ".join(shape.classes[p]) for p in rank.points),
                    distance=rank.distance,
                )
                for rank in centre.ranking
            ),
            margin=centre.margin,
            at=(x, y, z),
            radius=centre.radius,
            chances=None if table is None else tuple(tuple(float(v) for v in row) for row in table),
        )


def backend(run: RunSummary) -> str | None:
    """The attention backend of a run: what it resolved to, or else what was asked for."""
    return run.coordinate.get("attention_backend") or run.coordinate.get("requested_backend")


def gpu(run: RunSummary) -> str | None:
    """The GPU of a run, or else its platform."""
    return run.coordinate.get("gpu") or run.coordinate.get("platform")


def _common(members: Sequence[Sequence[str]], about: Mapping[str, RunSummary]) -> str:
    """What points share of GPU and backend: one GPU with several backends, or one backend on several GPUs.

    A point of several runs may stand for any of them.
    """
    points = [[about[name] for name in names] for names in members]
    for word, of, other in (("gpu", gpu, backend), ("backend", backend, gpu)):
        for value in sorted(set.intersection(*({of(r) or "" for r in runs} for runs in points)) - {""}):
            there = [{other(r) for r in runs if of(r) == value} for runs in points]
            if all(None not in x for x in there) and len(set().union(*there)) > 1:
                return f"{word} {value}"
    return ""


def _triangles(
    shape: Geometry, d: Floats, about: Mapping[str, RunSummary], limit: int
) -> tuple[tuple[c.Triangle, ...], int]:
    """Triangles of every three points, those that share a GPU or a backend first; and how many were left out."""
    n = len(shape.classes)
    total = n * (n - 1) * (n - 2) // 6
    corners = list(islice(combinations(range(n), 3), 100 * limit))
    shared = {t: _common([shape.classes[i] for i in t], about) for t in corners}
    corners.sort(key=lambda t: not shared[t])
    out: list[c.Triangle] = []
    for t in corners[:limit]:
        i, j, k = t
        found = triangle(float(d[j, k]), float(d[i, k]), float(d[i, j]))
        names = [" = ".join(shape.classes[p]) for p in t]
        out.append(
            c.Triangle(
                corners=t,
                names=(names[0], names[1], names[2]),
                sides=found.sides,
                kind=found.kind,
                angles=found.angles,
                area=found.area,
                shared=shared[t],
            )
        )
    return tuple(out), total - len(out)


def _links(shape: Geometry, about: Mapping[str, RunSummary]) -> tuple[tuple[int, int], ...]:
    """Points that are one backend on two GPUs."""
    return tuple(
        (i, j)
        for i, j in combinations(range(len(shape.classes)), 2)
        if _common([shape.classes[i], shape.classes[j]], about).startswith("backend ")
    )
