"""The three level rules cut any sequence into pieces that own each token exactly once: Z3, over all integers.

The numbers are unbounded: any length, count, unit and skip. ``a // b`` enters as ``a == q * b + r`` with ``0 <= r < b``,
so that nothing but products is left. Levels nest: where each level cuts what its parent owns into disjoint pieces that
cover it, each token has one innermost piece and one place in it. `search.prove.recheck` holds these formulas against
the code that makes plans.
"""

from __future__ import annotations

from typing import Any

#: Z3's time for one lemma, in milliseconds. Each takes less than a tenth of a second.
MILLISECONDS = 10_000
KINDS = ("tiles", "pieces", "deal")
TEXT = {
    "tiles": "tiles(n): tile t // n, visited in either direction, is in range, and no other tile owns token t",
    "pieces": "pieces(n, unit, of, skip): some piece in 0..n-1 owns token t, and no two do, if n pieces cover the length",
    "deal": "deal(n, unit, skip): piece (t // unit - skip) % n owns token t, and no other piece does",
}


def prove_level(kind: str, milliseconds: int = MILLISECONDS) -> str:
    """``unsat`` if the lemma of a kind of level holds (its negation has no model), else ``sat`` or ``unknown``.

    Args:
        kind: ``tiles``, ``pieces`` or ``deal``.
        milliseconds: of each of its queries.
    """
    answers = [_refute(hypotheses, goal, milliseconds) for hypotheses, goal in _parts(kind)]
    return next((a for a in answers if a != "unsat"), "unsat")


def _refute(hypotheses: list[Any], goal: Any, milliseconds: int) -> str:
    import z3

    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    solver.add(*hypotheses)
    solver.add(z3.Not(goal))
    return str(solver.check())


def _divided(a: Any, b: Any, q: Any, r: Any) -> list[Any]:
    return [a == q * b + r, r >= 0, r < b]


def _parts(kind: str) -> list[tuple[list[Any], Any]]:
    import z3 as untyped

    z3: Any = untyped
    t, length, n, unit, skip = z3.Ints("t length n unit skip")
    q, r, q2, r2 = z3.Ints("q r q2 r2")
    count, j = z3.Ints("count j")
    whole = [(count - 1) * unit < length, length <= count * unit]  # count = ceildiv(length, unit)
    inside = [unit >= 1, t >= 0, t < length]
    if kind == "tiles":
        visit = count - 1 - q
        one = (
            [*inside, *whole, *_divided(t, unit, q, r)],
            z3.And(q >= 0, q < count, visit >= 0, visit < count),
        )
        two = ([unit >= 1, *_divided(t, unit, q, r), *_divided(t, unit, q2, r2)], z3.And(q == q2, r == r2))
        return [one, two]
    unit_of_token = ([*inside, *whole, *_divided(t, unit, j, r)], z3.And(j >= 0, j < count))
    if kind == "pieces":
        width, g, h = z3.Ints("width g h")  # width of a piece in units

        def edge(i: Any) -> Any:
            return z3.If(i == 0, 0, skip + i * width)

        def owns(i: Any) -> Any:
            return z3.And(edge(i) <= j, j < edge(i + 1))

        cut = [n >= 1, skip >= 0, skip <= count, width >= 0, count - skip <= n * width, j >= 0, j < count]
        inner = z3.Implies(width >= 1, z3.And(*_divided(j - skip, width, q, r)))
        owner = z3.If(j < skip + width, 0, q)
        one = ([*cut, inner], z3.And(owner >= 0, owner < n, owns(owner)))
        two = ([n >= 1, skip >= 0, width >= 0, g >= 0, g < h, owns(g)], z3.Not(owns(h)))
        return [unit_of_token, one, two]
    i, k, a, b, c, d = z3.Ints("i k a b c d")
    dealt = [n >= 1, skip >= 0, *_divided(j, n, q, r)]
    one = (
        [*dealt, *_divided(r - skip, n, a, i), *_divided(i + skip, n, b, c)],
        z3.And(i >= 0, i < n, c == r),
    )
    two = (
        [
            *(n >= 1, skip >= 0, c == d, i >= 0, i < n, k >= 0, k < n),
            *_divided(i + skip, n, a, c),
            *_divided(k + skip, n, b, d),
        ],
        i == k,
    )
    return [unit_of_token, one, two]
