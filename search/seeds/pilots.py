"""Pilot tokens: scores at which the weights of one group of tokens round up on one side and down on another.

Most kernels round the weight ``exp(score - maximum of the group)`` to a narrow format. A *cell* is a set of tokens
that lie in one group on each side. A *pilot* is a token of value 0 with the highest score of a side's group: it sets
the maximum that the weights of the cell are relative to. With a pilot of its own on each side, the same token has a
weight just above the midpoint of two narrow numbers on one side and just below one on the other. Tokens of positive
value (`PLUS`) and of negative value (`MINUS`) get a cell each, with the directions that add up; tokens of value 0 count
in the normaliser alone. Whether it works is not assumed: what comes out is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from search.compact import Geometry

PLUS, MINUS = 1, -1
#: What a token without mass is for.
PILOT, BALLAST, FILLER = -1, -2, -3
#: Scores lie on this grid, so that differences of scores below 16 are exact in f32.
GRID = 2.0**-20
#: Scores are placed around this: far above the floor of the box, on the finest grid that allows it.
CENTRE = 8.0


@dataclass(frozen=True)
class Role:
    """What the tokens of one cell are for.

    Attributes:
        sign: of their values: `PLUS` or `MINUS`.
        phases: by side, where the weight lies: 1 just above the midpoint above a power of two (it rounds up), -1 just
            below it (down), 0 on the power of two (not rounded).
    """

    sign: int
    phases: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cell:
    """Tokens that lie in one piece of the outermost level on every side, and a pilot for each side.

    Attributes:
        pieces: by side.
        tokens: int64, those after the pilots in the order of visits.
        pilots: by side, a token of that side's piece.
    """

    pieces: tuple[int, ...]
    tokens: NDArray[np.int64]
    pilots: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Template:
    """Scores for a few tokens, and what each is for.

    Attributes:
        tokens: int64, ascending.
        scores: float64 ``[token]``, on `GRID`.
        role: int64 ``[token]``: the number of the role whose mass the token is, or `PILOT`, `BALLAST`, `FILLER`.
        roles: the roles.
    """

    tokens: NDArray[np.int64]
    scores: NDArray[np.float64]
    role: NDArray[np.int64]
    roles: tuple[Role, ...]

    @property
    def ballast(self) -> NDArray[np.bool_]:
        """Which tokens move together to set the scale of the output."""
        return self.role == BALLAST


def directions(sides: int, single: int | None = None) -> Iterator[tuple[int, ...]]:
    """The phases of positive mass, by side: every order of sides that keeps them apart."""
    if single is not None:
        yield tuple(1 if i == single else -1 for i in range(sides))
        yield tuple(-1 if i == single else 1 for i in range(sides))
        return
    spread = {2: (1, -1), 3: (1, 0, -1)}.get(sides, (1, *([0] * (sides - 2)), -1))
    yield from dict.fromkeys(permutations(spread))


def roles(phases: tuple[int, ...], cancellation: float) -> tuple[Role, ...]:
    """The roles for one direction: positive mass and, where cancellation is allowed, negative mass."""
    plus = Role(PLUS, phases)
    return (plus,) if cancellation >= 1 else (plus, Role(MINUS, tuple(-p for p in phases)))


def cells(geometry: Geometry, rng: np.random.Generator, count: int) -> list[Cell]:
    """Up to ``count`` cells with a pilot for each side, the largest first, then at random."""
    sides, length = geometry.piece.shape
    found, number, size = np.unique(geometry.piece, axis=1, return_inverse=True, return_counts=True)
    order = np.argsort(-size, kind="stable")
    if len(order) > count:
        rest = rng.permutation(order[count // 2 :])[: count - count // 2]
        order = np.concatenate([order[: count // 2], rest])
    out: list[Cell] = []
    for cell in order:
        pieces = tuple(int(p) for p in found[:, cell])
        if Geometry.UNSEEN in pieces:
            continue
        inside = number == cell
        pilots: list[int] = []
        for side in range(sides):
            own = geometry.piece[side] == pieces[side]
            others = np.zeros(length, np.bool_)
            for other in range(sides):
                if other != side:
                    others |= geometry.piece[other] == pieces[other]
            choice = next(
                (c for c in (own & ~others, own & ~inside, own) if (c & ~_taken(pilots, length)).any()), None
            )
            if choice is None:
                break
            free = np.flatnonzero(choice & ~_taken(pilots, length))
            pilots.append(int(free[geometry.rank[side, free].argmin()]))
        if len(pilots) < sides:
            continue
        tokens = np.flatnonzero(inside & ~_taken(pilots, length))
        if len(tokens):
            late = np.stack(
                [geometry.rank[s, tokens] > geometry.rank[s, pilots[s]] for s in range(sides)]
            ).all(axis=0)
            out.append(Cell(pieces, tokens[np.argsort(~late, kind="stable")], tuple(pilots)))
    return out


def _taken(tokens: Sequence[int], length: int) -> NDArray[np.bool_]:
    mask = np.zeros(length, np.bool_)
    mask[list(tokens)] = True
    return mask


def weight(phase: int, unit: float, eps: float) -> float:
    """The weight of a phase, in [1, 2): ``unit`` is the unit roundoff of the narrow format."""
    return {1: (1 + unit) * (1 + eps), -1: (1 + unit) * (1 - eps), 0: 1.0}[phase]


def offset(phase: int, unit: float, eps: float, exponent: int) -> float:
    """How far below its pilot a token of this phase lies, on `GRID`, rounded to the side that the phase asks for.

    The weight is ``weight(phase) * 2**-exponent``.
    """
    exact = exponent * math.log(2) - math.log(weight(phase, unit, eps))
    steps = exact / GRID
    if phase == 0:
        return round(steps) * GRID
    # Up means a larger weight, so a smaller distance.
    midpoint = (exponent * math.log(2) - math.log1p(unit)) / GRID
    below = math.floor(midpoint - 1e-9)
    count = min(math.floor(steps), below) if phase == 1 else max(math.ceil(steps), below + 1)
    return count * GRID


def assemble(
    geometry: Geometry,
    chosen: Sequence[tuple[Role, Cell, int]],
    units: Sequence[float],
    eps: float,
    shifts: Sequence[float],
    exponents: Sequence[Sequence[int]],
    ballast: int | None,
) -> Template | None:
    """The scores of some cells together.

    Args:
        geometry: of the sides.
        chosen: for each role its cell and how many of its tokens have mass.
        units: by side, the unit roundoff of the format that weights are rounded to.
        eps: how far from the midpoint, relative.
        shifts: by role, what its scores are moved by.
        exponents: by role and side, see `offset`.
        ballast: a token of value 0 that sets the scale of the output; None: none.

    Returns:
        the template; None where the pilots of one cell outrank those of another, or tokens are used twice.
    """
    scores: dict[int, float] = {}
    role: dict[int, int] = {}
    tops: list[tuple[int, int, float]] = []
    for r, (what, cell, count) in enumerate(chosen):
        base = CENTRE + round(shifts[r] / GRID) * GRID
        for token in cell.tokens[:count].tolist():
            if token in role:
                return None
            scores[token], role[token] = base, r
        for side, pilot in enumerate(cell.pilots):
            height = base + offset(what.phases[side], units[side], eps, exponents[r][side])
            if role.get(pilot, -1) >= 0:
                return None
            scores[pilot] = max(scores.get(pilot, -math.inf), height)
            role[pilot] = PILOT
            tops.append((side, cell.pieces[side], height))
    if ballast is not None:
        if ballast in scores:
            return None
        scores[ballast], role[ballast] = CENTRE, BALLAST
    tokens = np.array(sorted(scores), dtype=np.int64)
    placed = np.array([scores[t] for t in tokens.tolist()])
    kind = np.array([role[t] for t in tokens.tolist()], dtype=np.int64)
    for side, piece, height in tops:
        own = (geometry.piece[side, tokens] == piece) & (kind != BALLAST)
        if placed[own].max() != height:
            return None
    return Template(tokens, placed, kind, tuple(what for what, _, _ in chosen))


def with_zeros(
    template: Template, geometry: Geometry, side: int, unit: float, eps: float, count: int
) -> Template | None:
    """The template with tokens of value 0 whose weights round against those of the positive mass on one side.

    They lie in that side's groups of the positive mass and of the ballast, under the pilot there, and change the
    normaliser of a side that sums rounded weights.

    Returns:
        None where no token is free.
    """
    plus = next(i for i, r in enumerate(template.roles) if r.sign == PLUS)
    distance = offset(-template.roles[plus].phases[side], unit, eps, 1)
    leaders = [int(np.flatnonzero(template.role == plus)[0]), *np.flatnonzero(template.ballast)[:1].tolist()]
    tokens, scores, role = [template.tokens], [template.scores], [template.role]
    for leader in leaders:
        inside = geometry.piece[side, template.tokens] == geometry.piece[side, template.tokens[leader]]
        height = float(template.scores[inside].max())
        where = _free(template, geometry, side, leader, height - distance)[:count]
        tokens.append(where)
        scores.append(np.full(len(where), height - distance))
        role.append(np.full(len(where), FILLER if leader == leaders[0] else BALLAST))
    joined = np.concatenate(tokens)
    if len(joined) == len(template.tokens):
        return None
    order = np.argsort(joined)
    return Template(joined[order], np.concatenate(scores)[order], np.concatenate(role)[order], template.roles)


def _free(template: Template, geometry: Geometry, side: int, leader: int, height: float) -> NDArray[np.int64]:
    """Tokens of the leader's group that are free and, at ``height``, outrank no pilot on another side.

    Those that the side visits after the group's first token come first.
    """
    free = geometry.piece[side] == geometry.piece[side, template.tokens[leader]]
    free[template.tokens] = False
    for other in range(geometry.piece.shape[0]):
        pieces = geometry.piece[other, template.tokens]
        for piece in np.unique(pieces[template.role >= 0]):
            if template.scores[pieces == piece].max() < height:
                free &= geometry.piece[other] != piece
    where = np.flatnonzero(free)
    inside = geometry.piece[side, template.tokens] == geometry.piece[side, template.tokens[leader]]
    first = geometry.rank[side, template.tokens[inside]].min()
    return where[np.argsort(geometry.rank[side, where] < first, kind="stable")]


def ballast_token(geometry: Geometry, chosen: Sequence[tuple[Role, Cell, int]]) -> int | None:
    """A token whose pieces no cell uses on any side, alone or else first in it; None: there is none."""
    free = (geometry.piece != Geometry.UNSEEN).all(axis=0)
    for _, cell, _ in chosen:
        for side, piece in enumerate(cell.pieces):
            free &= geometry.piece[side] != piece
        free[list(cell.pilots)] = False
    where = np.flatnonzero(free)
    return int(where[geometry.rank[:, where].sum(axis=0).argmin()]) if len(where) else None
