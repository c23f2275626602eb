"""How the tokens of a term count: what makes a sum over more tokens, or one more step, of the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from search.prove.values import Poly, Value

#: e^sink: one more token, which has no value.
SINK = "E_sink"


def signature(term: Value) -> Any:
    """How the tokens of a term count: the factors of e^s and of e^s v that all of them share; None if they share none.

    A sum of terms of one signature over more tokens, or pieces, is the same with more tokens.
    """
    above, below = term.terms()
    counted: dict[tuple[str, Any], dict[str, Fraction]] = {}
    for mono, c in above.items():
        tokens = [(s, n) for s, n in mono if s[0] == "E"]
        values = [(s, n) for s, n in mono if s[0] == "v"]
        if len(tokens) != 1 or tokens[0][1] != 1:
            return None
        token = tokens[0][0]
        if values and values != [("v" + token[1:], 1)]:
            return None
        rest = tuple((s, n) for s, n in mono if s[0] not in "Ev")
        counted.setdefault(("N" if values else "L", rest), {})[token] = c
    if any(len(set(tokens.values())) > 1 for tokens in counted.values()):
        return None
    if len({frozenset(t for t in tokens if t != SINK) for tokens in counted.values()}) > 1:
        return None
    shape = tuple(
        sorted((kind, rest, next(iter(tokens.values()))) for (kind, rest), tokens in counted.items())
    )
    return shape, below


def tokens_of(term: Value) -> set[str]:
    """The tokens that a term counts."""
    above, _ = term.terms()
    return {s for mono in above for s, _ in mono if s[0] == "E"}


def form_of(value: Value) -> Any:
    """The signature of a state; of 0 the empty one. A division by the sum of all its e^s is one by any such sum."""
    if not value.coefficient:
        return ((), ())
    found = signature(value)
    if found is None:
        return None
    shape, below = found
    mine = tokens_of(value)
    return shape, tuple(("all e^s" if _is_sum_of(p, mine) else p, n) for p, n in below)


def _is_sum_of(poly: Poly, tokens: set[str]) -> bool:
    names = {m[0][0] for m, c in poly if len(m) == 1 and m[0][1] == 1 and c == 1}
    return len(names) == len(poly) and names - {SINK} == tokens - {SINK}


def same_form(a: Any, b: Any, pairs: Sequence[tuple[Value, Value]]) -> bool:
    """Whether two signatures are one, with the maxima of the first step replaced by those of the second."""
    if a == b or a == ((), ()):
        return True
    named = [(x.mono[0][0], y.mono[0][0]) for x, y in pairs if len(x.mono) == 1 and len(y.mono) == 1]
    return any(_renamed(a, {x: y}) == b for x, y in named) or _renamed(a, dict(named)) == b


def _renamed(x: Any, names: Mapping[str, str]) -> Any:
    if isinstance(x, str):
        return names.get(x, x)
    if not isinstance(x, tuple):
        return x
    parts: list[Any] = [_renamed(y, names) for y in x]  # pyright: ignore[reportUnknownVariableType]
    is_mono = all(isinstance(y, tuple) and len(y) == 2 and isinstance(y[1], int) for y in parts)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(sorted(parts, key=repr)) if is_mono else tuple(parts)
