"""Pilots and mass: weights fall where they are meant to, and cells are what they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.compact import Geometry
from search.seeds.pilots import (
    BALLAST,
    CENTRE,
    FILLER,
    GRID,
    PILOT,
    Cell,
    assemble,
    ballast_token,
    cells,
    directions,
    offset,
    roles,
    with_zeros,
)

UNITS = (2.0**-8, 2.0**-8)


def tiles(length: int, *sizes: int) -> Geometry:
    at = np.arange(length, dtype=np.int32)
    return Geometry(np.stack([at // n for n in sizes]), np.stack([at % n for n in sizes]))


@given(
    phase=st.sampled_from([1, -1]),
    precision=st.sampled_from([4, 8, 11]),
    eps=st.sampled_from([2.0**-12, 2.0**-18, 2.0**-30]),
    exponent=st.integers(1, 6),
)
def test_a_weight_lies_on_its_side_of_the_midpoint(
    phase: int, precision: int, eps: float, exponent: int
) -> None:
    distance = offset(phase, 2.0**-precision, eps, exponent)
    assert distance / GRID == round(distance / GRID)
    weight = math.exp(-distance) * 2.0**exponent
    midpoint = 1 + 2.0**-precision
    assert (weight > midpoint) == (phase == 1)
    assert abs(weight / midpoint - 1) < eps + 2 * GRID


def test_an_exact_weight() -> None:
    assert math.exp(-offset(0, 2.0**-8, 0.0, 3)) == pytest.approx(1 / 8, rel=GRID)


def test_directions() -> None:
    assert set(directions(2)) == {(1, -1), (-1, 1)}
    assert set(directions(3)) == {
        (1, 0, -1), (1, -1, 0), (0, 1, -1), (0, -1, 1), (-1, 0, 1), (-1, 1, 0),
    }  # fmt: skip
    assert list(directions(3, 1)) == [(-1, 1, -1), (1, -1, 1)]
    assert [r.sign for r in roles((1, -1), 1.0)] == [1]
    assert [r.phases for r in roles((1, -1), 0.5)] == [(1, -1), (-1, 1)]


@given(st.integers(3, 80), st.integers(2, 30), st.integers(2, 30), st.integers(0, 99))
def test_cells(length: int, a: int, b: int, seed: int) -> None:
    geometry = tiles(length, a, b)
    for cell in cells(geometry, np.random.default_rng(seed), 16):
        assert len(set(cell.pilots)) == 2
        for side in range(2):
            assert geometry.piece[side, cell.pilots[side]] == cell.pieces[side]
            assert (geometry.piece[side, cell.tokens] == cell.pieces[side]).all()
        assert not set(cell.pilots) & set(cell.tokens.tolist())


def test_a_template_by_hand() -> None:
    """Tokens 0-7: groups of 5 and of 3. Mass on tokens 3 and 4; pilots 0 (first side) and 5 (second side)."""
    geometry = tiles(8, 5, 3)
    cell = Cell((0, 1), np.array([3, 4]), (0, 5))
    what = roles((1, -1), 1.0)
    made = assemble(geometry, [(what[0], cell, 2)], UNITS, 2.0**-12, [0.0], [(1, 1)], 7)
    assert made is not None
    assert made.tokens.tolist() == [0, 3, 4, 5, 7]
    assert made.role.tolist() == [PILOT, 0, 0, PILOT, BALLAST]
    up, down = math.exp(CENTRE - made.scores[0]), math.exp(CENTRE - made.scores[3])
    assert up == pytest.approx((1 + 2.0**-8) * (1 + 2.0**-12) / 2, rel=1e-5)
    assert down == pytest.approx((1 + 2.0**-8) * (1 - 2.0**-12) / 2, rel=1e-5)
    # A pilot of the second side inside the first side's group may not outrank the first side's.
    inside = Cell((0, 1), np.array([3]), (0, 4))
    assert assemble(geometry, [(what[0], inside, 1)], UNITS, 2.0**-12, [0.0], [(1, 2)], None) is None
    assert assemble(geometry, [(what[0], inside, 1)], UNITS, 2.0**-12, [0.0], [(2, 1)], None) is not None
    # Tokens of value 0 go where the first side has room: 1 and 2, under its pilot; 6 is of another group.
    more = with_zeros(made, geometry, 0, UNITS[0], 2.0**-12, 9)
    assert more is not None
    assert more.tokens[more.role == FILLER].tolist() == [1, 2]
    assert more.tokens[more.role == BALLAST].tolist() == [6, 7]
    low = math.exp(more.scores[1] - more.scores[0])
    assert low < (1 + 2.0**-8) / 2 < low * (1 + 2.0**-11)


def test_ballast_lies_in_groups_that_nothing_else_uses() -> None:
    geometry = tiles(12, 5, 3)
    cell = Cell((0, 1), np.array([3, 4]), (0, 5))
    what = roles((1, -1), 1.0)[0]
    assert ballast_token(geometry, [(what, cell, 2)]) in (6, 7, 8, 9, 10, 11)
    assert ballast_token(tiles(6, 6, 3), [(what, Cell((0, 0), np.array([0]), (3, 1)), 1)]) is None
