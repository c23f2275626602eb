"""Shapley values: textbook games, and the laws that define them."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.explain.shapley import (
    Players,
    Values,
    every_set,
    exact_values,
    sampled_orders,
    sampled_values,
    sets_of,
)

Table = dict[Players, tuple[Fraction, ...]]


def tables(n: int) -> st.SearchStrategy[Table]:
    numbers = st.fractions(min_value=-100, max_value=100, max_denominator=1 << 20)
    sets = every_set(n)[1:]
    zero: Table = {frozenset(): (Fraction(0),)}
    return st.lists(numbers, min_size=len(sets), max_size=len(sets)).map(
        lambda xs: zero | {s: (x,) for s, x in zip(sets, xs, strict=True)}
    )


def test_the_glove_game() -> None:
    """One left glove, two right ones: a pair is worth 1 (Shapley values 2/3, 1/6, 1/6)."""
    table = {s: (Fraction(int(0 in s and len(s) > 1)),) for s in every_set(3)}
    found = exact_values(3, table)
    assert found.phi == ((Fraction(2, 3),), (Fraction(1, 6),), (Fraction(1, 6),))
    assert found.errors is None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), tables(n))))
def test_they_are_the_average_over_all_orders(game: tuple[int, Table]) -> None:
    n, table = game
    found = exact_values(n, table)
    for i in range(n):
        gains = [
            table[frozenset(order[: order.index(i) + 1])][0] - table[frozenset(order[: order.index(i)])][0]
            for order in permutations(range(n))
        ]
        assert found.phi[i][0] == sum(gains, Fraction(0)) / len(gains)
    assert sum(row[0] for row in found.phi) == table[frozenset(range(n))][0]


@settings(max_examples=12, deadline=None)
@given(tables(4), tables(4))
def test_values_of_a_sum_are_sums_of_values(one: Table, two: Table) -> None:
    both: Table = {s: (one[s][0] + two[s][0],) for s in one}
    phis = [[row[0] for row in exact_values(4, t).phi] for t in (one, two, both)]
    assert phis[2] == [a + b for a, b in zip(phis[0], phis[1], strict=True)]


@settings(max_examples=12, deadline=None)
@given(tables(4), st.integers(0, 1000))
def test_sampled_values_add_up_exactly_too(table: Table, seed: int) -> None:
    orders = sampled_orders(4, 5, seed)
    assert orders == sampled_orders(4, 5, seed)
    found = sampled_values(4, {s: table[s] for s in sets_of(orders)}, orders)
    assert sum(row[0] for row in found.phi) == table[frozenset(range(4))][0]
    assert found.errors is not None
    assert all(row[0] >= 0 for row in found.errors)


def test_all_orders_give_the_exact_values_and_an_additive_game_no_error() -> None:
    table: Table = {s: (Fraction(len(s) ** 2),) for s in every_set(3)}
    orders = list(permutations(range(3)))
    assert sampled_values(3, table, orders).phi == exact_values(3, table).phi
    additive: Table = {s: (Fraction(sum(s)),) for s in every_set(3)}
    found = sampled_values(3, additive, orders[:2])
    assert found.phi == ((Fraction(0),), (Fraction(1),), (Fraction(2),))
    assert found.errors == ((0.0,), (0.0,), (0.0,))


def test_what_does_not_add_up_is_refused() -> None:
    with pytest.raises(AssertionError, match="do not add up"):
        Values(((Fraction(1),),), (Fraction(2),), None, 2)
