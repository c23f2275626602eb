"""Shapley values in rationals.

A game gives a number ``v(S)`` to every set of players, 0 to none. A player's value is the average, over all orders in
which players can join, of what the game gains when it joins (L. S. Shapley, "A value for n-person games", 1953). The
values of all players add up to ``v(all)``: here exactly, since every number is a rational, and it is checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import factorial, sqrt

Players = frozenset[int]
Game = Callable[[Players], Sequence[Fraction]]
#: Up to so many players every set is evaluated.
EXACT = 6
#: Orders that are sampled where there are more.
ORDERS = 64


@dataclass(frozen=True)
class Values:
    """Shapley values of several games with the same players.

    Attributes:
        phi: by player and game. total: ``v(all)`` by game; the sum of each column of ``phi``.
        errors: standard errors, by player and game; None where the values are exact.
        sets: how many sets were evaluated. orders: how many orders were sampled; 0: none.
    """

    phi: tuple[tuple[Fraction, ...], ...]
    total: tuple[Fraction, ...]
    errors: tuple[tuple[float, ...], ...] | None
    sets: int
    orders: int = 0

    def __post_init__(self) -> None:
        for i, total in enumerate(self.total):
            if sum((row[i] for row in self.phi), Fraction(0)) != total:
                raise AssertionError(f"Shapley values of game {i} do not add up to {total}")


def every_set(n: int) -> list[Players]:
    """All sets of n players, smaller ones first."""
    return [frozenset(s) for k in range(n + 1) for s in combinations(range(n), k)]


def sampled_orders(n: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """``count`` orders of n players, drawn with a seed."""
    drawn = random.Random(seed)
    return [tuple(drawn.sample(range(n), n)) for _ in range(count)]


def sets_of(orders: Sequence[Sequence[int]]) -> list[Players]:
    """The sets that arise while players join in these orders."""
    found = {frozenset(order[:k]): None for order in orders for k in range(len(order) + 1)}
    return sorted(found, key=lambda s: (len(s), sorted(s)))


def exact_values(n: int, table: Mapping[Players, Sequence[Fraction]]) -> Values:
    """Shapley values of n players from ``v`` of every set, by game."""
    games = len(table[frozenset()])
    phi = [[Fraction(0)] * games for _ in range(n)]
    for s, values in table.items():
        for i in range(n):
            if i in s:
                weight = Fraction(factorial(len(s) - 1) * factorial(n - len(s)), factorial(n))
                before = table[s - {i}]
                for g in range(games):
                    phi[i][g] += weight * (values[g] - before[g])
    return Values(tuple(map(tuple, phi)), _total(n, table), None, len(table))


def sampled_values(
    n: int, table: Mapping[Players, Sequence[Fraction]], orders: Sequence[Sequence[int]]
) -> Values:
    """Estimates from sampled orders, with standard errors; they, too, add up to ``v(all)``."""
    games = len(table[frozenset()])
    gains: list[list[list[Fraction]]] = [[[] for _ in range(games)] for _ in range(n)]
    for order in orders:
        for k, i in enumerate(order):
            before, after = table[frozenset(order[:k])], table[frozenset(order[: k + 1])]
            for g in range(games):
                gains[i][g].append(after[g] - before[g])
    count = len(orders)
    phi = tuple(tuple(sum(one, Fraction(0)) / count for one in row) for row in gains)
    errors = tuple(
        tuple(_error(one, mean) for one, mean in zip(row, means, strict=True))
        for row, means in zip(gains, phi, strict=True)
    )
    return Values(phi, _total(n, table), errors, len(table), count)


def _total(n: int, table: Mapping[Players, Sequence[Fraction]]) -> tuple[Fraction, ...]:
    return tuple(a - b for a, b in zip(table[frozenset(range(n))], table[frozenset()], strict=True))


def _error(gains: Sequence[Fraction], mean: Fraction) -> float:
    if len(gains) < 2:
        return float("inf")
    square = sum(((x - mean) ** 2 for x in gains), Fraction(0)) / (len(gains) - 1)
    return sqrt(float(square / len(gains)))
