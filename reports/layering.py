"""Layered layout of a dataflow: ranks, order within a rank, and places along it. No drawing.

The usual steps of a layered drawing: longest-path ranks (kept inside the bands that the sections give),
a dummy where an edge passes a rank, sweeps that order each rank by the middle of its neighbours, and places
that minimise the squared distance to the neighbours at a minimum separation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reports.contract import Flow, FlowEdge

SWEEPS = 24
SEPARATION = 1.0
DUMMY_SEPARATION = 0.28


@dataclass(frozen=True, slots=True)
class Layers:
    """A layout in units: ``rank`` and ``place`` of each node, and of the dummies along each forward edge.

    ``routes``: for the index of a forward edge, the places at the ranks that it passes.
    ``bands``: first and last rank of each section, by name.
    """

    rank: dict[str, int]
    place: dict[str, float]
    routes: dict[int, tuple[float, ...]]
    bands: dict[str, tuple[int, int]]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return 1 + max(self.rank.values(), default=-1)

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest place of a node or a route."""
        every = [*self.place.values(), *(y for r in self.routes.values() for y in r)]
        return min(every, default=0.0), max(every, default=0.0)


def arrange(flow: Flow) -> Layers:
    """Lay out ``flow``."""
    forward = [(i, e) for i, e in enumerate(flow.edges) if e.when != "prev"]
    rank, bands = _ranks(flow, [e for _, e in forward])
    ranked: list[list[str]] = [[] for _ in range(1 + max(rank.values(), default=0))]
    for node in flow.nodes:
        ranked[rank[node.id]].append(node.id)
    chains: dict[int, list[str]] = {}
    links: list[tuple[str, str]] = []
    for i, edge in forward:
        first, last = rank[edge.source], rank[edge.target]
        if last <= first:
            continue
        dummies = [f"\0{i}.{r}" for r in range(first + 1, last)]
        for r, dummy in zip(range(first + 1, last), dummies, strict=True):
            ranked[r].append(dummy)
        chain = [edge.source, *dummies, edge.target]
        chains[i] = dummies
        links.extend(pairwise(chain))
    places = _places(ranked, links)
    return Layers(
        rank=rank,
        place={n.id: places[n.id] for n in flow.nodes},
        routes={i: tuple(places[d] for d in dummies) for i, dummies in chains.items()},
        bands=bands,
    )


def _ranks(flow: Flow, forward: Sequence[FlowEdge]) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    section = {n.id: n.section for n in flow.nodes}
    rank: dict[str, int] = {}
    bands: dict[str, tuple[int, int]] = {}
    base = 0
    for column in flow.sections:
        inside = [n.id for n in flow.nodes if n.section == column.name]
        before: dict[str, list[str]] = defaultdict(list)
        for e in forward:
            if section[e.source] == section[e.target] == column.name and e.when == "now":
                before[e.target].append(e.source)
        depth: dict[str, int] = {}
        for _ in inside:  # relaxation: as many rounds as the longest path can have steps
            for n in inside:
                depth[n] = max((depth.get(b, 0) + 1 for b in before[n]), default=0)
        for n in inside:
            rank[n] = base + min(depth[n], len(inside) - 1)
        last = max((rank[n] for n in inside), default=base)
        bands[column.name] = (base, last)
        base = last + 1
    return rank, bands


def _places(ranked: list[list[str]], links: list[tuple[str, str]]) -> dict[str, float]:
    left: dict[str, list[str]] = defaultdict(list)
    right: dict[str, list[str]] = defaultdict(list)
    for a, b in links:
        right[a].append(b)
        left[b].append(a)
    place = {name: float(i) for column in ranked for i, name in enumerate(column)}
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        near = left if forward else right
        for column in ranked if forward else reversed(ranked):
            wish = {n: _mean([place[m] for m in near[n]], place[n]) for n in column}
            column.sort(key=lambda n: wish[n])
            _place(column, wish, place)
    for _ in range(SWEEPS):  # the order stands; settle between both sides
        for column in ranked:
            wish = {n: _mean([place[m] for m in (*left[n], *right[n])], place[n]) for n in column}
            _place(column, wish, place)
    return place


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _gap(above: str, below: str) -> float:
    thin = (above[0] == "\0") + (below[0] == "\0")
    return (SEPARATION, (SEPARATION + DUMMY_SEPARATION) / 2, DUMMY_SEPARATION)[thin]


def _place(column: list[str], wish: dict[str, float], place: dict[str, float]) -> None:
    """Heights nearest to ``wish`` in least squares, in this order and apart: pool adjacent violators."""
    offset = 0.0
    offsets: list[float] = []
    for i, name in enumerate(column):
        offset += _gap(column[i - 1], name) if i else 0.0
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # (sum, count)
    for name, shift in zip(column, offsets, strict=True):
        pools.append((wish[name] - shift, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + count)
    index = 0
    for total, count in pools:
        for _ in range(count):
            place[column[index]] = total / count + offsets[index]
            index += 1
